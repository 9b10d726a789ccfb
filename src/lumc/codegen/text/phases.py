"""A loop over lanes in phases: functions that take all lanes of a piece at once.

The steps up to the argument of such a function fill an array, the function makes another one of
it, and the other steps go on from there. Some vectors side by side in every phase also hide the
waiting that one long chain of operations per vector means.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import permutations

_VALUE = re.compile(r"const (\w+) (v_\d+) = (.*);")
_CALL = re.compile(r"lumc_(decay|exp2_ftz)_f32\((v_\d+)\)")
_WIDE_CALL = re.compile(r"lumc_(decay|exp2_ftz|log2)_f32\((v_\d+)\)")  # tables of 16 elements
_RECIP = re.compile(r"lumc_recip_(f32|f64)\((v_\d+)\)")
_PRODUCT = re.compile(r"\((v_\d+) \* (v_\d+)\)")
KEPT = {"_Bool": "int"}  # bytes among floats keep compilers from vectors
_LOAD = re.compile(r"\w+\[[^][]*\]")  # cheaper to read again than to keep


@dataclass(frozen=True)
class Phase:
    """Steps of every lane, and the call for all of them that follows."""

    steps: Sequence[str]
    call: str = ""


def has_calls(steps: Iterable[str], lanes: int) -> bool:
    """Is there anything to be done for all lanes at once?"""
    return any((m := _VALUE.fullmatch(s)) and _call(m[3], lanes) for s in steps)


def _call(value: str, lanes: int) -> re.Match[str] | None:
    return (_CALL if lanes < 16 else _WIDE_CALL).fullmatch(value)


def phases(
    steps: Sequence[str], lane: str, count: int | str, most: int, lanes: int
) -> tuple[list[str], list[Phase]]:
    """The arrays and the phases of steps that begin with all their values.

    ``lane`` counts up to ``count``, which is ``most`` at most if it is no number; arrays are
    whole vectors of ``lanes`` elements, with zeros where no lane is.
    """
    width = -(-(count if isinstance(count, int) else most) // lanes) * lanes
    zeros = " = {0}" * (width != count)
    values = {m[2]: m for s in steps if (m := _VALUE.fullmatch(s))}
    calls = {v: c for v, m in values.items() if (c := _call(m[3], lanes))}
    last = [s for s in steps if not _VALUE.fullmatch(s)]
    home = dict.fromkeys(calls, -1)  # the phase that computes a value
    kept = {v for name, c in calls.items() for v in (name, c[2])}  # in arrays
    used = list[set[str]]()
    for i, ends in enumerate([*([c[2]] for c in calls.values()), _names(last)]):
        used.append(set())
        todo = list(ends)
        while todo:
            v = todo.pop()
            if v not in values or v in used[i]:
                continue
            used[i].add(v)
            if home.setdefault(v, i) == i or _LOAD.fullmatch(values[v][3]):
                todo += _names([values[v][3]])
            else:
                kept.add(v)

    def said(i: int) -> list[str]:
        out = list[str]()
        for v, m in values.items():
            if v in used[i]:
                again = home[v] < i and v in kept
                out.append(f"const {m[1]} {v} = {_array(v)}[{lane}];" if again else m[0])
        return out + [f"{_array(v)}[{lane}] = {v};" for v in values if v in kept and home[v] == i]

    arrays = [
        f"{KEPT.get(m[1], m[1])} {_array(v)}[{width}] __attribute__((aligned(64))){zeros};"
        for v, m in values.items()
        if v in kept
    ]
    done = [
        Phase(said(i), f"lumc_{c[1]}_n_f32({_array(v)}, {_array(c[2])}, {count});")
        for i, (v, c) in enumerate(calls.items())
    ]
    return arrays, [*done, Phase([*said(len(done)), *last])]


def quotients(steps: Sequence[str]) -> list[str]:
    """``b / a`` instead of ``(1 / a) * b``, where nothing else reads the reciprocal."""
    values, uses = {m[2]: m for s in steps if (m := _VALUE.fullmatch(s))}, Counter(_names(steps))
    out = {s: s for s in steps}
    for m in values.values():
        for one, other in permutations(p.groups()) if (p := _PRODUCT.fullmatch(m[3])) else ():
            recip = _RECIP.fullmatch(values[one][3]) if one in values else None
            if recip and uses[one] == 2:  # where it is made, and here
                out[m[0]] = f"const {m[1]} {m[2]} = ({other} / {recip[2]});"
                out[values[one][0]] = ""
                break
    return [out[s] for s in steps if out[s]]


def _names(texts: Iterable[str]) -> list[str]:
    return [v for t in texts for v in re.findall(r"\bv_\d+\b", t)]


def _array(value: str) -> str:
    return f"p{value[1:]}"

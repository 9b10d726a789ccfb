"""A loop over lanes in phases: functions that take all lanes of a piece at once.

The steps up to the argument of such a function fill an array, the function makes another one of
it, and the other steps go on from there. Some vectors side by side in every phase also hide the
waiting that one long chain of operations per vector means.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import permutations

from lumc.codegen.text.statements import Let, Simple, Steps, names, new, quoted

LINE = 64  # bytes of a cache line
CALLS = {f"{name}_f32": name for name in ("decay", "exp2_ftz", "exp_ftz", "log2")}
WIDE = 16  # lanes that a table of logarithms takes
RECIPS = ("recip_f32", "recip_f64")
KEPT = {"_Bool": "int"}  # bytes among floats keep compilers from vectors


@dataclass(frozen=True)
class Phase:
    """Steps of every lane, and the call for all of them that follows."""

    steps: Steps
    call: str = ""


def array(c_type: str, name: str, size: int, zeros: str = "") -> str:
    """A local array that starts with a cache line."""
    return f"{c_type} {new(name)}[{size}] __attribute__((aligned({LINE}))){zeros};"


def has_calls(steps: Iterable[Simple], lanes: int) -> bool:
    """Is there anything to be done for all lanes at once?"""
    return any(isinstance(s, Let) and _is_call(s, lanes) for s in steps)


def _is_call(s: Let, lanes: int) -> bool:
    return s.op in CALLS and (s.op != "log2_f32" or lanes >= WIDE)


def phases(
    steps: Steps, lane: str, count: int | str, most: int, lanes: int
) -> tuple[list[str], list[Phase]]:
    """The arrays and the phases of steps that begin with all their values.

    ``lane`` counts up to ``count``, which is ``most`` at most if it is no number; arrays are
    whole vectors of ``lanes`` elements, with zeros where no lane is.
    """
    width = -(-(count if isinstance(count, int) else most) // lanes) * lanes
    zeros = " = {0}" * (width != count)
    values = {s.name: s for s in steps if isinstance(s, Let)}
    calls = {v: s for v, s in values.items() if _is_call(s, lanes)}
    last = [s for s in steps if not isinstance(s, Let)]
    home = dict.fromkeys(calls, -1)  # the phase that computes a value
    kept = {v for name, s in calls.items() for v in (name, *s.of)}  # in arrays
    used = list[set[str]]()
    for i, ends in enumerate([*(s.of for s in calls.values()), _read(last)]):
        used.append(set())
        todo = list(ends)
        while todo:
            v = todo.pop()
            if v not in values or v in used[i]:
                continue
            used[i].add(v)
            if home.setdefault(v, i) == i or values[v].op == "load":
                todo += names(values[v].value)
            else:
                kept.add(v)

    def said(i: int) -> list[Simple]:
        out = list[Simple]()
        for v, s in values.items():
            if v in used[i]:
                again = home[v] < i and v in kept
                out.append(Let(s.type, v, f"{_array(v)}[{lane}]") if again else s)
        return out + [f"{_array(v)}[{lane}] = {v};" for v in values if v in kept and home[v] == i]

    arrays = [
        array(KEPT.get(s.type, s.type), _array(v), width, zeros)
        for v, s in values.items()
        if v in kept
    ]
    done = [
        Phase(said(i), f"lumc_{CALLS[s.op]}_n_f32({_array(v)}, {_array(s.of[0])}, {count});")
        for i, (v, s) in enumerate(calls.items())
    ]
    return arrays, [*done, Phase([*said(len(done)), *last])]


def quotients(steps: Steps) -> list[Simple]:
    """``b / a`` instead of ``(1 / a) * b``, where nothing else reads the reciprocal."""
    values, uses = {s.name: s for s in steps if isinstance(s, Let)}, Counter(_read(steps))
    made = dict[str, Let | None]()
    for v, s in values.items():
        for one, other in permutations(s.of) if s.op == "mul" else ():
            recip = values.get(one)
            if recip and recip.op in RECIPS and uses[one] == 1:
                made |= {v: Let(s.type, v, f"({other} / {recip.of[0]})"), one: None}
                break
    said = (made.get(s.name, s) if isinstance(s, Let) else s for s in steps)
    return [s for s in said if s]


def _read(steps: Iterable[Simple]) -> list[str]:
    return [v for s in steps for v in names(s.value if isinstance(s, Let) else s)]


def _array(value: str) -> str:
    return quoted(f"p{value[2:-1]}")

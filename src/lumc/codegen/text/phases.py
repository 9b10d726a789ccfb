"""Loops over lanes in pieces, and in phases: functions that take all lanes of a piece at once.

The steps up to the argument of such a function fill an array, the function makes another one of
it, and the other steps go on from there. Some vectors side by side in every phase also hide the
waiting that one long chain of operations per vector means.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import permutations

from lumc.codegen.text.levels import Levels
from lumc.codegen.text.statements import Let, Pieces, Simple, is_name, names, new, quoted
from lumc.codegen.text.writer import Writer
from lumc.codegen.tile.program import Range
from lumc.graph.expr import Expr, add, axis, dim, substitute

LINE = 64  # bytes of a cache line
CALLS = {"decay_f32": "decay", "exp2_ftz_f32": "exp2_ftz", "log2_f32": "log2"}
WIDE = 16  # lanes that a table of logarithms takes
RECIPS = ("recip_f32", "recip_f64")
KEPT = {"_Bool": "int"}  # bytes among floats keep compilers from vectors


@dataclass(frozen=True)
class Phase:
    """Steps of every lane, and the call for all of them that follows."""

    steps: Sequence[Simple]
    call: str = ""


def array(c_type: str, name: str, size: int, zeros: str = "") -> str:
    """A local array that starts with a cache line."""
    return f"{c_type} {new(name)}[{size}] __attribute__((aligned({LINE}))){zeros};"


def has_calls(steps: Iterable[Simple], lanes: int) -> bool:
    """Is there anything to be done for all lanes at once?"""
    return any(isinstance(s, Let) and _is_call(s, lanes) for s in steps)


def _is_call(s: Let, lanes: int) -> bool:
    known = s.op in CALLS and (s.op != "log2_f32" or lanes >= WIDE)
    return known and is_name(s.of[0])


def phases(
    steps: Sequence[Simple], lane: str, count: int | str, most: int, lanes: int
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


def quotients(steps: Sequence[Simple]) -> list[Simple]:
    """``b / a`` instead of ``(1 / a) * b``, where nothing else reads the reciprocal."""
    values, uses = {s.name: s for s in steps if isinstance(s, Let)}, Counter(_read(steps))
    made = dict[str, Let | None]()
    for v, s in values.items():
        for one, other in permutations(s.of) if s.op == "mul" else ():
            recip = values.get(one)
            if (
                recip
                and recip.op in RECIPS
                and uses[one] == 1
                and is_name(other)
                and is_name(recip.of[0])
            ):
                made |= {v: Let(s.type, v, f"({other} / {recip.of[0]})"), one: None}
                break
    said = (made.get(s.name, s) if isinstance(s, Let) else s for s in steps)
    return [s for s in said if s]


def _read(steps: Iterable[Simple]) -> list[str]:
    return [v for s in steps for v in names(s.value if isinstance(s, Let) else s)]


def _array(value: str) -> str:
    return quoted(f"p{value[2:-1]}")


# ---- pieces of the lanes: NAME_at is where one starts, NAME_l counts within it


def walk_lanes(
    levels: Levels,
    ranges: Mapping[str, Range],
    steps: Sequence[Simple],
    width: int,
    ahead: Sequence[Expr] = (),
    in_pieces: bool = False,
) -> None:
    """All loops of an operation around these steps, the last one in pieces where that helps, or
    where other walks go in step."""
    w, loops, own = levels.writer, levels.loops, levels.at[-1]
    calls = loops and ranges[loops[-1]].largest > 1 and has_calls(own, w.target.lanes)
    if not loops or not (ahead or calls or in_pieces):
        levels.at[-1] = []
        with levels.nest(ranges, len(loops)):
            w.lines_of(quotients([*own, *steps]))
        return
    with levels.nest(ranges, len(loops) - 1):
        pieces(w, loops[-1], ranges[loops[-1]], width, ahead, [*own, *steps])


def lane_loop(
    w: Writer,
    name: str,
    count: int | str,
    steps: Sequence[Simple],
    most: int = 0,
    start: Expr | None = None,
) -> None:
    """These steps for ``count`` lanes, ``most`` at most, of the piece of an axis that starts at
    ``start``, else at ``NAME_at``."""
    c, lane = w.names.axis(name), w.names.axis(f"{name}.l")
    arrays, parts = phases(quotients(steps), lane, count, most, w.target.lanes)
    w.lines_of(arrays)
    for part in parts:
        w.line("#pragma omp simd")
        with w.count(lane, "0", f"{count}"):
            w.let(c, f"{w.index(start or dim(f'{name}.at'))} + {lane}")
            w.lines_of(part.steps)
        if part.call:
            w.line(part.call)


def pieces(
    w: Writer,
    name: str,
    r: Range,
    width: int,
    ahead: Sequence[Expr],
    steps: Sequence[Simple],
    masked: Sequence[Simple] = (),
) -> None:
    """These steps for a range of lanes: whole pieces, then the rest. With ``masked`` the rest is
    the last piece once more, in which ``masked`` skips the lanes below ``seen``."""
    at, end, n = w.names.axis(f"{name}.at"), w.end(r), w.index(r.n)
    if r.largest >= width:
        with whole_pieces(w, at, r, width):
            prefetch(w, name, ahead, width)
            lane_loop(w, name, width, steps)
    if all(size % width == 0 for size in r.sizes):
        return
    rest = r.sizes[0] % width if len(r.sizes) == 1 else f"({n}) % {width}"
    again = bool(masked) and min(r.sizes) >= width
    with w.block("", "rest"):
        if again:
            w.line(Let("int", "`seen`", f"{width} - {rest}"))
        w.let(at, f"{end} - {width if again else rest}")
        lane_loop(w, name, width if again else rest, masked if again else steps, width)


@contextmanager
def whole_pieces(w: Writer, at: str, r: Range, width: int) -> Iterator[None]:
    with w.apart() as body:
        yield
    w.line(Pieces(at, w.index(r.lo), w.end(r), r.largest, width, tuple(body)))


def prefetch(w: Writer, name: str, ahead: Sequence[Expr], width: int) -> None:
    """The lines that these loads touch in a piece of an axis."""
    lane = w.names.axis(f"{name}.l")
    for e in ahead:
        by = LINE // w.places[e.attr[0]].dtype.nbytes
        here = substitute(e, {axis(name): add(dim(f"{name}.at"), dim(f"{name}.l"))})
        head = f"for (long {new(lane)} = 0; {lane} < {width}; {lane} += {by})"
        w.line(f"{head} __builtin_prefetch(&{w.address(here)});")

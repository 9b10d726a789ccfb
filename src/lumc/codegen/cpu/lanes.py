"""Loops over the lanes of an operation as C: plain ones, or in pieces and phases.

``NAME_at`` is where a piece of an axis starts, ``NAME_l`` counts within it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from lumc.codegen.text.levels import Levels
from lumc.codegen.text.phases import LINE, has_calls, phases, quotients
from lumc.codegen.text.statements import SIMD, Let, Pieces, Steps, new
from lumc.codegen.text.writer import Writer
from lumc.codegen.tile.program import Range
from lumc.graph.expr import Expr, add, axis, dim, substitute


def walk_lanes(
    levels: Levels,
    ranges: Mapping[str, Range],
    steps: Steps,
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
    w: Writer, name: str, count: int | str, steps: Steps, most: int = 0, start: Expr | None = None
) -> None:
    """These steps for ``count`` lanes, ``most`` at most, of the piece of an axis that starts at
    ``start``, else at ``NAME_at``."""
    c, lane = w.names.axis(name), w.names.axis(f"{name}.l")
    arrays, parts = phases(quotients(steps), lane, count, most, w.target.lanes)
    w.lines_of(arrays)
    for part in parts:
        with w.count(lane, "0", f"{count}", pragma=SIMD):
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
    steps: Steps,
    masked: Steps = (),
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

"""Rows with lags as C: one loop over the pieces of several rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from lumc.codegen.cpu.map import print_map
from lumc.codegen.cpu.reduce import print_reduce
from lumc.codegen.text.statements import Pieces, Scope, Statement, new
from lumc.codegen.text.writer import Writer
from lumc.codegen.tile.program import Map, Op, Reduce, Rows


def print_skewed(w: Writer, op: Rows) -> None:
    """The first and the last rows, for which some walks have nothing to do, go one walk after the
    other. In a piece what is stored comes last: loads after it at the same place of other pages
    would wait for it."""
    step, most = w.names.axis(f"{op.axis}.step"), max(op.lags)
    lo, end = w.index(op.range.lo), w.end(op.range)
    with w.count(step, lo, f"{end} + {most}", note=f"rows of {op.axis}"):
        with w.block(f"if ({step} - {most} >= {lo} && {step} < {end})", "side by side"):
            w.lines_of(in_step(_apart(w, op, step), w.names.axis(f"{op.axis}.step.at")))
        with w.block("else"):
            for lag, walk in zip(op.lags, op.body, strict=True):
                row = _row(step, lag)
                with w.block(f"if ({row} >= {lo} && {row} < {end})"):
                    w.let(w.names.axis(op.axis), row)
                    _print(w, walk)


def _apart(w: Writer, op: Rows, step: str) -> list[list[Statement]]:
    """What every walk says for its own row."""
    rows = {lag: w.names.axis(f"{op.axis}.r{lag}") for lag in op.lags}
    for lag, row in rows.items():
        w.let(row, _row(step, lag))
    out = list[list[Statement]]()
    for lag, walk in zip(op.lags, op.body, strict=True):
        with w.names.calling(op.axis, rows[lag]), w.apart() as said:
            _print(w, walk, in_pieces=True)
        out.append(said)
    return out


def _print(w: Writer, op: Op, in_pieces: bool = False) -> None:
    if isinstance(op, Map):
        print_map(w, op, in_pieces)
    else:
        assert isinstance(op, Reduce)
        print_reduce(w, op)


def _row(step: str, lag: int) -> str:
    return f"{step} - {lag}" if lag else step


# ---- a pass over statements


def in_step(bodies: Sequence[Sequence[Statement]], at: str) -> Iterator[Statement]:
    """One loop instead of those over whole pieces that these bodies have, each at most one: it
    takes all as far as the longest piece. What stands before and after them stays there."""
    loops = [[s for s in body if isinstance(s, Pieces)] for body in bodies]
    every = list(chain(*loops))
    chunk, n = max(s.width for s in every), every[0].count
    ends = list[Sequence[Statement]]()
    for body, own in zip(bodies, loops, strict=True):
        i = body.index(own[0]) if own else len(body)
        yield from body[:i]
        rest = [n % chunk // s.width * s.width for s in own]
        left = [_some(s, str(n - n % chunk), m) for s, m in zip(own, rest, strict=True) if m]
        ends.append([*left, *body[i + 1 :]])
    head = f"for (long {new(at)} = 0; {at} + {chunk} <= {n}; {at} += {chunk})"
    yield Scope(head, tuple(_some(s, at, chunk) for s in every))
    yield from chain(*ends)


def _some(s: Pieces, start: str, count: int) -> Scope:
    """The whole pieces among ``count`` elements from ``start`` on."""
    start = start if s.start == "0" else f"{s.start} + {start}"
    test = f"{s.at} < {start} + {count}"
    return Scope(f"for (long {new(s.at)} = {start}; {test}; {s.at} += {s.width})", s.body)

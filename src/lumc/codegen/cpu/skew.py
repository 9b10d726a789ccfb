"""Rows with lags as C: one loop over the pieces of several rows at a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from lumc.codegen.text.writer import Lines, Pieces, Writer
from lumc.codegen.tile.program import Op, Rows

Print = Callable[[list[Op]], None]


def print_skewed(w: Writer, op: Rows, operations: Print) -> None:
    """The first and the last rows, for which some walks have nothing to do, go one walk after the
    other. In a piece what is stored comes last: loads after it at the same place of other pages
    would wait for it."""
    step, most = w.names.axis(f"{op.axis}.step"), max(op.lags)
    lo, end = w.index(op.range.lo), w.end(op.range)
    head = f"for (long {step} = {lo}; {step} < {end} + {most}; {step}++)"
    with w.block(head, f"rows of {op.axis}"):
        with w.block(f"if ({step} - {most} >= {lo} && {step} < {end})", "side by side"):
            _side_by_side(w, op, step, operations)
        with w.block("else"):
            for lag, walk in zip(op.lags, op.body, strict=True):
                row = _row(step, lag)
                with w.block(f"if ({row} >= {lo} && {row} < {end})"):
                    w.line(f"const long {w.names.axis(op.axis)} = {row};")
                    operations([walk])


def _side_by_side(w: Writer, op: Rows, step: str, operations: Print) -> None:
    rows = {lag: w.names.axis(f"{op.axis}.r{lag}") for lag in op.lags}
    for lag, row in rows.items():
        w.line(f"const long {row} = {_row(step, lag)};")
    parts = list[tuple[Lines, Pieces | None, Lines]]()
    for lag, walk in zip(op.lags, op.body, strict=True):
        with w.names.calling(op.axis, rows[lag]):
            parts.append(w.taken_apart(partial(operations, [walk])))
    for before, _, _ in parts:
        w.lines.extend(before)
    pieces = [p for _, p, _ in parts if p]
    chunk, n = max(p.width for p in pieces), pieces[0].range.largest
    at = f"{step}_at"
    with w.block(f"for (long {at} = 0; {at} + {chunk} <= {n}; {at} += {chunk})"):
        for p in pieces:
            _pieces(w, p, at, chunk)
    for _, rest, after in parts:
        if rest and n % chunk >= rest.width:
            _pieces(w, rest, str(n - n % chunk), n % chunk // rest.width * rest.width)
        w.lines.extend(after)


def _pieces(w: Writer, p: Pieces, start: str, count: int) -> None:
    """The whole pieces among ``count`` elements from ``start`` on."""
    lo = w.index(p.range.lo)
    start = start if lo == "0" else f"{lo} + {start}"
    with w.block(f"for (long {p.at} = {start}; {p.at} < {start} + {count}; {p.at} += {p.width})"):
        w.lines.extend(p.lines)


def _row(step: str, lag: int) -> str:
    return f"{step} - {lag}" if lag else step

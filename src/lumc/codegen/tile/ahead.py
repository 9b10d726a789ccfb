"""A pass on the tile program: what is prefetched, and when."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import lumc.codegen.tile.program as ir
from lumc.codegen.tile.rows import fusable
from lumc.graph.expr import Expr, add, axis, substitute, subterms
from lumc.kernel.bound import COST
from lumc.schedule.applies import FETCHED

AHEAD = 8 << 10  # bytes: what memory delivers while a core computes a few rows in cache
NEAR = 2 << 10  # bytes of a walk from end to end: what is fetched earlier is gone when it is read


def look_ahead(program: ir.Program) -> ir.Program:
    """Prefetch what a later row reads, or a later part of what is read from end to end: the
    hardware does not look beyond a page, and sees nothing while a row is computed in cache."""
    inputs = {n: p for n, p in program.places.items() if p.kind == "argument"}
    places = {n: p for n, p in inputs.items() if n not in program.kernel.stored}

    def fetched(ops: list[ir.Op], loop: ir.Op | None) -> list[ir.Op]:
        row, lags = ([loop.axis], loop.lags) if isinstance(loop, ir.Rows) else ([], ())
        readers = dict[Expr, list[tuple[int, int, Expr]]]()
        for i, op in enumerate(ops):
            if fusable(op):
                terms = subterms(*ir.terms_of(op))
                work = sum(COST.get(e.attr[0], 1) for e in terms if e.kind in ("un", "bin"))
                for e, later in _later(op, row, places, lags[i] if lags else 0):
                    readers.setdefault(e if row else later, []).append((-work, i, later))
        for each in readers.values():
            _, i, later = min(each, key=lambda found: found[:2])  # beside the most work
            if fusable(op := ops[i]):
                ops[i] = replace(op, ahead=(*op.ahead, later))
        return ops

    return replace(program, body=ir.rewrite(program.body, fetched))


def _later(
    op: ir.Map | ir.Reduce, row: list[str], places: Mapping[str, ir.Place], lag: int
) -> Iterator[tuple[Expr, Expr]]:
    """The tensors that an operation reads along its lanes, each once: the load with the lane axis
    renamed, and the load that follows ``AHEAD`` bytes or more after it, or ``NEAR`` bytes; later by
    the rows that the operation is behind the first reader."""
    loops = [*row, *(op.axes if isinstance(op, ir.Map) else (*op.kept, *op.red))]
    along_kept = isinstance(op, ir.Reduce) and op.lanes == "kept"  # whole rows of memory in order
    if not loops or along_kept or op.ranges[loops[-1]].largest < FETCHED:
        return
    lane, outer = loops[-1], loops[-2:][0]
    for e in (e for e in ir.loads_of(op) if e.attr[0] in places):
        place = places[e.attr[0]]
        read = place.access(e)
        if not read.is_contiguous(lane) or not read.is_affine(outer) or not read.stride(outer):
            continue
        nbytes, length = place.dtype.nbytes, op.ranges[lane].largest
        if outer == lane or (not row and read.stride(outer) == length and length * nbytes >= NEAR):
            later = {axis(lane): add(axis(lane), NEAR // nbytes)}
        else:
            later = {axis(outer): add(axis(outer), lag - (-AHEAD // (nbytes * length)))}
        yield substitute(e, {axis(lane): axis("lane")}), substitute(e, later)

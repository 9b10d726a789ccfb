"""Passes on the tile program: what is prefetched, and when."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

import lumc.codegen.tile.program as ir
from lumc.codegen.tile.rows import fusable
from lumc.graph.expr import Expr, add, axis, substitute, subterms
from lumc.kernel.bound import COST
from lumc.schedule.applies import FETCHED

AHEAD = 8 << 10  # bytes: what memory delivers while a core computes a few rows in cache
NEAR = 2 << 10  # bytes of a walk from end to end: what is fetched earlier is gone when it is read
MEANWHILE = 128  # steps of a register tile that leave time to fetch


def look_ahead(program: ir.Program) -> ir.Program:
    """Prefetch what a later row reads, or a later part of what is read from end to end: the
    hardware does not look beyond a page, and sees nothing while a row is computed in cache."""
    inputs = {n: p for n, p in program.places.items() if p.kind == "argument"}
    places = {n: p for n, p in inputs.items() if n not in program.kernel.stored}

    def walk(body: Sequence[ir.Op], row: list[str], lags: Sequence[int] = ()) -> list[ir.Op]:
        ops, readers = list(body), dict[Expr, list[tuple[int, int, Expr]]]()
        for i, op in enumerate(body):
            if isinstance(op, ir.NESTS):
                inside = ([op.axis], op.lags) if isinstance(op, ir.Rows) else ([], ())
                ops[i] = replace(op, body=walk(op.body, *inside))
            elif isinstance(op, ir.Contract):
                if op.a.attr[0] in places and op.plan.rows_axis:
                    ops[i] = replace(op, ahead=program.kernel.extent[op.plan.rows_axis])
            elif fusable(op):
                terms = subterms(*ir.terms_of(op))
                work = sum(COST.get(e.attr[0], 1) for e in terms if e.kind in ("un", "bin"))
                for e, later in _later(op, row, places, lags[i] if lags else 0):
                    readers.setdefault(e if row else later, []).append((-work, i, later))
        for each in readers.values():
            _, i, later = min(each, key=lambda found: found[:2])  # beside the most work
            if fusable(op := ops[i]):
                ops[i] = replace(op, ahead=(*op.ahead, later))
        return ops

    return replace(program, body=walk(program.body, []))


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
        steps, irregular = place.motion(e.kids)
        if steps.get(lane) != 1 or {lane, outer} & irregular or not steps.get(outer):
            continue
        nbytes, length = place.dtype.nbytes, op.ranges[lane].largest
        if outer == lane or (not row and steps[outer] == length and length * nbytes >= NEAR):
            later = {axis(lane): add(axis(lane), NEAR // nbytes)}
        else:
            later = {axis(outer): add(axis(outer), lag - (-AHEAD // (nbytes * length)))}
        yield substitute(e, {axis(lane): axis("lane")}), substitute(e, later)


def look_beside(program: ir.Program) -> ir.Program:
    """Prefetch what is read and stored at the points of a register tile as soon as its sums are
    complete: the lines arrive while it is computed. Every column or row of it is in another page,
    where the hardware foresees nothing, or too late."""
    arguments = {n: p for n, p in program.places.items() if p.kind == "argument"}

    def walk(body: Sequence[ir.Op], after: Sequence[ir.Op]) -> list[ir.Op]:
        ops = list(body)
        for i, op in enumerate(body):
            later = [*body[i + 1 :], *after]
            if isinstance(op, ir.NESTS):
                sums = isinstance(op, ir.Block) and op.loop.axis not in program.kernel.axes
                ops[i] = replace(op, body=walk(op.body, later if sums else []))
            elif isinstance(op, ir.Contract) and op.plan.form == "contract":
                ops[i] = replace(op, beside=_beside(op, later, arguments))
        return ops

    return replace(program, body=walk(program.body, []))


def _beside(
    op: ir.Contract, later: Sequence[ir.Op], places: Mapping[str, ir.Place]
) -> tuple[tuple[Expr, bool], ...]:
    """The elements of arguments that maps touch at the points of a contraction, if its rows or its
    lanes lie side by side in memory, and not both; and whether they are stored."""
    rows, lane, found = op.plan.rows_axis, op.plan.lane_axis, dict[Expr, bool]()
    if prod(op.ranges[a].largest for a in op.red) < MEANWHILE:
        return ()
    for m in (m for m in ir.leaves(later) if isinstance(m, ir.Map) and not m.stream):
        for e in (e for e in (m.dst, *ir.loads_of(m)) if e.attr[0] in places):
            steps, irregular = places[e.attr[0]].motion(e.kids)
            regular = e.free <= {*op.kept} and not {rows, lane} & irregular
            regular &= all(i.kind != "dyn" for i in subterms(*e.kids))
            along = {steps.get(rows or "", 0), steps.get(lane or "", 0)}
            if regular and min(along) == 1 < max(along):
                found[e] = e is m.dst or found.get(e, False)
    return tuple(found.items())

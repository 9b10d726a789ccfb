"""Maps whose last axis is too short for lanes: it is written out, lanes go along the one before.

    y[2*i + j] = x[i, j] for j < 2, then for all i    =    y[2*i], y[2*i + 1] = x[i, 0], x[i, 1]

It is for results that lie side by side all the same, such as pairs and pixels that are repeated:
vectors are interleaved on the way to memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import lumc.codegen.tile.program as ir
from lumc.codegen.tile.domains import decided
from lumc.graph.expr import Expr, axis, num, substitute, subterms
from lumc.schedule.applies import WRITTEN_OUT

NEAR = 8  # elements between the lanes of a load; those further apart come one by one


def write_out(program: ir.Program) -> ir.Program:
    """The program with such maps marked."""

    def marked(op: ir.Op, loop: ir.Op | None) -> ir.Op:
        if isinstance(op, ir.Map) and not (isinstance(loop, ir.Rows) and loop.lags):
            return replace(op, abreast=_is_short(op, program.places))
        return op

    body = ir.rewrite(program.body, lambda body, loop: [marked(op, loop) for op in body])
    return replace(program, body=body)


def _is_short(op: ir.Map, places: Mapping[str, ir.Place]) -> bool:
    """Do all values of the last axis fill what is between two of the axis before, and is nothing
    read from far apart along that?"""
    place = places[op.dst.attr[0]]
    if len(op.axes) < 2 or op.turn or op.stream or op.ahead or place.panel or place.digits:
        return False
    *_, lane, last = op.axes
    r, stored = op.ranges[last], place.access(op.dst)
    short = r.lo == num(0) and r.sizes in [(n,) for n in range(2, WRITTEN_OUT + 1)]
    dense = last in stored.transposed(lane) and stored.stride(lane) == r.largest
    guards = (e for e in subterms(op.term) if e.kind == "guard")
    reads = (places[e.attr[0]].access(e) for e in ir.loads_of(op, but=[op.dst]))
    near = all(abs(e.stride(lane)) <= NEAR for e in reads)
    return short and dense and near and all(g.kids[0].free <= {last} for g in guards)


def stores(op: ir.Map) -> tuple[tuple[str, ...], list[tuple[Expr, Expr]]]:
    """The axes that are walked and what is stored at each of their points, and where."""
    if not op.abreast:
        return op.axes, [(op.dst, op.term)]
    at = [{axis(op.axes[-1]): num(n)} for n in range(op.ranges[op.axes[-1]].largest)]
    said = [(substitute(op.dst, v), decided(substitute(op.term, v), {})) for v in at]
    return op.axes[:-1], said

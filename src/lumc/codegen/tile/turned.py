"""Register transposes of maps whose operands lie along another axis than their lanes.

    y[i, j] = a[j, i] * b[i, j] for lanes along j    =    y[i, j] = turned(a)[i, j] * b[i, j]

Usually the result is computed along the other axis and transposed. Where some operands lie along
the lanes already the others are transposed instead: none is read element by element then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import lumc.codegen.tile.program as ir
from lumc.graph.expr import Expr, subterms
from lumc.kernel.term import dtype
from lumc.schedule.operands import computed


def turn_operands(program: ir.Program) -> ir.Program:
    """The program with the operands of such maps marked."""

    def turned(op: ir.Leaf) -> list[ir.Op]:
        if isinstance(op, ir.Map) and op.turn is not None:
            return [replace(op, turned=_turned(op, op.turn, program.places))]
        return [op]

    return replace(program, body=ir.rewrite_leaves(program.body, turned))


def _turned(op: ir.Map, load: str, places: Mapping[str, ir.Place]) -> tuple[Expr, ...]:
    """The loads of a map to transpose, if no more of them lie across its lanes than along them."""
    kind, lane = computed(dtype(op.term)), ir.lane_of(op, places[op.dst.attr[0]])
    reads = {e: places[e.attr[0]].access(e) for e in ir.loads_of(op, but=[op.dst])}
    if not all(a.is_affine(load, lane) for a in reads.values()):
        return ()
    found = [e for e, a in reads.items() if load in a.transposed(lane)]
    along = sum(lane in a.transposed(load) for a in reads.values())
    guarded = {e for g in subterms(op.term) if g.kind == "guard" for e in subterms(g)}
    plain = all(places[e.attr[0]].dtype is kind and e not in guarded for e in found)
    return tuple(found) if along and plain and len(found) <= along else ()

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

    def walk(op: ir.Op) -> ir.Op:
        if isinstance(op, ir.NESTS):
            return replace(op, body=[walk(o) for o in op.body])
        if isinstance(op, ir.Map) and op.turn is not None:
            return replace(op, turned=_turned(op, op.turn, program.places))
        return op

    return replace(program, body=[walk(op) for op in program.body])


def _turned(op: ir.Map, load: str, places: Mapping[str, ir.Place]) -> tuple[Expr, ...]:
    """The loads of a map to transpose, if no more of them lie across its lanes than along them."""
    panel, kind = places[op.dst.attr[0]].panel, computed(dtype(op.term))
    lane = op.axes[panel[0] if panel else -1]
    found, along = list[Expr](), 0
    for e in ir.loads_of(op, but=[op.dst]):
        steps, irregular = places[e.attr[0]].motion(e.kids)
        if {load, lane} & irregular:
            return ()
        if steps.get(load) == 1 and steps.get(lane, 0) > 1:
            found.append(e)
        else:
            along += steps.get(lane) == 1 and steps.get(load, 0) > 1
    guarded = {e for g in subterms(op.term) if g.kind == "guard" for e in subterms(g)}
    plain = all(places[e.attr[0]].dtype is kind and e not in guarded for e in found)
    return tuple(found) if along and plain and len(found) <= along else ()

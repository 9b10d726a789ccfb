"""Weights that maps and walks read across their lanes, laid out at link time.

    w[l, r, s] for neighbouring l    =    p[r, s, l]    where p holds w with the lanes' axis last

Contractions choose how their operands lie (staging ``link``); everything else reads a constant
where it lies, one lane at a time, unless it lies along the lanes.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import lumc.codegen.tile.program as ir
from lumc.codegen.tile.packing import Packing
from lumc.graph.expr import Expr, axis, bounds, num, substitute
from lumc.kernel.access import gathers

GROWTH = 2  # times the elements of a weight: more of them would be read than before


def lay_across(program: ir.Program) -> ir.Program:
    """The program with copies of such weights."""
    layout = _Layout(program)
    body = ir.rewrite_leaves(program.body, lambda op: [layout.op(op)])
    return replace(program, body=body, places=layout.places, packed=layout.packed)


class _Layout:
    def __init__(self, program: ir.Program) -> None:
        self.program = program
        self.places, self.packed = dict(program.places), dict(program.packed)
        self.known: dict[tuple[Expr, str], Expr] = {}

    def op(self, op: ir.Leaf) -> ir.Leaf:
        match op:
            case ir.Map() if op.axes and not op.copy and op.turn is None:
                return replace(op, term=substitute(op.term, self.moved(op, op.axes[-1])))
            case ir.Reduce():
                moved = self.moved(op, (op.red if op.lanes == "reduced" else op.kept)[-1])
                outputs = (replace(o, term=substitute(o.term, moved)) for o in op.outputs)
                stores = ((dst, substitute(term, moved)) for dst, term in op.stores)
                return replace(op, outputs=tuple(outputs), stores=tuple(stores))
        return op

    def moved(self, op: ir.Map | ir.Reduce, lane: str) -> dict[Expr, Expr]:
        """The loads of weights that lie across these lanes, by those of copies that do not."""
        return {e: self.copy(e, lane) for e in ir.loads_of(op) if self.is_across(e, lane)}

    def is_across(self, e: Expr, lane: str) -> bool:
        place, extent = self.places[e.attr[0]], self.program.kernel.extent
        if place.kind != "argument" or not self.program.kernel.buffer(place.name).constant:
            return False
        read = place.access(e)
        across = read.is_apart(lane) or read.stride(lane) < 0
        if not across or not e.free <= extent.keys() or gathers(e):
            return False
        ranges = {a: (0, n - 1) for a, n in extent.items()}
        spans = [bounds(i, ranges) for i in e.kids]
        if any(lo < 0 or hi >= d.size for (lo, hi), d in zip(spans, place.dims, strict=True)):
            return False  # some are read under a guard only
        return prod(extent[a] for a in e.free) <= GROWTH * place.size

    def copy(self, e: Expr, lane: str) -> Expr:
        """The load of a packed place whose last axis is that of the lanes."""
        if (e, lane) not in self.known:
            extent, q = self.program.kernel.extent, self.places[e.attr[0]]
            axes = (*sorted(e.free - {lane}), lane)
            dims = tuple(ir.Dim(a, num(0), extent[a]) for a in axes)
            place = ir.Place(f"across.{len(self.places)}", q.dtype, dims, "packed")
            self.places[place.name] = place
            over = tuple((a, extent[a]) for a in axes)
            w = self.program.kernel.buffer(q.name)
            self.packed[place.name] = Packing(w.name, w.dtype, e.kids, over, None, w.shape)
            self.known[e, lane] = ir.reference(place, [axis(a) for a in axes])
        return self.known[e, lane]

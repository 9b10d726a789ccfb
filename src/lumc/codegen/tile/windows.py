"""Walks over windows: over padded copies of rows, in one step or in two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import lumc.codegen.tile.program as ir
from lumc.codegen.tile.context import Context, Group, Scope
from lumc.codegen.tile.staging import Staging
from lumc.graph.expr import Expr, axis, substitute
from lumc.graph.ops import DType
from lumc.kernel.term import dtype, factors, unary
from lumc.schedule.operands import product
from lumc.schedule.registers import WINDOW

SHARED = 1.25  # times the steps that are left: what it costs to keep parts of windows
ACROSS = 16  # steps of a window that are worth a copy across the lanes


@dataclass(frozen=True)
class Windows:
    """Reductions of few steps along kept lanes."""

    c: Context
    staging: Staging

    def walk(
        self, g: Group, o: ir.Output, kept: tuple[str, ...], red: tuple[str, ...], ranges: Scope
    ) -> ir.Output | None:
        """The walk over copies of padded windows: a maximum of keys, which takes one instruction
        where NaN takes four. None if it was done in two steps, each over few axes."""
        across = len(factors(o.term)) == 1 and (
            o.op == "max" or prod(ranges[a].largest for a in red) >= ACROSS
        )
        plain = self._padded(g, o.term, kept[-1], across)
        if o.init is o.dst:
            return replace(o, term=plain)
        if o.op == "max" and plain.kind == "load" and dtype(o.term) is DType.F32:
            keys = self._padded(g, unary("key", o.term), kept[-1], across)
            keyed = ir.Output(o.dst, "keyed", keys, unary("key", o.init))
            if self._in_two(g, keyed, kept, red, ranges):
                return None
            return keyed if is_short(self.c, red, ranges) else replace(o, term=plain)
        o = replace(o, term=plain)
        return None if self._in_two(g, o, kept, red, ranges) else o

    def _padded(self, g: Group, value: Expr, lane: str, across: bool) -> Expr:
        some = (self.staging.padded(f, lane, g.inside, g.body, across) for f in factors(value))
        return product([*some])

    def _in_two(
        self, g: Group, o: ir.Output, kept: tuple[str, ...], red: tuple[str, ...], ranges: Scope
    ) -> bool:
        """Whether windows were reduced along all axes but one for every row that one of them
        reads, and then along that one: neighbouring windows share the first step."""
        if o.term.kind != "load" or o.term.attr[0] not in self.staging.spans:
            return False
        for d, i in enumerate(o.term.kids):
            over, rows = [a for a in red if a in i.free], [a for a in kept[:-1] if a in i.free]
            alone = not any(i.free & k.free for k in o.term.kids if k is not i)
            if len(over) != 1 or len(rows) != 1 or not alone:
                continue
            place = self.c.places[o.term.attr[0]]
            along, rest = place.dims[d].label, tuple(a for a in red if a != over[0])
            span = self.staging.spans[place.name][along]
            u, v = (prod(ranges[a].largest for a in each) for each in (over, rest))
            shared = u + v * span.largest / max(1, ranges[rows[0]].largest)
            wide = {**ranges, along: span}
            few = is_short(self.c, over, ranges) and is_short(self.c, rest, ranges)
            if not rest or not few or shared * SHARED > u * v:
                continue
            axes = tuple(along if a == rows[0] else a for a in kept)
            part = self.c.new("part", axes, wide, dtype(o.term))
            lines = substitute(o.term, {i: axis(along)})
            inner = ir.Output(part, "key" if o.op == "keyed" else o.op, lines, o.init)
            outer = replace(o, term=substitute(part, {axis(along): i}))
            own = {a: wide[a] for a in (*axes, *rest)}
            g.body.ops.append(ir.Reduce(axes, rest, own, (inner,), "windows"))
            own = {a: ranges[a] for a in (*kept, *over)}
            g.body.ops.append(ir.Reduce(kept, tuple(over), own, (outer,), "windows"))
            return True
        return False


def is_short(c: Context, red: Sequence[str], ranges: Scope) -> bool:
    """Are there so few steps along kept lanes that they can be written out?"""
    fixed = all(ranges[a] == c.whole[a] and a not in c.kernel.lengths.of for a in red)
    return fixed and prod(ranges[a].largest for a in red) <= WINDOW

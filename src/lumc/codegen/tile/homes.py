"""Where the values of stages and roots lie."""

from __future__ import annotations

from dataclasses import dataclass, field

import lumc.codegen.tile.program as ir
from lumc.codegen.tile.context import Context, Scope
from lumc.graph.expr import Expr, axis, subterms
from lumc.kernel.term import Root, dtype
from lumc.schedule.operands import computed


@dataclass
class Homes:
    """The places that reductions accumulate in."""

    c: Context
    written: set[int] = field(default_factory=set)  # positions of the roots that are stored

    def destination(self, root: Root) -> Expr:
        """The element that a root stores, as a load term."""
        return ir.reference(self.c.places[root.buffer], root.index)

    def is_read(self, root: Root) -> bool:
        """Does the kernel read the buffer that this root stores?"""
        terms = (t for r in self.c.kernel.roots for t in (r.value, *r.index))
        return any(e.attr[:1] == (root.buffer,) for e in subterms(*terms) if e.kind == "load")

    def axes(self, stage: Expr) -> tuple[str, ...]:
        """The axes of a stage's value, those of the lanes last."""
        p, kept = self.c.stage[stage], self.c.order(stage.free)
        lane = p.lane_axis if p.form == "contract" else None
        return (*(a for a in kept if a != lane), lane) if lane else kept

    def home(self, stage: Expr, scope: Scope) -> Expr:
        """Where a reduction accumulates: in the root that it is, if it can, or in scratch. Never in
        memory where tiles lie in registers."""
        p, axes = self.c.stage[stage], self.axes(stage)
        for i, root in enumerate(self.c.kernel.roots if self.c.execution.in_memory else ()):
            dst = self.destination(root)
            own = [k for k in root.index if k.kind != "num"]  # 0 along dims of one element
            plain = all(k.kind == "axis" for k in own) and dst.free == stage.free
            plain = plain and len(stage.free) == len(own)
            by_lanes = p.form == "contract" or p.lanes == "kept"
            along = not by_lanes or root.index[-1:] == (axis(axes[-1]),)
            fits = self.c.places[root.buffer].dtype is computed(dtype(stage))
            if root.value is stage and plain and along and fits and not self.is_read(root):
                self.written.add(i)
                return dst
        return self.c.new("stage", axes, scope, dtype(stage))

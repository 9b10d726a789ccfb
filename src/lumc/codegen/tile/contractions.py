"""Sums of products in register tiles, and which of their steps add something."""

from __future__ import annotations

from dataclasses import dataclass

import lumc.codegen.tile.program as ir
from lumc.codegen.tile.context import Context, Group, Scope
from lumc.codegen.tile.staging import Staging
from lumc.graph.expr import Expr, bound_axes
from lumc.kernel.borders import borders, edges
from lumc.schedule.operands import split_operands
from lumc.schedule.schedule import Stage

EDGES = 4  # texts of one register tile for rows at borders, at most


@dataclass(frozen=True)
class Contractions:
    """Stages whose lanes lie along a result, as operations."""

    c: Context
    staging: Staging

    def contract(
        self,
        g: Group,
        stage: Expr,
        dst: Expr,
        overwrite: tuple[str, ...] | None,
        weights: Expr | None = None,
    ) -> None:
        """One contraction into ``dst``; ``weights`` is the left operand of a weighted sum."""
        p, kept, red = self.c.stage[stage], self.c.order(stage.free), bound_axes(stage)
        split = split_operands(stage, p)
        assert split is not None
        a = self.staging.operand(stage, "a", weights or split[0], g.inside, g.body)
        b = self.staging.operand(stage, "b", split[1], g.inside, g.body)
        ranges = {x: g.inside[x] for x in (*kept, *red)}
        ordered = self.c.execution.in_order
        some = self._within(stage, p) if ordered else ()
        edge = self._edge(stage, p, ranges) if ordered else None
        g.body.ops.append(
            ir.Contract(dst, a, b, p, kept, red, ranges, overwrite, within=some, edge=edge)
        )

    def _within(self, stage: Expr, p: Stage) -> tuple[ir.Within, ...]:
        """The steps that add something, of every reduced axis that has others."""
        out = []
        for b in borders(stage, (p.rows_axis, p.lane_axis or "")).values():
            counts = b.counts(self.c.kernel.extent, tile := self.c.tile(b.over))
            if {*counts} != {tile}:
                out.append(ir.Within(b, tuple(sorted({*counts})), sum(counts) / len(counts)))
        return tuple(out)

    def _edge(self, stage: Expr, p: Stage, ranges: Scope) -> ir.Edge | None:
        """The border along the rows of register tiles that most steps lie beyond."""
        rows, extent = p.rows_axis, self.c.kernel.extent
        if p.form != "contract" or rows is None or ranges[rows] != self.c.range(rows):
            return None
        found = dict[float, ir.Edge]()
        for b in edges(stage, (rows, p.lane_axis or "")).values():
            n = extent[b.over]
            mean = sum(b.counts(extent, n)) / extent[rows]
            edge = ir.Edge(b, extent[rows], self.c.tile(rows), mean)
            few = not self.c.is_cut(b.over) and len(edge.rows(p.mr, n)) <= EDGES
            found |= {mean / n: edge} if few and mean < n else {}
        return found[min(found)] if found else None

"""Sums of products in register tiles, and which of their steps add something."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import lumc.codegen.tile.program as ir
from lumc.codegen.tile.context import Context, Group, Scope
from lumc.codegen.tile.staging import Staging
from lumc.graph.expr import Expr, bound_axes
from lumc.graph.ops import DType
from lumc.kernel.borders import Border, borders, edges
from lumc.kernel.term import dtype
from lumc.schedule.levels import in_memory
from lumc.schedule.operands import lanes, split_operands
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
        levels, scale, shift = self.staging.levels.get(stage), None, None
        if levels:
            outer = {*red} - {levels.inner}
            red = (*in_memory(self.c.kernel, levels.load, outer), levels.inner)
            scale, shift = (self.staging.laid_out(stage, e) for e in (levels.scale, levels.shift))
        ranges = {x: g.inside[x] for x in (*kept, *red)}
        ranges |= self._whole_vectors(stage, p, dst, ranges)
        ordered = self.c.execution.in_order and not levels
        some = self._within(stage, p) if ordered else ()
        edge = self._edge(stage, p, ranges) if ordered else None
        op = ir.Contract(dst, a, b, p, kept, red, ranges, overwrite, within=some, edge=edge)
        by, sums = self.staging.by.get(stage, (None, None))
        sums = sums if shift is not None or dtype(b) is DType.I8 else None
        op = replace(op, levels=levels is not None, scale=scale, shift=shift, by=by, sums=sums)
        g.body.ops.append(op)

    def _whole_vectors(self, stage: Expr, p: Stage, dst: Expr, ranges: Scope) -> Scope:
        """The lanes of a live axis rounded up to whole vectors, where they are read from panels and
        go to scratch, which gets room for them: beyond the length is what nobody reads."""
        lane, width = p.lane_axis or "", lanes(self.c.target, dtype(stage))
        place, panels = self.c.places[dst.attr[0]], p.stage_b in ("inner", "hoist")
        if p.form != "contract" or lane not in self.c.kernel.lengths.of or not panels:
            return {}
        if place.kind != "scratch" or len(ranges[lane].sizes) == 1:
            return {}
        r = ir.rounded(ranges[lane], width)
        dims = (replace(d, size=r.largest) if d.label == lane else d for d in place.dims)
        self.c.places[place.name] = replace(place, dims=tuple(dims))
        return {lane: r}

    def _within(self, stage: Expr, p: Stage) -> tuple[ir.Within, ...]:
        """The steps that add something, of every reduced axis that has others."""
        out = []
        for b in self._known(borders(stage, (p.rows_axis, p.lane_axis or ""))):
            counts = b.counts(self.c.kernel.extent, tile := self.c.tile(b.over))
            if {*counts} != {tile}:
                out.append(ir.Within(b, tuple(sorted({*counts})), sum(counts) / len(counts)))
        return tuple(out)

    def _known(self, found: Mapping[str, Border]) -> list[Border]:
        """Those along axes of which the length is known."""
        return [b for b in found.values() if not self.c.kernel.lengths.of.keys() & {b.over, b.kept}]

    def _edge(self, stage: Expr, p: Stage, ranges: Scope) -> ir.Edge | None:
        """The border along the rows of register tiles that most steps lie beyond."""
        rows, extent = p.rows_axis, self.c.kernel.extent
        if p.form != "contract" or rows is None or ranges[rows] != self.c.range(rows):
            return None
        found = dict[float, ir.Edge]()
        for b in self._known(edges(stage, (rows, p.lane_axis or ""))):
            n = extent[b.over]
            mean = sum(b.counts(extent, n)) / extent[rows]
            edge = ir.Edge(b, extent[rows], self.c.tile(rows), mean)
            few = not self.c.is_cut(b.over) and len(edge.rows(p.mr, n)) <= EDGES
            found |= {mean / n: edge} if few and mean < n else {}
        return found[min(found)] if found else None

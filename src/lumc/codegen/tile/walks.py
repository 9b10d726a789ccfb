"""Reductions as walks: what several of them share, what is kept on the way, what follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import lumc.codegen.tile.program as ir
from lumc.codegen.tile.context import Context, Group, Stores, is_expensive
from lumc.codegen.tile.homes import Homes
from lumc.codegen.tile.windows import Windows, is_short
from lumc.graph.expr import Expr, axis, bound_axes, linear, num, substitute, subterms
from lumc.kernel.normal import identity
from lumc.kernel.running import Running
from lumc.kernel.term import dtype, factors, guard
from lumc.schedule.applies import EXPENSIVE
from lumc.schedule.operands import computed

HARD = 8  # steps that are written out where each computes powers, logarithms or the like


@dataclass(frozen=True)
class Walks:
    """Stages that are reduced row by row, as operations."""

    c: Context
    homes: Homes
    windows: Windows

    def reduce(self, g: Group, stages: list[Expr]) -> dict[Expr, Expr]:
        """Stages with the same free axes: one walk with several outputs."""
        kept, red = self.c.order(stages[0].free), bound_axes(stages[0])
        p, done, outputs = self.c.stage[stages[0]], dict[Expr, Expr](), list[ir.Output]()
        some = self._nonzero(g, stages, kept)
        if some:
            g = replace(g, outside={**g.outside, **some}, inside={**g.inside, **some})
        ranges = {a: g.inside[a] for a in (*kept, *red)}
        for s in stages:
            here = self.c.new("stage", kept, g.outside, dtype(s)) if some else None
            dst, init = here or self.homes.home(s, g.outside), identity(s)
            if g.cut:
                g.before.map(dst, kept, g.outside, init)
            value = self.c.now(s.kids[0])
            output: ir.Output | None = ir.Output(dst, s.attr[0], value, dst if g.cut else init)
            if output and p.lanes == "kept" and self.c.execution.by_vectors:
                output = self.windows.walk(g, output, kept, red, ranges)
            if output is not None:
                outputs.append(output)
            done[s] = dst
            for a, r in some.items():
                done[s] = guard(axis(a), r.lo.attr[0], r.lo.attr[0] + r.largest, done[s])
        if not outputs:
            return done
        keeps = self.c.schedule.keep and not g.cut and len(red) == 1 and p.lanes == "reduced"
        stores = self._keep(g, stages, kept, red[0]) if keeps else ()
        short = all(o.init is not o.dst for o in outputs) and is_short(self.c, red, ranges)
        hard = any(is_expensive(e) and e.free & {*red} for o in outputs for e in subterms(o.term))
        short &= not hard or prod(ranges[a].largest for a in red) <= HARD
        short &= self.c.execution.by_vectors
        lanes = "windows" if p.lanes == "kept" and short else p.lanes
        op = ir.Reduce(kept, red, ranges, tuple(outputs), lanes, p.streams, stores)
        scatters = p.lanes == "kept" and self.c.execution.by_vectors and not some
        if scatters and ir.selection(op, self.c.kernel.extent):
            op = replace(op, lanes="scattered")
        g.body.ops.append(op)
        return done

    def _nonzero(
        self, g: Group, stages: Sequence[Expr], kept: Sequence[str]
    ) -> dict[str, ir.Range]:
        """Where a walk along kept lanes does not give zero: of axes that have all their values,
        those for which its term is guarded."""
        lanes = self.c.stage[stages[0]].lanes
        if not self.c.execution.in_order or len(stages) > 1 or g.cut or lanes != "kept":
            return {}
        found, live = dict[str, ir.Range](), self.c.kernel.lengths.of
        for e in factors(stages[0].kids[0]):
            while e.kind == "guard":
                (lo, hi), (index, e) = e.attr, e.kids
                constant, atoms = linear(index)
                for a in (a for a in kept if {axis(a): 1} == atoms and a not in live):
                    n, whole = self.c.kernel.extent[a], g.inside[a] == self.c.whole[a]
                    first, last = max(0, lo - constant), min(n, hi - constant)
                    if whole and a not in found and 0 < last - first < n:
                        found[a] = ir.Range(num(first), num(last - first), (last - first,))
        return found

    def run(self, g: Group, stage: Expr, r: Running, opened: set[str]) -> Expr:
        """A stage whose results follow from one another, over all of the axis that it runs along;
        in the root that it is only where no tile of that axis has it for itself."""
        axes, n, op = self.homes.axes(stage), self.c.kernel.extent[r.along], stage.attr[0]
        scope = {**g.inside, r.along: self.c.whole[r.along]}
        owned = r.along in opened and not self.c.is_cut(r.along)
        home = self.homes.home(stage, scope) if owned else None
        dst = home or self.c.new("stage", axes, scope, dtype(stage))
        if r.empty:
            none = ir.Range(num(n - r.empty if r.backward else 0), num(r.empty), (r.empty,))
            g.body.map(dst, axes, {**scope, r.along: none}, r.start)
        kept, red, p = tuple(a for a in axes if a != r.along), (r.over,), self.c.stage[stage]
        lanes, term = p.lanes if kept else "reduced", self.c.now(r.term)
        ranges = {a: scope[a] for a in (*kept, r.over)}
        if r.last:  # of all: nothing else is left
            total = ir.Output(r.at(dst, num(n - 1)), op, term, identity(stage))
            g.body.ops.append(ir.Reduce(kept, red, ranges, (total,), lanes, p.streams))
        steps = {**ranges, r.over: ir.whole(r.steps - r.last)}
        results = ir.Output(r.result(dst), op, r.taken(term), r.start)
        if r.steps > r.last:
            g.body.ops.append(ir.Reduce(kept, red, steps, (results,), lanes))
        return dst

    def _keep(self, g: Group, stages: list[Expr], kept: tuple[str, ...], j: str) -> Stores:
        """An expensive sub-term of this walk that is read again along other axes n, by a later
        walk or a root: the largest one."""
        kernel = self.c.kernel
        wanted = set(self.c.needed(kernel.values))
        same = [a for a, n in kernel.told.items() if n == kernel.told[j] and a not in kept]
        for e in reversed(self.c.needed([s.kids[0] for s in stages])):
            if e.kind not in ("un", "bin") or e.free != {*kept, j} or not dtype(e).is_float:
                continue
            value = self.c.now(e)
            hard = (t for t in subterms(value) if t.kind == "un" and t.attr[0] in EXPENSIVE)
            again = {n: substitute(e, {axis(j): axis(n)}) for n in same}
            found = [n for n in same if n != j and not self.c.is_cut(n) and again[n] in wanted]
            if not found or not any(j in t.free for t in hard):
                continue
            rows = (
                substitute(r, {axis(n): axis(j)}) for n in found if (r := self._row(kept, n, e))
            )
            row = next(rows, None) or self.c.new("kept", (*kept, j), g.inside, dtype(e))
            for n in found:
                self.c.lasting[again[n]] = substitute(row, {axis(j): axis(n)})
            return ((row, value),)
        return ()

    def _row(self, kept: tuple[str, ...], n: str, e: Expr) -> Expr | None:
        """The row of the result itself, the cheapest place to keep a value of that shape."""
        kernel, root, axes = self.c.kernel, self.c.kernel.roots[0], (*kept, n)
        plain = root.index == tuple(axis(a) for a in axes) and axes == kernel.axes
        fits = self.c.places[root.buffer].dtype is computed(dtype(e))
        alone = (
            len(kernel.roots) == 1 and not self.homes.is_read(root) and not self.c.schedule.stream
        )
        alone &= self.c.execution.in_memory
        return self.homes.destination(root) if plain and fits and alone else None

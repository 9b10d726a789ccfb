"""(kernel, schedule, target) -> tile program. Nothing here prints, and no kernel is known by name.

Every reduction is a stage. Its home is the first point where all its free axes are open; an axis
whose tile is whole is open everywhere. Stages over the same axes with the same home share one
loop. Substituting a stage by the load of its value is the whole interface between stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import lumc.codegen.tile.program as ir
from lumc.codegen.tile.context import Body, Context, Group, Scope, is_expensive
from lumc.codegen.tile.contractions import Contractions
from lumc.codegen.tile.homes import Homes
from lumc.codegen.tile.maxima import plain_maxima
from lumc.codegen.tile.passes import Watch, run_passes, unwatched
from lumc.codegen.tile.powers import shorter_powers
from lumc.codegen.tile.spans import span
from lumc.codegen.tile.staging import Staging
from lumc.codegen.tile.walks import Walks
from lumc.codegen.tile.weighted import WeightedSums
from lumc.codegen.tile.windows import Windows
from lumc.graph.expr import Expr, bound_axes, subterms
from lumc.kernel.inside import stays_inside
from lumc.kernel.normal import identity, normalize
from lumc.kernel.running import running
from lumc.kernel.target import Target
from lumc.kernel.term import REDUCTIONS, Kernel, dtype, unguarded
from lumc.schedule.applies import PIECE, streamable
from lumc.schedule.legal import check_kernel, check_schedule
from lumc.schedule.schedule import Schedule

MANY = 16  # values of the other axes that make it worth to keep what depends on one
Stores = tuple[tuple[Expr, Expr], ...]


def lower(
    kernel: Kernel, schedule: Schedule, target: Target, watch: Watch = unwatched
) -> ir.Program:
    """The tile program of a kernel, which ``watch`` sees as it is written and after every pass.
    Raises E0410 (kernel) and E0411 (schedule)."""
    check_kernel(kernel)
    kernel = normalize(kernel)
    check_schedule(kernel, schedule, target)
    c = Context(plain_maxima(shorter_powers(kernel)), schedule, target)
    program = ir.Program(kernel, target, c.places, Lowering(c).run(), c.packed)
    watch("lower", program)
    return run_passes(program, schedule, watch)


class Lowering:
    """One run over the loops of the output axes, outer first."""

    def __init__(self, context: Context) -> None:
        self.c = context
        self.staging, self.homes = Staging(context), Homes(context)
        self.contractions = Contractions(context, self.staging)
        self.walks = Walks(context, self.homes, Windows(context, self.staging))
        self.weighted = WeightedSums(context, self.homes, self.contractions)
        walks = [s for s, p in context.stage.items() if p.form == "rows"]
        found = {s: running(context.kernel, s) for s in walks} if context.execution.in_order else {}
        self.runs = {s: r for s, r in found.items() if r and not context.is_cut(r.over)}

    def run(self) -> list[ir.Op]:
        """The operations of the whole kernel. Raises E0411 (an operand cannot be read as asked)."""
        self.staging.pack()
        body = Body()
        self._compute_before(body)
        self._at(0, dict(self.c.whole), body)
        return body.ops

    def _compute_before(self, body: Body) -> None:
        """What is expensive and depends on one axis only, once for all values of the others."""
        todo = [*self.c.kernel.values] if self.c.execution.in_order else []
        seen = set[Expr]()
        while todo:
            e = todo.pop()
            if e in seen:
                continue
            seen.add(e)
            if self._is_repeated(e):
                axes = tuple(e.free)
                self.c.available[e] = self.c.new("row", axes, self.c.whole, dtype(e))
                body.map(self.c.available[e], axes, self.c.whole, e)
            else:
                todo += e.kids

    def _is_repeated(self, e: Expr) -> bool:
        """Is it as large as a row of a result of many rows, and expensive, or read element by
        element, in reductions too? And does it stay inside its buffers where guards around it do
        not hold?"""
        axes, extent = self.c.kernel.axes, self.c.kernel.extent
        if len(e.free) != 1 or not e.free <= {*axes}:
            return False
        below = subterms(e)
        hard = e.kind in ("un", "bin", "where") and any(is_expensive(t) for t in below)
        read = unguarded(e)
        apart = read.kind == "load" and bool(self.c.access(read).irregular)
        rows = prod(extent[a] for a in (extent if apart else axes) if a not in e.free)
        if not (hard or apart) or rows < MANY or any(t.kind in REDUCTIONS for t in below):
            return False
        return stays_inside(e, self.c.kernel)

    # ---- the loops of the output axes

    def _at(self, position: int, scope: Scope, body: Body) -> None:
        """Everything whose home is here, then the next loop."""
        schedule = self.c.schedule
        opened = self._prepare_roots(position, scope, body)
        if position < schedule.parallel:
            self._distribute(scope, body)
            return
        self._store(opened, scope, body)
        if position < len(schedule.order):
            name, inner = schedule.order[position], Body()
            self._at(position + 1, {**scope, name: self.c.range(name)}, inner)
            self._nest([name], inner, body)

    def _distribute(self, scope: Scope, body: Body) -> None:
        """Open the distributed loops; what belongs to an outer one is done once per tile of it."""
        order, par = self.c.schedule.order[: self.c.schedule.parallel], Body()
        for position, name in enumerate(order[:-1], 1):
            scope, outer = {**scope, name: self.c.range(name)}, Body()
            self._prepare_roots(position, scope, outer)
            if not self.c.execution.several_tiles:
                par.ops += outer.ops
            elif outer.ops:
                inner = tuple(a for a in order[position:] if self.c.is_cut(a))
                par.ops.append(ir.When(inner, outer.ops, part_start=True))
        self._at(len(order), {**scope, order[-1]: self.c.range(order[-1])}, par)
        body.ops.append(ir.Par(tuple(self.c.loop(a) for a in order), par.ops))

    def _prepare_roots(self, position: int, scope: Scope, body: Body) -> set[str]:
        """The stages of the roots whose home is here, and the axes that are open here."""
        schedule = self.c.schedule
        distributed = set(schedule.order[: schedule.parallel])
        opened = {a for a in schedule.order if not self.c.is_cut(a) and a not in distributed}
        opened |= set(schedule.order[:position])
        self._prepare(self.c.kernel.values, opened, scope, body, position)
        return opened

    def _nest(
        self, axes: Sequence[str], inner: Body, body: Body, sums: Group | None = None
    ) -> None:
        """The loops over tiles of these axes; for the ``sums`` of them, over the steps that
        count."""
        ops = inner.ops
        for a in reversed(axes):
            if self.c.is_cut(a) and ops:
                loop = replace(self.c.loop(a), span=span(self.c, sums, a) if sums else None)
                ops = [ir.Block(loop, ops)]
        body.ops += ops

    def _store(self, opened: set[str], scope: Scope, body: Body) -> None:
        """Write the roots whose axes are open: once, not once per tile of an axis they lack."""
        schedule = self.c.schedule
        for i, root in enumerate(self.c.kernel.roots):
            dst = self.homes.destination(root)
            if i in self.homes.written or not dst.free <= opened or self.c.missing([root.value]):
                continue
            self.homes.written.add(i)
            axes = tuple(a for a in self.c.kernel.axes if a in dst.free)
            value = self.c.now(root.value)
            turn = self.staging.turn(dst, value, axes, scope)
            stream = schedule.stream and turn is None and streamable(self.c.kernel, root)
            if stream:  # shorter runs are edges: they do not fill a piece
                kind = self.c.places[root.buffer].dtype
                stream = scope[axes[-1]].largest * kind.nbytes >= PIECE
            op = ir.Map(dst, axes, {a: scope[a] for a in axes}, value, turn, stream=stream)
            cut = [a for a in schedule.order if self.c.is_cut(a) and a not in dst.free]
            around = tuple(a for a in cut if scope[a] is not self.c.whole[a])
            body.ops.append(ir.When(around, [op]) if around else op)

    # ---- stages

    def _prepare(
        self, terms: Sequence[Expr], opened: set[str], scope: Scope, body: Body, position: int = -1
    ) -> None:
        """Compute every missing stage of these terms whose free axes are open, and make the
        copies that are hoisted to this position of the output loops."""
        while True:
            self.staging.at_depth(position, scope, body)
            here = [s for s in self.c.missing(terms) if self._outer(s) <= opened]
            if not here:
                return
            below = {s: set(subterms(s)) for s in here}
            ready = [s for s in here if not any(t is not s and t in below[s] for t in here)]
            over = set(bound_axes(ready[0]))
            self._group([s for s in ready if set(bound_axes(s)) == over], opened, scope, body)

    def _outer(self, stage: Expr) -> frozenset[str]:
        """The axes that must be open for a stage; it has all of the one that it runs along."""
        run = self.runs.get(stage)
        return stage.free - {run.along} if run else stage.free

    def _group(self, stages: list[Expr], opened: set[str], scope: Scope, body: Body) -> None:
        axes, before = bound_axes(stages[0]), dict(self.c.available)
        cut = tuple(a for a in axes if self.c.is_cut(a))
        g = Group(stages, cut, scope, {**scope, **{a: self.c.range(a) for a in axes}}, body)
        below = [k for s in stages for k in ([self.runs[s].term] if s in self.runs else s.kids)]
        self._prepare(below, opened | set(axes), g.inside, g.body)
        left, count = before if cut else dict(self.c.available), len(g.body.ops)
        rows: dict[object, list[Expr]] = {}
        weighted: dict[Expr, list[Expr]] = {}
        done: dict[Expr, Expr] = {}
        for s in stages:
            p = self.c.stage[s]
            if s in self.runs:
                done[s] = self.walks.run(g, s, self.runs[s], opened)
            elif s.kind == "wsum":
                weighted.setdefault(s.kids[0], []).append(s)
            elif p.form == "rows":
                rows.setdefault((s.free, p.lanes, p.streams), []).append(s)
            else:
                done[s] = self.homes.home(s, scope)
                if cut and not self.c.execution.in_memory:  # nothing is overwritten inside a loop
                    g.before.map(done[s], self.homes.axes(s), scope, identity(s))
                    self.contractions.contract(g, s, done[s], None)
                else:
                    self.contractions.contract(g, s, done[s], cut)
        for each in rows.values():
            done |= self.walks.reduce(g, each)
        for each in weighted.values():
            done |= self.weighted.write(g, each)
        spent = {e.attr[0] for op in ir.leaves(g.body.ops[count:]) for e in ir.written(op)}
        self._nest(axes, g.body, body, g)
        left = {s: e for s, e in left.items() if spent.isdisjoint(_read(e))}  # where axes are whole
        self.c.available = {**left, **self.c.lasting, **done}

    # ---- weighted sums


def _read(e: Expr) -> set[str]:
    """The places that a value lies in."""
    return {t.attr[0] for t in subterms(e) if t.kind == "load"}

"""(kernel, schedule, target) -> tile program. Nothing here prints, and no kernel is known by name.

Every reduction is a stage. Its home is the first point where all its free axes are open; an axis
whose tile is whole is open everywhere. Stages over the same axes with the same home share one
loop. Substituting a stage by the load of its value is the whole interface between stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

import lumc.codegen.tile.program as ir
from lumc.codegen.tile.context import Body, Context, Scope
from lumc.codegen.tile.maxima import plain_maxima
from lumc.codegen.tile.passes import Watch, run_passes, unwatched
from lumc.codegen.tile.powers import shorter_powers
from lumc.codegen.tile.staging import Staging
from lumc.graph.expr import Expr, axis, bound_axes, linear, num, substitute, subterms
from lumc.graph.ops import DType
from lumc.kernel.normal import identity, least, normalize
from lumc.kernel.running import Running, running
from lumc.kernel.target import Target
from lumc.kernel.term import (
    REDUCTIONS,
    Kernel,
    Root,
    binary,
    const,
    constants,
    dtype,
    guard,
    unary,
)
from lumc.schedule.borders import borders, edges
from lumc.schedule.legal import PIECE, check_kernel, check_schedule, streamable
from lumc.schedule.operands import computed, factors, product, split_operands
from lumc.schedule.registers import WINDOW
from lumc.schedule.schedule import Schedule, Stage

EXPENSIVE = ("exp2", "exp2_ftz", "decay", "log2", "sin", "recip")
SHARED = 1.25  # times the steps that are left: what it costs to keep parts of windows
EDGES = 4  # texts of one register tile for rows at borders, at most
HARD = 8  # steps that are written out where each computes powers, logarithms or the like
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


@dataclass
class Group:
    """Stages over the same axes, none needing another: one loop."""

    stages: list[Expr]
    cut: tuple[str, ...]  # their axes that are tiled
    outside: Scope
    inside: Scope  # where axes stand within the loop over these tiles
    before: Body
    body: Body = field(default_factory=Body)


class Lowering:
    """One run over the loops of the output axes, outer first."""

    def __init__(self, context: Context) -> None:
        self.c = context
        self.staging = Staging(context)
        self.written: set[int] = set()  # positions of the roots that are stored
        self.lasting: dict[Expr, Expr] = {}  # kept values, readable until the end
        walks = [s for s, p in context.plan.items() if p.form == "rows" and not context.target.gpu]
        found = {s: running(context.kernel, s) for s in walks}
        self.runs = {s: r for s, r in found.items() if r and not context.is_cut(r.over)}

    def run(self) -> list[ir.Op]:
        self.staging.pack()
        body = Body()
        self._compute_before(body)
        self._at(0, dict(self.c.whole), body)
        return body.ops

    def _compute_before(self, body: Body) -> None:
        """What is expensive and depends on one axis only, once for all values of the others."""
        todo, seen = [*self.c.kernel.values] if not self.c.target.gpu else [], set[Expr]()
        while todo:
            e = todo.pop()
            if e in seen:
                continue
            seen.add(e)
            if self._is_repeated(e):
                axes = tuple(e.free)
                self.c.available[e] = self.c.new("row", axes, self.c.whole, dtype(e))
                self._map(body, self.c.available[e], axes, self.c.whole, e)
            else:
                todo += e.kids

    def _is_repeated(self, e: Expr) -> bool:
        """Is it as large as a row of a result of many rows, and expensive, or read element by
        element, in reductions too?"""
        axes, extent = self.c.kernel.axes, self.c.kernel.extent
        if len(e.free) != 1 or not e.free <= {*axes}:
            return False
        below = subterms(e)
        hard = e.kind in ("un", "bin", "where") and any(_is_expensive(t) for t in below)
        apart = e.kind == "load" and bool(self.c.places[e.attr[0]].motion(e.kids)[1])
        rows = prod(extent[a] for a in (extent if apart else axes) if a not in e.free)
        return (hard or apart) and rows >= MANY and not any(t.kind in REDUCTIONS for t in below)

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
            if self.c.target.gpu:  # a block has one tile
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

    def _nest(self, axes: Sequence[str], inner: Body, body: Body) -> None:
        ops = inner.ops
        for a in reversed(axes):
            if self.c.is_cut(a) and ops:
                ops = [ir.Block(self.c.loop(a), ops)]
        body.ops += ops

    def _store(self, opened: set[str], scope: Scope, body: Body) -> None:
        """Write the roots whose axes are open: once, not once per tile of an axis they lack."""
        schedule = self.c.schedule
        for i, root in enumerate(self.c.kernel.roots):
            dst = self._destination(root)
            if i in self.written or not dst.free <= opened or self._missing([root.value]):
                continue
            self.written.add(i)
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

    def _destination(self, root: Root) -> Expr:
        return ir.reference(self.c.places[root.buffer], root.index)

    # ---- stages

    def _missing(self, terms: Sequence[Expr]) -> list[Expr]:
        """The stages still needed, inner ones first; not those below an available value."""
        return [e for e in self._needed(terms) if e.kind in REDUCTIONS]

    def _needed(self, terms: Sequence[Expr]) -> list[Expr]:
        """The sub-terms that are not below an available value, inner ones first."""
        seen: dict[Expr, None] = {}

        def visit(e: Expr) -> None:
            if e not in seen and e not in self.c.available:
                for k in e.kids:
                    visit(k)
                seen[e] = None

        for t in terms:
            visit(t)
        return list(seen)

    def _prepare(
        self, terms: Sequence[Expr], opened: set[str], scope: Scope, body: Body, position: int = -1
    ) -> None:
        """Compute every missing stage of these terms whose free axes are open, and make the
        copies that are hoisted to this position of the output loops."""
        while True:
            self.staging.at_depth(position, scope, body)
            here = [s for s in self._missing(terms) if self._outer(s) <= opened]
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
        rows: dict[object, list[Expr]] = {}
        weighted: dict[Expr, list[Expr]] = {}
        done: dict[Expr, Expr] = {}
        for s in stages:
            p = self.c.plan[s]
            if s in self.runs:
                done[s] = self._run(g, s, self.runs[s], opened)
            elif s.kind == "wsum":
                weighted.setdefault(s.kids[0], []).append(s)
            elif p.form == "rows":
                rows.setdefault((s.free, p.lanes, p.streams), []).append(s)
            else:
                done[s] = self._home(s, scope)
                if cut and self.c.target.gpu:  # nothing is overwritten inside a loop
                    self._map(g.before, done[s], self._axes(s), scope, identity(s))
                    self._contract(g, s, done[s], None)
                else:
                    self._contract(g, s, done[s], cut)
        for each in rows.values():
            done |= self._reduce(g, each)
        for each in weighted.values():
            done |= self._weighted(g, each)
        self._nest(axes, g.body, body)
        self.c.available = {**before, **self.lasting, **done}

    def _axes(self, stage: Expr) -> tuple[str, ...]:
        """The axes of a stage's value, those of the lanes last."""
        p, kept = self.c.plan[stage], self.c.order(stage.free)
        lane = p.lane_axis if p.form == "contract" else None
        return (*(a for a in kept if a != lane), lane) if lane else kept

    def _home(self, stage: Expr, scope: Scope) -> Expr:
        """Where a reduction accumulates: in the root that it is, if it can, or in scratch. On a
        GPU never in memory."""
        p, axes = self.c.plan[stage], self._axes(stage)
        for i, root in enumerate(() if self.c.target.gpu else self.c.kernel.roots):
            dst = self._destination(root)
            own = [k for k in root.index if k.kind != "num"]  # 0 along dims of one element
            plain = all(k.kind == "axis" for k in own) and dst.free == stage.free
            plain = plain and len(stage.free) == len(own)
            by_lanes = p.form == "contract" or p.lanes == "kept"
            along = not by_lanes or root.index[-1:] == (axis(axes[-1]),)
            fits = self.c.places[root.buffer].dtype is computed(dtype(stage))
            if root.value is stage and plain and along and fits and not self._is_read(root):
                self.written.add(i)
                return dst
        return self.c.new("stage", axes, scope, dtype(stage))

    def _is_read(self, root: Root) -> bool:
        terms = (t for r in self.c.kernel.roots for t in (r.value, *r.index))
        return any(e.attr[:1] == (root.buffer,) for e in subterms(*terms) if e.kind == "load")

    def _map(self, body: Body, dst: Expr, axes: Sequence[str], scope: Scope, term: Expr) -> None:
        body.ops.append(ir.Map(dst, tuple(axes), {a: scope[a] for a in axes}, term))

    def _contract(
        self,
        g: Group,
        stage: Expr,
        dst: Expr,
        overwrite: tuple[str, ...] | None,
        weights: Expr | None = None,
    ) -> None:
        """One contraction into ``dst``; ``weights`` is the left operand of a weighted sum."""
        p, kept, red = self.c.plan[stage], self.c.order(stage.free), bound_axes(stage)
        split = split_operands(stage, p)
        assert split is not None
        a = self.staging.operand(stage, "a", weights or split[0], g.inside, g.body)
        b = self.staging.operand(stage, "b", split[1], g.inside, g.body)
        ranges = {x: g.inside[x] for x in (*kept, *red)}
        some = () if self.c.target.gpu else self._within(stage, p)
        edge = None if self.c.target.gpu else self._edge(stage, p, ranges)
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

    def _reduce(self, g: Group, stages: list[Expr]) -> dict[Expr, Expr]:
        """Stages with the same free axes: one walk with several outputs."""
        kept, red = self.c.order(stages[0].free), bound_axes(stages[0])
        p, done, outputs = self.c.plan[stages[0]], dict[Expr, Expr](), list[ir.Output]()
        some = self._nonzero(g, stages, kept)
        if some:
            g = replace(g, outside={**g.outside, **some}, inside={**g.inside, **some})
        ranges = {a: g.inside[a] for a in (*kept, *red)}
        for s in stages:
            here = self.c.new("stage", kept, g.outside, dtype(s)) if some else None
            dst, init = here or self._home(s, g.outside), identity(s)
            if g.cut:
                self._map(g.before, dst, kept, g.outside, init)
            value = self.c.now(s.kids[0])
            output: ir.Output | None = ir.Output(dst, s.attr[0], value, dst if g.cut else init)
            if output and p.lanes == "kept" and not self.c.target.gpu:
                output = self._of_windows(g, output, kept, red, ranges)
            if output is not None:
                outputs.append(output)
            done[s] = dst
            for a, r in some.items():
                done[s] = guard(axis(a), r.lo.attr[0], r.lo.attr[0] + r.largest, done[s])
        if not outputs:
            return done
        keeps = self.c.schedule.keep and not g.cut and len(red) == 1 and p.lanes == "reduced"
        stores = self._keep(g, stages, kept, red[0]) if keeps else ()
        short = all(o.init is not o.dst for o in outputs) and self._is_short(red, ranges)
        hard = any(_is_expensive(e) and e.free & {*red} for o in outputs for e in subterms(o.term))
        short &= not hard or prod(ranges[a].largest for a in red) <= HARD
        lanes = "windows" if p.lanes == "kept" and short and not self.c.target.gpu else p.lanes
        g.body.ops.append(ir.Reduce(kept, red, ranges, tuple(outputs), lanes, p.streams, stores))
        return done

    def _nonzero(
        self, g: Group, stages: Sequence[Expr], kept: Sequence[str]
    ) -> dict[str, ir.Range]:
        """Where a walk along kept lanes does not give zero: of axes that have all their values,
        those for which its term is guarded."""
        if self.c.target.gpu or len(stages) > 1 or g.cut or self.c.plan[stages[0]].lanes != "kept":
            return {}
        found: dict[str, ir.Range] = {}
        for e in factors(stages[0].kids[0]):
            while e.kind == "guard":
                (lo, hi), (index, e) = e.attr, e.kids
                constant, atoms = linear(index)
                for a in (a for a in kept if {axis(a): 1} == atoms):
                    n, whole = self.c.kernel.extent[a], g.inside[a] == self.c.whole[a]
                    first, last = max(0, lo - constant), min(n, hi - constant)
                    if whole and a not in found and 0 < last - first < n:
                        found[a] = ir.Range(num(first), num(last - first), (last - first,))
        return found

    def _run(self, g: Group, stage: Expr, r: Running, opened: set[str]) -> Expr:
        """A stage whose results follow from one another, over all of the axis that it runs along;
        in the root that it is only where no tile of that axis has it for itself."""
        axes, n, op = self._axes(stage), self.c.kernel.extent[r.along], stage.attr[0]
        scope = {**g.inside, r.along: self.c.whole[r.along]}
        owned = r.along in opened and not self.c.is_cut(r.along)
        home = self._home(stage, scope) if owned else None
        dst = home or self.c.new("stage", axes, scope, dtype(stage))
        if r.empty:
            none = ir.Range(num(n - r.empty if r.backward else 0), num(r.empty), (r.empty,))
            self._map(g.body, dst, axes, {**scope, r.along: none}, r.start)
        kept, red, p = tuple(a for a in axes if a != r.along), (r.over,), self.c.plan[stage]
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

    def _is_short(self, red: Sequence[str], ranges: Scope) -> bool:
        """Are there so few steps along kept lanes that they can be written out?"""
        fixed = all(ranges[a] == self.c.whole[a] for a in red)
        return fixed and prod(ranges[a].largest for a in red) <= WINDOW

    def _of_windows(
        self, g: Group, o: ir.Output, kept: tuple[str, ...], red: tuple[str, ...], ranges: Scope
    ) -> ir.Output | None:
        """The walk over copies of padded windows: a maximum of keys, which takes one instruction
        where NaN takes four. None if it was done in two steps, each over few axes."""
        across = len(factors(o.term)) == 1 and (
            o.op == "max" or prod(ranges[a].largest for a in red) >= MANY
        )
        plain = self._padded(g, o.term, kept[-1], across)
        if o.init is o.dst:
            return replace(o, term=plain)
        if o.op == "max" and plain.kind == "load" and dtype(o.term) is DType.F32:
            keys = self._padded(g, unary("key", o.term), kept[-1], across)
            keyed = ir.Output(o.dst, "keyed", keys, unary("key", o.init))
            if self._in_two(g, keyed, kept, red, ranges):
                return None
            return keyed if self._is_short(red, ranges) else replace(o, term=plain)
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
            few = self._is_short(over, ranges) and self._is_short(rest, ranges)
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

    def _keep(self, g: Group, stages: list[Expr], kept: tuple[str, ...], j: str) -> Stores:
        """An expensive sub-term of this walk that is read again along other axes n, by a later
        walk or a root: the largest one."""
        kernel = self.c.kernel
        wanted = set(self._needed(kernel.values))
        same = [a for a, n in kernel.extent.items() if n == kernel.extent[j] and a not in kept]
        for e in reversed(self._needed([s.kids[0] for s in stages])):
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
                self.lasting[again[n]] = substitute(row, {axis(j): axis(n)})
            return ((row, value),)
        return ()

    def _row(self, kept: tuple[str, ...], n: str, e: Expr) -> Expr | None:
        """The row of the result itself, the cheapest place to keep a value of that shape."""
        kernel, root, axes = self.c.kernel, self.c.kernel.roots[0], (*kept, n)
        plain = root.index == tuple(axis(a) for a in axes) and axes == kernel.axes
        fits = self.c.places[root.buffer].dtype is computed(dtype(e))
        alone = len(kernel.roots) == 1 and not self._is_read(root) and not self.c.schedule.stream
        alone &= not self.c.target.gpu
        return self._destination(root) if plain and fits and alone else None

    # ---- weighted sums

    def _weighted(self, g: Group, stages: list[Expr]) -> dict[Expr, Expr]:
        """Sums with the same scores s: maximum, weights exp2(s - max), then the sums.

        Over tiles, sums so far are rescaled when the maximum grows. The maximum is clamped to
        finite values for the subtraction, so a tile of -inf does not poison later ones, and
        ignores NaN, which the weights carry on. A row of -inf only gives NaN by adding top - top.
        """
        (scores, factor), j = _unscaled(stages[0].kids[0]), stages[0].attr[0]
        kind, value, kept = dtype(scores), self.c.now(scores), self.c.order(scores.free - {j})
        place = self._spent(g, stages, value, {*kept, j}) or self.c.new(
            "weights", (*kept, j), g.inside, kind
        )
        *_, lane = (d.label for d in self.c.places[place.attr[0]].dims)
        if lane != j:
            kept = (*(a for a in kept if a != lane), lane)
        lanes = "reduced" if lane == j else "strips"
        # the scores of a GPU stay as they are in registers; the weights may lie elsewhere
        apart = self.c.target.gpu and value.kind != "load"
        kept_scores = self.c.new("scores", (*kept, j), g.inside, kind) if apart else place
        stores = () if value.kind == "load" else ((kept_scores, value),)
        top = new_top = self.c.new("top", kept, g.outside, kind)
        if g.cut:
            new_top = self.c.new("top", kept, g.outside, kind)
            self._map(g.before, top, kept, g.outside, least(kind))
        ranges = {a: g.inside[a] for a in (*kept, j)}
        first = ir.Output(new_top, "top", value, top if g.cut else least(kind))
        streams = max(self.c.plan[s].streams for s in stages)
        g.body.ops.append(ir.Reduce(kept, (j,), ranges, (first,), lanes, streams, stores))
        scale = None
        if g.cut:
            scale = self.c.new("scale", kept, g.outside, kind)
            shrink = _power(unary("finite", top), new_top, factor)
            self._map(g.body, scale, kept, g.outside, shrink)
            self._map(g.body, top, kept, g.outside, new_top)
        weight = _power(kept_scores if stores else value, new_top, factor)
        sums = self._weigh(g, stages, Weights(place, weight, kept, lanes, scale))
        return {s: binary("add", sums[s], _minus(top, top)) for s in stages}

    def _spent(self, g: Group, stages: list[Expr], value: Expr, axes: set[str]) -> Expr | None:
        """The scratch value of the stage below these scores, if nothing else reads it: its place
        can hold the weights."""
        if self.c.target.gpu:
            return None
        others = [s for s in g.stages if s not in stages] + [s.kids[1] for s in stages]
        read = {e for t in others for e in subterms(self.c.now(t))}
        dots = any(self.c.plan[s].form == "dot" for s in stages)  # with lanes along the sum
        for e in (e for e in subterms(value) if e.kind == "load" and e not in read):
            p = self.c.places[e.attr[0]]
            own = p.name.startswith("stage") and p.kind == "scratch" and p.dtype is dtype(value)
            if own and {d.label for d in p.dims} == axes:
                return e if not dots or p.dims[-1].label == stages[0].attr[0] else None
        return None

    def _weigh(self, g: Group, stages: list[Expr], w: Weights) -> dict[Expr, Expr]:
        """The sums of one tile. The weights are computed once, by the first walk, and stored."""
        sums = {s: self.c.new("stage", self._axes(s), g.outside, dtype(s)) for s in stages}
        simple = [s for s in stages if self.c.plan[s].form == "rows" and s.free == set(w.kept)]
        if w.scale is not None:
            for s in stages:
                self._map(g.before, sums[s], self._axes(s), g.outside, const(0.0, dtype(s)))
        if simple:
            stores = ((w.place, w.term),) if len(simple) < len(stages) else ()
            self._walk(g, {s: sums[s] for s in simple}, w, stores)
        else:
            axes = [d.label for d in self.c.places[w.place.attr[0]].dims]
            self._map(g.body, w.place, axes, g.inside, w.term)
        for s in (s for s in stages if s not in simple):
            if self.c.plan[s].form == "rows":
                kept, lanes = self.c.order(s.free), self.c.plan[s].lanes
                self._walk(g, {s: sums[s]}, replace(w, term=w.place, kept=kept, lanes=lanes))
                continue
            if w.scale is not None:
                rescaled = binary("mul", sums[s], w.scale)
                self._map(g.body, sums[s], self._axes(s), g.inside, rescaled)
            self._contract(g, s, sums[s], () if w.scale is None else None, w.place)
        return sums

    def _walk(self, g: Group, sums: dict[Expr, Expr], w: Weights, stores: Stores = ()) -> None:
        """One walk over a tile that adds weight * value to these sums."""
        outputs = []
        for s, dst in sums.items():
            value, zero = self.c.now(s.kids[1]), const(0.0, dtype(s))
            one = value.kind == "const" and value.attr[1] == 1
            term = w.term if one else binary("mul", w.term, value)
            init = zero if w.scale is None else binary("mul", dst, w.scale)
            outputs.append(ir.Output(dst, "sum", term, init))
        red = bound_axes(next(iter(sums)))
        ranges = {a: g.inside[a] for a in (*w.kept, *red)}
        g.body.ops.append(ir.Reduce(w.kept, red, ranges, tuple(outputs), w.lanes, stores=stores))


@dataclass(frozen=True)
class Weights:
    """The weights of one tile of a weighted sum."""

    place: Expr  # where they are stored
    term: Expr  # how they are computed
    kept: tuple[str, ...]  # the axes of the rows, those of the lanes last
    lanes: str  # of the walks over them
    scale: Expr | None  # what the sums so far are multiplied by


def _is_expensive(e: Expr) -> bool:
    return e.kind == "un" and e.attr[0] in (*EXPENSIVE, "sqrt")


def _minus(a: Expr, b: Expr) -> Expr:
    return binary("add", a, binary("mul", b, const(-1.0, dtype(b))))


def _power(score: Expr, top: Expr, factor: Expr | None) -> Expr:
    """2 to the (scaled) distance of a score from the maximum, which is never positive."""
    distance = _minus(score, unary("finite", top))
    return unary("decay", distance if factor is None else binary("mul", distance, factor))


def _unscaled(scores: Expr) -> tuple[Expr, Expr | None]:
    """``(s, c)`` of scores c * s with a constant c > 0: differences are scaled after they are
    taken, so that scores near the largest float do not overflow."""
    found = ((s, c) for c, s in constants(scores, "mul") if c.attr[1] > 0)
    return next(found, (scores, None))

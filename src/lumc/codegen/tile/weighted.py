"""Sums weighted by powers of scores: one maximum, the weights, then the sums."""

from __future__ import annotations

from dataclasses import dataclass, replace

import lumc.codegen.tile.program as ir
from lumc.codegen.tile.context import Context, Group, Stores
from lumc.codegen.tile.contractions import Contractions
from lumc.codegen.tile.homes import Homes
from lumc.graph.expr import Expr, bound_axes, subterms
from lumc.kernel.normal import least
from lumc.kernel.term import binary, const, constants, dtype, unary


@dataclass(frozen=True)
class Weights:
    """The weights of one tile of a weighted sum."""

    place: Expr  # where they are stored
    term: Expr  # how they are computed
    kept: tuple[str, ...]  # the axes of the rows, those of the lanes last
    lanes: str  # of the walks over them
    scale: Expr | None  # what the sums so far are multiplied by


@dataclass(frozen=True)
class WeightedSums:
    """Stages that are weighted sums, as operations."""

    c: Context
    homes: Homes
    contractions: Contractions

    def write(self, g: Group, stages: list[Expr]) -> dict[Expr, Expr]:
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
        # scores in registers stay as they are; the weights may lie elsewhere
        apart = not self.c.execution.in_memory and value.kind != "load"
        kept_scores = self.c.new("scores", (*kept, j), g.inside, kind) if apart else place
        stores = () if value.kind == "load" else ((kept_scores, value),)
        top = new_top = self.c.new("top", kept, g.outside, kind)
        if g.cut:
            new_top = self.c.new("top", kept, g.outside, kind)
            g.before.map(top, kept, g.outside, least(kind))
        ranges = {a: g.inside[a] for a in (*kept, j)}
        first = ir.Output(new_top, "top", value, top if g.cut else least(kind))
        streams = max(self.c.stage[s].streams for s in stages)
        g.body.ops.append(ir.Reduce(kept, (j,), ranges, (first,), lanes, streams, stores))
        scale = None
        if g.cut:
            scale = self.c.new("scale", kept, g.outside, kind)
            shrink = _power(unary("finite", top), new_top, factor)
            g.body.map(scale, kept, g.outside, shrink)
            g.body.map(top, kept, g.outside, new_top)
        weight = _power(kept_scores if stores else value, new_top, factor)
        sums = self._weigh(g, stages, Weights(place, weight, kept, lanes, scale))
        return {s: binary("add", sums[s], _minus(top, top)) for s in stages}

    def _spent(self, g: Group, stages: list[Expr], value: Expr, axes: set[str]) -> Expr | None:
        """The scratch value of the stage below these scores, if nothing else reads it and each turn
        of the loops around makes it anew: its place can hold the weights."""
        if not self.c.execution.in_memory:
            return None
        others = [s for s in g.stages if s not in stages] + [s.kids[1] for s in stages]
        read = {e for t in others for e in subterms(self.c.now(t))}
        dots = any(self.c.stage[s].form == "dot" for s in stages)  # with lanes along the sum
        each = [op for op in (*g.before.ops, *g.body.ops) if not isinstance(op, ir.When)]
        anew = {e.attr[0] for op in ir.leaves(each) for e in ir.written(op)}
        for e in (e for e in subterms(value) if e.kind == "load" and e not in read):
            p = self.c.places[e.attr[0]]
            own = p.name.startswith("stage") and p.kind == "scratch" and p.dtype is dtype(value)
            if own and p.name in anew and {d.label for d in p.dims} == axes:
                return e if not dots or p.dims[-1].label == stages[0].attr[0] else None
        return None

    def _weigh(self, g: Group, stages: list[Expr], w: Weights) -> dict[Expr, Expr]:
        """The sums of one tile. The weights are computed once, by the first walk, and stored."""
        sums = {s: self.c.new("stage", self.homes.axes(s), g.outside, dtype(s)) for s in stages}
        simple = [s for s in stages if self.c.stage[s].form == "rows" and s.free == set(w.kept)]
        if w.scale is not None:
            for s in stages:
                g.before.map(sums[s], self.homes.axes(s), g.outside, const(0.0, dtype(s)))
        if simple:
            stores = ((w.place, w.term),) if len(simple) < len(stages) else ()
            self._walk(g, {s: sums[s] for s in simple}, w, stores)
        else:
            axes = [d.label for d in self.c.places[w.place.attr[0]].dims]
            g.body.map(w.place, axes, g.inside, w.term)
        for s in (s for s in stages if s not in simple):
            if self.c.stage[s].form == "rows":
                kept, lanes = self.c.order(s.free), self.c.stage[s].lanes
                self._walk(g, {s: sums[s]}, replace(w, term=w.place, kept=kept, lanes=lanes))
                continue
            if w.scale is not None:
                rescaled = binary("mul", sums[s], w.scale)
                g.body.map(sums[s], self.homes.axes(s), g.inside, rescaled)
            self.contractions.contract(g, s, sums[s], () if w.scale is None else None, w.place)
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

"""What the steps of lowering share: the places made so far and the values that are available."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import lumc.codegen.tile.program as ir
from lumc.codegen.tile.execution import EXECUTION
from lumc.codegen.tile.packing import Packing
from lumc.graph.expr import Expr, axis, below, num, substitute
from lumc.graph.ops import DType
from lumc.kernel.access import Access
from lumc.kernel.target import Target
from lumc.kernel.term import REDUCTIONS, Kernel, dtype
from lumc.schedule.applies import EXPENSIVE
from lumc.schedule.operands import computed, lanes
from lumc.schedule.schedule import Schedule, Stage

Scope = Mapping[str, ir.Range]  # where every axis stands
Stores = tuple[tuple[Expr, Expr], ...]  # where to, and what


@dataclass
class Body:
    """Operations being written, and the operand copies made among them."""

    ops: list[ir.Op] = field(default_factory=list)
    copies: dict[object, Expr] = field(default_factory=dict)

    def map(self, dst: Expr, axes: Sequence[str], scope: Scope, term: Expr) -> None:
        """Write ``dst = term`` over these axes, each where it stands in the scope."""
        self.ops.append(ir.Map(dst, tuple(axes), {a: scope[a] for a in axes}, term))


@dataclass
class Group:
    """Stages over the same axes, none needing another: one loop."""

    stages: list[Expr]
    cut: tuple[str, ...]  # their axes that are tiled
    outside: Scope
    inside: Scope  # where axes stand within the loop over these tiles
    before: Body
    body: Body = field(default_factory=Body)


class Context:
    """One kernel being lowered. ``available`` maps stages to the terms that read their values."""

    def __init__(self, kernel: Kernel, schedule: Schedule, target: Target) -> None:
        self.kernel, self.schedule, self.target = kernel, schedule, target
        self.execution = EXECUTION[target.machine]
        self.stage: dict[Expr, Stage] = dict(zip(kernel.stages, schedule.stages, strict=True))
        self.whole: dict[str, ir.Range] = {a: ir.whole(n) for a, n in kernel.extent.items()}
        for a, n in kernel.lengths.live:
            self.whole[a] = ir.Range(num(0), n, kernel.lengths.sizes(a))
        self.available: dict[Expr, Expr] = {}
        self.lasting: dict[Expr, Expr] = {}  # kept values, readable until the end
        self.lacking: dict[object, list[Expr]] = {}  # what is missing of terms, by what is there
        self.packed: dict[str, Packing] = {}
        self.places: dict[str, ir.Place] = {}
        for b in kernel.buffers:
            dims = tuple(ir.Dim(str(i), num(0), n) for i, n in enumerate(b.shape))
            self.places[b.name] = ir.Place(b.name, b.dtype, dims, "argument")

    # ---- axes

    def tile(self, name: str) -> int:
        """How many values of an axis are done at once: its tile, at most its extent."""
        extent = self.kernel.extent[name]
        return min(extent, self.schedule.tile.get(name, extent))

    def is_cut(self, name: str) -> bool:
        """Is there a loop over tiles of this axis?"""
        return self.tile(name) < self.kernel.extent[name]

    def loop(self, name: str) -> ir.Loop:
        """The loop over the tiles of an axis."""
        length = self.kernel.lengths.of.get(name)
        return ir.Loop(name, self.tile(name), self.kernel.extent[name], length)

    def range(self, name: str) -> ir.Range:
        """Where an axis stands inside the loop over its tiles."""
        if not self.is_cut(name):
            return self.whole[name]
        tile, rest = self.tile(name), self.kernel.extent[name] % self.tile(name)
        if name in self.kernel.lengths.of:
            return ir.live_tile(name, self.kernel.lengths.sizes(name), tile)
        if not rest:
            return ir.Range(ir.block_start(name), num(tile), (tile,))
        return ir.Range(ir.block_start(name), ir.block_size(name), (rest, tile))

    def order(self, axes: Iterable[str]) -> tuple[str, ...]:
        """Axes as values store them: output axes first, in their order, then the others."""
        rank = {a: i for i, a in enumerate(self.kernel.axes)}
        return tuple(sorted(axes, key=lambda a: (rank.get(a, len(rank)), a)))

    def access(self, load: Expr) -> Access:
        """How a load of one of the places moves."""
        return self.places[load.attr[0]].access(load)

    # ---- values

    def now(self, term: Expr) -> Expr:
        """``term`` with every available stage replaced by the value that holds it."""
        return substitute(term, self.available)

    def missing(self, terms: Sequence[Expr]) -> list[Expr]:
        """The stages still needed, inner ones first; not those below an available value."""
        asked = tuple(terms), frozenset(self.available)  # again at every loop
        if asked not in self.lacking:
            self.lacking[asked] = [e for e in self.needed(terms) if e.kind in REDUCTIONS]
        return self.lacking[asked]

    def needed(self, terms: Sequence[Expr]) -> list[Expr]:
        """The sub-terms that are not below an available value, inner ones first."""
        return below(terms, self.available)

    def width(self, stage: Expr, side: str) -> int:
        """Elements of one panel of an operand."""
        p = self.stage[stage]
        if side == "a":
            return p.mr
        return p.nv if p.form == "dot" else p.nv * lanes(self.target, dtype(stage))

    def new(
        self,
        tag: str,
        axes: Sequence[str],
        scope: Scope,
        kind: DType,
        panel: tuple[int, int] | None = None,
        where: str = "scratch",
        steps: int = 1,
    ) -> Expr:
        """A place for a value over these axes of the scope, and the load that reads it."""
        dims = tuple(ir.Dim(a, scope[a].lo, scope[a].largest) for a in axes)
        name = f"{tag}.{len(self.places)}"
        stored = computed(kind) if where != "packed" and self.execution.computed else kind
        self.places[name] = ir.Place(name, stored, dims, where, panel, steps)
        return ir.reference(self.places[name], [axis(a) for a in axes])


def is_expensive(e: Expr) -> bool:
    """Does this operation take many instructions, or one that takes many cycles?"""
    return e.kind == "un" and e.attr[0] in (*EXPENSIVE, "sqrt")

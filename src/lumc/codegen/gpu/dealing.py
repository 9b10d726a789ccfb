"""What is known while a program is dealt to the threads of a block: data that several steps fill,
and the questions that they ask of it."""

from __future__ import annotations

import lumc.codegen.tile.program as ir
from lumc.codegen.gpu.distribution import Distribution
from lumc.codegen.gpu.program import Step
from lumc.codegen.gpu.words import BYTES, words_of
from lumc.errors import LumcError
from lumc.graph.expr import Expr, axis, linear
from lumc.schedule.operands import computed
from lumc.schedule.schedule import Threads

MOVED = 16  # bytes that a thread copies at once


class Dealing:
    """``values`` is the distribution of every scratch value, by the labels of its dimensions;
    ``stored`` the dtype that its tile has; ``order`` its dimensions in memory."""

    def __init__(self, program: ir.Program, threads: Threads) -> None:
        assert program.target.gpu
        self.program, self.threads, self.gpu = program, threads, program.target.gpu
        self.places = dict(program.places)
        self.values = dict[str, Distribution]()
        self.stored = {n: computed(p.dtype) for n, p in self.places.items() if self.inside(n)}
        self.words = words_of(program.kernel)  # whose elements have no address
        self.order = dict[str, tuple[int, ...]]()
        self.turned = set[str]()
        self.known = set[Step]()  # whose points are dealt
        self.steps: list[Step] = []

    def refuse(self, what: str) -> LumcError:
        where = f"kernel '{self.program.kernel.name}'"
        return LumcError("E0411", f"the threads of a block cannot run it: {what}", where=where)

    def need(self, step: Step, ref: Expr) -> Distribution:
        """The distribution in which an operation sees a value, by its axes."""
        if isinstance(step.op, ir.Contract) and step.roles:
            for operand, role in ((step.op.a, step.roles.a), (step.op.b, step.roles.b)):
                if ref is operand:
                    return role
        return step.points.on(ref.free)

    def still(self, op: ir.Leaf, ref: Expr) -> bool:
        dims = self.places[ref.attr[0]].dims
        return all(
            d.size == 1 or (i.attr[0] in op.ranges and op.ranges[i.attr[0]].lo is d.origin)
            for i, d in zip(ref.kids, dims, strict=True)
        )

    def aligned(self, op: ir.Map | ir.Reduce, source: Expr, unit: str, width: int) -> bool:
        """May every thread move this many elements of the source at once?"""
        place = self.places[source.attr[0]]
        if place.name in self.words and width > self.words[place.name].steps * (MOVED // BYTES):
            return False
        constant, atoms = linear(place.offset(source.kids))
        others = (c for a, c in atoms.items() if a is not axis(unit))
        # so every tile starts at a multiple, too
        whole = all(n % width == 0 for n in (*op.ranges[unit].sizes, constant, *others))
        return whole and place.access(source).is_contiguous(unit)

    def inside(self, name: str) -> bool:
        return self.places[name].kind == "scratch"

    def name_of(self, op: ir.Map | ir.Contract) -> str:
        return str(op.dst.attr[0])

    def _labels(self, ref: Expr) -> dict[str, str]:
        """Axes that index a value, and the labels of its dimensions."""
        dims = self.places[ref.attr[0]].dims
        return {i.attr[0]: d.label for i, d in zip(ref.kids, dims, strict=True) if i.kind == "axis"}

    def labelled(self, ref: Expr, points: Distribution) -> Distribution:
        return points.renamed(self._labels(ref))

    def by_axis(self, ref: Expr, value: Distribution) -> Distribution:
        return value.renamed({label: a for a, label in self._labels(ref).items()})

"""Choosing by estimate: per unique region the variant and the cuts with the lowest bound.

Kernel times add up, so regions are independent. Candidates come in order of simplicity - fewer
reductions, fewer operations, fewer kernels - and a later one must be faster by a margin to win.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from lumc.graph.expr import Expr
from lumc.kernel.bound import bound_us, least_work, roofline_us
from lumc.kernel.key import canonical, kernel_key
from lumc.kernel.normal import normalize
from lumc.kernel.plan import KernelPlan, Plan, RegionPlan, Step
from lumc.kernel.space import default_schedule
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel
from lumc.search.cuts import Splitting
from lumc.search.space import Region, Space, Variant

MARGIN = 0.01  # a win must be larger; below it the simpler candidate stays
SHORT, NEAR = 4, 1.5  # candidates that are measured: at most, and within this of the best estimate
EXHAUSTIVE = 5  # cut points of which every subset is tried

Cuts = tuple[int, ...]


def estimate(space: Space) -> Plan:
    """A plan without measurement: the least roofline bound, default schedules."""
    kernels: dict[str, KernelPlan] = {}
    regions: dict[str, RegionPlan] = {}
    for region in space.regions:
        parts = choose(region, space.target)
        regions[region.key] = plan_region(region, parts, space.target, kernels)
    return Plan(space.graph, space.target, kernels, regions, space.instances, space.outputs)


def choose(region: Region, target: Target) -> list[Kernel]:
    """The kernels of the best candidate, in execution order."""
    best: tuple[float, _Candidates, Cuts] | None = None
    for found in _every(region, target):
        if best is None or found[0] < best[0] * (1 - MARGIN):
            best = found
    assert best is not None
    return best[1].splitting.kernels(best[2])


def shortlist(region: Region, target: Target) -> list[list[Kernel]]:
    """The kernels of the candidates that are worth measuring, in order of simplicity."""
    every = list(_every(region, target))
    best = min(us for us, _, _ in every)
    limit = sorted(us for us, _, _ in every)[:SHORT][-1]
    near = [f for f in every if f[0] <= min(limit, best * NEAR)]
    return [c.splitting.kernels(cuts) for _, c, cuts in near[:SHORT]]


def _every(region: Region, target: Target) -> Iterator[tuple[float, _Candidates, Cuts]]:
    """All candidates with their estimates, in order of simplicity."""
    prices: dict[tuple[Expr, tuple[Expr, ...]], float] = {}
    tried = [_Candidates(region, variant, target, prices) for variant in region.variants]
    for candidates in sorted(tried, key=lambda c: c.effort):
        for cuts in dict.fromkeys(candidates.cuts()):
            yield candidates.total(cuts), candidates, cuts


class _Candidates:
    """A variant with all its sets of cuts; kernels seen before are priced once."""

    def __init__(
        self,
        region: Region,
        variant: Variant,
        target: Target,
        prices: dict[tuple[Expr, tuple[Expr, ...]], float],
    ) -> None:
        self.points = range(len(variant.cuts))
        self.splitting = Splitting(region.frame, variant.value, variant.cuts)
        self.target, self.prices = target, prices
        self.totals: dict[Cuts, float] = {}
        (whole,) = self.splitting.kernels()
        self.effort = len(whole.stages), least_work(whole, likely=True).flops

    def cuts(self) -> Iterator[Cuts]:
        """Sets of cuts worth a look: all of few points, else a descent from both ends."""
        if len(self.points) <= EXHAUSTIVE:
            for size in range(len(self.points) + 1):
                yield from itertools.combinations(self.points, size)
            return
        yield from self._descend(())
        yield from self._descend(tuple(self.points))

    def _descend(self, cuts: Cuts) -> Iterator[Cuts]:
        """Flip one cut at a time for as long as that is faster."""
        yield cuts
        while True:
            flipped = [tuple(sorted({*cuts} ^ {i})) for i in self.points]
            times = [self.total(c) for c in flipped]
            if min(times) >= self.total(cuts) * (1 - MARGIN):
                return
            cuts = flipped[times.index(min(times))]
            yield cuts

    def total(self, cuts: Cuts) -> float:
        """The bounds of all kernels, in us; stages that differ in names count each."""
        if cuts not in self.totals:
            self.totals[cuts] = sum(self._price(k) for k in self.splitting.kernels(cuts))
        return self.totals[cuts]

    def _price(self, kernel: Kernel) -> float:
        key = kernel.roots[0].value, kernel.roots[0].index
        if key not in self.prices:
            self.prices[key] = roofline_us(least_work(kernel, likely=True), self.target)
        return self.prices[key]


def plan_region(
    region: Region, parts: Sequence[Kernel], target: Target, kernels: dict[str, KernelPlan]
) -> RegionPlan:
    """The launches of a region; new kernels are added to ``kernels``, equal ones shared."""
    steps = []
    for part in parts if 0 not in region.frame.output.shape else ():
        kernel, args = canonical(normalize(part))
        key = kernel_key(kernel, target)
        if key not in kernels:
            kernel = replace(kernel, name=name_of(kernel))
            schedule = default_schedule(kernel, target)
            kernels[key] = KernelPlan(key, kernel, schedule, bound_us(kernel, target))
        steps.append(Step(key, args))
    local = tuple(k.buffer(k.roots[0].buffer) for k in parts[:-1])
    return RegionPlan(region.key, tuple(steps), local)


def name_of(kernel: Kernel) -> str:
    """What a kernel does and over what: ``wsum128_12x128x32``."""
    stages = kernel.stages
    shape = "x".join(str(n) for n in kernel.buffer(kernel.roots[0].buffer).shape) or "scalar"
    if not stages:
        return f"map_{shape}"
    last = stages[-1]
    kind = "wsum" if any(s.kind == "wsum" for s in stages) else last.attr[0]
    axes = last.attr[1] if last.kind == "red" else last.attr
    return f"{kind}{'x'.join(str(kernel.extent[a]) for a in axes)}_{shape}"

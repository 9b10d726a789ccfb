"""Choosing by estimate: per unique region the variant and the cuts with the lowest price.

Kernel times add up, so regions are independent. Candidates come in order of simplicity - fewer
reductions, fewer operations, fewer kernels - and a later one must be cheaper by a margin to win.
A candidate with a kernel that cannot be lowered, or that is not proven to stay inside its buffers,
is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf

from lumc.doing import doing
from lumc.errors import LumcError
from lumc.graph.expr import axis
from lumc.kernel.bound import bound_us
from lumc.kernel.instance import Instance
from lumc.kernel.key import canonical, kernel_key
from lumc.kernel.normal import normalize
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel
from lumc.profile.candidates import (
    MARGIN,
    NEAR,
    Program,
    Say,
    Way,
    key_of,
    priced,
    promising,
    silent,
)
from lumc.profile.forms import Agreement
from lumc.profile.lowered import Kernels
from lumc.profile.memory import RESULTS
from lumc.profile.price import cheaper, price_us, scheduled
from lumc.schedule.fragment import matrix_speed
from lumc.schedule.plan import KernelPlan, Plan, RegionPlan, Step
from lumc.search.layout import layouts, origin
from lumc.search.siblings import Joint, families, fused, joined
from lumc.search.space import Region, Space

SHORT = 4  # candidates that are measured; a guess


def estimate(
    space: Space, say: Say = silent, most: float = inf, known: Kernels | None = None
) -> Plan:
    """A plan without measurement: the least price, default schedules. Kernels of a region hand on
    ``most`` bytes, or as few more as they can; ``known``: what they cost, kept for other calls."""
    known = known or Kernels(space.target)
    kernels, regions = dict[str, KernelPlan](), dict[str, RegionPlan]()
    instances, lists = next(programs(space, lambda found: [choose(found)], say, most, known))
    for key, listed in lists.items():
        regions[key] = plan_region(key, listed[-1], space.target, kernels, known)
    plan = Plan(space.graph, space.target, kernels, regions, instances, space.outputs)
    return Agreement(space.target).plan(plan)


def programs(
    space: Space,
    listed: Callable[[Sequence[Program]], list[list[Kernel]]],
    say: Say = silent,
    most: float = inf,
    known: Kernels | None = None,
) -> Iterator[tuple[tuple[Instance, ...], dict[str, list[list[Kernel]]]]]:
    """For every layout that is worth a look: the instances of the space with those joined whose
    kernels are cheaper side by side, and for every region of them the programs: those of a joint
    one apart, then fused."""
    for laid, every in candidates(space, say, most, known):
        lists = {key: listed(found) for key, found in every.items()}
        together = families(laid)
        for joint, _ in together:
            if joint.key not in lists:
                found = ways(joint, lists, laid.target)
                if ones := [one for *_, one in found if one]:
                    lists[joint.key] = [apart for _, apart, _ in found] + ones
        instances = joined(laid, [f for f in together if f[0].key in lists])
        used = {i.region for i in instances}
        yield instances, {key: found for key, found in lists.items() if key in used}


def candidates(
    space: Space, say: Say = silent, most: float = inf, costs: Kernels | None = None
) -> Iterator[tuple[Space, dict[str, list[Program]]]]:
    """The space with the layouts of values between regions that are cheapest by estimate, then with
    those that are nearly as cheap; with each all candidates of its regions with their prices, in
    order of simplicity."""
    known, kernels = dict[str, list[tuple[Program, Way]]](), costs or Kernels(space.target)
    plain, quick = {r.key: r for r in space.regions}, dict[str, float]()

    def every(region: Region) -> list[Program]:
        if region.key not in known:
            doing(f"estimating region {len(known) + 1}")
            known[region.key] = priced(region, kernels, say, most=most)
        return [program for program, _ in known[region.key]]

    def least(region: Region) -> float:
        try:
            if region.key in plain:
                return min(us for us, _ in every(region))
            if region.key not in quick:
                found = priced(region, kernels, say, ways_in(region), most)
                quick[region.key] = min(us for (us, _), _ in found)
            return quick[region.key]
        except LumcError:  # said already; in another layout it may be valid
            return inf

    def ways_in(region: Region) -> Sequence[Way]:
        """In another layout, those that are promising in the plain one; all if some are no more."""
        own = plain[origin(region.key)]
        pairs = zip(own.variants, region.variants, strict=True)
        same = own.key in known and all(len(a.cuts) == len(b.cuts) for a, b in pairs)
        return promising(known[own.key]) if same else ()

    def vectors(region: Region) -> int | None:
        last = normalize(choose(every(region))[-1])
        stages = scheduled(last, space.target)[0].stages
        index = last.roots[0].index if last.roots else ()
        lanes = [axis(p.lane_axis) for p in stages if p.form == "contract" and p.lane_axis]
        return index.index(lanes[-1]) if lanes and lanes[-1] in index[:-1] else None

    # elements that lie side by side are a vector
    ways_to_lay = layouts(space, least, vectors) if space.target.lanes > 1 else [space]
    for laid in ways_to_lay:
        yield laid, {r.key: every(r) for r in laid.regions}


def ways(
    joint: Joint, lists: Mapping[str, Sequence[list[Kernel]]], target: Target
) -> list[tuple[list[list[Kernel]], list[Kernel], list[Kernel]]]:
    """The first programs of all members, the second, .., of those that have fewer the last; the
    kernels of the joint region for these; the same with kernels side by side, if that is cheaper
    than all that are apart, and not too much for the threads of a block."""
    known = dict[str, float]()

    def price(kernels: Iterable[Kernel]) -> float:
        total = 0.0
        for k in kernels:
            key = kernel_key(canonical(normalize(k))[0], target)
            known[key] = known[key] if key in known else price_us(k, target)
            total += known[key]
        return total

    def pays(one: Kernel, apart: Iterable[Kernel]) -> bool:
        try:
            return price([one]) < price(apart) * (1 - MARGIN)
        except LumcError:
            return False

    alone = [lists[key] for key in joint.members]
    ranks = [[p[min(n, len(p) - 1)] for p in alone] for n in range(max(map(len, alone)))]
    moved = [joint.programs(own) for own in ranks]
    apart = [[k for each in programs for k in each] for programs in moved]
    least, ones = min(map(price, apart)), [fused(programs, pays) for programs in moved]
    cheap = [one if price(one) < least * (1 - MARGIN) else [] for one in ones]
    return list(zip(ranks, apart, cheap, strict=True))


def choose(found: Sequence[Program]) -> list[Kernel]:
    """The kernels of the best candidate, in execution order."""
    best = found[0]
    for program in found:
        if program[0] < best[0] * (1 - MARGIN):
            best = program
    return best[1]


def shortlist(found: Sequence[Program]) -> list[list[Kernel]]:
    """The kernels of the candidates that are worth measuring, in order of simplicity; of those
    with the same kernels the first."""
    every: dict[object, Program] = {}
    for us, kernels in found:
        every.setdefault(frozenset(map(key_of, kernels)), (us, kernels))
    prices = sorted(us for us, _ in every.values())
    limit = min(prices[:SHORT][-1], prices[0] * NEAR)
    return [kernels for us, kernels in every.values() if us <= limit][:SHORT]


def plan_region(
    region: str,
    parts: Sequence[Kernel],
    target: Target,
    kernels: dict[str, KernelPlan],
    known: Kernels | None = None,
) -> RegionPlan:
    """The launches of a region; new kernels are added to ``kernels``, equal ones shared, with the
    schedules of what is ``known`` of them."""
    steps, known = [], known or Kernels(target)
    for part in (p for p in parts if p.roots) if parts[-1].roots else ():  # else it is empty
        kernel, args = canonical(normalize(part))
        key = kernel_key(kernel, target)
        if key not in kernels:
            kernel = replace(kernel, name=name_of(kernel))
            schedule = cheaper(kernel, target, known.scheduled(kernel)[0])
            least_us = bound_us(kernel, target, matrix_speed(kernel, target))
            kernels[key] = KernelPlan(key, kernel, schedule, least_us)
        steps.append(Step(key, args))
    stored = [k.buffer(name) for k in parts for name in k.stored]
    local = tuple({b.name: b for b in stored if b.name not in RESULTS}.values())
    return RegionPlan(region, tuple(steps), local)


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

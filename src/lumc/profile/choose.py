"""Choosing by estimate: per unique region the variant and the cuts with the lowest price.

Kernel times add up, so regions are independent. Candidates come in order of simplicity - fewer
reductions, fewer operations, fewer kernels - and a later one must be cheaper by a margin to win.
A candidate with a kernel that cannot be lowered, or that is not proven to stay inside its buffers,
is dropped.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from lumc.doing import doing
from lumc.errors import Exit, LumcError
from lumc.graph.expr import Expr, axis, text
from lumc.kernel.bound import bound_us, least_work
from lumc.kernel.instance import Instance, results
from lumc.kernel.key import canonical, kernel_key, renamed
from lumc.kernel.normal import normalize
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel
from lumc.profile.forms import Agreement
from lumc.profile.lowered import LEAST_US, Kernels, Lowered
from lumc.profile.price import price_us, scheduled
from lumc.schedule.fragment import matrix_speed
from lumc.schedule.plan import KernelPlan, Plan, RegionPlan, Step
from lumc.search.blocks import blocks_joined
from lumc.search.compact import compacts
from lumc.search.cuts import Splitting
from lumc.search.layout import with_layouts
from lumc.search.polyphase import polyphases
from lumc.search.siblings import MOST, Joint, families, fused, joined
from lumc.search.space import Region, Space, Variant
from lumc.search.split import blocks_apart, splits
from lumc.search.turn import turns

MARGIN = 0.05  # a win must be larger, else the simpler candidate stays; a guess
SHORT, NEAR = 4, 1.5  # candidates that are measured, at most so far from the best price; a guess
LIKELY = 1.1  # the same of several steps for one, if caches hold what they hand on; a guess
RESULTS = (*results(1), *results(MOST))
EXHAUSTIVE = 5  # cut points of which every subset is tried; derived: 32 subsets

REASONS, SHOWN = (
    400,
    60,
)  # characters of what is said of invalid candidates; derived: 4 lines, half a line

Cuts = tuple[int, ...]
Say = Callable[[str], None]
_Key = tuple[tuple[Expr, tuple[Expr, ...]], ...]
Program = tuple[float, list[Kernel]]  # its price and its kernels


def silent(_: str) -> None:
    """Hears why candidates are dropped."""


def estimate(space: Space, say: Say = silent) -> Plan:
    """A plan without measurement: the least price, default schedules."""
    kernels, regions = dict[str, KernelPlan](), dict[str, RegionPlan]()
    instances, lists = programs(space, lambda found: [choose(found)], say)
    for key, listed in lists.items():
        regions[key] = plan_region(key, listed[-1], space.target, kernels)
    plan = Plan(space.graph, space.target, kernels, regions, instances, space.outputs)
    return Agreement(space.target).plan(plan)


def programs(
    space: Space, listed: Callable[[Sequence[Program]], list[list[Kernel]]], say: Say = silent
) -> tuple[tuple[Instance, ...], dict[str, list[list[Kernel]]]]:
    """The instances of a space with those joined whose kernels are cheaper side by side, and for
    every region of them the programs: those of a joint one apart, then fused."""
    space, every = candidates(space, say)
    lists = {key: listed(found) for key, found in every.items()}
    together = families(space)
    for joint, _ in together:
        if joint.key not in lists:
            found = ways(joint, lists, space.target)
            if ones := [one for *_, one in found if one]:
                lists[joint.key] = [apart for _, apart, _ in found] + ones
    instances = joined(space, [f for f in together if f[0].key in lists])
    used = {i.region for i in instances}
    return instances, {key: found for key, found in lists.items() if key in used}


def candidates(space: Space, say: Say = silent) -> tuple[Space, dict[str, list[Program]]]:
    """The space with the layouts of values between regions that are cheaper by estimate, and all
    candidates of its regions with their prices, in order of simplicity."""
    known, kernels = dict[str, list[Program]](), Kernels(space.target)

    def every(region: Region) -> list[Program]:
        if region.key not in known:
            doing(f"estimating region {len(known) + 1}")
            known[region.key] = programs_of(region, space.target, say, kernels)
        return known[region.key]

    def least(region: Region) -> float:
        try:
            return min(us for us, _ in every(region))
        except LumcError:  # said already; in another layout it may be valid
            return inf

    def vectors(region: Region) -> int | None:
        last = normalize(choose(every(region))[-1])
        stages = scheduled(last, space.target)[0].stages
        index = last.roots[0].index if last.roots else ()
        lanes = [axis(p.lane_axis) for p in stages if p.form == "contract" and p.lane_axis]
        return index.index(lanes[-1]) if lanes and lanes[-1] in index[:-1] else None

    if space.target.lanes > 1:  # elements that lie side by side are a vector
        space = with_layouts(space, least, vectors)
    return space, {r.key: every(r) for r in space.regions}


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
        every.setdefault(frozenset(map(_key, kernels)), (us, kernels))
    prices = sorted(us for us, _ in every.values())
    limit = min(prices[:SHORT][-1], prices[0] * NEAR)
    return [kernels for us, kernels in every.values() if us <= limit][:SHORT]


def programs_of(
    region: Region, target: Target, say: Say = silent, kernels: Kernels | None = None
) -> list[Program]:
    """All candidates with their prices, in order of simplicity. Raises E0415 if none is valid.
    ``kernels``: what is known of those of other regions."""
    prices = _Prices(kernels or Kernels(target))
    tried = [_Candidates(region, variant, prices) for variant in region.variants]
    ordered = sorted(tried, key=lambda c: c.effort)
    every = [p for c in ordered for cuts in dict.fromkeys(c.cuts()) for p in c.programs(cuts)]
    for key, reason in prices.dropped.items():
        say(f"  {region.key[:12]}: dropped candidates with {text(key[0][0])[:SHOWN]}: {reason}")
    valid = [p for p in every if p[0] < inf]
    if not valid:
        what = f"no candidate of region {region.key[:12]} is valid: "
        what += "; ".join(dict.fromkeys(prices.dropped.values()))[:REASONS]
        raise LumcError("E0415", what, exit=Exit.UNSUPPORTED)
    return valid


def _key(kernel: Kernel) -> _Key:
    """Equal for equal kernels of one region."""
    return tuple((r.value, r.index) for r in kernel.roots)


@dataclass
class _Cost:
    """The price of a kernel, in us."""

    kernel: Kernel
    least: float  # no price is less
    whole: float = 0.0  # in one step; infinite if it is not valid, 0 until it is asked for
    cached: float = 0.0  # the same, of caches that hold all that kernels hand on
    idle: float = inf  # less than in two steps, where the target has too little to do
    across: bool = False  # may be cheaper turned
    gain: float = -inf  # what the cheapest way to do it as several kernels saves, if not less
    parts: list[Kernel] = field(default_factory=list)  # and these, where they may be worth a try

    @property
    def known(self) -> float:
        """No price is less, as far as is known."""
        return self.whole - self.saved if self.idle == inf and not self.across else self.least

    @property
    def saved(self) -> float:
        """By the cheapest way, where that is more than prices are off by."""
        return self.gain if self.gain > self.whole * MARGIN else 0.0

    @property
    def lost(self) -> float:
        """By the way that is worth a try, against the cheapest; one that is far only if memory is
        as slow as that counts as near."""
        return self.saved - max(self.gain, self.whole * (1 - NEAR)) if self.parts else 0.0


@dataclass
class _Prices:
    """What the kernels of one region cost, and the best of its candidates so far."""

    kernels: Kernels
    best: float = inf
    costs: dict[_Key, _Cost] = field(default_factory=dict)
    dropped: dict[_Key, str] = field(default_factory=dict)  # kernels that are not valid, and why

    def at_least(self, kernels: Sequence[Kernel]) -> float:
        """No more than ``total``, and soon known."""
        return sum(self._cost(k).known for k in kernels)

    def total(self, kernels: Sequence[Kernel], most: float = inf) -> float:
        """In us; of candidates that are not near the best one, or take more than ``most``, less
        than that; infinite if one of the kernels is not valid."""
        costs = [self._cost(k) for k in kernels]
        total = sum(c.least for c in costs)
        for c in sorted(costs, key=lambda c: -c.least):
            if total > min(self.best * NEAR, most):
                return total
            total += self._price(c, self.best - total + c.least) - c.least
            if total == inf:
                return total
        self.best = min(self.best, total)
        return total

    def _cost(self, kernel: Kernel) -> _Cost:
        key = _key(kernel)
        if key not in self.costs:
            self.costs[key] = _Cost(kernel, self.kernels.least(kernel))
        return self.costs[key]

    def _price(self, c: _Cost, room: float) -> float:
        """In one step; where that is cheaper in phases, on compact copies, with blocks of levels
        joined, in two steps if the target has too little to do, or turned if its lanes do badly.
        More than ``room`` is too much."""
        k, target = c.kernel, self.kernels.target
        if not c.whole:
            c.whole, c.cached, c.idle, c.across = self._lowered(k)[:4]
            if LEAST_US < c.whole < inf:
                ways = polyphases(k), compacts(k, target), blocks_apart(k), blocks_joined(k)
                self._split(c, itertools.chain(*ways))
        if c.idle < min(room, c.whole * (1 - MARGIN)):
            c.idle = inf
            self._split(c, splits(k, target))
        if c.across:
            c.across = False
            self._split(c, turns(k, target))
        return c.whole - c.saved

    def _lowered(self, kernel: Kernel) -> Lowered:
        """What it costs; why it is dropped is kept."""
        found = self.kernels.lowered(kernel)
        if found.why:
            self.dropped[_key(kernel)] = found.why
        return found

    def _split(self, c: _Cost, ways: Iterable[list[Kernel]]) -> None:
        """Keep the cheapest way to do a kernel as several, of those that may turn out cheaper."""
        for parts in ways:
            prices = [self._lowered(k)[:2] for k in parts]
            us, cached = map(sum, zip(*prices, strict=True))
            near = us < c.whole * NEAR or cached < c.cached * LIKELY
            if near and us < (c.whole - c.gain) * (1 - MARGIN):
                c.gain, c.parts = c.whole - us, parts

    def in_steps(self, kernel: Kernel) -> tuple[_Cost, list[Kernel]]:
        """The cheapest way to do a kernel as several, and these. Other programs may have another
        name for its result than the one that was priced."""
        c = self._cost(kernel)
        parts = c.parts or [kernel]
        names = dict(zip(parts[-1].stored, kernel.stored, strict=True))
        for name in [n for p in parts for n in p.stored if n not in names]:
            result, _, rest = name.rpartition("_")
            names[name] = f"{names[result]}_{rest}"
        same = all(a == b for a, b in names.items())
        return c, parts if same else [renamed(p, {}, names) for p in parts]


class _Candidates:
    """A variant with all its sets of cuts."""

    def __init__(self, region: Region, variant: Variant, prices: _Prices) -> None:
        self.points = range(len(variant.cuts))
        self.splitting = Splitting(region.frame, variant.value, variant.cuts)
        self.prices, self.totals = prices, dict[Cuts, float]()
        self.split = dict[Cuts, Sequence[Kernel]]()
        (whole,) = self.kernels(())
        self.effort = len(whole.stages), least_work(whole).flops

    def kernels(self, cuts: Cuts) -> Sequence[Kernel]:
        """What lies between these cuts."""
        if cuts not in self.split:
            self.split[cuts] = self.splitting.kernels(cuts)
        return self.split[cuts]

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
        found: Cuts | None = cuts
        while found is not None:
            cuts, found = found, None
            yield cuts
            flipped = [tuple(sorted({*cuts} ^ {i})) for i in self.points]
            most, at = self.total(cuts) * (1 - MARGIN), len(flipped)
            # what looks best first: of most others it is then known that they are not
            for i in sorted(self.points, key=lambda i: self.at_least(flipped[i])):
                us = self.total(flipped[i], most)
                if us < most or (us == most and i < at < len(flipped)):
                    most, at, found = us, i, flipped[i]

    def programs(self, cuts: Cuts) -> Iterator[Program]:
        """The kernels between these cuts, also with those in several steps that are cheaper so, and
        with all that may be."""
        kernels, us = self.kernels(cuts), self.total(cuts)
        split = [self.prices.in_steps(k) for k in kernels]
        yield us + sum(c.saved for c, _ in split), kernels
        if any(c.saved for c, _ in split):
            pairs = zip(kernels, split, strict=True)
            yield us, [p for k, (c, parts) in pairs for p in (parts if c.saved else [k])]
        if more := sum(c.lost for c, _ in split):
            yield us + more, [k for _, parts in split for k in parts]

    def at_least(self, cuts: Cuts) -> float:
        """No more than ``total``."""
        known = self.totals.get(cuts)
        return self.prices.at_least(self.kernels(cuts)) if known is None else known

    def total(self, cuts: Cuts, most: float = inf) -> float:
        """The price of all kernels, in us; more than ``most`` may be too little."""
        if cuts not in self.totals:
            total = self.prices.total(self.kernels(cuts), most)
            if total > most:
                return total
            self.totals[cuts] = total
        return self.totals[cuts]


def plan_region(
    region: str, parts: Sequence[Kernel], target: Target, kernels: dict[str, KernelPlan]
) -> RegionPlan:
    """The launches of a region; new kernels are added to ``kernels``, equal ones shared."""
    steps = []
    for part in (p for p in parts if p.roots) if parts[-1].roots else ():  # else it is empty
        kernel, args = canonical(normalize(part))
        key = kernel_key(kernel, target)
        if key not in kernels:
            kernel = replace(kernel, name=name_of(kernel))
            schedule, _ = scheduled(kernel, target)
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

"""All ways to compute a region: its variants, with all sets of cuts that are worth a look, each
with its price."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

from lumc.errors import Exit, LumcError
from lumc.graph.expr import Expr, text
from lumc.kernel.bound import least_work
from lumc.kernel.key import renamed
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel
from lumc.profile.lowered import LEAST_US, Kernels, Lowered
from lumc.profile.memory import handed_on
from lumc.search.blocks import blocks_joined
from lumc.search.compact import compacts
from lumc.search.cuts import Splitting
from lumc.search.polyphase import polyphases
from lumc.search.space import Region, Variant
from lumc.search.split import blocks_apart, splits
from lumc.search.turn import turns

MARGIN = 0.05  # a win must be larger, else the simpler candidate stays; a guess
NEAR = 1.5  # times the best price: of candidates that are measured, at most; a guess
LIKELY = 1.1  # the same of several steps for one, if caches hold what they hand on; a guess
LONG = 10  # cut points whose descents take long: only the first variant has two; a guess
EXHAUSTIVE = 5  # cut points of which every subset is tried; derived: 32 subsets
PROMISING = 8  # candidates of a region that are looked at in other layouts; measured: the rest of
# some hundred changes no layout of twelve networks, and takes two thirds of the time

REASONS = 400  # characters of what is said of invalid candidates; derived: 4 lines
SHOWN = 60  # of the term of one of them; derived: half a line

Cuts = tuple[int, ...]
Way = tuple[int, Cuts]  # a variant by its number, and its cuts
Say = Callable[[str], None]
Key = tuple[tuple[Expr, tuple[Expr, ...]], ...]
Program = tuple[float, list[Kernel]]  # its price and its kernels


def silent(_: str) -> None:
    """Hears why candidates are dropped."""


def programs_of(
    region: Region, target: Target, say: Say = silent, kernels: Kernels | None = None
) -> list[Program]:
    """All candidates with their prices, in order of simplicity. Raises E0415 if none is valid."""
    return [program for program, _ in priced(region, kernels or Kernels(target), say)]


def priced(
    region: Region,
    kernels: Kernels,
    say: Say = silent,
    ways: Sequence[Way] = (),
    most: float = inf,
) -> list[tuple[Program, Way]]:
    """The same with their ways, or those of some ways only, in no order; ``kernels``: what is known
    of those of other regions. Kernels hand on ``most`` bytes, or as few more as they can."""
    prices = _Prices(kernels, most)
    wanted = {n: [cuts for m, cuts in ways if m == n] for n in range(len(region.variants))}
    some = {n: v for n, v in enumerate(region.variants) if wanted[n] or not ways}
    tried = [(n, _Candidates(region, variant, prices)) for n, variant in some.items()]
    if not ways:
        tried.sort(key=lambda one: one[1].effort)
    every, best = list[tuple[Program, Way]](), None
    for n, c in tried:
        cuts = list(dict.fromkeys(wanted[n] or c.cuts(best)))
        every += [(program, (n, each)) for each in cuts for program in c.programs(each)]
        best = c if best is None or c.least < best.least else best
    for key, reason in prices.dropped.items():
        say(f"  {region.key[:12]}: dropped candidates with {text(key[0][0])[:SHOWN]}: {reason}")
    valid = [found for found in every if found[0][0] < inf]
    if not valid and prices.beyond:
        return priced(region, kernels, say, ways, min(prices.beyond))
    if not valid:
        what = f"no candidate of region {region.key[:12]} is valid: "
        what += "; ".join(dict.fromkeys(prices.dropped.values()))[:REASONS]
        raise LumcError("E0415", what, exit=Exit.UNSUPPORTED)
    return valid


def promising(found: Sequence[tuple[Program, Way]]) -> list[Way]:
    """The ways of the cheapest candidates."""
    ordered = sorted(found, key=lambda one: one[0][0])
    return list(dict.fromkeys(way for _, way in ordered))[:PROMISING]


def key_of(kernel: Kernel) -> Key:
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
    most: float = inf  # bytes that kernels may hand on
    beyond: set[int] = field(default_factory=set)  # that is what some would
    best: float = inf
    costs: dict[Key, _Cost] = field(default_factory=dict)
    dropped: dict[Key, str] = field(default_factory=dict)  # kernels that are not valid, and why

    def fit(self, kernels: Sequence[Kernel]) -> bool:
        """Whether they hand on no more than they may."""
        handed = handed_on(kernels) if self.most < inf else 0
        if handed > self.most:
            self.beyond.add(handed)
        return handed <= self.most

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
        key = key_of(kernel)
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
            self.dropped[key_of(kernel)] = found.why
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
        self.split = dict[Cuts, list[Kernel]]()

    @property
    def effort(self) -> tuple[int, float]:
        """How simple it is: reductions, and operations, of it as one kernel."""
        (whole,) = self.kernels(())
        return len(whole.stages), least_work(whole).flops

    @property
    def least(self) -> float:
        """Of the totals that are known."""
        return min(self.totals.values(), default=inf)

    def kernels(self, cuts: Cuts) -> list[Kernel]:
        """What lies between these cuts."""
        if cuts not in self.split:
            self.split[cuts] = self.splitting.kernels(cuts)
        return self.split[cuts]

    def cuts(self, other: _Candidates | None = None) -> Iterator[Cuts]:
        """Sets of cuts worth a look: all of few points, else a descent from both ends; of many,
        where ``other`` is the best variant so far, from what is best of the ends and its cuts."""
        if len(self.points) <= EXHAUSTIVE:
            for size in range(len(self.points) + 1):
                yield from itertools.combinations(self.points, size)
            return
        ends = (), tuple(self.points)
        if other is None or len(self.points) <= LONG:
            for end in ends:
                yield from self._descend(end)
        else:
            known = [cuts for cuts in other.totals if set(cuts) <= set(self.points)]
            start = min(known, key=other.totals.__getitem__)
            yield from self._descend(min(ends[0], start, ends[1], key=self.total))

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
            steps = [p for k, (c, parts) in pairs for p in (parts if c.saved else [k])]
            if self.prices.fit(steps):
                yield us, steps
        if more := sum(c.lost for c, _ in split):
            steps = [k for _, parts in split for k in parts]
            if self.prices.fit(steps):
                yield us + more, steps

    def at_least(self, cuts: Cuts) -> float:
        """No more than ``total``."""
        known = self.totals.get(cuts)
        return self.prices.at_least(self.kernels(cuts)) if known is None else known

    def total(self, cuts: Cuts, most: float = inf) -> float:
        """The price of all kernels, in us; more than ``most`` may be too little."""
        if cuts not in self.totals:
            kernels = self.kernels(cuts)
            fits = self.prices.fit(kernels)
            total = self.prices.total(kernels, most) if fits else inf
            if fits and total > most:
                return total
            self.totals[cuts] = total
        return self.totals[cuts]

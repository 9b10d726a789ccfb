"""What is known of a search: programs, kernels, what was tried of them, and what that took.

The ledger decides nothing about what is done next: phases do (``phases``). What is fastest is a
function of the records alone, so the same records give the same plan.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf, prod
from typing import NamedTuple

from lumc.codegen.tile.lower import lower
from lumc.errors import Exit, LumcError
from lumc.kernel.bound import Work, least_work
from lumc.kernel.instance import Instance
from lumc.kernel.target import Speeds
from lumc.kernel.term import Kernel
from lumc.lab.whole import balanced
from lumc.profile.candidates import REASONS, Say, silent
from lumc.profile.choose import plan_region, programs, shortlist
from lumc.profile.forms import Agreement
from lumc.profile.lowered import Kernels
from lumc.profile.measure import WRONG
from lumc.profile.memory import FREE, Bounds, handed_in
from lumc.profile.records import Asked, Choice, Records, Trial, yardstick
from lumc.profile.timing import is_faster
from lumc.profile.walk import Walk
from lumc.schedule.fragment import matrix_speed
from lumc.schedule.legal import is_legal
from lumc.schedule.plan import KernelPlan, Plan, RegionPlan
from lumc.schedule.schedule import Schedule
from lumc.search.space import Space

CACHE_SPEED = 10.0  # of memory, until it is measured; derived: above all (2.7 on a Zen 4), a bound
COLD = 1.25  # times the last cache is read between two uses of weights; derived: it holds less
SLACK = 0.95  # of the bound from the measured peak; measured: no kernel was faster
RECENT = 20  # trials that the noise is a mean of; a guess


@dataclass(frozen=True)
class Options:
    """What a search may spend, and where it stops."""

    budget_s: float = 60.0
    trials: int = 0  # of each kernel; 0: as many as the budget allows
    fraction: float = 0.95  # of the bound, where a kernel is good enough
    seed: int = 0
    frozen: bool = False  # records only; a miss is an error
    allow_estimate: bool = False  # the default of a kernel, when nothing of it was measured
    # the last cache level: larger models read their weights from memory
    cache_bytes: int = 32 << 20
    within: Bounds = FREE  # what programs and kernels take, where they can do with as little


class Laid(NamedTuple):
    """The programs in one layout of the values between regions."""

    instances: tuple[Instance, ...]
    lists: dict[str, list[RegionPlan]]  # of every region, those that may be the fastest
    runs: dict[str, Counter[str]]  # of every bucket and entry: its regions

    @property
    def key(self) -> str:
        """Identifies its regions."""
        return hashlib.sha256(" ".join(sorted(self.lists)).encode()).hexdigest()[:16]


class Ledger:
    """The listed programs of a space, and what is known of their kernels; times in microseconds.
    ``dropped`` hears why candidates are not listed."""

    def __init__(
        self, space: Space, options: Options, records: Records, dropped: Say = silent
    ) -> None:
        self.space, self.options, self.records = space, options, records
        weights = sum(w.size * w.dtype.nbytes for w in space.graph.weights)
        self._cold = int(COLD * options.cache_bytes) if weights > options.cache_bytes else 0
        self.kernels: dict[str, KernelPlan] = {}
        known = Kernels(space.target, options.within.scratch)
        self.layouts = [
            self._laid(*found, known)
            for found in programs(space, shortlist, dropped, options.within.handed, known)
        ]
        for key, plan in self.kernels.items():
            records.forget(key, partial(is_legal, plan.kernel, space.target))
        self.walks: dict[str, Walk] = {}
        self.carried: dict[str, float] = {}  # of its first time, when a kernel showed others how
        self.agreement = Agreement(space.target)
        self.rivals: dict[str, list[Trial]] = {}  # of kernels with a final: who was nearly as fast
        self.measured, self.noise = 0, 0.0
        self.spent: dict[str, float] = {}  # seconds, by kernel of which anything was measured
        self.searched = False  # whether the budget was spent, or nothing was left to gain
        among = hashlib.sha256(" ".join(sorted(self.kernels)).encode()).hexdigest()[:16]
        self.choose_layout()
        needed = kernels_of(plans[0] for plans in self.lists.values())
        share_s = options.budget_s / max(1, len(needed))
        self.asked = Asked(options.budget_s, options.trials, among, share_s)
        self.set_bounds()

    def _laid(
        self,
        instances: Sequence[Instance],
        listed: Mapping[str, Sequence[Sequence[Kernel]]],
        known: Kernels,
    ) -> Laid:
        target, runs = self.space.target, dict[str, Counter[str]]()
        for i in instances:
            runs.setdefault(i.entry, Counter())[i.region] += 1
        plans = {
            key: [plan_region(key, parts, target, self.kernels, known) for parts in found]
            for key, found in listed.items()
        }
        return Laid(tuple(instances), plans, runs)

    # ---- layouts

    def use(self, laid: Laid) -> None:
        """From now on everything is about this layout."""
        self.instances, self.lists, self.runs = laid

    def choose_layout(self) -> bool:
        """Use the layout whose whole runs are the fastest on record; the first if none is. Whether
        one is."""
        us = [self.records.layouts.get(laid.key, inf) for laid in self.layouts]
        self.use(self.layouts[us.index(min(us))])
        return min(us) < inf

    def set_bounds(self) -> None:
        """By the greatest rate that is known: it may have been measured in a slow moment."""
        target = self.space.target
        near, far = CACHE_SPEED * target.bandwidth, target.bandwidth
        known = self.records.speeds or Speeds(target.gflops, near, far)
        known = known._replace(gflops=max(known.gflops, target.gflops))
        limits = target.threads, self.options.cache_bytes, known
        self.bounds = {
            key: least_us(
                least_work(k.kernel, target.ends_early), *limits, matrix_speed(k.kernel, target)
            )
            for key, k in self.kernels.items()
        }

    # ---- a kernel

    def at(self, key: str) -> tuple[str, bool]:
        """Where its records are: with cold weights or without."""
        return key, self.cold_bytes(key) > 0

    def cold_bytes(self, key: str) -> int:
        """What is read between two uses of its weights, if no cache holds them that long."""
        constant = any(b.constant for b in self.kernels[key].kernel.buffers)
        return self._cold if constant else 0

    def nbytes(self, key: str) -> int:
        """Of its arrays where it is timed: weights as they are stored, and in so many copies that
        no cache holds them."""
        cold, total = self.cold_bytes(key), 0
        for b in self.kernels[key].kernel.buffers:
            own = prod(b.shape) * b.dtype.nbytes
            total += own + max(own, cold) * b.constant
        return total

    def trials(self, key: str) -> dict[str, Trial]:
        """By schedule, in the order in which they were made."""
        return self.records.trials.get(self.at(key), {})

    def ranked(self, key: str) -> list[Trial]:
        """The fastest first, those without a time last."""
        return sorted(self.trials(key).values())

    def first(self, key: str) -> Trial | None:
        """The yardstick of a kernel."""
        return yardstick(self.trials(key))

    def choice(self, key: str) -> Choice | None:
        return self.records.choices.get(self.at(key))

    def walk(self, key: str) -> Walk:
        """What was proposed for a kernel."""
        if key not in self.walks:
            plan, hints = self.kernels[key], self.records.hints(key)
            seed, bound = self.options.seed, self.bounds[key]
            self.walks[key] = Walk(plan, self.space.target, bound, seed, hints)
        return self.walks[key]

    def stop(self, key: str) -> str:
        """Why its walk is over, or nothing."""
        return self.walk(key).stop(self.options.fraction, self.options.trials)

    def time(self, key: str) -> float:
        """When its yardstick takes what it took in turn with those of rivals; infinite while it was
        not measured."""
        choice, first = self.choice(key), self.first(key)
        us = choice.us if choice else min((t.time for t in self.trials(key).values()), default=inf)
        return us * self.records.turns.get(self.at(key), first.time) / first.time if first else us

    def floor(self, key: str) -> float:
        """The least time that is believed where nothing took it."""
        return SLACK * self.bounds[key]

    def is_near(self, key: str, us: float) -> bool:
        """Whether a time is near enough to the bound."""
        return us * self.options.fraction <= self.bounds[key]

    def is_settled(self, key: str) -> bool:
        """Whether this kernel was searched before as long as it may be now."""
        choice = self.choice(key)
        if choice is None or (choice.stop == "bound" and not self.is_near(key, choice.us)):
            return False
        return choice.covers(self.asked)

    def is_refuted(self, key: str) -> bool:
        """Whether it was tried, and every candidate was invalid."""
        known = self.trials(key).values()
        return bool(known) and all(t.us is None for t in known)

    # ---- programs

    def total(self, plan: RegionPlan) -> float:
        return sum(self.time(s.kernel) for s in plan.steps)

    def least(self, plan: RegionPlan) -> float:
        """No program takes less."""
        return sum(self.floor(s.kernel) for s in plan.steps)

    def best(self) -> dict[str, RegionPlan]:
        """The fastest listed program of every region of which one was measured."""
        out: dict[str, RegionPlan] = {}
        for region, plans in self.lists.items():
            least = inf
            for plan in plans:
                if is_faster(us := self.total(plan), least):
                    least, out[region] = us, plan
        return out

    def weights(self) -> dict[str, float]:
        """How much a run counts, by entry: so much that all of them, and all buckets, take equally
        long. What is not measured yet takes what its bound says. 1 if there is only one."""
        best = self.best()
        known = {k: self.total(plan) for k, plan in best.items()}
        us = {k: known.get(k) or self.least(plans[0]) for k, plans in self.lists.items()}
        took = [sum(n * us[k] for k, n in runs.items()) for runs in self.runs.values()]
        return dict(zip(self.runs, balanced(took), strict=True))

    def counts(self) -> dict[str, float]:
        """How much every region counts: its instances, with the weights of their runs."""
        weights, out = self.weights(), dict.fromkeys(self.lists, 0.0)
        for e, runs in self.runs.items():
            for key, n in runs.items():
                out[key] += weights[e] * n
        return out

    def costs(self) -> dict[str, float]:
        """What every region takes of the whole, with the weights of its runs."""
        best, counts = self.best(), self.counts()
        costs = {key: counts[key] * self.total(plan) for key, plan in best.items()}
        return {key: costs.get(key, 0.0) for key in self.lists}

    def plan(self, instead: Iterable[RegionPlan] = ()) -> Plan:
        """What is fastest, or of some regions other programs; of regions without a time the first
        program that may be valid. Raises E0412 if every candidate of a kernel was invalid."""
        best = self.best() | {p.key: p for p in instead}
        regions = {k: best.get(k) or self._untimed(plans) for k, plans in self.lists.items()}
        kernels = {key: self._chosen(key) for key in kernels_of(regions.values())}
        s = self.space
        plan = Plan(s.graph, s.target, kernels, regions, self.instances, s.outputs)
        return self.agreement.plan(plan, self._tried)

    def plan_within(self, bounds: Bounds) -> Plan:
        """The same, of programs and schedules that take no more bytes, or as few more as there
        are."""
        if bounds == FREE:
            return self.plan()
        chosen = list[RegionPlan]()
        for plans in self.lists.values():
            valid = [p for p in plans if not any(self.is_refuted(s.kernel) for s in p.steps)]
            least = max(bounds.handed, min(map(handed_in, valid or plans)))
            chosen.append(min([p for p in valid or plans if handed_in(p) <= least], key=self.total))
        plan = self.plan(chosen)
        kernels = {key: self._within(kept, bounds.scratch) for key, kept in plan.kernels.items()}
        return replace(plan, kernels=kernels)

    def _within(self, chosen: KernelPlan, most: float) -> KernelPlan:
        """The fastest schedule of a kernel that takes no more scratch memory, of those that were
        tried; if there is none the default, which takes as little more as it can."""

        def fits(schedule: Schedule) -> bool:
            return lower(chosen.kernel, schedule, self.space.target).scratch_bytes <= most

        if most == inf or fits(chosen.schedule):
            return chosen
        valid = sorted(t for t in self.trials(chosen.key).values() if t.us)
        if found := next((t for t in valid if fits(t.schedule)), None):
            return replace(chosen, schedule=found.schedule, time_us=found.time)
        default = self.kernels[chosen.key].schedule
        return replace(chosen, schedule=default, time_us=None, stop="not measured")

    def _tried(self, key: str) -> list[tuple[float, Schedule]]:
        return [(t.time if t.us else inf, t.schedule) for t in self.trials(key).values()]

    def _untimed(self, plans: Sequence[RegionPlan]) -> RegionPlan:
        valid = (p for p in plans if not any(self.is_refuted(s.kernel) for s in p.steps))
        return next(valid, plans[0])

    def _chosen(self, key: str) -> KernelPlan:
        choice, plan = self.choice(key), replace(self.kernels[key], bound_us=self.bounds[key])
        if choice:
            return replace(plan, schedule=choice.schedule, time_us=choice.us, stop=choice.stop)
        wrong = any(t.reason == WRONG for t in self.trials(key).values())
        if self.is_refuted(key) and (wrong or not self.options.allow_estimate):
            said = dict.fromkeys(f"{t.reason}: {t.remark}" for t in self.trials(key).values())
            why = "; ".join(said)[:REASONS]
            what = f"no candidate of kernel '{plan.kernel.name}' is valid: {why}"
            fix = "please report it" if wrong else "--allow-estimate takes the default"
            raise LumcError("E0412", what, fix=fix, exit=Exit.BUDGET)
        return replace(plan, stop="not measured")

    def missing(self, known: Callable[[str], object]) -> list[str]:
        """Regions without a program, and kernels of the best programs that are not ``known``."""
        best = self.best()
        regions = [key for key in self.lists if key not in best]
        return regions + [key for key in kernels_of(best.values()) if not known(key)]

    # ---- entries

    def add(self, key: str, trial: Trial) -> None:
        self.measured += 1
        self.noise += (trial.noise - self.noise) / RECENT
        self.records.add(*self.at(key), trial)

    def spend(self, key: str, seconds: float) -> None:
        self.spent[key] = self.spent.get(key, 0.0) + seconds

    def choose(self, key: str, choice: Choice) -> None:
        self.records.choose(*self.at(key), choice)

    def end(self, key: str, schedule: Schedule, us: float, stop: str) -> None:
        """Choose, and keep what that took."""
        old, trials = self.choice(key), len(self.trials(key))
        budget_s = self.asked.budget_s if self.searched else 0.0
        spent_s = round(self.spent.get(key, 0.0) + (old.spent_s if old else 0.0), 3)
        limit, among = self.asked.limit, self.asked.among
        self.choose(key, Choice(schedule, us, stop, trials, budget_s, limit, spent_s, among))

    def set_turn(self, key: str, us: float, alone: float) -> None:
        """A schedule took so long in turn with those of other kernels, and ``alone`` in its trial:
        the yardstick changes as much."""
        if first := self.first(key):
            self.records.set_turn(*self.at(key), us * first.time / alone)


def kernels_of(plans: Iterable[RegionPlan]) -> list[str]:
    """The keys of their kernels, each once."""
    return list(dict.fromkeys(s.kernel for p in plans for s in p.steps))


def least_us(
    work: Work, threads: int, cache_bytes: int, speeds: Speeds, faster: float = 1.0
) -> float:
    """The roofline of a kernel at these speeds, matrix units being so much ``faster``; data that
    fits the last cache may come from a nearer one."""
    near = min(work.nbytes, cache_bytes)
    traffic = near / speeds.cached + (work.nbytes - near) / speeds.memory
    return max(work.flops / (speeds.gflops * faster), traffic) / (1e3 * threads)

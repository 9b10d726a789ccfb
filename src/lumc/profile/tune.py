"""The search over measured programs: which variant, which cuts, which schedule of every kernel.

The programs that are listed are timed with default schedules first; then each batch of trials goes
to the kernel that has most to gain: launches times the distance from its bound. It may be stopped
at any moment: the decision is a function of the records alone (``decide``).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import inf

from lumc.kernel.bound import least_work, roofline_us
from lumc.kernel.plan import KernelPlan, Plan, RegionPlan
from lumc.kernel.schedule import Schedule
from lumc.kernel.target import Target
from lumc.profile.decide import Decisions
from lumc.profile.measure import Bench, Job
from lumc.profile.timing import is_faster
from lumc.profile.walk import Walk
from lumc.records import Choice, Records, Trial, text_of, yardstick
from lumc.search.space import Space

BATCH = 8  # candidates that are compiled together
FOR_TRIALS = 0.8  # of the budget; the rest is for the finals
HEAVY, RIVALS = 3, 2  # kernels of which so many others are tried in whole runs
LEAST = 0.1  # of its time that a kernel may be taken to need
TURN_S = 0.06  # of whole runs of one plan
FINALISTS = 6
CLOSE = 1.2  # times the best: takes part in the finals
WAIT = 0.15  # of the budget: how long finals may wait for a calm moment
CALM = 1.1  # times its least time: so fast are candidates then
UNSURE = 0.1  # of the time of the first schedule: a win that counts in a moment that was not calm
CONTENDER = 1.3  # times the best program of a region at defaults: its kernels are tuned too
DOUBTED = 0.25  # of what a kernel of a program may gain that is not the best
CARRIED = 0.03  # of its first time: a kernel that gains so much shows others how
WIDE = 2.0  # the same, of times that are of different moments
ROUND = 0.01  # of the budget: what running all rivals once may take
SLACK = 0.95  # of the bound from the measured peak: no kernel was seen to be faster
CACHE_SPEED = 10.0  # bandwidth of caches in that of memory, where it was not measured


@dataclass(frozen=True)
class Options:
    """What a search may spend, and where it stops."""

    budget_s: float = 60.0
    trials: int = 0  # of each kernel; 0: as many as the budget allows
    fraction: float = 0.95  # of the bound, where a kernel is good enough
    seed: int = 0
    frozen: bool = False  # records only; a miss is an error
    cache_bytes: int = (
        32 << 20
    )  # the last cache level: larger models read their weights from memory


@dataclass(frozen=True)
class Progress:
    """How far the search is; said after every batch."""

    seconds: float
    kernels: int
    open: int
    trials: int
    us: float  # of the best plan
    noise: float


class Tuning(Decisions):
    """A search in progress. ``stopped`` is asked between batches; ``say`` hears the progress."""

    def __init__(
        self,
        space: Space,
        options: Options,
        records: Records,
        bench: Callable[[], Bench],
        *,
        stopped: Callable[[], bool] = lambda: False,
        say: Callable[[Progress], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(space, records, options.cache_bytes)
        self.options, self.say, self.stopped, self.clock = options, say, stopped, clock
        self.open_bench = bench
        self.bench: Bench | None = None
        self.start, self.measured, self.noise = clock(), 0, 0.0
        self.walks: dict[str, Walk] = {}
        self.finished: set[str] = set()  # kernels with a choice of this search
        self.carried: dict[str, float] = {}  # what a kernel took of its first time
        self.rivals: dict[str, list[Trial]] = {}  # of the finished, what was nearly as fast

    def run(self) -> Plan:
        """Search until nothing can be gained or the budget is spent; the plan."""
        try:
            if self.records.peak is None and not self.options.frozen:
                self.records.set_peak(*self._bench().speeds())
            gflops = self.records.peak or self.target.gflops
            cached = self.records.cached or CACHE_SPEED * self.target.bandwidth
            limit = replace(self.target, gflops=gflops), self.options.cache_bytes, cached
            self.bounds = {key: least_us(k, *limit) for key, k in self.kernels.items()}
            if self.options.frozen:
                self._require_records()
            elif not self._is_settled():
                self._defaults()
                self._line_up()
                self._search()
                self._finish()
        finally:
            if self.bench:
                self.bench.close()
        return self._plan()

    def _bench(self) -> Bench:
        self.bench = self.bench or self.open_bench()
        return self.bench

    # ---- phases

    def _defaults(self) -> None:
        """The listed programs with default schedules, those of the least bound first; the bound
        rules out the rest as soon as one is measured."""
        waiting = {key: sorted(plans, key=self._bound) for key, plans in self.lists.items()}
        while any(waiting.values()) and not self._is_over():
            decided, todo = self._decide(), dict[str, None]()
            for key, plans in waiting.items():
                best = self._total(decided[key]) if key in decided else inf
                if plans and self._bound(plans[0]) < best:
                    todo.update((s.kernel, None) for s in plans[0].steps)
                waiting[key] = plans[1:]
            new = [k for k in todo if k not in self.walks]
            for i in range(0, len(new), BATCH):
                if not self._is_over():
                    self._measure([(k, self._walk(k).propose(1)) for k in new[i : i + BATCH]])
            self._tell(len(new))

    def _line_up(self) -> None:
        """Kernels that were timed one after the other met different moments of the machine, so
        those of rival programs run in turn, and are compared by what they take in one moment."""
        new = [k for k in self._rivals() if self._at(k) not in self.records.choices]
        best = {k: min(self._known(k), key=lambda t: t.time) for k in new}
        if len(best) < 2 or self._is_late():
            return
        jobs = [Job(self.kernels[k], t.schedule, self._cold(k), t.us) for k, t in best.items()]
        for key, trial in zip(best, self._bench().finals(jobs), strict=False):
            if first := yardstick(self.records.trials[self._at(key)]):
                self.records.set_turn(*self._at(key), trial.time * first.time / best[key].time)

    def _rivals(self) -> list[str]:
        """Kernels of programs that are near the best of their regions, as many as may run in
        turn."""
        left, out = ROUND * self.options.budget_s * 1e6, dict[str, float]()
        for region, best in self._decide().items():
            near = self._below(region, WIDE * self._total(best))
            keys = self._used(dict(enumerate(near))) if len(near) > 1 else []
            new = {k: self._time(k) for k in keys if k not in out}
            if sum(new.values()) < left:
                left -= sum(new.values())
                out |= new
        return list(out)

    def _needed(self) -> list[str]:
        """Kernels of the plan, and their rivals."""
        return list(dict.fromkeys([*self._used(self._decide()), *self._rivals()]))

    def _below(self, region: str, us: float) -> list[RegionPlan]:
        return [p for p in self.lists[region] if self._total(p) < us]

    def _bound(self, plan: RegionPlan) -> float:
        return SLACK * sum(self.bounds[s.kernel] for s in plan.steps)

    def _search(self) -> None:
        while not self._is_over():
            todo = self._open_kernels()
            self._tell(len(todo))
            if not todo:
                return
            key = max(sorted(todo), key=lambda k: todo[k])
            self._measure([(key, self._walk(key).propose(BATCH))])
            self._carry(key)

    def _carry(self, key: str) -> None:
        """A schedule that is new and much better is tried for all kernels of the same kind, in all
        programs that are near: else the first one that is tuned wins."""
        walk, first = self._walk(key), yardstick(self.records.trials.get(self._at(key), {}))
        gained = walk.best.time / first.time if walk.best and first else 1.0
        if gained > self.carried.get(key, 1.0) - CARRIED:
            return
        self.carried[key] = gained
        others = [k for k in self._needed() if k != key and not self._settled(k)]
        same = {k: w for k in others if (w := self._walk(k)).kind == walk.kind}
        self._measure([(k, w.follow(walk)) for k, w in same.items()])

    def _finish(self) -> None:
        """Finals for the kernels of the plan and of its rivals; their choices on record."""
        self._finals(self._needed(), WAIT * self.options.budget_s)
        while self._finals(self._used(self._decide())):
            pass
        for region in sorted(self.lists, key=self._cost, reverse=True)[:HEAVY]:
            self._compare_programs(region)
        self._compare_whole()

    def _finals(self, keys: Iterable[str], wait_s: float = 0.0) -> bool:
        """Choose schedules for those of these kernels that have none; whether there were any. The
        best of all run in turn; if they ``wait_s`` for a calm moment, they are compared too."""
        left = [k for k in keys if not self._settled(k) and k not in self.finished]
        if left:
            self.finished.update(left)
            jobs, late = {k: self._finalists(k) for k in left}, self._is_late()
            every = [*chain(*jobs.values())]
            found = [] if late else self._bench().finals(every, wait_s)
            calm = sum(
                t.time < CALM * (j.best_us or inf) for t, j in zip(found, every, strict=False)
            )
            doubt = 0.0 if 2 * calm >= len(found) else UNSURE
            for key, own in jobs.items():
                some = found[: len(own)] or ([] if late else self._bench().finals(own))
                self._choose(key, some, wait_s > 0 and bool(found), doubt)
                del found[: len(own)]
        return bool(left)

    def _cost(self, region: str) -> float:
        decided = self._decide()
        return self.count[region] * self._total(decided[region]) if region in decided else 0.0

    def _compare_programs(self, region: str) -> None:
        """Whole runs with the programs that are nearly as fast: side by side they tell more than
        the times of kernels, taken one after the other. A winner is on record as faster by what
        it gained."""
        best = self._decide().get(region)
        if best is None or self._is_late():
            return
        total, cost = self._total(best), sum(map(self._cost, self.lists))
        near = [p for p in self.lists[region] if self._contends(p, total) and p is not best]
        near = sorted(near, key=self._total)[:RIVALS]
        self._finals(self._used(dict(enumerate(near))))
        if not near or self._is_late():
            return
        plan, plans = self._plan(), list[Plan]()
        for p in (best, *near):
            regions = {**plan.regions, region: p}
            kernels = {k: self._chosen(k) for k in self._used(regions)}
            plans.append(replace(plan, regions=regions, kernels=kernels))
        us = self._bench().race(plans, TURN_S, self._is_late)
        won = min(range(1, len(us)), key=us.__getitem__, default=0)
        if won and is_faster(us[won], us[0]):
            gained = cost * (1 - us[won] / us[0]) / self.count[region]
            self._prefer(near[won - 1], best, total - gained)

    def _prefer(self, program: RegionPlan, to: RegionPlan, us: float) -> None:
        """Put it on record that a program takes so long, by the kernels that are its own."""
        shared = {s.kernel for s in to.steps}
        own = [s.kernel for s in program.steps if s.kernel not in shared]
        rest = sum(self._time(s.kernel) for s in program.steps if s.kernel in shared)
        took = sum(map(self._time, own))
        scale = max(us - rest, LEAST * took) / took if own else 1.0
        for key in dict.fromkeys(own):
            old = self.records.choices[self._at(key)]
            stop = "time" if old.stop == "bound" else old.stop
            self.records.choose(*self._at(key), replace(old, us=scale * old.us, stop=stop))

    def _compare_whole(self) -> None:
        """Rivals of the heaviest kernels take the place of the winners if whole runs are faster.
        A winner is a choice on record, so the same records give the same plan."""
        plan, launches = self._plan(), Counter[str]()
        for i in plan.instances:
            launches.update(s.kernel for s in plan.regions[i.region].steps)
        cost = {k: n * self._time(k) for k, n in launches.items() if k in self.rivals}
        heavy = sorted(cost, key=lambda k: -cost[k])[:HEAVY]
        tried = [(k, t) for k in heavy for t in self.rivals[k]]
        if launches.total() < 2 or not tried or self._is_late():
            return
        plans = [plan]
        for key, trial in tried:
            changed = replace(plan.kernels[key], schedule=trial.schedule, time_us=trial.us)
            plans.append(replace(plan, kernels={**plan.kernels, key: changed}))
        us = self._bench().race(plans, TURN_S, self._is_late)
        for key in heavy:
            mine = [i for i in range(1, len(us)) if tried[i - 1][0] == key]
            best = min(mine, key=lambda i: us[i], default=0)
            if is_faster(us[best], us[0]):
                won, old = tried[best - 1][1], self.records.choices[self._at(key)]
                new = replace(old, schedule=won.schedule, us=won.time)
                self.records.choose(*self._at(key), new)

    def _is_late(self) -> bool:
        return self.stopped() or self.clock() - self.start > self.options.budget_s

    # ---- what is worth measuring

    def _open_kernels(self) -> dict[str, float]:
        """Kernels whose search goes on, with what there is to gain."""
        out = dict[str, float]()
        for region, best in self._decide().items():
            gains = {step.kernel: self._gain(step.kernel) for step in best.steps}
            for plan in self.lists[region]:
                behind = max(0.0, self._total(plan) - self._total(best))
                if plan is not best and self._contends(plan, self._total(best)):
                    for key in {step.kernel for step in plan.steps}:
                        gain = DOUBTED * (self._gain(key) - behind)
                        gains[key] = max(gains.get(key, 0.0), gain)
            for key, gain in gains.items():
                out[key] = out.get(key, 0.0) + self.count[region] * gain
        return {key: gain for key, gain in out.items() if gain > 0}

    def _contends(self, plan: RegionPlan, best_us: float) -> bool:
        return self._total(plan) < CONTENDER * best_us and self._bound(plan) < best_us

    def _gain(self, key: str) -> float:
        """Microseconds between the best time and the bound, less with every fruitless batch."""
        if self._settled(key):
            return 0.0
        walk = self._walk(key)
        if self._stop(walk):
            return 0.0
        us = self._time(key) if walk.best else 1e6
        return max(us - self.bounds[key], 0.01 * us) * float(0.7 ** (walk.stale / BATCH))

    def _stop(self, walk: Walk) -> str:
        return walk.stop(self.options.fraction, self.options.trials)

    def _settled(self, key: str) -> bool:
        """Whether an earlier search of this kernel was as long as this one may be."""
        choice = self.records.choices.get(self._at(key))
        if choice is None:
            return False
        if choice.stop == "bound" and choice.us * self.options.fraction > self.bounds[key]:
            return False
        return choice.covers(self.options.budget_s, self.options.trials)

    def _is_settled(self) -> bool:
        """Whether there is nothing to do: every region decided, every kernel searched before."""
        decided = self._decide()
        used = self._used(decided)
        return len(decided) == len(self.lists) and all(self._settled(key) for key in used)

    def _is_over(self) -> bool:
        return self.stopped() or self.clock() - self.start > FOR_TRIALS * self.options.budget_s

    # ---- measuring

    def _walk(self, key: str) -> Walk:
        if key not in self.walks:
            hints = self.records.hints(key)
            walk = Walk(self.kernels[key], self.target, self.bounds[key], self.options.seed, hints)
            self.walks[key] = walk
        return self.walks[key]

    def _measure(self, proposed: Sequence[tuple[str, Sequence[Schedule]]]) -> None:
        """Measure what is not on record; everything is observed in the order of the proposals."""
        jobs, at = [], []
        for key, schedules in proposed:
            walk, known = self._walk(key), self.records.trials.get(self._at(key), {})
            best = walk.best.us if walk.best else None
            plan, cold, beside = self.kernels[key], self._cold(key), yardstick(known)
            for schedule in schedules:
                if text_of(schedule) not in known:
                    jobs.append(Job(plan, schedule, cold, best, beside))
                    at.append(key)
        if jobs:
            for key, trial in zip(at, self._bench().measure(jobs), strict=True):
                self._record(key, trial)
        for key, schedules in proposed:
            known = self.records.trials.get(self._at(key), {})
            self._walk(key).refresh(known)
            for schedule in schedules:
                if text_of(schedule) in known:
                    self._walk(key).observe(known[text_of(schedule)])

    def _record(self, key: str, trial: Trial) -> None:
        self.measured += 1
        self.noise += (trial.noise - self.noise) / 20
        self.records.add(*self._at(key), trial)

    def _finalists(self, key: str) -> list[Job]:
        """The best schedules of a kernel, and the first: what seemed to be faster met other
        moments, perhaps."""
        known = self._known(key)
        best = sorted((t for t in known if t.us is not None), key=lambda t: t.time)[:FINALISTS]
        first = yardstick(self.records.trials[self._at(key)])
        close = [t for t in known if (t in best or t is first) and t.time <= CLOSE * best[0].time]
        return [Job(self.kernels[key], t.schedule, self._cold(key), t.us) for t in close]

    def _choose(self, key: str, close: Sequence[Trial], compared: bool, doubt: float) -> None:
        """The winner of a kernel: of those that ran in turn the first unless it is beaten, by
        ``doubt`` of its time and more."""
        walk, known = self._walk(key), self._known(key)
        winner, *others = close or sorted(known, key=lambda t: t.time)[:1]
        best = min(others, key=lambda t: t.time, default=winner)
        if is_faster(best.time, winner.time * (1 - doubt)):
            winner = best
        others = sorted((t for t in close if t is not winner), key=lambda t: t.time)
        self.rivals[key] = others[:RIVALS]
        why = self._stop(walk) or ("interrupted" if self.stopped() else "time")
        spent = self.options.budget_s, self.options.trials
        same = [t for t in known if t.us and t.schedule == winner.schedule and not t.slices]
        us = min(t.time for t in (winner, *same))
        choice = Choice(winner.schedule, us, why, len(known), *spent)
        self.records.choose(*self._at(key), choice)
        if close and compared and (first := yardstick(self.records.trials[self._at(key)])):
            self.records.set_turn(*self._at(key), winner.time * first.time / us)

    def _tell(self, open_: int) -> None:
        decided = self._decide().items()
        total = sum(self.count[key] * self._total(plan) for key, plan in decided)
        spent = self.clock() - self.start
        self.say(Progress(spent, len(self.kernels), open_, self.measured, total, self.noise))


def least_us(plan: KernelPlan, target: Target, cache_bytes: int, cached: float) -> float:
    """The roofline at the measured peak; data that fits the caches may come from there."""
    work, speed = least_work(plan.kernel), target.bandwidth
    if work.nbytes <= cache_bytes:
        speed = max(speed, cached * target.threads)
    return roofline_us(work, replace(target, bandwidth=speed, launch_us=0.0))

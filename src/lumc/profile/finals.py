"""The end of a search: the best schedules of all kernels run in turn, then whole plans.

Kernels that were timed one after the other met different moments of the machine, so nothing is
chosen by these times alone: what is near runs in turn, and waits for a calm moment.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import inf

from lumc.profile.choose import Say, silent
from lumc.profile.decide import Decisions
from lumc.profile.measure import Bench, Job
from lumc.profile.records import Choice, Records, Trial, yardstick
from lumc.profile.timing import is_faster
from lumc.profile.walk import Walk
from lumc.schedule.plan import Plan, RegionPlan
from lumc.schedule.schedule import Schedule
from lumc.search.space import Space

HEAVY, RIVALS = 3, 2  # kernels of which so many others are tried in whole runs
LEAST = 0.1  # of its time that a kernel may be taken to need
TURN_S = 0.06  # of whole runs of one plan
FINALISTS = 6
CLOSE = 1.2  # times the best: takes part in the finals
WAIT = 0.15  # of the budget: how long finals may wait for a calm moment
CALM = 1.1  # times its least time: so fast are candidates then
UNSURE = 0.1  # of the time of the first schedule: a win that counts in a moment that was not calm
CONTENDER = 1.3  # times the best program of a region at defaults: its kernels are tuned too
WIDE = 2.0  # the same, of times that are of different moments
ROUND = 0.01  # of the budget: what running all rivals once may take
LIGHT = 0.001  # of the whole plan: a kernel that takes less is not worth a final
SLACK = 0.95  # of the bound from the measured peak: no kernel was seen to be faster


@dataclass(frozen=True)
class Options:
    """What a search may spend, and where it stops."""

    budget_s: float = 60.0
    trials: int = 0  # of each kernel; 0: as many as the budget allows
    fraction: float = 0.95  # of the bound, where a kernel is good enough
    seed: int = 0
    frozen: bool = False  # records only; a miss is an error
    # the last cache level: larger models read their weights from memory
    cache_bytes: int = 32 << 20


@dataclass(frozen=True)
class Progress:
    """How far the search is; said after every batch."""

    seconds: float
    kernels: int
    open: int
    trials: int
    us: float  # of the best plan
    noise: float


class Finals(Decisions):
    """What was measured of a space, and who wins. ``stopped`` says that the user wants no more;
    ``say`` hears the progress, ``dropped`` why candidates are left out."""

    def __init__(
        self,
        space: Space,
        options: Options,
        records: Records,
        bench: Callable[[], Bench],
        *,
        stopped: Callable[[], bool] = lambda: False,
        say: Callable[[Progress], None] = lambda _: None,
        dropped: Say = silent,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(space, records, options.cache_bytes, dropped)
        self.options, self.stopped, self.say = options, stopped, say
        self.clock, self.start = clock, clock()
        self.open_bench = bench
        self.bench: Bench | None = None
        self.walks: dict[str, Walk] = {}
        self.finished: set[str] = set()  # kernels with a choice of this search
        self.rivals: dict[str, list[Trial]] = {}  # of these, what was nearly as fast
        self.carried: dict[str, float] = {}  # what a kernel took of its first time
        self.measured, self.noise = 0, 0.0

    def _bench(self) -> Bench:
        self.bench = self.bench or self.open_bench()
        return self.bench

    def _walk(self, key: str) -> Walk:
        if key not in self.walks:
            hints = self.records.hints(key)
            walk = Walk(self.kernels[key], self.target, self.bounds[key], self.options.seed, hints)
            self.walks[key] = walk
        return self.walks[key]

    def _stop(self, walk: Walk) -> str:
        return walk.stop(self.options.fraction, self.options.trials)

    def _settled(self, key: str) -> bool:
        """Whether an earlier search of this kernel was as long as this one may be."""
        choice = self.records.choices.get(self._at(key))
        if choice is None:
            return False
        if choice.stop == "bound" and not self._is_near(key, choice.us):
            return False
        return choice.covers(self.options.budget_s, self.options.trials)

    def _is_near(self, key: str, us: float) -> bool:
        return us * self.options.fraction <= self.bounds[key]

    def _is_late(self) -> bool:
        return self.stopped() or self.clock() - self.start > self.options.budget_s

    def _bound(self, plan: RegionPlan) -> float:
        return SLACK * sum(self.bounds[s.kernel] for s in plan.steps)

    def _job(
        self, key: str, schedule: Schedule, best_us: float | None, beside: Trial | None = None
    ) -> Job:
        floor = SLACK * self.bounds[key]
        return Job(self.kernels[key], schedule, self._cold(key), best_us, beside, floor)

    def _contends(self, plan: RegionPlan, best_us: float) -> bool:
        return self._total(plan) < CONTENDER * best_us and self._bound(plan) < best_us

    # ---- kernels in turn

    def _line_up(self) -> None:
        """Kernels that were timed one after the other met different moments of the machine, so
        those of rival programs run in turn, and are compared by what they take in one moment."""
        new = [k for k in self._rivals() if self._at(k) not in self.records.choices]
        best = {k: min(self._known(k), key=lambda t: t.time) for k in new}
        if len(best) < 2 or self._is_late():
            return
        jobs = [self._job(k, t.schedule, t.us) for k, t in best.items()]
        for key, trial in zip(best, self._bench().finals(jobs), strict=False):
            if first := yardstick(self.records.trials[self._at(key)]):
                self.records.set_turn(*self._at(key), trial.time * first.time / best[key].time)

    def _rivals(self) -> list[str]:
        """Kernels of programs that are near the best of their regions, as many as may run in
        turn."""
        left, out = ROUND * self.options.budget_s * 1e6, dict[str, float]()
        for region, best in self._decide().items():
            limit = WIDE * self._total(best)
            near = [p for p in self.lists[region] if self._total(p) < limit]
            keys = self._used(dict(enumerate(near))) if len(near) > 1 else []
            new = {k: self._time(k) for k in keys if k not in out}
            if sum(new.values()) < left:
                left -= sum(new.values())
                out |= new
        return list(out)

    def _needed(self) -> list[str]:
        """Kernels of the plan, and their rivals."""
        return list(dict.fromkeys([*self._used(self._decide()), *self._rivals()]))

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
        best of all run in turn, but for those of kernels that take next to nothing; if they
        ``wait_s`` for a calm moment, they are compared too."""
        left = [k for k in keys if not self._settled(k) and k not in self.finished]
        if left:
            self.finished.update(left)
            heavy, late = self._heavy(), self._is_late()
            jobs = {k: self._finalists(k) for k in left if k in heavy}
            every = [*chain(*jobs.values())]
            wait_s *= len(every) > 1  # else there is nothing to compare
            found = self._bench().finals(every, wait_s) if every and not late else []
            calm = sum(
                t.time < CALM * (j.best_us or inf) for t, j in zip(found, every, strict=False)
            )
            doubt = 0.0 if 2 * calm >= len(found) else UNSURE
            for key, own in jobs.items():
                some = found[: len(own)] or ([] if late else self._bench().finals(own))
                self._choose(key, some, wait_s > 0 and bool(found) and len(left) > 1, doubt)
                del found[: len(own)]
            for key in (k for k in left if k not in heavy):
                self._choose(key, self._close(key), False, UNSURE)
        return bool(left)

    def _heavy(self) -> set[str]:
        """Kernels that take some of the whole in one of the listed programs."""
        least = LIGHT * sum(map(self._cost, self.lists))
        return {
            key
            for region, plans in self.lists.items()
            for plan in plans
            for key, n in Counter(s.kernel for s in plan.steps).items()
            if self.count[region] * n * self._time(key) >= least
        }

    def _finalists(self, key: str) -> list[Job]:
        return [self._job(key, t.schedule, t.us) for t in self._close(key)]

    def _close(self, key: str) -> list[Trial]:
        """The first schedule of a kernel and the best: what seemed to be faster met other
        moments, perhaps."""
        known = self._known(key)
        best = sorted((t for t in known if t.us is not None), key=lambda t: t.time)[:FINALISTS]
        first = yardstick(self.records.trials[self._at(key)])
        return [t for t in known if (t in best or t is first) and t.time <= CLOSE * best[0].time]

    def _choose(self, key: str, close: Sequence[Trial], compared: bool, doubt: float) -> None:
        """The winner of a kernel: of those that ran in turn the first unless it is beaten, by
        ``doubt`` of its time and more."""
        walk, known = self._walk(key), self._known(key)
        winner, *others = close or sorted(known, key=lambda t: t.time)[:1]
        best = min(others, key=lambda t: t.time, default=winner)
        if is_faster(best.time, winner.time * (1 - doubt), max(best.noise, winner.noise)):
            winner = best
        others = sorted((t for t in close if t is not winner), key=lambda t: t.time)
        self.rivals[key] = others[:RIVALS]
        why = self._stop(walk) or ("interrupted" if self.stopped() else "time")
        spent = self.options.budget_s, self.options.trials
        same = [t for t in known if t.us and t.schedule == winner.schedule and not t.slices]
        us = min(t.time for t in (winner, *same))
        if why == "bound" and not self._is_near(key, us):  # the best was, but did not win
            why = "time"
        choice = Choice(winner.schedule, us, why, len(known), *spent)
        self.records.choose(*self._at(key), choice)
        if close and compared and (first := yardstick(self.records.trials[self._at(key)])):
            self.records.set_turn(*self._at(key), winner.time * first.time / us)

    # ---- whole plans

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
                new = replace(old, schedule=won.schedule, us=min(won.time, old.us))  # it was faster
                self.records.choose(*self._at(key), new)

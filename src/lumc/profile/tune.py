"""The search over measured programs: which variant, which cuts, which schedule of every kernel.

The programs that are listed are timed with default schedules first; then each batch of trials goes
to the kernel that has most to gain: launches times the distance from its bound. It may be stopped
at any moment: the decision is a function of the records alone (``decide``).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from lumc.kernel.bound import least_work
from lumc.kernel.target import Speeds
from lumc.profile.finals import Finals, Progress
from lumc.profile.records import Trial, text_of, yardstick
from lumc.schedule.plan import KernelPlan, Plan
from lumc.schedule.schedule import Schedule

BATCH = 8  # candidates that are compiled together
FOR_TRIALS = 0.8  # of the budget; the rest is for the finals
DOUBTED = 0.25  # of what a kernel of a program may gain that is not the best
CARRIED = 0.03  # of its first time: a kernel that gains so much shows others how
CACHE_SPEED = 10.0  # bandwidth of caches in that of memory, where it was not measured


class Tuning(Finals):
    """A search in progress. ``stopped`` is asked between batches."""

    def run(self) -> Plan:
        """Search until nothing can be gained or the budget is spent; the plan."""
        try:
            self._set_bounds()
            if self.options.frozen:
                self._require_records()
            elif not self._is_settled():
                self._measure_speeds()
                self._defaults()
                self._line_up()
                while self._search():
                    self._line_up()  # what seemed to be a worse program may be the better one
                self._finish()
        finally:
            if self.bench:
                self.bench.close()
        return self._plan()

    # ---- phases

    def _set_bounds(self) -> None:
        """By the greatest rate that is known: it may have been measured in a slow moment."""
        target = self.target
        nominal = Speeds(target.gflops, CACHE_SPEED * target.bandwidth, target.bandwidth)
        known = self.records.speeds or nominal
        known = known._replace(gflops=max(known.gflops, target.gflops))
        limits = target.threads, self.options.cache_bytes, known
        self.bounds = {key: least_us(k, *limits) for key, k in self.kernels.items()}

    def _measure_speeds(self) -> None:
        """Again in every search, as only the best moment of the machine counts."""
        new, known = self._bench().speeds(), self.records.speeds
        most = Speeds(*map(max, new, known)) if known else new
        if most != known:
            self.records.set_speeds(most)
            self._set_bounds()

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

    def _search(self) -> bool:
        """Until nothing can be gained or the time is over; whether anything was measured."""
        before = self.measured
        while not self._is_over():
            todo = self._open_kernels()
            self._tell(len(todo))
            if not todo:
                break
            key = max(sorted(todo), key=lambda k: todo[k])
            self._measure([(key, self._walk(key).propose(BATCH))])
            self._carry(key)
        return self.measured > before

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

    def _gain(self, key: str) -> float:
        """Microseconds between the best time and the bound, less with every fruitless batch."""
        if self._settled(key):
            return 0.0
        walk = self._walk(key)
        if self._stop(walk):
            return 0.0
        us = self._time(key) if walk.best else 1e6
        return max(us - self.bounds[key], 0.01 * us) * float(0.7 ** (walk.stale / BATCH))

    def _is_settled(self) -> bool:
        """Whether there is nothing to do: every region decided, every kernel searched before."""
        decided = self._decide()
        used = self._used(decided)
        return len(decided) == len(self.lists) and all(self._settled(key) for key in used)

    def _is_over(self) -> bool:
        return self.stopped() or self.clock() - self.start > FOR_TRIALS * self.options.budget_s

    # ---- measuring

    def _measure(self, proposed: Sequence[tuple[str, Sequence[Schedule]]]) -> None:
        """Measure what is not on record; everything is observed in the order of the proposals."""
        jobs, at = [], []
        for key, schedules in proposed:
            walk, known = self._walk(key), self.records.trials.get(self._at(key), {})
            best = walk.best.us if walk.best else None
            for schedule in schedules:
                if text_of(schedule) not in known:
                    jobs.append(self._job(key, schedule, best, yardstick(known)))
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

    def _tell(self, open_: int) -> None:
        decided = self._decide().items()
        total = sum(self.count[key] * self._total(plan) for key, plan in decided)
        spent = self.clock() - self.start
        self.say(Progress(spent, len(self.kernels), open_, self.measured, total, self.noise))


def least_us(plan: KernelPlan, threads: int, cache_bytes: int, speeds: Speeds) -> float:
    """The roofline at these speeds; data that fits the last cache may come from a nearer one."""
    work = least_work(plan.kernel)
    near = min(work.nbytes, cache_bytes)
    traffic = near / speeds.cached + (work.nbytes - near) / speeds.memory
    return max(work.flops / speeds.gflops, traffic) / (1e3 * threads)

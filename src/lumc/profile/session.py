"""A search in progress: its ledger, its device, its time, and who hears of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from lumc.kernel.lengths import points
from lumc.profile.ledger import Ledger
from lumc.profile.measure import Bench, Job
from lumc.profile.records import Trial, text_of
from lumc.schedule.schedule import Schedule


@dataclass(frozen=True)
class Progress:
    """How far the search is; said after every batch."""

    seconds: float
    kernels: int
    open: int
    trials: int
    us: float  # of the best plan
    noise: float


@dataclass
class Session:
    """What phases ask: for measurements, which the ledger keeps, and for the time. The device is
    opened when it is first needed."""

    ledger: Ledger
    open_bench: Callable[[], Bench]
    stopped: Callable[[], bool] = lambda: False  # whether the user wants no more
    say: Callable[[Progress], None] = lambda _: None
    clock: Callable[[], float] = time.monotonic
    _bench: Bench | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.start = self.clock()

    @property
    def bench(self) -> Bench:
        if self._bench is None:
            begin = self.clock()
            self._bench = self.open_bench()
            self.start += self.clock() - begin
            self._bench.lock.patience_s = self.ledger.options.budget_s
            self._bench.lock.stopped = self.stopped
            self._bench.stopped = self.stopped
        return self._bench

    def close(self) -> None:
        if self._bench:
            self._bench.close()

    def is_over(self, share: float = 1.0) -> bool:
        """Whether the user wants no more, or this share of the budget is spent."""
        budget_s = share * self.ledger.options.budget_s
        return self.stopped() or self.spent() > budget_s

    def spent(self) -> float:
        """Seconds of search so far: waiting for others who use the device is none, nor is opening
        it, as a compiler that was never used may build libraries of its own first."""
        waited_s = self._bench.lock.waited_s if self._bench else 0.0
        return self.clock() - self.start - waited_s

    def job(
        self, key: str, schedule: Schedule, best_us: float | None, beside: Trial | None = None
    ) -> Job:
        book = self.ledger
        plan, cold, floor = book.kernels[key], book.cold_bytes(key), book.floor(key)
        return Job(plan, schedule, cold, best_us, beside, floor, points(plan.kernel.lengths.dims))

    def measure(self, proposed: Sequence[tuple[str, Sequence[Schedule]]], source: str = "") -> None:
        """Measure what is not on record; trials are recorded as they arrive, and observed in the
        order of the proposals. ``source``: where they come from, if not from the walk of their
        kernel."""
        book, jobs = self.ledger, list[Job]()
        for key, schedules in proposed:
            best = book.walk(key).best
            new = [s for s in schedules if text_of(s) not in book.trials(key)]
            jobs += [self.job(key, s, best.us if best else None, book.first(key)) for s in new]
        start = self.spent()
        for job, trial in self.bench.as_completed(jobs) if jobs else ():
            before = source or book.walk(job.plan.key).source(trial.schedule)
            book.add(job.plan.key, replace(trial, source=before))
        for job in jobs:
            book.spend(job.plan.key, (self.spent() - start) / len(jobs))
        for key, schedules in proposed:
            walk, known = book.walk(key), book.trials(key)
            walk.refresh(known)
            for trial in (known[text_of(s)] for s in schedules if text_of(s) in known):
                walk.observe(trial)

    def tell(self, open_: int) -> None:
        book, seconds = self.ledger, self.spent()
        us = sum(book.costs().values())
        self.say(Progress(seconds, len(book.kernels), open_, book.measured, us, book.noise))

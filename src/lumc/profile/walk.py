"""The search through the schedules of one kernel.

It starts at the default and at what was best elsewhere; what becomes the best of a kernel of the
same kind is tried at once. Then two ways alternate: other structures,
and steps away from the best schedule so far, those first of which the least time is expected; when
these are used up, a tree search through the whole space, seeded by all that was tried, and strolls
from the best schedules of the best structures. Everything random comes from the seed and the
kernel's key, so the same records give the same walk.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from operator import attrgetter, itemgetter

from lumc.kernel.target import Target
from lumc.profile.price import price_us
from lumc.profile.records import ELSEWHERE, Trial, text_of
from lumc.profile.timing import PROGRESS
from lumc.profile.tree import Tree
from lumc.schedule.moves import carried, neighbours, stroll, structures
from lumc.schedule.plan import KernelPlan
from lumc.schedule.schedule import Schedule
from lumc.schedule.space import Grammar, Path

PATIENCE = 96  # candidates without progress; derived: 12 batches, FADING**12 of the gain is left
ELITE = 3  # structures that strolls start from; a guess
EARLY = 48  # proposals of which every second is another structure; counted: 16 to 111 structures
PRICED = 32  # steps whose price is asked for; measured: 1.5 to 4 ms each, a compilation 130 ms
DOUBT = 0.15  # of the logarithm of a price; a guess
STROLLS = 40  # to find one schedule that is new; a guess
STRUCTURE = attrgetter("form", "rows_axis", "lane_axis", "stage_a", "stage_b", "lanes")


class Walk:
    """What was proposed for a kernel, and what became of it."""

    def __init__(
        self,
        plan: KernelPlan,
        target: Target,
        floor_us: float,
        seed: int,
        hints: Sequence[Schedule],
    ) -> None:
        self.plan, self.grammar, self.floor_us = plan, Grammar(plan.kernel, target), floor_us
        self.rng = random.Random(f"{seed}:{plan.key}")
        self.tree = Tree(self.grammar, self.rng)
        self.first, self.hints = [plan.schedule, *hints], {text_of(s) for s in hints}
        self.others: list[Schedule] | None = None
        self.steps: list[Schedule] = []
        self.seen: set[str] = set()
        self.paths: set[Path] = set()
        self.best: Trial | None = None
        self.elite: dict[object, Trial] = {}  # the best of every structure
        self.trials: list[Trial] = []
        self.stale = 0
        self.exhausted = False

    @property
    def kind(self) -> object:
        """Equal where axes in the same places have the same roles."""
        kernel = self.grammar.kernel
        return len(kernel.axes), len(self.grammar.axes), tuple(s.kind for s in kernel.stages)

    def follow(self, other: Walk) -> list[Schedule]:
        """What is best for another kernel of this kind, if it was not proposed here before."""
        assert other.best
        schedule = carried(self.grammar, other.best.schedule, other.grammar.axes)
        return [schedule] if self._is_new(schedule) else []

    def source(self, schedule: Schedule) -> str:
        """Where a schedule that it proposed was best before."""
        return ELSEWHERE if text_of(schedule) in self.hints else ""

    def propose(self, n: int) -> list[Schedule]:
        """Up to n schedules that were not proposed before; first the default alone."""
        out: list[Schedule] = []
        while len(out) < (n if self.trials else 1) and not self.exhausted:
            schedule = self._next(len(self.seen))
            self.exhausted = schedule is None
            if schedule and self._is_new(schedule):
                out.append(schedule)
        return out

    def _is_new(self, schedule: Schedule) -> bool:
        """Whether it was not proposed before; now it was."""
        if text_of(schedule) in self.seen:
            return False
        self.seen.add(text_of(schedule))
        self.paths.add(self.grammar.path(schedule) or ())
        return True

    def _next(self, turn: int) -> Schedule | None:
        if self.first:
            return self.first.pop(0)
        if self.others is None:
            every = structures(self.grammar)
            self.others = self._by_price(every, len(every))
        often = 2 if turn < EARLY else 4
        if self.others and (turn % often == 1 or not self.steps):
            return self.others.pop()
        if self.steps:
            return self.steps.pop()
        if turn % 2 and (found := self.tree.propose(self.paths)):
            return found
        known = sorted(self.elite.values())[:ELITE]
        for _ in range(STROLLS if known else 0):
            schedule = stroll(self.grammar, self.rng.choice(known).schedule, self.rng)
            if text_of(schedule) not in self.seen:
                return schedule
        return None

    def refresh(self, known: Mapping[str, Trial]) -> None:
        """Take over the times on record: all of them shrink when the yardstick was faster."""

        def now(trial: Trial) -> Trial:
            return known.get(text_of(trial.schedule), trial)

        if self.best and self.tree.first_us:
            self.tree.first_us *= now(self.best).time / self.best.time
            self.best = now(self.best)
        self.elite = {kind: now(trial) for kind, trial in self.elite.items()}

    def observe(self, trial: Trial) -> None:
        """Learn from a proposed schedule."""
        self.trials.append(trial)
        self.stale += 1
        self.tree.observe(trial.schedule, trial.us)
        if trial.us is None:
            return
        kind = tuple(map(STRUCTURE, trial.schedule.stages))
        self.elite[kind] = min(self.elite.get(kind, trial), trial)
        if self.best is None or trial.us < self.best.time * (1 - PROGRESS):
            self.best, self.stale = trial, 0
            self.steps = self._by_price(neighbours(self.grammar, trial.schedule), PRICED)

    def _by_price(self, schedules: list[Schedule], n: int) -> list[Schedule]:
        """The most promising last, of n of them; the price is doubted, so that it does not decide
        alone."""
        kernel, target = self.grammar.kernel, self.grammar.target
        self.rng.shuffle(schedules)
        priced = [
            (price_us(kernel, target, s) * self.rng.lognormvariate(0, DOUBT), s)
            for s in schedules[:n]
        ]
        return schedules[n:] + [s for _, s in sorted(priced, key=itemgetter(0), reverse=True)]

    def stop(self, fraction: float, limit: int) -> str:
        """Why the walk is over, or nothing. The bound is measured, and may be too high: all of it
        is never enough, nor is a time that nothing took."""
        if self.best and self.best.longest * fraction <= self.floor_us and fraction < 1:
            return "bound"
        if self.exhausted:
            return "exhausted"
        if limit and len(self.trials) >= limit:
            return "trials"
        return "converged" if self.stale >= PATIENCE else ""

"""Programs that are not the fastest, and may yet be.

Kernels that were timed one after the other met different moments of the machine, so programs are
not ruled out by these times alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from lumc.lab.process import Limits
from lumc.profile.ledger import Ledger, kernels_of
from lumc.profile.session import Session
from lumc.profile.timing import FINAL_US
from lumc.schedule.plan import RegionPlan

CONTENDER = 1.3  # times the best at defaults: tuned too; measured: 7 of 8 kernels gain less
WIDE = 2.0  # the same, of different moments; measured: a schedule wanders by almost two
ROOM = Limits.nbytes // 2  # bytes of kernels that run in turn; derived: numpy has them too
ROUND = 0.01  # of the budget: what running all rivals once may take; a guess
FINALISTS = 6  # measured: the best of 40 was first by its trial, though 2 and 3 fell behind
LIGHT = 0.001  # of the plan: kernels without a final; measured: 36 instead of 48 s of finals
MOST = 0.8  # of the budget for trials; derived: finals wait for 0.15, whole runs take the rest
LEAST = 0.7  # of the budget for trials, however many kernels have a final; measured: fewer cost 2 %
WHOLE = 0.1  # of the budget, for whole runs; measured: 7 of 60 s (two plans of MobileNetV2)


def contends(book: Ledger, plan: RegionPlan, best_us: float) -> bool:
    """Whether a program is near the best one of its region, and no bound rules it out."""
    return book.total(plan) < CONTENDER * best_us and book.least(plan) < best_us


def rivals(book: Ledger) -> list[str]:
    """Kernels of programs that are near the best of their regions, as many as may run in turn."""
    left, out = ROUND * book.options.budget_s * 1e6, dict[str, float]()
    for region, best in book.best().items():
        limit = WIDE * book.total(best)
        near = [p for p in book.lists[region] if book.total(p) < limit]
        keys = kernels_of(near) if len(near) > 1 else []
        new = {k: book.time(k) for k in keys if k not in out}
        if sum(new.values()) < left:
            left -= sum(new.values())
            out |= new
    return list(out)


def needed(book: Ledger) -> list[str]:
    """Kernels of the plan, and their rivals."""
    return list(dict.fromkeys([*kernels_of(book.best().values()), *rivals(book)]))


def heavy_kernels(book: Ledger) -> set[str]:
    """Kernels that take some of the whole in one of the listed programs."""
    least, counts = LIGHT * sum(book.costs().values()), book.counts()
    return {
        key
        for region, plans in book.lists.items()
        for plan in plans
        for key, n in Counter(step.kernel for step in plan.steps).items()
        if counts[region] * n * book.time(key) >= least
    }


def is_over(s: Session) -> bool:
    """Whether the rest of the budget is for finals and whole runs."""
    if s.is_over(MOST) or not s.is_over(LEAST):
        return s.is_over(MOST)
    book = s.ledger
    late = heavy_kernels(book).intersection(k for k in needed(book) if not book.is_settled(k))
    finals_s = FINALISTS * FINAL_US / 1e6 * len(late)
    return s.is_over(1 - WHOLE - finals_s / book.options.budget_s)


def grouped(book: Ledger, keys: Sequence[str]) -> list[list[str]]:
    """Kernels whose arrays memory holds at once, in their order; those of one region together."""
    groups, left = list[set[str]](), 0
    for plans in book.lists.values():
        own = {k for k in kernels_of(plans) if k in keys}.difference(*groups)
        need = sum(map(book.nbytes, own))
        if not groups or need > left:
            groups.append(set())
            left = ROOM
        groups[-1] |= own
        left -= need
    return [some for g in groups if (some := [k for k in keys if k in g])]


def compare_rivals(s: Session) -> None:
    """The best schedules of rivals run in turn, so that programs are compared by what their kernels
    take in one moment."""
    book = s.ledger
    best = {k: book.ranked(k)[0] for k in rivals(book) if not book.choice(k)}
    for group in grouped(book, [*best]):
        if len(group) > 1 and not s.is_over():
            found = s.bench.finals([s.job(k, best[k].schedule, best[k].us) for k in group])
            for key, trial in zip(group, found, strict=False):
                book.set_turn(key, trial.time, best[key].time)

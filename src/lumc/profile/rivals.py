"""Programs that are not the fastest, and may yet be.

Kernels that were timed one after the other met different moments of the machine, so programs are
not ruled out by these times alone.
"""

from __future__ import annotations

from lumc.profile.ledger import Ledger, kernels_of
from lumc.profile.session import Session
from lumc.schedule.plan import RegionPlan

CONTENDER = 1.3  # times the best at defaults: tuned too; measured: 7 of 8 kernels gain less
WIDE = 2.0  # the same, of different moments; measured: a schedule wanders by almost two
ROUND = 0.01  # of the budget: what running all rivals once may take; a guess


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


def compare_rivals(s: Session) -> None:
    """The best schedules of rivals run in turn, so that programs are compared by what their kernels
    take in one moment."""
    book = s.ledger
    best = {k: book.ranked(k)[0] for k in rivals(book) if not book.choice(k)}
    if len(best) > 1 and not s.is_over():
        found = s.bench.finals([s.job(k, t.schedule, t.us) for k, t in best.items()])
        for (key, alone), trial in zip(best.items(), found, strict=False):
            book.set_turn(key, trial.time, alone.time)

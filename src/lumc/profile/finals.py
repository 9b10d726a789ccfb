"""The end of a search of kernels: the best schedules of all of them in turn.

Schedules that were timed one after the other met different moments of the machine. Those that are
near the best run in turn here, and wait for a calm moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from math import inf

from lumc.profile.ledger import Ledger, kernels_of
from lumc.profile.measure import Job
from lumc.profile.records import Trial
from lumc.profile.rivals import FINALISTS, grouped, heavy_kernels, needed
from lumc.profile.session import Session
from lumc.profile.timing import ASTRAY, is_faster
from lumc.profile.tune import open_kernels

RIVALS = 2  # finalists, or programs, that are tried in whole runs; a guess
WAIT = 0.15  # of the budget: how long finals may wait for a calm moment; a guess
CALM = 1.1  # times its least time: so fast are candidates then; derived: CALM of both timings
UNSURE = 0.1  # of the time of the first schedule: a win in a moment that was not; derived: CALM


def finish(s: Session) -> None:
    """Finals for the kernels of the plan and of its rivals; their choices on record."""
    book = s.ledger
    book.searched = not s.stopped() and (book.measured > 0 or not open_kernels(book))
    finals(s, needed(s.ledger), WAIT * s.ledger.options.budget_s)
    while finals(s, kernels_of(s.ledger.best().values())):
        pass


def finals(s: Session, keys: Iterable[str], wait_s: float = 0.0) -> bool:
    """Choose schedules for those of these kernels that have none; whether there were any. The best
    of all run in turn, but for kernels that take next to nothing. If they ``wait_s`` for a calm
    moment, kernels are compared too."""
    book = s.ledger
    left = [k for k in keys if k not in book.rivals and not book.is_settled(k)]
    if not left:
        return False
    heavy, late = heavy_kernels(book), s.is_over()
    jobs = {k: [s.job(k, t.schedule, t.us) for t in close(book, k)] for k in left if k in heavy}
    count = sum(map(len, jobs.values()))
    for group in grouped(book, [*jobs]):
        own = {k: jobs[k] for k in group}
        share_s = wait_s * sum(map(len, own.values())) / count
        in_turn(s, own, share_s, late, len(left) > 1)
    for key in (k for k in left if k not in heavy):
        new = key in book.spent or not book.choice(key)
        choose(s, key, close(book, key) if new else [], UNSURE)
    return True


def in_turn(
    s: Session, jobs: Mapping[str, list[Job]], wait_s: float, late: bool, several: bool
) -> None:
    """Choose schedules for kernels whose candidates run in turn; if it is ``late``, by what is on
    record. ``several``: kernels are compared too."""
    every = [*chain(*jobs.values())]
    wait_s *= len(every) > 1  # else there is nothing to compare
    found = s.bench.finals(every, wait_s) if every and not late else []
    calm = sum(t.time < CALM * (j.best_us or inf) for t, j in zip(found, every, strict=False))
    doubt = 0.0 if 2 * calm >= len(found) else UNSURE
    compared = wait_s > 0 and bool(found) and several
    for key, own in jobs.items():
        some = found[: len(own)] or ([] if late else s.bench.finals(own))
        choose(s, key, some, doubt, compared)
        del found[: len(own)]


def close(book: Ledger, key: str) -> list[Trial]:
    """The first schedule of a kernel and the best, in the order of their trials: what seemed to be
    faster met other moments, perhaps."""
    best = [t for t in book.ranked(key) if t.us is not None][:FINALISTS]
    some = [t for t in book.trials(key).values() if t in best or t is book.first(key)]
    return [t for t in some if t.time <= ASTRAY * best[0].time]


def choose(
    s: Session, key: str, near: Sequence[Trial], doubt: float, compared: bool = False
) -> None:
    """The winner of a kernel: of those that ran in turn the first unless it is beaten, by ``doubt``
    of its time and more. ``compared``: with those of other kernels too."""
    book, old = s.ledger, s.ledger.choice(key)
    book.rivals[key] = []
    if old and not near and key not in book.spent:  # nothing new is known
        if book.searched:
            book.end(key, old.schedule, old.us, book.stop(key) or "time")
        return
    winner, *others = near or book.ranked(key)[:1]
    best = min(others, default=winner)
    if is_faster(best.time, winner.time * (1 - doubt), max(best.noise, winner.noise)):
        winner = best
    book.rivals[key] = sorted(t for t in near if t is not winner)[:RIVALS]
    known = book.trials(key).values()
    same = [t for t in known if t.us and t.schedule == winner.schedule and not t.slices]
    us = min(t.time for t in (winner, *same))
    why = book.stop(key) or ("interrupted" if s.stopped() else "time")
    if why == "bound" and not book.is_near(key, us):  # the best was, but did not win
        why = "time"
    book.end(key, winner.schedule, us, why)
    if near and compared:
        book.set_turn(key, winner.time, us)

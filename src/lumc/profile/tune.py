"""Which kernel is tried next, and what for: batches of trials, as long as there is time.

Each goes to the kernel that has most to gain: launches times the distance from its bound. Of
several entries, or buckets, each counts as if all took equally long.
"""

from __future__ import annotations

from collections.abc import Iterable

from lumc.profile.ledger import Ledger, kernels_of
from lumc.profile.records import NEIGHBOUR
from lumc.profile.rivals import contends, is_over, needed
from lumc.profile.session import Session
from lumc.profile.timing import WIN
from lumc.schedule.plan import RegionPlan

BATCH = 8  # candidates that are compiled together; derived: half a second on two cores
EACH = 2  # candidates of a batch for each machine, at least: one may take twice as long; a guess
DOUBTED = 0.25  # of what a kernel of a program may gain that is not the best; a guess
CARRIED = 0.03  # of its first time: who gains so much shows others how; derived: above any WIN
FADING = 0.7  # of the gain is hoped for after a fruitless batch; a guess


def tune(s: Session) -> bool:
    """Until nothing can be gained or the time is over; whether anything was measured."""
    book, before = s.ledger, s.ledger.measured
    while not is_over(s):
        gains = open_kernels(book)
        s.tell(len(gains))
        if not gains:
            break
        key = max(sorted(gains), key=gains.__getitem__)
        s.measure([(key, book.walk(key).propose(batch(s)))])
        carry(s, key)
    return book.measured > before


def carry(s: Session, key: str) -> None:
    """A schedule that is new and much better is tried for all kernels of the same kind, in all
    programs that are near: else the first one that is tuned wins."""
    book = s.ledger
    walk, first = book.walk(key), book.first(key)
    took = walk.best.time / first.time if walk.best and first else 1.0
    if took <= book.carried.get(key, 1.0) - CARRIED:
        book.carried[key] = took
        others = [k for k in needed(book) if k != key and not book.is_settled(k)]
        same = {k: w for k in others if (w := book.walk(k)).kind == walk.kind}
        s.measure([(k, w.follow(walk)) for k, w in same.items()], NEIGHBOUR)


def open_kernels(book: Ledger) -> dict[str, float]:
    """Kernels whose search goes on, with what there is to gain, in microseconds."""
    out, counts = dict[str, float](), book.counts()
    for region, best in book.best().items():
        us, gains = book.total(best), dict[str, float]()
        for plan in book.lists[region]:
            share, behind = 1.0, 0.0
            if plan is not best:
                share, behind = DOUBTED, max(0.0, book.total(plan) - us)
            if plan is best or contends(book, plan, us):
                for key in kernels_of([plan]):
                    gains[key] = max(gains.get(key, 0.0), share * (gain(book, key) - behind))
        for key, each in gains.items():
            out[key] = out.get(key, 0.0) + counts[region] * each
    return {key: us for key, us in out.items() if us > 0}


def gain(book: Ledger, key: str) -> float:
    """Microseconds between the best time and the bound, less with every fruitless batch."""
    if book.is_settled(key) or book.stop(key):
        return 0.0
    walk = book.walk(key)
    us = book.time(key) if walk.best else 1e6  # a second, as nothing is known
    return max(us - book.bounds[key], WIN[0] * us) * float(FADING ** (walk.stale / BATCH))


def measure_defaults(s: Session, programs: Iterable[RegionPlan], share: float) -> int:
    """The default schedules of the kernels of programs, until a share of the budget is spent; how
    many of them were not tried before."""
    walks = s.ledger.walks
    new = [k for k in kernels_of(programs) if k not in walks]
    size = batch(s) if new else 1
    for i in range(0, len(new), size):
        if not s.is_over(share):
            s.measure([(k, s.ledger.walk(k).propose(1)) for k in new[i : i + size]])
    return len(new)


def batch(s: Session) -> int:
    """Candidates that are measured before the next are chosen."""
    return max(BATCH, EACH * s.bench.machines)

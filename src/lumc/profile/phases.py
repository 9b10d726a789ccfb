"""A search: its phases, one after the other.

It may be stopped at any moment: what is on record then gives the plan.
"""

from __future__ import annotations

from itertools import zip_longest
from math import inf

from lumc.errors import Exit, LumcError
from lumc.kernel.target import Speeds
from lumc.lab.lock import Busy
from lumc.profile.finals import finish
from lumc.profile.ledger import Ledger
from lumc.profile.rivals import MOST, compare_rivals
from lumc.profile.session import Session
from lumc.profile.settings import mismatch
from lumc.profile.timing import FINAL_US
from lumc.profile.tune import measure_defaults, open_kernels, tune
from lumc.profile.whole import compare_plans
from lumc.schedule.plan import Plan

LAYOUTS = 0.4  # of the budget, for finding the layout; measured: two of MobileNetV2 take 0.3


def profile(s: Session) -> Plan:
    """Search until nothing can be gained or the budget is spent; the plan. Raises E0412 if no
    candidate of a kernel is valid, E0413 if it is ``frozen`` and a record is missing."""
    try:
        if s.ledger.options.frozen:
            require_choices(s.ledger)
        elif s.ledger.missing(s.ledger.is_settled):
            measure_speeds(s)
            try_layouts(s)
            try_defaults(s)
            compare_rivals(s)
            while tune(s):
                compare_rivals(s)  # what seemed to be a worse program may be the better one
            finish(s)
            try_agreed(s)
            compare_plans(s)
            s.tell(len(open_kernels(s.ledger)))
    except Busy:  # as if the user had stopped it: what is on record gives the plan
        s.stopped = lambda: True
        finish(s)
    finally:
        s.close()
    return s.ledger.plan()


def require_choices(book: Ledger) -> None:
    """Raises E0413 if a kernel of the plan was never searched here."""
    if missed := book.missing(book.choice):
        what = f"--frozen: no record of {len(missed)} kernels: {', '.join(missed[:5])}"
        fix = "profile here without --frozen; or commit the .lp; or take the records of another "
        fix += "machine: --device-records ID (lumc cache list)"
        where = mismatch(book.records, book.kernels)
        raise LumcError("E0413", what, where=where, fix=fix, exit=Exit.BUDGET)


def measure_speeds(s: Session) -> None:
    """Again in every search, as only the best moment of the machine counts."""
    new, known = s.bench.speeds(), s.ledger.records.speeds
    most = Speeds(*map(max, new, known)) if known else new
    if most != known:
        s.ledger.records.set_speeds(most)
        s.ledger.set_bounds()


def try_agreed(s: Session) -> None:
    """Schedules that kernels take only because they read weights as others do."""
    if not s.is_over():
        plans = s.ledger.plan().kernels.values()
        s.measure([(k.key, [k.schedule]) for k in plans if k.key in s.ledger.walks])


def try_layouts(s: Session) -> None:
    """Whole runs of every layout of the values between regions that no price tells from the others,
    with default schedules; the search goes on with the fastest."""
    book, plans = s.ledger, dict[str, Plan]()
    if len(book.layouts) == 1 or book.choose_layout():
        return
    for laid in book.layouts:
        book.use(laid)
        first = [min(listed, key=book.least) for listed in laid.lists.values()]
        measure_defaults(s, first, LAYOUTS)
        if not s.is_over(LAYOUTS) and not book.missing(lambda key: book.time(key) < inf):
            plans[laid.key] = book.plan()
    # what is timed one after the other meets different moments: two threads may have one core
    us = s.bench.race([*plans.values()], FINAL_US / 1e6, s.stopped) if len(plans) > 1 else ()
    for key, each in zip(plans, us, strict=False):
        book.records.set_layout(key, each)
    book.choose_layout()


def try_defaults(s: Session) -> None:
    """The listed programs with default schedules, those of the least bound first; the bound rules
    out the rest as soon as one is measured."""
    book = s.ledger
    ordered = [sorted(plans, key=book.least) for plans in book.lists.values()]
    for programs in zip_longest(*ordered):
        if s.is_over(MOST):
            break
        best = {key: book.total(plan) for key, plan in book.best().items()}
        near = [p for p in programs if p and book.least(p) < best.get(p.key, inf)]
        s.tell(measure_defaults(s, near, MOST))

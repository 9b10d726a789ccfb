"""Whole runs: what was timed kernel by kernel, side by side and together.

Kernels that were tuned alone can be worse in a plan. A winner is a choice on record, so the same
records give the same plan.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from operator import itemgetter

from lumc.profile.finals import RIVALS, finals
from lumc.profile.ledger import Ledger, kernels_of
from lumc.profile.rivals import contends
from lumc.profile.session import Session
from lumc.profile.timing import FINAL_US, WIN, is_faster
from lumc.profile.tune import measure_defaults
from lumc.schedule.plan import RegionPlan

HEAVY = 3  # regions, and kernels, of which others are tried in whole runs; a guess
LEVEL = 1.1  # times the best: of programs with fewer kernels, which do better there; a guess
LEAST = 0.1  # of its time that a kernel may be taken to need; a guess


def compare_plans(s: Session) -> None:
    """The programs with the fewest kernels, other programs of the heaviest regions, then other
    schedules of the heaviest kernels."""
    compare_fewest(s)
    costs = s.ledger.costs()
    for region in sorted(costs, key=costs.__getitem__, reverse=True)[:HEAVY]:
        compare_programs(s, region)
    compare_schedules(s)


def compare_fewest(s: Session) -> None:
    """Whole runs with the fewest kernels, in all regions at once whose programs are about level. A
    kernel that runs over and over has its operands where it left them; in a network another core
    wrote them, or other kernels were there since. Whoever hands on fewer values loses less.

    Where a whole run takes longer than its kernels do one by one, as much longer is about level."""
    level, took = LEVEL, race_fewest(s, LEVEL)
    alone = sum(s.ledger.costs().values())
    if took > level * alone > 0:
        race_fewest(s, took / alone)


def race_fewest(s: Session, level: float) -> float:
    """The programs with the fewest kernels that take up to ``level`` times the best beside those;
    what the best takes then, 0 if none has fewer."""
    book, best, fewest = s.ledger, s.ledger.best(), list[RegionPlan]()
    least = {key: min(len(p.steps) for p in book.lists[key]) for key in best}
    if s.stopped() or all(len(plan.steps) == least[key] for key, plan in best.items()):
        return 0.0
    for region, plan in best.items():
        most = level * book.total(plan)
        measure_defaults(s, [p for p in book.lists[region] if book.least(p) < most], inf)
        near = [p for p in book.lists[region] if book.total(p) < most]
        fewest.append(min(near or [plan], key=lambda p: (len(p.steps), book.total(p))))
    fewer = [p for p in fewest if len(p.steps) < len(best[p.key].steps)]
    finals(s, kernels_of(fewer))
    plans = [book.plan(), book.plan(fewer)] if fewer else [book.plan()]
    us = s.bench.race(plans, FINAL_US / 1e6, s.stopped)
    if len(us) == 2 and is_faster(us[1], us[0]):
        share = max(1 - us[1] / us[0], WIN[1])  # a smaller one would not be one
        for p in fewer:
            prefer(book, p, best[p.key], book.total(best[p.key]) * (1 - share))
    return us[0] if us else 0.0


def compare_programs(s: Session, region: str) -> None:
    """Whole runs with the programs that are nearly as fast. One that wins is on record as faster
    by what it gained."""
    book = s.ledger
    best = book.best().get(region)
    if best is None or s.is_over():
        return
    total, cost = book.total(best), sum(book.costs().values())
    near = [p for p in book.lists[region] if p is not best and contends(book, p, total)]
    near = sorted(near, key=book.total)[:RIVALS]
    finals(s, kernels_of(near))
    if not near or s.is_over():
        return
    plans = [book.plan([p]) for p in (best, *near)]
    us = s.bench.race(plans, FINAL_US / 1e6, s.is_over)
    won = min(range(1, len(us)), key=us.__getitem__, default=0)
    if won and is_faster(us[won], us[0]):
        gained = cost * (1 - us[won] / us[0]) / book.counts()[region]
        prefer(book, near[won - 1], best, total - gained)


def prefer(book: Ledger, program: RegionPlan, to: RegionPlan, us: float) -> None:
    """Put it on record that a program takes so long, by the kernels that are its own."""
    shared = kernels_of([to])
    own = [step.kernel for step in program.steps if step.kernel not in shared]
    rest = sum(book.time(step.kernel) for step in program.steps if step.kernel in shared)
    took = sum(map(book.time, own))
    scale = max(us - rest, LEAST * took) / took if own else 1.0
    for key in dict.fromkeys(own):
        old = book.records.choices[book.at(key)]
        stop = "time" if old.stop == "bound" else old.stop
        book.choose(key, replace(old, us=scale * old.us, stop=stop))


def compare_schedules(s: Session) -> None:
    """Whole runs with the runners-up of the heaviest kernels; a winner takes the place of the
    first."""
    book = s.ledger
    plan, weights, launches = book.plan(), book.weights(), dict[str, float]()
    steps = [(i.entry, s.kernel) for i in plan.instances for s in plan.regions[i.region].steps]
    for entry, key in steps:
        launches[key] = launches.get(key, 0.0) + weights[entry]
    cost = {k: n * book.time(k) for k, n in launches.items() if k in book.rivals}
    heavy = sorted(cost, key=lambda k: -cost[k])[:HEAVY]
    tried = [(k, t) for k in heavy for t in book.rivals[k]]
    if len(steps) < 2 or not tried or s.is_over():
        return
    plans = [plan]
    for key, trial in tried:
        changed = replace(plan.kernels[key], schedule=trial.schedule, time_us=trial.us)
        plans.append(replace(plan, kernels={**plan.kernels, key: changed}))
    us = s.bench.race(plans, FINAL_US / 1e6, s.is_over)
    for key in heavy:
        ran = [(took, t) for (k, t), took in zip(tried, us[1:], strict=False) if k == key]
        took, won = min(ran, key=itemgetter(0), default=(inf, None))
        if won and is_faster(took, us[0]):
            old = book.records.choices[book.at(key)]
            # alone it was slower, in whole runs it was not
            book.choose(key, replace(old, schedule=won.schedule, us=min(won.time, old.us)))

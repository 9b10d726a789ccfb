"""How much memory a plan takes while it runs, and plans that take less.

The arena holds what regions hand to each other, and the kernels of a region. Of the first there is
less where regions do more operations again; the search knows how many. Of the second, where
programs do more in one kernel: plans are made with a bound on what any program hands on, as tight
as it has to be. A program that cannot meet it hands on as little as it can.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import NamedTuple

from lumc.codegen.generate import generate
from lumc.codegen.tile.memory import PAGE, Interval, aligned, allocate
from lumc.errors import Exit, LumcError
from lumc.graph.graph import Graph
from lumc.kernel.instance import results, whole_of
from lumc.kernel.term import Kernel
from lumc.limits import LEVELS
from lumc.schedule.plan import Plan, RegionPlan
from lumc.search.explore import find_regions
from lumc.search.siblings import MOST

RESULTS = (*results(1), *results(MOST))
FIX = "a larger --memory, or a smaller batch"


class Needs(NamedTuple):
    """Bytes that a plan takes besides its weights, states, inputs and outputs."""

    arena: int  # of the entry that takes most
    scratch: int  # of all threads

    @property
    def total(self) -> int:
        return self.arena + self.scratch

    def __str__(self) -> str:
        return f"{self.total:,} bytes (arena {self.arena:,}, scratch {self.scratch:,})"


def needs_of(plan: Plan) -> Needs:
    """What a run on as many threads as the plan is for takes, as runners reserve it."""
    code = generate(plan)
    scratch = max((aligned(k.scratch_bytes, PAGE) for k in code.kernels), default=0)
    return Needs(max(e.arena_bytes for e in code.entries), scratch * plan.target.threads)


def handed_on(kernels: Sequence[Kernel]) -> int:
    """The bytes that a program, its kernels in order, takes for what these hand to each other."""
    nbytes = {n: k.buffer(n).nbytes for k in kernels for n in k.stored if n not in RESULTS}
    return _room([[b.name for b in k.buffers] for k in kernels], nbytes)


def handed_in(plan: RegionPlan) -> int:
    """The same of a program whose kernels have keys."""
    return _room([s.args for s in plan.steps], {b.name: b.nbytes for b in plan.local})


def _room(uses: Sequence[Sequence[str]], nbytes: Mapping[str, int]) -> int:
    """Values live from the first to the last kernel, or region, that uses them."""
    spans = dict[str, tuple[int, int]]()
    for i, names in enumerate(uses):
        spans |= {n: (spans.get(n, (i, i))[0], i) for n in names if n in nbytes}
    return allocate(Interval(n, nbytes[n], *span) for n, span in spans.items()).nbytes


def fitting(limit: int, make: Callable[[float], Plan]) -> tuple[Plan, Needs, float]:
    """A plan that takes no more bytes than ``limit``, what it takes, and the bound with which
    ``make`` made it: the greatest of those that were tried on the way down. Raises E0419."""
    most, least = inf, None
    while True:
        plan = make(most)
        needs = needs_of(plan)
        if needs.total <= limit:
            return plan, needs, most
        least = needs if least is None else min(least, needs, key=lambda n: n.total)
        handed = [n for n in map(handed_in, plan.regions.values()) if 0 < n <= most]
        if not handed:
            raise too_much(limit, least)
        most = min(limit, max(handed) - 1)


def leaner(graph: Graph, again: int, limit: int) -> list[int]:
    """How many operations per element regions may do again, from ``again`` on, so that the values
    that they hand to each other may take no more bytes than ``limit``: of levels that store the
    same the first. Raises E0419 if there is none."""
    needed = {level: between(graph, level) for level in LEVELS if level >= again}
    first = {n: level for level, n in reversed(needed.items())}
    if found := sorted(level for n, level in first.items() if n <= limit):
        return found
    what = f"--memory {limit:,}: the values between regions take {min(first):,} bytes at least"
    raise LumcError("E0419", what, fix=FIX, exit=Exit.BUDGET)


def between(graph: Graph, again: int) -> int:
    """The bytes of the arena where regions need none for themselves."""
    most = 0
    for entry in graph.entries:
        found = find_regions(entry, again)
        there = {n.name for _, n in entry.outputs}
        made = [f.whole for f in found if f.whole and f.write is None]
        nbytes = {n.name: n.size * n.dtype.nbytes for n in made if n.name not in there}
        uses = [[whole_of(name) for name in (f.output, *f.body.read)] for f in found]
        most = max(most, _room(uses, nbytes))
    return most


def too_much(limit: int, least: Needs) -> LumcError:
    """E0419, where plans were made."""
    what = f"--memory {limit:,}: no plan was found that takes less than {least}"
    fix = f"{FIX}; fewer --threads, as each has scratch of its own; more --recompute"
    return LumcError("E0419", what, fix=fix, exit=Exit.BUDGET)

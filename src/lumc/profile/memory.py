"""How much memory a plan takes while it runs, and plans that take less.

The arena holds what regions hand to each other, and the kernels of a region. Of the first there is
less where values are made again (``profile/rematerialize.py``). Of the second, where programs do
more in one kernel: plans are made with a bound on what any program hands on, as tight as it has to
be. A program that cannot meet it hands on as little as it can.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import inf
from typing import NamedTuple

from lumc.codegen.generate import generate
from lumc.codegen.tile.memory import PAGE, Interval, aligned, allocate
from lumc.errors import Exit, LumcError
from lumc.graph.expr import Expr, axis, subterms
from lumc.graph.graph import Entry, Graph, Node
from lumc.kernel.instance import results, whole_of
from lumc.kernel.term import Kernel
from lumc.schedule.plan import Plan, RegionPlan
from lumc.search.explore import find_regions
from lumc.search.order import Found
from lumc.search.siblings import MOST
from lumc.search.translate import Body

PART = 8  # of the bytes that a plan may take, this part is for scratch memory at most; a guess
RESULTS = (*results(1), *results(MOST))
FIX = "a larger --memory, or a smaller batch"
regions_of = lru_cache(64)(find_regions)  # one entry's are asked for several times in turn


class Needs(NamedTuple):
    """Bytes that a plan takes besides its weights, states, inputs and outputs."""

    arena: int  # of the entry that takes most
    scratch: int  # of all threads

    @property
    def total(self) -> int:
        return self.arena + self.scratch

    def __str__(self) -> str:
        return f"{self.total:,} bytes (arena {self.arena:,}, scratch {self.scratch:,})"


class Bounds(NamedTuple):
    """Bytes that programs and kernels take at most, or as few more as they can."""

    handed: float = inf  # what the kernels of a region hand to each other
    scratch: float = inf  # of a thread


FREE = Bounds()


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


def fitting(limit: int, make: Callable[[Bounds], Plan]) -> tuple[Plan, Needs, Bounds]:
    """A plan that takes no more bytes than ``limit``, what it takes, and the bounds with which
    ``make`` made it: the greatest of those that were tried on the way down. Raises E0419."""
    bounds, least = FREE, None
    while True:
        plan = make(bounds)
        needs = needs_of(plan)
        if needs.total <= limit:
            return plan, needs, bounds
        least = needs if least is None else min(least, needs, key=lambda n: n.total)
        if needs.scratch > limit // PART and bounds.scratch == inf:
            bounds = bounds._replace(scratch=limit // (PART * plan.target.threads))
            continue
        handed = [n for n in map(handed_in, plan.regions.values()) if 0 < n <= bounds.handed]
        if not handed:
            raise TooMuch(limit, least)
        bounds = bounds._replace(handed=min(limit, max(handed) - 1))


def between(graph: Graph, again: int) -> int:
    """The bytes of the arena where regions need none for themselves."""
    return max(room_between(e, regions_of(e, again)) for e in graph.entries)


def room_between(entry: Entry, found: Sequence[Found]) -> int:
    """The same of one entry, with these regions."""
    elsewhere = {n for _, n in entry.outputs} | in_states(entry, found)
    made = [f.whole for f in found if f.whole and f.write is None]
    nbytes = {n.name: n.size * n.dtype.nbytes for n in made if n not in elsewhere}
    uses = [[whole_of(name) for name in (f.output, *f.body.read)] for f in found]
    return _room(uses, nbytes)


def in_states(entry: Entry, found: Sequence[Found]) -> set[Node]:
    """The values that are computed into the states that updates copy them to, as far as the graph
    tells: codegen proves it, and where it cannot there is a copy. They are whole states, and nobody
    reads what was there later, nor do they but element by element."""
    last = {s: i for i, f in enumerate(found) for s in f.body.sources if s.op == "state"}
    place = {f.whole: i for i, f in enumerate(found) if f.write is None}
    count, out = Counter(u.value for u in entry.writes), set[Node]()
    for u in entry.writes:
        plain = u.index == tuple(map(axis, u.value.axes)) and u.value.shape == u.state.shape
        made = place.get(u.value, -1)
        if plain and count[u.value] == 1 and made >= last.get(u.state, -1) and made >= 0:
            value = found[made].body
            loads = [e for e in subterms(value.value) if _reads(e, value, u.state)]
            if all(e.kids == value.index for e in loads):
                out.add(u.value)
    return out


def _reads(e: Expr, body: Body, state: Node) -> bool:
    return e.kind == "load" and body.sources[int(e.attr[0].removeprefix("b"))] is state


class TooMuch(LumcError):
    """E0419, where plans were made; ``least`` is what the smallest of them takes."""

    def __init__(self, limit: int, least: Needs) -> None:
        what = f"--memory {limit:,}: no plan was found that takes less than {least}"
        fix = f"{FIX}; fewer --threads, as each has scratch of its own; more --recompute"
        super().__init__("E0419", what, fix=fix, exit=Exit.BUDGET)
        self.least = least

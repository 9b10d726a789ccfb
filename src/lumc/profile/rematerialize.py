"""Graphs whose regions hand less to each other: some of their values are made again, by copies of
the nodes that make them, which stand in front of those that read them late.

Regions and their order follow from a graph, and from these which values are in memory when, and
what it costs to make each again. A copy whose only reader can have it inside is none between
regions any more, so what a choice really takes is counted once more on the graph that it makes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from lumc.errors import Exit, LumcError
from lumc.graph.again import repeated
from lumc.graph.graph import Entry, Graph, Node, Update, map_indices, reachable
from lumc.graph.ops import DType, Op
from lumc.graph.ranks import exchanged
from lumc.kernel.bound import COST, Work, roofline_us
from lumc.kernel.target import Target
from lumc.limits import LEVELS
from lumc.profile.in_blocks import in_blocks
from lumc.profile.lifetimes import Schedule, Task, leaner, plain, pruned
from lumc.profile.memory import FIX, between, in_states, regions_of, room_between
from lumc.search.order import Found

FEW = 6  # first choices that are counted: what they take need not fall with each; a guess
FEWER = 16  # times the elements: a value that is as good as free to keep; a guess
BLOCKS = 0  # a name, derived: in the place of a level, values are made in blocks and none again
LITTLE = 0.1  # more operations: no other level is tried; a guess


class Step(NamedTuple):
    """What is done for one value between regions, or one update: its ``nodes`` in order, none where
    an update writes a value that is stored; and the stored values that it reads."""

    node: Node
    nodes: tuple[Node, ...]
    sources: tuple[Node, ...]
    write: int | None  # which of the updates of the entry it is

    @property
    def operations(self) -> float:
        """As estimates count them."""
        return sum(map(operations, self.nodes))

    @property
    def nbytes(self) -> int:
        """What it reads and writes."""
        return sum(n.size * n.dtype.nbytes for n in (self.node, *self.sources))


class Lean(NamedTuple):
    """A graph that hands on less, and the level of what its regions do again (``--recompute``)."""

    graph: Graph
    level: int
    nbytes: int  # that regions hand to each other, in the entry where that is most
    before: int  # the same, of the graph as it was
    stored: tuple[str, ...] = ()  # values that regions hand to each other
    again: tuple[str, ...] = ()  # nodes that the graph did not have
    more: float = 0.0  # operations, as a part of those before
    in_blocks: bool = False  # the new nodes are those of blocks, and make nothing again


def lean(graph: Graph, again: int, limit: int, target: Target) -> Lean:
    """The graph, with as much made again as it takes for regions to hand on at most so many bytes;
    they do ``again`` operations per element again in any case, or more where that does less in all.
    Entries with collectives, and those that read states after an update, stay as they are. Raises
    E0419 if nothing is found."""
    before = between(graph, again)
    if before <= limit:
        return Lean(graph, again, before, before)
    least, best, known = before, list[Lean](), list[list[str]]()
    for level in (BLOCKS, *(n for n in LEVELS if n >= again)):
        if level == BLOCKS:
            found = [_in_blocks(e, graph, again, limit) for e in graph.entries]
        else:
            cuts = [f.output for e in graph.entries for f in regions_of(e, level)]
            if cuts in known:
                continue
            known.append(cuts)
            found = [_lean_entry(e, graph, level, limit, target) for e in graph.entries]
        least = min(least, max(nbytes for _, nbytes in found))
        if all(nbytes <= limit for _, nbytes in found):
            made = replace(graph, entries=tuple(e for e, _ in found))
            told = _told(graph, made, again, level or again)
            best.append(told._replace(in_blocks=level == BLOCKS))
            if best[-1].more <= LITTLE:
                break
    if best:
        return min(best, key=lambda b: b.more)
    what = f"--memory {limit:,}: the values between regions take {least:,} bytes at least"
    raise LumcError("E0419", what, fix=FIX, exit=Exit.BUDGET)


def _in_blocks(entry: Entry, graph: Graph, again: int, limit: int) -> tuple[Entry, int]:
    """An entry that hands on at most so many bytes, or fewer than before, as some of its values are
    made in blocks; and how many."""
    room = room_between(entry, regions_of(entry, again))
    made = in_blocks(entry, graph, again, limit, room) if can_copy(entry) else None
    return made or (entry, room)


def _told(before: Graph, after: Graph, again: int, level: int) -> Lean:
    old = {n.name for e in before.entries for n in e.nodes}
    new = tuple(n.name for e in after.entries for n in e.nodes if n.name not in old)
    steps = [s for e in after.entries for s in steps_of(e, regions_of(e, level))]
    stored = tuple(dict.fromkeys(s.node.name for s in steps if s.write is None))
    every = [s for e in before.entries for s in steps_of(e, regions_of(e, again))]
    more = sum(s.operations for s in steps) / max(sum(s.operations for s in every), 1.0) - 1
    return Lean(after, level, between(after, level), between(before, again), stored, new, more)


def made_again(graph: Graph) -> tuple[list[str], float]:
    """The nodes of a graph that compute what others have computed, and which part of all operations
    that is; what regions do again inside is not in it."""
    nodes = [n for e in graph.entries for n in e.nodes if isinstance(n.op, Op)]
    twice = [n for e in graph.entries for n in repeated(e)]
    total = sum(map(operations, nodes))
    return [n.name for n in twice], sum(map(operations, twice)) / max(total, 1.0)


def _lean_entry(
    entry: Entry, graph: Graph, again: int, limit: int, target: Target
) -> tuple[Entry, int]:
    """An entry that hands on at most so many bytes, or as few as was found; and how many."""
    best = entry, room_between(entry, regions_of(entry, again))
    while best[1] > limit and can_copy(entry):
        found = _leaner_entry(best[0], graph, again, limit, target)
        if found is None or found[1] >= best[1]:
            break
        best = found
    return best


def _leaner_entry(
    entry: Entry, graph: Graph, again: int, limit: int, target: Target
) -> tuple[Entry, int] | None:
    """Of the entries that choices make, each one choice behind the one before, the first that hands
    on at most so many bytes, without choices that are not needed; else the last."""
    found = regions_of(entry, again)
    steps = steps_of(entry, found, fine=True)
    elsewhere = {n for _, n in entry.outputs} | in_states(entry, found)
    stored = {f.whole for f in regions_of(entry, LEVELS[-1])}
    path, grown = list[Schedule](), grower(entry, graph, steps)

    @cache
    def tried(schedule: int) -> tuple[Entry, int]:
        return counted(path[schedule])

    def counted(schedule: Schedule) -> tuple[Entry, int]:
        made = grown(schedule)
        return made, room_between(made, regions_of(made, again))

    def fits(i: int) -> bool:
        return tried(i)[1] <= limit

    for schedule in leaner(plain(tasks_of(steps, elsewhere, stored, target))):
        path.append(schedule)
        if schedule.peak <= limit and fits(len(path) - 1):
            break
    few = range(min(FEW, len(path)))
    i = next(filter(fits, few), None)
    i = bisect_left(range(len(path)), True, len(few), key=fits) if i is None else i
    if i == len(path):
        return tried(i - 1) if path else None
    less = counted(pruned(path[i], max(path[i].peak, limit)))
    return less if less[1] <= limit else tried(i)


def can_copy(entry: Entry) -> bool:
    """Whether the place of a node says when it is computed, and no state changes before the end."""
    updated = any(n.op == "update" for n in entry.nodes)
    return not (entry.time or exchanged(entry) or updated)


# ---- from a graph to tasks


def steps_of(entry: Entry, found: Sequence[Found], fine: bool = False) -> list[Step]:
    """The regions of an entry; those of pieces of one value as one, where the last of them is.
    ``fine``: what a region reduces to few elements first, such as the maximum of a row, is a step
    in front of it, so that it can be kept where the region is done again."""
    place = {n: i for i, n in enumerate(entry.nodes)}
    stored = {f.whole for f in found if f.whole and f.write is None}

    def step(node: Node, write: int | None, known: set[Node]) -> Step:
        """What makes a node of those that are known."""

        def inside(n: Node) -> Iterable[Node]:
            return (r.source for r in n.reads if not r.source.is_leaf and r.source not in known)

        nodes = tuple(sorted(reachable([node], inside), key=place.__getitem__))
        read = (r.source for n in nodes for r in n.reads if r.source in known)
        return Step(node, nodes, tuple(dict.fromkeys(read)), write)

    out = dict[object, Step]()
    for f in found:
        node = f.node if f.write is not None else f.whole or f.node
        made = step(node, f.write, stored)
        if f.write is not None and (node in stored or node.is_leaf):
            made = Step(node, (), (node,) * (node in stored), f.write)
        elif fine and (few := _few(made)):
            for n in few:
                out.setdefault((n, None), step(n, None, stored.union(few)))
            made = step(node, f.write, stored.union(few))
        key = (node, f.write)
        out.pop(key, None)
        out[key] = made
    return list(out.values())


def _few(step: Step) -> list[Node]:
    """Of what is reduced inside of a step: what more elements are made of, in order, if it has few
    for those of the result."""
    inside, deep, wide = {*step.nodes}, set[Node](), set[Node]()
    for n in step.nodes:
        deep |= {n} if n.reduced or any(r.source in deep for r in n.reads) else set()
        wide |= {r.source for r in n.reads if r.source in inside and r.source.size < n.size}
    return [n for n in step.nodes if n in deep & wide and n.size * FEWER <= step.node.size]


def tasks_of(
    steps: Sequence[Step], elsewhere: set[Node], stored: set[Node | None], target: Target
) -> list[Task]:
    """What steps take and cost. What lies ``elsewhere`` takes nothing, nor do updates; what is not
    ``stored`` in any case is made inside of a reader."""
    made = {s.node: i for i, s in enumerate(steps) if s.write is None}
    out = list[Task]()
    for s in steps:
        free = s.write is not None or s.node in elsewhere
        nbytes = 0 if free else s.node.size * s.node.dtype.nbytes
        price = roofline_us(Work(s.operations, s.nbytes), target)
        cheap, last = not free and s.node not in stored, s.write is not None
        out.append(Task(nbytes, price, tuple(made[n] for n in s.sources), cheap, last))
    return out


def operations(node: Node) -> float:
    """Those of a node, as bounds weigh them. A sum that selects is expected to become a load, and
    so is what it selects from something smaller."""
    if node.op is Op.MUL and _selects(node):
        smaller = any(r.source.size < node.size for r in node.reads[1:])
        return 0.0 if smaller else float(node.size)
    summand = node.reads[0].source if node.op is Op.SUM and node.reads else node
    if summand is not node and summand.op is Op.MUL and _selects(summand):
        return float(max(node.size, *(r.source.size for r in summand.reads[1:]), 0))
    cost = COST.get(node.op.value, 1) if isinstance(node.op, Op) else 0
    return float(cost * node.points)


def _selects(node: Node) -> bool:
    return node.operands[0].dtype is DType.BOOL


# ---- and back


def grower(entry: Entry, graph: Graph, steps: Sequence[Step]) -> Callable[[Schedule], Entry]:
    """How an entry follows from a schedule of its steps."""
    given = {*graph.dims, *(n.name for n in (*graph.weights, *graph.states, *entry.inputs))}
    given |= {n.name for n in entry.nodes}
    return lambda schedule: _Grown(entry, steps, schedule, given).entry()


class _Grown:
    """The nodes of an entry in the order of a schedule; those of copies are new ones."""

    def __init__(
        self, entry: Entry, steps: Sequence[Step], schedule: Schedule, given: set[str]
    ) -> None:
        self.before, self.steps, self.schedule = entry, steps, schedule
        self.given, self.used = set(given), set[str]()
        self.nodes = list[Node]()
        self.known = dict[tuple[Node, tuple[Node, ...]], Node]()

    def entry(self) -> Entry:
        made, s = dict[int, Node](), self.schedule
        for run in s.order:
            step = self.steps[s.task[run]]
            read = {self.steps[s.task[r]].node: made[r] for r in s.reads[run]}
            made[run] = self.step(step, read, s.is_copy(run))
        first = {s.node: made[i] for i, s in enumerate(self.steps) if s.write is None}
        written = {s.write: made[i] for i, s in enumerate(self.steps) if s.write is not None}
        updates = tuple(
            Update(u.state, u.index, written[i]) for i, u in enumerate(self.before.updates)
        )
        outputs = tuple((name, first.get(n, n)) for name, n in self.before.outputs)
        return replace(self.before, nodes=tuple(self.nodes), outputs=outputs, updates=updates)

    def step(self, step: Step, read: dict[Node, Node], is_copy: bool) -> Node:
        """The nodes of a step, which read these in place of stored values; what it makes."""
        new = dict(read)
        for n in step.nodes:
            key = n, tuple(new.get(r.source, r.source) for r in n.reads)
            if is_copy or key not in self.known:
                node = self.add(n, new, is_copy)
                if not is_copy:
                    self.known[key] = node
            else:
                node = self.known[key]
            new[n] = node
        return new.get(step.node, step.node)

    def add(self, n: Node, new: dict[Node, Node], is_copy: bool) -> Node:
        name, count = n.name, 1
        while name in (self.given if is_copy or name != n.name else self.used):
            count += 1
            name = f"{n.name}.{count}"
        self.given.add(name)
        self.used.add(name)
        sources = (new.get(r.source, r.source) is r.source for r in n.reads)
        if name != n.name or not all(sources):
            operands = map_indices(n.operands, lambda e: e, lambda e: e, lambda s: new.get(s, s))
            n = replace(n, name=name, operands=operands)
        self.nodes.append(n)
        return n

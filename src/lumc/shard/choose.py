"""How every value is held and every node computed: the choice that is expected to take least.

A variable for each value: the way in which it is computed, and one more form in which it is there
after a collective. A table over it says what that takes; a table over a value and its reader which
choices go together. The least sum is found exactly, over all entries at once, as they share
weights and states. Nothing here knows a layer.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from lumc.graph.graph import Entry, Graph, Node, Update
from lumc.graph.ops import Op
from lumc.shard.cost import Machine, cost, sent
from lumc.shard.eliminate import MOST, Table, least
from lumc.shard.held import WHOLE, Held, block, exchange
from lumc.shard.ways import Way, dealt_update, divides, structure, ways


class Choice(NamedTuple):
    """How a value is computed or, of a leaf, held; and one more way in which it is there then."""

    way: Way
    extra: Held | None = None

    @property
    def there(self) -> tuple[Held, ...]:
        """All ways in which it is there, but for blocks of what is whole."""
        return (self.way.result,) if self.extra is None else (self.way.result, self.extra)

    def gives(self, need: Held) -> bool:
        """Is it there as it is needed, or a rank has but to take its block?"""
        return need in self.there or (need.dim >= 0 and WHOLE in self.there)


class Chosen(NamedTuple):
    """A choice for every value, the seconds expected of all, and how many values were decided
    without a look at the others: with none no other choice is expected to take less."""

    of: Mapping[Node, Choice]
    seconds: float
    pinned: int


def choose(
    graph: Graph,
    machine: Machine,
    whole: Collection[str] = (),
    most: int = MOST,
    common: bool = False,
) -> Chosen:
    """The choice of least cost for the ranks of one axis of a mesh. Every rank has the outputs
    named in ``whole`` whole; others may be in blocks. Tables have at most so many elements. If they
    are ``common``, weights and states are whole on every rank."""
    problem = Problem(graph, machine, whole, common)
    found = least([len(o) for o in problem.options], problem.tables, most)
    of = {n: problem.options[i][found.values[i]] for n, i in problem.place.items()}
    return Chosen(of, found.total, len(found.pinned))


class Problem:
    """The variables and tables of a graph. Equal layers share what is worked out for one."""

    def __init__(
        self, graph: Graph, machine: Machine, whole: Collection[str], common: bool = False
    ) -> None:
        self.machine, self.whole, self.common = machine, frozenset(whole), common
        self.place: dict[Node, int] = {}
        self.options: list[Sequence[Choice]] = []
        self.tables: list[tuple[tuple[int, ...], Table]] = []
        self.ways: dict[Node, Sequence[Way]] = {}
        self.asked: dict[Node, dict[Held, None]] = {}  # how readers may want a value
        self.must: dict[Node, bool] = {}  # outputs; whether they have to be whole
        self._ways: dict[Hashable, Sequence[Way]] = {}
        self._options: dict[Hashable, tuple[Sequence[Choice], Table]] = {}
        self._pairs: dict[Hashable, Table] = {}
        shared = (*graph.weights, *graph.states)
        for entry in graph.entries:
            self.ask(entry)
        self.fused = set().union(*(fused(e) for e in graph.entries)) - self.must.keys()
        for leaf in shared:
            self.variable(leaf)
        for entry in graph.entries:
            for n in (*entry.inputs, *entry.nodes):
                self.variable(n)
            for n in entry.nodes:
                for source in dict.fromkeys(r.source for r in n.reads):
                    self.pair(source, n)
            for u in entry.updates:
                self.update(u)

    # ---- what readers may want

    def ask(self, entry: Entry) -> None:
        for n in entry.nodes:
            key = structure(n)
            if key not in self._ways:
                self._ways[key] = ways(n, self.machine.ranks)
            self.ways[n] = self._ways[key]
            for way in self.ways[n]:
                for read, need in zip(n.reads, way.needs, strict=True):
                    self.asked.setdefault(read.source, {})[need] = None
        for u in entry.updates:
            self.asked.setdefault(u.value, {})[WHOLE] = None
            for i, held in homes(u, self.machine.ranks):
                self.asked.setdefault(u.state, {})[held] = None
                self.asked[u.value][block(i)] = None
        for name, value in entry.outputs:
            self.must[value] = self.must.get(value, False) or name in self.whole
            asked = self.asked.setdefault(value, {})
            asked[WHOLE] = None
            for d in range(len(value.shape)):
                if divides(value.shape[d], self.machine.ranks):
                    asked[block(d)] = None

    # ---- variables

    def variable(self, n: Node) -> None:
        """A value as a variable: its choices, and what they take."""
        asked = frozenset(self.asked.get(n, {}))
        inner = any(r.source in self.fused for r in n.reads)
        key = structure(n), asked, n in self.fused, inner, self.must.get(n)
        if key not in self._options:
            costs = dict[Choice, float](self.weighed(n, inner))
            self._options[key] = tuple(costs), np.array([*costs.values()])
        options, table = self._options[key]
        self.place[n] = len(self.options)
        self.options.append(options)
        self.tables.append(((self.place[n],), table))

    def weighed(self, n: Node, inner: bool) -> Iterator[tuple[Choice, float]]:
        """The choices of a value, in seconds. Of those that need and give the same the first one of
        least cost is left."""
        best: dict[Hashable, tuple[float, Choice]] = {}
        for way in self.ways[n] if n in self.ways else self.leaf_ways(n):
            own = cost(n, way.result, bool(way.axis), n in self.fused, inner, self.machine)
            for extra in self.extras(n, way.result):
                choice = Choice(way, extra)
                if self.must.get(n) and WHOLE not in choice.there:
                    continue
                if n in self.must and all(h.op for h in choice.there):
                    continue
                seconds = own + sent(n, way.result, extra, self.machine)
                key = way.result, way.needs, extra
                if seconds < best.get(key, (inf, None))[0]:
                    best[key] = seconds, choice
        return ((choice, seconds) for seconds, choice in best.values())

    def extras(self, n: Node, have: Held) -> list[Held | None]:
        """In which other ways a value may be there. Of products that sums take up as they are made
        nothing is stored, and of what is whole blocks are there."""
        asked = self.asked.get(n, {})
        if n in self.fused or have == WHOLE:
            return [None]
        made = [h for h in sorted(asked, key=str) if exchange(have, h, "", self.machine.ranks)]
        return [None, *made]

    def leaf_ways(self, n: Node) -> list[Way]:
        if self.common and n.op != "input":
            return [Way("", WHOLE, ())]
        asked = sorted(self.asked.get(n, {}), key=str)
        dims = [h for h in asked if h.dim >= 0 and divides(n.shape[h.dim], self.machine.ranks)]
        return [Way("", held, ()) for held in (WHOLE, *dims)]

    # ---- what goes together

    def both(self, a: Node, b: Node, table: Table) -> None:
        """A table over two values, which may be one."""
        if a is b:
            self.tables.append(((self.place[a],), table.diagonal()))
        else:
            self.tables.append(((self.place[a], self.place[b]), table))

    def pair(self, source: Node, reader: Node) -> None:
        """What a reader needs of a value has to be there; an update is in the memory of what was
        there before."""
        ends = self.place[source], self.place[reader]
        reads = tuple(i for i, r in enumerate(reader.reads) if r.source is source)
        key = *(id(self.options[i]) for i in ends), reads, structure(source)
        if key not in self._pairs:
            first, second = (self.options[i] for i in ends)
            rows = [[self.fit(source, c, reader, r.way, reads) for r in second] for c in first]
            self._pairs[key] = np.array(rows)
        self.both(source, reader, self._pairs[key])

    def fit(self, n: Node, choice: Choice, reader: Node, way: Way, reads: Sequence[int]) -> float:
        seconds = 0.0
        for i in reads:
            if reader.op == "update" and i == 0:
                seconds += 0.0 if way.needs[i] == choice.way.result else inf
            else:
                seconds += self.given(n, choice, way.needs[i])
        return seconds

    def given(self, n: Node, choice: Choice, need: Held) -> float:
        """The seconds until a value is there as it is needed."""
        if need in choice.there:
            return 0.0
        return sent(n, WHOLE, need, self.machine) if choice.gives(need) else inf

    def update(self, u: Update) -> None:
        """What is written to a state is there as the state is held."""
        found = homes(u, self.machine.ranks)
        states, values = (self.options[self.place[n]] for n in (u.state, u.value))
        rows = [
            [
                min(
                    [self.given(u.value, v, need) for need in wanted(found, s.way.result)],
                    default=inf,
                )
                for v in values
            ]
            for s in states
        ]
        self.both(u.state, u.value, np.array(rows))


def homes(u: Update, ranks: int) -> list[tuple[int, Held]]:
    """Dims of a value whose blocks go to blocks of the state, and how that is held."""
    every = ((i, dealt_update(u, i, ranks)) for i in range(len(u.value.axes)))
    return [(i, held) for i, held in every if held]


def wanted(found: Sequence[tuple[int, Held]], state: Held) -> list[Held]:
    """How the value of an update may be there for a state that is held so."""
    return [WHOLE] if state == WHOLE else [block(i) for i, held in found if held == state]


def fused(entry: Entry) -> set[Node]:
    """Products, and sums of them, that only sums read: nothing of them is stored."""
    readers: dict[Node, list[Node]] = {}
    for n in entry.nodes:
        for r in n.reads:
            readers.setdefault(r.source, []).append(n)
    kept = {u.value for u in entry.updates}
    every = (n for n in entry.nodes if n.op in (Op.MUL, Op.SUM) and n in readers and n not in kept)
    return {n for n in every if all(r.op is Op.SUM for r in readers[n])}

"""What a step of a graph takes, weight by weight: products, memory, what travels, what is kept.

Micro-batches are ranks of an axis in time: nothing goes from one to another but sums, which
accumulate. So the same pass finds what one row of a batch is, which sums over rows there are (the
gradients), and what is left for the end of a step (the update). Every number here is of one row, or
of none: rows of a micro-batch multiply the first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lumc.graph.collective import Collective
from lumc.graph.graph import Entry, Graph, Node, reachable
from lumc.graph.ops import DType, Op
from lumc.shard.batches import InTime
from lumc.shard.choose import choose, fused
from lumc.shard.cost import Machine
from lumc.shard.devices import INSIDE, Device
from lumc.shard.emit import emit
from lumc.shard.placing import numbered, placed

Floats = npt.NDArray[np.float64]
ROWS, TENSOR = "rows", "tp"  # axes of the meshes here
FORWARD, BACKWARD = 0, 1


@dataclass(frozen=True)
class Together(Machine):
    """Ranks that split the tensors of a row; what accumulates over rows is added in memory."""

    def sending(self, op: Collective, nbytes: float) -> float:
        if op.mesh == ROWS:
            return 3 * self.streaming(nbytes)
        return super().sending(op, nbytes)


class Rows(NamedTuple):
    """A graph for one row of its batch, and how many there are."""

    graph: Graph
    number: int


def rows_of(graph: Graph) -> Rows:
    """The rows of the batch: of the first axes of inputs the one along which most products are
    dealt. A graph of which none can be dealt is one row."""
    entry = graph.entries[0]
    sizes = sorted({e for n in entry.inputs for e in n.shape[:1] if isinstance(e, int) and e > 1})
    best, found = 0.5, Rows(graph, 1)
    for size in sizes:
        chosen = choose(graph, InTime(size), common=True)
        made = emit(graph, chosen.of, ROWS, size)
        mine = of_rows(made.entries[0])
        every = [(k.node in mine, k.points) for k in products(made.entries[0])]
        share = sum(p for own, p in every if own) / max(sum(p for _, p in every), 1)
        if share > best:
            best, found = share, Rows(made, size)
    return found


def of_rows(entry: Entry) -> set[Node]:
    """The nodes of which every row has its own: those before sums over rows."""
    found = {n for n in entry.inputs if any(p.mesh == ROWS for p in n.parts)}
    for n in entry.nodes:
        ends = isinstance(n.op, Collective) and n.op.mesh == ROWS
        if not ends and any(r.source in found for r in n.reads):
            found.add(n)
    return found


def learned(entry: Entry) -> dict[Node, Node]:
    """Which sums over rows change which states: those of as many elements that the new value is
    made of without a detour through other sizes, such as a norm of them all."""
    out = dict[Node, Node]()
    for u in entry.writes:
        for n in _alike(u.value, u.state.size):
            if isinstance(n.op, Collective) and n.op.mesh == ROWS:
                out.setdefault(n.reads[0].source, u.state)
    return out


def _alike(value: Node, size: int) -> set[Node]:
    """What a value is made of by nodes of so many elements."""

    def below(n: Node) -> list[Node]:
        return [r.source for r in n.reads if r.source.size == size]

    return reachable([value] if value.size == size else [], below)


# ---- products


class Product(NamedTuple):
    """A sum of products, one factor of which is read again and again; and what it reads."""

    node: Node
    points: int
    operands: tuple[Node, ...]


def products(entry: Entry) -> Iterator[Product]:
    """The sums of products. Selects are none, nor are sums of a product of equals."""
    inner = fused(entry)
    for n in entry.nodes:
        if n.op is not Op.SUM:
            continue
        source = n.reads[0].source
        while source.op is Op.CONTIGUOUS and source.reads and source.reads[0].source in inner:
            source = source.reads[0].source
        if source.op is not Op.MUL or len(source.reads) < 2:
            continue
        operands = tuple(r.source for r in source.reads)
        again = min(o.size for o in operands) < source.points
        if again and all(o.dtype is not DType.BOOL for o in operands):
            yield Product(n, source.points, operands)


# ---- what ranks do


@dataclass(frozen=True)
class Work:
    """What one of ``tp`` devices does of a step. Arrays have an element for every weight of the
    pipeline, in order, most for each direction: (2, weights) is forward, backward."""

    tp: int
    rows: int  # of a step, of all devices
    names: tuple[str, ...]  # of weights
    at: npt.NDArray[np.int64]  # of every product: the weight
    way: npt.NDArray[np.int64]  # its direction
    points: Floats  # its products, for a row
    fixed: Floats  # bytes that it takes for any number of rows
    moved: Floats  # bytes for each
    waits: Floats  # (2, weights): seconds of collectives, for any number of rows
    sends: Floats  # (2, weights): seconds for each
    passes: Floats  # (2, weights + 1): bytes of a row between a weight and the one before
    kept: Floats  # bytes of a row from forward to backward
    held: Floats  # bytes of weights and states that rows read
    sums: Floats  # bytes that accumulate over rows, and travel between replicas
    only: Floats  # bytes of states that only the end of a step reads
    flops: float  # of a row, of all tp devices, forward and backward


def work(rows: Rows, tp: int, device: Device, price: float, halves: bool) -> Work:
    """What each of so many devices does; ``price`` is that of a byte held, in seconds. With
    ``halves`` what is neither a state nor a sum over rows has 16 bits."""
    graph = rows.graph
    machine = Together(tp, device.products, device.stream, device.inside, INSIDE, price)
    own = graph
    if tp > 1:
        own = emit(graph, choose(graph, machine).of, TENSOR, tp)
    return _Count(graph, own, machine, rows.number, halves).work()


class _Count:
    """The numbers of a graph: ``graph`` for a row, ``own`` what a rank has of it."""

    def __init__(self, graph: Graph, own: Graph, machine: Machine, rows: int, halves: bool) -> None:
        self.graph, self.own, self.machine = graph, own, machine
        self.rows, self.halves = rows, halves
        self.entry = own.entries[0]
        self.mine = of_rows(self.entry) if rows > 1 else set(self.entry.nodes)
        early = reachable(self.mine, lambda n: [r.source for r in n.reads])
        self.ends = set(self.entry.nodes) - early
        self.at = self.places()
        shared = {n.name: i for n, i in self.weights.items()}
        self.count = max(shared.values(), default=0) + 1
        first = dict[int, str]()
        for name, i in shared.items():
            first.setdefault(i, name)
        self.names = tuple(first.get(i, "all") for i in range(self.count))
        self.forward = self.goes_forward()

    def goes_forward(self) -> set[Node]:
        """Nodes of the forward pass: what outputs are made of. Where nothing is summed over rows
        all are; where outputs tell nothing, those that need nothing that is further on."""
        if not any(n.op.mesh == ROWS for n in self.entry.nodes if isinstance(n.op, Collective)):
            return set(self.entry.nodes)
        outputs = [n for _, n in self.entry.outputs]
        ahead = reachable(outputs, lambda n: [r.source for r in n.reads])
        if not self.mine.isdisjoint(ahead) and not self.mine <= ahead:
            return ahead
        deepest, found = dict[Node, int](), set[Node]()
        for n in self.entry.nodes:
            own = self.at.get(n, 0)
            deepest[n] = max([own, *(deepest[r.source] for r in n.reads if r.source in deepest)])
            if deepest[n] == own:
                found.add(n)
        return found

    def places(self) -> dict[Node, int]:
        """The weight at which every node is. What a rank has besides is where its source is; the
        end of a step where the largest sum over rows is that it reads, and its states there."""
        whole = self.graph.entries[0]
        late = {n.name for n in self.ends}
        early = [n for n in whole.nodes if n.name not in late]
        numbers = numbered(early, {*self.graph.weights, *self.graph.states})
        pins = {n: numbers[s] for n, s in learned(whole).items() if s in numbers}
        named = {n.name: i for n, i in placed(early, numbers, pins).items()}
        named |= {n.name: i for n, i in numbers.items()}
        out = {n: named[n.name] for n in self.leaves if n.name in named}
        self.weights, known = dict(out), {n.name for n in whole.nodes}
        for n in self.entry.nodes:
            sources = [r.source for r in n.reads if r.source in out]
            if n.name in named:
                out[n] = named[n.name]
            elif sources and (n in self.ends or n.name not in known):
                out[n] = out[max(sources, key=lambda s: s.size)]
        for u in self.entry.writes:
            if u.value in out:
                out.setdefault(u.state, out[u.value])
        return out

    @property
    def leaves(self) -> Sequence[Node]:
        return (*self.own.weights, *self.own.states)

    def read(self, n: Node) -> float:
        """The bytes of what a product reads or makes: of weights their copies in 16 bits."""
        wide = n.dtype is DType.F32 and self.halves
        return float(n.size * n.dtype.nbytes) / (2 if wide else 1)

    def way(self, n: Node) -> int:
        return FORWARD if n in self.forward else BACKWARD

    def work(self) -> Work:
        found = [p for p in products(self.entry) if p.node not in self.ends]
        sums, stored = self.summed(), dict[Node, None]()  # what begins or ends a product, of a row
        fixed, moved = np.zeros(len(found)), np.zeros(len(found))
        for i, p in enumerate(found):
            for o in dict.fromkeys(p.operands):
                if o in self.mine:
                    new = o.op is not Op.SUM and o not in stored and not o.is_leaf
                    moved[i] += self.read(o) * (2 if new else 1)
                    stored[o] = None
                else:
                    fixed[i] += self.read(o)
            if p.node in sums:  # read, added to, and written
                fixed[i] += 2.0 * p.node.size * p.node.dtype.nbytes
            elif p.node in self.mine:
                moved[i] += 2 * self.read(p.node)
                stored[p.node] = None
        waits, sends = self.collectives()
        tp = self.machine.ranks
        return Work(
            tp,
            self.rows,
            self.names,
            np.array([self.at.get(p.node, 0) for p in found], np.int64),
            np.array([self.way(p.node) for p in found], np.int64),
            np.array([float(p.points) for p in found]),
            fixed,
            moved,
            waits,
            sends,
            self.passes(),
            self.kept(stored),
            *self.memory(),
            2.0 * sum(p.points for p in products(self.graph.entries[0]) if self.is_early(p.node)),
        )

    def summed(self) -> set[Node]:
        """What is added up over rows, as products make it."""

        def below(n: Node) -> list[Node]:
            passed = isinstance(n.op, Collective) or n.op is Op.CONTIGUOUS
            return [r.source for r in n.reads if passed and r.source in self.mine]

        ends = (n for n in self.entry.nodes if isinstance(n.op, Collective) and n.op.mesh == ROWS)
        return reachable([r.source for n in ends for r in n.reads], below)

    def is_early(self, n: Node) -> bool:
        return n.name not in {e.name for e in self.ends}

    def by_weight(self, values: Mapping[Node, float]) -> Floats:
        out = np.zeros(self.count)
        for n, value in values.items():
            out[self.at.get(n, 0)] += value
        return out

    def kept(self, stored: Collection[Node]) -> Floats:
        """What the backward pass needs of the forward pass: what it reads, or what that is made of
        where it is not stored."""
        back = (n for n in self.entry.nodes if n not in self.forward)
        starts = {r.source for n in back for r in n.reads} & self.forward & self.mine

        def below(n: Node) -> list[Node]:
            return [] if n in stored else [r.source for r in n.reads if r.source in self.mine]

        needed = reachable(starts, below) & self.forward
        return self.by_weight({n: self.read(n) for n in stored if n in needed})

    def collectives(self) -> tuple[Floats, Floats]:
        """The seconds of collectives among tensor ranks: of each, and of each row."""
        waits, sends = np.zeros((2, self.count)), np.zeros((2, self.count))
        for n in self.entry.nodes:
            if n in self.ends or not isinstance(n.op, Collective) or n.op.mesh != TENSOR:
                continue
            nbytes = max(self.read(n), self.read(n.reads[0].source))
            at = self.way(n), self.at.get(n, 0)
            alone = self.machine.sending(n.op, 0.0)
            waits[at] += alone
            (sends if n in self.mine else waits)[at] += self.machine.sending(n.op, nbytes) - alone
        return waits, sends

    def passes(self) -> Floats:
        """The bytes of a row that go from weight to weight: forward those to later ones, backward
        those to earlier ones, each value once."""
        lowest, highest = dict[Node, int](), dict[Node, int]()
        for n in self.entry.nodes:
            if n in self.ends or n not in self.at:
                continue
            for source in (r.source for r in n.reads if r.source in self.at):
                own = self.at[source]
                lowest[source] = min(lowest.get(source, own), self.at[n])
                highest[source] = max(highest.get(source, own), self.at[n])
        out = np.zeros((2, self.count + 1))
        for n, end in highest.items():
            own = self.at[n]
            nbytes = self.read(n) if n in self.mine else 0.0
            out[FORWARD, own + 1 : end + 1] += nbytes
            out[BACKWARD, lowest[n] + 1 : own + 1] += nbytes
        return out

    def memory(self) -> tuple[Floats, Floats, Floats]:
        """What is held, what accumulates, and the states of the end of a step alone."""
        early = {r.source.home for n in self.entry.nodes if n not in self.ends for r in n.reads}
        held = {n: float(n.size * n.dtype.nbytes) for n in self.leaves if n in early}
        if self.halves:  # states, and the copies of them that products read
            trained = {u.state for u in self.entry.writes}
            held = {n: b * (1.5 if n in trained else 0.5) for n, b in held.items()}
        only = {n: float(n.size * n.dtype.nbytes) for n in self.leaves if n not in early}
        sums = {
            n: float(n.size * n.dtype.nbytes)
            for n in self.entry.nodes
            if isinstance(n.op, Collective) and n.op.mesh == ROWS
        }
        return self.by_weight(held), self.by_weight(sums), self.by_weight(only)

"""The graph that every rank runs, of one graph and a choice for every value."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from lumc.graph.builder import Builder
from lumc.graph.collective import Collective, Part
from lumc.graph.dim import Extent
from lumc.graph.expr import axis
from lumc.graph.graph import Entry, Graph, Node, Operand, Read, Update
from lumc.graph.ops import DType, Op
from lumc.shard.choose import Choice, homes, wanted
from lumc.shard.held import WHOLE, Held, exchange, travelling
from lumc.shard.ways import dealt

LONG = 900  # characters of a name to which more is added


def emit(
    graph: Graph,
    chosen: Mapping[Node, Choice],
    mesh: str,
    ranks: int,
    whole: Collection[str] = (),
    in_time: bool = False,
) -> Graph:
    """What each of the ranks along a new axis of the mesh runs, which may be in time. Outputs named
    in ``whole`` are whole on every rank. Raises E0101 (the mesh has too many axes or ranks)."""
    writer = Writer(graph, chosen, mesh, ranks, in_time)
    for leaf in (*graph.weights, *graph.states):
        writer.leaf(leaf)
    for entry in graph.entries:
        writer.entry(entry, whole)
    return writer.b.graph()


def fresh(n: Node, what: str, names: set[str]) -> str:
    """A name that no node has, added to those that are taken: ``h.all_gather``."""
    stem = name = f"{n.name[:LONG]}.{what}"
    count = 1
    while name in names:
        count += 1
        name = f"{stem}{count}"
    names.add(name)
    return name


class Writer:
    """A graph being written; ``made`` has the nodes of a rank, by value and how it is held."""

    def __init__(
        self, graph: Graph, chosen: Mapping[Node, Choice], mesh: str, ranks: int, in_time: bool
    ) -> None:
        self.chosen, self.mesh, self.ranks = chosen, mesh, ranks
        self.b = Builder(dict(graph.dims), dict(graph.tuned))
        self.b.mesh_of(graph)
        self.b.tokenizer = graph.tokenizer
        self.b.mesh_axis(mesh, ranks, in_time)
        self.made: dict[tuple[Node, Held], Node] = {}
        every = [n for e in graph.entries for n in (*e.inputs, *e.nodes)]
        self.names = {n.name for n in (*graph.weights, *graph.states, *every)} | {*graph.dims}

    def parts(self, held: Held) -> tuple[Part, ...]:
        return (Part(held.dim, self.mesh, self.ranks),) if held.dim >= 0 else ()

    def leaf(self, n: Node) -> None:
        held = self.chosen[n].way.result
        shape = [self.own(e, d == held.dim) for d, e in enumerate(n.shape)]
        self.b.origin, parts = n.origin, (*n.parts, *self.parts(held))
        made = n.dtype, shape, n.file, n.key, n.values, n.how, parts, n.stage
        self.made[n, held] = self.b.leaf(str(n.op), n.name, *made)

    def own(self, extent: Extent, is_cut: bool) -> Extent:
        """An extent as a rank has it."""
        return extent // self.ranks if is_cut and isinstance(extent, int) else extent

    def entry(self, entry: Entry, whole: Collection[str]) -> None:
        kept = dict(self.made)
        for n in entry.inputs:
            self.leaf(n)
        for n in entry.nodes:
            self.b.origin = n.origin
            self.node(n)
        self.b.origin = ""
        for name, value in entry.outputs:
            held = self.ending(value, name in whole)
            self.b.outputs.append((name, self.version(value, held)))
            if parts := (*entry.parts.get(name, ()), *self.parts(held)):
                self.b.parts[name] = parts
        for u in entry.updates:
            self.update(u)
        self.b.finish(entry.name, repeat=entry.repeat)
        self.made = kept

    def ending(self, value: Node, whole: bool) -> Held:
        """How an output is left: as it is computed, if that is not partial."""
        there = self.chosen[value].there
        return WHOLE if whole else next(h for h in there if not h.op)

    # ---- nodes

    def node(self, n: Node) -> None:
        way = self.chosen[n].way
        reads = iter(zip(n.reads, way.needs, strict=True))
        if n.op == "update":
            value = self.version(n.reads[1].source, way.needs[1])
            state = self.made[n.home, way.result]
            self.made[n, way.result] = self.b.updated(Update(state, n.at, value), n.name)
            return
        loops = [(a, self.own(e, a == way.axis)) for a, e in n.loops]
        if isinstance(n.op, Collective):
            source = self.version(n.reads[0].source, way.needs[0])
            read = Read(source, n.reads[0].index)
            made = self.b.collective(n.op, read, loops, source.dtype, n.name)
            self.made[n, way.result] = made
            return
        assert isinstance(n.op, Op)
        operands = list(n.operands)
        if way.axis:
            found = dealt(n, way.axis, self.ranks)
            assert found is not None
            operands = found[1]
        for i, o in enumerate(operands):
            if isinstance(o, Read):
                read, need = next(reads)
                operands[i] = Read(self.version(read.source, need), o.index, o.bounds)
        dtype = travelling(n.dtype, way.result)
        if dtype is not n.dtype:
            operands = [self.widened(n, operands[0], loops, dtype)]
        over = loops.pop() if n.reduced else None
        cast = dtype if n.op is Op.CONTIGUOUS else None
        self.made[n, way.result] = self.b.node(n.op, operands, loops, over, cast, n.name)

    def widened(
        self, n: Node, o: Operand, loops: list[tuple[str, Extent]], dtype: DType
    ) -> Operand:
        """What is summed, as the dtype in which partial sums travel."""
        name = self.named(n, "terms")
        made = self.b.node(Op.CONTIGUOUS, [o], loops, None, dtype, name)
        return Read(made, tuple(axis(a) for a, _ in loops))

    def version(self, n: Node, want: Held) -> Node:
        """A value as it is wanted: as it was made, or after a collective."""
        if (n, want) not in self.made:
            way = self.chosen[n].way
            have = way.result if want in self.chosen[n].there else WHOLE
            source = self.version(n, have)
            op = exchange(have, want, self.mesh, self.ranks)
            assert op is not None
            name = self.named(n, op.kind.value)
            shape = zip(source.axes, op.shape(source.shape), strict=True)
            read = Read(source, tuple(map(axis, source.axes)))
            made = self.b.collective(op, read, [*shape], source.dtype, name)
            if made.dtype is not n.dtype:
                read = Read(made, tuple(map(axis, made.axes)))
                loops, name = [*made.loops], self.named(n, n.dtype.value)
                made = self.b.node(Op.CONTIGUOUS, [read], loops, None, n.dtype, name)
            self.made[n, want] = made
        return self.made[n, want]

    def named(self, n: Node, what: str) -> str:
        return fresh(n, what, self.names)

    # ---- states

    def update(self, u: Update) -> None:
        state = self.chosen[u.state].way.result
        there = self.chosen[u.value]
        needs = [h for h in wanted(homes(u, self.ranks), state) if there.gives(h)]
        need = min(needs, key=lambda h: h not in there.there)
        value = self.version(u.value, need)
        self.b.updates.append(Update(self.made[u.state, state], u.index, value))

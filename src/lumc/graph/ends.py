"""Graphs of ranks whose callers see whole tensors.

What a rank has of an input, it takes of the whole one; what ranks have of an output, they put
together, and what one stage has of it, it sends to all. So every rank of a run is given the same
inputs, and leaves the same outputs.
"""

from __future__ import annotations

from collections.abc import Sequence

from lumc.graph.bind import Binding
from lumc.graph.collective import Collective, Kind, Part
from lumc.graph.expr import axis
from lumc.graph.graph import Entry, Graph, Node, Read
from lumc.graph.stages import axis_of_stages, stages_of


def with_whole_ends(graph: Graph) -> Graph:
    """The graph with whole inputs and outputs; states and weights stay in parts. The same graph
    where nothing is in parts. Raises E0101 (stages that do not fit)."""
    entries = graph.entries
    if not any(e.parts or any(n.parts for n in e.inputs) or _left_by_stages(e) for e in entries):
        return graph
    copy = _Ends(graph.dims, {})
    copy.graph = graph
    copy.b.tokenizer = graph.tokenizer
    copy.b.mesh_of(graph)
    copy.b.tuned = dict(graph.tuned)
    for n in (*graph.weights, *graph.states):
        copy.leaf(n)
    for entry in entries:
        copy.whole_entry(entry)
    return copy.b.graph()


def _left_by_stages(entry: Entry) -> bool:
    stages = stages_of(entry)
    return any(n in stages for _, n in entry.outputs)


class _Ends(Binding):
    """A copy in which parts of inputs and outputs are nodes."""

    graph: Graph
    taken: set[str]

    def whole_entry(self, entry: Entry) -> None:
        """A copy of an entry without buckets, of leaves that were copied before."""
        b = self.b
        every = (*b.weights, *b.states, *entry.inputs, *entry.nodes)
        self.taken = {n.name for n in every} | {*b.dims}
        for n in entry.inputs:
            self.leaf(n.whole)
            self.made[n] = self.cut(b.inputs[-1], n.parts)
        for n in entry.nodes:
            self.node(n)
        b.origin = ""
        stages, mesh = stages_of(entry), axis_of_stages(self.graph)
        for name, n in entry.outputs:
            value = self.joined(self.made[n], entry.parts.get(name, ()))
            if n in stages:
                op = Collective(Kind.BROADCAST, mesh, b.mesh[mesh], source=stages[n])
                value = self.exchanged(value, op)
            b.outputs.append((name, value))
        b.updates = self.updates(entry)
        b.finish(entry.name, repeat=entry.repeat)

    def cut(self, n: Node, parts: Sequence[Part]) -> Node:
        """What of a whole value a rank has."""
        for p in parts:
            n = self.exchanged(n, Collective(Kind.ALL_SLICE, p.mesh, p.ranks, split=p.dim))
        return n

    def joined(self, n: Node, parts: Sequence[Part]) -> Node:
        """The whole value; what was cut last is joined first."""
        for p in reversed(parts):
            n = self.exchanged(n, Collective(Kind.ALL_GATHER, p.mesh, p.ranks, concat=p.dim))
        return n

    def exchanged(self, n: Node, op: Collective) -> Node:
        name, count = f"{n.name}.{op.kind.value}", 1
        while name in self.taken:
            count += 1
            name = f"{n.name}.{op.kind.value}{count}"
        self.taken.add(name)
        read = Read(n, tuple(map(axis, n.axes)))
        axes = [*zip(n.axes, op.shape(n.shape), strict=True)]
        return self.b.collective(op, read, axes, n.dtype, name)

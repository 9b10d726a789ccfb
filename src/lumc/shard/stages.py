"""A graph in stages: the ranks along one axis of a mesh have weights, one run of them each.

Weights are numbered as they are first read, and everything is computed at a weight (``placing``).
Of all cuts between weights the one is taken whose greatest stage takes least (``pipeline``). What a
stage needs of another is sent to it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from lumc.errors import Exit, LumcError
from lumc.graph.bind import Binding
from lumc.graph.collective import Collective, Kind, Stage
from lumc.graph.expr import axis
from lumc.graph.graph import Entry, Graph, Node, Read, Update
from lumc.shard.choose import fused
from lumc.shard.cost import Machine, cost
from lumc.shard.emit import fresh
from lumc.shard.held import WHOLE
from lumc.shard.pipeline import cut
from lumc.shard.placing import numbered, placed
from lumc.shard.work import Floats

STAGES = "pp"  # the axis of a mesh whose ranks are stages


class Staged(NamedTuple):
    """The graph of all stages, and the seconds of the greatest one."""

    graph: Graph
    seconds: float


def in_stages(graph: Graph, machine: Machine, mesh: str = STAGES) -> Staged:
    """What the stages along a new axis of the mesh run, as many as the machine has ranks. Raises
    E0143 (fewer weights than stages) and E0101 (the mesh has too many axes or ranks)."""
    shared = (*graph.weights, *graph.states)
    nodes = [n for e in graph.entries for n in e.nodes]
    numbers = numbered(nodes, set(shared))
    count = max(numbers.values(), default=-1) + 1
    if count < machine.ranks:
        what = f"{machine.ranks} stages of {count} weights that can be apart: each needs one"
        raise LumcError("E0143", what, fix=f"at most {mesh}={count}", exit=Exit.UNSUPPORTED)
    written = {u.value: u.state for e in graph.entries for u in e.writes}
    pins = {v: numbers[s] for v, s in written.items() if s in numbers and not v.is_leaf}
    at = placed(nodes, numbers, pins)
    every = cut(*weighed(graph, numbers, at, machine), machine.ranks)[-1]
    stage = {n: bisect_right(every.cuts, i) - 1 for n, i in {**numbers, **at}.items()}
    for value, state in written.items():  # that nobody reads: it is where its values come from
        if value in stage:
            stage.setdefault(state, stage[value])
    return Staged(Writer(graph, mesh, machine.ranks, stage).written(), every.seconds)


def weighed(
    graph: Graph, numbers: Mapping[Node, int], at: Mapping[Node, int], machine: Machine
) -> tuple[Floats, Floats, Floats]:
    """The seconds of every weight, with what is computed at it and the price of holding it; and
    those of what a stage gets that begins at a weight, and of what one sends that ends before it.
    """
    count = max(numbers.values()) + 1
    own, passes = np.zeros(count), np.zeros(count + 1)
    for leaf, i in numbers.items():
        own[i] += cost(leaf, WHOLE, False, False, False, machine)
    for entry in graph.entries:
        inner, last = fused(entry), dict[Node, tuple[int, int]]()
        for n in entry.nodes:
            if n not in at:
                continue
            below = any(r.source in inner for r in n.reads)
            own[at[n]] += cost(n, WHOLE, False, n in inner, below, machine)
            for source in (r.source for r in n.reads if r.source in at):
                lo, hi = last.get(source, (at[source], at[source]))
                last[source] = min(lo, at[n]), max(hi, at[n])
        for source, (lo, hi) in last.items():
            op = Collective(Kind.SEND, "", machine.ranks, source=0, target=1)
            passes[lo + 1 : hi + 1] += machine.sending(op, source.size * source.dtype.nbytes)
    return own, passes, passes


class Writer(Binding):
    """A copy in which leaves have stages, and what a stage needs of another is sent to it."""

    def __init__(self, graph: Graph, mesh: str, ranks: int, stage: Mapping[Node, int]) -> None:
        Binding.__init__(self, graph.dims, {})
        self.graph, self.mesh, self.ranks, self.stage = graph, mesh, ranks, stage
        self.b.tokenizer = graph.tokenizer
        self.b.mesh_of(graph)
        self.b.tuned = dict(graph.tuned)
        self.b.mesh_axis(mesh, ranks)
        every = [n for e in graph.entries for n in (*e.inputs, *e.nodes)]
        self.names = {n.name for n in (*graph.weights, *graph.states, *every)} | {*graph.dims}
        self.sent = dict[tuple[Node, int], Node]()

    def written(self) -> Graph:
        for leaf in (*self.graph.weights, *self.graph.states):
            self.leaf(leaf)
        for entry in self.graph.entries:
            self.sent.clear()
            self.entry(entry, entry.name)
        return self.b.graph()

    def leaf(self, n: Node) -> None:
        at = self.stage.get(n)
        copy = n if at is None else replace(n, stage=Stage(at, self.mesh, self.ranks))
        Binding.leaf(self, copy)
        self.made[n] = self.made[copy]

    def node(self, n: Node) -> None:
        """A copy of what is read where it is, or was sent to."""
        kept = {r.source: self.made[r.source] for r in n.reads}
        if n in self.stage and n.op != "update":
            self.made |= {s: self.there(s, self.stage[n]) for s in kept}
        elif n.op == "update":
            value = n.reads[1].source
            self.made[value] = self.there(value, self.stage[n])
        Binding.node(self, n)
        self.made |= kept

    def updates(self, entry: Entry) -> list[Update]:
        out = list[Update]()
        for u in entry.updates:
            value = self.made[u.value]
            if u.state in self.stage:
                value = self.there(u.value, self.stage[u.state])
            out.append(Update(self.made[u.state], u.index, value))
        return out

    def there(self, n: Node, stage: int) -> Node:
        """A value on a stage: where it was made, or sent."""
        own = self.stage.get(n)
        if own is None or own == stage:
            return self.made[n]
        if (n, stage) not in self.sent:
            source = self.made[n]
            op = Collective(Kind.SEND, self.mesh, self.ranks, source=own, target=stage)
            read = Read(source, tuple(map(axis, source.axes)))
            name = fresh(n, op.kind.value, self.names)
            self.b.origin = n.origin
            axes = [*zip(source.axes, source.shape, strict=True)]
            made = self.b.collective(op, read, axes, source.dtype, name)
            self.sent[n, stage] = made
        return self.sent[n, stage]

"""Building a graph: every node is checked as it is made."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from lumc.graph.collective import Collective, Part, Stage
from lumc.graph.dim import Dim, Extent, dim_ranges, extent
from lumc.graph.expr import simplify
from lumc.graph.graph import (
    Derivation,
    Entry,
    Graph,
    Node,
    Operand,
    Read,
    Update,
    WeightFile,
    fail,
    map_indices,
)
from lumc.graph.index import loop_ranges
from lumc.graph.ops import DType, Op
from lumc.graph.ranks import check_mesh
from lumc.graph.update import definition
from lumc.graph.verify import check_dim, check_node, check_repeat, check_update, result_dtype

MAX_BUCKETS = 64  # of an entry
NO_DIMS: Mapping[str, Dim] = MappingProxyType({})


@dataclass
class Builder:
    """Collects nodes into a graph; every node is checked against its operands as it is made.

    ``dims``, ``weights`` and ``states`` are shared by all entries; ``inputs``, ``nodes``,
    ``outputs`` and ``updates`` are those of the entry that is not closed yet.
    """

    dims: dict[str, Dim] = field(default_factory=dict)
    tuned: dict[str, tuple[int, ...]] = field(default_factory=dict)
    weights: list[Node] = field(default_factory=list)
    states: list[Node] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    inputs: list[Node] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    outputs: list[tuple[str, Node]] = field(default_factory=list)
    updates: list[Update] = field(default_factory=list)
    parts: dict[str, tuple[Part, ...]] = field(default_factory=dict)  # of outputs, by name
    origin: str = ""  # attached to the nodes that follow
    tokenizer: WeightFile | None = None
    mesh: dict[str, int] = field(default_factory=dict)
    time: str = ""  # the axis of the mesh that is in time
    _names: set[str] = field(default_factory=set)

    def fresh(self, stem: str = "t") -> str:
        """A name that no node has yet: t0, t1, .."""
        i = len(self.nodes)
        while f"{stem}{i}" in self._names:
            i += 1
        return f"{stem}{i}"

    def _add(self, node: Node, kind: list[Node]) -> Node:
        if node.name in self._names or node.name in self.dims:
            fail(node, f"the name '{node.name}' is used twice")
        self._names.add(node.name)
        kind.append(node)
        return node

    def dim(self, name: str, lo: int, hi: int, multiple: int = 1) -> Dim:
        """Declare a symbolic dim with inclusive bounds; asking again for an equal one is fine.
        Raises E0101 (impossible bounds, or a name that means something else)."""
        new = Dim(name, lo, hi, multiple)
        check_dim(new)
        if self.dims.get(name, new) != new or name in self._names:
            fail(name, f"dim {name} in {lo}..{hi} contradicts an earlier declaration")
        self.dims[name] = new
        return new

    def tune(self, name: str, at: Iterable[int]) -> None:
        """A dim has schedules for these of its values, and for the greatest one. Raises E0101."""
        values = self.dims[name].values
        if odd := [n for n in at if n not in values]:
            fail(name, f"dim {self.dims[name]} is never {odd[0]}: it cannot be tuned there")
        self.tuned[name] = tuple(sorted({*at, values[-1]}))
        if (n := math.prod(map(len, self.tuned.values()))) > MAX_BUCKETS:
            fail(name, f"dims are tuned at {n} combinations of values, more than {MAX_BUCKETS}")

    def mesh_axis(self, name: str, ranks: int, in_time: bool = False) -> None:
        """The graph is for a mesh with this axis, of ranks or of micro-batches. Raises E0101."""
        check_mesh({**self.mesh, name: ranks})
        if in_time and self.time:
            fail(name, f"axis '{self.time}' of the mesh is in time already")
        self.mesh[name] = ranks
        self.time = name if in_time else self.time

    def mesh_of(self, graph: Graph) -> None:
        """The graph is for the mesh of another one."""
        self.mesh, self.time = dict(graph.mesh), graph.time

    def _extent(self, e: Extent) -> Extent:
        return e if isinstance(e, int) else extent(simplify(e, dim_ranges(self.dims)))

    def leaf(
        self,
        op: str,
        name: str,
        dtype: DType,
        shape: Sequence[Extent],
        file: WeightFile | None = None,
        key: str = "",
        values: tuple[int, int] | None = None,
        how: Derivation | None = None,
        parts: tuple[Part, ...] = (),
        stage: Stage | None = None,
    ) -> Node:
        """An input, weight or state on axes d0, d1, .. of these extents; ``values`` says what an
        integer input is given, ``how`` what is done to a weight when it is read, ``parts`` what of
        it a rank has, ``stage`` which ranks have it. Raises E0101 (name, shape, values, derivation,
        parts or stage)."""
        axes = tuple(f"d{i}" for i in range(len(shape)))
        extents = tuple(self._extent(e) for e in shape)
        made = (), None, file, key, how, values, self.origin, self.dims
        node = Node(name, op, dtype, axes, extents, *made, parts=parts, stage=stage)
        check_node(node, self.dims)
        kinds = {"input": self.inputs, "weight": self.weights, "state": self.states}
        return self._add(node, kinds[op])

    def node(
        self,
        op: Op,
        operands: Sequence[Operand],
        axes: Sequence[tuple[str, Extent]],
        reduced: tuple[str, Extent] | None = None,
        dtype: DType | None = None,
        name: str = "",
    ) -> Node:
        """A primitive over ``axes``; ``dtype`` only for ``contiguous`` (the cast).

        Index maps are brought to the normal form that the extents allow. Raises E0101 (what
        ``check_node`` finds, or a name that is used twice).
        """
        name = name or self.fresh()
        node = Node(
            name=name,
            op=op,
            dtype=dtype or result_dtype(op, operands),
            axes=tuple(a for a, _ in axes),
            shape=tuple(self._extent(e) for _, e in axes),
            operands=tuple(operands),
            reduced=(reduced[0], self._extent(reduced[1])) if reduced else None,
            origin=self.origin,
            dims=self.dims,
        )
        check_node(node, self.dims)
        ranges = loop_ranges(dict(node.loops), self.dims)
        normal = map_indices(node.operands, lambda e: simplify(e, ranges), self._extent)
        return self._add(replace(node, operands=normal), self.nodes)

    def collective(
        self,
        op: Collective,
        read: Read,
        axes: Sequence[tuple[str, Extent]],
        dtype: DType,
        name: str = "",
    ) -> Node:
        """What ranks make of a value together, which is read at the axes of the result. Raises
        E0101 (what ``check_node`` finds, or a name that is used twice)."""
        names = tuple(a for a, _ in axes)
        shape, origin = tuple(self._extent(e) for _, e in axes), self.origin or read.source.origin
        node = Node(name or self.fresh(), op, dtype, names, shape, (read,), origin=origin)
        node = replace(node, dims=self.dims)
        check_node(node, self.dims)
        return self._add(node, self.nodes)

    def updated(self, update: Update, name: str = "") -> Node:
        """The state after an update, and after those before it: in its memory, to be read by nodes
        that follow. Raises E0101 (what ``check_update`` finds, an index of which is not known where
        its value comes from, or an update after the run that stands before)."""
        check_update(update, self.dims)
        state = update.state
        if any(u.state is state for u in self.updates):
            what = f"an update of '{state.name}' without a name stands before the one of '{name}'"
            fail(update.value, f"{what}; it happens after the run")
        before = next((n for n in reversed(self.nodes) if n.home is state), state)
        node = replace(
            before,
            name=name or self.fresh(),
            op="update",
            operands=definition(update, before, self.dims),
            file=None,
            key="",
            how=None,
            origin=self.origin,
            at=update.index,
        )
        check_node(node, self.dims)
        return self._add(node, self.nodes)

    def finish(
        self,
        entry: str = "main",
        of: str = "",
        dims: Mapping[str, Dim] = NO_DIMS,
        repeat: str = "",
    ) -> None:
        """Close the current entry, or a bucket ``of`` one, which may ``repeat`` over a dim; dims,
        weights and states stay for the next one. Raises E0101 (what ``check_update`` and
        ``check_repeat`` find)."""
        ends = tuple(self.outputs), tuple(self.updates)
        inputs, nodes = tuple(self.inputs), tuple(self.nodes)
        done = Entry(entry, inputs, nodes, *ends, of, dims, repeat, self.parts, self.time)
        for update in done.updates:
            check_update(update, self.dims)
        if repeat:
            check_repeat(done, self.dims)
        self.entries.append(done)
        self._names = {n.name for n in (*self.weights, *self.states)}
        self.inputs, self.nodes, self.outputs, self.updates, self.parts = [], [], [], [], {}

    def graph(self) -> Graph:
        """The closed entries, with the dims, weights and states that they share."""
        shared = dict(self.dims), tuple(self.weights), tuple(self.states)
        entries, tuned, mesh = tuple(self.entries), dict(self.tuned), dict(self.mesh)
        own = mesh, self.time
        return Graph(*shared, entries, tuned, None, self.tokenizer, *own)

"""What is stored in less: a graph of the same primitives.

A *contraction* is a product of two floats that is only summed and whose factors lie on different
axes. With a 16-bit dtype, what is stored in it: weights that are contracted or looked up, values
that only contractions with weights read, and states. All arithmetic stays in f32. With ``q8``,
weights that are contracted along one axis are int8 levels with one f32 scale per 32 elements of
that axis. Inputs, outputs, integers, bools and everything else stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lumc.graph.builder import Builder
from lumc.graph.dim import Extent
from lumc.graph.expr import axis, floordiv
from lumc.graph.graph import Derivation, Entry, Graph, Node, Read, Update, map_indices
from lumc.graph.ops import DType, Op

BLOCK = 32  # elements that share a scale
DTYPES = {"bf16": DType.BF16, "f16": DType.F16}
WEIGHTS = ("q8",)


def store_less(graph: Graph, dtype: str | None, weights: str | None) -> Graph:
    """The graph with these choices; applying it again changes nothing."""
    kind = DTYPES.get(dtype or "")
    if not kind and not weights:
        return graph
    uses = Uses(graph)
    quantised = uses.quantisable() if weights else {}
    narrow: set[Node] = set()
    if kind:
        leaves = (*uses.tables(), *(s for s in graph.states if s.dtype is DType.F32))
        narrow = {n for n in leaves if n not in quantised and n not in uses.results}
        narrow |= uses.activations()
    return Rewriting(graph, kind or DType.F32, quantised, narrow).graph()


# ---- what may be stored in less


@dataclass(frozen=True)
class _Contraction:
    product: Node
    reduced: frozenset[str]  # axes of the product that are summed
    selects: bool  # a lookup: the product of a bool and a table


class Uses:
    """How the values of a graph are used, over all entries."""

    def __init__(self, graph: Graph) -> None:
        self.nodes = [n for e in graph.entries for n in e.nodes]
        self.weights = graph.weights
        self.results = {n for e in graph.entries for _, n in e.outputs}
        ends = self.results | {u.value for e in graph.entries for u in e.writes}
        self.readers: dict[Node, list[tuple[Node, Read]]] = {}
        self.constant = set(graph.weights)
        for node in self.nodes:
            for read in node.reads:
                self.readers.setdefault(read.source, []).append((node, read))
            if node.reads and all(r.source in self.constant for r in node.reads):
                self.constant.add(node)
        found = (self._contraction(n) for n in self.nodes if n not in ends)
        self.contractions = {c.product: c for c in found if c}

    def _contraction(self, node: Node) -> _Contraction | None:
        if node.op is not Op.MUL or len(node.reads) != 2 or not node.dtype.is_float:
            return None
        if not all(reader.op is Op.SUM for reader, _ in self.readers.get(node, [])):
            return None
        a, b = (frozenset[str]().union(*(i.free for i in r.index)) for r in node.reads)
        reduced = self._summed(node)
        if a == b or not reduced:
            return None
        return _Contraction(node, reduced, node.operands[0].dtype is DType.BOOL)

    def _summed(self, node: Node) -> frozenset[str]:
        """The axes of a node that all its readers sum, through sums of sums."""
        found = []
        for reader, read in self.readers.get(node, []):
            if reader.op is not Op.SUM or reader.reduced is None or read.bounds:
                return frozenset()
            over = {reader.reduced[0], *self._summed(reader)}
            pairs = zip(read.index, node.axes, strict=True)
            found.append({own for i, own in pairs if i.kind == "axis" and i.attr[0] in over})
        return frozenset(set.intersection(*found)) if found else frozenset()

    def _reads(self, weight: Node) -> Iterator[tuple[Node, Read]]:
        """Every read of a weight, also through a cast of the whole to f32."""
        for reader, read in self.readers.get(weight, []):
            if _widens(reader) and reader not in self.results:
                yield from self.readers.get(reader, [])
            else:
                yield reader, read

    def tables(self) -> list[Node]:
        """f32 matrices that are contracted or looked up."""
        return [
            w
            for w in self.weights
            if w.dtype is DType.F32
            and not (w.how and w.how.part)
            and len(w.shape) > 1
            and any(reader in self.contractions for reader, _ in self.readers.get(w, []))
        ]

    def quantisable(self) -> dict[Node, int]:
        """Weights that are only ever contracted, along one axis in whole blocks: that axis."""
        out = {}
        for w in self.weights:
            along = {self._axis(reader, read) for reader, read in self._reads(w)}
            plain = w.dtype.is_float and w not in self.results and not (w.how and w.how.part)
            if plain and len(along) == 1 and (at := along.pop()) is not None:
                size = w.shape[at]
                if isinstance(size, int) and size and size % BLOCK == 0:
                    out[w] = at
        return out

    def _axis(self, reader: Node, read: Read) -> int | None:
        """The axis of a weight that this reader contracts, if it is one and read as it lies."""
        c = self.contractions.get(reader)
        if c is None or c.selects or read.bounds or len(read.index) < 2:
            return None
        over = [i for i, e in enumerate(read.index) if e.free & c.reduced]
        plain = len(over) == 1 and read.index[over[0]].kind == "axis"
        return over[0] if plain else None

    def activations(self) -> set[Node]:
        """Values that only contractions with constants read, if they are not narrow already: a
        value that is also added to others, as residuals are, keeps its bits."""
        linear = {
            c.product
            for c in self.contractions.values()
            if not c.selects and any(r.source in self.constant for r in c.product.reads)
        }
        return {
            n
            for n in self.nodes
            if n.dtype is DType.F32
            and n not in self.constant | self.results
            and not n.is_leaf
            and not _widens(n)
            and n in self.readers
            and all(reader in linear for reader, _ in self.readers[n])
        }


def _widens(node: Node) -> bool:
    """Whether a node is the f32 values of a whole narrow float tensor."""
    if node.op is not Op.CONTIGUOUS or node.dtype is not DType.F32 or len(node.reads) != 1:
        return False
    read = node.reads[0]
    same = read.index == tuple(map(axis, node.axes)) and read.source.shape == node.shape
    return same and not read.bounds and read.source.dtype in DTYPES.values()


# ---- the new graph


@dataclass
class Rewriting:
    """Makes every node again; ``read`` is what the readers of a node read instead."""

    old: Graph
    kind: DType
    quantised: Mapping[Node, int]
    narrow: set[Node]
    b: Builder = field(default_factory=Builder)
    read: dict[Node, Node] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)

    def graph(self) -> Graph:
        self.b.dims.update(self.old.dims)
        self.b.tokenizer = self.old.tokenizer
        every = (
            *self.old.weights,
            *self.old.states,
            *(n for e in self.old.entries for n in _all(e)),
        )
        self.names = {*self.old.dims, *(n.name for n in every)}
        leaves = {w: self._weight(w) for w in self.old.weights}
        leaves |= {s: self._weight(s) if s.file else self._leaf(s) for s in self.old.states}
        for entry in self.old.entries:
            self.read = {}
            self._entry(entry, leaves)
        return self.b.graph()

    def _entry(self, entry: Entry, leaves: Mapping[Node, Sequence[Node]]) -> None:
        used = {r.source for n in entry.nodes for r in n.reads}
        for i in entry.inputs:
            self.read[i] = self._leaf(i)[0]
        for old, new in leaves.items():
            self.b.origin = old.origin
            self.read[old] = self._opened(old, new) if old in used else new[0]
        exact = dict(self.read)
        for n in entry.nodes:
            if n.op == "update":
                exact[n] = self.read[n] = self._updated(n, leaves, exact)
                if n in used and n.home in self.narrow:
                    self.read[n] = self._cast(exact[n], DType.F32, n.name)
                continue
            if _widens(n) and n.reads[0].source in self.quantised:
                self.read[n] = self.read[n.reads[0].source]
                continue
            exact[n] = self.read[n] = self._node(n)
            if n in self.narrow:
                self.read[n] = self._cast(self._cast(exact[n], self.kind), DType.F32, n.name)
        self.b.outputs = [(name, exact[n]) for name, n in entry.outputs]
        self.b.updates += [self._update(u, leaves, exact) for u in entry.updates]
        self.b.finish(entry.name, repeat=entry.repeat)

    def _update(
        self, u: Update, leaves: Mapping[Node, Sequence[Node]], exact: Mapping[Node, Node]
    ) -> Update:
        value = exact[u.value]
        if u.state in self.narrow:
            value = self._cast(value, self.kind)
        return Update(leaves[u.state][0], u.index, value)

    def _updated(
        self, n: Node, leaves: Mapping[Node, Sequence[Node]], exact: Mapping[Node, Node]
    ) -> Node:
        self.b.origin = n.origin
        return self.b.updated(self._update(n.write, leaves, exact), n.name)

    # ---- leaves

    def _leaf(self, n: Node) -> list[Node]:
        self.b.origin = n.origin
        kind = self.kind if n in self.narrow else n.dtype
        return [self.b.leaf(str(n.op), n.name, kind, n.shape, n.file, n.key, n.values, n.how)]

    def _weight(self, w: Node) -> list[Node]:
        """A weight as it is, rounded, or as levels and scales."""
        stored = w.how.dtype if w.how else w.dtype
        if w in self.narrow:
            same = stored is self.kind  # read in f32, stored as it is wanted
            return self._leaf(replace(w, dtype=self.kind, how=None if same else Derivation(stored)))
        if w not in self.quantised:
            return self._leaf(w)
        at, out = self.quantised[w], []
        for part, kind in (("levels", DType.I8), ("scales", DType.F32)):
            shape: list[Extent] = list(w.shape)
            if part == "scales":
                shape[at] = w.sizes[at] // BLOCK
            how, name = Derivation(stored, part, at, BLOCK), self._fresh(f"{w.name}.{part}")
            out.append(self.b.leaf("weight", name, kind, shape, w.file, w.key, None, how))
        return out

    def _opened(self, old: Node, new: Sequence[Node]) -> Node:
        """The f32 values of a leaf, in this entry."""
        if old in self.narrow:
            return self._cast(new[0], DType.F32, old.name)
        if old not in self.quantised:
            return new[0]
        levels, scales = self._cast(new[0], DType.F32), new[1]
        loops = [*zip(levels.axes, levels.shape, strict=True)]
        at = self.quantised[old]
        ranges = {a: (0, n - 1) for a, n in zip(old.axes, old.sizes, strict=True)}
        index = [axis(a) for a, _ in loops]
        blocks = [floordiv(e, BLOCK, ranges) if i == at else e for i, e in enumerate(index)]
        operands = Read(levels, tuple(index)), Read(scales, tuple(blocks))
        return self.b.node(Op.MUL, operands, loops, name=self._fresh(f"{old.name}.f32"))

    # ---- nodes

    def _node(self, n: Node) -> Node:
        assert isinstance(n.op, Op)
        self.b.origin, loops = n.origin, list(n.loops)
        over = loops.pop() if n.reduced else None
        operands = map_indices(n.operands, lambda e: e, lambda e: e, self.read.__getitem__)
        return self.b.node(n.op, operands, loops, over, n.dtype, n.name)

    def _cast(self, n: Node, kind: DType, stem: str = "") -> Node:
        """A node of the same values in another dtype; called after ``stem`` or the node."""
        loops = [*zip(n.axes, n.shape, strict=True)]
        whole = Read(n, tuple(axis(a) for a in n.axes))
        name = self._fresh(f"{stem or n.name}.{kind}")
        return self.b.node(Op.CONTIGUOUS, (whole,), loops, dtype=kind, name=name)

    def _fresh(self, name: str) -> str:
        """The name, with a number behind it when it is taken."""
        i, new = 0, name
        while new in self.names:
            i += 1
            new = f"{name}_{i}"
        self.names.add(new)
        return new


def _all(entry: Entry) -> Iterable[Node]:
    return (*entry.inputs, *entry.nodes)

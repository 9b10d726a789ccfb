"""A graph that shows a fault, made small: smaller ones are tried as long as one still shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from lumc.errors import LumcError
from lumc.graph.expr import Expr, axis, num, substitute
from lumc.graph.graph import (
    Entry,
    Graph,
    Iota,
    Node,
    Operand,
    Read,
    Scalar,
    Update,
    map_indices,
    reachable,
)
from lumc.graph.ops import DType
from lumc.graph.text import parse_graph, print_graph
from lumc.graph.verify import verify_graph

T = TypeVar("T")


class Size(NamedTuple):
    """What is made smaller, the first first."""

    statements: int
    elements: int
    characters: int

    @staticmethod
    def of(graph: Graph) -> Size:
        nodes = {n for e in graph.entries for n in (*e.inputs, *e.nodes)}
        nodes |= {*graph.weights, *graph.states}
        ends = sum(len(e.outputs) + len(e.updates) for e in graph.entries)
        return Size(len(nodes) + ends, sum(n.points for n in nodes), len(print_graph(graph)))

    def __str__(self) -> str:
        return (
            f"{self.statements:,} statements, {self.elements:,} elements, "
            f"{self.characters:,} characters"
        )


@dataclass
class Search:
    """The smallest graph so far, and what was tried. ``fails`` says whether a legal graph still
    shows the fault; ``say`` hears of progress."""

    graph: Graph
    fails: Callable[[Graph], bool]
    say: Callable[[Size, int], None] = lambda size, tries: None
    stopped: Callable[[], bool] = lambda: False
    tries: int = 0

    def __post_init__(self) -> None:
        self.size, self.tried = Size.of(self.graph), {print_graph(self.graph)}

    def run(self) -> Graph:
        """Every pass as long as it helps, all of them until none does."""
        before = None
        while before != self.size and not self.stopped():
            before = self.size
            for candidates in PASSES:
                while self.helps(candidates(self.graph)):
                    pass
        return self.graph

    def helps(self, candidates: Iterable[Graph]) -> bool:
        """Takes the first smaller graph that still fails."""
        for candidate in candidates:
            if self.stopped():
                return False
            graph = legal(candidate)
            text = print_graph(graph) if graph else ""
            if graph is None or text in self.tried or Size.of(graph) >= self.size:
                continue
            self.tried.add(text)
            self.tries += 1
            if self.fails(graph):
                self.graph, self.size = graph, Size.of(graph)
                self.say(self.size, self.tries)
                return True
        return False


def legal(graph: Graph) -> Graph | None:
    """The graph without what nothing needs, as its text says it, if that is a graph."""
    try:
        again = parse_graph(print_graph(pruned(graph)))
        verify_graph(again)
    except (LumcError, LookupError, ValueError):
        return None
    return again


def pruned(graph: Graph) -> Graph:
    """Without entries that give nothing, and leaves and nodes that nothing reads."""
    entries, used = [], set[Node]()
    for e in graph.entries:
        ends = {n for _, n in e.outputs} | {u.value for u in e.updates}
        ends |= {n for n in e.nodes if n.op == "update"}
        needed = reachable(ends, lambda n: [r.source for r in n.reads])
        used |= needed | {u.state for u in e.updates}
        if ends:
            inputs = tuple(n for n in e.inputs if n in needed)
            nodes = tuple(n for n in e.nodes if n in needed)
            entries.append(replace(e, inputs=inputs, nodes=nodes))
    weights, states = (tuple(n for n in k if n in used) for k in (graph.weights, graph.states))
    return Graph(graph.dims, weights, states, tuple(entries))


# ---- passes: smaller graphs, the boldest first; what is no graph is left out later


def halves(n: int) -> Iterator[range]:
    """Parts of n things: all, halves, quarters, .. each."""
    size = n
    while size:
        yield from (range(at, min(at + size, n)) for at in range(0, n, size))
        size //= 2


def fewer_ends(graph: Graph) -> Iterator[Graph]:
    """Without some entries, outputs and updates; reads of states as they were before the last
    update."""
    if len(graph.entries) > 1:
        for part in halves(len(graph.entries)):
            kept = tuple(e for i, e in enumerate(graph.entries) if i not in part)
            yield replace(graph, entries=kept)
    for e in graph.entries:
        ends: list[tuple[str, Node] | Update] = [*e.outputs, *e.updates]
        for part in halves(len(ends)):
            left = [end for i, end in enumerate(ends) if i not in part]
            outputs = tuple(x for x in left if not isinstance(x, Update))
            updates = tuple(x for x in left if isinstance(x, Update))
            yield with_entry(graph, e, replace(e, outputs=outputs, updates=updates))
        for n in (n for n in reversed(e.nodes) if n.op == "update"):
            before = read_through(e, n, n.operands[0])
            yield with_entry(graph, e, without_last(before, n.home))


def without_last(entry: Entry, state: Node) -> Entry:
    """An entry without the last node that updates a state."""
    last = next(n for n in reversed(entry.nodes) if n.op == "update" and n.home is state)
    return replace(entry, nodes=tuple(n for n in entry.nodes if n is not last))


def earlier_ends(graph: Graph) -> Iterator[Graph]:
    """With one value on the way as the only output of an entry, or an operand in place of what is
    computed from it."""
    for e in graph.entries:
        for n in e.nodes:
            yield with_entry(graph, e, replace(e, outputs=(("y", n),), updates=()))
        for i, (name, value) in enumerate(e.outputs):
            for r in value.reads:
                outputs = (*e.outputs[:i], (name, r.source), *e.outputs[i + 1 :])
                yield with_entry(graph, e, replace(e, outputs=outputs))


def later_starts(graph: Graph) -> Iterator[Graph]:
    """With inputs in the place of nodes, of weights and of states."""
    for e in graph.entries:
        for part in halves(len(e.nodes)):
            some = [e.nodes[i] for i in part]
            yield with_entry(graph, e, changed(e, {n: as_input(n) for n in some}))
    for leaf in (*graph.weights, *graph.states):
        entries = (changed(e, {leaf: as_input(leaf)}) for e in graph.entries)
        yield replace(graph, entries=tuple(entries))


def as_input(node: Node) -> Node:
    names = tuple(f"d{i}" for i in range(len(node.shape)))
    return Node(node.name, "input", node.dtype, names, node.shape, dims=node.dims)


def without_nodes(graph: Graph) -> Iterator[Graph]:
    """With an operand of a node, or a constant, where the node is read."""
    for e in graph.entries:
        for n in reversed(e.nodes):
            for o in n.operands if n.reduced is None else ():
                yield with_entry(graph, e, read_through(e, n, o))
        for n in (*e.inputs, *e.nodes):
            one = Scalar(n.dtype, constant(n.dtype))
            yield with_entry(graph, e, read_through(e, n, one))


def constant(dtype: DType) -> float | int | bool:
    return True if dtype is DType.BOOL else 1 if dtype.is_int else 1.0


def read_through(entry: Entry, node: Node, instead: Operand) -> Entry:
    """Readers of a node read this operand of it, which lives on its axes."""

    def through(o: Operand) -> Operand:
        if not isinstance(o, Read) or o.source is not node:
            return o
        axes = dict(zip(map(axis, node.axes), o.index, strict=True))
        (moved,) = map_indices((instead,), lambda e: substitute(e, axes), lambda size: size)
        return replace(moved, bounds=o.bounds + moved.bounds)

    return mapped(entry, lambda n: replace(n, operands=tuple(map(through, n.operands))))


def smaller_extents(graph: Graph) -> Iterator[Graph]:
    """With another number in the place of an extent, wherever it stands."""
    nodes = [n for e in graph.entries for n in (*e.inputs, *e.nodes)]
    extents = {e for n in nodes for _, e in n.loops if isinstance(e, int)}
    for n in sorted(extents, reverse=True):
        for m in dict.fromkeys((1, 2, 3, n // 2, n - 1)):
            if 0 < m < n:
                yield resized(graph, n, m)


def resized(graph: Graph, old: int, new: int) -> Graph:
    def extent(e: object) -> object:
        return new if e == old and type(e) is int else e

    def node(n: Node) -> Node:
        operands = map_indices(n.operands, lambda e: e, extent)  # type: ignore[arg-type]
        shape = tuple(extent(e) for e in n.shape)
        reduced = n.reduced and (n.reduced[0], extent(n.reduced[1]))
        return replace(n, operands=operands, shape=shape, reduced=reduced)  # type: ignore[arg-type]

    states = {s: node(s) for s in graph.states}
    weights = {w: node(w) for w in graph.weights}
    entries = tuple(mapped(e, node, {**states, **weights}) for e in graph.entries)
    return Graph(graph.dims, (*weights.values(),), (*states.values(),), entries)


def fewer_axes(graph: Graph) -> Iterator[Graph]:
    """Without an axis of extent 1 of a node or an input."""
    for e in graph.entries:
        for n in (*e.inputs, *e.nodes):
            for i, size in enumerate(n.shape):
                if size == 1 and n.op != "update" and all(u.value is not n for u in e.writes):
                    yield with_entry(graph, e, without_axis(e, n, i))


def without_axis(entry: Entry, node: Node, at: int) -> Entry:
    def left(items: tuple[T, ...]) -> tuple[T, ...]:
        return items[:at] + items[at + 1 :]

    def read(o: Operand) -> Operand:
        return replace(o, index=left(o.index)) if isinstance(o, Read) and o.source is node else o

    def change(n: Node) -> Node:
        if n is not node:
            return replace(n, operands=tuple(map(read, n.operands)))
        gone = {axis(n.axes[at]): num(0)}
        operands = map_indices(n.operands, lambda e: substitute(e, gone), lambda size: size)
        return replace(n, operands=operands, axes=left(n.axes), shape=left(n.shape))

    return mapped(entry, change)


def plainer_operands(graph: Graph) -> Iterator[Graph]:
    """With one operand that has no bounds, a plain index, or is a constant."""
    for e in graph.entries:
        for n in e.nodes:
            for i, o in enumerate(n.operands):
                for plain in plainer(o, n):
                    operands = (*n.operands[:i], plain, *n.operands[i + 1 :])
                    yield with_entry(graph, e, changed(e, {n: replace(n, operands=operands)}))


def plainer(o: Operand, node: Node) -> Iterator[Operand]:
    for i in range(len(o.bounds)):
        yield replace(o, bounds=o.bounds[:i] + o.bounds[i + 1 :])
    if not isinstance(o, Scalar):
        yield Scalar(o.dtype, constant(o.dtype))
    axes = [axis(a) for a, _ in node.loops]
    if isinstance(o, Iota):
        yield from (Iota(o.dtype, a, o.bounds) for a in axes)
    elif isinstance(o, Read):
        for i, e in enumerate(o.index):
            others: list[Expr] = [] if e in axes or e.kind == "num" else axes
            for plain in (num(0), *others):
                yield Read(o.source, (*o.index[:i], plain, *o.index[i + 1 :]), o.bounds)


PASSES = (
    *(fewer_ends, earlier_ends, later_starts, without_nodes),
    *(smaller_extents, fewer_axes, plainer_operands),
)


# ---- graphs with other nodes


def with_entry(graph: Graph, old: Entry, new: Entry) -> Graph:
    return replace(graph, entries=tuple(new if e is old else e for e in graph.entries))


def changed(entry: Entry, other: Mapping[Node, Node]) -> Entry:
    """With other nodes in the place of some; those that are inputs come last."""
    return mapped(entry, lambda n: other.get(n, n), other)


def mapped(
    entry: Entry, change: Callable[[Node], Node], known: Mapping[Node, Node] | None = None
) -> Entry:
    """Every input and node changed, and those that read them."""
    new = dict(known or {})
    inputs, nodes = list[Node](), list[Node]()
    for n in (*entry.inputs, *entry.nodes):
        made = new[n] = _over(change(n), new)
        (inputs if made.op == "input" else nodes).append(made)
    inputs += [n for n in (known or {}).values() if n.op == "input" and n not in inputs]
    outputs = tuple((name, new.get(n, n)) for name, n in entry.outputs)
    updates = tuple(
        Update(new.get(u.state, u.state), u.index, new.get(u.value, u.value)) for u in entry.updates
    )
    return replace(
        entry, inputs=tuple(inputs), nodes=tuple(nodes), outputs=outputs, updates=updates
    )


def _over(node: Node, new: Mapping[Node, Node]) -> Node:
    """The node on changed operands."""
    return replace(
        node,
        operands=map_indices(
            node.operands, lambda e: e, lambda size: size, lambda n: new.get(n, n)
        ),
    )

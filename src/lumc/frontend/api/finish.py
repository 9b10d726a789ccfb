"""From the nodes a model collected to its graph and its files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TypeVar

from lumc.disk.artifact import is_special, write_text
from lumc.disk.safetensors import write_safetensors
from lumc.disk.weights import Array, as_stored, plain_file
from lumc.errors import Exit, LumcError
from lumc.frontend.api.weights import reference
from lumc.graph.bind import bind_dims
from lumc.graph.dim import Dim, Extent
from lumc.graph.expr import Expr, num
from lumc.graph.graph import Entry, Graph, Node, Operand, Read, Update, WeightFile, map_indices
from lumc.graph.text import print_graph
from lumc.graph.verify import verify_graph

T = TypeVar("T")


@dataclass
class Rebuilt:
    """Nodes made again under other names; outputs get their axes of extent 1 back."""

    names: Mapping[Node, str]
    shapes: Mapping[Node, tuple[Extent, ...]]  # of outputs
    made: dict[Node, Node]

    def add(self, node: Node, name: str) -> None:
        new = replace(node, name=name, operands=tuple(map(self._over, node.operands)))
        self.made[node] = self._widened(node, new)

    def _over(self, o: Operand) -> Operand:
        if not isinstance(o, Read) or o.source not in self.made:
            return o
        return Read(self.made[o.source], self._index(o.source, o.index), o.bounds)

    def _places(self, node: Node) -> list[int | None]:
        """For every axis of the new node the old one, or None: an axis of extent 1."""
        shape = self.shapes.get(node, node.shape)
        if len(shape) == len(node.shape):
            return list(range(len(shape)))
        old = iter(range(len(node.shape)))
        return [None if e == 1 else next(old) for e in shape]

    def _index(self, node: Node, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(num(0) if i is None else index[i] for i in self._places(node))

    def _widened(self, old: Node, new: Node) -> Node:
        taken = {a for a, _ in old.loops}
        fresh = (f"u{i}" for i in range(len(taken) + 99) if f"u{i}" not in taken)
        axes = [next(fresh) if i is None else old.axes[i] for i in self._places(old)]
        return replace(new, axes=tuple(axes), shape=self.shapes.get(old, old.shape))


def finished(
    graph: Graph, names: Mapping[Node, str], shapes: Mapping[Node, tuple[Extent, ...]]
) -> Graph:
    """Without nodes and weights that nothing needs, and with the names that were asked for."""
    rebuilt = Rebuilt(names, shapes, {})
    needed = set[Node]()
    for e in graph.entries:
        roots = [n for _, n in e.outputs] + [u.value for u in e.updates]
        roots += [n for n in e.nodes if n.op == "update"]
        needed |= reachable([*roots, *(u.state for u in e.updates)])
    weights = tuple(w for w in graph.weights if w in needed)
    shared = [*graph.dims, *(n.name for n in (*weights, *graph.states))]
    entries = tuple(_entry(e, needed, shared, rebuilt) for e in graph.entries)
    return replace(graph, weights=weights, entries=entries)


def reachable(roots: list[Node]) -> set[Node]:
    seen, stack = set[Node](), list(roots)
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack += [o.source for o in node.operands if isinstance(o, Read)]
    return seen


def _entry(e: Entry, needed: set[Node], shared: list[str], rebuilt: Rebuilt) -> Entry:
    kept = [n for n in e.nodes if n in needed]
    taken = {*shared, *(n.name for n in e.inputs)}
    wanted = {rebuilt.names[n] for n in kept if n in rebuilt.names}
    names = map("t{}".format, count())
    numbers = (name for name in names if name not in taken and name not in wanted)
    for node in kept:
        name = _free(rebuilt.names.get(node) or next(numbers), taken)
        taken.add(name)
        rebuilt.add(node, name)
    made = rebuilt.made
    updates = tuple(replace(u, value=made.get(u.value, u.value)) for u in e.updates)
    outputs = tuple((name, made.get(node, node)) for name, node in e.outputs)
    return replace(e, nodes=tuple(made[n] for n in kept), outputs=outputs, updates=updates)


def _free(name: str, taken: set[str]) -> str:
    """The name, with a number behind it when it is taken."""
    tries = (f"{name}_{i}" for i in count(1))
    return name if name not in taken else next(t for t in tries if t not in taken)


def save(
    graph: Graph,
    path: str,
    dims: Mapping[str, int | Dim],
    copy: bool,
    change: Callable[[Graph], Graph],
    values: Callable[[Node], Array],
    tokenizer: str = "",
) -> None:
    """Write a graph to ``path`` (``-``: stdout) with its dims bound, changed.

    Constants - with ``copy`` all weights - go to a safetensors file beside it, with their values;
    the text of a ``tokenizer`` to another.
    """
    graph = bind_dims(graph, dims) if dims else graph
    given = [n for n in (*graph.weights, *graph.states) if n.op == "weight" or n.key]
    moved = [n for n in given if copy or n.file is None]
    if (moved or tokenizer) and (path == "-" or is_special(Path(path))):
        what = f"{len(moved)} weights need a safetensors file beside the graph"
        what = what if moved else "a tokenizer needs a file beside the graph"
        raise LumcError("E0204", what, fix="name the graph with -o", exit=Exit.USAGE)
    if moved:
        graph = with_weights(graph, moved, Path(path).with_suffix(".safetensors"), values)
    if tokenizer:
        beside = Path(path).with_suffix(".tokenizer.json")
        write_text(str(beside), tokenizer)
        graph = replace(graph, tokenizer=plain_file(beside))
    graph, base = change(graph), None if path == "-" else Path(path).resolve().parent
    verify_graph(graph)
    write_text(path, print_graph(graph, path=lambda file: shown_path(file, base)))


def shown_path(file: WeightFile, base: Path | None) -> str:
    """Relative to the folder of the graph when below it, else absolute."""
    whole = Path(file.path).resolve()
    if base is not None and whole.is_relative_to(base):
        return whole.relative_to(base).as_posix()
    return whole.as_posix()


def same(e: T) -> T:
    return e


def with_weights(
    graph: Graph, moved: list[Node], target: Path, values: Callable[[Node], Array]
) -> Graph:
    """The graph whose ``moved`` weights, and first values of states, lie in a new file: as they are
    read, or those that are in no file yet as they are stored."""
    stored = [as_stored(w) if w.file is None else w for w in moved]
    write_safetensors(target, [(w.name, w.dtype, values(w)) for w in stored])
    file = reference(target)
    new = {w: replace(w, file=file, key=w.name, how=None if w.file else w.how) for w in moved}
    weights, states = (tuple(new.get(n, n) for n in k) for k in (graph.weights, graph.states))
    entries = list[Entry]()
    for e in graph.entries:
        for n in e.nodes:
            over = map_indices(n.operands, same, same, lambda old: new.get(old, old))
            new[n] = replace(n, operands=over)
        outputs = tuple((name, new[n]) for name, n in e.outputs)
        updates = tuple(Update(new.get(u.state, u.state), u.index, new[u.value]) for u in e.updates)
        nodes = tuple(new[n] for n in e.nodes)
        entries.append(replace(e, nodes=nodes, outputs=outputs, updates=updates))
    return replace(graph, weights=weights, states=states, entries=tuple(entries))

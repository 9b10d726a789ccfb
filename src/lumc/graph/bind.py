"""Giving symbolic dims their values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from lumc.errors import Exit, LumcError
from lumc.graph.builder import NO_DIMS, Builder
from lumc.graph.collective import Collective
from lumc.graph.dim import Dim, Extent, bind, dim_ranges
from lumc.graph.expr import Expr, bounds, dim, linear, num, substitute, subterms
from lumc.graph.graph import Entry, Graph, Iota, Node, Read, Update, map_indices
from lumc.graph.ops import Op

ROOM = 1 << 34  # bytes of an entry's values; a bundle of fixed shapes may have more


def require_static(graph: Graph, pass_name: str) -> None:
    """Raises E0112 (a dim is still symbolic) in the name of a pass that needs integers."""
    if graph.dims:
        names = ", ".join(f"{d.name} ({d.lo}..{d.hi})" for d in graph.dims.values())
        fix = " ".join(f"--dim {d.name}={min(d.hi, max(d.lo, 128))}" for d in graph.dims.values())
        what = f"{pass_name} needs a value for every dim; not bound: {names}"
        raise LumcError("E0112", what, fix=f"for example {fix}", exit=Exit.UNSUPPORTED)


def require_lengths(graph: Graph, pass_name: str) -> None:
    """Raises E0112 for an extent that is symbolic and may be 0: a pass that takes the others makes
    no loops without a first value."""
    for node in (n for e in graph.entries for n in (*e.inputs, *e.nodes)):
        for a, e in node.loops:
            if isinstance(e, Expr) and bounds(e, dim_ranges(graph.dims))[0] < 1:
                what = f"{pass_name} needs extents of 1 or more: {a}:{e} of '{node.name}' may be 0"
                names = sorted({t.attr[0] for t in subterms(e) if t.kind == "dim"})
                fix = f"let {names[0]} begin with 1, or bind it: --dim {names[0]}=N"
                raise LumcError("E0112", what, fix=fix, exit=Exit.UNSUPPORTED)


def require_bounds(graph: Graph) -> None:
    """Raises E0112 where memory for the greatest dims is more than anybody asked for: bounds that
    importers take from a model are those of what it can do."""
    for e in graph.entries if graph.dims else ():
        ends = (*e.inputs, *(n for _, n in e.outputs))
        require_room(graph, e.name, sum(n.size * n.dtype.nbytes for n in ends))


def require_room(graph: Graph, entry: str, nbytes: int) -> None:
    """Raises E0112 where an entry with dims needs so many bytes for their greatest values."""
    if graph.dims and nbytes > ROOM:
        most = ", ".join(f"{d.name}={d.values[-1]}" for d in graph.dims.values())
        what = f"values of entry '{entry}' need {nbytes / 1e9:.0f} GB for {most}"
        fix = " ".join(f"--dim {d.name}={d.lo}..N" for d in graph.dims.values())
        fix = f"give dims a number, or smaller bounds: {fix}"
        raise LumcError("E0112", what, fix=fix, exit=Exit.UNSUPPORTED)


class Told(NamedTuple):
    """Where the value of a dim is seen: the extent of an axis of an input is
    ``coefficient * dim + constant``."""

    input: int
    axis: int
    coefficient: int
    constant: int


def told_by(shapes: Iterable[Sequence[Extent]]) -> dict[str, Told]:
    """The dims that shapes of inputs tell. The first extent that has one dim, and no other, does;
    whether the others fit shows when dims are bound."""
    out = dict[str, Told]()
    for i, shape in enumerate(shapes):
        for axis, e in enumerate(shape):
            constant, coefs = linear(e) if isinstance(e, Expr) else (0, {})
            for atom, c in coefs.items() if len(coefs) == 1 else ():
                if atom.kind == "dim":
                    out.setdefault(atom.attr[0], Told(i, axis, c, constant))
    return out


def dims_of(inputs: Sequence[Node], shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """The dims that shapes of inputs, by name, tell; none where an extent could not have it."""
    known = [n for n in inputs if len(shapes.get(n.name, ())) == len(n.shape)]
    out = dict[str, int]()
    for name, told in told_by(n.shape for n in known).items():
        value, rest = divmod(
            shapes[known[told.input].name][told.axis] - told.constant, told.coefficient
        )
        if not rest:
            out[name] = value
    return out


def dims_in(entry: Entry) -> set[str]:
    """The dims that an entry depends on."""
    terms = list[Expr]()
    for n in (*entry.inputs, *entry.nodes):
        terms += [e for _, e in n.loops if isinstance(e, Expr)]
        for o in n.operands:
            terms += o.index if isinstance(o, Read) else (o.index,) if isinstance(o, Iota) else ()
            terms += [e for b in o.bounds for e in (b.index, b.hi) if isinstance(e, Expr)]
    terms += [e for u in entry.updates for e in u.index]
    return {t.attr[0] for t in subterms(*terms) if t.kind == "dim"}


def bind_dims(graph: Graph, wanted: Mapping[str, int | Dim]) -> Graph:
    """The graph with these dims as integers, or within bounds, by name; index maps are simplified
    again.

    Raises E0111 (no such dim, or a value that it may not have) and E0101 (a node that is not valid
    with these values).
    """
    check_values(graph, wanted)
    copy = Binding(graph.dims, wanted)
    copy.b.tokenizer = graph.tokenizer
    copy.b.mesh_of(graph)
    for n in (*graph.weights, *graph.states):
        copy.leaf(n)
    for entry in graph.entries:
        copy.entry(entry, entry.name)
    for name, at in graph.tuned.items():
        if d := copy.b.dims.get(name):
            copy.b.tune(name, [n for n in at if n in d.values])
    return copy.b.graph()


class Binding:
    """Copies leaves and entries of a graph with some dims as integers, or within bounds."""

    def __init__(self, dims: Mapping[str, Dim], wanted: Mapping[str, int | Dim]) -> None:
        self.values = {name: v for name, v in wanted.items() if isinstance(v, int)}
        self.numbers = {dim(name): num(value) for name, value in self.values.items()}
        dims = {**dims, **{d.name: d for d in wanted.values() if isinstance(d, Dim)}}
        self.b = Builder({name: d for name, d in dims.items() if name not in self.values})
        self.made: dict[Node, Node] = {}

    def index(self, e: Expr) -> Expr:
        """The same index."""
        return substitute(e, self.numbers)

    def extent(self, e: Extent) -> Extent:
        """The same extent."""
        return bind(e, self.values)

    def leaf(self, n: Node) -> None:
        """A copy of an input, a weight or a state."""
        b, shape = self.b, [self.extent(e) for e in n.shape]
        b.origin, made = n.origin, (n.dtype, shape, n.file, n.key, n.values, n.how, n.parts)
        self.made[n] = b.leaf(str(n.op), n.name, *made, n.stage)

    def node(self, n: Node) -> None:
        """A copy of a node, of operands that were copied before. Raises E0101."""
        b, made = self.b, self.made
        b.origin = n.origin
        if n.op == "update":
            value = made[n.reads[1].source]
            made[n] = b.updated(Update(made[n.home], tuple(map(self.index, n.at)), value), n.name)
            return
        if isinstance(n.op, Collective):
            axes = [(a, self.extent(e)) for a, e in n.loops]
            made[n] = b.collective(
                n.op, Read(made[n.reads[0].source], n.reads[0].index), axes, n.dtype, n.name
            )
            return
        assert isinstance(n.op, Op)
        operands = map_indices(n.operands, self.index, self.extent, made.__getitem__)
        loops = [(a, self.extent(e)) for a, e in n.loops]
        over = loops.pop() if n.reduced else None
        made[n] = b.node(n.op, operands, loops, over, n.dtype, n.name)

    def entry(
        self, entry: Entry, name: str, of: str = "", dims: Mapping[str, Dim] = NO_DIMS
    ) -> None:
        """A copy by another name, of leaves that were copied before. It does not repeat if the dim
        that counts is one of the numbers."""
        b, made = self.b, self.made
        for n in entry.inputs:
            self.leaf(n)
        for n in entry.nodes:
            self.node(n)
        b.outputs, b.parts = [(name, made[n]) for name, n in entry.outputs], dict(entry.parts)
        b.updates = self.updates(entry)
        b.finish(name, of, dims, entry.repeat if entry.repeat in b.dims else "")

    def updates(self, entry: Entry) -> list[Update]:
        """Copies of the updates after all nodes, which were copied before."""
        made = self.made
        return [
            Update(made[u.state], tuple(map(self.index, u.index)), made[u.value])
            for u in entry.updates
        ]


def check_values(graph: Graph, wanted: Mapping[str, int | Dim]) -> None:
    """Raises E0111 for a dim that the graph does not have, or a value that it may not have."""
    unknown = [name for name in wanted if name not in graph.dims]
    if unknown:
        known = ", ".join(graph.dims) or "none"
        what = f"no dim '{', '.join(unknown)}'"
        raise LumcError("E0111", what, fix=f"dims of this graph: {known}", exit=Exit.USAGE)
    for name, value in wanted.items():
        d = graph.dims[name]
        new = value.values if isinstance(value, Dim) else range(value, value + 1)
        if not new or not all(n in d.values for n in new[:2]) or new[-1] not in d.values:
            said = value.bounds if isinstance(value, Dim) else value
            what = f"dim {name}={said} is not in {d.bounds}"
            raise LumcError("E0111", what, exit=Exit.USAGE)

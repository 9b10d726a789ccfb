"""Giving symbolic dims their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lumc.errors import Exit, LumcError
from lumc.graph.builder import Builder
from lumc.graph.dim import bind, dim_ranges
from lumc.graph.expr import Expr, bounds, dim, linear, num, substitute, subterms
from lumc.graph.graph import Graph, Node, Update, map_indices
from lumc.graph.ops import Op


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


def dims_of(inputs: Sequence[Node], shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """The dims that shapes of inputs, by name, tell: those of an extent ``c * dim + n``. The first
    extent that names a dim decides; whether the others fit shows when these are bound."""
    out = dict[str, int]()
    for node in inputs:
        for e, size in zip(node.shape, shapes.get(node.name, ()), strict=False):
            constant, coefs = linear(e) if isinstance(e, Expr) else (0, {})
            for atom, c in coefs.items() if len(coefs) == 1 else ():
                if atom.kind == "dim" and (size - constant) % c == 0:
                    out.setdefault(atom.attr[0], (size - constant) // c)
    return out


def bind_dims(graph: Graph, values: Mapping[str, int]) -> Graph:
    """The graph with these dims as integers, by name; index maps are simplified again.

    Raises E0111 (no such dim, or a value that it may not have) and E0101 (a node that is not valid
    with these values).
    """
    _check_values(graph, values)
    numbers = {dim(name): num(value) for name, value in values.items()}
    b = Builder({d.name: d for d in graph.dims.values() if d.name not in values})
    made: dict[Node, Node] = {}

    def index(e: Expr) -> Expr:
        return substitute(e, numbers)

    def leaf(n: Node) -> None:
        b.origin, shape = n.origin, [bind(e, values) for e in n.shape]
        made[n] = b.leaf(str(n.op), n.name, n.dtype, shape, n.file, n.key, n.values, n.how)

    def node(n: Node) -> None:
        b.origin = n.origin
        if n.op == "update":
            value = made[n.reads[1].source]
            made[n] = b.updated(Update(made[n.home], tuple(map(index, n.at)), value), n.name)
            return
        assert isinstance(n.op, Op)
        operands = map_indices(n.operands, index, lambda e: bind(e, values), made.__getitem__)
        loops = [(a, bind(e, values)) for a, e in n.loops]
        over = loops.pop() if n.reduced else None
        made[n] = b.node(n.op, operands, loops, over, n.dtype, n.name)

    for n in (*graph.weights, *graph.states):
        leaf(n)
    for entry in graph.entries:
        for n in entry.inputs:
            leaf(n)
        for n in entry.nodes:
            node(n)
        b.outputs = [(name, made[n]) for name, n in entry.outputs]
        for u in entry.updates:
            at = tuple(index(e) for e in u.index)
            b.updates.append(Update(made[u.state], at, made[u.value]))
        b.finish(entry.name)
    return b.graph()


def _check_values(graph: Graph, values: Mapping[str, int]) -> None:
    unknown = [name for name in values if name not in graph.dims]
    if unknown:
        known = ", ".join(graph.dims) or "none"
        what = f"no dim '{', '.join(unknown)}'"
        raise LumcError("E0111", what, fix=f"dims of this graph: {known}", exit=Exit.USAGE)
    for name, value in values.items():
        d = graph.dims[name]
        if not d.lo <= value <= d.hi or value % d.multiple:
            allowed = f"{d.lo}..{d.hi}" + (f" multiple {d.multiple}" if d.multiple > 1 else "")
            what = f"dim {name}={value} is not in {allowed}"
            raise LumcError("E0111", what, exit=Exit.USAGE)

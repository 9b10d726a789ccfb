"""The checks of a graph: when a node is built, and between passes (``verify_graph``).

All raise E0101 and say the node, both sides and what made it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from lumc.graph.collective import Collective
from lumc.graph.derive import check_derivation
from lumc.graph.dim import Dim, as_expr, dim_ranges, largest
from lumc.graph.expr import Expr, add, bounds, dim, linear, subterms
from lumc.graph.graph import (
    Entry,
    Graph,
    Iota,
    Node,
    Operand,
    Read,
    Scalar,
    Update,
    fail,
    shape_text,
)
from lumc.graph.index import Loops, is_injective, is_inside, loop_ranges
from lumc.graph.ops import BINARY, REDUCE, UNARY, DType, Op
from lumc.graph.ranks import check_collective, check_parts, check_ranks
from lumc.graph.update import definition

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,1023}")
STATEMENTS = ("dim", "file", "input", "weight", "state", "entry", "output", "update")
LITERALS = ("inf", "nan", "true", "false")
MAX_RANK = 16  # with the reduced axis
MAX_ELEMENTS = 1 << 62
MAX_REPEATS = 1 << 20  # of an entry in a run


def verify_graph(graph: Graph) -> None:
    """Check everything again: dims, names, order, every node, outputs and updates; raises E0101."""
    for d in graph.dims.values():
        check_dim(d)
    shared = (*graph.weights, *graph.states)
    if not graph.entries:
        fail("graph", "it has no entry: nothing is an output")
    _check_distinct("graph", [*graph.dims, *(n.name for n in shared)])
    _check_distinct("graph", [e.name for e in graph.entries])
    for leaf in shared:
        check_node(leaf, graph.dims)
    for entry in graph.entries:
        check_name(entry.name)
        _check_entry(entry, graph, shared)
    check_ranks(graph)


def _check_entry(entry: Entry, graph: Graph, shared: Sequence[Node]) -> None:
    nodes = (*entry.inputs, *entry.nodes)
    _check_distinct(entry.name, [*graph.dims, *(n.name for n in (*shared, *nodes))])
    _check_distinct(entry.name, [name for name, _ in entry.outputs])
    known = set(shared)
    for node in nodes:
        for o in node.operands:
            if isinstance(o, Read) and o.source not in known:
                fail(node, f"reads '{o.source.name}', which is not before it")
        check_node(node, graph.dims)
        known.add(node)
    for name, value in (*entry.outputs, *((u.state.name, u.value) for u in entry.updates)):
        check_name(name)
        if value not in known:
            fail(value, f"'{name}' is made from a node of another entry")
    for _, value in entry.outputs:
        if value.op == "update":
            fail(value, f"'{value.name}' is in the memory of its state: copy it with contiguous")
    for update in entry.writes:
        if update.state not in known:
            fail(update.state, "update of a state of another graph")
        check_update(update, graph.dims)
    check_chains(entry, graph.dims)
    if not entry.outputs and not entry.writes:
        fail(entry.name, f"entry '{entry.name}' has no output and no update")


def check_chains(entry: Entry, dims: Mapping[str, Dim]) -> None:
    """Every updated state reads the one before it, and what its update says; raises E0101."""
    last = dict[Node, Node]()
    for n in (n for n in entry.nodes if n.op == "update"):
        state = n.home
        want = definition(n.write, last.get(state, state), dims)
        is_like = (n.dtype, n.axes, n.shape) == (state.dtype, state.axes, state.shape)
        if n.operands != want or not is_like:
            fail(n, f"is not '{state.name}' after an update of it")
        last[state] = n


def _check_distinct(where: str, names: Sequence[str]) -> None:
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        fail(where, f"used twice: {', '.join(twice[:10])}")


def check_name(name: str, reserved: Sequence[str] = (), node: Node | str = "") -> None:
    """A name of the text form that is no reserved word; raises E0101."""
    if name in reserved:
        fail(node or name, f"'{name}' is a word of the text form")
    if not NAME.fullmatch(name):
        fail(node or name[:80], f"{name[:80]!r} is not a name: [A-Za-z_][A-Za-z0-9_.]*")


def check_dim(d: Dim) -> None:
    """The name and the bounds of a dim; raises E0101."""
    check_name(d.name, LITERALS)
    if "." in d.name:  # names parts of axes in kernels
        fail(d.name, f"dim '{d.name}' has a dot in its name")
    if not d.is_possible:
        fail(d.name, f"dim {d.name} in {d.lo}..{d.hi} multiple {d.multiple}: impossible bounds")


def result_dtype(op: Op, operands: Sequence[Operand]) -> DType:
    """The dtype of a primitive's result: bool of ``lt``, that of the second operand of a select
    (``mul`` by a bool), of the first one of all others."""
    if op is Op.LT or not operands:
        return DType.BOOL
    if op is Op.MUL and len(operands) == 2 and operands[0].dtype is DType.BOOL:
        return operands[1].dtype
    return operands[0].dtype


def check_node(node: Node, dims: Mapping[str, Dim]) -> None:
    """A leaf: name, shape, values, derivation. A primitive: also arity, dtypes, axes, index maps
    and bounds. Raises E0101."""
    check_name(node.name, () if node.is_leaf and node.op != "update" else STATEMENTS, node)
    _check_shape(node, dims)
    op, loops = node.op, dict(node.loops)
    if isinstance(op, Collective):
        _check_axes(node, loops, dims)
        check_collective(node, op)
        return
    if not isinstance(op, Op):
        check_parts(node, node.parts, node.shape)
        if node.values and (not node.dtype.is_int or node.values[0] > node.values[1]):
            fail(node, f"values {node.values[0]}..{node.values[1]} of {node.dtype.value}")
        if node.how:
            check_derivation(node.whole, node.how)
        for operand in node.operands:
            _check_operand(node, operand, loops, dims)
        return
    arity = 2 if op in BINARY else 1
    if len(node.operands) != arity:
        fail(node, f"{op.value} takes {arity} operand(s), got {len(node.operands)}")
    if (op in REDUCE) != (node.reduced is not None):
        fail(node, f"{op.value} {'needs a' if op in REDUCE else 'has no'} reduced axis")
    _check_dtypes(node, op)
    _check_axes(node, loops, dims)
    for operand in node.operands:
        _check_operand(node, operand, loops, dims)


def _check_axes(node: Node, loops: Loops, dims: Mapping[str, Dim]) -> None:
    if len(loops) != len(node.loops):
        fail(node, f"axis names repeat: {', '.join(a for a, _ in node.loops)}")
    for axis, size in loops.items():
        check_name(axis, LITERALS, node)
        if axis in dims and size != dim(axis):
            fail(node, f"axis '{axis}' has the name of a dim but extent {size}")


def _check_shape(node: Node, dims: Mapping[str, Dim]) -> None:
    """Rank, extents and the number of points."""
    sizes = [e for _, e in node.loops]
    if len(sizes) > MAX_RANK:
        fail(node, f"rank {len(sizes)} is larger than {MAX_RANK}")
    for e in sizes:
        _check_index(node, as_expr(e), {}, dims)
        if (e if isinstance(e, int) else bounds(e, dim_ranges(dims))[0]) < 0:
            fail(node, f"negative extent in {shape_text(sizes)}")
    if math.prod(largest(e, dims) for e in sizes) > MAX_ELEMENTS:
        fail(node, f"{shape_text(sizes)} has too many elements")


def _check_dtypes(node: Node, op: Op) -> None:
    dtypes = [o.dtype for o in node.operands]
    said = " and ".join(d.value for d in dtypes)
    if op in UNARY and not dtypes[0].is_float:
        fail(node, f"{op.value} needs a float operand, got {said}")
    if op in BINARY and dtypes[0] is not dtypes[1]:
        if op is not Op.MUL or DType.BOOL not in dtypes:
            fail(node, f"{op.value} of different dtypes: {said}")
        if dtypes[0] is not DType.BOOL:
            fail(node, f"mul selects by its first operand, got {said}")
    if op in (Op.MOD, Op.SUM) and dtypes[0] is DType.BOOL:
        fail(node, f"{op.value} of bool; cast with contiguous first")
    expected = node.dtype if op is Op.CONTIGUOUS else result_dtype(op, node.operands)
    if node.dtype is not expected:
        fail(node, f"result is {expected}, declared {node.dtype}")


def _check_operand(node: Node, o: Operand, loops: Loops, dims: Mapping[str, Dim]) -> None:
    if len(o.bounds) > MAX_RANK:
        fail(node, f"an operand has {len(o.bounds)} bounds, more than {MAX_RANK}")
    for b in o.bounds:
        _check_index(node, b.index, loops, dims)
        _check_index(node, add(as_expr(b.hi), b.lo), {}, dims)
    if isinstance(o, Read):
        _check_read(node, o, loops, dims)
    elif isinstance(o, Iota):
        _check_index(node, o.index, loops, dims)
        if o.dtype is DType.BOOL:
            fail(node, "an index is a number, not a bool")
    else:
        _check_scalar(node, o)


def _check_index(node: Node, e: Expr, axes: Loops, dims: Mapping[str, Dim]) -> None:
    """What an index expression names, and that its numbers are small."""
    for t in subterms(e):
        known = {"axis": axes, "dim": dims}.get(t.kind)
        if known is not None and t.attr[0] not in known:
            names = ", ".join((*axes, *dims)) or "nothing"
            fail(node, f"'{e}' uses {t.kind} '{t.attr[0]}'; known here: {names}")
        if t.kind == "dim" and t.attr[0] in axes:
            fail(node, f"'{e}' uses dim '{t.attr[0]}', which an axis of that name hides")
        constant, coefs = linear(t)
        if max(map(abs, (constant, *coefs.values()))) > MAX_ELEMENTS:
            fail(node, f"a number in '{e}' is larger than {MAX_ELEMENTS}")


def _check_scalar(node: Node, scalar: Scalar) -> None:
    kind, value = scalar.dtype, scalar.value
    fits = isinstance(value, bool) == (kind is DType.BOOL)
    if kind.is_int:
        lo, hi = kind.limits
        fits = fits and isinstance(value, int) and lo <= value <= hi
    if not fits:
        fail(node, f"{value!r} is not a value of {kind}")


def _check_read(node: Node, read: Read, loops: Loops, dims: Mapping[str, Dim]) -> None:
    """Every index must provably lie inside its source, after the bounds of the read."""
    source = f"'{read.source.name}' {shape_text(read.source.shape)}"
    rank, want = len(read.index), len(read.source.shape)
    if rank != want:
        fail(node, f"reads {source} with {rank} indices, needs {want}")
    for e in read.index:
        _check_index(node, e, loops, dims)
    for e, size in zip(read.index, read.source.shape, strict=True):
        plain = 0 in loops.values() or (e.kind == "axis" and loops[e.attr[0]] == size)
        if not plain and not is_inside(e, size, read.bounds, loops, dims):
            lo, hi = bounds(e, loop_ranges(loops, dims))
            fail(node, f"reads {source} out of bounds: index {e} spans {lo}..{hi}, extent {size}")


def check_repeat(entry: Entry, dims: Mapping[str, Dim]) -> None:
    """The dim that counts how often a run goes through an entry: there is one of this name, it does
    not count on and on, and no tensor of the caller has it in its shape. Raises E0101."""
    name = entry.repeat
    if name not in dims:
        fail(entry.name, f"entry '{entry.name}' repeats over '{name}', which is no dim")
    if len(dims[name].values) > MAX_REPEATS:
        what = f"{len(dims[name].values)} times, more than {MAX_REPEATS}"
        fail(entry.name, f"entry '{entry.name}' repeats over dim {dims[name]}: {what}")
    for node in (*entry.inputs, *(n for _, n in entry.outputs)):
        sizes = subterms(*(e for e in node.shape if isinstance(e, Expr)))
        if dim(name) in sizes:
            what = f"dim '{name}' counts how often entry '{entry.name}' is run through"
            fail(node, f"{what}: it is in no shape of an input or an output")


def check_update(update: Update, dims: Mapping[str, Dim]) -> None:
    """Dtype, index map and bounds of an update; every element is written at most once. Raises
    E0101."""
    state, value = update.state, update.value
    if state.op != "state" or state.dtype is not value.dtype:
        what = f"update of {state.op} '{state.name}' {state.dtype} with {value.dtype}"
        fail(value, what)
    loops = dict(zip(value.axes, value.shape, strict=True))
    _check_read(value, Read(state, update.index), loops, dims)
    if not is_injective(update.index, loops, dims):
        where = ", ".join(str(e) for e in update.index)
        fail(value, f"update {state.name}[{where}] may write an element twice")

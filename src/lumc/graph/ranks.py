"""The checks of graphs that several ranks run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from lumc.errors import Exit, LumcError
from lumc.graph.batches import check_batches
from lumc.graph.collective import MAX_AXES, MAX_RANKS, Collective, Kind, Part, Stage
from lumc.graph.expr import axis
from lumc.graph.graph import Entry, Graph, Node, Read, fail, reachable, shape_text
from lumc.graph.ops import DType, Op
from lumc.graph.stages import check_stages

EXCHANGING = ("cuda", "cpu")  # kinds of targets whose ranks exchange values, the best first
UNKNOWN_TO_NCCL = (DType.I16, DType.U16)  # that it does not reduce


def require_one_rank(graph: Graph, pass_name: str) -> None:
    """Raises E0140 (a graph for a mesh) in the name of a pass that knows none."""
    if graph.mesh:
        what = f"{pass_name} takes no graphs for a mesh yet, and this one is for {said(graph)}"
        raise LumcError("E0140", what, exit=Exit.UNSUPPORTED)


def require_processes(graph: Graph, kind: str) -> None:
    """Raises E0140 for a graph for a mesh and a kind of target on which ranks exchange nothing, or
    nothing in time, for one without ranks, for sums of halves, which would be rounded at every
    rank, and for dtypes that NCCL does not reduce."""
    if graph.mesh and kind not in EXCHANGING:
        what = f"a graph for {said(graph)} cannot run on {kind}: ranks run on CPUs and on CUDA"
        raise LumcError("E0140", what, fix="--target cpu:native", exit=Exit.UNSUPPORTED)
    if graph.time and kind != "cpu":
        what = f"a graph for {said(graph)} cannot run on {kind}: micro-batches run on CPUs"
        fix = "--target cpu:native, or shard without --batches"
        raise LumcError("E0140", what, fix=fix, exit=Exit.UNSUPPORTED)
    if graph.time and graph.ranks == 1:
        what = f"micro-batches along '{graph.time}' are of ranks, and the graph is for none"
        raise LumcError("E0140", what, fix="lumc shard --mesh", exit=Exit.UNSUPPORTED)
    for n in (n for e in graph.entries for n in exchanged(e)):
        reduces = isinstance(n.op, Collective) and n.op.kind.reduces
        if kind == "cuda" and reduces and n.dtype in UNKNOWN_TO_NCCL:
            what = f"'{n.name}' reduces {n.dtype} between ranks, which NCCL does not"
            raise LumcError("E0140", what, fix="cast it to i32 before", exit=Exit.UNSUPPORTED)
        is_sum = isinstance(n.op, Collective) and n.op.op is Op.SUM
        if is_sum and n.dtype in (DType.F16, DType.BF16):
            what = f"'{n.name}' is a sum of {n.dtype} between ranks, which would round it each time"
            fix = "sum as f32, as 'lumc shard' does, and cast the result"
            raise LumcError("E0140", what, fix=fix, exit=Exit.UNSUPPORTED)


def exchanged(entry: Entry) -> list[Node]:
    """What an entry needs of collectives."""
    ends = [n for _, n in entry.outputs] + [u.value for u in entry.writes]
    used = reachable(ends, lambda n: [r.source for r in n.reads])
    return [n for n in entry.nodes if n in used and isinstance(n.op, Collective)]


def said(graph: Graph) -> str:
    """``8 ranks (tp 4, dp 2)``; ``4 ranks (pp 4), 8 micro-batches``"""
    of_ranks = [f"{name} {n}" for name, n in graph.mesh.items() if name != graph.time]
    batches = f", {graph.mesh[graph.time]} micro-batches" if graph.time else ""
    return f"{graph.ranks} ranks ({', '.join(of_ranks)}){batches}"


def check_mesh(mesh: Mapping[str, int]) -> None:
    """How many axes, and how many ranks; raises E0101."""
    if len(mesh) > MAX_AXES or math.prod(mesh.values()) > MAX_RANKS:
        fail("mesh", f"a mesh has at most {MAX_AXES} axes and {MAX_RANKS} ranks")
    for name, ranks in mesh.items():
        if ranks < 2:
            fail("mesh", f"axis '{name}' of the mesh has {ranks} rank: at least 2")


def check_parts(node: Node | str, parts: Sequence[Part], shape: Sequence[object]) -> None:
    """The parts of a tensor, of which a rank has this shape; raises E0101."""
    if len({p.mesh for p in parts}) < len(parts):
        fail(node, "a tensor is cut once at most by every axis of the mesh")
    for p in parts:
        if not (0 <= p.dim < len(shape) and isinstance(shape[p.dim], int)):
            fail(node, f"part {p}: {p.dim} is no dim of {list(map(str, shape))} that is a number")


def check_collective(node: Node, op: Collective) -> None:
    """Operand, axes, shapes and dtypes of a collective; raises E0101."""
    name, kind = op.kind.value, op.kind
    match node.operands:
        case (Read(source, index, ()),) if index == tuple(map(axis, node.axes)):
            pass
        case _:
            fail(node, f"{name} takes a value at its own axes")
    has = tuple(x is not None for x in (op.op, op.split, op.concat, op.source, op.target))
    needs = kind.reduces, kind.splits, kind.joins, kind.leaves, kind is Kind.SEND
    if has != needs or op.op not in (None, Op.SUM, Op.MAX):
        fail(node, f"{name} says {_needs(kind)}")
    for at in (op.source, op.target):
        if at is not None and not 0 <= at < op.ranks:
            fail(node, f"{name}: stage {at} of {op.ranks}")
    if kind is Kind.SEND and op.source == op.target:
        fail(node, f"{name} from stage {op.source} to itself")
    if len(source.shape) != len(node.axes) or not op.is_possible(source.shape):
        fail(node, f"{name} of {op.ranks} ranks cannot be of {shape_text(source.shape)}")
    if op.split is not None and op.split == op.concat:
        fail(node, f"{name} splits one axis and joins another")
    want = op.shape(source.shape)
    if node.shape != want or node.dtype is not source.dtype:
        made = f"{source.dtype}{shape_text(want)}"
        fail(node, f"{name} makes {made}, declared {node.dtype}{shape_text(node.shape)}")
    if op.op is Op.SUM and node.dtype is DType.BOOL:
        fail(node, "a sum of bool; reduce with max")


def _needs(kind: Kind) -> str:
    words = [("sum or max", kind.reduces), ("split AXIS", kind.splits), ("concat AXIS", kind.joins)]
    words += [("a stage", kind.leaves), ("to a stage", kind is Kind.SEND)]
    return " and ".join(word for word, needed in words if needed)


def check_ranks(graph: Graph) -> None:
    """The mesh; that nodes, parts and stages are of it; and that what every rank is said to have
    whole is the same on all: outputs, and values of states that are not in parts. Raises E0101."""
    check_mesh(graph.mesh)
    for leaf in (*graph.weights, *graph.states):
        _check_known(leaf, [*leaf.parts, *([leaf.stage] if leaf.stage else [])], graph.mesh)
        if leaf.stage and not 0 <= leaf.stage.at < leaf.stage.ranks:
            fail(leaf, f"stage {leaf.stage.at} of {leaf.stage.ranks}")
    for entry in graph.entries:
        for node in (*entry.inputs, *entry.nodes):
            ranks = [node.op] if isinstance(node.op, Collective) else node.parts
            _check_known(node, ranks, graph.mesh)
        outputs = dict(entry.outputs)
        for name, parts in entry.parts.items():
            if name not in outputs:
                fail(name, f"there is no output '{name}' that is in parts")
            _check_known(outputs[name], parts, graph.mesh)
            check_parts(outputs[name], parts, outputs[name].shape)
    check_batches(graph)
    check_stages(graph)
    for entry in graph.entries:
        for mesh in graph.mesh:
            _check_same(entry, (*graph.weights, *graph.states), mesh)


def _check_known(
    node: Node, every: Sequence[Part | Stage | Collective], mesh: Mapping[str, int]
) -> None:
    for p in every:
        if mesh.get(p.mesh) != p.ranks:
            fail(node, f"the mesh has no axis '{p.mesh}' of {p.ranks} ranks")


def _check_same(entry: Entry, shared: Sequence[Node], mesh: str) -> None:
    """What has no part by an axis of the mesh does not differ along it."""
    differs = {n for n in (*shared, *entry.inputs) if _is_cut(n.parts, mesh)}
    for n in entry.nodes:
        own = n.op if isinstance(n.op, Collective) and n.op.mesh == mesh else None
        if own.kind.splits if own else any(r.source in differs for r in n.reads):
            differs.add(n)
    fix = f"differs between the ranks along '{mesh}'"
    for name, value in entry.outputs:
        if value in differs and not _is_cut(entry.parts.get(name, ()), mesh):
            fail(value, f"output '{name}' {fix}, and is not in parts by it")
    for u in entry.writes:
        if u.value in differs and not _is_cut(u.state.parts, mesh):
            fail(u.value, f"the new value of '{u.state.name}' {fix}, and the state is not in parts")


def _is_cut(parts: Sequence[Part], mesh: str) -> bool:
    return any(p.mesh == mesh for p in parts)

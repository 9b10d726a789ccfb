"""The lines of the ``.lg`` text form, one for each statement."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence

from lumc.graph.collective import Collective, Part
from lumc.graph.expr import dim
from lumc.graph.graph import Derivation, Entry, Graph, Iota, Node, Operand, Read, Update, WeightFile
from lumc.graph.ops import Op


def head_lines(graph: Graph) -> Iterator[str]:
    """A line for each dim, and for each axis of the mesh."""
    for d in graph.dims.values():
        step = f" multiple {d.multiple}" if d.multiple > 1 else ""
        at = ", ".join(map(str, graph.tuned.get(d.name, ())))
        yield f"dim {d.name} in {d.lo}..{d.hi}{step}" + (f" tune {at}" if at else "")
    for name, ranks in graph.mesh.items():
        yield f"mesh {name} {ranks}" + " in time" * (name == graph.time)


def entry_lines(entry: Entry) -> Iterator[str]:
    """A line for each input, node, output and update."""
    yield from (leaf_text(i) for i in entry.inputs)
    yield from (node_text(n) for n in entry.nodes)
    for name, value in entry.outputs:
        yield f"output {name} = {value.name}{parts_text(entry.parts.get(name, ()))}"
    yield from map(update_text, entry.updates)


def update_text(u: Update) -> str:
    """``update cache[h, p + i, d] = new[h, i, d]``"""
    return f"update {u.state.name}{_listed(u.index)} = {u.value.name}{_listed(u.value.axes)}"


def held_text(leaf: Node) -> str:
    """What of a leaf a rank has, and which ranks: `` part 0 by tp on 1 by pp``, or nothing."""
    return parts_text(leaf.parts) + (f" on {leaf.stage}" if leaf.stage else "")


def parts_text(parts: Sequence[Part]) -> str:
    """`` part 0 by tp, 1 by dp``, or nothing."""
    return f" part {', '.join(map(str, parts))}" if parts else ""


def _listed(items: Sequence[object]) -> str:
    return "[" + ", ".join(str(i) for i in items) + "]"


def leaf_text(leaf: Node, path: Callable[[WeightFile], str] = lambda f: f.path) -> str:
    """``input x f32[b, 784]``; ``weight w f32[8, 4] "m.safetensors" "w"``."""
    span = f" in {leaf.values[0]}..{leaf.values[1]}" if leaf.values else ""
    text = f"{leaf.op} {leaf.name} {leaf.dtype.value}{_listed(leaf.shape)}{span}"
    if leaf.file is None:
        return text + held_text(leaf)
    where = f"{json.dumps(path(leaf.file))} {json.dumps(leaf.key)}"
    return f"{text} {where}{derivation_text(leaf.how)}{held_text(leaf)}"


def derivation_text(how: Derivation | None) -> str:
    """What stands behind the key of a weight that is not read as it is stored."""
    if how and how.layout:
        return f" from {how.layout} {how.part}"
    blocks = f" {how.part} {how.axis} by {how.block}" if how and how.part else ""
    return f" from {how.dtype}{blocks}" if how else ""


def node_text(node: Node) -> str:
    """One line: ``t1 f32[b, n:128] = sum k:784 of t0[b, n, k]``."""
    if node.op == "update":
        return f"{node.name} = {update_text(node.write)}"
    loops = [name if size == dim(name) else f"{name}:{size}" for name, size in node.loops]
    if isinstance(node.op, Collective):
        words = _collective_text(node.op, node.axes)
        source = f"{node.reads[0].source.name}{_listed(node.axes)}"
        return f"{node.name} {node.dtype.value}{_listed(loops)} = {words} of {source}"
    assert isinstance(node.op, Op)
    over = f" {loops.pop()} of" if node.reduced else ""
    first = node.operands[0].dtype
    operands = [_operand_text(o, i > 0 and o.dtype is first) for i, o in enumerate(node.operands)]
    head = f"{node.name} {node.dtype.value}{_listed(loops)} = {node.op.value}{over}"
    return f"{head} {', '.join(operands)}"


def _collective_text(op: Collective, axes: Sequence[str]) -> str:
    """``reduce_scatter sum split n by tp``; ``send 0 to 1 by pp``"""
    words = [op.kind.value, *([op.op.value] if op.op else [])]
    words += [f"split {axes[op.split]}"] if op.split is not None else []
    words += [f"concat {axes[op.concat]}"] if op.concat is not None else []
    words += [str(op.source)] if op.source is not None else []
    words += [f"to {op.target}"] if op.target is not None else []
    return " ".join([*words, f"by {op.mesh}"])


def _operand_text(o: Operand, bare: bool) -> str:
    if isinstance(o, Read):
        text = o.source.name + _listed(o.index)
    elif isinstance(o, Iota):
        text = f"{o.dtype.value}({o.index})"
    else:
        text = repr(float(o.value)) if o.dtype.is_float else str(o.value).lower()
        text = text if bare else f"{o.dtype.value}({text})"
    limits = " and ".join(f"{b.lo} <= {b.index} < {b.hi}" for b in o.bounds)
    return f"{text} if {limits}" if limits else text

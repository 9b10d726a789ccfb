"""A graph of which one entry also has gradients as outputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import NamedTuple

from lumc.errors import Exit, LumcError
from lumc.frontend.api.model import Model
from lumc.frontend.api.tensor import Tensor
from lumc.grad.reverse import alive, gradients, sources
from lumc.graph.expr import axis
from lumc.graph.graph import (
    Derivation,
    Entry,
    Graph,
    Node,
    Read,
    Update,
    map_indices,
    reachable,
)
from lumc.graph.ops import DType, Op

SHOWN = 10  # names that are listed, at most
Nodes = Mapping[Node, Node]
Grow = Callable[[Model, Nodes, Nodes], None]  # the nodes made for those of the graph; the trained
# what a loss, parameters and constants add to an entry: updates of the parameters
Learn = Callable[[Tensor, Sequence[Tensor], Sequence[Tensor]], None]


class Grown(NamedTuple):
    """The new graph, the values whose gradients it has, and those that a pattern matched and the
    loss does not depend on."""

    graph: Graph
    wrt: list[str]
    unused: list[str]


def with_gradients(
    graph: Graph,
    entry: str,
    loss: str,
    wrt: Sequence[str],
    stop: Sequence[str] = (),
    learn: Learn | None = None,
) -> Grown:
    """The graph, with an output ``NAME.grad`` of an entry for every value that ``wrt`` names: the
    derivative of ``loss`` by it, of its shape and dtype.

    ``loss`` is an output or a node of the entry, and is an output then. ``wrt`` names inputs,
    weights, states and nodes; with ``*`` or ``?`` floats among the first three that the loss
    depends on. Weights among them become inputs of every entry that reads them, as a caller that
    changes them has to give them. What ``stop`` names counts as constant.

    With ``learn`` they become states, which begin with the values in their files, in f32 where the
    weight has 16 bits; there are no outputs for gradients, but what ``learn`` adds: updates.

    Raises E0110, E0212 (no such name), E0126 (an output of that name), E0203 (what is no weight and
    no state cannot learn) and as ``gradients``.
    """
    old = graph.entry(entry)
    known = _known(graph, old)
    end = dict(old.outputs).get(loss) or known.get(loss)
    if end is None:
        raise _unknown("--loss", loss, [name for name, _ in old.outputs], known)
    stopped = [n for text in stop for n in _matching("--stop", text, known, known)]
    below = reachable([end], sources)
    lives = alive([n for n in old.nodes if n in below], end, stopped)
    found, unused = _chosen(loss, wrt, known, lives, learn is not None)

    def grow(m: Model, new: Nodes, kept: Nodes) -> None:
        if loss not in dict(old.outputs):
            m.output(loss, m.whole(new[end]))
        m.origin = end.origin  # where the loss comes from, for messages
        every = [m.whole(kept.get(n) or new[n]) for n in found]
        result, constant = m.whole(new[end]), [m.whole(new[n]) for n in stopped]
        if learn:
            learn(result, every, constant)
        else:
            for n, slope in zip(found, gradients(result, every, constant), strict=True):
                m.output(f"{n.name}.grad", slope)
        m.origin = ""

    given = [n for n in found if n.op == "weight"]
    made = _extended(graph, old, given, "state" if learn else "input", grow)
    return Grown(made, [n.name for n in found], unused)


# ---- names


def _chosen(
    loss: str, wrt: Sequence[str], known: Mapping[str, Node], lives: Collection[Node], learn: bool
) -> tuple[list[Node], list[str]]:
    """The values that ``wrt`` names; of the leaves that a pattern matches those that the loss
    depends on, and the names of the others."""
    kinds = ("weight", "state") if learn else ("input", "weight", "state")
    floats = {name: n for name, n in known.items() if n.op in kinds and n.dtype.is_float}
    found, unused = dict[Node, None](), list[str]()
    for text in wrt:
        for n in _matching("--wrt", text, known, floats):
            if n in lives or text in known:
                found[n] = None
            else:
                unused.append(n.name)
    if not found:
        what = f"the loss '{loss}' has no derivative by anything that --wrt names"
        fix = f"it depends on: {listed([n.name for n in floats.values() if n in lives])}"
        raise LumcError("E0132", what, fix=fix, exit=Exit.UNSUPPORTED)
    if learn and (odd := [n.name for n in found if n.op not in kinds]):
        what, fix = f"--train and --wrt {odd[0]}: no run keeps it", "name weights and states"
        raise LumcError("E0203", what, fix=fix, exit=Exit.USAGE)
    return list(found), unused


def _known(graph: Graph, entry: Entry) -> dict[str, Node]:
    every = (*entry.inputs, *graph.weights, *graph.states, *entry.nodes)
    return {n.name: n for n in every}


def _matching(
    option: str, text: str, known: Mapping[str, Node], among: Mapping[str, Node]
) -> list[Node]:
    """The node of a name, or those whose names match a pattern."""
    if text in known:
        return [known[text]]
    found = [n for name, n in among.items() if fnmatchcase(name, text)]
    if not found or not {"*", "?", "["} & set(text):
        raise _unknown(option, text, list(among), known)
    return found


def _unknown(option: str, name: str, names: Sequence[str], known: Mapping[str, Node]) -> LumcError:
    near = get_close_matches(name, [*names, *known], 3)
    fix = f"one of: {listed(names)}" if not near else f"did you mean {' or '.join(near)}?"
    return LumcError("E0212", f"{option} {name}: no value of that name", fix=fix, exit=Exit.USAGE)


def listed(names: Sequence[str]) -> str:
    """Names in a message, not all of many."""
    more = f", and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return (", ".join(names[:SHOWN]) or "nothing") + more


# ---- a graph that is made again


def _extended(graph: Graph, entry: Entry, given: Collection[Node], kind: str, grow: Grow) -> Graph:
    """The same graph, whose weights ``given`` are inputs or states, with what ``grow`` adds to an
    entry."""
    m = Model()
    m.builder.dims.update(graph.dims)
    m.builder.tuned.update(graph.tuned)
    m.builder.tokenizer = graph.tokenizer
    shared = {n: _leaf(m, n) for n in (*graph.weights, *graph.states) if n not in given}
    kept = {n: _leaf(m, _trained(n)) for n in given} if kind == "state" else {}
    for e in graph.entries:
        m.entry(e.name, e.repeat)
        new = dict(shared)
        used = {s for n in e.nodes for s in sources(n)} | {n for _, n in e.outputs}
        used |= {u.value for u in e.updates}
        here = [w for w in given if w in used or e is entry]
        for n in e.inputs:
            new[n] = _leaf(m, n)
        for n in here:
            if n in kept:
                new[n] = _as_read(m, kept[n], n)
            else:
                new[n] = _leaf(m, replace(n, op="input", file=None, key="", how=None))
        for n in e.nodes:
            new[n] = _node(m, n, new)
            m.name(m.whole(new[n]), n.name)
        m.builder.outputs += [(name, new[n]) for name, n in e.outputs]
        m.builder.updates += [_update(u, new) for u in e.updates]
        if e is entry:
            grow(m, new, kept)
    return m.graph()


def _trained(n: Node) -> Node:
    """A weight as a state, in f32 if it has 16 bits: its small steps would be rounded away."""
    if n.dtype.nbytes > 2:
        return replace(n, op="state")
    how = None if n.how and n.how.dtype is DType.F32 else n.how or Derivation(n.dtype)
    return replace(n, op="state", dtype=DType.F32, how=how)


def _as_read(m: Model, kept: Node, weight: Node) -> Node:
    """A state in the dtype in which the entry reads the weight."""
    if kept.dtype is weight.dtype:
        return kept
    read, name = Read(kept, tuple(map(axis, kept.axes))), f"{weight.name}.{weight.dtype}"
    loops = list(zip(kept.axes, kept.shape, strict=True))
    return m.builder.node(Op.CONTIGUOUS, [read], loops, None, weight.dtype, name)


def _leaf(m: Model, n: Node) -> Node:
    m.origin = n.origin
    kind = str(n.op)
    made = m.builder.leaf(kind, n.name, n.dtype, n.shape, n.file, n.key, n.values, n.how)
    m.whole(made)
    m.origin = ""
    return made


def _node(m: Model, n: Node, new: Nodes) -> Node:
    m.origin, loops = n.origin, list(n.loops)
    if not isinstance(n.op, Op):
        made = m.builder.updated(_update(n.write, new), n.name)
    else:
        over = loops.pop() if n.reduced else None
        operands = map_indices(n.operands, lambda e: e, lambda e: e, new.__getitem__)
        made = m.builder.node(n.op, operands, loops, over, n.dtype, n.name)
    m.origin = ""
    return made


def _update(u: Update, new: Nodes) -> Update:
    return Update(new[u.state], u.index, new[u.value])

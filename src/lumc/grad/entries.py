"""A graph of which one entry also has gradients as outputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import NamedTuple

from lumc.errors import Exit, LumcError
from lumc.frontend.api.model import Model
from lumc.grad.reverse import alive, gradients, sources
from lumc.graph.expr import dim
from lumc.graph.graph import Entry, Graph, Node, Update, map_indices, reachable
from lumc.graph.ops import Op

SHOWN = 10  # names that are listed, at most
Nodes = Mapping[Node, Node]


class Grown(NamedTuple):
    """The new graph, the values whose gradients it has, and those that a pattern matched and the
    loss does not depend on."""

    graph: Graph
    wrt: list[str]
    unused: list[str]


def with_gradients(
    graph: Graph, entry: str, loss: str, wrt: Sequence[str], stop: Sequence[str] = ()
) -> Grown:
    """The graph, with an output ``NAME.grad`` of an entry for every value that ``wrt`` names: the
    derivative of ``loss`` by it, of its shape and dtype.

    ``loss`` is an output or a node of the entry, and is an output then. ``wrt`` names inputs,
    weights, states and nodes; with ``*`` or ``?`` floats among the first three that the loss
    depends on. Weights among them become inputs of every entry that reads them, as a caller that
    changes them has to give them. What ``stop`` names counts as constant. Raises E0110, E0212
    (no such name), E0126 (an output of that name) and as ``gradients``.
    """
    old = graph.entry(entry)
    known = _known(graph, old)
    end = dict(old.outputs).get(loss) or known.get(loss)
    if end is None:
        raise _unknown("--loss", loss, [name for name, _ in old.outputs], known)
    stopped = [n for text in stop for n in _matching("--stop", text, known, known)]
    below = reachable([end], sources)
    lives = alive([n for n in old.nodes if n in below], end, stopped)
    leaves = {name: n for name, n in known.items() if n.is_leaf and n.op != "update"}
    floats = {name: n for name, n in leaves.items() if n.dtype.is_float}
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

    def grow(m: Model, new: Nodes) -> None:
        if loss not in dict(old.outputs):
            m.output(loss, m.whole(new[end]))
        m.origin = end.origin  # where the loss comes from, for messages
        every = [m.whole(new[n]) for n in found]
        slopes = gradients(m.whole(new[end]), every, [m.whole(new[n]) for n in stopped])
        for n, slope in zip(found, slopes, strict=True):
            m.output(f"{n.name}.grad", slope)
        m.origin = ""

    made = _extended(graph, old, [n for n in found if n.op == "weight"], grow)
    return Grown(made, [n.name for n in found], unused)


# ---- names


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


def _extended(
    graph: Graph, entry: Entry, given: Collection[Node], grow: Callable[[Model, Nodes], None]
) -> Graph:
    """The same graph, whose weights ``given`` are inputs, with what ``grow`` adds to an entry."""
    m = Model()
    m.builder.dims.update(graph.dims)
    m.builder.tuned.update(graph.tuned)
    m.builder.tokenizer = graph.tokenizer
    shared = {n: _leaf(m, n) for n in (*graph.weights, *graph.states) if n not in given}
    for e in graph.entries:
        m.entry(e.name, dim(e.repeat) if e.repeat else None)
        new = dict(shared)
        used = {s for n in e.nodes for s in sources(n)} | {n for _, n in e.outputs}
        used |= {u.value for u in e.updates}
        for n in (*e.inputs, *(w for w in given if w in used or e is entry)):
            new[n] = _leaf(m, replace(n, op="input", how=None))
        for n in e.nodes:
            new[n] = _node(m, n, new)
            m.name(m.whole(new[n]), n.name)
        m.builder.outputs += [(name, new[n]) for name, n in e.outputs]
        m.builder.updates += [_update(u, new) for u in e.updates]
        if e is entry:
            grow(m, new)
    return m.graph()


def _leaf(m: Model, n: Node) -> Node:
    m.origin = n.origin
    kind = str(n.op)
    file = (n.file, n.key) if kind == "weight" else (None, "")
    made = m.builder.leaf(kind, n.name, n.dtype, n.shape, *file, n.values, n.how)
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

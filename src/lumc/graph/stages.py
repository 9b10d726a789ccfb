"""Stages of a pipeline: ranks along one axis of the mesh that have weights and nodes of their own.

Weights, states and what is sent say on which stage they are. A node is computed where all is that
it reads; what needs nothing of any stage is computed by every rank that needs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lumc.graph.collective import Collective
from lumc.graph.graph import Entry, Graph, Node, fail


def axis_of_stages(graph: Graph) -> str:
    """The axis of the mesh whose ranks are stages; "" if there is none."""
    return next(iter(_axes(graph)), "")


def _axes(graph: Graph) -> dict[str, None]:
    held = (n.stage.mesh for n in (*graph.weights, *graph.states) if n.stage)
    sent = (c.mesh for e in graph.entries for _, c in _collectives(e) if c.kind.leaves)
    return dict.fromkeys([*held, *sent])


def _collectives(entry: Entry) -> Iterable[tuple[Node, Collective]]:
    return ((n, n.op) for n in entry.nodes if isinstance(n.op, Collective))


def stages_of(entry: Entry) -> dict[Node, int]:
    """The stage of every leaf and node that is of one. Raises E0101 for a node that reads values of
    several, and for what is sent from where it is not."""
    found = dict[Node, int]()
    for n in entry.nodes:
        sources = [r.source for r in n.reads]
        found |= {s: s.stage.at for s in sources if s.stage}
        every = {s: found[s] for s in sources if s in found}
        if len(set(every.values())) > 1:
            said = ", ".join(f"'{s.name}' of stage {at}" for s, at in every.items())
            fail(n, f"reads {said}: send what it needs to one of them")
        own = next(iter(every.values()), None)
        if isinstance(n.op, Collective) and n.op.kind.leaves:
            if own != n.op.source:
                what = "is on every rank" if own is None else f"is of stage {own}"
                fail(n, f"takes '{sources[0].name}' from stage {n.op.source}, and that {what}")
            own = n.op.target
        if own is not None:
            found[n] = own
    ends = [n for _, n in entry.outputs] + [n for u in entry.writes for n in (u.state, u.value)]
    return found | {n: n.stage.at for n in ends if n.stage}


def needed_on(entry: Entry, stages: Mapping[Node, int]) -> dict[Node, frozenset[int]]:
    """On which stages each node that is of none is needed; those that all have to leave are in no
    set."""
    needed, out = dict[Node, set[int]](), dict[Node, frozenset[int]]()
    every = {n for _, n in entry.outputs} | {u.value for u in entry.writes if not u.state.stage}
    for u in entry.writes:
        if u.state.stage:
            needed.setdefault(u.value, set()).add(u.state.stage.at)
    for n in reversed(entry.nodes):
        if n not in stages and n not in every:
            out[n] = frozenset(needed.get(n, ()))
        for source in (r.source for r in n.reads):
            if n in stages:
                needed.setdefault(source, set()).add(stages[n])
            elif n in every:
                every.add(source)
            else:
                needed.setdefault(source, set()).update(out[n])
    return out


def check_stages(graph: Graph) -> None:
    """That ranks along at most one axis are stages, that nothing else is divided along it, and that
    every node has what it reads. Raises E0101."""
    axes = [*_axes(graph)]
    if len(axes) > 1:
        fail("mesh", f"stages along two axes of the mesh: {', '.join(axes)}")
    for mesh in axes:
        leaves = [*graph.weights, *graph.states, *(n for e in graph.entries for n in e.inputs)]
        cut = [n for n in leaves if any(p.mesh == mesh for p in n.parts)]
        other = [n for e in graph.entries for n, c in _collectives(e) if _divides(c, mesh)]
        for n in (*cut, *other):
            fail(n, f"the ranks along '{mesh}' are stages, and have no parts of one value")
        for name in (
            o for e in graph.entries for o, p in e.parts.items() for c in p if c[1] == mesh
        ):
            fail(name, f"the ranks along '{mesh}' are stages, and have no parts of one value")
    for entry in graph.entries:
        stages = stages_of(entry)
        for u in entry.writes:
            at = stages.get(u.value)
            if at is not None and (u.state.stage is None or u.state.stage.at != at):
                where = f"of stage {u.state.stage.at}" if u.state.stage else "on every rank"
                what = f"the new value of '{u.state.name}' is of stage {at}, and the state {where}"
                fail(u.value, what)


def _divides(op: Collective, mesh: str) -> bool:
    return op.mesh == mesh and not op.kind.leaves

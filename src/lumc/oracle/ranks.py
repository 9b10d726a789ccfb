"""What a graph for a mesh means: all ranks in one process, each on its parts of what is given.

Nodes are computed one after the other, on every rank before the next one, so the values of all
ranks are there when a collective makes its result of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from lumc.errors import Exit, LumcError
from lumc.graph.bind import bind_dims, dims_of, require_static
from lumc.graph.collective import Collective, Kind, Part
from lumc.graph.graph import Entry, Graph, Node
from lumc.graph.ops import Op
from lumc.graph.stages import axis_of_stages, stages_of
from lumc.oracle.graph import Array, Run, Weights

Values = dict[str, Array]
Place = tuple[int, ...]  # of a rank: its coordinate along every axis of the mesh


def evaluate_mesh(
    graph: Graph,
    entry: str,
    inputs: Mapping[str, Array],
    weights: Weights,
    states: Mapping[str, Array] | None = None,
    declared: bool = False,
    dims: Mapping[str, int] | None = None,
) -> tuple[Values, Values]:
    """As ``oracle.graph.evaluate``, of a graph for a mesh: whole arrays in, whole arrays out."""
    if counter := graph.entry(entry).repeat:
        outputs, after = dict[str, Array](), dict(states or {})
        own = {name: value for name, value in (dims or {}).items() if name != counter}
        for n in graph.dims[counter].values:
            turn = bind_dims(graph, {counter: n})
            outputs, after = evaluate_mesh(turn, entry, inputs, weights, after, declared, own)
        return outputs, after
    found = run_ranks(graph, entry, inputs, weights, states, declared, dims)
    of = graph.entry(entry)
    parts = {name: of.parts.get(name, ()) for name, _ in of.outputs}
    outputs, after = (
        {
            name: joined({p: r[i][name] for p, r in found.items() if name in r[i]}, graph, own)
            for name, own in each.items()
        }
        for i, each in enumerate((parts, {s.name: s.parts for s in graph.states}))
    )
    return outputs, after


def run_ranks(
    graph: Graph,
    entry: str,
    inputs: Mapping[str, Array],
    weights: Weights,
    states: Mapping[str, Array] | None = None,
    declared: bool = False,
    dims: Mapping[str, int] | None = None,
) -> dict[Place, tuple[Values, Values]]:
    """The outputs and states of every rank, of whole inputs and states; of stages those that they
    have. Raises E0111, E0112, E0113 as ``oracle.graph.evaluate``."""
    if graph.dims:
        told = dims_of(
            [n.whole for n in graph.entry(entry).inputs],
            {n: np.shape(a) for n, a in inputs.items()},
        )
        graph = bind_dims(graph, {**told, **(dims or {})})
    require_static(graph, "the oracle")
    of, known = graph.entry(entry), dict[Node, Array]()
    zeros = {s.name: np.zeros(s.whole.sizes, s.dtype.numpy) for s in graph.states}
    given = (("input", of.inputs, inputs), ("state", graph.states, zeros | dict(states or {})))
    ranks = {p: Run(of, graph.states, declared) for p in places(graph)}
    for kind, leaves, arrays in given:
        for leaf in leaves:
            _check(leaf.whole, arrays.get(leaf.name))
        for place, run in ranks.items():
            parts = {n.name: n.parts for n in leaves}
            own = {k: own_part(a, graph, parts.get(k, ()), place) for k, a in arrays.items()}
            run.give(kind, leaves, own)

    def read(leaf: Node) -> Array:
        if leaf not in known:
            known[leaf] = np.asarray(weights(leaf.whole))
            _check(leaf.whole, known[leaf])
        return known[leaf]

    def owned(place: Place) -> Weights:
        return lambda leaf: own_part(read(leaf), graph, leaf.parts, place)

    return _computed(graph, of, ranks, owned)


def _computed(
    graph: Graph, of: Entry, ranks: dict[Place, Run], owned: Callable[[Place], Weights]
) -> dict[Place, tuple[Values, Values]]:
    """Node after node, on the ranks that have what it reads."""
    stages, mesh = stages_of(of), axis_of_stages(graph)

    def at(node: Node) -> dict[Place, Run]:
        """The ranks that have a value."""
        if node not in stages:
            return ranks
        along = [*graph.mesh].index(mesh)
        return {p: run for p, run in ranks.items() if p[along] == stages[node]}

    with np.errstate(all="ignore"):
        first, *_ = ranks.values()
        for node in first.order:
            if isinstance(node.op, Collective):
                there = at(node.reads[0].source)
                for place, run in there.items():
                    run.load(node, owned(place))
                _exchange(node, node.op, ranks if node.op.kind.leaves else there, graph)
            for place, run in at(node).items():
                run.step(node, owned(place))
        return {
            place: run.results({n for n in first.ends if place in at(n)})
            for place, run in ranks.items()
        }


def places(graph: Graph) -> list[Place]:
    """All ranks, the last axis of the mesh first."""
    return list(product(*(range(n) for n in graph.mesh.values())))


def _check(leaf: Node, array: Array | None) -> None:
    if array is not None and np.shape(array) != leaf.shape:
        what = f"{leaf.op} '{leaf.name}' is {leaf.dtype}{list(leaf.shape)}"
        raise LumcError("E0113", f"{what}, got {list(np.shape(array))}", exit=Exit.USAGE)


def own_part(array: Array, graph: Graph, parts: Sequence[Part], place: Place) -> Array:
    """What a rank has of a whole array."""
    at = dict(zip(graph.mesh, place, strict=True))
    for p in parts:
        array = np.split(np.asarray(array), p.ranks, p.dim)[at[p.mesh]]
    return array


def joined(arrays: Mapping[Place, Array], graph: Graph, parts: Sequence[Part]) -> Array:
    """A whole array of what the ranks have; where it is no part, that of the first that has it."""
    begin = dict(zip(graph.mesh, next(iter(arrays)), strict=True))

    def made(at: dict[str, int], left: Sequence[Part]) -> Array:
        if not left:
            return arrays[tuple(at.get(axis, begin[axis]) for axis in graph.mesh)]
        first = left[0]
        blocks = [made({**at, first.mesh: i}, left[1:]) for i in range(first.ranks)]
        return np.concatenate(blocks, first.dim)

    return made({}, parts)


def _exchange(node: Node, op: Collective, ranks: Mapping[Place, Run], graph: Graph) -> None:
    """The result of a collective on every rank, of the values of the ranks in its group."""
    along, source = list(graph.mesh).index(op.mesh), node.reads[0].source
    for place in ranks:
        if place[along]:
            continue
        group = [ranks[(*place[:along], i, *place[along + 1 :])] for i in range(op.ranks)]
        if op.source is not None:
            array = group[op.source].values[source]
            group = group if op.target is None else [group[op.target]]
            made = [array.copy() for _ in group]
        else:
            made = exchanged(op, [run.values[source] for run in group])
        for run, array in zip(group, made, strict=True):
            run.values[node] = run.rounded(array, node.dtype)


def exchanged(op: Collective, arrays: Sequence[Array]) -> list[npt.NDArray[Any]]:
    """What each rank of a group gets of the values of all."""
    every = list(arrays)
    if op.op:
        whole = every[0]
        for other in every[1:]:
            whole = whole + other if op.op is Op.SUM else np.maximum(whole, other)
        every = [whole] * op.ranks
    if op.split is not None:
        cut = [np.split(a, op.ranks, op.split) for a in every]
        every = [cut[i][i] for i in range(op.ranks)]
        if op.kind is Kind.ALL_TO_ALL:
            assert op.concat is not None
            every = [np.concatenate([c[i] for c in cut], op.concat) for i in range(op.ranks)]
    elif op.concat is not None:
        every = [np.concatenate(every, op.concat)] * op.ranks
    return [np.ascontiguousarray(a).reshape(a.shape) for a in every]

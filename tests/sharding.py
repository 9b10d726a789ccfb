"""Random legal shardings of graphs, and whether their ranks compute what the graph computes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lumc.graph.collective import Collective
from lumc.graph.graph import Graph, Node
from lumc.graph.ops import DType, from_bf16
from lumc.graph.stages import axis_of_stages
from lumc.graph.text import parse_graph, print_graph
from lumc.graph.verify import verify_graph
from lumc.oracle.graph import evaluate
from lumc.oracle.ranks import evaluate_mesh, run_ranks
from lumc.shard.cost import Machine
from lumc.shard.mesh import collectives, shard
from random_graphs import Profile, leaf_values, random_graph

Array = np.ndarray[Any, Any]
MESHES = ({"tp": 2}, {"tp": 2}, {"tp": 3}, {"tp": 4}, {"tp": 2, "dp": 2}, {"tp": 2, "dp": 3})


@dataclass(frozen=True)
class Dice(Machine):
    """Prices at random, so any legal sharding may be the least."""

    rng: random.Random = field(default_factory=random.Random)

    def computing(self, points: int) -> float:
        return self.rng.random()

    def streaming(self, nbytes: float) -> float:
        return self.rng.random()

    def sending(self, op: Collective, nbytes: float) -> float:
        return self.rng.random() * 0.3


def wide(node: Node, array: Array) -> Array:
    """A float64 array of a leaf."""
    if node.dtype is DType.BF16:
        array = from_bf16(array)
    return np.asarray(array, "f8") if node.dtype.is_float else array


def sharded_at_random(graph: Graph, seed: int) -> Graph:
    """The graph for some mesh, sharded by prices at random; as its text says."""
    rng = random.Random(seed)
    mesh = rng.choice(MESHES)
    whole = [n for e in graph.entries for n, _ in e.outputs if rng.random() < 0.3]
    found = shard(graph, mesh, lambda ranks: Dice(ranks, price=0.0, rng=rng), whole)
    verify_graph(found.graph)
    again = parse_graph(text := print_graph(found.graph))
    verify_graph(again)
    assert print_graph(again) == text
    for entry in again.entries:  # of what is whole no rank has a part
        assert not entry.parts.keys() & {*whole} or graph.mesh
    return again


def check(graph: Graph, ranks: Graph, values: Mapping[str, Array]) -> Counter[str]:
    """Every rank leaves what the whole graph computes, or its part of it. Counts collectives."""
    for entry in graph.entries:
        inputs = {n.name: values[n.name] for n in entry.inputs}
        states = {n.name: values[n.name] for n in graph.states}
        every = entry.name, inputs, lambda n: values[n.name], states
        outputs, after = (evaluate_mesh if graph.mesh else evaluate)(graph, *every)
        of = ranks.entry(entry.name)
        parts = {n: of.parts.get(n, ()) for n, _ in of.outputs}
        parts_after = {s.name: s.parts for s in ranks.states}
        stages, seen = axis_of_stages(ranks), set[str]()
        for place, (got, left) in run_ranks(ranks, *every).items():
            at = dict(zip(ranks.mesh, place, strict=True))
            for name, want in outputs.items():
                if name in got or not stages:
                    agree(name, got[name], cut(want, parts[name], at))
                    seen.add(name)
            for name, want in after.items():
                if name in left or not stages:
                    agree(name, left[name], cut(want, parts_after[name], at))
                    seen.add(name)
        assert seen == {*outputs, *after}
    return Counter(n.op.kind.value for n in collectives(ranks) if isinstance(n.op, Collective))


def cut(array: Array, parts: Any, at: Mapping[str, int]) -> Array:
    """What of an array the parts leave to a rank, by slices."""
    for dim, mesh, ranks in parts:
        size = array.shape[dim] // ranks
        where = slice(at[mesh] * size, (at[mesh] + 1) * size)
        array = array[(slice(None),) * dim + (where,)]
    return array


def agree(name: str, got: Array, want: Array) -> None:
    """Equal but for the order of sums in float64."""
    assert got.shape == want.shape and got.dtype == want.dtype, name
    if want.dtype.kind != "f":
        assert np.array_equal(got, want), name
        return
    fine = np.isfinite(want)
    scale = np.abs(want[fine]).max(initial=1.0)
    assert np.array_equal(np.isfinite(got), fine), name
    assert np.allclose(got[fine], want[fine], rtol=1e-9, atol=1e-9 * scale), name
    assert np.array_equal(got[~fine], want[~fine], equal_nan=True), name


def check_random(seed: int, profile: Profile | None = None) -> Counter[str]:
    """One random graph, sharded at random."""
    graph = random_graph(seed, profile or Profile())
    every = [n for e in graph.entries for n in e.inputs]
    leaves = (*graph.weights, *graph.states, *every)
    values = {n.name: wide(n, leaf_values(n, seed)) for n in leaves}
    return check(graph, sharded_at_random(graph, seed), values)

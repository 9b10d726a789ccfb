"""Micro-batches: any legal division computes what the graph computes; batches that need each other
are refused."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from lumc.errors import Exit, LumcError
from lumc.frontend import Model
from lumc.graph.batches import AFTER, WITHIN, phases_of
from lumc.graph.collective import Collective
from lumc.graph.ends import with_whole_ends
from lumc.graph.graph import Graph
from lumc.graph.text import parse_graph, print_graph
from lumc.graph.verify import verify_graph
from lumc.shard.batches import TIME, InTime, in_batches
from lumc.shard.choose import choose
from lumc.shard.emit import emit
from lumc.shard.mesh import collectives, shard
from random_graphs import Profile, leaf_values, random_graph
from sharded_models import llama, training
from sharding import check, wide

SEEDS = 150


@dataclass(frozen=True)
class Chance(InTime):
    """Prices at random of what may be."""

    rng: random.Random = field(default_factory=random.Random)

    def computing(self, points: int) -> float:
        return self.rng.random()

    def streaming(self, nbytes: float) -> float:
        return self.rng.random()


def divided(graph: Graph, seed: int) -> Graph | None:
    """Into some number of micro-batches, as the text says; None where they need each other."""
    rng = random.Random(seed)
    count = rng.choice((2, 3, 4))
    machine = Chance(count, price=0.0, rng=rng)
    made = emit(graph, choose(graph, machine, common=True).of, TIME, count, in_time=True)
    try:
        verify_graph(made)
    except LumcError as e:
        assert e.code == "E0101" and "of one micro-batch" in e.what
        return None
    again = parse_graph(text := print_graph(made))
    verify_graph(again)
    assert print_graph(again) == text and again.time == TIME
    return again


def agrees(graph: Graph, made: Graph, seed: int) -> Counter[str]:
    inputs = (n for e in graph.entries for n in e.inputs)
    leaves = (*graph.weights, *graph.states, *inputs)
    given = {n.name: wide(n, leaf_values(n, seed)) for n in leaves}
    check(graph, made, given)
    whole = with_whole_ends(made)
    verify_graph(whole)
    return check(graph, whole, given)


def test_micro_batches_of_random_graphs_compute_what_these_compute() -> None:
    total, refused = Counter[str](), 0
    for seed in range(SEEDS):
        graph = random_graph(seed, Profile())
        made = divided(graph, seed)
        refused += made is None
        total += agrees(graph, made, seed) if made else Counter[str]()
    assert min(total[k] for k in ("all_reduce", "all_slice", "all_gather")) > 10
    assert refused > 5


def test_gradients_accumulate_and_are_used_once() -> None:
    graph = training(12, (8, 24, 6))
    made = in_batches(graph, 4)
    verify_graph(made)
    ops = [n.op for n in collectives(made) if isinstance(n.op, Collective)]
    assert [op.kind.value for op in ops] == ["all_reduce"] * 4
    assert all(n.shape[0] == 3 for n in made.entries[0].inputs)
    phases = phases_of(made.entries[0])
    values = [u.value for u in made.entries[0].writes]
    assert {phases[v] for v in values} == {AFTER}
    assert sum(p == WITHIN for p in phases.values()) > 20
    assert agrees(graph, made, 0)["all_slice"] == 2


@pytest.mark.parametrize("mesh", [{"pp": 2}, {"tp": 2}, {"pp": 2, "tp": 2}], ids=str)
def test_micro_batches_beside_ranks(mesh: dict[str, int]) -> None:
    graph = training(24, (8, 24, 8))
    made = shard(graph, mesh, batches=3).graph
    verify_graph(made)
    assert made.mesh == {TIME: 3, **mesh} and made.time == TIME
    agrees(graph, made, 0)


def test_what_cannot_be_divided_is_refused() -> None:
    with pytest.raises(LumcError) as e:
        shard(llama(1), {"pp": 2}, batches=4)  # one sequence, whose positions see each other
    assert e.value.code == "E0144" and e.value.exit == Exit.UNSUPPORTED
    m = Model()
    x = m.input("x", (8, 16))
    m.output("y", x - x.sum(0).sum(0))
    with pytest.raises(LumcError) as e:
        shard(m.graph(), {"tp": 2}, batches=4)
    assert e.value.code == "E0144" and "of one micro-batch" in e.value.what

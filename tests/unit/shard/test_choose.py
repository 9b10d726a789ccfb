"""The choice of shardings: exact, and what people have found by hand comes out by cost alone."""

from __future__ import annotations

import itertools
import random
from functools import partial

import numpy as np
import pytest

from lumc.frontend import Model
from lumc.graph.collective import Collective, Kind
from lumc.graph.graph import Graph
from lumc.shard.choose import choose
from lumc.shard.cost import Machine
from lumc.shard.eliminate import Table, least
from lumc.shard.emit import emit
from lumc.shard.mesh import shard
from sharded_models import decoding, exchanges, llama, parts_of, training

# a machine beside which the small models below are what the large ones are beside a GPU: a latency
# of 5 us is 50 KB of the link, and a product of 256 x 1024 x 256 takes ten times that
SLOW = partial(Machine, flops=200e9, stream=30e9, link=10e9, latency=5e-6)


def divided(graph: Graph, ranks: int = 4) -> tuple[dict[str, str], list[tuple[str, str]]]:
    made = shard(graph, {"tp": ranks}, SLOW).graph
    return parts_of(made), exchanges(made)


# ---- the least sum


def test_elimination_finds_the_least_of_all_assignments() -> None:
    rng = random.Random(0)
    for _ in range(300):
        n = rng.randint(1, 6)
        sizes = [rng.randint(1, 4) for _ in range(n)]
        tables: list[tuple[tuple[int, ...], Table]] = []
        for _ in range(rng.randint(1, 9)):
            over = tuple(rng.sample(range(n), min(n, rng.randint(1, 3))))
            draws = [rng.choice((rng.random(), rng.random(), np.inf)) for _ in range(4**3)]
            shape = [sizes[v] for v in over]
            tables.append((over, np.array(draws[: int(np.prod(shape))]).reshape(shape)))

        def total(
            at: tuple[int, ...], tables: list[tuple[tuple[int, ...], Table]] = tables
        ) -> float:
            return float(sum(t[tuple(at[v] for v in over)] for over, t in tables))

        best = min(map(total, itertools.product(*map(range, sizes))))
        found = least(sizes, tables)
        assert found.total == pytest.approx(best, rel=1e-12) and not found.pinned
        assert total(tuple(found.values)) == pytest.approx(best, rel=1e-12)


def test_where_tables_would_be_too_large_values_are_decided_alone_and_it_is_said() -> None:
    graph = llama()
    exact, few = choose(graph, SLOW(4)), choose(graph, SLOW(4), most=2000)
    assert exact.pinned == 0 < few.pinned and few.seconds >= exact.seconds
    assert emit(graph, few.of, "tp", 4).mesh == {"tp": 4}


def test_equal_layers_cost_as_many_times_what_one_costs() -> None:
    seconds = [choose(llama(n, 16, 64), SLOW(4)).seconds for n in (1, 2, 3)]
    assert seconds[2] - seconds[1] == pytest.approx(seconds[1] - seconds[0], rel=0.05)


# ---- what comes out by cost


def test_a_transformer_is_cut_by_columns_and_rows_with_sequences_between() -> None:
    """Megatron: heads and columns of the first products, rows of the second ones; the sum is
    scattered over positions, where norms are computed, and gathered for the next products."""
    parts, made = divided(llama())
    columns = {f"{n}.0": "1 by tp" for n in ("wq", "wk", "wv", "gate", "up")}
    rows = {f"{n}.0": "0 by tp" for n in ("wo", "down")}
    assert {n: p for n, p in parts.items() if n not in ("n1.0", "n2.0")} == columns | rows | {
        "x": "",
        "cos": "",
        "sin": "",
    }
    kinds = [kind for kind, _ in made]
    assert kinds == ["all_slice", "reduce_scatter", "all_gather", "reduce_scatter"]


def test_every_layer_of_several_is_cut_so() -> None:
    kinds = [kind for kind, _ in divided(llama(3))[1]]
    assert kinds == ["all_slice", *["reduce_scatter", "all_gather"] * 5, "reduce_scatter"]


def test_large_batches_are_dealt_and_weights_gathered_where_they_are_used() -> None:
    """ZeRO-3, FSDP: batches are dealt, each rank holds a part of every weight, gathers the others
    for a product, and the sums of gradients are scattered to where the weights are held."""
    parts, made = divided(training(4096))
    assert parts["x"] == parts["label"] == "0 by tp"
    weights = [n for n in parts if n[0] in "wb"]
    assert all(parts[n] for n in weights) and len(weights) == 6
    assert sorted(kind for kind, _ in made) == ["all_gather"] * 6 + ["reduce_scatter"] * 6
    assert {name for kind, name in made if kind == "all_gather"} == set(weights)


def test_small_batches_are_exchanged_and_weights_stay() -> None:
    parts, made = divided(training(128))
    assert (parts["w0"], parts["w1"], parts["x"]) == ("1 by tp", "0 by tp", "")
    assert not {name for _, name in made} & {n for n in parts if n[0] in "wb"}


def test_caches_are_cut_by_heads() -> None:
    parts, made = divided(decoding())
    assert parts["keys"] == parts["values"] == "0 by tp"
    assert [parts[n] for n in ("wq", "wk", "wv", "wo")] == ["1 by tp"] * 3 + ["0 by tp"]
    assert all(name not in ("keys", "values") for _, name in made)


def test_with_memory_for_nothing_weights_may_be_whole() -> None:
    """Few positions: gathering them costs more than computing all of it everywhere."""
    g = Model()
    g.output("y", g.input("x", (4, 256)) @ g.state("w", (256, 256)))
    free = shard(g.graph(), {"tp": 4}, partial(SLOW, price=0.0, latency=1.0), ["y"]).graph
    assert not any(parts_of(free).values()) and not exchanges(free)
    dear = shard(g.graph(), {"tp": 4}, SLOW, ["y"]).graph
    assert parts_of(dear)["w"] == "1 by tp" and exchanges(dear)


def test_two_axes_of_a_mesh_cut_one_after_the_other() -> None:
    made = shard(training(4096), {"dp": 4, "tp": 2}, SLOW).graph
    assert made.mesh == {"dp": 4, "tp": 2}
    assert parts_of(made)["x"].startswith("0 by dp")
    assert all(" by dp" in p and " by tp" in p for n, p in parts_of(made).items() if n[0] == "w")


def test_outputs_are_whole_where_that_is_asked() -> None:
    g = Model()
    g.output("y", g.input("x", (64, 64)).exp())
    free, asked = (shard(g.graph(), {"tp": 4}, SLOW, w).graph.entries[0] for w in ([], ["y"]))
    assert free.parts == {"y": ((0, "tp", 4),)} and not asked.parts


def test_32_layers_take_no_time() -> None:
    """0.5 s of CPU on the machine that this was written on; here any machine has enough."""
    graph = llama(32)
    found = choose(graph, SLOW(4))
    made = emit(graph, found.of, "tp", 4)
    assert len(graph.entries[0].nodes) > 2000 and found.pinned == 0
    kinds = [kind for kind, _ in exchanges(made)]
    assert kinds.count("reduce_scatter") == 64 and kinds.count("all_gather") == 63


# ---- costs


@pytest.mark.parametrize("ranks", [2, 8])
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(ranks: int) -> None:
    kinds = (Kind.ALL_REDUCE, Kind.REDUCE_SCATTER, Kind.ALL_GATHER)
    whole, *halves = (Machine(ranks).sending(Collective(k, "tp", ranks), 1e6) for k in kinds)
    assert whole == pytest.approx(sum(halves))
    alone = Machine(ranks).sending(Collective(Kind.ALL_SLICE, "tp", ranks), 1e6)
    assert alone == 2e6 / ranks / Machine(ranks).stream

"""Operations and loads of tile programs beside those of the graph."""

from __future__ import annotations

import random

import pytest

from counting import plan_of, repeats
from drawing import random_schedule
from kernel_zoo import kernel, layernorm, matmul, nucleus, plus, running, times, total, x
from lumc.codegen.count import Count, excesses, of_nodes, of_program, whole
from lumc.codegen.tile.lower import lower
from lumc.frontend.api.model import Model
from lumc.graph.expr import floordiv
from lumc.graph.graph import Graph
from lumc.kernel.machines import CPUS
from lumc.kernel.term import Kernel
from lumc.schedule.first import default_schedule
from shapes import SHAPES
from zoo import build, model

TARGET = CPUS["x86-64-v3"]
SLOW = ("attention", "attention causal")  # one kernel in one pass: test_search; shared keys stay


def count(k: Kernel, seed: int | None = None) -> Count:
    schedule = default_schedule(k, TARGET)
    if seed is not None:
        schedule = random_schedule(k, TARGET, random.Random(seed))
    return of_program(lower(k, schedule, TARGET))


@pytest.mark.parametrize("shape", [(7, 33, 19), (64, 96, 50), (130, 70, 257)])
def test_a_product_has_its_multiply_adds_in_every_schedule(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    counts = [count(matmul(m, n, k, weight=False), seed) for seed in range(40)]
    assert all(c.flops == pytest.approx(2 * m * n * k, rel=1e-9) for c in counts)
    assert count(matmul(m, n, k)).loads < m * n * k / 2


def test_rows_are_counted_by_hand() -> None:
    rows = count(kernel("k", "m", {"m": 6, "j": 40}, total("j", x("x", "m", "j")), {"x": (6, 40)}))
    assert rows == Count(240, 240)
    norm = count(layernorm(9, 256)).flops / (9 * 256)
    assert 5 < norm < 11


def test_what_does_not_depend_on_inner_axes_is_counted_once() -> None:
    e, shapes = x("x", "m"), {"x": (6,), "y": (50,)}
    for _ in range(5):
        e = plus(e, 1.0)
    outer = count(kernel("k", "m n", {"m": 6, "n": 50}, times(e, x("y", "n")), shapes))
    inner = count(kernel("k", "n m", {"m": 6, "n": 50}, times(e, x("y", "n")), shapes))
    assert outer.flops == 6 * 5 + 6 * 50
    assert inner.flops == 6 * 50 * (5 + 1)


@pytest.mark.parametrize("how", ["up", "up before", "down", "down before"])
@pytest.mark.parametrize(("n", "inner"), [(100, 1), (1000, 1), (100, 40), (1000, 40)])
def test_results_that_follow_from_one_another_take_a_step_each(
    how: str, n: int, inner: int
) -> None:
    done = count(running(3, n, inner, how))
    assert 3 * (n - 1) * inner <= done.flops <= 3 * n * inner
    assert done.loads <= 2 * 3 * n * inner
    assert done.flops == 3 * (n - how.endswith("before")) * inner
    rows = [count(nucleus(1, m)).flops / m for m in (256, 1024)]
    assert rows[0] == pytest.approx(rows[1], rel=0.01)


def statistics_again(n: int) -> Kernel:
    """A sum over rows of four for every element that reads it."""
    ranges = {"i": (0, n - 1)}
    sums = total("j", x("x", floordiv("i", 4, ranges), "j"))
    return kernel("k", "i", {"i": n, "j": 100}, sums, {"x": (n // 4, 100)})


def test_a_sum_for_every_reader_is_seen() -> None:
    assert count(statistics_again(64)).flops == 64 * 100
    plain = kernel("k", "i", {"i": 16, "j": 100}, total("j", x("x", "i", "j")), {"x": (16, 100)})
    assert count(statistics_again(64)).over(count(plain)) == 4


def twice(g: Model) -> Graph:
    """An expensive value with two readers."""
    y = g.input("x", (64, 64)) @ g.input("w", (64, 64))
    g.output("a", y.exp2())
    g.output("b", y.sin())
    return g.graph()


def test_a_node_that_two_regions_compute_counts_once() -> None:
    plan = plan_of(twice(Model()))
    done, needed = whole(plan)["main"]
    assert done.over(needed) < 1.1
    assert needed.flops == pytest.approx(2 * 64**3, rel=0.1)


def test_needs_are_those_of_the_nodes_of_a_region() -> None:
    plan = plan_of(model("mlp"))
    every = [n for n in plan.graph.entry("main").nodes if not n.is_leaf]
    total_needed = sum((e.needed.flops for e in excesses(plan)), 0.0)
    assert total_needed == of_nodes(every).flops


def test_updates_of_states_are_copies() -> None:
    g = Model()
    state = g.state("s", (8, 4))
    value = state + g.input("x", (8, 4))
    g.output("y", value)
    g.update(state, value)
    *_, last = excesses(plan_of(g.graph()))
    assert last.needed == Count(0, 32) and last.done == Count(0, 32)


EVERY = [pytest.param(n, marks=pytest.mark.deep) if n in SLOW else n for n in SHAPES]


@pytest.mark.parametrize("name", EVERY)
def test_no_region_does_more_than_twice_what_its_graph_asks_for(name: str) -> None:
    assert not list(repeats(plan_of(build(SHAPES[name]))))

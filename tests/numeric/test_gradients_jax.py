"""Gradients in f64 against jax.grad: functions by name, whose graphs jax computes node by node,
their second derivatives, and random graphs."""

from __future__ import annotations

import os
import random
import time

import numpy as np
import pytest

from gradient_cases import CASES
from gradients import EXACT, Array, Drawn, error, first_order, is_same, second_order, written
from lumc.grad import gradients
from lumc.graph.graph import Graph, Node

jax = pytest.importorskip("jax", reason="needs jax: make bench-peers")

import graph_in_jax  # noqa: E402

FEW = range(40, 48)
NAMED = list(CASES)[::16]
SECONDS = float(os.environ.get("LUMC_FUZZ_SECONDS", "60"))


def by_jax(d: Drawn) -> dict[str, Array]:
    """The gradients by all floats that a graph is given."""
    floats = [n for n in d.leaves if n.dtype.is_float]
    end = dict(d.graph.entries[0].outputs)["loss"]
    values = {n: d.values[n.name] for n in d.leaves}
    _, slopes = graph_in_jax.grads(d.nodes, end, values, floats)
    return {n.name: g for n, g in zip(floats, slopes, strict=True)}


def graph_of(name: str) -> tuple[Graph, dict[Node, Array], list[Node]]:
    """The graph of a named function, the values of its leaves, and its arguments."""
    w = written(CASES[name])
    w.model.output("y", w.loss)
    graph = w.model.graph()
    inputs = {n.name: n for n in graph.entries[0].inputs}
    leaves = {n: np.asarray(w.feed[x]) for x, n in inputs.items()}
    leaves |= {n: w.model.read_weight(n) for n in graph.weights}
    return graph, leaves, [inputs[f"x{i}"] for i in range(len(w.xs))]


def first_order_agrees(name: str) -> None:
    _, found = first_order(CASES[name], gradients)
    graph, leaves, xs = graph_of(name)
    entry = graph.entries[0]
    loss, slopes = graph_in_jax.grads(entry.nodes, entry.outputs[0][1], leaves, xs)
    assert error(found["y"], loss) < EXACT
    for i, g in enumerate(slopes):
        assert error(found[f"g{i}"], g) < EXACT, f"{name}, argument {i}"


def second_order_agrees(name: str) -> None:
    w, found = second_order(CASES[name], gradients)
    graph, leaves, xs = graph_of(name)
    entry = graph.entries[0]
    ahead = [w.ahead[x.name] for x in xs]
    curves = graph_in_jax.curves(entry.nodes, entry.outputs[0][1], leaves, xs, ahead)
    for i, (got, wanted) in enumerate(zip(found, curves, strict=True)):
        assert error(got, wanted) < EXACT, f"{name}, argument {i}"


@pytest.mark.parametrize("name", NAMED)
def test_a_function_against_jax(name: str) -> None:
    first_order_agrees(name)
    second_order_agrees(name)


def test_random_graphs_against_jax() -> None:
    assert sum(is_same(seed, by_jax) for seed in FEW) > len(FEW) / 2


@pytest.mark.deep
@pytest.mark.timeout(0)
def test_all_functions_against_jax() -> None:
    for name in CASES:
        first_order_agrees(name)
        second_order_agrees(name)


@pytest.mark.deep
@pytest.mark.timeout(0)
def test_many_random_graphs_against_jax() -> None:
    """A thousand that are always the same, then others for a while."""
    assert sum(is_same(seed, by_jax) for seed in range(1300)) > 1000
    end, seeds = time.monotonic() + SECONDS, random.Random()
    while time.monotonic() < end:
        is_same(seeds.randrange(1 << 40), by_jax)

"""Gradients in f64 against torch.autograd: functions by name, their second derivatives, and random
graphs. Without torch, finite differences of the oracle judge (unit/grad/test_grad.py, and here)."""

from __future__ import annotations

import os
import random
import time

import numpy as np
import pytest

from gradient_cases import CASES
from gradients import (
    EXACT,
    STEP,
    Case,
    Drawn,
    drawn,
    error,
    first_order,
    is_same,
    leaves,
    second_order,
)
from lumc.grad import gradients, with_gradients

try:
    import torch

    from graph_in_torch import computed, kind
except ImportError:
    torch = None  # type: ignore[assignment]

needs_torch = pytest.mark.skipif(torch is None, reason="needs torch: make zoo-peers")
FEW = range(40)
SECONDS = float(os.environ.get("LUMC_FUZZ_SECONDS", "60"))


def torch_loss(case: Case, feed: dict[str, np.ndarray]) -> tuple[object, list[object]]:
    """The loss of a case in torch, and its arguments."""
    count = len(case.shapes)
    xs = [torch.tensor(feed[f"x{i}"], requires_grad=True) for i in range(count)]
    y = case.theirs(*xs, *map(torch.tensor, case.ints))
    return (y * torch.tensor(feed["dy"])).sum(), xs


@needs_torch
@pytest.mark.parametrize("name", CASES)
def test_a_function_against_torch(name: str) -> None:
    case = CASES[name]
    w, found = first_order(case, gradients)
    loss, xs = torch_loss(case, w.feed)
    assert error(found["y"], loss.detach().numpy()) < EXACT
    wanted = torch.autograd.grad(loss, xs, allow_unused=True, materialize_grads=True)
    for i, g in enumerate(wanted):
        assert error(found[f"g{i}"], g.numpy()) < EXACT


@needs_torch
@pytest.mark.parametrize("name", CASES)
def test_second_derivatives_against_torch(name: str) -> None:
    case = CASES[name]
    w, found = second_order(case, gradients)
    loss, xs = torch_loss(case, w.feed)
    how = {"allow_unused": True, "materialize_grads": True}
    slopes = torch.autograd.grad(loss, xs, create_graph=True, **how)
    turned = sum((g * torch.tensor(w.ahead[f"x{i}"])).sum() for i, g in enumerate(slopes))
    wanted = [torch.zeros_like(x) for x in xs]
    if turned.requires_grad:
        wanted = torch.autograd.grad(turned, xs, **how)
    for got, g in zip(found, wanted, strict=True):
        assert error(got, g.numpy(force=True)) < EXACT


# ---- random graphs


def by_torch(d: Drawn) -> dict[str, np.ndarray]:
    """The gradients by all floats that a graph is given."""
    values = {n: torch.tensor(d.values[n.name]).to(kind(n.dtype)) for n in d.leaves}
    floats = [n for n in d.leaves if n.dtype.is_float]
    for n in floats:
        values[n].requires_grad_()
    loss = computed(d.nodes, values)[dict(d.graph.entries[0].outputs)["loss"]]
    xs = [values[n] for n in floats]
    found = torch.autograd.grad(loss, xs, allow_unused=True, materialize_grads=True)
    return {n.name: g.numpy() for n, g in zip(floats, found, strict=True)}


def agree(seed: int) -> bool:
    return is_same(seed, by_torch)


@needs_torch
def test_random_graphs_against_torch() -> None:
    assert sum(map(agree, FEW)) > len(FEW) / 2


@needs_torch
@pytest.mark.deep
@pytest.mark.timeout(0)
def test_many_random_graphs_against_torch() -> None:
    """A thousand that are always the same, then others for a while."""
    assert sum(map(agree, range(1300))) > 1000
    end, seeds = time.monotonic() + SECONDS, random.Random()
    while time.monotonic() < end:
        agree(seeds.randrange(1 << 40))


@pytest.mark.parametrize("seed", range(100, 112))
def test_random_graphs_against_differences(seed: int) -> None:
    d = drawn(seed)
    if d is None:
        pytest.skip("no float depends on a float")
    made = with_gradients(d.graph, "main", "loss", ["*"])
    found, rng = d.evaluated(made.graph, d.values), np.random.default_rng(seed)
    ahead = {n.name: rng.standard_normal(n.sizes) for n in leaves(d.graph)}
    slope = sum(float((found[f"{name}.grad"] * ahead[name]).sum()) for name in made.wrt)

    def moved(h: float) -> float:
        values = {name: v + h * ahead[name] if name in ahead else v for name, v in d.values.items()}
        return float(d.evaluated(d.graph, values)["loss"])

    difference = (moved(STEP) - moved(-STEP)) / (2 * STEP)
    assert slope == pytest.approx(difference, rel=1e-5, abs=1e-5 * (1 + abs(float(found["loss"]))))

"""The samples of training on both emulators, at small sizes: two steps beside the oracle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpu_launching
import launching
from learning import LEARN
from lumc.codegen.generate import generate
from lumc.frontend import Model
from lumc.graph.bind import bind_dims
from lumc.graph.graph import Node
from lumc.kernel.machines import resolve_target
from lumc.oracle.graph import evaluate
from lumc.profile.choose import estimate
from lumc.search import search
from searching import error

TARGETS = [resolve_target("cuda:sm_90"), resolve_target("metal:apple7")]
MLP = {"w0": (64, 16), "b0": (16,), "w1": (16, 16), "b1": (16,), "w2": (16, 10), "b2": (10,)}
CNN = {"w0": (3, 1, 3, 3), "b0": (3,), "w1": (5, 3, 3, 3), "b1": (5,)}
CNN |= {"w2": (20, 8), "b2": (8,), "w3": (8, 10), "b3": (10,)}
SMALL = {"BATCH": 2, "LENGTH": 8, "WIDTH": 16, "HEADS": 2, "LAYERS": 1}
NEAR = 1e-4  # of moments; of weights Adam may turn a gradient that is 0 but for rounding


def mlp() -> Model:
    return LEARN.DIGITS.step(LEARN.DIGITS.dense, MLP, 6)


def cnn() -> Model:
    return LEARN.DIGITS.step(LEARN.DIGITS.convolutional, CNN, 4)


def gpt() -> Model:
    return LEARN.GPT.gpt()


@pytest.mark.deep
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.kind)
@pytest.mark.parametrize("made", [mlp, cnn, gpt])
def test_steps(
    made: Callable[[], Model], target: Any, built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, size in SMALL.items():
        monkeypatch.setitem(LEARN.GPT.gpt.__globals__, name, size)
    m = made()
    graph = bind_dims(m.graph(), {"n": 3}) if m.dims else m.graph()

    def leaf(node: Node) -> Any:
        if node.op == "state":
            return m.constants.get(node.name, np.zeros(node.sizes, node.dtype.numpy))
        rng = np.random.default_rng(sum(node.name.encode()))
        if node.dtype.is_int:
            return rng.integers(0, 10, node.sizes)
        return np.full((), 1e-3, "f4") if node.name == "lr" else rng.random(node.sizes, "f4")

    code = generate(estimate(search(graph, target, inside=True)))
    kernels = gpu_launching.module(built, [code], checked=True)
    memory = launching.Memory(code, code.entries[0], leaf, 1)
    inputs = {n.name: leaf(n) for n in graph.entries[0].inputs}
    states = {s.name: leaf(s) for s in graph.states}
    for _ in range(2):
        got = gpu_launching.launched(kernels, "g0_", code, code.entries[0], memory, "reverse")
        outputs, states = evaluate(graph, "main", inputs, leaf, states)
        assert error(got["loss"], outputs["loss"]) < 1e-5
    moments = [name for name in states if name.endswith((".m", ".v"))]
    assert moments and [n for n in moments if error(got[n], states[n]) > NEAR] == []

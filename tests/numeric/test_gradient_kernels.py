"""Gradients through all passes: as the plan means them, and as the compiled code computes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands import Lumc
from differential import Case, check_compiled, check_emulated
from gradient_cases import CASES
from gradients import drawn, written
from lumc.frontend import Model
from lumc.grad import gradients, with_gradients
from lumc.graph.graph import Graph
from lumc.kernel.machines import resolve_target

FEW = (
    "attention, of one projection",
    "conv2d k3 s2 p1 d1",
    "conv_transpose",
    "cross entropy",
    "cumsum",
    "embedding",
    "layer_norm",
    "max_pool overlapping",
    "move interleave of a slice",
    "move reshape odd, three",
    "move windows across rows",
)
SEEDS = range(12)


def graph_of(name: str) -> Graph:
    """The loss and the gradients of a function in f32."""
    w = written(CASES[name], dtype="f32")
    for i, g in enumerate(gradients(w.loss, w.xs)):
        w.model.output(f"g{i}", g)
    w.model.output("loss", w.loss)
    return w.model.graph()


def checked(graphs: list[Graph], folder: Path) -> None:
    cases = [Case(graph, seed) for seed, graph in enumerate(graphs)]
    for case in cases:
        case.prepare()
        case.check_plan()
    check_compiled(folder, cases, [c.plan for c in cases if c.plan])


def test_functions(tmp_path: Path) -> None:
    checked([graph_of(name) for name in FEW], tmp_path)


@pytest.mark.deep
@pytest.mark.parametrize("target", ["cuda:sm_90", "metal:apple7"])
def test_functions_on_emulated_gpus(target: str, tmp_path: Path) -> None:
    cases = [Case(graph_of(n), i, target=resolve_target(target)) for i, n in enumerate(FEW)]
    for case in cases:
        case.prepare()
    check_emulated(tmp_path, cases, checked=True)


@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_all_functions(tmp_path: Path) -> None:
    graphs = [graph_of(name) for name in CASES]
    checked([g for g in graphs if not g.weights], tmp_path)  # these have no file


@pytest.mark.deep
def test_random_graphs(tmp_path: Path) -> None:
    found = [d.graph for d in map(drawn, SEEDS) if d]
    checked([with_gradients(g, "main", "loss", ["*"]).graph for g in found], tmp_path)


@pytest.mark.deep
def test_dims_of_a_run(lumc: Lumc) -> None:
    """Attention over a length that each run chooses: `verify` tries several."""
    m = Model()
    n = m.dim("n", 1, 32)
    x, w, q = m.input("x", (n, 6)), m.input("w", (6, 16)), m.input("q", (16, 6))
    h = (x @ w).layer_norm()
    scores = ((h @ h.T) * 0.25).softmax(-1) @ h
    m.output("loss", (scores @ q).gelu("tanh").square().mean())
    m.save("m.lg")
    lumc("grad", "m.lg", "--loss", "loss", "--wrt", "?", "-o", "t.lg")
    lumc("compile", "t.lg", "--estimate", "-o", "t.lb")
    said = lumc("verify", "t.lb")
    assert "ok   x.grad at n=1 against oracle" in said and "ok   w.grad at n=32" in said

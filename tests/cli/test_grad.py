"""``lumc grad``: graphs with gradients, from files and pipes."""

from __future__ import annotations

import re

import numpy as np
import pytest

from commands import Lumc
from lumc.artifacts.files import read_graph
from lumc.frontend import Model
from lumc.graph.graph import Graph
from lumc.oracle.graph import evaluate

# a loss of a linear layer, and one that does not use the weight v
SCRIPT = """
import numpy as np
from lumc import Model

def build():
    m, rng = Model(), np.random.default_rng(0)
    w, v = (m.constant(rng.normal(size=(4, 3)).astype("f4"), n) for n in ("w", "v"))
    unused = m.constant(rng.normal(size=5).astype("f4"), "wide")
    count = m.state("count", ())
    m.entry("train")
    x, label = m.input("x", (8, 4)), m.input("label", (8,), "i64", values=(0, 2))
    z = (x @ w).named("z")
    loss = -z.log_softmax(-1).gather(1, label.unsqueeze(-1)).mean().named("entropy")
    m.update(count, count + 1.0)
    m.output("loss", loss)
    m.output("logits", z)
    m.output("sum", (unused.sum() + label.to("f32").sum()).exp())
    m.entry("predict")
    m.output("y", m.input("x", (2, 4)) @ w + m.input("b", (2, 4)) @ v)
    return m
"""


@pytest.fixture
def model(lumc: Lumc) -> str:
    (lumc.folder / "m.py").write_text(SCRIPT)
    lumc("import", "m.py:build", "-o", "m.lg")
    return "m.lg"


def names(graph: Graph, entry: str) -> tuple[list[str], list[str]]:
    """Of the inputs and the outputs."""
    e = graph.entry(entry)
    return [n.name for n in e.inputs], [name for name, _ in e.outputs]


def test_gradients_become_outputs_and_weights_inputs(lumc: Lumc, model: str) -> None:
    said = lumc.raw(
        "grad", model, "--loss", "loss", "--wrt", "w", "--wrt", "x", "-o", "t.lg"
    ).output
    assert "'loss' by w, x; 28 nodes" in said
    graph = read_graph("t.lg", {})
    outputs = ["loss", "logits", "sum", "w.grad", "x.grad"]
    assert names(graph, "train") == (["x", "label", "w"], outputs)
    assert names(graph, "predict") == (["x", "b", "w"], ["y"])
    assert [w.name for w in graph.weights] == ["v", "wide"]
    assert [u.state.name for u in graph.entry("train").updates] == ["count"]
    assert "z f32[i:8, j:3]" in (text := (lumc.folder / "t.lg").read_text())
    assert '"m.safetensors" "v"' in text and '"w"' not in text

    rng = np.random.default_rng(1)
    x, w, label = rng.normal(size=(8, 4)), rng.normal(size=(4, 3)), rng.integers(0, 3, 8)
    feed = {"x": x, "w": w, "label": label}
    found, after = evaluate(graph, "train", feed, lambda n: np.zeros(n.sizes))
    p = np.exp(x @ w)
    dz = (p / p.sum(-1, keepdims=True) - np.eye(3)[label]) / 8
    assert found["w.grad"] == pytest.approx(x.T @ dz, abs=1e-12)
    assert found["x.grad"] == pytest.approx(dz @ w.T, abs=1e-12)
    assert after["count"] == 1


def test_patterns_take_what_the_loss_depends_on(lumc: Lumc, model: str) -> None:
    said = lumc.raw("grad", model, "--loss", "loss", "--wrt", "*", "-o", "t.lg").output
    assert "note: 'loss' has no derivative by v, wide, count\n" in said
    assert names(read_graph("t.lg", {}), "train")[1][3:] == ["x.grad", "w.grad"]


def test_a_node_is_a_loss_and_differentiated_by(lumc: Lumc, model: str) -> None:
    text = lumc("-q", "grad", model, "--loss", "entropy", "--wrt", "z")
    assert "output entropy = entropy\n" in text and "output z.grad = " in text
    assert 'weight w f32[4, 3] "m.safetensors" "w"' in text


def test_what_stops_is_constant(lumc: Lumc, model: str) -> None:
    said = lumc.fails(4, "grad", model, "--loss", "loss", "--wrt", "x", "--stop", "z")
    assert re.search(r"by 'x': 'z' \(m.lg:\d+\) counts as constant\n  where: m.lg:\d+", said)


def test_pipes_give_the_same_bytes(lumc: Lumc, model: str) -> None:
    lumc("grad", model, "--loss", "loss", "--wrt", "w*", "-o", "t.lg")
    text = (lumc.folder / "m.lg").read_bytes()
    assert lumc("grad", "-q", "-", "--loss", "loss", "--wrt", "w*", input=text) == (
        (lumc.folder / "t.lg").read_text()
    )


def test_again_for_another_loss(lumc: Lumc, model: str) -> None:
    lumc("grad", model, "--loss", "loss", "--wrt", "w", "-o", "t.lg")
    lumc("grad", "t.lg", "--loss", "sum", "--wrt", "wide", "-o", "u.lg")
    assert names(read_graph("u.lg", {}), "train")[1][3:] == ["w.grad", "wide.grad"]
    assert "two outputs" in lumc.fails(4, "grad", "t.lg", "--loss", "loss", "--wrt", "w")


def test_another_entry(lumc: Lumc, model: str) -> None:
    m = Model()
    w = m.state("w", (3,))
    m.entry("a")
    m.output("y", w * m.input("x", (3,)))
    m.entry("b")
    m.output("loss", (w * w).sum())
    m.save("two.lg")
    lumc("grad", "two.lg", "--loss", "loss", "--wrt", "w", "--entry", "b", "-o", "t.lg")
    graph = read_graph("t.lg", {})
    assert names(graph, "a")[1] == ["y"] and names(graph, "b")[1] == ["loss", "w.grad"]


def test_dims_stay_or_are_bound(lumc: Lumc) -> None:
    m = Model()
    n = m.dim("n", 1, 16)
    m.output("loss", (m.input("x", (n, 4)) @ m.input("w", (4, 3))).square().mean())
    m.save("d.lg")
    text = lumc("-q", "grad", "d.lg", "--loss", "loss", "--wrt", "w")
    assert "dim n in 1..16" in text and "k:n]" in text
    assert "dim n" not in lumc("-q", "grad", "d.lg", "--loss", "loss", "--wrt", "w", "--dim", "n=4")


def test_near_names_are_named(lumc: Lumc, model: str) -> None:
    said = lumc.fails(2, "grad", model, "--loss", "los", "--wrt", "w")
    assert "E0212 --loss los: no value of that name" in said and "did you mean loss" in said
    assert "one of: x, w, v, wide, count" in lumc.fails(
        2, "grad", model, "--loss", "loss", "--wrt", "q*"
    )

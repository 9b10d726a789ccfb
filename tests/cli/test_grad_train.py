"""``lumc grad --train``: weights as states, and steps by the optimizers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from commands import Lumc
from lumc.artifacts.files import read_graph
from lumc.oracle.graph import evaluate

torch = pytest.importorskip("torch")
Array = np.ndarray[Any, Any]
SCRIPT = """
import numpy as np
from lumc import Model

def build(dtype="f32"):
    m, rng = Model(), np.random.default_rng(0)
    w = m.constant(rng.normal(size=(4, 3)).astype("f4"), "w", dtype)
    b = m.constant(rng.normal(size=3).astype("f4"), "bias", dtype)
    u = m.constant(rng.normal(size=3).astype("f4"), "unused")
    seen = m.state("seen", (3,), value=np.arange(3, dtype="f4"))
    x, label = m.input("x", (8, 4)), m.input("label", (8,), "i64", values=(0, 2))
    z = x @ w.to("f32") + b.to("f32")
    m.update(seen, seen + 1.0)
    m.output("loss", z.cross_entropy(label))
    m.entry("predict")
    m.output("y", m.input("x", (2, 4)) @ w.to("f32") + b.to("f32") * u)
    return m

def halves():
    return build("bf16")
"""
RNG = np.random.default_rng(1)
X, LABEL = RNG.normal(size=(8, 4)).astype("f4"), RNG.integers(0, 3, 8)
FEED = {"x": X, "label": LABEL}


@pytest.fixture
def model(lumc: Lumc) -> str:
    (lumc.folder / "m.py").write_text(SCRIPT)
    lumc("import", "m.py:build", "-o", "m.lg")
    return "m.lg"


def states_of(path: str) -> dict[str, Array]:
    """What the states begin with."""
    graph, held = read_graph(path, {}), load_file("m.safetensors")
    return {
        s.name: held[s.key] if s.file else np.zeros(s.sizes, s.dtype.numpy) for s in graph.states
    }


def steps(path: str, count: int, lr: float) -> dict[str, Array]:
    graph, states = read_graph(path, {}), states_of(path)
    for _ in range(count):
        states = evaluate(graph, "main", FEED | {"lr": np.array(lr, "f4")}, lambda n: X, states)[1]
    return states


def theirs(make: Any, count: int, lr: float, clip: float | None = None) -> dict[str, Array]:
    held = load_file("m.safetensors")
    params = {n: torch.tensor(held[n].astype("f8"), requires_grad=True) for n in ("w", "bias")}
    optimizer = make(params, float(np.float32(lr)))
    for _ in range(count):
        z = torch.tensor(X).double() @ params["w"] + params["bias"]
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(z, torch.tensor(LABEL)).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(params.values(), clip)
        optimizer.step()
    return {n: p.detach().numpy() for n, p in params.items()}


optim = torch.optim
ALL = ("--loss", "loss", "--wrt", "*", "-o", "s.lg")
WAYS: dict[str, Any] = {
    "sgd": lambda p, lr: optim.SGD(p.values(), lr),
    "momentum --decay 0.1": lambda p, lr: optim.SGD(p.values(), lr, 0.9, weight_decay=0.1),
    "adam": lambda p, lr: optim.Adam(p.values(), lr),
    "adamw": lambda p, lr: optim.AdamW(p.values(), lr),
    "adamw --decay 0.5 --no-decay b*": lambda p, lr: optim.AdamW(
        [{"params": [p["w"]], "weight_decay": 0.5}, {"params": [p["bias"]], "weight_decay": 0.0}],
        lr,
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_steps_are_those_of_torch(lumc: Lumc, model: str, way: str) -> None:
    said = lumc.raw("grad", model, *ALL, "--train", *way.split()).output
    assert "grad: 'loss' by w, bias; " in said and "with a step" in said
    assert "no derivative by unused, seen" in said.replace("seen, unused", "unused, seen")
    found, wanted = steps("s.lg", 4, 0.1), theirs(WAYS[way], 4, 0.1)
    for name in ("w", "bias"):
        assert np.abs(found[name] - wanted[name]).max() < 1e-7  # betas and decay are f32
    assert np.array_equal(found["seen"], [4, 5, 6])  # states keep their first values


def test_clip_and_lion(lumc: Lumc, model: str) -> None:
    lumc("grad", model, *ALL, "--train", "sgd", "--clip", "0.1")
    found, wanted = steps("s.lg", 3, 0.5), theirs(WAYS["sgd"], 3, 0.5, 0.1)
    assert all(np.abs(found[n] - wanted[n]).max() < 1e-7 for n in wanted)
    lumc("grad", model, *ALL, "--train", "lion", "--scale-loss")
    first, found = states_of("s.lg"), steps("s.lg", 1, 0.25)
    assert np.allclose(np.abs(found["w"] - first["w"]), 0.25) and found["scale.good"] == 1


def test_all_entries_read_the_states_and_no_gradient_is_an_output(lumc: Lumc, model: str) -> None:
    lumc("grad", model, *ALL, "--train", "adamw")
    graph = read_graph("s.lg", {})
    assert [n.name for n in graph.weights] == ["unused"]
    assert [n.name for n in graph.entry("main").inputs] == ["x", "label", "lr"]
    assert [name for name, _ in graph.entry("main").outputs] == ["loss"]
    held, x = load_file("m.safetensors"), X[:2]
    found, _ = evaluate(graph, "predict", {"x": x}, lambda n: held[n.key], states_of("s.lg"))
    assert np.allclose(found["y"], x @ held["w"] + held["bias"] * held["unused"])


def test_weights_of_16_bits_learn_in_f32(lumc: Lumc, model: str) -> None:
    lumc("import", "m.py:halves", "-o", "m.lg")
    lumc("grad", "m.lg", *ALL, "--train", "adamw")
    graph = read_graph("s.lg", {})
    kinds = {s.name: (s.dtype.value, s.how and s.how.dtype.value) for s in graph.states}
    assert kinds["w"] == ("f32", "bf16") and kinds["w.m"] == ("f32", None)
    lumc("compile", "s.lg", "--estimate", "-o", "s.lb")
    assert "ok   state w against oracle" in lumc("verify", "s.lb")


def test_what_cannot_be_trained(lumc: Lumc, model: str) -> None:
    with_input = ("--loss", "loss", "--wrt", "x", "-o", "s.lg", "--train", "sgd")
    assert "E0203" in lumc.fails(2, "grad", model, *with_input)
    assert "E0212" in lumc.fails(
        2, "grad", model, *ALL, "--train", "sgd", "--decay", 1, "--no-decay", "q*"
    )
    assert "go with --train" in lumc.fails(2, "grad", model, *ALL, "--decay", "1")
    assert "nosuch" in lumc.fails(2, "grad", model, *ALL, "--train", "nosuch")
    (lumc.folder / "m.py").write_text(SCRIPT.replace('"x", (8, 4)', '"lr", (8, 4)'))
    lumc("import", "m.py:build", "-o", "m.lg")
    assert "E0101" in lumc.fails(4, "grad", "m.lg", *ALL, "--train", "sgd")

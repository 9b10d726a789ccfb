"""Models: leaves, entries, states, names, and what is written to disk."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from evaluating import results
from lumc.disk.weights import read_weight
from lumc.errors import LumcError
from lumc.frontend import Model, concat, plus
from lumc.graph.bind import bind_dims
from lumc.graph.graph import Graph, Read
from lumc.graph.text import parse_graph, print_graph
from lumc.oracle.graph import evaluate

RNG = np.random.default_rng(25)


def names(graph: Graph) -> list[str]:
    return [n.name for n in graph.entries[0].nodes]


def test_what_no_output_needs_is_dropped() -> None:
    g = Model()
    x = g.input("x", (3,))
    g.input("unused", (2,))
    g.constant(np.arange(3.0), "idle")
    _ = (x * 2.0).exp2()
    g.output("y", x + 1.0)
    graph = g.graph()
    assert names(graph) == ["t0"]
    assert graph.weights == ()
    assert [n.name for n in graph.entries[0].inputs] == ["x", "unused"]


def test_names() -> None:
    g = Model()
    x = g.input("x", (3, 4))
    scores = (x * 2.0).named("scores")
    shifted = (scores.T + 1.0).named("scores")  # taken: gets a number
    g.output("y", shifted.exp2().named("t0"))
    assert names(g.graph()) == ["scores", "scores_1", "t0"]
    with pytest.raises(LumcError, match="is not a name"):
        scores.named("two words")
    with pytest.raises(LumcError, match="used twice"):
        g.input("z", (1,)), g.input("z", (1,))


def test_an_output_that_is_a_view_is_copied() -> None:
    g = Model()
    x = g.input("x", (3, 4))
    y = x + 1.0
    g.output("input", x)
    g.output("view", y.T)
    g.output("part", y[1:])
    g.output("itself", y)
    g.output("constant", g.full((2, 2), 7.0))
    g.output("wide", y.sum(0).expand(2, 4))
    values = RNG.standard_normal((3, 4))
    out = results(g, values)
    want = {
        "input": values,
        "view": values.T + 1,
        "part": values[1:] + 1,
        "itself": values + 1,
        "constant": np.full((2, 2), 7.0),
        "wide": np.tile((values + 1).sum(0), (2, 1)),
    }
    for name, value in want.items():
        np.testing.assert_allclose(out[name], value, atol=1e-12)
    ops = [n.op.value for n in g.graph().entries[0].nodes]
    assert ops.count("contiguous") == 5


def test_outputs_get_their_axes_of_extent_one_back() -> None:
    g = Model()
    x = g.input("x", (1, 3, 1, 4))
    y = x * 2.0
    g.output("y", y)
    g.output("z", (y + 1.0).sum(3, keepdim=True))
    g.output("flat", y.squeeze())  # the node of y has another shape already: a copy
    values = RNG.standard_normal((1, 3, 1, 4))
    out = results(g, values)
    np.testing.assert_allclose(out["y"], values * 2)
    np.testing.assert_allclose(out["z"], (values * 2 + 1).sum(3, keepdims=True))
    np.testing.assert_allclose(out["flat"], (values * 2)[0, :, 0])
    graph = g.graph()
    assert [n.op.value for n in graph.entries[0].nodes].count("contiguous") == 1
    assert print_graph(parse_graph(print_graph(graph))) == print_graph(graph)


def test_entries_share_weights_and_states() -> None:
    g = Model()
    p, w = g.dim("p", 0, 7), g.constant(RNG.standard_normal((4, 4)), "w", "f32")
    cache = g.state("cache", (8, 4))
    g.entry("fill")
    x = g.input("x", (8, 4))
    y = x @ w
    g.update(cache, y)
    g.output("y", y)
    g.entry("step")
    row = g.input("row", (4,))
    new = row @ w
    g.update(cache, new, (p,))
    seen = concat([cache[:p], new[None], cache[plus(p, 1) :]])
    g.output("sum", seen.sum(0))
    graph = bind_dims(g.graph(), {"p": 3})
    assert [e.name for e in graph.entries] == ["fill", "step"]
    text_of = {w.name: g.read_weight(w) for w in graph.weights}
    values, one = RNG.standard_normal((8, 4)), RNG.standard_normal(4)
    out, states = evaluate(graph, "fill", {"x": values}, g.read_weight)
    np.testing.assert_allclose(states["cache"], values @ text_of["w"], rtol=1e-12)
    out, after = evaluate(graph, "step", {"row": one}, g.read_weight, states)
    np.testing.assert_allclose(after["cache"][3], one @ text_of["w"], rtol=1e-12)
    np.testing.assert_allclose(after["cache"][4:], states["cache"][4:])
    want = after["cache"].sum(0)
    np.testing.assert_allclose(out["sum"], want, rtol=1e-12)


def test_misuse_is_named() -> None:
    g = Model()
    x = g.input("x", (3,))
    g.output("y", x + 1.0)
    with pytest.raises(LumcError, match="two outputs are named 'y'"):
        g.output("y", x)
    with pytest.raises(LumcError, match="update writes to a state"):
        g.update(x, x)
    state = g.state("s", (3,))
    with pytest.raises(LumcError, match=r"update of f32\[3\] with f32\[\]"):
        g.update(state, x.sum())
    with pytest.raises(LumcError, match="different models"):
        x + Model().input("x", (3,))
    g.entry("second")
    with pytest.raises(LumcError, match="'x' belongs to another entry"):
        x * 2.0
    with pytest.raises(LumcError, match="dtype 'f31' is not supported"):
        g.input("z", (1,), "f31")
    g.input("z", (4,)).exp2()
    with pytest.raises(LumcError, match="declared after operations"):
        g.dim("i", 1, 2)
    g.entry("third")
    with pytest.raises(LumcError, match="declared after operations"):
        g.dim("i", 1, 2)  # as all entries share it


def test_the_line_that_made_a_node_is_kept() -> None:
    g = Model()
    y = g.input("x", (3,)) + 1.0
    assert isinstance(y.operand, Read)
    assert y.operand.source.origin.startswith("test_model.py:")
    g.origin = "layer 3"
    assert (y * 2.0).operand.source.origin == "layer 3"  # type: ignore[union-attr]


def model_with_constants() -> tuple[Model, np.ndarray]:
    g = Model()
    w = RNG.standard_normal((4, 2)).astype(np.float32)
    x = g.input("x", (3, 4))
    y = x @ g.constant(w, "w") + g.constant(np.array([0.5, 0.25], np.float16)).to("f32")
    g.output("y", y * g.constant(2.0) + g.constant(np.full((3, 1), 3.0, np.float32)))
    return g, w


def test_constants_go_to_a_file_beside_the_graph(tmp_path: Path) -> None:
    g, w = model_with_constants()
    g.save(tmp_path / "m.lg")
    text = (tmp_path / "m.lg").read_text()
    assert str(tmp_path) not in text
    graph = parse_graph(text)
    assert [n.name for n in graph.weights] == ["w", "c1"]
    values = RNG.standard_normal((3, 4))
    out, _ = evaluate(graph, "main", {"x": values}, lambda n: read_weight(n, tmp_path))
    np.testing.assert_allclose(out["y"], (values @ w + [0.5, 0.25]) * 2 + 3, rtol=1e-12)


def test_saving_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    g, _ = model_with_constants()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        g.save(tmp_path / name / "m.lg")
    for name in ("m.lg", "m.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_constants_need_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    g, _ = model_with_constants()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in ("-", str(pipe)):
        with pytest.raises(LumcError, match="need a safetensors file") as e:
            g.save(path)
        assert e.value.exit == 2
    assert capsys.readouterr().out == ""
    assert [p.name for p in tmp_path.iterdir()] == ["pipe"]


def test_bound_dims_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    g = Model()
    x = g.input("x", (g.dim("b", 1, 9), 4))
    g.output("y", x.softmax(0))
    g.save("-", {"b": 5})
    text = capsys.readouterr().out
    assert "input x f32[5, 4]" in text
    assert "dim " not in text


def test_bf16_constants() -> None:
    g = Model()
    values = np.array([1.0, 1 / 3, -2.5e-3], np.float32)
    g.output("y", g.constant(values, dtype="bf16").to("f32") * g.input("x", (3,)))
    out = results(g, np.ones(3))["y"]
    np.testing.assert_allclose(out, values, rtol=2**-8)
    assert out[0] == 1.0

"""Reduced precision: what is stored in less, and how far the results move."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lumc.disk.weights import read_weight
from lumc.frontend import Model
from lumc.frontend.api.finish import with_weights
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.precision import BLOCK, Precision, reduce_precision
from lumc.graph.graph import Graph
from lumc.graph.ops import DType, from_bf16, to_bf16
from lumc.graph.text import parse_graph, print_graph
from lumc.graph.verify import verify_graph
from lumc.oracle.graph import evaluate
from zoo import MODELS, layer_norm, model

EVERY = [Precision("bf16"), Precision("f16"), Precision(None, "q8"), Precision("bf16", "q8")]


def saved(folder: Path, model: Model) -> Graph:
    """The graph of a model whose constants lie in a file."""
    graph = model.graph()
    return with_weights(graph, list(graph.weights), folder / "w.safetensors", model.read_weight)


def outputs(graph: Graph, inputs: dict, declared: bool = False) -> dict[str, np.ndarray]:
    return evaluate(graph, "main", inputs, lambda w: read_weight(w, Path.cwd()), None, declared)[0]


def rounded(values: np.ndarray, kind: str) -> np.ndarray:
    """To the nearest bf16 or f16, as f64."""
    half = from_bf16(to_bf16(values)) if kind == "bf16" else values.astype(np.float16)
    return half.astype(np.float64)


def quantised(w: np.ndarray) -> np.ndarray:
    """The rounding model of q8 along the last axis, in f64."""
    blocks = w.reshape(*w.shape[:-1], -1, BLOCK).astype(np.float64)
    scale = (np.abs(w).reshape(blocks.shape).max(-1, keepdims=True) / np.float32(127)).astype("f8")
    return (np.rint(blocks / np.where(scale, scale, 1)) * scale).reshape(w.shape)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 5), st.integers(2, 7), st.integers(1, 3), st.integers(0, 9))
def test_linear_has_the_error_of_its_rounding(
    tmp_path_factory: pytest.TempPathFactory, rows: int, n: int, blocks: int, seed: int
) -> None:
    """Exactly the product with rounded weights; an input stays as it is."""
    rng, k = np.random.default_rng(seed), BLOCK * blocks
    w = rng.standard_normal((n, k)).astype("f4") * 10.0 ** rng.integers(-3, 3, (n, 1))
    w = w.astype("f4")
    m = Model()
    m.output("y", m.input("x", (rows, k)) @ m.constant(w, "w").transpose(0, 1))
    graph = saved(tmp_path_factory.mktemp("w"), m)
    x = rng.standard_normal((rows, k)).astype("f4")
    for wanted in EVERY[:3]:
        want = x.astype("f8") @ (rounded(w, wanted.dtype) if wanted.dtype else quantised(w)).T
        got = outputs(reduce_precision(graph, wanted), {"x": x})["y"]
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6 * np.abs(want).max())


def _layers(g: Model) -> Tensor:
    rng = np.random.default_rng(1)

    def weight(name: str, *shape: int) -> Tensor:
        return g.constant(rng.standard_normal(shape).astype("f4") * shape[-1] ** -0.5, name)

    x = weight("table", 50, 64).embedding(g.input("ids", (6,), "i64"))
    h = (x @ weight("up", 96, 64).transpose(0, 1)).gelu()
    x = x + h @ weight("down", 64, 96).transpose(0, 1)
    return x @ weight("head", 10, 64).transpose(0, 1) + weight("bias", 10)


@pytest.fixture
def layers(tmp_path: Path) -> Graph:
    m = Model()
    m.output("y", _layers(m))
    return saved(tmp_path, m)


def test_what_is_stored_in_16_bits(layers: Graph) -> None:
    """Tables and matrices are, biases are not; the hidden layer is, the residual is not."""
    new = reduce_precision(layers, Precision("bf16"))
    kinds = {w.name: w.dtype for w in new.weights}
    narrow = {"table", "up", "down", "head"}
    assert kinds == {n: DType.BF16 if n in narrow else DType.F32 for n in (*narrow, "bias")}
    assert [n.dtype for n in new.entries[0].inputs] == [DType.I64]
    assert [n.dtype for _, n in new.entries[0].outputs] == [DType.F32]
    stored = [n for n in new.entries[0].nodes if n.dtype is DType.BF16]
    assert len(stored) == 2  # the hidden layer, and what the head reads
    assert all(n.shape in ((6, 96), (6, 64)) for n in stored)


def test_what_is_quantised(layers: Graph) -> None:
    """What is contracted is; what is looked up keeps its values."""
    kinds = {w.name: w.dtype for w in reduce_precision(layers, Precision(None, "q8")).weights}
    assert kinds["table"] is DType.F32 and "table.levels" not in kinds
    for name in ("up", "down", "head"):
        assert (kinds[f"{name}.levels"], kinds[f"{name}.scales"]) == (DType.I8, DType.F32)


@pytest.mark.parametrize(("wanted", "limit"), [*zip(EVERY, (1e-2, 2e-3, 2e-2, 2e-2), strict=True)])
def test_errors_stay_small(layers: Graph, wanted: Precision, limit: float) -> None:
    inputs = {"ids": np.array([3, 1, 4, 1, 5, 9])}
    want = outputs(layers, inputs)["y"]
    got = outputs(reduce_precision(layers, wanted), inputs, declared=True)["y"]
    error = np.linalg.norm(got - want) / np.linalg.norm(want)
    assert 1e-5 < error < limit


@pytest.mark.parametrize("wanted", EVERY, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_twice_is_once_and_the_text_says_all(name: str, wanted: Precision) -> None:
    graph = model(name)
    new = reduce_precision(graph, wanted)
    verify_graph(new)
    text = print_graph(new)
    assert print_graph(reduce_precision(graph, wanted)) == text
    assert print_graph(parse_graph(text)) == text
    assert print_graph(reduce_precision(new, wanted)) == text
    assert reduce_precision(graph, Precision()) is graph


def test_q8_before_and_after_16_bits_agree(layers: Graph) -> None:
    both = reduce_precision(layers, Precision("bf16", "q8"))
    after = reduce_precision(reduce_precision(layers, Precision("bf16")), Precision(None, "q8"))
    assert {(w.name, w.dtype, w.how) for w in both.weights} == {
        (w.name, w.dtype, w.how) for w in after.weights
    }


def test_states_are_narrow_and_stay_in_step(tmp_path: Path) -> None:
    m = Model()
    x, state = m.input("x", (4,)), m.state("s", (4,), "f32")
    m.output("y", x + state)
    m.update(state, x + state)
    graph = reduce_precision(m.graph(), Precision("bf16"))
    assert graph.states[0].dtype is DType.BF16
    x1 = np.array([1 / 3, 1e-3, 7, -2], "f4")
    out, after = evaluate(graph, "main", {"x": x1}, lambda w: w, None, declared=True)
    np.testing.assert_array_equal(out["y"], x1)
    np.testing.assert_array_equal(after["s"], to_bf16(x1))
    again, _ = evaluate(graph, "main", {"x": x1}, lambda w: w, after, declared=True)
    np.testing.assert_array_equal(again["y"], x1 + from_bf16(to_bf16(x1)))


def _squares(g: Model) -> Tensor:
    x = g.input("x", (4, 64))
    return (x * x).sum(-1)


def _normed(g: Model) -> Tensor:
    return layer_norm(g, g.input("x", (6, 64)))


def _integers(g: Model) -> Tensor:
    return g.input("x", (4, 32), "i32") @ g.input("w", (32, 3), "i32")


@pytest.mark.parametrize("build", [_squares, _normed, _integers])
@pytest.mark.parametrize("wanted", EVERY, ids=str)
def test_what_holds_no_contraction_of_weights_stays(
    build: Callable[[Model], Tensor], wanted: Precision
) -> None:
    m = Model()
    m.output("y", build(m))
    graph = m.graph()
    assert print_graph(reduce_precision(graph, wanted)) == print_graph(graph)

"""Operators of onnxruntime's: against it, or against numpy where its CPU does not run them."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from evaluating import apply
from lumc.errors import Exit, LumcError
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.onnx import ops_contrib
from onnx_models import of_microsoft, one_node, onnxruntime, oracle


def test_bias_split_gelu(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 3, 10), (10,)))
    model = one_node("BiasSplitGelu", {"X": x, "bias": b}, domain="com.microsoft")
    model.graph.output[0].type.tensor_type.shape.dim[-1].dim_value = 5
    onnx.save(model, tmp_path / "m.onnx")
    value, gate = np.split(x.astype(np.float64) + b, 2, -1)
    wanted = value * gate * (1 + np.vectorize(math.erf)(gate / math.sqrt(2))) / 2
    (found,) = oracle(tmp_path / "m.onnx", {"X": x, "bias": b})
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-7)


def quantised_lstm(directions: int, each: bool, kind: type) -> tuple[onnx.ModelProto, np.ndarray]:
    """An LSTM of onnxruntime with integer weights [directions, k, 4 * hidden]."""
    rng, hidden, k, steps = np.random.default_rng(5), 6, 5, 4
    gates, info = 4 * hidden, np.iinfo(kind)
    shape = (directions, gates) if each else (directions,)
    zero = 0 if each and info.min else info.max // 9
    constants = {
        "W": rng.integers(info.min, info.max, (directions, k, gates)).astype(kind),
        "R": rng.integers(info.min, info.max, (directions, hidden, gates)).astype(kind),
        "B": rng.standard_normal((directions, 2 * gates)).astype("f4"),
        "W_scale": rng.uniform(0.002, 0.01, shape).astype("f4"),
        # onnxruntime wants equal ones, of signed weights with many scales 0
        "W_zero": np.full(shape, zero, kind),
        "R_scale": rng.uniform(0.002, 0.01, shape).astype("f4"),
        "R_zero": np.full(shape, zero, kind),
    }
    names = ["x", "W", "R", "B", "", "", "", "", "W_scale", "W_zero", "R_scale", "R_zero"]
    way = "bidirectional" if directions == 2 else "forward"
    node = helper.make_node(
        "DynamicQuantizeLSTM", names, ["y", "h"], domain="com.microsoft",
        hidden_size=hidden, direction=way,
    )  # fmt: skip
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node],
        "g",
        [value("x", 1, (steps, 1, k))],
        [value("y", 1, (steps, directions, 1, hidden)), value("h", 1, (directions, 1, hidden))],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return model, rng.standard_normal((steps, 1, k)).astype("f4")


@pytest.mark.parametrize("kind", [np.int8, np.uint8])
@pytest.mark.parametrize("each", [False, True], ids=["one scale", "a scale for each gate"])
@pytest.mark.parametrize("directions", [1, 2])
def test_dynamic_quantize_lstm(directions: int, each: bool, kind: type, tmp_path: Path) -> None:
    model, x = quantised_lstm(directions, each, kind)
    onnx.save(model, tmp_path / "m.onnx")
    wanted = onnxruntime(tmp_path / "m.onnx", {"x": x})
    for got, want in zip(oracle(tmp_path / "m.onnx", {"x": x}), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


def test_rounding_to_eight_bits_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the results are others by more than the tolerance above."""
    model, x = quantised_lstm(1, False, np.int8)
    onnx.save(model, tmp_path / "m.onnx")
    right = oracle(tmp_path / "m.onnx", {"x": x})[0]
    exact = ops_contrib.rounded

    def coarse(x: Tensor) -> tuple[Tensor, Tensor]:
        levels, scale = exact(x)
        return levels - levels % 2, scale

    monkeypatch.setattr(ops_contrib, "rounded", coarse)
    assert np.abs(oracle(tmp_path / "m.onnx", {"x": x})[0] - right).max() > 1e-3


def test_the_nearest_integer_is_even_at_ties() -> None:
    ties = np.arange(-511, 512, dtype="f4") / 2
    x = np.concatenate(
        [np.nextafter(ties, np.float32(-999)), ties, np.nextafter(ties, np.float32(999))]
    )
    found = apply(ops_contrib.nearest, x, declared=True)
    np.testing.assert_array_equal(found, np.rint(x).astype("i4"))
    assert found.dtype == np.int32


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(math.prod(shape)).standard_normal(shape).astype("f4")


def near(folder: Path, op: str, inputs: dict, outputs: int = 1, **attributes: Any) -> None:
    found, wanted = of_microsoft(folder, op, inputs, outputs, **attributes)
    for a, b in zip(found, wanted, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("turned", range(16))
def test_products_of_turned_operands(turned: int, tmp_path: Path) -> None:
    a, b = normal(2, 3, 4, 5), normal(2, 3, 5, 6)
    names = ("transA", "transBatchA", "transB", "transBatchB")
    said = {name: turned >> i & 1 for i, name in enumerate(names)}
    a, b = (np.swapaxes(x, -1, -2) if said[f"trans{n}"] else x for n, x in (("A", a), ("B", b)))
    a, b = (np.moveaxis(x, -2, 0) if said[f"transBatch{n}"] else x for n, x in (("A", a), ("B", b)))
    near(tmp_path, "FusedMatMul", {"a": a.copy(), "b": b.copy()}, alpha=0.5, **said)


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize(("name", "given"), [
    ("Relu", []), ("Tanh", []), ("Sigmoid", []), ("LeakyRelu", [0.1]), ("Clip", [-0.5, 0.7]),
    ("HardSigmoid", [0.2, 0.4]),
])  # fmt: skip
def test_convolution_with_an_activation(
    name: str, given: list, added: bool, tmp_path: Path
) -> None:
    inputs = {"x": normal(2, 3, 7, 6), "w": normal(4, 3, 3, 2), "b": normal(4)}
    inputs["z"] = normal(2, 4, 4, 5) if added else None
    said: dict[str, Any] = {"activation_params": given} if given else {}
    near(tmp_path, "FusedConv", inputs, activation=name, pads=[1, 0, 1, 0], strides=[2, 1], **said)


@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("placed", [False, True])
def test_embeddings(segments: bool, masked: bool, placed: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(4)

    def ids(high: int) -> np.ndarray:
        return rng.integers(0, high, (2, 5)).astype("i4")

    inputs = {
        "ids": ids(11),
        "kinds": ids(2) if segments else None,
        "words": normal(11, 8),
        "places": normal(9, 8),
        "segments": normal(2, 8) if segments else None,
        "gamma": normal(8),
        "beta": normal(1, 8)[0],
        "mask": ids(2) if masked else None,
        "at": ids(9) if placed else None,
    }
    near(tmp_path, "EmbedLayerNormalization", inputs, 3, epsilon=1e-5)


@pytest.mark.parametrize("skip", [(2, 3, 8), (1, 3, 8), (3, 8)])
def test_norms_of_sums(skip: tuple, tmp_path: Path) -> None:
    inputs = {"x": normal(2, 3, 8), "skip": normal(*skip), "gamma": normal(8)}
    last = {"bias": normal(1, 8)[0]}
    near(tmp_path, "SkipSimplifiedLayerNormalization", inputs | last, epsilon=1e-5)
    more = {"beta": normal(2, 8)[1], **last}
    near(tmp_path, "SkipLayerNormalization", inputs | more, epsilon=1e-5)


@pytest.mark.parametrize(("op", "count", "said"), [
    ("BiasGelu", 2, {}), ("FastGelu", 1, {}), ("FastGelu", 2, {}), ("Gelu", 1, {}),
    ("QuickGelu", 1, {"alpha": 1.3}),
])  # fmt: skip
def test_gelus(op: str, count: int, said: dict, tmp_path: Path) -> None:
    near(tmp_path, op, dict(zip("ab", (normal(2, 3, 8), normal(8))[:count], strict=False)), **said)


def test_an_activation_that_is_not_known(tmp_path: Path) -> None:
    inputs = {"x": normal(2, 3, 7, 6), "w": normal(4, 3, 3, 2)}
    model = one_node("FusedConv", inputs, 1, 17, "com.microsoft", (), activation="Swish")
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(LumcError) as e:
        oracle(tmp_path / "m.onnx", inputs)
    assert e.value.exit is Exit.UNSUPPORTED and "activation Swish of 0 parameters" in e.value.fix

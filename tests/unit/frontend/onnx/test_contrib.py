"""Operators of onnxruntime's: against it, or against numpy where its CPU does not run them."""

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from evaluating import apply
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.onnx import ops_contrib
from onnx_models import one_node, onnxruntime, oracle


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

"""Quantised operators of com.microsoft against onnxruntime. Scales are such that no sum lies at
half a step, where the last bit of f32 decides."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from lumc.frontend.api.join import concat
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.onnx import ops_qlinear, ops_quantize
from lumc.graph.ops import DType
from onnx_models import of_microsoft, one_node, onnxruntime, oracle

RNG = np.random.default_rng(9)
KINDS = [np.uint8, np.int8]
EACH = pytest.mark.parametrize("kind", KINDS)
START = RNG.bit_generator.state


@pytest.fixture(autouse=True)
def drawn_anew() -> None:
    """Every test draws the same numbers, whichever tests run."""
    RNG.bit_generator.state = START


def codes(kind: type, *shape: int) -> np.ndarray:
    info = np.iinfo(kind)
    return RNG.integers(info.min, info.max + 1, shape).astype(kind)


def of(value: float, kind: type = np.float32) -> np.ndarray:
    return np.array(value, kind)


def linear(kind: type, name: str, *shape: int, scale: float = 0.0305, zero: int = 7) -> dict:
    """A tensor of codes, its scale and its zero point."""
    return {
        name: codes(kind, *shape),
        f"{name}_scale": of(scale),
        f"{name}_zero": of(zero, kind),
    }


def result(kind: type) -> dict:
    return {"y_scale": of(0.02171), "y_zero": of(5, kind)}


def check(folder: Path, op: str, inputs: dict, **attributes: Any) -> None:
    """Codes have to be equal; parameters are constants."""
    constants = [n for n in inputs if n.endswith(("_scale", "_zero"))]
    (found,), (wanted,) = of_microsoft(folder, op, inputs, 1, constants, **attributes)
    assert found.dtype == wanted.dtype and len(np.unique(wanted)) > 3
    np.testing.assert_array_equal(found, wanted)


@EACH
@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
def test_of_two(op: str, kind: type, tmp_path: Path) -> None:
    two = linear(kind, "a", 3, 5, 7) | linear(kind, "b", 5, 1, scale=0.0207, zero=3)
    check(tmp_path, op, two | {"y_scale": of(0.0513), "y_zero": of(9, kind)})


ONE: list[tuple[str, tuple, dict]] = [
    ("QLinearLeakyRelu", (3, 50), {"alpha": 0.2}),
    ("QLinearGlobalAveragePool", (2, 3, 5, 7), {}),
    ("QLinearGlobalAveragePool", (2, 5, 7, 3), {"channels_last": 1}),
    ("QLinearAveragePool", (2, 3, 5, 7), {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1]}),
    ("QLinearAveragePool", (2, 3, 5, 7), {
        "kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "strides": [2, 3], "ceil_mode": 1,
        "count_include_pad": 1,
    }),
    ("QLinearAveragePool", (2, 5, 7, 3), {"kernel_shape": [3, 2], "channels_last": 1}),
]  # fmt: skip


@EACH
@pytest.mark.parametrize(("op", "shape", "attributes"), ONE)
def test_of_one(op: str, shape: tuple, attributes: dict, kind: type, tmp_path: Path) -> None:
    check(tmp_path, op, linear(kind, "x", *shape) | result(kind), **attributes)


@EACH
def test_sigmoid(kind: type, tmp_path: Path) -> None:
    least = np.iinfo(kind).min
    inputs = linear(kind, "x", 3, 50) | {"y_scale": of(1 / 256), "y_zero": of(least, kind)}
    check(tmp_path, "QLinearSigmoid", inputs)


@EACH
@pytest.mark.parametrize(("version", "axis"), [(13, -1), (13, 1), (11, 1), (11, 2)])
def test_softmax(version: int, axis: int, kind: type, tmp_path: Path) -> None:
    least, given = np.iinfo(kind).min, linear(kind, "x", 3, 5, 10, scale=0.3)
    given |= {"y_scale": of(1 / 256), "y_zero": of(least, kind)}
    names = [n for n in given if n != "x"]
    model = one_node("QLinearSoftmax", given, 1, 17, "com.microsoft", names, axis=axis)
    model.graph.node[0].attribute.append(helper.make_attribute("opset", version))
    onnx.save(model, tmp_path / "m.onnx")
    (wanted,) = onnxruntime(tmp_path / "m.onnx", {"x": given["x"]})
    (found,) = oracle(tmp_path / "m.onnx", {"x": given["x"]}, declared=True)
    np.testing.assert_array_equal(found, wanted)


@EACH
def test_concat_and_where(kind: type, tmp_path: Path) -> None:
    two = linear(kind, "a", 2, 30) | linear(kind, "b", 2, 40, scale=0.0107, zero=9)
    check(tmp_path, "QLinearConcat", result(kind) | two, axis=1)
    two = linear(kind, "a", 9, 4) | linear(kind, "b", 4, scale=0.0107, zero=9)
    check(tmp_path, "QLinearWhere", {"c": RNG.random((9, 4)) > 0.5} | two | result(kind))


@EACH
@pytest.mark.parametrize("axes", [[1], [0, -1]])
def test_mean_is_that_of_numbers(axes: list[int], kind: type, tmp_path: Path) -> None:
    """onnxruntime has no kernel of it."""
    given = linear(kind, "x", 3, 4, 5) | result(kind)
    model = one_node("QLinearReduceMean", given, 1, 17, "com.microsoft", (), axes=axes, keepdims=0)
    shape = np.empty((3, 4, 5)).sum(tuple(axes)).shape
    number = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    model.graph.output[0].type.CopyFrom(helper.make_tensor_type_proto(number, shape))
    onnx.save(model, tmp_path / "m.onnx")
    (found,) = oracle(tmp_path / "m.onnx", given, declared=True)
    mean = (given["x"].astype("f8") - 7).mean(tuple(axes)) * 0.0305
    info = np.iinfo(kind)
    np.testing.assert_array_equal(found, (np.rint(mean / 0.02171) + 5).clip(info.min, info.max))


CONVOLUTIONS: list[tuple[tuple, tuple, dict]] = [  # of one image; weights; attributes
    ((4, 8, 9), (6, 4, 3, 3), {}),
    ((4, 8, 9), (6, 2, 3, 2), {"group": 2, "strides": [2, 1], "pads": [1, 0, 2, 1]}),
    ((4, 8, 9), (4, 1, 3, 3), {"group": 4, "dilations": [2, 1], "pads": [2, 1, 2, 1]}),
    ((3, 12), (5, 3, 4), {"strides": [3]}),
]


def convolution(kind: type, shape: tuple, weights: tuple, last: int, each: bool) -> dict:
    """Inputs of QLinearConv with a bias; ``each``: a scale for every channel."""
    inputs = linear(kind, "x", 2, *shape)
    if last:
        inputs["x"] = np.moveaxis(inputs["x"], 1, -1).copy()
    inputs |= linear(np.int8, "w", *weights, scale=0.0107, zero=0)
    if each:
        inputs["w_scale"] = RNG.uniform(0.01, 0.02, weights[0]).astype("f4")
        inputs["w_zero"] = np.zeros(weights[0], "i1")
    inputs |= {"y_scale": of(0.1731), "y_zero": of(5, kind)}
    return inputs | {"b": RNG.integers(-9999, 9999, weights[0]).astype("i4")}


@EACH
@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize(("shape", "weights", "attributes"), CONVOLUTIONS)
def test_convolution(
    shape: tuple,
    weights: tuple,
    attributes: dict,
    last: int,
    each: bool,
    kind: type,
    tmp_path: Path,
) -> None:
    """Channels of images and results come first or last; those of weights are where they were."""
    inputs = convolution(kind, shape, weights, last, each)
    check(tmp_path, "QLinearConv", inputs, channels_last=last, **attributes)


# ---- products


@EACH
@pytest.mark.parametrize("other", KINDS)
@pytest.mark.parametrize("each", [False, True])
def test_products_in_f32(kind: type, other: type, each: bool, tmp_path: Path) -> None:
    if each:
        scale, zero = RNG.uniform(0.01, 0.02, 5).astype("f4"), codes(other, 5)
    else:
        scale, zero = of(0.02), of(9, other)
    a, b, bias = codes(kind, 2, 3, 8), codes(other, 8, 5), RNG.standard_normal(5).astype("f4")
    floats = {"a": RNG.standard_normal((2, 3, 8)).astype("f4"), "b": b}
    pairs = [of_microsoft(tmp_path, "DynamicQuantizeMatMul", floats | {
        "b_scale": scale, "b_zero": zero, "bias": bias,
    })]  # fmt: skip
    if (kind, other) != (np.int8, np.uint8):  # which onnxruntime does not have
        pairs.append(of_microsoft(tmp_path, "MatMulIntegerToFloat", {
            "a": a, "b": b, "a_scale": of(0.03), "b_scale": scale, "a_zero": of(7, kind),
            "b_zero": zero, "bias": bias,
        }))  # fmt: skip
    for (found,), (wanted,) in pairs:
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@EACH
@pytest.mark.parametrize("quantised", [False, True])
def test_gemm(kind: type, quantised: bool, tmp_path: Path) -> None:
    if kind is np.int8:
        pytest.skip("onnxruntime has no kernel of signed times unsigned")
    inputs = linear(kind, "a", 8, 3) | linear(np.int8, "b", 5, 8, scale=0.0207, zero=9)
    inputs["c"] = RNG.integers(-999, 999, (3, 5)).astype("i4")
    if quantised:
        inputs |= {"y_scale": of(0.413), "y_zero": of(99, kind)}
        check(tmp_path, "QGemm", inputs, transA=1, transB=1, alpha=0.5)
        return
    constants = [n for n in inputs if n.endswith(("_scale", "_zero"))]
    said = {"transA": 1, "transB": 1, "alpha": 0.5}
    (found,), (wanted,) = of_microsoft(tmp_path, "QGemm", inputs, 1, constants, **said)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


# ---- layers


@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("other", KINDS)
def test_attention(past: bool, other: type, tmp_path: Path) -> None:
    inputs = {
        "x": codes(np.uint8, 2, 5, 7),
        "w": codes(other, 7, 36),
        "b": RNG.standard_normal(36).astype("f4"),
        "x_scale": of(0.002),
        "w_scale": RNG.uniform(0.01, 0.02, 36).astype("f4") if past else of(0.01),
        "mask": None if past else np.array([3, 5], "i4"),
        "x_zero": of(3, np.uint8),
        "w_zero": np.full(36, 4, other) if past else of(4, other),
        "past": RNG.standard_normal((2, 2, 3, 4, 4)).astype("f4") if past else None,
    }
    constants = ["w", "w_scale", "w_zero", "x_scale", "x_zero"]
    said = {"num_heads": 3, "unidirectional": int(past)}
    pairs = of_microsoft(tmp_path, "QAttention", inputs, 1 + past, constants, **said)
    for found, wanted in zip(*pairs, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("segments", [False, True])
def test_embeddings(segments: bool, tmp_path: Path) -> None:
    tables = {n: codes(np.uint8, *shape) for n, shape in {
        "words": (11, 8), "places": (9, 8), "segments": (2, 8), "gamma": (8,), "beta": (8,),
    }.items()}  # fmt: skip
    if not segments:
        tables["segments"] = None
    inputs = {
        "ids": RNG.integers(0, 11, (2, 5)).astype("i4"),
        "kinds": RNG.integers(0, 2, (2, 5)).astype("i4") if segments else None,
        **tables,
        "mask": (RNG.random((2, 5)) > 0.4).astype("i4"),
        **{f"{n}_scale": None if t is None else of(0.01 * (i + 1))
           for i, (n, t) in enumerate(tables.items())},
        **{f"{n}_zero": None if t is None else of(i + 3, np.uint8)
           for i, (n, t) in enumerate(tables.items())},
    }  # fmt: skip
    constants = [n for n in inputs if n not in ("ids", "kinds", "mask")]
    found, wanted = of_microsoft(tmp_path, "QEmbedLayerNormalization", inputs, 2, constants)
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found[1], wanted[1])


@pytest.mark.parametrize("name", ["number", "code"])
def test_a_mistake_is_seen(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A zero point that is left out, a result that is a step off."""
    exact = getattr(ops_qlinear, name)
    wrong = {"number": lambda x, scale, _: exact(x, scale, None), "code": lambda *a: exact(*a) + 1}
    monkeypatch.setattr(ops_qlinear, name, wrong[name])
    two = linear(np.uint8, "a", 3, 5, 7) | linear(np.uint8, "b", 5, 1, scale=0.0207, zero=3)
    with pytest.raises(AssertionError):
        check(tmp_path, "QLinearAdd", two | {"y_scale": of(0.0513), "y_zero": of(9, np.uint8)})


@pytest.mark.parametrize("name", ["centred", "along", "last"])
def test_a_mistake_in_a_convolution_is_seen(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A zero point is left out, scales turn by a channel, or the result has channels first."""
    exact = ops_quantize.along

    def turned(v: Tensor, *rest: Any) -> Tensor:
        return exact(concat([v[1:], v[:1]], 0) if v.shape == (6,) else v, *rest)

    wrong: dict[str, tuple[Any, Callable]] = {
        "centred": (ops_quantize, lambda x, *_: x.to(DType.I32)),
        "along": (ops_quantize, turned),
        "last": (ops_qlinear, lambda x: x),
    }
    monkeypatch.setattr(wrong[name][0], name, wrong[name][1])
    inputs = convolution(np.uint8, (4, 6, 6), (6, 4, 1, 1), 1, True)
    with pytest.raises(AssertionError):
        check(tmp_path, "QLinearConv", inputs, channels_last=1)

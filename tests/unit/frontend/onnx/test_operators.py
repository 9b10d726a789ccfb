"""Operators that the backend suite tests with few values: random ones against onnxruntime, the
reference of the onnx package, or numpy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

import lumc  # noqa: E402
from lumc import onnx_backend  # noqa: E402
from lumc.errors import Exit, LumcError  # noqa: E402
from lumc.oracle.graph import evaluate  # noqa: E402

RNG = np.random.default_rng(11)
Array = np.ndarray[Any, Any]


def compiled(model: lumc.Model) -> Any:
    """By the oracle, in the declared dtypes."""

    def run(feed: Mapping[str, Any]) -> Mapping[str, Any]:
        return evaluate(model.graph(), "main", feed, model.read_weight, declared=True)[0]

    return run


def node_of(operator: str, count: int, results: int = 1, **attributes: Any) -> Any:
    inputs, outputs = [f"i{k}" for k in range(count)], [f"o{k}" for k in range(results)]
    domain = attributes.pop("domain", "")
    return helper.make_node(operator, inputs, outputs, domain=domain, **attributes)


def ours(operator: str, *arrays: Array, results: int = 1, **attributes: Any) -> tuple[Array, ...]:
    version = {"opset_version": attributes.pop("version")} if "version" in attributes else {}
    node = node_of(operator, len(arrays), results, **attributes)
    return onnx_backend.run_node(node, arrays, compile=compiled, **version)


def theirs(operator: str, *arrays: Array, result: Any = 0, **attributes: Any) -> list[Array]:
    """What onnxruntime gives; ``result`` is the number of its dtype, if it is not the input's."""
    runtime = pytest.importorskip("onnxruntime")
    version = attributes.pop("version", 22)
    node = node_of(operator, len(arrays), **attributes)
    numbers = [helper.np_dtype_to_tensor_dtype(a.dtype) for a in arrays]
    values = [
        helper.make_tensor_value_info(n, k, a.shape)
        for n, k, a in zip(node.input, numbers, arrays, strict=True)
    ]
    result = helper.make_tensor_value_info("o0", result or numbers[0], None)
    graph = helper.make_graph([node], "g", values, [result])
    opsets = [helper.make_opsetid("", version)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = runtime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, dict(zip(node.input, arrays, strict=True))))


def near(a: Array, b: Array) -> None:
    assert a.shape == b.shape and a.dtype == b.dtype
    np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


# ---- regions and deformed windows


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("masked", [False, True])
def test_deform_conv(group: int, parts: int, masked: bool) -> None:
    x = RNG.standard_normal((2, 4, 6, 7)).astype("f4")
    w = RNG.standard_normal((6, 4 // group, 3, 2)).astype("f4")
    how = {"strides": [2, 1], "pads": [1, 2, 1, 0], "dilations": [1, 2], "group": group}
    rows, columns = (6 + 2 - 3) // 2 + 1, (7 + 2 - 3) + 1
    offset = RNG.uniform(-2.5, 2.5, (2, parts * 12, rows, columns)).astype("f4")
    more = [RNG.standard_normal(6).astype("f4")]
    more += [RNG.random((2, parts * 6, rows, columns)).astype("f4")] if masked else []
    args = (x, w, offset, *more)
    near(
        ours("DeformConv", *args, offset_group=parts, **how)[0],
        theirs("DeformConv", *args, offset_group=parts, **how)[0],
    )


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("half", ["half_pixel", "output_half_pixel"])
def test_roi_align(mode: str, half: str) -> None:
    """Regions that leave the image, too."""
    x = RNG.standard_normal((2, 3, 9, 12)).astype("f4")
    rois = np.array([[0, 0, 8, 8], [2.5, 1.25, 11, 8], [-3, -2, 14, 12], [4, 4, 4.1, 4]], "f4")
    which = np.array([0, 1, 1, 0])
    how = {"mode": mode, "output_height": 3, "output_width": 4, "sampling_ratio": 2}
    how |= {"spatial_scale": 0.75, "coordinate_transformation_mode": half}
    how["version"] = 16
    near(ours("RoiAlign", x, rois, which, **how)[0], theirs("RoiAlign", x, rois, which, **how)[0])


def test_roi_align_of_older_opsets_and_without_a_ratio() -> None:
    x = RNG.standard_normal((1, 2, 8, 8)).astype("f4")
    rois, which = np.array([[1, 1, 6, 7]], "f4"), np.array([0])
    how = {"output_height": 2, "output_width": 2, "version": 10}
    old = {**how, "sampling_ratio": 3}
    near(ours("RoiAlign", x, rois, which, **old)[0], theirs("RoiAlign", x, rois, which, **old)[0])
    with pytest.raises(lumc.Error) as e:
        ours("RoiAlign", x, rois, which, **how)
    assert e.value.exit is Exit.UNSUPPORTED and "sampling_ratio" in e.value.fix


# ---- integers


KINDS = [np.dtype(k) for k in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_shifts(kind: np.dtype[Any], direction: str) -> None:
    """Of the whole range, by all amounts; what numpy leaves open is everything shifted out."""
    info, width = np.iinfo(kind), 8 * kind.itemsize
    x = RNG.integers(info.min, info.max, (40, 1), kind, endpoint=True)
    x[:2, 0] = info.min, info.max
    amounts = [*range(width + 2), min(127, info.max)] + ([-1, -width] if info.min else [])
    y = np.array([amounts], kind)
    (got,) = ours("BitShift", x, y, direction=direction)
    inside = (y >= 0) & (y < width)
    near_y = np.where(inside, y, 0).astype(kind)
    left = direction == "LEFT"
    wanted = np.left_shift(x, near_y) if left else np.right_shift(x, near_y)
    beyond = np.where(x < 0, -1, 0).astype(kind) * (not left)
    assert got.dtype == kind and np.array_equal(got, np.where(inside, wanted, beyond))


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("name", ["BitwiseAnd", "BitwiseOr", "BitwiseXor"])
def test_bits(kind: np.dtype[Any], name: str) -> None:
    info = np.iinfo(kind)
    x, y = (RNG.integers(info.min, info.max, (30,), kind, endpoint=True) for _ in "xy")
    x[:2], y[:2] = (info.min, info.max), (info.max, info.max)
    numpy = {"BitwiseAnd": np.bitwise_and, "BitwiseOr": np.bitwise_or}.get(name, np.bitwise_xor)
    assert np.array_equal(ours(name, x, y)[0], numpy(x, y))
    assert np.array_equal(ours("BitwiseNot", x)[0], ~x)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_division(kind: np.dtype[Any]) -> None:
    """Exact and towards zero, where a quotient has 64 bits too."""
    info = np.iinfo(kind)
    x = RNG.integers(info.min, info.max, (500,), kind, endpoint=True)
    y = RNG.integers(info.min, info.max, (500,), kind, endpoint=True)
    y[:200] = RNG.integers(1, 12, 200)
    x[:6], y[:6] = info.max, (1, 2, 3, info.max, info.max - 1, 1)
    y[y == 0] = 1
    whole = [abs(int(a)) // abs(int(b)) for a, b in zip(x, y, strict=True)]
    signs = [-1 if (a < 0) != (b < 0) else 1 for a, b in zip(x, y, strict=True)]
    wanted = np.array([w * s for w, s in zip(whole, signs, strict=True)], object)
    keep = [info.min <= w <= info.max for w in wanted]
    got = ours("Div", x, y)[0]
    assert np.array_equal(got[keep], wanted[keep].astype(kind))


@pytest.mark.parametrize("low", ["u2", "i2", "u1", "i1"])
def test_quantisation(low: str) -> None:
    kind = np.dtype(low)
    x = (RNG.standard_normal(200) * 9e4 / (1 if kind.itemsize > 1 else 300)).astype("f4")
    scale, zero = np.array(1.5, "f4"), np.array(7, kind)
    (q,) = ours("QuantizeLinear", x, scale, zero)
    ends = np.iinfo(kind).min, np.iinfo(kind).max
    assert np.array_equal(q, np.clip(np.rint(x / scale) + 7, *ends).astype(kind))
    (back,) = ours("DequantizeLinear", q, scale, zero)
    assert np.array_equal(back, (q.astype("f4") - 7) * scale)


def test_bits_as_another_type() -> None:
    x = np.array([0, 1, 0x8000, 0xFFFF], np.uint16)
    for kind, to in ((np.int16, onnx.TensorProto.INT16), (np.uint16, onnx.TensorProto.UINT16)):
        assert np.array_equal(ours("BitCast", x, to=to, version=26)[0], x.view(kind))
    with pytest.raises(lumc.Error) as e:
        ours("BitCast", x, to=onnx.TensorProto.FLOAT16, version=26)
    assert e.value.exit is Exit.UNSUPPORTED and "cast by value" in e.value.fix


# ---- others


@pytest.mark.parametrize("n", [1, 2, 3, 4, 6])
def test_determinants(n: int) -> None:
    x = RNG.standard_normal((3, n, n))
    near(ours("Det", x)[0], np.linalg.det(x))


def test_determinants_of_many_rows_are_refused() -> None:
    with pytest.raises(lumc.Error) as e:
        ours("Det", np.zeros((9, 9), "f4"))
    assert e.value.exit is Exit.UNSUPPORTED


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_compress(axis: int | None) -> None:
    x = RNG.standard_normal((5, 160)).astype("f4")
    condition = RNG.random(5 if axis == 0 else 150) < 0.6
    how = {} if axis is None else {"axis": axis}
    assert np.array_equal(ours("Compress", x, condition, **how)[0], x.compress(condition, axis))


def test_a_condition_that_the_model_computes_is_refused() -> None:
    text = (
        '<ir_version: 10, opset_import: ["": 21]> g (float[64] x) => (float[k] y) {'
        " c = IsNaN (x)  y = Compress (x, c) }"
    )
    with pytest.raises(lumc.Error) as e:
        onnx_backend.prepare(onnx.parser.parse_model(text), compile=compiled).run(np.ones(64, "f4"))
    assert e.value.exit is Exit.UNSUPPORTED and "run-time values" in e.value.fix


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("skips", [0, 1, 5])
@pytest.mark.parametrize("lengths", [(1, 3), (2, 2), (1, 1)])
def test_n_grams(mode: str, skips: int, lengths: tuple[int, int]) -> None:
    x = RNG.integers(0, 4, (3, 12))
    how = {
        "mode": mode,
        "max_skip_count": skips,
        "min_gram_length": lengths[0],
        "max_gram_length": lengths[1],
        "ngram_counts": [0, 3, 9],
        "ngram_indexes": [1, 0, 6, 3, 4, 2, 5, 7],
        "pool_int64s": [0, 2, 3, 1, 1, 0, 2, 3, 0, 1, 2, 3, 2, 1, 0],
        "weights": [float(w) for w in RNG.uniform(0.5, 2, 8)],
    }
    (wanted,) = theirs("TfIdfVectorizer", x, result=1, **how)
    near(ours("TfIdfVectorizer", x, **how)[0], wanted)
    near(ours("TfIdfVectorizer", x[0], **how)[0], wanted[0])


@pytest.mark.parametrize("edges", [(0.0, 4000.0), (125.0, 3800.0)])
def test_mel_scales(edges: tuple[float, float]) -> None:
    values = [np.array(v, "i8") for v in (20, 512, 8000)] + [np.array(e, "f4") for e in edges]
    node = node_of("MelWeightMatrix", 5)
    feed = dict(zip(node.input, values, strict=True))
    near(ours("MelWeightMatrix", *values)[0], ReferenceEvaluator(node).run(None, feed)[0])


@pytest.mark.parametrize("step", [0, 3])
def test_optimisers(step: int) -> None:
    """Two parameters, by the formulas of the standard."""
    domain = {"domain": "ai.onnx.preview.training", "version": 1}
    r, t = np.array(0.1), np.array(step)
    x, g, v = (RNG.standard_normal((2, 5)) for _ in "xgv")
    h = RNG.random((2, 5))
    reg = 0.01 * x + g

    how = {"alpha": 0.9, "beta": 0.7, "epsilon": 1e-4, "norm_coefficient": 0.01}
    got = ours("Adam", r, t, *x, *g, *v, *h, results=6, norm_coefficient_post=0.2, **how, **domain)
    v1, h1 = 0.9 * v + 0.1 * reg, 0.7 * h + 0.3 * reg * reg
    rate = r * np.sqrt(1 - 0.7**step) / (1 - 0.9**step) if step else r
    near(np.stack(got), np.concatenate([0.8 * (x - rate * v1 / (np.sqrt(h1) + 1e-4)), v1, h1]))

    how = {"decay_factor": 0.1, "epsilon": 1e-4, "norm_coefficient": 0.01}
    got = ours("Adagrad", r, t, *x, *g, *h, results=4, **how, **domain)
    h1 = h + reg * reg
    rate = r / (1 + 0.1 * step)
    near(np.stack(got), np.concatenate([x - rate * reg / (np.sqrt(h1) + 1e-4), h1]))

    for mode in ("standard", "nesterov"):
        how = {"alpha": 0.9, "beta": 0.7, "norm_coefficient": 0.01, "mode": mode}
        got = ours("Momentum", r, t, *x, *g, *v, results=4, **how, **domain)
        v1 = 0.9 * v + (0.7 if step else 1) * reg
        moved = x - r * (reg + 0.9 * v1 if mode == "nesterov" else v1)
        near(np.stack(got), np.concatenate([moved, v1]))


def test_features() -> None:
    x, y = RNG.standard_normal((3, 7)).astype("f4"), np.array([5, 0, 2])
    (got,) = ours("ArrayFeatureExtractor", x, y, domain="ai.onnx.ml", version=1)
    assert np.array_equal(got, x[:, y])
    assert ours("ArrayFeatureExtractor", x[0], y, domain="ai.onnx.ml", version=1)[0].shape == (1, 3)
    (got,) = ours("Binarizer", x, threshold=0.25, domain="ai.onnx.ml", version=1)
    assert np.array_equal(got, (x > 0.25).astype("f4"))


def test_a_part_of_a_shape_beyond_its_ends() -> None:
    """What lies beyond the rank, from either end, is clamped to it: an end of -5 leaves none of
    four axes. (The onnx package's reference gives three there.)"""
    x = np.zeros((2, 3, 4, 5), "f4")
    ends = (-6, -5, -4, -2, 0, 1, 4, 5)
    for start in ends:
        for end in ends:
            (mine,) = ours("Shape", x, start=start, end=end, version=21)
            (other,) = theirs("Shape", x, start=start, end=end, version=21, result=7)
            assert mine.dtype == other.dtype and mine.tolist() == other.tolist(), (start, end)


def test_elements_that_are_not_there_are_refused() -> None:
    """The greatest of no axis of a shape: the onnx package's reference has one."""
    text = "g (float[4,5] x) => (int64[k] y) { s = Shape<start: int = -3, end: int = -3>(x)"
    text += " n = Constant<value_ints=[1]>() y, at = TopK(s, n) }"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')
    with pytest.raises(LumcError, match="1 elements of axis 0") as refused:
        onnx_backend.run_model(model, [np.zeros((4, 5), "f4")])
    assert refused.value.exit is Exit.UNSUPPORTED

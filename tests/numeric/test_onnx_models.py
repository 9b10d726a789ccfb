"""Exported models and operators at odd shapes, through the importer and the oracle, against
onnxruntime."""

from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx_models import EXPORTS, feeds, one_node, onnxruntime, oracle, with_weights  # noqa: E402

RNG = np.random.default_rng(7)
MERGES_DIMS = "vit"  # its projection merges sequence and batch: the batch has to be bound


def sizes(inputs, values):
    """Values for the dynamic dims, in order of appearance."""
    names = dict.fromkeys(
        d.dim_param for i in inputs for d in i.type.tensor_type.shape.dim if d.dim_param
    )
    return dict(zip(names, values, strict=False))


@pytest.mark.parametrize("name", EXPORTS)
@pytest.mark.parametrize("late", [False, True], ids=["bound", "symbolic"])
def test_export(name: str, late: bool, tmp_path: Path) -> None:
    if late and name.startswith(MERGES_DIMS):
        pytest.skip("needs its batch dim bound")
    path = tmp_path / "model.onnx"
    inputs = with_weights(name, path)
    for seed, values in enumerate([(1, 5), (3, 11)]):
        dims = sizes(inputs, values)
        feed = feeds(inputs, dims, seed)
        for got, want in zip(oracle(path, feed, dims, late), onnxruntime(path, feed), strict=True):
            assert got.shape == want.shape
            error = np.linalg.norm(got - want) / np.linalg.norm(want)
            assert error < 2e-6, f"{name} {dims}: relative error {error}"


def f32(*shape: int):
    return RNG.standard_normal(shape).astype(np.float32)


def i64(*values: int):
    return np.array(values, np.int64)


def case(op: str, **given):
    """The operator, its inputs (arrays and None) and its attributes."""
    inputs = {n: v for n, v in given.items() if v is None or isinstance(v, np.ndarray | np.generic)}
    return op, inputs, {n: v for n, v in given.items() if n not in inputs}


CASES = {
    "conv strides": case(
        "Conv", X=f32(2, 3, 9, 7), W=f32(5, 3, 3, 2), strides=[2, 3], pads=[1, 0, 2, 1]
    ),
    "conv groups dilated": case(
        "Conv", X=f32(1, 4, 11, 9), W=f32(6, 2, 3, 3), B=f32(6), group=2, dilations=[2, 1]
    ),
    "conv depthwise": case(
        "Conv", X=f32(2, 5, 8, 8), W=f32(5, 1, 3, 3), group=5, auto_pad="SAME_UPPER"
    ),
    "conv same lower": case(
        "Conv", X=f32(1, 2, 7, 6), W=f32(3, 2, 4, 3), strides=[2, 2], auto_pad="SAME_LOWER"
    ),
    "conv 1d": case("Conv", X=f32(2, 3, 13), W=f32(4, 3, 5), pads=[2, 2], dilations=[2]),
    "conv 3d": case("Conv", X=f32(1, 2, 5, 4, 6), W=f32(3, 2, 2, 3, 2)),
    "conv transpose": case(
        "ConvTranspose",
        X=f32(1, 4, 5, 4),
        W=f32(4, 3, 3, 2),
        B=f32(6),
        group=2,
        strides=[2, 3],
        pads=[1, 0, 1, 0],
        output_padding=[1, 2],
    ),
    "conv transpose dilated": case(
        "ConvTranspose", X=f32(1, 2, 4, 5), W=f32(2, 3, 3, 3), dilations=[2, 1], strides=[1, 2]
    ),
    "max pool ceil": case(
        "MaxPool",
        X=f32(1, 3, 10, 11),
        kernel_shape=[3, 2],
        strides=[2, 3],
        ceil_mode=1,
        pads=[1, 0, 1, 1],
    ),
    "max pool dilated": case(
        "MaxPool", X=f32(1, 2, 12), kernel_shape=[3], dilations=[2], strides=[2]
    ),
    "max pool positions": case(
        "MaxPool",
        X=f32(2, 3, 7, 5),
        kernel_shape=[2, 3],
        strides=[2, 1],
        pads=[0, 1, 1, 1],
        outputs=2,
    ),
    "average pool": case(
        "AveragePool", X=f32(1, 3, 9, 8), kernel_shape=[4, 3], strides=[3, 2], pads=[1, 1, 2, 1]
    ),
    "average pool counted": case(
        "AveragePool",
        X=f32(1, 3, 9, 8),
        kernel_shape=[4, 3],
        strides=[3, 2],
        pads=[1, 1, 2, 1],
        count_include_pad=1,
        ceil_mode=1,
    ),
    "batch norm": case(
        "BatchNormalization",
        X=f32(2, 5, 3, 4),
        s=f32(5),
        b=f32(5),
        m=f32(5),
        v=np.abs(f32(5)) + 0.1,
        epsilon=0.001,
    ),
    "layer norm axes": case(
        "LayerNormalization", X=f32(3, 4, 5, 2), s=f32(5, 2), b=f32(5, 2), axis=2
    ),
    "instance norm": case("InstanceNormalization", X=f32(2, 3, 5), s=f32(3), b=f32(3)),
    "gemm": case(
        "Gemm", A=f32(7, 3), B=f32(5, 7), C=f32(5), transA=1, transB=1, alpha=0.5, beta=-2.0
    ),
    "matmul vector": case("MatMul", A=f32(7), B=f32(3, 7, 2)),
    "einsum": case("Einsum", A=f32(2, 3, 5, 4), B=f32(2, 7, 4), equation="bhqd,bkd->bhqk"),
    "einsum ellipsis": case("Einsum", A=f32(2, 3, 5), B=f32(5, 4), equation="...i,ij->...j"),
    "einsum inner": case("Einsum", A=f32(4, 4), equation="ii"),
    "slice backwards": case(
        "Slice",
        X=f32(5, 9),
        s=i64(-2, 7),
        e=i64(-100, 0),
        a=i64(0, 1),
        t=i64(-1, -3),
        constants="seat",
    ),
    "pad reflect": case("Pad", X=f32(3, 6), p=i64(1, 2, 2, 3), mode="reflect", constants="p"),
    "pad edge": case("Pad", X=f32(3, 6), p=i64(1, 0, 2, 3), mode="edge", constants="p"),
    "pad value": case("Pad", X=f32(3, 6), p=i64(1, -2, 2, 3), v=np.float32(1.5), constants="p"),
    "resize linear": case(
        "Resize",
        X=f32(1, 2, 5, 7),
        r=None,
        s=np.array([1, 1, 1.7, 0.6], np.float32),
        mode="linear",
        constants="s",
    ),
    "resize cubic": case(
        "Resize",
        X=f32(1, 2, 5, 7),
        r=None,
        s=None,
        z=i64(1, 2, 9, 4),
        mode="cubic",
        constants="z",
        coordinate_transformation_mode="align_corners",
    ),
    "resize nearest": case(
        "Resize",
        X=f32(1, 2, 5, 7),
        r=None,
        s=None,
        z=i64(1, 2, 8, 3),
        mode="nearest",
        constants="z",
        nearest_mode="floor",
        coordinate_transformation_mode="asymmetric",
    ),
    "gather negative": case("Gather", X=f32(6, 5), i=i64(-1, 0, 3, -6), axis=0),
    "gather elements": case(
        "GatherElements", X=f32(4, 5), i=i64(0, -1, 2, 3, 1, 1).reshape(2, 3), axis=0
    ),
    "gather nd": case("GatherND", X=f32(3, 4, 5), i=i64(2, 1, 0, -1).reshape(2, 2)),
    "scatter nd": case("ScatterND", X=f32(5, 3), i=i64(4, 1).reshape(2, 1), u=f32(2, 3)),
    "scatter elements": case(
        "ScatterElements", X=f32(5, 3), i=i64(4, 1, 0, 2).reshape(2, 2), u=f32(2, 2), axis=0
    ),
    "top k": case("TopK", X=f32(3, 11), k=i64(4), axis=1, largest=0, constants="k", outputs=2),
    "one hot": case("OneHot", i=i64(1, -2, 5), d=i64(6), v=f32(2), axis=0, constants="d"),
    "cumsum": case(
        "CumSum", X=f32(3, 7), a=np.array(1, np.int64), reverse=1, exclusive=1, constants="a"
    ),
    "int division": case(
        "Div", A=i64(7, -7, 7, -7, 2**62 + 3, -(2**62)), B=i64(2, 2, -2, -2, 3, 7)
    ),
    "int modulo": case("Mod", A=i64(7, -7, 7, -7), B=i64(3, 3, -3, -3)),
    "power of ints": case("Pow", A=i64(2, -3, 1, 10), B=i64(10, 3, 0, 5)),
    "quantize": case("QuantizeLinear", X=f32(3, 20) * 40, s=np.float32(0.37), z=np.uint8(100)),
    "dequantize": case(
        "DequantizeLinear",
        X=RNG.integers(-128, 128, (3, 5)).astype(np.int8),
        s=np.abs(f32(5)),
        z=RNG.integers(-9, 9, 5).astype(np.int8),
        axis=1,
    ),
    "matmul integer": case(
        "MatMulInteger",
        A=RNG.integers(0, 256, (3, 7)).astype(np.uint8),
        B=RNG.integers(0, 256, (7, 5)).astype(np.uint8),
        a=np.uint8(12),
        b=np.uint8(7),
    ),
    "lstm": case(
        "LSTM",
        X=f32(4, 2, 3),
        W=f32(2, 20, 3),
        R=f32(2, 20, 5),
        B=f32(2, 40),
        hidden_size=5,
        direction="bidirectional",
        outputs=3,
    ),
    "gru": case(
        "GRU",
        X=f32(4, 2, 3),
        W=f32(1, 15, 3),
        R=f32(1, 15, 5),
        B=f32(1, 30),
        hidden_size=5,
        linear_before_reset=1,
        outputs=2,
        direction="reverse",
    ),
    "softmax axis": case("Softmax", X=f32(3, 4, 5) * 30, axis=1),
    "log softmax": case("LogSoftmax", X=f32(3, 70) * 30),
    "gelu microsoft": case("BiasGelu", A=f32(3, 5), B=f32(5), domain="com.microsoft"),
    "skip layer norm": case(
        "SkipLayerNormalization",
        X=f32(2, 3, 8),
        S=f32(2, 3, 8),
        g=f32(8),
        b=f32(8),
        domain="com.microsoft",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_operator(name: str, tmp_path: Path) -> None:
    op, inputs, options = CASES[name]
    path = tmp_path / "model.onnx"
    onnx.save(one_node(op, inputs, **options), path)
    constants = options.get("constants", "")
    given = {n: np.asarray(v) for n, v in inputs.items() if v is not None}
    feed = {n: v for n, v in given.items() if n not in constants}
    wanted = onnxruntime(path, feed)
    for got, want in zip(oracle(path, feed, declared=True), wanted, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        if want.dtype.kind in "iub":
            np.testing.assert_array_equal(got, want)
        else:
            np.testing.assert_allclose(got, want, rtol=3e-5, atol=3e-6)


def test_special_values(tmp_path: Path) -> None:
    """NaN, infinities and signed zeros through comparisons, extrema, rounding and powers."""
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 0.5, 1.5, -2.5, 3.0], np.float32)
    for op in ("Abs", "Sign", "Floor", "Ceil", "Round", "Relu", "Sqrt", "Exp", "Sigmoid", "IsNaN"):
        if op != "Sign":  # of NaN: 0 here, NaN in numpy
            _same(op, {"X": x}, tmp_path)
    pair = np.meshgrid(x, x)
    for op in ("Less", "Equal", "GreaterOrEqual", "Max", "Min", "Pow"):
        rows = {"A": pair[0].copy(), "B": pair[1].copy()}
        if op == "Pow":  # 1 ** inf and the like are left open
            rows = {n: v[np.isfinite(pair[0]) & np.isfinite(pair[1])] for n, v in rows.items()}
        _same(op, rows, tmp_path)


def _same(op: str, inputs: dict, folder: Path) -> None:
    path = folder / f"{op}.onnx"
    onnx.save(one_node(op, inputs), path)
    got, want = oracle(path, inputs, declared=True)[0], onnxruntime(path, inputs)[0]
    np.testing.assert_allclose(got, want, rtol=1e-5, err_msg=op)

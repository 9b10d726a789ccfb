"""Floats and integers of 8 bits and fewer, against ml_dtypes: every code, and every f16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ml_dtypes = pytest.importorskip("ml_dtypes")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import lumc  # noqa: E402
from lumc import onnx_backend  # noqa: E402
from lumc.errors import Exit  # noqa: E402
from lumc.frontend.onnx import coded, import_onnx  # noqa: E402
from lumc.oracle.graph import evaluate  # noqa: E402

HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16)  # every f16
SIGNED = [n for n in coded.FLOATS if n not in (coded.SCALE, 23)]


def compiled(model: lumc.Model) -> Any:
    return lambda feed: evaluate(model.graph(), "main", feed, model.read_weight, declared=True)[0]


def cast(x: Any, to: int, **how: Any) -> Any:
    node = helper.make_node("Cast", ["x"], ["y"], to=to, **how)
    return onnx_backend.run_node(node, [x], compile=compiled)[0]


def same(got: Any, wanted: Any) -> None:
    """The same codes, but that a NaN is a NaN."""
    a, b = got.astype("f4"), wanted.astype("f4")
    assert got.dtype == wanted.dtype
    differ = ~((coded.codes(got) == coded.codes(wanted)) | (np.isnan(a) & np.isnan(b)))
    assert not differ.any(), (np.flatnonzero(differ)[:9], a[differ][:9], b[differ][:9])


@pytest.mark.parametrize("number", coded.NAMES)
def test_every_code_is_the_number_that_it_was(number: int) -> None:
    """To f32 and back."""
    kind = coded.numpy_type(number)
    if number in coded.INTEGERS:
        low, high = coded.limits(number)
        x = np.arange(low, high + 1).astype(kind)
    else:
        x = np.arange(16 if number == 23 else 256, dtype=np.uint8).view(kind)
    y = cast(x, TensorProto.FLOAT)
    assert y.dtype == np.float32 and np.array_equal(y, x.astype("f4"), equal_nan=True)
    same(cast(y, number, saturate=0), x)


@pytest.mark.parametrize("number", SIGNED)
@pytest.mark.parametrize("kind", ["f2", "f4", "f8"])
def test_rounding(number: int, kind: str) -> None:
    """To the nearest, ties to even; beyond the greatest as ml_dtypes has it, or that one."""
    x = HALVES
    with np.errstate(all="ignore"):
        if kind != "f2":  # also what is one bit of f32 beside them
            x = HALVES.astype("f4")
            x = np.concatenate([x, np.nextafter(x, np.float32(np.inf)), np.float32([7e4, 1e30])])
        x = x.astype(kind)
        wanted = x.astype(coded.numpy_type(number))
    same(cast(x, number, saturate=0), wanted)
    finite = np.isfinite(coded.table(number))
    most = float(coded.table(number)[finite].max())
    with np.errstate(all="ignore"):
        wanted = np.clip(x, -most, most).astype(coded.numpy_type(number))
    same(cast(x, number), wanted)


def test_four_bits() -> None:
    kind = coded.numpy_type(23)
    x = HALVES[~np.isnan(HALVES)].astype("f4")
    same(cast(x, 23), np.clip(x, -6, 6).astype(kind))


def test_a_rule_that_is_wrong_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ties up instead of to even; no saturation; no negative zero."""

    def up(values: Any, kind: Any) -> Any:
        return np.nextafter(
            ((values[1:] + values[:-1]) / 2).astype(kind.numpy), kind.numpy.type(-1)
        )

    monkeypatch.setattr(coded, "_midpoints", up)
    with pytest.raises(AssertionError):
        test_rounding(17, "f4")


@pytest.mark.parametrize("mode", ["up", "down", "nearest"])
def test_scales(mode: str) -> None:
    powers = 2.0 ** np.arange(-127, 128)
    x = np.concatenate([powers, powers * 1.25, powers * 1.5, powers * 1.75]).astype("f4")
    x = x[x <= 2.0**127]
    exponent = np.log2(x.astype("f8"))
    whole = {"up": np.ceil, "down": np.floor}.get(mode)
    if whole is None:
        low = np.floor(exponent)
        wanted = low + (x >= 1.5 * 2.0**low)
    else:
        wanted = whole(exponent)
    got = cast(x, coded.SCALE, round_mode=mode)
    assert np.array_equal(np.log2(got.astype("f8")), np.minimum(wanted, 127))


@pytest.mark.parametrize("number", coded.INTEGERS)
def test_integers_wrap(number: int) -> None:
    kind = coded.numpy_type(number)
    for x in (np.arange(-40, 40, dtype="i8"), np.arange(-40, 40).astype("f4") + 0.5):
        low, high = coded.limits(number)
        wanted = (np.trunc(x).astype("i8") - low) % (high - low + 1) + low
        got = cast(x, number)
        assert got.dtype == kind and np.array_equal(got.astype("i8"), wanted)


def test_moves_keep_the_type() -> None:
    text = """<ir_version: 11, opset_import: ["": 23]>
        g (int4[2, 3] x, int4[1, 3] w) => (int4[n] y, float[3, 3] z) {
        c = Concat<axis=0>(x, w)  t = Transpose(c)  s = Constant<value_ints=[9]>()
        y = Reshape(t, s)  one = Constant<value_float=0.5>()  z = DequantizeLinear(t, one) }"""
    x = np.arange(6).reshape(2, 3).astype(ml_dtypes.int4)
    w = np.full((1, 3), -8).astype(ml_dtypes.int4)
    y, z = onnx_backend.prepare(onnx.parser.parse_model(text), compile=compiled).run([x, w])
    whole = np.concatenate([x, w]).T
    assert y.dtype == x.dtype and np.array_equal(y, whole.reshape(9))
    assert np.array_equal(z, whole.astype("f4") * 0.5)


def test_other_operators_say_the_type() -> None:
    node = helper.make_node("Add", ["x", "x"], ["y"])
    with pytest.raises(lumc.Error) as e:
        x = np.ones(2, ml_dtypes.float8_e5m2)
        onnx_backend.run_node(node, [x, x], compile=compiled)
    assert e.value.exit is Exit.UNSUPPORTED and "dtype float8_e5m2 is not supported" in e.value.fix
    node = helper.make_node("Concat", ["x", "z"], ["y"], axis=0)
    with pytest.raises(lumc.Error) as e:
        onnx_backend.run_node(node, [x, np.ones(2, ml_dtypes.int4)], compile=compiled)
    assert e.value.exit is Exit.UNSUPPORTED and "together" in e.value.fix


@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize("kind", [TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT8E4M3FN])
def test_weights_in_blocks(kind: int, outside: bool, tmp_path: Path) -> None:
    """Weights of a file, or beside it, with a scale for each block of 8."""
    rng = np.random.default_rng(5)
    name = coded.NAMES[kind]
    w = rng.integers(-8, 8, (6, 31)) if kind != TensorProto.UINT4 else rng.integers(0, 16, (6, 31))
    w = w.astype(coded.numpy_type(kind))
    scale = rng.random((6, 4)).astype("f4") + 0.5
    node = helper.make_node("DequantizeLinear", ["w", "s"], ["d"], axis=1, block_size=8)
    product = helper.make_node("MatMul", ["x", "d"], ["y"])
    graph = helper.make_graph(
        [node, product],
        name,
        [helper.make_tensor_value_info("x", 1, [2, 6])],
        [helper.make_tensor_value_info("y", 1, [2, 31])],
        [
            numpy_helper.from_array(w, "w"),
            numpy_helper.from_array(scale, "s"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=outside, location="w.bin", size_threshold=0)
    built = import_onnx(path)
    x = rng.standard_normal((2, 6)).astype("f4")
    (y,) = compiled(built)({"x": x}).values()
    wide = np.repeat(scale, 8, 1)[:, :31]
    np.testing.assert_allclose(y, x @ (w.astype("f4") * wide), rtol=1e-5, atol=1e-5)


def test_external_data_of_another_size(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Cast", ["w"], ["y"], to=1)],
        "g",
        [],
        [helper.make_tensor_value_info("y", 1, [5])],
        [numpy_helper.from_array(np.arange(1, 6).astype(ml_dtypes.int4), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    (y,) = compiled(import_onnx(path))({}).values()
    assert y.tolist() == [1, 2, 3, 4, 5]
    (tmp_path / "w.bin").write_bytes(b"\x21")
    with pytest.raises(lumc.Error) as e:
        import_onnx(path)
    assert e.value.code == "E0310"

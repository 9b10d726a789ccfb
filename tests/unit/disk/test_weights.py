"""Weights: read where they lie, refused when anything differs from what was imported."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from lumc.disk.weights import read_header, read_weight, weight_file
from lumc.errors import Exit, LumcError
from lumc.graph.builder import Builder
from lumc.graph.graph import WeightFile
from lumc.graph.ops import DType, from_bf16, to_bf16

RNG = np.random.default_rng(3)
ARRAYS = {
    "f32": RNG.standard_normal((3, 5)).astype("f4"),
    "f16": RNG.standard_normal(7).astype("f2"),
    "f64": RNG.standard_normal((2, 2, 2)),
    "i64": RNG.integers(-9, 9, (4, 1)),
    "i32": RNG.integers(-9, 9, 3).astype("i4"),
    "i8": RNG.integers(-9, 9, 5).astype("i1"),
    "u8": RNG.integers(0, 9, 3).astype("u1"),
    "bool": np.array([True, False, True]),
    "scalar": np.array(2.5, "f4"),
    "empty": np.zeros((0, 3), "f4"),
}


def write(path: Path, header, data: bytes = b"") -> Path:
    """A safetensors file from parts; the header is a dict, or bytes as they are."""
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + data)
    return path


def weight(file, key, dtype, shape):
    return Builder().leaf("weight", "w", dtype, shape, file, key)


@pytest.fixture
def saved(tmp_path):
    save_file(ARRAYS, tmp_path / "m.safetensors", metadata={"format": "pt"})
    return tmp_path / "m.safetensors"


def dtype_of(array):
    return next(d for d in DType if d.numpy == array.dtype and d is not DType.BF16)


@pytest.mark.parametrize("key", ARRAYS)
def test_what_safetensors_writes_is_read(saved, key):
    file = weight_file(saved, saved.parent)
    assert file == WeightFile("m.safetensors", saved.stat().st_size, file.sha256)
    array = ARRAYS[key]
    got = read_weight(weight(file, key, dtype_of(array), array.shape), saved.parent)
    assert got.dtype == array.dtype and not (got.size and got.flags.writeable)
    np.testing.assert_array_equal(got, array)


def test_the_header_lists_all_tensors(saved):
    header = read_header(saved)
    assert sorted(header) == sorted(ARRAYS)
    stored = header["f64"]
    assert (stored.dtype, stored.shape, stored.end - stored.start) == (DType.F64, (2, 2, 2), 64)


def test_paths_are_relative_only_below_the_graph(saved, tmp_path):
    assert weight_file(saved, tmp_path).path == "m.safetensors"
    assert weight_file(saved, tmp_path.parent).path == f"{tmp_path.name}/m.safetensors"
    elsewhere = weight_file(saved, tmp_path / "other")
    assert elsewhere.path == str(saved.resolve())
    read_weight(weight(elsewhere, "f16", DType.F16, (7,)), Path("/nowhere"))
    up = replace(elsewhere, path="../m.safetensors")
    (tmp_path / "other").mkdir()
    with pytest.raises(LumcError, match="may not leave the folder"):
        read_weight(weight(up, "f16", DType.F16, (7,)), tmp_path / "other")


def test_bf16_comes_as_bits_and_unaligned_data_is_fine(tmp_path):
    bits = to_bf16(np.array([1.0, -3.0, 0.5]))
    header = {
        "x": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "w": {"dtype": "BF16", "shape": [3], "data_offsets": [1, 7]},
    }
    path = write(tmp_path / "w", header, b"\0" + bits.tobytes())
    got = read_weight(weight(weight_file(path, tmp_path), "w", DType.BF16, (3,)), tmp_path)
    np.testing.assert_array_equal(from_bf16(got), [1.0, -3.0, 0.5])


def refused(node, base, what, code):
    with pytest.raises(LumcError) as e:
        read_weight(node, base)
    assert what in e.value.what and e.value.code == code and e.value.exit == Exit.CORRUPT


def test_a_changed_file_is_refused(saved):
    base, file = saved.parent, weight_file(saved, saved.parent)
    node = weight(file, "f16", DType.F16, (7,))
    changed = "the file is not the one that was imported"
    refused(
        weight(replace(file, size=file.size + 1), "f16", DType.F16, (7,)), base, changed, "E0503"
    )
    other = replace(file, sha256="0" * 64)
    refused(weight(other, "f16", DType.F16, (7,)), base, changed, "E0503")
    raw = saved.read_bytes()
    saved.write_bytes(raw + b"\0")
    refused(node, base, changed, "E0503")
    saved.write_bytes(raw.replace(b'"f16"', b'"g16"'))
    refused(node, base, changed, "E0503")
    saved.unlink()
    refused(node, base, "cannot read the weights", "E0503")
    refused(weight(None, "", DType.F16, (7,)), base, "weight 'w' is in no file", "E0503")


def test_another_tensor_is_refused(saved):
    base, file = saved.parent, weight_file(saved, saved.parent)
    refused(weight(file, "q", DType.F16, (7,)), base, "tensor 'q' does not exist", "E0504")
    refused(
        weight(file, "f16", DType.BF16, (7,)), base, "is f16[7], weight 'w' is bf16[7]", "E0504"
    )
    refused(weight(file, "f16", DType.F16, (1, 7)), base, "weight 'w' is f16[1, 7]", "E0504")


GOOD = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
DAMAGED = [
    b"",
    b"{",
    b"[]",
    b"3",
    b"\xff\xfe{}",
    b"[" * 100_000,
    b'{"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "w": 3}',
    b'{"w": {"dtype": "F32", "dtype": "I32", "shape": [2], "data_offsets": [0, 8]}}',
    {"w": 3},
    {"w": []},
    {"w": {}},
    {"w": {**GOOD, "dtype": ["F32"]}},
    {"w": {**GOOD, "shape": 2}},
    {"w": {**GOOD, "shape": [2.0]}},
    {"w": {**GOOD, "shape": [True, 2]}},
    {"w": {**GOOD, "shape": [-1, -2]}},
    {"w": {**GOOD, "shape": [1] * 40 + [2]}},
    {"w": {**GOOD, "shape": [10**400]}},
    {"w": {**GOOD, "data_offsets": [0]}},
    {"w": {**GOOD, "data_offsets": [0, 4]}},
    {"w": {**GOOD, "data_offsets": [4, 12]}},
    {"w": {**GOOD, "data_offsets": [8, 0]}},
    {"w": {**GOOD, "data_offsets": [-8, 0]}},
    {"w": {**GOOD, "data_offsets": ["0", 8]}},
    {"w": {**GOOD, "data_offsets": [10**400, 10**400 + 8]}},
]


@pytest.mark.parametrize("header", DAMAGED, ids=range(len(DAMAGED)))
def test_damaged_headers(tmp_path, header):
    path = write(tmp_path / "w", header, bytes(8))
    with pytest.raises(LumcError) as e:
        read_header(path)
    assert (e.value.code, e.value.exit) == ("E0504", Exit.CORRUPT)


@pytest.mark.parametrize("raw", [b"", b"abc", b"\xff" * 8, b"\x05\0\0\0\0\0\0\0{}", bytes(8)])
def test_damaged_files(tmp_path, raw):
    (tmp_path / "w").write_bytes(raw)
    with pytest.raises(LumcError) as e:
        weight_file(tmp_path / "w", tmp_path)
    assert e.value.code == "E0504"


def test_what_is_no_file_is_never_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for a writer
    for name in ("pipe", "", "a\0b"):
        with pytest.raises(LumcError) as e:
            read_header(tmp_path / name)
        assert e.value.exit == Exit.CORRUPT


def test_other_dtypes_are_listed_but_cannot_be_weights(tmp_path):
    path = write(tmp_path / "w", {"w": {**GOOD, "dtype": "F8_E4M3", "shape": [8]}}, bytes(8))
    assert read_header(path)["w"].dtype is None
    refused(weight(weight_file(path, tmp_path), "w", DType.U8, (8,)), tmp_path, "is ", "E0504")


def test_bools_are_zero_or_one(tmp_path):
    header = {"w": {"dtype": "BOOL", "shape": [2], "data_offsets": [0, 2]}}
    path = write(tmp_path / "w", header, b"\x01\x02")
    node = weight(weight_file(path, tmp_path), "w", DType.BOOL, (2,))
    refused(node, tmp_path, "neither 0 nor 1", "E0504")

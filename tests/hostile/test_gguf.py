"""Damaged and malicious GGUF files: one LumcError, never another exception, never large memory."""

from __future__ import annotations

import resource
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_files import F32, Q4_1, Array, Number, Tensor, gguf, tensor, text
from lumc.disk import gguf as reader
from lumc.disk.gguf import is_gguf, read_gguf
from lumc.disk.weights import read_header, weight_file
from lumc.errors import Exit, LumcError

ONE = tensor(np.ones((2, 3)))
GOOD: dict[str, Any] = {"general.architecture": "llama", "a.b": 3, "w": Array(8, ["x", "yz"])}
MANY = 1 << 40


def refused(path: Path, data: bytes, what: str = "") -> None:
    path.write_bytes(data)
    with pytest.raises(LumcError) as e:
        read_gguf(path)
    assert (e.value.code, e.value.exit) == ("E0340", Exit.CORRUPT)
    assert what in e.value.what, e.value.what


def test_a_good_file(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf(GOOD, {"t": ONE, "u": tensor(np.zeros(5))}))
    file = read_gguf(path)
    assert file.fields["a.b"] == 3 and file.fields["w"] == ["x", "yz"]
    assert file.tensors["t"].shape == (2, 3) and file.tensors["u"].shape == (5,)
    assert read_header(path) == dict(file.tensors)
    assert is_gguf(path) and weight_file(path, tmp_path).path == "m.gguf"
    assert not is_gguf(tmp_path) and not is_gguf(tmp_path / "other")


RAW = gguf(GOOD, {"t": ONE, "u": ONE})
CASES: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "0"),
    "another file": (b"PK\3\4" + bytes(60), "does not start"),
    "version 1": (gguf(GOOD, version=1), "version 1"),
    "version 4": (gguf(GOOD, version=4), "version 4"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "many tensors": (gguf(GOOD, counts=(MANY, 3)), f"{MANY} tensors"),
    "many fields": (gguf(GOOD, counts=(0, MANY)), f"{MANY} fields"),
    "more fields than there are": (gguf(GOOD, counts=(0, 9)), ""),
    "more tensors than there are": (gguf(GOOD, {"t": ONE}, counts=(99, 3)), ""),
    "a long name": (gguf({"a" * 2000: 1}), "a text of 2000 bytes"),
    "a name without end": (gguf([], counts=(0, 1))[:24] + struct.pack("<Q", MANY), "a text of"),
    "no UTF-8": (gguf([("k", "\ud800")]), "no UTF-8"),
    "a name that is no UTF-8": (gguf([("\ud800", 1)]), "no UTF-8"),
    "a field twice": (gguf([("a", 1), ("a", 2)]), "'a' stands twice"),
    "a type that is none": (gguf([], counts=(0, 1))[:24] + text("k") + bytes([77, 0, 0, 0]), "77"),
    "an array of arrays": (
        gguf([], counts=(0, 1))[:24] + text("k") + struct.pack("<IIQ", 9, 9, 1) + bytes(64),
        "type 9 in an array",
    ),
    "an array without end": (
        gguf([], counts=(0, 1))[:24] + text("k") + struct.pack("<IIQ", 9, 4, MANY) + bytes(64),
        "bytes at",
    ),
    "texts without end": (
        gguf([], counts=(0, 1))[:24] + text("k") + struct.pack("<IIQ", 9, 8, MANY) + bytes(64),
        "an array of",
    ),
    "a length that wraps": (
        gguf([], counts=(0, 1))[:24] + text("k") + struct.pack("<IIQ", 9, 4, (1 << 62) + 1),
        "bytes at",
    ),
    "a bool of 2": (gguf({"k": Array(7, [True])})[:-8].replace(b"\1" + bytes(7), b"\2"), ""),
    "alignment 0": (gguf({"general.alignment": 0}), "alignment = 0"),
    "alignment 24": (gguf({"general.alignment": 24}), "alignment = 24"),
    "alignment 2^31": (gguf({"general.alignment": 1 << 31}), "alignment"),
    "alignment that is text": (gguf({"general.alignment": "32"}), "alignment = '32'"),
    "alignment that is true": (gguf({"general.alignment": True}), "alignment = True"),
    "alignments": (gguf({"general.alignment": Array(4, [32])}), "alignment"),
    "five dims": (gguf(GOOD, {"t": Tensor((1,) * 5, bytes(4))}), "5 dims"),
    "a dim of 0": (gguf(GOOD, {"t": Tensor((2, 0), b"")}), "dims [0, 2]"),
    "dims that wrap": (gguf(GOOD, {"t": Tensor((1 << 32, 1 << 32, 4), bytes(4))}), "dims"),
    "a large dim": (gguf(GOOD, {"t": Tensor((MANY,), bytes(4))}), "lies at"),
    "half a block": (gguf(GOOD, {"t": Tensor((2, 16), bytes(20), Q4_1)}), "rows of 16"),
    "a scalar of blocks": (gguf(GOOD, {"t": Tensor((), bytes(20), Q4_1)}), "rows of 1 "),
    "cut off": (gguf(GOOD, {"t": ONE})[:-33], "lies at"),
    "beyond the end": (gguf(GOOD, {"t": Tensor((2, 3), bytes(24), F32, 64)}), "lies at"),
    "offset 2^64 - 32": (gguf(GOOD, {"t": Tensor((6,), bytes(24), F32, 2**64 - 32)}), "lies at"),
    "not aligned": (gguf(GOOD, {"t": Tensor((2,), bytes(64), F32, 4)}), "aligned by 32"),
    "a tensor twice": (gguf(GOOD, [("t", ONE), ("t", ONE)]), "'t' stands twice"),
    "tensors that overlap": (
        gguf(GOOD, [("t", Tensor((16,), bytes(64))), ("u", Tensor((2,), bytes(32), F32, 32))]),
        "'t' and 'u' overlap",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_said(case: str, tmp_path: Path) -> None:
    refused(tmp_path / "m.gguf", *CASES[case])


def test_every_prefix_is_refused(tmp_path: Path) -> None:
    for n in range(len(RAW) - 8):  # beyond it only padding is missing
        refused(tmp_path / f"{n % 3}", RAW[:n])


def test_types_that_are_not_read_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf(GOOD, {"t": Tensor((2, 256), bytes(64), 19), "u": Tensor((2,), b"", 99)}))
    found = read_gguf(path).tensors
    assert [t.dtype for t in found.values()] == [None, None]
    assert str(found["t"]) == "type 19 of ggml[2, 256]"


@pytest.mark.parametrize("texts", [99, 40])
def test_texts_are_counted_over_all_arrays(
    tmp_path: Path, texts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "MAX_TEXTS", 98)
    data = gguf({k: Array(8, [""] * texts) for k in ("a", "b", "c")})
    refused(tmp_path / "m.gguf", data, f"an array of {texts} texts")


def test_a_head_is_not_read_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_HEAD", 1000)
    refused(tmp_path / "m.gguf", gguf({"a": Array(0, bytes(2000))}), "more than 1000 bytes")


def test_claims_cost_no_memory(tmp_path: Path) -> None:
    """A sparse file of 4 TiB, whose array claims most of it."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    path = tmp_path / "m.gguf"
    for kind in (4, 8):
        head = gguf([], counts=(0, 1))[:24] + text("k") + struct.pack("<IIQ", 9, kind, 1 << 38)
        path.write_bytes(head)
        with path.open("r+b") as f:
            f.truncate(1 << 42)
        with pytest.raises(LumcError, match=r"more than|an array of"):
            read_gguf(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


@pytest.mark.parametrize("number", [Number(10, 1 << 63), Number(12, float("nan")), Number(0, 7)])
def test_numbers_of_every_width(number: Number, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf({"k": number}))
    got = read_gguf(path).fields["k"]
    assert type(got) in (int, float) and (got == number.value or got != got)


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    read: Callable[[], Any] = lambda: read_gguf(path).fields["k"]  # noqa: E731
    for value in (1, 2):
        path.write_bytes(gguf({"k": value, "s": "x" * value}))
        assert read() == value
    path.write_bytes(b"GGUF")
    with pytest.raises(LumcError):
        read()

"""Inputs of strangers: what a file says of itself is checked before anything is allocated."""

from __future__ import annotations

import io
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lumc.command.arrays import read_arrays
from lumc.errors import Exit, LumcError
from lumc.graph.ops import DType
from lumc.graph.tensor import Tensor

WANTED = (Tensor("x", DType.F32, (4, 3)), Tensor("n", DType.I64, (2,)))
X = np.arange(12, dtype="f4").reshape(4, 3)


def npy(header: str, data: bytes = b"", version: bytes = b"\1\0") -> bytes:
    return b"\x93NUMPY" + version + len(header).to_bytes(2, "little") + header.encode() + data


def said(shape: str, descr: str = "'<f4'") -> str:
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n"


def read(path: Path, name: str = "x=") -> Any:
    return read_arrays((f"{name}{path}",), WANTED, "input")


def saved(value: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, value, allow_pickle=True)
    return out.getvalue()


@pytest.mark.parametrize("value", [X, np.asfortranarray(X), X.astype("f2"), X.astype(">f4")])
def test_good_files(value: Any, tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(saved(value))
    np.testing.assert_array_equal(read(tmp_path / "x.npy")["x"], X)
    for write in (np.savez, np.savez_compressed):
        write(tmp_path / "x.npz", x=value, n=np.arange(2))
        got = read(tmp_path / "x.npz", "")
        assert sorted(got) == ["n", "x"]
        np.testing.assert_array_equal(got["x"], X)


BAD: dict[str, tuple[Exit, bytes]] = {
    "4 TiB": (Exit.USAGE, npy(said("(1099511627776,)"))),
    "a negative shape": (Exit.USAGE, npy(said("(-4, 3)"), bytes(48))),
    "other dtype": (Exit.USAGE, saved(X.astype("f8"))),
    "integers": (Exit.USAGE, saved(X.astype("i4"))),
    "objects": (Exit.CORRUPT, saved(np.array([[{}]]))),
    "fields": (Exit.USAGE, npy(said("(4, 3)", "[('a', '<f4')]"), bytes(48))),
    "too little": (Exit.CORRUPT, npy(said("(4, 3)"), bytes(47))),
    "too much": (Exit.CORRUPT, npy(said("(4, 3)"), bytes(49))),
    "no shape": (Exit.CORRUPT, npy(said("3"), bytes(48))),
    "a deep header": (Exit.CORRUPT, npy(said("(" * 9000 + ")" * 9000))),
    "a long header": (Exit.CORRUPT, npy(said("(4, 3)") + " " * 50_000, bytes(48))),
    "an open bracket": (Exit.CORRUPT, npy(said("(4, 3)")[:-20] + "\n" * 20, bytes(48))),
    "an odd indent": (Exit.CORRUPT, npy(" 1\n  2\n 3" + said("(4, 3)"), bytes(48))),
    "a call": (Exit.CORRUPT, npy(said("__import__('os').getpid()"), bytes(48))),
    "version 9": (Exit.CORRUPT, npy(said("(4, 3)"), bytes(48), b"\x09\0")),
    "nothing": (Exit.CORRUPT, b""),
    "a text": (Exit.CORRUPT, b"hello, hello"),
    "half a zip": (Exit.CORRUPT, b"PK\3\4" + bytes(40)),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_files(what: str, tmp_path: Path) -> None:
    exit_, data = BAD[what]
    (tmp_path / "x.npy").write_bytes(data)
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr("x.npy", data)
    for file, name in (("x.npy", "x="), ("x.npz", "")):
        with pytest.raises(LumcError) as e:
            read(tmp_path / file, name)
        if file == "x.npy" or "zip" not in what:
            assert e.value.exit == exit_, e.value
        assert "\n" not in e.value.what and "pickle" not in e.value.what


def test_a_bomb_is_not_inflated(tmp_path: Path) -> None:
    size = 1 << 28
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr("x.npy", npy(said(f"({size},)", "'|u1'"), bytes(size)))
    tracemalloc.start()
    with pytest.raises(LumcError, match="must be f32"):
        read(tmp_path / "x.npz", "")
    assert tracemalloc.get_traced_memory()[1] < 1 << 24
    tracemalloc.stop()


def test_damage_that_only_inflating_shows(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "x.npz", x=np.arange(12, dtype="f4").reshape(4, 3))
    data = bytearray((tmp_path / "x.npz").read_bytes())
    start = data.index(b"x.npy") + 5 + int.from_bytes(data[28:30], "little")
    data[start : start + 8] = b"\xff" * 8
    (tmp_path / "x.npz").write_bytes(data)
    with pytest.raises(LumcError) as e:
        read(tmp_path / "x.npz", "")
    assert e.value.exit == Exit.CORRUPT


def test_names(tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(saved(X))
    for name, code in (("", "E0601"), ("q=", "E0602")):
        with pytest.raises(LumcError) as e:
            read(tmp_path / "x.npy", name)
        assert e.value.code == code
    np.savez(tmp_path / "x.npz", q=X)
    with pytest.raises(LumcError) as e:
        read(tmp_path / "x.npz", "")
    assert e.value.code == "E0602"
    with pytest.raises(LumcError, match="cannot read"):
        read(tmp_path / "none.npy")

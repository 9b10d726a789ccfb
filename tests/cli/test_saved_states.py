"""States in files: the same bytes from Python, the command line, the native runner and C, and what
is refused when they are read."""

from __future__ import annotations

import ctypes
import json
import os
import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

import lumc as package
from commands import Lumc
from lumc.errors import LumcError
from lumc.frontend import Model
from lumc.graph.ops import to_bf16

DTYPES = {"f": "f32", "h": "f16", "b": "bf16", "n": "i64", "t": "bool", "u": "u8", "e": "f32"}
SHAPES = {"f": (3, 5), "h": (7,), "b": (2, 2), "n": (), "t": (4,), "u": (1, 9), "e": (0, 4)}


def model() -> Model:
    """Every element is moved by one run; a state has no elements."""
    g = Model()
    for name, dtype in DTYPES.items():
        s = g.state(name, SHAPES[name], dtype)
        g.update(s, (s < s) | (s == s) if dtype == "bool" else s + 1)
    g.output("y", g.input("x", (2,)) * 2.0)
    return g


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    model().save(folder / "m.lg")
    Lumc(folder)("compile", "--estimate", folder / "m.lg", "-o", folder / "m.lb")
    np.save(folder / "x.npy", np.ones(2, "f4"))
    return folder


@pytest.fixture
def here(linked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("m.lb", "x.npy"):
        (tmp_path / name).symlink_to(linked / name)
    return tmp_path


def given() -> dict[str, Any]:
    rng = np.random.default_rng(2)
    out = {n: rng.standard_normal(SHAPES[n]).astype("f4") for n in ("f", "e")}
    out |= {"h": np.arange(7, dtype="f2"), "b": to_bf16(np.array([[1, 2], [3, 4]], "f4"))}
    out |= {"n": np.array(41, "i8"), "t": np.array([1, 0, 1, 0], bool)}
    return out | {"u": np.arange(9, dtype="u1")[None]}


def native(*args: object, code: int = 0) -> str:
    call = ["m.lb/bin/lumc-run", "m.lb", *map(str, args)]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done.stderr


def test_python_runner_and_c_write_the_same_bytes(here: Path, lumc: Lumc) -> None:
    os.chdir(here)
    with package.load("m.lb") as bundle:
        bundle.set_state(given())
        bundle.save_state("a.safetensors")
        bundle.run({"x": np.ones(2, "f4")})
        bundle.save_state("b.safetensors")
    call = ("run", "m.lb", "--input", "x.npy", "--state", "a.safetensors")
    lumc(*call, "--save", "c.safetensors", "-o", "y.npy")
    native("--input", "x.npy", "--state", "a.safetensors", "--save", "d.safetensors")
    library, handle = ctypes.CDLL(str(Path("m.lb/lib/liblumc.so").resolve())), ctypes.c_void_p()
    assert library.lumc_open(b"m.lb", 1, ctypes.byref(handle)) == 0
    assert library.lumc_load_states(handle, b"b.safetensors") == 0
    assert library.lumc_save_states(handle, b"e.safetensors") == 0
    library.lumc_close(handle)
    want = Path("b.safetensors").read_bytes()
    assert all(Path(f"{n}.safetensors").read_bytes() == want for n in "cde")
    with safe_open("b.safetensors", "np") as f:
        assert set(f.keys()) == set(DTYPES) and f.metadata() is None
        np.testing.assert_array_equal(f.get_tensor("h"), np.arange(7, dtype="f2") + 1)
        assert f.get_tensor("n") == 42 and f.get_tensor("t").all()
    lumc(*call)  # in its place, as an .npz is
    assert Path("a.safetensors").read_bytes() == want
    lumc("run", "m.lb", "--input", "x.npy", "--state", "b.safetensors", "--save", "n.npz")
    assert np.load("n.npz")["n"] == 43
    assert "FAIL" not in lumc("verify", "m.lb", "--state", "a.safetensors")


def test_what_is_not_there_is_said(here: Path, lumc: Lumc) -> None:
    os.chdir(here)
    call = ("run", "m.lb", "--input", "x.npy", "--state", "no.safetensors")
    lumc(*call)  # the first run of many
    assert Path("no.safetensors").exists()
    Path("no.safetensors").unlink()
    assert "cannot read no.safetensors" in lumc.fails(2, *call, "--save", "to.safetensors")
    said = native("--input", "x.npy", "--state", "no.safetensors", code=2)
    assert said == "lumc-run: cannot open no.safetensors: No such file or directory\n"
    assert "cannot write gone/o.safetensors" in native(
        "--input", "x.npy", "--save", "gone/o.safetensors", code=1
    )
    assert not [p for p in os.listdir() if p.startswith(".lumc")]


def header(**changes: Any) -> dict[str, Any]:
    """The header of a right file, with other entries."""
    with package.load("m.lb") as bundle:
        bundle.save_state("right.safetensors")
    data = Path("right.safetensors").read_bytes()
    n = int.from_bytes(data[:8], "little")
    found = json.loads(data[8 : 8 + n])
    for name, entry in changes.items():
        found[name] = {**found.get(name, {}), **entry} if isinstance(entry, dict) else entry
        if entry is None:
            del found[name]
    return found


def written(text: bytes, size: int = 400) -> None:
    Path("bad.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"\1" * size)


BOX = {"dtype": "F32", "shape": [3, 5], "data_offsets": [0, 60]}
HOSTILE: dict[str, Any] = {
    "another shape": {"f": {"shape": [5, 3]}},
    "another rank": {"f": {"shape": [15]}},
    "another dtype": {"f": {"dtype": "I32"}},
    "an unknown dtype": {"f": {"dtype": "F8_E4M3"}},
    "one that is missing": {"f": None},
    "one that is not known": {"more": BOX},
    "bytes outside": {"f": {"data_offsets": [400, 460]}},
    "bytes far outside": {"f": {"data_offsets": [1 << 61, (1 << 61) + 60]}},
    "an end before the start": {"f": {"data_offsets": [60, 0]}},
    "too few bytes": {"f": {"data_offsets": [0, 56]}},
    "a number below 0": {"f": {"data_offsets": [-60, 0]}},
    "a number with a point": {"f": {"data_offsets": [0.0, 60.0]}},
    "three offsets": {"f": {"data_offsets": [0, 60, 60]}},
    "a shape that is none": {"f": {"shape": "3"}},
    "an entry that is none": {"f": [1]},
    "metadata that is none": {"__metadata__": [1]},
    "a bool of 7": {"t": {"data_offsets": [396, 400]}},
}


@pytest.mark.parametrize("what", HOSTILE)
def test_files_that_do_not_fit_are_refused_by_both(here: Path, what: str) -> None:
    os.chdir(here)
    written(json.dumps(header(**HOSTILE[what])).encode())
    if what == "a bool of 7":
        data = Path("bad.safetensors").read_bytes()
        Path("bad.safetensors").write_bytes(data[:-1] + b"\7")
    refused()


def refused() -> None:
    with package.load("m.lb") as bundle:
        bundle.set_state(given())
        with pytest.raises(LumcError):
            bundle.load_state("bad.safetensors")
        assert bundle.state()["n"] == 41  # nothing was changed
    said = native("--input", "x.npy", "--state", "bad.safetensors", "--save", "o.st", code=2)
    assert said.startswith("lumc-run: bad.safetensors: ") and said.count("\n") == 1
    assert not Path("o.st").exists()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"{}x",
        b'{"f":',
        b"nul",
        b'{"f":{}}',
        b'{"a\\',
        b'{"a',
        b'{"f" 1}',
        b"\0\0",
    ],
)
def test_texts_that_are_no_header(here: Path, text: bytes) -> None:
    os.chdir(here)
    written(text)
    refused()


def test_an_entry_that_stands_twice_and_lengths_that_lie(here: Path) -> None:
    os.chdir(here)
    text = json.dumps(header())
    written(text.replace("{", '{"f":' + json.dumps(BOX) + ",", 1).encode())
    refused()
    right = Path("right.safetensors").read_bytes()
    for length in (0, 1, len(right), 1 << 40, 1 << 63, (1 << 64) - 1):
        Path("bad.safetensors").write_bytes(struct.pack("<Q", length) + right[8:])
        refused()
    for n in (0, 7, 8, 100, len(right) - 1):
        Path("bad.safetensors").write_bytes(right[:n])
        refused()


def test_files_of_others_are_read(here: Path) -> None:
    """In another order, with metadata, blanks and holes."""
    os.chdir(here)
    values = given()
    kinds = {k: v for k, v in values.items() if k != "b"}
    save_file(kinds, "some.safetensors", metadata={"format": "np", "said": 'a "b" \\ \n'})
    data = Path("some.safetensors").read_bytes()
    n = int.from_bytes(data[:8], "little")
    found = json.loads(data[8 : 8 + n])
    end = len(data) - 8 - n
    found["b"] = {"dtype": "BF16", "shape": [2, 2], "data_offsets": [end + 3, end + 11]}
    text = json.dumps(found, indent=2).encode()
    body = data[8 + n :] + b"xyz" + values["b"].tobytes()
    Path("in.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)
    native("--input", "x.npy", "--state", "in.safetensors", "--save", "out.safetensors")
    with package.load("m.lb") as bundle:
        bundle.load_state("in.safetensors")
        assert all(np.array_equal(bundle.state()[k], v) for k, v in values.items())
        bundle.run({"x": np.ones(2, "f4")})
        bundle.save_state("mine.safetensors")
    assert Path("mine.safetensors").read_bytes() == Path("out.safetensors").read_bytes()

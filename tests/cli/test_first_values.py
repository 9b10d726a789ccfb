"""States that begin with values of their own, from a file that the graph names."""

from __future__ import annotations

import ctypes
import hashlib
import json
import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import lumc as package
from commands import Lumc
from lumc.artifacts.files import read_graph
from lumc.bundle import manifest
from lumc.bundle.reader import decode
from lumc.errors import LumcError
from lumc.frontend import Model
from lumc.frontend.storage import store_less
from lumc.graph.ops import to_bf16
from lumc.graph.text import print_graph

RNG = np.random.default_rng(5)
W, B = RNG.standard_normal((6, 5), "f4"), RNG.standard_normal(5, "f4").astype("f2")


def model() -> Model:
    """y = x @ w + b of the states as they were; both are changed, a count and a third are zeros."""
    g = Model()
    w = g.state("w", (6, 5), value=W)
    b = g.state("b", (5,), "f16", value=B)
    n, z = g.state("n", (), "i64"), g.state("z", (3,))
    x = g.input("x", (4, 6))
    g.output("y", x @ w + b.to("f32"))
    g.output("now", w * 1.0)
    g.update(w, w - x.sum(0)[:, None] * 0.5)
    g.update(b, b * 2.0)
    g.update(n, n + 1)
    g.update(z, z + 1.0)
    return g


def is_first(values: Any) -> bool:
    want = {"w": W, "b": B, "n": np.array(0, "i8"), "z": np.zeros(3, "f4")}
    return all(np.array_equal(values[k], v) and values[k].dtype == v.dtype for k, v in want.items())


@pytest.fixture
def made(lumc: Lumc) -> Lumc:
    model().save("m.lg")
    lumc("compile", "--estimate", "m.lg", "-o", "m.lb", "--save-temps", ".")
    return lumc


def test_the_text_names_file_and_key(lumc: Lumc) -> None:
    model().save("m.lg")
    text = Path("m.lg").read_text()
    assert 'state w f32[6, 5] "m.safetensors" "w"\n' in text and "state n i64[]\n" in text
    graph = read_graph("m.lg", {})
    assert [f.path for f in graph.files] == [str(Path("m.safetensors").resolve())]
    again = print_graph(graph, lambda f: "m.safetensors")
    assert again == text == print_graph(read_graph("m.lg", {}), lambda f: Path(f.path).name)
    assert lumc("show", "m.lg").count('"w"') == 1


def test_states_begin_with_them_and_do_so_again(made: Lumc) -> None:
    x = np.ones((4, 6), "f4")
    with package.load("m.lb") as bundle:
        assert is_first(bundle.state())
        np.testing.assert_allclose(bundle.run({"x": x})["y"], x @ W + B, rtol=1e-3)
        after = bundle.state()
        np.testing.assert_array_equal(after["w"], W - np.float32(2))
        np.testing.assert_array_equal(after["b"], B * np.float16(2))
        assert after["n"] == 1 and not is_first(after)
        bundle.reset()
        assert is_first(bundle.state())
        bundle.run({"x": x})
        np.testing.assert_array_equal(bundle.state()["w"], after["w"])
    assert "FAIL" not in made("verify", "m.lb", "--source", "m.lg")


def test_the_runner_and_the_library_agree(made: Lumc) -> None:
    np.save("x.npy", np.zeros((4, 6), "f4"))
    subprocess.run(["m.lb/bin/lumc-run", "m.lb", "--input", "x.npy", "-o", "o.npz"], check=True)
    np.testing.assert_array_equal(np.load("o.npz")["now"], W)
    library = ctypes.CDLL(str(Path("m.lb/lib/liblumc.so").resolve()))
    handle = ctypes.c_void_p()
    library.lumc_state_data.restype = ctypes.POINTER(ctypes.c_float)
    assert library.lumc_open(b"m.lb", 1, ctypes.byref(handle)) == 0
    data = library.lumc_state_data(handle, 0)
    assert data[:30] == W.reshape(-1).tolist()
    data[3] = 7.0
    assert library.lumc_reset(handle) == 0
    assert library.lumc_state_data(handle, 0)[:30] == W.reshape(-1).tolist()
    library.lumc_close(handle)


def test_plain_c_has_a_function_that_writes_them(made: Lumc) -> None:
    made("link", "m.lk", "--emit", "c", "-o", "net")
    Path("main.c").write_text(
        '#include "net.h"\n#include <stdio.h>\n'
        "static _Alignas(NET_ALIGN) char state[NET_STATE_BYTES];\n"
        "int main(void) { for (int i = 0; i < NET_STATE_BYTES; ++i) state[i] = 1;\n"
        "  net_begin(state); return fwrite(state, 1, sizeof state, stdout) != sizeof state; }\n"
    )
    sources = [str(p) for p in Path("net/src").glob("*.[cS]")]
    flags = ["-Inet/include", "-Inet/src", "-O1", "-march=native", "-o", "main"]
    subprocess.run(["cc", "main.c", *sources, *flags, "-lm"], check=True)
    got = subprocess.run(["./main"], capture_output=True, check=True).stdout
    assert np.array_equal(np.frombuffer(got, "f4", 30).reshape(6, 5), W)
    assert np.array_equal(np.frombuffer(got, "f2", 5, 128), B) and got[192:].strip(b"\0") == b""


def test_reduced_precision_rounds_what_the_file_has(lumc: Lumc) -> None:
    model().save("half.lg", change=lambda graph: store_less(graph, "bf16", None))
    assert 'state w bf16[6, 5] "half.safetensors" "w" from f32' in Path("half.lg").read_text()
    lumc("compile", "--estimate", "half.lg", "-o", "half.lb")
    with package.load("half.lb") as bundle:
        assert np.array_equal(bundle.state()["w"], to_bf16(W))


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"w": W, "b": B}, "not the one that was imported"),
        ({"w": W[:5], "b": B}, "is f32[5, 5], state 'w' is f32[6, 5]"),
        ({"w": W.astype("f8"), "b": B}, "is f64[6, 5], state 'w' is f32[6, 5]"),
        ({"b": B}, "does not exist, state 'w' is f32[6, 5]"),
        (None, "cannot read the weights"),
    ],
)
def test_other_files_are_refused(made: Lumc, tensors: Any, said: str) -> None:
    if tensors is None:
        Path("m.safetensors").unlink()
    else:
        save_file(tensors | {"more": W}, "m.safetensors")
    if said.startswith(("is", "does")):  # the graph of a stranger, whose hash is right
        text = Path("m.lg").read_text().splitlines()
        data = Path("m.safetensors").read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        line = f'file "m.safetensors" size {len(data)} sha256 {digest}'
        Path("m.lg").write_text("\n".join(line if t.startswith("file") else t for t in text) + "\n")
        error = made.fails(5, "compile", "--estimate", "m.lg", "-o", "new.lb")
    else:
        error = made.fails(5, "link", "m.lk", "-o", "new.lb")
    assert said in error and not Path("new.lb").exists()


def test_a_file_elsewhere_is_refused(lumc: Lumc, tmp_path_factory: pytest.TempPathFactory) -> None:
    model().save("m.lg")
    other = tmp_path_factory.mktemp("other") / "m.safetensors"
    Path("m.safetensors").rename(other)
    text = Path("m.lg").read_text().replace('"m.safetensors"', f'"{other}"')
    Path("m.lg").write_text(text)
    assert "outside of the folder" in lumc.fails(5, "compile", "--estimate", "m.lg", "-o", "m.lb")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('state s f32[2] "no.safetensors" "s"', "no line 'file"),
        ('state s f32[2] "no.safetensors"', "expected a string"),
        ('input s f32[2] "no.safetensors" "s"', "expected the end of the line"),
    ],
)
def test_wrong_statements(lumc: Lumc, line: str, said: str) -> None:
    Path("m.lg").write_text(f"lumc graph 1\n{line}\nt f32[i:2] = add s[i], 1.0\noutput y = t\n")
    result = lumc.raw("show", "m.lg")
    assert isinstance(result.exception, LumcError) and said in str(result.exception)


def test_the_plan_says_where_they_lie_and_is_checked(made: Lumc) -> None:
    """The words after the states: every other offset that is not inside of the weights is refused,
    by both readers."""
    path = Path("m.lb/plan/cpu-native.bin")
    data = path.read_bytes()
    plan = decode(data)
    assert [t.name for t in plan.states] == ["w", "b", "n", "z"]
    assert [at is not None for at in plan.first] == [True, True, False, False]
    words = struct.pack("<4Q", *(0 if at is None else at + 1 for at in plan.first))
    assert data.count(words) == 1
    where = data.index(words)
    for wrong in (2, 1 + plan.weights_bytes, 1 + (plan.weights_bytes & -64), 1 << 63):
        bad = data[:where] + struct.pack("<Q", wrong) + data[where + 8 :]
        with pytest.raises(LumcError, match="lies outside of the weights"):
            decode(bad)
        path.write_bytes(bad)
        body = manifest.read(Path("m.lb"))
        files = dict(body["files"]) | {"plan/cpu-native.bin": manifest.sha256(path)}
        kept = {k: v for k, v in body.items() if k not in ("lumc", "schema", "digest")}
        Path("m.lb/manifest.json").write_text(manifest.render(kept | {"files": files}))
        done = subprocess.run(
            ["m.lb/bin/lumc-run", "m.lb", "--list"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 5 and "lies outside of the weights" in done.stderr


def test_the_manifest_counts_them(made: Lumc) -> None:
    body = json.loads(Path("m.lb/manifest.json").read_text())
    assert body["weight_bytes"] >= W.nbytes + B.nbytes

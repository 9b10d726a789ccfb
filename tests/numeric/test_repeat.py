"""Entries that repeat: against loops in numpy, from Python, from C, and as plain C; what counts is
a dim of the graph."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
from pathlib import Path

import numpy as np
import pytest

from bundles import compiler
from commands import Lumc
from lumc.codegen.generate import generate
from lumc.errors import LumcError
from lumc.frontend import Model
from lumc.grad.entries import with_gradients
from lumc.graph.bind import bind_dims
from lumc.graph.expr import add
from lumc.graph.graph import Graph
from lumc.graph.text import parse_graph, print_graph
from lumc.kernel.machines import resolve_target
from lumc.link import emit
from lumc.link.link import TargetCode
from lumc.oracle.graph import evaluate
from lumc.oracle.touched import touched
from lumc.profile.choose import estimate
from lumc.runtime.cpu import Bundle
from lumc.search import search

TURNS, WIDE = range(4, 21, 4), 24  # the values of a dim in 3..22 multiple 4
RNG = np.random.default_rng(4)
GIVEN = {
    "x": RNG.standard_normal((24, WIDE)).astype("f4"),
    "w": (RNG.standard_normal((WIDE, WIDE)) / 5).astype("f4"),
}


def recurrence() -> Model:
    """h = tanh(h w + x[t]), which is kept in row t; another entry reads the rows."""
    m = Model()
    t = m.dim("t", 3, 22, 4)
    h, seen, n = m.state("h", (WIDE,)), m.state("seen", (24, WIDE)), m.state("n", (), "i32")
    m.entry("steps", repeat=t)
    x, w = m.input("x", (24, WIDE)), m.input("w", (WIDE, WIDE))
    new = ((h[None] @ w)[0] + x[t]).tanh()
    m.update(h, new)
    m.update(seen, new, (t,))
    m.update(n, n * 2 + m.size(t, "i32"))
    m.output("h", new * 2.0)
    m.entry("rows")
    m.output("total", seen.sum(0))
    return m


def expected() -> dict[str, np.ndarray]:
    h, seen, n = np.zeros(WIDE), np.zeros((24, WIDE)), 0
    for t in TURNS:
        h = np.tanh(h @ GIVEN["w"].astype("f8") + GIVEN["x"][t])
        seen[t], n = h, n * 2 + t
    return {"h": h, "seen": seen, "n": np.array(n)}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repeat")
    recurrence().save(folder / "m.lg")
    lumc = Lumc(folder)
    lumc("compile", "--estimate", folder / "m.lg", "-o", folder / "m.lb", "--save-temps", folder)
    for name, value in GIVEN.items():
        np.save(folder / f"{name}.npy", value)
    return folder / "m.lb"


def test_the_text_and_the_oracle() -> None:
    graph = recurrence().graph()
    text = print_graph(graph)
    assert "\nentry steps repeat t\n" in text and print_graph(parse_graph(text)) == text
    want = expected()
    out, after = evaluate(graph, "steps", GIVEN, lambda _: np.zeros(0), dims={"t": 8})
    assert all(np.allclose(after[n], v, atol=1e-7) for n, v in want.items())
    assert np.allclose(out["h"], want["h"] * 2)
    alone = bind_dims(graph, {"t": 8})  # one number: once
    assert not alone.entry("steps").repeat
    assert evaluate(alone, "steps", GIVEN, lambda _: np.zeros(0))[1]["n"] == 8
    big = GIVEN | {"x": np.full((24, WIDE), np.inf, "f4")}
    assert touched(graph, "steps", big, lambda _: np.zeros(0))["state h"].all()
    assert not touched(graph, "steps", GIVEN, lambda _: np.zeros(0))["state h"].any()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_run_from_python(bundle: Path, threads: int) -> None:
    want = expected()
    with Bundle.open(bundle) as b:
        for _ in range(2):
            out = b.run(GIVEN, entry="steps", threads=threads)
            assert all(np.allclose(b.state()[n], v, atol=1e-5) for n, v in want.items())
            assert np.allclose(out["h"], want["h"] * 2, atol=1e-5)
            total = b.run({}, entry="rows", threads=threads)["total"]
            assert np.allclose(total, want["seen"].sum(0), atol=1e-5)
            b.reset()
        out, parts = b.trace(GIVEN, entry="steps", threads=threads)
        assert np.allclose(out["h"], want["h"] * 2, atol=1e-5) and parts
        before = b.state()
        assert min(b.bench(GIVEN, entry="steps", seconds=1e-3, threads=threads)) > 0
        assert all((b.state()[n] == v).all() for n, v in before.items())
        with pytest.raises(LumcError, match="'t' counts how often the entry is run through"):
            b.run(GIVEN, entry="steps", dims={"t": 8})


def test_a_run_from_c(bundle: Path) -> None:
    folder = bundle.parent
    given = [word for n in GIVEN for word in ("--input", f"{n}={folder}/{n}.npy")]
    words = [bundle / "bin" / "lumc-run", bundle]
    save = ["--save", f"{folder}/s.safetensors", "-o", f"h={folder}/h.npy"]

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*words, *more], capture_output=True, text=True)

    done = run("--entry", "steps", *given, *save)
    assert done.returncode == 0, done.stderr
    assert np.allclose(np.load(folder / "h.npy"), expected()["h"] * 2, atol=1e-5)
    assert "entry steps repeat t\n" in run("--list").stdout
    assert run("--check").returncode == 0
    done = run("--entry", "steps", *given, "--dim", "t=8")
    assert (done.returncode, done.stdout) == (2, "") and "leave it out" in done.stderr


def test_verify_and_bench(bundle: Path) -> None:
    lumc = Lumc(bundle.parent)
    rows = {r["output"]: r for r in json.loads(lumc("verify", bundle, "--json"))}
    assert {*rows} == {"h", "state h", "state seen", "state n"} and all(
        r["ok"] for r in rows.values()
    )
    assert "every launch" in lumc("verify", bundle, "--bisect")
    assert "min" in lumc("bench", bundle, "--entry", "steps", "--seconds", "0.01")
    said = lumc.fails(2, "verify", bundle, "--dim", "t=8")
    assert "counts how often entry 'steps' is run through" in said


APP = r"""
#include "net.h"
#include <stdio.h>
static _Alignas(NET_ALIGN) char arena[NET_ARENA_BYTES], state[NET_STATE_BYTES];
static float x[24 * WIDE], w[WIDE * WIDE], h[WIDE];
int main(void) {
  if (fread(x, sizeof x, 1, stdin) != 1 || fread(w, sizeof w, 1, stdin) != 1) return 9;
  int code = net_steps(x, w, h, state, arena);
  fwrite(h, sizeof h, 1, stdout);
  fwrite(state + NET_STATE_SEEN, 4, 24 * WIDE, stdout);
  return code;
}
"""


def test_plain_c(tmp_path: Path) -> None:
    graph = recurrence().graph()
    plan = estimate(search(graph, resolve_target("cpu:generic"), inside=True))
    emit.emit_c([TargetCode(generate(plan), "0" * 64)], tmp_path / "net", tmp_path)
    text = (tmp_path / "net" / "src" / "net.c").read_text()
    assert "for (int64_t turn = 4; turn <= 20; turn += 4) {" in text
    (tmp_path / "app.c").write_text(APP.replace("WIDE", str(WIDE)))
    sources = [*map(str, sorted((tmp_path / "net" / "src").glob("*.c"))), str(tmp_path / "app.c")]
    flags = ["-O1", "-fopenmp-simd", "-fsanitize=address,undefined", "-fno-sanitize=alignment"]
    include = [f"-I{tmp_path / 'net' / name}" for name in ("include", "src")]
    command = [*compiler().command, *flags, *include, *sources, "-lm", "-o", str(tmp_path / "app")]
    subprocess.run(command, check=True)
    data = b"".join(v.tobytes() for v in GIVEN.values())
    done = subprocess.run([tmp_path / "app"], input=data, capture_output=True, check=True)
    got = np.frombuffer(done.stdout, "f4")
    want = np.concatenate([expected()["h"] * 2, expected()["seen"].ravel()])
    assert np.allclose(got, want, atol=1e-5)


def test_gradients_are_those_of_one_time() -> None:
    m = Model()
    t = m.dim("t", 0, 3)
    s = m.state("s", ())
    m.entry("go", repeat=t)
    w = m.input("w", ())
    loss = w * w * (m.size(t) + 1.0)
    m.output("loss", loss)
    m.update(s, s + loss)
    graph: Graph = with_gradients(m.graph(), "go", "loss", ["w"]).graph
    assert graph.entry("go").repeat == "t"
    out, after = evaluate(graph, "go", {"w": np.array(3.0, "f4")}, lambda _: np.zeros(0))
    assert out["w.grad"] == 2 * 3 * 4 and after["s"] == 9 * 10


TEXT = """lumc graph 1
dim t in 0..3
dim n in 1..4
state s f32[4]

entry go repeat t
input x f32[4]
y f32[i:4] = add x[i], s[i]
output y = y
update s[i] = y[i]
"""


def test_a_main_entry_repeats_too() -> None:
    text = TEXT.replace("entry go", "entry main")
    assert print_graph(parse_graph(text)) == text
    assert print_graph(parse_graph(TEXT.replace(" repeat t", ""))).count("repeat") == 0


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("repeat t", "repeat u", "no dim 'u' above"),
        ("repeat t", "repeat", "a name"),
        ("repeat t", "repeat 4", "a name"),
        ("repeat t", "repeat t t", "the end of the line"),
        ("0..3", "0..1048576", "1048577 times, more than 1048576"),
        ("0..3", f"0..{1 << 62}", "more than 1048576"),
        ("input x", "input z f32[t + 1]\ninput x", "in no shape of an input or an output"),
        ("y f32[i:4] = add x[i], s[i]", "y f32[i:t + 1] = add x[i], s[i]", "in no shape of an"),
    ],
)  # fmt: skip
def test_what_may_not_count(old: str, new: str, said: str) -> None:
    text = TEXT.replace(old, new).replace(
        "update s[i] = y[i]\n", "" if "y f32" in old else "update s[i] = y[i]\n"
    )
    with pytest.raises(LumcError, match=re.escape(said)) as e:
        parse_graph(text)
    assert e.value.code in ("E0301", "E0303")


def test_a_model_repeats_over_a_dim() -> None:
    m = Model()
    t = m.dim("t", 0, 3)
    for wrong in (4, add(t, 1), "u"):
        with pytest.raises(LumcError, match="which is no dim"):
            m.entry("go", repeat=wrong)  # type: ignore[arg-type]


def test_the_model_of_the_docs(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "lengths.md").read_text()
    (text,) = re.findall(r"```python\n(m = lumc.Model.*?)```", page, re.DOTALL)
    (tmp_path / "model.py").write_text(f"import lumc\n{text}")
    graph = runpy.run_path(str(tmp_path / "model.py"))["m"].graph()
    given = {"x": np.ones((16, 64), "f4"), "w": np.zeros((64, 64), "f4")}
    out, after = evaluate(graph, "steps", given, lambda _: np.zeros(0))
    assert graph.entry("steps").repeat == "t" and (after["rows"] == out["last"]).all()

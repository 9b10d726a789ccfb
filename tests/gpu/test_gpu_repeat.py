"""Entries that repeat on GPUs: one graph, or a loop of it, on the fake CUDA; command buffers on the
fake Metal; each from Python and from C."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import compiling
import fake_metal
from fake_gpu import environment
from gpu_bundles import Emulator, python_environment
from lumc.codegen.generate import generate
from lumc.frontend import Model
from lumc.kernel.machines import resolve_target
from lumc.link import runners
from lumc.profile.choose import estimate
from lumc.runtime.metal import Bundle
from lumc.search import search

TURNS, WIDE = range(2, 9, 2), 40  # the values of a dim in 1..8 multiple 2
X = np.random.default_rng(1).standard_normal((9, WIDE)).astype("f4")
PROGRAM = """
import numpy as np
from lumc.runtime import captured, cpu, cuda
captured.MOST_LAUNCHES = {most}
with {opener} as b:
    x, want, seen = np.load("x.npy"), np.load("h.npy"), np.load("seen.npy")
    for _ in range(2):
        h = b.run({{"x": x}}, entry="steps")["h"]
        np.testing.assert_allclose(h, want, rtol=1e-5)
        np.testing.assert_allclose(b.state()["seen"], seen, rtol=1e-5)
        np.testing.assert_allclose(b.run({{}}, entry="rows")["t"], seen.sum(0), rtol=1e-5)
        b.reset()
    h, parts = b.trace({{"x": x}}, entry="steps")
    np.testing.assert_allclose(h["h"], want, rtol=1e-5)
    np.testing.assert_allclose(b.state()["seen"], seen, rtol=1e-5)
    print(len(parts) > 1, min(b.bench({{"x": x}}, entry="steps", seconds=1e-4)) >= 0)
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """m.lb for both kinds of GPU; x.npy, and what comes of it."""
    base = tmp_path_factory.mktemp("repeat")
    m = Model()
    t = m.dim("t", 1, 8, 2)
    h, seen = m.state("h", (WIDE,)), m.state("seen", (9, WIDE))
    m.entry("steps", repeat=t)
    new = h * 0.5 + m.input("x", (9, WIDE))[t] + m.size(t)
    m.update(h, new)
    m.update(seen, new, (t,))
    m.output("h", new)
    m.entry("rows")
    m.output("t", seen.sum(0))
    graph = m.graph()
    targets = map(resolve_target, ("metal:apple9", "cuda:sm_90"))
    apple, cuda = (generate(estimate(search(graph, t, inside=True))) for t in targets)
    fake_metal.link(apple, base / "m.lb", base, others=[cuda], cuda=Emulator())
    state, rows = np.zeros(WIDE), np.zeros((9, WIDE))
    for n in TURNS:
        rows[n] = state = state * 0.5 + X[n] + n
    for name, value in {"x": X, "h": state, "seen": rows}.items():
        np.save(base / f"{name}.npy", value)
    return base


@pytest.mark.parametrize(
    ("opener", "most"),
    [
        ('cuda.Bundle.open("m.lb")', 1 << 14),
        ('cuda.Bundle.open("m.lb")', 1),  # a loop of the graph of one time
        ('cpu.Bundle.open("m.lb", device="cuda")', 1),
    ],
)
def test_on_cuda(opener: str, most: int, base: Path) -> None:
    command = [sys.executable, "-c", PROGRAM.format(opener=opener, most=most)]
    env = python_environment()
    done = subprocess.run(command, cwd=base, env=env, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "True True\n"), done.stderr


def lumc_run(base: Path, command: object, env: dict[str, str] | None, device: str) -> None:
    """The native runner, whose graphs or command buffers hold the launches of some repetitions."""
    words = [str(command), str(base / "m.lb"), "--device", device, "--entry", "steps"]
    words += ["--input", f"x={base}/x.npy", "-o", f"h={base}/o.npy", "--repeat", "2"]
    if env is None:
        fake_metal.run(*words)
    else:
        subprocess.run(words, env=env, check=True, capture_output=True, timeout=300)
    want = np.load(base / "h.npy") + (np.load(base / "h.npy") * 0.5 ** len(TURNS))
    np.testing.assert_allclose(np.load(base / "o.npy"), want, rtol=1e-4)


def test_on_cuda_in_c(base: Path) -> None:
    lumc_run(base, base / "m.lb" / "bin" / "lumc-run", environment(), "cuda")


@pytest.mark.parametrize("most", [1 << 14, 3])
def test_on_metal(most: int, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in fake_metal.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("lumc.runtime.metal.MOST_LAUNCHES", most)
    with Bundle.open(base / "m.lb", library=fake_metal.library()) as b:
        for _ in range(2):
            h = b.run({"x": X}, entry="steps")["h"]
            np.testing.assert_allclose(h, np.load(base / "h.npy"), rtol=1e-5)
            np.testing.assert_allclose(b.state()["seen"], np.load(base / "seen.npy"), rtol=1e-5)
            b.reset()
        h, parts = b.trace({"x": X}, entry="steps")[0]["h"], b.trace({"x": X}, entry="steps")[1]
        np.testing.assert_allclose(h, np.load(base / "h.npy"), rtol=1e-5)
        assert parts and min(b.bench({"x": X}, entry="steps", seconds=1e-4)) >= 0


def test_on_metal_in_c(base: Path, tmp_path: Path) -> None:
    lumc_run(base, fake_metal.runner(tmp_path / "lumc-run"), None, "metal")


def changed(folder: Path, file: str, old: str, new: str) -> Path:
    """lumc-run whose Metal is the fake, with another text of one of its files."""
    flags = ("-O0", "-std=gnu11", *fake_metal.faked())
    names = (*runners.LIBRARY, "main")
    return compiling.link(names, flags, folder / "run", {file: (old, new)})


def outcome(base: Path, runner: Path, device: str) -> bool:
    try:
        lumc_run(base, runner, environment() if device == "cuda" else None, device)
    except AssertionError:
        return False
    return True


@pytest.mark.deep
@pytest.mark.parametrize(
    ("device", "file"), [("cuda", "gpu_memory"), ("metal", "metal")], ids=["cuda", "metal"]
)
def test_several_graphs_and_command_buffers(
    device: str, file: str, base: Path, tmp_path: Path
) -> None:
    """As if an entry had too many launches for one of them."""
    runner = changed(tmp_path, file, "MOST_LAUNCHES = 1 << 14", "MOST_LAUNCHES = 3")
    assert outcome(base, runner, device)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("device", "file", "old", "new"),
    [
        ("cuda", "gpu_memory", "p->counts + m->turn * sizeof", "p->counts + 0 * sizeof"),
        ("cuda", "gpu_memory", "values[k] = counted(l->entry, k)", "values[k] = (int64_t)k"),
        ("cuda", "gpu", "m->turn < turns && !code", "m->turn < 1 && !code"),
        ("cuda", "gpu", "p->counts ? 1 : m->plan", "m->plan"),
        ("metal", "metal", "counted(e, turn)", "counted(e, 0)"),
        ("metal", "metal", "k < part.end", "k + 1 < part.end"),
        ("metal", "metal", "return;\n    }\n    buffer = m->dims", "}\n    buffer = m->dims"),
        ("metal", "metal", "submit_turns(m, list, l->entry->repeats)", "submit_turns(m, list, 1)"),
    ],
)
def test_mutants(device: str, file: str, old: str, new: str, base: Path, tmp_path: Path) -> None:
    assert not outcome(base, changed(tmp_path, file, old, new), device)

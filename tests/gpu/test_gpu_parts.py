"""Parts of inputs and outputs as arguments, on every runtime: CPUs, the fake CUDA and the fake
Metal, each from Python and from C."""

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
from lumc.bundle.planfile import PARTS
from lumc.codegen.generate import generate
from lumc.graph.text import parse_graph
from lumc.kernel.machines import resolve_target
from lumc.link import runners
from lumc.profile.choose import estimate
from lumc.runtime.metal import Bundle
from lumc.search import search

TEXT = """lumc graph 1

input x f32[4, 32, 16]
t0 f32[i:32, j:16] = sin x[1, i, j]
t1 f32[i:32, j:16] = exp2 x[3, i, j]
t2 f32[h:2, i:32, j:16] = add t0[i, j] if 0 <= h < 1, t1[i, j] if 0 <= h - 1 < 1
t3 f32[h:2, i:32, j:16] = contiguous t2[h, i, j]
output y = t3
"""
X = np.random.default_rng(1).standard_normal((4, 32, 16)).astype("f4")
WANT = np.stack([np.sin(X[1]), np.exp2(X[3])])
PROGRAM = """
import numpy as np
from lumc.runtime import cpu, cuda
with {opener} as b:
    np.testing.assert_allclose(b.run({{"x": np.load("x.npy")}})["y"], np.load("y.npy"), rtol=1e-5)
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """m.lb for both kinds of GPU and a CPU; x.npy, and what comes of it."""
    base, graph = tmp_path_factory.mktemp("parts"), parse_graph(TEXT)
    targets = map(resolve_target, ("metal:apple9", "cuda:sm_90"))
    apple, cuda = (
        generate(estimate(search(graph, t, inside=True, equations=True))) for t in targets
    )
    for code in (apple, cuda):
        starts = {(v.place, v.start) for v in code.entries[0].values if v.start}
        assert starts == {("input", 2048), ("input", 6144), ("output", 2048)}
        assert code.entries[0].arena_bytes == 0
    fake_metal.link(apple, base / "m.lb", base, others=[cuda], cuda=Emulator())
    for plan in (base / "m.lb" / "plan").iterdir():
        assert plan.read_bytes()[8] == PARTS
    np.save(base / "x.npy", X)
    np.save(base / "y.npy", WANT)
    return base


@pytest.mark.parametrize(
    "opener", ['cuda.Bundle.open("m.lb")', 'cpu.Bundle.open("m.lb", device="cuda")']
)
def test_on_cuda(opener: str, base: Path) -> None:
    command = [sys.executable, "-c", PROGRAM.format(opener=opener)]
    env = python_environment()
    done = subprocess.run(command, cwd=base, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def run(base: Path, command: Path, env: dict[str, str] | None, device: str) -> None:
    words = [str(command), str(base / "m.lb"), "--device", device]
    words += ["--input", f"x={base}/x.npy", "-o", f"y={base}/o.npy"]
    if env is None:
        fake_metal.run(*words)
    else:
        subprocess.run(words, env=env, check=True, capture_output=True, timeout=300)
    np.testing.assert_allclose(np.load(base / "o.npy"), WANT, rtol=1e-5)


def test_on_cuda_in_c(base: Path) -> None:
    run(base, base / "m.lb" / "bin" / "lumc-run", environment(), "cuda")


def test_on_metal(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in fake_metal.environment().items():
        monkeypatch.setenv(name, value)
    with Bundle.open(base / "m.lb", library=fake_metal.library()) as b:
        np.testing.assert_allclose(b.run({"x": X})["y"], WANT, rtol=1e-5)


def test_on_metal_in_c(base: Path, tmp_path: Path) -> None:
    run(base, fake_metal.runner(tmp_path / "lumc-run"), None, "metal")


@pytest.mark.deep
@pytest.mark.parametrize(
    ("device", "file", "old", "new"),
    [
        ("cuda", "gpu_memory", f"p->{end}s[a->index] + a->offset", f"p->{end}s[a->index]")
        for end in ("input", "output")
    ]
    + [
        ("metal", "metal", f"offset += p->{end}s", f"offset = p->{end}s")
        for end in ("input", "output")
    ],
)
def test_mutants(device: str, file: str, old: str, new: str, base: Path, tmp_path: Path) -> None:
    flags, names = ("-O0", "-std=gnu11", *fake_metal.faked()), (*runners.LIBRARY, "main")
    command = compiling.link(names, flags, tmp_path / "run", {file: (old, new)})
    with pytest.raises(AssertionError):
        run(base, command, environment() if device == "cuda" else None, device)

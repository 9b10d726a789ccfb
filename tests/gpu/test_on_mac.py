"""Bundles on the GPU of this Mac: both runtimes, in 32 and 16 bits.

Skipped where there is none.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from commands import Lumc
from gpu.test_on_device import SAMPLES, compile_sample, relative
from lumc.command.bundles import complete, graph_of
from lumc.link import mac
from lumc.runtime import metal

CLOSE = 2e-5  # relative L2 between a GPU and a CPU in f32
DTYPES = {"f32": (), "bf16": ("--dtype", "bf16"), "f16": ("--dtype", "f16")}

pytestmark = pytest.mark.device


@pytest.fixture(scope="module", autouse=True)
def gpu() -> None:
    if problem := metal.problem():
        pytest.skip(problem.what)


@pytest.fixture
def lumc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lumc]:
    monkeypatch.chdir(tmp_path)
    yield Lumc(tmp_path)


def by_runner(bundle: Path, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of the runner for Macs, which links itself where the ziglang wheel is."""
    if not (bundle / mac.NAME).exists():
        pytest.skip("there is no runner for Macs: pip install ziglang")
    for name, value in inputs.items():
        np.save(f"{name}.npy", value)
    command = [str(bundle / mac.NAME), str(bundle), "-o", "native.npz"]
    command += [word for name in inputs for word in ("--input", f"{name}={name}.npy")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return dict(np.load("native.npz"))


def test_doctor(lumc: Lumc) -> None:
    """The GPU is there, and every part of its self-test is as expected."""
    lines = [x for x in lumc("doctor").splitlines() if x[5:].startswith("metal")]
    assert len(lines) >= 7 and all(line.startswith("ok") for line in lines), lines


@pytest.mark.parametrize("name", SAMPLES)
def test_samples(lumc: Lumc, name: str) -> None:
    """Right by float64, equal from both runners and near to what the CPU computes."""
    bundle = compile_sample(lumc, name, "--estimate", "--target", "cpu,metal")
    lumc("verify", bundle, "--device", "metal")
    inputs = complete(graph_of(bundle), "main", {}, 3)
    with metal.Bundle.open(bundle) as opened:
        python = opened.run(inputs)
        again = opened.run(inputs)
    for key, value in python.items():
        np.testing.assert_array_equal(value, again[key])
    np.savez("in.npz", **inputs)
    lumc("run", bundle, "--device", "cpu", "--input", "in.npz", "-o", "cpu.npz")
    for key, value in np.load("cpu.npz").items():
        assert relative(python[key], value) < CLOSE, key
    native = by_runner(bundle, inputs)
    for key, value in python.items():
        np.testing.assert_array_equal(value, native[key])


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(lumc: Lumc, dtype: str) -> None:
    """On the matrices of SIMD groups: verify allows what it would on any machine."""
    for name in ("mlp", "attention", "conv"):
        bundle = compile_sample(lumc, name, "--estimate", "--target", "metal", *DTYPES[dtype])
        lumc("verify", bundle, "--device", "metal")

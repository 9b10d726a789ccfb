"""Bundles on the AMD GPU of this machine: both runtimes, images of clang and of hipRTC.

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
from lumc.bundle.manifest import read
from lumc.command.bundles import complete, graph_of
from lumc.kernel.machines import GPUS
from lumc.runtime import amd, hip
from lumc.runtime.hip import suits

CLOSE = 2e-5  # relative L2 between a GPU and a CPU in f32
DTYPES = {"f32": (), "bf16": ("--dtype", "bf16"), "f16": ("--dtype", "f16")}

pytestmark = pytest.mark.device


@pytest.fixture(scope="module")
def target() -> str:
    """The target of the GPU that is here, or of its family."""
    if problem := hip.problem():
        pytest.skip(problem.what)
    here = amd.architecture()
    best = max(GPUS["hip"], key=lambda arch: suits(arch, here))
    if not suits(best, here):
        pytest.skip(f"no target is for {here}")
    return f"hip:{best}"


@pytest.fixture
def lumc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lumc]:
    monkeypatch.chdir(tmp_path)
    yield Lumc(tmp_path)


def by_runner(bundle: Path, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of lumc-run."""
    for name, value in inputs.items():
        np.save(f"{name}.npy", value)
    command = [str(bundle / "bin" / "lumc-run"), str(bundle), "--device", "hip"]
    command += [word for name in inputs for word in ("--input", f"{name}={name}.npy")]
    command += ["-o", "native.npz"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return dict(np.load("native.npz"))


def test_doctor(target: str, lumc: Lumc) -> None:
    (line,) = (x for x in lumc("doctor").splitlines() if x[5:].startswith("AMD GPU"))
    assert line.startswith("ok") and amd.architecture() in line


@pytest.mark.parametrize("name", SAMPLES)
def test_samples(target: str, lumc: Lumc, name: str) -> None:
    """Right by float64, equal from both runners and near to what the CPU computes."""
    bundle = compile_sample(lumc, name, "--estimate", "--target", f"cpu,{target}")
    lumc("verify", bundle, "--device", "hip")
    inputs = complete(graph_of(bundle), "main", {}, 3)
    native = by_runner(bundle, inputs)
    with hip.Bundle.open(bundle) as opened:
        python = opened.run(inputs)
        again = opened.run(inputs)
    for key, value in python.items():
        np.testing.assert_array_equal(value, native[key])
        np.testing.assert_array_equal(value, again[key])
    np.savez("in.npz", **inputs)
    lumc("run", bundle, "--device", "cpu", "--input", "in.npz", "-o", "cpu.npz")
    for key, value in np.load("cpu.npz").items():
        assert relative(python[key], value) < CLOSE, key


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(target: str, lumc: Lumc, dtype: str) -> None:
    """On the matrix units: verify allows what it would on any machine."""
    for name in ("mlp", "attention", "conv"):
        bundle = compile_sample(lumc, name, "--estimate", "--target", target, *DTYPES[dtype])
        lumc("verify", bundle, "--device", "hip")


def test_hiprtc_compiles_text(target: str, lumc: Lumc, monkeypatch: pytest.MonkeyPatch) -> None:
    """For GPUs that have no image of their own; the same numbers as by clang."""
    bundle = compile_sample(lumc, "causal_attention", "--estimate", "--target", target)
    files = read(bundle)["files"]
    texts = {name: digest for name, digest in files.items() if not name.endswith(".hsaco")}
    inputs = complete(graph_of(bundle), "main", {}, 3)
    with hip.Bundle.open(bundle) as opened:
        want = opened.run(inputs)
    image_of = hip.image_of
    monkeypatch.setattr(hip, "image_of", lambda folder, _, *rest: image_of(folder, texts, *rest))
    with hip.Bundle.open(bundle) as opened:
        got = opened.run(inputs)
    assert all(relative(got[k], want[k]) < 1e-6 for k in want)

"""Bundles on the NVIDIA GPU of this machine: both runtimes, the search, every kind of image.

Skipped where there is none. The kernels of the other tests run on it with the plugin ``on_gpu``.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bundles import build
from checkpoints import BERT, bert_shapes, random_weights, write_folder
from commands import Lumc
from gpu_bundles import counter, gpu_mlp
from lumc.bundle import manifest
from lumc.codegen.code import Code
from lumc.codegen.text.headers import header_of
from lumc.command.bundles import complete, graph_of
from lumc.link import cuda as compiler
from lumc.runtime import cuda, nvidia

GRAPHS = Path(__file__).parents[2] / "graphs"
SAMPLES = sorted(p.stem for p in GRAPHS.glob("*.lg"))
DTYPES = {"f32": (), "tf32": (), "bf16": ("--dtype", "bf16"), "f16": ("--dtype", "f16")}
CLOSE = 2e-5  # relative L2 between a GPU and a CPU in f32

pytestmark = pytest.mark.device


@pytest.fixture(scope="module", autouse=True)
def gpu() -> None:
    if problem := cuda.problem():
        pytest.skip(problem.what)
    if "emulator" in nvidia.describe() and "NVCC" not in os.environ:
        pytest.skip("another test of this process has loaded the fake driver")


@pytest.fixture
def lumc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lumc]:
    monkeypatch.chdir(tmp_path)
    yield Lumc(tmp_path)


def dims_of(path: Path) -> list[str]:
    """Arguments that bind every symbolic dim of a sample to 33."""
    names = [line.split()[1] for line in path.read_text().splitlines() if line.startswith("dim ")]
    return [word for name in names for word in ("--dim", f"{name}=33")]


def compile_sample(lumc: Lumc, name: str, *options: str) -> Path:
    path = GRAPHS / f"{name}.lg"
    lumc("compile", path, *dims_of(path), *options, "-o", "m.lb")
    return Path("m.lb")


def real(code: Code) -> Code:
    """A code of tests with the header that a GPU gets, where its compiler is no emulator."""
    return code if os.environ.get("NVCC") else replace(code, header=header_of("cuda"))


def relative(got: np.ndarray, want: np.ndarray) -> float:
    """The L2 error; NaN where one of them has NaN, and the other a number."""
    known = ~np.isnan(want)  # the root of a negative variance is none
    if not np.array_equal(known, ~np.isnan(got)):
        return float("nan")
    got, want = got[known].astype(np.float64), want[known].astype(np.float64)
    return float(np.linalg.norm(got - want) / (np.linalg.norm(want) or 1.0))


def both_runners(bundle: Path, inputs: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """The outputs by Python and by lumc-run, both on the GPU."""
    for name, value in inputs.items():
        np.save(f"{name}.npy", value)
    command = [str(bundle / "bin" / "lumc-run"), str(bundle), "--device", "cuda"]
    command += [word for name in inputs for word in ("--input", f"{name}={name}.npy")]
    command += ["-o", "native.npz"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    with cuda.Bundle.open(bundle) as opened:
        got = opened.run(inputs)
        again = opened.run(inputs)
    assert all(np.array_equal(got[k], again[k], equal_nan=True) for k in got)
    return [got, dict(np.load("native.npz"))]


def test_doctor(lumc: Lumc) -> None:
    said = lumc("doctor")
    (line,) = (x for x in said.splitlines() if x[5:].startswith("NVIDIA GPU"))
    assert line.startswith("ok") and f"sm_{nvidia.capability()}" in line


@pytest.mark.parametrize("name", SAMPLES)
def test_samples(lumc: Lumc, name: str) -> None:
    """Right by float64, equal from both runners and near to what the CPU computes."""
    bundle = compile_sample(lumc, name, "--estimate", "--target", "cpu,cuda:sm_90")
    lumc("verify", bundle, "--device", "cuda")
    inputs = complete(graph_of(bundle), "main", {}, 3)
    python, native = both_runners(bundle, inputs)
    for key, value in python.items():
        np.testing.assert_array_equal(value, native[key])
    np.savez("in.npz", **inputs)
    lumc("run", bundle, "--device", "cpu", "--input", "in.npz", "-o", "cpu.npz")
    for key, value in np.load("cpu.npz").items():
        assert relative(python[key], value) < CLOSE, key


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(lumc: Lumc, dtype: str) -> None:
    """On tensor cores: verify allows what it would on any machine."""
    target = "cuda:sm_90+tf32" if dtype == "tf32" else "cuda:sm_90"
    for name in ("mlp", "attention", "conv"):
        bundle = compile_sample(lumc, name, "--estimate", "--target", target, *DTYPES[dtype])
        lumc("verify", bundle, "--device", "cuda")


def test_the_driver_compiles_text(lumc: Lumc, monkeypatch: pytest.MonkeyPatch) -> None:
    """PTX, for GPUs that have no image of their own."""
    bundle = compile_sample(lumc, "causal_attention", "--estimate", "--target", "cuda:sm_80")
    text = next(f for f in manifest.read(bundle)["files"] if f.endswith(".ptx"))
    inputs = complete(graph_of(bundle), "main", {}, 3)
    with cuda.Bundle.open(bundle) as opened:
        want = opened.run(inputs)
    monkeypatch.setattr(cuda, "image_of", lambda files, target, here: text)
    with cuda.Bundle.open(bundle) as opened:
        got = opened.run(inputs)
    assert all(relative(got[k], want[k]) < 1e-6 for k in want)


def test_states_stay_on_the_gpu(tmp_path: Path) -> None:
    build(real(counter()), tmp_path / "c.lb", tmp_path, cuda=compiler.find(os.environ.get("NVCC")))
    x = np.arange(8, dtype=np.float32)
    with cuda.Bundle.open(tmp_path / "c.lb") as opened:
        for times in (1, 2, 3):
            np.testing.assert_array_equal(opened.run({"x": x})["y"], times * x)
        opened.bench({"x": x}, seconds=0.05)
        np.testing.assert_array_equal(next(iter(opened.state().values())), 3 * x)


def test_a_trace(tmp_path: Path) -> None:
    code, cpu, reference = gpu_mlp(tmp_path)
    made_by = compiler.find(os.environ.get("NVCC"))
    build(real(code), tmp_path / "m.lb", tmp_path, others=[cpu], cuda=made_by)
    x = np.random.default_rng(0).standard_normal((5, 11), np.float32)
    with cuda.Bundle.open(tmp_path / "m.lb") as opened:
        got, parts = opened.trace({"x": x})
    np.testing.assert_allclose(next(iter(got.values())), reference(x), rtol=1e-4, atol=1e-5)
    assert len(parts) == 3 and all(p.us > 0 for p in parts)


@pytest.mark.parametrize("name", ["attention", "mlp"])
def test_a_measured_search(lumc: Lumc, name: str) -> None:
    """Candidates are checked and timed on the GPU; the records say on which."""
    options = ("--target", "cuda:sm_90", "--budget", "8s", "--cache", "records")
    bundle = compile_sample(lumc, name, *options, "--save-temps", "passes")
    lumc("verify", bundle, "--device", "cuda")
    said = json.loads(lumc("explain", "--json", next(Path("passes").glob("*.lp"))))
    assert "measured" in json.dumps(said)
    assert nvidia.describe().split(",")[0] in lumc("cache", "list", "--cache", "records")


def test_a_sentence_encoder(lumc: Lumc) -> None:
    """MiniLM's shape with six layers and random weights."""
    config = {**BERT, "hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536}
    config |= {"vocab_size": 512, "num_hidden_layers": 6, "max_position_embeddings": 128}
    write_folder(Path("encoder"), config, random_weights(bert_shapes(config)))
    lumc("import", "encoder", "--dim", "b=2", "--dim", "s=128", "-o", "m.lg")
    for options in ((), ("--dtype", "f16")):
        lumc("compile", "m.lg", "--estimate", "--target", "cuda:sm_90", *options, "-o", "m.lb")
        lumc("verify", "m.lb", "--device", "cuda")
    lumc("bench", "m.lb", "--device", "cuda", "--seconds", "0.2")

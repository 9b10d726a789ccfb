"""Bundles on a GPU from Python: pycuda on the fake driver, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundles import begun, build
from gpu_bundles import Emulator, counter, gpu_mlp, python_environment, says_arch

NO_DRIVER = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """both.lb for the CPU and a GPU, gpu.lb and cpu.lb; counter.lb; x.npy and y.npy."""
    base = tmp_path_factory.mktemp("gpu")
    gpu, cpu, reference = gpu_mlp(base)
    build(gpu, base / "both.lb", base, others=[cpu], cuda=Emulator())
    build(gpu, base / "gpu.lb.zip", base, single=True, cuda=Emulator())
    build(cpu, base / "cpu.lb", base)
    build(counter(), base / "counter.lb", base, cuda=Emulator())
    x = np.random.default_rng(0).standard_normal((5, 11), np.float32)
    np.save(base / "x.npy", x)
    np.save(base / "y.npy", reference(x))
    return base


def python(base: Path, code: str, env: dict[str, str] | None = None) -> str:
    """What a program prints; it runs in the folder of the bundles."""
    program = f"import numpy as np\nfrom lumc.runtime import cpu, cuda\n{code}"
    env = python_environment() if env is None else env
    words = [sys.executable, "-W", "error::DeprecationWarning", "-c", program]
    done = subprocess.run(words, cwd=base, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and not done.stderr, done.stdout + done.stderr
    return done.stdout


def lumc(
    base: Path, *words: str, code: int = 0, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    env = python_environment() if env is None else env
    command = [sys.executable, "-m", "lumc", *words]
    done = subprocess.run(command, cwd=base, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    return done


OPENERS = ('cuda.Bundle.open("{}")', 'cpu.Bundle.open("{}", device="cuda")')


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize("name", ["both.lb", "gpu.lb.zip"])
def test_a_run(opener: str, name: str, base: Path) -> None:
    """Through pycuda, and through the library of the bundle."""
    program = f"""
with {opener.format(name)} as b:
    assert b.device == "cuda" and b.entries == ("main",), (b.device, b.entries)
    assert str(b.inputs[0]) == "f32[5, 11]" and b.outputs[0].name == "y"
    x, want = np.load("x.npy"), np.load("y.npy")
    for _ in range(2):
        np.testing.assert_allclose(b.run({{"x": x}})["y"], want, rtol=1e-4)
    got, parts = b.trace({{"x": x}})
    np.testing.assert_allclose(got["y"], want, rtol=1e-4)
    print([p.kernel for p in parts], min(p.us for p in parts) >= 0, {{p.thread for p in parts}})
    print(all(us > 0 for us in b.bench({{"x": x}}, seconds=1e-4)))
"""
    kernels = ["k0_matmul", "k1_bias", "k2_matmul"]
    assert python(base, program) == f"{kernels} True {{0}}\nTrue\n"


@pytest.mark.skipif(find_spec("pycuda") is not None, reason="pycuda is taken where it is")
def test_a_run_through_cuda_bindings(base: Path) -> None:
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
    program = """
from lumc.runtime import nvidia
with cuda.Bundle.open("both.lb") as b:
    x, want = np.load("x.npy"), np.load("y.npy")
    for _ in range(2):
        np.testing.assert_allclose(b.run({"x": x})["y"], want, rtol=1e-4)
    got, parts = b.trace({"x": x})
    np.testing.assert_allclose(got["y"], want, rtol=1e-4)
    print(len(parts), all(us > 0 for us in b.bench({"x": x}, seconds=1e-4)))
print(nvidia.driver().__name__, nvidia.describe())
try:
    gpu = nvidia.Gpu()
    with gpu.current():
        gpu.allocate(1 << 50, "this")
except Exception as e:
    print(e)
"""
    said = python(base, program, python_environment(bindings=True)).splitlines()
    assert said[0] == "3 True"
    assert said[1].startswith("lumc.runtime.bindings lumc emulator, sm_90, driver for CUDA 13.0")
    assert said[2].startswith("E0611 the GPU has no 1125899906.8 MB left for this")
    none = python_environment(bindings=True, missing=1)
    words = ("run", "both.lb", "--input", "x.npy", "--device", "cuda")
    assert "the NVIDIA driver sees no GPU" in lumc(base, *words, code=7, env=none).stderr
    said = lumc(base, *words, code=7, env=NO_DRIVER).stderr
    assert said.startswith("E0706 no NVIDIA driver on this machine: libcuda.so.1")


@pytest.mark.parametrize("opener", OPENERS)
def test_states(opener: str, base: Path) -> None:
    """They stay between runs, can be read and written, and neither trace nor bench changes them
    more than a run does."""
    program = f"""
ones = {{"x": np.ones(8, np.float32)}}
with {opener.format("counter.lb")} as b:
    print(b.run(ones)["y"][0], b.run(ones)["y"][0], b.state()["s"][7])
    b.set_state({{"s": np.full(8, 5, np.float32)}})
    print(b.state()["s"][0], b.run(ones)["y"][3], b.run(ones)["y"][0])
    b.bench(ones, seconds=1e-4)
    print(b.state()["s"][0], b.trace(ones)[0]["y"][0], b.state()["s"][0])
"""
    assert python(base, program) == "1.0 2.0 2.0\n5.0 6.0 7.0\n7.0 8.0 8.0\n"


@pytest.mark.parametrize("opener", OPENERS)
def test_states_that_begin_with_values(opener: str, base: Path) -> None:
    first = np.arange(8, dtype=np.float32) / 2
    build(begun(counter(), base, s=first), base / "begun.lb", base, cuda=Emulator())
    program = f"""
ones = {{"x": np.ones(8, np.float32)}}
with {opener.format("begun.lb")} as b:
    print(b.state()["s"][7], b.run(ones)["y"][7], b.run(ones)["y"][0])
    b.save_state("kept.safetensors")
    b.reset()
    print(b.state()["s"][7], b.run(ones)["y"][7])
    b.load_state("kept.safetensors")
    print(b.state()["s"][7], b.run(ones)["y"][7])
"""
    assert python(base, program) == "3.5 4.5 2.0\n3.5 4.5\n5.5 6.5\n"


def test_several_bundles_and_a_closed_one(base: Path) -> None:
    program = """
ones = {"x": np.ones(8, np.float32)}
a, b = cuda.Bundle.open("counter.lb"), cuda.Bundle.open("counter.lb")
print(a.run(ones)["y"][0], a.run(ones)["y"][0], b.run(ones)["y"][0])
a.close(), a.close()
try:
    a.run(ones)
except Exception as e:
    print(e)
print(b.run(ones)["y"][0])
"""
    assert python(base, program) == "1.0 2.0 1.0\nE0610 the bundle is closed\n2.0\n"


def test_the_image_for_the_gpu(tmp_path: Path) -> None:
    build(says_arch(), tmp_path / "m.lb", tmp_path, cuda=Emulator())
    build(says_arch(shared_bytes=200 << 10), tmp_path / "large.lb", tmp_path, cuda=Emulator())
    program = 'b = cuda.Bundle.open("m.lb"); print(b.run({"x": np.zeros(1, np.float32)})["y"][0])'
    for sm, image in ((80, 80), (86, 80), (100, 100), (110, 80), (120, 120)):
        assert python(tmp_path, program, python_environment(sm=sm)) == f"{image}.0\n"
    np.save(tmp_path / "x.npy", np.zeros(1, np.float32))
    words = ("run", "large.lb", "--input", "x.npy", "--device", "cuda")
    assert "y f32" in lumc(tmp_path, *words).stdout.replace("float32", "f32")
    said = lumc(tmp_path, *words, code=7, env=python_environment(sm=89)).stderr
    assert said.startswith("E0706 kernel k0_arch needs 200 KB of shared memory, this GPU (sm_89)")


def test_the_commands_take_a_device(base: Path) -> None:
    given = ("--input", "x.npy", "--json")
    for name, words, device in (
        ("both.lb", (), "cuda"),
        ("both.lb", ("--device", "cpu"), "cpu"),
        ("gpu.lb.zip", ("--device", "cuda"), "cuda"),
    ):
        said = json.loads(lumc(base, "bench", name, *given, *words, "--seconds", "0.001").stdout)
        assert said["device"] == device and said["min_us"] > 0
        rows = json.loads(lumc(base, "verify", name, *given, *words).stdout)
        assert "true" in json.dumps(rows)
        assert json.loads(lumc(base, "run", name, *given, *words).stdout)["y"]["shape"] == [5, 3]


def test_without_a_gpu_it_runs_on_the_cpu_and_says_why(base: Path) -> None:
    env = python_environment(missing=1)
    done = lumc(base, "run", "both.lb", "--input", "x.npy", env=env)
    assert done.stderr == "not on cuda: the NVIDIA driver sees no GPU\n"
    assert done.stdout.startswith("y float32")
    assert lumc(base, "run", "cpu.lb", "--input", "x.npy", env=env).stderr == ""


BLOCKED = {  # each replaces a module, or adds one
    "none": "",
    "no pycuda": "raise ModuleNotFoundError",
    "no driver": "raise ImportError('libcuda.so.1: cannot open shared object file')",
    "old driver": "raise ImportError('undefined symbol: cuCtxCreate_v4')",
}


@pytest.mark.parametrize(
    ("what", "settings", "said", "fix"),
    [
        ("no pycuda", {}, "neither pycuda nor cuda-bindings is", "pip install 'lumc[cuda]'"),
        ("no driver", {}, "no NVIDIA driver on this machine: libcuda", "install an NVIDIA driver"),
        ("old driver", {}, "the NVIDIA driver is too old for this pycuda", "install an NVIDIA"),
        ("none", {"missing": 1}, "the NVIDIA driver sees no GPU", "see what nvidia-smi says"),
        ("none", {"sm": 75}, "this GPU is sm_75, lumc needs sm_80", "choose another --device"),
    ],
)
def test_each_failure_has_its_own_fix(
    what: str, settings: dict[str, Any], said: str, fix: str, base: Path, tmp_path: Path
) -> None:
    env = python_environment(**settings)
    if BLOCKED[what]:
        (tmp_path / "pycuda").mkdir()
        (tmp_path / "pycuda" / "__init__.py").write_text("")
        (tmp_path / "pycuda" / "driver.py").write_text(BLOCKED[what])
        (tmp_path / "cuda").mkdir()  # without bindings
        (tmp_path / "cuda" / "__init__.py").write_text("")
        env["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{env['PYTHONPATH']}"
    words = ("run", "both.lb", "--input", "x.npy", "--device", "cuda")
    lines = lumc(base, *words, code=7, env=env).stderr.splitlines()
    assert lines[0].startswith(f"E0706 {said}"), lines
    assert lines[-1].strip().startswith(f"fix:   {fix}"), lines


def test_a_device_that_the_bundle_has_no_plan_for(base: Path) -> None:
    for name, device in (("cpu.lb", "cuda"), ("gpu.lb.zip", "cpu")):
        words = ("run", name, "--input", "x.npy", "--device", device)
        said = lumc(base, *words, code=7).stderr
        assert f"no plan for {device}" in said, said
        assert len(said.splitlines()) <= 3


def test_doctor_and_targets(base: Path) -> None:
    for env, ok, said in (
        (python_environment(), True, "lumc emulator, sm_90, driver for CUDA 13.0"),
        (
            python_environment(missing=1),
            False,
            "the NVIDIA driver sees no GPU; see what nvidia-smi",
        ),
    ):
        rows = {r["what"]: r for r in json.loads(lumc(base, "doctor", "--json", env=env).stdout)}
        gpu, compiler = rows["NVIDIA GPU"], rows["CUDA compiler"]
        assert gpu["ok"] is ok and gpu["said"].startswith(said), gpu
        words = ("targets", "--json", "--nvcc", "nothing")
        here = {r["name"]: r for r in json.loads(lumc(base, *words, env=env).stdout)}
        row = here["cuda:sm_90"]
        assert row["runs_here"] is ok and row["builds_here"] is False, row
        assert row["why"].startswith("no CUDA compiler"), row
        assert compiler["ok"] in (True, False) and here["cpu:native"]["runs_here"]
    lines = lumc(base, "targets", "--nvcc", "nothing").stdout.splitlines()
    assert any(line.startswith("cuda:sm_90 ") and line.endswith("runs here") for line in lines)

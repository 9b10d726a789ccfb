"""The native runner on a GPU: the real cuda.c on the fake driver, and all that it refuses."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from bundles import begun, build, compiler
from compiling import ASAN, STRICT, link
from fake_gpu import environment
from gpu_bundles import Emulator, counter, gpu_mlp, says_arch
from lumc.bundle import manifest
from lumc.link import runners

NO_DRIVER = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A bundle for the CPU and a GPU, and what it computes."""
    base = tmp_path_factory.mktemp("mlp")
    gpu, cpu, reference = gpu_mlp(base)
    return build(gpu, base / "m.lb", base, others=[cpu], cuda=Emulator()), reference


@pytest.fixture(scope="module")
def arch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("arch")
    return build(says_arch(), base / "m.lb", base, cuda=Emulator())


def run(
    path: Path, x: Any, *more: str, code: int = 0, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """lumc-run of a bundle on an input; the output is o.npy beside the bundle."""
    np.save(path.parent / "x.npy", x)
    given = ["--input", f"{path.parent}/x.npy", "-o", f"{path.parent}/o.npy", *more]
    done = subprocess.run(
        [path / "bin" / "lumc-run", path, *given],
        env=environment() if env is None else env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def refused(path: Path, code: int, env: dict[str, str] | None = None, *more: str) -> str:
    """One line about what is wrong."""
    done = run(path, np.zeros(1, np.float32), *more, code=code, env=env)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("fake libcuda")]
    assert len(lines) == 1 and lines[0].startswith("lumc-run: "), done.stderr
    return lines[0].removeprefix("lumc-run: ")


def test_a_bundle_of_two_devices_runs_on_both(made: tuple[Path, Any]) -> None:
    path, reference = made
    x = np.random.default_rng(0).standard_normal((5, 11), np.float32)
    for device, env, said in (
        ([], environment(), "cuda)"),
        ([], NO_DRIVER, "1 threads)"),
        (["--device", "cuda"], environment(), "cuda)"),
        (["--device", "cpu"], environment(), "1 threads)"),
    ):
        done = run(path, x, *device, "--repeat", "3", env=env)
        assert done.stdout.strip().endswith(said), (device, done.stdout)
        np.testing.assert_allclose(np.load(path.parent / "o.npy"), reference(x), rtol=1e-4)


def test_states_stay_on_the_gpu_between_runs(tmp_path: Path) -> None:
    path = build(counter(), tmp_path / "m.lb", tmp_path, cuda=Emulator())
    run(path, np.arange(8, dtype=np.float32), "--repeat", "3")
    np.testing.assert_array_equal(np.load(tmp_path / "o.npy"), 3 * np.arange(8))


def test_states_begin_with_values_and_go_to_files(tmp_path: Path) -> None:
    first = np.arange(8, dtype=np.float32) / 2
    code = begun(counter(), tmp_path, s=first)
    path = build(code, tmp_path / "m.lb", tmp_path, cuda=Emulator())
    x = np.ones(8, np.float32)
    run(path, x, "--repeat", "3", "--save", f"{tmp_path}/a.safetensors")
    np.testing.assert_array_equal(np.load(tmp_path / "o.npy"), first + 3)
    np.testing.assert_array_equal(load_file(tmp_path / "a.safetensors")["s"], first + 3)
    run(path, x, "--state", f"{tmp_path}/a.safetensors", "--save", f"{tmp_path}/b.safetensors")
    np.testing.assert_array_equal(load_file(tmp_path / "b.safetensors")["s"], first + 4)


@pytest.mark.parametrize(
    ("sm", "image"),
    [(80, 80), (86, 80), (89, 89), (90, 90), (100, 100), (103, 100), (110, 80), (121, 120)],
)
def test_the_image_for_the_gpu(sm: int, image: int, arch: Path) -> None:
    """Of the same generation, else PTX, which is for sm_80."""
    run(arch, np.zeros(1, np.float32), env=environment(sm=sm))
    assert np.load(arch.parent / "o.npy") == [image]


def test_the_newest_plan_that_is_not_too_new(tmp_path: Path) -> None:
    """Plans for several GPUs: the larger block is refused where it does not fit."""
    codes = [says_arch("cuda:sm_80"), says_arch("cuda:sm_90", shared_bytes=200 << 10)]
    path = build(codes[0], tmp_path / "m.lb", tmp_path, others=codes[1:], cuda=Emulator())
    for sm in (80, 90):
        run(path, np.zeros(1, np.float32), env=environment(sm=sm))
    one = build(codes[1], tmp_path / "one.lb", tmp_path, cuda=Emulator())
    said = refused(one, 7, environment(sm=89))
    assert said == "kernel k0_arch needs 200 KB of shared memory, this GPU (sm_89) has 99 KB"


def test_no_gpu_is_one_line(made: tuple[Path, Any], arch: Path) -> None:
    assert refused(arch, 7, NO_DRIVER).startswith("no NVIDIA driver on this machine: libcuda.so.1")
    assert refused(arch, 7, environment(missing=1)) == "the NVIDIA driver sees no GPU"
    said = refused(arch, 7, environment(sm=75))
    assert said == "target cuda-sm_90 needs a GPU of sm_80 or newer, this one is sm_75"
    said = refused(arch, 1, environment(memory=1 << 10))
    assert said == "the GPU has no 0.0 MB left for the values between kernels"
    assert refused(arch, 7, None, "--device", "cpu") == f"{arch} has no plan for cpu"
    assert refused(arch, 2, None, "--device", "tpu").startswith(
        "unknown device 'tpu'; one of: cuda"
    )


def test_an_old_driver_is_one_line(arch: Path, tmp_path: Path) -> None:
    empty = tmp_path / "libcuda.so.1"
    (tmp_path / "empty.c").write_text("int cuInit(unsigned flags) { return (int)flags; }\n")
    command = [*compiler().command, "-shared", "-fPIC", tmp_path / "empty.c", "-o", empty]
    subprocess.run(command, check=True)
    said = refused(arch, 7, {**NO_DRIVER, "LD_LIBRARY_PATH": str(tmp_path)})
    assert said == "the NVIDIA driver is too old: it has no cuDriverGetVersion"


def sign(path: Path, change: Any = lambda body: None) -> None:
    """The manifest that somebody who changed files would write."""
    text = (path / "manifest.json").read_text()
    body = json.loads(text)
    body = {k: v for k, v in body.items() if k not in ("lumc", "schema", "digest")}
    change(body)
    for name in body["files"]:
        if (path / name).is_file():
            body["files"][name] = manifest.sha256(path / name)
    (path / "manifest.json").write_text(manifest.render(body))


IMAGE = "kernels/cuda-sm_90/kernels.sm_90.cubin"


def without_images(body: Any) -> None:
    body["files"] = {n: h for n, h in body["files"].items() if "kernels." not in n}


def test_damaged_kernels(arch: Path, tmp_path: Path) -> None:
    path = shutil.copytree(arch, tmp_path / "m.lb")
    data = (path / IMAGE).read_bytes()
    (path / IMAGE).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert "does not match its hash" in refused(path, 5)
    (path / IMAGE).write_bytes(b"not a cubin" * 10)
    sign(path)
    said = refused(path, 7)
    assert said.startswith(f"the NVIDIA driver (CUDA 13.0) refuses {IMAGE}: ")
    assert said.endswith("update the driver, or link with an older CUDA compiler")
    sign(path, without_images)
    assert "kernels.ptx does not match its hash" in refused(path, 5)
    (path / "kernels" / "cuda-sm_90" / "kernels.ptx").unlink()
    assert "cannot open" in refused(path, 5)


def test_hostile_plans(arch: Path, tmp_path: Path) -> None:
    """A plan of a bundle whose hashes are right."""
    path = shutil.copytree(arch, tmp_path / "m.lb")
    plan = path / "plan" / "cuda-sm_90.bin"
    good = plan.read_bytes()
    grid = (1).to_bytes(8, "little") + (32).to_bytes(8, "little") + bytes(8)
    assert good.count(grid) == 1
    for bad, said in (
        (good.replace(grid, bytes(24)), "corrupt plan: kernel 'k0_arch' has no grid"),
        (good.replace(b"k0_arch", b"k0_nope"), "the compiled kernels have no 'k0_nope'"),
        (good.replace(b"cuda-sm_90", b"cuda-sm_80"), "is for the target cuda-sm_80"),
        (good[:-8], "corrupt plan: "),
    ):
        assert bad != good
        plan.write_bytes(bad)
        sign(path)
        assert said in refused(path, 5)
    plan.write_bytes(good.replace(b"\5" + bytes(7) + b"sm_90", b"\5" + bytes(7) + b"sm_??"))
    sign(path)
    assert "needs a GPU of sm_80 or newer" in refused(path, 7)


def test_under_the_sanitizers(made: tuple[Path, Any], tmp_path: Path) -> None:
    """No leak, no access out of bounds, on every way out."""
    path, reference = made
    program = tmp_path / "lumc-run"
    link((*runners.LIBRARY, "main"), (*STRICT, "-O0", *ASAN), program)
    copy = shutil.copytree(path, tmp_path / "m.lb")
    shutil.copy(program, copy / "bin" / "lumc-run")
    x = np.random.default_rng(1).standard_normal((5, 11), np.float32)
    (tmp_path / "known").write_text("leak:lumc_emu\n")  # the emulator's own, of its fibers
    quiet = {"LSAN_OPTIONS": f"suppressions={tmp_path}/known:print_suppressions=0"}
    run(copy, x, "--device", "cuda", "--repeat", "3", env={**environment(), **quiet})
    np.testing.assert_allclose(np.load(tmp_path / "o.npy"), reference(x), rtol=1e-4)
    for settings in ({"missing": 1}, {"memory": 1500}, {"memory": 3000}):
        env = {**environment(**settings), **quiet}
        refused(copy, 7 if "missing" in settings else 1, env, "--device", "cuda")

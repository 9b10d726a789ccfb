"""Bundles on the fake Metal: the Python runtime and the native runner, and what they say."""

import ctypes
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fake_metal
from bundles import begun
from compiling import ASAN
from lumc.codegen.gpu.grid import Grid
from lumc.errors import Exit, LumcError
from lumc.runtime import objc
from lumc.runtime.choose import open_bundle
from lumc.runtime.metal import Bundle


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in fake_metal.environment().items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A bundle for the CPU and two families of GPUs."""
    base = tmp_path_factory.mktemp("mlp")
    metal, cpu, reference = fake_metal.metal_mlp(base)
    newer = replace(metal, target=replace(metal.target, name="metal:apple12", arch="apple12"))
    return fake_metal.link(cpu, base / "m.lb", base, others=[metal, newer]), reference


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_metal.runner(tmp_path_factory.mktemp("runner") / "lumc-run", ASAN)


def opened(path: Path) -> Bundle:
    return Bundle.open(path, library=fake_metal.library())


def live() -> int:
    return int(ctypes.CDLL(fake_metal.library()).lumc_fake_metal_live())


def data() -> Any:
    return np.random.default_rng(2).standard_normal((5, 11), np.float32)


def test_a_bundle_in_python(made: tuple[Path, Any]) -> None:
    path, reference = made
    before = live()
    with opened(path) as b:
        assert (b.entries, b.device) == (("main",), "metal")
        assert b.plan.target == "metal-apple7"
        x = data()
        np.testing.assert_allclose(b.run({"x": x})["y"], reference(x), rtol=1e-4, atol=1e-5)
        outputs, parts = b.trace({"x": x})
        np.testing.assert_allclose(outputs["y"], reference(x), rtol=1e-4, atol=1e-5)
        assert [p.kernel for p in parts] == ["k0_matmul", "k1_bias", "k2_matmul"]
        assert parts[0].start_us == 0 and all(p.us > 0 for p in parts)
        times = b.bench({"x": x}, seconds=0.01)
        assert len(times) >= 3 and all(t > 0 for t in times)
        with pytest.raises(LumcError, match="must be"):
            b.run({"x": x[:2]})
    assert live() == before
    with pytest.raises(LumcError, match="closed"):
        b.run({"x": x})


def test_a_bundle_in_c(made: tuple[Path, Any], runner: Path, tmp_path: Path) -> None:
    path, reference = made
    np.save(tmp_path / "x.npy", data())
    out = tmp_path / "y.npy"
    done = fake_metal.run(runner, path, "--input", tmp_path / "x.npy", "-o", out, "--repeat", 3)
    assert "3 runs, metal" in done.stdout
    np.testing.assert_allclose(np.load(out), reference(data()), rtol=1e-4, atol=1e-5)
    assert "device metal" in fake_metal.run(runner, path, "--list").stdout
    # without such a GPU the CPU runs it; unless it must be Metal
    assert "device cpu" in fake_metal.run(runner, path, "--list", family=0).stdout
    said = fake_metal.run(runner, path, "--list", "--device", "metal", code=7, family=6).stderr
    assert "needs a GPU of family Apple" in said and "this one is Apple6" in said
    said = fake_metal.run(runner, path, "--list", "--device", "metal", code=7, family=0).stderr
    assert "Metal sees no GPU" in said
    newest = fake_metal.run(runner, path, "--list", family=12)
    assert "device metal" in newest.stdout


@pytest.mark.parametrize("zipped", [False, True])
def test_states(zipped: bool, runner: Path, tmp_path: Path) -> None:
    code = fake_metal.counter()
    path = fake_metal.link(code, tmp_path / "s.lb", tmp_path, single=zipped)
    x = np.arange(8, dtype=np.float32)
    with opened(path) as b:
        for n in range(1, 4):
            np.testing.assert_array_equal(b.run({"x": x})["y"], n * x)
        b.bench({"x": x}, seconds=0.001)
        b.trace({"x": x})
        np.testing.assert_array_equal(b.state()["s"], 4 * x)
        b.set_state({"s": -x})
        np.testing.assert_array_equal(b.run({"x": x})["y"], 0 * x)
    if not zipped:
        np.save(tmp_path / "x.npy", x)
        out = tmp_path / "y.npy"
        fake_metal.run(runner, path, "--input", tmp_path / "x.npy", "-o", out, "--repeat", 5)
        np.testing.assert_array_equal(np.load(out), 5 * x)


def test_states_that_begin_with_values(runner: Path, tmp_path: Path) -> None:
    first, x = np.arange(8, dtype=np.float32) / 2, np.ones(8, np.float32)
    code = begun(fake_metal.counter(), tmp_path, s=first)
    path = fake_metal.link(code, tmp_path / "s.lb", tmp_path)
    with opened(path) as b:
        np.testing.assert_array_equal(b.run({"x": x})["y"], first + 1)
        b.reset()
        np.testing.assert_array_equal(b.state()["s"], first)
    np.save(tmp_path / "x.npy", x)
    files = ["-o", tmp_path / "y.npy", "--save", tmp_path / "a.safetensors"]
    fake_metal.run(runner, path, "--input", tmp_path / "x.npy", "--repeat", 5, *files)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), first + 5)
    more = ["--state", tmp_path / "a.safetensors"]
    fake_metal.run(runner, path, "--input", tmp_path / "x.npy", *files, *more)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), first + 6)


def test_no_metal_here(made: tuple[Path, Any], tmp_path: Path) -> None:
    with pytest.raises(LumcError, match="it is for Macs") as e:
        objc.Metal(str(tmp_path / "nothing.dylib"))
    assert (e.value.code, e.value.exit) == ("E0706", Exit.TOOLCHAIN)
    if not Path(objc.METAL).parent.exists():
        said = fake_metal.run(
            made[0] / "bin" / "lumc-run", made[0], "--list", "--device", "metal", code=7
        ).stderr
        assert "no Metal on this machine: it is for Macs" in said


def test_a_gpu_that_is_too_old(made: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUMC_FAKE_METAL_FAMILY", "6")
    with pytest.raises(LumcError, match=r"needs a GPU of family Apple7 .*, this is Apple6") as e:
        opened(made[0])
    assert e.value.exit == Exit.TOOLCHAIN


def test_what_the_compiler_says_with_our_lines(runner: Path, tmp_path: Path) -> None:
    code = fake_metal.with_source(fake_metal.counter(), "B_b0[i];", "B_b0[j];")
    path = fake_metal.link(code, tmp_path / "b.lb", tmp_path)
    text = (path / "kernels" / "metal-apple7" / "kernels.metal").read_text().splitlines()
    line = next(i for i, t in enumerate(text, 1) if "B_b0[j]" in t)
    with pytest.raises(LumcError) as e:
        opened(path)
    assert f"kernels.metal: line {line}: " in e.value.what
    assert "not declared" in e.value.what and e.value.what.endswith("B_out[i] = B_b0[j];")
    said = fake_metal.run(runner, path, "--list", code=7).stderr
    assert f"kernels.metal, line {line}: error: " in said and "B_out[i] = B_b0[j];" in said
    apple = "program_source:2:3: warning: w\n x\nprogram_source:1:9: error: use of undeclared 'q'\n"
    assert objc.complaints(apple, "float y = q;\n") == [
        "line 1: use of undeclared 'q': float y = q;"
    ]


def test_a_kernel_that_takes_fewer_threads(runner: Path, tmp_path: Path) -> None:
    few = "[[max_total_threads_per_threadgroup(16)]] kernel void k1"
    code = fake_metal.with_source(fake_metal.counter(), "kernel void k1", few)
    path = fake_metal.link(code, tmp_path / "b.lb", tmp_path)
    message = "'k1_copy' has 32 threads, this GPU runs at most 16 of them"
    with pytest.raises(LumcError, match=message):
        opened(path)
    assert message in fake_metal.run(runner, path, "--list", code=7).stderr


def test_a_fault_of_the_gpu(runner: Path, tmp_path: Path) -> None:
    stuck = "if (tid < 16) threadgroup_barrier(mem_flags::mem_threadgroup); B_out[i] = simd_sum("
    code = fake_metal.with_source(fake_metal.counter(), "B_out[i] = B_b0[i];", stuck + "1.0f);")
    code = replace(code, kernels=tuple(replace(k, grid=Grid(1, 32)) for k in code.kernels))
    code = fake_metal.with_source(code, "if (i < 8)", "if (i < 32)")
    path = fake_metal.link(code, tmp_path / "b.lb", tmp_path)
    x = np.zeros(8, np.float32)
    with opened(path) as b, pytest.raises(LumcError, match="the GPU failed: ") as e:
        b.run({"x": x})
    assert e.value.exit == Exit.FAILED
    np.save(tmp_path / "x.npy", x)
    said = fake_metal.run(runner, path, "--input", tmp_path / "x.npy", code=1).stderr
    assert "the GPU failed: " in said


@pytest.mark.parametrize("name", ["kernels/metal-apple7/kernels.metal", "plan/metal-apple7.bin"])
def test_damage(name: str, made: tuple[Path, Any], runner: Path, tmp_path: Path) -> None:
    path = shutil.copytree(made[0], tmp_path / "m.lb")
    data = bytearray((path / name).read_bytes())
    data[len(data) // 2] ^= 1
    (path / name).write_bytes(data)
    with pytest.raises(LumcError, match="does not match its hash") as e:
        opened(path)
    assert e.value.exit == Exit.CORRUPT
    fake_metal.run(runner, path, "--list", "--device", "metal", code=5)
    assert os.path.lexists(path)


def test_damaged_weights(made: tuple[Path, Any], runner: Path, tmp_path: Path) -> None:
    path = shutil.copytree(made[0], tmp_path / "m.lb")
    weights = path / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    with pytest.raises(LumcError, match="does not match its hash"):
        opened(path)
    weights.write_bytes(weights.read_bytes() + bytes(64))
    with pytest.raises(LumcError, match="does not have the size"):
        opened(path)
    fake_metal.run(runner, path, "--list", code=5)


@pytest.fixture
def instead(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The fake is what this machine has, and no more after the test: a GPU is opened once."""
    for name in ("OBJC", "METAL", "GRAPHICS"):
        monkeypatch.setattr(objc, name, fake_metal.library())
    yield
    objc.metal.cache_clear()


@pytest.mark.usefixtures("instead")
def test_a_bundle_chooses_metal(made: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    heard = list[str]()
    with open_bundle(made[0], say=heard.append) as b:
        assert (b.device, heard) == ("metal", [])
    with open_bundle(made[0], "cpu") as b:
        assert b.device == "cpu"
    monkeypatch.setenv("LUMC_FAKE_METAL_FAMILY", "5")
    with open_bundle(made[0], say=heard.append) as b:
        assert b.device == "cpu"
    assert heard == [
        "not on metal: it needs a GPU of family Apple7 (an M1 has Apple7), this is Apple5"
    ]


def test_the_machine() -> None:
    gpu = objc.metal(fake_metal.library()).gpu()
    assert (gpu.name, gpu.family, gpu.unified) == ("lumc emulator", 9, True)
    assert 0 < gpu.largest_buffer <= gpu.memory

"""The operations of the hardware in the emulator, and the header in the compilers of NVIDIA."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from device import HARDWARE, every_function
from emulator import DEVICE_HEADER, Module, build
from lumc.codegen.gpu.grid import Grid
from lumc.codegen.text.headers import header_of
from lumc.graph.ops import from_bf16, to_bf16


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "checked"])
def module(built: Path, request: pytest.FixtureRequest) -> Module:
    return build(HARDWARE, built, request.param)


@pytest.mark.parametrize("name", ["half", "brain", "tensor", "bytes"])
def test_products(module: Module, name: str) -> None:
    """Every lane puts the elements where the table in the header says."""
    rng, k = np.random.default_rng(7), {"tensor": 8, "bytes": 32}.get(name, 16)
    start = np.tile([[1, 2], [3, 4]], (1, 4)).repeat(8, 0)  # the accumulator of every lane
    if name == "bytes":
        a, b = rng.integers(-128, 128, (16, k), np.int8), rng.integers(-128, 128, (k, 8), np.int8)
        c, want = np.zeros((16, 8), np.int32), a.astype(int) @ b.astype(int) + start
        assert module.launch(name, Grid(1, 32), [a, b, c]) == ""
        np.testing.assert_array_equal(c, want)
        return
    a, b = rng.standard_normal((16, k), np.float32), rng.standard_normal((k, 8), np.float32)
    if name == "half":
        stored = [x.astype(np.float16) for x in (a, b)]
        a, b = (x.astype(np.float32) for x in stored)
    elif name == "brain":
        stored = [to_bf16(x) for x in (a, b)]
        a, b = (from_bf16(x) for x in stored)
    else:
        a, b = ((x.view(np.uint32) + 0x1000 & 0xFFFFE000).view(np.float32) for x in (a, b))
        stored = [a, b]
    out = np.zeros((16, 8), np.float32)
    assert module.launch(name, Grid(1, 32), [*stored, out]) == ""
    np.testing.assert_allclose(out, a.astype(np.float64) @ b + start, rtol=0, atol=1e-5)


def test_matrices(module: Module) -> None:
    x = np.arange(256, dtype=np.uint16).reshape(4, 8, 8)
    y, z = np.zeros((2, 32, 4), np.uint32)
    assert module.launch("matrices", Grid(1, 32, 512), [x, y, z]) == ""
    for words, matrices in ((y, x), (z, x.swapaxes(1, 2))):
        pairs = np.ascontiguousarray(matrices).reshape(4, 32, 2).astype(np.uint32)
        np.testing.assert_array_equal(words, (pairs[..., 0] | pairs[..., 1] << 16).T)


def test_shuffles(module: Module) -> None:
    lane = np.arange(32)
    f, d, i = lane.astype(np.float32), lane / 7, lane.astype(np.int64) << 40
    out = np.zeros(32, np.float32), np.zeros(32), np.zeros(32, np.int64)
    assert module.launch("shuffles", Grid(1, 32), [f, d, i, *out]) == ""
    np.testing.assert_array_equal(out[0], f[lane ^ 1])
    np.testing.assert_array_equal(out[1], d[lane ^ 6])
    np.testing.assert_array_equal(out[2], i[lane ^ 16] + (lane ^ 31) + 0xFFFFFFFF)


@pytest.mark.parametrize("order", ["forward", "random"])
def test_copies(module: Module, order: str) -> None:
    x = np.random.default_rng(1).standard_normal((128, 4), np.float32)
    y = np.full((4, 128, 4), np.nan, np.float32)
    assert module.launch("copies", Grid(1, 128, 4 * 512 * 4), [x, y], order) == ""
    np.testing.assert_array_equal(y[0], x)
    np.testing.assert_array_equal(y[1], x * [1, 1, 0, 0])
    np.testing.assert_array_equal(y[2, :, 0], x[:, 0])
    kept = np.arange(4) < np.arange(128)[:, None] % 5
    np.testing.assert_array_equal(y[3], np.where(kept, x, 0))


@pytest.mark.parametrize("capability", [80, 89, 90, 100])
def test_nvcc(tmp_path: Path, capability: int) -> None:
    if not shutil.which("nvcc"):
        pytest.skip("nvcc is not installed")
    texts = {"hardware.cu": HARDWARE, "functions.cu": every_function()}
    for name, text in texts.items():
        if name == "hardware.cu" or capability == 80:
            (tmp_path / name).write_text(text)
            flags = ["-std=c++17", f"-arch=sm_{capability}", "-Werror", "all-warnings", "-cubin"]
            command = ["nvcc", *flags, f"-I{DEVICE_HEADER.parent}", name, "-o", f"{name}.cubin"]
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
            assert not done.returncode, done.stderr
            assert (tmp_path / f"{name}.cubin").stat().st_size


def test_nvrtc() -> None:
    """The header is all that a kernel needs, so that no path is given."""
    for version in (13, 12):
        try:
            nvrtc = ctypes.CDLL(f"libnvrtc.so.{version}")
            break
        except OSError:
            continue
    else:
        pytest.skip("NVRTC is not installed")
    for text in (HARDWARE, every_function()):
        program, header = ctypes.c_void_p(), (ctypes.c_char_p * 1)(header_of("cuda").encode())
        names = (ctypes.c_char_p * 1)(b"lumc_dev.h")
        made = nvrtc.nvrtcCreateProgram(
            ctypes.byref(program), text.encode(), b"kernel.cu", 1, header, names
        )
        options = (ctypes.c_char_p * 2)(b"--gpu-architecture=sm_90", b"--std=c++17")
        compiled = nvrtc.nvrtcCompileProgram(program, 2, options)
        log = ctypes.create_string_buffer(1 << 16)
        nvrtc.nvrtcGetProgramLog(program, log)
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
        assert made == compiled == 0 and not log.value.strip(), log.value.decode()

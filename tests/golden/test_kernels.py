"""C, CUDA and Metal text of a few kernels, reviewed by people: ``--update-golden`` rewrites it."""

from pathlib import Path

import pytest

import kernel_zoo as zoo
from dealing import flash, narrowed, schedule, tiled
from lumc.codegen.cpu.kernel import print_kernel
from lumc.codegen.generate import print_source
from lumc.codegen.tile.lower import lower
from lumc.kernel.machines import resolve_target
from lumc.kernel.term import Kernel
from lumc.schedule.first import default_schedule
from lumc.schedule.schedule import Schedule, Stage

FOLDER = Path(__file__).parent / "kernels"
KERNELS: dict[str, tuple[Kernel, str]] = {
    "linear_gelu": (zoo.linear_gelu(64, 96, 64), "x86-64-v4"),
    "linear_gelu_avx2": (zoo.linear_gelu(20, 24, 30), "x86-64-v3"),
    "softmax": (zoo.softmax(32, 64), "x86-64-v4"),
    "layernorm": (zoo.layernorm(32, 64), "x86-64-v4"),
    "masked_attention": (zoo.masked_attention(2, 64, 16), "x86-64-v4"),
    "conv": (zoo.conv(16, 4, 16, 16), "x86-64-v4"),
    "pad_iota": (zoo.pad_iota(6, 40), "x86-64-v4"),
    "embed": (zoo.embed(7, 50, 33), "x86-64-v4"),
    "cache_update": (zoo.cache_update(4, 8, 32), "x86-64-v4"),
    "typed_rows_i8": (zoo.typed_rows(5, 37, zoo.I8), "aarch64"),
}

DEEP, ROWS = {"m": 32, "n": 64, "k": 32}, [Stage(), Stage()]
HALF = narrowed(zoo.linear_gelu(70, 96, 64), zoo.BF16)
SCORES = narrowed(zoo.attention(2, 128, 128, 64), zoo.F16)
SIMT, SOFTMAX = zoo.linear_gelu(70, 100, 36), zoo.softmax(32, 512)
GPU: dict[str, tuple[Kernel, Schedule, str]] = {
    "softmax.cu": (SOFTMAX, schedule(SOFTMAX, {"m": 1}, ROWS, row=128, vector=4), "cuda"),
    "linear_gelu.cu": (SIMT, schedule(SIMT, DEEP, tiled(SIMT, "simt", (8, 16))), "cuda"),
    "linear_bf16.cu": (HALF, schedule(HALF, DEEP, tiled(HALF, "mma", (2, 2)), ring=3), "cuda"),
    "attention.cu": (SCORES, flash(SCORES, (4, 1), 64, 64, ring=2), "cuda"),
    "linear_bf16.metal": (HALF, schedule(HALF, DEEP, tiled(HALF, "simdgroup", (2, 2))), "metal"),
}


@pytest.mark.parametrize("name", GPU)
def test_gpu_text(name: str, request: pytest.FixtureRequest) -> None:
    k, s, kind = GPU[name]
    program = lower(k, s, resolve_target(kind))
    text, _ = print_source(program, s.threads, name.partition(".")[0])
    file = FOLDER / name
    if request.config.getoption("--update-golden"):
        file.write_text(text)
    assert text == file.read_text(), f"{file.name} differs: make golden, and review the change"


@pytest.mark.parametrize("name", KERNELS)
def test_text(name: str, request: pytest.FixtureRequest) -> None:
    k, arch = KERNELS[name]
    target = resolve_target(f"cpu:{arch}")
    text = print_kernel(lower(k, default_schedule(k, target), target), name)
    file = FOLDER / f"{name}.c"
    if request.config.getoption("--update-golden"):
        file.write_text(text)
    assert text == file.read_text(), f"{file.name} differs: make golden, and review the change"


def test_no_file_is_left_over() -> None:
    assert {f.name for f in FOLDER.iterdir()} == {f"{name}.c" for name in KERNELS} | GPU.keys()

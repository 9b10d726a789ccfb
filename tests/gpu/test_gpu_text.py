"""The texts of both languages: Metal on the emulator and against its rules, CUDA by nvcc."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import msl
from dealing import (
    dealt,
    flash,
    narrowed,
    random_dealt,
    refusal,
    run,
    schedule,
    tiled,
    together,
)
from gpu import address_spaces
from gpu.msl_lint import lint
from kernel_zoo import (
    FAMILIES,
    attention,
    byte_matmul,
    cast_chain,
    layernorm,
    linear_gelu,
    matmul,
    random_inputs,
    softmax,
    transpose,
    turned_matmul,
    typed_rows,
)
from kernels import assert_close
from lumc.codegen.gpu.metal import Metal
from lumc.codegen.gpu.operations import print_kernel
from lumc.codegen.text.headers import header_of
from lumc.graph.ops import DType
from lumc.kernel.machines import resolve_target
from lumc.kernel.term import Kernel
from lumc.oracle.term import evaluate_kernel
from lumc.schedule.first_blocks import guesses
from lumc.schedule.schedule import Schedule, Stage

APPLE = resolve_target("metal:apple7")
DEEP = {"m": 32, "n": 32, "k": 16}
ROWS = [Stage(), Stage()]
Case = tuple[Kernel, Schedule]


def by_hand() -> list[Case]:
    """Maps, rows in a warp and in a block, transposes, and both kinds of contraction."""
    ks = linear_gelu(70, 100, 36), softmax(17, 100), matmul(70, 100, 37), attention(2, 70, 90, 40)
    linear, rows, product, scores = ks
    half, turned = narrowed(linear, DType.BF16), transpose(45, 70)
    wide, narrow = typed_rows(5, 37, DType.I64), cast_chain(50, DType.F32, DType.U8)
    return [
        (linear, schedule(linear, DEEP, tiled(linear, "simt", (8, 16)))),
        (linear, schedule(linear, DEEP, tiled(linear, "simdgroup", (2, 2)))),
        (half, schedule(half, DEEP, tiled(half, "simdgroup", (2, 2)))),
        (product, schedule(product, DEEP, tiled(product, "simdgroup", (4, 1)))),
        (rows, schedule(rows, {"m": 4}, ROWS, 1)),
        (rows, schedule(rows, {"m": 1}, ROWS, 1, row=128)),
        (turned, schedule(turned, {"m": 32, "n": 32})),
        (wide, schedule(wide, {"m": 1}, ROWS, 1, row=64)),
        (narrow, schedule(narrow, {"n": 32})),
        (scores, flash(scores, (4, 1), 32, 32, "simdgroup")),
    ]


def metal_text(cases: list[Case]) -> tuple[str, list]:
    programs = [dealt(k, s, APPLE) for k, s in cases]
    printed = [print_kernel(d, Metal(), f"k{i}") for i, d in enumerate(programs)]
    return header_of("metal") + "\n".join(t for t, _ in printed), [grid for _, grid in printed]


def check_metal(cases: list[Case], folder: Path, checked: bool) -> None:
    source, grids = metal_text(cases)
    module = msl.build(source, folder, checked)
    for i, (k, s) in enumerate(cases):
        inputs = random_inputs(k, i)
        got = run(module, f"k{i}", k, grids[i], inputs)
        assert_close(k, got, evaluate_kernel(k, inputs), s)


@pytest.mark.parametrize("checked", [False, True])
def test_metal(checked: bool, tmp_path: Path) -> None:
    check_metal(by_hand(), tmp_path, checked)


def test_random_schedules_on_metal(tmp_path: Path) -> None:
    check_metal(drawn(random.Random("metal"), 10), tmp_path, True)


@pytest.mark.deep
def test_many_random_schedules_on_metal(tmp_path: Path) -> None:
    rng = random.Random("metal deep")
    for _ in range(12):
        check_metal(drawn(rng, 30), tmp_path, True)


def drawn(rng: random.Random, n: int) -> list[Case]:
    """Random kernels with random schedules that a threadgroup can hold."""
    kernels = [f(*s) for f, shapes in FAMILIES.items() for s in shapes]
    kernels = [k for k in kernels if DType.F64 not in {b.dtype for b in k.buffers}]
    out = list[Case]()
    while len(out) < n:
        k = rng.choice(kernels)
        s = random_dealt(k, APPLE, rng)
        if not refusal(k, s, APPLE):
            out.append((k, s))
    return out


def test_rules_of_metal() -> None:
    """What Apple's compiler would say, as far as it can be known here."""
    source, _ = metal_text(by_hand())
    assert lint(source, "apple7", 128) == []
    if address_spaces.clang():
        assert address_spaces.check(source) == []


# ---- nvcc

TF32 = resolve_target("cuda:sm_90+tf32")
GEMM = {"m": 128, "n": 128, "k": 32}


def large() -> dict[str, Case]:
    product = narrowed(turned_matmul(1024, 1024, 1024), DType.BF16)
    plain, half = matmul(1024, 1024, 1024), narrowed(attention(8, 1024, 1024, 64), DType.F16)
    rows, softer = layernorm(512, 4096), softmax(512, 4096)
    turned, scores = turned_matmul(1024, 1024, 1024), attention(8, 1024, 1024, 64)
    levels = byte_matmul(1024, 1024, 1024, True)
    deep, wide = {**GEMM, "k": 16}, {**GEMM, "k": 64}
    cases = {
        "mma": (product, schedule(product, GEMM, tiled(product, "mma", (4, 2)), count=256, ring=3)),
        "simt": (plain, schedule(plain, deep, tiled(plain, "simt", (16, 16)), count=256)),
        "attention": (half, flash(half, (4, 1), 64, 64, ring=2)),
        "tf32": (plain, schedule(plain, GEMM, tiled(plain, "mma", (4, 2)), count=256, ring=3)),
        "tf32 turned": (turned, schedule(turned, deep, tiled(turned, "mma", (4, 2)), count=256)),
        "tf32 attention": (scores, flash(scores, (4, 1), 64, 32, ring=2)),
        "bytes": (levels, schedule(levels, wide, tiled(levels, "mma", (4, 2)), count=256, ring=3)),
        "rows": (rows, schedule(rows, {"m": 1}, ROWS, 1, count=256, row=256)),
    }
    return {**cases, "guess": (softer, next(guesses(softer, TF32)))}


@pytest.mark.skipif(not shutil.which("nvcc"), reason="needs nvcc, from a CUDA toolkit")
@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90", "sm_100"])
def test_cubins_without_spills(arch: str, tmp_path: Path) -> None:
    """ptxas keeps the values of large tiles in registers, with nothing to warn of."""
    cases = large()
    if arch not in ("sm_80", "sm_90"):
        cases = {name: cases[name] for name in ("mma", "tf32", "bytes")}
    source, _ = together([dealt(k, s, TF32) for k, s in cases.values()])
    (tmp_path / "lumc_dev.h").write_text(header_of("cuda"))
    (tmp_path / "k.cu").write_text(source)
    command = ["nvcc", "-std=c++17", f"-arch={arch}", "--ptxas-options=-v", "-cubin", "k.cu"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    said = done.stdout + done.stderr
    assert not done.returncode and "warning" not in said, said[:3000]
    spills = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores", said)
    assert len(spills) == len(cases) and set(spills) == {("0", "0")}, said

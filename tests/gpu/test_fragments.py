"""Tensor cores with tf32 and with bytes: every schedule, aligned and odd shapes, race-checked."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dealing
from bundles import build
from dealing import dealt, flash, narrowed, random_dealt, refusal, run, schedule, tiled
from gpu_bundles import Emulator, python_environment
from kernel_zoo import (
    attention,
    byte_matmul,
    conv,
    gated,
    linear_gelu,
    matmul,
    mixed_linear,
    qkv,
    random_inputs,
    rms_linear_residual,
    turned_matmul,
    unfused_attention,
)
from kernels import assert_close, worst
from lumc.codegen.generate import generate
from lumc.command.spaces import make_space
from lumc.graph.ops import DType
from lumc.graph.text import parse_graph
from lumc.kernel.machines import resolve_target
from lumc.kernel.term import Kernel
from lumc.oracle.kernel import TF32, differences
from lumc.oracle.term import evaluate_kernel
from lumc.profile.choose import estimate
from lumc.schedule.first_blocks import guesses
from lumc.schedule.schedule import Schedule

TARGET = resolve_target("cuda:sm_90+tf32")
SHAPES = ((64, 96, 64), (17, 100, 137), (33, 40, 70))
Case = tuple[Kernel, Schedule]


def rounded(x: np.ndarray) -> np.ndarray:
    """What a tensor core sees of f32: 11 bits, a half away from zero."""
    if x.dtype != np.float32:
        return x
    return (x.view(np.uint32) + 0x1000 & 0xFFFFE000).view(np.float32)


def check(cases: list[Case], folder: Path, limit: float, order: str = "forward") -> None:
    """On the emulator, with its checker. ``limit`` 0: on inputs that are tf32 already, where
    nothing is lost; otherwise the error that rounding may cause."""
    module, grids = dealing.build([dealt(k, s, TARGET) for k, s in cases], folder, checked=True)
    for i, (k, s) in enumerate(cases):
        inputs = random_inputs(k, i)
        if not limit:
            inputs = {name: rounded(x) for name, x in inputs.items()}
        got = run(module, f"k{i}", k, grids[i], inputs, order)
        want = evaluate_kernel(k, inputs)
        if not limit:
            assert_close(k, got, want, s)
            continue
        for name, x in got.items():
            kind = k.buffer(name).dtype
            error = worst(x, want[name], kind)
            assert error <= max(limit, 8e-3 if kind is DType.BF16 else 0.0), (k.name, error, s)


def products() -> list[Kernel]:
    """Operands are loads, so that rounding the inputs is all that tf32 does."""
    out = [f(*shape) for f in (matmul, turned_matmul, byte_matmul) for shape in SHAPES]
    out += [byte_matmul(*shape, True) for shape in SHAPES]
    return [*out, *(linear_gelu(*shape) for shape in SHAPES), conv(10, 3, 9, 17), qkv(17, 48, 37)]


@pytest.mark.parametrize("part", range(3))
def test_products_are_exact(part: int, tmp_path: Path) -> None:
    """Bytes always, f32 of 11 bits: guesses, and schedules by hand for every staging."""
    cases = list[Case]()
    for k in products()[part::3]:
        found = [s for s in guesses(k, TARGET) if not refusal(k, s, TARGET)]
        assert any(p.fragment == "mma" for p in found[0].stages), k.name
        cases.append((k, found[0]))
    for k in (matmul(40, 70, 100), turned_matmul(64, 64, 64), byte_matmul(50, 64, 96, True)):
        deep = {"m": 32, "n": 32, "k": 32}
        for changes in ({}, {"place_a": "register"}, {"stage_a": "hoist", "place_b": "register"}):
            s = schedule(k, deep, tiled(k, "mma", (2, 2), **changes), ring=1 + part)
            assert not refusal(k, s, TARGET)
            cases.append((k, s))
    check(cases, tmp_path, 0.0, ("forward", "reverse", "random")[part])


def drawn(rng: random.Random, kernels: list[Kernel], n: int) -> list[Case]:
    out = list[Case]()
    while len(out) < n:
        k = rng.choice(kernels)
        s = random_dealt(k, TARGET, rng)
        if any(p.fragment == "mma" for p in s.stages) and not refusal(k, s, TARGET):
            out.append((k, s))
    return out


@pytest.mark.parametrize("part", range(2))
def test_random_products_are_exact(part: int, tmp_path: Path) -> None:
    cases = drawn(random.Random(f"tf32 {part}"), products(), 16)
    check(cases, tmp_path, 0.0, ("reverse", "random")[part])


def test_computed_operands_stay_within_the_bound(tmp_path: Path) -> None:
    """Attention, norms and gates: also operands that are computed are rounded."""
    kernels = [attention(2, 64, 64, 32), attention(4, 17, 100, 33, 2), gated(32, 48, 64)]
    kernels += [rms_linear_residual(17, 100, 137), mixed_linear(33, 48, 70, DType.BF16)]
    cases = drawn(random.Random("computed"), kernels, 12)
    k = attention(2, 64, 64, 32)
    cases.append((k, flash(k, (4, 1), 64, 32, ring=2)))
    cases += [
        (k, next(s for s in guesses(k, TARGET) if not refusal(k, s, TARGET))) for k in kernels
    ]
    check(cases, tmp_path, TF32)


def test_a_product_of_a_product_goes_through_shared_memory(tmp_path: Path) -> None:
    """Chains whose products deal their tiles to the threads in different ways."""
    k = unfused_attention(32, 64, 16)
    cases = [(k, s) for s in guesses(k, TARGET) if any(p.form == "contract" for p in s.stages)]
    assert all(not refusal(*each, TARGET) for each in cases)
    check(cases[::2], tmp_path, TF32)
    half = narrowed(unfused_attention(32, 64, 64), DType.BF16)
    guessed = next(s for s in guesses(half, TARGET) if s.stages[0].fragment == "mma")
    assert not refusal(half, guessed)


def test_weights_of_attention_stay_in_registers() -> None:
    k = attention(1, 64, 96, 32)
    tiles = dealt(k, flash(k, (4, 1), 64, 32), TARGET).tiles
    assert {name.partition(".")[0] for name, t in tiles.items() if t.memory == "shared"} == {"copy"}


def test_the_bound_is_that_of_rounding() -> None:
    """Long and short random sums of products of 11 bits stay below it, of 8 bits (bf16) do not."""
    rng = np.random.default_rng(3)
    for k in (4, 64, 1024):
        a, b = rng.standard_normal((64, k), np.float32), rng.standard_normal((k, 64), np.float32)
        want = a.astype(np.float64) @ b
        near, _ = differences(rounded(a).astype(np.float64) @ rounded(b), want, DType.F32, TF32)
        exact, _ = differences(rounded(a).astype(np.float64) @ rounded(b), want, DType.F32)
        a, b = ((x.view(np.uint32) & 0xFFFF0000).view(np.float32) for x in (a, b))
        far, _ = differences(a.astype(np.float64) @ b, want, DType.F32, TF32)
        assert not near.any() and exact.any() and far.any()


BOTH = """lumc graph 1

input x f32[48, 48]
input w f32[48, 48]
input a i8[32, 64]
input b i8[64, 48]
t0 f32[i:48, j:48, k:48] = mul x[i, k], w[k, j]
t1 f32[i:48, j:48] = sum k:48 of t0[i, j, k]
t2 f32[i:48, j:48, k:48] = mul t1[i, k], w[k, j]
y f32[i:48, j:48] = sum k:48 of t2[i, j, k]
t3 i32[i:32, k:64] = contiguous a[i, k]
t4 i32[k:64, j:48] = contiguous b[k, j]
t5 i32[i:32, j:48, k:64] = mul t3[i, k], t4[k, j]
z i32[i:32, j:48] = sum k:64 of t5[i, j, k]
output y = y
output z = z
"""


def test_a_bundle(tmp_path: Path) -> None:
    """``verify`` says which bound it uses; bytes are exact."""
    space = make_space(parse_graph(BOTH), "cuda+tf32", 20_000)
    code = generate(estimate(space))
    assert sum(k.source.count("lumc_mma<float>") for k in code.kernels) == 2
    assert sum(k.source.count("lumc_mma<lumc_i8>") for k in code.kernels) == 1
    build(code, tmp_path / "m.lb", tmp_path, cuda=Emulator())
    assert (tmp_path / "m.lb" / "plan" / "cuda-sm_90+tf32.bin").exists()
    words = [sys.executable, "-m", "lumc", "verify", "m.lb", "--json"]
    env = python_environment()
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "11 bits (tf32): up to 2.0e-03 is allowed" in done.stderr
    y, z = json.loads(done.stdout)
    assert 1e-5 < y["relative_l2"] < TF32 and z["relative_l2"] == 0

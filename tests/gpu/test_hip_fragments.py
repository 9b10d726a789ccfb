"""The 16 x 16 matrices of AMD: what a lane has of them, by the tables of the manufacturer, and
kernels that multiply with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import emulator
from dealing import dealt, flash, narrowed, run, schedule, tiled, together
from kernel_zoo import attention, linear_gelu, matmul, random_inputs, turned_matmul
from kernels import assert_close
from lumc.codegen.gpu.grid import Grid
from lumc.graph.ops import DType, from_bf16, to_bf16
from lumc.kernel.machines import resolve_target
from lumc.kernel.term import Kernel
from lumc.oracle.term import evaluate_kernel
from lumc.schedule.schedule import Schedule

Place = tuple[int, int]  # the element of a lane's registers, the lane


class Table(NamedTuple):
    """Where a lane has what, as AMD's Matrix Instruction Calculator prints it with
    ``--register-layout`` for A, B and D (github.com/ROCm/amd_matrix_instruction_calculator)."""

    lanes: int
    near: int  # elements of an operand in a lane
    sums: int
    operand: Callable[[int, int], list[Place]]  # of A[i][k], and of B[k][i]
    result: Callable[[int, int], Place]  # of D[i][j]


TABLES = {
    # v_mfma_f32_16x16x16_f16 and v_mfma_f32_16x16x16_bf16_1k, CDNA 2 and 3
    "gfx942": Table(
        *(64, 4, 4),
        lambda i, k: [(k % 4, i + 16 * (k // 4))],
        lambda i, j: (i % 4, j + 16 * (i // 4)),
    ),
    # v_wmma_f32_16x16x16_f16 and _bf16, RDNA 3, waves of 32: operands are there twice
    "gfx1100": Table(
        *(32, 16, 8),
        lambda i, k: [(k, i), (k, i + 16)],
        lambda i, j: (i // 2, 16 * (i % 2) + j),
    ),
    # the same, RDNA 4
    "gfx1201": Table(
        *(32, 8, 8),
        lambda i, k: [(k % 8, i + 16 * (k // 8))],
        lambda i, j: (i % 8, j + 16 * (i // 8)),
    ),
}
TARGETS = {arch: resolve_target(f"hip:{arch}") for arch in TABLES}
TEXT = """#include "lumc_hip.h"
extern "C" __global__ void product(const lumc_{kind} *B_a, const lumc_{kind} *B_b, float *B_d)
{{
    lumc_{kind} a[{near}], b[{near}];
    float d[{sums}];
    LUMC_UNROLL for (int i = 0; i < {near}; i++) a[i] = B_a[lumc_thread() * {near} + i];
    LUMC_UNROLL for (int i = 0; i < {near}; i++) b[i] = B_b[lumc_thread() * {near} + i];
    LUMC_UNROLL for (int i = 0; i < {sums}; i++) d[i] = B_d[lumc_thread() * {sums} + i];
    lumc_product(d, a, b);
    LUMC_UNROLL for (int i = 0; i < {sums}; i++) B_d[lumc_thread() * {sums} + i] = d[i];
}}
LUMC_EXPORT(product)
"""


def halves(x: np.ndarray, kind: str) -> np.ndarray:
    return x.astype(np.float16).view(np.uint16) if kind == "f16" else to_bf16(x)


def floats(x: np.ndarray, kind: str) -> np.ndarray:
    return x.view(np.float16).astype(np.float32) if kind == "f16" else from_bf16(x)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("arch", TABLES)
def test_a_product_by_the_tables(arch: str, kind: str, built: Path) -> None:
    t, rng = TABLES[arch], np.random.default_rng(5)
    source = TEXT.format(kind=kind, near=t.near, sums=t.sums)
    module = emulator.build(source, built, lanes=t.lanes)
    a, b, c = (rng.standard_normal((16, 16)).astype(np.float32) for _ in "abc")
    a16, b16 = halves(a, kind), halves(b, kind)
    registers = [
        np.zeros((t.lanes, n), d) for n, d in ((t.near, "u2"), (t.near, "u2"), (t.sums, "f4"))
    ]
    for i in range(16):
        for k in range(16):
            for element, lane in t.operand(i, k):
                registers[0][lane, element] = a16[i, k]
                registers[1][lane, element] = b16[k, i]
            element, lane = t.result(i, k)
            registers[2][lane, element] = c[i, k]
    assert module.launch("product", Grid(1, t.lanes), registers) == ""
    want = c + floats(a16, kind) @ floats(b16, kind)
    for i in range(16):
        for j in range(16):
            element, lane = t.result(i, j)
            np.testing.assert_allclose(
                registers[2][lane, element], want[i, j], rtol=1e-5, atol=1e-5
            )


def fragment(arch: str) -> str:
    return "mfma" if TABLES[arch].lanes == 64 else "wmma"


def cases(arch: str) -> list[tuple[Kernel, Schedule]]:
    """Products whose operands lie either way, with edges, of one and several waves; attention."""
    f, wide = fragment(arch), {"count": TABLES[arch].lanes * 4}
    gelu, turned = (
        narrowed(linear_gelu(70, 100, 36), DType.F16),
        narrowed(turned_matmul(40, 48, 64), DType.BF16),
    )
    plain, scores = (
        narrowed(matmul(64, 96, 64), DType.BF16),
        narrowed(attention(2, 70, 90, 32), DType.F16),
    )
    tile = {"m": 32, "n": 32, "k": 32}
    return [
        (gelu, schedule(gelu, tile, tiled(gelu, f, (2, 2)), **wide)),
        (turned, schedule(turned, tile, tiled(turned, f, (1, 4)), **wide)),
        (
            plain,
            schedule(plain, {**tile, "n": 64, "k": 16}, tiled(plain, f, (2, 2)), pad=0, **wide),
        ),
        (scores, flash(scores, (4, 1), 64, 32, f, **wide)),
    ]


def wrong(
    arch: str, folder: Path, change: Callable[[str], str], checked: bool = False
) -> list[str]:
    """The kernels that do not do what the oracle says, in a text that was changed."""
    every, target = cases(arch), TARGETS[arch]
    source, grids = together([dealt(k, s, target) for k, s in every])
    module = emulator.build(change(source), folder, checked, TABLES[arch].lanes)
    out = list[str]()
    for i, (k, s) in enumerate(every):
        inputs = random_inputs(k, i)
        try:
            got = run(module, f"k{i}", k, grids[i], inputs, "random")
            assert_close(k, got, evaluate_kernel(k, inputs), s)
        except AssertionError:
            out.append(k.name)
    return out


@pytest.mark.parametrize("arch", TABLES)
@pytest.mark.parametrize("checked", [False, True])
def test_kernels(arch: str, checked: bool, built: Path) -> None:
    source, _ = together([dealt(k, s, TARGETS[arch]) for k, s in cases(arch)])
    assert source.count("lumc_turned_product(") == len(cases(arch)) + 1
    assert wrong(arch, built, lambda text: text, checked) == []


MUTANTS = {
    "operands exchanged": (
        "lumc_turned_product(C, A[I], B[J])",
        "lumc_turned_product(C, B[J], A[I])",
    ),
    "not transposed": ("lumc_turned_product(", "lumc_product("),
    "the first steps again": ("= K * 16 +", "= 0 * K +"),
    "other columns": ("J * 16 + Q", "J * 16 + (Q ^ 1)"),
    "one matrix of rows": ("lumc_turned_product(C, A[I]", "lumc_turned_product(C, A[0]"),
}


@pytest.mark.parametrize("arch", TABLES)
@pytest.mark.parametrize("name", MUTANTS)
def test_mutants(arch: str, name: str, built: Path) -> None:
    old, new = MUTANTS[name]

    def change(text: str) -> str:
        assert old in text
        return text.replace(old, new)

    found = wrong(arch, built, change)
    assert len(found) >= (1 if name == "one matrix of rows" else 3), found


@pytest.mark.parametrize(
    ("arch", "memory"), [("gfx942", "register"), ("gfx1100", "shared"), ("gfx1201", "register")]
)
def test_weights_are_operands_where_they_are(arch: str, memory: str) -> None:
    """Sums are laid out as left operands are, but for RDNA 3, which has these twice."""
    kernel, s = cases(arch)[-1]
    tiles = dealt(kernel, s, TARGETS[arch]).tiles
    (found,) = {t.memory for name, t in tiles.items() if name.startswith("weights")}
    assert found == memory

"""The emulator runs kernels right, and says what is wrong with wrong ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from emulator import ORDERS, Array, LaunchError, Module, build
from lumc.codegen.gpu.grid import Grid
from lumc.graph.ops import from_bf16, to_bf16

M, N, K = 64, 48, 64  # of every product

# c = a @ b by blocks of 16 x 16, four elements a thread, 16 k at a time through shared memory
TILED = """#include "lumc_dev.h"
extern "C" __global__ void __launch_bounds__(64, 1) tiled(const float *__restrict__ B_a,
                                                          const float *__restrict__ B_b,
                                                          float *__restrict__ B_c)
{
    LUMC_SHARED(lumc_u8, S);
    LUMC_TILE(float, S_a, S, 0, 16 * 17);
    LUMC_TILE(float, S_b, S, 16 * 17 * 4, 16 * 16);
    int row = blockIdx.x / 3 * 16, column = blockIdx.x % 3 * 16, x = threadIdx.x % 16;
    float sum[4] = {0, 0, 0, 0};
    for (int k = 0; k < 64; k += 16) {
        for (int y = threadIdx.x / 16; y < 16; y += 4) {
            S_a[y * 17 + x] = B_a[(row + y) * 64 + k + x];
            S_b[y * 16 + x] = B_b[(k + y) * 48 + column + x];
        }
        lumc_sync(); // filled
        LUMC_UNROLL for (int i = 0; i < 4; i++)
            for (int j = 0; j < 16; j++)
                sum[i] += S_a[(threadIdx.x / 16 + i * 4) * 17 + j] * S_b[j * 16 + x];
        lumc_sync(); // read
    }
    LUMC_UNROLL for (int i = 0; i < 4; i++)
        B_c[(row + threadIdx.x / 16 + i * 4) * 48 + column + x] = sum[i];
}
LUMC_EXPORT(tiled)
"""
TILED_GRID = Grid(4 * 3, 64, (16 * 17 + 16 * 16) * 4)

# the same in bf16: blocks of 32 x 16, two warps, a ring of three slots filled two steps ahead
RING = """#include "lumc_dev.h"
#define SLOTS 3
#define PITCH 24
static __device__ void fill(lumc_bf16 *S_a, lumc_bf16 *S_b, const lumc_bf16 *B_a,
                            const lumc_bf16 *B_b, int row, int column, int step)
{
    int t = threadIdx.x, y = t / 2, x = t % 2 * 8, slot = step % SLOTS;
    if (step < 4) {
        lumc_cp_async<16>(S_a + (slot * 32 + y) * PITCH + x, B_a + (row + y) * 64 + step * 16 + x);
        if (t < 32)
            lumc_cp_async<16>(S_b + (slot * 16 + y) * PITCH + x,
                              B_b + (step * 16 + y) * 48 + column + x);
    }
    lumc_cp_async_commit();
}
extern "C" __global__ void __launch_bounds__(64, 1) ring(const lumc_bf16 *__restrict__ B_a,
                                                         const lumc_bf16 *__restrict__ B_b,
                                                         float *__restrict__ B_c)
{
    LUMC_SHARED(lumc_u8, S);
    LUMC_TILE(lumc_bf16, S_a, S, 0, SLOTS * 32 * PITCH);
    LUMC_TILE(lumc_bf16, S_b, S, SLOTS * 32 * PITCH * 2, SLOTS * 16 * PITCH);
    int row = blockIdx.x / 3 * 32, column = blockIdx.x % 3 * 16;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float sum[2][4] = {};
    fill(S_a, S_b, B_a, B_b, row, column, 0);
    fill(S_a, S_b, B_a, B_b, row, column, 1);
    for (int step = 0; step < 4; step++) {
        lumc_cp_async_wait<1>(); // landed
        lumc_sync(); // for all, and the slot before is free
        fill(S_a, S_b, B_a, B_b, row, column, step + 2);
        int slot = step % SLOTS;
        lumc_u32 a[4], b[4];
        lumc_ldmatrix_x4(a, S_a + (slot * 32 + warp * 16 + lane % 16) * PITCH + lane / 16 * 8);
        lumc_ldmatrix_x4<true>(b, S_b + (slot * 16 + lane % 16) * PITCH + lane / 16 * 8);
        for (int n = 0; n < 2; n++) {
            lumc_u32 part[2] = {b[n * 2], b[n * 2 + 1]};
            lumc_mma<lumc_bf16>(sum[n], a, part, sum[n]);
        }
    }
    for (int n = 0; n < 2; n++)
        for (int i = 0; i < 2; i++) {
            float pair[2] = {sum[n][i * 2], sum[n][i * 2 + 1]};
            lumc_store(B_c + (row + warp * 16 + lane / 4 + i * 8) * 48 + column + n * 8
                           + lane % 4 * 2, pair);
        }
}
LUMC_EXPORT(ring)
"""
RING_GRID = Grid(2 * 3, 64, 3 * 48 * 24 * 2)

# the sum of a row of 256 by two warps
REDUCE = """#include "lumc_dev.h"
extern "C" __global__ void __launch_bounds__(64, 1) reduce(const float *__restrict__ B_x,
                                                           float *__restrict__ B_y)
{
    LUMC_SHARED(float, S);
    float v[4], sum = 0;
    lumc_load_once(v, B_x + blockIdx.x * 256 + threadIdx.x * 4);
    LUMC_UNROLL for (int i = 0; i < 4; i++) sum += v[i];
    LUMC_UNROLL for (int i = 16; i > 0; i /= 2) sum += lumc_shuffle_xor(sum, i);
    if (threadIdx.x % 32 == 0)
        S[threadIdx.x / 32] = sum;
    lumc_sync();
    if (threadIdx.x == 0)
        B_y[blockIdx.x] = S[0] + S[1];
}
LUMC_EXPORT(reduce)
"""


def operands(bf16: bool) -> tuple[list[Array], Array]:
    """The arguments of a product, and its result in float64."""
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal(s, np.float32) for s in ((M, K), (K, N)))
    if bf16:
        a, b = (from_bf16(to_bf16(x)) for x in (a, b))
    want = a.astype(np.float64) @ b
    arguments = [to_bf16(x) if bf16 else x for x in (a, b)]
    return [*arguments, np.full((M, N), np.nan, np.float32)], want


@pytest.mark.parametrize("checked", [False, True])
def test_right_kernels(built: Path, checked: bool) -> None:
    for source, grid in ((TILED, TILED_GRID), (RING, RING_GRID)):
        symbol = "tiled" if source is TILED else "ring"
        module = build(source, built, checked)
        for order in ORDERS:
            arguments, want = operands(source is RING)
            assert module.launch(symbol, grid, arguments, order) == ""
            np.testing.assert_allclose(arguments[2], want, rtol=0, atol=2e-5)
    x = np.random.default_rng(1).standard_normal((5, 256), np.float32)
    for order in ORDERS:
        y = np.full(5, np.nan, np.float32)
        assert build(REDUCE, built, checked).launch("reduce", Grid(5, 64, 8), [x, y], order) == ""
        np.testing.assert_allclose(y, x.sum(1, dtype=np.float64), rtol=0, atol=1e-4)


def faulty(source: str, old: str, new: str) -> str:
    assert source.count(old) == 1
    return source.replace(old, new)


def run_product(module: Module, symbol: str, grid: Grid, order: str = "forward") -> str:
    return module.launch(symbol, grid, operands(symbol == "ring")[0], order)


@pytest.mark.parametrize(
    ("source", "old", "new", "said"),
    [
        (TILED, "lumc_sync(); // filled", "", "uninitialised: S_b["),
        (TILED, "lumc_sync(); // filled", "", "S_b[0] is read by thread"),
        (TILED, "lumc_sync(); // read", "", "is overwritten by thread"),
        (TILED, "lumc_sync(); // read", "if (x < 8) lumc_sync();", "divergence: "),
        (TILED, "B_b[(k + y) * 48 +", "B_b[(k + y + 1) * 48 +", "read of 4 bytes at B_b[30"),
        (TILED, "S_a[y * 17 + x] =", "S_a[y * 17 + x + 999] =", "of shared memory, by thread"),
        (RING, "lumc_cp_async_wait<1>(); // landed", "", "is in flight"),
        (RING, "#define SLOTS 3", "#define SLOTS 2", "race: S_"),
        (RING, "#define PITCH 24", "#define PITCH 20", "misaligned: an asynchronous copy of 16"),
        (RING, "lumc_sync(); // for all", "//", "without a barrier"),
        (RING, "blockIdx.x / 3 * 32", "blockIdx.x / 3 * 16", "blocks are not ordered"),
    ],
)
def test_planted_faults(built: Path, source: str, old: str, new: str, said: str) -> None:
    symbol, grid = ("tiled", TILED_GRID) if source is TILED else ("ring", RING_GRID)
    report = run_product(build(faulty(source, old, new), built, checked=True), symbol, grid)
    assert said in report


def test_launches_that_a_gpu_refuses(built: Path) -> None:
    module, (a, b, c) = build(TILED, built), operands(False)[0]
    for grid, arrays, said in (
        (Grid(12, 1056, 0), [a, b, c], "room"),
        (Grid(12, 64, 1 << 18), [a, b, c], "room"),
        (Grid(12, 128, 0), [a, b, c], "compiled for 64"),
        (TILED_GRID, [a, b], "takes 3 arrays"),
        (TILED_GRID, [a.T, b, c], "B_a is not contiguous"),
    ):
        with pytest.raises(LaunchError, match=said):
            module.launch("tiled", grid, arrays)
    with pytest.raises(LaunchError, match="no kernel tile"):
        module.launch("tile", TILED_GRID, [a, b, c])


WRONG = """#include "lumc_dev.h"
static int deep(int n)
{
    volatile int room[256];
    room[n % 256] = n;
    return n ? deep(n - 1) + room[n % 256] : 0;
}
extern "C" __global__ void __launch_bounds__(64) wrong(const int *B_p, float *B_y)
{
    LUMC_SHARED(float, S);
    int i = threadIdx.x;
    if (B_p[0] == 1 && i >= 40)
        return;
    if (B_p[0] == 2 && i % 2)
        lumc_shuffle_xor(i, 1);
    lumc_warp_sync();
    lumc_sync();
    if (B_p[0] == 3)
        B_y[i] = B_p[1024];
    if (B_p[0] == 4)
        B_y[i] = deep(B_p[2]);
    if (B_p[0] == 5)
        B_y[i] = (float)(7 / B_p[1]);
    if (B_p[0] == 6)
        lumc_copy<16>(S, B_y + 1);
    B_y[i] = i;
}
LUMC_EXPORT(wrong)
"""


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (0, ""),
        (1, "32 in the barrier of line 17; 8 in the warp operation of line 16; 24 have left"),
        (2, "divergence: the warp operations of line 16 and line 15 meet, by thread 1 of block 0"),
        (3, "of block 0, at B_p[1024] of 3 elements"),
        (4, "of block 0, at the end of its stack"),
        (5, "arithmetic fault: thread "),
        (6, "misaligned: a read of 16 bytes at B_y[1], by thread "),
    ],
)
def test_faults_without_the_checker(built: Path, fault: int, said: str) -> None:
    """A fault ends the kernel, and the next launch finds everything as usual."""
    module, y = build(WRONG, built), np.zeros(64, np.float32)
    grid = Grid(1, 64, 256)
    report = module.launch("wrong", grid, [np.array([fault, 0, 100_000], np.int32), y])
    assert said in report and bool(said) == bool(report)
    assert module.launch("wrong", grid, [np.zeros(3, np.int32), y]) == ""
    np.testing.assert_array_equal(y, np.arange(64))

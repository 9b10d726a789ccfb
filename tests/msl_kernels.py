"""Metal kernels written by hand, for the tests of the shim, of the checks and of the runtimes."""

from __future__ import annotations

from importlib.resources import files

HEADER = files("lumc.codegen.gpu").joinpath("lumc_dev.metal").read_text(encoding="utf-8")

# out[64, 64] = a[64, 40] @ b[40, 64] in f16 with f32 sums: 4 simdgroups of 16x16 each
MATMUL = """
kernel void k_matmul(device const half *a [[buffer(0)]], device const half *b [[buffer(1)]],
                     device float *out [[buffer(2)]],
                     uint tid [[thread_index_in_threadgroup]],
                     uint group [[simdgroup_index_in_threadgroup]],
                     uint3 block [[threadgroup_position_in_grid]])
{
    threadgroup half A[32][16], B[8][40];
    const int m0 = int(block.x / 2) * 32, n0 = int(block.x % 2) * 32;
    const int m = int(group % 2) * 16, n = int(group / 2) * 16;
    simdgroup_float8x8 sums[2][2];
    for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 2; ++j) sums[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    for (int k0 = 0; k0 < 40; k0 += 8) {
        for (int e = int(tid); e < 32 * 8; e += 128) {
            A[e / 8][e % 8] = a[(m0 + e / 8) * 40 + k0 + e % 8];
            B[e / 32][e % 32] = b[(k0 + e / 32) * 64 + n0 + e % 32];
        }
        threadgroup_barrier(mem_flags::mem_threadgroup); // full
        simdgroup_half8x8 left, right;
        for (int i = 0; i < 2; ++i) {
            simdgroup_load(left, &A[m + i * 8][0], 16);
            for (int j = 0; j < 2; ++j) {
                simdgroup_load(right, &B[0][n + j * 8], 40);
                simdgroup_multiply_accumulate(sums[i][j], left, right, sums[i][j]);
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup); // empty
    }
    for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 2; ++j)
            simdgroup_store(sums[i][j], out + (m0 + m + i * 8) * 64 + n0 + n + j * 8, 64);
}
"""

# y[r, c] = exp2(x[r, c] - max x[r]) / sum over c, a threadgroup of 128 threads per row
ROWS = """
kernel void k_rows(device const float *x [[buffer(0)]], device float *y [[buffer(1)]],
                   uint tid [[thread_index_in_threadgroup]],
                   uint lane [[thread_index_in_simdgroup]],
                   uint group [[simdgroup_index_in_threadgroup]],
                   uint3 block [[threadgroup_position_in_grid]])
{
    threadgroup float part[4];
    device const float *row = x + block.x * 64;
    float top = -LUMC_INF_F32;
    for (int c = int(tid); c < 64; c += 128) top = lumc_max_f32(top, row[c]);
    top = simd_max(top);
    if (lane == 0) part[group] = top;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int i = 0; i < 4; ++i) top = lumc_max_f32(top, part[i]);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float sum = 0.0f;
    for (int c = int(tid); c < 64; c += 128) sum += lumc_exp2_f32(row[c] - top);
    sum = simd_sum(sum);
    if (lane == 0) part[group] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    sum = 0.0f;
    for (int i = 0; i < 4; ++i) sum += part[i];
    for (int c = int(tid); c < 64; c += 128)
        y[block.x * 64 + c] = lumc_exp2_f32(row[c] - top) * lumc_recip_f32(sum);
}
"""
BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"


def without_barrier(text: str, n: int) -> str:
    """A kernel without the barrier number ``n``."""
    pieces = text.split(BARRIER)
    return BARRIER.join(pieces[: n + 1]) + BARRIER.join(pieces[n + 1 :])

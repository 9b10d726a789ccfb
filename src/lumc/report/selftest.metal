/* What lumc takes for granted of a GPU, one kernel for each part: mac.py knows what must come out.
 * lumc_dev.metal stands in front. */

/* every function of every pair of numbers: y[function][i] */
kernel void t_functions(device const float *a [[buffer(0)]], device const float *b [[buffer(1)]],
                        device float *y [[buffer(2)]], uint i [[thread_position_in_grid]])
{
    y[0 * 1024 + i] = lumc_exp2_f32(a[i]);
    y[1 * 1024 + i] = lumc_log2_f32(a[i]);
    y[2 * 1024 + i] = lumc_sin_f32(a[i]);
    y[3 * 1024 + i] = lumc_sqrt_f32(a[i]);
    y[4 * 1024 + i] = lumc_recip_f32(a[i]);
    y[5 * 1024 + i] = lumc_finite_f32(a[i]);
    y[6 * 1024 + i] = lumc_mod_f32(a[i], b[i]);
    y[7 * 1024 + i] = lumc_max_f32(a[i], b[i]);
    y[8 * 1024 + i] = lumc_top_f32(a[i], b[i]);
    y[9 * 1024 + i] = a[i] * b[i];
}

/* 64-bit integers wrap; the remainder has the sign of the dividend */
kernel void t_integers(device const lumc_i64 *a [[buffer(0)]],
                       device const lumc_i64 *b [[buffer(1)]],
                       device lumc_i64 *y [[buffer(2)]], uint i [[thread_position_in_grid]])
{
    y[0 * 64 + i] = lumc_add_i64(a[i], b[i]);
    y[1 * 64 + i] = lumc_mul_i64(a[i], b[i]);
    y[2 * 64 + i] = lumc_mod_i64(a[i], b[i]);
}

/* all 16-bit floats to f32 and back */
kernel void t_halves(device const lumc_f16 *h [[buffer(0)]],
                     device const lumc_bf16 *b [[buffer(1)]],
                     device float *wide [[buffer(2)]], device lumc_u16 *narrow [[buffer(3)]],
                     uint i [[thread_position_in_grid]])
{
    wide[i] = lumc_from_f16(h[i]);
    wide[65536 + i] = lumc_from_bf16(b[i]);
    narrow[i] = lumc_to_f16(wide[i]).bits;
    narrow[65536 + i] = lumc_to_bf16(wide[65536 + i]).bits;
}

/* where an 8x8 matrix lies in the registers of a simdgroup, and a product of two */
kernel void t_matrix(device const float *a [[buffer(0)]], device float *held [[buffer(1)]],
                     device float *product [[buffer(2)]],
                     uint lane [[thread_index_in_simdgroup]])
{
    threadgroup float tile[8][8];
    tile[lane / 4][lane % 4 * 2] = a[lane * 2];
    tile[lane / 4][lane % 4 * 2 + 1] = a[lane * 2 + 1];
    lumc_sync();
    simdgroup_float8x8 left, sum = make_filled_simdgroup_matrix<float, 8, 8>(1.0f);
    simdgroup_load(left, &tile[0][0], 8);
    held[lane * 2] = left.thread_elements()[0];
    held[lane * 2 + 1] = left.thread_elements()[1];
    simdgroup_multiply_accumulate(sum, left, left, sum);
    simdgroup_store(sum, product, 8);
}

/* lanes by their number, sums of a simdgroup, and memory of the group across simdgroups */
kernel void t_lanes(device const float *x [[buffer(0)]], device float *y [[buffer(1)]],
                    uint tid [[thread_index_in_threadgroup]],
                    uint lane [[thread_index_in_simdgroup]],
                    uint group [[simdgroup_index_in_threadgroup]])
{
    threadgroup float rows[256];
    rows[tid] = x[tid];
    lumc_sync();
    y[tid] = rows[255 - tid];
    y[256 + tid] = lumc_shuffle_xor(x[tid], 9);
    y[512 + tid] = simd_sum(x[tid]);
    y[768 + tid] = float(group * 32 + lane);
}

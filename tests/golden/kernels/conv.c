#define LUMC_LANES 16
#include "lumc_kernel.h"

static __attribute__((noinline)) void micro_0(const float *restrict A, const float *restrict B, float *restrict C)
{
    lumc_f32x16 c0_0 = {0};
    lumc_f32x16 c1_0 = {0};
    lumc_f32x16 c2_0 = {0};
    lumc_f32x16 c3_0 = {0};
    lumc_f32x16 c4_0 = {0};
    lumc_f32x16 c5_0 = {0};
    lumc_f32x16 c6_0 = {0};
    lumc_f32x16 c7_0 = {0};
    for (long i0 = 0; i0 < 4; i0++) { /* c */
    const float *A0 = A + i0 * 9, *B0 = B + i0 * 180;
    for (long i1 = 0; i1 < 3; i1++) { /* u */
    const float *A1 = A0 + i1 * 3, *B1 = B0 + i1 * 18;
    #pragma GCC unroll 4
    for (long i2 = 0; i2 < 3; i2++) { /* v */
    const float *A2 = A1 + i2 * 1, *B2 = B1 + i2 * 1;
    const lumc_f32x16 b0 = *(const lumc_f32x16 *)(B2 + 0);
    const float a0 = A2[0]; c0_0 += a0 * b0;
    const float a1 = A2[36]; c1_0 += a1 * b0;
    const float a2 = A2[72]; c2_0 += a2 * b0;
    const float a3 = A2[108]; c3_0 += a3 * b0;
    const float a4 = A2[144]; c4_0 += a4 * b0;
    const float a5 = A2[180]; c5_0 += a5 * b0;
    const float a6 = A2[216]; c6_0 += a6 * b0;
    const float a7 = A2[252]; c7_0 += a7 * b0;
    }}}
    *(lumc_f32x16 *)(C + 0) = c0_0;
    *(lumc_f32x16 *)(C + 128) = c1_0;
    *(lumc_f32x16 *)(C + 256) = c2_0;
    *(lumc_f32x16 *)(C + 384) = c3_0;
    *(lumc_f32x16 *)(C + 512) = c4_0;
    *(lumc_f32x16 *)(C + 640) = c5_0;
    *(lumc_f32x16 *)(C + 768) = c6_0;
    *(lumc_f32x16 *)(C + 896) = c7_0;
}
/* conv3s1
 * out[o, y, x]
 */
void conv(void *const *args, long part, long nparts)
{
    (void)args, (void)part, (void)nparts;
    const float *restrict B_w = args[0];
    const float *restrict B_x = args[1];
    const float *restrict B_b = args[2];
    float *restrict B_out = args[3];
    char *const scratch = (char *)args[4] + part * 12288L;
    float *restrict S_window_4 = (void *)(scratch + 0L);
    float *restrict S_stage_5 = (void *)(scratch + 2944L);
    /* parts: x = 16, o = 16, y = 16 in tiles of 8 */
    const long first = 2 * part / nparts, last = 2 * (part + 1) / nparts;
    for (long tile = first; tile < last; tile++) {
        const long y_0 = tile % 2 * 8;
        for (long c = 0; c < 4; c++) { /* rows of c */
            for (long u_w4x0 = y_0; u_w4x0 < y_0 + 10; u_w4x0++) { /* rows of u.w4x0 */
                if (u_w4x0 < 1) {
                    /* window.4[c, u.w4x0, v.w4x1] = 0.0 */
#pragma omp simd
                    for (long v_w4x1 = 0; v_w4x1 < 18; v_w4x1++) {
                        S_window_4[c * 180 + u_w4x0 * 18 + v_w4x1 - y_0 * 18] = 0.0f;
                    }
                }
                if (u_w4x0 >= 1 && u_w4x0 < 17) {
                    /* window.4[c, u.w4x0, v.w4x1] = 0.0 */
                    {
                        const long v_w4x1 = 0;
                        S_window_4[c * 180 + u_w4x0 * 18 + v_w4x1 - y_0 * 18] = 0.0f;
                    }
                    /* window.4[c, u.w4x0, v.w4x1] = x[c, u.w4x0 - 1, v.w4x1 - 1] */
#pragma omp simd
                    for (long v_w4x1 = 1; v_w4x1 < 17; v_w4x1++) {
                        const float v_1 = B_x[c * 256 + u_w4x0 * 16 + v_w4x1 - 17];
                        S_window_4[c * 180 + u_w4x0 * 18 + v_w4x1 - y_0 * 18] = v_1;
                    }
                    /* window.4[c, u.w4x0, v.w4x1] = 0.0 */
                    {
                        const long v_w4x1 = 17;
                        S_window_4[c * 180 + u_w4x0 * 18 + v_w4x1 - y_0 * 18] = 0.0f;
                    }
                }
                if (u_w4x0 >= 17) {
                    /* window.4[c, u.w4x0, v.w4x1] = 0.0 */
#pragma omp simd
                    for (long v_w4x1 = 0; v_w4x1 < 18; v_w4x1++) {
                        S_window_4[c * 180 + u_w4x0 * 18 + v_w4x1 - y_0 * 18] = 0.0f;
                    }
                }
            }
        }
        /* stage.5[o, y, x] += over c, u, v w[o, c, u, v] * window.4[c, u + y, v + x] */
        for (long x = 0; x < 16; x += 16) { /* panels */
            for (long y = y_0; y < y_0 + 8; y++) {
                for (long o = 0; o < 16; o += 8) { /* panels */
                    micro_0(&B_w[o * 36], &S_window_4[x + y * 18 - y_0 * 18], &S_stage_5[o * 128 + x + y * 16 - y_0 * 16]);
                }
            }
        }
        /* out[o, y, x] = add(stage.5[o, y, x], b[o]) */
        for (long o = 0; o < 16; o++) {
            const float v_3 = B_b[o];
            for (long y = y_0; y < y_0 + 8; y++) {
#pragma omp simd
                for (long x = 0; x < 16; x++) {
                    const float v_2 = S_stage_5[o * 128 + x + y * 16 - y_0 * 16];
                    const float v_4 = (v_2 + v_3);
                    B_out[o * 256 + x + y * 16] = v_4;
                }
            }
        }
    }
}

#define LUMC_LANES 16
#include "lumc_kernel.h"

static __attribute__((noinline)) void micro_0(const float *restrict A, const float *restrict B, float *restrict C, long n1)
{
    lumc_f32x16 c0_0 = {0};
    lumc_f32x16 c1_0 = {0};
    lumc_f32x16 c2_0 = {0};
    lumc_f32x16 c3_0 = {0};
    lumc_f32x16 c4_0 = {0};
    lumc_f32x16 c5_0 = {0};
    lumc_f32x16 c6_0 = {0};
    lumc_f32x16 c7_0 = {0};
    lumc_f32x16 c8_0 = {0};
    lumc_f32x16 c9_0 = {0};
    lumc_f32x16 c10_0 = {0};
    lumc_f32x16 c11_0 = {0};
    lumc_f32x16 c12_0 = {0};
    lumc_f32x16 c13_0 = {0};
    lumc_f32x16 c14_0 = {0};
    lumc_f32x16 c15_0 = {0};
#pragma GCC unroll 1
    for (long i0 = 0; i0 < 4; i0++) { /* c */
        const float *A0 = A + i0 * 180, *B0 = B + i0 * 144;
#pragma GCC unroll 1
        for (long i1 = 0; i1 < n1; i1++) { /* u */
            const float *A1 = A0 + i1 * 18, *B1 = B0 + i1 * 48;
            { /* v */
                const long i2 = 0;
                const float *A2 = A1 + i2 * 1, *B2 = B1 + i2 * 16;
                __asm__("" : "+r"(A2));
                const lumc_f32x16 b0 = *(const lumc_f32x16 *)(B2 + 0);
                const float a1 = A2[1]; c1_0 += a1 * b0;
                const float a2 = A2[2]; c2_0 += a2 * b0;
                const float a3 = A2[3]; c3_0 += a3 * b0;
                const float a4 = A2[4]; c4_0 += a4 * b0;
                const float a5 = A2[5]; c5_0 += a5 * b0;
                const float a6 = A2[6]; c6_0 += a6 * b0;
                const float a7 = A2[7]; c7_0 += a7 * b0;
                const float a8 = A2[8]; c8_0 += a8 * b0;
                const float a9 = A2[9]; c9_0 += a9 * b0;
                const float a10 = A2[10]; c10_0 += a10 * b0;
                const float a11 = A2[11]; c11_0 += a11 * b0;
                const float a12 = A2[12]; c12_0 += a12 * b0;
                const float a13 = A2[13]; c13_0 += a13 * b0;
                const float a14 = A2[14]; c14_0 += a14 * b0;
                const float a15 = A2[15]; c15_0 += a15 * b0;
            }
            { /* v */
                const long i2 = 1;
                const float *A2 = A1 + i2 * 1, *B2 = B1 + i2 * 16;
                __asm__("" : "+r"(A2));
                const lumc_f32x16 b0 = *(const lumc_f32x16 *)(B2 + 0);
                const float a0 = A2[0]; c0_0 += a0 * b0;
                const float a1 = A2[1]; c1_0 += a1 * b0;
                const float a2 = A2[2]; c2_0 += a2 * b0;
                const float a3 = A2[3]; c3_0 += a3 * b0;
                const float a4 = A2[4]; c4_0 += a4 * b0;
                const float a5 = A2[5]; c5_0 += a5 * b0;
                const float a6 = A2[6]; c6_0 += a6 * b0;
                const float a7 = A2[7]; c7_0 += a7 * b0;
                const float a8 = A2[8]; c8_0 += a8 * b0;
                const float a9 = A2[9]; c9_0 += a9 * b0;
                const float a10 = A2[10]; c10_0 += a10 * b0;
                const float a11 = A2[11]; c11_0 += a11 * b0;
                const float a12 = A2[12]; c12_0 += a12 * b0;
                const float a13 = A2[13]; c13_0 += a13 * b0;
                const float a14 = A2[14]; c14_0 += a14 * b0;
                const float a15 = A2[15]; c15_0 += a15 * b0;
            }
            { /* v */
                const long i2 = 2;
                const float *A2 = A1 + i2 * 1, *B2 = B1 + i2 * 16;
                __asm__("" : "+r"(A2));
                const lumc_f32x16 b0 = *(const lumc_f32x16 *)(B2 + 0);
                const float a0 = A2[0]; c0_0 += a0 * b0;
                const float a1 = A2[1]; c1_0 += a1 * b0;
                const float a2 = A2[2]; c2_0 += a2 * b0;
                const float a3 = A2[3]; c3_0 += a3 * b0;
                const float a4 = A2[4]; c4_0 += a4 * b0;
                const float a5 = A2[5]; c5_0 += a5 * b0;
                const float a6 = A2[6]; c6_0 += a6 * b0;
                const float a7 = A2[7]; c7_0 += a7 * b0;
                const float a8 = A2[8]; c8_0 += a8 * b0;
                const float a9 = A2[9]; c9_0 += a9 * b0;
                const float a10 = A2[10]; c10_0 += a10 * b0;
                const float a11 = A2[11]; c11_0 += a11 * b0;
                const float a12 = A2[12]; c12_0 += a12 * b0;
                const float a13 = A2[13]; c13_0 += a13 * b0;
                const float a14 = A2[14]; c14_0 += a14 * b0;
            }
        }
    }
    *(lumc_f32x16 *)(C + 0) = c0_0;
    *(lumc_f32x16 *)(C + 16) = c1_0;
    *(lumc_f32x16 *)(C + 32) = c2_0;
    *(lumc_f32x16 *)(C + 48) = c3_0;
    *(lumc_f32x16 *)(C + 64) = c4_0;
    *(lumc_f32x16 *)(C + 80) = c5_0;
    *(lumc_f32x16 *)(C + 96) = c6_0;
    *(lumc_f32x16 *)(C + 112) = c7_0;
    *(lumc_f32x16 *)(C + 128) = c8_0;
    *(lumc_f32x16 *)(C + 144) = c9_0;
    *(lumc_f32x16 *)(C + 160) = c10_0;
    *(lumc_f32x16 *)(C + 176) = c11_0;
    *(lumc_f32x16 *)(C + 192) = c12_0;
    *(lumc_f32x16 *)(C + 208) = c13_0;
    *(lumc_f32x16 *)(C + 224) = c14_0;
    *(lumc_f32x16 *)(C + 240) = c15_0;
}
/* conv3s1
 * out[o, y, x]
 */
void conv(void *const *args, long part, long nparts)
{
    (void)args, (void)part, (void)nparts;
    const float *restrict B_x = args[1];
    const float *restrict B_b = args[2];
    float *restrict B_out = args[3];
    const float *restrict S_packed_4 = args[4];
    char *const scratch = (char *)args[5] + part * 12288L;
    float *restrict S_window_5 = (void *)(scratch + 0L);
    float *restrict S_stage_6 = (void *)(scratch + 2944L);
    /* parts: o = 16, y = 16 in tiles of 8 */
    const long first = 2 * part / nparts, last = 2 * (part + 1) / nparts;
    for (long tile = first; tile < last; tile++) {
        const long y_0 = tile % 2 * 8;
        for (long c = 0; c < 4; c++) { /* rows of c */
            for (long u_w5x0 = y_0; u_w5x0 < y_0 + 10; u_w5x0++) { /* rows of u.w5x0 */
                if (u_w5x0 < 1) {
                    /* window.5[c, u.w5x0, v.w5x1] = 0.0 */
#pragma omp simd
                    for (long v_w5x1 = 0; v_w5x1 < 18; v_w5x1++) {
                        S_window_5[c * 180 + u_w5x0 * 18 + v_w5x1 - y_0 * 18] = 0.0f;
                    }
                }
                if (u_w5x0 >= 1 && u_w5x0 < 17) {
                    /* window.5[c, u.w5x0, v.w5x1] = 0.0 */
                    {
                        const long v_w5x1 = 0;
                        S_window_5[c * 180 + u_w5x0 * 18 + v_w5x1 - y_0 * 18] = 0.0f;
                    }
                    /* window.5[c, u.w5x0, v.w5x1] = x[c, u.w5x0 - 1, v.w5x1 - 1] */
#pragma omp simd
                    for (long v_w5x1 = 1; v_w5x1 < 17; v_w5x1++) {
                        const float v_1 = B_x[c * 256 + u_w5x0 * 16 + v_w5x1 - 17];
                        S_window_5[c * 180 + u_w5x0 * 18 + v_w5x1 - y_0 * 18] = v_1;
                    }
                    /* window.5[c, u.w5x0, v.w5x1] = 0.0 */
                    {
                        const long v_w5x1 = 17;
                        S_window_5[c * 180 + u_w5x0 * 18 + v_w5x1 - y_0 * 18] = 0.0f;
                    }
                }
                if (u_w5x0 >= 17) {
                    /* window.5[c, u.w5x0, v.w5x1] = 0.0 */
#pragma omp simd
                    for (long v_w5x1 = 0; v_w5x1 < 18; v_w5x1++) {
                        S_window_5[c * 180 + u_w5x0 * 18 + v_w5x1 - y_0 * 18] = 0.0f;
                    }
                }
            }
        }
        /* stage.6[y, x, o] += over c, u, v window.5[c, u + y, v + x] * packed.4[c, u, v, o] */
        for (long o = 0; o < 16; o += 16) { /* panels */
            for (long y = y_0; y < y_0 + 8; y++) {
                const long u_f = lumc_clamp(0 - (y - 1), 0, 3);
                const long u_c = lumc_clamp(16 - (y - 1), 0, 3) - u_f;
                for (long x = 0; x < 16; x += 16) { /* panels */
                    micro_0(&S_window_5[u_f * 18 + x + y * 18 - y_0 * 18], &S_packed_4[(o) / 16 * 576L + u_f * 48], &S_stage_6[o + x * 16 + y * 256 - y_0 * 256], u_c);
                }
            }
        }
        /* out[o, y, x] = add(stage.6[y, x, o], b[o]) */
        for (long y = y_0; y < y_0 + 8; y++) {
            for (long o_b = 0; o_b < 16; o_b += 16) { /* blocks of o */
                const long o_c = lumc_min(16, 16 - o_b);
                for (long x_b = 0; x_b < 16; x_b += 16) { /* blocks of x */
                    const long x_c = lumc_min(16, 16 - x_b);
                    float S_block_2[256] __attribute__((aligned(64)));
                    for (long x = x_b; x < x_b + x_c; x++) {
#pragma omp simd
                        for (long o = o_b; o < o_b + o_c; o++) {
                            const float v_3 = S_stage_6[o + x * 16 + y * 256 - y_0 * 256];
                            const float v_4 = B_b[o];
                            const float v_5 = (v_3 + v_4);
                            S_block_2[o - o_b + x * 16 - x_b * 16] = v_5;
                        }
                    }
                    if (o_c == 16 && x_c == 16) {
                        lumc_transpose((const float *)&S_block_2[0], 16, (float *)&B_out[o_b * 256 + x_b + y * 16], 256);
                    }
                    else {
                        for (long o = o_b; o < o_b + o_c; o++) {
#pragma omp simd
                            for (long x = x_b; x < x_b + x_c; x++) {
                                const float v_6 = S_block_2[o - o_b + x * 16 - x_b * 16];
                                B_out[o * 256 + x + y * 16] = v_6;
                            }
                        }
                    }
                }
            }
        }
    }
}

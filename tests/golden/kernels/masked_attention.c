#define LUMC_LANES 16
#include "lumc_kernel.h"

static __attribute__((noinline)) void micro_0(const float *restrict A, const float *restrict B, float *restrict C)
{
    lumc_f32x16 c0_0 = {0}; lumc_f32x16 c0_1 = {0};
    lumc_f32x16 c1_0 = {0}; lumc_f32x16 c1_1 = {0};
    lumc_f32x16 c2_0 = {0}; lumc_f32x16 c2_1 = {0};
    lumc_f32x16 c3_0 = {0}; lumc_f32x16 c3_1 = {0};
    lumc_f32x16 c4_0 = {0}; lumc_f32x16 c4_1 = {0};
    lumc_f32x16 c5_0 = {0}; lumc_f32x16 c5_1 = {0};
    lumc_f32x16 c6_0 = {0}; lumc_f32x16 c6_1 = {0};
    lumc_f32x16 c7_0 = {0}; lumc_f32x16 c7_1 = {0};
    lumc_f32x16 c8_0 = {0}; lumc_f32x16 c8_1 = {0};
    lumc_f32x16 c9_0 = {0}; lumc_f32x16 c9_1 = {0};
    lumc_f32x16 c10_0 = {0}; lumc_f32x16 c10_1 = {0};
    lumc_f32x16 c11_0 = {0}; lumc_f32x16 c11_1 = {0};
    lumc_f32x16 c12_0 = {0}; lumc_f32x16 c12_1 = {0};
    lumc_f32x16 c13_0 = {0}; lumc_f32x16 c13_1 = {0};
    for (long i0 = 0; i0 < 16; i0++) { /* e */
    const float *A0 = A + i0 * 1, *B0 = B + i0 * 32;
    const lumc_f32x16 b0 = *(const lumc_f32x16 *)(B0 + 0);
    const lumc_f32x16 b1 = *(const lumc_f32x16 *)(B0 + 16);
    const float a0 = A0[0]; c0_0 += a0 * b0; c0_1 += a0 * b1;
    const float a1 = A0[32]; c1_0 += a1 * b0; c1_1 += a1 * b1;
    const float a2 = A0[64]; c2_0 += a2 * b0; c2_1 += a2 * b1;
    const float a3 = A0[96]; c3_0 += a3 * b0; c3_1 += a3 * b1;
    const float a4 = A0[128]; c4_0 += a4 * b0; c4_1 += a4 * b1;
    const float a5 = A0[160]; c5_0 += a5 * b0; c5_1 += a5 * b1;
    const float a6 = A0[192]; c6_0 += a6 * b0; c6_1 += a6 * b1;
    const float a7 = A0[224]; c7_0 += a7 * b0; c7_1 += a7 * b1;
    const float a8 = A0[256]; c8_0 += a8 * b0; c8_1 += a8 * b1;
    const float a9 = A0[288]; c9_0 += a9 * b0; c9_1 += a9 * b1;
    const float a10 = A0[320]; c10_0 += a10 * b0; c10_1 += a10 * b1;
    const float a11 = A0[352]; c11_0 += a11 * b0; c11_1 += a11 * b1;
    const float a12 = A0[384]; c12_0 += a12 * b0; c12_1 += a12 * b1;
    const float a13 = A0[416]; c13_0 += a13 * b0; c13_1 += a13 * b1;
    }
    *(lumc_f32x16 *)(C + 0) = c0_0;
    *(lumc_f32x16 *)(C + 16) = c0_1;
    *(lumc_f32x16 *)(C + 64) = c1_0;
    *(lumc_f32x16 *)(C + 80) = c1_1;
    *(lumc_f32x16 *)(C + 128) = c2_0;
    *(lumc_f32x16 *)(C + 144) = c2_1;
    *(lumc_f32x16 *)(C + 192) = c3_0;
    *(lumc_f32x16 *)(C + 208) = c3_1;
    *(lumc_f32x16 *)(C + 256) = c4_0;
    *(lumc_f32x16 *)(C + 272) = c4_1;
    *(lumc_f32x16 *)(C + 320) = c5_0;
    *(lumc_f32x16 *)(C + 336) = c5_1;
    *(lumc_f32x16 *)(C + 384) = c6_0;
    *(lumc_f32x16 *)(C + 400) = c6_1;
    *(lumc_f32x16 *)(C + 448) = c7_0;
    *(lumc_f32x16 *)(C + 464) = c7_1;
    *(lumc_f32x16 *)(C + 512) = c8_0;
    *(lumc_f32x16 *)(C + 528) = c8_1;
    *(lumc_f32x16 *)(C + 576) = c9_0;
    *(lumc_f32x16 *)(C + 592) = c9_1;
    *(lumc_f32x16 *)(C + 640) = c10_0;
    *(lumc_f32x16 *)(C + 656) = c10_1;
    *(lumc_f32x16 *)(C + 704) = c11_0;
    *(lumc_f32x16 *)(C + 720) = c11_1;
    *(lumc_f32x16 *)(C + 768) = c12_0;
    *(lumc_f32x16 *)(C + 784) = c12_1;
    *(lumc_f32x16 *)(C + 832) = c13_0;
    *(lumc_f32x16 *)(C + 848) = c13_1;
}
static __attribute__((noinline)) void micro_1(const float *restrict A, const float *restrict B, float *restrict C)
{
    lumc_f32x16 c0_0 = {0}; lumc_f32x16 c0_1 = {0};
    lumc_f32x16 c1_0 = {0}; lumc_f32x16 c1_1 = {0};
    lumc_f32x16 c2_0 = {0}; lumc_f32x16 c2_1 = {0};
    lumc_f32x16 c3_0 = {0}; lumc_f32x16 c3_1 = {0};
    lumc_f32x16 c4_0 = {0}; lumc_f32x16 c4_1 = {0};
    lumc_f32x16 c5_0 = {0}; lumc_f32x16 c5_1 = {0};
    lumc_f32x16 c6_0 = {0}; lumc_f32x16 c6_1 = {0};
    lumc_f32x16 c7_0 = {0}; lumc_f32x16 c7_1 = {0};
    for (long i0 = 0; i0 < 16; i0++) { /* e */
    const float *A0 = A + i0 * 1, *B0 = B + i0 * 32;
    const lumc_f32x16 b0 = *(const lumc_f32x16 *)(B0 + 0);
    const lumc_f32x16 b1 = *(const lumc_f32x16 *)(B0 + 16);
    const float a0 = A0[0]; c0_0 += a0 * b0; c0_1 += a0 * b1;
    const float a1 = A0[32]; c1_0 += a1 * b0; c1_1 += a1 * b1;
    const float a2 = A0[64]; c2_0 += a2 * b0; c2_1 += a2 * b1;
    const float a3 = A0[96]; c3_0 += a3 * b0; c3_1 += a3 * b1;
    const float a4 = A0[128]; c4_0 += a4 * b0; c4_1 += a4 * b1;
    const float a5 = A0[160]; c5_0 += a5 * b0; c5_1 += a5 * b1;
    const float a6 = A0[192]; c6_0 += a6 * b0; c6_1 += a6 * b1;
    const float a7 = A0[224]; c7_0 += a7 * b0; c7_1 += a7 * b1;
    }
    *(lumc_f32x16 *)(C + 0) = c0_0;
    *(lumc_f32x16 *)(C + 16) = c0_1;
    *(lumc_f32x16 *)(C + 64) = c1_0;
    *(lumc_f32x16 *)(C + 80) = c1_1;
    *(lumc_f32x16 *)(C + 128) = c2_0;
    *(lumc_f32x16 *)(C + 144) = c2_1;
    *(lumc_f32x16 *)(C + 192) = c3_0;
    *(lumc_f32x16 *)(C + 208) = c3_1;
    *(lumc_f32x16 *)(C + 256) = c4_0;
    *(lumc_f32x16 *)(C + 272) = c4_1;
    *(lumc_f32x16 *)(C + 320) = c5_0;
    *(lumc_f32x16 *)(C + 336) = c5_1;
    *(lumc_f32x16 *)(C + 384) = c6_0;
    *(lumc_f32x16 *)(C + 400) = c6_1;
    *(lumc_f32x16 *)(C + 448) = c7_0;
    *(lumc_f32x16 *)(C + 464) = c7_1;
}
static __attribute__((noinline)) void micro_2(const float *restrict A, const float *restrict B, float *restrict C)
{
    lumc_f32x16 c0_0 = {0};
    lumc_f32x16 c1_0 = {0};
    lumc_f32x16 c2_0 = {0};
    lumc_f32x16 c3_0 = {0};
    lumc_f32x16 c4_0 = {0};
    lumc_f32x16 c5_0 = {0};
    for (long i0 = 0; i0 < 64; i0++) { /* j */
    const float *A0 = A + i0 * 1, *B0 = B + i0 * 32;
    const lumc_f32x16 b0 = *(const lumc_f32x16 *)(B0 + 0);
    const float a0 = A0[0]; c0_0 += a0 * b0;
    const float a1 = A0[64]; c1_0 += a1 * b0;
    const float a2 = A0[128]; c2_0 += a2 * b0;
    const float a3 = A0[192]; c3_0 += a3 * b0;
    const float a4 = A0[256]; c4_0 += a4 * b0;
    const float a5 = A0[320]; c5_0 += a5 * b0;
    }
    *(lumc_f32x16 *)(C + 0) = c0_0;
    *(lumc_f32x16 *)(C + 16) = c1_0;
    *(lumc_f32x16 *)(C + 32) = c2_0;
    *(lumc_f32x16 *)(C + 48) = c3_0;
    *(lumc_f32x16 *)(C + 64) = c4_0;
    *(lumc_f32x16 *)(C + 80) = c5_0;
}
static __attribute__((noinline)) void micro_3(const float *restrict A, const float *restrict B, float *restrict C)
{
    lumc_f32x16 c0_0 = {0};
    lumc_f32x16 c1_0 = {0};
    lumc_f32x16 c2_0 = {0};
    lumc_f32x16 c3_0 = {0};
    for (long i0 = 0; i0 < 64; i0++) { /* j */
    const float *A0 = A + i0 * 1, *B0 = B + i0 * 32;
    const lumc_f32x16 b0 = *(const lumc_f32x16 *)(B0 + 0);
    const float a0 = A0[0]; c0_0 += a0 * b0;
    const float a1 = A0[64]; c1_0 += a1 * b0;
    const float a2 = A0[128]; c2_0 += a2 * b0;
    const float a3 = A0[192]; c3_0 += a3 * b0;
    }
    *(lumc_f32x16 *)(C + 0) = c0_0;
    *(lumc_f32x16 *)(C + 16) = c1_0;
    *(lumc_f32x16 *)(C + 32) = c2_0;
    *(lumc_f32x16 *)(C + 48) = c3_0;
}
/* masked_attention
 * out[q, h, d]
 */
void masked_attention(void *const *args, long part, long nparts)
{
    (void)args, (void)part, (void)nparts;
    const float *restrict B_Q = args[0];
    const float *restrict B_K = args[1];
    const float *restrict B_V = args[2];
    const int64_t *restrict B_mask = args[3];
    float *restrict B_out = args[4];
    char *const scratch = (char *)args[5] + part * 45056L;
    float *restrict S_copy_5 = (void *)(scratch + 0L);
    float *restrict S_stage_6 = (void *)(scratch + 4160L);
    float S_top_7[64] __attribute__((aligned(64)));
    float *restrict S_weights_8 = (void *)(scratch + 20608L);
    float *restrict S_stage_9 = (void *)(scratch + 37056L);
    float S_stage_10[64] __attribute__((aligned(64)));
    /* parts: q = 64, h = 2 in tiles of 1 */
    const long first = 2 * part / nparts, last = 2 * (part + 1) / nparts;
    for (long tile = first; tile < last; tile++) {
        const long h_0 = tile % 2 * 1;
        /* copy.5[h, e, j] = K[j, e + 16*h] */
        for (long j_p = 0; j_p < 64; j_p += 32) { /* panels of j */
            float *restrict S_copy_5_p = S_copy_5 + (j_p) / 32 * 512L;
            if (64 - j_p >= 32) {
                {
                    const long h = h_0;
                    for (long e_b = 0; e_b < 16; e_b += 16) { /* blocks of e */
                        const long e_c = lumc_min(16, 16 - e_b);
                        for (long j_b = j_p; j_b < j_p + 32; j_b += 16) { /* blocks of j */
                            const long j_c = lumc_min(16, j_p + 32 - j_b);
                            if (e_c == 16 && j_c == 16) {
                                lumc_transpose((const float *)&B_K[e_b + h * 16 + j_b * 32], 32, (float *)&S_copy_5_p[e_b * 32 + h * 512 - h_0 * 512 + j_b - j_p], 32);
                            }
                            else {
                                for (long e = e_b; e < e_b + e_c; e++) {
#pragma omp simd
                                    for (long j = j_b; j < j_b + j_c; j++) {
                                        const float v_1 = B_K[e + h * 16 + j * 32];
                                        S_copy_5_p[e * 32 + h * 512 - h_0 * 512 + j - j_p] = v_1;
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
        /* stage.6[q, h, j] += over e Q[q, e + 16*h] * copy.5[h, e, j] */
        {
            const long h = h_0;
            for (long j = 0; j < 64; j += 32) { /* panels */
                for (long q = 0; q < 64; q += 14) { /* panels */
                    const long q_m = lumc_min(14, 64 - q);
                    if (q_m == 14) micro_0(&B_Q[h * 16 + q * 32], &S_copy_5[(j) / 32 * 512L + h * 512 - h_0 * 512], &S_stage_6[h * 64 - h_0 * 64 + j + q * 64]);
                    else if (q_m == 8) micro_1(&B_Q[h * 16 + q * 32], &S_copy_5[(j) / 32 * 512L + h * 512 - h_0 * 512], &S_stage_6[h * 64 - h_0 * 64 + j + q * 64]);
                }
            }
        }
        for (long q = 0; q < 64; q++) { /* rows of q */
            {
                const long h = h_0;
                /* top.7[q, h] = top over j of add(mul(stage.6[q, h, j], 0.36067376022224085),... */
                float a_2[64];
#pragma omp simd
                for (long lane = 0; lane < 64; lane++) {
                    a_2[lane] = (-__builtin_inff());
                }
                for (long j_at = 0; j_at + 64 <= 64; j_at += 64) {
#pragma omp simd
                    for (long j_l = 0; j_l < 64; j_l++) {
                        const long j = j_at + j_l;
                        const float v_3 = S_stage_6[h * 64 - h_0 * 64 + j + q * 64];
                        const float v_4 = (v_3 * 0.3606737554073334f);
                        const int64_t v_5 = B_mask[j];
                        const float v_6 = (float)v_5;
                        const float v_7 = (v_6 * -1.0f);
                        const float v_8 = (1.0f + v_7);
                        const float v_9 = (v_8 * -1000000000.0f);
                        const float v_10 = (v_4 + v_9);
                        a_2[j_l] = (v_10) > a_2[j_l] ? (v_10) : a_2[j_l];
                        S_weights_8[h * 64 - h_0 * 64 + j + q * 64] = v_10;
                    }
                }
                float a_2_top = a_2[0];
#pragma omp simd reduction(LUMC_TOP:a_2_top)
                for (long lane = 0; lane < 64; lane++) {
                    a_2_top = a_2[lane] > a_2_top ? a_2[lane] : a_2_top;
                }
                S_top_7[h - h_0 + q] = a_2_top;
                /* stage.10[q, h] = sum over j of exp2(add(weights.8[q, h, j], mul(finite(top.... */
                float a_11[16];
#pragma omp simd
                for (long lane = 0; lane < 16; lane++) {
                    a_11[lane] = 0;
                }
                const float v_13 = S_top_7[h - h_0 + q];
                const float v_14 = lumc_finite_f32(v_13);
                const float v_15 = (v_14 * -1.0f);
                for (long j_at = 0; j_at + 16 <= 64; j_at += 16) {
#pragma omp simd
                    for (long j_l = 0; j_l < 16; j_l++) {
                        const long j = j_at + j_l;
                        const float v_12 = S_weights_8[h * 64 - h_0 * 64 + j + q * 64];
                        const float v_16 = (v_12 + v_15);
                        const float v_17 = lumc_exp2_f32(v_16);
                        a_11[j_l] += (v_17);
                        S_weights_8[h * 64 - h_0 * 64 + j + q * 64] = v_17;
                    }
                }
                S_stage_10[h - h_0 + q] = 0.0f + (float)lumc_sum_f32x16(*(lumc_f32x16 *)(a_11 + 0));
            }
        }
        /* stage.9[q, h, d] += over j weights.8[q, h, j] * V[j, d + 16*h] */
        {
            const long h = h_0;
            for (long d = 0; d < 16; d += 16) { /* panels */
                for (long q = 0; q < 64; q += 6) { /* panels */
                    const long q_m = lumc_min(6, 64 - q);
                    if (q_m == 6) micro_2(&S_weights_8[h * 64 - h_0 * 64 + q * 64], &B_V[d + h * 16], &S_stage_9[d + h * 16 - h_0 * 16 + q * 16]);
                    else if (q_m == 4) micro_3(&S_weights_8[h * 64 - h_0 * 64 + q * 64], &B_V[d + h * 16], &S_stage_9[d + h * 16 - h_0 * 16 + q * 16]);
                }
            }
        }
        /* out[q, h, d] = mul(add(stage.9[q, h, d], add(top.7[q, h], mul(top.7[q, h], -1.0))),... */
        for (long q = 0; q < 64; q++) {
            {
                const long h = h_0;
                const float v_19 = S_top_7[h - h_0 + q];
                const float v_20 = (v_19 * -1.0f);
                const float v_21 = (v_19 + v_20);
                const float v_23 = S_stage_10[h - h_0 + q];
                const float v_24 = (v_23 + v_21);
                const float v_25 = lumc_recip_f32(v_24);
#pragma omp simd
                for (long d = 0; d < 16; d++) {
                    const float v_18 = S_stage_9[d + h * 16 - h_0 * 16 + q * 16];
                    const float v_22 = (v_18 + v_21);
                    const float v_26 = (v_22 * v_25);
                    B_out[d + h * 16 + q * 32] = v_26;
                }
            }
        }
    }
}

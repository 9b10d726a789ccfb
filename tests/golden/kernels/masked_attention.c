#define LUMC_LANES 16
#include "lumc_kernel.h"

static __attribute__((noinline)) void micro_0(const float *restrict A, const float *restrict B, float *restrict C)
{
    lumc_f32x16 c0_0 = {0}; lumc_f32x16 c0_1 = {0}; lumc_f32x16 c0_2 = {0};
    lumc_f32x16 c1_0 = {0}; lumc_f32x16 c1_1 = {0}; lumc_f32x16 c1_2 = {0};
    lumc_f32x16 c2_0 = {0}; lumc_f32x16 c2_1 = {0}; lumc_f32x16 c2_2 = {0};
    lumc_f32x16 c3_0 = {0}; lumc_f32x16 c3_1 = {0}; lumc_f32x16 c3_2 = {0};
    lumc_f32x16 c4_0 = {0}; lumc_f32x16 c4_1 = {0}; lumc_f32x16 c4_2 = {0};
    lumc_f32x16 c5_0 = {0}; lumc_f32x16 c5_1 = {0}; lumc_f32x16 c5_2 = {0};
    lumc_f32x16 c6_0 = {0}; lumc_f32x16 c6_1 = {0}; lumc_f32x16 c6_2 = {0};
    lumc_f32x16 c7_0 = {0}; lumc_f32x16 c7_1 = {0}; lumc_f32x16 c7_2 = {0};
    for (long i0 = 0; i0 < 16; i0++) { /* e */
        const float *A0 = A + i0 * 1, *B0 = B + i0 * 48;
        const lumc_f32x16 b0 = *(const lumc_f32x16 *)(B0 + 0);
        const lumc_f32x16 b1 = *(const lumc_f32x16 *)(B0 + 16);
        const lumc_f32x16 b2 = *(const lumc_f32x16 *)(B0 + 32);
        const float a0 = A0[0]; c0_0 += a0 * b0; c0_1 += a0 * b1; c0_2 += a0 * b2;
        const float a1 = A0[32]; c1_0 += a1 * b0; c1_1 += a1 * b1; c1_2 += a1 * b2;
        const float a2 = A0[64]; c2_0 += a2 * b0; c2_1 += a2 * b1; c2_2 += a2 * b2;
        const float a3 = A0[96]; c3_0 += a3 * b0; c3_1 += a3 * b1; c3_2 += a3 * b2;
        const float a4 = A0[128]; c4_0 += a4 * b0; c4_1 += a4 * b1; c4_2 += a4 * b2;
        const float a5 = A0[160]; c5_0 += a5 * b0; c5_1 += a5 * b1; c5_2 += a5 * b2;
        const float a6 = A0[192]; c6_0 += a6 * b0; c6_1 += a6 * b1; c6_2 += a6 * b2;
        const float a7 = A0[224]; c7_0 += a7 * b0; c7_1 += a7 * b1; c7_2 += a7 * b2;
    }
    *(lumc_f32x16 *)(C + 0) = c0_0;
    *(lumc_f32x16 *)(C + 16) = c0_1;
    *(lumc_f32x16 *)(C + 32) = c0_2;
    *(lumc_f32x16 *)(C + 48) = c1_0;
    *(lumc_f32x16 *)(C + 64) = c1_1;
    *(lumc_f32x16 *)(C + 80) = c1_2;
    *(lumc_f32x16 *)(C + 96) = c2_0;
    *(lumc_f32x16 *)(C + 112) = c2_1;
    *(lumc_f32x16 *)(C + 128) = c2_2;
    *(lumc_f32x16 *)(C + 144) = c3_0;
    *(lumc_f32x16 *)(C + 160) = c3_1;
    *(lumc_f32x16 *)(C + 176) = c3_2;
    *(lumc_f32x16 *)(C + 192) = c4_0;
    *(lumc_f32x16 *)(C + 208) = c4_1;
    *(lumc_f32x16 *)(C + 224) = c4_2;
    *(lumc_f32x16 *)(C + 240) = c5_0;
    *(lumc_f32x16 *)(C + 256) = c5_1;
    *(lumc_f32x16 *)(C + 272) = c5_2;
    *(lumc_f32x16 *)(C + 288) = c6_0;
    *(lumc_f32x16 *)(C + 304) = c6_1;
    *(lumc_f32x16 *)(C + 320) = c6_2;
    *(lumc_f32x16 *)(C + 336) = c7_0;
    *(lumc_f32x16 *)(C + 352) = c7_1;
    *(lumc_f32x16 *)(C + 368) = c7_2;
}
static __attribute__((noinline)) void micro_1(const float *restrict A, const float *restrict B, float *restrict C)
{
    lumc_f32x16 c0_0 = {0};
    lumc_f32x16 c1_0 = {0};
    lumc_f32x16 c2_0 = {0};
    lumc_f32x16 c3_0 = {0};
    lumc_f32x16 c4_0 = {0};
    lumc_f32x16 c5_0 = {0};
    lumc_f32x16 c6_0 = {0};
    lumc_f32x16 c7_0 = {0};
    for (long i0 = 0; i0 < 16; i0++) { /* e */
        const float *A0 = A + i0 * 1, *B0 = B + i0 * 48;
        const lumc_f32x16 b0 = *(const lumc_f32x16 *)(B0 + 0);
        const float a0 = A0[0]; c0_0 += a0 * b0;
        const float a1 = A0[32]; c1_0 += a1 * b0;
        const float a2 = A0[64]; c2_0 += a2 * b0;
        const float a3 = A0[96]; c3_0 += a3 * b0;
        const float a4 = A0[128]; c4_0 += a4 * b0;
        const float a5 = A0[160]; c5_0 += a5 * b0;
        const float a6 = A0[192]; c6_0 += a6 * b0;
        const float a7 = A0[224]; c7_0 += a7 * b0;
    }
    *(lumc_f32x16 *)(C + 0) = c0_0;
    *(lumc_f32x16 *)(C + 48) = c1_0;
    *(lumc_f32x16 *)(C + 96) = c2_0;
    *(lumc_f32x16 *)(C + 144) = c3_0;
    *(lumc_f32x16 *)(C + 192) = c4_0;
    *(lumc_f32x16 *)(C + 240) = c5_0;
    *(lumc_f32x16 *)(C + 288) = c6_0;
    *(lumc_f32x16 *)(C + 336) = c7_0;
}
static __attribute__((noinline)) void micro_2(const float *restrict A, const float *restrict B, float *restrict C)
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
    for (long i0 = 0; i0 < 64; i0++) { /* j */
        const float *A0 = A + i0 * 48, *B0 = B + i0 * 32;
        const lumc_f32x16 b0 = *(const lumc_f32x16 *)(B0 + 0);
        const float a0 = A0[0]; c0_0 += a0 * b0;
        const float a1 = A0[1]; c1_0 += a1 * b0;
        const float a2 = A0[2]; c2_0 += a2 * b0;
        const float a3 = A0[3]; c3_0 += a3 * b0;
        const float a4 = A0[4]; c4_0 += a4 * b0;
        const float a5 = A0[5]; c5_0 += a5 * b0;
        const float a6 = A0[6]; c6_0 += a6 * b0;
        const float a7 = A0[7]; c7_0 += a7 * b0;
        const float a8 = A0[8]; c8_0 += a8 * b0;
        const float a9 = A0[9]; c9_0 += a9 * b0;
        const float a10 = A0[10]; c10_0 += a10 * b0;
        const float a11 = A0[11]; c11_0 += a11 * b0;
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
}
static __attribute__((noinline)) void micro_3(const float *restrict A, const float *restrict B, float *restrict C)
{
    lumc_f32x16 c0_0 = {0};
    lumc_f32x16 c1_0 = {0};
    lumc_f32x16 c2_0 = {0};
    lumc_f32x16 c3_0 = {0};
    for (long i0 = 0; i0 < 64; i0++) { /* j */
        const float *A0 = A + i0 * 48, *B0 = B + i0 * 32;
        const lumc_f32x16 b0 = *(const lumc_f32x16 *)(B0 + 0);
        const float a0 = A0[0]; c0_0 += a0 * b0;
        const float a1 = A0[1]; c1_0 += a1 * b0;
        const float a2 = A0[2]; c2_0 += a2 * b0;
        const float a3 = A0[3]; c3_0 += a3 * b0;
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
    char *const scratch = (char *)args[5] + part * 20480L;
    float *restrict S_copy_5 = (void *)(scratch + 0L);
    float *restrict S_stage_6 = (void *)(scratch + 3136L);
    float S_top_7[48] __attribute__((aligned(64)));
    float *restrict S_stage_8 = (void *)(scratch + 15488L);
    float S_stage_9[48] __attribute__((aligned(64)));
    /* parts: q = 64 in tiles of 48, h = 2 in tiles of 1 */
    const long first = 4 * part / nparts, last = 4 * (part + 1) / nparts;
    for (long tile = first; tile < last; tile++) {
        const long q_0 = tile / 2 * 48;
        const long q_n = lumc_min(48, 64 - q_0);
        const long h_0 = tile % 2 * 1;
        /* copy.5[h, e, q] = Q[q, e + 16*h] */
        for (long q_p = q_0; q_p < q_0 + q_n; q_p += 48) { /* panels of q */
            float *restrict S_copy_5_p = S_copy_5 + (-q_0 + q_p) / 48 * 768L;
            if (q_0 + q_n - q_p >= 48) {
                {
                    const long h = h_0;
                    for (long e_b = 0; e_b < 16; e_b += 16) { /* blocks of e */
                        const long e_c = lumc_min(16, 16 - e_b);
                        for (long q_b = q_p; q_b < q_p + 48; q_b += 16) { /* blocks of q */
                            const long q_c = lumc_min(16, q_p + 48 - q_b);
                            if (e_c == 16 && q_c == 16) {
                                lumc_transpose((const float *)&B_Q[e_b + h * 16 + q_b * 32], 32, (float *)&S_copy_5_p[e_b * 48 + h * 768 - h_0 * 768 + q_b - q_p], 48);
                            }
                            else {
                                for (long e = e_b; e < e_b + e_c; e++) {
#pragma omp simd
                                    for (long q = q_b; q < q_b + q_c; q++) {
                                        const float v_1 = B_Q[e + h * 16 + q * 32];
                                        S_copy_5_p[e * 48 + h * 768 - h_0 * 768 + q - q_p] = v_1;
                                    }
                                }
                            }
                        }
                    }
                }
            }
            else if (q_0 + q_n - q_p == 16) {
                {
                    const long h = h_0;
                    for (long e_b = 0; e_b < 16; e_b += 16) { /* blocks of e */
                        const long e_c = lumc_min(16, 16 - e_b);
                        for (long q_b = q_p; q_b < q_p + 16; q_b += 16) { /* blocks of q */
                            const long q_c = lumc_min(16, q_p + 16 - q_b);
                            if (e_c == 16 && q_c == 16) {
                                lumc_transpose((const float *)&B_Q[e_b + h * 16 + q_b * 32], 32, (float *)&S_copy_5_p[e_b * 48 + h * 768 - h_0 * 768 + q_b - q_p], 48);
                            }
                            else {
                                for (long e = e_b; e < e_b + e_c; e++) {
#pragma omp simd
                                    for (long q = q_b; q < q_b + q_c; q++) {
                                        const float v_2 = B_Q[e + h * 16 + q * 32];
                                        S_copy_5_p[e * 48 + h * 768 - h_0 * 768 + q - q_p] = v_2;
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
        /* stage.6[h, j, q] += over e K[j, e + 16*h] * copy.5[h, e, q] */
        {
            const long h = h_0;
            for (long q = q_0; q < q_0 + q_n; q += 48) { /* panels */
                const long q_m = lumc_min(48, q_0 + q_n - q);
                for (long j = 0; j < 64; j += 8) { /* panels */
                    if (q_m == 48) micro_0(&B_K[h * 16 + j * 32], &S_copy_5[(q - q_0) / 48 * 768L + h * 768 - h_0 * 768], &S_stage_6[h * 3072 - h_0 * 3072 + j * 48 + q - q_0]);
                    else if (q_m == 16) micro_1(&B_K[h * 16 + j * 32], &S_copy_5[(q - q_0) / 48 * 768L + h * 768 - h_0 * 768], &S_stage_6[h * 3072 - h_0 * 3072 + j * 48 + q - q_0]);
                }
            }
        }
        {
            const long h = h_0;
            /* top.7[h, q] = top over j of add(mul(stage.6[h, j, q], 0.36067376022224085), mul... */
            long q_s3 = q_0;
            for (; q_s3 + 16 <= q_0 + q_n; q_s3 += 16) { /* one vector */
                float S_strip_4[16] __attribute__((aligned(64)));
#pragma omp simd
                for (long q_l = 0; q_l < 16; q_l++) {
                    const long q = q_s3 + q_l;
                    S_strip_4[q - q_s3] = -__builtin_inff();
                }
                for (long j = 0; j < 64; j++) {
                    const int64_t v_7 = B_mask[j];
                    const float v_8 = (float)v_7;
                    const float v_9 = (v_8 * -1.0f);
                    const float v_10 = (1.0f + v_9);
                    const float v_11 = (v_10 * -1000000000.0f);
#pragma omp simd
                    for (long q_l = 0; q_l < 16; q_l++) {
                        const long q = q_s3 + q_l;
                        const float v_5 = S_stage_6[h * 3072 - h_0 * 3072 + j * 48 + q - q_0];
                        const float v_6 = (v_5 * 0.3606737554073334f);
                        const float v_12 = (v_6 + v_11);
                        S_strip_4[q - q_s3] = lumc_top_f32(S_strip_4[q - q_s3], v_12);
                        S_stage_6[h * 3072 - h_0 * 3072 + j * 48 + q - q_0] = v_12;
                    }
                }
#pragma omp simd
                for (long q_l = 0; q_l < 16; q_l++) {
                    const long q = q_s3 + q_l;
                    S_top_7[h * 48 - h_0 * 48 + q - q_0] = S_strip_4[q - q_s3];
                }
            }
            /* stage.9[q, h] = sum over j of decay(add(stage.6[h, j, q], mul(finite(top.7[h, q... */
            long q_s13 = q_0;
            for (; q_s13 + 16 <= q_0 + q_n; q_s13 += 16) { /* one vector */
                float S_strip_14[16] __attribute__((aligned(64)));
                float S_strip_15[16] __attribute__((aligned(64)));
#pragma omp simd
                for (long q_l = 0; q_l < 16; q_l++) {
                    const long q = q_s13 + q_l;
                    const float v_16 = S_top_7[h * 48 - h_0 * 48 + q - q_0];
                    const float v_17 = lumc_finite_f32(v_16);
                    const float v_18 = (v_17 * -1.0f);
                    S_strip_14[q - q_s13] = v_18;
                    S_strip_15[q - q_s13] = 0.0f;
                }
                for (long j = 0; j < 64; j++) {
                    float p_21[16] __attribute__((aligned(64)));
                    float p_22[16] __attribute__((aligned(64)));
#pragma omp simd
                    for (long q_l = 0; q_l < 16; q_l++) {
                        const long q = q_s13 + q_l;
                        const float v_19 = S_stage_6[h * 3072 - h_0 * 3072 + j * 48 + q - q_0];
                        const float v_20 = S_strip_14[q - q_s13];
                        const float v_21 = (v_19 + v_20);
                        p_21[q_l] = v_21;
                    }
                    lumc_decay_n_f32(p_22, p_21, 16);
#pragma omp simd
                    for (long q_l = 0; q_l < 16; q_l++) {
                        const long q = q_s13 + q_l;
                        const float v_22 = p_22[q_l];
                        S_strip_15[q - q_s13] = S_strip_15[q - q_s13] + v_22;
                        S_stage_6[h * 3072 - h_0 * 3072 + j * 48 + q - q_0] = v_22;
                    }
                }
#pragma omp simd
                for (long q_l = 0; q_l < 16; q_l++) {
                    const long q = q_s13 + q_l;
                    S_stage_9[h - h_0 + q - q_0] = S_strip_15[q - q_s13];
                }
            }
        }
        /* stage.8[q, h, d] += over j stage.6[h, j, q] * V[j, d + 16*h] */
        {
            const long h = h_0;
            for (long d = 0; d < 16; d += 16) { /* panels */
                for (long q = q_0; q < q_0 + q_n; q += 12) { /* panels */
                    const long q_m = lumc_min(12, q_0 + q_n - q);
                    if (q_m == 12) micro_2(&S_stage_6[h * 3072 - h_0 * 3072 + q - q_0], &B_V[d + h * 16], &S_stage_8[d + h * 16 - h_0 * 16 + q * 16 - q_0 * 16]);
                    else if (q_m == 4) micro_3(&S_stage_6[h * 3072 - h_0 * 3072 + q - q_0], &B_V[d + h * 16], &S_stage_8[d + h * 16 - h_0 * 16 + q * 16 - q_0 * 16]);
                }
            }
        }
        /* out[q, h, d] = mul(add(stage.8[q, h, d], add(top.7[h, q], mul(top.7[h, q], -1.0))),... */
        for (long q = q_0; q < q_0 + q_n; q++) {
            {
                const long h = h_0;
                const float v_24 = S_top_7[h * 48 - h_0 * 48 + q - q_0];
                const float v_25 = (v_24 * -1.0f);
                const float v_26 = (v_24 + v_25);
                const float v_28 = S_stage_9[h - h_0 + q - q_0];
                const float v_29 = (v_28 + v_26);
                const float v_30 = lumc_recip_f32(v_29);
#pragma omp simd
                for (long d = 0; d < 16; d++) {
                    const float v_23 = S_stage_8[d + h * 16 - h_0 * 16 + q * 16 - q_0 * 16];
                    const float v_27 = (v_23 + v_26);
                    const float v_31 = (v_27 * v_30);
                    B_out[d + h * 16 + q * 32] = v_31;
                }
            }
        }
    }
}

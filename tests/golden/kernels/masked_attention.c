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
    *(lumc_f32x16 *)(C + 32) = c1_0;
    *(lumc_f32x16 *)(C + 48) = c1_1;
    *(lumc_f32x16 *)(C + 64) = c2_0;
    *(lumc_f32x16 *)(C + 80) = c2_1;
    *(lumc_f32x16 *)(C + 96) = c3_0;
    *(lumc_f32x16 *)(C + 112) = c3_1;
    *(lumc_f32x16 *)(C + 128) = c4_0;
    *(lumc_f32x16 *)(C + 144) = c4_1;
    *(lumc_f32x16 *)(C + 160) = c5_0;
    *(lumc_f32x16 *)(C + 176) = c5_1;
    *(lumc_f32x16 *)(C + 192) = c6_0;
    *(lumc_f32x16 *)(C + 208) = c6_1;
    *(lumc_f32x16 *)(C + 224) = c7_0;
    *(lumc_f32x16 *)(C + 240) = c7_1;
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
    for (long i0 = 0; i0 < 64; i0++) { /* j */
    const float *A0 = A + i0 * 32, *B0 = B + i0 * 32;
    const lumc_f32x16 b0 = *(const lumc_f32x16 *)(B0 + 0);
    const float a0 = A0[0]; c0_0 += a0 * b0;
    const float a1 = A0[1]; c1_0 += a1 * b0;
    const float a2 = A0[2]; c2_0 += a2 * b0;
    const float a3 = A0[3]; c3_0 += a3 * b0;
    const float a4 = A0[4]; c4_0 += a4 * b0;
    const float a5 = A0[5]; c5_0 += a5 * b0;
    const float a6 = A0[6]; c6_0 += a6 * b0;
    const float a7 = A0[7]; c7_0 += a7 * b0;
    }
    *(lumc_f32x16 *)(C + 0) = c0_0;
    *(lumc_f32x16 *)(C + 16) = c1_0;
    *(lumc_f32x16 *)(C + 32) = c2_0;
    *(lumc_f32x16 *)(C + 48) = c3_0;
    *(lumc_f32x16 *)(C + 64) = c4_0;
    *(lumc_f32x16 *)(C + 80) = c5_0;
    *(lumc_f32x16 *)(C + 96) = c6_0;
    *(lumc_f32x16 *)(C + 112) = c7_0;
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
    char *const scratch = (char *)args[5] + part * 16384L;
    float *restrict S_copy_5 = (void *)(scratch + 0L);
    float *restrict S_stage_6 = (void *)(scratch + 2112L);
    float S_top_7[32] __attribute__((aligned(64)));
    float *restrict S_stage_8 = (void *)(scratch + 10368L);
    float S_stage_9[32] __attribute__((aligned(64)));
    /* parts: q = 64 in tiles of 32, h = 2 in tiles of 1 */
    const long first = 4 * part / nparts, last = 4 * (part + 1) / nparts;
    for (long tile = first; tile < last; tile++) {
        const long q_0 = tile / 2 * 32;
        const long h_0 = tile % 2 * 1;
        /* copy.5[h, e, q] = Q[q, e + 16*h] */
        for (long q_p = q_0; q_p < q_0 + 32; q_p += 32) { /* panels of q */
            float *restrict S_copy_5_p = S_copy_5 + (-q_0 + q_p) / 32 * 512L;
            if (q_0 + 32 - q_p >= 32) {
                {
                    const long h = h_0;
                    for (long e_b = 0; e_b < 16; e_b += 16) { /* blocks of e */
                        const long e_c = lumc_min(16, 16 - e_b);
                        for (long q_b = q_p; q_b < q_p + 32; q_b += 16) { /* blocks of q */
                            const long q_c = lumc_min(16, q_p + 32 - q_b);
                            if (e_c == 16 && q_c == 16) {
                                lumc_transpose((const float *)&B_Q[e_b + h * 16 + q_b * 32], 32, (float *)&S_copy_5_p[e_b * 32 + h * 512 - h_0 * 512 + q_b - q_p], 32);
                            }
                            else {
                                for (long e = e_b; e < e_b + e_c; e++) {
#pragma omp simd
                                    for (long q = q_b; q < q_b + q_c; q++) {
                                        const float v_1 = B_Q[e + h * 16 + q * 32];
                                        S_copy_5_p[e * 32 + h * 512 - h_0 * 512 + q - q_p] = v_1;
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
            for (long q = q_0; q < q_0 + 32; q += 32) { /* panels */
                for (long j = 0; j < 64; j += 8) { /* panels */
                    micro_0(&B_K[h * 16 + j * 32], &S_copy_5[(q - q_0) / 32 * 512L + h * 512 - h_0 * 512], &S_stage_6[h * 2048 - h_0 * 2048 + j * 32 + q - q_0]);
                }
            }
        }
        {
            const long h = h_0;
            /* top.7[h, q] = top over j of add(mul(stage.6[h, j, q], 0.36067376022224085), mul... */
            long q_s2 = q_0;
            for (; q_s2 + 16 <= q_0 + 32; q_s2 += 16) { /* one vector */
                float S_strip_3[16] __attribute__((aligned(64)));
#pragma omp simd
                for (long q_l = 0; q_l < 16; q_l++) {
                    const long q = q_s2 + q_l;
                    S_strip_3[q - q_s2] = -__builtin_inff();
                }
                for (long j = 0; j < 64; j++) {
                    const int64_t v_6 = B_mask[j];
                    const float v_7 = (float)v_6;
                    const float v_8 = (v_7 * -1.0f);
                    const float v_9 = (1.0f + v_8);
                    const float v_10 = (v_9 * -1000000000.0f);
#pragma omp simd
                    for (long q_l = 0; q_l < 16; q_l++) {
                        const long q = q_s2 + q_l;
                        const float v_4 = S_stage_6[h * 2048 - h_0 * 2048 + j * 32 + q - q_0];
                        const float v_5 = (v_4 * 0.3606737554073334f);
                        const float v_11 = (v_5 + v_10);
                        S_strip_3[q - q_s2] = lumc_top_f32(S_strip_3[q - q_s2], v_11);
                        S_stage_6[h * 2048 - h_0 * 2048 + j * 32 + q - q_0] = v_11;
                    }
                }
#pragma omp simd
                for (long q_l = 0; q_l < 16; q_l++) {
                    const long q = q_s2 + q_l;
                    S_top_7[h * 32 - h_0 * 32 + q - q_0] = S_strip_3[q - q_s2];
                }
            }
            /* stage.9[q, h] = sum over j of decay(add(stage.6[h, j, q], mul(finite(top.7[h, q... */
            long q_s12 = q_0;
            for (; q_s12 + 16 <= q_0 + 32; q_s12 += 16) { /* one vector */
                float S_strip_13[16] __attribute__((aligned(64)));
                float S_strip_14[16] __attribute__((aligned(64)));
#pragma omp simd
                for (long q_l = 0; q_l < 16; q_l++) {
                    const long q = q_s12 + q_l;
                    const float v_15 = S_top_7[h * 32 - h_0 * 32 + q - q_0];
                    const float v_16 = lumc_finite_f32(v_15);
                    const float v_17 = (v_16 * -1.0f);
                    S_strip_13[q - q_s12] = v_17;
                    S_strip_14[q - q_s12] = 0.0f;
                }
                for (long j = 0; j < 64; j++) {
#pragma omp simd
                    for (long q_l = 0; q_l < 16; q_l++) {
                        const long q = q_s12 + q_l;
                        const float v_18 = S_stage_6[h * 2048 - h_0 * 2048 + j * 32 + q - q_0];
                        const float v_19 = S_strip_13[q - q_s12];
                        const float v_20 = (v_18 + v_19);
                        const float v_21 = lumc_decay_f32(v_20);
                        S_strip_14[q - q_s12] = S_strip_14[q - q_s12] + v_21;
                        S_stage_6[h * 2048 - h_0 * 2048 + j * 32 + q - q_0] = v_21;
                    }
                }
#pragma omp simd
                for (long q_l = 0; q_l < 16; q_l++) {
                    const long q = q_s12 + q_l;
                    S_stage_9[h - h_0 + q - q_0] = S_strip_14[q - q_s12];
                }
            }
        }
        /* stage.8[q, h, d] += over j stage.6[h, j, q] * V[j, d + 16*h] */
        {
            const long h = h_0;
            for (long d = 0; d < 16; d += 16) { /* panels */
                for (long q = q_0; q < q_0 + 32; q += 8) { /* panels */
                    micro_1(&S_stage_6[h * 2048 - h_0 * 2048 + q - q_0], &B_V[d + h * 16], &S_stage_8[d + h * 16 - h_0 * 16 + q * 16 - q_0 * 16]);
                }
            }
        }
        /* out[q, h, d] = mul(add(stage.8[q, h, d], add(top.7[h, q], mul(top.7[h, q], -1.0))),... */
        for (long q = q_0; q < q_0 + 32; q++) {
            {
                const long h = h_0;
                const float v_23 = S_top_7[h * 32 - h_0 * 32 + q - q_0];
                const float v_24 = (v_23 * -1.0f);
                const float v_25 = (v_23 + v_24);
                const float v_27 = S_stage_9[h - h_0 + q - q_0];
                const float v_28 = (v_27 + v_25);
                const float v_29 = lumc_recip_f32(v_28);
#pragma omp simd
                for (long d = 0; d < 16; d++) {
                    const float v_22 = S_stage_8[d + h * 16 - h_0 * 16 + q * 16 - q_0 * 16];
                    const float v_26 = (v_22 + v_25);
                    const float v_30 = (v_26 * v_29);
                    B_out[d + h * 16 + q * 32] = v_30;
                }
            }
        }
    }
}

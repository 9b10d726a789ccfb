#define LUMC_LANES 16
#include "lumc_kernel.h"

static __attribute__((noinline)) void micro_0(const float *restrict A, const float *restrict B, float *restrict C, const char *N)
{
    lumc_f32x16 c0_0 = {0}; lumc_f32x16 c0_1 = {0}; lumc_f32x16 c0_2 = {0};
    lumc_f32x16 c1_0 = {0}; lumc_f32x16 c1_1 = {0}; lumc_f32x16 c1_2 = {0};
    lumc_f32x16 c2_0 = {0}; lumc_f32x16 c2_1 = {0}; lumc_f32x16 c2_2 = {0};
    lumc_f32x16 c3_0 = {0}; lumc_f32x16 c3_1 = {0}; lumc_f32x16 c3_2 = {0};
    lumc_f32x16 c4_0 = {0}; lumc_f32x16 c4_1 = {0}; lumc_f32x16 c4_2 = {0};
    lumc_f32x16 c5_0 = {0}; lumc_f32x16 c5_1 = {0}; lumc_f32x16 c5_2 = {0};
    lumc_f32x16 c6_0 = {0}; lumc_f32x16 c6_1 = {0}; lumc_f32x16 c6_2 = {0};
    lumc_f32x16 c7_0 = {0}; lumc_f32x16 c7_1 = {0}; lumc_f32x16 c7_2 = {0};
    for (long i0 = 0; i0 < 64; i0++) { /* k */
        const float *A0 = A + i0 * 1, *B0 = B + i0 * 48;
        const lumc_f32x16 b0 = *(const lumc_f32x16 *)(B0 + 0);
        const lumc_f32x16 b1 = *(const lumc_f32x16 *)(B0 + 16);
        const lumc_f32x16 b2 = *(const lumc_f32x16 *)(B0 + 32);
        const float a0 = A0[0]; c0_0 += a0 * b0; c0_1 += a0 * b1; c0_2 += a0 * b2;
        const float a1 = A0[64]; c1_0 += a1 * b0; c1_1 += a1 * b1; c1_2 += a1 * b2;
        const float a2 = A0[128]; c2_0 += a2 * b0; c2_1 += a2 * b1; c2_2 += a2 * b2;
        const float a3 = A0[192]; c3_0 += a3 * b0; c3_1 += a3 * b1; c3_2 += a3 * b2;
        const float a4 = A0[256]; c4_0 += a4 * b0; c4_1 += a4 * b1; c4_2 += a4 * b2;
        const float a5 = A0[320]; c5_0 += a5 * b0; c5_1 += a5 * b1; c5_2 += a5 * b2;
        const float a6 = A0[384]; c6_0 += a6 * b0; c6_1 += a6 * b1; c6_2 += a6 * b2;
        const float a7 = A0[448]; c7_0 += a7 * b0; c7_1 += a7 * b1; c7_2 += a7 * b2;
        __builtin_prefetch(N + 0, 0, 2);
        N += 24;
    }
    *(lumc_f32x16 *)(C + 0) = c0_0;
    *(lumc_f32x16 *)(C + 16) = c0_1;
    *(lumc_f32x16 *)(C + 32) = c0_2;
    *(lumc_f32x16 *)(C + 96) = c1_0;
    *(lumc_f32x16 *)(C + 112) = c1_1;
    *(lumc_f32x16 *)(C + 128) = c1_2;
    *(lumc_f32x16 *)(C + 192) = c2_0;
    *(lumc_f32x16 *)(C + 208) = c2_1;
    *(lumc_f32x16 *)(C + 224) = c2_2;
    *(lumc_f32x16 *)(C + 288) = c3_0;
    *(lumc_f32x16 *)(C + 304) = c3_1;
    *(lumc_f32x16 *)(C + 320) = c3_2;
    *(lumc_f32x16 *)(C + 384) = c4_0;
    *(lumc_f32x16 *)(C + 400) = c4_1;
    *(lumc_f32x16 *)(C + 416) = c4_2;
    *(lumc_f32x16 *)(C + 480) = c5_0;
    *(lumc_f32x16 *)(C + 496) = c5_1;
    *(lumc_f32x16 *)(C + 512) = c5_2;
    *(lumc_f32x16 *)(C + 576) = c6_0;
    *(lumc_f32x16 *)(C + 592) = c6_1;
    *(lumc_f32x16 *)(C + 608) = c6_2;
    *(lumc_f32x16 *)(C + 672) = c7_0;
    *(lumc_f32x16 *)(C + 688) = c7_1;
    *(lumc_f32x16 *)(C + 704) = c7_2;
}
/* linear_gelu
 * out[m, n]
 */
void linear_gelu(void *const *args, long part, long nparts)
{
    if (part != 0) return;
    (void)args, (void)part, (void)nparts;
    const float *restrict B_x = args[0];
    const float *restrict B_b = args[2];
    float *restrict B_out = args[3];
    const float *restrict S_packed_4 = args[4];
    char *const scratch = (char *)args[5] + part * 28672L;
    float *restrict S_stage_5 = (void *)(scratch + 0L);
    /* stage.5[m, n] += over k x[m, k] * packed.4[k, n] */
    for (long n = 0; n < 96; n += 48) { /* panels */
        for (long m = 0; m < 64; m += 8) { /* panels */
            const char *next = (const char *)(&S_packed_4[(n) / 48 * 3072L] + 3072) + (m) / 8 * 1536L;
            micro_0(&B_x[m * 64], &S_packed_4[(n) / 48 * 3072L], &S_stage_5[m * 96 + n], next);
        }
    }
    /* out[m, n] = mul(add(stage.5[m, n], b[n]), recip(add(exp_ftz(mul(mul(add(add(stage.5[m, ... */
    for (long m = 0; m < 64; m++) {
        for (long n_at = 0; n_at + 64 <= 96; n_at += 64) {
            float p_3[64] __attribute__((aligned(64)));
            float p_9[64] __attribute__((aligned(64)));
            float p_10[64] __attribute__((aligned(64)));
#pragma omp simd
            for (long n_l = 0; n_l < 64; n_l++) {
                const long n = n_at + n_l;
                const float v_1 = S_stage_5[m * 96 + n];
                const float v_2 = B_b[n];
                const float v_3 = (v_1 + v_2);
                const float v_4 = (v_3 * v_3);
                const float v_5 = (v_4 * v_3);
                const float v_6 = (v_5 * 0.044714998453855515f);
                const float v_7 = (v_3 + v_6);
                const float v_8 = (v_7 * 1.5957691669464111f);
                const float v_9 = (v_8 * -1.0f);
                p_3[n_l] = v_3;
                p_9[n_l] = v_9;
            }
            lumc_exp_ftz_n_f32(p_10, p_9, 64);
#pragma omp simd
            for (long n_l = 0; n_l < 64; n_l++) {
                const long n = n_at + n_l;
                const float v_3 = p_3[n_l];
                const float v_10 = p_10[n_l];
                const float v_11 = (v_10 + 1.0f);
                const float v_13 = (v_3 / v_11);
                B_out[m * 96 + n] = v_13;
            }
        }
        { /* rest */
            const long n_at = 96 - 32;
            float p_3[32] __attribute__((aligned(64)));
            float p_9[32] __attribute__((aligned(64)));
            float p_10[32] __attribute__((aligned(64)));
#pragma omp simd
            for (long n_l = 0; n_l < 32; n_l++) {
                const long n = n_at + n_l;
                const float v_1 = S_stage_5[m * 96 + n];
                const float v_2 = B_b[n];
                const float v_3 = (v_1 + v_2);
                const float v_4 = (v_3 * v_3);
                const float v_5 = (v_4 * v_3);
                const float v_6 = (v_5 * 0.044714998453855515f);
                const float v_7 = (v_3 + v_6);
                const float v_8 = (v_7 * 1.5957691669464111f);
                const float v_9 = (v_8 * -1.0f);
                p_3[n_l] = v_3;
                p_9[n_l] = v_9;
            }
            lumc_exp_ftz_n_f32(p_10, p_9, 32);
#pragma omp simd
            for (long n_l = 0; n_l < 32; n_l++) {
                const long n = n_at + n_l;
                const float v_3 = p_3[n_l];
                const float v_10 = p_10[n_l];
                const float v_11 = (v_10 + 1.0f);
                const float v_13 = (v_3 / v_11);
                B_out[m * 96 + n] = v_13;
            }
        }
    }
}

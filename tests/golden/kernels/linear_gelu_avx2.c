#define LUMC_LANES 8
#include "lumc_kernel.h"

static __attribute__((noinline)) void micro_0(const float *restrict A, const float *restrict B, float *restrict C)
{
    lumc_f32x8 c0_0 = {0}; lumc_f32x8 c0_1 = {0}; lumc_f32x8 c0_2 = {0};
    lumc_f32x8 c1_0 = {0}; lumc_f32x8 c1_1 = {0}; lumc_f32x8 c1_2 = {0};
    lumc_f32x8 c2_0 = {0}; lumc_f32x8 c2_1 = {0}; lumc_f32x8 c2_2 = {0};
    lumc_f32x8 c3_0 = {0}; lumc_f32x8 c3_1 = {0}; lumc_f32x8 c3_2 = {0};
    for (long i0 = 0; i0 < 30; i0++) { /* k */
        const float *A0 = A + i0 * 1, *B0 = B + i0 * 24;
        const lumc_f32x8 b0 = *(const lumc_f32x8 *)(B0 + 0);
        const lumc_f32x8 b1 = *(const lumc_f32x8 *)(B0 + 8);
        const lumc_f32x8 b2 = *(const lumc_f32x8 *)(B0 + 16);
        const float a0 = A0[0]; c0_0 += a0 * b0; c0_1 += a0 * b1; c0_2 += a0 * b2;
        const float a1 = A0[30]; c1_0 += a1 * b0; c1_1 += a1 * b1; c1_2 += a1 * b2;
        const float a2 = A0[60]; c2_0 += a2 * b0; c2_1 += a2 * b1; c2_2 += a2 * b2;
        const float a3 = A0[90]; c3_0 += a3 * b0; c3_1 += a3 * b1; c3_2 += a3 * b2;
    }
    *(lumc_f32x8 *)(C + 0) = c0_0;
    *(lumc_f32x8 *)(C + 8) = c0_1;
    *(lumc_f32x8 *)(C + 16) = c0_2;
    *(lumc_f32x8 *)(C + 24) = c1_0;
    *(lumc_f32x8 *)(C + 32) = c1_1;
    *(lumc_f32x8 *)(C + 40) = c1_2;
    *(lumc_f32x8 *)(C + 48) = c2_0;
    *(lumc_f32x8 *)(C + 56) = c2_1;
    *(lumc_f32x8 *)(C + 64) = c2_2;
    *(lumc_f32x8 *)(C + 72) = c3_0;
    *(lumc_f32x8 *)(C + 80) = c3_1;
    *(lumc_f32x8 *)(C + 88) = c3_2;
}
/* linear_gelu
 * out[m, n]
 */
void linear_gelu_avx2(void *const *args, long part, long nparts)
{
    if (part != 0) return;
    (void)args, (void)part, (void)nparts;
    const float *restrict B_x = args[0];
    const float *restrict B_b = args[2];
    float *restrict B_out = args[3];
    const float *restrict S_packed_4 = args[4];
    char *const scratch = (char *)args[5] + part * 4096L;
    float *restrict S_stage_5 = (void *)(scratch + 0L);
    /* stage.5[m, n] += over k x[m, k] * packed.4[k, n] */
    for (long n = 0; n < 24; n += 24) { /* panels */
        for (long m = 0; m < 20; m += 4) { /* panels */
            micro_0(&B_x[m * 30], &S_packed_4[(n) / 24 * 720L], &S_stage_5[m * 24 + n]);
        }
    }
    /* out[m, n] = mul(add(stage.5[m, n], b[n]), recip(add(exp_ftz(mul(mul(add(add(stage.5[m, ... */
    for (long m = 0; m < 20; m++) {
        { /* rest */
            const long n_at = 24 - 24;
            float p_3[24] __attribute__((aligned(64)));
            float p_9[24] __attribute__((aligned(64)));
            float p_10[24] __attribute__((aligned(64)));
#pragma omp simd
            for (long n_l = 0; n_l < 24; n_l++) {
                const long n = n_at + n_l;
                const float v_1 = S_stage_5[m * 24 + n];
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
            lumc_exp_ftz_n_f32(p_10, p_9, 24);
#pragma omp simd
            for (long n_l = 0; n_l < 24; n_l++) {
                const long n = n_at + n_l;
                const float v_3 = p_3[n_l];
                const float v_10 = p_10[n_l];
                const float v_11 = (v_10 + 1.0f);
                const float v_13 = (v_3 / v_11);
                B_out[m * 24 + n] = v_13;
            }
        }
    }
}

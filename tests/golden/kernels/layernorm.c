#define LUMC_LANES 16
#include "lumc_kernel.h"

/* layernorm
 * out[m, n]
 */
void layernorm(void *const *args, long part, long nparts)
{
    if (part != 0) return;
    (void)args, (void)part, (void)nparts;
    const float *restrict B_x = args[0];
    const float *restrict B_w = args[1];
    const float *restrict B_b = args[2];
    float *restrict B_out = args[3];
    float S_stage_4[1] __attribute__((aligned(64)));
    float S_stage_5[1] __attribute__((aligned(64)));
    for (long m_0 = 0; m_0 < 32; m_0 += 4) { /* m = 32 in tiles of 4 */
        for (long m = m_0; m < m_0 + 4; m++) { /* rows of m */
            /* stage.4[m] = sum over i of x[m, i] */
            float a_1[16];
#pragma omp simd
            for (long lane = 0; lane < 16; lane++) {
                a_1[lane] = 0;
            }
            for (long i_at = 0; i_at + 16 <= 64; i_at += 16) {
#pragma omp simd
                for (long i_l = 0; i_l < 16; i_l++) {
                    const long i = i_at + i_l;
                    const float v_2 = B_x[i + m * 64];
                    a_1[i_l] += (v_2);
                }
            }
            S_stage_4[0] = 0.0f + (float)lumc_sum_f32x16(*(lumc_f32x16 *)(a_1 + 0));
            /* stage.5[m] = sum over j of mul(add(x[m, j], mul(mul(stage.4[m], 0.015625), -1.0... */
            float a_3[16];
#pragma omp simd
            for (long lane = 0; lane < 16; lane++) {
                a_3[lane] = 0;
            }
            const float v_5 = S_stage_4[0];
            const float v_6 = (v_5 * 0.015625f);
            const float v_7 = (v_6 * -1.0f);
            for (long j_at = 0; j_at + 16 <= 64; j_at += 16) {
#pragma omp simd
                for (long j_l = 0; j_l < 16; j_l++) {
                    const long j = j_at + j_l;
                    const float v_4 = B_x[j + m * 64];
                    const float v_8 = (v_4 + v_7);
                    const float v_9 = (v_8 * v_8);
                    a_3[j_l] += (v_9);
                }
            }
            S_stage_5[0] = 0.0f + (float)lumc_sum_f32x16(*(lumc_f32x16 *)(a_3 + 0));
            /* out[m, n] = add(mul(mul(add(x[m, n], mul(mul(stage.4[m], 0.015625), -1.0)), rec... */
            const float v_11 = S_stage_4[0];
            const float v_12 = (v_11 * 0.015625f);
            const float v_13 = (v_12 * -1.0f);
            const float v_15 = S_stage_5[0];
            const float v_16 = (v_15 * 0.015625f);
            const float v_17 = (v_16 + 9.999999747378752e-06f);
            const float v_18 = lumc_sqrt_f32(v_17);
            const float v_19 = lumc_recip_f32(v_18);
#pragma omp simd
            for (long n = 0; n < 64; n++) {
                const float v_10 = B_x[m * 64 + n];
                const float v_14 = (v_10 + v_13);
                const float v_20 = (v_14 * v_19);
                const float v_21 = B_w[n];
                const float v_22 = (v_20 * v_21);
                const float v_23 = B_b[n];
                const float v_24 = (v_22 + v_23);
                B_out[m * 64 + n] = v_24;
            }
        }
    }
}

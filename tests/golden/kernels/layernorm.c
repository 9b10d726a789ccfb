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
            float a_1_0 = 0.0f;
            float a_1_1 = 0;
#pragma omp simd reduction(+:a_1_0, a_1_1)
            for (long i = 0; i < 32; i++) {
                const float v_2 = B_x[i + m * 64];
                const float v_3 = B_x[i + m * 64 + 32];
                a_1_0 += v_2;
                a_1_1 += v_3;
            }
            S_stage_4[0] = a_1_0 + a_1_1;
            /* stage.5[m] = sum over j of mul(add(x[m, j], mul(mul(stage.4[m], 0.015625), -1.0... */
            float a_4_0 = 0.0f;
            float a_4_1 = 0;
            const float v_6 = S_stage_4[0];
            const float v_7 = (v_6 * 0.015625f);
            const float v_8 = (v_7 * -1.0f);
#pragma omp simd reduction(+:a_4_0, a_4_1)
            for (long j = 0; j < 32; j++) {
                const float v_5 = B_x[j + m * 64];
                const float v_9 = (v_5 + v_8);
                const float v_10 = (v_9 * v_9);
                const float v_11 = B_x[j + m * 64 + 32];
                const float v_12 = (v_11 + v_8);
                const float v_13 = (v_12 * v_12);
                a_4_0 += v_10;
                a_4_1 += v_13;
            }
            S_stage_5[0] = a_4_0 + a_4_1;
            /* out[m, n] = add(mul(mul(add(x[m, n], mul(mul(stage.4[m], 0.015625), -1.0)), rec... */
            const float v_15 = S_stage_4[0];
            const float v_16 = (v_15 * 0.015625f);
            const float v_17 = (v_16 * -1.0f);
            const float v_19 = S_stage_5[0];
            const float v_20 = (v_19 * 0.015625f);
            const float v_21 = (v_20 + 9.999999747378752e-06f);
            const float v_22 = lumc_sqrt_f32(v_21);
            const float v_23 = lumc_recip_f32(v_22);
#pragma omp simd
            for (long n = 0; n < 64; n++) {
                const float v_14 = B_x[m * 64 + n];
                const float v_18 = (v_14 + v_17);
                const float v_24 = (v_18 * v_23);
                const float v_25 = B_w[n];
                const float v_26 = (v_24 * v_25);
                const float v_27 = B_b[n];
                const float v_28 = (v_26 + v_27);
                B_out[m * 64 + n] = v_28;
            }
        }
    }
}

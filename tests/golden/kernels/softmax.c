#define LUMC_LANES 16
#include "lumc_kernel.h"

/* softmax
 * out[m, n]
 */
void softmax(void *const *args, long part, long nparts)
{
    if (part != 0) return;
    (void)args, (void)part, (void)nparts;
    const float *restrict B_x = args[0];
    float *restrict B_out = args[1];
    float S_stage_2[1] __attribute__((aligned(64)));
    float S_stage_3[1] __attribute__((aligned(64)));
    for (long m_0 = 0; m_0 < 32; m_0 += 4) { /* m = 32 in tiles of 4 */
        for (long m = m_0; m < m_0 + 4; m++) { /* rows of m */
            /* stage.2[m] = top over i of x[m, i] */
            float a_1[16];
#pragma omp simd
            for (long lane = 0; lane < 16; lane++) {
                a_1[lane] = (-__builtin_inff());
            }
            for (long i_at = 0; i_at + 16 <= 64; i_at += 16) {
#pragma omp simd
                for (long i_l = 0; i_l < 16; i_l++) {
                    const long i = i_at + i_l;
                    const float v_2 = B_x[i + m * 64];
                    a_1[i_l] = (v_2) > a_1[i_l] ? (v_2) : a_1[i_l];
                }
            }
            float a_1_top = a_1[0];
#pragma omp simd reduction(LUMC_TOP:a_1_top)
            for (long lane = 0; lane < 16; lane++) {
                a_1_top = a_1[lane] > a_1_top ? a_1[lane] : a_1_top;
            }
            S_stage_2[0] = a_1_top;
            /* stage.3[m] = sum over j of decay(mul(add(x[m, j], mul(stage.2[m], -1.0)), 1.442... */
            float a_3[16];
#pragma omp simd
            for (long lane = 0; lane < 16; lane++) {
                a_3[lane] = 0;
            }
            const float v_5 = S_stage_2[0];
            const float v_6 = (v_5 * -1.0f);
            for (long j_at = 0; j_at + 16 <= 64; j_at += 16) {
                float p_8[16] __attribute__((aligned(64)));
                float p_9[16] __attribute__((aligned(64)));
#pragma omp simd
                for (long j_l = 0; j_l < 16; j_l++) {
                    const long j = j_at + j_l;
                    const float v_4 = B_x[j + m * 64];
                    const float v_7 = (v_4 + v_6);
                    const float v_8 = (v_7 * 1.4426950216293335f);
                    p_8[j_l] = v_8;
                }
                lumc_decay_n_f32(p_9, p_8, 16);
#pragma omp simd
                for (long j_l = 0; j_l < 16; j_l++) {
                    const long j = j_at + j_l;
                    const float v_9 = p_9[j_l];
                    a_3[j_l] += (v_9);
                    B_out[j + m * 64] = v_9;
                }
            }
            S_stage_3[0] = 0.0f + (float)lumc_sum_f32x16(*(lumc_f32x16 *)(a_3 + 0));
            /* out[m, n] = mul(out[m, n], recip(stage.3[m])) */
            const float v_11 = S_stage_3[0];
            const float v_12 = lumc_recip_f32(v_11);
#pragma omp simd
            for (long n = 0; n < 64; n++) {
                const float v_10 = B_out[m * 64 + n];
                const float v_13 = (v_10 * v_12);
                B_out[m * 64 + n] = v_13;
            }
        }
    }
}

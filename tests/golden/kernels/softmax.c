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
            /* stage.2[m] = max over i of x[m, i] */
            float a_1_0 = -__builtin_inff();
            float a_1_1 = -__builtin_inff();
            float a_1_2 = -__builtin_inff();
            float a_1_3 = -__builtin_inff();
            int32_t m_1 = lumc_magnitude_f32(-__builtin_inff());
#pragma omp simd reduction(LUMC_TOP:a_1_0, a_1_1, a_1_2, a_1_3) reduction(max:m_1)
            for (long i = 0; i < 16; i++) {
                const float v_2 = B_x[i + m * 64];
                const float v_3 = B_x[i + m * 64 + 16];
                const float v_4 = B_x[i + m * 64 + 32];
                const float v_5 = B_x[i + m * 64 + 48];
                a_1_0 = v_2 > a_1_0 ? v_2 : a_1_0;
                m_1 = lumc_magnitude_f32(v_2) > m_1 ? lumc_magnitude_f32(v_2) : m_1;
                a_1_1 = v_3 > a_1_1 ? v_3 : a_1_1;
                m_1 = lumc_magnitude_f32(v_3) > m_1 ? lumc_magnitude_f32(v_3) : m_1;
                a_1_2 = v_4 > a_1_2 ? v_4 : a_1_2;
                m_1 = lumc_magnitude_f32(v_4) > m_1 ? lumc_magnitude_f32(v_4) : m_1;
                a_1_3 = v_5 > a_1_3 ? v_5 : a_1_3;
                m_1 = lumc_magnitude_f32(v_5) > m_1 ? lumc_magnitude_f32(v_5) : m_1;
            }
            S_stage_2[0] = lumc_join_f32(lumc_top_f32(lumc_top_f32(lumc_top_f32(a_1_0, a_1_1), a_1_2), a_1_3), m_1);
            /* stage.3[m] = sum over j of exp2(mul(add(x[m, j], mul(stage.2[m], -1.0)), 1.4426... */
            float a_6_0 = 0.0f;
            float a_6_1 = 0;
            const float v_8 = S_stage_2[0];
            const float v_9 = (v_8 * -1.0f);
#pragma omp simd reduction(+:a_6_0, a_6_1)
            for (long j = 0; j < 32; j++) {
                const float v_7 = B_x[j + m * 64];
                const float v_10 = (v_7 + v_9);
                const float v_11 = (v_10 * 1.4426950216293335f);
                const float v_12 = lumc_exp2_f32(v_11);
                const float v_13 = B_x[j + m * 64 + 32];
                const float v_14 = (v_13 + v_9);
                const float v_15 = (v_14 * 1.4426950216293335f);
                const float v_16 = lumc_exp2_f32(v_15);
                a_6_0 += v_12;
                B_out[j + m * 64] = v_12;
                a_6_1 += v_16;
                B_out[j + m * 64 + 32] = v_16;
            }
            S_stage_3[0] = a_6_0 + a_6_1;
            /* out[m, n] = mul(out[m, n], recip(stage.3[m])) */
            const float v_18 = S_stage_3[0];
            const float v_19 = lumc_recip_f32(v_18);
#pragma omp simd
            for (long n = 0; n < 64; n++) {
                const float v_17 = B_out[m * 64 + n];
                const float v_20 = (v_17 * v_19);
                B_out[m * 64 + n] = v_20;
            }
        }
    }
}

#define LUMC_LANES 4
#include "lumc_kernel.h"

/* rows_i8
 * out[m, n]
 */
void typed_rows_i8(void *const *args, long part, long nparts)
{
    if (part != 0) return;
    (void)args, (void)part, (void)nparts;
    const int8_t *restrict B_x = args[0];
    int8_t *restrict B_out = args[1];
    int8_t S_stage_2[1] __attribute__((aligned(64)));
    int8_t S_stage_3[1] __attribute__((aligned(64)));
    for (long m_0 = 0; m_0 < 5; m_0 += 1) { /* m = 5 in tiles of 1 */
        {
            const long m = m_0;
            /* stage.2[m] = sum over j of x[m, j] */
            uint32_t a_1_0 = 0;
            uint32_t a_1_1 = 0;
#pragma omp simd reduction(+:a_1_0, a_1_1)
            for (long j = 0; j < 18; j++) {
                const int8_t v_2 = B_x[j + m * 37];
                const int8_t v_3 = B_x[j + m * 37 + 18];
                a_1_0 += v_2;
                a_1_1 += v_3;
            }
            for (long j = 36; j < 37; j++) { /* rest */
                const int8_t v_4 = B_x[j + m * 37];
                a_1_0 += v_4;
            }
            S_stage_2[0] = (int8_t)(a_1_0 + a_1_1);
            /* stage.3[m] = max over i of x[m, i] */
            int8_t a_5_0 = -128;
#pragma omp simd reduction(max:a_5_0)
            for (long i = 0; i < 37; i++) {
                const int8_t v_6 = B_x[i + m * 37];
                a_5_0 = v_6 > a_5_0 ? v_6 : a_5_0;
            }
            S_stage_3[0] = (int8_t)(a_5_0);
            /* out[m, n] = add(add(stage.2[m], stage.3[m]), mul(x[m, n], x[m, n])) */
            const int8_t v_7 = S_stage_2[0];
            const int8_t v_8 = S_stage_3[0];
            const int8_t v_9 = lumc_add_i8(v_7, v_8);
#pragma omp simd
            for (long n = 0; n < 37; n++) {
                const int8_t v_10 = B_x[m * 37 + n];
                const int8_t v_11 = lumc_mul_i8(v_10, v_10);
                const int8_t v_12 = lumc_add_i8(v_9, v_11);
                B_out[m * 37 + n] = v_12;
            }
        }
    }
}

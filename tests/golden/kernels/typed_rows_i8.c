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
            uint32_t a_1[8];
#pragma omp simd
            for (long lane = 0; lane < 8; lane++) {
                a_1[lane] = 0;
            }
            for (long j_at = 0; j_at + 8 <= 37; j_at += 8) {
#pragma omp simd
                for (long j_l = 0; j_l < 8; j_l++) {
                    const long j = j_at + j_l;
                    const int8_t v_2 = B_x[j + m * 37];
                    a_1[j_l] += (v_2);
                }
            }
            { /* rest */
                const int seen = 8 - 5;
                const long j_at = 37 - 8;
#pragma omp simd
                for (long j_l = 0; j_l < 8; j_l++) {
                    const long j = j_at + j_l;
                    const int8_t v_2 = B_x[j + m * 37];
                    a_1[j_l] += ((j_l < seen ? 0 : v_2));
                }
            }
            S_stage_2[0] = lumc_add_i8(0, (int8_t)lumc_sum_u32x4(*(lumc_u32x4 *)(a_1 + 0) + *(lumc_u32x4 *)(a_1 + 4)));
            /* stage.3[m] = max over i of x[m, i] */
            int8_t a_3[8];
#pragma omp simd
            for (long lane = 0; lane < 8; lane++) {
                a_3[lane] = (-128);
            }
            for (long i_at = 0; i_at + 8 <= 37; i_at += 8) {
#pragma omp simd
                for (long i_l = 0; i_l < 8; i_l++) {
                    const long i = i_at + i_l;
                    const int8_t v_4 = B_x[i + m * 37];
                    a_3[i_l] = (v_4) > a_3[i_l] ? (v_4) : a_3[i_l];
                }
            }
            { /* rest */
                const int seen = 8 - 5;
                const long i_at = 37 - 8;
#pragma omp simd
                for (long i_l = 0; i_l < 8; i_l++) {
                    const long i = i_at + i_l;
                    const int8_t v_4 = B_x[i + m * 37];
                    a_3[i_l] = ((i_l < seen ? a_3[i_l] : v_4)) > a_3[i_l] ? ((i_l < seen ? a_3[i_l] : v_4)) : a_3[i_l];
                }
            }
            int8_t a_3_top = a_3[0];
#pragma omp simd reduction(max:a_3_top)
            for (long lane = 0; lane < 8; lane++) {
                a_3_top = a_3[lane] > a_3_top ? a_3[lane] : a_3_top;
            }
            S_stage_3[0] = a_3_top;
            /* out[m, n] = add(add(stage.2[m], stage.3[m]), mul(x[m, n], x[m, n])) */
            const int8_t v_5 = S_stage_2[0];
            const int8_t v_6 = S_stage_3[0];
            const int8_t v_7 = lumc_add_i8(v_5, v_6);
#pragma omp simd
            for (long n = 0; n < 37; n++) {
                const int8_t v_8 = B_x[m * 37 + n];
                const int8_t v_9 = lumc_mul_i8(v_8, v_8);
                const int8_t v_10 = lumc_add_i8(v_7, v_9);
                B_out[m * 37 + n] = v_10;
            }
        }
    }
}

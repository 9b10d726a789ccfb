#define LUMC_LANES 16
#define LUMC_GUARDED
#include "lumc_kernel.h"

/* pad_iota
 * out[m, n]
 */
void pad_iota(void *const *args, long part, long nparts)
{
    if (part != 0) return;
    (void)args, (void)part, (void)nparts;
    const float *restrict B_x = args[0];
    float *restrict B_out = args[1];
    for (long m = 0; m < 6; m++) { /* rows of m */
        if (m < 2) {
            /* out[m, n] = add(add((x[m, n - 2] if 0 <= n - 2 < 37), sel(lt(i64(m), i64(n)), -... */
            const int32_t v_2 = (int32_t)(m);
            { /* rest */
                const long n_at = 40 - 40;
                float p_10[48] __attribute__((aligned(64))) = {0};
                float p_11[48] __attribute__((aligned(64))) = {0};
#pragma omp simd
                for (long n_l = 0; n_l < 40; n_l++) {
                    const long n = n_at + n_l;
                    const float v_7 = B_x[(m + n * 3) % 40];
                    const float v_9 = (v_7 * v_7);
                    const float v_10 = (v_9 + 1.0f);
                    p_10[n_l] = v_10;
                }
                lumc_log2_n_f32(p_11, p_10, 40);
#pragma omp simd
                for (long n_l = 0; n_l < 40; n_l++) {
                    const long n = n_at + n_l;
                    const float v_1 = (((n - 2 >= 0) & (n - 2 < 37)) ? B_x[m * 40 + n - 2] : 0.0f);
                    const int32_t v_3 = (int32_t)(n);
                    const _Bool v_4 = (v_2 < v_3);
                    const float v_5 = (v_4 ? -1000.0f : 0.0f);
                    const float v_6 = (v_1 + v_5);
                    const float v_7 = B_x[(m + n * 3) % 40];
                    const float v_8 = lumc_sin_f32(v_7);
                    const float v_11 = p_11[n_l];
                    const float v_12 = (v_8 + v_11);
                    const float v_13 = (v_6 + v_12);
                    B_out[m * 40 + n] = v_13;
                }
            }
        }
        if (m >= 2 && m < 4) {
            /* out[m, n] = add(add((x[m, n - 2] if 0 <= n - 2 < 37), sel(lt(i64(m), i64(n)), -... */
            const int32_t v_15 = (int32_t)(m);
            { /* rest */
                const long n_at = 40 - 40;
                float p_23[48] __attribute__((aligned(64))) = {0};
                float p_24[48] __attribute__((aligned(64))) = {0};
#pragma omp simd
                for (long n_l = 0; n_l < 40; n_l++) {
                    const long n = n_at + n_l;
                    const float v_20 = B_x[((m + n * 3) % 40) + 40];
                    const float v_22 = (v_20 * v_20);
                    const float v_23 = (v_22 + 1.0f);
                    p_23[n_l] = v_23;
                }
                lumc_log2_n_f32(p_24, p_23, 40);
#pragma omp simd
                for (long n_l = 0; n_l < 40; n_l++) {
                    const long n = n_at + n_l;
                    const float v_14 = (((n - 2 >= 0) & (n - 2 < 37)) ? B_x[m * 40 + n - 2] : 0.0f);
                    const int32_t v_16 = (int32_t)(n);
                    const _Bool v_17 = (v_15 < v_16);
                    const float v_18 = (v_17 ? -1000.0f : 0.0f);
                    const float v_19 = (v_14 + v_18);
                    const float v_20 = B_x[((m + n * 3) % 40) + 40];
                    const float v_21 = lumc_sin_f32(v_20);
                    const float v_24 = p_24[n_l];
                    const float v_25 = (v_21 + v_24);
                    const float v_26 = (v_19 + v_25);
                    B_out[m * 40 + n] = v_26;
                }
            }
        }
        if (m >= 4) {
            /* out[m, n] = add(add((x[m, n - 2] if 0 <= n - 2 < 37), sel(lt(i64(m), i64(n)), -... */
            const int32_t v_28 = (int32_t)(m);
            { /* rest */
                const long n_at = 40 - 40;
                float p_36[48] __attribute__((aligned(64))) = {0};
                float p_37[48] __attribute__((aligned(64))) = {0};
#pragma omp simd
                for (long n_l = 0; n_l < 40; n_l++) {
                    const long n = n_at + n_l;
                    const float v_33 = B_x[((m + n * 3) % 40) + 80];
                    const float v_35 = (v_33 * v_33);
                    const float v_36 = (v_35 + 1.0f);
                    p_36[n_l] = v_36;
                }
                lumc_log2_n_f32(p_37, p_36, 40);
#pragma omp simd
                for (long n_l = 0; n_l < 40; n_l++) {
                    const long n = n_at + n_l;
                    const float v_27 = (((n - 2 >= 0) & (n - 2 < 37)) ? B_x[m * 40 + n - 2] : 0.0f);
                    const int32_t v_29 = (int32_t)(n);
                    const _Bool v_30 = (v_28 < v_29);
                    const float v_31 = (v_30 ? -1000.0f : 0.0f);
                    const float v_32 = (v_27 + v_31);
                    const float v_33 = B_x[((m + n * 3) % 40) + 80];
                    const float v_34 = lumc_sin_f32(v_33);
                    const float v_37 = p_37[n_l];
                    const float v_38 = (v_34 + v_37);
                    const float v_39 = (v_32 + v_38);
                    B_out[m * 40 + n] = v_39;
                }
            }
        }
    }
}

#define LUMC_LANES 16
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
    /* out[m, n] = add(add((x[m, n - 2] if 0 <= n - 2 < 37), sel(lt(i64(m), i64(n)), -1000.0))... */
    for (long m = 0; m < 6; m++) {
        const int32_t v_2 = (int32_t)(m);
#pragma omp simd
        for (long n = 0; n < 40; n++) {
            const float v_1 = (((n - 2 >= 0) & (n - 2 < 37)) ? B_x[m * 40 + n - 2] : 0.0f);
            const int32_t v_3 = (int32_t)(n);
            const _Bool v_4 = (v_2 < v_3);
            const float v_5 = (v_4 ? -1000.0f : 0.0f);
            const float v_6 = (v_1 + v_5);
            const float v_7 = B_x[((m + n * 3) % 40) + ((m) / 2) * 40];
            const float v_8 = lumc_sin_f32(v_7);
            const float v_9 = (v_7 * v_7);
            const float v_10 = (v_9 + 1.0f);
            const float v_11 = lumc_log2_f32(v_10);
            const float v_12 = (v_8 + v_11);
            const float v_13 = (v_6 + v_12);
            B_out[m * 40 + n] = v_13;
        }
    }
}

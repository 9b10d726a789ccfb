#define LUMC_LANES 16
#include "lumc_kernel.h"

static __attribute__((noinline)) void micro_0(const float *restrict A, const float *restrict B, float *restrict C)
{
    lumc_f32x4 c0_0 = {0};
    lumc_f32x4 c1_0 = {0};
    lumc_f32x4 c2_0 = {0};
    lumc_f32x4 c3_0 = {0};
    lumc_f32x4 c4_0 = {0};
    lumc_f32x4 c5_0 = {0};
    lumc_f32x4 c6_0 = {0};
    lumc_f32x4 c7_0 = {0};
    #pragma GCC unroll 4
    for (long i0 = 0; i0 < 32; i0++) { /* e */
    const float *A0 = A + i0 * 32, *B0 = B + i0 * 16;
    const lumc_f32x4 b0 = *(const lumc_f32x4 *)(B0 + 0);
    const float a0 = A0[0]; c0_0 += a0 * b0;
    const float a1 = A0[1]; c1_0 += a1 * b0;
    const float a2 = A0[2]; c2_0 += a2 * b0;
    const float a3 = A0[3]; c3_0 += a3 * b0;
    const float a4 = A0[4]; c4_0 += a4 * b0;
    const float a5 = A0[5]; c5_0 += a5 * b0;
    const float a6 = A0[6]; c6_0 += a6 * b0;
    const float a7 = A0[7]; c7_0 += a7 * b0;
    }
    *(lumc_f32x4 *)(C + 0) = c0_0;
    *(lumc_f32x4 *)(C + 4) = c1_0;
    *(lumc_f32x4 *)(C + 8) = c2_0;
    *(lumc_f32x4 *)(C + 12) = c3_0;
    *(lumc_f32x4 *)(C + 16) = c4_0;
    *(lumc_f32x4 *)(C + 20) = c5_0;
    *(lumc_f32x4 *)(C + 24) = c6_0;
    *(lumc_f32x4 *)(C + 28) = c7_0;
}
/* cache_update
 * cache[h, <position[0]>, d]
 * y[h, d]
 */
void cache_update(void *const *args, long part, long nparts)
{
    if (part != 0) return;
    (void)args, (void)part, (void)nparts;
    const float *restrict B_x = args[0];
    const float *restrict B_w = args[1];
    const int32_t *restrict B_position = args[2];
    float *restrict B_cache = args[3];
    float *restrict B_y = args[4];
    char *const scratch = (char *)args[5] + part * 4096L;
    float *restrict S_copy_5 = (void *)(scratch + 0L);
    float *restrict S_stage_6 = (void *)(scratch + 2112L);
    /* copy.5[e, h] = x[h, e] */
    for (long h_p = 0; h_p < 4; h_p += 16) { /* panels of h */
        float *restrict S_copy_5_p = S_copy_5 + (h_p) / 16 * 512L;
        if (4 - h_p == 4) {
            for (long e = 0; e < 32; e++) {
#pragma omp simd
                for (long h = h_p; h < h_p + 4; h++) {
                    const float v_1 = B_x[e + h * 32];
                    S_copy_5_p[e * 16 + h - h_p] = v_1;
                }
            }
        }
    }
    /* stage.6[d, h] += over e w[e, d] * copy.5[e, h] */
    for (long d = 0; d < 32; d += 8) { /* panels */
        for (long h = 0; h < 4; h += 16) { /* panels */
            micro_0(&B_w[d], &S_copy_5[(h) / 16 * 512L], &S_stage_6[d * 4 + h]);
        }
    }
    /* cache[h, <position[0]>, d] = stage.6[d, h] */
    const int32_t v_3 = B_position[0];
    for (long h = 0; h < 4; h++) {
#pragma omp simd
        for (long d = 0; d < 32; d++) {
            const float v_2 = S_stage_6[d * 4 + h];
            B_cache[(long)v_3 * 32 + d + h * 256] = v_2;
        }
    }
    /* y[h, d] = mul(x[h, d], 2.0) */
    for (long h = 0; h < 4; h++) {
#pragma omp simd
        for (long d = 0; d < 32; d++) {
            const float v_4 = B_x[d + h * 32];
            const float v_5 = (v_4 * 2.0f);
            B_y[d + h * 32] = v_5;
        }
    }
}

#define LUMC_LANES 16
#include "lumc_kernel.h"

static __attribute__((noinline)) void micro_0(const float *restrict A, const float *restrict B, float *restrict C)
{
    lumc_f32x16 c0_0 = {0}; lumc_f32x16 c0_1 = {0};
    lumc_f32x16 c1_0 = {0}; lumc_f32x16 c1_1 = {0};
    lumc_f32x16 c2_0 = {0}; lumc_f32x16 c2_1 = {0};
    lumc_f32x16 c3_0 = {0}; lumc_f32x16 c3_1 = {0};
    for (long i0 = 0; i0 < 32; i0++) { /* e */
        const float *A0 = A + i0 * 1, *B0 = B + i0 * 32;
        const lumc_f32x16 b0 = *(const lumc_f32x16 *)(B0 + 0);
        const lumc_f32x16 b1 = *(const lumc_f32x16 *)(B0 + 16);
        const float a0 = A0[0]; c0_0 += a0 * b0; c0_1 += a0 * b1;
        const float a1 = A0[32]; c1_0 += a1 * b0; c1_1 += a1 * b1;
        const float a2 = A0[64]; c2_0 += a2 * b0; c2_1 += a2 * b1;
        const float a3 = A0[96]; c3_0 += a3 * b0; c3_1 += a3 * b1;
        __builtin_prefetch((const char *)B0 + 8192);
        __builtin_prefetch((const char *)B0 + 8256);
    }
    *(lumc_f32x16 *)(C + 0) = c0_0;
    *(lumc_f32x16 *)(C + 16) = c0_1;
    *(lumc_f32x16 *)(C + 32) = c1_0;
    *(lumc_f32x16 *)(C + 48) = c1_1;
    *(lumc_f32x16 *)(C + 64) = c2_0;
    *(lumc_f32x16 *)(C + 80) = c2_1;
    *(lumc_f32x16 *)(C + 96) = c3_0;
    *(lumc_f32x16 *)(C + 112) = c3_1;
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
    const int32_t *restrict B_position = args[2];
    float *restrict B_cache = args[3];
    float *restrict B_y = args[4];
    const float *restrict S_packed_5 = args[5];
    char *const scratch = (char *)args[6] + part * 4096L;
    float *restrict S_stage_6 = (void *)(scratch + 0L);
    /* stage.6[h, d] += over e x[h, e] * packed.5[e, d] */
    for (long d = 0; d < 32; d += 32) { /* panels */
        for (long h = 0; h < 4; h += 4) { /* panels */
            micro_0(&B_x[h * 32], &S_packed_5[(d) / 32 * 1024L], &S_stage_6[d + h * 32]);
        }
    }
    /* cache[h, <position[0]>, d] = stage.6[h, d] */
    const int32_t v_2 = B_position[0];
    for (long h = 0; h < 4; h++) {
#pragma omp simd
        for (long d = 0; d < 32; d++) {
            const float v_1 = S_stage_6[d + h * 32];
            B_cache[(long)v_2 * 32 + d + h * 256] = v_1;
        }
    }
    /* y[h, d] = mul(x[h, d], 2.0) */
    for (long h = 0; h < 4; h++) {
#pragma omp simd
        for (long d = 0; d < 32; d++) {
            const float v_3 = B_x[d + h * 32];
            const float v_4 = (v_3 * 2.0f);
            B_y[d + h * 32] = v_4;
        }
    }
}

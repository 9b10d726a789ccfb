#include "lumc_dev.h"

/* linear_gelu
 * out[m, n]
 */
extern "C" __global__ void __launch_bounds__(128, 1)
linear_gelu(const float *__restrict__ B_x, const float *__restrict__ B_w, const float *__restrict__ B_b, float *__restrict__ B_out)
{
    const unsigned tid = threadIdx.x;
    const int block = blockIdx.x;
    LUMC_SHARED(lumc_u8, SHARED);
    float R_stage_4[16];
    LUMC_TILE(float, S_copy_5, SHARED, 0, 1152);
    LUMC_TILE(float, S_copy_6, SHARED, 4608, 2304);
    /* blocks: m = 70 in tiles of 32, n = 100 in tiles of 64 */
    const int m_0 = block / 2 * 32;
    const int m_n = lumc_min(32, 70 - m_0);
    const int n_0 = block % 2 * 64;
    const int n_n = lumc_min(64, 100 - n_0);
    {
        /* stage.4[m, n] = 0.0 */
        LUMC_UNROLL for (int D0 = 0; D0 < 4; D0++) {
            LUMC_UNROLL for (int D1 = 0; D1 < 4; D1++) {
                const int m_o = D0 * 8;
                const int n_o = D1;
                R_stage_4[m_o / 8 % 4 * 4 + n_o % 4] = 0.0f;
            }
        }
    }
    for (int k_0 = 0; k_0 < 36; k_0 += 32) { /* k = 36 in tiles of 32 */
        const int k_n = lumc_min(32, 36 - k_0);
        lumc_sync();
        {
            /* copy.5[k, m] = x[m, k] */
            const int k_t = (int)(tid & 7) * 4;
            const int m_t = (int)(tid >> 3 & 15);
            LUMC_UNROLL for (int D0 = 0; D0 < 2; D0++) {
                const int k = k_0 + k_t;
                const int m_o = D0 * 16;
                const int m = m_0 + m_o + m_t;
                const float ZERO[4] = {};
                if (k < k_0 + k_n && m < m_0 + m_n) lumc_copy<16>(&S_copy_5[k - k_0 + m * 36 - m_0 * 36], &B_x[k + m * 36]); else lumc_store(&S_copy_5[k - k_0 + m * 36 - m_0 * 36], ZERO);
            }
        }
        {
            /* copy.6[k, n] = w[n, k] */
            const int k_t = (int)(tid & 7) * 4;
            const int n_t = (int)(tid >> 3 & 15);
            LUMC_UNROLL for (int D0 = 0; D0 < 4; D0++) {
                const int k = k_0 + k_t;
                const int n_o = D0 * 16;
                const int n = n_0 + n_o + n_t;
                const float ZERO[4] = {};
                if (k < k_0 + k_n && n < n_0 + n_n) lumc_copy<16>(&S_copy_6[k - k_0 + n * 36 - n_0 * 36], &B_w[k + n * 36]); else lumc_store(&S_copy_6[k - k_0 + n * 36 - n_0 * 36], ZERO);
            }
        }
        lumc_sync();
        {
            /* stage.4[m, n] += copy.5[k, m] * copy.6[k, n] */
            const int m_t = (int)(tid >> 4 & 7);
            const int n_t = (int)(tid & 15) * 4;
            for (int k = k_0; k < k_0 + k_n; k++) {
                float A[4];
                {
                    LUMC_UNROLL for (int D0 = 0; D0 < 4; D0++) {
                        const int m_o = D0 * 8;
                        const int m = m_0 + m_o + m_t;
                        A[D0] = S_copy_5[k - k_0 + m * 36 - m_0 * 36];
                    }
                }
                float B[4];
                {
                    LUMC_UNROLL for (int D0 = 0; D0 < 4; D0++) {
                        const int n_o = D0;
                        const int n = n_0 + n_o + n_t;
                        B[D0] = S_copy_6[k - k_0 + n * 36 - n_0 * 36];
                    }
                }
                LUMC_UNROLL for (int D0 = 0; D0 < 4; D0++) {
                    LUMC_UNROLL for (int D1 = 0; D1 < 4; D1++) {
                        const int m_o = D0 * 8;
                        const int n_o = D1 * 1;
                        R_stage_4[m_o / 8 % 4 * 4 + n_o % 4] += A[D0] * B[D1];
                    }
                }
            }
        }
    }
    {
        /* out[m, n] = mul(add(stage.4[m, n], b[n]), recip(add(exp_ftz(mul(mul(add(add(stage.4... */
        const int m_t = (int)(tid >> 4 & 7);
        const int n_t = (int)(tid & 15) * 4;
        LUMC_UNROLL for (int D0 = 0; D0 < 4; D0++) {
            const int m_o = D0 * 8;
            const int m = m_0 + m_o + m_t;
            const int n = n_0 + n_t;
            if (m < m_0 + m_n && n < n_0 + n_n) {
                float V_1[4];
                lumc_load(V_1, &B_b[n]);
                float OUT[4];
                LUMC_UNROLL for (int D1 = 0; D1 < 4; D1++) {
                    const int m_o = D0 * 8;
                    const int n_o = D1;
                    const float v_2 = R_stage_4[m_o / 8 % 4 * 4 + n_o % 4];
                    const float v_3 = V_1[D1];
                    const float v_4 = (v_2 + v_3);
                    const float v_5 = (v_4 * v_4);
                    const float v_6 = (v_5 * v_4);
                    const float v_7 = (v_6 * 0.044714998453855515f);
                    const float v_8 = (v_4 + v_7);
                    const float v_9 = (v_8 * 1.5957691669464111f);
                    const float v_10 = (v_9 * -1.0f);
                    const float v_11 = lumc_exp_ftz_f32(v_10);
                    const float v_12 = (v_11 + 1.0f);
                    const float v_13 = lumc_recip_f32(v_12);
                    const float v_14 = (v_4 * v_13);
                    OUT[D1] = v_14;
                }
                lumc_store(&B_out[m * 100 + n], OUT);
            }
        }
    }
}
LUMC_EXPORT(linear_gelu)

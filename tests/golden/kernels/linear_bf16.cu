#include "lumc_dev.h"

/* linear_gelu_bf16
 * out[m, n]
 */
extern "C" __global__ void __launch_bounds__(128, 1)
linear_bf16(const lumc_bf16 *__restrict__ B_x, const lumc_bf16 *__restrict__ B_w, const lumc_bf16 *__restrict__ B_b, lumc_bf16 *__restrict__ B_out)
{
    const unsigned tid = threadIdx.x;
    const int block = blockIdx.x;
    LUMC_SHARED(lumc_u8, SHARED);
    float R_stage_4[16];
    LUMC_TILE(lumc_bf16, S_copy_5, SHARED, 0, 3072);
    LUMC_TILE(lumc_bf16, S_copy_6, SHARED, 6144, 6144);
    /* blocks: m = 70 in tiles of 32, n = 96 in tiles of 64 */
    const int m_0 = block / 2 * 32;
    const int m_n = lumc_min(32, 70 - m_0);
    const int n_0 = block % 2 * 64;
    const int n_n = lumc_min(64, 96 - n_0);
    {
        /* stage.4[m, n] = 0.0 */
        LUMC_UNROLL for (int D0 = 0; D0 < 1; D0++) {
            LUMC_UNROLL for (int D1 = 0; D1 < 4; D1++) {
                LUMC_UNROLL for (int D2 = 0; D2 < 2; D2++) {
                    LUMC_UNROLL for (int D3 = 0; D3 < 2; D3++) {
                        const int m_o = D0 * 16 + D2 * 8;
                        const int n_o = D1 * 8 + D3;
                        R_stage_4[n_o / 8 % 4 * 4 + m_o / 8 % 2 * 2 + n_o % 2] = 0.0f;
                    }
                }
            }
        }
    }
    { /* k = 64 in tiles of 32, 3 slots */
        {
            const int k_0 = 0;
            if (k_0 < 64) {
                {
                    /* copy.5[k, m] = x[m, k] */
                    const int k_t = (int)(tid & 3) * 8;
                    const int m_t = (int)(tid >> 2 & 31);
                    const int m = m_0 + m_t;
                    lumc_cp_async<16>(&S_copy_5[(0) * 1024 + lumc_swizzle<3, 24>(k_t + m_t * 32)], &B_x[k_0 + k_t + m_0 * 64 + m_t * 64], m < m_0 + m_n ? 16 : 0);
                }
                {
                    /* copy.6[k, n] = w[n, k] */
                    const int k_t = (int)(tid & 3) * 8;
                    const int n_t = (int)(tid >> 2 & 31);
                    LUMC_UNROLL for (int D0 = 0; D0 < 2; D0++) {
                        const int n_o = D0 * 32;
                        const int n = n_0 + n_o + n_t;
                        lumc_cp_async<16>(&S_copy_6[(0) * 2048 + lumc_swizzle<3, 24>(k_t + n_t * 32)] + n_o * 32, &B_w[k_0 + k_t + n_0 * 64 + n_t * 64] + n_o * 64, n < n_0 + n_n ? 16 : 0);
                    }
                }
            }
            lumc_cp_async_commit();
        }
        {
            const int k_0 = 32;
            if (k_0 < 64) {
                {
                    /* copy.5[k, m] = x[m, k] */
                    const int k_t = (int)(tid & 3) * 8;
                    const int m_t = (int)(tid >> 2 & 31);
                    const int m = m_0 + m_t;
                    lumc_cp_async<16>(&S_copy_5[(1) * 1024 + lumc_swizzle<3, 24>(k_t + m_t * 32)], &B_x[k_0 + k_t + m_0 * 64 + m_t * 64], m < m_0 + m_n ? 16 : 0);
                }
                {
                    /* copy.6[k, n] = w[n, k] */
                    const int k_t = (int)(tid & 3) * 8;
                    const int n_t = (int)(tid >> 2 & 31);
                    LUMC_UNROLL for (int D0 = 0; D0 < 2; D0++) {
                        const int n_o = D0 * 32;
                        const int n = n_0 + n_o + n_t;
                        lumc_cp_async<16>(&S_copy_6[(1) * 2048 + lumc_swizzle<3, 24>(k_t + n_t * 32)] + n_o * 32, &B_w[k_0 + k_t + n_0 * 64 + n_t * 64] + n_o * 64, n < n_0 + n_n ? 16 : 0);
                    }
                }
            }
            lumc_cp_async_commit();
        }
        for (int k_0 = 0, SLOT = 0; k_0 < 64; k_0 += 32, SLOT = SLOT + 1 == 3 ? 0 : SLOT + 1) {
            lumc_cp_async_wait<1>();
            lumc_sync();
            const int AHEAD = k_0 + 64;
            {
                const int k_0 = AHEAD;
                if (k_0 < 64) {
                    {
                        /* copy.5[k, m] = x[m, k] */
                        const int k_t = (int)(tid & 3) * 8;
                        const int m_t = (int)(tid >> 2 & 31);
                        const int m = m_0 + m_t;
                        lumc_cp_async<16>(&S_copy_5[((SLOT + 2) % 3) * 1024 + lumc_swizzle<3, 24>(k_t + m_t * 32)], &B_x[k_0 + k_t + m_0 * 64 + m_t * 64], m < m_0 + m_n ? 16 : 0);
                    }
                    {
                        /* copy.6[k, n] = w[n, k] */
                        const int k_t = (int)(tid & 3) * 8;
                        const int n_t = (int)(tid >> 2 & 31);
                        LUMC_UNROLL for (int D0 = 0; D0 < 2; D0++) {
                            const int n_o = D0 * 32;
                            const int n = n_0 + n_o + n_t;
                            lumc_cp_async<16>(&S_copy_6[((SLOT + 2) % 3) * 2048 + lumc_swizzle<3, 24>(k_t + n_t * 32)] + n_o * 32, &B_w[k_0 + k_t + n_0 * 64 + n_t * 64] + n_o * 64, n < n_0 + n_n ? 16 : 0);
                        }
                    }
                }
                lumc_cp_async_commit();
            }
            {
                /* stage.4[m, n] += copy.5[k, m] * copy.6[k, n] */
                LUMC_UNROLL for (int K = 0; K < 2; K++) {
                    lumc_u32 A[1][4], B[2][4];
                    LUMC_UNROLL for (int I = 0; I < 1; I++) {
                        const int k = k_0 + K * 16 + (tid >> 4 & 1) * 8;
                        const int m = m_0 + (int)(tid >> 5 & 1) * 16 + (tid & 15);
                        lumc_ldmatrix_x4<false>(A[I], &S_copy_5[(SLOT) * 1024 + lumc_swizzle<3, 24>(k - k_0 + m * 32 - m_0 * 32)] + I * 16 * 32);
                    }
                    LUMC_UNROLL for (int I = 0; I < 2; I++) {
                        const int k = k_0 + K * 16 + (tid >> 3 & 1) * 8;
                        const int n = n_0 + (int)(tid >> 6 & 1) * 32 + (tid & 7) + (tid >> 4 & 1) * 8;
                        lumc_ldmatrix_x4<false>(B[I], &S_copy_6[(SLOT) * 2048 + lumc_swizzle<3, 24>(k - k_0 + n * 32 - n_0 * 32)] + I * 16 * 32);
                    }
                    LUMC_UNROLL for (int I = 0; I < 1; I++) {
                        LUMC_UNROLL for (int J = 0; J < 4; J++) {
                            const lumc_u32 PAIR[2] = {B[J / 2][J % 2 * 2], B[J / 2][J % 2 * 2 + 1]};
                            float C[4];
                            LUMC_UNROLL for (int Q = 0; Q < 4; Q++) {
                                const int m_o = I * 16 + Q / 2 * 8, n_o = J * 8 + Q % 2;
                                C[Q] = R_stage_4[n_o / 8 % 4 * 4 + m_o / 8 % 2 * 2 + n_o % 2];
                            }
                            lumc_mma<lumc_bf16>(C, A[I], PAIR, C);
                            LUMC_UNROLL for (int Q = 0; Q < 4; Q++) {
                                const int m_o = I * 16 + Q / 2 * 8, n_o = J * 8 + Q % 2;
                                R_stage_4[n_o / 8 % 4 * 4 + m_o / 8 % 2 * 2 + n_o % 2] = C[Q];
                            }
                        }
                    }
                }
            }
        }
    }
    {
        /* out[m, n] = mul(add(stage.4[m, n], b[n]), recip(add(exp2_ftz(mul(mul(mul(add(add(st... */
        const int m_t = (int)(tid >> 2 & 7) + (int)(tid >> 5 & 1) * 16;
        const int n_t = (int)(tid & 3) * 2 + (int)(tid >> 6 & 1) * 32;
        LUMC_UNROLL for (int D0 = 0; D0 < 2; D0++) {
            LUMC_UNROLL for (int D1 = 0; D1 < 1; D1++) {
                LUMC_UNROLL for (int D2 = 0; D2 < 2; D2++) {
                    float OUT[2][2] = {};
                    LUMC_UNROLL for (int D3 = 0; D3 < 2; D3++) {
                        const int m_o = D1 * 16 + D2 * 8;
                        const int m = m_0 + m_o + m_t;
                        const int n_o = D0 * 16 + D3 * 8;
                        const int n = n_0 + n_o + n_t;
                        if (m < m_0 + m_n && n < n_0 + n_n) {
                            lumc_bf16 V_1[2];
                            lumc_load(V_1, &B_b[n]);
                            LUMC_UNROLL for (int D4 = 0; D4 < 2; D4++) {
                                const int m_o = D1 * 16 + D2 * 8;
                                const int n_o = D0 * 16 + D3 * 8 + D4;
                                const float v_2 = R_stage_4[n_o / 8 % 4 * 4 + m_o / 8 % 2 * 2 + n_o % 2];
                                const float v_3 = lumc_from_bf16(V_1[D4]);
                                const float v_4 = (v_2 + v_3);
                                const float v_5 = (v_4 * v_4);
                                const float v_6 = (v_5 * v_4);
                                const float v_7 = (v_6 * 0.044677734375f);
                                const float v_8 = (v_4 + v_7);
                                const float v_9 = (v_8 * 1.59375f);
                                const float v_10 = (v_9 * -1.0f);
                                const float v_11 = (v_10 * 1.4453125f);
                                const float v_12 = lumc_exp2_ftz_f32(v_11);
                                const float v_13 = (v_12 + 1.0f);
                                const float v_14 = lumc_recip_f32(v_13);
                                const float v_15 = (v_4 * v_14);
                                OUT[D3][D4] = v_15;
                            }
                        }
                    }
                    lumc_u32 NEXT[2];
                    lumc_exchange<lumc_bf16>(tid, OUT, NEXT);
                    {
                        const int m_t = (int)(tid >> 2 & 7) + (int)(tid >> 5 & 1) * 16;
                        const int n_t = (int)(tid & 1) * 8 + (int)(tid >> 1 & 1) * 4 + (int)(tid >> 6 & 1) * 32;
                        const int m_o = D1 * 16 + D2 * 8;
                        const int m = m_0 + m_o + m_t;
                        const int n_o = D0 * 16;
                        const int n = n_0 + n_o + n_t;
                        if (m < m_0 + m_n && n < n_0 + n_n) {
                            lumc_store((lumc_u32 *)&B_out[m * 96 + n], NEXT);
                        }
                    }
                }
            }
        }
    }
}
LUMC_EXPORT(linear_bf16)

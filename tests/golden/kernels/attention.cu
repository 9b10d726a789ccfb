#include "lumc_dev.h"

/* attention_f16
 * out[h, q, d]
 */
extern "C" __global__ void __launch_bounds__(128, 1)
attention(const lumc_f16 *__restrict__ B_Q, const lumc_f16 *__restrict__ B_K, const lumc_f16 *__restrict__ B_V, const lumc_f16 *__restrict__ B_mask, lumc_f16 *__restrict__ B_out)
{
    const unsigned tid = threadIdx.x;
    const int block = blockIdx.x;
    LUMC_SHARED(lumc_u8, SHARED);
    lumc_u32 R_copy_5[16];
    float R_top_10[2];
    float R_stage_13[32];
    float R_stage_14[2];
    LUMC_TILE(lumc_f16, S_copy_7, SHARED, 0, 8192);
    float R_stage_6[32];
    float R_top_11[2];
    float R_scores_9[32];
    float R_scale_12[2];
    lumc_u32 R_weights_8[16];
    LUMC_TILE(lumc_f16, S_copy_15, SHARED, 16384, 8192);
    /* blocks: h = 2 in tiles of 1, q = 128 in tiles of 64 */
    const int h_0 = block / 2 * 1;
    const int q_0 = block % 2 * 64;
    {
        float E_copy_5[32];
        /* copy.5[h, e, q] = Q[h, q, e] */
        const int e_t = (int)(tid & 3) * 2;
        const int q_t = (int)(tid >> 2 & 7) + (int)(tid >> 5 & 3) * 16;
        LUMC_UNROLL for (int D0 = 0; D0 < 1; D0++) {
            LUMC_UNROLL for (int D1 = 0; D1 < 4; D1++) {
                LUMC_UNROLL for (int D2 = 0; D2 < 2; D2++) {
                    LUMC_UNROLL for (int D3 = 0; D3 < 2; D3++) {
                        const int h = h_0;
                        const int e_o = D1 * 16 + D2 * 8;
                        const int e = e_o + e_t;
                        const int q_o = D0 * 16 + D3 * 8;
                        const int q = q_0 + q_o + q_t;
                        lumc_f16 V_1[2];
                        lumc_load(V_1, &B_Q[e + h * 8192 + q * 64]);
                        LUMC_UNROLL for (int D4 = 0; D4 < 2; D4++) {
                            const int e_o = D1 * 16 + D2 * 8 + D4;
                            const int q_o = D0 * 16 + D3 * 8;
                            const float v_2 = lumc_from_f16(V_1[D4]);
                            E_copy_5[e_o / 16 % 4 * 8 + e_o / 8 % 2 * 4 + q_o / 8 % 2 * 2 + e_o % 2] = v_2;
                        }
                    }
                }
            }
        }
        LUMC_UNROLL for (int D = 0; D < 16; D++) {
            R_copy_5[D] = lumc_pack<lumc_f16>(E_copy_5[2 * D], E_copy_5[2 * D + 1]);
        }
    }
    {
        /* top.10[h, q] = -inf */
        LUMC_UNROLL for (int D0 = 0; D0 < 1; D0++) {
            LUMC_UNROLL for (int D1 = 0; D1 < 2; D1++) {
                const int q_o = D0 * 16 + D1 * 8;
                R_top_10[q_o / 8 % 2] = -LUMC_INF_F32;
            }
        }
    }
    {
        /* stage.13[h, q, d] = 0.0 */
        LUMC_UNROLL for (int D0 = 0; D0 < 1; D0++) {
            LUMC_UNROLL for (int D1 = 0; D1 < 8; D1++) {
                LUMC_UNROLL for (int D2 = 0; D2 < 2; D2++) {
                    LUMC_UNROLL for (int D3 = 0; D3 < 2; D3++) {
                        const int q_o = D0 * 16 + D2 * 8;
                        const int d_o = D1 * 8 + D3;
                        R_stage_13[d_o / 8 % 8 * 4 + q_o / 8 % 2 * 2 + d_o % 2] = 0.0f;
                    }
                }
            }
        }
    }
    {
        /* stage.14[h, q] = 0.0 */
        LUMC_UNROLL for (int D0 = 0; D0 < 1; D0++) {
            LUMC_UNROLL for (int D1 = 0; D1 < 2; D1++) {
                const int q_o = D0 * 16 + D1 * 8;
                R_stage_14[q_o / 8 % 2] = 0.0f;
            }
        }
    }
    { /* j = 128 in tiles of 64, 2 slots */
        {
            const int j_0 = 0;
            if (j_0 < 128) {
                {
                    /* copy.7[h, e, j] = K[h, j, e] */
                    const int e_t = (int)(tid & 7) * 8;
                    const int j_t = (int)(tid >> 3 & 15);
                    LUMC_UNROLL for (int D0 = 0; D0 < 4; D0++) {
                        const int j_o = D0 * 16;
                        lumc_cp_async<16>(&S_copy_7[(0) * 4096 + lumc_swizzle<3, 56>(e_t + j_t * 64)] + j_o * 64, &B_K[e_t + h_0 * 8192 + j_0 * 64 + j_t * 64] + j_o * 64);
                    }
                }
                {
                    /* copy.15[h, j, d] = V[h, j, d] */
                    const int j_t = (int)(tid >> 3 & 15);
                    const int d_t = (int)(tid & 7) * 8;
                    LUMC_UNROLL for (int D0 = 0; D0 < 4; D0++) {
                        const int j_o = D0 * 16;
                        lumc_cp_async<16>(&S_copy_15[(0) * 4096 + lumc_swizzle<3, 56>(d_t + j_t * 64)] + j_o * 64, &B_V[d_t + h_0 * 8192 + j_0 * 64 + j_t * 64] + j_o * 64);
                    }
                }
            }
            lumc_cp_async_commit();
        }
        for (int j_0 = 0, SLOT = 0; j_0 < 128; j_0 += 64, SLOT = SLOT + 1 == 2 ? 0 : SLOT + 1) {
            lumc_cp_async_wait<0>();
            lumc_sync();
            const int AHEAD = j_0 + 64;
            {
                const int j_0 = AHEAD;
                if (j_0 < 128) {
                    {
                        /* copy.7[h, e, j] = K[h, j, e] */
                        const int e_t = (int)(tid & 7) * 8;
                        const int j_t = (int)(tid >> 3 & 15);
                        LUMC_UNROLL for (int D0 = 0; D0 < 4; D0++) {
                            const int j_o = D0 * 16;
                            lumc_cp_async<16>(&S_copy_7[((SLOT + 1) % 2) * 4096 + lumc_swizzle<3, 56>(e_t + j_t * 64)] + j_o * 64, &B_K[e_t + h_0 * 8192 + j_0 * 64 + j_t * 64] + j_o * 64);
                        }
                    }
                    {
                        /* copy.15[h, j, d] = V[h, j, d] */
                        const int j_t = (int)(tid >> 3 & 15);
                        const int d_t = (int)(tid & 7) * 8;
                        LUMC_UNROLL for (int D0 = 0; D0 < 4; D0++) {
                            const int j_o = D0 * 16;
                            lumc_cp_async<16>(&S_copy_15[((SLOT + 1) % 2) * 4096 + lumc_swizzle<3, 56>(d_t + j_t * 64)] + j_o * 64, &B_V[d_t + h_0 * 8192 + j_0 * 64 + j_t * 64] + j_o * 64);
                        }
                    }
                }
                lumc_cp_async_commit();
            }
            {
                /* stage.6[h, q, j] += copy.5[h, e, q] * copy.7[h, e, j] */
                LUMC_UNROLL for (int D0 = 0; D0 < 1; D0++) {
                    LUMC_UNROLL for (int D1 = 0; D1 < 8; D1++) {
                        LUMC_UNROLL for (int D2 = 0; D2 < 2; D2++) {
                            LUMC_UNROLL for (int D3 = 0; D3 < 2; D3++) {
                                const int q_o = D0 * 16 + D2 * 8;
                                const int j_o = D1 * 8 + D3 * 1;
                                R_stage_6[j_o / 8 % 8 * 4 + q_o / 8 % 2 * 2 + j_o % 2] = 0;
                            }
                        }
                    }
                }
                LUMC_UNROLL for (int K = 0; K < 4; K++) {
                    lumc_u32 A[1][4], B[4][4];
                    {
                        LUMC_UNROLL for (int I = 0; I < 1; I++) {
                            LUMC_UNROLL for (int Q = 0; Q < 4; Q++) {
                                const int q_o = I * 16 + Q % 2 * 8, e_o = K * 16 + Q / 2 * 8;
                                A[I][Q] = R_copy_5[(e_o / 16 % 4 * 8 + e_o / 8 % 2 * 4 + q_o / 8 % 2 * 2 + e_o % 2) / 2];
                            }
                        }
                    }
                    LUMC_UNROLL for (int I = 0; I < 4; I++) {
                        const int e = K * 16 + (tid >> 3 & 1) * 8;
                        const int j = j_0 + (tid & 7) + (tid >> 4 & 1) * 8;
                        lumc_ldmatrix_x4<false>(B[I], &S_copy_7[(SLOT) * 4096 + lumc_swizzle<3, 56>(e + j * 64 - j_0 * 64)] + I * 16 * 64);
                    }
                    LUMC_UNROLL for (int I = 0; I < 1; I++) {
                        LUMC_UNROLL for (int J = 0; J < 8; J++) {
                            const lumc_u32 PAIR[2] = {B[J / 2][J % 2 * 2], B[J / 2][J % 2 * 2 + 1]};
                            float C[4];
                            LUMC_UNROLL for (int Q = 0; Q < 4; Q++) {
                                const int q_o = I * 16 + Q / 2 * 8, j_o = J * 8 + Q % 2;
                                C[Q] = R_stage_6[j_o / 8 % 8 * 4 + q_o / 8 % 2 * 2 + j_o % 2];
                            }
                            lumc_mma<lumc_f16>(C, A[I], PAIR, C);
                            LUMC_UNROLL for (int Q = 0; Q < 4; Q++) {
                                const int q_o = I * 16 + Q / 2 * 8, j_o = J * 8 + Q % 2;
                                R_stage_6[j_o / 8 % 8 * 4 + q_o / 8 % 2 * 2 + j_o % 2] = C[Q];
                            }
                        }
                    }
                }
            }
            {
                /* top.11[h, q] = top over j of add(mul(stage.6[h, q, j], 0.1802978515625), ma... */
                const int q_t = (int)(tid >> 2 & 7) + (int)(tid >> 5 & 3) * 16;
                const int j_t = (int)(tid & 3) * 2;
                LUMC_UNROLL for (int D0 = 0; D0 < 1; D0++) {
                    LUMC_UNROLL for (int D1 = 0; D1 < 2; D1++) {
                        float a_3 = -LUMC_INF_F32;
                        LUMC_UNROLL for (int D2 = 0; D2 < 8; D2++) {
                            const int q_o = D0 * 16 + D1 * 8;
                            const int q = q_0 + q_o + q_t;
                            const int j_o = D2 * 8;
                            const int j = j_0 + j_o + j_t;
                            lumc_f16 V_4[2];
                            lumc_load(V_4, &B_mask[j + q * 128]);
                            LUMC_UNROLL for (int D3 = 0; D3 < 2; D3++) {
                                const int q_o = D0 * 16 + D1 * 8;
                                const int j_o = D2 * 8 + D3;
                                const float v_5 = R_stage_6[j_o / 8 % 8 * 4 + q_o / 8 % 2 * 2 + j_o % 2];
                                const float v_6 = (v_5 * 0.1802978515625f);
                                const float v_7 = lumc_from_f16(V_4[D3]);
                                const float v_8 = (v_6 + v_7);
                                a_3 = lumc_top_f32(a_3, v_8);
                                R_scores_9[j_o / 8 % 8 * 4 + q_o / 8 % 2 * 2 + j_o % 2] = v_8;
                            }
                        }
                        a_3 = lumc_top_f32(a_3, lumc_shuffle_xor(a_3, 1));
                        a_3 = lumc_top_f32(a_3, lumc_shuffle_xor(a_3, 2));
                        {
                            const int q_o = D0 * 16 + D1 * 8;
                            const float v_9 = R_top_10[q_o / 8 % 2];
                            R_top_11[q_o / 8 % 2] = lumc_top_f32(v_9, a_3);
                        }
                    }
                }
            }
            {
                /* scale.12[h, q] = decay(add(finite(top.10[h, q]), mul(finite(top.11[h, q]), ... */
                LUMC_UNROLL for (int D0 = 0; D0 < 1; D0++) {
                    LUMC_UNROLL for (int D1 = 0; D1 < 2; D1++) {
                        const int q_o = D0 * 16 + D1 * 8;
                        const float v_10 = R_top_10[q_o / 8 % 2];
                        const float v_11 = lumc_finite_f32(v_10);
                        const float v_12 = R_top_11[q_o / 8 % 2];
                        const float v_13 = lumc_finite_f32(v_12);
                        const float v_14 = (v_13 * -1.0f);
                        const float v_15 = (v_11 + v_14);
                        const float v_16 = lumc_decay_f32(v_15);
                        R_scale_12[q_o / 8 % 2] = v_16;
                    }
                }
            }
            {
                /* top.10[h, q] = top.11[h, q] */
                LUMC_UNROLL for (int D0 = 0; D0 < 1; D0++) {
                    LUMC_UNROLL for (int D1 = 0; D1 < 2; D1++) {
                        const int q_o = D0 * 16 + D1 * 8;
                        const float v_17 = R_top_11[q_o / 8 % 2];
                        R_top_10[q_o / 8 % 2] = v_17;
                    }
                }
            }
            {
                float E_weights_8[32];
                /* stage.14[h, q] = sum over j of decay(add(scores.9[h, q, j], mul(finite(top.... */
                LUMC_UNROLL for (int D0 = 0; D0 < 1; D0++) {
                    LUMC_UNROLL for (int D1 = 0; D1 < 2; D1++) {
                        float a_18 = 0.0f;
                        LUMC_UNROLL for (int D2 = 0; D2 < 8; D2++) {
                            LUMC_UNROLL for (int D3 = 0; D3 < 2; D3++) {
                                const int q_o = D0 * 16 + D1 * 8;
                                const int j_o = D2 * 8 + D3;
                                const float v_19 = R_scores_9[j_o / 8 % 8 * 4 + q_o / 8 % 2 * 2 + j_o % 2];
                                const float v_20 = R_top_11[q_o / 8 % 2];
                                const float v_21 = lumc_finite_f32(v_20);
                                const float v_22 = (v_21 * -1.0f);
                                const float v_23 = (v_19 + v_22);
                                const float v_24 = lumc_decay_f32(v_23);
                                a_18 = a_18 + v_24;
                                E_weights_8[j_o / 8 % 8 * 4 + q_o / 8 % 2 * 2 + j_o % 2] = v_24;
                            }
                        }
                        a_18 = a_18 + lumc_shuffle_xor(a_18, 1);
                        a_18 = a_18 + lumc_shuffle_xor(a_18, 2);
                        {
                            const int q_o = D0 * 16 + D1 * 8;
                            const float v_25 = R_stage_14[q_o / 8 % 2];
                            const float v_26 = R_scale_12[q_o / 8 % 2];
                            const float v_27 = (v_25 * v_26);
                            R_stage_14[q_o / 8 % 2] = v_27 + a_18;
                        }
                    }
                }
                LUMC_UNROLL for (int D = 0; D < 16; D++) {
                    R_weights_8[D] = lumc_pack<lumc_f16>(E_weights_8[2 * D], E_weights_8[2 * D + 1]);
                }
            }
            {
                /* stage.13[h, q, d] = mul(stage.13[h, q, d], scale.12[h, q]) */
                LUMC_UNROLL for (int D0 = 0; D0 < 1; D0++) {
                    LUMC_UNROLL for (int D1 = 0; D1 < 8; D1++) {
                        LUMC_UNROLL for (int D2 = 0; D2 < 2; D2++) {
                            LUMC_UNROLL for (int D3 = 0; D3 < 2; D3++) {
                                const int q_o = D0 * 16 + D2 * 8;
                                const int d_o = D1 * 8 + D3;
                                const float v_28 = R_stage_13[d_o / 8 % 8 * 4 + q_o / 8 % 2 * 2 + d_o % 2];
                                const float v_29 = R_scale_12[q_o / 8 % 2];
                                const float v_30 = (v_28 * v_29);
                                R_stage_13[d_o / 8 % 8 * 4 + q_o / 8 % 2 * 2 + d_o % 2] = v_30;
                            }
                        }
                    }
                }
            }
            {
                /* stage.13[h, q, d] += weights.8[h, q, j] * copy.15[h, j, d] */
                LUMC_UNROLL for (int K = 0; K < 4; K++) {
                    lumc_u32 A[1][4], B[4][4];
                    {
                        LUMC_UNROLL for (int I = 0; I < 1; I++) {
                            LUMC_UNROLL for (int Q = 0; Q < 4; Q++) {
                                const int q_o = I * 16 + Q % 2 * 8, j_o = K * 16 + Q / 2 * 8;
                                A[I][Q] = R_weights_8[(j_o / 8 % 8 * 4 + q_o / 8 % 2 * 2 + j_o % 2) / 2];
                            }
                        }
                    }
                    LUMC_UNROLL for (int I = 0; I < 4; I++) {
                        const int j = j_0 + (tid & 15);
                        const int d = I * 16 + (tid >> 4 & 1) * 8;
                        lumc_ldmatrix_x4<true>(B[I], &S_copy_15[(SLOT) * 4096 + lumc_swizzle<3, 56>(d + j * 64 - j_0 * 64)] + K * 16 * 64);
                    }
                    LUMC_UNROLL for (int I = 0; I < 1; I++) {
                        LUMC_UNROLL for (int J = 0; J < 8; J++) {
                            const lumc_u32 PAIR[2] = {B[J / 2][J % 2 * 2], B[J / 2][J % 2 * 2 + 1]};
                            float C[4];
                            LUMC_UNROLL for (int Q = 0; Q < 4; Q++) {
                                const int q_o = I * 16 + Q / 2 * 8, d_o = J * 8 + Q % 2;
                                C[Q] = R_stage_13[d_o / 8 % 8 * 4 + q_o / 8 % 2 * 2 + d_o % 2];
                            }
                            lumc_mma<lumc_f16>(C, A[I], PAIR, C);
                            LUMC_UNROLL for (int Q = 0; Q < 4; Q++) {
                                const int q_o = I * 16 + Q / 2 * 8, d_o = J * 8 + Q % 2;
                                R_stage_13[d_o / 8 % 8 * 4 + q_o / 8 % 2 * 2 + d_o % 2] = C[Q];
                            }
                        }
                    }
                }
            }
        }
    }
    {
        /* out[h, q, d] = mul(add(stage.13[h, q, d], add(top.10[h, q], mul(top.10[h, q], -1.0)... */
        LUMC_UNROLL for (int D0 = 0; D0 < 4; D0++) {
            LUMC_UNROLL for (int D1 = 0; D1 < 1; D1++) {
                LUMC_UNROLL for (int D2 = 0; D2 < 2; D2++) {
                    float OUT[2][2] = {};
                    LUMC_UNROLL for (int D3 = 0; D3 < 2; D3++) {
                        LUMC_UNROLL for (int D4 = 0; D4 < 2; D4++) {
                            const int q_o = D1 * 16 + D2 * 8;
                            const int d_o = D0 * 16 + D3 * 8 + D4;
                            const float v_31 = R_stage_13[d_o / 8 % 8 * 4 + q_o / 8 % 2 * 2 + d_o % 2];
                            const float v_32 = R_top_10[q_o / 8 % 2];
                            const float v_33 = (v_32 * -1.0f);
                            const float v_34 = (v_32 + v_33);
                            const float v_35 = (v_31 + v_34);
                            const float v_36 = R_stage_14[q_o / 8 % 2];
                            const float v_37 = (v_36 + v_34);
                            const float v_38 = lumc_recip_f32(v_37);
                            const float v_39 = (v_35 * v_38);
                            OUT[D3][D4] = v_39;
                        }
                    }
                    lumc_u32 NEXT[2];
                    lumc_exchange<lumc_f16>(tid, OUT, NEXT);
                    {
                        const int q_t = (int)(tid >> 2 & 7) + (int)(tid >> 5 & 3) * 16;
                        const int d_t = (int)(tid & 1) * 8 + (int)(tid >> 1 & 1) * 4;
                        const int h = h_0;
                        const int q_o = D1 * 16 + D2 * 8;
                        const int q = q_0 + q_o + q_t;
                        const int d_o = D0 * 16;
                        const int d = d_o + d_t;
                        lumc_store((lumc_u32 *)&B_out[d + h * 8192 + q * 64], NEXT);
                    }
                }
            }
        }
    }
}
LUMC_EXPORT(attention)

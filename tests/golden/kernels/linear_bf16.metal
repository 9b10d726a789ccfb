/* linear_gelu_bf16
 * out[m, n]
 */
[[max_total_threads_per_threadgroup(128)]] kernel void linear_bf16(
    device const lumc_bf16 *B_x [[buffer(0)]],
    device const lumc_bf16 *B_w [[buffer(1)]],
    device const lumc_bf16 *B_b [[buffer(2)]],
    device lumc_bf16 *B_out [[buffer(3)]],
    uint tid [[thread_index_in_threadgroup]],
    uint3 group [[threadgroup_position_in_grid]])
{
    const int block = group.x;
    threadgroup uint4 SHARED[480];
    float R_stage_4[16];
    threadgroup lumc_bf16 *S_copy_5 = (threadgroup lumc_bf16 *)(SHARED + 0);
    threadgroup lumc_bf16 *S_copy_6 = (threadgroup lumc_bf16 *)(SHARED + 160);
    /* blocks: m = 70 in tiles of 32, n = 96 in tiles of 64 */
    const int m_0 = block / 2 * 32;
    const int m_n = lumc_min(32, 70 - m_0);
    const int n_0 = block % 2 * 64;
    const int n_n = lumc_min(64, 96 - n_0);
    {
        /* stage.4[m, n] = 0.0 */
        LUMC_UNROLL for (int D0 = 0; D0 < 2; D0++) {
            LUMC_UNROLL for (int D1 = 0; D1 < 4; D1++) {
                LUMC_UNROLL for (int D2 = 0; D2 < 2; D2++) {
                    const int m_o = D0 * 8;
                    const int n_o = D1 * 8 + D2;
                    R_stage_4[m_o / 8 % 2 * 8 + n_o / 8 % 4 * 2 + n_o % 2] = 0.0f;
                }
            }
        }
    }
    for (int k_0 = 0; k_0 < 64; k_0 += 32) { /* k = 64 in tiles of 32 */
        lumc_sync();
        {
            /* copy.5[k, m] = x[m, k] */
            const int k_t = (int)(tid & 3) * 8;
            const int m_t = (int)(tid >> 2 & 31);
            const int k = k_0 + k_t;
            const int m = m_0 + m_t;
            const lumc_bf16 ZERO[8] = {};
            if (m < m_0 + m_n) lumc_copy<16>(&S_copy_5[k - k_0 + m * 40 - m_0 * 40], &B_x[k + m * 64]); else lumc_store(&S_copy_5[k - k_0 + m * 40 - m_0 * 40], ZERO);
        }
        {
            /* copy.6[k, n] = w[n, k] */
            const int k_t = (int)(tid & 3) * 8;
            const int n_t = (int)(tid >> 2 & 31);
            LUMC_UNROLL for (int D0 = 0; D0 < 2; D0++) {
                const int k = k_0 + k_t;
                const int n_o = D0 * 32;
                const int n = n_0 + n_o + n_t;
                const lumc_bf16 ZERO[8] = {};
                if (n < n_0 + n_n) lumc_copy<16>(&S_copy_6[k - k_0 + n * 40 - n_0 * 40], &B_w[k + n * 64]); else lumc_store(&S_copy_6[k - k_0 + n * 40 - n_0 * 40], ZERO);
            }
        }
        lumc_sync();
        {
            /* stage.4[m, n] += copy.5[k, m] * copy.6[k, n] */
            LUMC_UNROLL for (int K = 0; K < 4; K++) {
                simdgroup_float8x8 A[2], B[4];
                {
                    const int m_t = (int)(tid >> 1 & 3) + (int)(tid >> 4 & 1) * 4 + (int)(tid >> 5 & 1) * 16;
                    const int k_t = (int)(tid & 1) * 2 + (int)(tid >> 3 & 1) * 4;
                    LUMC_UNROLL for (int I = 0; I < 2; I++) {
                        LUMC_UNROLL for (int H = 0; H < 2; H++) {
                            const int m_o = I * 8;
                            const int m = m_0 + m_o + m_t;
                            const int k_o = K * 8 + H;
                            const int k = k_0 + k_o + k_t;
                            A[I].thread_elements()[H] = lumc_from_bf16(S_copy_5[k - k_0 + m * 40 - m_0 * 40]);
                        }
                    }
                }
                {
                    const int n_t = (int)(tid & 1) * 2 + (int)(tid >> 3 & 1) * 4 + (int)(tid >> 6 & 1) * 32;
                    const int k_t = (int)(tid >> 1 & 3) + (int)(tid >> 4 & 1) * 4;
                    LUMC_UNROLL for (int I = 0; I < 4; I++) {
                        LUMC_UNROLL for (int H = 0; H < 2; H++) {
                            const int n_o = I * 8 + H;
                            const int n = n_0 + n_o + n_t;
                            const int k_o = K * 8;
                            const int k = k_0 + k_o + k_t;
                            B[I].thread_elements()[H] = lumc_from_bf16(S_copy_6[k - k_0 + n * 40 - n_0 * 40]);
                        }
                    }
                }
                LUMC_UNROLL for (int I = 0; I < 2; I++) {
                    LUMC_UNROLL for (int J = 0; J < 4; J++) {
                        simdgroup_float8x8 C;
                        LUMC_UNROLL for (int H = 0; H < 2; H++) {
                            const int m_o = I * 8, n_o = J * 8 + H;
                            C.thread_elements()[H] = R_stage_4[m_o / 8 % 2 * 8 + n_o / 8 % 4 * 2 + n_o % 2];
                        }
                        simdgroup_multiply_accumulate(C, A[I], B[J], C);
                        LUMC_UNROLL for (int H = 0; H < 2; H++) {
                            const int m_o = I * 8, n_o = J * 8 + H;
                            R_stage_4[m_o / 8 % 2 * 8 + n_o / 8 % 4 * 2 + n_o % 2] = C.thread_elements()[H];
                        }
                    }
                }
            }
        }
    }
    {
        /* out[m, n] = mul(add(stage.4[m, n], b[n]), recip(add(exp2_ftz(mul(mul(mul(add(add(st... */
        const int m_t = (int)(tid >> 1 & 3) + (int)(tid >> 4 & 1) * 4 + (int)(tid >> 5 & 1) * 16;
        const int n_t = (int)(tid & 1) * 2 + (int)(tid >> 3 & 1) * 4 + (int)(tid >> 6 & 1) * 32;
        LUMC_UNROLL for (int D0 = 0; D0 < 2; D0++) {
            LUMC_UNROLL for (int D1 = 0; D1 < 4; D1++) {
                const int m_o = D0 * 8;
                const int m = m_0 + m_o + m_t;
                const int n_o = D1 * 8;
                const int n = n_0 + n_o + n_t;
                if (m < m_0 + m_n && n < n_0 + n_n) {
                    lumc_bf16 V_1[2];
                    lumc_load(V_1, &B_b[n]);
                    lumc_bf16 OUT[2];
                    LUMC_UNROLL for (int D2 = 0; D2 < 2; D2++) {
                        const int m_o = D0 * 8;
                        const int n_o = D1 * 8 + D2;
                        const float v_2 = R_stage_4[m_o / 8 % 2 * 8 + n_o / 8 % 4 * 2 + n_o % 2];
                        const float v_3 = lumc_from_bf16(V_1[D2]);
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
                        OUT[D2] = lumc_to_bf16(v_15);
                    }
                    lumc_store(&B_out[m * 96 + n], OUT);
                }
            }
        }
    }
}

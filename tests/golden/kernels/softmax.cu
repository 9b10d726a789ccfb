#include "lumc_dev.h"

/* softmax
 * out[m, n]
 */
extern "C" __global__ void __launch_bounds__(128, 1)
softmax(const float *__restrict__ B_x, float *__restrict__ B_out)
{
    const unsigned tid = threadIdx.x;
    const int block = blockIdx.x;
    LUMC_SHARED(lumc_u8, SHARED);
    float R_stage_2[1];
    float R_stage_3[1];
    float R_kept_4[4];
    LUMC_TILE(float, S_partial_5, SHARED, 0, 4);
    LUMC_TILE(float, S_partial_6, SHARED, 16, 4);
    /* blocks: m = 32 in tiles of 1, n = 512 */
    const int m_0 = block * 1;
    {
        /* stage.2[m] = top over i of x[m, i] */
        const int i_t = (int)(tid & 127) * 4;
        float a_1 = -LUMC_INF_F32;
        const int m = m_0;
        const int i = i_t;
        float V_2[4];
        lumc_load(V_2, &B_x[i + m * 512]);
        LUMC_UNROLL for (int D0 = 0; D0 < 4; D0++) {
            const float v_3 = V_2[D0];
            a_1 = lumc_top_f32(a_1, v_3);
        }
        a_1 = lumc_top_f32(a_1, lumc_shuffle_xor(a_1, 1));
        a_1 = lumc_top_f32(a_1, lumc_shuffle_xor(a_1, 2));
        a_1 = lumc_top_f32(a_1, lumc_shuffle_xor(a_1, 4));
        a_1 = lumc_top_f32(a_1, lumc_shuffle_xor(a_1, 8));
        a_1 = lumc_top_f32(a_1, lumc_shuffle_xor(a_1, 16));
        {
            if ((tid & 31) == 0) {
                S_partial_5[0 + (tid >> 5 & 3)] = a_1;
            }
        }
    }
    lumc_sync();
    { /* the results of all warps */
        float a_4 = -LUMC_INF_F32;
        LUMC_UNROLL for (int W = 0; W < 4; W++) {
            a_4 = lumc_top_f32(a_4, S_partial_5[0 + W]);
        }
        R_stage_2[0] = lumc_top_f32(-LUMC_INF_F32, a_4);
    }
    {
        /* stage.3[m] = sum over j of decay(mul(add(x[m, j], mul(stage.2[m], -1.0)), 1.4426950... */
        const int j_t = (int)(tid & 127) * 4;
        float a_5 = 0.0f;
        const int m = m_0;
        const int j = j_t;
        float V_6[4];
        lumc_load(V_6, &B_x[j + m * 512]);
        LUMC_UNROLL for (int D0 = 0; D0 < 4; D0++) {
            const int j_o = D0;
            const float v_7 = V_6[D0];
            const float v_8 = R_stage_2[0];
            const float v_9 = (v_8 * -1.0f);
            const float v_10 = (v_7 + v_9);
            const float v_11 = (v_10 * 1.4426950216293335f);
            const float v_12 = lumc_decay_f32(v_11);
            a_5 = a_5 + v_12;
            R_kept_4[j_o % 4] = v_12;
        }
        a_5 = a_5 + lumc_shuffle_xor(a_5, 1);
        a_5 = a_5 + lumc_shuffle_xor(a_5, 2);
        a_5 = a_5 + lumc_shuffle_xor(a_5, 4);
        a_5 = a_5 + lumc_shuffle_xor(a_5, 8);
        a_5 = a_5 + lumc_shuffle_xor(a_5, 16);
        {
            if ((tid & 31) == 0) {
                S_partial_6[0 + (tid >> 5 & 3)] = a_5;
            }
        }
    }
    lumc_sync();
    { /* the results of all warps */
        float a_13 = 0.0f;
        LUMC_UNROLL for (int W = 0; W < 4; W++) {
            a_13 = a_13 + S_partial_6[0 + W];
        }
        R_stage_3[0] = 0.0f + a_13;
    }
    {
        /* out[m, n] = mul(kept.4[m, n], recip(stage.3[m])) */
        const int n_t = (int)(tid & 127) * 4;
        const int m = m_0;
        const int n = n_t;
        float OUT[4];
        LUMC_UNROLL for (int D0 = 0; D0 < 4; D0++) {
            const int n_o = D0;
            const float v_14 = R_kept_4[n_o % 4];
            const float v_15 = R_stage_3[0];
            const float v_16 = lumc_recip_f32(v_15);
            const float v_17 = (v_14 * v_16);
            OUT[D0] = v_17;
        }
        lumc_store(&B_out[m * 512 + n], OUT);
    }
}
LUMC_EXPORT(softmax)

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
    for (long m = 0; m < 6; m++) { /* rows of m */
        if (m < 2) {
            /* out[m, n] = add(sel(lt(i64(m), i64(n)), -1000.0), add(sin(x[0, m + 3*n]), log2(... */
            const int32_t v_1 = (int32_t)(m);
#pragma omp simd
            for (long n = 0; n < 2; n++) {
                const int32_t v_2 = (int32_t)(n);
                const _Bool v_3 = (v_1 < v_2);
                const float v_4 = (v_3 ? -1000.0f : 0.0f);
                const float v_5 = B_x[m + n * 3];
                const float v_6 = lumc_sin_f32(v_5);
                const float v_7 = (v_5 * v_5);
                const float v_8 = (v_7 + 1.0f);
                const float v_9 = lumc_log2_f32(v_8);
                const float v_10 = (v_6 + v_9);
                const float v_11 = (v_4 + v_10);
                B_out[m * 40 + n] = v_11;
            }
            /* out[m, n] = add(add(x[m, n - 2], sel(lt(i64(m), i64(n)), -1000.0)), add(sin(x[0... */
            const int32_t v_13 = (int32_t)(m);
#pragma omp simd
            for (long n = 2; n < 39; n++) {
                const float v_12 = B_x[m * 40 + n - 2];
                const int32_t v_14 = (int32_t)(n);
                const _Bool v_15 = (v_13 < v_14);
                const float v_16 = (v_15 ? -1000.0f : 0.0f);
                const float v_17 = (v_12 + v_16);
                const float v_18 = B_x[(m + n * 3) % 40];
                const float v_19 = lumc_sin_f32(v_18);
                const float v_20 = (v_18 * v_18);
                const float v_21 = (v_20 + 1.0f);
                const float v_22 = lumc_log2_f32(v_21);
                const float v_23 = (v_19 + v_22);
                const float v_24 = (v_17 + v_23);
                B_out[m * 40 + n] = v_24;
            }
            /* out[m, n] = add(sel(lt(i64(m), i64(n)), -1000.0), add(sin(x[0, m + 3*n - 80]), ... */
            const int32_t v_25 = (int32_t)(m);
            {
                const long n = 39;
                const int32_t v_26 = (int32_t)(n);
                const _Bool v_27 = (v_25 < v_26);
                const float v_28 = (v_27 ? -1000.0f : 0.0f);
                const float v_29 = B_x[m + n * 3 - 80];
                const float v_30 = lumc_sin_f32(v_29);
                const float v_31 = (v_29 * v_29);
                const float v_32 = (v_31 + 1.0f);
                const float v_33 = lumc_log2_f32(v_32);
                const float v_34 = (v_30 + v_33);
                const float v_35 = (v_28 + v_34);
                B_out[m * 40 + n] = v_35;
            }
        }
        if (m >= 2 && m < 4) {
            /* out[m, n] = add(sel(lt(i64(m), i64(n)), -1000.0), add(sin(x[1, m + 3*n]), log2(... */
            const int32_t v_36 = (int32_t)(m);
#pragma omp simd
            for (long n = 0; n < 2; n++) {
                const int32_t v_37 = (int32_t)(n);
                const _Bool v_38 = (v_36 < v_37);
                const float v_39 = (v_38 ? -1000.0f : 0.0f);
                const float v_40 = B_x[m + n * 3 + 40];
                const float v_41 = lumc_sin_f32(v_40);
                const float v_42 = (v_40 * v_40);
                const float v_43 = (v_42 + 1.0f);
                const float v_44 = lumc_log2_f32(v_43);
                const float v_45 = (v_41 + v_44);
                const float v_46 = (v_39 + v_45);
                B_out[m * 40 + n] = v_46;
            }
            /* out[m, n] = add(add(x[m, n - 2], sel(lt(i64(m), i64(n)), -1000.0)), add(sin(x[1... */
            const int32_t v_48 = (int32_t)(m);
#pragma omp simd
            for (long n = 2; n < 39; n++) {
                const float v_47 = B_x[m * 40 + n - 2];
                const int32_t v_49 = (int32_t)(n);
                const _Bool v_50 = (v_48 < v_49);
                const float v_51 = (v_50 ? -1000.0f : 0.0f);
                const float v_52 = (v_47 + v_51);
                const float v_53 = B_x[((m + n * 3) % 40) + 40];
                const float v_54 = lumc_sin_f32(v_53);
                const float v_55 = (v_53 * v_53);
                const float v_56 = (v_55 + 1.0f);
                const float v_57 = lumc_log2_f32(v_56);
                const float v_58 = (v_54 + v_57);
                const float v_59 = (v_52 + v_58);
                B_out[m * 40 + n] = v_59;
            }
            /* out[m, n] = add(sel(lt(i64(m), i64(n)), -1000.0), add(sin(x[1, (m + 3*n) % 40])... */
            const int32_t v_60 = (int32_t)(m);
            {
                const long n = 39;
                const int32_t v_61 = (int32_t)(n);
                const _Bool v_62 = (v_60 < v_61);
                const float v_63 = (v_62 ? -1000.0f : 0.0f);
                const float v_64 = B_x[((m + n * 3) % 40) + 40];
                const float v_65 = lumc_sin_f32(v_64);
                const float v_66 = (v_64 * v_64);
                const float v_67 = (v_66 + 1.0f);
                const float v_68 = lumc_log2_f32(v_67);
                const float v_69 = (v_65 + v_68);
                const float v_70 = (v_63 + v_69);
                B_out[m * 40 + n] = v_70;
            }
        }
        if (m >= 4) {
            /* out[m, n] = add(sel(lt(i64(m), i64(n)), -1000.0), add(sin(x[2, m + 3*n]), log2(... */
            const int32_t v_71 = (int32_t)(m);
#pragma omp simd
            for (long n = 0; n < 2; n++) {
                const int32_t v_72 = (int32_t)(n);
                const _Bool v_73 = (v_71 < v_72);
                const float v_74 = (v_73 ? -1000.0f : 0.0f);
                const float v_75 = B_x[m + n * 3 + 80];
                const float v_76 = lumc_sin_f32(v_75);
                const float v_77 = (v_75 * v_75);
                const float v_78 = (v_77 + 1.0f);
                const float v_79 = lumc_log2_f32(v_78);
                const float v_80 = (v_76 + v_79);
                const float v_81 = (v_74 + v_80);
                B_out[m * 40 + n] = v_81;
            }
            /* out[m, n] = add(add(x[m, n - 2], sel(lt(i64(m), i64(n)), -1000.0)), add(sin(x[2... */
            const int32_t v_83 = (int32_t)(m);
#pragma omp simd
            for (long n = 2; n < 39; n++) {
                const float v_82 = B_x[m * 40 + n - 2];
                const int32_t v_84 = (int32_t)(n);
                const _Bool v_85 = (v_83 < v_84);
                const float v_86 = (v_85 ? -1000.0f : 0.0f);
                const float v_87 = (v_82 + v_86);
                const float v_88 = B_x[((m + n * 3) % 40) + 80];
                const float v_89 = lumc_sin_f32(v_88);
                const float v_90 = (v_88 * v_88);
                const float v_91 = (v_90 + 1.0f);
                const float v_92 = lumc_log2_f32(v_91);
                const float v_93 = (v_89 + v_92);
                const float v_94 = (v_87 + v_93);
                B_out[m * 40 + n] = v_94;
            }
            /* out[m, n] = add(sel(lt(i64(m), i64(n)), -1000.0), add(sin(x[2, m + 3*n - 120]),... */
            const int32_t v_95 = (int32_t)(m);
            {
                const long n = 39;
                const int32_t v_96 = (int32_t)(n);
                const _Bool v_97 = (v_95 < v_96);
                const float v_98 = (v_97 ? -1000.0f : 0.0f);
                const float v_99 = B_x[m + n * 3 - 40];
                const float v_100 = lumc_sin_f32(v_99);
                const float v_101 = (v_99 * v_99);
                const float v_102 = (v_101 + 1.0f);
                const float v_103 = lumc_log2_f32(v_102);
                const float v_104 = (v_100 + v_103);
                const float v_105 = (v_98 + v_104);
                B_out[m * 40 + n] = v_105;
            }
        }
    }
}

/* ---- numbers of 4 bits, eight in a word: those that are `at` bits above the lowest, as floats.
 * Signed ones are stored as what they are above -8 */

#define LUMC_NIBBLES(n)                                                                           \
    typedef int32_t lumc_word_x##n __attribute__((vector_size(n * 4)));                           \
    static inline lumc_f32x##n lumc_u4x##n(lumc_u32x##n q, int at)                                \
    {                                                                                             \
        return __builtin_convertvector((lumc_word_x##n)(q >> at & 15), lumc_f32x##n);             \
    }                                                                                             \
    static inline lumc_f32x##n lumc_i4x##n(lumc_u32x##n q, int at)                                \
    {                                                                                             \
        return __builtin_convertvector((lumc_word_x##n)(q >> at & 15) - 8, lumc_f32x##n);         \
    }
LUMC_NIBBLES(4)
LUMC_NIBBLES(8)
#if !defined(__clang__) && defined(__AVX512F__)
/* the lowest four bits of a lane choose one of sixteen floats */
#define LUMC_LOOKED_UP(name, ...)                                                                    \
    static inline lumc_f32x16 lumc_##name##x16(lumc_u32x16 q, int at)                             \
    {                                                                                             \
        const lumc_f32x16 every = {__VA_ARGS__};                                                  \
        return __builtin_shuffle(every, (lumc_i32x16)(q >> at));                                  \
    }
LUMC_LOOKED_UP(u4, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
LUMC_LOOKED_UP(i4, -8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7)
#else
LUMC_NIBBLES(16)
#endif

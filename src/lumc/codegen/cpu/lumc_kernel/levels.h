/* ---- numbers of 4 bits, eight in a word: those that are `at` bits above the lowest, as floats.
 * Signed ones are stored as what they are above -8 */

typedef int32_t lumc_word_x4 __attribute__((vector_size(16)));
typedef int32_t lumc_word_x8 __attribute__((vector_size(32)));
typedef int32_t lumc_word_x16 __attribute__((vector_size(64)));
#define LUMC_NIBBLES(n)                                                                           \
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

/* ---- sums of products of four bytes: unsigned ones of each lane, and signed ones of `a` */

typedef int32_t lumc_any32 __attribute__((aligned(1), may_alias));
static inline int32_t lumc_four(const int8_t *p) { return *(const lumc_any32 *)p; }
#define LUMC_BYTE(b, at) ((int32_t)((uint32_t)(b) << (24 - at)) >> 24)
#define LUMC_PART(b, a, at, n) ((lumc_word_x##n)((b) >> at & 255) * LUMC_BYTE(a, at))
#define LUMC_DOT4(n)                                                                              \
    static inline lumc_word_x##n lumc_dot4x##n(lumc_word_x##n sum, lumc_u32x##n b, int32_t a)     \
    {                                                                                             \
        return sum + LUMC_PART(b, a, 0, n) + LUMC_PART(b, a, 8, n) + LUMC_PART(b, a, 16, n) +     \
               LUMC_PART(b, a, 24, n);                                                            \
    }
LUMC_DOT4(4)
#if !defined(__clang__) && defined(__AVXVNNI__)
typedef int lumc_i32x8 __attribute__((vector_size(32)));
static inline lumc_word_x8 lumc_dot4x8(lumc_word_x8 sum, lumc_u32x8 b, int32_t a)
{
    return (lumc_word_x8)__builtin_ia32_vpdpbusd_v8si((lumc_i32x8)sum, (lumc_i32x8)b,
                                                      (lumc_i32x8){0} + a);
}
#else
LUMC_DOT4(8)
#endif
#if !defined(__clang__) && defined(__AVX512VNNI__)
static inline lumc_word_x16 lumc_dot4x16(lumc_word_x16 sum, lumc_u32x16 b, int32_t a)
{
    return (lumc_word_x16)__builtin_ia32_vpdpbusd_v16si((lumc_i32x16)sum, (lumc_i32x16)b,
                                                        (lumc_i32x16){0} + a);
}
#else
LUMC_DOT4(16)
#endif

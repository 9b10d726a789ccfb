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
static inline int32_t lumc_four(const void *p) { return *(const lumc_any32 *)p; }
#define LUMC_BYTE(b, at) ((int32_t)((uint32_t)(b) << (24 - at)) >> 24)
#define LUMC_PART(b, a, at, n) ((lumc_word_x##n)((b) >> at & 255) * LUMC_BYTE(a, at))
#define LUMC_DOT4(n)                                                                              \
    static inline lumc_word_x##n lumc_dot4x##n(lumc_word_x##n sum, lumc_u32x##n b, int32_t a)     \
    {                                                                                             \
        return sum + LUMC_PART(b, a, 0, n) + LUMC_PART(b, a, 8, n) + LUMC_PART(b, a, 16, n) +     \
               LUMC_PART(b, a, 24, n);                                                            \
    }
LUMC_DOT4(4)
#if !defined(__clang__) && (defined(__AVXVNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__)))
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

/* the sum of bytes, of what each is above -128 */
typedef uint32_t lumc_any_u32x8 __attribute__((vector_size(32), aligned(1), may_alias));
static inline float lumc_sum_i8(const int8_t *p, long n)
{
    lumc_word_x8 each = {0};
    long k = 0;
    for (; k + 32 <= n; k += 32) {
        const lumc_u32x8 above = (lumc_u32x8)(*(const lumc_any_u32x8 *)(p + k) ^ 0x80808080u);
        each = lumc_dot4x8(each, above, 0x01010101);
    }
    int32_t sum = (int32_t)lumc_sum_u32x8((lumc_u32x8)each) - (int32_t)k * 128;
    for (; k < n; k++) sum += p[k];
    return (float)sum;
}

/* ---- whole numbers of 22 bits and a sign, next to floats, as three signed digits of base 256: four
 * numbers become the words of their last digits, of those before, of the first ones, and another */

typedef int8_t lumc_bytes_x16 __attribute__((vector_size(16)));
typedef int8_t lumc_bytes_x32 __attribute__((vector_size(32)));
typedef int8_t lumc_bytes_x64 __attribute__((vector_size(64)));
typedef float lumc_any_x4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef float lumc_any_x8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef float lumc_any_x16 __attribute__((vector_size(64), aligned(4), may_alias));
#define LUMC_FOURS(at) at, at + 4, at + 8, at + 12, at + 1, at + 5, at + 9, at + 13, at + 2, at + 6, \
                       at + 10, at + 14, at + 3, at + 7, at + 11, at + 15
#if defined(__clang__)
#define LUMC_TURNED(v, bytes, ...) __builtin_shufflevector(v, v, __VA_ARGS__)
#else
#define LUMC_TURNED(v, bytes, ...) __builtin_shuffle(v, (lumc_bytes_x##bytes){__VA_ARGS__})
#endif
/* beside 1.5 * 2^23 a float has no bits below 1; every digit is 128 above its sign */
#define LUMC_DIGITS(n, bytes, ...)                                                                \
    static inline void lumc_digits_x##n(float *to, const float *from)                             \
    {                                                                                             \
        const lumc_any_x##n near = *(const lumc_any_x##n *)from + 12582912.0f;                    \
        const lumc_word_x##n whole = (lumc_word_x##n)near - 0x4b400000 + 0x808080;                \
        const lumc_bytes_x##bytes each = (lumc_bytes_x##bytes)(whole ^ 0x808080);                 \
        *(lumc_any_x##n *)to = (lumc_any_x##n)LUMC_TURNED(each, bytes, __VA_ARGS__);              \
    }
LUMC_DIGITS(4, 16, LUMC_FOURS(0))
LUMC_DIGITS(8, 32, LUMC_FOURS(0), LUMC_FOURS(16))
LUMC_DIGITS(16, 64, LUMC_FOURS(0), LUMC_FOURS(16), LUMC_FOURS(32), LUMC_FOURS(48))

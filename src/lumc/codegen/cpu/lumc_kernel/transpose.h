/* ---- transposes of blocks of 4-byte elements, LUMC_LANES rows of LUMC_LANES elements */

#if defined(__clang__) || __GNUC__ >= 12
#define LUMC_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define LUMC_SHUFFLE(a, b, ...)                                                                   \
    __builtin_shuffle(a, b, (int __attribute__((vector_size(4 * LUMC_LANES)))){__VA_ARGS__})
#endif
#define LUMC_MASK(...) __VA_ARGS__
/* exchange the upper half of every 2*step elements of row i with the lower half of row i + step */
#define LUMC_EXCHANGE(step, low, high)                                                            \
    _Pragma("GCC unroll 16") for (int i = 0; i < LUMC_LANES; i++) if (!(i & step))                \
    {                                                                                             \
        lumc_row t = LUMC_SHUFFLE(r[i], r[i + step], low);                                        \
        r[i + step] = LUMC_SHUFFLE(r[i], r[i + step], high);                                      \
        r[i] = t;                                                                                 \
    }
#if LUMC_LANES == 16
typedef lumc_f32x16 lumc_row;
#elif LUMC_LANES == 8
typedef lumc_f32x8 lumc_row;
#else
typedef lumc_f32x4 lumc_row;
#endif
static __attribute__((noinline, unused)) void
lumc_transpose(const float *restrict from, long from_step, float *restrict to, long to_step)
{
    lumc_row r[LUMC_LANES];
    _Pragma("GCC unroll 16") for (int i = 0; i < LUMC_LANES; i++)
        r[i] = *(const lumc_row *)(from + i * from_step);
#if LUMC_LANES == 16
    LUMC_EXCHANGE(8, LUMC_MASK(0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23),
                  LUMC_MASK(8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31))
    LUMC_EXCHANGE(4, LUMC_MASK(0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27),
                  LUMC_MASK(4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31))
    LUMC_EXCHANGE(2, LUMC_MASK(0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29),
                  LUMC_MASK(2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31))
    LUMC_EXCHANGE(1, LUMC_MASK(0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30),
                  LUMC_MASK(1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31))
#elif LUMC_LANES == 8
    LUMC_EXCHANGE(4, LUMC_MASK(0, 1, 2, 3, 8, 9, 10, 11), LUMC_MASK(4, 5, 6, 7, 12, 13, 14, 15))
    LUMC_EXCHANGE(2, LUMC_MASK(0, 1, 8, 9, 4, 5, 12, 13), LUMC_MASK(2, 3, 10, 11, 6, 7, 14, 15))
    LUMC_EXCHANGE(1, LUMC_MASK(0, 8, 2, 10, 4, 12, 6, 14), LUMC_MASK(1, 9, 3, 11, 5, 13, 7, 15))
#else
    LUMC_EXCHANGE(2, LUMC_MASK(0, 1, 4, 5), LUMC_MASK(2, 3, 6, 7))
    LUMC_EXCHANGE(1, LUMC_MASK(0, 4, 2, 6), LUMC_MASK(1, 5, 3, 7))
#endif
    _Pragma("GCC unroll 16") for (int i = 0; i < LUMC_LANES; i++)
        *(lumc_row *)(to + i * to_step) = r[i];
}
/* the same for a block of which only `rows` x `columns` elements are there */
static inline __attribute__((always_inline, unused)) void
lumc_transpose_part(const float *restrict from, long from_step, float *restrict to, long to_step,
                    long rows, long columns)
{
    float a[LUMC_LANES * LUMC_LANES] __attribute__((aligned(64)));
    float b[LUMC_LANES * LUMC_LANES] __attribute__((aligned(64)));
    for (long r = 0; r < rows; r++)
        for (long c = 0; c < columns; c++)
            a[r * LUMC_LANES + c] = from[r * from_step + c];
    lumc_transpose(a, LUMC_LANES, b, LUMC_LANES);
    for (long c = 0; c < columns; c++)
        for (long r = 0; r < rows; r++)
            to[c * to_step + r] = b[c * LUMC_LANES + r];
}
/* the same for a number of rows that is known at run time only: an element after the other, as a
 * loop over so few costs more than it saves where they lie across it */
static inline __attribute__((always_inline, unused)) void
lumc_transpose_rows(const float *restrict from, long from_step, float *restrict to, long to_step,
                    long rows)
{
    for (long r = 0; r < rows; r++)
        _Pragma("GCC unroll 16") for (int c = 0; c < LUMC_LANES; c++)
            to[c * to_step + r] = from[r * from_step + c];
}

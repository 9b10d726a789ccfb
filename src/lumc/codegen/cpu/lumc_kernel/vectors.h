/* ---- vectors: any alignment, any type behind the pointer */

#define LUMC_VECTOR(element, name, n)                                                             \
    typedef element lumc_##name##x##n                                                             \
        __attribute__((vector_size(n * sizeof(element)), aligned(sizeof(element)), may_alias));
#define LUMC_VECTORS(element, name)                                                               \
    typedef element lumc_##name##x1;                                                              \
    LUMC_VECTOR(element, name, 2)                                                                 \
    LUMC_VECTOR(element, name, 4)                                                                 \
    LUMC_VECTOR(element, name, 8)                                                                 \
    LUMC_VECTOR(element, name, 16)
LUMC_VECTORS(float, f32)
LUMC_VECTORS(double, f64)
LUMC_VECTORS(uint32_t, u32)
LUMC_VECTORS(uint64_t, u64)

/* The first lanes of a vector in memory, and zeros; their count is to be a constant for the compiler.
   What is put together in memory could not be read from there for some 15 cycles: lanes are masked,
   or one by one. */
#if !defined(__clang__) && defined(__AVX512VL__)
#define LUMC_MASKED(n, mask, load, store)                                                         \
    static inline lumc_f32x##n lumc_part_f32x##n(const void *p, int count)                        \
    {                                                                                             \
        return load(p, (lumc_f32x##n){0}, (mask)((1 << count) - 1));                              \
    }                                                                                             \
    static inline void lumc_put_f32x##n(void *p, lumc_f32x##n v, int count)                       \
    {                                                                                             \
        store(p, v, (mask)((1 << count) - 1));                                                    \
    }
LUMC_MASKED(4, unsigned char, __builtin_ia32_loadups128_mask, __builtin_ia32_storeups128_mask)
LUMC_MASKED(8, unsigned char, __builtin_ia32_loadups256_mask, __builtin_ia32_storeups256_mask)
LUMC_MASKED(16, unsigned short, __builtin_ia32_loadups512_mask, __builtin_ia32_storeups512_mask)
#else
#define LUMC_PUT_FIRST(n)                                                                         \
    static inline void lumc_put_f32x##n(void *p, lumc_f32x##n v, int count)                       \
    {                                                                                             \
        __builtin_memcpy(p, &v, count * sizeof v[0]);                                             \
    }
LUMC_PUT_FIRST(4)
LUMC_PUT_FIRST(8)
LUMC_PUT_FIRST(16)
#define LUMC_LANE(i) (i < count ? ((const float *)p)[i] : 0)
#define LUMC_LANES_4(i) LUMC_LANE(i), LUMC_LANE(i + 1), LUMC_LANE(i + 2), LUMC_LANE(i + 3)
#define LUMC_LANES_8(i) LUMC_LANES_4(i), LUMC_LANES_4(i + 4)
#define LUMC_LANES_16(i) LUMC_LANES_8(i), LUMC_LANES_8(i + 8)
#define LUMC_FIRST(n)                                                                             \
    static inline lumc_f32x##n lumc_part_f32x##n(const void *p, int count)                        \
    {                                                                                             \
        return (lumc_f32x##n){LUMC_LANES_##n(0)};                                                 \
    }
LUMC_FIRST(16)
#if !defined(__clang__) && defined(__AVX__)
typedef int lumc_mask_4 __attribute__((vector_size(16)));
typedef int lumc_mask_8 __attribute__((vector_size(32)));
static inline lumc_f32x4 lumc_part_f32x4(const void *p, int count)
{
    return __builtin_ia32_maskloadps(p, (lumc_mask_4){0, 1, 2, 3} < count);
}
static inline lumc_f32x8 lumc_part_f32x8(const void *p, int count)
{
    return __builtin_ia32_maskloadps256(p, (lumc_mask_8){0, 1, 2, 3, 4, 5, 6, 7} < count);
}
#else
LUMC_FIRST(4)
LUMC_FIRST(8)
#endif
#endif

#define LUMC_SUMS(element, name)                                                                  \
    static inline element lumc_sum_##name##x1(element v) { return v; }                            \
    static inline element lumc_sum_##name##x2(lumc_##name##x2 v) { return v[0] + v[1]; }          \
    LUMC_SUM(element, name, 4, 2)                                                                 \
    LUMC_SUM(element, name, 8, 4)                                                                 \
    LUMC_SUM(element, name, 16, 8)
#define LUMC_SUM(element, name, n, half)                                                          \
    static inline element lumc_sum_##name##x##n(lumc_##name##x##n v)                              \
    {                                                                                             \
        const lumc_##name##x##half *h = (const lumc_##name##x##half *)&v;                         \
        return lumc_sum_##name##x##half(h[0] + h[1]);                                             \
    }
LUMC_SUMS(float, f32)
LUMC_SUMS(double, f64)
LUMC_SUMS(uint32_t, u32)
LUMC_SUMS(uint64_t, u64)

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

/* the first n lanes of a vector in memory, and zeros; to be constants for the compiler */
#define LUMC_PARTS(name, n)                                                                       \
    static inline lumc_##name##x##n lumc_part_##name##x##n(const void *p, int count)              \
    {                                                                                             \
        lumc_##name##x##n v = {0};                                                                \
        __builtin_memcpy(&v, p, count * sizeof v[0]);                                             \
        return v;                                                                                 \
    }                                                                                             \
    static inline void lumc_put_##name##x##n(void *p, lumc_##name##x##n v, int count)             \
    {                                                                                             \
        __builtin_memcpy(p, &v, count * sizeof v[0]);                                             \
    }
LUMC_PARTS(f32, 4)
LUMC_PARTS(f32, 8)
#if !defined(__clang__) && defined(__AVX512F__)
static inline lumc_f32x16 lumc_part_f32x16(const void *p, int count)
{
    return __builtin_ia32_loadups512_mask(p, (lumc_f32x16){0}, (unsigned short)((1 << count) - 1));
}
static inline void lumc_put_f32x16(void *p, lumc_f32x16 v, int count)
{
    __builtin_ia32_storeups512_mask(p, v, (unsigned short)((1 << count) - 1));
}
#else
LUMC_PARTS(f32, 16)
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

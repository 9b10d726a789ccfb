/* ---- narrow elements: half precision, one by one */

static inline float lumc_from_bf16(uint16_t h) { return lumc_float((int32_t)((uint32_t)h << 16)); }
static inline uint16_t lumc_to_bf16(float f)
{
    uint32_t u = (uint32_t)lumc_bits(f);
    uint32_t rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16;
    return (u & 0x7fffffff) > 0x7f800000 ? (uint16_t)(u >> 16 | 0x40) : (uint16_t)rounded;
}
static inline float lumc_from_f16(uint16_t h)
{
    uint32_t w = (uint32_t)h << 16, twice = w + w;
    float normal = lumc_float((int32_t)((twice >> 4) + (0xe0u << 23))) * 0x1p-112f;
    float small = lumc_float((int32_t)(twice >> 17 | 126u << 23)) - 0.5f;
    uint32_t bits = (uint32_t)lumc_bits(twice < 1u << 27 ? small : normal);
    return lumc_float((int32_t)(bits | (w & 0x80000000u)));
}
static inline uint16_t lumc_to_f16(float f)
{
    uint32_t w = (uint32_t)lumc_bits(f), twice = w + w, sign = w >> 16 & 0x8000;
    float base = lumc_float((int32_t)(w & 0x7fffffff)) * 0x1p+112f * 0x1p-110f;
    uint32_t bias = twice & 0xff000000u;
    bias = bias < 0x71000000u ? 0x71000000u : bias;
    base = lumc_float((int32_t)((bias >> 1) + 0x07800000u)) + base;
    uint32_t bits = (uint32_t)lumc_bits(base);
    uint32_t rounded = (bits >> 13 & 0x7c00) + (bits & 0xfff);
    return (uint16_t)(sign | (twice > 0xff000000u ? 0x7e00 : rounded));
}

/* ---- narrow elements: all types, read as vectors of f32 */

static inline float lumc_from_i8(int8_t i) { return (float)i; }
static inline float lumc_from_u8(uint8_t i) { return (float)i; }
#define LUMC_LOAD(name, type, n)                                                                  \
    static inline lumc_f32x##n lumc_load_##name##x##n(const type *p)                              \
    {                                                                                             \
        lumc_f32x##n v;                                                                           \
        _Pragma("GCC unroll 16") for (int i = 0; i < n; i++) v[i] = lumc_from_##name(p[i]);       \
        return v;                                                                                 \
    }
#define LUMC_LOADS(n)                                                                             \
    LUMC_LOAD(bf16, uint16_t, n)                                                                  \
    LUMC_LOAD(f16, uint16_t, n)                                                                   \
    LUMC_LOAD(i8, int8_t, n)                                                                      \
    LUMC_LOAD(u8, uint8_t, n)
#define lumc_load_bf16x1(p) lumc_from_bf16(*(p))
#define lumc_load_f16x1(p) lumc_from_f16(*(p))
#define lumc_load_i8x1(p) lumc_from_i8(*(p))
#define lumc_load_u8x1(p) lumc_from_u8(*(p))
LUMC_LOADS(2)
LUMC_LOADS(4)
/* gcc converts one element after the other unless it is told the instructions */
#if defined(__clang__) || !defined(__AVX2__) || !defined(__F16C__)
LUMC_LOADS(8)
LUMC_LOADS(16)
#else
typedef short lumc_i16x8 __attribute__((vector_size(16), aligned(1), may_alias));
typedef char lumc_i8x16 __attribute__((vector_size(16), aligned(1), may_alias));
typedef long long lumc_i64x2 __attribute__((vector_size(16)));
typedef uint64_t lumc_eight __attribute__((aligned(1), may_alias));
#define LUMC_EIGHT(p) ((lumc_i8x16)(lumc_i64x2){(long long)*(const lumc_eight *)(p), 0})
#define LUMC_WIDEN(name, type, n, ...)                                                            \
    static inline lumc_f32x##n lumc_load_##name##x##n(const type *p) { return __VA_ARGS__; }
LUMC_WIDEN(bf16, uint16_t, 8,
           (lumc_f32x8)(__builtin_ia32_pmovzxwd256(*(const lumc_i16x8 *)p) << 16))
LUMC_WIDEN(f16, uint16_t, 8, __builtin_ia32_vcvtph2ps256(*(const lumc_i16x8 *)p))
LUMC_WIDEN(i8, int8_t, 8,
           __builtin_convertvector(__builtin_ia32_pmovsxbd256(LUMC_EIGHT(p)), lumc_f32x8))
LUMC_WIDEN(u8, uint8_t, 8,
           __builtin_convertvector(__builtin_ia32_pmovzxbd256(LUMC_EIGHT(p)), lumc_f32x8))
#if defined(__AVX512F__)
typedef short lumc_i16x16 __attribute__((vector_size(32), aligned(1), may_alias));
typedef int lumc_i32x16 __attribute__((vector_size(64)));
#define LUMC_NONE ((lumc_i32x16){0})
LUMC_WIDEN(bf16, uint16_t, 16,
           (lumc_f32x16)(__builtin_ia32_pmovzxwd512_mask(*(const lumc_i16x16 *)p, LUMC_NONE, -1)
                         << 16))
LUMC_WIDEN(f16, uint16_t, 16,
           __builtin_ia32_vcvtph2ps512_mask(*(const lumc_i16x16 *)p, (lumc_f32x16)LUMC_NONE, -1, 4))
LUMC_WIDEN(i8, int8_t, 16,
           __builtin_convertvector(
               __builtin_ia32_pmovsxbd512_mask(*(const lumc_i8x16 *)p, LUMC_NONE, -1), lumc_f32x16))
LUMC_WIDEN(u8, uint8_t, 16,
           __builtin_convertvector(
               __builtin_ia32_pmovzxbd512_mask(*(const lumc_i8x16 *)p, LUMC_NONE, -1), lumc_f32x16))
#else
LUMC_LOADS(16)
#endif
#endif

/* Types, conversions and elementary functions of the kernels that lumc prints.
 *
 * Plain C without tables and branches, so that every vectoriser takes it, but for what works on
 * whole vectors. Floats are IEEE: NaN and infinities propagate. Compile with
 *   -O3 -fno-math-errno -fno-trapping-math -ffp-contract=fast -fopenmp-simd
 * and never with -ffast-math. The including file defines LUMC_LANES, the f32 lanes of a vector.
 */
#include <stdint.h>

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

/* ---- bits */

static inline float lumc_float(int32_t bits)
{
    float f;
    __builtin_memcpy(&f, &bits, 4);
    return f;
}
static inline int32_t lumc_bits(float f)
{
    int32_t bits;
    __builtin_memcpy(&bits, &f, 4);
    return bits;
}
static inline double lumc_double(int64_t bits)
{
    double f;
    __builtin_memcpy(&f, &bits, 8);
    return f;
}
static inline int64_t lumc_bits_f64(double f)
{
    int64_t bits;
    __builtin_memcpy(&bits, &f, 8);
    return bits;
}

/* ---- indices */

static inline long lumc_min(long a, long b) { return a < b ? a : b; }
static inline long lumc_clamp(long x, long lo, long hi) { return x < lo ? lo : x > hi ? hi : x; }
static inline long lumc_floor_div(long a, long b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }
static inline long lumc_floor_mod(long a, long b) { return a - lumc_floor_div(a, b) * b; }

/* ---- stores around the caches: a plain store first reads the line that it overwrites */

#define LUMC_PIECE 256 /* bytes: whole lines that one piece of a row is streamed in */
/* how many of the elements from p on come next: up to the start of a line, then whole pieces */
static inline long lumc_piece(const void *p, long size, long left)
{
    long head = (long)(-(uintptr_t)p & 63);
    return lumc_min(head ? (head + size - 1) / size : LUMC_PIECE / size, left);
}
#if !defined(__has_builtin)
#define __has_builtin(name) 0
#endif
#if __has_builtin(__builtin_nontemporal_store)
#define LUMC_STREAM(to, v) __builtin_nontemporal_store(v, to)
#define LUMC_LINE 16
#elif defined(__AVX512F__)
#define LUMC_STREAM(to, v) __builtin_ia32_movntps512((float *)(to), v)
#define LUMC_LINE 16
#elif defined(__AVX__)
#define LUMC_STREAM(to, v) __builtin_ia32_movntps256((float *)(to), v)
#define LUMC_LINE 8
#elif defined(__SSE__)
#define LUMC_STREAM(to, v) __builtin_ia32_movntps((float *)(to), v)
#define LUMC_LINE 4
#else
#define LUMC_STREAM(to, v) (*(to) = (v))
#define LUMC_LINE 4
#endif
typedef float lumc_line __attribute__((vector_size(LUMC_LINE * 4), may_alias));
static inline void lumc_stream(void *to, const void *from)
{
    _Pragma("GCC unroll 16") for (int i = 0; i < LUMC_PIECE / 4 / LUMC_LINE; i++)
        LUMC_STREAM((lumc_line *)to + i, ((const lumc_line *)from)[i]);
}
/* no other thread may see a later store before the streamed ones */
static inline void lumc_streamed(void)
{
#if defined(__SSE__)
    __builtin_ia32_sfence();
#endif
}

/* ---- half precision */

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

/* ---- narrow elements, read as vectors of f32 */

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

/* ---- integers: wrap, and a remainder by 0 is 0 */

#define LUMC_INTEGERS(name, type, wide)                                                           \
    static inline type lumc_add_##name(type a, type b) { return (type)((wide)a + (wide)b); }      \
    static inline type lumc_mul_##name(type a, type b) { return (type)((wide)a * (wide)b); }      \
    static inline type lumc_mod_##name(type a, type b)                                            \
    {                                                                                             \
        return b == 0 || b == (type)-1 ? (b && (type)-1 > 0 ? (type)(a % b) : 0) : (type)(a % b); \
    }                                                                                             \
    static inline type lumc_max_##name(type a, type b) { return b > a ? b : a; }
LUMC_INTEGERS(i64, int64_t, uint64_t)
LUMC_INTEGERS(i32, int32_t, uint32_t)
LUMC_INTEGERS(i8, int8_t, uint32_t)
LUMC_INTEGERS(u8, uint8_t, uint32_t)
static inline _Bool lumc_max_bool(_Bool a, _Bool b) { return a | b; }

/* ---- floats: the greater of two. top ignores NaN, max propagates it */

static inline float lumc_top_f32(float a, float b) { return b > a ? b : a; }
static inline double lumc_top_f64(double a, double b) { return b > a ? b : a; }
/* the reduction clause of top: max starts from -inf in gcc, from the least finite value in clang */
#if defined(__clang__)
#pragma omp declare reduction(lumc_top : float, double : omp_out = omp_in > omp_out ? omp_in       \
                                  : omp_out) initializer(omp_priv = -__builtin_inf())
#define LUMC_TOP lumc_top
#else
#define LUMC_TOP max
#endif
/* the magnitude bits of a NaN are above those of infinity: their maximum is carried beside top */
static inline int32_t lumc_magnitude_f32(float f) { return lumc_bits(f) & 0x7fffffff; }
static inline int64_t lumc_magnitude_f64(double f) { return lumc_bits_f64(f) & INT64_MAX; }
static inline float lumc_max_f32(float a, float b)
{
    return lumc_magnitude_f32(b) > 0x7f800000 ? b : lumc_top_f32(a, b);
}
static inline double lumc_max_f64(double a, double b) { return b != b ? b : lumc_top_f64(a, b); }
static inline float lumc_join_f32(float top, int32_t magnitude)
{
    return magnitude > 0x7f800000 ? __builtin_nanf("") : top;
}
static inline double lumc_join_f64(double top, int64_t magnitude)
{
    return magnitude > 0x7ff0000000000000 ? __builtin_nan("") : top;
}
/* never -inf, so that differences stay defined */
static inline float lumc_finite_f32(float f) { return f < -0x1.fffffep127f ? -0x1.fffffep127f : f; }
static inline double lumc_finite_f64(double f)
{
    return f < -0x1.fffffffffffffp1023 ? -0x1.fffffffffffffp1023 : f;
}

static inline float lumc_sqrt_f32(float x) { return __builtin_sqrtf(x); }
static inline double lumc_sqrt_f64(double x) { return __builtin_sqrt(x); }
static inline float lumc_recip_f32(float x) { return 1.0f / x; }
static inline double lumc_recip_f64(double x) { return 1.0 / x; }
static inline float lumc_mod_f32(float a, float b) { return __builtin_fmodf(a, b); }
static inline double lumc_mod_f64(double a, double b) { return __builtin_fmod(a, b); }
static inline double lumc_exp2_f64(double x) { return __builtin_exp2(x); }
static inline double lumc_exp2_ftz_f64(double x) { return __builtin_exp2(x); }
static inline double lumc_decay_f64(double x) { return __builtin_exp2(x); }
static inline double lumc_log2_f64(double x) { return __builtin_log2(x); }
static inline double lumc_sin_f64(double x) { return __builtin_sin(x); }

/* scale * 2^f for |f| <= 1/2 and a scale of 1 or 2 */
static inline float lumc_power(float scale, float f)
{
    float p = scale * 0.000153533f;
    p = p * f + scale * 0.00133953371f;
    p = p * f + scale * 0.00961838104f;
    p = p * f + scale * 0.0555032887f;
    p = p * f + scale * 0.240226462f;
    p = p * f + scale * 0.693147182f;
    return p * f + scale;
}
/* 2^x, at most 1.1 ulp (1.4 without FMA): x = n + f with n rounded by the addition of 1.5*2^23
 * (the low bits of the sum are n), a polynomial of f, and 2^n as a product of two powers, which
 * gets overflow and denormals right. The 254 in the sum is the exponent bias of both. */
static inline float lumc_exp2_f32(float x)
{
    x = -151.0f > x ? -151.0f : x;
    int32_t n = lumc_bits(x + 12583166.0f);
    n = n < 0x4b40017f ? n : 0x4b40017f;
    float f = x - (lumc_float(n) - 12583166.0f);
    int32_t half = n >> 1;
    return lumc_power(1.0f, f) * lumc_float((int32_t)((uint32_t)half << 23))
                         * lumc_float((int32_t)((uint32_t)(n - half) << 23));
}
/* the same; results below 2^-125 may be 0. As 2 * 2^f * 2^(n-1), overflow is where it should be:
 * 1.5*2^23 + 126 in the sum gives the exponent of 2^(n-1) */
static inline float lumc_exp2_ftz_f32(float x)
{
    x = -126.0f > x ? -126.0f : x;
    int32_t n = lumc_bits(x + 12583038.0f);
    n = n < 0x4b4000ff ? n : 0x4b4000ff;
    float f = x - (lumc_float(n) - 12583038.0f);
    return lumc_power(2.0f, f) * lumc_float((int32_t)((uint32_t)n << 23));
}
/* the same for x <= 0; results below 2^-126 are 0 */
static inline float lumc_decay_f32(float x)
{
    x = -127.0f > x ? -127.0f : x;
    float n = x + 12583039.0f; /* 1.5*2^23 + 127: its low bits are the exponent of 2^n */
    float f = x - (n - 12583039.0f);
    return lumc_power(1.0f, f) * lumc_float((int32_t)((uint32_t)lumc_bits(n) << 23));
}

/* Both for n elements, in whole vectors, at most 1 ulp: x = k/16 + f, or k/8 + f, with k in
 * the low bits of x + LUMC_K, and 2^(k/16) from a table in a register, which no vectoriser would
 * use. A root lacks the bits that k adds below the exponent when it is shifted to n = k/16.
 * Results below 2^-126 are 0 or something below it. */
#if !defined(__clang__) && defined(__AVX512F__) && LUMC_LANES >= 16
#define LUMC_ROOTS 16
#define LUMC_K 786432.0f
#define LUMC_ROOT_BITS(k) (__builtin_shuffle(lumc_roots, k) + ((k) << 19))
#define LUMC_MAX(a, b) __builtin_ia32_maxps512_mask(a, b, a, -1, 4)
#define LUMC_MIN_BITS(a, b) __builtin_ia32_pminsd512_mask(a, b, a, -1)
#define LUMC_REST(f) ((0.0561051406f * f + 0.240232855f) * f + 0.693146706f)
typedef lumc_f32x16 lumc_fv;
typedef int32_t lumc_iv __attribute__((vector_size(64)));
static const lumc_iv lumc_roots = {
    0x3f800000, 0x3f7daac3, 0x3f7b95c2, 0x3f79c3d3, 0x3f7837f0, 0x3f76f532, 0x3f75fed7, 0x3f75583f,
    0x3f7504f3, 0x3f7508a4, 0x3f75672a, 0x3f76248c, 0x3f7744fd, 0x3f78ccdf, 0x3f7ac0c7, 0x3f7d257d};
#elif !defined(__clang__) && defined(__AVX2__) && LUMC_LANES >= 8
#define LUMC_ROOTS 8
#define LUMC_K 1572864.0f
#define LUMC_ROOT_BITS(k) (__builtin_shuffle(lumc_roots, k) + ((k) << 20))
#define LUMC_MAX(a, b) __builtin_ia32_maxps256(a, b)
#define LUMC_MIN_BITS(a, b) __builtin_ia32_pminsd256(a, b)
#define LUMC_REST(f) (((0.00981628988f * f + 0.0555061176f) * f + 0.240225747f) * f + 0.693147182f)
typedef lumc_f32x8 lumc_fv;
typedef int32_t lumc_iv __attribute__((vector_size(32)));
static const lumc_iv lumc_roots = {0x3f800000, 0x3f7b95c2, 0x3f7837f0, 0x3f75fed7,
                                   0x3f7504f3, 0x3f75672a, 0x3f7744fd, 0x3f7ac0c7};
#endif
#ifdef LUMC_ROOTS
static inline lumc_fv lumc_power_fv(lumc_fv x, lumc_fv k)
{
    lumc_fv f = x - (k - LUMC_K), root = (lumc_fv)LUMC_ROOT_BITS((lumc_iv)k);
    return f * LUMC_REST(f) * root + root;
}
static inline lumc_fv lumc_clamp_fv(lumc_fv x) { return LUMC_MAX((lumc_fv){0} - 127.0f, x); }
static inline void lumc_decay_n_f32(float *to, const float *from, long n)
{
    for (long i = 0; i < n; i += LUMC_ROOTS) {
        lumc_fv x = lumc_clamp_fv(*(const lumc_fv *)(from + i));
        *(lumc_fv *)(to + i) = lumc_power_fv(x, x + LUMC_K);
    }
}
/* the greatest k is that of the last root below 2^128: f may be twice what it is elsewhere */
static inline void lumc_exp2_ftz_n_f32(float *to, const float *from, long n)
{
    const lumc_iv top = (lumc_iv)((lumc_fv){0} + (LUMC_K + 128.0f)) - 1;
    for (long i = 0; i < n; i += LUMC_ROOTS) {
        lumc_fv x = lumc_clamp_fv(*(const lumc_fv *)(from + i));
        lumc_iv k = (lumc_iv)LUMC_MIN_BITS((lumc_iv)(x + LUMC_K), top);
        *(lumc_fv *)(to + i) = lumc_power_fv(x, (lumc_fv)k);
    }
}
#else
static inline void lumc_decay_n_f32(float *to, const float *from, long n)
{
    _Pragma("omp simd") for (long i = 0; i < n; i++) to[i] = lumc_decay_f32(from[i]);
}
static inline void lumc_exp2_ftz_n_f32(float *to, const float *from, long n)
{
    _Pragma("omp simd") for (long i = 0; i < n; i++) to[i] = lumc_exp2_ftz_f32(from[i]);
}
#endif

/* log2(x), at most 1.3 ulp (1.5 without FMA): x = 2^e * m with m in [sqrt(1/2), sqrt(2)),
 * log(1 + f) as a polynomial of f = m - 1 (Cephes), times log2(e) = 1 + 0.4427 in parts. */
static inline float lumc_log2_f32(float x)
{
    int32_t small = x < 0x1p-126f;
    int32_t bits = lumc_bits(small ? x * 0x1p23f : x);
    int32_t e = (int32_t)((uint32_t)bits - 0x3f3504f3u) >> 23;
    float f = lumc_float((int32_t)((uint32_t)bits - ((uint32_t)e << 23))) - 1.0f;
    float z = f * f;
    float p = 7.0376836292e-2f;
    p = p * f - 1.1514610310e-1f;
    p = p * f + 1.1676998740e-1f;
    p = p * f - 1.2420140846e-1f;
    p = p * f + 1.4249322787e-1f;
    p = p * f - 1.6668057665e-1f;
    p = p * f + 2.0000714765e-1f;
    p = p * f - 2.4999993993e-1f;
    p = p * f + 3.3333331174e-1f;
    float y = p * f * z - 0.5f * z;
    float r = y * 0.44269504088896341f + f * 0.44269504088896341f + y + f
            + (float)(e - (small ? 23 : 0));
    float edge = x == 0.0f ? -__builtin_inff() : x < 0.0f ? __builtin_nanf("") : x;
    return x > 0.0f && x < __builtin_inff() ? r : edge;
}

/* sin(x), correctly rounded but for rare cases, for every x: x/pi - n in double precision. From
 * 2^47 on x is scaled by 2^-24 (2^-48, ..), and 2^24/pi mod 2 (..) takes the place of 1/pi, in
 * parts of 28, 28 and 53 bits, whose products with the 24 bits of x are exact. */
#define LUMC_BY_SIZE(a, c0, c1, c2, c3, c4)                                                       \
    (a < 0x1p47f ? c0 : a < 0x1p71f ? c1 : a < 0x1p95f ? c2 : a < 0x1p119f ? c3 : c4)
static inline float lumc_sin_f32(float x)
{
    float size = x < 0 ? -x : x;
    float y = x * LUMC_BY_SIZE(size, 1.0f, 0x1p-24f, 0x1p-48f, 0x1p-72f, 0x1p-96f);
    double high = (double)y * (double)LUMC_BY_SIZE(size, 0x1.45f3068p-2, 0x1.b72722p+0,
                                                   0x1.529fcp-5, 0x1.3abe8ep-4, 0x1.f534ddcp-1);
    double middle = (double)y * LUMC_BY_SIZE(size, 0x1.727220ap-28, 0x1.529fc24p-29,
                                             0x1.3abe8fap-28, 0x1.a9a6eep-28, 0x1.b6c528p-34);
    double low = (double)y * LUMC_BY_SIZE(size, 0x1.29fc2757d1f53p-57, 0x1.abe8fa9a6ee07p-56,
                                          0x1.34ddc0db6295ap-57, 0x1.b6c52b3278872p-58,
                                          0x1.993c439041fe5p-57);
    double n = high + 0x1.8p52; /* rounds to an integer, in the low bits of the sum */
    double f = high - (n - 0x1.8p52) + middle;
    double n2 = f + 0x1.8p52;
    f = f - (n2 - 0x1.8p52) + low;
    int32_t odd = (int32_t)(lumc_bits_f64(n) ^ lumc_bits_f64(n2));
    double z = f * f;
    double p = -0x1.cc2b88e2c82edp-8;
    p = p * z + 0x1.50100f3e23471p-4;
    p = p * z - 0x1.32d115d20135cp-1;
    p = p * z + 0x1.466bbfeb30e2fp+1;
    p = p * z - 0x1.4abbce500f10ap+2;
    p = p * z + 0x1.921fb54421998p+1;
    return lumc_float(lumc_bits((float)(p * f)) ^ (int32_t)((uint32_t)odd << 31));
}

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

/* ---- powers of two */

/* The least arguments of the functions below. Weak, so that no compiler knows them: gcc would make
 * two branches of all that follows (-ftree-pre), one of them of constants, and no vectors. Models of
 * several versions may be linked into one program: no value here ever changes. */
__attribute__((weak, visibility("hidden"))) const float lumc_least[5] = {
    -151.0f, -126.0f, -104.0f, -87.3365479f, -127.0f};

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
    x = lumc_least[0] > x ? lumc_least[0] : x;
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
    x = lumc_least[1] > x ? lumc_least[1] : x;
    int32_t n = lumc_bits(x + 12583038.0f);
    n = n < 0x4b4000ff ? n : 0x4b4000ff;
    float f = x - (lumc_float(n) - 12583038.0f);
    return lumc_power(2.0f, f) * lumc_float((int32_t)((uint32_t)n << 23));
}
/* e^f for |f| <= ln(2)/2, times a scale of 1 or 2 */
static inline float lumc_growth(float scale, float f)
{
    float p = scale * 0.00138435977f;
    p = p * f + scale * 0.00837194453f;
    p = p * f + scale * 0.0416677581f;
    p = p * f + scale * 0.166664204f;
    p = p * f + scale * 0.499999906f;
    p = p * f + scale;
    return p * f + scale;
}
/* e^x, at most 1.2 ulp: as exp2, but x - n ln(2), with ln(2) in two parts, is exact where the
 * product of x and log2(e) would be rounded: at 80 that is 40 ulp of the result */
static inline float lumc_exp_f32(float x)
{
    x = lumc_least[2] > x ? lumc_least[2] : x;
    int32_t n = lumc_bits(x * 1.44269504f + 12583166.0f);
    n = n < 0x4b40017f ? n : 0x4b40017f;
    float k = lumc_float(n) - 12583166.0f;
    float f = x - k * 0x1.63p-1f + k * 2.12194440e-4f;
    int32_t half = n >> 1;
    return lumc_growth(1.0f, f) * lumc_float((int32_t)((uint32_t)half << 23))
                          * lumc_float((int32_t)((uint32_t)(n - half) << 23));
}
/* the same; results below 2^-125 may be 0 */
static inline float lumc_exp_ftz_f32(float x)
{
    x = lumc_least[3] > x ? lumc_least[3] : x;
    int32_t n = lumc_bits(x * 1.44269504f + 12583038.0f);
    n = n < 0x4b4000ff ? n : 0x4b4000ff;
    float k = lumc_float(n) - 12583038.0f;
    float f = x - k * 0x1.63p-1f + k * 2.12194440e-4f;
    return lumc_growth(2.0f, f) * lumc_float((int32_t)((uint32_t)n << 23));
}
/* 2^x for x <= 0; results below 2^-126 are 0 */
static inline float lumc_decay_f32(float x)
{
    x = lumc_least[4] > x ? lumc_least[4] : x;
    float n = x + 12583039.0f; /* 1.5*2^23 + 127: its low bits are the exponent of 2^n */
    float f = x - (n - 12583039.0f);
    return lumc_power(1.0f, f) * lumc_float((int32_t)((uint32_t)lumc_bits(n) << 23));
}

/* Those that may give 0 for n elements, in whole vectors, at most 1.1 ulp: x = k/16 + f, or k/8 + f, with k in
 * the low bits of x + LUMC_K, and 2^(k/16) from a table in a register, which no vectoriser would
 * use. Results below 2^-126 are 0 where the runner sets the mode (link/runner/pool.c). */
#if !defined(__clang__) && defined(__AVX512DQ__) && LUMC_LANES >= 16
#define LUMC_ROOTS 16
typedef lumc_f32x16 lumc_fv;
typedef int32_t lumc_iv __attribute__((vector_size(64)));
static const lumc_iv lumc_roots = {
    0x3f800000, 0x3f85aac3, 0x3f8b95c2, 0x3f91c3d3, 0x3f9837f0, 0x3f9ef532, 0x3fa5fed7, 0x3fad583f,
    0x3fb504f3, 0x3fbd08a4, 0x3fc5672a, 0x3fce248c, 0x3fd744fd, 0x3fe0ccdf, 0x3feac0c7, 0x3ff5257d};
/* k is rounded down (the 9), and so scaling by x takes the power of two that remains. What the
 * reduction leaves of an infinity is 0. */
static inline lumc_fv lumc_power_fv(lumc_fv x)
{
    const lumc_fv start = (lumc_fv){0} + 786432.0f;
    lumc_iv k = (lumc_iv)__builtin_ia32_addps512_mask(x, start, x, -1, 9);
    lumc_fv f = __builtin_ia32_reduceps512_mask(x, 0x41, x, -1);
    lumc_fv root = (lumc_fv)__builtin_shuffle(lumc_roots, k);
    root += f * ((0.0566698983f * f + 0.240184247f) * f + 0.693147600f) * root;
    return __builtin_ia32_scalefps512_mask(root, x, root, -1, 4);
}
/* e^x: what the reduction leaves of a number that is too large, or infinite, is cut to 1/2, which
 * scaling makes 0 or infinite */
static inline lumc_fv lumc_exp_ftz_fv(lumc_fv x)
{
    const lumc_fv start = (lumc_fv){0} + 786432.0f, most = (lumc_fv){0} + 0.5f;
    lumc_fv t = x * 1.44269504f;
    lumc_fv k = __builtin_ia32_addps512_mask(t, start, x, -1, 9), n = k - start;
    lumc_fv f = x - n * 0.693147182f + n * 1.90465432e-9f;
    f = __builtin_ia32_rangeps512_mask(f, most, 2, f, -1, 4);
    lumc_fv root = (lumc_fv)__builtin_shuffle(lumc_roots, (lumc_iv)k);
    root += f * ((0.170167277f * f + 0.499912041f) * f + 1.00000061f) * root;
    return __builtin_ia32_scalefps512_mask(root, t, root, -1, 4);
}
#define lumc_decay_fv lumc_power_fv
#define lumc_exp2_ftz_fv lumc_power_fv
#elif !defined(__clang__) && defined(__AVX2__) && LUMC_LANES >= 8
#define LUMC_ROOTS 8
typedef lumc_f32x8 lumc_fv;
typedef int32_t lumc_iv __attribute__((vector_size(32)));
/* without the bits that k adds below the exponent when it is shifted to n = k/8 */
static const lumc_iv lumc_roots = {0x3f800000, 0x3f7b95c2, 0x3f7837f0, 0x3f75fed7,
                                   0x3f7504f3, 0x3f75672a, 0x3f7744fd, 0x3f7ac0c7};
#define LUMC_K 1572864.0f
static inline lumc_fv lumc_power_fv(lumc_fv x, lumc_fv k)
{
    lumc_fv f = x - (k - LUMC_K), rest = 0.00981628988f * f + 0.0555061176f;
    lumc_iv bits = __builtin_shuffle(lumc_roots, (lumc_iv)k) + ((lumc_iv)k << 20);
    return f * ((rest * f + 0.240225747f) * f + 0.693147182f) * (lumc_fv)bits + (lumc_fv)bits;
}
static inline lumc_fv lumc_decay_fv(lumc_fv x)
{
    x = __builtin_ia32_maxps256((lumc_fv){0} - 127.0f, x);
    return lumc_power_fv(x, x + LUMC_K);
}
/* the greatest k is that of the last root below 2^128: f may be twice what it is elsewhere */
static inline lumc_fv lumc_exp2_ftz_fv(lumc_fv x)
{
    const lumc_iv top = (lumc_iv)((lumc_fv){0} + (LUMC_K + 128.0f)) - 1;
    x = __builtin_ia32_maxps256((lumc_fv){0} - 127.0f, x);
    return lumc_power_fv(x, (lumc_fv)__builtin_ia32_pminsd256((lumc_iv)(x + LUMC_K), top));
}
static inline lumc_fv lumc_exp_ftz_fv(lumc_fv x)
{
    const lumc_iv top = (lumc_iv)((lumc_fv){0} + (LUMC_K + 128.0f)) - 1;
    x = __builtin_ia32_maxps256((lumc_fv){0} - 88.0296919f, x); /* -127 ln(2) */
    lumc_iv k = __builtin_ia32_pminsd256((lumc_iv)(x * 1.44269504f + LUMC_K), top);
    lumc_fv n = (lumc_fv)k - LUMC_K, f = x - n * 0x1.63p-1f + n * 2.12194440e-4f;
    lumc_fv rest = 0.0425251183f * f + 0.166672699f;
    lumc_iv bits = __builtin_shuffle(lumc_roots, k) + (k << 20);
    return f * ((rest * f + 0.499998418f) * f + 1.0f) * (lumc_fv)bits + (lumc_fv)bits;
}
#endif
#ifdef LUMC_ROOTS
static inline void lumc_decay_n_f32(float *to, const float *from, long n)
{
    for (long i = 0; i < n; i += LUMC_ROOTS)
        *(lumc_fv *)(to + i) = lumc_decay_fv(*(const lumc_fv *)(from + i));
}
static inline void lumc_exp2_ftz_n_f32(float *to, const float *from, long n)
{
    for (long i = 0; i < n; i += LUMC_ROOTS)
        *(lumc_fv *)(to + i) = lumc_exp2_ftz_fv(*(const lumc_fv *)(from + i));
}
static inline void lumc_exp_ftz_n_f32(float *to, const float *from, long n)
{
    for (long i = 0; i < n; i += LUMC_ROOTS)
        *(lumc_fv *)(to + i) = lumc_exp_ftz_fv(*(const lumc_fv *)(from + i));
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
static inline void lumc_exp_ftz_n_f32(float *to, const float *from, long n)
{
    _Pragma("omp simd") for (long i = 0; i < n; i++) to[i] = lumc_exp_ftz_f32(from[i]);
}
#endif

/* ---- arithmetic of integers: they wrap, and a remainder by 0 is 0 */

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
LUMC_INTEGERS(i16, int16_t, uint32_t)
LUMC_INTEGERS(i8, int8_t, uint32_t)
LUMC_INTEGERS(u64, uint64_t, uint64_t)
LUMC_INTEGERS(u32, uint32_t, uint32_t)
LUMC_INTEGERS(u16, uint16_t, uint32_t)
LUMC_INTEGERS(u8, uint8_t, uint32_t)
/* negative floats wrap */
static inline uint64_t lumc_to_u64(double x)
{
    return x >= 0x1p63 ? (uint64_t)(int64_t)(x - 0x1p63) + 0x8000000000000000u
                       : (uint64_t)(int64_t)x;
}
static inline _Bool lumc_max_bool(_Bool a, _Bool b) { return a | b; }

/* ---- arithmetic of floats: the greater of two. top ignores NaN, max propagates it */

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
/* integers in the order of the values, kept as floats: NaN is above all; its own inverse below it */
static inline float lumc_unkey_f32(float k)
{
    const int32_t b = lumc_bits(k);
    return lumc_float(b ^ ((b >> 31) & 0x7fffffff));
}
static inline float lumc_key_f32(float f)
{
    return lumc_magnitude_f32(f) > 0x7f800000 ? lumc_float(0x7fc00000) : lumc_unkey_f32(f);
}
static inline float lumc_keymax_f32(float a, float b)
{
    return lumc_float(lumc_bits(a) > lumc_bits(b) ? lumc_bits(a) : lumc_bits(b));
}
/* never -inf, so that differences stay defined */
static inline float lumc_finite_f32(float f) { return f < -0x1.fffffep127f ? -0x1.fffffep127f : f; }
static inline double lumc_finite_f64(double f)
{
    return f < -0x1.fffffffffffffp1023 ? -0x1.fffffffffffffp1023 : f;
}

/* a product that no multiply-add takes in: compilers do not know that these bits are never set */
static int64_t lumc_no_bits __attribute__((used));
static inline float lumc_rounded_f32(float x)
{
    return lumc_float(lumc_bits(x) | (int32_t)lumc_no_bits);
}
static inline double lumc_rounded_f64(double x)
{
    const int64_t bits = lumc_bits_f64(x) | lumc_no_bits;
    __builtin_memcpy(&x, &bits, 8);
    return x;
}

static inline float lumc_sqrt_f32(float x) { return __builtin_sqrtf(x); }
static inline double lumc_sqrt_f64(double x) { return __builtin_sqrt(x); }
static inline float lumc_recip_f32(float x) { return 1.0f / x; }
static inline double lumc_recip_f64(double x) { return 1.0 / x; }
static inline float lumc_mod_f32(float a, float b) { return __builtin_fmodf(a, b); }
static inline double lumc_mod_f64(double a, double b) { return __builtin_fmod(a, b); }
static inline double lumc_exp2_f64(double x) { return __builtin_exp2(x); }
static inline double lumc_exp2_ftz_f64(double x) { return __builtin_exp2(x); }
static inline double lumc_exp_f64(double x) { return __builtin_exp(x); }
static inline double lumc_exp_ftz_f64(double x) { return __builtin_exp(x); }
static inline double lumc_decay_f64(double x) { return __builtin_exp2(x); }
static inline double lumc_log2_f64(double x) { return __builtin_log2(x); }
static inline double lumc_sin_f64(double x) { return __builtin_sin(x); }

/* What the Metal kernels that lumc prints are made of: element types, conversions, elementary
 * functions, barriers and shuffles, under the names of lumc_dev.h. This text stands in front of
 * the kernels of a bundle, which are compiled together where they run.
 *
 * The library is compiled with fast math off: NaN and infinities are values. There is no double.
 */
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;

typedef char lumc_i8;
typedef uchar lumc_u8;
typedef short lumc_i16;
typedef ushort lumc_u16;
typedef int lumc_i32;
typedef uint lumc_u32;
typedef long lumc_i64;
typedef ulong lumc_u64;

/* half precision in memory; arithmetic is in float */
struct lumc_f16 {
    lumc_u16 bits;
};
struct lumc_bf16 {
    lumc_u16 bits;
};

#ifndef LUMC_FN
#define LUMC_FN inline
#endif
#define LUMC_UNROLL _Pragma("clang loop unroll(full)")
#define LUMC_NAN_F32 lumc_float(0x7fc00000)
#define LUMC_INF_F32 lumc_float(0x7f800000)
#define LUMC_MIN_I64 (-0x7fffffffffffffffl - 1)

/* ---- threads */

LUMC_FN void lumc_sync() { threadgroup_barrier(mem_flags::mem_threadgroup); }
LUMC_FN void lumc_warp_sync() { simdgroup_barrier(mem_flags::mem_threadgroup); }
LUMC_FN float lumc_shuffle_xor(float v, int lanes) { return simd_shuffle_xor(v, ushort(lanes)); }
LUMC_FN lumc_i32 lumc_shuffle_xor(lumc_i32 v, int lanes)
{
    return simd_shuffle_xor(v, ushort(lanes));
}
LUMC_FN lumc_u32 lumc_shuffle_xor(lumc_u32 v, int lanes)
{
    return simd_shuffle_xor(v, ushort(lanes));
}
/* only 32-bit values are shuffled by every GPU */
LUMC_FN lumc_i64 lumc_shuffle_xor(lumc_i64 v, int lanes)
{
    lumc_u32 low = lumc_shuffle_xor(lumc_u32(v), lanes);
    lumc_u32 high = lumc_shuffle_xor(lumc_u32(lumc_u64(v) >> 32), lanes);
    return lumc_i64(lumc_u64(high) << 32 | low);
}
LUMC_FN lumc_u64 lumc_shuffle_xor(lumc_u64 v, int lanes)
{
    return lumc_u64(lumc_shuffle_xor(lumc_i64(v), lanes));
}

/* ---- memory: 4, 8 or 16 bytes in one access; `p` is a multiple of them */

template <int BYTES> struct lumc_words;
template <> struct lumc_words<4> {
    typedef uint type;
};
template <> struct lumc_words<8> {
    typedef uint2 type;
};
template <> struct lumc_words<16> {
    typedef uint4 type;
};
template <class T, int N> union lumc_vector {
    typename lumc_words<N * sizeof(T)>::type words;
    T elements[N];
};
#define LUMC_ACCESS(space)                                                                        \
    template <class T, int N> LUMC_FN void lumc_load(thread T (&to)[N], space const T *p)         \
    {                                                                                             \
        lumc_vector<T, N> v;                                                                      \
        v.words = *(space const typename lumc_words<N * sizeof(T)>::type *)p;                     \
        LUMC_UNROLL for (int i = 0; i < N; i++) to[i] = v.elements[i];                            \
    }                                                                                             \
    template <class T, int N> LUMC_FN void lumc_store(space T *p, thread const T (&from)[N])      \
    {                                                                                             \
        lumc_vector<T, N> v;                                                                      \
        LUMC_UNROLL for (int i = 0; i < N; i++) v.elements[i] = from[i];                          \
        *(space typename lumc_words<N * sizeof(T)>::type *)p = v.words;                           \
    }
LUMC_ACCESS(device)
#ifndef LUMC_EMU /* a CPU has one address space */
LUMC_ACCESS(threadgroup)
#endif
template <int BYTES> LUMC_FN void lumc_copy(threadgroup void *to, device const void *from)
{
    typedef typename lumc_words<BYTES>::type words;
    *(threadgroup words *)to = *(device const words *)from;
}

/* ---- indices */

LUMC_FN lumc_i64 lumc_min(lumc_i64 a, lumc_i64 b) { return a < b ? a : b; }
LUMC_FN lumc_i32 lumc_min(lumc_i32 a, lumc_i32 b) { return a < b ? a : b; }
LUMC_FN lumc_i32 lumc_max(lumc_i32 a, lumc_i32 b) { return a > b ? a : b; }
LUMC_FN lumc_i64 lumc_clamp(lumc_i64 x, lumc_i64 lo, lumc_i64 hi)
{
    return x < lo ? lo : x > hi ? hi : x;
}
LUMC_FN lumc_i32 lumc_clamp(lumc_i32 x, lumc_i32 lo, lumc_i32 hi)
{
    return x < lo ? lo : x > hi ? hi : x;
}
/* a positive divisor; the quotient is rounded down */
LUMC_FN lumc_i64 lumc_floor_div(lumc_i64 a, lumc_i64 b)
{
    return a >= 0 ? a / b : -((b - 1 - a) / b);
}
LUMC_FN lumc_i32 lumc_floor_div(lumc_i32 a, lumc_i32 b)
{
    return a >= 0 ? a / b : -((b - 1 - a) / b);
}
LUMC_FN lumc_i64 lumc_floor_mod(lumc_i64 a, lumc_i64 b) { return a - lumc_floor_div(a, b) * b; }
LUMC_FN lumc_i32 lumc_floor_mod(lumc_i32 a, lumc_i32 b) { return a - lumc_floor_div(a, b) * b; }

/* ---- conversions */

LUMC_FN float lumc_float(lumc_i32 bits) { return as_type<float>(bits); }
LUMC_FN lumc_i32 lumc_bits(float f) { return as_type<lumc_i32>(f); }
/* the magnitude bits of a NaN are above those of infinity */
LUMC_FN lumc_i32 lumc_magnitude_f32(float f) { return lumc_bits(f) & 0x7fffffff; }

/* a number of a word of eight as a float, less `least`; four neighbours are in the same bits of four
 * bytes. Its bits are put below the exponent with which the lowest of them counts 1, and what stands
 * before them is taken off: both are exact, and no unit converts. Where `at` is known that is a
 * mask and a sum, for those that the fraction of a float has no room for with a shift that they share */
LUMC_FN float lumc_nibble(lumc_u32 word, int at, int least)
{
    const int low = (at & 3) * 8 + (at >> 2) * 4, from = low > 16 ? 12 : 0, p = low - from;
    const lumc_u32 bits = (word >> from & 15u << p) | lumc_u32(150 - p) << 23;
    return lumc_float(lumc_i32(bits)) - float((1 << (23 - p)) + least);
}
LUMC_FN float lumc_from_f16(lumc_f16 h) { return float(as_type<half>(h.bits)); }
LUMC_FN lumc_f16 lumc_to_f16(float f) { return lumc_f16{as_type<lumc_u16>(half(f))}; }
LUMC_FN float lumc_from_bf16(lumc_bf16 h) { return as_type<float>(lumc_u32(h.bits) << 16); }
LUMC_FN lumc_bf16 lumc_to_bf16(float f)
{
    lumc_u32 u = as_type<lumc_u32>(f), rounded = (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
    return lumc_bf16{lumc_u16((u & 0x7fffffffu) > 0x7f800000u ? u >> 16 | 0x40u : rounded)};
}
/* a float outside the range, or NaN, becomes the least integer: as numpy on most machines */
LUMC_FN lumc_i32 lumc_to_i32(float x)
{
    return x >= -2147483648.0f && x < 2147483648.0f ? lumc_i32(x) : lumc_i32(0x80000000u);
}
LUMC_FN lumc_i64 lumc_to_i64(float x)
{
    return x >= -9223372036854775808.0f && x < 9223372036854775808.0f ? lumc_i64(x) : LUMC_MIN_I64;
}
/* negative floats wrap */
LUMC_FN lumc_u64 lumc_to_u64(float x)
{
    return x >= 9223372036854775808.0f && x < 18446744073709551616.0f ? lumc_u64(x)
                                                                       : lumc_u64(lumc_to_i64(x));
}

/* ---- integers: wrap, and a remainder by 0 is 0 */

#define LUMC_INTEGERS(name, type, wide)                                                           \
    LUMC_FN type lumc_add_##name(type a, type b) { return type(wide(a) + wide(b)); }              \
    LUMC_FN type lumc_mul_##name(type a, type b) { return type(wide(a) * wide(b)); }              \
    LUMC_FN type lumc_mod_##name(type a, type b)                                                  \
    {                                                                                             \
        return b == 0 || b == type(-1) ? type(b && type(-1) > 0 ? a % b : 0) : type(a % b);       \
    }                                                                                             \
    LUMC_FN type lumc_max_##name(type a, type b) { return b > a ? b : a; }
LUMC_INTEGERS(i64, lumc_i64, lumc_u64)
LUMC_INTEGERS(i32, lumc_i32, lumc_u32)
LUMC_INTEGERS(i16, lumc_i16, lumc_u32)
LUMC_INTEGERS(i8, lumc_i8, lumc_u32)
LUMC_INTEGERS(u64, lumc_u64, lumc_u64)
LUMC_INTEGERS(u32, lumc_u32, lumc_u32)
LUMC_INTEGERS(u16, lumc_u16, lumc_u32)
LUMC_INTEGERS(u8, lumc_u8, lumc_u32)
LUMC_FN bool lumc_max_bool(bool a, bool b) { return a || b; }

/* ---- floats: the greater of two. top ignores NaN, max propagates it */

LUMC_FN float lumc_top_f32(float a, float b) { return b > a ? b : a; }
LUMC_FN float lumc_max_f32(float a, float b)
{
    return lumc_magnitude_f32(b) > 0x7f800000 ? b : lumc_top_f32(a, b);
}
/* never -inf, so that differences stay defined */
LUMC_FN float lumc_finite_f32(float f) { return f < -FLT_MAX ? -FLT_MAX : f; }
/* a product: without fast math, multiply-adds are made within one expression only */
LUMC_FN float lumc_rounded_f32(float x) { return x; }

/* ---- elementary functions: the precise ones of Metal, at most 4 ulp */

LUMC_FN float lumc_sqrt_f32(float x) { return precise::sqrt(x); }
LUMC_FN float lumc_recip_f32(float x) { return 1.0f / x; }
/* a finite number modulo infinity is itself; infinity modulo a number, or modulo 0, is no number */
LUMC_FN float lumc_mod_f32(float a, float b)
{
    lumc_i32 size = lumc_magnitude_f32(a), by = lumc_magnitude_f32(b);
    float edge = size < 0x7f800000 && by == 0x7f800000 ? a : LUMC_NAN_F32;
    bool plain = size < 0x7f800000 && by > 0 && by < 0x7f800000;
    return plain ? precise::fmod(a, b) : edge;
}
LUMC_FN float lumc_exp2_f32(float x) { return precise::exp2(x); }
/* 2^x; results below 2^-125 may be 0 */
LUMC_FN float lumc_exp2_ftz_f32(float x) { return precise::exp2(x); }
/* e^x, also where such results may be 0 */
LUMC_FN float lumc_exp_f32(float x) { return precise::exp(x); }
LUMC_FN float lumc_exp_ftz_f32(float x) { return precise::exp(x); }
/* 2^x for x <= 0; results below 2^-126 may be 0 */
LUMC_FN float lumc_decay_f32(float x) { return precise::exp2(x); }
LUMC_FN float lumc_log2_f32(float x) { return precise::log2(x); }
LUMC_FN float lumc_sin_f32(float x) { return precise::sin(x); }

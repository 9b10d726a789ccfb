/* What the CUDA kernels that lumc prints are made of: element types, conversions, elementary
 * functions, and the operations of the hardware (barriers, shuffles, asynchronous copies, tensor
 * cores). It is the only header that they include; itself it includes nothing, so that nvcc and
 * NVRTC need no path for it. Devices from sm_80 on.
 *
 * With LUMC_EMU defined the part "hardware" comes from lumc_emu.h instead, and g++ makes code of
 * the same text that runs on the CPU. Everything outside that part is plain C++ for both.
 *
 * Floats are IEEE: NaN and infinities propagate. Never compile with --use_fast_math.
 */
#pragma once

typedef signed char lumc_i8;
typedef unsigned char lumc_u8;
typedef unsigned short lumc_u16;
typedef int lumc_i32;
typedef unsigned int lumc_u32;
typedef long long lumc_i64;
typedef unsigned long long lumc_u64;

/* half precision in memory; arithmetic is in float */
struct lumc_f16 {
    lumc_u16 bits;
};
struct lumc_bf16 {
    lumc_u16 bits;
};

#define LUMC_NAN_F32 lumc_float(0x7fc00000)
#define LUMC_INF_F32 lumc_float(0x7f800000)
#define LUMC_NAN_F64 lumc_double(0x7ff8000000000000)
#define LUMC_INF_F64 lumc_double(0x7ff0000000000000)
#define LUMC_MIN_I64 (-0x7fffffffffffffff - 1)

/* ---- hardware */

#ifdef LUMC_EMU
#include "lumc_emu.h"
#else

#define LUMC_FN __device__ __forceinline__
#define LUMC_UNROLL _Pragma("unroll")
#define LUMC_EXPORT(symbol) /* the emulator's entry to a kernel */
/* the dynamic shared memory of the block, and an array of `count` elements in it */
#define LUMC_SHARED(type, name)                                                                   \
    extern __shared__ __align__(128) lumc_u8 lumc_shared[];                                       \
    type *const name = (type *)lumc_shared
#define LUMC_TILE(type, name, shared, offset, count)                                              \
    type *const name = (type *)((lumc_u8 *)(shared) + (offset))

LUMC_FN void lumc_sync(void) { __syncthreads(); }
LUMC_FN void lumc_warp_sync(void) { __syncwarp(); }
LUMC_FN float lumc_shuffle_xor(float v, int lanes) { return __shfl_xor_sync(~0u, v, lanes); }
LUMC_FN double lumc_shuffle_xor(double v, int lanes) { return __shfl_xor_sync(~0u, v, lanes); }
LUMC_FN lumc_i32 lumc_shuffle_xor(lumc_i32 v, int lanes) { return __shfl_xor_sync(~0u, v, lanes); }
LUMC_FN lumc_u32 lumc_shuffle_xor(lumc_u32 v, int lanes) { return __shfl_xor_sync(~0u, v, lanes); }
LUMC_FN lumc_i64 lumc_shuffle_xor(lumc_i64 v, int lanes) { return __shfl_xor_sync(~0u, v, lanes); }

LUMC_FN float lumc_float(lumc_i32 bits) { return __int_as_float(bits); }
LUMC_FN lumc_i32 lumc_bits(float f) { return __float_as_int(f); }
LUMC_FN double lumc_double(lumc_i64 bits) { return __longlong_as_double(bits); }
LUMC_FN lumc_i64 lumc_bits_f64(double f) { return __double_as_longlong(f); }
LUMC_FN float lumc_sqrt_f32(float x) { return __fsqrt_rn(x); }
LUMC_FN double lumc_sqrt_f64(double x) { return __dsqrt_rn(x); }
LUMC_FN float lumc_recip_f32(float x) { return __frcp_rn(x); }
LUMC_FN double lumc_recip_f64(double x) { return __drcp_rn(x); }
LUMC_FN float lumc_mod_f32(float a, float b) { return fmodf(a, b); }
LUMC_FN double lumc_mod_f64(double a, double b) { return fmod(a, b); }
/* the greater of two: top ignores a NaN in b, max propagates NaN */
LUMC_FN float lumc_top_f32(float a, float b) { return fmaxf(a, b); }
LUMC_FN float lumc_max_f32(float a, float b)
{
    float greater;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(greater) : "f"(a), "f"(b));
    return greater;
}
LUMC_FN double lumc_exp2_f64(double x) { return exp2(x); }
LUMC_FN double lumc_log2_f64(double x) { return log2(x); }
LUMC_FN double lumc_sin_f64(double x) { return sin(x); }

LUMC_FN float lumc_from_bf16(lumc_bf16 h) { return lumc_float((lumc_i32)((lumc_u32)h.bits << 16)); }
LUMC_FN float lumc_from_f16(lumc_f16 h)
{
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h.bits));
    return f;
}
LUMC_FN lumc_f16 lumc_to_f16(float f)
{
    lumc_f16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h.bits) : "f"(f));
    return h;
}
LUMC_FN lumc_bf16 lumc_to_bf16(float f)
{
    lumc_bf16 h;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h.bits) : "f"(f));
    return h;
}
/* two floats, rounded, as one word: `low` in its low half */
template <class T> LUMC_FN lumc_u32 lumc_pack(float low, float high);
template <> LUMC_FN lumc_u32 lumc_pack<lumc_f16>(float low, float high)
{
    lumc_u32 word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}
template <> LUMC_FN lumc_u32 lumc_pack<lumc_bf16>(float low, float high)
{
    lumc_u32 word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}
/* the operand of a tf32 product: rounded to 10 bits of fraction, a half away from zero */
LUMC_FN lumc_u32 lumc_to_tf32(float f)
{
    lumc_u32 word;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(word) : "f"(f));
    return word;
}

/* 4, 8 or 16 bytes in one access; `p` is a multiple of them */
template <int BYTES> struct lumc_words;
template <> struct lumc_words<4> {
    typedef unsigned int type;
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
    __device__ lumc_vector() {}
};
template <class T, int N> LUMC_FN void lumc_load(T (&to)[N], const T *p)
{
    lumc_vector<T, N> v;
    v.words = *(const decltype(v.words) *)p;
    LUMC_UNROLL for (int i = 0; i < N; i++) to[i] = v.elements[i];
}
/* the same for global memory that is read once: it leaves the caches first */
template <class T, int N> LUMC_FN void lumc_load_once(T (&to)[N], const T *p)
{
    lumc_vector<T, N> v;
    v.words = __ldcs((const decltype(v.words) *)p);
    LUMC_UNROLL for (int i = 0; i < N; i++) to[i] = v.elements[i];
}
template <class T, int N> LUMC_FN void lumc_store(T *p, const T (&from)[N])
{
    lumc_vector<T, N> v;
    LUMC_UNROLL for (int i = 0; i < N; i++) v.elements[i] = from[i];
    *(decltype(v.words) *)p = v.words;
}
template <int BYTES> LUMC_FN void lumc_copy(void *to, const void *from)
{
    typedef typename lumc_words<BYTES>::type words;
    *(words *)to = *(const words *)from;
}

/* BYTES (4, 8 or 16) from global to shared memory, both multiples of BYTES: `valid` of them are
 * copied, the rest is zero. They are there after commit, wait and a barrier. */
LUMC_FN lumc_u32 lumc_shared_address(const void *p)
{
    return (lumc_u32)__cvta_generic_to_shared(p);
}
template <int BYTES> LUMC_FN void lumc_cp_async(void *to, const void *from, int valid = BYTES)
{
    if (BYTES == 16) /* past the L1 cache */
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                     :: "r"(lumc_shared_address(to)), "l"(from), "r"(valid) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                     :: "r"(lumc_shared_address(to)), "l"(from), "n"(BYTES), "r"(valid) : "memory");
}
LUMC_FN void lumc_cp_async_commit(void) { asm volatile("cp.async.commit_group;" ::: "memory"); }
/* until at most N of this thread's committed groups are under way */
template <int N> LUMC_FN void lumc_cp_async_wait(void)
{
    asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
}

/* four 8x8 matrices of 16-bit elements from shared memory; lane 8i + r gives the address of row r
 * of matrix i (16 bytes, aligned). r[i] holds elements 2c and 2c + 1 of row l/4 of matrix i in
 * lane l, c = l%4; transposed, those of column l/4. */
template <bool TRANSPOSED = false>
LUMC_FN void lumc_ldmatrix_x4(lumc_u32 (&r)[4], const void *row)
{
    lumc_u32 p = lumc_shared_address(row);
    if (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(p) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(p) : "memory");
}

/* d = a @ b + c on the tensor cores, by a whole warp. With g = lane/4 and t = lane%4, c and d hold
 * rows g, g, g+8, g+8 and columns 2t, 2t+1, 2t, 2t+1. The words of a are rows g, g+8, g, g+8, and
 * those of b column g; the k of their elements:
 *   16 bits  a: 2t.., 2t.., 2t+8.., 2t+8..    b: 2t.., 2t+8..      (2 elements a word)
 *   8 bits   a: 4t.., 4t.., 4t+16.., 4t+16..  b: 4t.., 4t+16..     (4 elements)
 *   tf32     a: t, t, t+4, t+4                b: t, t+4            (1 element) */
template <class T, class S>
LUMC_FN void lumc_mma(S (&d)[4], const lumc_u32 (&a)[4], const lumc_u32 (&b)[2], const S (&c)[4]);
#define LUMC_MMA(T, S, instruction, letter)                                                       \
    template <>                                                                                   \
    LUMC_FN void lumc_mma<T, S>(S (&d)[4], const lumc_u32 (&a)[4], const lumc_u32 (&b)[2],        \
                                const S (&c)[4])                                                  \
    {                                                                                             \
        asm volatile("mma.sync.aligned." instruction " {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"      \
                     "{%10,%11,%12,%13};"                                                         \
                     : "=" letter(d[0]), "=" letter(d[1]), "=" letter(d[2]), "=" letter(d[3])     \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]),          \
                       letter(c[0]), letter(c[1]), letter(c[2]), letter(c[3]));                   \
    }
LUMC_MMA(lumc_f16, float, "m16n8k16.row.col.f32.f16.f16.f32", "f")
LUMC_MMA(lumc_bf16, float, "m16n8k16.row.col.f32.bf16.bf16.f32", "f")
LUMC_MMA(float, float, "m16n8k8.row.col.f32.tf32.tf32.f32", "f")
LUMC_MMA(lumc_i8, lumc_i32, "m16n8k32.row.col.s32.s8.s8.s32", "r")

#endif /* LUMC_EMU */

/* the elements of one word of an operand of lumc_mma */
template <class T> LUMC_FN lumc_u32 lumc_word(const float (&v)[2])
{
    return lumc_pack<T>(v[0], v[1]);
}
template <class T> LUMC_FN lumc_u32 lumc_word(const lumc_i8 (&v)[4])
{
    lumc_u32 word = 0;
    LUMC_UNROLL for (int i = 0; i < 4; i++) word |= (lumc_u32)(lumc_u8)v[i] << 8 * i;
    return word;
}

/* ---- indices */

template <class A, class B> LUMC_FN decltype(A() + B()) lumc_min(A a, B b)
{
    return a < b ? a : b;
}
template <class T> LUMC_FN T lumc_clamp(T x, lumc_i64 lo, lumc_i64 hi)
{
    return x < lo ? (T)lo : x > hi ? (T)hi : x;
}
/* rounded down, by a positive divisor */
template <class A, class B> LUMC_FN decltype(A() + B()) lumc_floor_div(A a, B b)
{
    return a >= 0 ? a / b : -((b - 1 - a) / b);
}
template <class A, class B> LUMC_FN decltype(A() + B()) lumc_floor_mod(A a, B b)
{
    return a - lumc_floor_div(a, b) * b;
}

/* ---- conversions to integers. A float outside the range, or NaN, becomes the
 * least one: as numpy on most machines */

LUMC_FN lumc_i32 lumc_to_i32(double x)
{
    return x > -2147483649.0 && x < 2147483648.0 ? (lumc_i32)x : (lumc_i32)0x80000000;
}
LUMC_FN lumc_i32 lumc_to_i32(float x)
{
    return x >= -0x1p31f && x < 0x1p31f ? (lumc_i32)x : (lumc_i32)0x80000000;
}
LUMC_FN lumc_i64 lumc_to_i64(double x)
{
    return x >= -0x1p63 && x < 0x1p63 ? (lumc_i64)x : LUMC_MIN_I64;
}
LUMC_FN lumc_i64 lumc_to_i64(float x)
{
    return x >= -0x1p63f && x < 0x1p63f ? (lumc_i64)x : LUMC_MIN_I64;
}

/* ---- integers: wrap, and a remainder by 0 is 0 */

#define LUMC_INTEGERS(name, type, wide)                                                           \
    LUMC_FN type lumc_add_##name(type a, type b) { return (type)((wide)a + (wide)b); }            \
    LUMC_FN type lumc_mul_##name(type a, type b) { return (type)((wide)a * (wide)b); }            \
    LUMC_FN type lumc_mod_##name(type a, type b)                                                  \
    {                                                                                             \
        return b == 0 || b == (type)-1 ? (b && (type)-1 > 0 ? (type)(a % b) : 0) : (type)(a % b); \
    }                                                                                             \
    LUMC_FN type lumc_max_##name(type a, type b) { return b > a ? b : a; }
LUMC_INTEGERS(i64, lumc_i64, lumc_u64)
LUMC_INTEGERS(i32, lumc_i32, lumc_u32)
LUMC_INTEGERS(i8, lumc_i8, lumc_u32)
LUMC_INTEGERS(u8, lumc_u8, lumc_u32)
LUMC_FN bool lumc_max_bool(bool a, bool b) { return a | b; }

/* ---- floats */

LUMC_FN double lumc_top_f64(double a, double b) { return b > a ? b : a; }
LUMC_FN double lumc_max_f64(double a, double b) { return b > a || b != b ? b : a; }
/* never -inf, so that differences stay defined */
LUMC_FN float lumc_finite_f32(float f) { return f < -0x1.fffffep127f ? -0x1.fffffep127f : f; }
LUMC_FN double lumc_finite_f64(double f)
{
    return f < -0x1.fffffffffffffp1023 ? -0x1.fffffffffffffp1023 : f;
}

/* ---- elementary functions, the same polynomials as on a CPU: the hardware's ex2.approx and
 * lg2.approx are coarser, and differ from what a machine without a GPU can test */

/* scale * 2^f for |f| <= 1/2 and a scale of 1 or 2 */
LUMC_FN float lumc_power(float scale, float f)
{
    float p = scale * 0.000153533f;
    p = p * f + scale * 0.00133953371f;
    p = p * f + scale * 0.00961838104f;
    p = p * f + scale * 0.0555032887f;
    p = p * f + scale * 0.240226462f;
    p = p * f + scale * 0.693147182f;
    return p * f + scale;
}
/* 2^x, at most 1.1 ulp (1.4 without fused multiply-add): x = n + f with n rounded by
 * the addition of 1.5*2^23 (the low bits of the sum are n), a polynomial of f, and 2^n as a product
 * of two powers, which gets overflow and denormals right. The 254 in the sum is the exponent bias
 * of both. */
LUMC_FN float lumc_exp2_f32(float x)
{
    x = -151.0f > x ? -151.0f : x;
    lumc_i32 n = lumc_bits(x + 12583166.0f);
    n = n < 0x4b40017f ? n : 0x4b40017f;
    float f = x - (lumc_float(n) - 12583166.0f);
    lumc_i32 half = n >> 1;
    return lumc_power(1.0f, f) * lumc_float((lumc_i32)((lumc_u32)half << 23))
                         * lumc_float((lumc_i32)((lumc_u32)(n - half) << 23));
}
/* the same; results below 2^-125 may be 0. As 2 * 2^f * 2^(n-1), overflow is where it should be:
 * 1.5*2^23 + 126 in the sum gives the exponent of 2^(n-1) */
LUMC_FN float lumc_exp2_ftz_f32(float x)
{
    x = -126.0f > x ? -126.0f : x;
    lumc_i32 n = lumc_bits(x + 12583038.0f);
    n = n < 0x4b4000ff ? n : 0x4b4000ff;
    float f = x - (lumc_float(n) - 12583038.0f);
    return lumc_power(2.0f, f) * lumc_float((lumc_i32)((lumc_u32)n << 23));
}
LUMC_FN double lumc_exp2_ftz_f64(double x) { return lumc_exp2_f64(x); }
/* 2^x for x <= 0, as exact; results below 2^-126 are 0 */
LUMC_FN float lumc_decay_f32(float x)
{
    x = -127.0f > x ? -127.0f : x;
    float n = x + 12583039.0f; /* 1.5*2^23 + 127: its low bits are the exponent of 2^n */
    float f = x - (n - 12583039.0f);
    return lumc_power(1.0f, f) * lumc_float((lumc_i32)((lumc_u32)lumc_bits(n) << 23));
}
LUMC_FN double lumc_decay_f64(double x) { return lumc_exp2_f64(x); }

/* log2(x), at most 1.4 ulp (1.5): x = 2^e * m with m in [sqrt(1/2), sqrt(2)), log(1 + f) as a
 * polynomial of f = m - 1 (Cephes), times log2(e) = 1 + 0.4427 in parts. */
LUMC_FN float lumc_log2_f32(float x)
{
    bool small = x < 0x1p-126f;
    lumc_i32 bits = lumc_bits(small ? x * 0x1p23f : x);
    lumc_i32 e = (lumc_i32)((lumc_u32)bits - 0x3f3504f3u) >> 23;
    float f = lumc_float((lumc_i32)((lumc_u32)bits - ((lumc_u32)e << 23))) - 1.0f;
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
    float edge = x == 0.0f ? -LUMC_INF_F32 : x < 0.0f ? LUMC_NAN_F32 : x;
    return x > 0.0f && x < LUMC_INF_F32 ? r : edge;
}

/* sin(x), correctly rounded but for rare cases, for every x: x/pi - n in double precision. From
 * 2^47 on x is scaled by 2^-24 (2^-48, ..), and 2^24/pi mod 2 (..) takes the place of 1/pi, in
 * parts of 28, 28 and 53 bits, whose products with the 24 bits of x are exact. */
#define LUMC_BY_SIZE(a, c0, c1, c2, c3, c4)                                                       \
    (a < 0x1p47f ? c0 : a < 0x1p71f ? c1 : a < 0x1p95f ? c2 : a < 0x1p119f ? c3 : c4)
LUMC_FN float lumc_sin_f32(float x)
{
    float size = x < 0 ? -x : x;
    float y = x * LUMC_BY_SIZE(size, 1.0f, 0x1p-24f, 0x1p-48f, 0x1p-72f, 0x1p-96f);
    double high = (double)y * LUMC_BY_SIZE(size, 0x1.45f3068p-2, 0x1.b72722p+0, 0x1.529fcp-5,
                                           0x1.3abe8ep-4, 0x1.f534ddcp-1);
    double middle = (double)y * LUMC_BY_SIZE(size, 0x1.727220ap-28, 0x1.529fc24p-29,
                                             0x1.3abe8fap-28, 0x1.a9a6eep-28, 0x1.b6c528p-34);
    double low = (double)y * LUMC_BY_SIZE(size, 0x1.29fc2757d1f53p-57, 0x1.abe8fa9a6ee07p-56,
                                          0x1.34ddc0db6295ap-57, 0x1.b6c52b3278872p-58,
                                          0x1.993c439041fe5p-57);
    double n = high + 0x1.8p52; /* rounds to an integer, in the low bits of the sum */
    double f = high - (n - 0x1.8p52) + middle;
    double n2 = f + 0x1.8p52;
    f = f - (n2 - 0x1.8p52) + low;
    lumc_i32 odd = (lumc_i32)(lumc_bits_f64(n) ^ lumc_bits_f64(n2));
    double z = f * f;
    double p = -0x1.cc2b88e2c82edp-8;
    p = p * z + 0x1.50100f3e23471p-4;
    p = p * z - 0x1.32d115d20135cp-1;
    p = p * z + 0x1.466bbfeb30e2fp+1;
    p = p * z - 0x1.4abbce500f10ap+2;
    p = p * z + 0x1.921fb54421998p+1;
    return lumc_float(lumc_bits((float)(p * f)) ^ (lumc_i32)((lumc_u32)odd << 31));
}

/* The hardware part of lumc_dev.h on the CPU: a kernel's text compiled by g++ with -DLUMC_EMU sees
 * this instead of PTX. The work is done by the runtime beside it (runtime.cpp, warp.cpp,
 * checker.cpp), which is linked into the same shared object.
 *
 * A thread of a block is a fiber; one runs until it waits for others. Nothing in here is
 * instrumented by the compiler: the functions tell the checker themselves what they touch.
 */
#pragma once

#define LUMC_FN inline __attribute__((no_sanitize("thread"), unused))
/* what takes or returns a struct becomes part of the kernel: g++ does not tell the checker of the
 * memory that a call reads its argument from, or stores its result to */
#define LUMC_PART inline __attribute__((always_inline, unused))

namespace lumc_emu {
typedef decltype(sizeof 0) size_t;
struct Index {
    unsigned x, y, z;
};
/* what the running thread is, and how its kernel was launched */
struct Where {
    Index thread, block, threads, blocks;
};
extern Where where;

/* `run` does the operation for all lanes at once, given what each of them brought */
typedef void (*WarpOperation)(void *const *packets);

void barrier(int line);
void warp(WarpOperation run, void *packet, int line);
void copy_async(void *to, const void *from, int bytes, int valid);
void commit_async();
void wait_async(unsigned pending);
void *shared_memory();
/* what the fake driver made, or zeros where a test calls a kernel by itself: is it this one? */
void look_at_map(const void *map, const void *from, int width, int height, lumc_i64 stride_bytes,
                 int rows);
void *tile(const char *name, void *shared, size_t offset, size_t element, size_t count);
/* the next access of the running thread, aligned to its own size: for the checker */
void reads(const void *p, size_t bytes);
void writes(const void *p, size_t bytes);

void synchronise(void *const *);
void exchange(void *const *);
void load_matrices(void *const *);
void load_matrices_transposed(void *const *);
void multiply_f16(void *const *);
void multiply_bf16(void *const *);
void multiply_tf32(void *const *);
void multiply_s8(void *const *);
template <class T, int N, int SUMS> void multiply_16(void *const *);
inline WarpOperation multiply(lumc_f16 *) { return multiply_f16; }
inline WarpOperation multiply(lumc_bf16 *) { return multiply_bf16; }
inline WarpOperation multiply(float *) { return multiply_tf32; }
inline WarpOperation multiply(lumc_i8 *) { return multiply_s8; }

/* what a lane brings to a warp operation */
struct Exchange {
    lumc_u64 value, result;
    int lanes; /* xor */
};
struct Matrices {
    const void *row;
    lumc_u32 *result;
};
struct Matrix16 {
    float *d;
    const lumc_u16 *a, *b;
};
struct Product {
    void *d;
    const lumc_u32 *a, *b;
    const void *c;
};

/* a kernel of this shared object, found by its name */
struct Kernel {
    const char *symbol;
    void (*call)(void *const *arguments);
    unsigned parameters;
    bool checked; /* compiled with instrumentation */
    Kernel *next;
    unsigned maps; /* how many of the first parameters are tensor maps */
};
void add(Kernel *);

#ifdef __SANITIZE_THREAD__
constexpr bool instrumented = true;
#else
constexpr bool instrumented = false;
#endif
/* the kernels of lumc take pointers only */
struct Apply {
    template <class... A> LUMC_FN Apply(void (*kernel)(A...), A... a) { kernel(a...); }
};
LUMC_FN void *next(void *const *&arguments) { return *arguments++; }
template <class... A> LUMC_FN void apply(void (*kernel)(A...), void *const *arguments)
{
    Apply{kernel, (A)next(arguments)...}; /* braces: from left to right */
}
template <class... A> constexpr unsigned parameters(void (*)(A...)) { return sizeof...(A); }
template <class A> constexpr bool is_map = false;
template <> constexpr bool is_map<const void *> = true; /* pointers of lumc have a type */
template <class... A> constexpr unsigned maps(void (*)(A...)) { return (0u + ... + is_map<A>); }
template <auto kernel> LUMC_FN void call(void *const *arguments) { apply(kernel, arguments); }

LUMC_FN Index thread() { return where.thread; }
LUMC_FN Index block() { return where.block; }
LUMC_FN Index threads() { return where.threads; }
LUMC_FN Index blocks() { return where.blocks; }
} /* namespace lumc_emu */

/* ---- the language */

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define LUMC_MAP const void *const
#define LUMC_BLOCKS(n)
#define threadIdx (lumc_emu::thread())
#define blockIdx (lumc_emu::block())
#define blockDim (lumc_emu::threads())
#define gridDim (lumc_emu::blocks())

#define LUMC_UNROLL
#define LUMC_UNROLL_1
#define LUMC_UNROLL_2
#define LUMC_UNROLL_4
#define LUMC_UNROLL_8
#define LUMC_UNROLL_16
#define LUMC_EXPORT(name)                                                                         \
    static lumc_emu::Kernel lumc_emu_##name = {#name, lumc_emu::call<&name>,                      \
                                               lumc_emu::parameters(&name),                       \
                                               lumc_emu::instrumented, nullptr,                   \
                                               lumc_emu::maps(&name)};                            \
    __attribute__((constructor)) static void lumc_emu_add_##name()                                \
    {                                                                                             \
        lumc_emu::add(&lumc_emu_##name);                                                          \
    }
#define LUMC_SHARED(type, name)                                                                   \
    type *const name = (type *)lumc_emu::shared_memory()
#define LUMC_TILE(type, name, shared, offset, count)                                              \
    type *const name = (type *)lumc_emu::tile(#name, shared, offset, sizeof(type), count)

/* ---- threads; `line` is that of the caller */

LUMC_FN void lumc_sync(int line = __builtin_LINE()) { lumc_emu::barrier(line); }
LUMC_FN void lumc_warp_sync(int line = __builtin_LINE())
{
    lumc_emu::warp(lumc_emu::synchronise, nullptr, line);
}
template <class T> LUMC_FN T lumc_shuffle_xor(T v, int lanes, int line = __builtin_LINE())
{
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a shuffle moves 4 or 8 bytes");
    lumc_emu::Exchange e = {0, 0, lanes};
    __builtin_memcpy(&e.value, &v, sizeof(T));
    lumc_emu::warp(lumc_emu::exchange, &e, line);
    __builtin_memcpy(&v, &e.result, sizeof(T));
    return v;
}

/* ---- arithmetic */

LUMC_FN float lumc_float(lumc_i32 bits)
{
    float f;
    __builtin_memcpy(&f, &bits, 4);
    return f;
}
LUMC_FN lumc_i32 lumc_bits(float f)
{
    lumc_i32 bits;
    __builtin_memcpy(&bits, &f, 4);
    return bits;
}
LUMC_FN double lumc_double(lumc_i64 bits)
{
    double f;
    __builtin_memcpy(&f, &bits, 8);
    return f;
}
LUMC_FN lumc_i64 lumc_bits_f64(double f)
{
    lumc_i64 bits;
    __builtin_memcpy(&bits, &f, 8);
    return bits;
}
LUMC_FN float lumc_sqrt_f32(float x) { return __builtin_sqrtf(x); }
LUMC_FN double lumc_sqrt_f64(double x) { return __builtin_sqrt(x); }
LUMC_FN float lumc_recip_f32(float x) { return 1.0f / x; }
LUMC_FN double lumc_recip_f64(double x) { return 1.0 / x; }
LUMC_FN float lumc_top_f32(float a, float b) { return b > a ? b : a; }
LUMC_FN float lumc_max_f32(float a, float b) { return b > a || b != b ? b : a; }
LUMC_FN float lumc_rounded_f32(float x) { return x; } /* nothing is fused here */
LUMC_FN double lumc_rounded_f64(double x) { return x; }
LUMC_FN float lumc_decay_f32(float x)
{
    float y = __builtin_exp2f(x);
    return y < 0x1p-126f ? 0.0f : y;
}
#ifndef LUMC_OWN_FUNCTIONS /* of a header that asks no library */
LUMC_FN float lumc_mod_f32(float a, float b) { return __builtin_fmodf(a, b); }
LUMC_FN double lumc_mod_f64(double a, double b) { return __builtin_fmod(a, b); }
LUMC_FN double lumc_exp2_f64(double x) { return __builtin_exp2(x); }
LUMC_FN double lumc_exp_f64(double x) { return __builtin_exp(x); }
LUMC_FN double lumc_log2_f64(double x) { return __builtin_log2(x); }
LUMC_FN double lumc_sin_f64(double x) { return __builtin_sin(x); }
#endif

LUMC_PART float lumc_from_f16(lumc_f16 h)
{
    lumc_u32 sign = (lumc_u32)(h.bits & 0x8000) << 16, exponent = h.bits >> 10 & 31;
    lumc_u32 fraction = h.bits & 1023, bits = sign | (exponent + 112) << 23 | fraction << 13;
    if (exponent == 31)
        bits = sign | 0x7f800000u | fraction << 13;
    if (exponent == 0)
        bits = sign | (lumc_u32)lumc_bits((float)fraction * 0x1p-24f);
    return lumc_float((lumc_i32)bits);
}
LUMC_PART float lumc_from_bf16(lumc_bf16 h)
{
    return lumc_float((lumc_i32)((lumc_u32)h.bits << 16));
}
LUMC_PART lumc_f16 lumc_to_f16(float f)
{
    lumc_u32 bits = (lumc_u32)lumc_bits(f), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    lumc_u32 rounded;
    if (size > 0x7f800000u)
        rounded = 0x7fff;
    else if (size >= 0x477ff000u) /* halfway from the greatest number to 2^16, and above */
        rounded = 0x7c00;
    else if (size < 0x38800000u) /* below 2^-14 the steps are 2^-24, as those of floats at 1/2 */
        rounded = (lumc_u32)lumc_bits(lumc_float((lumc_i32)size) + 0.5f) - 0x3f000000u;
    else
        rounded = (size + 0xfff + (size >> 13 & 1) - (112u << 23)) >> 13;
    return {(lumc_u16)(sign | rounded)};
}
LUMC_PART lumc_bf16 lumc_to_bf16(float f)
{
    lumc_u32 bits = (lumc_u32)lumc_bits(f);
    if ((bits & 0x7fffffff) > 0x7f800000u)
        return {0x7fff};
    return {(lumc_u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
LUMC_FN lumc_u32 lumc_to_tf32(float f)
{
    lumc_u32 bits = (lumc_u32)lumc_bits(f);
    return (bits & 0x7f800000u) == 0x7f800000u ? bits : (bits + 0x1000) & ~0x1fffu;
}
template <class T> LUMC_FN lumc_u32 lumc_pack(float low, float high);
template <> LUMC_FN lumc_u32 lumc_pack<lumc_f16>(float low, float high)
{
    return lumc_to_f16(low).bits | (lumc_u32)lumc_to_f16(high).bits << 16;
}
template <> LUMC_FN lumc_u32 lumc_pack<lumc_bf16>(float low, float high)
{
    return lumc_to_bf16(low).bits | (lumc_u32)lumc_to_bf16(high).bits << 16;
}

LUMC_FN lumc_u32 lumc_merge(lumc_u32 word, lumc_u32 mask, lumc_u32 bits)
{
    return (word & mask) | bits;
}

/* ---- memory */

template <int BYTES> struct lumc_words {
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "an access has 4, 8 or 16 bytes");
};
template <class T, int N> LUMC_FN void lumc_load(T (&to)[N], const T *p)
{
    (void)lumc_words<sizeof to>();
    lumc_emu::reads(p, sizeof to);
    __builtin_memcpy(to, p, sizeof to);
}
template <class T, int N> LUMC_FN void lumc_load_once(T (&to)[N], const T *p) { lumc_load(to, p); }
template <class T, int N> LUMC_FN void lumc_store(T *p, const T (&from)[N])
{
    (void)lumc_words<sizeof from>();
    lumc_emu::writes(p, sizeof from);
    __builtin_memcpy(p, from, sizeof from);
}
template <int BYTES> LUMC_FN void lumc_copy(void *to, const void *from)
{
    (void)lumc_words<BYTES>();
    lumc_emu::reads(from, BYTES);
    lumc_emu::writes(to, BYTES);
    __builtin_memcpy(to, from, BYTES);
}
template <int BYTES> LUMC_FN void lumc_cp_async(void *to, const void *from, int valid = BYTES)
{
    (void)lumc_words<BYTES>();
    lumc_emu::copy_async(to, from, BYTES, valid);
}
LUMC_FN void lumc_cp_async_commit() { lumc_emu::commit_async(); }
template <int N> LUMC_FN void lumc_cp_async_wait() { lumc_emu::wait_async(N); }

/* ---- warps */

template <bool TRANSPOSED = false>
LUMC_FN void lumc_ldmatrix_x4(lumc_u32 (&r)[4], const void *row, int line = __builtin_LINE())
{
    lumc_emu::reads(row, 16);
    lumc_emu::Matrices m = {row, r};
    lumc_emu::warp(TRANSPOSED ? lumc_emu::load_matrices_transposed : lumc_emu::load_matrices, &m,
                   line);
}
template <class T, class S>
LUMC_FN void lumc_mma(S (&d)[4], const lumc_u32 (&a)[4], const lumc_u32 (&b)[2], const S (&c)[4],
                      int line = __builtin_LINE())
{
    lumc_emu::Product p = {d, a, b, c};
    lumc_emu::warp(lumc_emu::multiply((T *)nullptr), &p, line);
}

/* the matrices of AMD, for lumc_hip.h */
template <class T, int N, int SUMS>
LUMC_FN void lumc_product(float (&d)[SUMS], const T (&a)[N], const T (&b)[N],
                          int line = __builtin_LINE())
{
    lumc_emu::Matrix16 m = {d, (const lumc_u16 *)a, (const lumc_u16 *)b};
    lumc_emu::warp(lumc_emu::multiply_16<T, N, SUMS>, &m, line);
}

/* ---- the operations of a GPU of AMD, by the builtins of clang */

#ifndef __HIPCC_RTC__ /* hipRTC knows the words of the language */
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __launch_bounds__(threads) __attribute__((amdgpu_flat_work_group_size(1, threads)))
#endif
#define LUMC_FN __attribute__((device)) inline __attribute__((always_inline))
#define LUMC_PART LUMC_FN
#define LUMC_UNROLL _Pragma("unroll")
#define LUMC_STEPS _Pragma("unroll 4")
#define LUMC_LINE
#define LUMC_ITS_LINE
#define LUMC_EXPORT(symbol) /* the emulator's entry to a kernel */
/* the dynamic shared memory of the block, and an array of `count` elements in it */
#define LUMC_SHARED(type, name)                                                                   \
    extern __attribute__((shared)) __attribute__((aligned(16))) lumc_u8 lumc_shared[];            \
    type *const name = (type *)lumc_shared
#define LUMC_TILE(type, name, shared, offset, count)                                              \
    type *const name = (type *)((lumc_u8 *)(shared) + (offset))

LUMC_FN unsigned lumc_thread(void) { return __builtin_amdgcn_workitem_id_x(); }
LUMC_FN unsigned lumc_block(void) { return __builtin_amdgcn_workgroup_id_x(); }
/* what was stored before is seen behind the barrier, by all threads of the block */
LUMC_FN void lumc_sync(void)
{
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

LUMC_FN float lumc_float(lumc_i32 bits) { return __builtin_bit_cast(float, bits); }
LUMC_FN lumc_i32 lumc_bits(float f) { return __builtin_bit_cast(lumc_i32, f); }
LUMC_FN double lumc_double(lumc_i64 bits) { return __builtin_bit_cast(double, bits); }
LUMC_FN lumc_i64 lumc_bits_f64(double f) { return __builtin_bit_cast(lumc_i64, f); }

/* the value of the lane whose number differs in the bits of `lanes`, in a wave of 32 or 64 */
LUMC_FN lumc_i32 lumc_shuffle_xor(lumc_i32 v, int lanes)
{
    const int lane = (int)__builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0));
    return __builtin_amdgcn_ds_bpermute((lane ^ lanes) << 2, v);
}
LUMC_FN lumc_u32 lumc_shuffle_xor(lumc_u32 v, int lanes)
{
    return (lumc_u32)lumc_shuffle_xor((lumc_i32)v, lanes);
}
LUMC_FN float lumc_shuffle_xor(float v, int lanes)
{
    return lumc_float(lumc_shuffle_xor(lumc_bits(v), lanes));
}
LUMC_FN lumc_u64 lumc_shuffle_xor(lumc_u64 v, int lanes)
{
    const lumc_u64 low = lumc_shuffle_xor((lumc_u32)v, lanes);
    return low | (lumc_u64)lumc_shuffle_xor((lumc_u32)(v >> 32), lanes) << 32;
}
LUMC_FN lumc_i64 lumc_shuffle_xor(lumc_i64 v, int lanes)
{
    return (lumc_i64)lumc_shuffle_xor((lumc_u64)v, lanes);
}
LUMC_FN double lumc_shuffle_xor(double v, int lanes)
{
    return lumc_double(lumc_shuffle_xor(lumc_bits_f64(v), lanes));
}

LUMC_FN float lumc_sqrt_f32(float x) { return __builtin_sqrtf(x); }
LUMC_FN double lumc_sqrt_f64(double x) { return __builtin_sqrt(x); }
LUMC_FN float lumc_recip_f32(float x) { return 1.0f / x; }
LUMC_FN double lumc_recip_f64(double x) { return 1.0 / x; }
/* the greater of two: top ignores a NaN in b, max propagates NaN */
LUMC_FN float lumc_top_f32(float a, float b) { return __builtin_fmaxf(a, b); }
LUMC_FN float lumc_max_f32(float a, float b) { return b > a || b != b ? b : a; }
/* 2^x for x <= 0, at most 1 ulp (v_exp_f32, in the instruction set of CDNA 3); results below
 * 2^-126 are 0 */
LUMC_FN float lumc_decay_f32(float x) { return __builtin_amdgcn_exp2f(x); }
/* a product that no multiply-add takes in: the compiler cannot see where it comes from */
LUMC_FN float lumc_rounded_f32(float x)
{
    asm("" : "+v"(x));
    return x;
}
LUMC_FN double lumc_rounded_f64(double x)
{
    asm("" : "+v"(x));
    return x;
}

LUMC_FN float lumc_from_bf16(lumc_bf16 h) { return lumc_float((lumc_i32)((lumc_u32)h.bits << 16)); }
LUMC_FN float lumc_from_f16(lumc_f16 h) { return (float)__builtin_bit_cast(_Float16, h.bits); }
LUMC_FN lumc_f16 lumc_to_f16(float f) { return {__builtin_bit_cast(lumc_u16, (_Float16)f)}; }
LUMC_FN lumc_bf16 lumc_to_bf16(float f)
{
    const lumc_u32 bits = (lumc_u32)lumc_bits(f);
    const lumc_u32 rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return {(lumc_u16)((bits & 0x7fffffff) > 0x7f800000u ? 0x7fff : rounded)};
}
/* two floats, rounded, as one word: `low` in its low half */
template <class T> LUMC_FN lumc_u32 lumc_pack(float low, float high);
template <> LUMC_FN lumc_u32 lumc_pack<lumc_f16>(float low, float high)
{
    return lumc_to_f16(low).bits | (lumc_u32)lumc_to_f16(high).bits << 16;
}
template <> LUMC_FN lumc_u32 lumc_pack<lumc_bf16>(float low, float high)
{
    return lumc_to_bf16(low).bits | (lumc_u32)lumc_to_bf16(high).bits << 16;
}

/* v_and_or_b32 */
LUMC_FN lumc_u32 lumc_merge(lumc_u32 word, lumc_u32 mask, lumc_u32 bits)
{
    return (word & mask) | bits;
}

/* 4, 8 or 16 bytes in one access; `p` is a multiple of them */
template <int BYTES> struct lumc_words;
template <> struct lumc_words<4> {
    typedef unsigned type;
};
template <> struct lumc_words<8> {
    typedef unsigned type __attribute__((ext_vector_type(2)));
};
template <> struct lumc_words<16> {
    typedef unsigned type __attribute__((ext_vector_type(4)));
};
template <class T, int N> LUMC_FN void lumc_load(T (&to)[N], const T *p)
{
    typedef typename lumc_words<N * sizeof(T)>::type words;
    const words w = *(const words *)p;
    __builtin_memcpy(to, &w, sizeof w);
}
/* the same for global memory that is read once: it leaves the caches first */
template <class T, int N> LUMC_FN void lumc_load_once(T (&to)[N], const T *p)
{
    typedef typename lumc_words<N * sizeof(T)>::type words;
    const words w = __builtin_nontemporal_load((const words *)p);
    __builtin_memcpy(to, &w, sizeof w);
}
template <class T, int N> LUMC_FN void lumc_store(T *p, const T (&from)[N])
{
    typedef typename lumc_words<N * sizeof(T)>::type words;
    words w;
    __builtin_memcpy(&w, from, sizeof w);
    *(words *)p = w;
}
template <int BYTES> LUMC_FN void lumc_copy(void *to, const void *from)
{
    typedef typename lumc_words<BYTES>::type words;
    *(words *)to = *(const words *)from;
}

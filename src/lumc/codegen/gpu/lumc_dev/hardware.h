/* ---- the operations of a GPU from sm_80 on */

#define LUMC_FN __device__ __forceinline__
#define LUMC_PART LUMC_FN
#define LUMC_UNROLL _Pragma("unroll")
/* of a ring with so many slots; a macro that made text of its argument could be given any text */
#define LUMC_UNROLL_1 _Pragma("unroll 1")
#define LUMC_UNROLL_2 _Pragma("unroll 2")
#define LUMC_UNROLL_4 _Pragma("unroll 4")
#define LUMC_UNROLL_8 _Pragma("unroll 8")
#define LUMC_UNROLL_16 _Pragma("unroll 16")
#define LUMC_EXPORT(symbol) /* the emulator's entry to a kernel */
/* the dynamic shared memory of the block, and an array of `count` elements in it */
#define LUMC_SHARED(type, name)                                                                   \
    extern __shared__ __align__(1024) lumc_u8 lumc_shared[];                                       \
    type *const name = (type *)lumc_shared
#define LUMC_TILE(type, name, shared, offset, count)                                              \
    type *const name = (type *)((lumc_u8 *)(shared) + (offset))

/* a parameter that is a tensor map, and blocks that launch together; only sm_90a needs them */
#define LUMC_MAP const __grid_constant__ lumc_map
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define LUMC_BLOCKS(n) __cluster_dims__(n, 1, 1)
#else
#define LUMC_BLOCKS(n)
#endif

LUMC_FN void lumc_sync(void) { __syncthreads(); }
LUMC_FN void lumc_warp_sync(void) { __syncwarp(); }
LUMC_FN float lumc_shuffle_xor(float v, int lanes) { return __shfl_xor_sync(~0u, v, lanes); }
LUMC_FN double lumc_shuffle_xor(double v, int lanes) { return __shfl_xor_sync(~0u, v, lanes); }
LUMC_FN lumc_i32 lumc_shuffle_xor(lumc_i32 v, int lanes) { return __shfl_xor_sync(~0u, v, lanes); }
LUMC_FN lumc_u32 lumc_shuffle_xor(lumc_u32 v, int lanes) { return __shfl_xor_sync(~0u, v, lanes); }
LUMC_FN lumc_i64 lumc_shuffle_xor(lumc_i64 v, int lanes) { return __shfl_xor_sync(~0u, v, lanes); }
LUMC_FN lumc_u64 lumc_shuffle_xor(lumc_u64 v, int lanes) { return __shfl_xor_sync(~0u, v, lanes); }

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
/* 2^x for x <= 0, at most 4 ulp (PTX ISA: 2^-22 of it); results below 2^-126 are 0. The polynomial
 * of exp2 takes eleven instructions, and more time than the tensor cores in attention. */
LUMC_FN float lumc_decay_f32(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/* a product that no multiply-add takes in: an addition that says how it rounds stays one */
LUMC_FN float lumc_rounded_f32(float x)
{
    float y;
    asm("add.rn.f32 %0, %1, 0f80000000;" : "=f"(y) : "f"(x));
    return y;
}
LUMC_FN double lumc_rounded_f64(double x) { return __dadd_rn(x, -0.0); }
LUMC_FN double lumc_exp2_f64(double x) { return exp2(x); }
LUMC_FN double lumc_exp_f64(double x) { return exp(x); }
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

/* (word & mask) | bits in one instruction: of two literals a compiler makes two */
LUMC_FN lumc_u32 lumc_merge(lumc_u32 word, lumc_u32 mask, lumc_u32 bits)
{
    lumc_u32 merged;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(merged) : "r"(word), "r"(mask), "r"(bits));
    return merged;
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

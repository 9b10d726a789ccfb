/* ---- products of 16 x 16 matrices by 16 steps, on the matrix units: d = a @ b + d by a whole wave.
 *
 * What a thread has of a, b and d, with l its lane: rows of a and columns of b are l%16, of d the
 * column; the steps, and the rows of d, follow here (CDNA 3 instruction set, section 7; AMD's Matrix
 * Instruction Calculator; "How to accelerate AI applications on RDNA 3 using WMMA" and "Using the
 * Matrix Cores of AMD RDNA 4 architecture GPUs", GPUOpen):
 *   mfma         64 lanes   steps 4 (l/16) + i, i < 4     rows 4 (l/16) + i, i < 4
 *   wmma gfx11   32 lanes   steps i, i < 16               rows 2 i + l/16, i < 8
 *   wmma gfx12   32 lanes   steps 8 (l/16) + i, i < 8     rows 8 (l/16) + i, i < 8 */

#ifndef LUMC_EMU
typedef float lumc_f32x4 __attribute__((ext_vector_type(4)));
typedef float lumc_f32x8 __attribute__((ext_vector_type(8)));
/* the elements of an operand as a builtin takes them */
template <class T, int N> struct lumc_elements;
template <int N> struct lumc_elements<lumc_f16, N> {
    typedef _Float16 type __attribute__((ext_vector_type(N)));
};
template <int N> struct lumc_elements<lumc_bf16, N> {
    typedef short type __attribute__((ext_vector_type(N)));
};
template <class V, class T, int N> LUMC_FN V lumc_as(const T (&x)[N])
{
    V v;
    __builtin_memcpy(&v, x, sizeof v);
    return v;
}
#define LUMC_PRODUCT(T, N, sums, builtin, ...)                                                    \
    LUMC_FN void lumc_product(float (&d)[sums], const T (&a)[N], const T (&b)[N])                 \
    {                                                                                             \
        typedef lumc_elements<T, N>::type operand;                                                \
        const lumc_f32x##sums c = builtin(lumc_as<operand>(a), lumc_as<operand>(b),               \
                                          lumc_as<lumc_f32x##sums>(d), ##__VA_ARGS__);            \
        __builtin_memcpy(d, &c, sizeof c);                                                        \
    }
#if defined(__GFX9__)
LUMC_PRODUCT(lumc_f16, 4, 4, __builtin_amdgcn_mfma_f32_16x16x16f16, 0, 0, 0)
LUMC_PRODUCT(lumc_bf16, 4, 4, __builtin_amdgcn_mfma_f32_16x16x16bf16_1k, 0, 0, 0)
#elif defined(__GFX11__)
LUMC_PRODUCT(lumc_f16, 16, 8, __builtin_amdgcn_wmma_f32_16x16x16_f16_w32)
LUMC_PRODUCT(lumc_bf16, 16, 8, __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32)
#elif defined(__GFX12__)
LUMC_PRODUCT(lumc_f16, 8, 8, __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12)
LUMC_PRODUCT(lumc_bf16, 8, 8, __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12)
#endif
#endif /* LUMC_EMU */

/* The same transposed: a thread has a row of the sums, and columns side by side where it has steps
 * side by side. So sums are left operands of the next product, and stored several at once. */
template <class T, int N, int SUMS>
LUMC_FN void lumc_turned_product(float (&c)[SUMS], const T (&a)[N], const T (&b)[N] LUMC_LINE)
{
    lumc_product(c, b, a LUMC_ITS_LINE);
}

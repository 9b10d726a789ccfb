"""Texts that use everything in lumc_dev.h."""

from __future__ import annotations

FLOATS = (
    "exp2",
    "exp2_ftz",
    "exp",
    "exp_ftz",
    "decay",
    "log2",
    "sin",
    "sqrt",
    "recip",
    "finite",
    "rounded",
)
C_TYPES = {
    "f32": "float",
    "f64": "double",
    "i64": "lumc_i64",
    "i32": "lumc_i32",
    "i8": "lumc_i8",
    "u8": "lumc_u8",
    "bool": "bool",
    "f16": "lumc_f16",
    "bf16": "lumc_bf16",
    "u32": "lumc_u32",
}
# of each function: the type of its arguments, that of its result, how many arguments
SIGNATURES: dict[str, tuple[str, str, int]] = {
    **{f"lumc_{name}_{t}": (t, t, 1) for name in FLOATS for t in ("f32", "f64")},
    **{f"lumc_{name}_{t}": (t, t, 2) for name in ("mod", "top", "max") for t in ("f32", "f64")},
    **{
        f"lumc_{name}_{t}": (t, t, 2)
        for name in ("add", "mul", "mod", "max")
        for t in ("i64", "i32", "i8", "u8")
    },
    "lumc_max_bool": ("bool", "bool", 2),
    "lumc_floor_div": ("i64", "i64", 2),
    "lumc_floor_mod": ("i32", "i32", 2),
    "lumc_min": ("i32", "i32", 2),
    "lumc_from_f16": ("f16", "f32", 1),
    "lumc_from_bf16": ("bf16", "f32", 1),
    "lumc_to_f16": ("f32", "f16", 1),
    "lumc_to_bf16": ("f32", "bf16", 1),
    "lumc_to_tf32": ("f32", "u32", 1),
    "lumc_pack<lumc_f16>": ("f32", "u32", 2),
    "lumc_pack<lumc_bf16>": ("f32", "u32", 2),
    "lumc_merge": ("u32", "u32", 3),
    "lumc_to_i32": ("f32", "i32", 1),
    "lumc_to_i64": ("f32", "i64", 1),
    "(lumc_i64)lumc_to_i32": ("f64", "i64", 1),
    "1 * lumc_to_i64": ("f64", "i64", 1),
}


def _kernel(symbol: str, function: str) -> str:
    source, result, count = SIGNATURES[function]
    parameters = "".join(f"const {C_TYPES[source]} *B_{n}, " for n in "abc"[:count])
    operands = ", ".join(f"B_{n}[i]" for n in "abc"[:count])
    return f"""
extern "C" __global__ void {symbol}({parameters}{C_TYPES[result]} *B_y)
{{
    int i = blockIdx.x * 128 + threadIdx.x;
    B_y[i] = {function}({operands});
}}
LUMC_EXPORT({symbol})
"""


def every_function() -> str:
    """Kernel ``f{i}`` applies function ``i`` of SIGNATURES to every element, 128 a block."""
    kernels = [_kernel(f"f{i}", name) for i, name in enumerate(SIGNATURES)]
    return '#include "lumc_dev.h"\n' + "".join(kernels)


def every_function_of_hip() -> str:
    """The same by lumc_hip.h, which has no tf32."""
    known = [(i, name) for i, name in enumerate(SIGNATURES) if "tf32" not in name]
    kernels = "".join(_kernel(f"f{i}", name) for i, name in known)
    return '#include "lumc_hip.h"\n' + in_hip(kernels)


def in_hip(text: str) -> str:
    """CUDA text with the names that lumc_hip.h has for its own."""
    text = text.replace('"lumc_dev.h"', '"lumc_hip.h"')
    return text.replace("blockIdx.x", "lumc_block()").replace("threadIdx.x", "lumc_thread()")


# each operation of the hardware, by one warp (`copies`: one thread an element)
HARDWARE = """#include "lumc_dev.h"
template <class T> static __device__ void product(const T *a, const T *b, float *c)
{
    int g = threadIdx.x / 4, t = threadIdx.x % 4;
    lumc_u32 x[4], y[2];
    float sum[4] = {1, 2, 3, 4};
    LUMC_UNROLL for (int w = 0; w < 4; w++)
        x[w] = *(const lumc_u32 *)(a + (g + w % 2 * 8) * 16 + t * 2 + w / 2 * 8);
    LUMC_UNROLL for (int w = 0; w < 2; w++)
        y[w] = b[(t * 2 + w * 8) * 8 + g].bits | b[(t * 2 + 1 + w * 8) * 8 + g].bits << 16;
    lumc_mma<T>(sum, x, y, sum);
    LUMC_UNROLL for (int i = 0; i < 4; i++) c[(g + i / 2 * 8) * 8 + t * 2 + i % 2] = sum[i];
}
extern "C" __global__ void half(const lumc_f16 *B_a, const lumc_f16 *B_b, float *B_c)
{
    product(B_a, B_b, B_c);
}
LUMC_EXPORT(half)
extern "C" __global__ void brain(const lumc_bf16 *B_a, const lumc_bf16 *B_b, float *B_c)
{
    product(B_a, B_b, B_c);
}
LUMC_EXPORT(brain)
extern "C" __global__ void tensor(const float *B_a, const float *B_b, float *B_c)
{
    int g = threadIdx.x / 4, t = threadIdx.x % 4;
    lumc_u32 x[4], y[2];
    float sum[4] = {1, 2, 3, 4};
    LUMC_UNROLL for (int w = 0; w < 4; w++)
        x[w] = lumc_to_tf32(B_a[(g + w % 2 * 8) * 8 + t + w / 2 * 4]);
    LUMC_UNROLL for (int w = 0; w < 2; w++) y[w] = lumc_to_tf32(B_b[(t + w * 4) * 8 + g]);
    lumc_mma<float>(sum, x, y, sum);
    LUMC_UNROLL for (int i = 0; i < 4; i++) B_c[(g + i / 2 * 8) * 8 + t * 2 + i % 2] = sum[i];
}
LUMC_EXPORT(tensor)
extern "C" __global__ void bytes(const lumc_i8 *B_a, const lumc_i8 *B_b, lumc_i32 *B_c)
{
    int g = threadIdx.x / 4, t = threadIdx.x % 4;
    lumc_u32 x[4], y[2] = {0, 0};
    lumc_i32 sum[4] = {1, 2, 3, 4};
    LUMC_UNROLL for (int w = 0; w < 4; w++)
        x[w] = *(const lumc_u32 *)(B_a + (g + w % 2 * 8) * 32 + t * 4 + w / 2 * 16);
    LUMC_UNROLL for (int w = 0; w < 2; w++)
        LUMC_UNROLL for (int i = 0; i < 4; i++)
            y[w] |= (lumc_u32)(lumc_u8)B_b[(t * 4 + i + w * 16) * 8 + g] << 8 * i;
    lumc_mma<lumc_i8>(sum, x, y, sum);
    LUMC_UNROLL for (int i = 0; i < 4; i++) B_c[(g + i / 2 * 8) * 8 + t * 2 + i % 2] = sum[i];
}
LUMC_EXPORT(bytes)
/* matrix i in rows 8i.. of B_x; each lane stores its words */
extern "C" __global__ void matrices(const lumc_f16 *B_x, lumc_u32 *B_y, lumc_u32 *B_z)
{
    LUMC_SHARED(lumc_u8, S);
    LUMC_TILE(lumc_f16, S_x, S, 0, 32 * 8);
    lumc_copy<16>(S_x + threadIdx.x * 8, B_x + threadIdx.x * 8);
    lumc_warp_sync();
    lumc_u32 r[4];
    lumc_ldmatrix_x4(r, S_x + threadIdx.x * 8);
    lumc_store(B_y + threadIdx.x * 4, r);
    lumc_ldmatrix_x4<true>(r, S_x + threadIdx.x * 8);
    lumc_store(B_z + threadIdx.x * 4, r);
}
LUMC_EXPORT(matrices)
extern "C" __global__ void shuffles(const float *B_f, const double *B_d, const lumc_i64 *B_i,
                                    float *B_x, double *B_y, lumc_i64 *B_z)
{
    int i = threadIdx.x;
    B_x[i] = lumc_shuffle_xor(B_f[i], 1);
    B_y[i] = lumc_shuffle_xor(B_d[i], 6);
    B_z[i] = lumc_shuffle_xor(B_i[i], 16) + lumc_shuffle_xor(i, 31) + lumc_shuffle_xor(~0u, 3);
}
LUMC_EXPORT(shuffles)
/* the first 16, 8, 4 and 3 * i bytes of 16 */
extern "C" __global__ void copies(const float *B_x, float *B_y)
{
    LUMC_SHARED(float, S);
    int i = threadIdx.x * 4;
    float v[4];
    lumc_cp_async<16>(S + i, B_x + i);
    lumc_cp_async<8>(S + 512 + i, B_x + i);
    lumc_cp_async_commit();
    lumc_cp_async<8>(S + 512 + i + 2, B_x + i, 0);
    lumc_cp_async<4>(S + 1024 + i, B_x + i);
    lumc_cp_async_commit();
    lumc_cp_async<16>(S + 1536 + i, B_x + i, threadIdx.x % 5 * 4);
    lumc_cp_async_commit();
    lumc_cp_async_wait<2>();
    lumc_load(v, S + i);
    lumc_store(B_y + i, v);
    lumc_cp_async_wait<0>();
    lumc_load(v, S + 512 + i);
    lumc_store(B_y + 512 + i, v);
    B_y[1024 + i] = S[1024 + i];
    lumc_copy<16>(B_y + 1536 + i, S + 1536 + i);
}
LUMC_EXPORT(copies)
"""

/* What the CUDA kernels that lumc prints are made of: element types, conversions, elementary
 * functions, and the operations of the hardware (barriers, shuffles, asynchronous copies, tensor
 * cores). It is the only header that they include; as it ships it includes nothing, so that nvcc
 * and NVRTC need no path for it. Devices from sm_80 on.
 *
 * With LUMC_EMU defined the part "hardware" comes from lumc_emu.h instead, and g++ makes code of
 * the same text that runs on the CPU. Everything outside that part is plain C++ for both.
 *
 * Floats are IEEE: NaN and infinities propagate. Never compile with --use_fast_math.
 */
#pragma once

typedef signed char lumc_i8;
typedef unsigned char lumc_u8;
typedef short lumc_i16;
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
#include "lumc_dev/hardware.h"
#endif /* LUMC_EMU */
#include "lumc_dev/warpgroups.h"
#include "lumc_dev/arithmetic.h"
#include "lumc_dev/elementary.h"

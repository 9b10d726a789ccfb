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

#include "lumc_dev/types.h"

/* ---- hardware */

#ifdef LUMC_EMU
#include "lumc_emu.h"
#else
#include "lumc_dev/hardware.h"
#endif /* LUMC_EMU */
#include "lumc_dev/warpgroups.h"
#include "lumc_dev/tensors.h"
#include "lumc_dev/arithmetic.h"
#include "lumc_dev/elementary.h"

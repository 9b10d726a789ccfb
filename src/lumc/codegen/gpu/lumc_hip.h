/* What the HIP kernels that lumc prints are made of, as lumc_dev.h is for CUDA: it is the only
 * header that they include, and as it ships it includes nothing. Neither the headers of ROCm nor
 * its libraries are needed: clang alone makes code objects of it, and so does hipRTC. GPUs of AMD
 * from gfx90a on.
 *
 * With LUMC_EMU defined the part "hardware" comes from lumc_emu.h instead, and g++ makes code of
 * the same text that runs on the CPU. Everything outside that part is plain C++ for both.
 *
 * Floats are IEEE: NaN and infinities propagate. Never compile with -ffast-math.
 */
#pragma once

#include "lumc_dev/types.h"

/* ---- hardware */

#ifdef LUMC_EMU
#define LUMC_OWN_FUNCTIONS /* those of lumc_hip/functions.h */
#include "lumc_emu.h"
#define LUMC_STEPS
#define LUMC_LINE , int line = __builtin_LINE() /* of the caller, by which the emulator tells calls */
#define LUMC_ITS_LINE , line
LUMC_FN unsigned lumc_thread(void) { return threadIdx.x; }
LUMC_FN unsigned lumc_block(void) { return blockIdx.x; }
#else
#include "lumc_hip/hardware.h"
#endif /* LUMC_EMU */
#include "lumc_hip/functions.h"
#include "lumc_hip/matrices.h"
#include "lumc_dev/arithmetic.h"
#include "lumc_dev/elementary.h"

// The part of <metal_stdlib> that generated kernels use, over the emulator of GPU threads.
#pragma once
#include "machine.h"
#include "numbers.h"
#include "functions.h"
#include "simdgroup.h"
#include "qualifiers.h"

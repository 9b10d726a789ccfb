/* What nccl.h takes of CUDA's headers, which are not needed. */
#pragma once
#include <stddef.h>
typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;

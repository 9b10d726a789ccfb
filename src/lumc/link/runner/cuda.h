/* cuda.h - what the files of the CUDA device share: the driver's functions, and what lies on a GPU.
 * No header of CUDA is needed: the few types are declared here. */
#ifndef LUMC_CUDA_H
#define LUMC_CUDA_H

#include "internal.h"

#pragma GCC visibility push(hidden)

/* As in CUDA's header: CUresult is an int, 0 when all is well; CUdevice an int; handles pointers. */
typedef void *handle;
typedef unsigned long long address; /* CUdeviceptr */

enum {
  OUT_OF_MEMORY = 2,
  NO_DEVICE = 100,
  NON_BLOCKING = 1,   /* a stream that does not wait for others */
  THREAD_LOCAL = 1,   /* capture: other threads of the process do as they like */
  DYNAMIC_SHARED = 8, /* attribute of a function */
  MAJOR = 75,         /* attributes of a device */
  MINOR = 76,
  SHARED_OPTIN = 97,
  SHARED_USUAL = 48 << 10
};

#define FUNCTIONS(X)                                                                              \
  X(cuInit, (unsigned))                                                                           \
  X(cuDriverGetVersion, (int *))                                                                  \
  X(cuDeviceGetCount, (int *))                                                                    \
  X(cuDeviceGet, (int *, int))                                                                    \
  X(cuDeviceGetAttribute, (int *, int, int))                                                      \
  X(cuDevicePrimaryCtxRetain, (handle *, int))                                                    \
  X(cuDevicePrimaryCtxRelease_v2, (int))                                                          \
  X(cuCtxPushCurrent_v2, (handle))                                                                \
  X(cuCtxPopCurrent_v2, (handle *))                                                               \
  X(cuModuleLoadData, (handle *, const void *))                                                   \
  X(cuModuleUnload, (handle))                                                                     \
  X(cuModuleGetFunction, (handle *, handle, const char *))                                        \
  X(cuFuncSetAttribute, (handle, int, int))                                                       \
  X(cuMemAlloc_v2, (address *, size_t))                                                           \
  X(cuMemFree_v2, (address))                                                                      \
  X(cuMemcpyHtoDAsync_v2, (address, const void *, size_t, handle))                                \
  X(cuMemcpyDtoHAsync_v2, (void *, address, size_t, handle))                                      \
  X(cuStreamCreate, (handle *, unsigned))                                                         \
  X(cuStreamSynchronize, (handle))                                                                \
  X(cuStreamDestroy_v2, (handle))                                                                 \
  X(cuStreamBeginCapture_v2, (handle, int))                                                       \
  X(cuStreamEndCapture, (handle, handle *))                                                       \
  X(cuGraphInstantiateWithFlags, (handle *, handle, unsigned long long))                          \
  X(cuGraphLaunch, (handle, handle))                                                              \
  X(cuGraphDestroy, (handle))                                                                     \
  X(cuGraphExecDestroy, (handle))                                                                 \
  X(cuEventCreate, (handle *, unsigned))                                                          \
  X(cuEventRecord, (handle, handle))                                                              \
  X(cuEventElapsedTime, (float *, handle, handle))                                                \
  X(cuEventDestroy_v2, (handle))                                                                  \
  X(cuGetErrorString, (int, const char **))                                                       \
  X(cuLaunchKernel, (handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,          \
                     unsigned, handle, void **, void **))

extern struct nvidia { /* the driver, once a plan asked for it */
#define X(name, parameters) int(*name) parameters;
  FUNCTIONS(X)
#undef X
  int version, device, capability; /* 13000; 0; 90 for sm_90 */
  int shared;                      /* bytes that a block may have */
  char problem[512];               /* why there is nothing to run on; empty when there is */
} nvidia;

/* ---- cuda_driver.c */
const char *cuda_said(int result);
int cuda_check(int result, const char *what); /* LUMC_OK, or what the driver says of it */
long cuda_suits(const struct plan *);         /* as struct device says; loads the driver */

/* ---- cuda_memory.c; what returns a code: LUMC_OK or what lumc_fail was told */
struct range { /* of the weights that kernels read */
  uint64_t offset, bytes;
  address at;
};

struct program { /* a list of launches, ready to run */
  handle graph;
  address *inputs, *outputs;
  address counts; /* the values of the counter, where the graph is of all repetitions; else 0 */
};

struct cuda {
  const struct plan *plan;
  handle context, module, stream, *functions;
  address weights, states, memory; /* memory: arena, inputs and outputs of the entry that runs */
  address dims;                    /* where kernels read them: what is captured stays */
  int64_t *values;                 /* of dims, on the way there */
  uint64_t turn;                   /* which repetition is launched */
  struct range *ranges;
  size_t n_ranges;
  size_t *state; /* where each state begins */
  struct block mirror;
  int mirrored; /* the states are in the mirror, the device has older ones */
  struct program *programs;
};

int cuda_upload(const struct cuda *, address to, const void *from, uint64_t bytes);
int cuda_download(const struct cuda *, void *to, address from, uint64_t bytes);
int cuda_wait(const struct cuda *);
int cuda_load_weights(struct cuda *, const struct source *);
int cuda_place_states(struct cuda *);
int cuda_place_values(struct cuda *);
int cuda_upload_dims(const struct cuda *); /* as they are in the plan */
int cuda_place_counts(struct cuda *);
/* The launches that follow are those of the k-th repetition of a list. */
int cuda_turn(struct cuda *, size_t list, uint64_t k);
int cuda_move_states(const struct cuda *, int to_device); /* all, between it and the mirror */
/* Where an argument of a list's launch is; 0 for what the kernel has not. */
address cuda_place(const struct cuda *, size_t list, const struct arg *);

#pragma GCC visibility pop
#endif

/* gpu.h - what the files of CUDA and HIP share: the functions of their drivers, which are the same but
 * for their names, and what lies on a GPU. No header of either is needed: the few types are declared
 * here. */
#ifndef LUMC_GPU_H
#define LUMC_GPU_H

#include "internal.h"

#pragma GCC visibility push(hidden)

/* As in the headers of both: results are int, 0 when all is well; devices int; handles pointers. */
typedef void *handle;
typedef unsigned long long address; /* CUdeviceptr, hipDeviceptr_t */

enum {
  OUT_OF_MEMORY = 2,
  NO_DEVICE = 100,
  NON_BLOCKING = 1, /* a stream that does not wait for others */
  THREAD_LOCAL = 1, /* capture: other threads of the process do as they like */
  MAX_IMAGE = 1 << 30
};

/* our name, that of CUDA, that of HIP, parameters */
#define FUNCTIONS(X)                                                                              \
  X(init, cuInit, hipInit, (unsigned))                                                            \
  X(version_of, cuDriverGetVersion, hipRuntimeGetVersion, (int *))                                \
  X(device_count, cuDeviceGetCount, hipGetDeviceCount, (int *))                                   \
  X(module_load, cuModuleLoadData, hipModuleLoadData, (handle *, const void *))                   \
  X(module_unload, cuModuleUnload, hipModuleUnload, (handle))                                     \
  X(module_function, cuModuleGetFunction, hipModuleGetFunction, (handle *, handle, const char *)) \
  X(allocate, cuMemAlloc_v2, hipMalloc, (address *, size_t))                                      \
  X(give_back, cuMemFree_v2, hipFree, (address))                                                  \
  X(upload, cuMemcpyHtoDAsync_v2, hipMemcpyHtoDAsync, (address, const void *, size_t, handle))    \
  X(download, cuMemcpyDtoHAsync_v2, hipMemcpyDtoHAsync, (void *, address, size_t, handle))        \
  X(stream_create, cuStreamCreate, hipStreamCreateWithFlags, (handle *, unsigned))                \
  X(stream_wait, cuStreamSynchronize, hipStreamSynchronize, (handle))                             \
  X(stream_destroy, cuStreamDestroy_v2, hipStreamDestroy, (handle))                               \
  X(capture_begin, cuStreamBeginCapture_v2, hipStreamBeginCapture, (handle, int))                 \
  X(capture_end, cuStreamEndCapture, hipStreamEndCapture, (handle, handle *))                     \
  X(graph_make, cuGraphInstantiateWithFlags, hipGraphInstantiateWithFlags,                        \
    (handle *, handle, unsigned long long))                                                       \
  X(graph_launch, cuGraphLaunch, hipGraphLaunch, (handle, handle))                                \
  X(graph_destroy, cuGraphDestroy, hipGraphDestroy, (handle))                                     \
  X(graph_end, cuGraphExecDestroy, hipGraphExecDestroy, (handle))                                 \
  X(event_create, cuEventCreate, hipEventCreateWithFlags, (handle *, unsigned))                   \
  X(event_record, cuEventRecord, hipEventRecord, (handle, handle))                                \
  X(event_time, cuEventElapsedTime, hipEventElapsedTime, (float *, handle, handle))               \
  X(event_destroy, cuEventDestroy_v2, hipEventDestroy, (handle))                                  \
  X(launch, cuLaunchKernel, hipModuleLaunchKernel,                                                \
    (handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle,        \
     void **, void **))

struct map_words { /* a CUtensorMap */
  _Alignas(64) uint64_t words[16];
};
struct gpu;
struct driver { /* once a plan asked for it */
#define X(name, cuda, hip, parameters) int(*name) parameters;
  FUNCTIONS(X)
#undef X
  const char *is;             /* "NVIDIA driver" */
  const char *(*said)(int);   /* of a result */
  int (*retain)(struct gpu *);   /* what a process needs, if anything; `release` gives it back */
  void (*release)(struct gpu *);
  int (*enter)(struct gpu *);    /* the GPU is this thread's until `leave` */
  int (*leave)(struct gpu *);
  int (*load)(struct gpu *, const struct source *); /* the module, of the image for this GPU */
  int (*prepare)(struct gpu *, handle function, const struct kernel *); /* for its launches */
  int (*map)(const struct gpu *, const struct tensor_map *, address, struct map_words *); /* or NULL */
  int version, device; /* of HIP; one of CUDA is chosen for each plan */
  char problem[512]; /* why there is nothing to run on; empty when there is */
};

/* ---- gpu.c; struct device says what these do */
int gpu_open(const struct driver *, const struct source *, const struct plan *, void **self);
int gpu_set_threads(void *self, int threads);
int gpu_state(void *self, size_t i, void **data);
int gpu_begin(void *self, size_t list, const void *const *inputs, void *const *outputs,
              const size_t *bytes);
int gpu_repeat(void *self, size_t list, long n);
int gpu_finish(void *self, size_t list, void *const *outputs, const size_t *bytes);
int gpu_trace(void *self, size_t list, int threads, int64_t *times);
void gpu_close(void *self);
void gpu_end_graphs(const struct gpu *); /* one that runs ends when it is done */
int gpu_check(const struct gpu *, int result, const char *what); /* LUMC_OK, or what is said of it */

/* ---- gpu_memory.c; what returns a code: LUMC_OK or what lumc_fail was told */
struct range { /* of the weights that kernels read */
  uint64_t offset, bytes;
  address at;
};

struct program { /* a list of launches, ready to run */
  handle graph;
  address *inputs, *outputs;
  address counts; /* the values of the counter, where the graph is of all repetitions; else 0 */
};

struct gpu {
  const struct driver *driver;
  const struct plan *plan;
  struct mesh *mesh; /* the other ranks, or NULL */
  struct nccl *nccl; /* how it exchanges with them */
  int device;
  handle context, module, stream, *functions;
  int entered, before; /* has it been; the device of the thread that entered */
  address weights, states, memory; /* memory: arena, inputs and outputs of the entry that runs */
  address dims;                    /* where kernels read them: what is captured stays */
  int64_t *values;                 /* of dims, on the way there */
  uint64_t turn;                   /* which repetition is launched */
  struct range *ranges;
  size_t n_ranges;
  size_t *state; /* where each state begins in the mirror; a rank has those of its stage on the device */
  size_t *held;  /* and where there */
  struct block mirror;
  int mirrored; /* the states are in the mirror, the device has older ones */
  struct program *programs;
};

int gpu_allocate(const struct gpu *, address *to, uint64_t bytes, const char *what);
int gpu_upload(const struct gpu *, address to, const void *from, uint64_t bytes);
int gpu_download(const struct gpu *, void *to, address from, uint64_t bytes);
int gpu_wait(const struct gpu *);
int gpu_load_weights(struct gpu *, const struct source *);
int gpu_place_states(struct gpu *);
int gpu_place_values(struct gpu *);
int gpu_upload_dims(const struct gpu *); /* as they are in the plan */
int gpu_place_counts(struct gpu *);
/* The launches that follow are those of the k-th repetition of a list. */
int gpu_turn(struct gpu *, size_t list, uint64_t k);
int gpu_move_states(const struct gpu *, int to_device); /* all, between it and the mirror */
/* Where an argument of a list's launch is; 0 for what the kernel has not. */
address gpu_place(const struct gpu *, size_t list, const struct arg *);

/* ---- nccl.c */
struct exchange;
/* With all ranks of the plan. */
int nccl_open(const struct gpu *, struct mesh *, struct nccl **self);
void nccl_close(struct nccl *);
/* A collective on the stream, as mesh_run does it. */
int nccl_run(struct nccl *, const struct exchange *, address from, address to);
/* Do all ranks run this list with these dims? */
int nccl_agree(struct nccl *, size_t list);
/* Until the stream is done, or a rank is gone: nothing on the stream waits for it then. */
int nccl_wait(struct nccl *);

/* ---- hip.c, hip_compile.c */
void *hip_library(const char *name); /* of ROCm, of any release: "libhiprtc"; NULL: see dlerror */
/* A code object of kernels and of the header that they include, with `free` to be called on it. */
int hip_compile(const char *text, const char *header, const char *arch, char **image);

#pragma GCC visibility pop
#endif

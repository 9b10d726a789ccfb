/* cuda.c - GPUs of NVIDIA: libcuda.so.1, loaded when a plan asks for it, and the images for it. */
#include "gpu.h"
#include "ranks.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  DYNAMIC_SHARED = 8, /* attribute of a function */
  MAJOR = 75,         /* attributes of a device */
  MINOR = 76,
  SHARED_OPTIN = 97,
  SHARED_USUAL = 48 << 10
};

#define OWN_FUNCTIONS(X)                                                                          \
  X(cuDeviceGet, (int *, int))                                                                    \
  X(cuDeviceGetAttribute, (int *, int, int))                                                      \
  X(cuDevicePrimaryCtxRetain, (handle *, int))                                                    \
  X(cuDevicePrimaryCtxRelease_v2, (int))                                                          \
  X(cuCtxPushCurrent_v2, (handle))                                                                \
  X(cuCtxPopCurrent_v2, (handle *))                                                               \
  X(cuFuncSetAttribute, (handle, int, int))                                                       \
  X(cuGetErrorString, (int, const char **))

static struct {
#define X(name, parameters) int(*name) parameters;
  OWN_FUNCTIONS(X)
#undef X
  int count; /* of GPUs */
} own;
struct seen { /* of a GPU */
  int device;
  int capability; /* 90 for sm_90 */
  int shared;     /* bytes that a block may have */
};
static int (*encode_tiled)(struct map_words *, int type, uint32_t rank, void *, const uint64_t *dims,
                           const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int,
                           int swizzle, int promotion, int fill);
static struct driver nvidia;
static pthread_once_t started = PTHREAD_ONCE_INIT;

static const char *said(int result) {
  const char *text = NULL;
  if (own.cuGetErrorString(result, &text) || !text) text = "unknown error";
  return text;
}

/* ---- the GPU and its context */

/* Which GPU a plan runs on: the first, or that of a rank. A launcher that gives each rank one GPU
 * shows it no other. */
static int ordinal(const struct plan *p, int *to) {
  int rank = local_rank(), ranks = local_ranks();
  *to = 0;
  if (!p->n_axes) return LUMC_OK;
  if (ranks > own.count)
    return lumc_fail(LUMC_DEVICE, "%d ranks on this machine need a GPU each, and the NVIDIA driver sees %d",
                     ranks, own.count);
  if (own.count == 1 || rank < 0) return LUMC_OK; /* who is no rank is told so later */
  if (rank >= own.count)
    return lumc_fail(LUMC_DEVICE, "rank %d of this machine (LOCAL_RANK) needs a GPU of its own, and the NVIDIA driver "
                     "sees %d", rank, own.count);
  *to = rank;
  return LUMC_OK;
}

static int see(const struct plan *p, struct seen *s) {
  int at = 0, major = 0, minor = 0, code = ordinal(p, &at);
  *s = (struct seen){0, 0, 0};
  if (code) return code;
  int result = own.cuDeviceGet(&s->device, at);
  if (!result) result = own.cuDeviceGetAttribute(&major, MAJOR, s->device);
  if (!result) result = own.cuDeviceGetAttribute(&minor, MINOR, s->device);
  if (!result) result = own.cuDeviceGetAttribute(&s->shared, SHARED_OPTIN, s->device);
  s->capability = major * 10 + minor;
  if (!result) return LUMC_OK;
  return lumc_fail(LUMC_DEVICE, "the NVIDIA driver does not start: %s (%d)", said(result), result);
}

static int retain(struct gpu *m) {
  struct seen here;
  int code = see(m->plan, &here);
  m->device = here.device;
  return code ? code : gpu_check(m, own.cuDevicePrimaryCtxRetain(&m->context, m->device), "context");
}

static void release_context(struct gpu *m) {
  if (m->context) own.cuDevicePrimaryCtxRelease_v2(m->device);
}

static int enter(struct gpu *m) {
  return gpu_check(m, own.cuCtxPushCurrent_v2(m->context), "context");
}

static int leave(struct gpu *m) {
  handle context;
  return gpu_check(m, own.cuCtxPopCurrent_v2(&context), "context");
}

/* ---- kernels */

/* The image for this GPU: of its own architecture, an older one of the same generation, or text
 * that the driver compiles. */
static int load_module(struct gpu *m, const struct source *s) {
  const char *target = m->plan->target;
  char name[1200], listed[1300], *image;
  struct seen here;
  size_t size;
  int found = 0, code = see(m->plan, &here);
  for (int arch = here.capability; !code && !found && arch >= here.capability / 10 * 10; --arch) {
    snprintf(name, sizeof name, "kernels/%s/kernels.sm_%d.cubin", target, arch);
    snprintf(listed, sizeof listed, "\"%s\":\"", name);
    found = strstr(s->manifest, listed) != NULL;
  }
  if (!found) snprintf(name, sizeof name, "kernels/%s/kernels.ptx", target);
  if (!code) code = read_checked(s, name, MAX_IMAGE, &image, &size);
  if (code) return code;
  int result = nvidia.module_load(&m->module, image);
  free(image);
  if (!result) return LUMC_OK;
  m->module = NULL;
  return lumc_fail(LUMC_DEVICE,
                   "the NVIDIA driver (CUDA %d.%d) refuses %s: %s (%d); update the driver, or link "
                   "with an older CUDA compiler",
                   nvidia.version / 1000, nvidia.version % 1000 / 10, name, said(result), result);
}

static int prepare(struct gpu *m, handle function, const struct kernel *k) {
  if (k->shared <= SHARED_USUAL) return LUMC_OK;
  return gpu_check(m, own.cuFuncSetAttribute(function, DYNAMIC_SHARED, (int)k->shared), k->symbol);
}

/* What a kernel for sm_90 copies whole tiles by: pieces of 16 bytes are exchanged by the row, what
 * lies outside is zero. Kernels for other GPUs do not look at it. */
static int make_map(const struct gpu *m, const struct tensor_map *t, address at, struct map_words *to) {
  enum { UINT16 = 1, NOT_INTERLEAVED = 0, SWIZZLE_128B = 3, L2_128B = 2, ZEROS = 0 };
  const uint32_t box[3] = {(uint32_t)t->box[0], (uint32_t)t->box[1], 1}, every[3] = {1, 1, 1};
  memset(to, 0, sizeof *to);
  struct seen here;
  int code = see(m->plan, &here);
  if (code || here.capability != 90) return code;
  if (!encode_tiled)
    return lumc_fail(LUMC_DEVICE, "the NVIDIA driver is too old: it has no cuTensorMapEncodeTiled");
  return gpu_check(m, encode_tiled(to, UINT16, (uint32_t)t->rank, (void *)(uintptr_t)at, t->dims, t->strides,
                                   box, every, NOT_INTERLEAVED, SWIZZLE_128B, L2_128B, ZEROS),
                   "tensor map");
}

/* ---- the driver */

static struct driver nvidia = {.is = "NVIDIA driver",
                               .said = said,
                               .retain = retain,
                               .release = release_context,
                               .enter = enter,
                               .leave = leave,
                               .load = load_module,
                               .prepare = prepare,
                               .map = make_map};

static void start(void) {
  char *why = nvidia.problem;
  size_t room = sizeof nvidia.problem;
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    snprintf(why, room, "no NVIDIA driver on this machine: %s", dlerror());
    return;
  }
#define FIND(place, symbol)                                                                       \
  *(void **)&place = dlsym(library, #symbol);                                                     \
  if (!place) {                                                                                   \
    snprintf(why, room, "the NVIDIA driver is too old: it has no %s", #symbol);                   \
    return;                                                                                       \
  }
#define X(name, cuda, hip, parameters) FIND(nvidia.name, cuda)
  FUNCTIONS(X)
#undef X
#define X(name, parameters) FIND(own.name, name)
  OWN_FUNCTIONS(X)
#undef X
  *(void **)&encode_tiled = dlsym(library, "cuTensorMapEncodeTiled"); /* from CUDA 12 on */
  int result = nvidia.init(0);
  if (!result) result = nvidia.version_of(&nvidia.version);
  if (!result) result = nvidia.device_count(&own.count);
  if (result == NO_DEVICE || (!result && own.count < 1)) {
    snprintf(why, room, "the NVIDIA driver sees no GPU");
    return;
  }
  if (result)
    snprintf(why, room, "the NVIDIA driver does not start: %s (%d)", said(result), result);
}

static long suits(const struct plan *p) {
  pthread_once(&started, start);
  struct seen here;
  if (*nvidia.problem) return lumc_fail(0, "%s", nvidia.problem);
  if (see(p, &here)) return 0;
  int arch = strncmp(p->arch, "sm_", 3) ? 0 : atoi(p->arch + 3);
  if (here.capability < 80 || arch < 80)
    return lumc_fail(0, "target %s needs a GPU of sm_80 or newer, this one is sm_%d", p->target,
                     here.capability);
  for (size_t i = 0; i < p->n_kernels; ++i)
    if (p->kernels[i].shared > (uint64_t)here.shared)
      return lumc_fail(0, "kernel %s needs %d KB of shared memory, this GPU (sm_%d) has %d KB",
                       p->kernels[i].symbol, (int)(p->kernels[i].shared >> 10), here.capability,
                       here.shared >> 10);
  return arch <= here.capability ? 1000 + arch : 1; /* the newest that it was made for */
}

static int open_cuda(const struct source *s, const struct plan *plan, int threads, void **self) {
  (void)threads;
  return gpu_open(&nvidia, s, plan, self);
}

const struct device cuda_device = {"cuda",    suits,      open_cuda,  gpu_set_threads, gpu_state,
                                   gpu_begin, gpu_repeat, gpu_finish, gpu_trace,       gpu_close};

/* cuda.c - GPUs of NVIDIA: libcuda.so.1, loaded when a plan asks for it, and the images for it. */
#include "gpu.h"
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
  int capability; /* 90 for sm_90 */
  int shared;     /* bytes that a block may have */
} own;
static struct driver nvidia;
static pthread_once_t started = PTHREAD_ONCE_INIT;

static const char *said(int result) {
  const char *text = NULL;
  if (own.cuGetErrorString(result, &text) || !text) text = "unknown error";
  return text;
}

/* ---- contexts */

static int retain(struct gpu *m) {
  return gpu_check(m, own.cuDevicePrimaryCtxRetain(&m->context, nvidia.device), "context");
}

static void release_context(struct gpu *m) {
  if (m->context) own.cuDevicePrimaryCtxRelease_v2(nvidia.device);
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
  size_t size;
  int found = 0;
  for (int arch = own.capability; !found && arch >= own.capability / 10 * 10; --arch) {
    snprintf(name, sizeof name, "kernels/%s/kernels.sm_%d.cubin", target, arch);
    snprintf(listed, sizeof listed, "\"%s\":\"", name);
    found = strstr(s->manifest, listed) != NULL;
  }
  if (!found) snprintf(name, sizeof name, "kernels/%s/kernels.ptx", target);
  int code = read_checked(s, name, MAX_IMAGE, &image, &size);
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

/* ---- the driver */

static struct driver nvidia = {.is = "NVIDIA driver",
                               .said = said,
                               .retain = retain,
                               .release = release_context,
                               .enter = enter,
                               .leave = leave,
                               .load = load_module,
                               .prepare = prepare};

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
  int count = 0, major = 0, minor = 0, result = nvidia.init(0);
  if (!result) result = nvidia.version_of(&nvidia.version);
  if (!result) result = nvidia.device_count(&count);
  if (result == NO_DEVICE || (!result && count < 1)) {
    snprintf(why, room, "the NVIDIA driver sees no GPU");
    return;
  }
  if (!result) result = own.cuDeviceGet(&nvidia.device, 0);
  if (!result) result = own.cuDeviceGetAttribute(&major, MAJOR, nvidia.device);
  if (!result) result = own.cuDeviceGetAttribute(&minor, MINOR, nvidia.device);
  if (!result) result = own.cuDeviceGetAttribute(&own.shared, SHARED_OPTIN, nvidia.device);
  own.capability = major * 10 + minor;
  if (result)
    snprintf(why, room, "the NVIDIA driver does not start: %s (%d)", said(result), result);
}

static long suits(const struct plan *p) {
  pthread_once(&started, start);
  if (*nvidia.problem) return lumc_fail(0, "%s", nvidia.problem);
  int arch = strncmp(p->arch, "sm_", 3) ? 0 : atoi(p->arch + 3);
  if (own.capability < 80 || arch < 80)
    return lumc_fail(0, "target %s needs a GPU of sm_80 or newer, this one is sm_%d", p->target,
                     own.capability);
  for (size_t i = 0; i < p->n_kernels; ++i)
    if (p->kernels[i].shared > (uint64_t)own.shared)
      return lumc_fail(0, "kernel %s needs %d KB of shared memory, this GPU (sm_%d) has %d KB",
                       p->kernels[i].symbol, (int)(p->kernels[i].shared >> 10), own.capability,
                       own.shared >> 10);
  return arch <= own.capability ? 1000 + arch : 1; /* the newest that it was made for */
}

static int open_cuda(const struct source *s, const struct plan *plan, int threads, void **self) {
  (void)threads;
  return gpu_open(&nvidia, s, plan, self);
}

const struct device cuda_device = {"cuda",    suits,      open_cuda,  gpu_set_threads, gpu_state,
                                   gpu_begin, gpu_repeat, gpu_finish, gpu_trace,       gpu_close};

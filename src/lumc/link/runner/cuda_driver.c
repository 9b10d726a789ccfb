/* cuda_driver.c - the NVIDIA driver, libcuda.so.1, loaded when a plan asks for it. */
#include "cuda.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct nvidia nvidia;
static pthread_once_t started = PTHREAD_ONCE_INIT;

const char *cuda_said(int result) {
  const char *text = NULL;
  if (nvidia.cuGetErrorString(result, &text) || !text) text = "unknown error";
  return text;
}

int cuda_check(int result, const char *what) {
  if (!result) return LUMC_OK;
  return lumc_fail(LUMC_FAILED, "%s: the NVIDIA driver says: %s (%d)", what, cuda_said(result),
                   result);
}

static void start(void) {
  char *why = nvidia.problem;
  size_t room = sizeof nvidia.problem;
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    snprintf(why, room, "no NVIDIA driver on this machine: %s", dlerror());
    return;
  }
#define X(name, parameters)                                                                       \
  *(void **)&nvidia.name = dlsym(library, #name);                                                 \
  if (!nvidia.name) {                                                                             \
    snprintf(why, room, "the NVIDIA driver is too old: it has no %s", #name);                     \
    return;                                                                                       \
  }
  FUNCTIONS(X)
#undef X
  int count = 0, major = 0, minor = 0, result = nvidia.cuInit(0);
  if (!result) result = nvidia.cuDriverGetVersion(&nvidia.version);
  if (!result) result = nvidia.cuDeviceGetCount(&count);
  if (result == NO_DEVICE || (!result && count < 1)) {
    snprintf(why, room, "the NVIDIA driver sees no GPU");
    return;
  }
  if (!result) result = nvidia.cuDeviceGet(&nvidia.device, 0);
  if (!result) result = nvidia.cuDeviceGetAttribute(&major, MAJOR, nvidia.device);
  if (!result) result = nvidia.cuDeviceGetAttribute(&minor, MINOR, nvidia.device);
  if (!result) result = nvidia.cuDeviceGetAttribute(&nvidia.shared, SHARED_OPTIN, nvidia.device);
  nvidia.capability = major * 10 + minor;
  if (result)
    snprintf(why, room, "the NVIDIA driver does not start: %s (%d)", cuda_said(result), result);
}

long cuda_suits(const struct plan *p) {
  pthread_once(&started, start);
  if (*nvidia.problem) return lumc_fail(0, "%s", nvidia.problem);
  int arch = strncmp(p->arch, "sm_", 3) ? 0 : atoi(p->arch + 3);
  if (nvidia.capability < 80 || arch < 80)
    return lumc_fail(0, "target %s needs a GPU of sm_80 or newer, this one is sm_%d", p->target,
                     nvidia.capability);
  for (size_t i = 0; i < p->n_kernels; ++i)
    if (p->kernels[i].shared > (uint64_t)nvidia.shared)
      return lumc_fail(0, "kernel %s needs %d KB of shared memory, this GPU (sm_%d) has %d KB",
                       p->kernels[i].symbol, (int)(p->kernels[i].shared >> 10), nvidia.capability,
                       nvidia.shared >> 10);
  return arch <= nvidia.capability ? 1000 + arch : 1; /* the newest that it was made for */
}

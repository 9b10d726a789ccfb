/* hip.c - GPUs of AMD: libamdhip64 of ROCm, loaded when a plan asks for it, and the images for it. */
#include "gpu.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Where the properties of a device have the name of its architecture: since HIP 6, and before
 * (LLVM, amdgpu-arch). */
enum { ROOM = 4096, NAMED = 1160, NAMED_BEFORE = 396, NAME = 64, NOT_SUPPORTED = 801 };

#define OWN_FUNCTIONS(X)                                                                          \
  X(hipGetDevice, (int *))                                                                        \
  X(hipSetDevice, (int))

static struct {
#define X(name, parameters) int(*name) parameters;
  OWN_FUNCTIONS(X)
#undef X
  const char *(*said)(int);
  int (*properties)(void *, int), (*properties_before)(void *, int);
  char arch[NAME];                /* gfx942 */
} own;
static struct driver amd;
static pthread_once_t started = PTHREAD_ONCE_INIT;

static const char *said(int result) {
  const char *text = own.said(result);
  return text ? text : "unknown error";
}

/* ---- the device of a thread */

static int enter(struct gpu *m) {
  int code = gpu_check(m, own.hipGetDevice(&m->before), "device");
  return code ? code : gpu_check(m, own.hipSetDevice(amd.device), "device");
}

static int leave(struct gpu *m) { return gpu_check(m, own.hipSetDevice(m->before), "device"); }

/* ---- kernels */

static int load_image(struct gpu *m, const void *image, const char *name) {
  int result = amd.module_load(&m->module, image);
  if (!result) return LUMC_OK;
  m->module = NULL;
  return lumc_fail(LUMC_DEVICE,
                   "the HIP runtime (%d.%d) refuses %s: %s (%d); update ROCm, or link with an older "
                   "clang",
                   amd.version / 10000000, amd.version / 100000 % 100, name, said(result), result);
}

/* The text that is there for all GPUs, compiled for this one. */
static int compile_module(struct gpu *m, const struct source *s) {
  char name[1200], *text, *header, *image = NULL;
  size_t size;
  snprintf(name, sizeof name, "kernels/%s/lumc_hip.h", m->plan->target);
  int code = read_checked(s, name, MAX_IMAGE, &header, &size);
  if (code) return code;
  snprintf(name, sizeof name, "kernels/%s/kernels.hip", m->plan->target);
  if (!(code = read_checked(s, name, MAX_IMAGE, &text, &size))) {
    code = hip_compile(text, header, own.arch, &image);
    if (!code) code = load_image(m, image, name);
    free(text);
    free(image);
  }
  free(header);
  return code;
}

static int load_module(struct gpu *m, const struct source *s) {
  char name[1200], listed[1300], *image;
  size_t size;
  snprintf(name, sizeof name, "kernels/%s/kernels.%s.hsaco", m->plan->target, own.arch);
  snprintf(listed, sizeof listed, "\"%s\":\"", name);
  if (!strstr(s->manifest, listed)) return compile_module(m, s);
  int code = read_checked(s, name, MAX_IMAGE, &image, &size);
  if (code) return code;
  code = load_image(m, image, name);
  free(image);
  return code;
}

static int prepare(struct gpu *m, handle function, const struct kernel *k) {
  (void)m, (void)function, (void)k; /* all of the shared memory is there without being asked for */
  return LUMC_OK;
}

/* ---- the runtime */

static struct driver amd = {.is = "HIP runtime",
                            .said = said,
                            .enter = enter,
                            .leave = leave,
                            .load = load_module,
                            .prepare = prepare};

void *hip_library(const char *name) {
  static const char *const releases[] = {".7", ".6", ".5", ""}; /* of ROCm */
  void *found = NULL;
  for (size_t i = 0; i < 4 && !found; ++i) {
    char file[64];
    snprintf(file, sizeof file, "%s.so%s", name, releases[i]);
    found = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  }
  return found;
}

static int ask_arch(void) {
  char room[ROOM] = {0};
  int (*ask)(void *, int) = own.properties ? own.properties : own.properties_before;
  int result = ask ? ask(room, 0) : NOT_SUPPORTED;
  const char *name = room + (own.properties ? NAMED : NAMED_BEFORE);
  snprintf(own.arch, sizeof own.arch, "%.*s", (int)strcspn(name, ":"), name);
  return result;
}

static void start(void) {
  char *why = amd.problem;
  size_t room = sizeof amd.problem;
  void *library = hip_library("libamdhip64");
  if (!library) {
    snprintf(why, room, "no HIP on this machine: %s", dlerror());
    return;
  }
#define FIND(place, symbol)                                                                       \
  *(void **)&place = dlsym(library, #symbol);                                                     \
  if (!place) {                                                                                   \
    snprintf(why, room, "the HIP runtime is too old: it has no %s", #symbol);                     \
    return;                                                                                       \
  }
#define X(name, cuda, hip, parameters) FIND(amd.name, hip)
  FUNCTIONS(X)
#undef X
#define X(name, parameters) FIND(own.name, name)
  OWN_FUNCTIONS(X)
#undef X
  FIND(own.said, hipGetErrorString)
  *(void **)&own.properties = dlsym(library, "hipGetDevicePropertiesR0600");
  *(void **)&own.properties_before = dlsym(library, "hipGetDeviceProperties");
  int count = 0, result = amd.init(0);
  if (!result) result = amd.version_of(&amd.version);
  if (!result) result = amd.device_count(&count);
  if (result == NO_DEVICE || (!result && count < 1)) {
    snprintf(why, room, "the HIP runtime sees no GPU");
    return;
  }
  if (!result) result = ask_arch();
  if (result) snprintf(why, room, "the HIP runtime does not start: %s (%d)", said(result), result);
}

/* The GPUs that run the kernels for a target: those with its waves and its matrix units. */
static int family(const char *arch) {
  static const char *const known[] = {"gfx90a", "gfx94", "gfx95", "gfx11", "gfx12"};
  for (int i = 0; i < 5; ++i)
    if (!strncmp(arch, known[i], strlen(known[i]))) return i < 3 ? 1 : i;
  return 0;
}

static long suits(const struct plan *p) {
  pthread_once(&started, start);
  if (*amd.problem) return lumc_fail(0, "%s", amd.problem);
  if (!family(p->arch) || family(p->arch) != family(own.arch))
    return lumc_fail(0, "target %s is for another family of GPUs, this one is %s", p->target,
                     own.arch);
  return strcmp(p->arch, own.arch) ? 1 : 2;
}

static int open_hip(const struct source *s, const struct plan *plan, int threads, void **self) {
  (void)threads;
  return gpu_open(&amd, s, plan, self);
}

const struct device hip_device = {"hip",     suits,      open_hip,   gpu_set_threads, gpu_state,
                                  gpu_begin, gpu_repeat, gpu_finish, gpu_trace,       gpu_close};

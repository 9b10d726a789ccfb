/* cuda.c - runs plans on an NVIDIA GPU with nothing but its driver, libcuda.so.1, which is loaded
 * when a plan asks for it. No header of CUDA is needed: the few types are declared here.
 *
 * Weights, states and the values between launches stay on the device. The launches of an entry are
 * captured once into a graph; a run uploads the inputs, launches the graph and fetches the outputs,
 * all on one stream. */
#include "internal.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* As in cuda.h: CUresult is an int, 0 when all is well; CUdevice an int; every handle a pointer. */
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
  SHARED_USUAL = 48 << 10,
  MAX_IMAGE = 1 << 30,
  ALIGN = 256
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

static struct {
#define X(name, parameters) int(*name) parameters;
  FUNCTIONS(X)
#undef X
  int version, device, capability; /* 13000; 0; 90 for sm_90 */
  int shared;                      /* bytes that a block may have */
  char problem[512];               /* why there is nothing to run on; empty when there is */
} driver;
static pthread_once_t started = PTHREAD_ONCE_INIT;

/* ---- the driver */

static const char *said(int result) {
  const char *text = NULL;
  if (driver.cuGetErrorString(result, &text) || !text) text = "unknown error";
  return text;
}

static int check(int result, const char *what) {
  if (!result) return LUMC_OK;
  return lumc_fail(LUMC_FAILED, "%s: the NVIDIA driver says: %s (%d)", what, said(result), result);
}

static void start(void) {
  char *why = driver.problem;
  size_t room = sizeof driver.problem;
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    snprintf(why, room, "no NVIDIA driver on this machine: %s", dlerror());
    return;
  }
#define X(name, parameters)                                                                       \
  *(void **)&driver.name = dlsym(library, #name);                                                 \
  if (!driver.name) {                                                                             \
    snprintf(why, room, "the NVIDIA driver is too old: it has no %s", #name);                     \
    return;                                                                                       \
  }
  FUNCTIONS(X)
#undef X
  int count = 0, major = 0, minor = 0, result = driver.cuInit(0);
  if (!result) result = driver.cuDriverGetVersion(&driver.version);
  if (!result) result = driver.cuDeviceGetCount(&count);
  if (result == NO_DEVICE || (!result && count < 1)) {
    snprintf(why, room, "the NVIDIA driver sees no GPU");
    return;
  }
  if (!result) result = driver.cuDeviceGet(&driver.device, 0);
  if (!result) result = driver.cuDeviceGetAttribute(&major, MAJOR, driver.device);
  if (!result) result = driver.cuDeviceGetAttribute(&minor, MINOR, driver.device);
  if (!result) result = driver.cuDeviceGetAttribute(&driver.shared, SHARED_OPTIN, driver.device);
  driver.capability = major * 10 + minor;
  if (result)
    snprintf(why, room, "the NVIDIA driver does not start: %s (%d)", said(result), result);
}

static long suits(const struct plan *p) {
  pthread_once(&started, start);
  if (*driver.problem) return lumc_fail(0, "%s", driver.problem);
  int arch = strncmp(p->arch, "sm_", 3) ? 0 : atoi(p->arch + 3);
  if (driver.capability < 80 || arch < 80)
    return lumc_fail(0, "target %s needs a GPU of sm_80 or newer, this one is sm_%d", p->target,
                     driver.capability);
  for (size_t i = 0; i < p->n_kernels; ++i)
    if (p->kernels[i].shared > (uint64_t)driver.shared)
      return lumc_fail(0, "kernel %s needs %d KB of shared memory, this GPU (sm_%d) has %d KB",
                       p->kernels[i].symbol, (int)(p->kernels[i].shared >> 10), driver.capability,
                       driver.shared >> 10);
  return arch <= driver.capability ? 1000 + arch : 1; /* the newest that it was made for */
}

/* ---- what is on the device */

struct range { /* of the weights that kernels read */
  uint64_t offset, bytes;
  address at;
};

struct program { /* an entry, ready to run */
  handle graph;
  address *inputs, *outputs;
};

struct cuda {
  const struct plan *plan;
  handle context, module, stream, *functions;
  address weights, states, memory; /* memory: arena, inputs and outputs of the entry that runs */
  struct range *ranges;
  size_t n_ranges;
  size_t *state; /* where each state begins */
  struct block mirror;
  int mirrored; /* the states are in the mirror, the device has older ones */
  struct program *programs;
};

static uint64_t aligned(uint64_t bytes) { return (bytes + ALIGN - 1) / ALIGN * ALIGN; }

static void *zeros(size_t n, size_t size, int *code) {
  void *memory = *code ? NULL : calloc(n + 1, size);
  if (!memory && !*code) *code = lumc_fail(LUMC_FAILED, "out of memory");
  return memory;
}

static int allocate(address *to, uint64_t bytes, const char *what) {
  int result = driver.cuMemAlloc_v2(to, (size_t)bytes + ALIGN);
  if (result != OUT_OF_MEMORY) return check(result, what);
  return lumc_fail(LUMC_FAILED, "the GPU has no %.1f MB left for %s", (double)bytes / 1e6, what);
}

static int upload(const struct cuda *m, address to, const void *from, uint64_t bytes) {
  if (!bytes) return LUMC_OK;
  return check(driver.cuMemcpyHtoDAsync_v2(to, from, (size_t)bytes, m->stream), "upload");
}

static int download(const struct cuda *m, void *to, address from, uint64_t bytes) {
  if (!bytes) return LUMC_OK;
  return check(driver.cuMemcpyDtoHAsync_v2(to, from, (size_t)bytes, m->stream), "download");
}

static int wait_for(const struct cuda *m) {
  return check(driver.cuStreamSynchronize(m->stream), "run");
}

/* ---- loading */

/* The image for this GPU: of its own architecture, an older one of the same generation, or text
 * that the driver compiles. */
static int load_module(struct cuda *m, const struct source *s) {
  const char *target = m->plan->target;
  char name[1200], listed[1300], *image;
  size_t size;
  int found = 0;
  for (int arch = driver.capability; !found && arch >= driver.capability / 10 * 10; --arch) {
    snprintf(name, sizeof name, "kernels/%s/kernels.sm_%d.cubin", target, arch);
    snprintf(listed, sizeof listed, "\"%s\":\"", name);
    found = strstr(s->manifest, listed) != NULL;
  }
  if (!found) snprintf(name, sizeof name, "kernels/%s/kernels.ptx", target);
  int code = read_checked(s, name, MAX_IMAGE, &image, &size);
  if (code) return code;
  int result = driver.cuModuleLoadData(&m->module, image);
  free(image);
  if (!result) return LUMC_OK;
  m->module = NULL;
  return lumc_fail(LUMC_DEVICE,
                   "the NVIDIA driver (CUDA %d.%d) refuses %s: %s (%d); update the driver, or link "
                   "with an older CUDA compiler",
                   driver.version / 1000, driver.version % 1000 / 10, name, said(result), result);
}

static int find_functions(struct cuda *m) {
  int code = LUMC_OK;
  m->functions = zeros(m->plan->n_kernels, sizeof *m->functions, &code);
  for (size_t i = 0; !code && i < m->plan->n_kernels; ++i) {
    const struct kernel *k = &m->plan->kernels[i];
    if (!k->blocks || !k->threads)
      return lumc_fail(LUMC_CORRUPT, "corrupt plan: kernel '%s' has no grid", k->symbol);
    if (driver.cuModuleGetFunction(&m->functions[i], m->module, k->symbol))
      return lumc_fail(LUMC_CORRUPT, "the compiled kernels have no '%s'", k->symbol);
    if (k->shared > SHARED_USUAL)
      code = check(driver.cuFuncSetAttribute(m->functions[i], DYNAMIC_SHARED, (int)k->shared),
                   k->symbol);
  }
  return code;
}

static int by_offset(const void *a, const void *b) {
  const struct range *x = a, *y = b;
  if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
  return (x->bytes < y->bytes) - (x->bytes > y->bytes); /* the longest first */
}

/* What of the weights this plan reads: a bundle for several targets holds more. */
static int find_ranges(struct cuda *m) {
  size_t n = 0, kept = 0;
  int code = LUMC_OK;
  for (int pass = 0; pass < 2 && !code; ++pass) {
    if (pass) m->ranges = zeros(n, sizeof *m->ranges, &code);
    n = 0;
    for (size_t e = 0; e < m->plan->n_entries && !code; ++e)
      for (size_t i = 0; i < m->plan->entries[e].n_launches; ++i) {
        const struct launch *l = &m->plan->entries[e].launches[i];
        for (size_t k = 0; k < l->n_args; ++k)
          if (l->args[k].place == WEIGHT) {
            if (pass) m->ranges[n] = (struct range){l->args[k].offset, l->args[k].bytes, 0};
            ++n;
          }
      }
  }
  if (code) return code;
  qsort(m->ranges, n, sizeof *m->ranges, by_offset);
  for (size_t i = 0; i < n; ++i)
    if (!kept || m->ranges[kept - 1].offset != m->ranges[i].offset)
      m->ranges[kept++] = m->ranges[i];
  m->n_ranges = kept;
  return LUMC_OK;
}

static int load_weights(struct cuda *m, const struct source *s) {
  struct block all = {NULL, 0};
  uint64_t bytes = 0;
  int code = find_ranges(m);
  if (!code) code = read_weights(s, m->plan, &all);
  for (size_t i = 0; i < m->n_ranges; ++i) bytes += aligned(m->ranges[i].bytes);
  if (!code) code = allocate(&m->weights, bytes, "the weights");
  address at = m->weights;
  for (size_t i = 0; i < m->n_ranges && !code; ++i) {
    struct range *r = &m->ranges[i];
    r->at = at;
    at += aligned(r->bytes);
    code = upload(m, r->at, all.data + r->offset, r->bytes);
  }
  if (m->stream && driver.cuStreamSynchronize(m->stream) && !code)
    code = lumc_fail(LUMC_FAILED, "the weights did not reach the GPU");
  release(&all);
  return code;
}

static int place_states(struct cuda *m) {
  uint64_t bytes = 0;
  int code = LUMC_OK;
  m->state = zeros(m->plan->n_states, sizeof *m->state, &code);
  for (size_t i = 0; i < m->plan->n_states && !code; ++i) {
    m->state[i] = (size_t)bytes;
    bytes += aligned(m->plan->states[i].bytes);
  }
  if (!code) code = reserve(&m->mirror, (size_t)bytes);
  if (!code) code = allocate(&m->states, bytes, "the states");
  m->mirrored = 1; /* zeros */
  return code;
}

/* Arena, inputs and outputs one after another; entries share the memory. */
static int place_values(struct cuda *m) {
  uint64_t most = 0;
  int code = LUMC_OK;
  m->programs = zeros(m->plan->n_entries, sizeof *m->programs, &code);
  for (int pass = 0; pass < 2 && !code; ++pass) {
    if (pass) code = allocate(&m->memory, most, "the values between kernels");
    for (size_t e = 0; e < m->plan->n_entries && !code; ++e) {
      const struct entry *entry = &m->plan->entries[e];
      struct program *p = &m->programs[e];
      uint64_t at = aligned(entry->arena);
      if (!pass) p->inputs = zeros(entry->n_inputs, sizeof *p->inputs, &code);
      if (!pass) p->outputs = zeros(entry->n_outputs, sizeof *p->outputs, &code);
      for (size_t i = 0; i < entry->n_inputs && !code; at += aligned(entry->inputs[i++].bytes))
        p->inputs[i] = m->memory + at;
      for (size_t i = 0; i < entry->n_outputs && !code; at += aligned(entry->outputs[i++].bytes))
        p->outputs[i] = m->memory + at;
      if (at > most) most = at;
    }
  }
  return code;
}

/* ---- launching */

static address place(const struct cuda *m, size_t entry, const struct arg *a) {
  const struct program *p = &m->programs[entry];
  const struct range key = {a->offset, UINT64_MAX, 0};
  switch (a->place) {
  case INPUT: return p->inputs[a->index];
  case OUTPUT: return p->outputs[a->index];
  case ARENA: return m->memory + a->offset;
  case STATE: return m->states + m->state[a->index];
  case WEIGHT: { /* the first range at or after the key */
    size_t low = 0, high = m->n_ranges;
    while (low < high) {
      size_t middle = (low + high) / 2;
      if (by_offset(&m->ranges[middle], &key) < 0)
        low = middle + 1;
      else
        high = middle;
    }
    return m->ranges[low].at;
  }
  default: return 0;
  }
}

/* One launch: a pointer for every argument but the scratch memory, which GPUs have none of. */
static int enqueue(const struct cuda *m, size_t entry, const struct launch *l) {
  const struct kernel *k = &m->plan->kernels[l->kernel];
  int code = LUMC_OK;
  address *values = zeros(l->n_args, sizeof *values, &code);
  void **parameters = zeros(l->n_args, sizeof *parameters, &code);
  for (size_t i = 0; i < l->n_args && !code; ++i) {
    values[i] = place(m, entry, &l->args[i]);
    parameters[i] = &values[i];
  }
  if (!code)
    code = check(driver.cuLaunchKernel(m->functions[l->kernel], (unsigned)k->blocks, 1, 1,
                                       (unsigned)k->threads, 1, 1, (unsigned)k->shared, m->stream,
                                       parameters, NULL),
                 k->symbol);
  free(values);
  free(parameters);
  return code;
}

static int capture(struct cuda *m, size_t entry) {
  const struct entry *e = &m->plan->entries[entry];
  handle graph = NULL;
  int code = check(driver.cuStreamBeginCapture_v2(m->stream, THREAD_LOCAL), "capture");
  if (code) return code;
  for (size_t i = 0; i < e->n_launches && !code; ++i) code = enqueue(m, entry, &e->launches[i]);
  int result = driver.cuStreamEndCapture(m->stream, &graph);
  if (!code) code = check(result, "capture");
  if (!code)
    code = check(driver.cuGraphInstantiateWithFlags(&m->programs[entry].graph, graph, 0), "graph");
  if (graph) driver.cuGraphDestroy(graph);
  return code;
}

/* ---- the device */

static int enter(const struct cuda *m) {
  return check(driver.cuCtxPushCurrent_v2(m->context), "context");
}

static int leave(int code) {
  handle context;
  int result = driver.cuCtxPopCurrent_v2(&context);
  return code ? code : check(result, "context");
}

static int load(struct cuda *m, const struct source *s) {
  int code = check(driver.cuStreamCreate(&m->stream, NON_BLOCKING), "stream");
  if (!code) code = load_module(m, s);
  if (!code) code = find_functions(m);
  if (!code) code = load_weights(m, s);
  if (!code) code = place_states(m);
  if (!code) code = place_values(m);
  for (size_t i = 0; i < m->plan->n_entries && !code; ++i)
    if (m->plan->entries[i].n_launches) code = capture(m, i);
  return code;
}

static int open_cuda(const struct source *s, const struct plan *plan, int threads, void **self) {
  struct cuda *m = *self = calloc(1, sizeof *m);
  (void)threads;
  if (!m) return lumc_fail(LUMC_FAILED, "out of memory");
  m->plan = plan;
  int code = check(driver.cuDevicePrimaryCtxRetain(&m->context, driver.device), "context");
  if (!code && !(code = enter(m))) code = leave(load(m, s));
  return code;
}

static void close_cuda(void *self) {
  struct cuda *m = self;
  if (m->context && !enter(m)) {
    if (m->stream) driver.cuStreamSynchronize(m->stream);
    for (size_t i = 0; m->programs && i < m->plan->n_entries; ++i)
      if (m->programs[i].graph) driver.cuGraphExecDestroy(m->programs[i].graph);
    if (m->module) driver.cuModuleUnload(m->module);
    if (m->weights) driver.cuMemFree_v2(m->weights);
    if (m->states) driver.cuMemFree_v2(m->states);
    if (m->memory) driver.cuMemFree_v2(m->memory);
    if (m->stream) driver.cuStreamDestroy_v2(m->stream);
    leave(LUMC_OK);
  }
  if (m->context) driver.cuDevicePrimaryCtxRelease_v2(driver.device);
  for (size_t i = 0; m->programs && i < m->plan->n_entries; ++i) {
    free(m->programs[i].inputs);
    free(m->programs[i].outputs);
  }
  free(m->programs);
  free(m->functions);
  free(m->ranges);
  free(m->state);
  release(&m->mirror);
  free(m);
}

static int set_threads(void *self, int threads) {
  (void)self, (void)threads;
  return LUMC_OK;
}

/* All states between the device and the mirror. */
static int move_states(const struct cuda *m, int to_device) {
  int code = LUMC_OK;
  for (size_t i = 0; i < m->plan->n_states && !code; ++i) {
    uint8_t *host = m->mirror.data + m->state[i];
    size_t bytes = m->plan->states[i].bytes;
    address there = m->states + m->state[i];
    code = to_device ? upload(m, there, host, bytes) : download(m, host, there, bytes);
  }
  return code ? code : wait_for(m);
}

static int state(void *self, size_t i, void **data) {
  struct cuda *m = self;
  int code = m->mirrored ? LUMC_OK : enter(m);
  if (!code && !m->mirrored) code = leave(move_states(m, 0));
  if (!code) m->mirrored = 1; /* the caller may write there */
  *data = m->mirror.data + m->state[i];
  return code;
}

static int begin(void *self, size_t entry, const void *const *inputs, void *const *outputs) {
  struct cuda *m = self;
  const struct entry *e = &m->plan->entries[entry];
  (void)outputs;
  int code = enter(m);
  if (code) return code;
  if (m->mirrored) code = move_states(m, 1);
  if (!code) m->mirrored = 0;
  for (size_t i = 0; i < e->n_inputs && !code; ++i)
    code = upload(m, m->programs[entry].inputs[i], inputs[i], e->inputs[i].bytes);
  if (!code) code = wait_for(m); /* the caller's memory is free again */
  return leave(code);
}

static int repeat(void *self, size_t entry, long n) {
  struct cuda *m = self;
  int code = enter(m);
  if (code) return code;
  for (long i = 0; i < n && !code && m->programs[entry].graph; ++i)
    code = check(driver.cuGraphLaunch(m->programs[entry].graph, m->stream), "run");
  return leave(code ? code : wait_for(m));
}

static int finish(void *self, size_t entry, void *const *outputs) {
  struct cuda *m = self;
  const struct entry *e = &m->plan->entries[entry];
  int code = enter(m);
  if (code) return code;
  for (size_t i = 0; i < e->n_outputs && !code; ++i)
    code = download(m, outputs[i], m->programs[entry].outputs[i], e->outputs[i].bytes);
  return leave(code ? code : wait_for(m));
}

/* Launch by launch with an event between: the gaps are longer than in the graph. */
static int timed_launches(const struct cuda *m, size_t entry, handle *events, float *ms) {
  const struct entry *e = &m->plan->entries[entry];
  int code = LUMC_OK;
  for (size_t i = 0; i <= e->n_launches && !code; ++i)
    code = check(driver.cuEventCreate(&events[i], 0), "event");
  if (!code) code = check(driver.cuEventRecord(events[0], m->stream), "event");
  for (size_t i = 0; i < e->n_launches && !code; ++i) {
    code = enqueue(m, entry, &e->launches[i]);
    if (!code) code = check(driver.cuEventRecord(events[i + 1], m->stream), "event");
  }
  if (!code) code = wait_for(m);
  for (size_t i = 0; i < e->n_launches && !code; ++i)
    code = check(driver.cuEventElapsedTime(&ms[i], events[0], events[i + 1]), "event");
  for (size_t i = 0; i <= e->n_launches; ++i)
    if (events[i]) driver.cuEventDestroy_v2(events[i]);
  return code;
}

static int trace(void *self, size_t entry, int threads, int64_t *times) {
  struct cuda *m = self;
  size_t n = m->plan->entries[entry].n_launches;
  struct timespec now;
  int code = enter(m);
  if (code) return code;
  handle *events = zeros(n, sizeof *events, &code);
  float *ms = zeros(n, sizeof *ms, &code);
  clock_gettime(CLOCK_MONOTONIC, &now);
  int64_t at = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec, start = at;
  if (!code) code = timed_launches(m, entry, events, ms);
  for (size_t i = 0; i < n && !code; ++i) {
    int64_t end = start + (int64_t)((double)ms[i] * 1e6);
    times[i * (size_t)threads * 2] = at;
    times[i * (size_t)threads * 2 + 1] = at = end > at ? end : at;
  }
  free(events);
  free(ms);
  return leave(code);
}

const struct device cuda_device = {"cuda", suits,  open_cuda, set_threads, state,
                                   begin,  repeat, finish,    trace,       close_cuda};

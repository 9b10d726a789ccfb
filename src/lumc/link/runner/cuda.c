/* cuda.c - runs plans on an NVIDIA GPU with nothing but its driver.
 *
 * Weights, states and the values between launches stay on the device. The launches of an entry are
 * captured once into a graph, of all its repetitions if these are not too many; a run uploads the
 * inputs and the dims, launches the graph and fetches the outputs, all on one stream. */
#include "cuda.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_IMAGE = 1 << 30 };

/* ---- loading */

/* The image for this GPU: of its own architecture, an older one of the same generation, or text
 * that the driver compiles. */
static int load_module(struct cuda *m, const struct source *s) {
  const char *target = m->plan->target;
  char name[1200], listed[1300], *image;
  size_t size;
  int found = 0;
  for (int arch = nvidia.capability; !found && arch >= nvidia.capability / 10 * 10; --arch) {
    snprintf(name, sizeof name, "kernels/%s/kernels.sm_%d.cubin", target, arch);
    snprintf(listed, sizeof listed, "\"%s\":\"", name);
    found = strstr(s->manifest, listed) != NULL;
  }
  if (!found) snprintf(name, sizeof name, "kernels/%s/kernels.ptx", target);
  int code = read_checked(s, name, MAX_IMAGE, &image, &size);
  if (code) return code;
  int result = nvidia.cuModuleLoadData(&m->module, image);
  free(image);
  if (!result) return LUMC_OK;
  m->module = NULL;
  return lumc_fail(LUMC_DEVICE,
                   "the NVIDIA driver (CUDA %d.%d) refuses %s: %s (%d); update the driver, or link "
                   "with an older CUDA compiler",
                   nvidia.version / 1000, nvidia.version % 1000 / 10, name, cuda_said(result),
                   result);
}

static int find_functions(struct cuda *m) {
  int code = LUMC_OK;
  m->functions = zeros(m->plan->n_kernels, sizeof *m->functions, &code);
  for (size_t i = 0; !code && i < m->plan->n_kernels; ++i) {
    const struct kernel *k = &m->plan->kernels[i];
    if (!k->blocks || !k->threads)
      return lumc_fail(LUMC_CORRUPT, "corrupt plan: kernel '%s' has no grid", k->symbol);
    if (nvidia.cuModuleGetFunction(&m->functions[i], m->module, k->symbol))
      return lumc_fail(LUMC_CORRUPT, "the compiled kernels have no '%s'", k->symbol);
    if (k->shared > SHARED_USUAL)
      code = cuda_check(nvidia.cuFuncSetAttribute(m->functions[i], DYNAMIC_SHARED, (int)k->shared),
                   k->symbol);
  }
  return code;
}

/* ---- launching */

/* One launch: a pointer for every argument but the scratch memory, which GPUs have none of. */
static int enqueue(const struct cuda *m, size_t list, const struct launch *l) {
  const struct kernel *k = &m->plan->kernels[l->kernel];
  int code = LUMC_OK;
  address *values = zeros(l->n_args, sizeof *values, &code);
  void **parameters = zeros(l->n_args, sizeof *parameters, &code);
  for (size_t i = 0; i < l->n_args && !code; ++i) {
    values[i] = cuda_place(m, list, &l->args[i]);
    parameters[i] = &values[i];
  }
  if (!code)
    code = cuda_check(nvidia.cuLaunchKernel(m->functions[l->kernel], (unsigned)k->blocks, 1, 1,
                                       (unsigned)k->threads, 1, 1, (unsigned)k->shared, m->stream,
                                       parameters, NULL),
                 k->symbol);
  free(values);
  free(parameters);
  return code;
}

/* All launches of a list once. */
static int enqueue_all(const struct cuda *m, size_t list) {
  const struct list *l = &m->plan->lists[list];
  int code = LUMC_OK;
  for (size_t i = 0; i < l->n_launches && !code; ++i) code = enqueue(m, list, &l->launches[i]);
  return code;
}

static int capture(struct cuda *m, size_t list) {
  uint64_t turns = m->programs[list].counts ? m->plan->lists[list].entry->repeats : 1;
  handle graph = NULL;
  int code = cuda_check(nvidia.cuStreamBeginCapture_v2(m->stream, THREAD_LOCAL), "capture");
  if (code) return code;
  for (m->turn = 0; m->turn < turns && !code; ++m->turn) code = enqueue_all(m, list);
  int result = nvidia.cuStreamEndCapture(m->stream, &graph);
  if (!code) code = cuda_check(result, "capture");
  handle *made = &m->programs[list].graph;
  if (!code) code = cuda_check(nvidia.cuGraphInstantiateWithFlags(made, graph, 0), "graph");
  if (graph) nvidia.cuGraphDestroy(graph);
  return code;
}

/* ---- the device */

static int enter(const struct cuda *m) {
  return cuda_check(nvidia.cuCtxPushCurrent_v2(m->context), "context");
}

static int leave(int code) {
  handle context;
  int result = nvidia.cuCtxPopCurrent_v2(&context);
  return code ? code : cuda_check(result, "context");
}

static int load(struct cuda *m, const struct source *s) {
  int code = cuda_check(nvidia.cuStreamCreate(&m->stream, NON_BLOCKING), "stream");
  if (!code) code = load_module(m, s);
  if (!code) code = find_functions(m);
  if (!code) code = cuda_load_weights(m, s);
  if (!code) code = cuda_place_states(m);
  if (!code) code = cuda_place_values(m);
  if (!code) code = cuda_place_counts(m);
  for (size_t i = 0; i < m->plan->n_lists && !code; ++i)
    if (m->plan->lists[i].n_launches) code = capture(m, i);
  return code;
}

static int open_cuda(const struct source *s, const struct plan *plan, int threads, void **self) {
  struct cuda *m = *self = calloc(1, sizeof *m);
  (void)threads;
  if (!m) return lumc_fail(LUMC_FAILED, "out of memory");
  m->plan = plan;
  int code = cuda_check(nvidia.cuDevicePrimaryCtxRetain(&m->context, nvidia.device), "context");
  if (!code && !(code = enter(m))) code = leave(load(m, s));
  return code;
}

static void close_cuda(void *self) {
  struct cuda *m = self;
  if (m->context && !enter(m)) {
    if (m->stream) nvidia.cuStreamSynchronize(m->stream);
    for (size_t i = 0; m->programs && i < m->plan->n_lists; ++i) {
      if (m->programs[i].graph) nvidia.cuGraphExecDestroy(m->programs[i].graph);
      if (m->programs[i].counts) nvidia.cuMemFree_v2(m->programs[i].counts);
    }
    if (m->module) nvidia.cuModuleUnload(m->module);
    if (m->weights) nvidia.cuMemFree_v2(m->weights);
    if (m->states) nvidia.cuMemFree_v2(m->states);
    if (m->memory) nvidia.cuMemFree_v2(m->memory);
    if (m->dims) nvidia.cuMemFree_v2(m->dims);
    if (m->stream) nvidia.cuStreamDestroy_v2(m->stream);
    leave(LUMC_OK);
  }
  if (m->context) nvidia.cuDevicePrimaryCtxRelease_v2(nvidia.device);
  for (size_t i = 0; m->programs && i < m->plan->n_lists; ++i) {
    free(m->programs[i].inputs);
    free(m->programs[i].outputs);
  }
  free(m->programs);
  free(m->functions);
  free(m->ranges);
  free(m->state);
  free(m->values);
  release(&m->mirror);
  free(m);
}

static int set_threads(void *self, int threads) {
  (void)self, (void)threads;
  return LUMC_OK;
}

static int state(void *self, size_t i, void **data) {
  struct cuda *m = self;
  int code = m->mirrored ? LUMC_OK : enter(m);
  if (!code && !m->mirrored) code = leave(cuda_move_states(m, 0));
  if (!code) m->mirrored = 1; /* the caller may write there */
  *data = m->mirror.data + m->state[i];
  return code;
}

static int begin(void *self, size_t list, const void *const *inputs, void *const *outputs,
                 const size_t *bytes) {
  struct cuda *m = self;
  const struct list *e = &m->plan->lists[list];
  (void)outputs;
  int code = enter(m);
  if (code) return code;
  if (m->mirrored) code = cuda_move_states(m, 1);
  if (!code) m->mirrored = 0;
  if (!code) code = cuda_upload_dims(m);
  for (size_t i = 0; i < e->entry->n_inputs && !code; ++i)
    code = cuda_upload(m, m->programs[list].inputs[i], inputs[i], bytes[i]);
  if (!code) code = cuda_wait(m); /* the caller's memory is free again */
  return leave(code);
}

static int repeat(void *self, size_t list, long n) {
  struct cuda *m = self;
  int code = enter(m);
  if (code) return code;
  const struct program *p = &m->programs[list];
  uint64_t turns = p->counts ? 1 : m->plan->lists[list].entry->repeats;
  for (long i = 0; i < n && p->graph; ++i)
    for (uint64_t k = 0; k < turns && !code; ++k) {
      code = cuda_turn(m, list, k);
      if (!code) code = cuda_check(nvidia.cuGraphLaunch(p->graph, m->stream), "run");
    }
  return leave(code ? code : cuda_wait(m));
}

static int finish(void *self, size_t list, void *const *outputs, const size_t *bytes) {
  struct cuda *m = self;
  const struct list *e = &m->plan->lists[list];
  int code = enter(m);
  if (code) return code;
  for (size_t i = 0; i < e->entry->n_outputs && !code; ++i)
    code = cuda_download(m, outputs[i], m->programs[list].outputs[i], bytes[i]);
  return leave(code ? code : cuda_wait(m));
}

/* Launch by launch with an event between: the gaps are longer than in the graph. */
static int timed_launches(struct cuda *m, size_t list, handle *events, float *ms) {
  const struct list *e = &m->plan->lists[list];
  uint64_t last = e->entry->repeats - 1;
  int code = LUMC_OK;
  for (uint64_t k = 0; k < last && !code; ++k)
    if (!(code = cuda_turn(m, list, k))) code = enqueue_all(m, list);
  if (!code) code = cuda_turn(m, list, last);
  for (size_t i = 0; i <= e->n_launches && !code; ++i)
    code = cuda_check(nvidia.cuEventCreate(&events[i], 0), "event");
  if (!code) code = cuda_check(nvidia.cuEventRecord(events[0], m->stream), "event");
  for (size_t i = 0; i < e->n_launches && !code; ++i) {
    code = enqueue(m, list, &e->launches[i]);
    if (!code) code = cuda_check(nvidia.cuEventRecord(events[i + 1], m->stream), "event");
  }
  if (!code) code = cuda_wait(m);
  for (size_t i = 0; i < e->n_launches && !code; ++i)
    code = cuda_check(nvidia.cuEventElapsedTime(&ms[i], events[0], events[i + 1]), "event");
  for (size_t i = 0; i <= e->n_launches; ++i)
    if (events[i]) nvidia.cuEventDestroy_v2(events[i]);
  return code;
}

static int trace(void *self, size_t list, int threads, int64_t *times) {
  struct cuda *m = self;
  size_t n = m->plan->lists[list].n_launches;
  struct timespec now;
  int code = enter(m);
  if (code) return code;
  handle *events = zeros(n, sizeof *events, &code);
  float *ms = zeros(n, sizeof *ms, &code);
  clock_gettime(CLOCK_MONOTONIC, &now);
  int64_t at = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec, start = at;
  if (!code) code = timed_launches(m, list, events, ms);
  for (size_t i = 0; i < n && !code; ++i) {
    int64_t end = start + (int64_t)((double)ms[i] * 1e6);
    times[i * (size_t)threads * 2] = at;
    times[i * (size_t)threads * 2 + 1] = at = end > at ? end : at;
  }
  free(events);
  free(ms);
  return leave(code);
}

const struct device cuda_device = {"cuda", cuda_suits, open_cuda, set_threads, state,
                                   begin,  repeat, finish,    trace,       close_cuda};

/* gpu.c - runs plans on a GPU of NVIDIA or AMD with nothing but its driver.
 *
 * Weights, states and the values between launches stay on the device. The launches of an entry are
 * captured once into a graph, of all its repetitions if these are not too many; a run uploads the
 * inputs and the dims, launches the graph and fetches the outputs, all on one stream. */
#include "gpu.h"
#include "ranks.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int gpu_check(const struct gpu *m, int result, const char *what) {
  if (!result) return LUMC_OK;
  return lumc_fail(LUMC_FAILED, "%s: the %s says: %s (%d)", what, m->driver->is,
                   m->driver->said(result), result);
}

/* ---- loading */

static int find_functions(struct gpu *m) {
  int code = LUMC_OK;
  m->functions = zeros(m->plan->n_kernels, sizeof *m->functions, &code);
  for (size_t i = 0; !code && i < m->plan->n_kernels; ++i) {
    const struct kernel *k = &m->plan->kernels[i];
    if (!k->blocks || !k->threads)
      return lumc_fail(LUMC_CORRUPT, "corrupt plan: kernel '%s' has no grid", k->symbol);
    if (m->driver->module_function(&m->functions[i], m->module, k->symbol))
      return lumc_fail(LUMC_CORRUPT, "the compiled kernels have no '%s'", k->symbol);
    code = m->driver->prepare(m, m->functions[i], k);
  }
  return code;
}

/* ---- launching */

/* The tensor maps of a launch, of the places of its arguments. */
static int make_maps(const struct gpu *m, const struct kernel *k, const address *values,
                     struct map_words *maps, void **parameters) {
  int code = LUMC_OK;
  if (k->n_maps && !m->driver->map)
    return lumc_fail(LUMC_CORRUPT, "corrupt plan: kernel '%s' has tensor maps", k->symbol);
  for (size_t i = 0; i < k->n_maps && !code; ++i) {
    parameters[i] = &maps[i];
    code = m->driver->map(m, &k->maps[i], values[k->maps[i].buffer], &maps[i]);
  }
  return code;
}

/* One launch: tensor maps, then a pointer for every argument but the scratch memory, which GPUs have
 * none of. */
static int enqueue(const struct gpu *m, size_t list, const struct launch *l) {
  if (l->kernel >= m->plan->n_kernels) /* ranks exchange something */
    return nccl_run(m->nccl, &m->plan->exchanges[l->kernel - m->plan->n_kernels], gpu_place(m, list, &l->args[0]),
                    gpu_place(m, list, &l->args[1]));
  const struct kernel *k = &m->plan->kernels[l->kernel];
  int code = LUMC_OK;
  address *values = zeros(l->n_args, sizeof *values, &code);
  void **parameters = zeros(k->n_maps + l->n_args, sizeof *parameters, &code);
  struct map_words *maps = aligned_alloc(64, (k->n_maps + 1) * sizeof *maps);
  if (!maps && !code) code = lumc_fail(LUMC_FAILED, "out of memory");
  for (size_t i = 0; i < l->n_args && !code; ++i) {
    values[i] = gpu_place(m, list, &l->args[i]);
    parameters[k->n_maps + i] = &values[i];
  }
  if (!code) code = make_maps(m, k, values, maps, parameters);
  if (!code)
    code = gpu_check(m, m->driver->launch(m->functions[l->kernel], (unsigned)k->blocks, 1, 1,
                                       (unsigned)k->threads, 1, 1, (unsigned)k->shared, m->stream,
                                       parameters, NULL),
                 k->symbol);
  free(maps);
  free(values);
  free(parameters);
  return code;
}

/* All launches of a list once. */
static int enqueue_all(const struct gpu *m, size_t list) {
  const struct list *l = &m->plan->lists[list];
  int code = LUMC_OK;
  for (size_t i = 0; i < l->n_launches && !code; ++i) code = enqueue(m, list, &l->launches[i]);
  return code;
}

static int capture(struct gpu *m, size_t list) {
  uint64_t turns = m->programs[list].counts ? m->plan->lists[list].entry->repeats : 1;
  handle graph = NULL;
  int code = gpu_check(m, m->driver->capture_begin(m->stream, THREAD_LOCAL), "capture");
  if (code) return code;
  for (m->turn = 0; m->turn < turns && !code; ++m->turn) code = enqueue_all(m, list);
  int result = m->driver->capture_end(m->stream, &graph);
  if (!code) code = gpu_check(m, result, "capture");
  handle *made = &m->programs[list].graph;
  if (!code) code = gpu_check(m, m->driver->graph_make(made, graph, 0), "graph");
  if (graph) m->driver->graph_destroy(graph);
  return code;
}

/* ---- the device */

static int enter(struct gpu *m) { return m->driver->enter(m); }

static int leave(struct gpu *m, int code) {
  int result = m->driver->leave(m);
  return code ? code : result;
}

static int load(struct gpu *m, const struct source *s) {
  int code = gpu_check(m, m->driver->stream_create(&m->stream, NON_BLOCKING), "stream");
  if (!code) code = m->driver->load(m, s);
  if (!code) code = find_functions(m);
  if (!code) code = gpu_load_weights(m, s);
  if (!code) code = gpu_place_states(m);
  if (!code) code = gpu_place_values(m);
  if (!code) code = gpu_place_counts(m);
  if (!code && m->mesh) code = nccl_open(m, m->mesh, &m->nccl);
  for (size_t i = 0; i < m->plan->n_lists && !code; ++i)
    if (m->plan->lists[i].n_launches) code = capture(m, i);
  return code;
}

int gpu_open(const struct driver *driver, const struct source *s, const struct plan *plan,
             void **self) {
  struct gpu *m = *self = calloc(1, sizeof *m);
  if (!m) return lumc_fail(LUMC_FAILED, "out of memory");
  m->driver = driver;
  m->plan = plan;
  m->mesh = s->mesh;
  int code = driver->retain ? driver->retain(m) : LUMC_OK;
  if (!code && !(code = enter(m))) {
    m->entered = 1;
    code = leave(m, load(m, s));
  }
  return code;
}

void gpu_end_graphs(const struct gpu *m) {
  for (size_t i = 0; m->programs && i < m->plan->n_lists; ++i) {
    if (m->programs[i].graph) m->driver->graph_end(m->programs[i].graph);
    m->programs[i].graph = NULL;
  }
}

void gpu_close(void *self) {
  struct gpu *m = self;
  if (m->entered && !enter(m)) {
    if (m->stream) gpu_wait(m);
    gpu_end_graphs(m);
    if (m->nccl) nccl_close(m->nccl);
    for (size_t i = 0; m->programs && i < m->plan->n_lists; ++i)
      if (m->programs[i].counts) m->driver->give_back(m->programs[i].counts);
    if (m->module) m->driver->module_unload(m->module);
    if (m->weights) m->driver->give_back(m->weights);
    if (m->states) m->driver->give_back(m->states);
    if (m->memory) m->driver->give_back(m->memory);
    if (m->dims) m->driver->give_back(m->dims);
    if (m->stream) m->driver->stream_destroy(m->stream);
    leave(m, LUMC_OK);
  }
  if (m->driver->release) m->driver->release(m);
  for (size_t i = 0; m->programs && i < m->plan->n_lists; ++i) {
    free(m->programs[i].inputs);
    free(m->programs[i].outputs);
  }
  free(m->programs);
  free(m->functions);
  free(m->ranges);
  free(m->state);
  free(m->held);
  free(m->values);
  release(&m->mirror);
  free(m);
}

int gpu_set_threads(void *self, int threads) {
  (void)self, (void)threads;
  return LUMC_OK;
}

int gpu_state(void *self, size_t i, void **data) {
  struct gpu *m = self;
  int code = m->mirrored ? LUMC_OK : enter(m);
  if (!code && !m->mirrored) code = leave(m, gpu_move_states(m, 0));
  if (!code) m->mirrored = 1; /* the caller may write there */
  *data = m->mirror.data + m->state[i];
  return code;
}

int gpu_begin(void *self, size_t list, const void *const *inputs, void *const *outputs,
                 const size_t *bytes) {
  struct gpu *m = self;
  const struct list *e = &m->plan->lists[list];
  (void)outputs;
  int code = enter(m);
  if (code) return code;
  if (m->mirrored) code = gpu_move_states(m, 1);
  if (!code) m->mirrored = 0;
  if (!code && m->nccl) code = nccl_agree(m->nccl, list);
  if (!code) code = gpu_upload_dims(m);
  for (size_t i = 0; i < e->entry->n_inputs && !code; ++i)
    code = gpu_upload(m, m->programs[list].inputs[i], inputs[i], bytes[i]);
  if (!code) code = gpu_wait(m); /* the caller's memory is free again */
  return leave(m, code);
}

int gpu_repeat(void *self, size_t list, long n) {
  struct gpu *m = self;
  int code = enter(m);
  if (code) return code;
  const struct program *p = &m->programs[list];
  uint64_t turns = p->counts ? 1 : m->plan->lists[list].entry->repeats;
  for (long i = 0; i < n && p->graph; ++i)
    for (uint64_t k = 0; k < turns && !code; ++k) {
      code = gpu_turn(m, list, k);
      if (!code) code = gpu_check(m, m->driver->graph_launch(p->graph, m->stream), "run");
      if (!code && m->nccl) code = gpu_wait(m); /* a queue that is full waits for ranks that are gone */
    }
  return leave(m, code ? code : gpu_wait(m));
}

int gpu_finish(void *self, size_t list, void *const *outputs, const size_t *bytes) {
  struct gpu *m = self;
  const struct list *e = &m->plan->lists[list];
  int code = enter(m);
  if (code) return code;
  for (size_t i = 0; i < e->entry->n_outputs && !code; ++i)
    code = gpu_download(m, outputs[i], m->programs[list].outputs[i], bytes[i]);
  return leave(m, code ? code : gpu_wait(m));
}

/* Launch by launch with an event between: the gaps are longer than in the graph. */
static int timed_launches(struct gpu *m, size_t list, handle *events, float *ms) {
  const struct list *e = &m->plan->lists[list];
  uint64_t last = e->entry->repeats - 1;
  int code = LUMC_OK;
  for (uint64_t k = 0; k < last && !code; ++k)
    if (!(code = gpu_turn(m, list, k))) code = enqueue_all(m, list);
  if (!code) code = gpu_turn(m, list, last);
  for (size_t i = 0; i <= e->n_launches && !code; ++i)
    code = gpu_check(m, m->driver->event_create(&events[i], 0), "event");
  if (!code) code = gpu_check(m, m->driver->event_record(events[0], m->stream), "event");
  for (size_t i = 0; i < e->n_launches && !code; ++i) {
    code = enqueue(m, list, &e->launches[i]);
    if (!code) code = gpu_check(m, m->driver->event_record(events[i + 1], m->stream), "event");
  }
  if (!code) code = gpu_wait(m);
  for (size_t i = 0; i < e->n_launches && !code; ++i)
    code = gpu_check(m, m->driver->event_time(&ms[i], events[0], events[i + 1]), "event");
  for (size_t i = 0; i <= e->n_launches; ++i)
    if (events[i]) m->driver->event_destroy(events[i]);
  return code;
}

int gpu_trace(void *self, size_t list, int threads, int64_t *times) {
  struct gpu *m = self;
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
  return leave(m, code);
}

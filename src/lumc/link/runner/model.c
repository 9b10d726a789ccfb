/* model.c - opens a bundle on a device: the public functions of lumc.h. */
#include "ranks.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_PLAN = 1 << 28 };

static const struct device *const devices[] = { /* the best first */
    &cuda_device, &hip_device, &metal_device, &cpu_device};
enum { DEVICES = sizeof devices / sizeof *devices };

/* ---- opening */

static int read_plan(struct plan *plan, const struct source *s, const char *name) {
  char *data, expected[2048];
  size_t size;
  int code = read_checked(s, name, MAX_PLAN, &data, &size);
  if (code || (code = plan_read(plan, (uint8_t *)data, size))) return code;
  snprintf(expected, sizeof expected, "plan/%s.bin", plan->target);
  if (!strcmp(name, expected) && !strchr(plan->target, '/')) return LUMC_OK;
  return lumc_fail(LUMC_CORRUPT, "%s is for the target %s", name, plan->target);
}

/* The next file plan/KIND-*.bin of the manifest. */
static int next_plan(const char **at, const char *kind, char name[128]) {
  char start[32];
  snprintf(start, sizeof start, "\"plan/%s-", kind);
  while ((*at = strstr(*at, start))) {
    const char *path = ++*at;
    size_t n = strspn(path, "abcdefghijklmnopqrstuvwxyz0123456789_.+-/");
    if (n >= 128 || strncmp(path + n, "\":\"", 3)) continue;
    memcpy(name, path, n);
    name[n] = 0;
    return 1;
  }
  return 0;
}

/* The plan for a device that suits this machine best; LUMC_DEVICE when none does. */
static int choose_plan(struct plan *plan, const struct source *s, const struct device *device) {
  const char *at = s->manifest;
  char name[128];
  long best = 0;
  int code = lumc_fail(LUMC_DEVICE, "%s has no plan for %s", s->folder, device->kind);
  while (next_plan(&at, device->kind, name)) {
    struct plan next = {0};
    int said = read_plan(&next, s, name);
    long fit = said ? 0 : device->suits(&next);
    if (fit > best) {
      plan_free(plan);
      *plan = next;
      best = fit;
    } else {
      plan_free(&next);
    }
    if (said) return said;
    code = best ? LUMC_OK : LUMC_DEVICE;
  }
  return code;
}

/* The best device, or the one that is named, with its plan. */
static int choose(lumc *m, const struct source *s, const char *kind) {
  int code = lumc_fail(LUMC_USAGE, "unknown device '%s'; one of: cuda, hip, metal, cpu", kind ? kind : "");
  for (int i = 0; i < DEVICES; ++i) {
    char name[128];
    const char *at = s->manifest;
    if (kind ? strcmp(kind, devices[i]->kind) != 0 : !next_plan(&at, devices[i]->kind, name))
      continue;
    m->device = devices[i];
    code = choose_plan(&m->plan, s, m->device);
    if (code != LUMC_DEVICE) return code;
  }
  if (m->device || kind) return code;
  return lumc_fail(LUMC_DEVICE, "%s has no plan for a device that this runner knows", s->folder);
}

static int check_threads(int threads) {
  if (threads >= 1 && threads <= MAX_THREADS) return LUMC_OK;
  return lumc_fail(LUMC_USAGE, "threads must be in 1..%d, got %d", MAX_THREADS, threads);
}

int ranks_of(const char *bundle, int *ranks) {
  char *manifest;
  lumc m = {0};
  int code = read_manifest(bundle, &manifest);
  if (code) return code;
  const struct source source = {bundle, manifest, &m.first, NULL};
  for (int i = 0; i < DEVICES && !code && !m.plan.data; ++i) { /* in all plans they are the same */
    const char *at = manifest;
    char name[128];
    if (next_plan(&at, devices[i]->kind, name)) code = read_plan(&m.plan, &source, name);
  }
  if (!code && !m.plan.data) code = lumc_fail(LUMC_DEVICE, "%s has no plan for a device that this runner knows", bundle);
  *ranks = m.plan.n_axes ? 1 : 0;
  for (size_t i = 0; i < m.plan.n_axes; ++i)
    if (i + 1 != m.plan.time) *ranks *= (int)m.plan.axes[i].ranks;
  plan_free(&m.plan);
  free(manifest);
  return code;
}

/* The other ranks of a bundle for a mesh; its digest is in the first line of the manifest. */
static int join_ranks(lumc *m, struct source *s) {
  if (!m->plan.n_axes) return LUMC_OK;
  if (m->device != &cpu_device && m->device != &cuda_device)
    return lumc_fail(LUMC_DEVICE, "ranks run on CPUs and on GPUs of NVIDIA, not on %s", m->device->kind);
  int code = mesh_open(&m->mesh, &m->plan, strstr(s->manifest, "\"digest\":\"") + 10);
  s->mesh = m->mesh;
  if (!code) mesh_keep(m->mesh, &m->plan);
  return code;
}

int lumc_open_on(const char *bundle, const char *device, int threads, lumc **model) {
  char *manifest;
  *model = NULL;
  int code = read_manifest(bundle, &manifest);
  if (code) return code;
  lumc *m = calloc(1, sizeof *m);
  if (m) {
    struct source source = {bundle, manifest, &m->first, NULL};
    m->threads = threads;
    pthread_mutex_init(&m->running, NULL);
    code = choose(m, &source, device);
    if (!code) code = check_threads(threads);
    if (!code) code = live_open(&m->live, &m->plan);
    if (!code) code = join_ranks(m, &source);
    if (!code) code = m->device->open(&source, &m->plan, threads, &m->self);
    if (!code) code = states_begin(m, 1);
  } else {
    code = lumc_fail(LUMC_FAILED, "out of memory");
  }
  free(manifest);
  if (code)
    lumc_close(m);
  else
    *model = m;
  return code;
}

int lumc_open(const char *bundle, int threads, lumc **model) {
  return lumc_open_on(bundle, NULL, threads, model);
}

void lumc_close(lumc *m) {
  if (!m) return;
  if (m->self) m->device->close(m->self);
  mesh_close(m->mesh);
  live_close(&m->live);
  release(&m->first);
  plan_free(&m->plan);
  pthread_mutex_destroy(&m->running);
  free(m);
}

const char *lumc_version(void) { return LUMC_VERSION; }

int lumc_rank(const lumc *m) { return mesh_rank(m->mesh); }

const char *lumc_device(const lumc *m) { return m->device->kind; }

/* ---- what is in it */

static const struct entry *entry_at(const lumc *m, int i) {
  return i >= 0 && (size_t)i < m->plan.n_entries ? &m->plan.entries[i] : NULL;
}

const lumc_tensor *tensor_at(const lumc_tensor *list, size_t n, int i) {
  return i >= 0 && (size_t)i < n ? &list[i] : NULL;
}

int lumc_entries(const lumc *m) { return (int)m->plan.n_entries; }

int lumc_entry(const lumc *m, const char *name) {
  for (int i = 0; i < lumc_entries(m); ++i)
    if (!strcmp(m->plan.entries[i].name, name)) return i;
  return -1;
}

const char *lumc_entry_name(const lumc *m, int i) {
  const struct entry *e = entry_at(m, i);
  return e ? e->name : NULL;
}

int lumc_inputs(const lumc *m, int i) {
  const struct entry *e = entry_at(m, i);
  return e ? (int)e->n_inputs : 0;
}

int lumc_outputs(const lumc *m, int i) {
  const struct entry *e = entry_at(m, i);
  return e ? (int)e->n_outputs : 0;
}

const lumc_tensor *lumc_input(const lumc *m, int entry, int i) {
  const struct entry *e = entry_at(m, entry);
  return e ? tensor_at(m->live.tensors[entry], e->n_inputs, i) : NULL;
}

const lumc_tensor *lumc_output(const lumc *m, int entry, int i) {
  const struct entry *e = entry_at(m, entry);
  return e ? tensor_at(m->live.tensors[entry] + e->n_inputs, e->n_outputs, i) : NULL;
}

int lumc_dims(const lumc *m) { return (int)m->plan.n_dims; }

const lumc_dim *lumc_dim_at(const lumc *m, int i) {
  return i >= 0 && i < lumc_dims(m) ? &m->plan.dims[i] : NULL;
}

enum lumc_source lumc_dim_source(const lumc *m, int entry, int i) {
  const struct entry *e = entry_at(m, entry);
  return e && lumc_dim_at(m, i) ? (enum lumc_source)e->told[i].how : LUMC_UNUSED;
}

int lumc_buckets(const lumc *m, int i) {
  const struct entry *e = entry_at(m, i);
  return e ? (int)e->n_lists : 0;
}

int64_t lumc_bucket_end(const lumc *m, int entry, int i, int dim) {
  const lumc_dim *d = lumc_dim_at(m, dim);
  if (i < 0 || i >= lumc_buckets(m, entry) || !d) return -1;
  uint64_t end = m->plan.lists[m->plan.entries[entry].first_list + (size_t)i].bounds[dim];
  return end < (uint64_t)d->hi ? (int64_t)end : d->hi - d->hi % d->multiple;
}

/* The launches of an entry for the dims as they are; NULL for none. */
static const struct list *list_at(const lumc *m, int i) {
  const struct entry *e = entry_at(m, i);
  return e ? &m->plan.lists[live_list(&m->live, e)] : NULL;
}

int lumc_launches(const lumc *m, int i) {
  const struct list *l = list_at(m, i);
  return l ? (int)l->n_launches : 0;
}

const char *lumc_launch(const lumc *m, int entry, int i) {
  if (i < 0 || i >= lumc_launches(m, entry)) return NULL;
  uint64_t kernel = list_at(m, entry)->launches[i].kernel;
  return kernel < m->plan.n_kernels ? m->plan.kernels[kernel].symbol : "exchange";
}

/* ---- running */

int lumc_set_threads(lumc *m, int threads) {
  int code = check_threads(threads);
  pthread_mutex_lock(&m->running);
  if (!code && !(code = m->device->set_threads(m->self, threads))) m->threads = threads;
  pthread_mutex_unlock(&m->running);
  return code;
}

int lumc_set_dim(lumc *m, const char *name, int64_t value) {
  int code = lumc_fail(LUMC_USAGE, "no dim '%s'", name);
  pthread_mutex_lock(&m->running);
  for (size_t i = 0; i < m->plan.n_dims; ++i)
    if (!strcmp(m->plan.dims[i].name, name)) code = live_set(&m->live, i, value);
  pthread_mutex_unlock(&m->running);
  return code;
}

/* The dims that a shape tells, each from one extent. */
static int set_shape(lumc *m, const struct entry *e, size_t input, const int64_t *shape, int rank) {
  const lumc_tensor *t = &e->inputs[input];
  if (rank != t->rank)
    return lumc_fail(LUMC_USAGE, "input '%s' has %d axes, not %d", t->name, t->rank, rank);
  int code = LUMC_OK;
  for (size_t i = 0; i < m->plan.n_dims && !code; ++i) {
    const struct told *d = &e->told[i];
    if (d->how != LUMC_BY_SHAPE || d->input != input) continue;
    int64_t extent = shape[d->axis], rest = extent - d->constant;
    if (extent < 0 || extent > t->shape[d->axis] || rest % d->coefficient)
      return lumc_fail(LUMC_USAGE, "axis %d of input '%s' cannot have %lld elements", (int)d->axis,
                       t->name, (long long)extent);
    code = live_set(&m->live, i, rest / d->coefficient);
  }
  return code;
}

int lumc_set_shape(lumc *m, int entry, int input, const int64_t *shape, int rank) {
  const struct entry *e = entry_at(m, entry);
  if (!e || input < 0 || (size_t)input >= e->n_inputs)
    return lumc_fail(LUMC_USAGE, "no input %d of entry %d", input, entry);
  pthread_mutex_lock(&m->running);
  int code = set_shape(m, e, (size_t)input, shape, rank);
  pthread_mutex_unlock(&m->running);
  return code;
}

static int check_pointers(const lumc_tensor *t, size_t n, const void *const *data,
                          const char *what) {
  for (size_t i = 0; i < n; ++i)
    if (t[i].bytes && (!data || !data[i] || (uintptr_t)data[i] % dtype_bytes(t[i].dtype)))
      return lumc_fail(LUMC_USAGE, "%s '%s' is NULL or not aligned to its element", what,
                       t[i].name);
  return LUMC_OK;
}

/* Check the caller's pointers and give what is there to the device; which list is to run. */
static int begin(lumc *m, int i, const void *const *inputs, void *const *outputs, size_t *list) {
  const struct entry *e = entry_at(m, i);
  if (!e) return lumc_fail(LUMC_USAGE, "no entry %d", i);
  const lumc_tensor *now = m->live.tensors[i];
  int code = check_pointers(now, e->n_inputs, inputs, "input");
  if (!code)
    code = check_pointers(now + e->n_inputs, e->n_outputs, (const void *const *)outputs, "output");
  if (code) return code;
  *list = live_list(&m->live, e);
  live_give(&m->live, &m->plan.lists[*list], inputs, outputs);
  return m->device->begin(m->self, *list, m->live.inputs, m->live.outputs, m->live.reach);
}

static int finish(lumc *m, size_t list, void *const *outputs) {
  const struct list *l = &m->plan.lists[list];
  int code =
      m->device->finish(m->self, list, m->live.outputs, m->live.reach + l->entry->n_inputs);
  if (!code) live_take(&m->live, l, outputs);
  return code;
}

int lumc_run(lumc *m, int entry, const void *const *inputs, void *const *outputs) {
  size_t list;
  pthread_mutex_lock(&m->running);
  int code = begin(m, entry, inputs, outputs, &list);
  if (!code) code = m->device->repeat(m->self, list, 1);
  if (!code) code = finish(m, list, outputs);
  pthread_mutex_unlock(&m->running);
  return code;
}

int lumc_trace(lumc *m, int entry, const void *const *inputs, void *const *outputs,
               int64_t *times) {
  size_t list;
  pthread_mutex_lock(&m->running);
  int code = begin(m, entry, inputs, outputs, &list);
  size_t n = code ? 0 : m->plan.lists[list].n_launches;
  if (n) {
    memset(times, 0, n * (size_t)m->threads * 2 * sizeof *times);
    code = m->device->trace(m->self, list, m->threads, times);
  }
  if (!code) code = finish(m, list, outputs);
  pthread_mutex_unlock(&m->running);
  return code;
}

/* Microseconds of n runs. */
static int time_runs(lumc *m, size_t list, long n, double *us) {
  struct timespec a, b;
  clock_gettime(CLOCK_MONOTONIC, &a);
  int code = m->device->repeat(m->self, list, n);
  clock_gettime(CLOCK_MONOTONIC, &b);
  *us = (double)(b.tv_sec - a.tv_sec) * 1e6 + (double)(b.tv_nsec - a.tv_nsec) * 1e-3;
  return code;
}

int lumc_bench(lumc *m, int entry, const void *const *inputs, void *const *outputs, double seconds,
               double *us, int capacity) {
  double once = 0, three = 0, spent = 0;
  size_t list = 0;
  int n = 0;
  if (m->mesh) /* ranks would not agree on how often */
    return -lumc_fail(LUMC_USAGE, "the ranks of a mesh are timed by lumc-run --repeat");
  pthread_mutex_lock(&m->running);
  int code = begin(m, entry, inputs, outputs, &list);
  if (!code) code = time_runs(m, list, 1, &once); /* the first run warms up */
  if (!code) code = time_runs(m, list, 3, &three);
  if (three < 3 * once && !code && !(code = time_runs(m, list, 3, &three))) once = three / 3;
  long inner = once >= 100 ? 1 : (long)(100 / (once > 0.001 ? once : 0.001)) + 1;
  for (; !code && n < capacity && (n < 3 || spent < seconds * 1e6); ++n) {
    code = time_runs(m, list, inner, &us[n]);
    spent += us[n];
    us[n] /= (double)inner;
  }
  if (!code) code = finish(m, list, outputs);
  pthread_mutex_unlock(&m->running);
  return code ? -code : n;
}

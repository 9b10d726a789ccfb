/* model.c - opens a bundle on a device: the public functions of lumc.h. */
#include "internal.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_PLAN = 1 << 28 };

struct lumc {
  struct plan plan;
  const struct device *device;
  void *self; /* of the device */
  int threads;
  pthread_mutex_t running;
};

static const struct device *const devices[] = {&cuda_device, &metal_device, &cpu_device}; /* the best first */
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
    size_t n = strspn(path, "abcdefghijklmnopqrstuvwxyz0123456789_.-/");
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
  int code = lumc_fail(LUMC_USAGE, "unknown device '%s'; one of: cuda, metal, cpu", kind ? kind : "");
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

int lumc_open_on(const char *bundle, const char *device, int threads, lumc **model) {
  char *manifest;
  *model = NULL;
  int code = read_manifest(bundle, &manifest);
  if (code) return code;
  const struct source source = {bundle, manifest};
  lumc *m = calloc(1, sizeof *m);
  if (m) {
    m->threads = threads;
    pthread_mutex_init(&m->running, NULL);
    code = choose(m, &source, device);
    if (!code) code = check_threads(threads);
    if (!code) code = m->device->open(&source, &m->plan, threads, &m->self);
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
  plan_free(&m->plan);
  pthread_mutex_destroy(&m->running);
  free(m);
}

const char *lumc_version(void) { return LUMC_VERSION; }

const char *lumc_device(const lumc *m) { return m->device->kind; }

/* ---- what is in it */

static const struct entry *entry_at(const lumc *m, int i) {
  return i >= 0 && (size_t)i < m->plan.n_entries ? &m->plan.entries[i] : NULL;
}

static const lumc_tensor *at(const lumc_tensor *list, size_t n, int i) {
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
  return e ? at(e->inputs, e->n_inputs, i) : NULL;
}

const lumc_tensor *lumc_output(const lumc *m, int entry, int i) {
  const struct entry *e = entry_at(m, entry);
  return e ? at(e->outputs, e->n_outputs, i) : NULL;
}

int lumc_states(const lumc *m) { return (int)m->plan.n_states; }

const lumc_tensor *lumc_state(const lumc *m, int i) {
  return at(m->plan.states, m->plan.n_states, i);
}

void *lumc_state_data(lumc *m, int i) {
  void *data = NULL;
  pthread_mutex_lock(&m->running);
  if (lumc_state(m, i) && m->device->state(m->self, (size_t)i, &data)) data = NULL;
  pthread_mutex_unlock(&m->running);
  return data;
}

int lumc_launches(const lumc *m, int i) {
  const struct entry *e = entry_at(m, i);
  return e ? (int)e->n_launches : 0;
}

const char *lumc_launch(const lumc *m, int entry, int i) {
  if (i < 0 || i >= lumc_launches(m, entry)) return NULL;
  return m->plan.kernels[m->plan.entries[entry].launches[i].kernel].symbol;
}

/* ---- running */

int lumc_set_threads(lumc *m, int threads) {
  int code = check_threads(threads);
  pthread_mutex_lock(&m->running);
  if (!code && !(code = m->device->set_threads(m->self, threads))) m->threads = threads;
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

/* Check the caller's pointers and give them to the device. */
static int begin(lumc *m, int i, const void *const *inputs, void *const *outputs) {
  const struct entry *e = entry_at(m, i);
  if (!e) return lumc_fail(LUMC_USAGE, "no entry %d", i);
  int code = check_pointers(e->inputs, e->n_inputs, inputs, "input");
  if (!code)
    code = check_pointers(e->outputs, e->n_outputs, (const void *const *)outputs, "output");
  return code ? code : m->device->begin(m->self, (size_t)i, inputs, outputs);
}

int lumc_run(lumc *m, int entry, const void *const *inputs, void *const *outputs) {
  pthread_mutex_lock(&m->running);
  int code = begin(m, entry, inputs, outputs);
  if (!code) code = m->device->repeat(m->self, (size_t)entry, 1);
  if (!code) code = m->device->finish(m->self, (size_t)entry, outputs);
  pthread_mutex_unlock(&m->running);
  return code;
}

int lumc_trace(lumc *m, int entry, const void *const *inputs, void *const *outputs,
               int64_t *times) {
  pthread_mutex_lock(&m->running);
  int code = begin(m, entry, inputs, outputs);
  size_t n = code ? 0 : m->plan.entries[entry].n_launches;
  if (n) {
    memset(times, 0, n * (size_t)m->threads * 2 * sizeof *times);
    code = m->device->trace(m->self, (size_t)entry, m->threads, times);
  }
  if (!code) code = m->device->finish(m->self, (size_t)entry, outputs);
  pthread_mutex_unlock(&m->running);
  return code;
}

/* Microseconds of n runs. */
static int time_runs(lumc *m, int entry, long n, double *us) {
  struct timespec a, b;
  clock_gettime(CLOCK_MONOTONIC, &a);
  int code = m->device->repeat(m->self, (size_t)entry, n);
  clock_gettime(CLOCK_MONOTONIC, &b);
  *us = (double)(b.tv_sec - a.tv_sec) * 1e6 + (double)(b.tv_nsec - a.tv_nsec) * 1e-3;
  return code;
}

int lumc_bench(lumc *m, int entry, const void *const *inputs, void *const *outputs, double seconds,
               double *us, int capacity) {
  double once = 0, three = 0, spent = 0;
  int n = 0;
  pthread_mutex_lock(&m->running);
  int code = begin(m, entry, inputs, outputs);
  if (!code) code = time_runs(m, entry, 1, &once); /* the first run warms up */
  if (!code) code = time_runs(m, entry, 3, &three);
  if (three < 3 * once && !code && !(code = time_runs(m, entry, 3, &three))) once = three / 3;
  long inner = once >= 100 ? 1 : (long)(100 / (once > 0.001 ? once : 0.001)) + 1;
  for (; !code && n < capacity && (n < 3 || spent < seconds * 1e6); ++n) {
    code = time_runs(m, entry, inner, &us[n]);
    spent += us[n];
    us[n] /= (double)inner;
  }
  if (!code) code = m->device->finish(m->self, (size_t)entry, outputs);
  pthread_mutex_unlock(&m->running);
  return code ? -code : n;
}

/* cpu.c - opens a bundle and runs its entries: the public functions of lumc.h. */
#include "internal.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { MAX_PLAN = 1 << 28, PAGE = 4096, HUGE_PAGE = 2 << 20 };

struct block { /* memory of our own, zeroed, on huge pages when it is large */
  uint8_t *data;
  size_t bytes;
};

struct slot { /* an argument that is the caller's memory */
  void **where;
  size_t tensor;
};

struct program { /* an entry, ready to run */
  struct op *ops;
  void **args;
  struct slot *inputs, *outputs;
  size_t n_inputs, n_outputs;
};

struct lumc {
  struct plan plan;
  void *kernels;
  int kernels_file;
  struct block weights, states, arena, scratch;
  uint8_t **state; /* of each state */
  struct program *programs;
  struct pool *pool;
  int threads;
  pthread_mutex_t running;
};

/* ---- memory */

static int reserve(struct block *b, size_t bytes) {
  size_t size = (bytes + PAGE) / PAGE * PAGE, extra = size >= HUGE_PAGE ? HUGE_PAGE : 0;
  uint8_t *p = mmap(NULL, size + extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return lumc_fail(LUMC_FAILED, "cannot allocate %zu bytes", bytes);
  if (extra) { /* start at a huge page */
    size_t skip = (size_t)(-(uintptr_t)p % HUGE_PAGE);
    if (skip) munmap(p, skip);
    munmap(p + skip + size, extra - skip);
    p += skip;
#ifdef MADV_HUGEPAGE
    madvise(p, size, MADV_HUGEPAGE);
#endif
  }
  *b = (struct block){p, size};
  return LUMC_OK;
}

static void release(struct block *b) {
  if (b->data) munmap(b->data, b->bytes);
  *b = (struct block){NULL, 0};
}

static size_t pages(uint64_t bytes) { return (size_t)((bytes + PAGE - 1) / PAGE * PAGE); }

/* ---- loading */

static int read_plan(struct plan *plan, const char *folder, const char *manifest,
                     const char *name) {
  struct sha256 hash;
  char *data;
  size_t size;
  sha256_start(&hash);
  int code = read_whole(folder, name, MAX_PLAN, &data, &size, &hash);
  if (!code && (code = check_hash(manifest, name, &hash))) free(data);
  return code ? code : plan_read(plan, (uint8_t *)data, size);
}

static int check_machine(const struct plan *p) {
  if (strcmp(p->arch, "generic") && strcmp(p->arch, cpu_arch()))
    return lumc_fail(LUMC_DEVICE, "the bundle is for %s, this machine is %s", p->arch, cpu_arch());
  const char *missing = cpu_lacks(p->features, p->n_features);
  if (!missing) return LUMC_OK;
  return lumc_fail(
      LUMC_DEVICE,
      "target %s needs the CPU feature %s, which this machine lacks; link for another target",
      p->target, missing);
}

/* The first plan/cpu-*.bin of the manifest that this machine can run. */
static int choose_plan(struct plan *plan, const char *folder, const char *manifest) {
  int code = lumc_fail(LUMC_DEVICE, "%s has no plan for a CPU", folder);
  for (const char *at = manifest; (at = strstr(at, "\"plan/cpu-")); ++at) {
    char name[128], expected[2048];
    size_t n = strspn(at + 1, "abcdefghijklmnopqrstuvwxyz0123456789_.-/");
    if (n >= sizeof name || strncmp(at + 1 + n, "\":\"", 3)) continue;
    memcpy(name, at + 1, n);
    name[n] = 0;
    if ((code = read_plan(plan, folder, manifest, name))) return code;
    snprintf(expected, sizeof expected, "plan/%s.bin", plan->target);
    if (strcmp(name, expected) || strchr(plan->target, '/'))
      return lumc_fail(LUMC_CORRUPT, "%s is for the target %s", name, plan->target);
    if (!(code = check_machine(plan))) return code;
    plan_free(plan);
  }
  return code;
}

/* dlopen knows libraries by the names that they were opened under, so a bundle that was linked
 * again at the same path would run its old code. Hence the descriptor that was hashed, spelled as
 * no one did before: the bits of the clock as "/." and "/". */
static void unique_path(char path[256], int file) {
  struct timespec now;
  char *at = path + sprintf(path, "/proc/self");
  clock_gettime(CLOCK_MONOTONIC, &now);
  for (uint64_t n = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec; n; n >>= 1)
    at += sprintf(at, n & 1 ? "/." : "/");
  sprintf(at, "/fd/%d", file);
}

/* Hash the shared object and load it. */
static int load_kernels(lumc *m, const char *folder, const char *manifest) {
  char name[1200], path[4096];
  struct sha256 hash;
  uint8_t buffer[16384];
  size_t size;
  snprintf(name, sizeof name, "kernels/%s/kernels.so", m->plan.target);
  int code = open_file(folder, name, &size, &m->kernels_file);
  if (code) return code;
  sha256_start(&hash);
  for (size_t done = 0; done < size && !code; done += sizeof buffer)
    code = read_hashed(m->kernels_file, name, buffer,
                       size - done < sizeof buffer ? size - done : sizeof buffer, &hash);
  if (code || (code = check_hash(manifest, name, &hash))) return code;
  unique_path(path, m->kernels_file);
  if (access(path, R_OK)) snprintf(path, sizeof path, "%s/%s", folder, name);
  m->kernels = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  return m->kernels ? LUMC_OK : lumc_fail(LUMC_DEVICE, "cannot load %s: %s", name, dlerror());
}

static int load_weights(lumc *m, const char *folder, const char *manifest) {
  static const char name[] = "weights.safetensors";
  size_t size, start = (size_t)m->plan.weights_start, bytes = (size_t)m->plan.weights_bytes;
  struct sha256 hash;
  int file, code = open_file(folder, name, &size, &file);
  if (code) return code;
  uint8_t *head = NULL;
  if (start > size || size - start != bytes)
    code = lumc_fail(LUMC_CORRUPT, "%s does not have the size that the plan says", name);
  else if (!(head = malloc(start + 1)))
    code = lumc_fail(LUMC_FAILED, "cannot allocate %zu bytes", start);
  sha256_start(&hash);
  if (!code) code = read_hashed(file, name, head, start, &hash);
  if (!code) code = reserve(&m->weights, bytes);
  if (!code) code = read_hashed(file, name, m->weights.data, bytes, &hash);
  if (!code) code = check_hash(manifest, name, &hash);
  free(head);
  close(file);
  return code;
}

static int place_states(lumc *m) {
  size_t total = 0;
  for (size_t i = 0; i < m->plan.n_states; ++i) total += pages(m->plan.states[i].bytes);
  int code = reserve(&m->states, total);
  m->state = calloc(m->plan.n_states + 1, sizeof *m->state);
  if (code || !m->state) return code ? code : lumc_fail(LUMC_FAILED, "out of memory");
  uint8_t *at = m->states.data;
  for (size_t i = 0; i < m->plan.n_states; at += pages(m->plan.states[i++].bytes)) m->state[i] = at;
  return LUMC_OK;
}

static int set_threads(lumc *m, int threads) {
  uint64_t scratch = 0;
  if (threads < 1 || threads > MAX_THREADS)
    return lumc_fail(LUMC_USAGE, "threads must be in 1..%d, got %d", MAX_THREADS, threads);
  for (size_t i = 0; i < m->plan.n_kernels; ++i)
    if (m->plan.kernels[i].scratch > scratch) scratch = m->plan.kernels[i].scratch;
  struct block block;
  int code = reserve(&block, pages(scratch) * (size_t)threads);
  if (code) return code;
  struct pool *pool = pool_new(threads);
  if (!pool) {
    release(&block);
    return lumc_fail(LUMC_FAILED, "cannot start %d threads", threads);
  }
  pool_free(m->pool);
  release(&m->scratch);
  m->pool = pool;
  m->threads = threads;
  m->scratch = block;
  return LUMC_OK;
}

/* Where an argument lies now; the caller's memory is filled in at every run. */
static void *address(const lumc *m, const struct arg *a) {
  switch (a->place) {
  case ARENA: return m->arena.data + a->offset;
  case WEIGHT: return m->weights.data + a->offset;
  case STATE: return m->state[a->index];
  case SCRATCH: return m->scratch.data;
  default: return NULL;
  }
}

static void place_args(lumc *m, const struct entry *e, struct program *p) {
  void **args = p->args;
  p->n_inputs = p->n_outputs = 0;
  for (size_t i = 0; i < e->n_launches; ++i) {
    const struct launch *l = &e->launches[i];
    p->ops[i].args = args;
    for (size_t k = 0; k < l->n_args; ++k, ++args) {
      *args = address(m, &l->args[k]);
      if (l->args[k].place == INPUT)
        p->inputs[p->n_inputs++] = (struct slot){args, l->args[k].index};
      if (l->args[k].place == OUTPUT)
        p->outputs[p->n_outputs++] = (struct slot){args, l->args[k].index};
    }
  }
}

static int prepare(lumc *m, const struct entry *e, struct program *p) {
  size_t n = 1;
  for (size_t i = 0; i < e->n_launches; ++i) n += e->launches[i].n_args;
  p->ops = calloc(e->n_launches + 1, sizeof *p->ops);
  p->args = calloc(n, sizeof *p->args);
  p->inputs = calloc(n, sizeof *p->inputs);
  p->outputs = calloc(n, sizeof *p->outputs);
  if (!p->ops || !p->args || !p->inputs || !p->outputs)
    return lumc_fail(LUMC_FAILED, "out of memory");
  for (size_t i = 0; i < e->n_launches; ++i) {
    const struct kernel *kernel = &m->plan.kernels[e->launches[i].kernel];
    void *symbol = dlsym(m->kernels, kernel->symbol);
    if (!symbol) return lumc_fail(LUMC_CORRUPT, "kernels.so has no kernel '%s'", kernel->symbol);
    memcpy(&p->ops[i].run, &symbol, sizeof symbol); /* ISO C has no cast from object to function */
    p->ops[i].parallel = (long)kernel->parallel;
  }
  place_args(m, e, p);
  return LUMC_OK;
}

static int load(lumc *m, const char *folder, const char *manifest, int threads) {
  uint64_t arena = 0;
  int code = choose_plan(&m->plan, folder, manifest);
  if (!code) code = load_kernels(m, folder, manifest);
  if (!code) code = load_weights(m, folder, manifest);
  if (!code) code = place_states(m);
  for (size_t i = 0; !code && i < m->plan.n_entries; ++i)
    if (m->plan.entries[i].arena > arena) arena = m->plan.entries[i].arena;
  if (!code) code = reserve(&m->arena, (size_t)arena);
  if (!code) code = set_threads(m, threads);
  if (!code && !(m->programs = calloc(m->plan.n_entries + 1, sizeof *m->programs)))
    code = lumc_fail(LUMC_FAILED, "out of memory");
  for (size_t i = 0; !code && i < m->plan.n_entries; ++i)
    code = prepare(m, &m->plan.entries[i], &m->programs[i]);
  return code;
}

/* ---- the public functions */

int lumc_open(const char *bundle, int threads, lumc **model) {
  char *manifest;
  *model = NULL;
  int code = read_manifest(bundle, &manifest);
  if (code) return code;
  lumc *m = calloc(1, sizeof *m);
  if (m) {
    m->kernels_file = -1;
    pthread_mutex_init(&m->running, NULL);
    code = load(m, bundle, manifest, threads);
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

void lumc_close(lumc *m) {
  if (!m) return;
  pool_free(m->pool);
  for (size_t i = 0; m->programs && i < m->plan.n_entries; ++i) {
    free(m->programs[i].ops);
    free(m->programs[i].args);
    free(m->programs[i].inputs);
    free(m->programs[i].outputs);
  }
  free(m->programs);
  free(m->state);
  if (m->kernels) dlclose(m->kernels);
  if (m->kernels_file >= 0) close(m->kernels_file);
  release(&m->weights);
  release(&m->states);
  release(&m->arena);
  release(&m->scratch);
  plan_free(&m->plan);
  pthread_mutex_destroy(&m->running);
  free(m);
}

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

void *lumc_state_data(lumc *m, int i) { return lumc_state(m, i) ? m->state[i] : NULL; }

int lumc_set_threads(lumc *m, int threads) {
  pthread_mutex_lock(&m->running);
  int code = set_threads(m, threads);
  for (size_t i = 0; !code && i < m->plan.n_entries; ++i)
    place_args(m, &m->plan.entries[i], &m->programs[i]);
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

/* Check the caller's pointers and put them where the kernels look. */
static int attach(lumc *m, int i, const void *const *inputs, void *const *outputs) {
  const struct entry *e = entry_at(m, i);
  if (!e) return lumc_fail(LUMC_USAGE, "no entry %d", i);
  int code = check_pointers(e->inputs, e->n_inputs, inputs, "input");
  if (!code)
    code = check_pointers(e->outputs, e->n_outputs, (const void *const *)outputs, "output");
  if (code) return code;
  struct program *p = &m->programs[i];
  for (size_t k = 0; k < p->n_inputs; ++k)
    memcpy(p->inputs[k].where, &inputs[p->inputs[k].tensor], sizeof(void *));
  for (size_t k = 0; k < p->n_outputs; ++k) *p->outputs[k].where = outputs[p->outputs[k].tensor];
  return LUMC_OK;
}

int lumc_run(lumc *m, int entry, const void *const *inputs, void *const *outputs) {
  pthread_mutex_lock(&m->running);
  int code = attach(m, entry, inputs, outputs);
  if (!code) pool_run(m->pool, m->programs[entry].ops, m->plan.entries[entry].n_launches);
  pthread_mutex_unlock(&m->running);
  return code;
}

int lumc_launches(const lumc *m, int i) {
  const struct entry *e = entry_at(m, i);
  return e ? (int)e->n_launches : 0;
}

const char *lumc_launch(const lumc *m, int entry, int i) {
  if (i < 0 || i >= lumc_launches(m, entry)) return NULL;
  return m->plan.kernels[m->plan.entries[entry].launches[i].kernel].symbol;
}

int lumc_trace(lumc *m, int entry, const void *const *inputs, void *const *outputs,
               int64_t *times) {
  pthread_mutex_lock(&m->running);
  int code = attach(m, entry, inputs, outputs);
  size_t n = code ? 0 : m->plan.entries[entry].n_launches;
  if (n) {
    memset(times, 0, n * (size_t)m->threads * 2 * sizeof *times);
    pool_trace(m->pool, m->programs[entry].ops, n, times);
  }
  pthread_mutex_unlock(&m->running);
  return code;
}

static double time_runs(lumc *m, int entry, long n) {
  struct timespec a, b;
  clock_gettime(CLOCK_MONOTONIC, &a);
  for (long i = 0; i < n; ++i)
    pool_run(m->pool, m->programs[entry].ops, m->plan.entries[entry].n_launches);
  clock_gettime(CLOCK_MONOTONIC, &b);
  return (double)(b.tv_sec - a.tv_sec) * 1e6 + (double)(b.tv_nsec - a.tv_nsec) * 1e-3;
}

int lumc_bench(lumc *m, int entry, const void *const *inputs, void *const *outputs, double seconds,
               double *us, int capacity) {
  int n = 0, code;
  pthread_mutex_lock(&m->running);
  if (!(code = attach(m, entry, inputs, outputs))) {
    double once = time_runs(m, entry, 1), spent = 0; /* the first run warms up */
    if (time_runs(m, entry, 3) < 3 * once) once = time_runs(m, entry, 3) / 3;
    long inner = once >= 100 ? 1 : (long)(100 / (once > 0.001 ? once : 0.001)) + 1;
    for (; n < capacity && (n < 3 || spent < seconds * 1e6); ++n) {
      double sample = time_runs(m, entry, inner);
      spent += sample;
      us[n] = sample / (double)inner;
    }
  }
  pthread_mutex_unlock(&m->running);
  return code ? -code : n;
}

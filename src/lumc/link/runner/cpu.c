/* cpu.c - runs plans on the CPU: kernels.so on a pool of threads. */
#include "ranks.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct slot { /* an argument that is the caller's memory */
  void **where;
  size_t tensor, offset; /* in it, or in the arena */
};

struct program { /* a list of launches, ready to run */
  struct op *ops;
  void **args;
  struct slot *inputs, *outputs, *waiting; /* the last: what waits for the way back; where in the arena */
  size_t n_inputs, n_outputs, n_waiting;
};

struct cpu {
  const struct plan *plan;
  struct mesh *mesh;
  void *kernels;
  int kernels_file;
  struct block weights, packed, states, arena, scratch;
  uint8_t **state; /* of each state */
  struct program *programs;
  struct pool *pool;
  int threads; /* of it */
};

static size_t pages(uint64_t bytes) { return (size_t)((bytes + PAGE - 1) / PAGE * PAGE); }

/* ---- loading */

static long suits(const struct plan *p) {
  if (strcmp(p->arch, "generic") && strcmp(p->arch, cpu_arch()))
    return lumc_fail(0, "the bundle is for %s, this machine is %s", p->arch, cpu_arch());
  const char *missing = cpu_lacks(p->features, p->n_features);
  if (!missing) return 1 + (long)p->n_features;
  return lumc_fail(
      0, "target %s needs the CPU feature %s, which this machine lacks; link for another target",
      p->target, missing);
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
static int load_kernels(struct cpu *m, const struct source *s) {
  char name[1200], path[4096];
  struct sha256 hash;
  uint8_t buffer[16384];
  size_t size;
  snprintf(name, sizeof name, "kernels/%s/kernels.so", m->plan->target);
  int code = open_file(s->folder, name, &size, &m->kernels_file);
  if (code) return code;
  sha256_start(&hash);
  for (size_t done = 0; done < size && !code; done += sizeof buffer)
    code = read_hashed(m->kernels_file, name, buffer,
                       size - done < sizeof buffer ? size - done : sizeof buffer, &hash);
  if (code || (code = check_hash(s->manifest, name, &hash))) return code;
  unique_path(path, m->kernels_file);
  if (access(path, R_OK)) snprintf(path, sizeof path, "%s/%s", s->folder, name);
  m->kernels = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  return m->kernels ? LUMC_OK : lumc_fail(LUMC_DEVICE, "cannot load %s: %s", name, dlerror());
}

static int place_states(struct cpu *m) {
  size_t total = 0;
  for (size_t i = 0; i < m->plan->n_states; ++i) total += pages(m->plan->states[i].bytes);
  int code = reserve(&m->states, total);
  m->state = calloc(m->plan->n_states + 1, sizeof *m->state);
  if (code || !m->state) return code ? code : lumc_fail(LUMC_FAILED, "out of memory");
  uint8_t *at = m->states.data;
  for (size_t i = 0; i < m->plan->n_states; ++i) {
    m->state[i] = at;
    at += pages(m->plan->states[i].bytes);
  }
  return LUMC_OK;
}

static int new_pool(struct cpu *m, int threads) {
  uint64_t scratch = 0;
  for (size_t i = 0; i < m->plan->n_kernels; ++i)
    if (m->plan->kernels[i].scratch > scratch) scratch = m->plan->kernels[i].scratch;
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
static void *address(const struct cpu *m, const struct arg *a) {
  switch (a->place) {
  case ARENA: return m->arena.data + a->offset;
  case WEIGHT: return m->weights.data + a->offset;
  case PACKED: return m->packed.data + a->offset;
  case STATE: return m->state[a->index] + a->offset;
  case SCRATCH: return m->scratch.data;
  case DIM: return &m->plan->dims[a->index].value;
  default: return NULL;
  }
}

static void place_args(struct cpu *m, const struct list *list, struct program *p) {
  void **args = p->args;
  p->n_inputs = p->n_outputs = p->n_waiting = 0;
  for (size_t i = 0; i < list->n_launches; ++i) {
    const struct launch *l = &list->launches[i];
    p->ops[i].args = args;
    for (size_t k = 0; k < l->n_args; ++k, ++args) {
      *args = address(m, &l->args[k]);
      if (l->args[k].place == INPUT)
        p->inputs[p->n_inputs++] = (struct slot){args, l->args[k].index, l->args[k].offset};
      if (l->args[k].place == OUTPUT)
        p->outputs[p->n_outputs++] = (struct slot){args, l->args[k].index, l->args[k].offset};
      if (l->args[k].place == ARENA && list->turns && l->args[k].offset >= list->waiting)
        p->waiting[p->n_waiting++] = (struct slot){args, 0, l->args[k].offset};
    }
  }
}

static int prepare(struct cpu *m, const struct list *list, struct program *p) {
  size_t n = 1;
  for (size_t i = 0; i < list->n_launches; ++i) n += list->launches[i].n_args;
  p->ops = calloc(list->n_launches + 1, sizeof *p->ops);
  p->args = calloc(n, sizeof *p->args);
  p->inputs = calloc(n, sizeof *p->inputs);
  p->outputs = calloc(n, sizeof *p->outputs);
  p->waiting = calloc(n, sizeof *p->waiting);
  if (!p->ops || !p->args || !p->inputs || !p->outputs || !p->waiting)
    return lumc_fail(LUMC_FAILED, "out of memory");
  for (size_t i = 0; i < list->n_launches; ++i) {
    if (list->launches[i].kernel >= m->plan->n_kernels) continue; /* ranks exchange something */
    const struct kernel *kernel = &m->plan->kernels[list->launches[i].kernel];
    void *symbol = dlsym(m->kernels, kernel->symbol);
    if (!symbol) return lumc_fail(LUMC_CORRUPT, "kernels.so has no kernel '%s'", kernel->symbol);
    memcpy(&p->ops[i].run, &symbol, sizeof symbol); /* ISO C has no cast from object to function */
    p->ops[i].parallel = (long)kernel->parallel;
  }
  place_args(m, list, p);
  return LUMC_OK;
}

/* What waits for the way back has a place for each micro-batch that this stage has under way. */
static uint64_t arena_of(const struct list *l) {
  return l->turns ? l->waiting + l->stride * l->open : l->entry->arena;
}

static int load(struct cpu *m, const struct source *s, int threads) {
  const struct plan *plan = m->plan;
  uint64_t arena = 0;
  int code = load_kernels(m, s);
  if (!code) code = read_weights(s, plan, &m->weights);
  if (!code) code = pack_weights(plan, m->mesh, m->weights.data, &m->packed);
  if (!code) code = place_states(m);
  for (size_t i = 0; !code && i < plan->n_lists; ++i)
    if (arena_of(&plan->lists[i]) > arena) arena = arena_of(&plan->lists[i]);
  if (!code) code = reserve(&m->arena, (size_t)arena);
  if (!code) code = new_pool(m, threads);
  if (!code && !(m->programs = calloc(plan->n_lists + 1, sizeof *m->programs)))
    code = lumc_fail(LUMC_FAILED, "out of memory");
  for (size_t i = 0; !code && i < plan->n_lists; ++i)
    code = prepare(m, &plan->lists[i], &m->programs[i]);
  return code;
}

static int open_cpu(const struct source *s, const struct plan *plan, int threads, void **self) {
  struct cpu *m = *self = calloc(1, sizeof *m);
  if (!m) return lumc_fail(LUMC_FAILED, "out of memory");
  m->plan = plan;
  m->mesh = s->mesh;
  m->kernels_file = -1;
  return load(m, s, threads);
}

static void close_cpu(void *self) {
  struct cpu *m = self;
  pool_free(m->pool);
  for (size_t i = 0; m->programs && i < m->plan->n_lists; ++i) {
    free(m->programs[i].ops);
    free(m->programs[i].args);
    free(m->programs[i].inputs);
    free(m->programs[i].outputs);
    free(m->programs[i].waiting);
  }
  free(m->programs);
  free(m->state);
  if (m->kernels) dlclose(m->kernels);
  if (m->kernels_file >= 0) close(m->kernels_file);
  release(&m->weights);
  release(&m->packed);
  release(&m->states);
  release(&m->arena);
  release(&m->scratch);
  free(m);
}

/* ---- running */

static int set_threads(void *self, int threads) {
  struct cpu *m = self;
  int code = new_pool(m, threads);
  for (size_t i = 0; !code && i < m->plan->n_lists; ++i)
    place_args(m, &m->plan->lists[i], &m->programs[i]);
  return code;
}

static int state(void *self, size_t i, void **data) {
  *data = ((struct cpu *)self)->state[i];
  return LUMC_OK;
}

/* Put the caller's pointers where the kernels look. */
static int begin(void *self, size_t list, const void *const *inputs, void *const *outputs,
                 const size_t *bytes) {
  struct program *p = &((struct cpu *)self)->programs[list];
  (void)bytes;
  for (size_t k = 0; k < p->n_inputs; ++k) {
    const struct slot *s = &p->inputs[k];
    const char *from = (const char *)inputs[s->tensor] + s->offset;
    memcpy(s->where, &from, sizeof from);
  }
  for (size_t k = 0; k < p->n_outputs; ++k) {
    const struct slot *s = &p->outputs[k];
    *s->where = (char *)outputs[s->tensor] + s->offset;
  }
  return LUMC_OK;
}

/* Some launches once; between those of kernels the collectives, which all ranks come to. With times, as
 * pool_trace has them. */
static int pass(struct cpu *m, size_t list, size_t first, size_t last, int64_t *times) {
  const struct list *l = &m->plan->lists[list];
  const struct op *ops = m->programs[list].ops;
  size_t threads = (size_t)m->threads, n;
  int code = LUMC_OK;
  for (size_t i = first; i < last && !code; i += n) {
    int busy = mesh_busy(m->mesh); /* what is on its way is helped on behind every kernel */
    for (n = 0; i + n < (busy ? i + 1 : last) && ops[i + n].run;) ++n;
    if (times && n)
      pool_trace(m->pool, ops + i, n, times + i * threads * 2);
    else
      pool_run(m->pool, ops + i, n);
    if (busy) code = mesh_move(m->mesh);
    if (i + n == last || ops[i + n].run || code) continue;
    const struct launch *own = &l->launches[i + n];
    int64_t *time = times ? times + (i + n) * threads * 2 : NULL;
    if (time) time[0] = now_ns();
    code = mesh_run(m->mesh, &m->plan->exchanges[own->kernel - m->plan->n_kernels], ops[i + n].args[0],
                    ops[i + n].args[1]);
    if (time) time[1] = now_ns();
    ++n;
  }
  return code;
}

/* Micro-batches forward and back, in the order of the plan. */
static int alternate(struct cpu *m, size_t list, int64_t *times) {
  const struct list *l = &m->plan->lists[list];
  const struct program *p = &m->programs[list];
  int turns = 2 * mesh_turns(m->mesh, m->plan), code;
  code = mesh_ahead(m->mesh, (int)m->plan->axes[m->plan->stages - 1].ranks);
  for (int i = 0; i < turns && !code; ++i) {
    size_t batch = (size_t)(l->turns[i] >> 1);
    mesh_turn(m->mesh, m->plan, (int)batch);
    for (size_t k = 0; k < p->n_waiting; ++k)
      *p->waiting[k].where = m->arena.data + p->waiting[k].offset + batch % l->open * l->stride;
    code = l->turns[i] & 1 ? pass(m, list, l->middle, l->last, times) : pass(m, list, l->first, l->middle, times);
  }
  return code ? code : mesh_ahead(m->mesh, 0);
}

/* What is before micro-batches, each of them, and what is after; without them all once. */
static int go(struct cpu *m, size_t list, int64_t *times) {
  const struct list *l = &m->plan->lists[list];
  int turns = l->turns ? 0 : mesh_turns(m->mesh, m->plan), code = pass(m, list, 0, l->first, times);
  if (l->turns && !code) code = alternate(m, list, times);
  for (int i = 0; i < turns && l->first < l->last && !code; ++i) {
    mesh_turn(m->mesh, m->plan, i);
    code = pass(m, list, l->first, l->last, times);
  }
  return code ? code : pass(m, list, l->last, l->n_launches, times);
}

/* So many times, counted from the first. */
static int run(struct cpu *m, size_t list, uint64_t n) {
  const struct list *l = &m->plan->lists[list];
  int code = LUMC_OK;
  for (uint64_t k = 0; k < n && !code; ++k) {
    if (l->entry->counter) l->entry->counter->value = counted(l->entry, k);
    code = go(m, list, NULL);
  }
  return code;
}

static int repeat(void *self, size_t list, long n) {
  struct cpu *m = self;
  const struct entry *e = m->plan->lists[list].entry;
  int64_t before = e->counter ? e->counter->value : 0;
  int code = LUMC_OK;
  for (long i = 0; i < n && !code; ++i) code = run(m, list, e->repeats);
  if (e->counter) e->counter->value = before; /* of runs of other entries */
  return code;
}

static int finish(void *self, size_t list, void *const *outputs, const size_t *bytes) {
  (void)self, (void)list, (void)outputs, (void)bytes; /* the kernels wrote them */
  return LUMC_OK;
}

static int trace(void *self, size_t list, int threads, int64_t *times) {
  struct cpu *m = self;
  const struct list *l = &m->plan->lists[list];
  lumc_dim *d = l->entry->counter;
  int64_t before = d ? d->value : 0;
  (void)threads;
  int code = run(m, list, l->entry->repeats - 1);
  if (d) d->value = counted(l->entry, l->entry->repeats - 1);
  if (!code) code = go(m, list, times);
  if (d) d->value = before;
  return code;
}

const struct device cpu_device = {"cpu",  suits,  open_cpu, set_threads, state,
                                  begin,  repeat, finish,   trace,       close_cpu};

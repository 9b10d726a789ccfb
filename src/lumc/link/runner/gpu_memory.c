/* gpu_memory.c - what lies on a GPU, and the way there: weights, states, and the values
 * between launches. */
#include "gpu.h"
#include "ranks.h"
#include <stdlib.h>

int gpu_allocate(const struct gpu *m, address *to, uint64_t bytes, const char *what) {
  int result = m->driver->allocate(to, (size_t)bytes + ALIGN);
  if (result != OUT_OF_MEMORY) return gpu_check(m, result, what);
  return lumc_fail(LUMC_FAILED, "the GPU has no %.1f MB left for %s", (double)bytes / 1e6, what);
}

int gpu_upload(const struct gpu *m, address to, const void *from, uint64_t bytes) {
  if (!bytes) return LUMC_OK;
  return gpu_check(m, m->driver->upload(to, from, (size_t)bytes, m->stream), "upload");
}

int gpu_download(const struct gpu *m, void *to, address from, uint64_t bytes) {
  if (!bytes) return LUMC_OK;
  return gpu_check(m, m->driver->download(to, from, (size_t)bytes, m->stream), "download");
}

int gpu_wait(const struct gpu *m) {
  if (m->nccl) return nccl_wait(m->nccl);
  return gpu_check(m, m->driver->stream_wait(m->stream), "run");
}

static int by_offset(const void *a, const void *b) {
  const struct range *x = a, *y = b;
  if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
  return (x->bytes < y->bytes) - (x->bytes > y->bytes); /* the longest first */
}

/* What of the weights this plan reads: a bundle for several targets holds more. */
static int find_ranges(struct gpu *m) {
  size_t n = 0, kept = 0;
  int code = LUMC_OK;
  for (int pass = 0; pass < 2 && !code; ++pass) {
    if (pass) m->ranges = zeros(n, sizeof *m->ranges, &code);
    n = 0;
    for (size_t e = 0; e < m->plan->n_lists && !code; ++e)
      for (size_t i = 0; i < m->plan->lists[e].n_launches; ++i) {
        const struct launch *l = &m->plan->lists[e].launches[i];
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

int gpu_load_weights(struct gpu *m, const struct source *s) {
  struct block all = {NULL, 0};
  uint64_t bytes = 0;
  int code = find_ranges(m);
  if (!code) code = read_weights(s, m->plan, &all);
  for (size_t i = 0; i < m->n_ranges; ++i) bytes += aligned(m->ranges[i].bytes);
  if (!code) code = gpu_allocate(m, &m->weights, bytes, "the weights");
  address at = m->weights;
  for (size_t i = 0; i < m->n_ranges && !code; ++i) {
    struct range *r = &m->ranges[i];
    r->at = at;
    at += aligned(r->bytes);
    code = gpu_upload(m, r->at, all.data + r->offset, r->bytes);
  }
  if (m->stream && m->driver->stream_wait(m->stream) && !code)
    code = lumc_fail(LUMC_FAILED, "the weights did not reach the GPU");
  release(&all);
  return code;
}

int gpu_place_states(struct gpu *m) {
  uint64_t bytes = 0, held = 0;
  int code = LUMC_OK;
  m->state = zeros(m->plan->n_states, sizeof *m->state, &code);
  m->held = zeros(m->plan->n_states, sizeof *m->held, &code);
  for (size_t i = 0; i < m->plan->n_states && !code; ++i) {
    size_t own = aligned(m->plan->states[i].bytes);
    m->state[i] = (size_t)bytes, m->held[i] = (size_t)held;
    bytes += own;
    if (mesh_has_state(m->mesh, m->plan, i)) held += own;
  }
  if (!code) code = reserve(&m->mirror, (size_t)bytes);
  if (!code) code = gpu_allocate(m, &m->states, held, "the states");
  m->mirrored = 1; /* zeros */
  return code;
}

/* Arena, inputs and outputs one after another; entries share the memory. */
int gpu_place_values(struct gpu *m) {
  uint64_t most = 0;
  int code = LUMC_OK;
  m->programs = zeros(m->plan->n_lists, sizeof *m->programs, &code);
  for (int pass = 0; pass < 2 && !code; ++pass) {
    if (pass) code = gpu_allocate(m, &m->memory, most, "the values between kernels");
    for (size_t e = 0; e < m->plan->n_lists && !code; ++e) {
      const struct entry *entry = m->plan->lists[e].entry;
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
  m->values = zeros(m->plan->n_dims, sizeof *m->values, &code);
  return code ? code : gpu_allocate(m, &m->dims, m->plan->n_dims * sizeof *m->values, "the dims");
}

int gpu_upload_dims(const struct gpu *m) {
  size_t n = m->plan->n_dims;
  for (size_t i = 0; i < n; ++i) m->values[i] = m->plan->dims[i].value;
  return gpu_upload(m, m->dims, m->values, n * sizeof *m->values);
}

enum { MOST_LAUNCHES = 1 << 14 }; /* of a graph */

int gpu_place_counts(struct gpu *m) {
  int code = LUMC_OK;
  for (size_t i = 0; i < m->plan->n_lists && !code; ++i) {
    const struct list *l = &m->plan->lists[i];
    uint64_t n = l->entry->repeats;
    if (!l->entry->counter || !l->n_launches || n > MOST_LAUNCHES / l->n_launches) continue;
    int64_t *values = zeros((size_t)n, sizeof *values, &code);
    for (uint64_t k = 0; k < n && !code; ++k) values[k] = counted(l->entry, k);
    if (!code) code = gpu_allocate(m, &m->programs[i].counts, n * sizeof *values, "a counter");
    if (!code) code = gpu_upload(m, m->programs[i].counts, values, n * sizeof *values);
    if (!code) code = gpu_wait(m);
    free(values);
  }
  return code;
}

int gpu_turn(struct gpu *m, size_t list, uint64_t k) {
  const struct entry *e = m->plan->lists[list].entry;
  m->turn = k;
  if (!e->counter || m->programs[list].counts) return LUMC_OK;
  int64_t value = counted(e, k);
  return gpu_upload(m, m->dims + (size_t)(e->counter - m->plan->dims) * sizeof value, &value,
                     sizeof value);
}

address gpu_place(const struct gpu *m, size_t list, const struct arg *a) {
  const struct program *p = &m->programs[list];
  const struct range key = {a->offset, UINT64_MAX, 0};
  switch (a->place) {
  case INPUT: return p->inputs[a->index] + a->offset;
  case OUTPUT: return p->outputs[a->index] + a->offset;
  case ARENA: return m->memory + a->offset;
  case STATE: return m->states + m->held[a->index] + a->offset;
  case DIM:
    if (p->counts && &m->plan->dims[a->index] == m->plan->lists[list].entry->counter)
      return p->counts + m->turn * sizeof *m->values;
    return m->dims + a->index * sizeof *m->values;
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

int gpu_move_states(const struct gpu *m, int to_device) {
  int code = LUMC_OK;
  for (size_t i = 0; i < m->plan->n_states && !code; ++i) {
    if (!mesh_has_state(m->mesh, m->plan, i)) continue;
    uint8_t *host = m->mirror.data + m->state[i];
    size_t bytes = m->plan->states[i].bytes;
    address there = m->states + m->held[i];
    code = to_device ? gpu_upload(m, there, host, bytes) : gpu_download(m, host, there, bytes);
  }
  return code ? code : gpu_wait(m);
}

/* live.c - dims that are known when a model runs: their values, the tensors that there are then.
 *
 * Kernels find every tensor in memory for the greatest extents that their list is for. The caller's
 * arrays have the extents of the run, and may end there: those that are smaller are copied. */
#include "internal.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int is_live(const lumc_tensor *t) {
  const uint64_t *lengths = lengths_of(t);
  for (int i = 0; i < t->rank; ++i)
    if (lengths[i]) return 1;
  return 0;
}

/* Values of all lengths; what the plan's reader knows of their bounds keeps them from overflow. */
static void compute(struct live *v) {
  const struct plan *p = v->plan;
  for (size_t i = 0; i < p->n_dims; ++i) v->values[i] = p->dims[i].value;
  for (size_t i = 0; i < p->n_lengths; ++i) {
    const struct length *l = &p->lengths[i];
    int64_t a = l->kind ? v->values[l->a] : 0, b = l->kind ? v->values[l->b] : 0, n = l->number;
    int64_t *to = &v->values[p->n_dims + i];
    switch (l->kind) {
    case SUM: *to = a + b; break;
    case PRODUCT: *to = a * n; break;
    case QUOTIENT: *to = floor_div(a, n); break;
    case REST: *to = a - floor_div(a, n) * n; break;
    default: *to = n;
    }
  }
}

/* A tensor for these dims; its shape is written, and where the next one goes given. */
static int64_t *show(const struct live *v, const lumc_tensor *most, lumc_tensor *t,
                     int64_t *shape) {
  const uint64_t *lengths = lengths_of(most);
  *t = *most;
  t->shape = shape;
  t->bytes = dtype_bytes(t->dtype);
  for (int i = 0; i < t->rank; ++i) {
    shape[i] = lengths[i] ? v->values[lengths[i] - 1] : most->shape[i];
    t->bytes *= (size_t)shape[i];
  }
  return shape + t->rank;
}

static void update(struct live *v) {
  int64_t *shape = v->shapes;
  compute(v);
  for (size_t e = 0; e < v->plan->n_entries; ++e) {
    const struct entry *entry = &v->plan->entries[e];
    lumc_tensor *to = v->tensors[e];
    for (size_t i = 0; i < entry->n_inputs; ++i) shape = show(v, &entry->inputs[i], to++, shape);
    for (size_t i = 0; i < entry->n_outputs; ++i) shape = show(v, &entry->outputs[i], to++, shape);
  }
}

static size_t ranks(const lumc_tensor *t, size_t n) {
  size_t all = 0;
  for (size_t i = 0; i < n; ++i) all += (size_t)t[i].rank;
  return all;
}

static size_t room(const lumc_tensor *t, size_t n) {
  size_t all = 0;
  for (size_t i = 0; i < n; ++i)
    if (is_live(&t[i])) all += aligned(t[i].bytes);
  return all;
}

int live_open(struct live *v, struct plan *p) {
  size_t extents = 0, most = 0, n_inputs = 0, n_outputs = 0;
  int code = LUMC_OK;
  v->plan = p;
  v->values = zeros(p->n_dims + p->n_lengths, sizeof *v->values, &code);
  v->tensors = zeros(p->n_entries, sizeof *v->tensors, &code);
  for (size_t i = 0; i < p->n_entries && !code; ++i) {
    const struct entry *e = &p->entries[i];
    v->tensors[i] = zeros(e->n_inputs + e->n_outputs, sizeof **v->tensors, &code);
    extents += ranks(e->inputs, e->n_inputs) + ranks(e->outputs, e->n_outputs);
    size_t own = room(e->inputs, e->n_inputs) + room(e->outputs, e->n_outputs);
    if (own > most) most = own;
    if (e->n_inputs > n_inputs) n_inputs = e->n_inputs;
    if (e->n_outputs > n_outputs) n_outputs = e->n_outputs;
  }
  v->shapes = zeros(extents, sizeof *v->shapes, &code);
  v->inputs = zeros(n_inputs, sizeof *v->inputs, &code);
  v->outputs = zeros(n_outputs, sizeof *v->outputs, &code);
  v->reach = zeros(n_inputs + n_outputs, sizeof *v->reach, &code);
  if (!code && most) code = reserve(&v->memory, most);
  if (!code) update(v);
  return code;
}

void live_close(struct live *v) {
  for (size_t i = 0; v->tensors && i < v->plan->n_entries; ++i) free(v->tensors[i]);
  free(v->tensors);
  free(v->values);
  free(v->shapes);
  free(v->inputs);
  free(v->outputs);
  free(v->reach);
  release(&v->memory);
}

int live_set(struct live *v, size_t dim, int64_t value) {
  lumc_dim *d = &v->plan->dims[dim];
  char step[40] = "";
  if (d->multiple > 1) snprintf(step, sizeof step, " multiple %lld", (long long)d->multiple);
  if (value < d->lo || value > d->hi || value % d->multiple)
    return lumc_fail(LUMC_USAGE, "dim %s=%lld is not in %lld..%lld%s", d->name, (long long)value,
                     (long long)d->lo, (long long)d->hi, step);
  d->value = value;
  update(v);
  return LUMC_OK;
}

size_t live_list(const struct live *v, const struct entry *e) {
  const struct plan *p = v->plan;
  for (size_t i = e->first_list;; ++i) { /* the last one holds always */
    size_t k = 0;
    while (k < p->n_dims && (uint64_t)p->dims[k].value <= p->lists[i].bounds[k]) ++k;
    if (k == p->n_dims) return i;
  }
}

/* Does a tensor of the run fill the memory that kernels want it in? */
static int is_whole(const lumc_tensor *now, const lumc_tensor *most) {
  return now->rank == 0 || !memcmp(now->shape, most->shape, (size_t)now->rank * sizeof *now->shape);
}

/* Between an array of the extents of a run, and memory for the greatest. */
static void copy(const lumc_tensor *now, const lumc_tensor *most, char *dense, char *roomy,
                 int in) {
  size_t run = dtype_bytes(now->dtype), step = run, rows = 1;
  int at = now->rank - 1;
  for (; at > 0 && now->shape[at] == most->shape[at]; --at) step *= (size_t)most->shape[at];
  run = step * (size_t)now->shape[at]; /* what lies in a row in both */
  for (int i = 0; i < at; ++i) rows *= (size_t)now->shape[i];
  for (size_t row = 0; row < rows && run; ++row) {
    size_t rest = row, there = 0, size = step * (size_t)most->shape[at];
    for (int i = at - 1; i >= 0; size *= (size_t)most->shape[i--]) {
      there += rest % (size_t)now->shape[i] * size;
      rest /= (size_t)now->shape[i];
    }
    memcpy(in ? roomy + there : dense + row * run, in ? dense + row * run : roomy + there, run);
  }
}

/* Of memory for the greatest extents: bytes to the end of what there is. */
static size_t reach(const lumc_tensor *now, const lumc_tensor *most) {
  size_t last = 0, step = dtype_bytes(now->dtype), all = step;
  if (!now->bytes) return 0;
  for (int i = now->rank - 1; i >= 0; step *= (size_t)most->shape[i--])
    last += (size_t)(now->shape[i] - 1) * step;
  return last + all;
}

void live_give(struct live *v, const struct list *l, const void *const *inputs,
               void *const *outputs) {
  const struct entry *e = l->entry;
  const lumc_tensor *now = v->tensors[e - v->plan->entries];
  uint8_t *at = v->memory.data;
  for (size_t i = 0; i < e->n_inputs; ++i, ++now) {
    const lumc_tensor *most = &l->inputs[i];
    v->inputs[i] = inputs ? inputs[i] : NULL;
    v->reach[i] = reach(now, most);
    if (is_whole(now, most)) continue;
    char *from;
    memcpy(&from, &inputs[i], sizeof from);
    copy(now, most, from, (char *)at, 1);
    v->inputs[i] = at;
    at += aligned(most->bytes);
  }
  for (size_t i = 0; i < e->n_outputs; ++i, ++now) {
    v->outputs[i] = outputs ? outputs[i] : NULL;
    v->reach[e->n_inputs + i] = reach(now, &l->outputs[i]);
    if (is_whole(now, &l->outputs[i])) continue;
    v->outputs[i] = at;
    at += aligned(l->outputs[i].bytes);
  }
}

void live_take(const struct live *v, const struct list *l, void *const *outputs) {
  const lumc_tensor *now = v->tensors[l->entry - v->plan->entries] + l->entry->n_inputs;
  for (size_t i = 0; i < l->entry->n_outputs; ++i, ++now)
    if (!is_whole(now, &l->outputs[i])) copy(now, &l->outputs[i], outputs[i], v->outputs[i], 0);
}

/* plan.c - reads plan.bin. Everything is 8-byte words, little endian, in one pass: the format is
 * in docs/bundle.md. The file is not trusted: counts are bounded by the bytes that are left,
 * offsets by the sections that they point into. */
#include "cursor.h"
#include "ranks.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t MOST = (int64_t)1 << 62;        /* of a dim or a length */

static int64_t number(struct cursor *c) {
  int64_t value = (int64_t)word(c);
  if (!c->bad && (value > MOST || value < -MOST)) c->bad = "a number is too large";
  return c->bad ? 0 : value;
}

struct span { /* the least and the greatest value of a dim or a length */
  int64_t lo, hi;
};

static void tensor(struct cursor *c, lumc_tensor *t, const struct span *spans, size_t n_lengths) {
  uint64_t bytes;
  int zero = 0;
  t->name = string(c);
  t->dtype = (int)word_below(c, LUMC_U64 + 1, "an unknown dtype");
  t->rank = (int)word_below(c, MAX_RANK + 1, "a rank is too large");
  t->shape = (const int64_t *)(const void *)c->at;
  bytes = dtype_bytes(t->dtype);
  for (int i = 0; i < t->rank; ++i) {
    uint64_t extent = word_below(c, MAX_BYTES, "an extent is too large");
    zero |= extent == 0;
    if (extent && bytes > MAX_BYTES / extent) c->bad = "a tensor is too large";
    if (!c->bad && extent) bytes *= extent;
  }
  t->bytes = zero ? 0 : (size_t)bytes;
  for (int i = 0; i < t->rank; ++i) {
    uint64_t which = word_below(c, n_lengths + 1, "an extent has no such length");
    if (c->bad || !which) continue;
    struct span s = spans[which - 1];
    if (s.lo < 0 || (uint64_t)s.hi > (uint64_t)t->shape[i]) c->bad = "a length exceeds its extent";
  }
}

/* Those of `n_lengths` lengths, which are bounded by `spans`; states have none. */
static lumc_tensor *tensors(struct cursor *c, const struct span *spans, size_t n_lengths, size_t *n) {
  *n = count(c, 4);
  lumc_tensor *list = table(c, *n, sizeof *list);
  uint64_t total = 0; /* with room for each to start at a page */
  for (size_t i = 0; i < *n && !c->bad; ++i) {
    tensor(c, &list[i], spans, n_lengths);
    total += list[i].bytes + 4096;
    if (total > MAX_BYTES && !c->bad) c->bad = "the tensors are too large together";
  }
  return list;
}

static int fits(const struct plan *p, const struct list *l, const struct arg *a) {
  const struct entry *e = l->entry;
  switch (a->place) {
  case NOWHERE: return 1;
  case INPUT: return a->index < e->n_inputs && inside(a->offset, a->bytes, l->inputs[a->index].bytes);
  case OUTPUT: return a->index < e->n_outputs && inside(a->offset, a->bytes, l->outputs[a->index].bytes);
  case ARENA: return inside(a->offset, a->bytes, l->ways ? l->waiting + l->stride : e->arena) &&
                     (!l->ways || a->offset >= l->waiting || a->offset + a->bytes <= l->waiting);
  case WEIGHT: return inside(a->offset, a->bytes, p->weights_bytes);
  case PACKED: return inside(a->offset, a->bytes, p->packed_bytes);
  case STATE: return a->index < p->n_states && inside(a->offset, a->bytes, p->states[a->index].bytes);
  case DIM: return a->index < p->n_dims && a->bytes <= sizeof p->dims->value;
  case SCRATCH: return 1;
  default: return 0;
  }
}

/* Has an argument all elements of a tensor map? Extents have 31 bits, strides 40: in doubles. */
static int reaches(const struct tensor_map *m, const struct launch *l) {
  if (m->buffer >= l->n_args) return 0;
  double bytes = 2.0 * (double)m->dims[0];
  for (uint64_t a = 1; a < m->rank; ++a) bytes += (double)(m->dims[a] - 1) * (double)m->strides[a - 1];
  return bytes <= (double)l->args[m->buffer].bytes;
}

static void read_launch(struct cursor *c, const struct plan *p, const struct list *of, struct launch *l) {
  l->kernel = word_below(c, p->n_kernels + p->n_exchanges, "a launch names no kernel");
  l->who = plan_who(c, p);
  l->n_args = count(c, 4);
  l->args = (const struct arg *)(const void *)c->at;
  if (c->bad) return;
  c->at += l->n_args * sizeof *l->args;
  for (size_t i = 0; i < l->n_args; ++i)
    if (!fits(p, of, &l->args[i])) c->bad = "an argument lies outside of its place";
  if (!c->bad && l->kernel >= p->n_kernels) {
    plan_exchange(c, p, l);
    return;
  }
  for (size_t i = 0; !c->bad && i < p->kernels[l->kernel].n_maps; ++i)
    if (!reaches(&p->kernels[l->kernel].maps[i], l)) c->bad = "a tensor map is of more than its argument";
}

/* How an entry comes to the value of a dim. */
static void told(struct cursor *c, struct entry *e, lumc_dim *dim, const struct span *s) {
  struct told t = {.how = word_below(c, LUMC_SOURCES, "a dim is told in no way")};
  t.input = word(c), t.axis = word(c);
  t.coefficient = number(c), t.constant = number(c);
  if (!c->bad && t.how == LUMC_COUNTED) {
    if (e->counter) c->bad = "two dims count the repetitions of an entry";
    e->counter = dim;
    e->repeats = (uint64_t)(s->hi - s->lo) / (uint64_t)dim->multiple + 1;
    if (!c->bad && e->repeats > MAX_REPEATS) c->bad = "an entry repeats too often";
  }
  if (c->bad || t.how != LUMC_BY_SHAPE) return;
  if (t.input >= e->n_inputs || t.axis >= (uint64_t)e->inputs[t.input].rank || !t.coefficient)
    c->bad = "a dim is told by no extent";
}

/* The least and the greatest value: nothing overflows when it is computed. */
static struct span span_of(struct cursor *c, const struct length *l, const struct span *before) {
  struct span a = {0, 0}, b = a, s = {l->number, l->number};
  int64_t x = 0, y = 0;
  int over = 0;
  if (l->kind != NUMBER) a = before[l->a], b = before[l->b];
  if (l->kind == SUM) {
    over = __builtin_add_overflow(a.lo, b.lo, &s.lo) | __builtin_add_overflow(a.hi, b.hi, &s.hi);
  } else if (l->kind == PRODUCT) {
    over = __builtin_mul_overflow(a.lo, l->number, &x);
    over |= __builtin_mul_overflow(a.hi, l->number, &y);
    s = x < y ? (struct span){x, y} : (struct span){y, x};
  } else if (l->kind == QUOTIENT) {
    s = (struct span){floor_div(a.lo, l->number), floor_div(a.hi, l->number)};
  } else if (l->kind == REST) {
    s = a.lo < 0 || a.hi >= l->number ? (struct span){0, l->number - 1} : a;
  }
  if (over || s.lo < -MOST || s.hi > MOST) c->bad = "a length is too large";
  return s;
}

/* The bounds of a list, the last one's of an entry no less than all dims; `within`: those of dims and
 * lengths under them. */
static void list_bounds(struct cursor *c, const struct plan *p, int last, const struct span *spans,
                        struct list *l, struct span *within) {
  l->bounds = (const uint64_t *)(const void *)c->at;
  for (size_t i = 0; i < p->n_dims; ++i) {
    uint64_t bound = word(c), most = (uint64_t)spans[i].hi;
    if (c->bad) return;
    if (bound > most) bound = most;
    within[i] = spans[i];
    within[i].hi = (int64_t)bound - (int64_t)bound % p->dims[i].multiple;
    if (last && bound < most) c->bad = "no launches for all dims";
    if (!c->bad && &p->dims[i] == l->entry->counter && bound < most)
      c->bad = "launches for some repetitions only";
    if (!c->bad && within[i].hi < within[i].lo) c->bad = "launches for no dims";
  }
  for (size_t i = 0; i < p->n_lengths && !c->bad; ++i)
    within[p->n_dims + i] = span_of(c, &p->lengths[i], within);
}

/* How tensors of an entry lie in memory for a list: extents, no less than the greatest lengths. */
static void list_tensors(struct cursor *c, const lumc_tensor *of, size_t n,
                         const struct span *within, lumc_tensor *to) {
  for (size_t i = 0; i < n && !c->bad; ++i) {
    to[i] = of[i];
    to[i].shape = (const int64_t *)(const void *)c->at;
    to[i].bytes = dtype_bytes(of[i].dtype);
    for (int k = 0; k < of[i].rank; ++k) {
      uint64_t extent = word(c), which = lengths_of(&of[i])[k], most = (uint64_t)of[i].shape[k];
      uint64_t least = which ? (uint64_t)within[which - 1].hi : most;
      if (!c->bad && (extent < least || extent > most)) c->bad = "a list has no room for its lengths";
      to[i].bytes *= (size_t)extent;
    }
  }
}

static void list(struct cursor *c, const struct plan *p, const struct entry *e, int last,
                 const struct span *spans, struct list *l) {
  struct span within[MAX_DIMS + MAX_LENGTHS];
  l->entry = e;
  list_bounds(c, p, last, spans, l, within);
  l->inputs = table(c, e->n_inputs + e->n_outputs, sizeof *l->inputs);
  l->outputs = l->inputs ? l->inputs + e->n_inputs : NULL;
  list_tensors(c, e->inputs, e->n_inputs, within, l->inputs);
  list_tensors(c, e->outputs, e->n_outputs, within, l->outputs);
  plan_turns(c, p, l);
  l->n_launches = count(c, 2);
  if (!c->bad && l->last > l->n_launches) c->bad = "micro-batches of other launches than there are";
  l->launches = table(c, l->n_launches, sizeof *l->launches);
  for (size_t i = 0; i < l->n_launches && !c->bad; ++i) read_launch(c, p, l, &l->launches[i]);
}

static void entry(struct cursor *c, struct plan *p, const struct span *spans, struct entry *e) {
  e->name = string(c);
  e->arena = word_below(c, MAX_BYTES, "an arena is too large");
  e->inputs = tensors(c, spans, p->n_dims + p->n_lengths, &e->n_inputs);
  e->outputs = tensors(c, spans, p->n_dims + p->n_lengths, &e->n_outputs);
  e->repeats = 1;
  e->told = (const struct told *)(const void *)c->at;
  for (size_t i = 0; i < p->n_dims && !c->bad; ++i) told(c, e, &p->dims[i], &spans[i]);
  e->first_list = p->n_lists;
  e->n_lists = count(c, 1);
  if (!c->bad && !e->n_lists) c->bad = "no launches for all dims";
  struct list *more = c->bad ? NULL : realloc(p->lists, (p->n_lists + e->n_lists) * sizeof *more);
  if (!c->bad && !more) c->bad = "out of memory", c->code = LUMC_FAILED;
  if (c->bad) return;
  p->lists = more;
  for (size_t i = 1; i <= e->n_lists && !c->bad; ++i) {
    struct list *l = memset(&p->lists[p->n_lists++], 0, sizeof *l);
    list(c, p, e, i == e->n_lists, spans, l);
  }
}

static uint64_t times(struct cursor *c, uint64_t a, uint64_t b) {
  return a && b > MAX_BYTES / a ? c->bad = "a packing is too large", 0 : a * b;
}

static void packing(struct cursor *c, const struct plan *p, struct packing *k) {
  uint64_t last, size;
  k->from = word(c), k->bytes = word(c);
  k->element = word_below(c, 9, "a packing has unknown elements");
  k->to = word(c);
  last = k->base = word_below(c, MAX_BYTES, "a packing is too large");
  k->width = word_below(c, MAX_BYTES, "a packing is too large");
  k->lanes = word_below(c, MAX_BYTES, "a packing is too large");
  k->rank = (size_t)word_below(c, MAX_RANK + 2, "a rank is too large");
  k->dims = (const struct dim *)(const void *)c->at;
  size = k->element;
  for (size_t i = 0; i < k->rank && !c->bad; ++i) {
    uint64_t extent = word(c), stride = word(c);
    int panel = k->width && (i == 0 || i + 1 == k->rank);
    size = times(c, size, extent);
    if (!c->bad && !extent) c->bad = "a packing is empty";
    uint64_t steps = panel ? (i ? k->lanes : 1) : extent;
    last += c->bad || !steps ? 0 : times(c, steps - 1, stride);
  }
  if (c->bad) return;
  if (!k->element || k->element & (k->element - 1))
    c->bad = "a packing has unknown elements";
  else if (k->width && (k->rank < 2 || k->dims[k->rank - 1].extent != k->width ||
                        !k->lanes || k->dims[0].extent != (k->lanes - 1) / k->width + 1))
    c->bad = "a packing has other panels";
  else if (k->width && k->dims[0].stride != k->dims[k->rank - 1].stride * k->width)
    c->bad = "a packing has other panels";
  else if (!inside(k->from, k->bytes, p->weights_bytes) || last >= k->bytes / k->element)
    c->bad = "a packing reads outside of its weight";
  else if (!inside(k->to, size, p->packed_bytes))
    c->bad = "a packing lies outside of its place";
}

static void dim(struct cursor *c, const struct plan *p, lumc_dim *d, struct span *s) {
  d->name = string(c);
  d->lo = number(c), d->hi = number(c), d->multiple = number(c);
  if (!c->bad && (d->lo < 0 || d->hi < d->lo || d->multiple < 1)) c->bad = "a dim has no values";
  if (c->bad) return;
  s->lo = d->lo % d->multiple ? d->lo - d->lo % d->multiple + d->multiple : d->lo;
  s->hi = d->value = d->hi - d->hi % d->multiple;
  if (s->lo > s->hi) c->bad = "a dim has no values";
  for (const lumc_dim *other = p->dims; other < d && !c->bad; ++other)
    if (!strcmp(other->name, d->name)) c->bad = "two dims have one name";
}

static void length(struct cursor *c, size_t before, struct span *spans) {
  struct length l = {.kind = word_below(c, LENGTH_KINDS, "an unknown kind of length")};
  l.a = word(c), l.b = word(c), l.number = number(c);
  if (c->bad) return;
  if (l.kind != NUMBER && (l.a >= before || l.b >= before))
    c->bad = "a length is made of a later one";
  else if (l.kind >= QUOTIENT && l.number < 1)
    c->bad = "a length has no divisor";
  else
    spans[before] = span_of(c, &l, spans);
}

/* Symbolic dims, and lengths that are made of them. */
static struct span *dims(struct cursor *c, struct plan *p) {
  p->n_dims = count(c, 5);
  if (!c->bad && p->n_dims > MAX_DIMS) c->bad = "there are too many dims";
  p->dims = table(c, p->n_dims, sizeof *p->dims);
  struct span *spans = table(c, MAX_DIMS + MAX_LENGTHS, sizeof *spans);
  for (size_t i = 0; i < p->n_dims && !c->bad; ++i) dim(c, p, &p->dims[i], &spans[i]);
  p->n_lengths = count(c, 4);
  if (!c->bad && p->n_lengths > MAX_LENGTHS) c->bad = "there are too many lengths";
  p->lengths = (const struct length *)(const void *)c->at;
  for (size_t i = 0; i < p->n_lengths && !c->bad; ++i) length(c, p->n_dims + i, spans);
  return spans;
}

static void header(struct cursor *c, struct plan *p) {
  p->target = string(c);
  p->arch = string(c);
  p->n_features = count(c, 2);
  p->features = table(c, p->n_features, sizeof *p->features);
  for (size_t i = 0; i < p->n_features && !c->bad; ++i) p->features[i] = string(c);
}

static void tensor_maps(struct cursor *c, struct kernel *k) {
  k->n_maps = count(c, sizeof *k->maps / 8);
  k->maps = (const struct tensor_map *)(const void *)c->at;
  for (size_t i = 0; i < k->n_maps && !c->bad; ++i) {
    struct tensor_map m;
    memcpy(&m, c->at, sizeof m);
    c->at += sizeof m;
    if (m.rank != 2 && m.rank != 3) c->bad = "a tensor map has other axes";
    for (uint64_t a = 0; a < m.rank && !c->bad; ++a)
      if (m.dims[a] - 1 >= ((uint64_t)1 << 31) - 1 ||
          (a && (m.strides[a - 1] - 1 >= ((uint64_t)1 << 40) - 1 || m.strides[a - 1] % 16)))
        c->bad = "no driver makes such a tensor map";
    if (!c->bad && (m.box[0] != 64 || m.box[1] - 1 >= 256)) c->bad = "no driver makes such a tensor map";
  }
}

static void constants(struct cursor *c, struct plan *p, int maps) {
  p->weights_start = word_below(c, MAX_BYTES, "the weights are too large");
  p->weights_bytes = word_below(c, MAX_BYTES, "the weights are too large");
  p->packed_bytes = word_below(c, MAX_BYTES, "the weights are too large");
  p->n_packings = count(c, 8);
  p->packings = table(c, p->n_packings, sizeof *p->packings);
  for (size_t i = 0; i < p->n_packings && !c->bad; ++i) packing(c, p, &p->packings[i]);
  p->states = tensors(c, NULL, 0, &p->n_states);
  p->first = (const uint64_t *)(const void *)c->at;
  for (size_t i = 0; i < p->n_states && !c->bad; ++i) {
    uint64_t at = word(c);
    if (at && !inside(at - 1, p->states[i].bytes, p->weights_bytes))
      c->bad = "the first value of a state lies outside of the weights";
  }
  p->n_kernels = count(c, 7);
  p->kernels = table(c, p->n_kernels, sizeof *p->kernels);
  for (size_t i = 0; i < p->n_kernels && !c->bad; ++i) {
    p->kernels[i].symbol = string(c);
    p->kernels[i].parallel = word_below(c, MAX_THREADS + 1, "there are too many parts");
    p->kernels[i].scratch = word_below(c, (uint64_t)1 << 36, "a scratch size is too large");
    p->kernels[i].blocks = word_below(c, (uint64_t)1 << 31, "a grid is too large");
    p->kernels[i].threads = word_below(c, 1025, "a block has too many threads");
    p->kernels[i].shared = word_below(c, 1 << 20, "a block has too much shared memory");
    if (maps) tensor_maps(c, &p->kernels[i]);
  }
}

int plan_read(struct plan *p, uint8_t *data, size_t size) {
  static const uint64_t one = 1;
  struct cursor c = {data, data + size, NULL, LUMC_CORRUPT};
  memset(p, 0, sizeof *p);
  p->data = data;
  if (*(const uint8_t *)&one != 1)
    return lumc_fail(LUMC_DEVICE, "big-endian machines cannot run bundles");
  if (size < 16 || memcmp(data, "LUMCPLAN", 8)) c.bad = "it is not a plan";
  word(&c);
  uint64_t version = word(&c);
  const int maps = version >= 16 && version < 32; /* kernels have tensor maps */
  if (maps) version -= 16;
  const int ranks = version >= 6 && version <= 8; /* from 7 on it tells of stages */
  if (version != 5 && version != 9 && !ranks && !c.bad) c.bad = "its version is not supported";
  header(&c, p);
  struct span *spans = dims(&c, p);
  if (ranks) plan_mesh(&c, p, (int)version - 6);
  constants(&c, p, maps);
  if (ranks) plan_exchanges(&c, p);
  p->n_entries = count(&c, 6);
  p->entries = table(&c, p->n_entries, sizeof *p->entries);
  for (size_t i = 0; i < p->n_entries && !c.bad; ++i) entry(&c, p, spans, &p->entries[i]);
  free(spans);
  if (!c.bad && c.at != c.end) c.bad = "bytes follow its end";
  if (c.bad && c.code == LUMC_FAILED) return lumc_fail(c.code, "cannot read the plan: %s", c.bad);
  return c.bad ? lumc_fail(c.code, "corrupt plan: %s", c.bad) : LUMC_OK;
}

void plan_free(struct plan *p) {
  for (size_t i = 0; p->entries && i < p->n_entries; ++i)
    free(p->entries[i].inputs), free(p->entries[i].outputs);
  for (size_t i = 0; i < p->n_lists; ++i) free(p->lists[i].launches), free(p->lists[i].inputs);
  free(p->lists);
  free(p->dims);
  free(p->entries);
  free(p->kernels);
  free(p->packings);
  free(p->states);
  free(p->parts);
  free(p->axes);
  free(p->segments);
  free(p->exchanges);
  free(p->features);
  free(p->data);
  memset(p, 0, sizeof *p);
}

/* plan.c - reads plan.bin. Everything is 8-byte words, little endian, in one pass: the format is
 * in docs/bundle.md. The file is not trusted: counts are bounded by the bytes that are left,
 * offsets by the sections that they point into. */
#include "internal.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t MAX_BYTES = (uint64_t)1 << 46; /* of a tensor or an arena */

static _Thread_local char message[1024];

int lumc_fail(int code, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(message, sizeof message, format, args);
  va_end(args);
  return code;
}

const char *lumc_error(void) { return message; }

static const struct {
  const char *name;
  size_t bytes;
} dtypes[] = {{"f32", 4}, {"f16", 2}, {"bf16", 2}, {"f64", 8}, {"i64", 8},
              {"i32", 4}, {"i8", 1},  {"u8", 1},   {"bool", 1}};

const char *dtype_name(int dtype) { return dtypes[dtype].name; }
size_t dtype_bytes(int dtype) { return dtypes[dtype].bytes; }

struct cursor {
  const uint8_t *at, *end;
  const char *bad; /* what is wrong; after it every read gives zeros */
  int code;        /* why: the plan's fault, if nothing else is said */
};

static uint64_t word(struct cursor *c) {
  uint64_t value = 0;
  if (c->bad) return 0;
  if (c->end - c->at < 8) {
    c->bad = "it is truncated";
    return 0;
  }
  memcpy(&value, c->at, 8);
  c->at += 8;
  return value;
}

static uint64_t word_below(struct cursor *c, uint64_t limit, const char *what) {
  uint64_t value = word(c);
  if (!c->bad && value >= limit) c->bad = what;
  return c->bad ? 0 : value;
}

/* The number of records that follow, each of at least `words` words. */
static size_t count(struct cursor *c, size_t words) {
  uint64_t n = word(c), left = (uint64_t)(c->end - c->at) / 8 / words;
  if (!c->bad && n > left) c->bad = "a count exceeds the file";
  return c->bad ? 0 : (size_t)n;
}

static void *table(struct cursor *c, size_t n, size_t size) {
  void *memory = c->bad ? NULL : calloc(n + 1, size);
  if (!memory && !c->bad) c->bad = "out of memory", c->code = LUMC_FAILED;
  return memory;
}

/* A length, the bytes, a NUL, zeros up to the next word: used where it lies. */
static const char *string(struct cursor *c) {
  size_t n = (size_t)word_below(c, MAX_NAME, "a name is too long"), room = (n + 8) / 8 * 8;
  const char *text = (const char *)c->at;
  if (c->bad) return "";
  if ((size_t)(c->end - c->at) < room) {
    c->bad = "it is truncated";
    return "";
  }
  for (size_t i = 0; i < room; ++i)
    if (i < n ? (unsigned char)text[i] < 0x20 || text[i] == 0x7f : text[i] != 0) {
      c->bad = "a name holds a control character";
      return "";
    }
  c->at += room;
  return text;
}

static void tensor(struct cursor *c, lumc_tensor *t) {
  uint64_t bytes;
  int zero = 0;
  t->name = string(c);
  t->dtype = (int)word_below(c, sizeof dtypes / sizeof *dtypes, "an unknown dtype");
  t->rank = (int)word_below(c, MAX_RANK + 1, "a rank is too large");
  t->shape = (const int64_t *)(const void *)c->at;
  bytes = dtypes[t->dtype].bytes;
  for (int i = 0; i < t->rank; ++i) {
    uint64_t extent = word_below(c, MAX_BYTES, "an extent is too large");
    zero |= extent == 0;
    if (extent && bytes > MAX_BYTES / extent) c->bad = "a tensor is too large";
    if (!c->bad && extent) bytes *= extent;
  }
  t->bytes = zero ? 0 : (size_t)bytes;
}

static lumc_tensor *tensors(struct cursor *c, size_t *n) {
  *n = count(c, 4);
  lumc_tensor *list = table(c, *n, sizeof *list);
  uint64_t total = 0; /* with room for each to start at a page */
  for (size_t i = 0; i < *n && !c->bad; ++i) {
    tensor(c, &list[i]);
    total += list[i].bytes + 4096;
    if (total > MAX_BYTES && !c->bad) c->bad = "the tensors are too large together";
  }
  return list;
}

static int inside(uint64_t offset, uint64_t bytes, uint64_t size) {
  return offset % 64 == 0 && bytes <= size && offset <= size - bytes;
}

static int fits(const struct plan *p, const struct entry *e, const struct arg *a) {
  switch (a->place) {
  case NOWHERE: return 1;
  case INPUT: return a->index < e->n_inputs && a->bytes <= e->inputs[a->index].bytes;
  case OUTPUT: return a->index < e->n_outputs && a->bytes <= e->outputs[a->index].bytes;
  case ARENA: return inside(a->offset, a->bytes, e->arena);
  case WEIGHT: return inside(a->offset, a->bytes, p->weights_bytes);
  case PACKED: return inside(a->offset, a->bytes, p->packed_bytes);
  case STATE: return a->index < p->n_states && a->bytes <= p->states[a->index].bytes;
  case SCRATCH: return 1;
  default: return 0;
  }
}

static void launch(struct cursor *c, const struct plan *p, const struct entry *e,
                   struct launch *l) {
  l->kernel = word_below(c, p->n_kernels, "a launch names no kernel");
  l->n_args = count(c, 4);
  l->args = (const struct arg *)(const void *)c->at;
  if (c->bad) return;
  c->at += l->n_args * sizeof *l->args;
  for (size_t i = 0; i < l->n_args; ++i)
    if (!fits(p, e, &l->args[i])) c->bad = "an argument lies outside of its place";
}

static void entry(struct cursor *c, const struct plan *p, struct entry *e) {
  e->name = string(c);
  e->arena = word_below(c, MAX_BYTES, "an arena is too large");
  e->inputs = tensors(c, &e->n_inputs);
  e->outputs = tensors(c, &e->n_outputs);
  e->n_launches = count(c, 2);
  e->launches = table(c, e->n_launches, sizeof *e->launches);
  for (size_t i = 0; i < e->n_launches && !c->bad; ++i) launch(c, p, e, &e->launches[i]);
}

static uint64_t times(struct cursor *c, uint64_t a, uint64_t b) {
  if (a && b > MAX_BYTES / a) c->bad = "a packing is too large";
  return c->bad ? 0 : a * b;
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
  if (k->element != 1 && k->element != 2 && k->element != 4 && k->element != 8)
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

static void header(struct cursor *c, struct plan *p) {
  p->target = string(c);
  p->arch = string(c);
  p->n_features = count(c, 2);
  p->features = table(c, p->n_features, sizeof *p->features);
  for (size_t i = 0; i < p->n_features && !c->bad; ++i) p->features[i] = string(c);
  p->weights_start = word_below(c, MAX_BYTES, "the weights are too large");
  p->weights_bytes = word_below(c, MAX_BYTES, "the weights are too large");
  p->packed_bytes = word_below(c, MAX_BYTES, "the weights are too large");
  p->n_packings = count(c, 8);
  p->packings = table(c, p->n_packings, sizeof *p->packings);
  for (size_t i = 0; i < p->n_packings && !c->bad; ++i) packing(c, p, &p->packings[i]);
  p->states = tensors(c, &p->n_states);
  p->n_kernels = count(c, 7);
  p->kernels = table(c, p->n_kernels, sizeof *p->kernels);
  for (size_t i = 0; i < p->n_kernels && !c->bad; ++i) {
    p->kernels[i].symbol = string(c);
    p->kernels[i].parallel = word_below(c, MAX_THREADS + 1, "there are too many parts");
    p->kernels[i].scratch = word_below(c, (uint64_t)1 << 36, "a scratch size is too large");
    p->kernels[i].blocks = word_below(c, (uint64_t)1 << 31, "a grid is too large");
    p->kernels[i].threads = word_below(c, 1025, "a block has too many threads");
    p->kernels[i].shared = word_below(c, 1 << 20, "a block has too much shared memory");
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
  if (word(&c) != 2 && !c.bad) c.bad = "its version is not supported";
  header(&c, p);
  p->n_entries = count(&c, 6);
  p->entries = table(&c, p->n_entries, sizeof *p->entries);
  for (size_t i = 0; i < p->n_entries && !c.bad; ++i) entry(&c, p, &p->entries[i]);
  if (!c.bad && c.at != c.end) c.bad = "bytes follow its end";
  if (c.bad && c.code == LUMC_FAILED) return lumc_fail(c.code, "cannot read the plan: %s", c.bad);
  return c.bad ? lumc_fail(c.code, "corrupt plan: %s", c.bad) : LUMC_OK;
}

void plan_free(struct plan *p) {
  for (size_t i = 0; p->entries && i < p->n_entries; ++i) {
    free(p->entries[i].inputs);
    free(p->entries[i].outputs);
    free(p->entries[i].launches);
  }
  free(p->entries);
  free(p->kernels);
  free(p->packings);
  free(p->states);
  free(p->features);
  free(p->data);
  memset(p, 0, sizeof *p);
}

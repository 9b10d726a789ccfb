/* memory.c - memory of our own, and the large files of a bundle in it. */
#include "ranks.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LARGEST_PAGE = 16384 }; /* of any system: Apple's */

int reserve(struct block *b, size_t bytes) {
  size_t size = (bytes + LARGEST_PAGE) / LARGEST_PAGE * LARGEST_PAGE;
  size_t extra = size >= HUGE_PAGE ? HUGE_PAGE : 0;
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

void release(struct block *b) {
  if (b->data) munmap(b->data, b->bytes);
  *b = (struct block){NULL, 0};
}

/* One axis of a box and those inside of it, `by` bytes further; the last elements first where
 * these would be overwritten else. */
static void move(const lumc_tensor *t, int axis, const int64_t *shape, uint8_t *from,
                 ptrdiff_t by) {
  size_t step = dtype_bytes(t->dtype);
  for (int i = axis + 1; i < t->rank; ++i) step *= (size_t)t->shape[i];
  if (axis + 1 >= t->rank) {
    memmove(from + by, from, axis < t->rank ? (size_t)shape[axis] * step : step);
    return;
  }
  for (int64_t i = 0; i < shape[axis]; ++i)
    move(t, axis + 1, shape, from + (size_t)(by > 0 ? shape[axis] - 1 - i : i) * step, by);
}

void copy_box(const lumc_tensor *t, uint8_t *data, const int64_t *from, const int64_t *to,
              const int64_t *shape) {
  ptrdiff_t start = 0, by = 0, step = (ptrdiff_t)dtype_bytes(t->dtype);
  for (int i = t->rank - 1; i >= 0; step *= (ptrdiff_t)t->shape[i--]) {
    start += from[i] * step;
    by += (to[i] - from[i]) * step;
  }
  if (by) move(t, 0, shape, data + start, by);
}

void clear(uint8_t *data, size_t bytes) {
  static const uint8_t zero[PAGE];
  for (size_t n; bytes; data += n, bytes -= n) {
    n = bytes < PAGE ? bytes : PAGE;
    if (memcmp(data, zero, n)) memset(data, 0, n);
  }
}

size_t aligned(uint64_t bytes) { return (size_t)((bytes + ALIGN - 1) / ALIGN * ALIGN); }

void *zeros(size_t n, size_t size, int *code) {
  void *memory = *code ? NULL : calloc(n + 1, size);
  if (!memory && !*code) *code = lumc_fail(LUMC_FAILED, "out of memory");
  return memory;
}

int read_checked(const struct source *s, const char *name, size_t limit, char **data,
                 size_t *size) {
  struct sha256 hash;
  sha256_start(&hash);
  int code = read_whole(s->folder, name, limit, data, size, &hash);
  if (!code && (code = check_hash(s->manifest, name, &hash))) free(*data);
  return code;
}

/* The first values of states, which a state may have again long after the bundle is gone. */
static int keep_first(const struct plan *plan, const struct mesh *mesh, const uint8_t *weights,
                      struct block *to) {
  size_t bytes = 0;
  for (size_t i = 0; i < plan->n_states; ++i)
    bytes += plan->first[i] && mesh_has_state(mesh, plan, i) ? plan->states[i].bytes : 0;
  int code = bytes ? reserve(to, bytes) : LUMC_OK;
  uint8_t *at = to->data;
  for (size_t i = 0; i < plan->n_states && !code; ++i)
    if (plan->first[i] && plan->states[i].bytes && mesh_has_state(mesh, plan, i)) {
      memcpy(at, weights + plan->first[i] - 1, plan->states[i].bytes);
      at += plan->states[i].bytes;
    }
  return code;
}

/* Every part is hashed; those of other ranks are forgotten. */
static int read_parts(int file, const char *name, const struct plan *plan, const struct mesh *mesh,
                      uint8_t *to, struct sha256 *hash) {
  enum { STEP = 1 << 16 };
  uint8_t *other = malloc(STEP);
  int code = other ? LUMC_OK : lumc_fail(LUMC_FAILED, "out of memory");
  for (size_t i = 0; i < plan->n_segments && !code; ++i) {
    const struct segment *s = &plan->segments[i];
    uint64_t own = mesh_has(mesh, plan, s->who) ? mesh_part(mesh, plan, s) : s->parts;
    for (uint64_t part = 0; part < s->parts && !code; ++part)
      for (uint64_t done = 0, n; done < s->bytes && !code; done += n) {
        n = s->bytes - done < STEP ? s->bytes - done : STEP;
        code = read_hashed(file, name, part == own ? to + s->to + done : other, (size_t)n, hash);
      }
  }
  free(other);
  return code;
}

int read_weights(const struct source *s, const struct plan *plan, struct block *to) {
  static const char name[] = "weights.safetensors";
  size_t size, start = (size_t)plan->weights_start, bytes = (size_t)plan->weights_bytes;
  const struct segment *last = plan->n_segments ? &plan->segments[plan->n_segments - 1] : NULL;
  uint64_t stored = last ? last->from + last->bytes * last->parts : bytes;
  struct sha256 hash;
  int file, code = open_file(s->folder, name, &size, &file);
  if (code) return code;
  uint8_t *head = NULL;
  if (start > size || size - start != stored)
    code = lumc_fail(LUMC_CORRUPT, "%s does not have the size that the plan says", name);
  else if (!(head = malloc(start + 1)))
    code = lumc_fail(LUMC_FAILED, "cannot allocate %zu bytes", start);
  sha256_start(&hash);
  if (!code) code = read_hashed(file, name, head, start, &hash);
  if (!code) code = reserve(to, bytes);
  if (!code && plan->n_axes)
    code = read_parts(file, name, plan, s->mesh, to->data, &hash);
  else if (!code)
    code = read_hashed(file, name, to->data, bytes, &hash);
  if (!code) code = check_hash(s->manifest, name, &hash);
  if (!code) code = keep_first(plan, s->mesh, to->data, s->first);
  free(head);
  close(file);
  return code;
}

/* One dimension and those inside of it; `left` lanes are to come in the panels of the outermost. */
static uint8_t *pack(const struct packing *k, size_t depth, uint64_t left, const uint8_t *from,
                     uint8_t *to) {
  const struct dim *d = &k->dims[depth];
  size_t element = (size_t)k->element, step = (size_t)d->stride * element;
  if (depth + 1 < k->rank) {
    for (uint64_t i = 0; i < d->extent; ++i, from += step) {
      uint64_t rest = k->width && !depth ? k->lanes - i * k->width : left;
      to = pack(k, depth + 1, rest, from, to);
    }
    return to;
  }
  uint64_t n = k->width && left < d->extent ? left : d->extent;
  for (uint64_t i = 0; i < n; ++i, from += step, to += element) memcpy(to, from, element);
  return to + (d->extent - n) * element; /* the memory is zero */
}

int pack_weights(const struct plan *plan, const struct mesh *mesh, const uint8_t *weights,
                 struct block *to) {
  int code = reserve(to, (size_t)plan->packed_bytes);
  for (size_t i = 0; i < plan->n_packings && !code; ++i) {
    const struct packing *k = &plan->packings[i];
    if (i < plan->n_packed && !mesh_has(mesh, plan, plan->packed[i])) continue;
    const uint8_t *from = weights + k->from + k->base * k->element;
    if (k->rank) pack(k, 0, 0, from, to->data + k->to);
    else memcpy(to->data + k->to, from, (size_t)k->element);
  }
  return code;
}

/* feed.c - where a loop of steps has its inputs from: arrays of files, by rows or by steps. Files are
 * mapped, so they may be larger than the memory; nobody may change them meanwhile. */
#include "internal.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int map_file(const char *path, struct block *b) {
  struct stat s;
  int file = open(path, O_RDONLY | O_CLOEXEC), code = LUMC_OK;
  if (file < 0) return lumc_fail(LUMC_USAGE, "cannot open %s: %s", path, strerror(errno));
  if (fstat(file, &s) || !S_ISREG(s.st_mode) || !s.st_size)
    code = lumc_fail(LUMC_USAGE, "%s: not a file of arrays", path);
  void *p = code ? NULL : mmap(NULL, (size_t)s.st_size, PROT_READ, MAP_PRIVATE, file, 0);
  if (!code && p == MAP_FAILED)
    code = lumc_fail(LUMC_FAILED, "cannot read %s: %s", path, strerror(errno));
  close(file);
  if (!code) *b = (struct block){p, (size_t)s.st_size};
  return code;
}

/* ---- .npz: a zip whose members are stored as they are */
static uint64_t little(const uint8_t *at, int bytes) {
  uint64_t value = 0;
  while (bytes--) value = value << 8 | at[bytes];
  return value;
}

/* Where the list of members begins and how many there are; 0 for no zip. */
static size_t members(const struct block *b, size_t *at) {
  size_t last = b->bytes < 22 ? 0 : b->bytes - 22, most = last > 65535 ? last - 65535 : 0;
  if (b->bytes < 22) return 0;
  for (size_t end = last;; --end) {
    const uint8_t *e = b->data + end;
    if (little(e, 4) == 0x06054b50) {
      *at = (size_t)little(e + 16, 4);
      return *at <= end ? (size_t)little(e + 10, 2) : 0;
    }
    if (end == most) return 0;
  }
}

/* The member NAME.npy, if there is one. */
static int npz_view(const char *path, const struct block *b, const char *name, struct npy *t) {
  size_t at = 0, n = members(b, &at), length = strlen(name);
  memset(t, 0, sizeof *t);
  if (!n) return lumc_fail(LUMC_USAGE, "%s: not an .npz file", path);
  for (size_t i = 0; i < n; ++i) {
    const uint8_t *c = b->data + at;
    if (b->bytes - at < 46 || little(c, 4) != 0x02014b50) break;
    size_t own = (size_t)little(c + 28, 2), extra = (size_t)little(c + 30, 2) + (size_t)little(c + 32, 2);
    if (b->bytes - at - 46 < own + extra) break;
    at += 46 + own + extra;
    if (own != length + 4 || memcmp(c + 46, name, length) || memcmp(c + 46 + length, ".npy", 4))
      continue;
    uint64_t size = little(c + 20, 4), start = little(c + 42, 4);
    if (little(c + 10, 2) || little(c + 8, 2) & 1)
      return lumc_fail(LUMC_USAGE, "%s: '%s' is compressed; save it with numpy.savez", path, name);
    if (size == 0xffffffffu || start == 0xffffffffu)
      return lumc_fail(LUMC_USAGE, "%s: larger than 4 GB; use .npy or .safetensors", path);
    if (start > b->bytes || b->bytes - start < 30 || little(b->data + start, 4) != 0x04034b50)
      return lumc_fail(LUMC_USAGE, "%s: '%s' lies outside of the file", path, name);
    const uint8_t *head = b->data + start;
    start += 30 + little(head + 26, 2) + little(head + 28, 2);
    if (start > b->bytes || size > b->bytes - start)
      return lumc_fail(LUMC_USAGE, "%s: '%s' lies outside of the file", path, name);
    return npy_view(path, b->data + start, (size_t)size, t);
  }
  return LUMC_OK;
}

/* ---- what an array is to an input */

static int ends_with(const char *text, const char *end) {
  size_t n = strlen(text), k = strlen(end);
  return n >= k && !strcmp(text + n - k, end);
}

static int has_extents(const int64_t *a, const int64_t *b, int n) {
  return !n || !memcmp(a, b, (size_t)n * sizeof *a);
}

/* An array of rows, of which a step takes as many as the input has, or with a value for each step. */
static int fits(struct feed *f, int i, const char *path) {
  const lumc_tensor *t = lumc_input(f->model, f->entry, i);
  struct fed *a = &f->arrays[i];
  const struct npy *is = &a->is;
  int same = npy_same(is->dtype, t->dtype);
  a->by_step = is->rank == t->rank + 1 && has_extents(is->shape + 1, t->shape, t->rank);
  int by_row = is->rank == t->rank && t->rank && has_extents(is->shape + 1, t->shape + 1, t->rank - 1);
  if (!same || !(a->by_step || by_row))
    return lumc_fail(LUMC_USAGE,
                     "%s cannot feed input '%s': it is %s with %d axes; an array has the dtype and "
                     "the extents of the input, but for the first: rows, or steps in front of all",
                     path, t->name, dtype_name(is->dtype), is->rank);
  if (a->by_step && is->shape[0] < f->steps)
    return lumc_fail(LUMC_USAGE, "%s has values of input '%s' for %lld steps, not for %ld", path,
                     t->name, (long long)is->shape[0], f->steps);
  if (a->by_step) return LUMC_OK;
  if (f->batch && (f->rows != is->shape[0] || f->batch != t->shape[0]))
    return lumc_fail(LUMC_USAGE, "%s has %lld rows, and a step takes %lld: another array has %lld, by %lld",
                     path, (long long)is->shape[0], (long long)t->shape[0], (long long)f->rows,
                     (long long)f->batch);
  f->rows = is->shape[0], f->batch = t->shape[0];
  if (f->batch && f->rows >= f->batch) return LUMC_OK;
  return lumc_fail(LUMC_USAGE, "%s has %lld rows, a step takes %lld", path, (long long)f->rows,
                   (long long)f->batch);
}

static int give(struct feed *f, int i, const struct npy *array, const char *path) {
  if (f->arrays[i].is.view || f->given[i])
    return lumc_fail(LUMC_USAGE, "input '%s' is given twice, the second time by %s",
                     lumc_input(f->model, f->entry, i)->name, path);
  f->arrays[i].is = *array;
  return fits(f, i, path);
}

/* The arrays of an .npz or a .safetensors that are called as inputs are. */
static int give_all(struct feed *f, const struct block *b, const char *path, int zip) {
  int n = lumc_inputs(f->model, f->entry), found = 0, code = LUMC_OK;
  for (int i = 0; i < n && !code; ++i) {
    struct npy array;
    const char *name = lumc_input(f->model, f->entry, i)->name;
    code = zip ? npz_view(path, b, name, &array)
               : tensor_view(path, b->data, b->bytes, name, &array);
    if (!code && array.view) code = give(f, i, &array, path), ++found;
  }
  if (code || found) return code;
  return lumc_fail(LUMC_USAGE, "%s has no array that is called as an input is", path);
}

int feed_open(struct feed *f, char *const *specs, int n) {
  int inputs = lumc_inputs(f->model, f->entry), code = LUMC_OK;
  f->files = zeros((size_t)n, sizeof *f->files, &code);
  f->arrays = zeros((size_t)inputs, sizeof *f->arrays, &code);
  for (int k = 0; k < n && !code; ++k) {
    const char *equals = strchr(specs[k], '='), *path = equals ? equals + 1 : specs[k];
    struct block *b = &f->files[f->n_files];
    struct npy array;
    int zip = ends_with(path, ".npz"), i = 0;
    if ((code = map_file(path, b))) break;
    f->n_files++;
    if (zip || ends_with(path, ".safetensors")) {
      code = equals ? lumc_fail(LUMC_USAGE, "%s has its names: --feed %s", path, path)
                    : give_all(f, b, path, zip);
      continue;
    }
    size_t length = equals ? (size_t)(equals - specs[k]) : 0;
    while (equals && i < inputs && (strlen(lumc_input(f->model, f->entry, i)->name) != length ||
                                    memcmp(lumc_input(f->model, f->entry, i)->name, specs[k], length)))
      ++i;
    if (i == inputs || (!equals && inputs != 1))
      code = lumc_fail(LUMC_USAGE, "no input for --feed %s; see lumc-run BUNDLE --list", specs[k]);
    if (!code) code = npy_view(path, b->data, b->bytes, &array);
    if (!code) code = give(f, i, &array, path);
  }
  for (int i = 0; i < inputs && !code; ++i)
    if (!f->given[i] && !f->arrays[i].is.view) {
      const char *name = lumc_input(f->model, f->entry, i)->name;
      code = lumc_fail(LUMC_USAGE, "input '%s' is missing: --feed %s=rows.npy, or --input %s=x.npy",
                       name, name, name);
    }
  return code;
}

void feed_close(struct feed *f) {
  for (size_t i = 0; i < f->n_files; ++i) munmap(f->files[i].data, f->files[i].bytes);
  if (f->listed.data) munmap(f->listed.data, f->listed.bytes);
  free(f->files);
  free(f->arrays);
  free(f->order);
}

/* ---- the order of rows */

static int64_t listed(const struct feed *f, uint64_t i) {
  int64_t wide;
  int32_t narrow;
  if (f->list.dtype == LUMC_I64) return memcpy(&wide, f->list.view + i * 8, 8), wide;
  memcpy(&narrow, f->list.view + i * 4, 4);
  return narrow;
}

int feed_listed(struct feed *f, const char *path) {
  int code = map_file(path, &f->listed);
  if (!code) code = npy_view(path, f->listed.data, f->listed.bytes, &f->list);
  if (code) return code;
  if (f->list.dtype != LUMC_I64 && f->list.dtype != LUMC_I32)
    return lumc_fail(LUMC_USAGE, "%s: the numbers of rows are i64 or i32", path);
  uint64_t n = f->list.bytes / dtype_bytes(f->list.dtype), want = (uint64_t)f->batch * (uint64_t)f->steps;
  if (n < want)
    return lumc_fail(LUMC_USAGE, "%s has %llu rows for %ld steps of %lld", path,
                     (unsigned long long)n, f->steps, (long long)f->batch);
  for (uint64_t i = 0; i < want; ++i)
    if (listed(f, i) < 0 || listed(f, i) >= f->rows)
      return lumc_fail(LUMC_USAGE, "%s: %lld is none of %lld rows", path, (long long)listed(f, i),
                       (long long)f->rows);
  return LUMC_OK;
}

/* The last step of splitmix64 (Steele, Lea and Flood 2014). */
static uint64_t mix(uint64_t z) {
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

/* All rows in another order, which a seed and the number of the epoch tell. */
static int shuffle(struct feed *f, uint64_t epoch) {
  int code = LUMC_OK;
  if (!f->order) f->order = zeros((size_t)f->rows, sizeof *f->order, &code);
  if (code) return code;
  for (int64_t i = 0; i < f->rows; ++i) f->order[i] = i;
  uint64_t at = mix(f->seed ^ mix(epoch + 1));
  for (int64_t i = f->rows - 1; i > 0; --i) {
    at += 0x9e3779b97f4a7c15u;
    int64_t k = (int64_t)(mix(at) % (uint64_t)(i + 1)), row = f->order[i];
    f->order[i] = f->order[k];
    f->order[k] = row;
  }
  f->epoch = epoch;
  return LUMC_OK;
}

static int64_t row_of(const struct feed *f, uint64_t step, int64_t i) {
  uint64_t each = (uint64_t)(f->rows / f->batch);
  if (f->list.view) return listed(f, step * (uint64_t)f->batch + (uint64_t)i);
  int64_t at = (int64_t)(step % each) * f->batch + i;
  return f->shuffled ? f->order[at] : at;
}

int feed_step(struct feed *f, uint64_t step, void *const *inputs) {
  int n = lumc_inputs(f->model, f->entry), code = LUMC_OK;
  uint64_t epoch = f->batch ? step / (uint64_t)(f->rows / f->batch) : 0;
  if (f->batch && f->shuffled && (!f->order || f->epoch != epoch)) code = shuffle(f, epoch);
  for (int k = 0; k < n && !code; ++k) {
    const struct fed *a = &f->arrays[k];
    size_t bytes = lumc_input(f->model, f->entry, k)->bytes;
    if (!a->is.view || !bytes) continue;
    if (a->by_step) {
      memcpy(inputs[k], a->is.view + step * bytes, bytes);
      continue;
    }
    size_t row = bytes / (size_t)f->batch;
    for (int64_t i = 0; i < f->batch; ++i)
      memcpy((uint8_t *)inputs[k] + (size_t)i * row, a->is.view + (size_t)row_of(f, step, i) * row, row);
  }
  return code;
}

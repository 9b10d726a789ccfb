/* safetensors.c - states in files: the length of a header, which is JSON and says what every tensor
 * is and where its bytes lie, then these. A file is not trusted. */
#include "internal.h"
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const uint64_t MAX_HEADER = 1 << 24, MOST = (uint64_t)1 << 62;
enum { NUMBER_CHARS = 21 };

/* ---- reading JSON: every function gives 0 for another text */
struct text {
  const char *at, *end;
};

static int next(struct text *t, char c) {
  while (t->at < t->end && strchr(" \t\r\n", *t->at) && *t->at) ++t->at;
  if (t->at == t->end || *t->at != c) return 0;
  ++t->at;
  return 1;
}

struct word { /* a string as it is written, with its escapes */
  const char *text;
  size_t n;
};

static int string(struct text *t, struct word *w) {
  if (!next(t, '"')) return 0;
  w->text = t->at;
  for (; t->at < t->end && *t->at != '"'; ++t->at) {
    if ((unsigned char)*t->at < 0x20) return 0;
    if (*t->at == '\\' && ++t->at == t->end) return 0;
  }
  w->n = (size_t)(t->at - w->text);
  return next(t, '"');
}

static int number(struct text *t, uint64_t *value) {
  while (next(t, ' ')) continue;
  const char *start = t->at;
  for (*value = 0; t->at < t->end && *t->at >= '0' && *t->at <= '9'; ++t->at) {
    *value = *value * 10 + (uint64_t)(*t->at - '0');
    if (*value > MOST) return 0;
  }
  return t->at > start && (t->at == start + 1 || *start != '0');
}

/* `[..]` of at most `most` numbers. */
static int numbers(struct text *t, uint64_t *values, int most, int *n) {
  *n = 0;
  if (!next(t, '[')) return 0;
  if (next(t, ']')) return 1;
  do {
    if (*n == most || !number(t, &values[(*n)++])) return 0;
  } while (next(t, ','));
  return next(t, ']');
}

static int is(const struct word *w, const char *text) {
  return w->n == strlen(text) && !memcmp(w->text, text, w->n);
}

static int is_dtype(const struct word *w, int dtype) {
  const char *name = dtype_name(dtype);
  size_t i = 0;
  for (; name[i] && i < w->n; ++i)
    if (toupper((unsigned char)name[i]) != w->text[i]) return 0;
  return !name[i] && i == w->n;
}

struct stored { /* a tensor of a file */
  struct word dtype;
  uint64_t shape[MAX_RANK], span[2];
  int rank, parts; /* which of the three it has told */
};

static int tensor(struct text *t, struct stored *s) {
  struct word key;
  int n = 0;
  memset(s, 0, sizeof *s);
  if (!next(t, '{')) return 0;
  do {
    if (!string(t, &key) || !next(t, ':')) return 0;
    int part = is(&key, "dtype") ? 1 : is(&key, "shape") ? 2 : is(&key, "data_offsets") ? 4 : 0;
    if (!part || s->parts & part) return 0;
    s->parts |= part;
    if (part == 1 && !string(t, &s->dtype)) return 0;
    if (part == 2 && !numbers(t, s->shape, MAX_RANK, &s->rank)) return 0;
    if (part == 4 && (!numbers(t, s->span, 2, &n) || n != 2)) return 0;
  } while (next(t, ','));
  return next(t, '}') && s->parts == 7;
}

/* `{"key": "value", ..}`: the values of the notes that are asked for. */
static int metadata(struct text *t, struct note *notes, size_t n) {
  struct word key, value;
  if (!next(t, '{')) return 0;
  if (next(t, '}')) return 1;
  do {
    if (!string(t, &key) || !next(t, ':') || !string(t, &value)) return 0;
    for (size_t i = 0; i < n; ++i)
      if (is(&key, notes[i].key) && value.n < sizeof notes[i].value)
        memcpy(notes[i].value, value.text, value.n), notes[i].value[value.n] = 0;
  } while (next(t, ','));
  return next(t, '}');
}

/* ---- reading files */

typedef int visit(void *self, const char *path, const struct word *name, const struct stored *);

/* Every tensor of a header is seen; what a visit gives that is not LUMC_OK ends it. */
static int header(const char *path, struct text t, struct note *notes, size_t n_notes, visit *see,
                  void *self) {
  struct word name;
  struct stored s;
  int good = next(&t, '{'), code = LUMC_OK;
  if (good && !next(&t, '}')) {
    do {
      good = string(&t, &name) && next(&t, ':');
      if (good && is(&name, "__metadata__")) {
        good = metadata(&t, notes, n_notes);
        continue;
      }
      good = good && tensor(&t, &s);
      if (good && (code = see(self, path, &name, &s))) return code;
    } while (good && next(&t, ','));
    good = good && next(&t, '}');
  }
  next(&t, 0); /* the blanks behind it */
  if (good && t.at == t.end) return LUMC_OK;
  return lumc_fail(LUMC_USAGE, "%s: its header cannot be read", path);
}

static int twice(const char *path, const struct word *name) {
  return lumc_fail(LUMC_USAGE, "%s: tensor '%.*s' stands twice", path, (int)name->n, name->text);
}

static int outside(const char *path, const struct word *name) {
  return lumc_fail(LUMC_USAGE, "%s: tensor '%.*s' lies outside of the file", path, (int)name->n,
                   name->text);
}

/* ---- the tensors of a file that has all of those that are wanted, and no others */
struct wanted {
  const lumc_tensor *tensors;
  size_t n;
  struct stored *found;
  uint64_t size; /* of the data in the file */
};

static int take(void *self, const char *path, const struct word *name, const struct stored *s) {
  const struct wanted *w = self;
  size_t i = 0;
  while (i < w->n && !is(name, w->tensors[i].name)) ++i;
  if (i == w->n)
    return lumc_fail(LUMC_USAGE, "%s: the bundle has no state '%.*s'", path,
                     (int)(name->n < 100 ? name->n : 100), name->text);
  const lumc_tensor *t = &w->tensors[i];
  if (w->found[i].parts) return twice(path, name);
  int same = is_dtype(&s->dtype, t->dtype) && s->rank == t->rank;
  for (int k = 0; same && k < t->rank; ++k) same = s->shape[k] == (uint64_t)t->shape[k];
  if (!same)
    return lumc_fail(LUMC_USAGE, "%s: tensor '%s' has another dtype or shape than the state", path,
                     t->name);
  if (s->span[0] > s->span[1] || s->span[1] > w->size || s->span[1] - s->span[0] != t->bytes)
    return outside(path, name);
  w->found[i] = *s;
  return LUMC_OK;
}

static int are_bools(const uint8_t *data, size_t n) {
  for (size_t i = 0; i < n; ++i)
    if (data[i] > 1) return 0;
  return 1;
}

static int read_data(const char *path, FILE *f, uint64_t start, const lumc_tensor *wanted, size_t n,
                     const struct stored *found, uint8_t *to) {
  for (size_t i = 0; i < n; to += wanted[i++].bytes) {
    size_t bytes = wanted[i].bytes;
    if (bytes && (fseeko(f, (off_t)(start + found[i].span[0]), SEEK_SET) ||
                  fread(to, 1, bytes, f) != bytes))
      return lumc_fail(LUMC_FAILED, "cannot read %s: %s", path,
                       ferror(f) ? strerror(errno) : "it became shorter");
    if (wanted[i].dtype == LUMC_BOOL && !are_bools(to, bytes))
      return lumc_fail(LUMC_USAGE, "%s: tensor '%s' has a bool that is neither 0 nor 1", path,
                       wanted[i].name);
  }
  return LUMC_OK;
}

/* The length of a header, of a file of so many bytes that begins so; 0 for another file. */
static uint64_t length_of(const uint8_t head[8], uint64_t size) {
  uint64_t length = 0;
  for (int i = 8; i--;) length = length << 8 | head[i];
  return length < 2 || length > MAX_HEADER || length > size - 8 ? 0 : length;
}

static int read_open(const char *path, FILE *f, const lumc_tensor *wanted, size_t n,
                     struct note *notes, size_t n_notes, uint8_t **data) {
  struct stat s;
  uint8_t head[8];
  uint64_t all = 0;
  int whole = !fstat(fileno(f), &s) && S_ISREG(s.st_mode) && fread(head, 1, 8, f) == 8;
  uint64_t length = whole ? length_of(head, (uint64_t)s.st_size) : 0;
  if (!length) return lumc_fail(LUMC_USAGE, "%s: not a safetensors file", path);
  int code = LUMC_OK;
  char *text = zeros((size_t)length, 1, &code);
  struct wanted w = {wanted, n, zeros(n, sizeof *w.found, &code), (uint64_t)s.st_size - 8 - length};
  if (!code && fread(text, 1, (size_t)length, f) != length)
    code = lumc_fail(LUMC_FAILED, "cannot read %s", path);
  if (!code) code = header(path, (struct text){text, text + length}, notes, n_notes, take, &w);
  for (size_t i = 0; i < n && !code; all += wanted[i++].bytes)
    if (!w.found[i].parts)
      code = lumc_fail(LUMC_USAGE, "%s: state '%s' is missing", path, wanted[i].name);
  if (!code) *data = zeros((size_t)all, 1, &code);
  if (!code) code = read_data(path, f, 8 + length, wanted, n, w.found, *data);
  free(text);
  free(w.found);
  return code;
}

int tensors_read(const char *path, const lumc_tensor *wanted, size_t n, struct note *notes,
                 size_t n_notes, uint8_t **data) {
  *data = NULL;
  FILE *f = fopen(path, "rb");
  if (!f) return lumc_fail(LUMC_USAGE, "cannot open %s: %s", path, strerror(errno));
  int code = read_open(path, f, wanted, n, notes, n_notes, data);
  fclose(f);
  if (code) free(*data), *data = NULL;
  return code;
}

/* ---- one tensor of a file in memory */
struct seen {
  const char *name;
  const uint8_t *data;
  uint64_t size;
  struct npy *to;
};

static int pick(void *self, const char *path, const struct word *name, const struct stored *s) {
  const struct seen *w = self;
  struct npy *t = w->to;
  uint64_t bytes;
  if (!is(name, w->name)) return LUMC_OK;
  if (t->view) return twice(path, name);
  for (t->dtype = LUMC_U64; t->dtype >= 0 && !is_dtype(&s->dtype, t->dtype);) --t->dtype;
  if (t->dtype < 0)
    return lumc_fail(LUMC_USAGE, "%s: tensor '%s' has another dtype", path, w->name);
  bytes = dtype_bytes(t->dtype);
  t->rank = s->rank;
  int over = s->span[0] > s->span[1] || s->span[1] > w->size;
  for (int i = 0; i < s->rank && !over; ++i) {
    t->shape[i] = (int64_t)s->shape[i];
    over = __builtin_mul_overflow(bytes, s->shape[i], &bytes);
  }
  if (over || s->span[1] - s->span[0] != bytes) return outside(path, name);
  t->bytes = (size_t)bytes;
  t->view = w->data + s->span[0];
  return LUMC_OK;
}

int tensor_view(const char *path, const uint8_t *data, size_t size, const char *name,
                struct npy *t) {
  uint64_t length = size < 8 ? 0 : length_of(data, size);
  memset(t, 0, sizeof *t);
  if (!length) return lumc_fail(LUMC_USAGE, "%s: not a safetensors file", path);
  const char *text = (const char *)data + 8;
  struct seen w = {name, data + 8 + length, size - 8 - length, t};
  return header(path, (struct text){text, text + length}, NULL, 0, pick, &w);
}

/* ---- writing */

static size_t room(const lumc_tensor *t, size_t n, size_t n_notes) {
  size_t all = 256 + n_notes * 2 * sizeof(struct note);
  for (size_t i = 0; i < n; ++i)
    all += strlen(t[i].name) + 100 + (size_t)(t[i].rank + 2) * NUMBER_CHARS;
  return all;
}

/* The header, with blanks up to where data start at a multiple of 64 bytes; gives its length. */
static size_t print_header(const lumc_tensor *t, size_t n, const struct note *notes,
                           size_t n_notes, char *out, size_t size) {
  size_t at = 0;
  unsigned long long offset = 0;
#define PUT(...) at += (size_t)snprintf(out + at, size - at, __VA_ARGS__)
  PUT("{");
  for (size_t i = 0; i < n_notes; ++i)
    PUT("%s\"%s\":\"%s\"", i ? "," : "\"__metadata__\":{", notes[i].key, notes[i].value);
  if (n_notes) PUT("}%s", n ? "," : "");
  for (size_t i = 0; i < n; ++i) {
    PUT("%s\"%s\":{\"dtype\":\"", i ? "," : "", t[i].name);
    for (const char *c = dtype_name(t[i].dtype); *c; ++c) PUT("%c", toupper((unsigned char)*c));
    PUT("\",\"shape\":[");
    for (int k = 0; k < t[i].rank; ++k) PUT("%s%lld", k ? "," : "", (long long)t[i].shape[k]);
    PUT("],\"data_offsets\":[%llu,%llu]}", offset, offset + t[i].bytes);
    offset += t[i].bytes;
  }
  PUT("}");
#undef PUT
  while ((8 + at) % 64) out[at++] = ' ';
  return at;
}

int tensors_write(const char *path, const lumc_tensor *t, void *const *data, size_t n,
                  const struct note *notes, size_t n_notes) {
  struct output o;
  uint8_t head[8];
  int code = LUMC_OK;
  size_t size = room(t, n, n_notes);
  char *text = zeros(size, 1, &code);
  if (!code) code = output_open(&o, path);
  if (!code) {
    size_t length = print_header(t, n, notes, n_notes, text, size);
    for (int i = 0; i < 8; ++i) head[i] = (uint8_t)((uint64_t)length >> 8 * i);
    int good = fwrite(head, 1, 8, o.file) == 8 && fwrite(text, 1, length, o.file) == length;
    for (size_t i = 0; i < n && good; ++i)
      good = fwrite(data[i], 1, t[i].bytes, o.file) == t[i].bytes;
    code = output_close(&o, path, good, "it is not whole");
  }
  free(text);
  return code;
}

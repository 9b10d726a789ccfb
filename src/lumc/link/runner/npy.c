/* npy.c - numpy files: reads .npy (versions 1 to 3, C order, little endian), writes .npy and
 * stored .npz. */
#include "internal.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* By enum lumc_dtype; bf16 travels as its 16-bit patterns, which are read as u16. */
static const char *const descr[] = {"<f4", "<f2", "<u2", "<f8", "<i8", "<i4", "|i1",
                                    "|u1", "|b1", "<i2", "<u2", "<u4", "<u8"};
static const uint64_t MAX_DATA = (uint64_t)1 << 46;

/* The text after `'key':` in the header, blanks skipped; NULL when it is missing. */
static const char *field(const char *header, const char *key) {
  const char *at = strstr(header, key);
  if (!at) return NULL;
  at += strlen(key);
  return at + strspn(at, " ");
}

static int parse_shape(const char *at, struct npy *t) {
  uint64_t bytes = dtype_bytes(t->dtype);
  int zero = 0;
  if (!at || *at++ != '(') return 0;
  for (t->rank = 0; *(at += strspn(at, " ")) != ')'; ++t->rank) {
    char *end;
    if (t->rank == MAX_RANK || *at < '0' || *at > '9') return 0;
    errno = 0;
    unsigned long long extent = strtoull(at, &end, 10);
    if (errno || extent >= MAX_DATA || (extent && bytes > MAX_DATA / extent)) return 0;
    t->shape[t->rank] = (int64_t)extent;
    zero |= extent == 0;
    bytes *= extent ? extent : 1;
    at = end + strspn(end, " ");
    if (*at == ',')
      ++at;
    else if (*at != ')')
      return 0;
  }
  t->bytes = zero ? 0 : (size_t)bytes;
  return 1;
}

static int parse_header(const char *path, const char *header, struct npy *t) {
  static const char plain[] = "<>|=abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
  const char *type = field(header, "'descr':"), *order = field(header, "'fortran_order':");
  if (!type || *type++ != '\'' || !order)
    return lumc_fail(LUMC_USAGE, "%s: not a plain .npy file", path);
  for (t->dtype = LUMC_U64; t->dtype >= 0; --t->dtype)
    if (!strncmp(type, descr[t->dtype], 3) && type[3] == '\'') break;
  if (t->dtype < 0)
    return lumc_fail(LUMC_USAGE, "%s: its dtype '%.*s' is not supported", path,
                     (int)strspn(type, plain), type);
  if (strncmp(order, "False", 5))
    return lumc_fail(LUMC_USAGE, "%s: is in Fortran order; save numpy.ascontiguousarray(x)", path);
  if (!parse_shape(field(header, "'shape':"), t))
    return lumc_fail(LUMC_USAGE, "%s: its shape cannot be read", path);
  return LUMC_OK;
}

enum { MAX_HEADER = 65536 };

/* Of the first 10 bytes where the header starts, 10 or 12; 0 for another file. */
static size_t header_start(const uint8_t head[10]) {
  if (memcmp(head, "\x93NUMPY", 6) || head[6] < 1 || head[6] > 3) return 0;
  return head[6] > 1 ? 12 : 10;
}

static size_t header_length(const uint8_t *head, size_t start) {
  size_t n = head[8] | (size_t)head[9] << 8;
  return start == 12 ? n | (size_t)head[10] << 16 | (size_t)head[11] << 24 : n;
}

static int read_open(const char *path, FILE *f, size_t most, struct npy *t) {
  uint8_t head[12];
  char header[MAX_HEADER];
  struct stat s;
  size_t start = fread(head, 1, 10, f) == 10 ? header_start(head) : 0;
  if (!start) return lumc_fail(LUMC_USAGE, "%s: not a .npy file", path);
  if (start > 10 && fread(head + 10, 1, 2, f) != 2)
    return lumc_fail(LUMC_USAGE, "%s: is truncated", path);
  size_t n = header_length(head, start);
  if (n >= sizeof header || fread(header, 1, n, f) != n)
    return lumc_fail(LUMC_USAGE, "%s: its header cannot be read", path);
  header[n] = 0;
  int code = parse_header(path, header, t);
  if (code) return code;
  int is_file = !fstat(fileno(f), &s) && S_ISREG(s.st_mode); /* a pipe has no size */
  if (is_file && (uint64_t)s.st_size != start + n + t->bytes)
    return lumc_fail(LUMC_USAGE, "%s: does not have the size that its shape needs", path);
  if (!t->bytes || t->bytes > most) return LUMC_OK;
  if (!(t->data = malloc(t->bytes)))
    return lumc_fail(LUMC_FAILED, "cannot allocate %zu bytes", t->bytes);
  if (fread(t->data, 1, t->bytes, f) != t->bytes) {
    free(t->data);
    if (ferror(f)) return lumc_fail(LUMC_FAILED, "cannot read %s: %s", path, strerror(errno));
    return lumc_fail(LUMC_USAGE, "%s: is truncated", path);
  }
  return LUMC_OK;
}

int npy_view(const char *path, const uint8_t *data, size_t size, struct npy *t) {
  char header[MAX_HEADER];
  memset(t, 0, sizeof *t);
  size_t start = size >= 12 ? header_start(data) : 0, n = start ? header_length(data, start) : 0;
  if (!start) return lumc_fail(LUMC_USAGE, "%s: not a .npy file", path);
  if (n >= sizeof header || n > size - start)
    return lumc_fail(LUMC_USAGE, "%s: its header cannot be read", path);
  memcpy(header, data + start, n);
  header[n] = 0;
  int code = parse_header(path, header, t);
  if (code) return code;
  if (size - start - n != t->bytes)
    return lumc_fail(LUMC_USAGE, "%s: does not have the size that its shape needs", path);
  t->view = data + start + n;
  return LUMC_OK;
}

int npy_same(int a, int b) { return !strcmp(descr[a], descr[b]); }

int npy_read(const char *path, size_t most, struct npy *t) {
  memset(t, 0, sizeof *t);
  FILE *f = fopen(path, "rb");
  if (!f) return lumc_fail(LUMC_USAGE, "cannot open %s: %s", path, strerror(errno));
  struct stat s;
  int code = !fstat(fileno(f), &s) && S_ISDIR(s.st_mode)
                 ? lumc_fail(LUMC_USAGE, "cannot read %s: %s", path, strerror(EISDIR))
                 : read_open(path, f, most, t);
  fclose(f);
  return code;
}

/* The header of version 1, padded so that the data is 64-byte aligned; gives its length. */
static size_t npy_header(const lumc_tensor *t, char out[1024]) {
  int n = snprintf(out + 10, 1000, "{'descr': '%s', 'fortran_order': False, 'shape': (",
                   descr[t->dtype]);
  for (int i = 0; i < t->rank; ++i)
    n += snprintf(out + 10 + n, 1000 - (size_t)n, "%lld%s", (long long)t->shape[i],
                  i + 1 < t->rank ? ", " : t->rank == 1 ? "," : "");
  n += snprintf(out + 10 + n, 1000 - (size_t)n, "), }");
  size_t length = ((size_t)n + 10 + 1 + 63) / 64 * 64;
  memset(out + 10 + n, ' ', length - 10 - (size_t)n);
  out[length - 1] = '\n';
  memcpy(out, "\x93NUMPY\x01\x00", 8);
  out[8] = (char)((length - 10) & 255);
  out[9] = (char)((length - 10) >> 8);
  return length;
}

static uint32_t crc32(uint32_t crc, const void *data, size_t n) {
  static uint32_t table[256];
  const uint8_t *p = data;
  for (uint32_t i = 0; !table[255] && i < 256; ++i) {
    uint32_t c = i;
    for (int k = 0; k < 8; ++k) c = c & 1 ? 0xedb88320u ^ c >> 1 : c >> 1;
    table[i] = c;
  }
  for (crc = ~crc; n; --n) crc = table[(crc ^ *p++) & 255] ^ crc >> 8;
  return ~crc;
}

static void put(uint8_t **at, uint64_t value, int bytes) {
  for (; bytes; --bytes, value >>= 8) *(*at)++ = (uint8_t)value;
}

struct member { /* of a zip: where it starts, and what both of its headers say */
  uint8_t info[20];
  uint64_t start;
};

/* Version, flags, stored, 1980-01-01, CRC, sizes: shared by the local and the central header. */
static void member_info(struct member *m, uint32_t crc, uint64_t size) {
  uint8_t *at = m->info;
  put(&at, 20, 2), put(&at, 1 << 11, 2), put(&at, 0, 2), put(&at, 0, 2), put(&at, 0x21, 2);
  put(&at, crc, 4), put(&at, size, 4);
}

static void zip_header(FILE *f, const struct member *m, const char *name, int central) {
  uint8_t head[46], *at = head;
  size_t length = strlen(name) + 4;
  put(&at, central ? 0x02014b50 : 0x04034b50, 4);
  if (central) put(&at, 20, 2);
  memcpy(at, m->info, 18), at += 18;
  memcpy(at, m->info + 14, 4), at += 4; /* the size again: stored */
  put(&at, length, 2), put(&at, 0, 2);
  if (central)
    put(&at, 0, 2), put(&at, 0, 2), put(&at, 0, 2), put(&at, 0, 4), put(&at, m->start, 4);
  fwrite(head, 1, (size_t)(at - head), f);
  fprintf(f, "%s.npy", name);
}

static int write_members(FILE *f, const lumc_tensor *t, void *const *data, size_t n,
                         struct member *m) {
  char header[1024];
  uint8_t end[22], *at = end;
  uint64_t start = 0, size = 0; /* counted: a pipe does not say where it is */
  for (size_t i = 0; i < n; ++i) {
    size_t length = npy_header(&t[i], header);
    m[i].start = start;
    start += 30 + strlen(t[i].name) + 4 + length + t[i].bytes;
    if (start >= 0xffffffffu) return 0; /* no zip64 */
    member_info(&m[i], crc32(crc32(0, header, length), data[i], t[i].bytes), length + t[i].bytes);
    zip_header(f, &m[i], t[i].name, 0);
    fwrite(header, 1, length, f);
    fwrite(data[i], 1, t[i].bytes, f);
  }
  for (size_t i = 0; i < n; ++i) {
    zip_header(f, &m[i], t[i].name, 1);
    size += 46 + strlen(t[i].name) + 4;
  }
  put(&at, 0x06054b50, 4), put(&at, 0, 4), put(&at, n, 2), put(&at, n, 2);
  put(&at, size, 4), put(&at, start, 4), put(&at, 0, 2);
  return n < 65535 && fwrite(end, 1, sizeof end, f) == sizeof end;
}

/* Several tensors make a .npz. */
static int write_file(const char *path, const lumc_tensor *t, void *const *data, size_t n,
                      int zip) {
  struct output o;
  char header[1024];
  int code = output_open(&o, path), good = 0;
  if (code) return code;
  struct member *members = calloc(n + 1, sizeof *members);
  if (members && zip) {
    good = write_members(o.file, t, data, n, members);
  } else if (members) {
    size_t length = npy_header(t, header);
    good = fwrite(header, 1, length, o.file) == length &&
           fwrite(data[0], 1, t->bytes, o.file) == t->bytes;
  }
  free(members);
  return output_close(&o, path, good, "larger than 4 GB, use .npy");
}

int npy_write(const char *path, const lumc_tensor *t, const void *data) {
  void *list[1];
  memcpy(list, &data, sizeof data);
  return write_file(path, t, list, 1, 0);
}

int npz_write(const char *path, const lumc_tensor *t, void *const *data, size_t n) {
  return write_file(path, t, data, n, 1);
}

/* npy.c - numpy files: reads .npy (versions 1 to 3, C order, little endian), writes .npy and
 * stored .npz. Files appear under their name only when they are whole. */
#include "internal.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

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

static int read_open(const char *path, FILE *f, size_t most, struct npy *t) {
  uint8_t head[12];
  char header[65536];
  struct stat s;
  if (fread(head, 1, 10, f) != 10 || memcmp(head, "\x93NUMPY", 6) || head[6] < 1 || head[6] > 3)
    return lumc_fail(LUMC_USAGE, "%s: not a .npy file", path);
  size_t n = head[8] | (size_t)head[9] << 8, start = 10;
  if (head[6] > 1) {
    if (fread(head + 10, 1, 2, f) != 2) return lumc_fail(LUMC_USAGE, "%s: is truncated", path);
    n |= (size_t)head[10] << 16 | (size_t)head[11] << 24, start = 12;
  }
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

/* A new file beside `path`, under a name that nobody has; -1 and errno when there is none. */
static int open_beside(const char *path, char part[4096]) {
  const char *slash = strrchr(path, '/');
  int folder = slash ? (int)(slash + 1 - path) : 0, file = -1;
  for (int i = 0; i < 100 && file < 0 && (!i || errno == EEXIST); ++i) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    int n = snprintf(part, 4096, "%.*s.lumc-run-%ld-%ld%09ld", folder, path, (long)getpid(),
                     (long)now.tv_sec, now.tv_nsec);
    errno = n < 4096 ? 0 : ENAMETOOLONG;
    if (n < 4096) file = open(part, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  }
  return file;
}

/* What is no file (/dev/null, a pipe) stays what it is, and is written to; a file is replaced when
 * the new one is whole and on the disk. Several tensors make a .npz. */
static int write_file(const char *path, const lumc_tensor *t, void *const *data, size_t n,
                      int zip) {
  char part[4096], header[1024];
  struct stat s;
  int special = !stat(path, &s) && !S_ISREG(s.st_mode) && !S_ISDIR(s.st_mode);
  int file = special ? open(path, O_WRONLY | O_CLOEXEC) : open_beside(path, part);
  if (file < 0) return lumc_fail(LUMC_FAILED, "cannot write %s: %s", path, strerror(errno));
  struct member *members = calloc(n + 1, sizeof *members);
  FILE *f = members ? fdopen(file, "wb") : NULL;
  int good = f != NULL;
  errno = good ? 0 : ENOMEM;
  if (good && zip) {
    good = write_members(f, t, data, n, members);
  } else if (good) {
    size_t length = npy_header(t, header);
    good = fwrite(header, 1, length, f) == length && fwrite(data[0], 1, t->bytes, f) == t->bytes;
  }
  if (good) good = !fflush(f) && !ferror(f) && (special || !fsync(file));
  if (good && !special) good = !rename(part, path);
  int error = errno;
  if (!good && !special) unlink(part);
  if (f ? fclose(f) : close(file)) error = good ? errno : error, good = 0;
  free(members);
  if (good) return LUMC_OK;
  return lumc_fail(LUMC_FAILED, "cannot write %s: %s", path,
                   error ? strerror(error) : "larger than 4 GB, use .npy");
}

int npy_write(const char *path, const lumc_tensor *t, const void *data) {
  void *list[1];
  memcpy(list, &data, sizeof data);
  return write_file(path, t, list, 1, 0);
}

int npz_write(const char *path, const lumc_tensor *t, void *const *data, size_t n) {
  return write_file(path, t, data, n, 1);
}

/* files.c - files of a bundle: regular, never links, with the hash that the manifest gives. */
#include "internal.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_MANIFEST = 1 << 28 };

int open_file(const char *folder, const char *name, size_t *size, int *file) {
  char path[4096];
  struct stat s;
  if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path)
    return lumc_fail(LUMC_USAGE, "the path of the bundle is too long");
  *file = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
  if (*file < 0)
    return lumc_fail(errno == ENOENT || errno == ELOOP ? LUMC_CORRUPT : LUMC_FAILED,
                     "cannot open %s: %s", path, strerror(errno));
  if (fstat(*file, &s)) {
    close(*file);
    return lumc_fail(LUMC_FAILED, "cannot read %s: %s", path, strerror(errno));
  }
  if (!S_ISREG(s.st_mode)) {
    close(*file);
    return lumc_fail(LUMC_CORRUPT, "%s is not a regular file", path);
  }
  *size = (size_t)s.st_size;
  return LUMC_OK;
}

int read_hashed(int file, const char *name, uint8_t *to, size_t size, struct sha256 *hash) {
  for (size_t done = 0; done < size;) {
    size_t want = size - done < 1 << 20 ? size - done : 1 << 20;
    ssize_t got = read(file, to + done, want);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return lumc_fail(LUMC_FAILED, "cannot read %s: %s", name, strerror(errno));
    if (!got) return lumc_fail(LUMC_CORRUPT, "cannot read %s: it is too short", name);
    sha256_add(hash, to + done, (size_t)got);
    done += (size_t)got;
  }
  return LUMC_OK;
}

/* `"name":"` cannot occur inside a JSON string, so plain text search finds the hash of a file. */
int check_hash(const char *manifest, const char *name, struct sha256 *hash) {
  char hex[65], line[2048];
  sha256_hex(hash, hex);
  snprintf(line, sizeof line, "\"%s\":\"%s\"", name, hex);
  if (strstr(manifest, line)) return LUMC_OK;
  return lumc_fail(LUMC_CORRUPT, "%s does not match its hash in the manifest", name);
}

int read_whole(const char *folder, const char *name, size_t limit, char **text, size_t *size,
               struct sha256 *hash) {
  int file, code = open_file(folder, name, size, &file);
  if (code) return code;
  *text = NULL;
  if (*size >= limit)
    code = lumc_fail(LUMC_CORRUPT, "%s is too large", name);
  else if (!(*text = malloc(*size + 1)))
    code = lumc_fail(LUMC_FAILED, "cannot allocate %zu bytes", *size + 1);
  else
    code = read_hashed(file, name, (uint8_t *)*text, *size, hash);
  close(file);
  if (code)
    free(*text);
  else
    (*text)[*size] = 0;
  return code;
}

int read_manifest(const char *folder, char **text) {
  static const char head[] = "{\"lumc\":\"bundle\",\"schema\":1,\"digest\":\"";
  struct sha256 hash;
  char hex[65];
  size_t size, n = sizeof head - 1;
  struct stat s;
  if (stat(folder, &s))
    return lumc_fail(LUMC_USAGE, "no bundle at %s: %s", folder, strerror(errno));
  if (!S_ISDIR(s.st_mode))
    return lumc_fail(LUMC_USAGE, "%s is a file, not the folder of a bundle (unzip FILE -d model.lb, if it is one of --zip)",
                     folder);
  sha256_start(&hash);
  int code = read_whole(folder, "manifest.json", MAX_MANIFEST, text, &size, &hash);
  if (code) return code;
  if (strlen(*text) == size && !strncmp(*text, head, n) && size > n + 67 &&
      !memcmp(*text + n + 64, "\",\n", 3)) {
    sha256_start(&hash);
    sha256_add(&hash, *text + n + 67, size - n - 67);
    sha256_hex(&hash, hex);
    if (!memcmp(hex, *text + n, 64)) return LUMC_OK;
  }
  free(*text);
  return lumc_fail(LUMC_CORRUPT, "%s/manifest.json is not a lumc manifest, or was changed", folder);
}

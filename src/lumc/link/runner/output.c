/* output.c - files that appear under their name only when they are whole. */
#include "internal.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

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

int output_open(struct output *o, const char *path) {
  struct stat s;
  o->special = !stat(path, &s) && !S_ISREG(s.st_mode) && !S_ISDIR(s.st_mode);
  int file = o->special ? open(path, O_WRONLY | O_CLOEXEC) : open_beside(path, o->part);
  o->file = file < 0 ? NULL : fdopen(file, "wb");
  if (o->file) {
    errno = 0;
    return LUMC_OK;
  }
  int error = errno;
  if (file >= 0) close(file);
  if (file >= 0 && !o->special) unlink(o->part);
  return lumc_fail(LUMC_FAILED, "cannot write %s: %s", path, strerror(error));
}

int output_close(struct output *o, const char *path, int good, const char *otherwise) {
  if (good) good = !fflush(o->file) && !ferror(o->file) && (o->special || !fsync(fileno(o->file)));
  if (good && !o->special) good = !rename(o->part, path);
  int error = errno;
  if (!good && !o->special) unlink(o->part);
  if (fclose(o->file)) error = good ? errno : error, good = 0;
  if (good) return LUMC_OK;
  return lumc_fail(LUMC_FAILED, "cannot write %s: %s", path, error ? strerror(error) : otherwise);
}

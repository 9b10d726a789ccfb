/* glibc.h - the oldest versions of what newer glibcs have under new ones, so that a runner that is
 * linked on a new system starts on one with glibc 2.17. Included where link/glibc.py asks for it:
 * the libraries that had these functions once must be named when it is linked. */
#ifndef LUMC_GLIBC_H
#define LUMC_GLIBC_H

#include <stdlib.h>
#include <sys/stat.h>

#if defined(LUMC_OLD_GLIBC) && defined(__GLIBC__)
#if defined(__x86_64__)
#define LUMC_FIRST "GLIBC_2.2.5"
#define LUMC_AFFINITY "GLIBC_2.3.4"
enum { LUMC_STAT = 1 };
#else /* aarch64 */
#define LUMC_FIRST "GLIBC_2.17"
#define LUMC_AFFINITY LUMC_FIRST
enum { LUMC_STAT = 0 };
#endif
#define LUMC_OLD(mine, name, version) __asm__(".symver " #mine "," #name "@" version)

LUMC_OLD(dlopen, dlopen, LUMC_FIRST);
LUMC_OLD(dlsym, dlsym, LUMC_FIRST);
LUMC_OLD(dlclose, dlclose, LUMC_FIRST);
LUMC_OLD(dlerror, dlerror, LUMC_FIRST);
LUMC_OLD(pthread_create, pthread_create, LUMC_FIRST);
LUMC_OLD(pthread_join, pthread_join, LUMC_FIRST);
LUMC_OLD(pthread_once, pthread_once, LUMC_FIRST);
LUMC_OLD(pthread_setaffinity_np, pthread_setaffinity_np, LUMC_AFFINITY);
LUMC_OLD(__isoc23_strtol, strtol, LUMC_FIRST); /* what glibc 2.38 calls it */

/* stat and fstat were inline functions over these. */
int lumc_xstat(int version, const char *path, struct stat *);
int lumc_fxstat(int version, int file, struct stat *);
LUMC_OLD(lumc_xstat, __xstat, LUMC_FIRST);
LUMC_OLD(lumc_fxstat, __fxstat, LUMC_FIRST);
#define stat(path, s) lumc_xstat(LUMC_STAT, path, s)
#define fstat(file, s) lumc_fxstat(LUMC_STAT, file, s)
#endif
#endif

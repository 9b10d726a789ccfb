/* mpi.c - ranks that exchange bytes by MPI, which is loaded when it is there: any library with the
 * standard ABI of MPI 5, whose constants are the same everywhere. */
#include "ranks.h"
#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>

typedef void *handle;
struct mpi {
  int (*init)(int *, char ***, int, int *), (*initialized)(int *), (*finalized)(int *), (*finalize)(void);
  int (*rank)(handle, int *), (*size)(handle, int *), (*abort)(handle, int);
  int (*send)(const void *, int, handle, int, int, handle, handle *);
  int (*receive)(void *, int, handle, int, int, handle, handle *);
  int (*wait)(int, handle *, void *);
  handle *requests;
  size_t room;
};

/* Of the standard, section 20: handles are small numbers. */
#define WORLD ((handle)0x101)
#define BYTE ((handle)0x247)
enum { FUNNELED = 1024, TAG = 7, AT_ONCE = 1 << 30 };

static struct mpi mpi; /* a process has it once */

static void end_mpi(void) {
  int done = 1;
  if (mpi.finalized && !mpi.finalized(&done) && !done) mpi.finalize();
}

static int load(void) {
  static const char *const names[] = {"libmpi_abi.so.1", "libmpi_abi.so.0", "libmpi_abi.so", "libmpi_abi.dylib"};
  static const char *const functions[] = {"MPI_Init_thread", "MPI_Initialized", "MPI_Finalized", "MPI_Finalize",
                                          "MPI_Comm_rank", "MPI_Comm_size", "MPI_Abort", "MPI_Isend",
                                          "MPI_Irecv", "MPI_Waitall"};
  void *to[] = {&mpi.init, &mpi.initialized, &mpi.finalized, &mpi.finalize, &mpi.rank, &mpi.size,
                &mpi.abort, &mpi.send, &mpi.receive, &mpi.wait};
  void *library = NULL;
  const char *own = getenv("LUMC_MPI");
  if (own && *own) library = dlopen(own, RTLD_NOW | RTLD_GLOBAL);
  for (size_t i = 0; !library && !(own && *own) && i < sizeof names / sizeof *names; ++i)
    library = dlopen(names[i], RTLD_NOW | RTLD_GLOBAL);
  if (!library)
    return lumc_fail(LUMC_DEVICE, "no MPI with the standard ABI (libmpi_abi) here: LUMC_MPI names it, or set "
                     "MASTER_ADDR and MASTER_PORT for TCP");
  for (size_t i = 0; i < sizeof functions / sizeof *functions; ++i)
    if (!(*(void **)to[i] = dlsym(library, functions[i])))
      return lumc_fail(LUMC_DEVICE, "libmpi_abi has no %s", functions[i]);
  return LUMC_OK;
}

static int open_mpi(const struct meeting *w, void **self) {
  int there = 0, level, rank = -1, ranks = -1, code = mpi.init ? LUMC_OK : load();
  if (code) return code;
  mpi.initialized(&there);
  if (!there) {
    if (mpi.init(NULL, NULL, FUNNELED, &level)) return lumc_fail(LUMC_FAILED, "MPI does not start");
    atexit(end_mpi); /* launchers take a process that ends without it for one that failed */
  }
  mpi.rank(WORLD, &rank), mpi.size(WORLD, &ranks);
  if (rank != w->rank || ranks != w->ranks)
    return lumc_fail(LUMC_USAGE, "MPI says rank %d of %d, the environment %d of %d", rank, ranks, w->rank, w->ranks);
  *self = &mpi;
  return LUMC_OK;
}

/* Packets of any size, in pieces that its numbers can count. */
static int swap_mpi(void *self, const struct packet *packets, size_t n) {
  struct mpi *m = self;
  size_t most = 0, k = 0;
  int bad = 0;
  for (size_t i = 0; i < n; ++i)
    most += packets[i].n_out / AT_ONCE + packets[i].n_in / AT_ONCE + 2;
  if (most > m->room) {
    handle *more = realloc(m->requests, most * sizeof *more);
    if (!more) return lumc_fail(LUMC_FAILED, "out of memory");
    m->requests = more, m->room = most;
  }
  for (int in = 1; in >= 0; --in) /* who receives first waits for nobody */
    for (size_t i = 0; i < n; ++i) {
      const struct packet *p = &packets[i];
      size_t bytes = in ? p->n_in : p->n_out;
      for (size_t at = 0; at < bytes && !bad; at += AT_ONCE) {
        int count = (int)(bytes - at < AT_ONCE ? bytes - at : AT_ONCE);
        bad = in ? m->receive((char *)p->in + at, count, BYTE, p->peer, TAG, WORLD, &m->requests[k])
                 : m->send((const char *)p->out + at, count, BYTE, p->peer, TAG, WORLD, &m->requests[k]);
        k += !bad;
      }
    }
  if (!bad) bad = m->wait((int)k, m->requests, NULL);
  return bad ? lumc_fail(LUMC_FAILED, "an exchange by MPI failed with %d", bad) : LUMC_OK;
}

/* The others would wait for ever for one that failed. */
static void close_mpi(void *self, int code) {
  struct mpi *m = self;
  if (code) m->abort(WORLD, code);
}

const struct transport mpi_transport = {open_mpi, swap_mpi, NULL, close_mpi};

/* mpi.c - ranks that exchange bytes by MPI, which is loaded when it is there: any library with the
 * standard ABI of MPI 5, whose constants are the same everywhere. */
#include "ranks.h"
#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

typedef void *handle;
struct mpi {
  int (*init)(int *, char ***, int, int *), (*initialized)(int *), (*finalized)(int *), (*finalize)(void);
  int (*rank)(handle, int *), (*size)(handle, int *), (*abort)(handle, int);
  int (*send)(const void *, int, handle, int, int, handle, handle *);
  int (*receive)(void *, int, handle, int, int, handle, handle *);
  int (*wait)(int, handle *, void *), (*test)(int, handle *, int *, void *);
  handle *requests;
  size_t room;
  struct posted *posted; /* what is on its way */
};
struct posted { /* bytes for another rank, in pieces */
  struct posted *next;
  int peer;
  uint64_t tag;
  size_t pieces;
  handle *requests; /* behind the bytes */
  uint8_t data[];
};

/* Of the standard, section 20: handles are small numbers. */
#define WORLD ((handle)0x101)
#define BYTE ((handle)0x247)
enum { FUNNELED = 1024, TAG = 7, AT_ONCE = 1 << 30, TAGS = 32767 }; /* tags: the least that MPI has */

static struct mpi mpi; /* a process has it once */

static void end_mpi(void) {
  int done = 1;
  if (mpi.finalized && !mpi.finalized(&done) && !done) mpi.finalize();
}

static int load(void) {
  static const char *const names[] = {"libmpi_abi.so.1", "libmpi_abi.so.0", "libmpi_abi.so", "libmpi_abi.dylib"};
  static const char *const functions[] = {"MPI_Init_thread", "MPI_Initialized", "MPI_Finalized", "MPI_Finalize",
                                          "MPI_Comm_rank", "MPI_Comm_size", "MPI_Abort", "MPI_Isend",
                                          "MPI_Irecv", "MPI_Waitall", "MPI_Testall"};
  void *to[] = {&mpi.init, &mpi.initialized, &mpi.finalized, &mpi.finalize, &mpi.rank, &mpi.size,
                &mpi.abort, &mpi.send, &mpi.receive, &mpi.wait, &mpi.test};
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

static int unsent(int bad) { return lumc_fail(LUMC_FAILED, "an exchange by MPI failed with %d", bad); }

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
  return bad ? unsent(bad) : LUMC_OK;
}

/* Let go of what has gone, or wait until all has. */
static int move_mpi(void *self, int all) {
  struct mpi *m = self;
  for (struct posted **at = &m->posted; *at;) {
    struct posted *p = *at;
    int gone = 1;
    int bad = all ? m->wait((int)p->pieces, p->requests, NULL) : m->test((int)p->pieces, p->requests, &gone, NULL);
    if (bad) return unsent(bad);
    if (gone) {
      *at = p->next;
      free(p);
    } else {
      at = &p->next;
    }
  }
  return LUMC_OK;
}

static int going(const struct mpi *m, int peer, uint64_t tag) {
  int n = 0;
  for (const struct posted *p = m->posted; p; p = p->next) n += p->peer == peer && p->tag == tag;
  return n;
}

static int own_tag(uint64_t tag) { return tag < TAGS - TAG ? (int)tag + TAG + 1 : -1; }

static int post_mpi(void *self, int peer, const void *data, size_t bytes, uint64_t tag, int most) {
  struct mpi *m = self;
  size_t pieces = bytes / AT_ONCE + 1, room = (bytes + 7) / 8 * 8;
  int code = LUMC_OK, bad = 0;
  if (own_tag(tag) < 0) return lumc_fail(LUMC_FAILED, "more collectives than MPI has tags");
  while (!code && going(m, peer, tag) >= most) code = move_mpi(m, 0);
  struct posted *p = code ? NULL : calloc(1, sizeof *p + room + pieces * sizeof(handle));
  if (code) return code;
  if (!p) return lumc_fail(LUMC_FAILED, "out of memory");
  p->peer = peer, p->tag = tag, p->requests = (handle *)(void *)(p->data + room);
  memcpy(p->data, data, bytes);
  for (size_t at = 0; at < bytes && !bad; at += AT_ONCE, ++p->pieces) {
    int count = (int)(bytes - at < AT_ONCE ? bytes - at : AT_ONCE);
    bad = m->send(p->data + at, count, BYTE, peer, own_tag(tag), WORLD, &p->requests[p->pieces]);
  }
  struct posted **end = &m->posted;
  while (*end) end = &(*end)->next;
  *end = p;
  return bad ? unsent(bad) : move_mpi(m, 0);
}

/* MPI helps on what is posted while it waits. */
static int take_mpi(void *self, int peer, void *to, size_t bytes, uint64_t tag) {
  struct mpi *m = self;
  int bad = own_tag(tag) < 0;
  for (size_t at = 0; at < bytes && !bad; at += AT_ONCE) {
    int count = (int)(bytes - at < AT_ONCE ? bytes - at : AT_ONCE);
    handle request;
    bad = m->receive((char *)to + at, count, BYTE, peer, own_tag(tag), WORLD, &request);
    if (!bad) bad = m->wait(1, &request, NULL);
  }
  return bad ? unsent(bad) : LUMC_OK;
}

static int busy_mpi(const void *self) { return ((const struct mpi *)self)->posted != NULL; }

/* The others would wait for ever for one that failed. */
static void close_mpi(void *self, int code) {
  struct mpi *m = self;
  if (code) m->abort(WORLD, code);
}

const struct transport mpi_transport = {open_mpi, swap_mpi, NULL,     post_mpi,
                                        take_mpi, move_mpi, busy_mpi, close_mpi};

/* pool.c - threads that run a list of launches in lock step.
 *
 * The caller is part 0; workers spin for a new list for a while, then sleep (a futex, or a
 * condition variable where there is none). Between launches all parts meet at a barrier: one
 * counter that only grows, so nothing is ever reset. No thread is pinned: an inherited mask of
 * one CPU must not stop a run, and barriers yield when they wait for long. A worker that was
 * seen on the CPU of another part is sent to the CPUs that no part uses, if there are any.
 *
 * While kernels run, numbers too small to be normal (below 2^-126 in f32) count as zero: some
 * processors take 150 cycles for each of them. The caller gets its own mode back. */
#include "internal.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { SPIN_NS = 30000, BARRIER_SPINS = 4000 };

struct pool {
  int threads;
  pid_t owner; /* threads do not survive a fork */
  pthread_t *workers;
  const struct op *ops; /* the list being run; NULL ends the workers */
  size_t n;
  uint64_t base; /* arrivals before this list */
  int64_t *times; /* of a traced run: start and end of every part of every op, ns; else NULL */
  _Alignas(64) atomic_uint generation;
  _Alignas(64) atomic_int sleepers;
  _Alignas(64) atomic_uint_fast64_t arrived;
  _Alignas(64) atomic_int cpus[MAX_THREADS]; /* where each part began last; -1: not known */
  pthread_mutex_t mutex; /* only where there is no futex */
  pthread_cond_t wake;
};

struct seat {
  struct pool *pool;
  int part;
};

static void pause_cpu(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

#if defined(__x86_64__)
typedef unsigned fp_mode;
static fp_mode get_mode(void) { return __builtin_ia32_stmxcsr(); }
static void set_mode(fp_mode mode) { __builtin_ia32_ldmxcsr(mode); }
enum { FLUSH = 0x8040 }; /* of results and of operands */
#elif defined(__aarch64__)
typedef uint64_t fp_mode;
static fp_mode get_mode(void) {
  fp_mode mode;
  __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
}
static void set_mode(fp_mode mode) { __asm__ volatile("msr fpcr, %0" : : "r"(mode)); }
enum { FLUSH = 1 << 24 };
#else
typedef int fp_mode;
static fp_mode get_mode(void) { return 0; }
static void set_mode(fp_mode mode) { (void)mode; }
enum { FLUSH = 0 };
#endif

static fp_mode flush_denormals(void) {
  fp_mode before = get_mode();
  set_mode(before | FLUSH);
  return before;
}

int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>

static void sleep_until_changed(struct pool *p, unsigned seen) {
  syscall(SYS_futex, &p->generation, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, seen, NULL, NULL, 0);
}
static void wake_all(struct pool *p) {
  syscall(SYS_futex, &p->generation, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, MAX_THREADS, NULL, NULL, 0);
}
#else
static void sleep_until_changed(struct pool *p, unsigned seen) {
  pthread_mutex_lock(&p->mutex);
  while (atomic_load(&p->generation) == seen) pthread_cond_wait(&p->wake, &p->mutex);
  pthread_mutex_unlock(&p->mutex);
}
static void wake_all(struct pool *p) {
  pthread_mutex_lock(&p->mutex);
  pthread_cond_broadcast(&p->wake);
  pthread_mutex_unlock(&p->mutex);
}
#endif

#if defined(__linux__)
static int note_cpu(struct pool *p, int part) {
  int cpu = sched_getcpu();
  if (atomic_load_explicit(&p->cpus[part], memory_order_relaxed) != cpu)
    atomic_store_explicit(&p->cpus[part], cpu, memory_order_relaxed);
  return cpu;
}

/* Schedulers that pack threads on few CPUs, as those of some virtual machines do, can leave two
 * parts on one CPU for whole seconds while another is idle. */
static void keep_apart(struct pool *p) {
  int cpu = note_cpu(p, 0), crowded[MAX_THREADS], n = 0;
  cpu_set_t used, idle;
  if (cpu < 0 || cpu >= CPU_SETSIZE) return;
  CPU_ZERO(&used);
  CPU_SET(cpu, &used);
  for (int i = 1; i < p->threads; ++i) {
    cpu = atomic_load_explicit(&p->cpus[i], memory_order_relaxed);
    if (cpu < 0 || cpu >= CPU_SETSIZE) continue;
    if (CPU_ISSET(cpu, &used)) crowded[n++] = i;
    CPU_SET(cpu, &used);
  }
  if (!n || sched_getaffinity(0, sizeof idle, &idle)) return;
  CPU_AND(&used, &used, &idle);
  CPU_XOR(&idle, &idle, &used);
  if (!CPU_COUNT(&idle)) return;
  for (int i = 0; i < n; ++i)
    pthread_setaffinity_np(p->workers[crowded[i] - 1], sizeof idle, &idle);
}
#else
static void note_cpu(struct pool *p, int part) { (void)p, (void)part; }
static void keep_apart(struct pool *p) { (void)p; }
#endif

static void await_arrivals(struct pool *p, uint64_t count) {
  for (int spins = 0; atomic_load_explicit(&p->arrived, memory_order_acquire) < count; ++spins)
    if (spins < BARRIER_SPINS)
      pause_cpu();
    else
      sched_yield();
}

static void run_op(struct pool *p, const struct op *op, int part) {
  int64_t *times = p->times;
  int parts = op->parallel > 1 && op->parallel < p->threads ? (int)op->parallel : p->threads;
  if (!op->parallel) parts = 1;
  if (part >= parts) return;
  if (times) {
    times += 2 * ((op - p->ops) * p->threads + part);
    times[0] = now_ns();
  }
  op->run(op->args, part, op->slices ? parts * op->slices : parts);
  if (times) times[1] = now_ns();
}

static void run_part(struct pool *p, int part) {
  const struct op *op = p->ops, *end = op + p->n;
  uint64_t count = p->base;
  for (; op < end; ++op) {
    run_op(p, op, part);
    count += (uint64_t)p->threads;
    atomic_fetch_add_explicit(&p->arrived, 1, memory_order_acq_rel);
    if (part == 0 || op + 1 < end) await_arrivals(p, count);
  }
}

static unsigned await_generation(struct pool *p, unsigned seen) {
  int64_t deadline = now_ns() + SPIN_NS;
  for (;;) {
    for (int i = 0; i < 32; ++i) {
      unsigned now = atomic_load_explicit(&p->generation, memory_order_acquire);
      if (now != seen) return now;
      pause_cpu();
    }
    if (now_ns() < deadline) continue;
    atomic_fetch_add(&p->sleepers, 1); /* before the last look: the caller looks at it after */
    if (atomic_load(&p->generation) == seen) sleep_until_changed(p, seen);
    atomic_fetch_sub(&p->sleepers, 1);
    deadline = now_ns() + SPIN_NS;
  }
}

static void *work(void *argument) {
  struct seat seat = *(struct seat *)argument;
  unsigned seen = 0;
  free(argument);
  flush_denormals();
  for (;;) {
    seen = await_generation(seat.pool, seen);
    if (!seat.pool->ops) return NULL;
    note_cpu(seat.pool, seat.part);
    run_part(seat.pool, seat.part);
  }
}

static void publish(struct pool *p, const struct op *ops, size_t n) {
  keep_apart(p);
  p->ops = ops;
  p->n = n;
  p->base = atomic_load(&p->arrived);
  atomic_fetch_add(&p->generation, 1);
  if (atomic_load(&p->sleepers)) wake_all(p);
}

static int start(struct pool *p) {
  int wanted = p->threads;
  p->owner = getpid();
  atomic_store(&p->generation, 0);
  atomic_store(&p->sleepers, 0);
  atomic_store(&p->arrived, 0);
  for (int i = 0; i < MAX_THREADS; ++i) atomic_store(&p->cpus[i], -1);
  for (p->threads = 1; p->threads < wanted; ++p->threads) {
    struct seat *seat = malloc(sizeof *seat);
    if (!seat) return 0;
    *seat = (struct seat){p, p->threads};
    if (pthread_create(&p->workers[p->threads - 1], NULL, work, seat)) {
      free(seat);
      return 0;
    }
  }
  return 1;
}

struct pool *pool_new(int threads) {
  void *memory = NULL;
  if (posix_memalign(&memory, 64, sizeof(struct pool))) return NULL;
  struct pool *p = memory;
  p->threads = threads;
  p->times = NULL;
  pthread_mutex_init(&p->mutex, NULL);
  pthread_cond_init(&p->wake, NULL);
  p->workers = calloc((size_t)threads, sizeof *p->workers);
  if (!p->workers || !start(p)) {
    pool_free(p);
    return NULL;
  }
  return p;
}

/* Threads do not survive a fork: a child starts its own. */
static void revive(struct pool *p) {
  if (p->threads > 1 && p->owner != getpid() && !start(p)) p->threads = 1;
}

void pool_trace(struct pool *p, const struct op *ops, size_t n, int64_t *times) {
  revive(p);
  p->times = times;
  fp_mode before = flush_denormals();
  publish(p, ops, n);
  run_part(p, 0);
  set_mode(before);
  p->times = NULL;
}

void pool_run(struct pool *p, const struct op *ops, size_t n) {
  if (n == 0) return;
  revive(p);
  fp_mode before = flush_denormals();
  if (p->threads > 1) {
    publish(p, ops, n);
    run_part(p, 0);
  } else {
    for (size_t i = 0; i < n; ++i) run_op(p, &ops[i], 0);
  }
  set_mode(before);
}

void pool_free(struct pool *p) {
  if (!p) return;
  if (p->workers && p->owner == getpid()) {
    publish(p, NULL, 0);
    for (int i = 1; i < p->threads; ++i) pthread_join(p->workers[i - 1], NULL);
  }
  pthread_cond_destroy(&p->wake);
  pthread_mutex_destroy(&p->mutex);
  free(p->workers);
  free(p);
}

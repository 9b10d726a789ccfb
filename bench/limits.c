// The limits of this machine for N threads: f32 multiply-adds, and bandwidth from the last cache
// and from memory. Prints one JSON line.
// cc -O2 -funroll-loops -ffp-contract=fast -march=native -pthread limits.c -o limits && ./limits 2
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define WIDTH 64
#elif defined(__AVX__)
#define WIDTH 32
#else
#define WIDTH 16
#endif
typedef float V __attribute__((vector_size(WIDTH), may_alias));
enum { LANES = WIDTH / 4, MAX_THREADS = 256, STREAMS = 8 };

// A store around the caches, where there is one: a plain one reads the line first.
static inline void stream(float *p, V v) {
#if defined(__AVX512F__)
  _mm512_stream_ps(p, (__m512)v);
#elif defined(__AVX__)
  _mm256_stream_ps(p, (__m256)v);
#elif defined(__x86_64__)
  _mm_stream_ps(p, (__m128)v);
#else
  *(V *)p = v;
#endif
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct {
  float *from, *to;  // of this thread
  long bytes, repeats;
  float sink;
} Work;

// twelve independent multiply-adds per step hide the latency of each
#define EACH(M) M(0) M(1) M(2) M(3) M(4) M(5) M(6) M(7) M(8) M(9) M(10) M(11)
#define START(i) V a##i = x * (float)i;
#define STEP(i) a##i = a##i * x + y;
#define KEEP(i) w->sink += a##i[0];
static void *multiply_add(void *argument) {
  Work *w = argument;
  V x, y;
  for (int l = 0; l < LANES; l++) x[l] = 1.0000001f, y[l] = 1e-9f;
  EACH(START)
  for (long k = 0; k < w->repeats; k++) {
    EACH(STEP)
  }
  EACH(KEEP)
  return NULL;
}

// several streams side by side: one alone does not keep enough lines in flight
static void *read_all(void *argument) {
  Work *w = argument;
  V sums[STREAMS] = {{0}};
  const long apart = w->bytes / 4 / STREAMS;
  for (long r = 0; r < w->repeats; r++) {
    for (long i = 0; i < apart; i += LANES)
      for (int s = 0; s < STREAMS; s++) sums[s] += *(const V *)(w->from + s * apart + i);
    __asm__ volatile("" : "+r"(w->from) : : "memory");
  }
  for (int s = 0; s < STREAMS; s++) w->sink += sums[s][0];
  return NULL;
}

static void *copy_all(void *argument) {
  Work *w = argument;
  for (long r = 0; r < w->repeats; r++)
    for (long i = 0; i < w->bytes / 4; i += LANES) stream(w->to + i, *(const V *)(w->from + i));
  return NULL;
}

// Each thread on a CPU of its own: a scheduler may pack them on one.
static pthread_attr_t apart[MAX_THREADS];
static void keep_apart(int threads) {
  for (int i = 0; i < threads; i++) pthread_attr_init(&apart[i]);
#if defined(__linux__)
  cpu_set_t all, one;
  if (sched_getaffinity(0, sizeof all, &all) || CPU_COUNT(&all) < threads) return;
  for (int cpu = 0, i = 0; i < threads; cpu++) {
    if (!CPU_ISSET(cpu, &all)) continue;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    if (i == 0) sched_setaffinity(0, sizeof one, &one);
    pthread_attr_setaffinity_np(&apart[i++], sizeof one, &one);
  }
#endif
}

// Seconds until all threads are through, the best of many short tries: others may be at work.
static double best_of(int tries, void *(*body)(void *), int threads, Work *work) {
  double best = 1e30;
  for (int t = 0; t < tries; t++) {
    pthread_t others[MAX_THREADS];
    double start = now();
    for (int i = 1; i < threads; i++) pthread_create(&others[i], &apart[i], body, &work[i]);
    body(&work[0]);
    for (int i = 1; i < threads; i++) pthread_join(others[i], NULL);
    double seconds = now() - start;
    if (seconds < best) best = seconds;
  }
  return best;
}

static float *filled(long bytes) {
  float *p = aligned_alloc(2 << 20, (size_t)bytes);
  if (!p) exit(1);
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  madvise(p, (size_t)bytes, MADV_HUGEPAGE);
#endif
  for (long i = 0; i < bytes / 4; i++) p[i] = 1;
  return p;
}

// Operations in a second.
static double rate_of_fma(int tries, long steps, int threads, Work *work) {
  for (int i = 0; i < threads; i++) work[i].repeats = steps;
  return (double)steps * 12 * LANES * 2 * threads / best_of(tries, multiply_add, threads, work);
}

// Bytes in a second through all of memory's levels, of two arrays that no cache holds.
static double rate_of_memory(int copies, int tries, long total, int threads, Work *work) {
  float *from = filled(total), *to = copies ? filled(total) : from;
  long part = total / threads / (STREAMS * WIDTH) * (STREAMS * WIDTH);
  for (int i = 0; i < threads; i++)
    work[i] = (Work){from + i * (part / 4), to + i * (part / 4), part, 1, 0};
  double seconds = best_of(tries, copies ? copy_all : read_all, threads, work);
  if (copies) free(to);
  free(from);
  return (double)part * threads * (1 + copies) / seconds;
}

// limits THREADS [copy | read | TRIES STEPS]: all limits, or one of this moment; with TRIES that
// of multiply-adds, so many times STEPS.
int main(int argc, char **argv) {
  int threads = argc > 1 ? atoi(argv[1]) : 1;
  if (threads < 1 || threads > MAX_THREADS) return 2;
  keep_apart(threads);
  Work work[MAX_THREADS] = {{0}};
  if (argc == 3) {
    const int copies = !strcmp(argv[2], "copy");
    double rate = rate_of_memory(copies, 16, 64L << 20, threads, work);
    printf("{\"%s_gbs\": %.1f}\n", copies ? "copy" : "read", rate * 1e-9);
    return work[0].sink == 12345;
  }
  if (argc > 3) {
    double rate = rate_of_fma(atoi(argv[2]), atol(argv[3]), threads, work);
    printf("{\"fma_gflops\": %.1f}\n", rate * 1e-9);
    return work[0].sink == 12345;
  }
  const long total = 256L << 20, cached = 8L << 20;
  double reading = rate_of_memory(0, 30, total, threads, work);
  double copying = rate_of_memory(1, 30, total, threads, work);
  float *near = filled(cached);
  long small = cached / threads / (STREAMS * WIDTH) * (STREAMS * WIDTH);
  for (int i = 0; i < threads; i++) work[i] = (Work){near + i * (small / 4), 0, small, 32, 0};
  double inside = (double)small * threads * 32 / best_of(30, read_all, threads, work);
  double flops = rate_of_fma(200, 1000 * 1000, threads, work);
  float sink = 0;
  for (int i = 0; i < threads; i++) sink += work[i].sink;
  printf("{\"threads\": %d, \"fma_gflops\": %.1f, \"cache_gbs\": %.1f, \"read_gbs\": %.1f, "
         "\"copy_gbs\": %.1f}\n", threads, flops * 1e-9, inside * 1e-9, reading * 1e-9, copying * 1e-9);
  return sink == 12345;
}

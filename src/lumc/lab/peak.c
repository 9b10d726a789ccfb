/* peak.c - how fast multiply-adds on registers are, reads from a cache, and copies in memory. */
#include <time.h>

#define LUMC_LANES LANES
#include "lumc_kernel.h"

typedef float vector __attribute__((vector_size(4 * LANES)));
enum { SUMS = 12, ROUNDS = 20000 };

static double now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static volatile float sink = 0.5f;

double peak_gflops(void) {
  const vector a = sink - (vector){0}, b = a * 0.5f;
#define EACH(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define START(i) vector s##i = b + i;
#define STEP(i) s##i = s##i * a + b;
#define KEEP(i) total += s##i;
  EACH(START)
  double start = now_ns();
  for (int k = 0; k < ROUNDS; ++k) {
    EACH(STEP)
  }
  double ns = now_ns() - start;
  vector total = b;
  EACH(KEEP)
  sink = total[0] > 2.0f ? 0.25f : 0.5f;
  return 2.0 * LANES * SUMS * ROUNDS / ns;
}

/* GB/s of reading n floats, a multiple of SUMS * LANES, over and over. */
double cached_gbps(const float *x, long n) {
  const vector b = sink - (vector){0};
#define READ(i) s##i += *(const vector *)(x + k + i * LANES);
  EACH(START)
  long rounds = (16l << 20) / n + 1;
  double start = now_ns();
  for (long r = 0; r < rounds; ++r) {
    __asm__ volatile("" : : "r"(x) : "memory"); /* read again */
    for (long k = 0; k < n; k += SUMS * LANES) {
      EACH(READ)
    }
  }
  double ns = now_ns() - start;
  vector total = b;
  EACH(KEEP)
  sink = total[0] > 2.0f ? 0.25f : 0.5f;
  return 4.0 * (double)(rounds * n) / ns;
}

/* GB/s of reading and writing when n floats, whole pieces, are copied from x to y. */
double memory_gbps(const float *x, float *y, long n) {
  double start = now_ns();
  for (long k = 0; k < n; k += LUMC_PIECE / 4) lumc_stream(y + k, x + k);
  lumc_streamed();
  return 8.0 * (double)n / (now_ns() - start);
}

/* timer.c - runs one kernel as a bundle runs it, over and over, and takes the time. */
#include "internal.h"
#include <stdlib.h>
#include <time.h>

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* The threads of all samples; NULL without memory. */
struct pool *timer_pool(int threads) { return pool_new(threads); }

/* `n` samples of `inner` runs in lock step, on the sets of arguments in turn; microseconds of one
 * run, or of the first of `slices` of it. Returns 0, or 1 without memory. */
int timer_sample(struct pool *pool, void *run, void ***sets, long n_sets, long parallel, long slices,
                 long inner, long n, double *us) {
  struct op *ops = calloc((size_t)inner, sizeof *ops);
  if (!ops) return 1;
  for (long i = 0, set = 0; i < n; ++i) {
    for (long k = 0; k < inner; ++k, set = (set + 1) % n_sets)
      ops[k] = (struct op){(kernel_fn)run, sets[set], parallel, slices};
    double start = now_us();
    pool_run(pool, ops, (size_t)inner);
    us[i] = (now_us() - start) / (double)inner;
  }
  free(ops);
  return 0;
}

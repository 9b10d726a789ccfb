/* internal.h - what the files of the runner share. */
#ifndef LUMC_INTERNAL_H
#define LUMC_INTERNAL_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "glibc.h"
#include "lumc.h"

#pragma GCC visibility push(hidden) /* a program that links the library may use these names */

enum { MAX_RANK = 16, MAX_NAME = 1024, MAX_THREADS = 1024 };
enum { PAGE = 4096, HUGE_PAGE = 2 << 20 };

/* Remember a message for lumc_error and return the code. */
int lumc_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- sha256.c */
struct sha256 {
  uint32_t state[8];
  uint64_t bytes;
  uint8_t block[64];
};
void sha256_start(struct sha256 *);
void sha256_add(struct sha256 *, const void *data, size_t size);
void sha256_hex(struct sha256 *, char hex[65]);

/* ---- files.c: reading with hashes; code LUMC_OK or what lumc_fail was told */
int open_file(const char *folder, const char *name, size_t *size, int *file);
/* Read `size` bytes into `to`, hashing them while they are in the cache. */
int read_hashed(int file, const char *name, uint8_t *to, size_t size, struct sha256 *);
/* A whole file with a NUL after it, from malloc. */
int read_whole(const char *folder, const char *name, size_t limit, char **text, size_t *size,
               struct sha256 *);
/* The manifest: compact JSON of which line 1 ends in the hash of all that follows. */
int read_manifest(const char *folder, char **text);
int check_hash(const char *manifest, const char *name, struct sha256 *);

/* ---- features.c: NULL when this CPU has every feature, else the first that it lacks */
const char *cpu_lacks(const char *const *names, size_t n);
const char *cpu_arch(void);

/* ---- pool.c */
typedef void (*kernel_fn)(void *const *args, long part, long nparts);
struct op { /* one launch: a kernel and its arguments */
  kernel_fn run;
  void **args;
  long parallel; /* 0: only part 0 of 1; 1: a part per thread; n: at most n parts */
  long slices;   /* n > 0: every part does the first n-th of its share, as far as that divides */
};
struct pool;
struct pool *pool_new(int threads);
void pool_run(struct pool *, const struct op *, size_t n); /* in order, a barrier between */
/* The same, timed: times[(op * threads + part) * 2] are start and end on the monotonic clock, ns;
 * parts that do nothing stay as they are. n > 0. */
void pool_trace(struct pool *, const struct op *, size_t n, int64_t *times);
void pool_free(struct pool *);

/* ---- plan.c: plan.bin as it lies in memory; see docs/bundle.md */
enum place { NOWHERE, INPUT, OUTPUT, ARENA, WEIGHT, STATE, SCRATCH, PACKED, PLACES };
struct arg {
  uint64_t place;
  uint64_t index;  /* input, output, state: which one */
  uint64_t offset; /* arena, weight: where */
  uint64_t bytes;  /* what the kernel may touch */
};
struct launch {
  uint64_t kernel, n_args;
  const struct arg *args;
};
struct kernel {
  const char *symbol;
  uint64_t parallel, scratch;       /* bytes for each part */
  uint64_t blocks, threads, shared; /* of a launch on a GPU: its grid, bytes for each block */
};
struct entry {
  const char *name;
  uint64_t arena; /* bytes */
  size_t n_inputs, n_outputs, n_launches;
  lumc_tensor *inputs, *outputs;
  struct launch *launches;
};
struct packing { /* a weight in another order, made when it is loaded */
  uint64_t from, bytes, element; /* the weight: where, its size, the size of an element */
  uint64_t to;                   /* where in the packed memory */
  uint64_t base;                 /* its first element in the weight */
  uint64_t width, lanes; /* 0, or the first and last dims are panels of so many lanes, zero beyond */
  size_t rank;
  const struct dim {
    uint64_t extent, stride; /* as it lies in memory; the stride is in elements of the weight */
  } *dims;
};
struct plan {
  uint8_t *data; /* the file; names and shapes point into it */
  const char *target, *arch;
  size_t n_features, n_states, n_kernels, n_entries;
  const char **features;
  uint64_t weights_start, weights_bytes; /* the data section of weights.safetensors */
  uint64_t packed_bytes;
  size_t n_packings;
  struct packing *packings;
  lumc_tensor *states;
  struct kernel *kernels;
  struct entry *entries;
};
/* Read a plan; takes `data` (from malloc) in any case. Every count, name and offset is checked. */
int plan_read(struct plan *, uint8_t *data, size_t size);
void plan_free(struct plan *);

/* ---- memory.c */
struct block { /* memory of our own, zeroed, on huge pages when it is large */
  uint8_t *data;
  size_t bytes;
};
int reserve(struct block *, size_t bytes);
void release(struct block *);
/* n elements of zeros, from malloc, and one more: never an empty block. NULL when *code is a failure,
 * which it becomes when there is no memory. */
void *zeros(size_t n, size_t size, int *code);
enum { ALIGN = 256 }; /* of values on a GPU, which start at a multiple */
size_t aligned(uint64_t bytes);

struct source { /* a bundle that is being opened */
  const char *folder, *manifest;
};
/* A whole file, checked against its hash, with a NUL after it, from malloc. */
int read_checked(const struct source *, const char *name, size_t limit, char **data, size_t *size);
/* The data of weights.safetensors, checked against its hash. */
int read_weights(const struct source *, const struct plan *, struct block *);
/* What the plan packs of these weights. */
int pack_weights(const struct plan *, const uint8_t *weights, struct block *);

/* ---- what runs the launches of a plan: cpu.c, cuda.c, metal.c. Calls on one `self` never overlap. */
struct device {
  const char *kind; /* its plans are plan/KIND-*.bin */
  /* How well this machine runs a plan, the more the better; 0: not at all, lumc_error says why. */
  long (*suits)(const struct plan *);
  /* Load the kernels and weights of a plan, which outlives *self. On failure *self may be set: it
   * is closed then. */
  int (*open)(const struct source *, const struct plan *, int threads, void **self);
  int (*set_threads)(void *self, int threads);
  /* The memory of a state, until the next run. */
  int (*state)(void *self, size_t i, void **data);
  /* Take the inputs of the runs to come; run n times and wait; give the outputs of the last. */
  int (*begin)(void *self, size_t entry, const void *const *inputs, void *const *outputs);
  int (*repeat)(void *self, size_t entry, long n);
  int (*finish)(void *self, size_t entry, void *const *outputs);
  /* Run once, timed as lumc_trace says; all times are 0 before. */
  int (*trace)(void *self, size_t entry, int threads, int64_t *times);
  void (*close)(void *self);
};
extern const struct device cpu_device, cuda_device, metal_device;

/* ---- npy.c */
struct npy { /* data is NULL when the tensor has no bytes, or more than were wanted */
  int dtype, rank;
  int64_t shape[MAX_RANK];
  void *data;
  size_t bytes;
};
int npy_read(const char *path, size_t most, struct npy *);
int npy_write(const char *path, const lumc_tensor *, const void *data);
int npz_write(const char *path, const lumc_tensor *, void *const *data, size_t n);

const char *dtype_name(int dtype);
size_t dtype_bytes(int dtype);

#pragma GCC visibility pop
#endif

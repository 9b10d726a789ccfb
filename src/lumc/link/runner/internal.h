/* internal.h - what the files of the runner share. */
#ifndef LUMC_INTERNAL_H
#define LUMC_INTERNAL_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "glibc.h"
#include "lumc.h"
#include <pthread.h>
#include <stdio.h>

#pragma GCC visibility push(hidden) /* a program that links the library may use these names */

enum { MAX_RANK = 16, MAX_NAME = 1024, MAX_THREADS = 1024, MAX_DIMS = 64, MAX_LENGTHS = 512 };
enum { MAX_REPEATS = 1 << 20 }; /* of an entry in a run */
enum { PAGE = 4096, HUGE_PAGE = 2 << 20 };

/* ---- errors.c: remember a message for lumc_error and return the code */
int lumc_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

const char *dtype_name(int dtype);
size_t dtype_bytes(int dtype);

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
int64_t now_ns(void); /* of the monotonic clock */

/* ---- plan.c: plan.bin as it lies in memory; see docs/bundle.md */
enum place { NOWHERE, INPUT, OUTPUT, ARENA, WEIGHT, STATE, SCRATCH, PACKED, DIM, PLACES };
struct arg {
  uint64_t place;
  uint64_t index;  /* input, output, state, dim: which one */
  uint64_t offset; /* arena, weight, packed, state: where */
  uint64_t bytes;  /* what the kernel may touch */
};
struct launch {
  uint64_t kernel, who, n_args; /* who: 0, or 1 + the stage whose ranks run it */
  const struct arg *args;
};
struct tensor_map { /* of a buffer of 16-bit elements, which copies of whole tiles go by */
  uint64_t buffer, rank, dims[3];   /* elements along its axes, the innermost first */
  uint64_t strides[2], box[2];      /* bytes along all axes but the first; elements, rows of a copy */
};
struct kernel {
  const char *symbol;
  uint64_t parallel, scratch;       /* bytes for each part */
  uint64_t blocks, threads, shared; /* of a launch on a GPU: its grid, bytes for each block */
  const struct tensor_map *maps;    /* its first parameters */
  size_t n_maps;
};
enum length_kind { NUMBER, SUM, PRODUCT, QUOTIENT, REST, LENGTH_KINDS };
struct length { /* of dims: the number; a + b; a times, over or modulo the number */
  uint64_t kind, a, b; /* a, b: dims, then lengths before this one */
  int64_t number;
};
struct told { /* how an entry comes to the value of a dim */
  uint64_t how; /* enum lumc_source */
  uint64_t input, axis; /* whose extent is coefficient * dim + constant */
  int64_t coefficient, constant;
};
struct entry {
  const char *name;
  uint64_t arena; /* bytes */
  size_t n_inputs, n_outputs;
  lumc_tensor *inputs, *outputs; /* for the greatest values of dims; see lengths_of */
  const struct told *told;       /* of each dim */
  lumc_dim *counter;             /* the dim that a run counts with, or NULL */
  uint64_t repeats;              /* how often it goes through the launches */
  size_t first_list, n_lists;    /* what may run it: the first list of launches that holds */
};
struct list { /* launches of an entry, for dims that are not above its bounds */
  const struct entry *entry;
  const uint64_t *bounds;
  lumc_tensor *inputs, *outputs; /* as these launches find them in memory */
  size_t n_launches;
  struct launch *launches;
  size_t first, last; /* those of each micro-batch: from one to before another */
  uint64_t waiting, stride; /* where in the arena values wait for the way back, bytes of a micro-batch */
  const uint64_t *ways;  /* see struct way; NULL: micro-batches are taken one after the other */
  size_t middle, open;   /* of this rank's stage: where its way back begins, micro-batches under way */
  const uint64_t *turns; /* of this rank's stage: twice the micro-batch, and 1 for the way back */
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
  size_t n_features, n_dims, n_lengths, n_states, n_kernels, n_entries, n_lists;
  const char **features;
  uint64_t weights_start, weights_bytes; /* the data section of weights.safetensors */
  uint64_t packed_bytes;
  size_t n_packings;
  struct packing *packings;
  lumc_tensor *states;
  const uint64_t *first; /* of each: 0, or 1 + where its first value is among the weights */
  struct kernel *kernels;
  struct entry *entries;
  struct list *lists; /* of all entries */
  lumc_dim *dims;     /* kernels read their values where they lie */
  const struct length *lengths;
  size_t n_axes, n_segments, n_parts, n_exchanges, n_packed; /* of a plan for a mesh; see ranks.h */
  int is_long; /* it tells of stages and micro-batches; 2: and of both ways of these */
  uint64_t stages, time; /* 0, or 1 + the axis along which ranks are stages; that of micro-batches */
  struct mesh_axis *axes;
  struct segment *segments;
  struct parts *parts; /* of each state */
  struct exchange *exchanges; /* launches of kernels that there are not */
  const uint64_t *packed; /* with stages: which ranks have each of what is packed */
};
/* The value of the counter the k-th time. */
static inline int64_t counted(const struct entry *e, uint64_t k) {
  const lumc_dim *d = e->counter;
  return (d->lo + d->multiple - 1) / d->multiple * d->multiple + (int64_t)k * d->multiple;
}
static inline int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }
/* For each extent of an input or an output 0, or which length it has: 1 + its number. */
static inline const uint64_t *lengths_of(const lumc_tensor *t) {
  return (const uint64_t *)(const void *)(t->shape + t->rank);
}
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
/* Copy a box of a tensor to another place in it; both lie inside. */
void copy_box(const lumc_tensor *, uint8_t *data, const int64_t *from, const int64_t *to,
              const int64_t *shape);
/* Make bytes zero; those that are stay untouched. */
void clear(uint8_t *data, size_t bytes);
/* n elements of zeros, from malloc, and one more: never an empty block. NULL when *code is a failure,
 * which it becomes when there is no memory. */
void *zeros(size_t n, size_t size, int *code);
enum { ALIGN = 256 }; /* of values on a GPU, which start at a multiple */
size_t aligned(uint64_t bytes);

struct source { /* a bundle that is being opened */
  const char *folder, *manifest;
  struct block *first; /* where read_weights leaves the first values of states, in their order */
  struct mesh *mesh; /* the other ranks, or NULL */
};
/* A whole file, checked against its hash, with a NUL after it, from malloc. */
int read_checked(const struct source *, const char *name, size_t limit, char **data, size_t *size);
/* The data of weights.safetensors, checked against its hash; of a mesh what this rank has of it. */
int read_weights(const struct source *, const struct plan *, struct block *);
/* What the plan packs of these weights. */
int pack_weights(const struct plan *, const struct mesh *, const uint8_t *weights, struct block *);

/* ---- live.c: tensors for the dims as they are, whose memory is as the caller's */
struct live {
  struct plan *plan;
  int64_t *values;      /* of dims and lengths */
  lumc_tensor **tensors; /* of each entry: its inputs, then its outputs */
  int64_t *shapes;
  struct block memory; /* of inputs and outputs with lengths, for the greatest */
  const void **inputs; /* as a device takes them */
  void **outputs;
  size_t *reach; /* of these inputs, then outputs: bytes to the end of what there is */
};
int live_open(struct live *, struct plan *);
void live_close(struct live *);
/* Give a dim a value; one that it may have. */
int live_set(struct live *, size_t dim, int64_t value);
/* The first list of an entry that holds. */
size_t live_list(const struct live *, const struct entry *);
/* Before a run of a list: inputs and outputs for the device, with copies of what is shorter than its
 * memory; and after it. */
void live_give(struct live *, const struct list *, const void *const *inputs,
               void *const *outputs);
void live_take(const struct live *, const struct list *, void *const *outputs);

/* ---- what runs the launches of a plan: cpu.c, gpu.c, metal.c. Calls on one `self` never overlap. */
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
  /* Of a list of launches: take the inputs of the runs to come, and the dims as they are; run n
   * times, each as often as the entry repeats, and wait; give the outputs of the last. Memory is for the greatest values of dims; what
   * there is of an input or an output ends after `bytes` of it. */
  int (*begin)(void *self, size_t list, const void *const *inputs, void *const *outputs,
               const size_t *bytes);
  int (*repeat)(void *self, size_t list, long n);
  int (*finish)(void *self, size_t list, void *const *outputs, const size_t *bytes);
  /* Run once, timed as lumc_trace says, the last time of an entry that repeats; all times are 0
   * before. */
  int (*trace)(void *self, size_t list, int threads, int64_t *times);
  void (*close)(void *self);
};
extern const struct device cpu_device, cuda_device, hip_device, metal_device;

/* ---- model.c, states.c */
/* How many ranks a bundle is for; 0: it is for one process. */
int ranks_of(const char *bundle, int *ranks);
struct lumc {
  struct plan plan;
  struct live live; /* the dims of runs */
  struct block first; /* the first values of states that have any, in their order */
  struct mesh *mesh;  /* the other ranks, or NULL */
  const struct device *device;
  void *self; /* of the device */
  int threads;
  pthread_mutex_t running;
};
/* One of n, NULL out of range. */
const lumc_tensor *tensor_at(const lumc_tensor *list, size_t n, int i);
struct note { /* of the metadata of a file: a plain text without quotes and escapes */
  const char *key;
  char value[256];
};
/* What states begin with; those that are zeros at first only if they are not zero yet. */
int states_begin(lumc *, int are_zero);
/* All states into a file, with notes, and back: all of them, or none if that fails. */
int states_save(lumc *, const char *path, const struct note *, size_t n);
int states_load(lumc *, const char *path, struct note *, size_t n);

/* ---- output.c: what is no file (/dev/null, a pipe) stays what it is, and is written to; a file is
 * replaced when the new one is whole and on the disk. */
struct output {
  FILE *file;
  int special;
  char part[4096];
};
int output_open(struct output *, const char *path);
/* `otherwise`: why it is not good, where no system call says so. */
int output_close(struct output *, const char *path, int good, const char *otherwise);

struct npy { /* an array of a file; data is NULL when it has no bytes, or more than were wanted */
  int dtype, rank;
  int64_t shape[MAX_RANK];
  void *data;
  const uint8_t *view; /* where it lies in a file in memory */
  size_t bytes;
};

/* ---- safetensors.c */
/* The wanted tensors of a file, which has all of them and no others, one after another in memory
 * from malloc; and the values of notes, as they were where the file has none. */
int tensors_read(const char *path, const lumc_tensor *wanted, size_t n, struct note *,
                 size_t n_notes, uint8_t **data);
int tensors_write(const char *path, const lumc_tensor *, void *const *data, size_t n,
                  const struct note *, size_t n_notes);

/* ---- npy.c */
int npy_same(int a, int b); /* dtypes that are the same in a file */
int npy_read(const char *path, size_t most, struct npy *);
/* Of files that are in memory: the array of an .npy, and a tensor by its name, if there is one. */
int npy_view(const char *path, const uint8_t *data, size_t size, struct npy *);
int tensor_view(const char *path, const uint8_t *data, size_t size, const char *name, struct npy *);
int npy_write(const char *path, const lumc_tensor *, const void *data);
int npz_write(const char *path, const lumc_tensor *, void *const *data, size_t n);

/* ---- launch.c: this program once for each rank of a bundle, with its arguments but --mesh; its exit
 * code. */
int launch(const char *bundle, int argc, char **argv);
enum { RANK_LOST = 70 }; /* how a rank that was started so ends when it is another one's fault */
FILE *launched(void); /* where a rank that was started so tells why it failed; else stderr */

/* ---- listing.c */
int dims_to_ends(lumc *, int greatest); /* the least or the greatest values of all dims */
void list_bundle(lumc *);

/* ---- feed.c: the inputs of a loop of steps */
struct fed { /* an array for an input; without a view none */
  struct npy is;
  int by_step; /* it has a value for each step, else rows */
};
struct feed {
  lumc *model;
  int entry;
  long steps;          /* from the first of all */
  void *const *given;  /* inputs that are the same in every step, else NULL */
  struct block *files; /* mapped */
  size_t n_files;
  struct fed *arrays;  /* of each input */
  int64_t rows, batch; /* of arrays, and of a step; 0: none is fed by rows */
  int shuffled;
  uint64_t seed, epoch;
  int64_t *order;       /* of the rows in this epoch, if they are shuffled */
  struct block listed;  /* else a file that lists the rows of all steps, or nothing: in order */
  struct npy list;
};
int feed_open(struct feed *, char *const *specs, int n);
int feed_listed(struct feed *, const char *path);
int feed_step(struct feed *, uint64_t step, void *const *inputs);
void feed_close(struct feed *);

/* ---- train.c: the loop */
struct loop {
  lumc *model;
  int entry, n_feeds, has_outputs;
  void **inputs, *const *outputs; /* inputs that are NULL are fed, into memory from malloc */
  char *const *feeds;
  const char *state, *save, *losses, *order;
  long every;
  struct feed feed; /* its steps and its seed */
  FILE *csv;
  char said[256]; /* which batches there are */
  int terminal, quiet;
  uint64_t first; /* the step that it began with */
  double start, shown;
};
int train(struct loop *);

#pragma GCC visibility pop
#endif

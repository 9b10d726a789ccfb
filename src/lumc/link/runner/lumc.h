/* lumc.h - run a lumc bundle from C, without Python.
 *
 *   lumc *model;
 *   if (lumc_open("model.lb", 2, &model)) { fprintf(stderr, "%s\n", lumc_error()); return 1; }
 *   int entry = lumc_entry(model, "main");
 *   float x[4 * 8] = {..}, y[4 * 2];
 *   const void *in[] = {x};
 *   void *out[] = {y};
 *   if (lumc_run(model, entry, in, out)) fprintf(stderr, "%s\n", lumc_error());
 *   lumc_close(model);
 *
 * Tensors are dense, row-major, little endian, aligned to their element; inputs and outputs must
 * not overlap. A handle may be used from several threads: runs are serialised. The memory of names
 * and shapes belongs to the handle. docs/bundle.md has the whole example and the file formats.
 */
#ifndef LUMC_H
#define LUMC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header, and that of the library that a program runs with. */
#define LUMC_VERSION "0.1.0"
const char *lumc_version(void);

typedef struct lumc lumc; /* an open bundle */

/* Element types; bf16 and f16 are 16-bit patterns, bool is one byte, 0 or 1. */
enum lumc_dtype {
  LUMC_F32,
  LUMC_F16,
  LUMC_BF16,
  LUMC_F64,
  LUMC_I64,
  LUMC_I32,
  LUMC_I8,
  LUMC_U8,
  LUMC_BOOL,
  LUMC_I16,
  LUMC_U16,
  LUMC_U32,
  LUMC_U64
};

/* What a call returns; also the exit codes of lumc-run. */
enum lumc_code {
  LUMC_OK = 0,
  LUMC_FAILED = 1,  /* out of memory, a file cannot be read */
  LUMC_USAGE = 2,   /* a wrong argument */
  LUMC_CORRUPT = 5, /* the bundle is damaged or was changed after it was linked */
  LUMC_DEVICE = 7   /* this machine cannot run it: no such device, driver or CPU features */
};

typedef struct {
  const char *name;
  int dtype; /* enum lumc_dtype */
  int rank;
  const int64_t *shape; /* rank extents */
  size_t bytes;
} lumc_tensor;

/* A dim: an extent that is known when a model runs, one of the multiples from lo to hi. */
typedef struct {
  const char *name;
  int64_t lo, hi, multiple;
  int64_t value; /* of the runs to come; at first the greatest */
} lumc_dim;

/* How an entry comes to the value of a dim. */
enum lumc_source {
  LUMC_UNUSED,   /* it does not depend on it */
  LUMC_BY_NAME,  /* lumc_set_dim */
  LUMC_BY_SHAPE, /* the shape of an input tells it: lumc_set_shape, or lumc_set_dim */
  LUMC_COUNTED,  /* a run goes through the entry once for each of its values, in order */
  LUMC_SOURCES
};

/* Open a bundle directory for runs with `threads` threads (at least 1). Every file that is used is
 * checked against its hash in the manifest first. On success *model is the handle. */
int lumc_open(const char *bundle, int threads, lumc **model);
void lumc_close(lumc *model);

/* The same on a device: "cuda", "hip", "metal" or "cpu"; with NULL the first of these that the bundle has
 * a plan for and that works here, which is what lumc_open does. lumc_device says which it is. */
int lumc_open_on(const char *bundle, const char *device, int threads, lumc **model);
const char *lumc_device(const lumc *model);

/* A bundle for a mesh is opened by all of its ranks at once, each a process of its own: environment
 * variables say which it is and where they meet (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT; or those
 * of MPI). All make the same calls with the same inputs, and get the same outputs; of states each has
 * its part, and files hold whole ones. Which one this process is; 0 of a bundle for one. */
int lumc_rank(const lumc *model);

/* The message of the last failed call of this thread, one line. */
const char *lumc_error(void);

/* Entries (a model may have several, such as "prefill" and "decode"). lumc_entry gives -1 for an
 * unknown name. */
int lumc_entries(const lumc *model);
int lumc_entry(const lumc *model, const char *name);
const char *lumc_entry_name(const lumc *model, int entry);

/* Inputs and outputs of an entry, in the order that lumc_run takes them; NULL out of range. Shapes
 * and bytes are those for the values that dims have now. */
int lumc_inputs(const lumc *model, int entry);
int lumc_outputs(const lumc *model, int entry);
const lumc_tensor *lumc_input(const lumc *model, int entry, int i);
const lumc_tensor *lumc_output(const lumc *model, int entry, int i);

/* The dims of a bundle, which all entries share; NULL out of range. Set their values before a run:
 * one by its name, or those that the shape of an input tells. They stay until they are set again.
 * Programs that set dims on several threads take a handle for each. */
int lumc_dims(const lumc *model);
const lumc_dim *lumc_dim_at(const lumc *model, int i);
enum lumc_source lumc_dim_source(const lumc *model, int entry, int i);
int lumc_set_dim(lumc *model, const char *name, int64_t value);
int lumc_set_shape(lumc *model, int entry, int input, const int64_t *shape, int rank);

/* Buckets: up to some values of its dims an entry has launches of their own. A run takes the first
 * bucket that holds its dims; the last one holds all. The greatest value of a dim in a bucket; -1
 * out of range. Lengths that fill a bucket take the least time for each element. */
int lumc_buckets(const lumc *model, int entry);
int64_t lumc_bucket_end(const lumc *model, int entry, int bucket, int dim);

/* States live in the handle between runs and are shared by its entries; they start with the values
 * that the bundle has for them, else as zeros.
 * lumc_state_data is their memory, to read or write until the next run: ask for it again after
 * each, since a GPU has its own copy. NULL when it cannot be had. */
int lumc_states(const lumc *model);
const lumc_tensor *lumc_state(const lumc *model, int i);
void *lumc_state_data(lumc *model, int i);

/* Copy elements of a state to other places in it, which may overlap: a box of `shape` from index
 * `from` to index `to`, an extent or index for each axis. Of the cache of several texts,
 * f32[sequences, heads, rows, d], shape {1, heads, 17, d} from {0, 0, 0, 0} to {1, 0, 0, 0} are the
 * first 17 rows of a text for another one. */
int lumc_copy_state(lumc *model, int i, const int64_t *from, const int64_t *to,
                    const int64_t *shape);

/* All states as they were at first. */
int lumc_reset(lumc *model);

/* All states into a safetensors file, under their names, and back. The file appears when it is
 * whole. One that is read has every state of the model, of its dtype and shape, and nothing else;
 * LUMC_USAGE when it has not, and then no state is changed. */
int lumc_save_states(lumc *model, const char *path);
int lumc_load_states(lumc *model, const char *path);

/* Change the number of threads of later runs; a GPU takes no notice. */
int lumc_set_threads(lumc *model, int threads);

/* Run an entry. inputs[i] and outputs[i] are the caller's memory, bytes as the tensors say. */
int lumc_run(lumc *model, int entry, const void *const *inputs, void *const *outputs);

/* Time runs for at least `seconds` in all: us[i] is the mean time of one run in sample i,
 * a sample lasts about 100 us or one run. Returns the number of samples (at most `capacity`),
 * or minus an enum lumc_code. */
int lumc_bench(lumc *model, int entry, const void *const *inputs, void *const *outputs,
               double seconds, double *us, int capacity);

/* What an entry launches, in order: the number of launches, and the kernel of each. */
int lumc_launches(const lumc *model, int entry);
const char *lumc_launch(const lumc *model, int entry, int i);

/* Run an entry and time every launch: times[(i * threads + thread) * 2] is when a thread started
 * its part of launch i and the next one when it ended it, in nanoseconds of the monotonic clock;
 * both are 0 when it had none. times has launches * threads * 2 elements. */
int lumc_trace(lumc *model, int entry, const void *const *inputs, void *const *outputs,
               int64_t *times);

#ifdef __cplusplus
}
#endif
#endif

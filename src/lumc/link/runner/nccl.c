/* nccl.c - what ranks exchange on GPUs of NVIDIA: by NCCL, which is loaded when a plan for a mesh asks
 * for it, on the stream of the launches and so in their graph. Ranks met before by another transport,
 * which carries what NCCL needs to begin, what all agree on before a run, and states; and by which it
 * is seen that one is gone, as a collective would wait for it for ever.
 *
 * No header of NCCL is needed: the few types and numbers are declared here. */
#include "gpu.h"
#include "ranks.h"
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ID_BYTES = 128, UUID_BYTES = 16, MAX_PITCH = INT32_MAX, DEVICE_MEMORY = 2, NOT_READY = 600 };
enum { NCCL_UINT8 = 1, NCCL_SUM = 0, NCCL_MAX = 2, NCCL_IN_PROGRESS = 7, NO_TYPE = -1 };

static const int types[] = { /* of what is reduced, in the order of enum lumc_dtype */
    7 /* f32 */, 6 /* f16 */, 9 /* bf16 */, 8 /* f64 */, 4 /* i64 */, 2 /* i32 */, 0 /* i8 */, 1 /* u8 */,
    1 /* bool */, NO_TYPE /* i16 */, NO_TYPE /* u16 */, 3 /* u32 */, 5 /* u64 */};

struct unique_id { /* passed by value */
  char bytes[ID_BYTES];
};
struct copy_2d { /* CUDA_MEMCPY2D */
  size_t from_x, from_y;
  int from_kind;
  const void *from_host;
  address from;
  handle from_array;
  size_t from_pitch, to_x, to_y;
  int to_kind;
  void *to_host;
  address to;
  handle to_array;
  size_t to_pitch, width, height;
};

#define OF_NCCL(X)                                                                       \
  X(ncclGetUniqueId, (struct unique_id *))                                               \
  X(ncclCommInitRank, (handle *, int, struct unique_id, int))                            \
  X(ncclCommDestroy, (handle))                                                           \
  X(ncclCommAbort, (handle))                                                             \
  X(ncclCommGetAsyncError, (handle, int *))                                              \
  X(ncclGroupStart, (void))                                                              \
  X(ncclGroupEnd, (void))                                                                \
  X(ncclSend, (address, size_t, int, int, handle, handle))                               \
  X(ncclRecv, (address, size_t, int, int, handle, handle))                               \
  X(ncclBroadcast, (address, address, size_t, int, int, handle, handle))                 \
  X(ncclAllGather, (address, address, size_t, int, handle, handle))                      \
  X(ncclAllReduce, (address, address, size_t, int, int, handle, handle))                 \
  X(ncclReduceScatter, (address, address, size_t, int, int, handle, handle))
#define OF_DRIVER(X)                                                                     \
  X(cuDeviceGetUuid_v2, (char *, int))                                                   \
  X(cuMemcpyDtoDAsync_v2, (address, address, size_t, handle))                            \
  X(cuMemcpy2DAsync_v2, (const struct copy_2d *, handle))                                \
  X(cuStreamQuery, (handle))

static struct {
#define X(name, parameters) int(*name) parameters;
  OF_NCCL(X)
  OF_DRIVER(X)
#undef X
  const char *(*ncclGetErrorString)(int);
} own; /* a process has it once */

struct nccl {
  const struct gpu *gpu;
  struct mesh *mesh;
  size_t n_axes;
  struct line { /* the ranks along an axis of the mesh */
    handle comm; /* NULL where nothing is exchanged */
    int at, ranks;
  } lines[8];
  address packed, came; /* blocks on their way: what was put together, what is to be taken apart */
  int broken;
};

/* ---- loading */

static int find(void *library, const char *name, void *to, const char *what) {
  void *found = dlsym(library, name);
  memcpy(to, &found, sizeof found); /* ISO C has no cast from object to function */
  return found ? LUMC_OK : lumc_fail(LUMC_DEVICE, "%s is too old for ranks: it has no %s", what, name);
}

static int load(void) {
  const char *named = getenv("LUMC_NCCL");
  int is_named = named && *named, code = LUMC_OK;
  void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  void *nccl = dlopen(is_named ? named : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (!nccl)
    return lumc_fail(LUMC_DEVICE, "ranks on GPUs need NCCL, and there is none: %s; LUMC_NCCL names libnccl.so.2, "
                     "which 'pip install nvidia-nccl-cu12' has", dlerror());
#define X(name, parameters) if (!code) code = find(nccl, #name, &own.name, "NCCL");
  OF_NCCL(X)
  X(ncclGetErrorString, )
#undef X
#define X(name, parameters) if (!code) code = find(driver, #name, &own.name, "the NVIDIA driver");
  OF_DRIVER(X)
#undef X
  return code;
}

static int check(int result, const char *what) {
  if (!result) return LUMC_OK;
  return lumc_fail(LUMC_FAILED, "%s: NCCL says: %s (%d)", what, own.ncclGetErrorString(result), result);
}

/* ---- by the way on which ranks met */

/* What the first rank along an axis has, to all of them. */
static int share(struct nccl *n, size_t axis, const void *mine, void *to, size_t bytes) {
  struct exchange e = {BROADCAST, axis, NO_OP, LUMC_U8, bytes, 1, 1, 0, 0};
  return mesh_run(n->mesh, &e, mine, to);
}

/* What all ranks have, in their order: along the last axis first, as its ranks are side by side. */
static int gather(struct nccl *n, const void *mine, size_t bytes, void *all) {
  int code = LUMC_OK;
  void *held = zeros((size_t)mesh_ranks(n->mesh), bytes, &code);
  if (!code) memcpy(all, mine, bytes);
  for (size_t i = n->n_axes; i-- > 0 && !code;) {
    struct exchange e = {ALL_GATHER, i, NO_OP, LUMC_U8, bytes, 1, 1, 0, 0};
    memcpy(held, all, bytes);
    code = mesh_run(n->mesh, &e, held, all);
    bytes *= (size_t)n->lines[i].ranks;
  }
  free(held);
  return code;
}

/* ---- opening */

/* Collectives between ranks of one GPU would wait for each other. */
static int check_gpus(struct nccl *n) {
  int code = LUMC_OK, ranks = mesh_ranks(n->mesh), rank = mesh_rank(n->mesh);
  char uuid[UUID_BYTES], *all = zeros((size_t)ranks, sizeof uuid, &code);
  if (!code) code = gpu_check(n->gpu, own.cuDeviceGetUuid_v2(uuid, n->gpu->device), "UUID");
  if (!code) code = gather(n, uuid, sizeof uuid, all);
  for (int i = 0; i < ranks && !code; ++i)
    if (i != rank && !memcmp(all + (size_t)i * sizeof uuid, uuid, sizeof uuid))
      code = lumc_fail(LUMC_DEVICE, "ranks %d and %d have the same GPU, and each needs one of its own",
                       i < rank ? i : rank, i < rank ? rank : i);
  free(all);
  return code;
}

/* The ranks along an axis begin together: the first one makes their id. */
static int join(struct nccl *n, size_t axis) {
  struct line *l = &n->lines[axis];
  struct unique_id made = {{0}}, id;
  int code = l->at ? LUMC_OK : check(own.ncclGetUniqueId(&made), "ncclGetUniqueId");
  if (code) mesh_give_up(n->mesh, code); /* before others wait for it */
  if (!code) code = share(n, axis, &made, &id, sizeof id);
  return code ? code : check(own.ncclCommInitRank(&l->comm, l->ranks, id, l->at), "ncclCommInitRank");
}

static size_t most(size_t a, size_t b) { return a > b ? a : b; }

/* Memory for what lies in rows of blocks, as NCCL has blocks one after another. */
static int make_room(struct nccl *n, const struct plan *p) {
  size_t packed = 0, came = 0;
  for (size_t i = 0; i < p->n_exchanges; ++i) {
    const struct exchange *e = &p->exchanges[i];
    size_t bytes = (size_t)e->elements * dtype_bytes((int)e->dtype);
    if ((e->kind == REDUCE_SCATTER || e->kind == ALL_TO_ALL) && e->outer > 1) packed = most(packed, bytes);
    if (e->joined > 1) came = most(came, e->kind == ALL_GATHER ? bytes * p->axes[e->axis].ranks : bytes);
  }
  const char what[] = "values between ranks";
  int code = packed ? gpu_allocate(n->gpu, &n->packed, packed, what) : LUMC_OK;
  return code || !came ? code : gpu_allocate(n->gpu, &n->came, came, what);
}

static int check_plan(const struct plan *p) {
  if (p->time) return lumc_fail(LUMC_DEVICE, "micro-batches run on CPUs, not on cuda");
  for (size_t i = 0; i < p->n_exchanges; ++i)
    if (p->exchanges[i].op != NO_OP && types[p->exchanges[i].dtype] == NO_TYPE)
      return lumc_fail(LUMC_DEVICE, "NCCL does not reduce %s", dtype_name((int)p->exchanges[i].dtype));
  return LUMC_OK;
}

int nccl_open(const struct gpu *gpu, struct mesh *mesh, struct nccl **to) {
  const struct plan *p = gpu->plan;
  int code = check_plan(p), used[8] = {0};
  struct nccl *n = zeros(1, sizeof *n, &code);
  if (code) return code;
  *n = (struct nccl){.gpu = gpu, .mesh = mesh, .n_axes = p->n_axes};
  for (size_t i = 0; i < n->n_axes; ++i) n->lines[i].ranks = mesh_seat(mesh, i, &n->lines[i].at);
  if (!own.cuStreamQuery) code = load();
  if (!code) code = check_gpus(n);
  if (!code) code = make_room(n, p);
  for (size_t i = 0; i < p->n_exchanges; ++i)
    if (p->exchanges[i].kind != ALL_SLICE) used[p->exchanges[i].axis] = 1;
  for (size_t i = 0; i < n->n_axes && !code; ++i)
    if (used[i]) code = join(n, i);
  if (code) n->broken = code, nccl_close(n);
  *to = code ? NULL : n;
  return code;
}

/* A rank leaves when all are done: the others would take it for one that is gone. */
void nccl_close(struct nccl *n) {
  char none = 0, *all = NULL;
  int code = n->broken || mesh_lost(n->mesh);
  if (!code) all = zeros((size_t)mesh_ranks(n->mesh), 1, &code);
  if (!code) code = gather(n, &none, 1, all);
  free(all);
  for (size_t i = 0; i < n->n_axes; ++i)
    if (n->lines[i].comm) (code ? own.ncclCommAbort : own.ncclCommDestroy)(n->lines[i].comm);
  if (n->packed) n->gpu->driver->give_back(n->packed);
  if (n->came) n->gpu->driver->give_back(n->came);
  free(n);
}

/* ---- collectives */

/* Rows of so many bytes, which begin so far from each other. */
static int copy_rows(const struct nccl *n, address to, size_t to_step, address from, size_t from_step,
                     size_t row, size_t rows) {
  handle stream = n->gpu->stream;
  int result = 0;
  if (rows > 1 && to_step <= MAX_PITCH && from_step <= MAX_PITCH) {
    const struct copy_2d c = {.from_kind = DEVICE_MEMORY, .from = from, .from_pitch = from_step,
                              .to_kind = DEVICE_MEMORY, .to = to, .to_pitch = to_step, .width = row, .height = rows};
    result = own.cuMemcpy2DAsync_v2(&c, stream);
  } else {
    for (size_t i = 0; i < rows && !result; ++i)
      result = own.cuMemcpyDtoDAsync_v2(to + i * to_step, from + i * from_step, row, stream);
  }
  return gpu_check(n->gpu, result, "copy");
}

/* Every rank has a block for each: sent all at once. */
static int swap_blocks(const struct nccl *n, const struct line *l, address from, address to, size_t block) {
  int result = own.ncclGroupStart();
  for (int i = 0; i < l->ranks && !result; ++i) {
    result = own.ncclSend(from + (size_t)i * block, block, NCCL_UINT8, i, l->comm, n->gpu->stream);
    if (!result) result = own.ncclRecv(to + (size_t)i * block, block, NCCL_UINT8, i, l->comm, n->gpu->stream);
  }
  int end = own.ncclGroupEnd();
  return check(result ? result : end, "all_to_all");
}

/* What one stage has to another one. */
static int pass(const struct nccl *n, const struct line *l, const struct exchange *e, address from, address to,
                size_t bytes) {
  int result = 0;
  if (l->at == (int)e->source)
    result = own.ncclSend(from, bytes, NCCL_UINT8, (int)e->target, l->comm, n->gpu->stream);
  else if (l->at == (int)e->target)
    result = own.ncclRecv(to, bytes, NCCL_UINT8, (int)e->source, l->comm, n->gpu->stream);
  return check(result, "send");
}

/* Blocks of rows are put together before, and taken apart after. */
int nccl_run(struct nccl *n, const struct exchange *e, address from, address to) {
  const struct line *l = &n->lines[e->axis];
  size_t count = (size_t)e->elements, bytes = count * dtype_bytes((int)e->dtype), P = (size_t)l->ranks;
  size_t outer = (size_t)e->outer, joined = (size_t)e->joined, block = bytes / P, row = block / outer;
  int code = LUMC_OK, type = types[e->dtype], op = e->op == SUM_OP ? NCCL_SUM : NCCL_MAX;
  handle stream = n->gpu->stream;
  address made = joined > 1 ? n->came : to;
  if (!bytes) return LUMC_OK;
  if ((e->kind == REDUCE_SCATTER || e->kind == ALL_TO_ALL) && outer > 1) {
    for (size_t i = 0; i < P && !code; ++i)
      code = copy_rows(n, n->packed + i * block, row, from + i * row, P * row, row, outer);
    from = n->packed;
  }
  if (code) return code;
  switch (e->kind) {
  case SEND: return pass(n, l, e, from, to, bytes);
  case BROADCAST:
    return check(own.ncclBroadcast(from, to, bytes, NCCL_UINT8, (int)e->source, l->comm, stream), "broadcast");
  case ALL_SLICE: return copy_rows(n, to, row, from + (size_t)l->at * row, P * row, row, outer);
  case ALL_REDUCE: return check(own.ncclAllReduce(from, to, count, type, op, l->comm, stream), "all_reduce");
  case REDUCE_SCATTER:
    return check(own.ncclReduceScatter(from, to, count / P, type, op, l->comm, stream), "reduce_scatter");
  case ALL_GATHER:
    block = bytes;
    code = check(own.ncclAllGather(from, made, bytes, NCCL_UINT8, l->comm, stream), "all_gather");
    break;
  default: code = swap_blocks(n, l, from, made, block);
  }
  for (size_t i = 0; i < P && joined > 1 && !code; ++i) /* blocks in rows again */
    code = copy_rows(n, to + i * (block / joined), P * (block / joined), made + i * block, block / joined,
                     block / joined, joined);
  return code;
}

/* ---- the others */

int nccl_agree(struct nccl *n, size_t list) {
  size_t words = 1 + n->gpu->plan->n_dims;
  int code = LUMC_OK, ranks = mesh_ranks(n->mesh);
  int64_t *mine = zeros(words, sizeof *mine, &code), *all = zeros((size_t)ranks * words, sizeof *all, &code);
  if (!code) mine[0] = (int64_t)list;
  for (size_t i = 1; i < words && !code; ++i) mine[i] = n->gpu->plan->dims[i - 1].value;
  if (!code) code = gather(n, mine, words * sizeof *all, all);
  for (int i = 0; i < ranks && !code; ++i)
    if (memcmp(all + (size_t)i * words, mine, words * sizeof *all))
      code = lumc_fail(LUMC_FAILED, "rank %d: rank %d runs something else: other dims or entries",
                       mesh_rank(n->mesh), i);
  if (code) mesh_give_up(n->mesh, code);
  free(mine);
  free(all);
  return code;
}

/* Is NCCL well, and are all ranks there? */
static int look(struct nccl *n, int64_t since) {
  int code = mesh_look(n->mesh), result = 0;
  for (size_t i = 0; i < n->n_axes && !code; ++i)
    if (n->lines[i].comm && !own.ncclCommGetAsyncError(n->lines[i].comm, &result) && result != NCCL_IN_PROGRESS)
      code = check(result, "run");
  double waited = (double)(now_ns() - since) * 1e-9;
  if (!code && waited > mesh_patience(n->mesh))
    code = lumc_fail(LUMC_FAILED, "rank %d: a run takes more than LUMC_MESH_TIMEOUT, %g s: does another rank wait?",
                     mesh_rank(n->mesh), mesh_patience(n->mesh));
  return code;
}

int nccl_wait(struct nccl *n) {
  enum { AT_ONCE_NS = 200000, PAUSE_NS = 20000, LOOK_NS = 10000000 };
  int64_t start = now_ns(), looked = start;
  int result, code = LUMC_OK;
  while ((result = own.cuStreamQuery(n->gpu->stream)) == NOT_READY && !code) {
    int64_t now = now_ns();
    if (now - start > AT_ONCE_NS) nanosleep(&(struct timespec){0, PAUSE_NS}, NULL);
    if (now - looked < LOOK_NS) continue;
    code = look(n, start), looked = now;
  }
  if (!code) return gpu_check(n->gpu, result, "run");
  mesh_give_up(n->mesh, n->broken = code);
  gpu_end_graphs(n->gpu); /* NCCL waits for their end, and they for NCCL's */
  for (size_t i = 0; i < n->n_axes; ++i)
    if (n->lines[i].comm) own.ncclCommAbort(n->lines[i].comm), n->lines[i].comm = NULL;
  return code;
}

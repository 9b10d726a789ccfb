/* The functions of nccl.h. */
#include "state.h"

namespace {
int (*enqueue)(void *, int (*)(void *, void **), void *);
int (*is_memory)(uint64_t, size_t);
int (*get_context)(void **);
int (*graphs)();
thread_local int depth;
thread_local std::vector<std::pair<Work *, void *>> grouped; /* and its stream */

size_t size_of(ncclDataType_t type)
{
    switch (type) {
    case ncclInt8: case ncclUint8: return 1;
    case ncclFloat16: case ncclBfloat16: return 2;
    case ncclInt64: case ncclUint64: case ncclFloat64: return 8;
    default: return 4;
    }
}

bool load()
{
    if (enqueue)
        return true;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (!driver)
        return false;
    is_memory = (decltype(is_memory))dlsym(driver, "lumc_fake_is_memory");
    get_context = (decltype(get_context))dlsym(driver, "cuCtxGetCurrent");
    graphs = (decltype(graphs))dlsym(driver, "lumc_fake_graphs");
    enqueue = (decltype(enqueue))dlsym(driver, "lumc_fake_enqueue");
    return graphs && enqueue && is_memory && get_context;
}
ncclResult_t check(const ncclComm *c, const void *p, size_t bytes)
{
    if (!c || c->aborted || c->destroyed)
        return say(ncclInvalidArgument, "no communicator");
    if (bytes && !is_memory((uint64_t)p, bytes))
        return say(ncclInvalidArgument, "a buffer outside of the memory of the device");
    return ncclSuccess;
}
bool overlap(const char *a, size_t n, const char *b, size_t m) { return a < b + m && b < a + n; }
ncclResult_t submit(std::unique_ptr<Work> work, void *stream)
{
    Work *w = work.get();
    w->comm->works.push_back(std::move(work));
    return enqueue(stream, step, w) ? ncclUnhandledCudaError : ncclSuccess;
}
/* outside of groups, whose kinds NCCL would have too */
ncclResult_t collective(Work w, size_t made, void *stream)
{
    if (depth)
        return say(ncclInvalidUsage, "a collective in a group");
    if (ncclResult_t result = check(w.comm, w.to, made))
        return result;
    if (w.kind != BROADCAST || w.comm->rank == w.root)
        if (ncclResult_t result = check(w.comm, w.from, w.bytes))
            return result;
    const size_t own = (size_t)w.comm->rank;
    const bool in_place = w.kind == ALL_GATHER       ? w.from == w.to + own * w.bytes
                          : w.kind == REDUCE_SCATTER ? w.to == w.from + own * made
                                                     : w.from == w.to;
    const bool reads = w.kind != BROADCAST || w.comm->rank == w.root;
    if (reads && !in_place && overlap(w.from, w.bytes, w.to, made))
        return say(ncclInvalidArgument, "buffers that overlap");
    return submit(std::make_unique<Work>(std::move(w)), stream);
}
ncclResult_t point(ncclComm_t c, Point p, cudaStream_t stream)
{
    if (ncclResult_t result = check(c, p.data, p.bytes))
        return result;
    if (p.peer < 0 || p.peer >= c->ranks)
        return say(ncclInvalidArgument, "no such rank");
    if (p.peer == c->rank && !depth)
        return say(ncclInvalidUsage, "a rank sends to itself outside of a group");
    Work *group = nullptr;
    for (const auto &[work, s] : grouped)
        if (work->comm == c && s == stream)
            group = work;
    if (!group) {
        auto made = std::make_unique<Work>(Work{c, POINT_TO_POINT, {}, 0, 0, 0, 0, ncclInt8, ncclSum, 0});
        group = made.get();
        c->works.push_back(std::move(made));
        grouped.push_back({group, stream});
    }
    group->points.push_back(p);
    return depth ? ncclSuccess : (depth++, ncclGroupEnd());
}
} /* namespace */

#pragma GCC visibility push(default)
extern "C" {
const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const SAID[] = {
        "no error", "unhandled cuda error", "unhandled system error", "internal error",
        "invalid argument", "invalid usage", "remote process exited", "in progress"};
    return result < 8 ? SAID[result] : "unknown result code";
}
ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    static int count;
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "/dev/shm/lumc-fake-nccl-%ld-%d-%lx",
             (long)getpid(), count++, (long)&count);
    return ncclSuccess;
}
ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank)
{
    void *context = nullptr;
    if (!load() || get_context(&context) || !context)
        return say(ncclUnhandledCudaError, "no context of the fake driver");
    if (ranks < 1 || ranks > MOST_RANKS || rank < 0 || rank >= ranks
        || strncmp(id.internal, "/dev/shm/lumc-", 14))
        return say(ncclInvalidArgument, "no such rank, or an id of something else");
    const int file = open(id.internal, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, sizeof(Shared)))
        return ncclSystemError;
    void *pages = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (pages == MAP_FAILED)
        return ncclSystemError;
    Shared *s = (Shared *)pages;
    int none = 0;
    if (!s->ranks.compare_exchange_strong(none, ranks) && none != ranks)
        return say(ncclInvalidArgument, "ranks of a communicator do not agree how many they are");
    if (s->seen[rank].exchange(1))
        return say(ncclInvalidArgument, "a rank joins twice");
    s->joined++;
    for (long i = 0; s->joined < ranks; i++) {
        if (i > PATIENCE_S * 1000L)
            return say(ncclSystemError, "ranks did not come");
        usleep(1000);
    }
    unlink(id.internal); /* all have it */
    *comm = new ncclComm{s, rank, ranks, ncclSuccess, false, false, {}};
    return ncclSuccess;
}
/* NCCL waits until no graph has its work */
static void wait_for_graphs()
{
    if (!graphs())
        return;
    say(ncclInternalError, "graphs with its work are there when a communicator ends");
    abort();
}
ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    wait_for_graphs();
    comm->destroyed = true;
    return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    wait_for_graphs();
    comm->aborted = true;
    return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    *error = comm->error;
    return ncclSuccess;
}
ncclResult_t ncclGroupStart()
{
    depth++;
    return ncclSuccess;
}
/* what a rank sends to itself is what it takes from itself, in their order */
ncclResult_t ncclGroupEnd()
{
    if (!depth)
        return say(ncclInvalidUsage, "the end of no group");
    if (--depth)
        return ncclSuccess;
    ncclResult_t result = ncclSuccess;
    for (const auto &[work, stream] : grouped)
        if (!result && enqueue(stream, step, work))
            result = ncclUnhandledCudaError;
    grouped.clear();
    return result;
}
ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return point(comm, {false, (char *)from, count * size_of(type), peer}, stream);
}
ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return point(comm, {true, (char *)to, count * size_of(type), peer}, stream);
}
ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream)
{
    const size_t bytes = count * size_of(type);
    return collective({comm, BROADCAST, {}, (const char *)from, (char *)to, count, bytes, type,
                       ncclSum, root}, bytes, stream);
}
ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream)
{
    const size_t bytes = count * size_of(type);
    return collective({comm, ALL_GATHER, {}, (const char *)from, (char *)to, count, bytes, type,
                       ncclSum, 0}, bytes * (size_t)comm->ranks, stream);
}
ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    const size_t bytes = count * size_of(type);
    return collective({comm, ALL_REDUCE, {}, (const char *)from, (char *)to, count, bytes, type, op, 0},
                      bytes, stream);
}
ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    const size_t made = count * size_of(type), all = count * (size_t)comm->ranks;
    return collective({comm, REDUCE_SCATTER, {}, (const char *)from, (char *)to, all,
                       made * (size_t)comm->ranks, type, op, 0}, made, stream);
}
} /* extern "C" */

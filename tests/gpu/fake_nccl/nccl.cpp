/* A libnccl.so.2 for machines without a GPU: processes with the fake libcuda exchange what is in its
 * memory, through memory that they share.
 *
 * It is as strict as NCCL may be, and more: buffers lie in the memory of the device and do not overlap
 * but where NCCL says how, ranks that exchange different things fail where NCCL hangs, work happens
 * when the stream comes to it, and a rank that is gone is waited for until the communicator is aborted.
 * What is reduced is added from the last rank on, and a maximum passes NaN over, as in NCCL.
 * LUMC_FAKE_NCCL_ERROR is the asynchronous error of a communicator whose work then never ends. */
#include <nccl.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <memory>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

namespace {
enum { DONE = 0, NOT_READY = 600, LAUNCH_FAILED = 719 }; /* CUresult */
constexpr int MOST_RANKS = 16, PATIENCE_S = 60;
constexpr size_t CHUNK = 16 << 10;

/* the way from one rank to another: one chunk of a message at a time */
struct Slot {
    std::atomic<uint64_t> sent, taken;
    uint64_t what, total; /* of the message */
    char data[CHUNK];
};
struct Shared {
    std::atomic<int> ranks, joined;
    std::atomic<int> seen[MOST_RANKS];
    Slot slots[MOST_RANKS][MOST_RANKS];
};
struct Transfer {
    bool in;
    int peer;
    char *data;
    size_t total, done;
    uint64_t what;
    bool over;
};
enum Kind { POINT_TO_POINT, BROADCAST, ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER };
struct Point {
    bool in;
    char *data;
    size_t bytes;
    int peer;
};
struct Work { /* on a stream, done as often as its graph is launched */
    ncclComm *comm;
    Kind kind;
    std::vector<Point> points;
    const char *from;
    char *to;
    size_t count, bytes; /* of what a rank has */
    ncclDataType_t type;
    ncclRedOp_t op;
    int root;
};
struct Run { /* once */
    std::vector<Transfer> transfers;
    std::vector<std::vector<char>> parts; /* of each rank */
};

int (*enqueue)(void *, int (*)(void *, void **), void *);
int (*is_memory)(uint64_t, size_t);
int (*get_context)(void **);
thread_local int depth;
thread_local std::vector<std::pair<Work *, void *>> grouped; /* and its stream */

ncclResult_t say(ncclResult_t result, const char *why)
{
    fprintf(stderr, "fake libnccl: %s\n", why);
    return result;
}
size_t size_of(ncclDataType_t type)
{
    switch (type) {
    case ncclInt8: case ncclUint8: return 1;
    case ncclFloat16: case ncclBfloat16: return 2;
    case ncclInt64: case ncclUint64: case ncclFloat64: return 8;
    default: return 4;
    }
}
} /* namespace */

struct ncclComm {
    Shared *shared;
    int rank, ranks;
    ncclResult_t error;
    bool aborted, destroyed;
    std::vector<std::unique_ptr<Work>> works;
};

namespace {
/* as far as it goes without waiting; whether the other rank exchanges the same */
bool advance(ncclComm *c, Transfer &t)
{
    Slot &s = t.in ? c->shared->slots[t.peer][c->rank] : c->shared->slots[c->rank][t.peer];
    while (!t.over) {
        const uint64_t sent = s.sent.load(), taken = s.taken.load();
        if ((sent > taken) != t.in)
            return true;
        const size_t n = std::min(CHUNK, t.total - t.done);
        if (t.in) {
            if (s.what != t.what || s.total != t.total)
                return false;
            memcpy(t.data + t.done, s.data, n);
            s.taken.store(taken + 1);
        } else {
            s.what = t.what, s.total = t.total;
            memcpy(s.data, t.data + t.done, n);
            s.sent.store(sent + 1);
        }
        t.done += n;
        t.over = t.done == t.total;
    }
    return true;
}

float as_float(uint16_t bits, bool brain)
{
    const uint32_t word = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &word, 4);
    if (brain)
        return value;
    const int exponent = bits >> 10 & 31, rest = bits & 1023;
    const float size = exponent == 31 ? (rest ? NAN : INFINITY)
                       : exponent     ? std::ldexp((float)(1024 + rest), exponent - 25)
                                      : std::ldexp((float)rest, -24);
    return bits >> 15 ? -size : size;
}
template <typename T> T greater(T a, T b) { return a > b ? a : b; }
template <> float greater(float a, float b) { return std::fmax(a, b); }
template <> double greater(double a, double b) { return std::fmax(a, b); }
template <typename T, typename Wide> void reduce(char *to, const char *other, size_t n, bool sum)
{
    T *a = (T *)to;
    const T *b = (const T *)other;
    for (size_t i = 0; i < n; i++)
        a[i] = sum ? (T)((Wide)a[i] + (Wide)b[i]) : greater<T>(a[i], b[i]);
}
void reduce_halves(char *to, const char *other, size_t n, bool brain)
{
    uint16_t *a = (uint16_t *)to;
    const uint16_t *b = (const uint16_t *)other;
    for (size_t i = 0; i < n; i++) { /* a maximum is one of both */
        const float x = as_float(a[i], brain), y = as_float(b[i], brain);
        a[i] = std::isnan(x) || y > x ? b[i] : a[i];
    }
}
bool reduce(const Work &w, char *to, const char *other, size_t n)
{
    const bool sum = w.op == ncclSum;
    switch (w.type) {
    case ncclFloat32: reduce<float, float>(to, other, n, sum); return true;
    case ncclFloat64: reduce<double, double>(to, other, n, sum); return true;
    case ncclInt8: reduce<int8_t, uint32_t>(to, other, n, sum); return true;
    case ncclUint8: reduce<uint8_t, uint32_t>(to, other, n, sum); return true;
    case ncclInt32: reduce<int32_t, uint32_t>(to, other, n, sum); return true;
    case ncclUint32: reduce<uint32_t, uint32_t>(to, other, n, sum); return true;
    case ncclInt64: reduce<int64_t, uint64_t>(to, other, n, sum); return true;
    case ncclUint64: reduce<uint64_t, uint64_t>(to, other, n, sum); return true;
    default:
        if (!sum)
            reduce_halves(to, other, n, w.type == ncclBfloat16);
        return !sum;
    }
}

uint64_t what_of(const Work &w)
{
    return (uint64_t)w.kind << 56 | (uint64_t)w.type << 48 | (uint64_t)w.op << 40
           | (uint64_t)w.root << 32 | (w.count & 0xffffffff);
}
Run *begin(const Work &w)
{
    Run *r = new Run;
    const int ranks = w.comm->ranks, own = w.comm->rank;
    for (const Point &p : w.points)
        r->transfers.push_back({p.in, p.peer, p.data, p.bytes, 0, 0, false});
    if (w.kind == POINT_TO_POINT)
        return r;
    r->parts.resize((size_t)ranks);
    for (std::vector<char> &part : r->parts)
        part.resize(w.bytes);
    if (w.kind != BROADCAST || own == w.root)
        memcpy(r->parts[(size_t)own].data(), w.from, w.bytes);
    for (int i = 0; i < ranks; i++) {
        char *part = r->parts[(size_t)i].data(), *mine = r->parts[(size_t)own].data();
        if (i == own)
            continue;
        if (w.kind != BROADCAST || own == w.root)
            r->transfers.push_back({false, i, mine, w.bytes, 0, what_of(w), false});
        if (w.kind != BROADCAST || i == w.root)
            r->transfers.push_back({true, i, part, w.bytes, 0, what_of(w), false});
    }
    return r;
}
/* all parts are there */
bool finish(const Work &w, Run &r)
{
    const size_t ranks = (size_t)w.comm->ranks, own = (size_t)w.comm->rank;
    if (w.kind == BROADCAST)
        memcpy(w.to, r.parts[(size_t)w.root].data(), w.bytes);
    if (w.kind == ALL_GATHER)
        for (size_t i = 0; i < ranks; i++)
            memcpy(w.to + i * w.bytes, r.parts[i].data(), w.bytes);
    if (w.kind != ALL_REDUCE && w.kind != REDUCE_SCATTER)
        return true;
    std::vector<char> sum = r.parts[ranks - 1];
    for (size_t i = ranks - 1; i-- > 0;)
        if (!reduce(w, sum.data(), r.parts[i].data(), w.count))
            return false;
    const size_t block = w.kind == ALL_REDUCE ? w.bytes : w.bytes / ranks;
    memcpy(w.to, sum.data() + (w.kind == ALL_REDUCE ? 0 : own * block), block);
    return true;
}
int step(void *work, void **own)
{
    Work &w = *(Work *)work;
    if (w.comm->aborted)
        return DONE;
    if (w.comm->destroyed) {
        say(ncclInvalidUsage, "work of a communicator that was destroyed");
        return LAUNCH_FAILED;
    }
    if (const char *error = getenv("LUMC_FAKE_NCCL_ERROR")) {
        w.comm->error = (ncclResult_t)atoi(error);
        return NOT_READY;
    }
    if (!*own)
        *own = begin(w);
    Run *r = (Run *)*own;
    bool over = true;
    for (Transfer &t : r->transfers) {
        if (!advance(w.comm, t)) {
            const std::string why = "ranks " + std::to_string(w.comm->rank) + " and "
                                    + std::to_string(t.peer) + " exchange different things";
            w.comm->error = say(ncclInvalidArgument, why.c_str());
            return LAUNCH_FAILED;
        }
        over = over && t.over;
    }
    if (!over)
        return NOT_READY;
    const bool good = finish(w, *r);
    delete r;
    *own = nullptr;
    return good ? DONE : LAUNCH_FAILED;
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
    enqueue = (decltype(enqueue))dlsym(driver, "lumc_fake_enqueue");
    return enqueue && is_memory && get_context;
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
ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    comm->destroyed = true;
    return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm)
{
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

/* What is on a stream: bytes to and from other ranks, and what is made of them. */
#include "state.h"

ncclResult_t say(ncclResult_t result, const char *why)
{
    fprintf(stderr, "fake libnccl: %s\n", why);
    return result;
}

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
} /* namespace */

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

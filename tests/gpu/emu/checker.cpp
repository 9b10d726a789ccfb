/* Judges every access of a checked kernel. g++ -fsanitize=thread puts a call of __tsan_read4 and
 * the like before each access; instead of the library that usually answers, these functions do.
 *
 * Two accesses are ordered if one thread makes both, if all threads of the block meet at a barrier
 * between them, or if the two threads are of one warp and it synchronises between them
 * (lumc_warp_sync; a shuffle or a product orders no memory). Blocks are never ordered. So an
 * access is remembered by thread, epoch (barriers so far, over all blocks) and the epoch of its
 * warp, and a race is found even where this run happened to give the right result.
 */
#include "runtime.h"

#include <algorithm>
#include <map>

namespace lumc_emu {
namespace {
struct Access {
    unsigned thread, warp_epoch;
};
/* the history of one element. Epochs count from 1; 0 is never. */
struct Cell {
    unsigned write_epoch = 0, read_epoch = 0;
    Access writer;
    /* the reads of read_epoch: who read first, who read first from another warp, and the last two
     * threads. If one warp did all of them the last two decide, otherwise every write is a race. */
    Access first, other, last, previous;
    unsigned ever_read = 0; /* the epoch of the first read in the launch */
    bool has_other = false, has_previous = false;
    bool written = false;   /* shared memory: by this block */
    bool in_flight = false; /* the target of an asynchronous copy that is not complete */
};
struct Shadow {
    Range range;
    bool shared;
    size_t grain; /* bytes of a cell */
    std::vector<Cell> cells;
};
std::vector<Shadow> shadows;
std::vector<Range> tiles; /* arrays in shared memory, as LUMC_TILE names them */
std::vector<unsigned> first_epoch; /* of every block so far */
unsigned epoch;
bool checking;
/* the first fault of each kind in each array, and how often it happened */
std::vector<std::string> faults;
std::map<std::string, std::pair<size_t, unsigned>> seen;

void report(const std::string &kind, const char *p, const std::string &rest)
{
    std::string where = checker::describe(p), name = where.substr(0, where.find_first_of("[ "));
    std::string key = kind + name + rest.substr(0, rest.find(" by ")); /* "race S_a written" */
    auto [at, is_new] = seen.try_emplace(key, faults.size(), 0u);
    at->second.second++;
    if (is_new)
        faults.push_back(kind + ": " + where + rest);
}

Shadow *shadow(const char *p, size_t bytes)
{
    for (Shadow &s : shadows)
        if (p >= s.range.begin && p + bytes <= s.range.begin + s.range.bytes)
            return &s;
    return nullptr;
}
const Range *tile_of(const char *p, size_t bytes)
{
    for (const Range &t : tiles)
        if (p >= t.begin && p + bytes <= t.begin + t.bytes)
            return &t;
    return nullptr;
}

/* the linker's bounds of this shared object: its constants may be read */
extern "C" __attribute__((visibility("hidden"))) const char __ehdr_start[], _end[];

unsigned block_of(unsigned epoch)
{
    auto next = std::upper_bound(first_epoch.begin(), first_epoch.end(), epoch);
    return (unsigned)(next - first_epoch.begin()) - 1;
}
std::string who(unsigned thread, unsigned epoch)
{
    return text("thread %u (warp %u) of block %u", thread, thread / LANES, block_of(epoch));
}
Access self() { return {current_thread(), warp_epoch()}; }

/* of one epoch: may `before` happen at the same time as an access by the running thread? */
bool races(const Access &before)
{
    const Access now = self();
    return before.thread != now.thread && (before.thread / LANES != now.thread / LANES
                                           || before.warp_epoch == now.warp_epoch);
}

void race(const char *p, const char *first, unsigned thread, unsigned at, const char *second)
{
    const bool blocks = at < first_epoch.back();
    std::string before = blocks ? text("block %u", block_of(at)) : who(thread, at);
    report("race", p, text(" is %s by ", second) + who(current_thread(), epoch)
           + text(" after it is %s by ", first) + before
           + (blocks ? "; blocks are not ordered" : " without a barrier between"));
}

/* the running thread reads or writes after the last write */
void after_write(Cell &c, const char *p, const char *what)
{
    if (c.in_flight)
        report("asynchronous copy", p, text(" is %s by ", what) + who(current_thread(), epoch)
               + " while the copy of " + who(c.writer.thread, c.write_epoch) + " is in flight");
    else if (c.write_epoch
             && (c.write_epoch < first_epoch.back()
                 || (c.write_epoch == epoch && races(c.writer))))
        race(p, "written", c.writer.thread, c.write_epoch, what);
}

void after_reads(const Cell &c, const char *p)
{
    if (c.ever_read && c.ever_read < first_epoch.back())
        return race(p, "read", 0, c.ever_read, "overwritten");
    if (c.read_epoch != epoch)
        return;
    const Access *reader = &c.last;
    if (c.has_other) {
        const bool own = c.first.thread / LANES == current_thread() / LANES;
        reader = own ? &c.other : &c.first;
    } else if (c.last.thread == current_thread()) {
        reader = c.has_previous ? &c.previous : nullptr;
    }
    if (reader && races(*reader))
        race(p, "read", reader->thread, epoch, "overwritten");
}

void note_read(Cell &c)
{
    const Access now = self();
    if (!c.ever_read)
        c.ever_read = epoch;
    if (c.read_epoch != epoch) {
        c.read_epoch = epoch;
        c.first = c.last = now;
        c.has_other = c.has_previous = false;
        return;
    }
    if (!c.has_other && c.first.thread / LANES != now.thread / LANES) {
        c.other = now;
        c.has_other = true;
    }
    if (c.last.thread != now.thread) {
        c.previous = c.last;
        c.has_previous = true;
    }
    c.last = now;
}

void touch_cell(const Shadow &s, Cell &c, const char *p, bool write)
{
    if (s.shared && !write && !c.written) {
        report("uninitialised", p, " is read by " + who(current_thread(), epoch)
               + " before anything is written there");
        c.written = true; /* said once */
        return;
    }
    after_write(c, p, write ? "written" : "read");
    if (!write)
        return note_read(c);
    after_reads(c, p);
    c.write_epoch = epoch;
    c.writer = self();
    c.ever_read = c.read_epoch = 0;
    c.written = true;
}

/* a smaller access than any so far: the cells are split */
void refine(Shadow &s, size_t grain)
{
    std::vector<Cell> finer(s.range.bytes / grain + 1);
    for (size_t i = 0; i < finer.size(); i++)
        finer[i] = s.cells[i * grain / s.grain];
    s.cells.swap(finer);
    s.grain = grain;
}
} /* namespace */

namespace checker {
void begin(const Launch &l, char *shared)
{
    checking = l.kernel->checked;
    faults.clear();
    seen.clear();
    shadows.clear();
    tiles.clear();
    first_epoch.clear();
    epoch = 0;
    for (const Range &r : l.ranges)
        shadows.push_back({r, false, r.element, {}});
    if (l.shared_bytes)
        shadows.push_back({{"shared memory", shared, l.shared_bytes, 1}, true, 16, {}});
    if (checking)
        for (Shadow &s : shadows)
            s.cells.resize(s.range.bytes / s.grain + 1);
}

void begin_block()
{
    first_epoch.push_back(++epoch);
    for (Shadow &s : shadows)
        if (s.shared)
            std::fill(s.cells.begin(), s.cells.end(), Cell());
}

void after_barrier() { epoch++; }

void add_tile(const Range &t)
{
    for (const Range &old : tiles)
        if (old.begin == t.begin && old.bytes == t.bytes && old.element == t.element)
            return;
    tiles.push_back(t);
}

static __attribute__((noinline)) void judge(const char *p, size_t bytes, bool write)
{
    Shadow *s = shadow(p, bytes);
    if (!s && !write && p >= __ehdr_start && p < _end)
        return;
    if (!s || (s->shared && !tiles.empty() && !tile_of(p, bytes)))
        stop(text("out of bounds: a %s of %zu bytes at ", write ? "write" : "read", bytes)
             + describe(p));
    const size_t offset = p - s->range.begin, odd = offset | bytes;
    if (odd & (s->grain - 1))
        refine(*s, odd & -odd);
    const int shift = __builtin_ctzl(s->grain); /* which is a power of two, and divisions are slow */
    for (size_t i = offset >> shift; i <= (offset + bytes - 1) >> shift; i++)
        touch_cell(*s, s->cells[i], s->range.begin + (i << shift), write);
}

/* most accesses are to the stack */
void touch(const char *p, size_t bytes, bool write)
{
    if (checking && !on_stack(p))
        judge(p, bytes, write);
}

void in_flight(const char *p, size_t bytes, bool is)
{
    Shadow *s = checking ? shadow(p, bytes) : nullptr;
    if (!s)
        return;
    for (size_t i = 0; i < bytes; i += s->grain)
        s->cells[(p - s->range.begin + i) / s->grain].in_flight = is;
}

std::string describe(const char *p)
{
    if (const Range *t = tile_of(p, 1))
        return text("%s[%zu]", t->name, (p - t->begin) / t->element);
    auto gap = [p](const Range &r) {
        return p < r.begin ? r.begin - p : p < r.begin + r.bytes ? 0 : p - r.begin - (long)r.bytes;
    };
    auto nearer = [gap](const Shadow &a, const Shadow &b) { return gap(a.range) < gap(b.range); };
    auto s = std::min_element(shadows.begin(), shadows.end(), nearer);
    if (s == shadows.end() || gap(s->range) > (1 << 20))
        return text("address %p", (const void *)p);
    const Range &r = s->range;
    const long index = (p - r.begin) / (long)r.element;
    if (s->shared)
        return text("byte %ld of %zu bytes of shared memory", index, r.bytes);
    return text("%s[%ld]", r.name, index)
         + (gap(r) ? text(" of %zu elements", r.bytes / r.element) : "");
}

std::string end()
{
    std::string all;
    for (size_t i = 0; i < faults.size(); i++) {
        all += faults[i];
        for (const auto &[key, entry] : seen)
            if (entry.first == i && entry.second > 1)
                all += text(" (and %u more)", entry.second - 1);
        all += "\n";
    }
    return all;
}
} /* namespace checker */
} /* namespace lumc_emu */

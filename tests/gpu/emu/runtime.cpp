/* Runs the blocks of a launch one after another, the threads of a block as fibers: a thread runs
 * until it waits at a barrier or in a warp operation, then the next one in the chosen order does.
 */
#include "runtime.h"

#include "fiber.h"

#include <algorithm>
#include <csetjmp>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <sys/mman.h>

namespace lumc_emu {
Where where;

namespace {
constexpr size_t STACK = 64 << 10;

struct Copy {
    char *to;
    const char *from;
    int bytes, valid;
    unsigned group;
};
enum class State { ready, barrier, warp, done };
struct Fiber {
    void *sp;
    State state;
    int line; /* where it waits */
    std::vector<Copy> copies;
    unsigned group; /* of the copies that are issued next */
};
struct Warp {
    unsigned arrived, epoch;
    int line; /* of those that arrived */
    WarpOperation operation;
    void *packets[LANES];
};

Kernel *kernels;
std::vector<Fiber> fibers;
std::vector<Warp> warps;
Fiber *current;
const Launch *launch;
unsigned arrived, live;
int barrier_line;
void *scheduler_sp;
std::mt19937 dice;
std::string fault; /* what ended the kernel */
char *shared_begin;

std::vector<Mapping *> stacks; /* of the threads of a block, during a launch */
Mapping *signal_stack;

void yield() { lumc_emu_switch(&current->sp, scheduler_sp); }

void entry()
{
    launch->kernel->call(launch->arguments);
    current->state = State::done;
    live--;
    yield();
    __builtin_unreachable();
}

void run_fiber(unsigned thread)
{
    current = &fibers[thread];
    where.thread = {thread, 0, 0};
    lumc_emu_switch(&scheduler_sp, current->sp);
}

/* nobody can go on: some threads wait for others that are elsewhere */
std::string divergence()
{
    std::string at;
    for (State state : {State::barrier, State::warp}) {
        std::vector<int> lines;
        for (const Fiber &f : fibers)
            if (f.state == state && !std::count(lines.begin(), lines.end(), f.line))
                lines.push_back(f.line);
        for (int line : lines) {
            auto same = [&](const Fiber &f) { return f.state == state && f.line == line; };
            at += text("; %d in the %s of line %d",
                       (int)std::count_if(fibers.begin(), fibers.end(), same),
                       state == State::barrier ? "barrier" : "warp operation", line);
        }
    }
    if (live < fibers.size())
        at += text("; %zu have left the kernel", fibers.size() - live);
    return text("divergence: the %zu threads of block %u wait for each other", fibers.size(),
                current_block()) + at;
}

void run_block()
{
    for (unsigned i = 0; i < fibers.size(); i++) {
        fibers[i] = {lumc_emu_prime(stacks[i]->end(), entry), State::ready, 0, {}, 0};
        warps[i / LANES] = {};
    }
    std::vector<unsigned> order(fibers.size());
    for (unsigned i = 0; i < order.size(); i++)
        order[i] = launch->order == Order::reverse ? (unsigned)order.size() - 1 - i : i;
    live = (unsigned)fibers.size();
    arrived = 0;
    while (live && fault.empty()) {
        if (launch->order == Order::random)
            std::shuffle(order.begin(), order.end(), dice);
        bool moved = false;
        for (unsigned i : order) {
            if (fibers[i].state != State::ready)
                continue;
            run_fiber(i);
            moved = true;
            if (!fault.empty())
                return;
        }
        if (!moved)
            fault = divergence();
    }
}

sigjmp_buf outside;
/* a fault of the processor ends the kernel, not the process */
void on_signal(int number, siginfo_t *info, void *)
{
    const char *kind = number == SIGFPE ? "arithmetic fault" : "out of bounds";
    const char *p = (const char *)info->si_addr;
    fault = text("%s: thread %u of block %u", kind, current_thread(), current_block());
    if (number != SIGFPE)
        fault += ", at " + (on_stack(p) ? "the end of its stack" : checker::describe(p));
    siglongjmp(outside, 1);
}

/* takes over the signals of a fault while a kernel runs */
struct Guard {
    static constexpr int SIGNALS[] = {SIGSEGV, SIGBUS, SIGFPE};
    struct sigaction before[3];
    stack_t stack_before;
    Guard()
    {
        if (!signal_stack)
            signal_stack = new Mapping(STACK);
        stack_t own = {};
        own.ss_sp = signal_stack->begin();
        own.ss_size = STACK;
        sigaltstack(&own, &stack_before);
        struct sigaction action = {};
        action.sa_sigaction = on_signal;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        for (int i = 0; i < 3; i++)
            sigaction(SIGNALS[i], &action, &before[i]);
    }
    ~Guard()
    {
        for (int i = 0; i < 3; i++)
            sigaction(SIGNALS[i], &before[i], nullptr);
        sigaltstack(&stack_before, nullptr);
    }
};

void complete(const Copy &copy)
{
    checker::in_flight(copy.to, copy.bytes, false);
    checker::touch(copy.to, copy.bytes, true);
    std::memset(copy.to, 0, copy.bytes);
    std::memcpy(copy.to, copy.from, copy.valid);
}

void check_aligned(const void *p, size_t bytes, const char *what)
{
    if ((uintptr_t)p % bytes)
        stop(text("misaligned: %s of %zu bytes at ", what, bytes) + checker::describe((char *)p));
}
} /* namespace */

std::string text(const char *format, ...)
{
    char out[512];
    va_list rest;
    va_start(rest, format);
    vsnprintf(out, sizeof out, format, rest);
    va_end(rest);
    return out;
}

Mapping::Mapping(size_t bytes) : size((bytes + PAGE - 1) / PAGE * PAGE + 2 * PAGE)
{
    pages = (char *)mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED || mprotect(begin(), end() - begin(), PROT_READ | PROT_WRITE))
        std::abort();
}
Mapping::~Mapping() { munmap(pages, size); }

void add(Kernel *kernel)
{
    kernel->next = kernels;
    kernels = kernel;
}
const Kernel *find(const std::string &symbol)
{
    const Kernel *k = kernels;
    while (k && symbol != k->symbol)
        k = k->next;
    return k;
}

unsigned current_thread() { return where.thread.x; }
unsigned current_block() { return where.block.x; }
unsigned warp_epoch() { return warps[current_thread() / LANES].epoch; }
bool on_stack(const char *p)
{
    const Mapping &m = *stacks[current_thread()];
    return p >= m.pages && p < m.pages + m.size;
}
void stop(const std::string &why)
{
    fault = why + text(", by thread %u of block %u", current_thread(), current_block());
    yield(); /* the scheduler sees the fault and never comes back */
    __builtin_unreachable();
}

std::string run(const Launch &l)
{
    launch = &l;
    fault.clear();
    dice.seed(l.seed);
    fibers.resize(l.threads);
    warps.resize((l.threads + LANES - 1) / LANES);
    while (stacks.size() < l.threads)
        stacks.push_back(new Mapping(STACK));
    Mapping shared(l.shared_bytes);
    shared_begin = shared.last(l.shared_bytes, 1024);
    where.threads = {l.threads, 1, 1};
    where.blocks = {l.blocks, 1, 1};
    Guard guard;
    checker::begin(l, shared_begin);
    if (!sigsetjmp(outside, 0)) {
        for (unsigned block = 0; block < l.blocks && fault.empty(); block++) {
            where.block = {block, 0, 0};
            std::memset(shared_begin, 0xff, l.shared_bytes); /* NaN in every float type */
            checker::begin_block();
            run_block();
        }
    }
    std::string found = checker::end();
    for (Mapping *stack : stacks) /* a process may load hundreds of modules, and maps are few */
        delete stack;
    stacks.clear();
    return fault.empty() ? found : fault + "\n" + found;
}

/* ---- what kernels call */

void barrier(int line)
{
    if (arrived && line != barrier_line)
        stop(text("divergence: the barriers of line %d and line %d meet", barrier_line, line));
    barrier_line = current->line = line;
    if (++arrived < fibers.size()) {
        current->state = State::barrier;
        yield();
        return;
    }
    arrived = 0;
    for (Fiber &f : fibers)
        f.state = State::ready;
    checker::after_barrier();
}

void warp(WarpOperation run, void *packet, int line)
{
    Warp &w = warps[current_thread() / LANES];
    if (w.arrived && (w.line != line || w.operation != run))
        stop(text("divergence: the warp operations of line %d and line %d meet", w.line, line));
    w.line = current->line = line;
    w.operation = run;
    w.packets[current_thread() % LANES] = packet;
    if (++w.arrived < LANES) {
        current->state = State::warp;
        yield();
        return;
    }
    w.arrived = 0;
    run(w.packets);
    const unsigned first = current_thread() / LANES * LANES;
    for (unsigned i = first; i < first + LANES; i++)
        fibers[i].state = State::ready;
}
void synchronise(void *const *) { warps[current_thread() / LANES].epoch++; }

void *shared_memory() { return shared_begin; }
void *tile(const char *name, void *shared, size_t offset, size_t element, size_t count)
{
    char *begin = (char *)shared + offset;
    if (begin + element * count > shared_begin + launch->shared_bytes)
        stop(text("out of bounds: %s ends at byte %zu of %zu bytes of shared memory", name,
                  begin + element * count - shared_begin, launch->shared_bytes));
    checker::add_tile({name, begin, element * count, element});
    return begin;
}

void reads(const void *p, size_t bytes)
{
    check_aligned(p, bytes, "a read");
    checker::touch((const char *)p, bytes, false);
}
void writes(const void *p, size_t bytes)
{
    check_aligned(p, bytes, "a write");
    checker::touch((const char *)p, bytes, true);
}

/* The data land when they are waited for; in random order some land at once, as they may. */
void copy_async(void *to, const void *from, int bytes, int valid)
{
    check_aligned(to, bytes, "an asynchronous copy");
    check_aligned(from, bytes, "an asynchronous copy");
    if (valid)
        checker::touch((const char *)from, valid, false);
    checker::touch((const char *)to, bytes, true);
    checker::in_flight((const char *)to, bytes, true);
    Copy copy = {(char *)to, (const char *)from, bytes, valid, current->group};
    if (launch->order == Order::random && dice() % 2) {
        std::memset(to, 0, bytes);
        std::memcpy(to, from, valid);
    }
    current->copies.push_back(copy);
}
void commit_async() { current->group++; }
void wait_async(unsigned pending)
{
    auto &copies = current->copies;
    size_t n = 0;
    while (n < copies.size() && copies[n].group + pending < current->group)
        complete(copies[n++]);
    copies.erase(copies.begin(), copies.begin() + n);
}
/* layout of fake_cuda/launch.cpp */
void look_at_map(const void *map, const void *from, int width, int height, lumc_i64 stride, int rows)
{
    const uint64_t *w = (const uint64_t *)map;
    if (!w[0])
        return;
    const uint64_t offset = (uint64_t)from - w[1];
    const bool there = w[2] == 2 ? offset == 0 : w[2] == 3 && offset % w[7] == 0;
    if (w[0] != 0x0050414d434d554cull || !there || w[3] != (uint64_t)width || w[4] != (uint64_t)height
        || w[6] != (uint64_t)stride || w[9] != (uint64_t)rows)
        stop("tensor map: it is not the one that the kernel asks for");
}
} /* namespace lumc_emu */

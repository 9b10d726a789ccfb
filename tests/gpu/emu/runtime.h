/* What the parts of the emulator share: runtime.cpp runs blocks, warp.cpp does the operations of
 * warps, checker.cpp judges every access. */
#pragma once
#include "lumc_dev.h"

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace lumc_emu {
#ifndef LUMC_LANES
#define LUMC_LANES 32 /* of a warp; 64 on some GPUs of AMD */
#endif
constexpr unsigned LANES = LUMC_LANES;
constexpr size_t SHARED_LIMIT = 227 << 10; /* bytes of a block, as on sm_90 */

/* memory that a kernel may touch: an array of the caller, or the shared memory of the block */
struct Range {
    const char *name;
    char *begin;
    size_t bytes;
    size_t element; /* bytes */
};

/* memory between parts that nobody may touch */
struct Mapping {
    static constexpr size_t PAGE = 64 << 10; /* a multiple of the system's */
    char *pages;
    size_t size;
    explicit Mapping(size_t bytes);
    ~Mapping();
    Mapping(const Mapping &) = delete;
    char *begin() const { return pages + PAGE; }
    char *end() const { return pages + size - PAGE; }
    /* where `bytes` begin that end there, less what the alignment takes */
    char *last(size_t bytes, size_t align) const
    {
        return (char *)((uintptr_t)(end() - bytes) & ~(uintptr_t)(align - 1));
    }
};

enum class Order { forward, reverse, random };

struct Launch {
    const Kernel *kernel;
    unsigned blocks, threads;
    size_t shared_bytes;
    void *const *arguments;
    std::vector<Range> ranges;
    Order order;
    unsigned seed;
};
/* the fault that ended the kernel, and with a checked kernel everything else that was found; ""
 * when it did nothing wrong */
std::string run(const Launch &);
const Kernel *find(const std::string &symbol);

/* ---- between runtime.cpp and checker.cpp */

unsigned current_thread();
unsigned current_block();
unsigned warp_epoch(); /* lumc_warp_sync calls of the running thread's warp in this block */
/* the stack of the running thread */
bool on_stack(const char *p);
/* ends the kernel; does not return */
[[noreturn]] void stop(const std::string &fault);

namespace checker {
void begin(const Launch &, char *shared); /* where the shared memory is */
void begin_block(); /* its shared memory holds nothing */
void after_barrier();
void add_tile(const Range &); /* in shared memory */
void touch(const char *p, size_t bytes, bool write);
/* from issue to completion nobody may touch the target of an asynchronous copy */
void in_flight(const char *p, size_t bytes, bool is);
std::string describe(const char *p); /* "S_a[12]" */
std::string end();
}
std::string text(const char *format, ...) __attribute__((format(printf, 1, 2)));
} /* namespace lumc_emu */

/* A libcuda.so.1 for machines without a GPU: kernels run in the emulator (tests/gpu/emu).
 *
 * It stands for LUMC_FAKE_DEVICES devices (1) of LUMC_FAKE_SM (80, 89, 90, 100; 90 if unset) with
 * LUMC_FAKE_MEMORY bytes (4 GiB), seen by a driver of version LUMC_FAKE_DRIVER (13000), of which a
 * process uses one. LUMC_FAKE_MISSING makes cuInit find no device. What a kernel does wrong is
 * written to the standard error.
 *
 * It is as strict as a driver may be: memory starts as 0xff, every range is checked, work on a
 * stream happens when somebody waits for it, and after a fault of a kernel every call fails.
 * No header of CUDA is needed. Functions of symbols.txt that are not here say that they are not
 * supported.
 */
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

/* as in cuda.h: CUresult and CUdevice are int, CUdeviceptr an integer, every handle a pointer */
typedef int Result;
typedef uint64_t Address;

enum {
    SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100,
    INVALID_DEVICE = 101, INVALID_IMAGE = 200, INVALID_CONTEXT = 201, NO_BINARY_FOR_GPU = 209,
    INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700,
    LAUNCH_FAILED = 719, NOT_SUPPORTED = 801, CAPTURE_UNSUPPORTED = 900, CAPTURE_UNMATCHED = 906
};
typedef std::function<Result()> Work; /* NOT_READY: it waits for another process */
struct Graph : std::vector<Work> {
    bool of_ranks = false; /* has it work of the fake NCCL? */
};
struct Stream {
    std::deque<Work> queue;
    std::unique_ptr<Graph> capture;
};
struct Event {
    double time_ms = -1; /* -1: not recorded */
};
/* layout of emu/runtime.h */
struct Range {
    const char *name;
    char *begin;
    size_t bytes, element;
};
struct Module {
    int (*parameters)(const char *), (*maps)(const char *);
    int (*fits)(unsigned, size_t);
    const char *(*run)(const char *, unsigned, unsigned, size_t, void *const *, unsigned,
                       const Range *, int, unsigned);
};
struct Function {
    Module *module;
    std::string symbol;
    int parameters, maps, dynamic_shared; /* the first parameters are tensor maps */
};
/* memory of the device: a page that nobody may touch follows it */
struct Memory {
    char *pages;
    size_t size, bytes;
};

constexpr size_t PAGE = 64 << 10;
constexpr int SHARED_USUAL = 48 << 10; /* what a launch may have without being allowed more */

inline std::recursive_mutex one_call;
inline bool initialised;
inline Result broken; /* the fault of a kernel: from then on the result of every call */
inline std::map<Address, Memory> memory;
inline std::map<uintptr_t, size_t> pinned;
inline size_t used;
inline std::vector<Stream *> streams;
inline std::set<Graph *> graphs; /* that are not destroyed */
inline std::vector<std::unique_ptr<Function>> functions;
inline Stream default_stream;
inline int context; /* its address is the handle of the only one */
inline thread_local std::vector<void *> contexts;

/* ---- driver.cpp */
long setting(const char *name, long usual);
int capability();
size_t total_memory();
int shared_limit();
int device_count();
Result say(Result, const char *why); /* to the standard error, too */
/* ---- memory.cpp */
bool is_memory(Address, size_t bytes);
/* ---- streams.cpp */
Stream &stream_of(void *handle);
bool capturing();
Result flush(Stream &, bool wait = true); /* does the work that waits */
Result flush_all();
Result enqueue(void *stream, Work); /* for later: part of a graph while one is captured */

/* A call: one at a time, refused before cuInit, without a context, and after a fault. */
#define ENTER(needs_context)                                                                      \
    std::lock_guard<std::recursive_mutex> guard(one_call);                                        \
    if (!initialised)                                                                             \
        return NOT_INITIALIZED;                                                                   \
    if (needs_context && contexts.empty())                                                        \
        return INVALID_CONTEXT;                                                                   \
    if (needs_context && broken)                                                                  \
        return broken
#define API(name, ...) extern "C" __attribute__((visibility("default"))) Result name(__VA_ARGS__)

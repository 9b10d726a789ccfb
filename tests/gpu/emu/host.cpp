/* What a test or the fake driver calls. */
#include "runtime.h"

#include <cstring>
#include <memory>

using namespace lumc_emu;

#define LUMC_API extern "C" __attribute__((visibility("default")))

namespace {
std::string said;
} /* namespace */

/* the pointers that a kernel takes, -1 without a kernel of that name */
LUMC_API int lumc_emu_parameters(const char *symbol)
{
    const Kernel *kernel = find(symbol);
    return kernel ? (int)kernel->parameters : -1;
}
/* how many of them are tensor maps */
LUMC_API int lumc_emu_maps(const char *symbol)
{
    const Kernel *kernel = find(symbol);
    return kernel ? (int)kernel->maps : -1;
}
/* the largest group of threads and shared memory of a block */
LUMC_API int lumc_emu_fits(unsigned threads, size_t shared_bytes)
{
    return threads >= 1 && threads <= 1024 && shared_bytes <= SHARED_LIMIT;
}

/* Runs a kernel on these arguments; `ranges` is the memory that it may touch. Returns what was
 * found, "" for nothing; the text is valid until the next call. */
LUMC_API const char *lumc_emu_run(const char *symbol, unsigned blocks, unsigned threads,
                                  size_t shared_bytes, void *const *arguments, unsigned count,
                                  const Range *ranges, int order, unsigned seed)
{
    Launch l = {find(symbol), blocks, threads, shared_bytes, arguments, {}, (Order)order, seed};
    l.ranges.assign(ranges, ranges + count);
    said = run(l);
    return said.c_str();
}

/* The same on copies of arrays, one for each parameter, which are copied back. A copy ends where
 * the accessible memory does: the processor itself finds an access behind it. */
LUMC_API const char *lumc_emu_run_on(const char *symbol, unsigned blocks, unsigned threads,
                                     size_t shared_bytes, unsigned count, const Range *arrays,
                                     int order, unsigned seed)
{
    std::vector<std::unique_ptr<Mapping>> memory;
    std::vector<Range> copies(arrays, arrays + count);
    std::vector<void *> arguments;
    for (Range &r : copies) {
        memory.push_back(std::make_unique<Mapping>(r.bytes));
        r.begin = (char *)std::memcpy(memory.back()->last(r.bytes, 16), r.begin, r.bytes);
        arguments.push_back(r.begin);
    }
    lumc_emu_run(symbol, blocks, threads, shared_bytes, arguments.data(), count, copies.data(),
                 order, seed);
    for (unsigned i = 0; i < count; i++)
        std::memcpy(arrays[i].begin, copies[i].begin, copies[i].bytes);
    return said.c_str();
}

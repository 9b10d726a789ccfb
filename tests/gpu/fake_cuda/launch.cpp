/* Modules, functions and launches. */
#include "state.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

namespace {
Result run_kernel(const Function &f, unsigned blocks, unsigned threads, unsigned shared,
                  const std::vector<void *> &arguments)
{
    std::vector<Range> ranges;
    for (const auto &[begin, m] : memory)
        ranges.push_back({"device memory", (char *)begin, m.bytes, 1});
    const char *said = f.module->run(f.symbol.c_str(), blocks, threads, shared, arguments.data(),
                                     (unsigned)ranges.size(), ranges.data(), 0, 0);
    if (!*said)
        return SUCCESS;
    fprintf(stderr, "fake libcuda: %s: %s", f.symbol.c_str(), said);
    return strstr(said, "out of bounds") ? ILLEGAL_ADDRESS : LAUNCH_FAILED;
}
} /* namespace */

/* The image is "LUMCFAKE", the bytes that follow, and a shared object of the emulator. */
API(cuModuleLoadData, void **out, const void *image)
{
    ENTER(true);
    const unsigned char *p = (const unsigned char *)image;
    const bool fatbin = !memcmp(p, "\x50\xed\x55\xba", 4);
    if (fatbin || !memcmp(p, "\177ELF", 4) || !memcmp(p, ".version", 8) || !memcmp(p, "//", 2))
        return say(NO_BINARY_FOR_GPU, "code for a real GPU does not run here");
    uint64_t bytes;
    memcpy(&bytes, p + 8, 8);
    if (memcmp(p, "LUMCFAKE", 8))
        return INVALID_IMAGE;
    /* kept open: dlopen takes an equal path for the same library */
    const int file = memfd_create("lumc_fake_module", 0);
    if (file < 0 || write(file, p + 16, bytes) != (ssize_t)bytes)
        return OUT_OF_MEMORY;
    const std::string path = "/proc/self/fd/" + std::to_string(file);
    void *library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return say(INVALID_IMAGE, dlerror());
    Module *m = new Module;
    m->parameters = (decltype(m->parameters))dlsym(library, "lumc_emu_parameters");
    m->maps = (decltype(m->maps))dlsym(library, "lumc_emu_maps");
    m->fits = (decltype(m->fits))dlsym(library, "lumc_emu_fits");
    m->run = (decltype(m->run))dlsym(library, "lumc_emu_run");
    *out = m;
    return m->parameters && m->maps && m->fits && m->run ? SUCCESS : INVALID_IMAGE;
}
API(cuModuleLoadDataEx, void **out, const void *image, unsigned, void *, void **)
{
    return cuModuleLoadData(out, image);
}
API(cuModuleUnload, void *module)
{
    ENTER(true);
    flush_all();
    delete (Module *)module;
    return broken;
}
API(cuModuleGetFunction, void **out, void *module, const char *symbol)
{
    ENTER(true);
    Module *m = (Module *)module;
    const int parameters = m->parameters(symbol);
    if (parameters < 0)
        return NOT_FOUND;
    functions.push_back(std::unique_ptr<Function>(
        new Function{m, symbol, parameters, m->maps(symbol), SHARED_USUAL}));
    *out = functions.back().get();
    return SUCCESS;
}
enum { MAX_THREADS = 0, REGISTERS = 4, BINARY_VERSION = 6, DYNAMIC_SHARED = 8 };
API(cuFuncGetAttribute, int *value, int attribute, void *function)
{
    ENTER(true);
    *value = attribute == MAX_THREADS      ? 1024
             : attribute == REGISTERS      ? 32
             : attribute == BINARY_VERSION ? capability()
             : attribute == DYNAMIC_SHARED ? ((Function *)function)->dynamic_shared
                                           : 0;
    return SUCCESS;
}
API(cuFuncSetAttribute, void *function, int attribute, int value)
{
    ENTER(true);
    if (attribute == DYNAMIC_SHARED) {
        if (value < 0 || value > shared_limit())
            return INVALID_VALUE;
        ((Function *)function)->dynamic_shared = value;
    }
    return SUCCESS;
}
API(cuFuncSetCacheConfig, void *, int) { return SUCCESS; }
/* pycuda sets these before a launch, which has them too */
API(cuFuncSetBlockShape, void *, int, int, int) { return SUCCESS; }
API(cuFuncSetSharedSize, void *, unsigned) { return SUCCESS; }

/* Parameters of a kernel of lumc are tensor maps by value, then pointers. */
struct alignas(64) TensorMap {
    uint64_t words[16]; /* "LUMCMAP", address, rank, three dims, two strides, elements, rows */
};
constexpr uint64_t MADE = 0x0050414d434d554cull;
struct Arguments {
    std::vector<std::shared_ptr<TensorMap>> maps;
    std::vector<void *> places;
    void add(const void *map)
    {
        maps.push_back(std::make_shared<TensorMap>());
        memcpy(maps.back().get(), map, sizeof(TensorMap));
        places.push_back(maps.back().get());
    }
};
/* as the manual of cuTensorMapEncodeTiled says, of what lumc asks for */
API(cuTensorMapEncodeTiled, TensorMap *out, int type, uint32_t rank, void *address,
    const uint64_t *dims, const uint64_t *strides, const uint32_t *box, const uint32_t *steps,
    int interleave, int swizzle, int promotion, int fill)
{
    std::lock_guard<std::recursive_mutex> guard(one_call);
    if (capability() < 90)
        return NOT_SUPPORTED;
    if ((uintptr_t)out % 64 || (uintptr_t)address % 16 || rank < 2 || rank > 3)
        return say(INVALID_VALUE, "a tensor map at such addresses, or of such a rank");
    if (type != 1 || interleave || swizzle != 3 || promotion < 0 || promotion > 3 || fill)
        return say(INVALID_VALUE, "a tensor map of another kind");
    uint64_t bytes = 2 * dims[0];
    for (uint32_t i = 0; i < rank; i++) {
        if (!dims[i] || dims[i] > 1ull << 32 || !box[i] || box[i] > 256 || steps[i] != 1)
            return say(INVALID_VALUE, "a tensor map of such extents");
        if (i && (strides[i - 1] % 16 || !strides[i - 1] || strides[i - 1] >= 1ull << 40))
            return say(INVALID_VALUE, "a tensor map with such strides");
        bytes += i ? (dims[i] - 1) * strides[i - 1] : 0;
    }
    if (box[0] * 2 > 128 || box[0] * 2 % 16 || !is_memory((Address)address, bytes))
        return say(INVALID_VALUE, "a tensor map of wide rows, or of what is not memory");
    *out = {{MADE, (uint64_t)address, rank, dims[0], dims[1], rank > 2 ? dims[2] : 1, strides[0],
             rank > 2 ? strides[1] : 1, box[0], box[1]}};
    return SUCCESS;
}
static bool arguments_of(const Function &f, void **list, void **extra, Arguments &out)
{
    if (list) {
        for (int i = 0; i < f.parameters; i++) {
            if (i < f.maps)
                out.add(list[i]);
            else
                out.places.push_back(*(void **)list[i]);
        }
        return true;
    }
    void **packed = nullptr;
    size_t bytes = 0;
    for (int i = 0; extra && extra[i]; i += 2) {
        if ((uintptr_t)extra[i] == 1) /* CU_LAUNCH_PARAM_BUFFER_POINTER */
            packed = (void **)extra[i + 1];
        if ((uintptr_t)extra[i] == 2) /* CU_LAUNCH_PARAM_BUFFER_SIZE */
            bytes = *(size_t *)extra[i + 1];
    }
    const size_t of_maps = f.maps * sizeof(TensorMap);
    if (bytes != of_maps + (f.parameters - f.maps) * sizeof(void *))
        return false;
    for (int i = 0; i < f.maps; i++)
        out.add((const char *)packed + i * sizeof(TensorMap));
    packed += of_maps / sizeof(void *);
    out.places.insert(out.places.end(), packed, packed + f.parameters - f.maps);
    return true;
}
API(cuLaunchKernel, void *function, unsigned blocks, unsigned blocks_y, unsigned blocks_z,
    unsigned threads, unsigned threads_y, unsigned threads_z, unsigned shared, void *stream,
    void **list, void **extra)
{
    ENTER(true);
    const Function f = *(Function *)function;
    if (blocks_y != 1 || blocks_z != 1 || threads_y != 1 || threads_z != 1)
        return say(INVALID_VALUE, "lumc launches along one axis");
    if (!blocks || blocks > 2147483647u || !f.module->fits(threads, shared)
        || (int)shared > f.dynamic_shared)
        return say(INVALID_VALUE, "a launch of more threads or shared memory than allowed");
    Arguments arguments;
    if (!arguments_of(f, list, extra, arguments))
        return say(INVALID_VALUE, "a launch with arguments of the wrong size");
    for (const auto &map : arguments.maps)
        if (capability() == 90 && map->words[0] != MADE)
            return say(INVALID_VALUE, "a launch with a tensor map that nobody made");
    return enqueue(stream, [=] {
        return run_kernel(f, blocks, threads, shared, arguments.places);
    });
}


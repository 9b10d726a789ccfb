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
    m->fits = (decltype(m->fits))dlsym(library, "lumc_emu_fits");
    m->run = (decltype(m->run))dlsym(library, "lumc_emu_run");
    *out = m;
    return m->parameters && m->fits && m->run ? SUCCESS : INVALID_IMAGE;
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
        new Function{m, symbol, parameters, SHARED_USUAL}));
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

/* every parameter of a kernel of lumc is a pointer */
static bool arguments_of(const Function &f, void **list, void **extra, std::vector<void *> &out)
{
    if (list) {
        for (int i = 0; i < f.parameters; i++)
            out.push_back(*(void **)list[i]);
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
    if (bytes != f.parameters * sizeof(void *))
        return false;
    out.assign(packed, packed + f.parameters);
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
    std::vector<void *> arguments;
    if (!arguments_of(f, list, extra, arguments))
        return say(INVALID_VALUE, "a launch with arguments of the wrong size");
    return enqueue(stream, [=] { return run_kernel(f, blocks, threads, shared, arguments); });
}


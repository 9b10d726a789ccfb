/* A libamdhip64.so for machines without a GPU: the driver of ../fake_cuda by the names of HIP, whose
 * calls are the same but for contexts and a few details. It stands for one device of
 * LUMC_FAKE_GFX (gfx942 if unset); with LUMC_FAKE_OLD its properties lie as before HIP 6.
 *
 * An image is "LUMCGFX ", the name of its architecture in 16 bytes, and an image of ../fake_cuda.
 * It loads on that architecture alone. */
#include "../fake_cuda/state.h"

namespace {
constexpr int LDS = 64 << 10;
const char *architecture()
{
    const char *value = getenv("LUMC_FAKE_GFX");
    return value ? value : "gfx942";
}
thread_local int chosen;
/* a thread needs no context of its own */
void here()
{
    if (contexts.empty())
        contexts.push_back(&context);
}
Result properties(char *to, size_t at)
{
    snprintf(to, 256, "lumc emulator");
    snprintf(to + at, 256, "%s:sramecc+:xnack-", architecture());
    return SUCCESS;
}
} /* namespace */

#define HIP(name, call, ...)                                                                      \
    API(name, __VA_ARGS__)                                                                        \
    {                                                                                             \
        here();                                                                                   \
        return call;                                                                              \
    }
API(hipInit, unsigned flags) { return cuInit(flags); }
API(hipRuntimeGetVersion, int *version)
{
    *version = 60342134;
    return SUCCESS;
}
API(hipGetDeviceCount, int *count) { return cuDeviceGetCount(count); }
API(hipGetDevice, int *device)
{
    *device = chosen;
    return SUCCESS;
}
API(hipSetDevice, int device)
{
    chosen = device;
    return device ? INVALID_DEVICE : SUCCESS;
}
API(hipDeviceGetName, char *name, int room, int device) { return cuDeviceGetName(name, room, device); }
#ifdef LUMC_FAKE_OLD
API(hipGetDeviceProperties, char *to, int) { return properties(to, 396); }
#else
API(hipGetDevicePropertiesR0600, char *to, int) { return properties(to, 1160); }
#endif
extern "C" __attribute__((visibility("default"))) const char *hipGetErrorString(Result of)
{
    const char *text = nullptr;
    cuGetErrorString(of, &text);
    return text;
}

API(hipModuleLoadData, void **out, const void *image)
{
    here();
    const char *p = (const char *)image;
    if (!memcmp(p, "\177ELF", 4))
        return say(NO_BINARY_FOR_GPU, "code for a real GPU does not run here");
    if (memcmp(p, "LUMCGFX ", 8))
        return INVALID_IMAGE;
    if (strncmp(p + 8, architecture(), 16))
        return NO_BINARY_FOR_GPU;
    return cuModuleLoadData(out, p + 24);
}
API(hipModuleGetFunction, void **out, void *module, const char *symbol)
{
    here();
    const Result result = cuModuleGetFunction(out, module, symbol);
    if (!result)
        ((Function *)*out)->dynamic_shared = LDS; /* all of it, without being asked */
    return result;
}
HIP(hipModuleUnload, cuModuleUnload(module), void *module)
HIP(hipMalloc, cuMemAlloc_v2(out, bytes), Address *out, size_t bytes)
HIP(hipFree, p ? cuMemFree_v2(p) : SUCCESS, Address p)
HIP(hipMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2(to, from, n, stream), Address to, const void *from,
    size_t n, void *stream)
HIP(hipMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2(to, from, n, stream), void *to, Address from, size_t n,
    void *stream)
HIP(hipStreamCreateWithFlags, cuStreamCreate(out, flags), void **out, unsigned flags)
HIP(hipStreamSynchronize, cuStreamSynchronize(stream), void *stream)
HIP(hipStreamDestroy, cuStreamDestroy_v2(stream), void *stream)
HIP(hipStreamBeginCapture, cuStreamBeginCapture_v2(stream, mode), void *stream, int mode)
HIP(hipStreamEndCapture, cuStreamEndCapture(stream, graph), void *stream, void **graph)
HIP(hipGraphInstantiateWithFlags, cuGraphInstantiateWithFlags(out, graph, flags), void **out,
    void *graph, unsigned long long flags)
HIP(hipGraphLaunch, cuGraphLaunch(graph, stream), void *graph, void *stream)
HIP(hipGraphDestroy, cuGraphDestroy(graph), void *graph)
HIP(hipGraphExecDestroy, cuGraphExecDestroy(graph), void *graph)
HIP(hipEventCreateWithFlags, cuEventCreate(out, flags), void **out, unsigned flags)
HIP(hipEventRecord, cuEventRecord(event, stream), void *event, void *stream)
HIP(hipEventSynchronize, cuEventSynchronize(event), void *event)
HIP(hipEventElapsedTime, cuEventElapsedTime_v2(ms, from, to), float *ms, void *from, void *to)
HIP(hipEventDestroy, cuEventDestroy_v2(event), void *event)
HIP(hipModuleLaunchKernel, cuLaunchKernel(f, x, y, z, bx, by, bz, shared, stream, list, extra),
    void *f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
    unsigned shared, void *stream, void **list, void **extra)

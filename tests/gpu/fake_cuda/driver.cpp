/* The driver itself, its device and contexts. */
#include "state.h"
#include <dlfcn.h>

namespace {
const std::map<Result, std::pair<const char *, const char *>> MESSAGES = {
    {SUCCESS, {"CUDA_SUCCESS", "no error"}},
    {INVALID_VALUE, {"CUDA_ERROR_INVALID_VALUE", "invalid argument"}},
    {OUT_OF_MEMORY, {"CUDA_ERROR_OUT_OF_MEMORY", "out of memory"}},
    {NOT_INITIALIZED, {"CUDA_ERROR_NOT_INITIALIZED", "initialization error"}},
    {NO_DEVICE, {"CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"}},
    {INVALID_DEVICE, {"CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"}},
    {INVALID_IMAGE, {"CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"}},
    {INVALID_CONTEXT, {"CUDA_ERROR_INVALID_CONTEXT", "invalid device context"}},
    {NO_BINARY_FOR_GPU, {"CUDA_ERROR_NO_BINARY_FOR_GPU",
                         "no kernel image is available for execution on the device"}},
    {INVALID_HANDLE, {"CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"}},
    {NOT_FOUND, {"CUDA_ERROR_NOT_FOUND", "named symbol not found"}},
    {NOT_READY, {"CUDA_ERROR_NOT_READY", "device not ready"}},
    {ILLEGAL_ADDRESS, {"CUDA_ERROR_ILLEGAL_ADDRESS",
                       "an illegal memory access was encountered"}},
    {LAUNCH_FAILED, {"CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"}},
    {NOT_SUPPORTED, {"CUDA_ERROR_NOT_SUPPORTED", "operation not supported"}},
    {CAPTURE_UNSUPPORTED, {"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
                           "operation not permitted when stream is capturing"}},
    {CAPTURE_UNMATCHED, {"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
                         "the capture was not initiated in this stream"}},
};
} /* namespace */

long setting(const char *name, long usual)
{
    const char *value = getenv(name);
    return value ? atol(value) : usual;
}
int capability() { return (int)setting("LUMC_FAKE_SM", 90); }
size_t total_memory() { return (size_t)setting("LUMC_FAKE_MEMORY", 4L << 30); }
int device_count() { return (int)setting("LUMC_FAKE_DEVICES", 1); }
int shared_limit() { return capability() == 80 ? 166912 : capability() == 89 ? 101376 : 232448; }

Result say(Result result, const char *why)
{
    fprintf(stderr, "fake libcuda: %s\n", why);
    return result;
}

API(cuInit, unsigned flags)
{
    if (flags)
        return INVALID_VALUE;
    if (getenv("LUMC_FAKE_MISSING"))
        return NO_DEVICE;
    initialised = true;
    return SUCCESS;
}
/* As cuda-bindings asks: the newest form of a function, by the name without its number. */
API(cuGetProcAddress_v2, const char *symbol, void **out, int, uint64_t, int *status)
{
    Dl_info self;
    dladdr((void *)&setting, &self);
    void *library = dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    *out = nullptr;
    for (const char *number : {"_v4", "_v3", "_v2", ""})
        if (!*out)
            *out = dlsym(library, (std::string(symbol) + number).c_str());
    dlclose(library);
    if (status)
        *status = *out ? 0 : 1;
    return *out ? SUCCESS : NOT_FOUND;
}
API(cuDriverGetVersion, int *version)
{
    *version = (int)setting("LUMC_FAKE_DRIVER", 13000);
    return SUCCESS;
}
static Result message(Result of, const char **out, bool name)
{
    auto found = MESSAGES.find(of);
    *out = found == MESSAGES.end() ? nullptr : name ? found->second.first : found->second.second;
    return *out ? SUCCESS : INVALID_VALUE;
}
API(cuGetErrorString, Result of, const char **out) { return message(of, out, false); }
API(cuGetErrorName, Result of, const char **out) { return message(of, out, true); }
API(cuDeviceGetCount, int *count)
{
    ENTER(false);
    *count = device_count();
    return SUCCESS;
}
API(cuDeviceGet, int *device, int ordinal)
{
    ENTER(false);
    *device = ordinal;
    return ordinal < 0 || ordinal >= device_count() ? INVALID_DEVICE : SUCCESS;
}
API(cuDeviceGetUuid_v2, char *uuid, int device)
{
    ENTER(false);
    memcpy(uuid, "lumc emulator 00", 16);
    uuid[15] = (char)('0' + device + setting("CUDA_VISIBLE_DEVICES", 0));
    return device < 0 || device >= device_count() ? INVALID_DEVICE : SUCCESS;
}
API(cuDeviceGetName, char *name, int room, int)
{
    snprintf(name, (size_t)room, "lumc emulator");
    return SUCCESS;
}
API(cuDeviceTotalMem_v2, size_t *bytes, int)
{
    *bytes = total_memory();
    return SUCCESS;
}
API(cuDeviceComputeCapability, int *major, int *minor, int)
{
    *major = capability() / 10;
    *minor = capability() % 10;
    return SUCCESS;
}
API(cuDeviceGetAttribute, int *value, int attribute, int device)
{
    static const std::map<int, int> VALUES = {
        {1, 1024},      {2, 1024},  {3, 1024},  {4, 64}, /* threads of a block, by axis */
        {5, 2147483647}, {6, 65535}, {7, 65535}, /* blocks */
        {8, SHARED_USUAL}, {9, 65536}, {10, 32}, {12, 65536}, /* constants, warp, registers */
        {13, 1980000}, {16, 132}, {36, 2619000}, {37, 5120}, /* kHz, multiprocessors, memory */
        {38, 50 << 20}, {39, 2048}, {40, 3}, {41, 1}, /* L2, threads of a multiprocessor */
        {81, 233472}, {82, 65536}, /* shared memory and registers of a multiprocessor */
    };
    ENTER(false);
    if (device < 0 || device >= device_count())
        return INVALID_DEVICE;
    auto found = VALUES.find(attribute);
    *value = attribute == 75   ? capability() / 10
             : attribute == 76 ? capability() % 10
             : attribute == 97 ? shared_limit()
             : found == VALUES.end() ? 0
                                     : found->second;
    return SUCCESS;
}
static int current; /* device of the context */
API(cuDevicePrimaryCtxRetain, void **out, int device)
{
    ENTER(false);
    *out = &context;
    current = device;
    return device < 0 || device >= device_count() ? INVALID_DEVICE : SUCCESS;
}
API(cuDevicePrimaryCtxRelease_v2, int) { return SUCCESS; }
API(cuCtxCreate_v4, void **out, void *, unsigned, int)
{
    ENTER(false);
    contexts.push_back(*out = &context);
    return SUCCESS;
}
API(cuCtxPushCurrent_v2, void *handle)
{
    ENTER(false);
    contexts.push_back(handle);
    return handle == &context ? SUCCESS : INVALID_CONTEXT;
}
API(cuCtxPopCurrent_v2, void **handle)
{
    ENTER(false);
    if (contexts.empty())
        return INVALID_CONTEXT;
    if (handle)
        *handle = contexts.back();
    contexts.pop_back();
    return SUCCESS;
}
API(cuCtxSetCurrent, void *handle)
{
    ENTER(false);
    if (!contexts.empty())
        contexts.pop_back();
    if (handle)
        contexts.push_back(handle);
    return SUCCESS;
}
API(cuCtxGetCurrent, void **handle)
{
    ENTER(false);
    *handle = contexts.empty() ? nullptr : contexts.back();
    return SUCCESS;
}
API(cuCtxGetDevice, int *device)
{
    ENTER(true);
    *device = current;
    return SUCCESS;
}
API(cuCtxDetach, void *)
{
    ENTER(false);
    if (!contexts.empty())
        contexts.pop_back();
    return SUCCESS;
}
API(cuCtxGetApiVersion, void *, unsigned *version)
{
    *version = 13000;
    return SUCCESS;
}

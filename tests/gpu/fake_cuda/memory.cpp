/* Memory of the device and of the host, and copies. */
#include "state.h"

#include <sys/mman.h>

bool is_memory(Address p, size_t bytes)
{
    auto next = memory.upper_bound(p);
    if (next == memory.begin())
        return false;
    const auto &[begin, m] = *--next;
    return p - begin <= m.bytes && bytes <= m.bytes - (p - begin);
}
static bool is_pinned(const void *p)
{
    auto next = pinned.upper_bound((uintptr_t)p);
    return next != pinned.begin() && (uintptr_t)p - std::prev(next)->first < std::prev(next)->second;
}

API(cuMemGetInfo_v2, size_t *free, size_t *all)
{
    ENTER(true);
    *all = total_memory();
    *free = total_memory() - used;
    return SUCCESS;
}
API(cuMemAlloc_v2, Address *out, size_t bytes)
{
    ENTER(true);
    if (capturing())
        return CAPTURE_UNSUPPORTED;
    if (!bytes)
        return INVALID_VALUE;
    if (bytes > total_memory() - used)
        return OUT_OF_MEMORY;
    const size_t size = (bytes + PAGE - 1) / PAGE * PAGE + PAGE;
    void *pages = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED)
        return OUT_OF_MEMORY;
    mprotect((char *)pages + size - PAGE, PAGE, PROT_NONE);
    *out = ((uintptr_t)pages + size - PAGE - bytes) & ~(uintptr_t)255;
    memset((void *)*out, 0xff, bytes);
    memory[*out] = {(char *)pages, size, bytes};
    used += bytes;
    return SUCCESS;
}
API(cuMemFree_v2, Address p)
{
    ENTER(true);
    if (capturing())
        return CAPTURE_UNSUPPORTED;
    flush_all();
    auto found = memory.find(p);
    if (found == memory.end())
        return say(INVALID_VALUE, "cuMemFree: no such memory");
    used -= found->second.bytes;
    munmap(found->second.pages, found->second.size);
    memory.erase(found);
    return broken;
}
API(cuMemHostAlloc, void **out, size_t bytes, unsigned)
{
    ENTER(true);
    if (!bytes || !(*out = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096)))
        return bytes ? OUT_OF_MEMORY : INVALID_VALUE;
    pinned[(uintptr_t)*out] = bytes;
    return SUCCESS;
}
API(cuMemAllocHost_v2, void **out, size_t bytes) { return cuMemHostAlloc(out, bytes, 0); }
API(cuMemFreeHost, void *p)
{
    ENTER(true);
    flush_all();
    if (!pinned.erase((uintptr_t)p))
        return INVALID_VALUE;
    free(p);
    return broken;
}

static Work copy_work(void *to, const void *from, size_t bytes)
{
    return [=] {
        memcpy(to, from, bytes);
        return SUCCESS;
    };
}
/* without a stream: after everything else, and at once */
static Result copy(void *to, bool to_device, const void *from, bool from_device, size_t bytes)
{
    if ((to_device && !is_memory((Address)to, bytes))
        || (from_device && !is_memory((Address)from, bytes)))
        return say(INVALID_VALUE, "a copy outside of the memory of the device");
    if (capturing())
        return CAPTURE_UNSUPPORTED;
    if (flush_all())
        return broken;
    memcpy(to, from, bytes);
    return SUCCESS;
}
API(cuMemcpyHtoD_v2, Address to, const void *from, size_t bytes)
{
    ENTER(true);
    return copy((void *)to, true, from, false, bytes);
}
API(cuMemcpyDtoH_v2, void *to, Address from, size_t bytes)
{
    ENTER(true);
    return copy(to, false, (void *)from, true, bytes);
}
API(cuMemcpyDtoD_v2, Address to, Address from, size_t bytes)
{
    ENTER(true);
    return copy((void *)to, true, (void *)from, true, bytes);
}
API(cuMemcpyHtoDAsync_v2, Address to, const void *from, size_t bytes, void *stream)
{
    ENTER(true);
    if (!is_memory(to, bytes))
        return say(INVALID_VALUE, "a copy outside of the memory of the device");
    if (is_pinned(from) || stream_of(stream).capture)
        return enqueue(stream, copy_work((void *)to, from, bytes));
    std::vector<char> now((const char *)from, (const char *)from + bytes); /* as a driver does */
    return enqueue(stream, [=] {
        memcpy((void *)to, now.data(), bytes);
        return SUCCESS;
    });
}
API(cuMemcpyDtoHAsync_v2, void *to, Address from, size_t bytes, void *stream)
{
    ENTER(true);
    if (!is_memory(from, bytes))
        return say(INVALID_VALUE, "a copy outside of the memory of the device");
    enqueue(stream, copy_work(to, (void *)from, bytes));
    Stream &s = stream_of(stream); /* into memory that is not pinned the driver waits */
    return is_pinned(to) || s.capture ? (Result)SUCCESS : flush(s);
}
API(cuMemcpyDtoDAsync_v2, Address to, Address from, size_t bytes, void *stream)
{
    ENTER(true);
    if (!is_memory(from, bytes) || !is_memory(to, bytes))
        return say(INVALID_VALUE, "a copy outside of the memory of the device");
    return enqueue(stream, copy_work((void *)to, (void *)from, bytes));
}
struct Box { /* CUDA_MEMCPY2D: a side of it, of the device */
    size_t x, y;
    int kind;
    const void *host;
    Address device;
    void *array;
    size_t pitch;
};
struct Copy2d {
    Box from, to;
    size_t width, height;
};
API(cuMemcpy2DAsync_v2, const Copy2d *given, void *stream)
{
    ENTER(true);
    const Copy2d c = *given;
    for (const Box &b : {c.from, c.to}) {
        if (b.kind != 2 || b.x || b.y || b.pitch < c.width || b.pitch > INT32_MAX)
            return say(INVALID_VALUE, "a copy of rows that lie elsewhere");
        if (c.height && !is_memory(b.device, (c.height - 1) * b.pitch + c.width))
            return say(INVALID_VALUE, "a copy outside of the memory of the device");
    }
    return enqueue(stream, [=] {
        for (size_t i = 0; i < c.height; i++)
            memcpy((char *)c.to.device + i * c.to.pitch,
                   (const char *)c.from.device + i * c.from.pitch, c.width);
        return SUCCESS;
    });
}
API(cuMemsetD8Async, Address to, unsigned char value, size_t count, void *stream)
{
    ENTER(true);
    if (!is_memory(to, count))
        return say(INVALID_VALUE, "a fill outside of the memory of the device");
    return enqueue(stream, [=] {
        memset((void *)to, value, count);
        return SUCCESS;
    });
}
API(cuMemsetD8_v2, Address to, unsigned char value, size_t count)
{
    Result result = cuMemsetD8Async(to, value, count, nullptr);
    return result ? result : flush_all();
}


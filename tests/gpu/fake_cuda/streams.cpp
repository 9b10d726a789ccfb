/* Streams, graphs and events. */
#include "state.h"

#include <time.h>
#include <unistd.h>

Stream &stream_of(void *handle)
{
    return (uintptr_t)handle > 2 ? *(Stream *)handle : default_stream; /* 1, 2: default ones */
}
bool capturing()
{
    for (Stream *s : streams)
        if (s->capture)
            return true;
    return false;
}
/* does the work that waits on a stream */
Result flush(Stream &s, bool wait)
{
    while (!s.queue.empty() && !broken) {
        const Result result = s.queue.front()();
        if (result == NOT_READY && !wait)
            return NOT_READY;
        if (result == NOT_READY) {
            usleep(20);
            continue;
        }
        s.queue.pop_front();
        broken = result;
    }
    s.queue.clear();
    return broken;
}
Result flush_all()
{
    for (Stream *s : streams)
        flush(*s);
    return flush(default_stream);
}
/* work for later: part of a graph while one is captured */
Result enqueue(void *stream, Work work)
{
    Stream &s = stream_of(stream);
    if (s.capture)
        s.capture->push_back(std::move(work));
    else
        s.queue.push_back(std::move(work));
    return SUCCESS;
}

/* For the fake NCCL, of this process: work of several steps, of which each time that it is done has a
 * memory of its own; NOT_READY while it waits. */
API(lumc_fake_enqueue, void *stream, int (*step)(void *work, void **own), void *work)
{
    ENTER(true);
    if (Stream &s = stream_of(stream); s.capture)
        s.capture->of_ranks = true;
    void *own = nullptr;
    return enqueue(stream, [=]() mutable { return step(work, &own); });
}
/* how many graphs have such work */
extern "C" __attribute__((visibility("default"))) int lumc_fake_graphs()
{
    std::lock_guard<std::recursive_mutex> guard(one_call);
    int count = 0;
    for (const Graph *graph : graphs)
        count += graph->of_ranks;
    return count;
}
API(lumc_fake_is_memory, Address p, size_t bytes)
{
    ENTER(true);
    return is_memory(p, bytes);
}

API(cuCtxSynchronize)
{
    ENTER(true);
    return capturing() ? (Result)CAPTURE_UNSUPPORTED : flush_all();
}
API(cuStreamCreate, void **out, unsigned)
{
    ENTER(true);
    streams.push_back(new Stream);
    *out = streams.back();
    return SUCCESS;
}
API(cuStreamSynchronize, void *stream)
{
    ENTER(true);
    Stream &s = stream_of(stream);
    return s.capture ? (Result)CAPTURE_UNSUPPORTED : flush(s);
}
API(cuStreamQuery, void *stream)
{
    ENTER(true);
    Stream &s = stream_of(stream);
    return s.capture ? (Result)CAPTURE_UNSUPPORTED : flush(s, false);
}
API(cuStreamWaitEvent, void *, void *, unsigned)
{
    ENTER(true);
    return flush_all();
}
API(cuStreamDestroy_v2, void *stream)
{
    ENTER(false);
    Stream *s = &stream_of(stream);
    flush(*s);
    for (size_t i = 0; i < streams.size(); i++) {
        if (streams[i] == s) {
            streams.erase(streams.begin() + (long)i);
            delete s;
            return SUCCESS;
        }
    }
    return INVALID_HANDLE;
}
API(cuStreamBeginCapture_v2, void *stream, int)
{
    ENTER(true);
    Stream &s = stream_of(stream);
    if (&s == &default_stream || s.capture)
        return CAPTURE_UNSUPPORTED;
    s.capture = std::make_unique<Graph>();
    return SUCCESS;
}
API(cuStreamEndCapture, void *stream, void **graph)
{
    ENTER(true);
    Stream &s = stream_of(stream);
    if (!s.capture)
        return CAPTURE_UNMATCHED;
    graphs.insert(s.capture.get());
    *graph = s.capture.release();
    return SUCCESS;
}
API(cuGraphInstantiateWithFlags, void **out, void *graph, unsigned long long)
{
    ENTER(true);
    Graph *made = new Graph(*(Graph *)graph);
    graphs.insert(made);
    *out = made;
    return SUCCESS;
}
API(cuGraphLaunch, void *graph, void *stream)
{
    ENTER(true);
    for (const Work &work : *(Graph *)graph)
        enqueue(stream, work);
    return SUCCESS;
}
API(cuGraphDestroy, void *graph)
{
    ENTER(false);
    graphs.erase((Graph *)graph);
    delete (Graph *)graph;
    return SUCCESS;
}
API(cuGraphExecDestroy, void *graph) { return cuGraphDestroy(graph); }

API(cuEventCreate, void **out, unsigned)
{
    ENTER(true);
    *out = new Event;
    return SUCCESS;
}
API(cuEventRecord, void *event, void *stream)
{
    ENTER(true);
    Event *e = (Event *)event;
    e->time_ms = -1;
    return enqueue(stream, [=] {
        timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        e->time_ms = (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
        return SUCCESS;
    });
}
API(cuEventSynchronize, void *)
{
    ENTER(true);
    return capturing() ? (Result)CAPTURE_UNSUPPORTED : flush_all();
}
API(cuEventQuery, void *event)
{
    ENTER(true);
    return ((Event *)event)->time_ms < 0 ? NOT_READY : SUCCESS;
}
API(cuEventElapsedTime_v2, float *ms, void *from, void *to)
{
    ENTER(true);
    const Event &a = *(Event *)from, &b = *(Event *)to;
    *ms = (float)(b.time_ms - a.time_ms);
    return a.time_ms < 0 || b.time_ms < 0 ? NOT_READY : SUCCESS;
}
API(cuEventElapsedTime, float *ms, void *from, void *to)
{
    return cuEventElapsedTime_v2(ms, from, to);
}
API(cuEventDestroy_v2, void *event)
{
    ENTER(false);
    flush_all();
    delete (Event *)event;
    return SUCCESS;
}

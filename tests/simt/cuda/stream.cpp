// Streams and events.
#include "cudart.h"

#include <map>
#include <set>

namespace simt
{
static std::set<CUstream_st *> &streams = *new std::set<CUstream_st *>;
static std::set<CUevent_st *> &events = *new std::set<CUevent_st *>;
static int streams_made;

static CUstream_st *add_stream(int device, bool is_null, bool blocks, int priority)
{
    CUstream_st *made = new CUstream_st();
    made->device = device;
    made->is_null = is_null;
    made->blocks = blocks;
    made->priority = priority;
    made->number = streams_made++;
    streams.insert(made);
    return made;
}

static CUstream_st *null_stream(int device)
{
    static std::map<int, CUstream_st *> &made = *new std::map<int, CUstream_st *>;
    CUstream_st *&one = made[device];
    return one ? one : one = add_stream(device, true, false, 0);
}

CUstream_st *find_stream(cudaStream_t handle)
{
    if (!handle)
        return null_stream(current_device());
    return streams.count(handle) ? handle : NULL;
}

cudaError_t may_put(CUstream_st *stream)
{
    if (!stream)
        return cudaErrorInvalidResourceHandle;
    if (stream->capture && !stream->capture->valid)
        return cudaErrorStreamCaptureInvalidated;
    if (stream->is_null && any_captured_blocks())
        return cudaErrorStreamCaptureImplicit;
    return cudaSuccess;
}

cudaError_t append(CUstream_st *stream, const work_ref &what)
{
    cudaError_t error = may_put(stream);
    if (error)
        return error;
    if (stream->capture)
        capture_work(stream, what);
    else
        stream->last = put(what, stream->number, {stream->last}, stream->priority);
    return cudaSuccess;
}

// ---- waits and queries

static cudaError_t may_ask(CUstream_st *stream)
{
    if (!stream)
        return cudaErrorInvalidResourceHandle;
    if (stream->capture)
        return spoil(stream->capture, cudaErrorStreamCaptureUnsupported);
    return refuse_while_capturing();
}

static cudaError_t may_ask(CUevent_st *event)
{
    if (!events.count(event))
        return cudaErrorInvalidResourceHandle;
    if (event->capture)
        return spoil(event->capture, cudaErrorCapturedEvent);
    return refuse_while_capturing();
}
} // namespace simt

using namespace simt;

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int priority)
{
    return call([&](guard &) {
        if (!stream || flags > cudaStreamNonBlocking)
            return cudaErrorInvalidValue;
        *stream = add_stream(current_device(), false, flags != cudaStreamNonBlocking,
                             priority < GREATEST_PRIORITY ? GREATEST_PRIORITY
                             : priority > 0               ? 0
                                                          : priority);
        return cudaSuccess;
    });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags)
{
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

// Work that is on the stream is still done.
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    return call([&](guard &) {
        if (!stream || !streams.count(stream))
            return cudaErrorInvalidResourceHandle;
        if (stream->capture)
            return spoil(stream->capture, cudaErrorStreamCaptureUnsupported);
        streams.erase(stream);
        delete stream;
        return cudaSuccess;
    });
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle)
{
    return call([&](guard &hold) {
        CUstream_st *stream = find_stream(handle);
        cudaError_t error = may_ask(stream);
        return error ? error : wait_for(hold, task_ref(stream->last));
    });
}

cudaError_t cudaStreamQuery(cudaStream_t handle)
{
    return call([&](guard &) {
        CUstream_st *stream = find_stream(handle);
        cudaError_t error = may_ask(stream);
        return error ? error : is_done(stream->last) ? cudaSuccess : cudaErrorNotReady;
    });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned int flags)
{
    return call([&](guard &) {
        CUstream_st *stream = find_stream(handle);
        cudaError_t error = events.count(event) ? may_put(stream) : cudaErrorInvalidResourceHandle;
        if (error || flags != cudaEventWaitDefault)
            return error ? error : cudaErrorInvalidValue;
        if (stream->capture || event->capture)
            return capture_wait(stream, event);
        stream->last = put(NULL, stream->number, {stream->last, event->point});
        return cudaSuccess;
    });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
    return call([&](guard &) {
        if (!event || flags > (cudaEventBlockingSync | cudaEventDisableTiming))
            return cudaErrorInvalidValue;
        *event = new CUevent_st();
        (*event)->device = current_device();
        events.insert(*event);
        return cudaSuccess;
    });
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    return call([&](guard &) {
        if (!events.erase(event))
            return cudaErrorInvalidResourceHandle;
        delete event;
        return cudaSuccess;
    });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle)
{
    return call([&](guard &) {
        CUstream_st *stream = find_stream(handle);
        cudaError_t error = may_put(stream);
        if (error)
            return error;
        if (!events.count(event) || event->device != stream->device)
            return cudaErrorInvalidResourceHandle;
        event->capture = stream->capture;
        event->tips = stream->tips;
        event->point = NULL;
        if (!stream->capture)
            event->point = stream->last = put(NULL, stream->number, {stream->last});
        return cudaSuccess;
    });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    return call([&](guard &hold) {
        cudaError_t error = may_ask(event);
        return error ? error : wait_for(hold, task_ref(event->point));
    });
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    return call([&](guard &) {
        cudaError_t error = may_ask(event);
        return error ? error : is_done(event->point) ? cudaSuccess : cudaErrorNotReady;
    });
}

cudaError_t cudaDeviceSynchronize(void)
{
    return call([&](guard &hold) {
        cudaError_t error = refuse_while_any_captures();
        return error ? error : wait_for_all(hold);
    });
}

// Graphs by stream capture. Work that is put on a captured stream becomes a node, which comes after
// the last nodes of that stream and of the events that the stream waited for.
#include "cudart.h"

#include <algorithm>
#include <cstdio>

struct CUgraph_st {
    std::vector<simt::node> nodes;
};

struct CUgraphExec_st {
    std::vector<simt::node> nodes;
    bool node_priority;  // each node keeps its own priority
    simt::task_ref last; // the end of its newest launch
};

namespace simt
{
static std::vector<capture_ref> &captures = *new std::vector<capture_ref>; // open ones
static std::vector<CUstream_st *> &members = *new std::vector<CUstream_st *>;

// When the program ends, reports captures that it left open.
static struct at_exit {
    ~at_exit()
    {
        if (!captures.empty())
            fprintf(stderr, "simt: a capture was never ended\n");
    }
} at_exit;

cudaError_t spoil(const capture_ref &capture, cudaError_t error)
{
    capture->valid = false;
    return error;
}

// A capture forbids calls to the thread that began it; one of global mode forbids them to all
// threads.
cudaError_t refuse_while_capturing(void)
{
    cudaError_t error = cudaSuccess;
    for (const capture_ref &one : captures) {
        bool mine = one->thread == std::this_thread::get_id();
        if (one->mode == cudaStreamCaptureModeGlobal ||
            (mine && one->mode == cudaStreamCaptureModeThreadLocal))
            error = spoil(one, cudaErrorStreamCaptureUnsupported);
    }
    return error;
}

cudaError_t refuse_while_any_captures(void)
{
    for (const capture_ref &one : captures)
        one->valid = false;
    return captures.empty() ? cudaSuccess : cudaErrorStreamCaptureUnsupported;
}

bool any_captured_blocks(void)
{
    return std::any_of(members.begin(), members.end(), [](CUstream_st *s) { return s->blocks; });
}

void capture_work(CUstream_st *stream, const work_ref &what)
{
    capture &capture = *stream->capture;
    capture.nodes.push_back({what, stream->number, stream->priority, stream->tips});
    stream->tips = {capture.nodes.size() - 1};
}

static void join(CUstream_st *stream, const capture_ref &capture)
{
    stream->capture = capture;
    stream->tips.clear();
    members.push_back(stream);
}

// Handles a wait where the stream, the event or both are in a capture.
cudaError_t capture_wait(CUstream_st *stream, CUevent_st *event)
{
    if (!event->capture)
        return spoil(stream->capture, cudaErrorStreamCaptureIsolation);
    if (!event->capture->open)
        return cudaErrorCapturedEvent;
    if (!event->capture->valid)
        return cudaErrorStreamCaptureInvalidated;
    if (stream->capture && stream->capture != event->capture)
        return spoil(event->capture, spoil(stream->capture, cudaErrorStreamCaptureMerge));
    if (stream->is_null)
        return spoil(event->capture, cudaErrorStreamCaptureImplicit);
    if (!stream->capture)
        join(stream, event->capture);
    for (size_t tip : event->tips)
        if (std::find(stream->tips.begin(), stream->tips.end(), tip) == stream->tips.end())
            stream->tips.push_back(tip);
    return cudaSuccess;
}

// Whether all nodes come before something that the origin's stream waits for in the end.
static bool all_joined(const capture &capture)
{
    std::vector<bool> reached(capture.nodes.size());
    for (size_t tip : capture.origin->tips)
        reached[tip] = true;
    for (size_t i = capture.nodes.size(); i-- > 0;)
        if (!reached[i])
            return false;
        else
            for (size_t before : capture.nodes[i].after)
                reached[before] = true;
    return true;
}

static void leave(const capture_ref &capture)
{
    capture->open = false;
    captures.erase(std::find(captures.begin(), captures.end(), capture));
    for (CUstream_st *&stream : members)
        if (stream->capture == capture) {
            stream->capture = NULL;
            stream->tips.clear();
            stream = NULL;
        }
    members.erase(std::remove(members.begin(), members.end(), (CUstream_st *)NULL), members.end());
}

static cudaError_t end_capture(CUstream_st *stream, cudaGraph_t *graph)
{
    capture_ref capture = stream->capture;
    if (capture->origin != stream)
        return spoil(capture, cudaErrorStreamCaptureUnmatched);
    if (capture->mode != cudaStreamCaptureModeRelaxed &&
        capture->thread != std::this_thread::get_id())
        return cudaErrorStreamCaptureWrongThread;
    bool joined = all_joined(*capture);
    leave(capture);
    if (!capture->valid)
        return cudaErrorStreamCaptureInvalidated;
    if (!joined)
        return cudaErrorStreamCaptureUnjoined;
    *graph = new CUgraph_st{capture->nodes};
    return cudaSuccess;
}

} // namespace simt

using namespace simt;

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, enum cudaStreamCaptureStatus *status)
{
    return call([&](guard &) {
        CUstream_st *stream = find_stream(handle);
        if (!stream)
            return cudaErrorInvalidResourceHandle;
        if (!status)
            return cudaErrorInvalidValue;
        *status = !stream->capture         ? cudaStreamCaptureStatusNone
                  : stream->capture->valid ? cudaStreamCaptureStatusActive
                                           : cudaStreamCaptureStatusInvalidated;
        return cudaSuccess;
    });
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    return call([&](guard &) {
        if (!find_stream(stream))
            return cudaErrorInvalidResourceHandle;
        if (!stream)
            return cudaErrorStreamCaptureUnsupported;
        if (stream->capture)
            return cudaErrorIllegalState;
        auto made = std::make_shared<capture>();
        made->origin = stream;
        made->thread = std::this_thread::get_id();
        made->mode = mode;
        made->valid = made->open = true;
        captures.push_back(made);
        join(stream, made);
        return cudaSuccess;
    });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    return call([&](guard &) {
        if (!stream || !find_stream(stream))
            return cudaErrorInvalidResourceHandle;
        if (!graph)
            return cudaErrorInvalidValue;
        *graph = NULL;
        return stream->capture ? end_capture(stream, graph) : cudaErrorIllegalState;
    });
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count)
{
    return call([&](guard &) {
        if (!graph || !count)
            return cudaErrorInvalidValue;
        if (nodes) // nobody asks what the nodes are
            return cudaErrorNotSupported;
        *count = graph->nodes.size();
        return cudaSuccess;
    });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
    return call([&](guard &) {
        if (!exec || !graph || (flags & ~(unsigned)cudaGraphInstantiateFlagUseNodePriority))
            return cudaErrorInvalidValue;
        *exec = new CUgraphExec_st{graph->nodes, flags != 0, NULL};
        return cudaSuccess;
    });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t handle)
{
    return call([&](guard &) {
        CUstream_st *stream = find_stream(handle);
        cudaError_t error = exec ? may_put(stream) : cudaErrorInvalidValue;
        if (error)
            return error;
        if (stream->capture) // CUDA would nest the graphs, which dtrain never does
            return spoil(stream->capture, cudaErrorStreamCaptureUnsupported);
        // The graph runs between two points of the launching stream, after the launch before.
        task_ref begin = put(NULL, stream->number, {stream->last, exec->last});
        std::vector<task_ref> tasks;
        for (const node &one : exec->nodes) {
            std::vector<task_ref> after = {begin};
            for (size_t before : one.after)
                after.push_back(tasks[before]);
            tasks.push_back(put(one.what, one.stream, after,
                                exec->node_priority ? one.priority : stream->priority));
        }
        tasks.push_back(begin);
        exec->last = stream->last = put(NULL, stream->number, tasks);
        return cudaSuccess;
    });
}

// A launch that is under way continues.
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    return call([&](guard &) {
        delete exec;
        return exec ? cudaSuccess : cudaErrorInvalidValue;
    });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    return call([&](guard &) {
        delete graph;
        return graph ? cudaSuccess : cudaErrorInvalidValue;
    });
}

// The two tables of the CUDA backend. This file implements memory, copies, streams, events and
// graphs; cuda_device.c finds and opens devices, cuda_gemm.c runs GEMM, kernels/NAME.cu the other
// ops. Thread-safe.
#include "backend/cuda.h"

#include "base/arena.h"
#include "base/memory.h"
#include "kernels/cuda.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

// One allocation, with its size, which CUDA does not report.
struct dt_cuda_block {
    struct dt_cuda_block *next;
    void *memory;
    int64_t bytes;
};

dt_status dt_cuda_status(cudaError_t error, const char *file, int line, const char *function,
                         const char *format, ...)
{
    char doing[512];
    va_list args;
    if (error == cudaSuccess)
        return DT_OK;
    cudaGetLastError(); // otherwise the next kernel launch would report it
    va_start(args, format);
    vsnprintf(doing, sizeof doing, format, args);
    va_end(args);
    return dt_error_raise(DT_MACHINE, file, line, function, NULL, "%s failed: %s (%s)", doing,
                          cudaGetErrorString(error), cudaGetErrorName(error));
}

// A failed release is harmless but must be cleared, otherwise the next launch would report it.
static void ignore_failure(cudaError_t error)
{
    if (error != cudaSuccess)
        cudaGetLastError();
}

dt_status dt_cuda_make_current(const struct dt_device *device)
{
    return DT_CUDA(cudaSetDevice(device->index), "selecting GPU %d", device->index);
}

// ---- memory

static double megabytes(size_t bytes)
{
    return (double)bytes / 1e6;
}

static int64_t cuda_memory_in_use(const struct dt_device *device)
{
    return __atomic_load_n(&device->memory_in_use, __ATOMIC_RELAXED);
}

static dt_status out_of_memory(const struct dt_device *device, int64_t bytes)
{
    size_t free = 0, total = 0;
    cudaGetLastError();
    DT_TRY(DT_CUDA(cudaMemGetInfo(&free, &total), "querying the memory of GPU %d", device->index));
    return DT_FAIL(DT_MACHINE,
                   "lower data.micro_batch, or set model.recompute = block; nvidia-smi shows what "
                   "else uses this GPU",
                   "out of memory on GPU %d (%s): %.1f MB requested, %.1f MB of %.1f MB free, %.1f "
                   "MB used by this rank",
                   device->index, device->name, megabytes((size_t)bytes), megabytes(free),
                   megabytes(total), megabytes((size_t)cuda_memory_in_use(device)));
}

// cudaMalloc aligns to 256 bytes or more, which is DT_ARENA_ALIGN. Waits for the zeroing on the
// default stream, since other streams do not.
static dt_status allocate_zeroed(struct dt_device *device, int64_t bytes, void **memory)
{
    size_t size = bytes > 0 ? (size_t)bytes : 1; // an empty array needs an address too
    cudaError_t error = cudaMalloc(memory, size);
    if (error == cudaErrorMemoryAllocation)
        return out_of_memory(device, bytes);
    DT_TRY(DT_CUDA(error, "allocating %lld bytes on GPU %d", (long long)bytes, device->index));
    dt_status status = DT_CUDA(cudaMemsetAsync(*memory, 0, size, NULL), "zeroing %zu bytes", size);
    if (status == DT_OK)
        status = DT_CUDA(cudaStreamSynchronize(NULL), "zeroing %zu bytes", size);
    if (status != DT_OK)
        ignore_failure(cudaFree(*memory));
    return status;
}

static dt_status cuda_alloc(struct dt_device *device, int64_t bytes, void **memory)
{
    if (bytes < 0)
        return DT_FAIL(DT_MACHINE, NULL, "cannot allocate %lld bytes", (long long)bytes);
    struct dt_cuda_block *block;
    DT_TRY(DT_NEW(&block, 1, "the list of allocations"));
    dt_status status = dt_cuda_make_current(device);
    if (status == DT_OK)
        status = allocate_zeroed(device, bytes, memory);
    if (status != DT_OK) {
        free(block);
        return status;
    }
    pthread_mutex_lock(&device->lock);
    *block = (struct dt_cuda_block){.memory = *memory, .bytes = bytes, .next = device->blocks};
    device->blocks = block;
    pthread_mutex_unlock(&device->lock);
    __atomic_fetch_add(&device->memory_in_use, bytes, __ATOMIC_RELAXED);
    return DT_OK;
}

static void cuda_free(struct dt_device *device, void *memory)
{
    if (!memory)
        return;
    pthread_mutex_lock(&device->lock);
    struct dt_cuda_block **link = &device->blocks;
    while (*link && (*link)->memory != memory)
        link = &(*link)->next;
    struct dt_cuda_block *block = *link;
    if (block)
        *link = block->next;
    pthread_mutex_unlock(&device->lock);
    if (block)
        __atomic_fetch_sub(&device->memory_in_use, block->bytes, __ATOMIC_RELAXED);
    free(block);
    ignore_failure(cudaSetDevice(device->index));
    ignore_failure(cudaFree(memory)); // waits for the work that may still use it
}

static dt_status cuda_alloc_host(struct dt_device *device, int64_t bytes, void **memory)
{
    if (bytes < 0)
        return DT_FAIL(DT_MACHINE, NULL, "cannot allocate %lld bytes", (long long)bytes);
    size_t size = bytes > 0 ? (size_t)bytes : 1;
    DT_TRY(dt_cuda_make_current(device));
    cudaError_t error = cudaHostAlloc(memory, size, cudaHostAllocDefault);
    if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        return DT_FAIL(DT_MACHINE,
                       "lower data.prefetch or data.micro_batch, or use a host with more memory",
                       "out of pinned host memory: %.1f MB requested", megabytes(size));
    }
    DT_TRY(DT_CUDA(error, "pinning %zu bytes of host memory", size));
    memset(*memory, 0, size);
    return DT_OK;
}

static void cuda_free_host(struct dt_device *device, void *memory)
{
    ignore_failure(cudaSetDevice(device->index));
    ignore_failure(cudaFreeHost(memory)); // NULL is fine
}

// ---- copies

static dt_status copy(struct dt_device *device, void *to, const void *from, int64_t bytes,
                      enum cudaMemcpyKind kind, struct dt_stream *stream)
{
    if (bytes < 0)
        return DT_FAIL(DT_MACHINE, NULL, "cannot copy %lld bytes", (long long)bytes);
    if (bytes == 0)
        return DT_OK;
    DT_TRY(dt_cuda_make_current(device));
    return DT_CUDA(cudaMemcpyAsync(to, from, (size_t)bytes, kind, dt_cuda_stream(stream)),
                   "copying %lld bytes %s", (long long)bytes,
                   kind == cudaMemcpyHostToDevice   ? "to the GPU"
                   : kind == cudaMemcpyDeviceToHost ? "from the GPU"
                                                    : "on the GPU");
}

static dt_status cuda_to_device(struct dt_device *device, void *to, const void *from, int64_t bytes,
                                struct dt_stream *stream)
{
    return copy(device, to, from, bytes, cudaMemcpyHostToDevice, stream);
}

static dt_status cuda_to_host(struct dt_device *device, void *to, const void *from, int64_t bytes,
                              struct dt_stream *stream)
{
    return copy(device, to, from, bytes, cudaMemcpyDeviceToHost, stream);
}

static dt_status cuda_copy(struct dt_device *device, void *to, const void *from, int64_t bytes,
                           struct dt_stream *stream)
{
    return copy(device, to, from, bytes, cudaMemcpyDeviceToDevice, stream);
}

static dt_status cuda_fill(struct dt_device *device, void *to, int byte, int64_t bytes,
                           struct dt_stream *stream)
{
    if (bytes < 0)
        return DT_FAIL(DT_MACHINE, NULL, "cannot fill %lld bytes", (long long)bytes);
    if (bytes == 0)
        return DT_OK;
    DT_TRY(dt_cuda_make_current(device));
    return DT_CUDA(cudaMemsetAsync(to, byte, (size_t)bytes, dt_cuda_stream(stream)),
                   "filling %lld bytes on the GPU", (long long)bytes);
}

// ---- streams and events

// A non-blocking stream does not synchronise with the default stream.
static dt_status cuda_stream_create(struct dt_device *device, bool urgent,
                                    struct dt_stream **stream)
{
    cudaStream_t made;
    int least, greatest;
    DT_TRY(dt_cuda_make_current(device));
    DT_TRY(DT_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest), "creating a stream"));
    DT_TRY(DT_CUDA(
        cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, urgent ? greatest : least),
        "creating a stream"));
    *stream = (struct dt_stream *)made;
    return DT_OK;
}

static void cuda_stream_destroy(struct dt_device *device, struct dt_stream *stream)
{
    (void)device;
    if (stream)
        ignore_failure(cudaStreamDestroy(dt_cuda_stream(stream)));
}

static dt_status cuda_stream_wait(struct dt_device *device, struct dt_stream *stream,
                                  struct dt_event *event)
{
    DT_TRY(dt_cuda_make_current(device)); // `stream` may be the default one
    return DT_CUDA(cudaStreamWaitEvent(dt_cuda_stream(stream), dt_cuda_event(event), 0),
                   "making a stream wait for an event");
}

static dt_status cuda_stream_sync(struct dt_device *device, struct dt_stream *stream)
{
    DT_TRY(dt_cuda_make_current(device));
    return DT_CUDA(cudaStreamSynchronize(dt_cuda_stream(stream)), "waiting for a stream");
}

// The host sleeps while it waits for the event: it waits for work a step old, and the loader needs
// the cores.
static dt_status cuda_event_create(struct dt_device *device, struct dt_event **event)
{
    cudaEvent_t made;
    DT_TRY(dt_cuda_make_current(device));
    DT_TRY(DT_CUDA(cudaEventCreateWithFlags(&made, cudaEventDisableTiming | cudaEventBlockingSync),
                   "creating an event"));
    *event = (struct dt_event *)made;
    return DT_OK;
}

static void cuda_event_destroy(struct dt_device *device, struct dt_event *event)
{
    (void)device;
    if (event)
        ignore_failure(cudaEventDestroy(dt_cuda_event(event)));
}

static dt_status cuda_event_record(struct dt_device *device, struct dt_event *event,
                                   struct dt_stream *stream)
{
    DT_TRY(dt_cuda_make_current(device));
    return DT_CUDA(cudaEventRecord(dt_cuda_event(event), dt_cuda_stream(stream)),
                   "recording an event");
}

static dt_status cuda_event_sync(struct dt_device *device, struct dt_event *event)
{
    DT_TRY(dt_cuda_make_current(device)); // the saving thread makes no other call
    return DT_CUDA(cudaEventSynchronize(dt_cuda_event(event)), "waiting for an event");
}

static dt_status cuda_event_done(struct dt_device *device, struct dt_event *event, bool *done)
{
    DT_TRY(dt_cuda_make_current(device));
    cudaError_t error = cudaEventQuery(dt_cuda_event(event));
    *done = error == cudaSuccess;
    if (error == cudaErrorNotReady) {
        cudaGetLastError();
        return DT_OK;
    }
    return DT_CUDA(error, "querying an event");
}

// ---- graphs

static _Thread_local bool captures; // this thread is capturing; one capture at a time

bool dt_cuda_captures(void)
{
    return captures;
}

// CUDA calls of other threads (the loader's copies, the watchdog) do not break the capture. Clears
// the error record, so that capture_end can name the error that broke it.
static dt_status cuda_capture_begin(struct dt_device *device, struct dt_stream *stream)
{
    DT_TRY(dt_cuda_make_current(device));
    dt_error_clear();
    DT_TRY(DT_CUDA(cudaStreamBeginCapture(dt_cuda_stream(stream), cudaStreamCaptureModeThreadLocal),
                   "starting a graph capture"));
    captures = true;
    return DT_OK;
}

static dt_status cuda_capture_end(struct dt_device *device, struct dt_stream *stream,
                                  struct dt_graph **graph)
{
    cudaGraph_t noted = NULL;
    cudaGraphExec_t exec = NULL;
    const struct dt_error *broken = dt_error_current();
    cudaError_t error = cudaStreamEndCapture(dt_cuda_stream(stream), &noted);
    (void)device;
    captures = false;
    if (error != cudaSuccess && broken->code != DT_OK)
        return DT_CUDA(error, "capturing a graph, broken by this error: \"%s\"", broken->message);
    DT_TRY(DT_CUDA(error, "capturing a graph"));
    // Without the flag all nodes would get the priority of the stream into which the graph is
    // launched.
    error = cudaGraphInstantiate(&exec, noted, cudaGraphInstantiateFlagUseNodePriority);
    ignore_failure(cudaGraphDestroy(noted));
    *graph = (struct dt_graph *)exec;
    return DT_CUDA(error, "instantiating a captured graph");
}

// Also ends CUDA's capture: until then the stream accepts no other work, and neither memory nor
// streams in the capture can be released.
static void cuda_capture_cancel(struct dt_device *device, struct dt_stream *stream)
{
    cudaGraph_t noted = NULL;
    (void)device;
    captures = false;
    ignore_failure(cudaStreamEndCapture(dt_cuda_stream(stream), &noted));
    if (noted)
        ignore_failure(cudaGraphDestroy(noted));
}

static dt_status cuda_graph_launch(struct dt_device *device, struct dt_graph *graph,
                                   struct dt_stream *stream)
{
    DT_TRY(dt_cuda_make_current(device));
    return DT_CUDA(cudaGraphLaunch(dt_cuda_graph(graph), dt_cuda_stream(stream)),
                   "launching a graph");
}

static void cuda_graph_destroy(struct dt_device *device, struct dt_graph *graph)
{
    (void)device;
    if (graph)
        ignore_failure(cudaGraphExecDestroy(dt_cuda_graph(graph)));
}

static void cuda_share(struct dt_device *device, bool on)
{
    device->shares = on;
}

// Only its field `gemm` is used, which is NULL.
static struct dt_device planned;

const struct dt_device_table dt_cuda_device_table = {
    .name = "cuda",
    .planned = &planned,
    .graphs = true,
    .device_comm = true,
    .count = dt_cuda_count,
    .versions = dt_cuda_versions,
    .open = dt_cuda_open,
    .close = dt_cuda_close,
    .info = dt_cuda_info,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .alloc_host = cuda_alloc_host,
    .free_host = cuda_free_host,
    .memory_in_use = cuda_memory_in_use,
    .to_device = cuda_to_device,
    .to_host = cuda_to_host,
    .copy = cuda_copy,
    .fill = cuda_fill,
    .stream_create = cuda_stream_create,
    .stream_destroy = cuda_stream_destroy,
    .stream_wait = cuda_stream_wait,
    .stream_sync = cuda_stream_sync,
    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
    .event_record = cuda_event_record,
    .event_sync = cuda_event_sync,
    .event_done = cuda_event_done,
    .capture_begin = cuda_capture_begin,
    .capture_end = cuda_capture_end,
    .capture_cancel = cuda_capture_cancel,
    .graph_launch = cuda_graph_launch,
    .graph_destroy = cuda_graph_destroy,
    .share = cuda_share,
    .range_begin = dt_cuda_range_begin,
    .range_end = dt_cuda_range_end,
};

#define DT_OP_LITERAL(op)           .op = op##_cuda,
#define DT_OP_WORKSPACE_LITERAL(op) .op = op##_cuda, .op##_workspace = op##_cuda_workspace,
const struct dt_op_table dt_cuda_op_table = {
    .name = "cuda",
    .scan_chunk = DT_SCAN_CHUNK_CUDA,
    .exp_unit = true,
    .scan_keeps_s = true,
    .attention_mma = true,
    .ssd_chunk = DT_SSD_CHUNK_CUDA,
    // Counted in kernels/scan_*.cu. An exponential is one instruction of the special function unit;
    // so is a reciprocal, which counts as an exponential. A run computes Δ a, the decay and B,
    // forward also C; the sweep computes a state's gradients and its share of the sums over lanes.
    .scan_cost = {.forward_lanes = 4,
                  .run_lanes = 3,
                  .sweep_lanes = 10,
                  .forward_exps = 3,
                  .run_exps = 2,
                  .gate_exps = 2},
    .logits_tile = DT_LOGITS_TILE_CUDA,
    DT_OPS_BY_WORKSPACE(DT_OP_WORKSPACE_LITERAL, DT_OP_LITERAL)};

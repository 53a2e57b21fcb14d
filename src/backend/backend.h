// The seam between dtrain and a device: two constant tables, one of device calls and one of ops.
// Model and training code call the dt_… functions below, which check and dispatch; a backend
// (cpu.c, cuda.c) is two struct literals. Ops are mathematical operations at their fusion
// boundary, each with its contract in kernels/NAME.h: an args struct and a stream. An op never
// allocates: the caller queries its workspace (dt_NAME_workspace) and passes it in the args. Work
// on a stream runs in order; on the CPU every call is done when it returns.
#pragma once

#include "base/dtype.h"
#include "base/error.h"
#include "kernels/ops.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

struct dt_device; // one opened device
struct dt_stream; // an ordered queue of work; NULL is the device's default stream
struct dt_event;  // a point in a stream
struct dt_graph;  // work captured from streams, launched as a whole

struct dt_device_info {
    char name[128];      // "AMD EPYC 9575F, 2 threads"
    int64_t memory;      // total bytes
    int64_t memory_free; // bytes free now
    int threads;         // host threads that ops use
    bool bf16;           // bf16 GEMM in hardware
    bool bf16_faster;    // bf16 storage trains faster than fp32, so precision = auto chooses it
    char features[128];  // "avx512 bf16"
    char id[64];         // "GPU-5f1c…", unique to the device; "" where ranks may share it
    double peak_flops;   // per second, dense bf16 GEMM with fp32 sums, from the data sheet; 0:
                         // unknown
};

struct dt_device_table {
    const char *name;          // "cpu"
    bool unified;              // the host uses device memory directly; every call is done at return
    bool graphs;               // has capture_begin and the calls after it
    bool device_comm;          // NCCL can reduce its memory
    struct dt_device *planned; // computes ops' workspaces but runs nothing; or NULL
    // How many devices this process sees. If none, the error says why and what to do.
    dt_status (*count)(int *n);
    // The versions of its libraries on this machine, one per line: "CUDA  13.0, driver 580.65".
    void (*versions)(char *text, size_t size);
    // index: among visible devices; threads: host threads for ops (the CPU's cores in use)
    dt_status (*open)(int index, int threads, struct dt_device **device);
    void (*close)(struct dt_device *device);
    dt_status (*info)(struct dt_device *device, struct dt_device_info *info);

    dt_status (*alloc)(struct dt_device *device, int64_t bytes,
                       void **memory); // aligned to DT_ARENA_ALIGN, zeroed
    void (*free)(struct dt_device *device, void *memory);
    dt_status (*alloc_host)(struct dt_device *device, int64_t bytes,
                            void **memory); // pinned; any thread
    void (*free_host)(struct dt_device *device, void *memory);
    int64_t (*memory_in_use)(const struct dt_device *device); // bytes allocated by this process

    // Asynchronous on `stream`; host memory must be pinned and valid until the copy is done.
    dt_status (*to_device)(struct dt_device *device, void *to, const void *from, int64_t bytes,
                           struct dt_stream *stream);
    dt_status (*to_host)(struct dt_device *device, void *to, const void *from, int64_t bytes,
                         struct dt_stream *stream);
    dt_status (*copy)(struct dt_device *device, void *to, const void *from, int64_t bytes,
                      struct dt_stream *stream);
    dt_status (*fill)(struct dt_device *device, void *to, int byte, int64_t bytes,
                      struct dt_stream *stream);

    // Destroying, waiting and recording are NULL if every call is done when it returns. urgent: the
    // stream has a higher priority.
    dt_status (*stream_create)(struct dt_device *device, bool urgent, struct dt_stream **stream);
    void (*stream_destroy)(struct dt_device *device, struct dt_stream *stream);
    dt_status (*stream_wait)(struct dt_device *device, struct dt_stream *stream,
                             struct dt_event *event);
    dt_status (*stream_sync)(struct dt_device *device, struct dt_stream *stream); // host waits
    dt_status (*event_create)(struct dt_device *device, struct dt_event **event);
    void (*event_destroy)(struct dt_device *device, struct dt_event *event);
    dt_status (*event_record)(struct dt_device *device, struct dt_event *event,
                              struct dt_stream *stream);
    dt_status (*event_sync)(struct dt_device *device, struct dt_event *event); // host waits
    dt_status (*event_done)(struct dt_device *device, struct dt_event *event, bool *done);

    // Between begin and end, the calling thread's work on `stream`, and on streams that fork from
    // and rejoin it, is recorded instead of executed. Each launch of the graph executes all of it,
    // on the same memory. Capture must not begin while work that it depends on is running. NULL: no
    // graphs.
    dt_status (*capture_begin)(struct dt_device *device, struct dt_stream *stream);
    dt_status (*capture_end)(struct dt_device *device, struct dt_stream *stream,
                             struct dt_graph **graph);
    // Ends a capture that failed. The current error is kept.
    void (*capture_cancel)(struct dt_device *device, struct dt_stream *stream);
    dt_status (*graph_launch)(struct dt_device *device, struct dt_graph *graph,
                              struct dt_stream *stream);
    void (*graph_destroy)(struct dt_device *device, struct dt_graph *graph);

    // While on, ops leave free the multiprocessors that collectives between devices use
    // (comm_nccl.c). This may change an op's bits, so switch it at fixed points of a step, and only
    // if bits may depend on the number of ranks. NULL: there are no such collectives.
    void (*share)(struct dt_device *device, bool on);

    // Name the calling thread's work for profilers; ranges nest. NULL: no profiler.
    void (*range_begin)(const char *name);
    void (*range_end)(void);
};

// The cost of the scan on this backend: fp32 vector operations (a multiply-add is one) per state
// besides its exponential, and exponentials per channel besides the recurrence's. Backward first
// reruns the recurrence forward.
struct dt_scan_cost {
    double forward_lanes, run_lanes, sweep_lanes;
    double forward_exps, run_exps, gate_exps;
};

// Every op of kernels/ops.h.
struct dt_op_table {
    const char *name;
    struct dt_scan_cost scan_cost;
    bool int8;           // gemm multiplies int8
    bool exp_unit;       // exponentials have a unit of their own (cost.h)
    int64_t scan_chunk;  // steps between saved scan states that suit this backend
    bool scan_keeps_s;   // the scan's backward reads the s_t kept by forward
    int64_t ssd_chunk;   // tokens per ssd chunk that suit this backend
    bool attention_mma;  // uses dt_attention_on_mma; backward computes s and dp twice
    int64_t logits_tile; // logits that a head should compute at a time
#define DT_OP_SLOT(op)                                                                             \
    dt_status (*op)(struct dt_device * device, const struct dt_##op##_args *args,                  \
                    struct dt_stream *stream);                                                     \
    int64_t (*op##_workspace)(struct dt_device * device,                                           \
                              const struct dt_##op##_args *args); /* NULL: none */
    DT_OPS(DT_OP_SLOT)
#undef DT_OP_SLOT
};

struct dt_backend {
    const struct dt_device_table *table;
    const struct dt_op_table *op;
    struct dt_device *device;
    const char *memory_hint; // when memory runs out, replaces the device's hint for training; or
                             // NULL
};

struct dt_known_backend {
    const struct dt_device_table *table;
    const struct dt_op_table *op;
};

// known.c: the backends of this build; ends with a row without a table.
extern const struct dt_known_backend dt_known_backends[];
// The backend of that name, or NULL.
const struct dt_known_backend *dt_backend_find(const char *name);

extern const struct dt_device_table dt_cpu_device_table;
extern const struct dt_op_table dt_cpu_op_table;
extern const struct dt_device_table dt_cuda_device_table; // only where built with DTRAIN_CUDA
extern const struct dt_op_table dt_cuda_op_table;

// name: "cpu" or "cuda". threads 0: all cores that this process may use.
dt_status dt_backend_open(const char *name, int index, int threads, struct dt_backend *backend);
void dt_backend_close(struct dt_backend *backend);
// A GPU that this machine lacks, for planning memory: nothing runs on it. In a build without CUDA
// it combines the chunks and tiles of the CUDA kernels (kernels/*.h) with the workspaces of the
// backend `here`; `room` then holds its tables.
struct dt_planned_tables {
    struct dt_device_table device;
    struct dt_op_table op;
};
void dt_backend_plan_gpu(const struct dt_backend *here, struct dt_planned_tables *room,
                         struct dt_backend *gpu);

// Device calls on an open backend. dt_alloc's `pointer` is the address of a pointer of any type,
// which is set to NULL on failure. Freeing NULL does nothing.
static inline dt_status dt_backend_info(const struct dt_backend *backend,
                                        struct dt_device_info *info)
{
    return backend->table->info(backend->device, info);
}

static inline dt_status dt_allocated(const struct dt_backend *backend, dt_status status,
                                     void *memory, void *pointer)
{
    memory = status == DT_OK ? memory : NULL;
    memcpy(pointer, &memory, sizeof memory);
    if (status != DT_OK && backend->memory_hint)
        return DT_FAIL(status, backend->memory_hint, "%s", dt_error_current()->message);
    return status;
}

static inline dt_status dt_alloc(const struct dt_backend *backend, int64_t bytes, void *pointer)
{
    void *memory = NULL;
    dt_status status = backend->table->alloc(backend->device, bytes, &memory);
    return dt_allocated(backend, status, memory, pointer);
}

static inline void dt_free(const struct dt_backend *backend, void *memory)
{
    backend->table->free(backend->device, memory);
}

static inline dt_status dt_alloc_host(const struct dt_backend *backend, int64_t bytes,
                                      void *pointer)
{
    void *memory = NULL;
    dt_status status = backend->table->alloc_host(backend->device, bytes, &memory);
    return dt_allocated(backend, status, memory, pointer);
}

static inline void dt_free_host(const struct dt_backend *backend, void *memory)
{
    backend->table->free_host(backend->device, memory);
}

static inline int64_t dt_memory_in_use(const struct dt_backend *backend)
{
    return backend->table->memory_in_use(backend->device);
}

static inline dt_status dt_to_device(const struct dt_backend *backend, void *to, const void *from,
                                     int64_t bytes, struct dt_stream *stream)
{
    return backend->table->to_device(backend->device, to, from, bytes, stream);
}

static inline dt_status dt_to_host(const struct dt_backend *backend, void *to, const void *from,
                                   int64_t bytes, struct dt_stream *stream)
{
    return backend->table->to_host(backend->device, to, from, bytes, stream);
}

static inline dt_status dt_copy(const struct dt_backend *backend, void *to, const void *from,
                                int64_t bytes, struct dt_stream *stream)
{
    return backend->table->copy(backend->device, to, from, bytes, stream);
}

static inline dt_status dt_fill(const struct dt_backend *backend, void *to, int byte, int64_t bytes,
                                struct dt_stream *stream)
{
    return backend->table->fill(backend->device, to, byte, bytes, stream);
}

static inline dt_status dt_stream_create(const struct dt_backend *backend,
                                         struct dt_stream **stream)
{
    return backend->table->stream_create(backend->device, false, stream);
}

static inline dt_status dt_stream_create_urgent(const struct dt_backend *backend,
                                                struct dt_stream **stream)
{
    return backend->table->stream_create(backend->device, true, stream);
}

static inline void dt_stream_destroy(const struct dt_backend *backend, struct dt_stream *stream)
{
    if (backend->table->stream_destroy)
        backend->table->stream_destroy(backend->device, stream);
}

static inline dt_status dt_stream_wait(const struct dt_backend *backend, struct dt_stream *stream,
                                       struct dt_event *event)
{
    return backend->table->stream_wait ? backend->table->stream_wait(backend->device, stream, event)
                                       : DT_OK;
}

static inline dt_status dt_stream_sync(const struct dt_backend *backend, struct dt_stream *stream)
{
    return backend->table->stream_sync ? backend->table->stream_sync(backend->device, stream)
                                       : DT_OK;
}

// Waits for the stream (NULL: for nothing) before memory that its work uses is freed. The current
// error is kept.
static inline void dt_stream_settle(const struct dt_backend *backend, struct dt_stream *stream)
{
    struct dt_error error;
    dt_error_take(&error);
    if (stream)
        dt_stream_sync(backend, stream);
    dt_error_restore(&error);
}

static inline dt_status dt_event_create(const struct dt_backend *backend, struct dt_event **event)
{
    return backend->table->event_create(backend->device, event);
}

static inline void dt_event_destroy(const struct dt_backend *backend, struct dt_event *event)
{
    if (backend->table->event_destroy)
        backend->table->event_destroy(backend->device, event);
}

static inline dt_status dt_event_record(const struct dt_backend *backend, struct dt_event *event,
                                        struct dt_stream *stream)
{
    return backend->table->event_record
               ? backend->table->event_record(backend->device, event, stream)
               : DT_OK;
}

static inline dt_status dt_event_sync(const struct dt_backend *backend, struct dt_event *event)
{
    return backend->table->event_sync ? backend->table->event_sync(backend->device, event) : DT_OK;
}

static inline dt_status dt_event_done(const struct dt_backend *backend, struct dt_event *event,
                                      bool *done)
{
    return backend->table->event_done(backend->device, event, done);
}

static inline dt_status dt_capture_begin(const struct dt_backend *backend, struct dt_stream *stream)
{
    return backend->table->capture_begin(backend->device, stream);
}

static inline dt_status dt_capture_end(const struct dt_backend *backend, struct dt_stream *stream,
                                       struct dt_graph **graph)
{
    return backend->table->capture_end(backend->device, stream, graph);
}

static inline void dt_capture_cancel(const struct dt_backend *backend, struct dt_stream *stream)
{
    backend->table->capture_cancel(backend->device, stream);
}

static inline dt_status dt_graph_launch(const struct dt_backend *backend, struct dt_graph *graph,
                                        struct dt_stream *stream)
{
    return backend->table->graph_launch(backend->device, graph, stream);
}

static inline void dt_graph_destroy(const struct dt_backend *backend, struct dt_graph *graph)
{
    backend->table->graph_destroy(backend->device, graph);
}

// dt_NAME(backend, args, stream): checks shapes, strides, dtypes, required pointers and workspace
// (a violation is a bug in the caller: DT_MACHINE, naming op and value), then dispatches. It is an
// error, naming op and backend, if the backend lacks the op. dt_NAME_workspace: bytes that the op
// needs for args of these shapes (pointers may be NULL).
#define DT_OP_ENTRY(op)                                                                            \
    dt_status dt_##op(const struct dt_backend *backend, const struct dt_##op##_args *args,         \
                      struct dt_stream *stream);                                                   \
    int64_t dt_##op##_workspace(const struct dt_backend *backend,                                  \
                                const struct dt_##op##_args *args);
DT_OPS(DT_OP_ENTRY)
#undef DT_OP_ENTRY

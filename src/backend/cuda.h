// The CUDA device, and how a failed CUDA call becomes an error. Private to cuda*.c and
// comm_nccl*.c.
#pragma once

#include "backend/backend.h"

#include <cuda_runtime_api.h>
#include <pthread.h>

struct dt_cuda_gemm; // cuBLASLt's handle and algorithms (cuda_gemm.c)

struct dt_device {
    int index;        // among visible devices
    int major, minor; // compute capability
    int multiprocessors;
    bool shares;                  // ops leave dt_cuda_comm_blocks multiprocessors to collectives
    int threads;                  // host threads for ops
    int64_t memory;               // total bytes
    struct dt_cuda_block *blocks; // device memory handed out, newest first
    pthread_mutex_t lock;         // guards the list
    int64_t memory_in_use;        // bytes of blocks; updated atomically
    char name[128];               // "NVIDIA H200"
    char id[64];                  // "GPU-5f1c…", as nvidia-smi prints it
    struct dt_cuda_gemm *gemm;
};

// The most blocks of a collective's kernel, each of which occupies an SM: an eighth of the device.
// For NCCL's ring at full speed NVIDIA says "16 or more" (notes on NCCL 2.27), an eighth of an
// H100's 132.
static inline int dt_cuda_comm_blocks(const struct dt_device *device)
{
    return device->multiprocessors < 8 ? 1 : device->multiprocessors / 8;
}

// A dt_stream is a CUDA stream, a dt_event a CUDA event, a dt_graph an executable graph.
static inline cudaStream_t dt_cuda_stream(struct dt_stream *stream)
{
    return (cudaStream_t)stream;
}

static inline cudaEvent_t dt_cuda_event(struct dt_event *event)
{
    return (cudaEvent_t)event;
}

static inline cudaGraphExec_t dt_cuda_graph(struct dt_graph *graph)
{
    return (cudaGraphExec_t)graph;
}

// DT_CUDA(call, "allocating %lld bytes", n) returns the status of a CUDA runtime call. A failure is
// DT_MACHINE at the caller's line and says what was being done and what CUDA reports.
#define DT_CUDA(call, ...) dt_cuda_status((call), __FILE__, __LINE__, __func__, __VA_ARGS__)
dt_status dt_cuda_status(cudaError_t error, const char *file, int line, const char *function,
                         const char *format, ...) __attribute__((format(printf, 5, 6)));

// Directs the calling thread's CUDA calls to this device. Each thread must call it before any other
// CUDA call.
dt_status dt_cuda_make_current(const struct dt_device *device);

// Whether the calling thread is capturing a graph.
bool dt_cuda_captures(void);

// cuda_gemm.c: cuBLASLt, opened at run time.
dt_status dt_cuda_gemm_open(struct dt_device *device, struct dt_cuda_gemm **gemm);
void dt_cuda_gemm_close(struct dt_cuda_gemm *gemm); // NULL is fine
void dt_cuda_gemm_version(char *text, size_t size); // "13.1.0", or why there is none

// cuda_device.c: slots of the device table that find, open and describe devices.
dt_status dt_cuda_count(int *n);
void dt_cuda_versions(char *text, size_t size);
dt_status dt_cuda_open(int index, int threads, struct dt_device **device);
void dt_cuda_close(struct dt_device *device);
dt_status dt_cuda_info(struct dt_device *device, struct dt_device_info *info);

// cuda_ranges.c: the slots that name ranges for profilers.
void dt_cuda_range_begin(const char *name);
void dt_cuda_range_end(void);

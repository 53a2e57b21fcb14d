// Puts kernels, and the work of libraries, on streams.
#include "cudart.h"
#include "enqueue.h"

namespace simt
{
// The arguments follow the struct.
static bool run_kernel(void *context)
{
    kernel_call kernel = *static_cast<const kernel_call *>(context);
    kernel.arguments = static_cast<const char *>(context) + behind(sizeof kernel);
    execute(kernel);
    return true;
}

static cudaError_t onto(void *handle, const work_ref &what)
{
    return call([&](guard &) {
        CUstream_st *stream = find_stream(static_cast<cudaStream_t>(handle));
        if (!stream || stream->device != current_device())
            return cudaErrorInvalidResourceHandle;
        return append(stream, what);
    });
}

static void enqueue(const kernel_call &kernel, void *stream)
{
    onto(stream, make_work(kernel.name, run_kernel, &kernel, sizeof kernel, kernel.arguments,
                           kernel.bytes));
}

static const char *failure(void)
{
    cudaError_t error = cudaGetLastError();
    return error == cudaSuccess ? NULL : cudaGetErrorString(error);
}

static const runtime here = {enqueue, failure};
static const bool runs = (run_under(&here), true);
} // namespace simt

void simt_enqueue(const char *name, void *stream, bool (*run)(void *context), const void *context,
                  size_t bytes)
{
    (void)simt::runs;
    simt::onto(stream, simt::make_work(name, run, NULL, 0, context, bytes));
}

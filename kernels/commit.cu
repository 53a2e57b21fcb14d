// A copy on CUDA, 16 bytes per thread, unless the step was skipped. Floor: both arrays once, over
// copy bandwidth.
#include "kernels/device.cuh"

enum { THREADS = 256 };

__global__ static void __launch_bounds__(THREADS) commit_kernel(dt_commit_args args)
{
    int64_t i = dt_thread_index();
    if (args.control->skip || i >= args.bytes / DT_COMMIT_UNIT)
        return;
    static_cast<uint4 *>(args.to)[i] = static_cast<const uint4 *>(args.from)[i];
}

DT_OP_CUDA(commit)
{
    if (args->bytes == 0)
        return DT_OK;
    unsigned blocks = dt_blocks(args->bytes / DT_COMMIT_UNIT, THREADS);
    DT_LAUNCH((commit_kernel), blocks, THREADS, 0, stream, *args);
    return DT_LAUNCHED("commit");
}

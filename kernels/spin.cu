// Arithmetic at full rate on CUDA. A thread works on EACH independent values to hide latency, and
// uses only registers until the end. e^(-x) is one multiplication and one instruction of the
// special function unit, 2^(-x) only the latter: on a full device the unit (16 lanes per clock and
// SM) bounds both. A multiply-add uses one of the 128 fp32 lanes.
#include "kernels/device.cuh"

enum { THREADS = 256, EACH = 8, UNROLL = 8 };

template <int KIND>
static __global__ void __launch_bounds__(THREADS) spin_kernel(const dt_spin_args args)
{
    const int64_t first = (dt_thread_index() - threadIdx.x) * EACH + threadIdx.x;
    float x[EACH];
#pragma unroll
    for (int k = 0; k < EACH; k++)
        x[k] = 0.5f + (float)((first + k * THREADS) % DT_SPIN_STARTS) / (2 * DT_SPIN_STARTS);
#pragma unroll UNROLL
    for (int64_t round = 0; round < args.rounds; round++) {
#pragma unroll
        for (int k = 0; k < EACH; k++)
            x[k] = KIND == DT_SPIN_EXP    ? __expf(-x[k])
                   : KIND == DT_SPIN_EXP2 ? exp2f(-x[k])
                                          : x[k] * args.a + args.b;
    }
#pragma unroll
    for (int k = 0; k < EACH; k++)
        if (first + k * THREADS < args.n)
            args.y[first + k * THREADS] = x[k];
}

DT_OP_CUDA(spin)
{
    const unsigned blocks = dt_blocks(args->n, THREADS * EACH);
    if (args->kind == DT_SPIN_EXP)
        DT_LAUNCH((spin_kernel<DT_SPIN_EXP>), blocks, THREADS, 0, stream, *args);
    else if (args->kind == DT_SPIN_EXP2)
        DT_LAUNCH((spin_kernel<DT_SPIN_EXP2>), blocks, THREADS, 0, stream, *args);
    else
        DT_LAUNCH((spin_kernel<DT_SPIN_FMA>), blocks, THREADS, 0, stream, *args);
    return DT_LAUNCHED("spin");
}

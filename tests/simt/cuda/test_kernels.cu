// See test_kernels.h.
#include "test_kernels.h"

#include "kernels/device.cuh"

__global__ static void add_kernel(float *x, float y, int64_t n)
{
    int64_t i = dt_thread_index();
    if (i < n)
        x[i] += y;
}

dt_status add(float *x, float y, int64_t n, void *stream)
{
    DT_LAUNCH((add_kernel), dt_blocks(n, 128), 128, 0, stream, x, y, n);
    return DT_LAUNCHED("add");
}

__global__ static void scale_kernel(float *x, float y, int64_t n)
{
    int64_t i = dt_thread_index();
    if (i < n)
        x[i] *= y;
}

dt_status scale(float *x, float y, int64_t n, void *stream)
{
    DT_LAUNCH((scale_kernel), dt_blocks(n, 128), 128, 0, stream, x, y, n);
    return DT_LAUNCHED("scale");
}

__global__ static void parted_kernel(unsigned who)
{
    if (threadIdx.x != who)
        __syncthreads();
}

dt_status part_at_barrier(void *stream)
{
    DT_LAUNCH((parted_kernel), 1, 64, 0, stream, 3);
    return DT_LAUNCHED("parted");
}

dt_status launch_too_wide(void *stream)
{
    DT_LAUNCH((parted_kernel), 1, dim3(32, 32, 2), 0, stream, 5000);
    return DT_LAUNCHED("too wide");
}

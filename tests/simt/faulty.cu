// See faulty.h.
#include "faulty.h"

#include "kernels/device.cuh"

enum { BLOCK = 128 };

static const float source[8] = {};

__global__ static void barrier_missed_by_one(unsigned who)
{
    if (threadIdx.x != who)
        __syncthreads();
}

__global__ static void barrier_after_return(unsigned n)
{
    if (threadIdx.x >= n)
        return;
    __syncthreads();
}

__global__ static void barriers_of_two_lines(unsigned n)
{
    if (threadIdx.x < n)
        __syncthreads();
    else
        __syncthreads();
}

__global__ static void shuffle_of_half_a_warp(float x)
{
    if (threadIdx.x < 16)
        x = __shfl_xor_sync(DT_WHOLE_WARP, x, 1);
}

__global__ static void shuffle_past_the_block(float x)
{
    x = dt_warp_sum(x);
}

__global__ static void read_outside_the_mask(float x)
{
    if (threadIdx.x < 16)
        x = __shfl_sync(0xffffu, x, 20);
}

__global__ static void write_past_shared(int at)
{
    DT_SHARED(float, a, [3][10]);
    float *flat = &a[0][0];
    flat[at] = 1.0f;
}

__global__ static void write_past_dynamic_shared(int at)
{
    DT_SHARED_DYN(float, a);
    a[at] = 1.0f;
}

__global__ static void much_shared_kernel(int at)
{
    DT_SHARED_DYN(float, a);
    a[at] = 1.0f;
}

int allow_much_shared(int64_t bytes)
{
    return dt_allow_shared(much_shared_kernel, bytes);
}

dt_status use_much_shared(void)
{
    DT_LAUNCH((much_shared_kernel), 1, 1, 64 << 10, nullptr, (64 << 8) - 1);
    return DT_LAUNCHED("much_shared");
}

__global__ static void misaligned_copy(const float *x)
{
    DT_SHARED(float, a, [8]);
    dt_copy_async<16>(a + 1, x);
}

__global__ static void misaligned_matrix(int at)
{
    DT_SHARED(dt_bf16, rows, [16 * 24]);
    unsigned m[4];
    dt_mma_load<false>(m, rows + threadIdx.x % 16 * 24 + at);
}

// A row launches its kernel with these arguments.
#define ROW(says, kernel, grid, block, shared_bytes, ...)                                          \
    {                                                                                              \
        says, #kernel, [] {                                                                        \
            DT_LAUNCH((kernel), grid, block, shared_bytes, nullptr, __VA_ARGS__);                  \
            return DT_LAUNCHED(#kernel);                                                           \
        }                                                                                          \
    }

const struct planted_bug planted_bugs[] = {
    ROW("waits in __syncthreads for thread 70, which has ended", barrier_missed_by_one, 1, BLOCK, 0,
        70),
    ROW("faulty.cu:", barrier_after_return, 1, BLOCK, 0, 100),
    ROW("waits in __syncthreads at", barriers_of_two_lines, 1, BLOCK, 0, 64),
    ROW("__shfl_xor_sync for thread 16, which has ended", shuffle_of_half_a_warp, 1, 32, 0, 1.0f),
    ROW("which the block does not have", shuffle_past_the_block, 1, 48, 0, 1.0f),
    ROW("reads lane 20, which is not in the mask 0x0000ffff", read_outside_the_mask, 1, 32, 0,
        1.0f),
    ROW("32 x 32 x 2 threads", barrier_missed_by_one, 1, dim3(32, 32, 2), 0, 5000),
    ROW("bytes of shared memory", write_past_dynamic_shared, 1, 1, (48 << 10) + 16, 30),
    ROW("asynchronous copy of 16 bytes", misaligned_copy, 1, 1, 0, source),
    ROW("a matrix row at", misaligned_matrix, 1, 32, 0, 4),
    ROW("past the end of a (120 bytes", write_past_shared, 1, 1, 0, 30),
    ROW("past the end of dynamic shared memory (120 bytes", write_past_dynamic_shared, 1, 1,
        30 * sizeof(float), 30),
    {nullptr, nullptr, nullptr},
};

__global__ static void reverse_kernel(const float *in, float *out, bool with_barrier)
{
    DT_SHARED(float, a, [BLOCK]);
    a[threadIdx.x] = in[threadIdx.x];
    if (with_barrier)
        __syncthreads();
    out[threadIdx.x] = a[BLOCK - 1 - threadIdx.x];
}

dt_status reverse_block(const float *in, float *out, int with_barrier)
{
    DT_LAUNCH((reverse_kernel), 1, BLOCK, 0, nullptr, in, out, with_barrier != 0);
    return DT_LAUNCHED("reverse");
}

__global__ static void copy_kernel(const float *in, float *out, bool with_wait)
{
    DT_SHARED(float, a, [2][BLOCK]);
    for (int i = 0; i < 2; i++) {
        dt_copy_async<4>(&a[i][threadIdx.x], in + i * BLOCK + threadIdx.x);
        dt_copy_commit();
    }
    for (int i = 0; i < 2; i++) {
        if (i == 0)
            dt_copy_wait<1>();
        else if (with_wait)
            dt_copy_wait<0>();
        out[i * BLOCK + threadIdx.x] = a[i][threadIdx.x];
    }
}

dt_status copy_block(const float *in, float *out, int with_wait)
{
    DT_LAUNCH((copy_kernel), 1, BLOCK, 0, nullptr, in, out, with_wait != 0);
    return DT_LAUNCHED("copy");
}

__global__ static void count_kernel(int32_t *out)
{
    unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    out[block * 24 + thread] = (int32_t)(block * 24 + thread);
}

dt_status count_threads(int32_t *out)
{
    DT_LAUNCH((count_kernel), dim3(2, 3, 2), dim3(4, 3, 2), 0, nullptr, out);
    return DT_LAUNCHED("count");
}

__global__ static void shuffle_kernel(int32_t *out)
{
    int lane = (int)threadIdx.x % DT_WARP, i = (int)threadIdx.x;
    out[i] = __shfl_down_sync(DT_WHOLE_WARP, i, 1);
    out[64 + i] = __shfl_up_sync(DT_WHOLE_WARP, i, 1);
    out[128 + i] = __shfl_xor_sync(DT_WHOLE_WARP, i, 5);
    out[192 + i] = __shfl_sync(DT_WHOLE_WARP, i, 3);
    out[256 + i] = (int32_t)__ballot_sync(DT_WHOLE_WARP, lane % 2);
}

dt_status use_shuffles(int32_t *out)
{
    DT_LAUNCH((shuffle_kernel), 1, 64, 0, nullptr, out);
    return DT_LAUNCHED("shuffles");
}

__global__ static void reduce_kernel(const float *in, int64_t n, float *sum, float *max)
{
    float s = 0.0f, m = -INFINITY;
    for (int64_t i = threadIdx.x; i < n; i += 256) {
        s += in[i];
        m = fmaxf(m, in[i]);
    }
    float once = dt_block_sum<256>(s), twice = dt_block_sum<256>(2.0f * s);
    m = dt_block_max<256>(m);
    if (threadIdx.x == 255)
        sum[0] = once, sum[1] = twice, *max = m;
}

dt_status reduce_block(const float *in, int64_t n, float *sum, float *max)
{
    DT_LAUNCH((reduce_kernel), 1, 256, 0, nullptr, in, n, sum, max);
    return DT_LAUNCHED("reduce");
}

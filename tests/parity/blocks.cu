// Measures how many blocks with this much shared memory a multiprocessor really runs at the same
// time, which depends on how the driver treats scan_prefer_shared. No call of CUDA reports that.
// Each block notes on which multiprocessor it runs, and from when to when. Only for GPUs.
#include "blocks.h"

#include "kernels/scan.cuh"

#include <stdlib.h>

enum { THREADS = 128, EACH = 8, SMS = 1024 }; // EACH: blocks for each multiprocessor

struct stay {
    uint64_t begin, end; // ns
    unsigned sm;
};

static __global__ void __launch_bounds__(THREADS) stay_kernel(stay *stays, uint64_t ns)
{
    stay mine = {dt_device_clock(), 0, 0};
    do
        mine.end = dt_device_clock();
    while (mine.end - mine.begin < ns);
    asm("mov.u32 %0, %%smid;" : "=r"(mine.sm));
    if (threadIdx.x == 0)
        stays[blockIdx.x] = mine;
}

// How many blocks ran on the multiprocessor of block i when it began.
static int beside(const stay *stays, int n, int i)
{
    int count = 0;
    for (int k = 0; k < n; k++)
        count += stays[k].sm == stays[i].sm && stays[k].begin <= stays[i].begin &&
                 stays[i].begin < stays[k].end;
    return count;
}

bool blocks_measure(int64_t shared_bytes, struct blocks_measured *found)
{
    struct cudaDeviceProp device;
    stay *stays = NULL;
    int index, n = 0, held[SMS] = {0};
    *found = (struct blocks_measured){0, 0};
    if (!dt_allow_shared(stay_kernel, shared_bytes) || cudaGetDevice(&index) != cudaSuccess ||
        cudaGetDeviceProperties(&device, index) != cudaSuccess || device.multiProcessorCount > SMS)
        return false;
    n = EACH * device.multiProcessorCount;
    scan_prefer_shared(stay_kernel);
    found->expected = scan_blocks_held(stay_kernel, THREADS, shared_bytes);
    if (cudaHostAlloc(&stays, (size_t)n * sizeof *stays, cudaHostAllocDefault) != cudaSuccess)
        return false;
    stay_kernel<<<n, THREADS, (size_t)shared_bytes>>>(stays, 1000000);
    bool done = cudaDeviceSynchronize() == cudaSuccess;
    for (int i = 0; i < n && done; i++) {
        int *most = &held[stays[i].sm % SMS], now = beside(stays, n, i);
        *most = now > *most ? now : *most;
    }
    for (int i = 0; i < SMS && done; i++)
        if (held[i] > 0 && (found->least == 0 || held[i] < found->least))
            found->least = held[i];
    cudaFreeHost(stays);
    return done;
}

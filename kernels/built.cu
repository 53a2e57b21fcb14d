// The architectures of this build. All kernels are compiled for the same architectures, so one
// kernel shows whether a device can run them.
#include "kernels/device.cuh"

#include <stdio.h>

#ifndef __CUDA_ARCH_LIST__ // nvcc's list (900: sm_90), which the host simulator lacks
#define __CUDA_ARCH_LIST__ 0
#endif

__global__ static void built_kernel(void) {}

const void *dt_cuda_kernel(void)
{
    return reinterpret_cast<const void *>(built_kernel);
}

void dt_cuda_architectures(char *text, size_t size)
{
    const int list[] = {__CUDA_ARCH_LIST__};
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < sizeof list / sizeof list[0] && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%ssm_%d", i ? ", " : "", list[i] / 10);
}

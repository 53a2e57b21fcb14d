// The simulated devices: how many there are, and their properties.
#include "cudart.h"

#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace simt
{
static thread_local int current;
static thread_local bool chosen; // the thread has called cudaSetDevice

int current_device(void)
{
    return current;
}

// With several devices, a thread of the program must choose one. Otherwise another GPU might get a
// context, which takes some 500 MB of its memory.
cudaError_t may_use_device(void)
{
    const bool first = syscall(SYS_gettid) == getpid();
    return first || chosen || environment().devices == 1 ? cudaSuccess : cudaErrorInvalidDevice;
}

static bool exists(int device)
{
    return device >= 0 && device < environment().devices;
}
} // namespace simt

using namespace simt;

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = environment().driver;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 0;
    return ask([&](guard &) {
        *count = environment().devices;
        return cudaSuccess;
    });
}

cudaError_t cudaSetDevice(int device)
{
    return ask([&](guard &) {
        if (!exists(device))
            return cudaErrorInvalidDevice;
        current = device;
        chosen = true;
        return cudaSuccess;
    });
}

cudaError_t cudaGetDevice(int *device)
{
    return ask([&](guard &) {
        *device = current;
        return cudaSuccess;
    });
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
    return ask([&](guard &) {
        if (!exists(device))
            return cudaErrorInvalidDevice;
        *properties = {};
        snprintf(properties->name, sizeof properties->name, "%s", environment().name);
        properties->uuid = {{'s', 'i', 'm', 't'}};
        properties->uuid.bytes[15] = (char)(environment().same_uuid ? 0 : device);
        properties->totalGlobalMem = environment().memory;
        properties->major = environment().sm / 10;
        properties->minor = environment().sm % 10;
        properties->multiProcessorCount = 4;
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int size, int device)
{
    return ask([&](guard &) {
        if (!exists(device))
            return cudaErrorInvalidDevice;
        int length = snprintf(id, (size_t)size, "0000:%02X:00.0", (unsigned)device + 1);
        return length < size ? cudaSuccess : cudaErrorInvalidValue;
    });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    return call([&](guard &) {
        *least = 0;
        *greatest = GREATEST_PRIORITY;
        return cudaSuccess;
    });
}

// All that is known about a kernel that runs on the host is that it spills nothing.
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function)
{
    return call([&](guard &) {
        if (!attributes || !function)
            return cudaErrorInvalidValue;
        if (!environment().code)
            return cudaErrorNoKernelImageForDevice;
        *attributes = {};
        attributes->maxThreadsPerBlock = MAX_THREADS;
        return cudaSuccess;
    });
}

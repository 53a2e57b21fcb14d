// Errors: their names, the last one of each thread, and the one that breaks the device.
#include "cudart.h"

namespace simt
{
static cudaError_t breakage;
static thread_local cudaError_t last_error;

std::mutex &lock(void)
{
    static std::mutex &one = *new std::mutex; // never destroyed: the device's thread may outlive it
    return one;
}

cudaError_t broken(void)
{
    return breakage;
}

void break_device(cudaError_t error)
{
    if (breakage == cudaSuccess)
        breakage = error;
}

cudaError_t usable(void)
{
    if (environment().driver < CUDART_VERSION)
        return cudaErrorInsufficientDriver;
    if (environment().devices == 0)
        return cudaErrorNoDevice;
    return breakage;
}

cudaError_t remember(cudaError_t error)
{
    if (error != cudaSuccess)
        last_error = error;
    return error;
}

static cudaError_t newest(void)
{
    guard hold(lock());
    return breakage != cudaSuccess ? breakage : last_error;
}

struct described {
    cudaError_t error;
    const char *name, *text;
};
#define DESCRIBED(error, text)                                                                     \
    {                                                                                              \
        error, #error, text                                                                        \
    }

static const described all[] = {
    DESCRIBED(cudaSuccess, "no error"),
    DESCRIBED(cudaErrorInvalidValue, "invalid argument"),
    DESCRIBED(cudaErrorMemoryAllocation, "out of memory"),
    DESCRIBED(cudaErrorInitializationError, "initialization error"),
    DESCRIBED(cudaErrorInvalidConfiguration, "invalid launch configuration"),
    DESCRIBED(cudaErrorInvalidMemcpyDirection, "invalid direction of a copy"),
    DESCRIBED(cudaErrorInsufficientDriver, "the driver is too old for the runtime"),
    DESCRIBED(cudaErrorNoDevice, "no device found"),
    DESCRIBED(cudaErrorInvalidDevice, "no such device"),
    DESCRIBED(cudaErrorInvalidDeviceFunction, "no such kernel"),
    DESCRIBED(cudaErrorNoKernelImageForDevice, "the kernel was not compiled for this device"),
    DESCRIBED(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    DESCRIBED(cudaErrorIllegalState, "not possible in this state"),
    DESCRIBED(cudaErrorNotReady, "not ready"),
    DESCRIBED(cudaErrorIllegalAddress, "illegal memory access"),
    DESCRIBED(cudaErrorLaunchFailure, "a kernel failed"),
    DESCRIBED(cudaErrorNotSupported, "not supported"),
    DESCRIBED(cudaErrorStreamCaptureUnsupported, "not permitted while a stream is captured"),
    DESCRIBED(cudaErrorStreamCaptureInvalidated, "the capture was invalidated before"),
    DESCRIBED(cudaErrorStreamCaptureMerge, "would merge two captures"),
    DESCRIBED(cudaErrorStreamCaptureUnmatched, "the capture began in another stream"),
    DESCRIBED(cudaErrorStreamCaptureUnjoined, "captured work was not joined"),
    DESCRIBED(cudaErrorStreamCaptureIsolation, "captured work may not wait for uncaptured work"),
    DESCRIBED(cudaErrorStreamCaptureImplicit, "the NULL stream would wait for a captured one"),
    DESCRIBED(cudaErrorCapturedEvent, "the event was recorded in a capture"),
    DESCRIBED(cudaErrorStreamCaptureWrongThread, "another thread began the capture"),
    DESCRIBED(cudaErrorUnknown, "unknown error"),
};

static described describe(cudaError_t error)
{
    for (const described &one : all)
        if (one.error == error)
            return one;
    return {error, "unrecognized error code", "unrecognized error code"};
}
} // namespace simt

using namespace simt;

const char *cudaGetErrorString(cudaError_t error)
{
    return describe(error).text;
}

const char *cudaGetErrorName(cudaError_t error)
{
    return describe(error).name;
}

cudaError_t cudaPeekAtLastError(void)
{
    return newest();
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = newest();
    last_error = cudaSuccess;
    return error;
}

// What cuda_runtime_api.h here says of the CUDA runtime, and the toolkit's header of that name too:
// header.sh compiles this with each, as C and as C++.
#include <cuda_runtime_api.h>

#ifndef __cplusplus
#define static_assert _Static_assert
#endif
#define IS(name, value) static_assert((name) == (value), #name)

IS(cudaSuccess, 0);
IS(cudaErrorInvalidValue, 1);
IS(cudaErrorMemoryAllocation, 2);
IS(cudaErrorInitializationError, 3);
IS(cudaErrorInvalidConfiguration, 9);
IS(cudaErrorInvalidMemcpyDirection, 21);
IS(cudaErrorInsufficientDriver, 35);
IS(cudaErrorInvalidDeviceFunction, 98);
IS(cudaErrorNoDevice, 100);
IS(cudaErrorInvalidDevice, 101);
IS(cudaErrorNoKernelImageForDevice, 209);
IS(cudaErrorInvalidResourceHandle, 400);
IS(cudaErrorIllegalState, 401);
IS(cudaErrorNotReady, 600);
IS(cudaErrorIllegalAddress, 700);
IS(cudaErrorLaunchFailure, 719);
IS(cudaErrorNotSupported, 801);
IS(cudaErrorStreamCaptureUnsupported, 900);
IS(cudaErrorStreamCaptureInvalidated, 901);
IS(cudaErrorStreamCaptureMerge, 902);
IS(cudaErrorStreamCaptureUnmatched, 903);
IS(cudaErrorStreamCaptureUnjoined, 904);
IS(cudaErrorStreamCaptureIsolation, 905);
IS(cudaErrorStreamCaptureImplicit, 906);
IS(cudaErrorCapturedEvent, 907);
IS(cudaErrorStreamCaptureWrongThread, 908);
IS(cudaErrorUnknown, 999);

IS(cudaMemcpyHostToHost, 0);
IS(cudaMemcpyHostToDevice, 1);
IS(cudaMemcpyDeviceToHost, 2);
IS(cudaMemcpyDeviceToDevice, 3);
IS(cudaMemcpyDefault, 4);

IS(cudaStreamCaptureStatusNone, 0);
IS(cudaStreamCaptureStatusActive, 1);
IS(cudaStreamCaptureStatusInvalidated, 2);

IS(cudaStreamCaptureModeGlobal, 0);
IS(cudaStreamCaptureModeThreadLocal, 1);
IS(cudaStreamCaptureModeRelaxed, 2);

IS(cudaHostAllocDefault, 0x00);
IS(cudaHostAllocPortable, 0x01);
IS(cudaHostAllocMapped, 0x02);
IS(cudaStreamDefault, 0x00);
IS(cudaStreamNonBlocking, 0x01);
IS(cudaEventDefault, 0x00);
IS(cudaEventBlockingSync, 0x01);
IS(cudaEventDisableTiming, 0x02);
IS(cudaEventWaitDefault, 0x00);
IS(CUDART_VERSION / 1000, 13);

// Fields of structs.
IS(sizeof(((struct cudaDeviceProp *)0)->name), 256);
IS(sizeof(((struct cudaDeviceProp *)0)->uuid.bytes), 16);
IS(sizeof(cudaUUID_t), 16);

void check_fields(struct cudaDeviceProp *device, struct cudaFuncAttributes *function);
void check_fields(struct cudaDeviceProp *device, struct cudaFuncAttributes *function)
{
    cudaUUID_t *uuid = &device->uuid;
    size_t *size[] = {&device->totalGlobalMem, &function->sharedSizeBytes,
                      &function->constSizeBytes, &function->localSizeBytes};
    int *number[] = {&device->major,
                     &device->minor,
                     &device->multiProcessorCount,
                     &function->maxThreadsPerBlock,
                     &function->numRegs,
                     &function->ptxVersion,
                     &function->binaryVersion};
    (void)uuid, (void)size, (void)number;
}

// Types of functions.
#define FUNCTION(result, name, ...) static result (*const name##_)(__VA_ARGS__) = name

FUNCTION(const char *, cudaGetErrorString, cudaError_t);
FUNCTION(const char *, cudaGetErrorName, cudaError_t);
FUNCTION(cudaError_t, cudaGetLastError, void);
FUNCTION(cudaError_t, cudaPeekAtLastError, void);
FUNCTION(cudaError_t, cudaDriverGetVersion, int *);
FUNCTION(cudaError_t, cudaRuntimeGetVersion, int *);
FUNCTION(cudaError_t, cudaGetDeviceCount, int *);
FUNCTION(cudaError_t, cudaSetDevice, int);
FUNCTION(cudaError_t, cudaGetDevice, int *);
FUNCTION(cudaError_t, cudaGetDeviceProperties, struct cudaDeviceProp *, int);
FUNCTION(cudaError_t, cudaDeviceGetPCIBusId, char *, int, int);
FUNCTION(cudaError_t, cudaDeviceGetStreamPriorityRange, int *, int *);
FUNCTION(cudaError_t, cudaDeviceSynchronize, void);
FUNCTION(cudaError_t, cudaFuncGetAttributes, struct cudaFuncAttributes *, const void *);
FUNCTION(cudaError_t, cudaMemGetInfo, size_t *, size_t *);
FUNCTION(cudaError_t, cudaMalloc, void **, size_t);
FUNCTION(cudaError_t, cudaFree, void *);
FUNCTION(cudaError_t, cudaHostAlloc, void **, size_t, unsigned int);
FUNCTION(cudaError_t, cudaFreeHost, void *);
FUNCTION(cudaError_t, cudaMemcpyAsync, void *, const void *, size_t, enum cudaMemcpyKind,
         cudaStream_t);
FUNCTION(cudaError_t, cudaMemsetAsync, void *, int, size_t, cudaStream_t);
FUNCTION(cudaError_t, cudaStreamCreateWithFlags, cudaStream_t *, unsigned int);
FUNCTION(cudaError_t, cudaStreamCreateWithPriority, cudaStream_t *, unsigned int, int);
FUNCTION(cudaError_t, cudaStreamDestroy, cudaStream_t);
FUNCTION(cudaError_t, cudaStreamSynchronize, cudaStream_t);
FUNCTION(cudaError_t, cudaStreamQuery, cudaStream_t);
FUNCTION(cudaError_t, cudaStreamWaitEvent, cudaStream_t, cudaEvent_t, unsigned int);
FUNCTION(cudaError_t, cudaEventCreateWithFlags, cudaEvent_t *, unsigned int);
FUNCTION(cudaError_t, cudaEventDestroy, cudaEvent_t);
FUNCTION(cudaError_t, cudaEventRecord, cudaEvent_t, cudaStream_t);
FUNCTION(cudaError_t, cudaEventSynchronize, cudaEvent_t);
FUNCTION(cudaError_t, cudaEventQuery, cudaEvent_t);
FUNCTION(cudaError_t, cudaStreamIsCapturing, cudaStream_t, enum cudaStreamCaptureStatus *);
FUNCTION(cudaError_t, cudaStreamBeginCapture, cudaStream_t, enum cudaStreamCaptureMode);
FUNCTION(cudaError_t, cudaStreamEndCapture, cudaStream_t, cudaGraph_t *);
FUNCTION(cudaError_t, cudaGraphGetNodes, cudaGraph_t, cudaGraphNode_t *, size_t *);
FUNCTION(cudaError_t, cudaGraphInstantiate, cudaGraphExec_t *, cudaGraph_t, unsigned long long);
FUNCTION(cudaError_t, cudaGraphLaunch, cudaGraphExec_t, cudaStream_t);
FUNCTION(cudaError_t, cudaGraphExecDestroy, cudaGraphExec_t);
FUNCTION(cudaError_t, cudaGraphDestroy, cudaGraph_t);

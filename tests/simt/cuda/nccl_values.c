// What the stand-in's nccl.h says of NCCL's interface, and the real header too: compiled with each.
#include <nccl.h>

#include <stddef.h>

_Static_assert(NCCL_UNIQUE_ID_BYTES == 128 && sizeof(ncclUniqueId) == 128, "unique id");
_Static_assert(ncclSuccess == 0 && ncclUnhandledCudaError == 1 && ncclSystemError == 2, "results");
_Static_assert(ncclInternalError == 3 && ncclInvalidArgument == 4, "results");
_Static_assert(ncclInvalidUsage == 5 && ncclRemoteError == 6 && ncclInProgress == 7, "results");
_Static_assert(ncclSum == 0, "operations");
_Static_assert(ncclInt64 == 4 && ncclFloat32 == 7 && ncclFloat64 == 8 && ncclBfloat16 == 9,
               "types");
_Static_assert(offsetof(ncclConfig_t, size) == 0 && offsetof(ncclConfig_t, magic) == 8, "config");
_Static_assert(offsetof(ncclConfig_t, version) == 12, "config");
_Static_assert(offsetof(ncclConfig_t, blocking) == 16, "config");
_Static_assert(NCCL_CONFIG_UNDEF_INT == INT_MIN, "config");

#define SAME(function, ...)                                                                        \
    _Static_assert(__builtin_types_compatible_p(__typeof__(function), __VA_ARGS__), #function)
SAME(ncclGetVersion, ncclResult_t(int *));
SAME(ncclGetUniqueId, ncclResult_t(ncclUniqueId *));
SAME(ncclGetErrorString, const char *(ncclResult_t));
SAME(ncclGetLastError, const char *(ncclComm_t));
SAME(ncclCommInitRankConfig, ncclResult_t(ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *));
SAME(ncclCommGetAsyncError, ncclResult_t(ncclComm_t, ncclResult_t *));
SAME(ncclCommFinalize, ncclResult_t(ncclComm_t));
SAME(ncclCommDestroy, ncclResult_t(ncclComm_t));
SAME(ncclCommAbort, ncclResult_t(ncclComm_t));
SAME(ncclAllReduce, ncclResult_t(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t,
                                 ncclComm_t, cudaStream_t));
SAME(ncclReduceScatter, ncclResult_t(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t,
                                     ncclComm_t, cudaStream_t));
SAME(ncclAllGather,
     ncclResult_t(const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t));
SAME(ncclGroupStart, ncclResult_t(void));
SAME(ncclSend, ncclResult_t(const void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t));
SAME(ncclRecv, ncclResult_t(void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t));
SAME(ncclGroupEnd, ncclResult_t(void));

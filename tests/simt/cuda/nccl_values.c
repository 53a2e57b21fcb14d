// What the stand-in's nccl.h says of NCCL's interface, and the real header too: compiled with each.
#include <nccl.h>

#include <stddef.h>

_Static_assert(NCCL_UNIQUE_ID_BYTES == 128 && sizeof(ncclUniqueId) == 128, "unique id");
_Static_assert(ncclSuccess == 0 && ncclUnhandledCudaError == 1 && ncclSystemError == 2, "results");
_Static_assert(ncclInternalError == 3 && ncclInvalidArgument == 4, "results");
_Static_assert(ncclInvalidUsage == 5 && ncclRemoteError == 6 && ncclInProgress == 7, "results");
_Static_assert(ncclSum == 0, "operations");
_Static_assert(ncclFloat32 == 7 && ncclFloat64 == 8 && ncclBfloat16 == 9, "types");
_Static_assert(offsetof(ncclConfig_t, size) == 0 && offsetof(ncclConfig_t, magic) == 8, "config");
_Static_assert(offsetof(ncclConfig_t, version) == 12, "config");
_Static_assert(offsetof(ncclConfig_t, blocking) == 16, "config");
_Static_assert(NCCL_CONFIG_UNDEF_INT == INT_MIN, "config");

// One of each function, whose type must fit.
struct dt_nccl_values {
    ncclResult_t (*version)(int *);
    ncclResult_t (*unique_id)(ncclUniqueId *);
    const char *(*error_string)(ncclResult_t);
    const char *(*last_error)(ncclComm_t);
    ncclResult_t (*init)(ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *);
    ncclResult_t (*async_error)(ncclComm_t, ncclResult_t *);
    ncclResult_t (*finalize)(ncclComm_t);
    ncclResult_t (*destroy)(ncclComm_t);
    ncclResult_t (*abort)(ncclComm_t);
    ncclResult_t (*enlist)(const ncclComm_t, void *, size_t, void **);
    ncclResult_t (*delist)(const ncclComm_t, void *);
    ncclResult_t (*allreduce)(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                              cudaStream_t);
};
extern const struct dt_nccl_values dt_nccl_values;
const struct dt_nccl_values dt_nccl_values = {
    ncclGetVersion,         ncclGetUniqueId,       ncclGetErrorString, ncclGetLastError,
    ncclCommInitRankConfig, ncclCommGetAsyncError, ncclCommFinalize,   ncclCommDestroy,
    ncclCommAbort,          ncclCommRegister,      ncclCommDeregister, ncclAllReduce,
};

// The library that replaces NCCL over the simulated device, for ranks of one host: its interface.
// nccl_comm.h names the other files. What NCCL leaves undefined is an error here: a second call
// before the first was polled to its end, and a finalization during a call. A call is put on the
// stream only by the poll that reports it, so a caller that does not poll finds its call missing.
// Calls with one communicator run in the order in which they were made, on whatever streams, but
// those in graphs in any order.
#include "tests/simt/cuda/nccl_comm.h"

#include "tests/simt/cuda/enqueue.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { POLLS = 3 };

#define EXPORT __attribute__((visibility("default")))

static const char *_Atomic last_error = "";

// For tests: the largest number of blocks that the communicator opened last may use, and the
// priority of the collective that began last.
EXPORT extern _Atomic(int) simt_nccl_blocks, simt_nccl_priority;
_Atomic(int) simt_nccl_blocks, simt_nccl_priority;

ncclResult_t fail(ncclResult_t result, const char *text)
{
    atomic_store(&last_error, text);
    return result;
}

ncclResult_t turn_bad(struct ncclComm *comm, ncclResult_t result, const char *text)
{
    int none = ncclSuccess;
    if (atomic_compare_exchange_strong(&comm->error, &none, (int)result))
        fail(result, text);
    return (ncclResult_t)atomic_load(&comm->error);
}

EXPORT ncclResult_t ncclGetVersion(int *version)
{
    const char *text = getenv("SIMT_NCCL_VERSION");
    *version = text ? atoi(text) : NCCL_VERSION_CODE;
    return ncclSuccess;
}

EXPORT const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const texts[] = {
        "no error",
        "unhandled cuda error",
        "unhandled system error",
        "internal error",
        "invalid argument",
        "invalid usage",
        "remote process exited or there was a network error",
        "NCCL operation in progress",
    };
    return (size_t)result < sizeof texts / sizeof texts[0] ? texts[result] : "unknown result code";
}

EXPORT const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return atomic_load(&last_error);
}

EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId *out)
{
    struct id id;
    ncclResult_t result = make_meeting(&id);
    memset(out, 0, sizeof *out);
    memcpy(out->internal, &id, sizeof id);
    return result;
}

static ncclResult_t poll(struct ncclComm *comm);

static ncclResult_t finish(struct ncclComm *comm, ncclResult_t result)
{
    while (comm->blocking && result == ncclInProgress) {
        result = poll(comm);
        usleep(20);
    }
    return result;
}

EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int size, ncclUniqueId unique, int rank,
                                           ncclConfig_t *config)
{
    struct id id;
    memcpy(&id, unique.internal, sizeof id);
    *out = NULL;
    if (config->magic != 0xcafebeef || size < 1 || size > RANKS || rank < 0 || rank >= size)
        return fail(ncclInvalidArgument, "communicator of so many ranks");
    struct ncclComm *comm = calloc(1, sizeof *comm);
    if (!comm)
        return fail(ncclSystemError, "no memory");
    *out = comm;
    comm->rank = rank;
    comm->size = size;
    comm->fd = -1;
    comm->id_fd = -1;
    comm->piece = 1;
    comm->noise = id.noise;
    comm->blocking = config->blocking != 0;
    atomic_store(&simt_nccl_blocks, config->maxCTAs);
    read_settings(comm);
    if (atomic_load(&comm->error) != ncclSuccess)
        return (ncclResult_t)atomic_load(&comm->error);
    ncclResult_t result = enter_meeting(comm, &id);
    if (result != ncclSuccess)
        return turn_bad(comm, result, atomic_load(&last_error));
    return finish(comm, ncclInProgress);
}

static bool is_captured(void *stream)
{
    enum cudaStreamCaptureStatus status;
    return cudaStreamIsCapturing(stream, &status) == cudaSuccess &&
           status != cudaStreamCaptureStatusNone;
}

static ncclResult_t poll(struct ncclComm *comm)
{
    for (int r = 0; r < comm->size && comm->meeting && !comm->deaf; r++)
        if (is_gone(comm, r))
            turn_bad(comm, ncclRemoteError, "a peer's process is gone");
    if (atomic_load(&comm->error) != ncclSuccess)
        return (ncclResult_t)atomic_load(&comm->error);
    if (comm->stage == JOINING)
        return join(comm);
    if (comm->has_call) {
        if (--comm->polls > 0 || comm->calls == comm->hang_at)
            return ncclInProgress;
        comm->has_call = false;
        comm->call.turn = is_captured(comm->stream) ? 0 : ++comm->turns;
        simt_enqueue("NCCL", comm->stream, run_call, &comm->call, sizeof comm->call);
    }
    if (comm->stage != FINALIZING)
        return ncclSuccess;
    ncclResult_t result = atomic_load(&comm->busy) ? ncclInProgress : leave_meeting(comm);
    comm->stage = result == ncclSuccess ? FINALIZED : FINALIZING;
    return result;
}

EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *result)
{
    *result = poll(comm);
    return ncclSuccess;
}

static ncclResult_t check_state(const struct ncclComm *comm)
{
    if (atomic_load(&comm->error) != ncclSuccess)
        return (ncclResult_t)atomic_load(&comm->error);
    if (comm->stage != READY || comm->has_call)
        return fail(ncclInvalidUsage, "a call before the one before it was polled to its end");
    return ncclSuccess;
}

static ncclResult_t check_call(const struct ncclComm *comm, ncclDataType_t type, ncclRedOp_t op)
{
    if (op != ncclSum ||
        (type != ncclFloat32 && type != ncclFloat64 && type != ncclBfloat16 && type != ncclInt64))
        return fail(ncclInvalidArgument, "only sums of fp32, bf16, fp64 and int64 here");
    return check_state(comm);
}

static ncclResult_t accept(struct ncclComm *comm, const struct call *call, cudaStream_t stream)
{
    comm->call = *call;
    comm->call.comm = comm;
    comm->stream = stream;
    comm->has_call = true;
    comm->calls++;
    comm->polls = POLLS;
    return finish(comm, ncclInProgress);
}

static ncclResult_t collective(struct ncclComm *comm, const struct call *call, ncclRedOp_t op,
                               cudaStream_t stream)
{
    ncclResult_t result = check_call(comm, call->type, op);
    return result == ncclSuccess ? accept(comm, call, stream) : result;
}

EXPORT ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type,
                                  ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    struct call call = {.kind = ALLREDUCE, .from = from, .to = to, .count = count, .type = type};
    return collective(comm, &call, op, stream);
}

EXPORT ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type,
                                      ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    struct call call = {.kind = REDUCE_SCATTER,
                        .from = from,
                        .to = to,
                        .count = count * (uint64_t)comm->size,
                        .type = type};
    return collective(comm, &call, op, stream);
}

EXPORT ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type,
                                  ncclComm_t comm, cudaStream_t stream)
{
    struct call call = {.kind = ALL_GATHER,
                        .from = from,
                        .to = to,
                        .count = count * (uint64_t)comm->size,
                        .type = type};
    return collective(comm, &call, ncclSum, stream);
}

// The group of this thread: a send and a receive with the same peer are an exchange.
static _Thread_local struct group {
    bool open;
    struct call call;
    cudaStream_t stream;
} group;

static ncclResult_t join_group(struct ncclComm *comm, const struct call *half, cudaStream_t stream)
{
    struct call *call = &group.call;
    ncclResult_t result = check_state(comm);
    if (result != ncclSuccess)
        return result;
    if (!group.open || (half->from && call->from) || (half->to && call->to))
        return fail(ncclInvalidUsage, "only a send and a receive in one group here");
    if (call->comm && (call->comm != comm || call->peer != half->peer || call->type != half->type))
        return fail(ncclInvalidUsage, "only with one peer and of one type here");
    call->comm = comm;
    call->kind = EXCHANGE;
    call->peer = half->peer;
    call->type = half->type;
    if (half->from)
        call->out = half->count;
    else
        call->count = half->count;
    call->from = half->from ? half->from : call->from;
    call->to = half->to ? half->to : call->to;
    group.stream = stream;
    return ncclSuccess;
}

EXPORT ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer,
                             ncclComm_t comm, cudaStream_t stream)
{
    struct call half = {.from = from, .count = count, .type = type, .peer = peer};
    return join_group(comm, &half, stream);
}

EXPORT ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                             cudaStream_t stream)
{
    struct call half = {.to = to, .count = count, .type = type, .peer = peer};
    return join_group(comm, &half, stream);
}

EXPORT ncclResult_t ncclGroupStart(void)
{
    group = (struct group){.open = true};
    return ncclSuccess;
}

EXPORT ncclResult_t ncclGroupEnd(void)
{
    struct group ended = group;
    group = (struct group){.open = false};
    return ended.call.comm ? accept(ended.call.comm, &ended.call, ended.stream) : ncclSuccess;
}

EXPORT ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    if (comm->stage != READY || comm->has_call)
        return fail(ncclInvalidUsage, "finalized in the middle of a call");
    comm->stage = FINALIZING;
    return finish(comm, ncclInProgress);
}

EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    if (comm->stage != FINALIZED)
        return fail(ncclInvalidUsage, "destroyed before it was finalized");
    leave_files(comm);
    close_meeting(comm);
    free(comm);
    return ncclSuccess;
}

// Calls on streams and in graphs still point at an aborted communicator, and end when the device's
// thread comes to them. So the communicator is kept until the process ends.
EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    static struct ncclComm *_Atomic kept;
    atomic_store(&comm->aborted, true);
    leave_files(comm);
    comm->kept = atomic_exchange(&kept, comm);
    return ncclSuccess;
}

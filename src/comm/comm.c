// Shared by all communicators: which one a process opens, the checks before a collective is
// dispatched, and the agreement of all ranks on one status. Calls a backend's table, never MPI.
#include "comm/comm.h"

#include "base/memory.h"
#include "base/round.h"
#include "comm/backends.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The value of the first of these environment variables that is set, or NULL.
static const char *environment(const char *const names[])
{
    for (; *names; names++)
        if (getenv(*names) && getenv(*names)[0])
            return getenv(*names);
    return NULL;
}

bool dt_launched_by_mpi(void)
{
    return environment(
        (const char *const[]){"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_FD", NULL});
}

bool dt_launched_by_pmi(void)
{
    return environment((const char *const[]){"PMI_RANK", "PMI_FD", NULL}) &&
           !environment((const char *const[]){"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", NULL});
}

// The number in the first of these environment variables that is set.
static int number(const char *const names[], int otherwise)
{
    const char *text = environment(names);
    return text ? (int)strtol(text, NULL, 10) : otherwise;
}

int dt_comm_launched_size(void)
{
    int size = number(
        (const char *const[]){"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", NULL}, 1);
    return size > 1 ? size : 1;
}

int dt_comm_launched_rank(void)
{
    return number((const char *const[]){"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK",
                                        "SLURM_PROCID", NULL},
                  0);
}

int dt_comm_batch_tasks(void)
{
    bool launched =
        dt_launched_by_mpi() || environment((const char *const[]){"SLURM_STEP_NUM_TASKS", NULL});
    return launched ? 1 : number((const char *const[]){"SLURM_NTASKS", NULL}, 1);
}

dt_status dt_comm_open(enum dt_comm_kind kind, struct dt_comm **comm)
{
    return dt_comm_open_within(kind, &(struct dt_comm_limits){DT_COMM_TIMEOUT_S, DT_COMM_TIMEOUT_S},
                               comm);
}

dt_status dt_comm_open_within(enum dt_comm_kind kind, const struct dt_comm_limits *limits,
                              struct dt_comm **comm)
{
    *comm = NULL;
    if (kind == DT_COMM_KIND_AUTO)
        kind = dt_launched_by_mpi() || dt_comm_launched_size() > 1 ? DT_COMM_KIND_MPI
                                                                   : DT_COMM_KIND_SELF;
    return kind == DT_COMM_KIND_SELF ? dt_comm_open_self(comm) : dt_comm_open_mpi(limits, comm);
}

void dt_comm_close(struct dt_comm *comm)
{
    if (comm)
        comm->table->close(comm);
}

const struct dt_operation_kind dt_operation_kinds[DT_OPERATIONS] = {
    [DT_ALLREDUCE] = {"all-reduce", .reduces = true},
    [DT_REDUCE_SCATTER] = {"reduce-scatter", .reduces = true, .in_blocks = true},
    [DT_ALL_GATHER] = {"all-gather", .in_blocks = true},
    [DT_BROADCAST] = {"broadcast", .has_peer = true},
    [DT_EXCHANGE] = {"exchange", .has_peer = true},
};

const char *dt_collective_name(const struct dt_collective *c)
{
    if (c->operation != DT_EXCHANGE || (c->mine && c->data))
        return dt_operation_kinds[c->operation].name;
    return c->mine ? "send" : "receive";
}

int64_t dt_collective_elements(const struct dt_comm_info *info, const struct dt_collective *c)
{
    return c->count * (dt_operation_kinds[c->operation].in_blocks ? info->size : 1);
}

bool dt_can_reduce(enum dt_dtype dtype)
{
    return dtype == DT_F32 || dtype == DT_BF16 || dtype == DT_F64 || dtype == DT_I64;
}

dt_status dt_collective_check(const struct dt_comm *comm, const struct dt_collective *c)
{
    const struct dt_operation_kind *operation = &dt_operation_kinds[c->operation];
    const struct dt_comm_info *info = &comm->info;
    const char *name = dt_collective_name(c);
    if (c->count < 0 || c->count > INT64_MAX / info->size / dt_dtype_size(c->dtype))
        return DT_FAIL(DT_MACHINE, NULL, "%s of %lld elements among %d ranks", name,
                       (long long)c->count, info->size);
    if (c->count > 0 && !c->data && (c->operation != DT_EXCHANGE || !c->mine))
        return DT_FAIL(DT_MACHINE, NULL, "%s of %lld elements at NULL", name, (long long)c->count);
    if (operation->reduces && !dt_can_reduce(c->dtype))
        return DT_FAIL(DT_MACHINE, NULL, "%s of %s: only fp32, bf16, fp64 and int64 can be reduced",
                       name, dt_dtype_name(c->dtype));
    if (operation->has_peer && (c->peer < 0 || c->peer >= info->size))
        return DT_FAIL(DT_MACHINE, NULL, "%s with rank %d of %d", name, c->peer, info->size);
    if (c->operation == DT_EXCHANGE && c->peer == info->rank)
        return DT_FAIL(DT_MACHINE, NULL, "%s of rank %d with itself", name, c->peer);
    if (c->order != DT_SUM_TREE)
        return DT_OK;
    if (!operation->reduces || c->reduce != DT_SUM || (c->dtype != DT_F32 && c->dtype != DT_F64))
        return DT_FAIL(DT_MACHINE, NULL, "%s of %s by a tree: only sums of fp32 and fp64", name,
                       dt_dtype_name(c->dtype));
    if (!dt_is_power_of_two(info->size))
        return DT_FAIL(DT_MACHINE, NULL, "%s by a tree among %d ranks, which is not a power of two",
                       name, info->size);
    return DT_OK;
}

dt_status dt_begin(struct dt_comm *comm, const struct dt_collective *collective,
                   struct dt_request **request)
{
    *request = NULL;
    DT_TRY(dt_collective_check(comm, collective));
    return comm->table->begin(comm, collective, request);
}

dt_status dt_wait(struct dt_comm *comm, struct dt_request *request)
{
    DT_TRY(comm->table->wait(comm, request));
    return DT_OK;
}

dt_status dt_collective(struct dt_comm *comm, const struct dt_collective *collective)
{
    struct dt_request *request;
    DT_TRY(dt_begin(comm, collective, &request));
    DT_TRY(dt_wait(comm, request));
    return DT_OK;
}

dt_status dt_allreduce(struct dt_comm *comm, void *data, int64_t count, enum dt_dtype dtype,
                       enum dt_reduce_op reduce)
{
    struct dt_collective c = {
        .operation = DT_ALLREDUCE, .reduce = reduce, .dtype = dtype, .count = count, .data = data};
    return dt_collective(comm, &c);
}

dt_status dt_broadcast(struct dt_comm *comm, void *data, int64_t bytes, int root)
{
    struct dt_collective c = {
        .operation = DT_BROADCAST, .dtype = DT_U8, .peer = root, .count = bytes, .data = data};
    return dt_collective(comm, &c);
}

dt_status dt_all_gather(struct dt_comm *comm, void *data, int64_t bytes)
{
    struct dt_collective c = {
        .operation = DT_ALL_GATHER, .dtype = DT_U8, .count = bytes, .data = data};
    return dt_collective(comm, &c);
}

dt_status dt_exchange(struct dt_comm *comm, int peer, const void *mine, void *data, int64_t bytes)
{
    struct dt_collective c = {.operation = DT_EXCHANGE,
                              .dtype = DT_U8,
                              .peer = peer,
                              .count = bytes,
                              .data = data,
                              .mine = mine};
    return dt_collective(comm, &c);
}

dt_status dt_barrier(struct dt_comm *comm)
{
    int64_t nothing = 0;
    return dt_allreduce(comm, &nothing, 1, DT_I64, DT_SUM);
}

// An error record for sending: only texts, no pointers.
struct wire_error {
    char host[DT_HOST_NAME];
    char message[DT_ERROR_MESSAGE];
    char hint[DT_ERROR_HINT];
    int n_notes;
    char notes[DT_ERROR_FRAMES][sizeof((struct dt_error_frame *)0)->note];
};

static dt_status raise_shared(dt_status status, const struct wire_error *wire, int rank,
                              int64_t failed)
{
    char others[64] = "", place[DT_HOST_NAME + 128] = "";
    if (failed > 1)
        snprintf(others, sizeof others, " (and %lld other rank%s)", (long long)failed - 1,
                 failed > 2 ? "s" : "");
    if (rank > 0 || failed > 1)
        snprintf(place, sizeof place, "rank %d on %s%s: ", rank, wire->host, others);
    DT_FAIL(status, wire->hint[0] ? wire->hint : NULL, "%s%s", place, wire->message);
    for (int i = 0; i < wire->n_notes; i++)
        dt_error_push(status, __FILE__, __LINE__, __func__, "%s", wire->notes[i]);
    return status;
}

// If some rank has failed, all ranks adopt the error of the lowest one, `first`.
static dt_status share_error(struct dt_comm *comm, dt_status mine, dt_status worst, int first)
{
    struct wire_error wire;
    int64_t failed = mine != DT_OK;
    memset(&wire, 0, sizeof wire);
    if (mine != DT_OK) {
        struct dt_error error;
        dt_error_take(&error);
        if (error.code == DT_OK)
            snprintf(error.message, sizeof error.message, "failed without a message");
        snprintf(wire.host, sizeof wire.host, "%s", comm->info.host);
        memcpy(wire.message, error.message, sizeof wire.message);
        memcpy(wire.hint, error.hint, sizeof wire.hint);
        for (int i = 0; i < error.n_frames; i++)
            if (error.frames[i].note[0])
                memcpy(wire.notes[wire.n_notes++], error.frames[i].note, sizeof wire.notes[0]);
    }
    DT_TRY(dt_allreduce(comm, &failed, 1, DT_I64, DT_SUM));
    DT_TRY(dt_broadcast(comm, &wire, (int64_t)sizeof wire, first));
    comm->agreed = true;
    return raise_shared(worst, &wire, first, failed);
}

dt_status dt_agree(struct dt_comm *comm, dt_status mine)
{
    int64_t size = comm->info.size;
    // {the worst status, size - the lowest failing rank}; zeros if none failed
    int64_t worst[2] = {(int64_t)mine, mine == DT_OK ? 0 : size - comm->info.rank};
    comm->agreed = false;
    DT_TRY(dt_allreduce(comm, worst, 2, DT_I64, DT_MAX));
    if (worst[0] == DT_OK)
        return DT_OK;
    return share_error(comm, mine, (dt_status)worst[0], (int)(size - worst[1]));
}

dt_status dt_broadcast_buffer(struct dt_comm *comm, void **data, int64_t *bytes, int root)
{
    bool is_root = comm->info.rank == root;
    dt_status status = DT_OK;
    DT_TRY(dt_broadcast(comm, bytes, (int64_t)sizeof *bytes, root));
    if (!is_root)
        status = DT_NEW_BYTES(data, *bytes, "a message from rank %d", root);
    DT_TRY_GOTO(status, out, dt_agree(comm, status));
    DT_TRY_GOTO(status, out, dt_broadcast(comm, *data, *bytes, root));
out:
    if (status != DT_OK && !is_root) {
        free(*data);
        *data = NULL;
    }
    return status;
}

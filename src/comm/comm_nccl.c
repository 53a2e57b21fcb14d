// Collectives in device memory by NCCL, which is opened at run time. Its communicators are
// non-blocking, so no call can block the host when a peer is gone; each call is polled until the
// collective is enqueued.
//
// Memory is not registered (ncclCommRegister): NCCL 2.19 to 2.30 uses registered memory for no
// all-reduce in place by ring or tree, on one host or several. NVLS would use memory of
// ncclMemAlloc, but is excluded for its bits (comm_nccl_nvls.c). NCCL gives no guarantee if ranks
// register different memory.
#include "comm/comm_nccl.h"

#include "backend/cuda.h"
#include "backend/cuda_library.h"
#include "backend/op_times.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/round.h"
#include "comm/waits.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

enum { SPINS = 200 };              // polls before the caller starts to sleep in between
enum { PAIR_BLOCKS = 4 };          // of a neighbour's messages: few, for their buffers' memory
static const double nap_s = 20e-6; // between polls
static const double gap_s = 0.5;   // after a longer pause this process was suspended

static const struct dt_cuda_library library_name = {
    .name = "NCCL",
    .sonames = (const char *const[]){"libnccl.so.2", NULL},
    .hint = "install NCCL 2.14 or newer (libnccl2) or add its folder to LD_LIBRARY_PATH, or set "
            "comm.backend = mpi",
};

static struct nccl_comm *nccl_of(struct dt_device_comm *comm)
{
    return (struct nccl_comm *)comm;
}

double dt_nccl_elapsed(double *last_time)
{
    double now = dt_seconds(), passed = now - *last_time;
    *last_time = now;
    return passed < gap_s ? passed : gap_s;
}

static dt_status load(struct dt_nccl_library *library)
{
#define SYMBOL(name) {"nccl" #name, &library->name},
    const struct dt_cuda_symbol needed[] = {DT_NCCL_FUNCTIONS(SYMBOL){0}};
#undef SYMBOL
    memset(library, 0, sizeof *library);
    return dt_cuda_library_open(&library_name, needed);
}

static dt_status version(char *text, size_t size)
{
    struct dt_nccl_library library;
    int code = 0;
    DT_TRY(load(&library));
    ncclResult_t result = library.GetVersion(&code);
    if (result != ncclSuccess)
        return DT_FAIL(DT_MACHINE, NULL, "ncclGetVersion failed: %s",
                       library.GetErrorString(result));
    int unit = code < 10000 ? 1000 : 10000; // one digit less until 2.8
    snprintf(text, size, "%d.%d.%d", code / unit, code % unit / 100, code % 100);
    return DT_OK;
}

dt_status dt_nccl_error(const struct nccl_comm *nccl, ncclResult_t result, const char *what)
{
    const char *detail = nccl->library.GetLastError(nccl->nccl[NCCL_ALL]);
    bool has_detail = detail && detail[0];
    return DT_FAIL(DT_MACHINE,
                   result == ncclInvalidUsage
                       ? "give each rank its own GPU"
                       : "set NCCL_DEBUG=WARN in the environment for details",
                   "%s failed: %s%s%s", what, nccl->library.GetErrorString(result),
                   has_detail ? ": " : "", has_detail ? detail : "");
}

// ---- calls

static void enter(struct nccl_comm *nccl)
{
    pthread_mutex_lock(&nccl->lock);
    atomic_fetch_add(&nccl->entered, 1);
}

static void leave(struct nccl_comm *nccl)
{
    atomic_fetch_add(&nccl->left, 1);
    pthread_mutex_unlock(&nccl->lock);
}

// Polls until the NCCL call with communicator `index` that returned `result` is no longer in
// progress; returns ncclInProgress after `limit_s`, or when *give_up (may be NULL) becomes true.
static ncclResult_t settle(const struct nccl_comm *nccl, int index, ncclResult_t result,
                           double limit_s, const _Atomic(bool) *give_up)
{
    double waited = 0, last_time = dt_seconds();
    for (int polls = 0; result == ncclInProgress; polls++) {
        ncclResult_t asked = nccl->library.CommGetAsyncError(nccl->nccl[index], &result);
        if (asked != ncclSuccess)
            return asked;
        waited += dt_nccl_elapsed(&last_time);
        if (waited > limit_s || (give_up && atomic_load(give_up)))
            return result;
        if (polls < SPINS)
            sched_yield();
        else
            dt_sleep(nap_s);
    }
    return result;
}

// ---- opening

static dt_status create(const struct dt_device_comm_config *config, struct nccl_comm **out)
{
    DT_TRY(DT_NEW(out, 1, "an NCCL communicator"));
    struct nccl_comm *nccl = *out;
    int64_t n = config->n_collectives + (config->ring > 1 ? DT_DEVICE_WAYS * config->channels : 0),
            counts_bytes = n * (int64_t)sizeof *nccl->counts;
    nccl->base.table = &dt_nccl_table;
    nccl->comm = config->comm;
    nccl->backend = config->backend;
    nccl->n_collectives = config->n_collectives;
    nccl->n = (int)n;
    nccl->ring = config->ring;
    nccl->channels = config->channels;
    nccl->place = config->ring > 1 ? config->comm->info.rank % config->ring : 0;
    pthread_mutex_init(&nccl->lock, NULL);
    sem_init(&nccl->stop, 0, 0);
    DT_TRY(DT_NEW(&nccl->calls, n, "NCCL's calls"));
    DT_TRY(load(&nccl->library));
    DT_TRY(dt_alloc_host(config->backend, counts_bytes, &nccl->counts));
    nccl->tree_bytes = config->tree_bytes;
    if (nccl->tree_bytes > 0)
        DT_TRY(dt_alloc(config->backend, dt_device_comm_scratch(nccl->tree_bytes), &nccl->scratch));
    memset(nccl->counts, 0, (size_t)counts_bytes);
    return DT_OK;
}

static void release(struct nccl_comm *nccl)
{
    dt_free_host(nccl->backend, nccl->counts);
    dt_free(nccl->backend, nccl->scratch);
    sem_destroy(&nccl->stop);
    pthread_mutex_destroy(&nccl->lock);
    free(nccl->calls);
    free(nccl);
}

// Waits until NCCL has connected the ranks, or a peer reports a failure: then *result is
// ncclInProgress, and all ranks adopt that peer's error.
static dt_status wait_init(struct nccl_comm *nccl, const struct nccl_group *group,
                           ncclResult_t *result)
{
    struct dt_job_control *control = nccl->comm->control;
    double limit_s = atomic_load(&control->timeout_s);
    *result = settle(nccl, group->index, *result, limit_s, &control->devices.peer_failed);
    if (*result == ncclSuccess)
        return DT_OK;
    if (*result != ncclInProgress)
        return dt_nccl_error(nccl, *result, "ncclCommInitRankConfig");
    if (atomic_load(&control->devices.peer_failed))
        return DT_OK;
    return DT_FAIL(DT_MACHINE,
                   "look at the network between the hosts; NCCL_SOCKET_IFNAME selects the "
                   "interface, NCCL_DEBUG=INFO prints details",
                   "ncclCommInitRankConfig of %d ranks timed out after comm.timeout_s = %g s",
                   group->size, limit_s);
}

// A rank that fails informs the others by its heartbeat, so that they stop waiting. If no rank has
// failed after all, the heartbeat was about an earlier opening, and they continue to wait.
dt_status dt_nccl_connect(struct nccl_comm *nccl, const struct nccl_group *group)
{
    struct dt_comm_devices *devices = &nccl->comm->control->devices;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    int64_t all_done = 0, blocks = dt_cuda_comm_blocks(nccl->backend->device);
    ncclResult_t result = ncclSuccess;
    DT_TRY(dt_allreduce(nccl->comm, &blocks, 1, DT_I64, DT_MIN)); // same on all ranks
    config.blocking = 0;
#if NCCL_VERSION_CODE >= 21700 // 2.17, which has the field
    if (group->size > 1)       // NCCL_MAX_CTAS in the environment wins
        config.maxCTAs = (int)(group->index == NCCL_ALL ? blocks : dt_min_i64(blocks, PAIR_BLOCKS));
#endif
    if (group->size > 0)
        result = nccl->library.CommInitRankConfig(&nccl->nccl[group->index], group->size, group->id,
                                                  group->rank, &config);
    while (!all_done) {
        dt_status status = wait_init(nccl, group, &result);
        atomic_store(&devices->failed, status != DT_OK);
        status = dt_agree(nccl->comm, status);
        atomic_store(&devices->failed, false);
        DT_TRY(status);
        all_done = result == ncclSuccess;
        DT_TRY(dt_allreduce(nccl->comm, &all_done, 1, DT_I64, DT_MIN));
    }
    return DT_OK;
}

dt_status dt_nccl_make_id(const struct nccl_comm *nccl, struct nccl_group *group)
{
    ncclResult_t result = nccl->library.GetUniqueId(&group->id);
    return result == ncclSuccess ? DT_OK : dt_nccl_error(nccl, result, "ncclGetUniqueId");
}

static dt_status open_together(const struct dt_device_comm_config *config, struct nccl_comm **nccl)
{
    const struct dt_comm_info *info = &config->comm->info;
    struct nccl_group all = {.index = NCCL_ALL, .size = info->size, .rank = info->rank};
    DT_TRY(dt_agree(config->comm, create(config, nccl)));
    DT_TRY(dt_agree(config->comm, info->rank == 0 ? dt_nccl_make_id(*nccl, &all) : DT_OK));
    DT_TRY(dt_broadcast(config->comm, &all.id, (int64_t)sizeof all.id, 0));
    DT_TRY(dt_nccl_connect(*nccl, &all));
    DT_TRY(dt_nccl_warn_of_nvls(config->comm));
    if (config->ring > 1)
        DT_TRY(dt_nccl_open_ring(*nccl));
    DT_TRY(dt_agree(config->comm, dt_nccl_watch_start(*nccl)));
    return DT_OK;
}

static dt_status open_nccl(const struct dt_device_comm_config *config, struct dt_device_comm **comm)
{
    struct nccl_comm *nccl = NULL;
    int64_t step;
    const char *phase;
    dt_status status;
    dt_comm_last_progress(config->comm, &step, &phase);
    dt_comm_progress(config->comm, step, "opening NCCL");
    DT_TRY_GOTO(status, fail, open_together(config, &nccl));
    dt_comm_progress(config->comm, step, phase);
    *comm = &nccl->base;
    return DT_OK;
fail:
    if (nccl) {
        dt_nccl_watch_stop(nccl);
        for (int i = 0; i < NCCL_COMMS; i++)
            if (nccl->nccl[i])
                nccl->library.CommAbort(nccl->nccl[i]);
        release(nccl);
    }
    return status;
}

// ---- collectives

// NCCL's function for each supported collective.
static const char *const functions[DT_OPERATIONS] = {
    [DT_ALLREDUCE] = "ncclAllReduce",
    [DT_REDUCE_SCATTER] = "ncclReduceScatter",
    [DT_ALL_GATHER] = "ncclAllGather",
    [DT_EXCHANGE] = "ncclSend and ncclRecv",
};

static ncclDataType_t type_of(enum dt_dtype dtype)
{
    static const ncclDataType_t types[DT_DTYPE_COUNT] = {[DT_F32] = ncclFloat32,
                                                         [DT_BF16] = ncclBfloat16,
                                                         [DT_F64] = ncclFloat64,
                                                         [DT_I64] = ncclInt64,
                                                         [DT_U8] = ncclUint8};
    return types[dtype];
}

static int64_t whole_bytes(const struct nccl_comm *nccl, const struct dt_collective *c)
{
    return dt_collective_elements(&nccl->comm->info, c) * dt_dtype_size(c->dtype);
}

static dt_status check_call(const struct nccl_comm *nccl, int index, const struct dt_collective *c)
{
    if (index < 0 || index >= nccl->n_collectives)
        return DT_FAIL(DT_MACHINE, NULL, "collective %d of %d between devices", index,
                       nccl->n_collectives);
    DT_TRY(dt_collective_check(nccl->comm, c));
    if (!functions[c->operation] || !dt_can_reduce(c->dtype) || c->reduce != DT_SUM)
        return DT_FAIL(DT_MACHINE, NULL,
                       "%s of %s between devices: only sums, of fp32, bf16, fp64 and int64",
                       dt_collective_name(c), dt_dtype_name(c->dtype));
    int64_t bytes = whole_bytes(nccl, c);
    if (c->order == DT_SUM_TREE && bytes > nccl->tree_bytes)
        return DT_FAIL(DT_MACHINE, NULL, "%s of %lld bytes by a tree between devices, above %lld",
                       dt_collective_name(c), (long long)bytes, (long long)nccl->tree_bytes);
    return DT_OK;
}

static dt_status stamp(const struct nccl_comm *nccl, int64_t *count, uint64_t *time,
                       struct dt_stream *stream)
{
    return dt_stamp(nccl->backend, &(struct dt_stamp_args){.count = count, .time = time}, stream);
}

static ncclResult_t exchange(const struct nccl_comm *nccl, const struct nccl_messages *m,
                             cudaStream_t stream)
{
    const struct dt_nccl_library *library = &nccl->library;
    ncclComm_t comm = nccl->nccl[m->index];
    ncclDataType_t type = type_of(m->dtype);
    ncclResult_t result = library->GroupStart();
    if (result == ncclSuccess && m->out)
        result = library->Send(m->out, (size_t)m->n_out, type, m->peer, comm, stream);
    if ((result == ncclSuccess || result == ncclInProgress) && m->in)
        result = library->Recv(m->in, (size_t)m->n_in, type, m->peer, comm, stream);
    ncclResult_t ended = library->GroupEnd();
    return result == ncclSuccess || result == ncclInProgress ? ended : result;
}

static ncclResult_t call(const struct nccl_comm *nccl, const struct dt_collective *c,
                         cudaStream_t stream)
{
    const struct dt_nccl_library *library = &nccl->library;
    ncclComm_t all = nccl->nccl[NCCL_ALL];
    ncclDataType_t type = type_of(c->dtype);
    size_t count = (size_t)c->count;
    void *block = (char *)c->data + nccl->comm->info.rank * c->count * dt_dtype_size(c->dtype);
    if (c->operation == DT_ALLREDUCE)
        return library->AllReduce(c->data, c->data, count, type, ncclSum, all, stream);
    if (c->operation == DT_REDUCE_SCATTER)
        return library->ReduceScatter(c->data, block, count, type, ncclSum, all, stream);
    if (c->operation == DT_ALL_GATHER)
        return library->AllGather(block, c->data, count, type, all, stream);
    const struct nccl_messages messages = {NCCL_ALL, c->peer, c->dtype, c->mine,
                                           c->count, c->data, c->count};
    return exchange(nccl, &messages, stream);
}

// Waits until the NCCL calls since `enter`, with communicator `index`, are enqueued.
static dt_status end_call(struct nccl_comm *nccl, int index, ncclResult_t result,
                          const char *function)
{
    result = settle(nccl, index, result, INFINITY, NULL); // the watchdog ends the wait
    leave(nccl);
    return result == ncclSuccess ? DT_OK : dt_nccl_failed(nccl, result, function);
}

dt_status dt_nccl_exchange(struct nccl_comm *nccl, const struct nccl_messages *messages,
                           struct dt_stream *stream)
{
    struct nccl_messages m = *messages;
    m.out = m.n_out > 0 ? m.out : NULL;
    m.in = m.n_in > 0 ? m.in : NULL;
    if (!m.out && !m.in)
        return DT_OK;
    enter(nccl);
    return end_call(nccl, m.index, exchange(nccl, &m, dt_cuda_stream(stream)),
                    functions[DT_EXCHANGE]);
}

dt_status dt_nccl_call_begins(struct nccl_comm *nccl, int index, const struct dt_collective *c,
                              int64_t recorded, struct dt_stream *stream)
{
    struct nccl_call *record = &nccl->calls[index];
    atomic_store(&record->dtype, (int)c->dtype);
    atomic_store(&record->bytes, recorded);
    atomic_store(&record->peer, c->operation == DT_EXCHANGE ? c->peer : -1);
    atomic_store(&record->name, dt_collective_name(c));
    DT_TRY(stamp(nccl, &nccl->counts[index].begun, &nccl->counts[index].since, stream));
    return dt_op_times_now ? dt_op_times_begin(dt_op_times_now, stream) : DT_OK;
}

dt_status dt_nccl_call_ends(struct nccl_comm *nccl, int index, const struct dt_collective *c,
                            int64_t bytes, struct dt_stream *stream)
{
    if (dt_op_times_now)
        DT_TRY(dt_op_times_end(dt_op_times_now, DT_LANE_DEVICE_COMM, dt_collective_name(c), NULL,
                               &(struct dt_op_cost){.bytes = (double)bytes}, stream));
    return stamp(nccl, &nccl->counts[index].done, NULL, stream);
}

static dt_status enqueue(struct dt_device_comm *comm, int index, const struct dt_collective *c,
                         struct dt_stream *stream)
{
    struct nccl_comm *nccl = nccl_of(comm);
    DT_TRY(check_call(nccl, index, c));
    const int64_t bytes = whole_bytes(nccl, c);
    DT_TRY(dt_nccl_call_begins(nccl, index, c, bytes, stream));
    if (c->order == DT_SUM_TREE)
        DT_TRY(dt_nccl_sum_by_tree(nccl, c, stream));
    else {
        enter(nccl);
        DT_TRY(end_call(nccl, NCCL_ALL, call(nccl, c, dt_cuda_stream(stream)),
                        functions[c->operation]));
    }
    return dt_nccl_call_ends(nccl, index, c, bytes, stream);
}

// ---- closing

static void finalize(struct nccl_comm *nccl, int index)
{
    ncclComm_t comm = nccl->nccl[index];
    ncclResult_t result =
        settle(nccl, index, nccl->library.CommFinalize(comm), dt_wait_s[DT_DEVICE_FINALIZE], NULL);
    if (result == ncclSuccess)
        nccl->library.CommDestroy(comm);
    else
        nccl->library.CommAbort(comm);
    nccl->nccl[index] = NULL;
}

static void close_nccl(struct dt_device_comm *comm)
{
    struct nccl_comm *nccl = nccl_of(comm);
    enter(nccl);
    for (int i = 0; i < NCCL_COMMS; i++) // neighbours in the same order, so that none waits long
        if (nccl->nccl[i])
            finalize(nccl, i);
    leave(nccl);
    dt_nccl_watch_stop(nccl);
    release(nccl);
}

// The device's streams share its hardware queues, eight by default, of at most 32. A message that
// waits for its receiver must not hold up another stream in the same queue. A user's own setting
// stays.
static void prepare(void)
{
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    dt_nccl_exclude_nvls();
}

const struct dt_device_comm_table dt_nccl_table = {
    .name = "nccl",
    .prepare = prepare,
    .version = version,
    .open = open_nccl,
    .enqueue = enqueue,
    .message = dt_nccl_message,
    .close = close_nccl,
};

// Sums of device memory by NCCL, which is opened at run time. NCCL is non-blocking throughout: no
// call of it can hold the host where a peer is gone, and each is polled until it is on its way.
//
// Memory is not registered (ncclCommRegister): NCCL 2.19 to 2.30 uses registered memory for no
// all-reduce in place by ring or tree, on one host or several. NVLS would use memory of
// ncclMemAlloc, but is excluded for its bits (comm_nccl_nvls.c). And where one rank registers what
// another does not, NCCL promises nothing.
#include "comm/comm_nccl.h"

#include "backend/cuda.h"
#include "backend/cuda_library.h"
#include "base/clock.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SPINS = 200 };                // polls before the caller sleeps between them
static const double nap_s = 20e-6;   // between polls
static const double gap_s = 0.5;     // a longer pause: this process did not run
static const double finalize_s = 10; // for the peers to come to the end, too

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

double dt_nccl_passed(double *last_time)
{
    double now = dt_seconds(), passed = now - *last_time;
    *last_time = now;
    return passed < gap_s ? passed : gap_s;
}

void dt_nccl_nap(double seconds)
{
    struct timespec left = {(time_t)seconds, (long)(1e9 * (seconds - floor(seconds)))};
    while (nanosleep(&left, &left) != 0)
        ;
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
        return DT_FAIL(DT_MACHINE, NULL, "NCCL does not tell its version: %s",
                       library.GetErrorString(result));
    int unit = code < 10000 ? 1000 : 10000; // until 2.8 a digit less
    snprintf(text, size, "%d.%d.%d", code / unit, code % unit / 100, code % 100);
    return DT_OK;
}

dt_status dt_nccl_error(const struct nccl_comm *nccl, ncclResult_t result, const char *what)
{
    const char *said = nccl->library.GetLastError(nccl->nccl);
    bool has_said = said && said[0];
    return DT_FAIL(DT_MACHINE,
                   result == ncclInvalidUsage ? "give each rank a GPU of its own"
                                              : "NCCL_DEBUG=WARN in the environment makes NCCL "
                                                "say more",
                   "%s: NCCL says \"%s\"%s%s", what, nccl->library.GetErrorString(result),
                   has_said ? ": " : "", has_said ? said : "");
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

// Polls until what NCCL was asked for, with this result, is on its way; ncclInProgress where that
// takes longer than `limit_s`, or *give_up (which may be NULL) becomes true.
static ncclResult_t settle(const struct nccl_comm *nccl, ncclResult_t result, double limit_s,
                           const _Atomic(bool) *give_up)
{
    double waited = 0, last_time = dt_seconds();
    for (int polls = 0; result == ncclInProgress; polls++) {
        ncclResult_t asked = nccl->library.CommGetAsyncError(nccl->nccl, &result);
        if (asked != ncclSuccess)
            return asked;
        waited += dt_nccl_passed(&last_time);
        if (waited > limit_s || (give_up && atomic_load(give_up)))
            return result;
        if (polls < SPINS)
            sched_yield();
        else
            dt_nccl_nap(nap_s);
    }
    return result;
}

// ---- opening

static dt_status create(const struct dt_device_comm_config *config, struct nccl_comm **out)
{
    struct nccl_comm *nccl = calloc(1, sizeof *nccl);
    void *counts = NULL;
    size_t n = (size_t)config->n_collectives;
    if (!nccl || !(nccl->calls = calloc(n, sizeof *nccl->calls))) {
        free(nccl);
        return DT_FAIL(DT_MACHINE, NULL, "no memory for a communicator of NCCL");
    }
    *out = nccl;
    nccl->base.table = &dt_nccl_table;
    nccl->comm = config->comm;
    nccl->backend = config->backend;
    nccl->n = config->n_collectives;
    pthread_mutex_init(&nccl->lock, NULL);
    sem_init(&nccl->stop, 0, 0);
    for (size_t i = 0; i < n; i++)
        atomic_init(&nccl->calls[i].count, -1);
    DT_TRY(load(&nccl->library));
    DT_TRY(config->backend->table->alloc_host(config->backend->device,
                                              (int64_t)(n * sizeof *nccl->counts), &counts));
    memset(counts, 0, n * sizeof *nccl->counts);
    nccl->counts = counts;
    return DT_OK;
}

static void release(struct nccl_comm *nccl)
{
    const struct dt_backend *backend = nccl->backend;
    if (nccl->counts)
        backend->table->free_host(backend->device, nccl->counts);
    sem_destroy(&nccl->stop);
    pthread_mutex_destroy(&nccl->lock);
    free(nccl->calls);
    free(nccl);
}

static dt_status share_id(struct nccl_comm *nccl, ncclUniqueId *id)
{
    dt_status status = DT_OK;
    if (nccl->comm->info.rank == 0) {
        ncclResult_t result = nccl->library.GetUniqueId(id);
        if (result != ncclSuccess)
            status = dt_nccl_error(nccl, result, "no way for the ranks to meet");
    }
    DT_TRY(dt_agree(nccl->comm, status));
    DT_TRY(dt_broadcast(nccl->comm, id, (int64_t)sizeof *id, 0));
    return DT_OK;
}

static ncclResult_t begin_to_meet(struct nccl_comm *nccl, const ncclUniqueId *id)
{
    const struct dt_comm_info *info = &nccl->comm->info;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    return nccl->library.CommInitRankConfig(&nccl->nccl, info->size, *id, info->rank, &config);
}

// Waits until the ranks have met, or a peer tells of a failure: then *result is ncclInProgress and
// that rank has the error that all are to have.
static dt_status wait_to_meet(struct nccl_comm *nccl, ncclResult_t *result)
{
    double limit_s = atomic_load(&nccl->comm->control->timeout_s);
    *result = settle(nccl, *result, limit_s, &nccl->comm->control->devices.peer_failed);
    if (*result == ncclSuccess)
        return DT_OK;
    if (*result != ncclInProgress)
        return dt_nccl_error(nccl, *result, "the ranks' GPUs do not come together");
    if (atomic_load(&nccl->comm->control->devices.peer_failed))
        return DT_OK;
    return DT_FAIL(DT_MACHINE,
                   "look at the network between the hosts; NCCL_SOCKET_IFNAME names the interface "
                   "to take, NCCL_DEBUG=INFO makes NCCL say more",
                   "NCCL did not bring %d ranks together within comm.timeout_s = %g s",
                   nccl->comm->info.size, limit_s);
}

// All ranks meet, or all have the same error. One that fails tells the others by its heartbeat, so
// that they wait for it no longer; where none has failed after all, what was heard was of another
// opening, and they wait on.
static dt_status meet_all(struct nccl_comm *nccl, const ncclUniqueId *id)
{
    struct dt_comm_devices *devices = &nccl->comm->control->devices;
    ncclResult_t result = begin_to_meet(nccl, id);
    int64_t all_met = 0;
    while (!all_met) {
        dt_status status = wait_to_meet(nccl, &result);
        atomic_store(&devices->failed, status != DT_OK);
        status = dt_agree(nccl->comm, status);
        atomic_store(&devices->failed, false);
        DT_TRY(status);
        all_met = result == ncclSuccess;
        DT_TRY(dt_allreduce(nccl->comm, &all_met, 1, DT_I64, DT_MIN));
    }
    return DT_OK;
}

static void abandon(struct nccl_comm *nccl)
{
    dt_nccl_watch_stop(nccl);
    if (nccl->nccl)
        nccl->library.CommAbort(nccl->nccl);
    release(nccl);
}

static dt_status open_together(const struct dt_device_comm_config *config, struct nccl_comm **nccl)
{
    ncclUniqueId id;
    memset(&id, 0, sizeof id);
    DT_TRY(dt_agree(config->comm, create(config, nccl)));
    DT_TRY(share_id(*nccl, &id));
    DT_TRY(meet_all(*nccl, &id));
    DT_TRY(dt_nccl_warn_of_nvls(config->comm));
    DT_TRY(dt_agree(config->comm, dt_nccl_watch_start(*nccl)));
    return DT_OK;
}

static dt_status open_nccl(const struct dt_device_comm_config *config, struct dt_device_comm **comm)
{
    struct nccl_comm *nccl = NULL;
    int64_t step;
    const char *phase;
    dt_comm_last_progress(config->comm, &step, &phase);
    dt_comm_progress(config->comm, step, "opening NCCL");
    dt_status status = open_together(config, &nccl);
    if (status != DT_OK) {
        if (nccl)
            abandon(nccl);
        return dt_error_push(status, __FILE__, __LINE__, __func__, NULL);
    }
    dt_comm_progress(config->comm, step, phase);
    *comm = &nccl->base;
    return DT_OK;
}

// ---- sums

static dt_status check_call(const struct nccl_comm *nccl, int index, int64_t count,
                            enum dt_dtype dtype)
{
    if (index < 0 || index >= nccl->n || count < 0)
        return DT_FAIL(DT_MACHINE, NULL, "all-reduce %d of %d on the device, of %lld elements",
                       index, nccl->n, (long long)count);
    if (dtype != DT_F32 && dtype != DT_BF16 && dtype != DT_F64)
        return DT_FAIL(DT_MACHINE, NULL,
                       "all-reduce of %s on the device: only fp32, bf16 and fp64 are",
                       dt_dtype_name(dtype));
    return DT_OK;
}

static ncclDataType_t nccl_type(enum dt_dtype dtype)
{
    if (dtype == DT_F64)
        return ncclFloat64;
    return dtype == DT_BF16 ? ncclBfloat16 : ncclFloat32;
}

static dt_status stamp(const struct nccl_comm *nccl, int64_t *count, struct dt_stream *stream)
{
    struct dt_stamp_args args = {.count = count};
    DT_TRY(dt_stamp(nccl->backend, &args, stream));
    return DT_OK;
}

static dt_status allreduce(struct dt_device_comm *comm, int index, void *data, int64_t count,
                           enum dt_dtype dtype, struct dt_stream *stream)
{
    struct nccl_comm *nccl = nccl_of(comm);
    DT_TRY(check_call(nccl, index, count, dtype));
    atomic_store(&nccl->calls[index].dtype, (int)dtype);
    atomic_store(&nccl->calls[index].count, count);
    DT_TRY(stamp(nccl, &nccl->counts[index].begun, stream));
    enter(nccl);
    ncclResult_t result = nccl->library.AllReduce(data, data, (size_t)count, nccl_type(dtype),
                                                  ncclSum, nccl->nccl, dt_cuda_stream(stream));
    result = settle(nccl, result, INFINITY, NULL); // the watchdog ends it
    leave(nccl);
    if (result != ncclSuccess)
        return dt_nccl_failed(nccl, result, "all-reduce");
    DT_TRY(stamp(nccl, &nccl->counts[index].done, stream));
    return DT_OK;
}

// ---- closing

static void close_nccl(struct dt_device_comm *comm)
{
    struct nccl_comm *nccl = nccl_of(comm);
    enter(nccl);
    ncclResult_t result = settle(nccl, nccl->library.CommFinalize(nccl->nccl), finalize_s, NULL);
    if (result == ncclSuccess)
        nccl->library.CommDestroy(nccl->nccl);
    else
        nccl->library.CommAbort(nccl->nccl);
    nccl->nccl = NULL;
    leave(nccl);
    dt_nccl_watch_stop(nccl);
    release(nccl);
}

const struct dt_device_comm_table dt_nccl_table = {
    .name = "nccl",
    .prepare = dt_nccl_exclude_nvls,
    .version = version,
    .open = open_nccl,
    .allreduce = allreduce,
    .close = close_nccl,
};

// Failures and an algorithm that only the library that stands in for NCCL can bring about: errors
// at the start, an abort while a call waits, and NVLS, whose sums have other bits each time.
#include "test_nccl.h"

#include "tests/simt/cuda/enqueue.h"

#include <dlfcn.h>
#include <stdatomic.h>

void *function(void *library, const char *name)
{
    void *address = dlsym(library, name);
    CHECK(address, "%s", dlerror());
    return address;
}

static _Atomic(bool) gate_open;

static bool pass_gate(void *context)
{
    (void)context;
    return atomic_load(&gate_open);
}

// Tests the stand-in itself: a call whose communicator is aborted before the stream reaches the
// call ends, and uses no memory that was freed, which AddressSanitizer sees.
void test_abort(void)
{
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    __typeof__(ncclGetUniqueId) *make_id = function(library, "ncclGetUniqueId");
    __typeof__(ncclCommInitRankConfig) *init = function(library, "ncclCommInitRankConfig");
    __typeof__(ncclAllReduce) *all_reduce = function(library, "ncclAllReduce");
    __typeof__(ncclCommAbort) *stop = function(library, "ncclCommAbort");
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER; // blocking
    ncclUniqueId id;
    ncclComm_t nccl;
    float *data;
    need(dt_alloc(&backend, sizeof *data, &data));
    CHECK_INT(make_id(&id), ncclSuccess);
    CHECK_INT(init(&nccl, 1, id, 0, &config), ncclSuccess);
    simt_enqueue("gate", stream, pass_gate, NULL, 0);
    CHECK_INT(all_reduce(data, data, 1, ncclFloat32, ncclSum, nccl, (cudaStream_t)stream),
              ncclSuccess);
    CHECK_INT(stop(nccl), ncclSuccess);
    atomic_store(&gate_open, true);
    need(dt_stream_sync(&backend, stream));
    dt_free(&backend, data);
}

// Returns whether the same sum has the same bits each time in a newly opened communicator.
static bool repeats_itself(dt_dtype type)
{
    int64_t bytes = MOST * dt_dtype_size(type);
    struct buffers buffers;
    void *first = malloc((size_t)bytes);
    allocate(&buffers, bytes);
    struct dt_device_comm *nccl = open_nccl();
    sum_random(nccl, &buffers, type);
    memcpy(first, buffers.host, (size_t)bytes);
    bool same = true;
    for (int i = 0; i < 5; i++) {
        sum_random(nccl, &buffers, type);
        same = same && memcmp(first, buffers.host, (size_t)bytes) == 0;
    }
    dt_nccl_table.close(nccl);
    release(&buffers);
    free(first);
    return same;
}

// dtrain does not use NVLS where the machine has it. Where the user insists, NCCL uses it, and bits
// differ.
void test_nvls(void)
{
    static const dt_dtype types[] = {DT_F32, DT_BF16, DT_F64};
    setenv("SIMT_NCCL_NVLS", "1", 1);
    for (size_t t = 0; t < 3; t++)
        CHECK(repeats_itself(types[t]), "%s: sums differ from call to call",
              dt_dtype_name(types[t]));
    setenv("NCCL_NVLS_ENABLE", "2", 1);
    CHECK(comm->info.size <= 2 || !repeats_itself(DT_F32), "the stand-in has no NVLS");
    setenv("NCCL_NVLS_ENABLE", "0", 1);
    unsetenv("SIMT_NCCL_NVLS");
}

// A fault of rank 1 at the start soon gives all ranks the same error.
static void check_start(const char *fault, double timeout_s, const char *words)
{
    struct dt_device_comm *nccl = NULL;
    struct dt_device_comm_config config = {.comm = comm, .backend = &backend, .n_collectives = 1};
    setenv("SIMT_NCCL_INIT", fault, 1);
    dt_comm_set_timeout(comm, timeout_s);
    CHECK_INT(dt_nccl_table.open(&config, &nccl), DT_MACHINE);
    CHECK_SAYS(words);
    CHECK(comm->agreed, "%s: not agreed on", fault);
    dt_comm_set_timeout(comm, 600);
    unsetenv("SIMT_NCCL_INIT");
    dt_error_clear();
}

void test_start(void)
{
    // The stall comes first: heartbeats of a failed opening can still be heard in the next one,
    // whose ranks then wait for each other, which must not meet a short time-out.
    check_start("stall@1", 3, "timed out after comm.timeout_s = 3 s");
    check_start("fail@1", 600, "ncclCommInitRankConfig failed: unhandled system error");
}

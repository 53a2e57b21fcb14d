// Collectives by NCCL on one rank or several: they give the right values, the same on every rank,
// in the order of the stream, and in graphs. On the simulated device a library stands in for NCCL,
// and more is tested with its help. With REAL_NCCL the tests run on GPUs, one for each rank; they
// are skipped (77) where there is none.
#include "test_nccl.h"

#include "comm/selftest.h"

struct dt_comm *comm;
struct dt_backend backend;
struct dt_stream *stream;
struct dt_device_comm_config nccl_config;

void need(dt_status status)
{
    char text[8192];
    if (status == DT_OK)
        return;
    dt_error_format(dt_error_current(), 1, text, sizeof text);
    CHECK(0, "%s", text);
    dt_die();
}

void allocate(struct buffers *buffers, int64_t bytes)
{
    need(dt_alloc(&backend, bytes, &buffers->device));
    need(dt_alloc_host(&backend, bytes, &buffers->host));
}

void release(const struct buffers *buffers)
{
    dt_free_host(&backend, buffers->host);
    dt_free(&backend, buffers->device);
}

void to_device(const struct buffers *buffers, int64_t bytes)
{
    need(dt_to_device(&backend, buffers->device, buffers->host, bytes, stream));
}

void to_host(const struct buffers *buffers, int64_t bytes)
{
    need(dt_to_host(&backend, buffers->host, buffers->device, bytes, stream));
    need(dt_stream_sync(&backend, stream));
}

struct dt_device_comm *open_nccl(void)
{
    struct dt_device_comm *device_comm = NULL;
    nccl_config = (struct dt_device_comm_config){.comm = comm,
                                                 .backend = &backend,
                                                 .n_collectives = COLLECTIVES,
                                                 .tree_bytes = comm->info.size * MOST * 4,
                                                 .ring = comm->info.size,
                                                 .channels = 2};
    dt_comm_set_timeout(comm, 40); // ranks that wait for each other are named
    need(dt_nccl_table.open(&nccl_config, &device_comm));
    dt_comm_set_timeout(comm, 600);
    return device_comm;
}

dt_status enqueue(struct dt_device_comm *nccl, int index, enum dt_operation operation, void *data,
                  int64_t count, enum dt_dtype type)
{
    struct dt_collective c = {.operation = operation, .dtype = type, .count = count, .data = data};
    return dt_nccl_table.enqueue(nccl, index, &c, stream);
}

// An all-reduce in which this rank's device takes no part.
static dt_status no_allreduce(struct dt_device_comm *nccl, int index,
                              const struct dt_collective *collective, struct dt_stream *on)
{
    return collective->operation == DT_ALLREDUCE
               ? DT_OK
               : dt_nccl_table.enqueue(nccl, index, collective, on);
}

static void test_selftest(struct dt_device_comm *nccl)
{
    CHECK_OK(dt_device_comm_selftest(&nccl_config, nccl));
    if (comm->info.size > 1) { // alone nothing can be lost
        struct dt_device_comm_table broken = dt_nccl_table;
        broken.enqueue = no_allreduce;
        nccl->table = &broken;
        CHECK_FAILS(dt_device_comm_selftest(&nccl_config, nccl), DT_MACHINE,
                    "self-test: all-reduce of fp32 by nccl gave wrong values");
    }
}

static void test_collectives(void)
{
    struct buffers buffers;
    struct dt_device_comm *nccl = open_nccl();
    allocate(&buffers,
             (MOST + 7) * 8 * (comm->info.size + 1)); // test_messages: two arrays in a ring
    test_sums(nccl, &buffers);
    test_messages(nccl, &buffers);
    test_trees(nccl, &buffers);
    test_selftest(nccl);
    dt_nccl_table.close(nccl);
    release(&buffers);
}

#ifndef REAL_NCCL
static void test_stand_in(void)
{
    char version[64];
    need(dt_nccl_table.version(version, sizeof version));
    CHECK_STR(version, "2.30.7");
    test_watchdog();
    test_abort();
    test_nvls();
    if (comm->info.size == 1)
        return;
    test_buckets();
    test_start();
    test_collectives(); // after errors all is as before
}
#endif

int main(void)
{
    int devices = 0;
    test_environment();
    need(dt_comm_open(DT_COMM_KIND_MPI, &comm));
    if (dt_backend_find("cuda")->table->count(&devices) != DT_OK) {
        fprintf(stderr, "skipped: %s\n", dt_error_current()->message);
        dt_comm_close(comm);
        return TEST_SKIP;
    }
    need(dt_backend_open("cuda", comm->info.local_rank, 1, &backend));
    need(dt_stream_create(&backend, &stream));
    test_collectives();
#ifndef REAL_NCCL
    test_stand_in();
#endif
    dt_stream_destroy(&backend, stream);
    dt_backend_close(&backend);
    dt_comm_close(comm);
    return test_end();
}

// Gradient buckets and the gather of sharded weights between devices: a collective that waits for a
// late rank holds up no stream but its own. Rank 0 is ahead, and the other ranks wait on the host
// until its device has done the work that needs no collective.
#include "backend/cuda.h" // first: it has parameters that are called as variables of test_nccl.h

#include "test_nccl.h"

#include "base/clock.h"
#include "comm/buckets.h"
#include "kernels/sum_squares.h"

#include <dlfcn.h>

// Returns the configuration of two buckets of a row each.
static struct dt_buckets_config two_buckets(float *gradients, int64_t row, int64_t row_ends[2])
{
    row_ends[0] = row;
    row_ends[1] = 2 * row;
    return (struct dt_buckets_config){.gradients = gradients,
                                      .elements = 2 * row,
                                      .row_ends = row_ends,
                                      .n_rows = 2,
                                      .largest_row = row,
                                      .bucket_bytes = row * (int64_t)sizeof(float),
                                      .stream = stream,
                                      .between_devices = true};
}

// Ranks other than 0 wait until rank 0 has let them go on.
static void wait_for_rank_0(void)
{
    int64_t turn = 0;
    if (comm->info.rank != 0)
        need(dt_allreduce(comm, &turn, 1, DT_I64, DT_MAX));
}

// Rank 0 lets the other ranks go on once its device has done its own work `times` times.
static void let_others_go(const int64_t *worked, int64_t times)
{
    int64_t turn = 0;
    if (comm->info.rank != 0)
        return;
    while (__atomic_load_n(worked, __ATOMIC_ACQUIRE) < times)
        dt_sleep(1e-4);
    need(dt_allreduce(comm, &turn, 1, DT_I64, DT_MAX));
}

// A step of two buckets: each rank announces both, and does its own work after the first, on the
// stream on which it announces them.
struct delayed {
    struct dt_buckets *buckets;
    float *gradients;
    int64_t *worked; // pinned: how often the device has done that work
};

static void run_delayed(struct delayed *d)
{
    need(dt_buckets_ready(d->buckets, 0));
    CHECK(backend.device->shares, "products use what collectives need");
    need(dt_stamp(&backend, &(struct dt_stamp_args){.count = d->worked}, stream));
    need(dt_buckets_ready(d->buckets, 1));
    need(dt_buckets_wait(d->buckets));
    CHECK(!backend.device->shares, "products leave what no collective needs");
}

// Rank 1 begins its step only after rank 0 has done the work that follows its first bucket: the
// bucket, which still waits for rank 1, holds up no stream but its own, also in a graph. If it did,
// rank 1 would end the job after the time-out. Collectives have the highest priority and a bounded
// number of blocks.
static void check_delayed(void)
{
    enum { ROW = 7 };
    const int64_t bytes = 2 * ROW * (int64_t)sizeof(float);
    int64_t row_ends[2];
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    const _Atomic(int) *priority = function(library, "simt_nccl_priority");
    const _Atomic(int) *blocks = function(library, "simt_nccl_blocks");
    struct delayed d = {0};
    struct dt_graph *graph = NULL;
    float host[2 * ROW];
    need(dt_alloc(&backend, bytes, &d.gradients));
    need(dt_alloc_host(&backend, sizeof *d.worked, &d.worked));
    const struct dt_buckets_config config = two_buckets(d.gradients, ROW, row_ends);
    need(dt_buckets_create(comm, &backend, &config, &d.buckets));
    need(dt_buckets_connect(d.buckets));
    CHECK_INT(atomic_load(blocks), 1); // of the 4 multiprocessors, at least one
    CHECK_INT(dt_buckets_count(d.buckets), 2);
    dt_comm_set_timeout(comm, 60);
    for (int step = 0; step < 3; step++) { // as it is, captured, and launched once more
        fill_exact(host, DT_F32, 2 * ROW, comm->info.rank, step);
        need(dt_to_device(&backend, d.gradients, host, bytes, stream));
        need(dt_stream_sync(&backend, stream));
        if (step == 1) {
            need(dt_capture_begin(&backend, stream));
            run_delayed(&d);
            need(dt_capture_end(&backend, stream, &graph));
        }
        wait_for_rank_0();
        if (step == 0)
            run_delayed(&d);
        else
            need(dt_graph_launch(&backend, graph, stream));
        let_others_go(d.worked, step + 1);
        need(dt_to_host(&backend, host, d.gradients, bytes, stream));
        need(dt_stream_sync(&backend, stream));
        check_reduced("a delayed bucket", host, DT_F32, 0, 2 * ROW, comm->info.size, step, DT_SUM);
        CHECK_INT(atomic_load(priority), -5);
    }
    dt_comm_set_timeout(comm, 600);
    dt_graph_destroy(&backend, graph);
    dt_buckets_destroy(d.buckets);
    dt_free_host(&backend, d.worked);
    dt_free(&backend, d.gradients);
}

// Rank 0's stream continues while the gather of weights waits for rank 1, until it needs weights.
// Weights of one row arrive without those of the rows before it.
static void check_late_weights(void)
{
    const int64_t row = comm->info.size * (int64_t)DT_NORM_BLOCK, n = 2 * row;
    const int64_t bytes = n * (int64_t)sizeof(float);
    int64_t row_ends[2], wrong = 0, *worked;
    struct dt_pieces pieces;
    struct dt_buckets *buckets;
    struct buffers gradients, weights;
    double *norms;
    allocate(&gradients, bytes);
    allocate(&weights, bytes);
    need(dt_alloc(&backend, n / DT_NORM_BLOCK * (int64_t)sizeof *norms, &norms));
    need(dt_alloc_host(&backend, sizeof *worked, &worked));
    struct dt_buckets_config config = two_buckets(gradients.device, row, row_ends);
    config.shard = DT_SHARD_STATES;
    config.weights = weights.device;
    config.norms = norms;
    config.n_norms = n / DT_NORM_BLOCK;
    need(dt_buckets_pieces(&config, &backend, &comm->info, &pieces));
    CHECK_INT(pieces.n_own, 2);
    need(dt_buckets_create(comm, &backend, &config, &buckets));
    need(dt_buckets_connect(buckets));
    float *host = weights.host;
    for (int64_t i = 0; i < n; i++)
        host[i] = -1;
    for (int64_t k = 0; k < pieces.n; k++)
        for (int64_t i = pieces.spans[k].first; i < pieces.spans[k].end; i++)
            host[i] = (float)i;
    to_device(&weights, bytes);
    need(dt_stream_sync(&backend, stream));
    dt_comm_set_timeout(comm, 60);
    wait_for_rank_0();
    need(dt_buckets_gather(buckets));
    need(dt_stamp(&backend, &(struct dt_stamp_args){.count = worked}, stream));
    let_others_go(worked, 1);
    for (int r = 1; r >= 0; r--) {
        need(dt_buckets_need(buckets, r));
        to_host(&weights, bytes);
        for (int64_t i = r * row; i < (r + 1) * row; i++)
            wrong += host[i] != (float)i;
    }
    CHECK_INT(wrong, 0);
    need(dt_buckets_gathered(buckets));
    need(dt_stream_sync(&backend, stream));
    dt_comm_set_timeout(comm, 600);
    dt_buckets_destroy(buckets);
    free(pieces.spans);
    dt_free(&backend, norms);
    dt_free_host(&backend, worked);
    release(&gradients);
    release(&weights);
}

void test_buckets(void)
{
    check_delayed();
    check_late_weights();
}

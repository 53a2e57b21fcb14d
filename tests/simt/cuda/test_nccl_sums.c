// All-reduces, reduce-scatters and all-gathers by NCCL give the right sums, also in graphs that are
// launched again and again. Wrong calls are refused, and the profile counts what is sent.
#include "test_nccl.h"

#include "backend/op_times.h"
#include "base/rng.h"

enum { LAUNCHES = 5 };

// Calls an all-reduce twice on one buffer: the second call sums what the first made.
static void check_eager(struct dt_device_comm *nccl, const struct buffers *buffers, dt_dtype type,
                        int64_t n)
{
    int64_t bytes = n * dt_dtype_size(type), wrong = 0;
    int size = comm->info.size;
    fill_exact(buffers->host, type, n, comm->info.rank, 0);
    to_device(buffers, bytes);
    need(enqueue(nccl, 0, DT_ALLREDUCE, buffers->device, n, type));
    need(enqueue(nccl, 1, DT_ALLREDUCE, buffers->device, n, type));
    to_host(buffers, bytes);
    for (int64_t i = 0; i < n; i++)
        wrong += get(buffers->host, type, i) != size * reduced(type, i, size, 0, DT_SUM);
    CHECK(wrong == 0, "two all-reduces of %lld %s: %lld sums are wrong", (long long)n,
          dt_dtype_name(type), (long long)wrong);
}

void sum_random(struct dt_device_comm *nccl, const struct buffers *buffers, dt_dtype type)
{
    int64_t bytes = MOST * dt_dtype_size(type);
    struct dt_philox random = dt_philox_init(7, (uint32_t)comm->info.rank, 0);
    for (int64_t i = 0; i < MOST; i++)
        set(buffers->host, type, i,
            (double)(1 + i % 5) * ((double)dt_philox_uniform(&random) - 0.5));
    to_device(buffers, bytes);
    need(enqueue(nccl, 2, DT_ALLREDUCE, buffers->device, MOST, type));
    to_host(buffers, bytes);
}

// The sums have the same bits on all ranks.
static void check_bits(struct dt_device_comm *nccl, const struct buffers *buffers, dt_dtype type)
{
    int64_t bytes = MOST * dt_dtype_size(type), n_differ = 0;
    sum_random(nccl, buffers, type);
    void *first = malloc((size_t)bytes);
    memcpy(first, buffers->host, (size_t)bytes);
    need(dt_broadcast(comm, first, bytes, 0));
    n_differ = memcmp(first, buffers->host, (size_t)bytes) != 0;
    free(first);
    CHECK(n_differ == 0, "%s: bits differ from rank 0's", dt_dtype_name(type));
}

static void check_counts(const struct dt_device_comm *nccl, int64_t want)
{
    const struct nccl_counts *counts = ((const struct nccl_comm *)nccl)->counts;
    for (int i = 0; i < COLLECTIVES; i++) {
        CHECK_INT(counts[i].begun, want);
        CHECK_INT(counts[i].done, want);
    }
}

// Launches a captured step several times on other values, and checks the device's counts.
static void check_graph(struct dt_device_comm *nccl, const struct buffers *buffers)
{
    int64_t bytes = MOST * 4;
    struct buffers input = {.host = buffers->host};
    need(dt_alloc(&backend, bytes, &input.device));
    struct dt_graph *graph = NULL;
    need(dt_capture_begin(&backend, stream));
    need(dt_copy(&backend, buffers->device, input.device, bytes, stream));
    for (int i = 0; i < COLLECTIVES; i++) // the parts of one buffer, as buckets are
        need(enqueue(nccl, i, DT_ALLREDUCE, (float *)buffers->device + MOST * i / COLLECTIVES,
                     MOST * (i + 1) / COLLECTIVES - MOST * i / COLLECTIVES, DT_F32));
    need(dt_capture_end(&backend, stream, &graph));
    check_counts(nccl, 0);
    for (int round = 0; round < LAUNCHES; round++) {
        fill_exact(input.host, DT_F32, MOST, comm->info.rank, round);
        to_device(&input, bytes);
        need(dt_graph_launch(&backend, graph, stream));
        to_host(buffers, bytes);
        check_reduced("a graph", buffers->host, DT_F32, 0, MOST, comm->info.size, round, DT_SUM);
    }
    check_counts(nccl, LAUNCHES);
    dt_graph_destroy(&backend, graph);
    dt_free(&backend, input.device);
}

// A captured reduce-scatter and all-gather, launched twice, make the sum in place, as a sharded
// optimizer calls them; the reduce-scatter alone makes the block of this rank.
static void check_blocks(struct dt_device_comm *nccl, const struct buffers *buffers, dt_dtype type,
                         int64_t n)
{
    struct dt_graph *graph = NULL;
    int rank = comm->info.rank, size = comm->info.size;
    int64_t bytes = size * n * dt_dtype_size(type);
    need(dt_capture_begin(&backend, stream));
    need(enqueue(nccl, 0, DT_REDUCE_SCATTER, buffers->device, n, type));
    need(enqueue(nccl, 1, DT_ALL_GATHER, buffers->device, n, type));
    need(dt_capture_end(&backend, stream, &graph));
    for (int round = 0; round < 2; round++) {
        fill_exact(buffers->host, type, size * n, rank, round);
        to_device(buffers, bytes);
        need(dt_graph_launch(&backend, graph, stream));
        to_host(buffers, bytes);
        check_reduced("reduce-scatter and all-gather", buffers->host, type, 0, size * n, size,
                      round, DT_SUM);
    }
    dt_graph_destroy(&backend, graph);
    fill_exact(buffers->host, type, size * n, rank, 0);
    to_device(buffers, bytes);
    need(enqueue(nccl, 0, DT_REDUCE_SCATTER, buffers->device, n, type));
    to_host(buffers, bytes);
    check_reduced("reduce-scatter", buffers->host, type, rank * n, (rank + 1) * n, size, 0, DT_SUM);
}

static void check_refusals(struct dt_device_comm *nccl, const struct buffers *buffers)
{
    static const struct {
        int index;
        struct dt_collective c;
    } wrong[] = {{-1, {.count = 4}},
                 {COLLECTIVES, {.count = 4}},
                 {0, {.count = -1}},
                 {0, {.count = 4, .dtype = DT_U8}},
                 {0, {.count = 4, .reduce = DT_MAX}},
                 {0, {.count = INT64_MAX / 2, .operation = DT_REDUCE_SCATTER}},
                 {0, {.count = 4, .operation = DT_ALL_GATHER, .dtype = DT_F16}},
                 {0, {.count = 4, .operation = DT_BROADCAST}},
                 {0, {.count = 4, .operation = DT_EXCHANGE, .peer = -1}}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct dt_collective c = wrong[i].c;
        c.data = buffers->device;
        CHECK(dt_nccl_table.enqueue(nccl, wrong[i].index, &c, stream) == DT_MACHINE,
              "case %zu is not refused", i);
    }
    dt_error_clear();
}

// The profile counts each collective with the bytes of its whole array, and its own time.
static void check_counted(struct dt_device_comm *nccl, const struct buffers *buffers)
{
    enum { N = 7 };
    static const enum dt_operation operations[] = {DT_ALLREDUCE, DT_REDUCE_SCATTER, DT_ALL_GATHER};
    static struct dt_trace_counter counters[DT_TRACE_COUNTERS];
    const struct dt_trace_span *spans;
    int64_t lost;
    struct dt_op_times *times;
    need(dt_op_times_create(&backend, NULL, &times));
    for (int i = 0; i < 3; i++) {
        struct dt_collective c = {.operation = operations[i]};
        int64_t blocks = dt_operation_kinds[c.operation].in_blocks ? comm->info.size : 1;
        need(dt_trace_open(2));
        dt_trace_keep(true);
        dt_op_times_start(times, DT_LANE_OP);
        need(enqueue(nccl, i, c.operation, buffers->device, N, DT_F32));
        need(enqueue(nccl, i, c.operation, buffers->device, N, DT_F32));
        need(dt_op_times_stop(times, stream));
        need(dt_stream_sync(&backend, stream));
        dt_op_times_collect(times);
        CHECK_INT(dt_trace_counters(counters), 1);
        CHECK_STR(counters[0].name, dt_collective_name(&c));
        CHECK_INT(counters[0].lane, DT_LANE_DEVICE_COMM);
        CHECK_INT(counters[0].count, 2);
        CHECK_INT(counters[0].work.bytes, 2 * blocks * N * (int64_t)sizeof(float));
        CHECK_INT(dt_trace_spans(&spans, &lost), 2);
        CHECK(spans[0].end < spans[1].end && spans[1].end <= dt_nanoseconds() + 1000000000,
              "%s ends at %llu ns, then at %llu", counters[0].name,
              (unsigned long long)spans[0].end, (unsigned long long)spans[1].end);
        dt_trace_close();
    }
    dt_op_times_destroy(times);
}

void test_sums(struct dt_device_comm *nccl, const struct buffers *buffers)
{
    static const dt_dtype types[] = {DT_F32, DT_BF16, DT_F64, DT_I64};
    static const int64_t counts[] = {0, 1, 7, MOST};
    check_graph(nccl, buffers);
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            check_eager(nccl, buffers, types[t], counts[i]);
            check_blocks(nccl, buffers, types[t], counts[i]);
        }
        if (types[t] != DT_I64)
            check_bits(nccl, buffers, types[t]);
    }
    check_refusals(nccl, buffers);
    check_counted(nccl, buffers);
}

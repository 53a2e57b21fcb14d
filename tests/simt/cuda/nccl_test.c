// Collectives by NCCL, over one rank or several: right, the same on every rank, in the order of the
// stream, in graphs. Over the simulated device by NCCL's stand-in, where also: what fails at the
// start is one error for all. With REAL_NCCL over GPUs, a rank each; skipped (77) without.
#include "comm/comm_nccl.h"

#include "backend/cuda.h"
#include "backend/op_times.h"
#include "base/clock.h"
#include "base/rng.h"
#include "comm/buckets.h"
#include "comm/selftest.h"
#include "kernels/sum_squares.h"
#include "sums.h"

#include <stdlib.h>
#ifndef REAL_NCCL
#include "tests/simt/cuda/enqueue.h"

#include <dlfcn.h>
#endif

enum { COLLECTIVES = 3, LAUNCHES = 5, MOST = 200003 }; // elements: in several pieces

static struct dt_comm *comm;
static struct dt_backend backend;
static struct dt_stream *stream;

static void need(dt_status status)
{
    char text[8192];
    if (status == DT_OK)
        return;
    dt_error_format(dt_error_current(), 1, text, sizeof text);
    CHECK(0, "%s", text);
    dt_die();
}

static struct dt_device_comm_config nccl_config;

static struct dt_device_comm *open_nccl(void)
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

static dt_status enqueue(struct dt_device_comm *nccl, int index, enum dt_operation operation,
                         void *data, int64_t count, enum dt_dtype type)
{
    struct dt_collective c = {.operation = operation, .dtype = type, .count = count, .data = data};
    return dt_nccl_table.enqueue(nccl, index, &c, stream);
}

struct buffers {
    void *host, *device;
};

static void take(struct buffers *buffers, int64_t bytes)
{
    need(dt_alloc(&backend, bytes, &buffers->device));
    need(dt_alloc_host(&backend, bytes, &buffers->host));
}

static void give(const struct buffers *buffers)
{
    dt_free_host(&backend, buffers->host);
    dt_free(&backend, buffers->device);
}

static void to_device(const struct buffers *buffers, int64_t bytes)
{
    need(dt_to_device(&backend, buffers->device, buffers->host, bytes, stream));
}

// Waits for it.
static void to_host(const struct buffers *buffers, int64_t bytes)
{
    need(dt_to_host(&backend, buffers->host, buffers->device, bytes, stream));
    need(dt_stream_sync(&backend, stream));
}

// Two calls on one buffer: the second sums what the first made.
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

// One all-reduce of values whose sums round, to the host.
static void sum_random(struct dt_device_comm *nccl, const struct buffers *buffers, dt_dtype type)
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

// The same bits on all ranks.
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

// A captured step launched again and again on other values, and the device's counts after it.
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

// Reduce-scatter, a round of exchanges and all-gather, captured and launched twice: the sum, once
// the blocks that each rank owns have gone round. In place, as a sharded optimizer would.
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

// Ranks 0 and 1 exchange both ways, then rank 1 sends alone; the others do nothing.
static void check_exchange(struct dt_device_comm *nccl, const struct buffers *buffers,
                           dt_dtype type, int64_t n)
{
    int rank = comm->info.rank;
    int64_t bytes = 2 * n * dt_dtype_size(type), wrong = 0;
    char *second = (char *)buffers->device + bytes / 2;
    struct dt_collective c = {.operation = DT_EXCHANGE,
                              .dtype = type,
                              .peer = 1 - rank,
                              .count = n,
                              .data = second,
                              .mine = buffers->device};
    if (rank > 1 || comm->info.size == 1)
        return;
    fill_exact(buffers->host, type, 2 * n, rank, 0);
    to_device(buffers, bytes);
    need(dt_nccl_table.enqueue(nccl, 2, &c, stream));
    c.data = rank == 0 ? buffers->device : NULL;
    c.mine = rank == 1 ? second : NULL; // which came from rank 0
    need(dt_nccl_table.enqueue(nccl, 2, &c, stream));
    to_host(buffers, bytes);
    for (int64_t i = 0; i < n; i++)
        wrong += get(buffers->host, type, i) != exact(type, i, rank, 0) ||
                 get(buffers->host, type, n + i) != exact(type, i, 1 - rank, 0);
    CHECK(wrong == 0, "exchange of %lld %s: %lld are wrong", (long long)n, dt_dtype_name(type),
          (long long)wrong);
}

// Each rank sends two messages of one way and then receives two: the ring closes, since sends are
// on a stream of their own. A collective passes messages that nobody receives yet, and so does the
// second message, in a channel of its own.
static void check_way(struct dt_device_comm *nccl, const struct buffers *buffers,
                      struct dt_stream *const sends[2], bool back)
{
    const int rank = comm->info.rank, size = comm->info.size;
    const int from = (rank + (back ? 1 : size - 1)) % size;
    const int64_t sizes[] = {7, MOST}, bytes = (7 + MOST) * (int64_t)sizeof(int64_t);
    int64_t *device = buffers->device, *host = buffers->host, wrong = 0;
    fill_exact(host, DT_I64, 7 + MOST, rank, back);
    to_device(buffers, bytes);
    need(dt_stream_sync(&backend, stream));
    for (int64_t i = 0, at = 0; i < 2; at += sizes[i++])
        need(dt_nccl_table.message(nccl, (int)i, back ? DT_TO_PREVIOUS : DT_TO_NEXT, device + at,
                                   sizes[i] * (int64_t)sizeof *device, sends[i]));
    device += 7 + MOST;
    need(enqueue(nccl, 0, DT_ALLREDUCE, device, 1, DT_I64));
    need(dt_stream_sync(&backend, stream));
    for (int64_t i = 1; i >= 0; i--)
        need(dt_nccl_table.message(nccl, (int)i, back ? DT_FROM_NEXT : DT_FROM_PREVIOUS,
                                   device + i * sizes[0], sizes[i] * (int64_t)sizeof *device,
                                   stream));
    need(dt_to_host(&backend, host, device, bytes, stream));
    need(dt_stream_sync(&backend, stream));
    for (int i = 0; i < 2; i++)
        need(dt_stream_sync(&backend, sends[i]));
    for (int64_t i = 0; i < 7 + MOST; i++)
        wrong += (double)host[i] != exact(DT_I64, i, from, back);
    CHECK(wrong == 0, "messages %s: %lld elements are wrong", back ? "back" : "forth",
          (long long)wrong);
}

static void check_ring(struct dt_device_comm *nccl, const struct buffers *buffers)
{
    const struct nccl_comm *of = (const struct nccl_comm *)nccl;
    struct dt_stream *sends[2];
    if (comm->info.size == 1) {
        CHECK_FAILS(dt_nccl_table.message(nccl, 0, DT_TO_NEXT, buffers->device, 1, stream),
                    DT_MACHINE, "a message between devices that form no ring");
        return;
    }
    for (int i = 0; i < 2; i++)
        need(dt_stream_create(&backend, &sends[i]));
    check_way(nccl, buffers, sends, false);
    check_way(nccl, buffers, sends, true);
    for (int i = COLLECTIVES; i < COLLECTIVES + 2 * DT_DEVICE_WAYS; i++) {
        CHECK_INT(of->counts[i].begun, 1);
        CHECK_INT(of->counts[i].done, 1);
    }
    for (int i = 0; i < 2; i++)
        dt_stream_destroy(&backend, sends[i]);
}

static void check_tree(struct dt_device_comm *nccl, const struct buffers *buffers,
                       enum dt_operation operation, dt_dtype type, int64_t n)
{
    int size = comm->info.size;
    bool in_blocks = operation == DT_REDUCE_SCATTER;
    int64_t whole = in_blocks ? size * n : n, first = in_blocks ? comm->info.rank * n : 0;
    int64_t bytes = whole * dt_dtype_size(type);
    struct dt_graph *graph = NULL;
    struct dt_collective c = {.operation = operation,
                              .dtype = type,
                              .count = n,
                              .data = buffers->device,
                              .order = DT_SUM_TREE};
    need(dt_capture_begin(&backend, stream));
    need(dt_nccl_table.enqueue(nccl, 1, &c, stream));
    need(dt_capture_end(&backend, stream, &graph));
    fill_leaves(buffers->host, type, whole, comm->info.rank);
    to_device(buffers, bytes);
    need(dt_graph_launch(&backend, graph, stream));
    to_host(buffers, bytes);
    dt_graph_destroy(&backend, graph);
    check_tree_sums(dt_collective_name(&c), (char *)buffers->host + first * dt_dtype_size(type),
                    type, first, first + n, size);
}

// Wholes and halves, of odd counts up to what was announced; on three ranks there is no tree.
static void check_trees(struct dt_device_comm *nccl, const struct buffers *buffers)
{
    static const int64_t counts[] = {0, 1, 7, 16385, MOST};
    struct dt_collective c = {
        .dtype = DT_F32, .count = 1, .data = buffers->device, .order = DT_SUM_TREE};
    if (comm->info.size == 3) {
        CHECK_INT(dt_nccl_table.enqueue(nccl, 1, &c, stream), DT_MACHINE);
        dt_error_clear();
        return;
    }
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        check_tree(nccl, buffers, DT_ALLREDUCE, DT_F32, counts[i]);
        check_tree(nccl, buffers, DT_REDUCE_SCATTER, DT_F32, counts[i]);
        check_tree(nccl, buffers, DT_ALLREDUCE, DT_F64, dt_min_i64(counts[i], 16385));
    }
    c.count = comm->info.size * MOST + 1;
    CHECK_FAILS(dt_nccl_table.enqueue(nccl, 1, &c, stream), DT_MACHINE, "by a tree");
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

// An all-reduce that this rank's device does not take part in.
static dt_status no_allreduce(struct dt_device_comm *nccl, int index,
                              const struct dt_collective *collective, struct dt_stream *on)
{
    return collective->operation == DT_ALLREDUCE
               ? DT_OK
               : dt_nccl_table.enqueue(nccl, index, collective, on);
}

static void check_sums_of_all(void)
{
    static const dt_dtype types[] = {DT_F32, DT_BF16, DT_F64, DT_I64};
    static const int64_t counts[] = {0, 1, 7, MOST};
    int64_t bytes = (MOST + 7) * 8 * (comm->info.size + 1); // check_way: two arrays
    struct buffers buffers;
    take(&buffers, bytes);
    struct dt_device_comm *nccl = open_nccl();
    check_graph(nccl, &buffers);
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            check_eager(nccl, &buffers, types[t], counts[i]);
            check_blocks(nccl, &buffers, types[t], counts[i]);
            check_exchange(nccl, &buffers, types[t], counts[i]);
        }
        if (types[t] != DT_I64)
            check_bits(nccl, &buffers, types[t]);
    }
    check_ring(nccl, &buffers);
    check_trees(nccl, &buffers);
    check_refusals(nccl, &buffers);
    check_counted(nccl, &buffers);
    CHECK_OK(dt_device_comm_selftest(&nccl_config, nccl));
    if (comm->info.size > 1) { // alone nothing can be lost
        struct dt_device_comm_table broken = dt_nccl_table;
        broken.enqueue = no_allreduce;
        nccl->table = &broken;
        CHECK_FAILS(dt_device_comm_selftest(&nccl_config, nccl), DT_MACHINE,
                    "self-test: all-reduce of fp32 by nccl gave wrong values");
    }
    dt_nccl_table.close(nccl);
    give(&buffers);
}

#ifndef REAL_NCCL
// Whether the same sum made again and again has the same bits, in a communicator opened now.
static bool repeats_itself(dt_dtype type)
{
    int64_t bytes = MOST * dt_dtype_size(type);
    struct buffers buffers;
    void *first = malloc((size_t)bytes);
    take(&buffers, bytes);
    struct dt_device_comm *nccl = open_nccl();
    sum_random(nccl, &buffers, type);
    memcpy(first, buffers.host, (size_t)bytes);
    bool same = true;
    for (int i = 0; i < LAUNCHES; i++) {
        sum_random(nccl, &buffers, type);
        same = same && memcmp(first, buffers.host, (size_t)bytes) == 0;
    }
    dt_nccl_table.close(nccl);
    give(&buffers);
    free(first);
    return same;
}

// Where the machine has NVLS it is not used; where the user insists, it is, and bits differ.
static void check_nvls(void)
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
#endif

static void set_variable(const char *name, const char *value)
{
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
}

// What the user sets stays as it is; NVLS is left only to a user who asks for it.
static void check_environment(void)
{
    static const struct {
        const char *algo, *enable; // as the user sets them
        const char *then;          // NCCL_NVLS_ENABLE after that
        bool may;
    } cases[] = {
        {NULL, NULL, "0", false},
        {"", "", "0", false},
        {"Ring", NULL, "0", false},
        {"^Tree", NULL, "0", false},
        {"^NVLS", NULL, "0", false},
        {"^nvls,NVLSTree", NULL, "0", false},
        {"allreduce:tree,ring", NULL, "0", false},
        {"broadcast:nvls", NULL, "0", false},
        {"nvls;allreduce:ring", NULL, "0", false},
        {"NVLS", NULL, NULL, true},
        {"ring,nvlstree", NULL, NULL, true},
        {"ring;AllReduce:nvls,tree", NULL, NULL, true},
        {NULL, "0", "0", false},
        {"NVLS", "0", "0", false},
        {NULL, "1", "1", true},
        {"^Tree", "2", "2", true},
        {"^NVLS", "1", "1", true}, // leaves NVLSTree
        {"^NVLSTree,NVLS", "1", "1", false},
        {"Ring", "1", "1", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        set_variable("NCCL_ALGO", cases[i].algo);
        set_variable("NCCL_NVLS_ENABLE", cases[i].enable);
        dt_nccl_table.prepare();
        const char *then = getenv("NCCL_NVLS_ENABLE");
        CHECK(cases[i].then ? then && strcmp(then, cases[i].then) == 0 : !then,
              "case %zu: NCCL_NVLS_ENABLE is %s", i, then ? then : "not set");
        CHECK(dt_nccl_may_use_nvls() == cases[i].may, "case %zu: NVLS is %sexcluded", i,
              cases[i].may ? "" : "not ");
    }
    set_variable("NCCL_ALGO", NULL);
    set_variable("NCCL_NVLS_ENABLE", NULL);
    for (int chosen = 0; chosen < 2; chosen++) {
        const char *queues = chosen ? "1" : "32";
        set_variable("CUDA_DEVICE_MAX_CONNECTIONS", chosen ? queues : NULL);
        dt_nccl_table.prepare();
        CHECK(strcmp(getenv("CUDA_DEVICE_MAX_CONNECTIONS"), queues) == 0, "not %s queues", queues);
    }
}

#ifndef REAL_NCCL
// A fault of rank 1's at the start is the same error on every rank, and soon.
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

static void *function(void *library, const char *name)
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

// The stand-in itself: a call whose communicator is aborted before the stream comes to it ends, and
// touches nothing that was freed, which AddressSanitizer sees.
static void check_abort(void)
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

// A step of two buckets: each rank announces both, and does work of its own after the first, on the
// stream on which it announces them.
struct delayed {
    struct dt_buckets *buckets;
    float *gradients;
    int64_t *worked; // pinned: how often the device has done that work
};

enum { DELAYED_ROW = 7 };

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
// bucket, which still waits for rank 1, holds up no stream but its own. In a graph too; where it
// does, rank 1 ends the job after the time-out. Collectives have the highest priority and a bounded
// number of blocks.
static void check_delayed(void)
{
    static const int64_t row_ends[] = {DELAYED_ROW, 2 * DELAYED_ROW};
    const int64_t bytes = 2 * DELAYED_ROW * (int64_t)sizeof(float);
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    const _Atomic(int) *priority = function(library, "simt_nccl_priority");
    const _Atomic(int) *blocks = function(library, "simt_nccl_blocks");
    struct delayed d = {0};
    struct dt_graph *graph = NULL;
    float host[2 * DELAYED_ROW];
    need(dt_alloc(&backend, bytes, &d.gradients));
    need(dt_alloc_host(&backend, sizeof *d.worked, &d.worked));
    const struct dt_buckets_config config = {.gradients = d.gradients,
                                             .elements = 2 * DELAYED_ROW,
                                             .row_ends = row_ends,
                                             .n_rows = 2,
                                             .largest_row = DELAYED_ROW,
                                             .bucket_bytes = DELAYED_ROW * (int64_t)sizeof(float),
                                             .stream = stream,
                                             .between_devices = true};
    need(dt_buckets_create(comm, &backend, &config, &d.buckets));
    need(dt_buckets_connect(d.buckets));
    CHECK_INT(atomic_load(blocks), 1); // of the 4 multiprocessors, at least one
    CHECK_INT(dt_buckets_count(d.buckets), 2);
    dt_comm_set_timeout(comm, 60);
    for (int step = 0; step < 3; step++) { // as it is, captured, and launched once more
        int64_t turn = step + 1, mine = comm->info.rank == 0 ? turn : 0;
        fill_exact(host, DT_F32, 2 * DELAYED_ROW, comm->info.rank, step);
        need(dt_to_device(&backend, d.gradients, host, bytes, stream));
        need(dt_stream_sync(&backend, stream));
        if (step == 1) {
            need(dt_capture_begin(&backend, stream));
            run_delayed(&d);
            need(dt_capture_end(&backend, stream, &graph));
        }
        if (comm->info.rank != 0)
            need(dt_allreduce(comm, &mine, 1, DT_I64, DT_MAX));
        if (step == 0)
            run_delayed(&d);
        else
            need(dt_graph_launch(&backend, graph, stream));
        while (comm->info.rank == 0 && __atomic_load_n(d.worked, __ATOMIC_ACQUIRE) < turn)
            dt_sleep(1e-4);
        if (comm->info.rank == 0)
            need(dt_allreduce(comm, &mine, 1, DT_I64, DT_MAX));
        need(dt_to_host(&backend, host, d.gradients, bytes, stream));
        need(dt_stream_sync(&backend, stream));
        check_reduced("a delayed bucket", host, DT_F32, 0, 2 * DELAYED_ROW, comm->info.size, step,
                      DT_SUM);
        CHECK_INT(atomic_load(priority), -5);
    }
    dt_comm_set_timeout(comm, 600);
    dt_graph_destroy(&backend, graph);
    dt_buckets_destroy(d.buckets);
    dt_free_host(&backend, d.worked);
    dt_free(&backend, d.gradients);
}

// Rank 0's stream goes on while the gather of weights waits for rank 1, up to the first weights
// that it needs; these come first, and without those of the rows before them.
static void check_late_weights(void)
{
    const int64_t row = comm->info.size * (int64_t)DT_NORM_BLOCK, n = 2 * row;
    const int64_t row_ends[] = {row, n}, bytes = n * (int64_t)sizeof(float);
    int64_t turn = 1, wrong = 0, *worked;
    struct dt_pieces pieces;
    struct buffers gradients, weights;
    double *norms;
    take(&gradients, bytes);
    take(&weights, bytes);
    need(dt_alloc(&backend, n / DT_NORM_BLOCK * (int64_t)sizeof *norms, &norms));
    need(dt_alloc_host(&backend, sizeof *worked, &worked));
    const struct dt_buckets_config config = {.gradients = gradients.device,
                                             .elements = n,
                                             .row_ends = row_ends,
                                             .n_rows = 2,
                                             .largest_row = row,
                                             .bucket_bytes = row * (int64_t)sizeof(float),
                                             .stream = stream,
                                             .between_devices = true,
                                             .shard = DT_SHARD_STATES,
                                             .weights = weights.device,
                                             .norms = norms,
                                             .n_norms = n / DT_NORM_BLOCK};
    struct dt_buckets *buckets;
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
    if (comm->info.rank != 0)
        need(dt_allreduce(comm, &turn, 1, DT_I64, DT_MAX));
    need(dt_buckets_gather(buckets));
    need(dt_stamp(&backend, &(struct dt_stamp_args){.count = worked}, stream));
    while (comm->info.rank == 0 && __atomic_load_n(worked, __ATOMIC_ACQUIRE) < 1)
        dt_sleep(1e-4);
    if (comm->info.rank == 0)
        need(dt_allreduce(comm, &turn, 1, DT_I64, DT_MAX));
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
    give(&gradients);
    give(&weights);
}

// Whether within a few looks of the watchdog what it reports counts from `begun` on, or later.
static bool counts_from(const struct dt_comm_devices *devices, double begun)
{
    int waits = 0;
    while (devices->waited > dt_seconds() - begun && waits++ < 2000)
        dt_sleep(1e-3);
    return waits < 2000;
}

static void wait_long(const struct dt_comm_devices *devices)
{
    for (int waits = 0; devices->waited < 0.3 && waits < 10000; waits++)
        dt_sleep(1e-3);
}

// The watchdog reports since when the device is in a collective, or a thread in a call of NCCL,
// each from its own beginning, and takes that back when it ends.
static void check_watchdog(void)
{
    struct nccl_counts counts = {.begun = 3, .done = 2};
    struct nccl_call call = {.peer = -1};
    struct nccl_comm nccl = {.comm = comm, .n = 1, .counts = &counts, .calls = &call};
    struct dt_comm_devices *devices = &comm->control->devices;
    pthread_mutex_init(&nccl.lock, NULL);
    sem_init(&nccl.stop, 0, 0);
    need(dt_nccl_watch_start(&nccl));
    wait_long(devices);
    CHECK_INT(devices->oldest, 3);
    double begun = dt_seconds();
    __atomic_store_n(&counts.begun, 4, __ATOMIC_RELEASE);
    __atomic_store_n(&counts.done, 3, __ATOMIC_RELEASE);
    CHECK(counts_from(devices, begun), "collective 4 has waited for %g s", devices->waited);
    wait_long(devices);
    CHECK_INT(devices->oldest, 4);
    begun = dt_seconds();
    nccl.entered = 1;
    __atomic_store_n(&counts.done, 4, __ATOMIC_RELEASE);
    CHECK(counts_from(devices, begun), "a call has waited for %g s", devices->waited);
    wait_long(devices);
    begun = dt_seconds();
    nccl.left = 1;
    nccl.entered = 2;
    CHECK(counts_from(devices, begun), "the next one has waited for %g s", devices->waited);
    wait_long(devices);
    CHECK_INT(devices->oldest, 4); // as far as the others
    dt_nccl_watch_stop(&nccl);
    CHECK_INT(devices->oldest, 0);
    CHECK(devices->waited <= 0, "it still waits for %g s", devices->waited);
    sem_destroy(&nccl.stop);
    pthread_mutex_destroy(&nccl.lock);
}

static void check_stand_in(void)
{
    char version[64];
    need(dt_nccl_table.version(version, sizeof version));
    CHECK_STR(version, "2.30.7");
    check_watchdog();
    check_abort();
    check_nvls();
    if (comm->info.size == 1)
        return;
    check_delayed();
    check_late_weights();
    // The stall first: heartbeats of a failed opening can still be heard in the next one, whose
    // ranks then wait for each other, which must not meet a short time-out.
    check_start("stall@1", 3, "timed out after comm.timeout_s = 3 s");
    check_start("fail@1", 600, "ncclCommInitRankConfig failed: unhandled system error");
    check_sums_of_all(); // and after errors all is as before
}
#endif

int main(void)
{
    int devices = 0;
    check_environment();
    need(dt_comm_open(DT_COMM_KIND_MPI, &comm));
    if (dt_backend_find("cuda")->table->count(&devices) != DT_OK) {
        fprintf(stderr, "skipped: %s\n", dt_error_current()->message);
        dt_comm_close(comm);
        return TEST_SKIP;
    }
    need(dt_backend_open("cuda", comm->info.local_rank, 1, &backend));
    need(dt_stream_create(&backend, &stream));
    check_sums_of_all();
#ifndef REAL_NCCL
    check_stand_in();
#endif
    dt_stream_destroy(&backend, stream);
    dt_backend_close(&backend);
    dt_comm_close(comm);
    return test_end();
}

// Shows that gradient buckets order their streams correctly, both through the host and between
// devices: everything that a step reads was written before. The device puts off all work
// (lazy_device.h), so a missing wait shows.
#include "comm/bucket_parts.h"
#include "lazy_device.h"
#include "sums.h"

enum { ROWS = 6, ELEMENTS = 300001, STEPS = 2 };

static struct dt_comm *comm;
static struct dt_backend backend;
static const int64_t row_ends[ROWS] = {70, 70, 99000, 100001, 230123, ELEMENTS};

// ---- collectives that are enqueued on a stream

static dt_status run_collective(const struct lazy_work *work)
{
    return dt_collective(comm, &work->collective.call);
}

static dt_status enqueue(struct dt_device_comm *device_comm, int index,
                         const struct dt_collective *collective, struct dt_stream *stream)
{
    (void)device_comm, (void)index;
    return lazy_put(stream,
                    (struct lazy_work){.run = run_collective, .collective = {NULL, *collective}});
}

static void close_nothing(struct dt_device_comm *device_comm)
{
    (void)device_comm;
}

static const struct dt_device_comm_table lazy_comm_table = {
    .name = "lazy", .enqueue = enqueue, .close = close_nothing};

// ---- a training step whose stream copies rows of gradients and weights

struct run {
    struct dt_buckets *buckets;
    struct dt_buckets_config config;
    struct dt_device_comm device_comm;
    struct dt_pieces pieces;
    float *written; // what the stream writes next
    float *seen;    // what the stream has read
    dt_bf16 *copies_seen;
    double norms[16];
};

static float weight(int64_t i, int step)
{
    return 1 + 0x1p-20f * (float)((i + step) % 251);
}

static void open_run(struct run *r, bool between, enum dt_dtype wire, enum dt_dtype storage)
{
    size_t n = ELEMENTS;
    *r = (struct run){.device_comm = {.table = &lazy_comm_table}};
    r->config = (struct dt_buckets_config){.gradients = calloc(n, sizeof(float)),
                                           .elements = ELEMENTS,
                                           .row_ends = row_ends,
                                           .n_rows = ROWS,
                                           .bucket_bytes = 1 << 18,
                                           .wire = wire,
                                           .shard = DT_SHARD_STATES,
                                           .storage = storage,
                                           .between_devices = between,
                                           .weights = calloc(n, sizeof(float)),
                                           .copies = storage == DT_BF16 ? calloc(n, 2) : NULL,
                                           .norms = r->norms,
                                           .n_norms = dt_ceil_div(ELEMENTS, DT_NORM_BLOCK)};
    r->written = calloc(n, sizeof(float));
    r->seen = calloc(n, sizeof(float));
    r->copies_seen = calloc(n, sizeof(dt_bf16));
    CHECK_OK(dt_stream_create(&backend, &r->config.stream));
    CHECK_OK(dt_buckets_pieces(&r->config, &backend, &comm->info, &r->pieces));
    CHECK_OK(dt_buckets_create(comm, &backend, &r->config, &r->buckets));
    if (between)
        r->buckets->device_comm = &r->device_comm;
}

static void close_run(struct run *r)
{
    void *memory[] = {r->config.gradients, r->config.weights, r->config.copies, r->written, r->seen,
                      r->copies_seen,      r->pieces.spans};
    dt_buckets_destroy(r->buckets);
    dt_stream_destroy(&backend, r->config.stream);
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        free(memory[i]);
}

// Copies elements [first, end) on the caller's stream.
static void put(const struct run *r, void *to, const void *from, int64_t first, int64_t end,
                enum dt_dtype type)
{
    int64_t each = dt_dtype_size(type);
    CHECK_OK(dt_copy(&backend, (char *)to + first * each, (const char *)from + first * each,
                     (end - first) * each, r->config.stream));
}

static void check_gradients(struct run *r, int step)
{
    fill_exact(r->written, DT_F32, ELEMENTS, comm->info.rank, step);
    for (int row = ROWS - 1; row >= 0; row--) {
        put(r, r->config.gradients, r->written, row > 0 ? row_ends[row - 1] : 0, row_ends[row],
            DT_F32);
        CHECK_OK(dt_buckets_ready(r->buckets, row));
    }
    CHECK_OK(dt_buckets_wait(r->buckets));
    put(r, r->seen, r->config.gradients, 0, ELEMENTS, DT_F32);
    CHECK_OK(dt_stream_sync(&backend, r->config.stream));
    for (int64_t k = 0; k < r->pieces.n; k++)
        check_reduced("sums of a stream", r->seen, DT_F32, r->pieces.spans[k].first,
                      r->pieces.spans[k].end, comm->info.size, step, DT_SUM);
}

static void check_weights(struct run *r, int step)
{
    bool copies = r->config.copies != NULL;
    int64_t stale = 0;
    for (int64_t i = 0; i < ELEMENTS; i++)
        r->written[i] = weight(i, step);
    for (int64_t k = 0; k < r->pieces.n; k++) {
        const struct dt_span *own = &r->pieces.spans[k];
        put(r, r->config.weights, r->written, own->first, own->end, DT_F32);
        struct dt_cast_args cast = {.n = own->end - own->first,
                                    .x = r->written + own->first,
                                    .x_type = DT_F32,
                                    .y = copies ? r->config.copies + own->first : NULL,
                                    .y_type = DT_BF16};
        if (copies)
            CHECK_OK(dt_cast(&backend, &cast, r->config.stream));
    }
    CHECK_OK(dt_buckets_gather(r->buckets));
    for (int row = ROWS - 1; row >= 0; row--) {
        int64_t begin = row > 0 ? row_ends[row - 1] : 0;
        CHECK_OK(dt_buckets_need(r->buckets, row));
        if (copies)
            put(r, r->copies_seen, r->config.copies, begin, row_ends[row], DT_BF16);
        else
            put(r, r->seen, r->config.weights, begin, row_ends[row], DT_F32);
    }
    CHECK_OK(dt_buckets_gathered(r->buckets));
    CHECK_OK(dt_stream_sync(&backend, r->config.stream));
    for (int64_t i = 0; i < ELEMENTS; i++)
        stale += copies ? r->copies_seen[i] != dt_f32_to_bf16(weight(i, step))
                        : r->seen[i] != weight(i, step);
    CHECK(stale == 0, "step %d: %lld weights are not gathered when they are read", step,
          (long long)stale);
    CHECK_OK(dt_buckets_gather_masters(r->buckets));
    put(r, r->seen, r->config.weights, 0, ELEMENTS, DT_F32);
    CHECK_OK(dt_stream_sync(&backend, r->config.stream));
    for (int64_t i = 0; i < ELEMENTS; i++)
        stale += r->seen[i] != weight(i, step);
    CHECK(stale == 0, "step %d: %lld masters are not gathered when they are read", step,
          (long long)stale);
}

static void check_run(bool between, enum dt_dtype wire, enum dt_dtype storage)
{
    struct run r;
    open_run(&r, between, wire, storage);
    for (int step = 0; step < STEPS; step++) {
        check_gradients(&r, step);
        check_weights(&r, step);
    }
    close_run(&r);
}

int main(void)
{
    CHECK_OK(dt_comm_open(DT_COMM_KIND_MPI, &comm));
    if (!comm)
        return test_end();
    CHECK_OK(dt_backend_open("cpu", 0, 1, &backend));
    struct dt_device_table table = *backend.table;
    struct dt_op_table op = *backend.op;
    make_lazy(&table, &op);
    backend.table = &table;
    backend.op = &op;
    for (int between = 0; between < 2; between++)
        for (int narrow = 0; narrow < 4; narrow++)
            check_run(between, narrow & 1 ? DT_BF16 : DT_F32, narrow & 2 ? DT_BF16 : DT_F32);
    dt_backend_close(&backend);
    dt_comm_close(comm);
    return test_end();
}

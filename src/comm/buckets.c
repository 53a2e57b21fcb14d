// Gradient buckets, as a step walks through them: a row is ready; the bucket that it completes is
// sent (and, through the host, posted to the communicator as soon as its copy is there); wait
// brings the sums back. Each bucket is one part of a step's traffic; the fp64 sums are another, the
// first.
#include "comm/buckets.h"

#include "comm/bucket_plan.h"
#include "comm/device_comm.h"

#include <stdlib.h>
#include <string.h>

// What is summed by one all-reduce.
struct part {
    int64_t n_rows, missing; // rows that lie in it (the sums: 1), and those not ready in this step
    int64_t count;           // elements
    enum dt_dtype wire_type;
    void *data;             // what is summed, device memory
    void *wire;             // `data` itself, or its copy in the type of the wire; device memory
    void *host;             // `wire` itself, or its copy in pinned memory; host path only
    struct dt_event *ready; // on the caller's stream: `data` is final
    struct dt_event *sent;  // on the own stream: `host` holds it
    struct dt_request *request;
};

struct row {
    int64_t first, end; // the parts that hold it: none, where it is empty
    bool ready;         // in this step
};

struct dt_buckets {
    struct dt_buckets_config config; // without row_ends, which are the caller's
    struct dt_comm *comm;
    struct dt_backend backend;
    struct dt_device_comm *device_comm; // NULL: through the host
    bool alone;
    struct dt_stream *stream; // the buckets' own, on which parts travel
    struct dt_event *arrived;
    dt_bf16 *wire; // [elements], device memory; NULL where fp32 travels
    char *host;    // pinned copies of all parts; NULL where none are needed
    struct row *rows;
    struct part *parts; // the sums, where there are any, then the buckets: the order of sending
    int64_t n_parts, n_sums_parts;
    int64_t sent;   // parts sent in this step
    int64_t posted; // host path: parts whose all-reduce has begun
};

static dt_status send_complete(struct dt_buckets *b);

// ---- a step: ready …

dt_status dt_buckets_sums_ready(struct dt_buckets *b)
{
    if (b->n_sums_parts == 0 || b->parts[0].missing == 0)
        return DT_FAIL(DT_MACHINE, NULL, "the sums of a step were announced %s",
                       b->n_sums_parts == 0 ? "where there are none" : "twice");
    b->parts[0].missing = 0;
    return send_complete(b);
}

dt_status dt_buckets_ready(struct dt_buckets *b, int64_t row)
{
    bool exists = row >= 0 && row < b->config.n_rows;
    if (!exists || b->rows[row].ready)
        return DT_FAIL(DT_MACHINE, NULL, "gradient row %lld of %lld %s", (long long)row,
                       (long long)b->config.n_rows,
                       exists ? "was announced twice in a step" : "does not exist");
    if (b->sent < b->n_sums_parts)
        return DT_FAIL(DT_MACHINE, NULL, "gradient row %lld was announced before the step's sums",
                       (long long)row);
    b->rows[row].ready = true;
    for (int64_t i = b->rows[row].first; i < b->rows[row].end; i++)
        b->parts[i].missing--;
    return send_complete(b);
}

// ---- … sent …

// Between `data` (fp32) and what travels, on the buckets' stream.
static dt_status cast(struct dt_buckets *b, const struct part *part, bool to_wire)
{
    if (part->wire == part->data)
        return DT_OK;
    struct dt_cast_args args = {.n = part->count,
                                .x = to_wire ? part->data : part->wire,
                                .x_type = to_wire ? DT_F32 : part->wire_type,
                                .y = to_wire ? part->wire : part->data,
                                .y_type = to_wire ? part->wire_type : DT_F32};
    return dt_cast(&b->backend, &args, b->stream);
}

static int64_t wire_bytes(const struct part *part)
{
    return part->count * dt_dtype_size(part->wire_type);
}

static struct dt_collective all_reduce(const struct part *part, void *data)
{
    return (struct dt_collective){.operation = DT_ALLREDUCE,
                                  .reduce = DT_SUM,
                                  .dtype = part->wire_type,
                                  .count = part->count,
                                  .data = data};
}

static dt_status send(struct dt_buckets *b, const struct part *part)
{
    if (b->config.between_devices && !b->device_comm)
        return DT_FAIL(DT_MACHINE, NULL, "buckets were never connected");
    DT_TRY(dt_event_record(&b->backend, part->ready, b->config.stream));
    DT_TRY(dt_stream_wait(&b->backend, b->stream, part->ready));
    DT_TRY(cast(b, part, true));
    if (b->device_comm) {
        struct dt_collective sum = all_reduce(part, part->wire);
        DT_TRY(b->device_comm->table->enqueue(b->device_comm, (int)b->sent, &sum, b->stream));
        return cast(b, part, false);
    }
    if (part->host != part->wire)
        DT_TRY(dt_to_host(&b->backend, part->host, part->wire, wire_bytes(part), b->stream));
    return dt_event_record(&b->backend, part->sent, b->stream);
}

// Posts the parts whose copies have arrived on the host, in the order in which they were sent. With
// `wait`, all that were sent.
static dt_status post(struct dt_buckets *b, bool wait)
{
    for (; b->posted < b->sent; b->posted++) {
        struct part *part = &b->parts[b->posted];
        bool arrived = true;
        if (wait)
            DT_TRY(dt_event_sync(&b->backend, part->sent));
        else
            DT_TRY(dt_event_done(&b->backend, part->sent, &arrived));
        if (!arrived)
            return DT_OK;
        struct dt_collective sum = all_reduce(part, part->host);
        DT_TRY(dt_begin(b->comm, &sum, &part->request));
    }
    return DT_OK;
}

// In table order even where rows come otherwise: every rank must begin its all-reduces alike.
static dt_status send_complete(struct dt_buckets *b)
{
    for (; b->sent < b->n_parts && b->parts[b->sent].missing == 0; b->sent++)
        if (!b->alone)
            DT_TRY(send(b, &b->parts[b->sent]));
    return b->alone || b->device_comm ? DT_OK : post(b, false);
}

// ---- … and summed

static dt_status check_all_sent(const struct dt_buckets *b)
{
    for (int64_t row = 0; row < b->config.n_rows; row++)
        if (!b->rows[row].ready)
            return DT_FAIL(DT_MACHINE, NULL, "the gradient of row %lld was never announced",
                           (long long)row);
    if (b->sent < b->n_parts)
        return DT_FAIL(DT_MACHINE, NULL, "the sums of a step were never announced");
    return DT_OK;
}

static dt_status return_from_host(struct dt_buckets *b, struct part *part)
{
    struct dt_request *request = part->request;
    part->request = NULL;
    DT_TRY(dt_wait(b->comm, request));
    if (part->host != part->wire)
        DT_TRY(dt_to_device(&b->backend, part->wire, part->host, wire_bytes(part), b->stream));
    return cast(b, part, false);
}

static dt_status collect(struct dt_buckets *b)
{
    if (!b->device_comm) {
        DT_TRY(post(b, true));
        for (int64_t i = 0; i < b->n_parts; i++)
            DT_TRY(return_from_host(b, &b->parts[i]));
    }
    DT_TRY(dt_event_record(&b->backend, b->arrived, b->stream));
    return dt_stream_wait(&b->backend, b->config.stream, b->arrived);
}

dt_status dt_buckets_wait(struct dt_buckets *b)
{
    DT_TRY(check_all_sent(b));
    if (!b->alone)
        DT_TRY(collect(b));
    for (int64_t i = 0; i < b->n_parts; i++)
        b->parts[i].missing = b->parts[i].n_rows;
    for (int64_t row = 0; row < b->config.n_rows; row++)
        b->rows[row].ready = false;
    b->sent = b->posted = 0;
    return DT_OK;
}

// ---- creation

static dt_status check_config(const struct dt_buckets_config *config)
{
    int64_t end = 0;
    if (config->wire != DT_F32 && config->wire != DT_BF16)
        return DT_FAIL(DT_MACHINE, NULL, "gradients cannot be sent as %s",
                       dt_dtype_name(config->wire));
    if (config->bucket_bytes < 1)
        return DT_FAIL(DT_MACHINE, NULL, "buckets of %lld bytes", (long long)config->bucket_bytes);
    for (int64_t row = 0; row < config->n_rows; end = config->row_ends[row++])
        if (config->row_ends[row] < end)
            return DT_FAIL(DT_MACHINE, NULL, "row %lld ends at %lld, before the previous row",
                           (long long)row, (long long)config->row_ends[row]);
    if (end != config->elements)
        return DT_FAIL(DT_MACHINE, NULL, "rows end at %lld, the arena at %lld", (long long)end,
                       (long long)config->elements);
    return DT_OK;
}

// The parts in the order in which they are sent.
static void list_parts(struct dt_buckets *b, const struct dt_bucket_span *spans, int64_t n)
{
    const struct dt_buckets_config *config = &b->config;
    if (config->n_sums > 0)
        b->parts[b->n_parts++] = (struct part){.n_rows = 1,
                                               .missing = 1,
                                               .count = config->n_sums,
                                               .wire_type = DT_F64,
                                               .data = config->sums,
                                               .wire = config->sums};
    b->n_sums_parts = b->n_parts;
    for (int64_t i = 0; i < n; i++) {
        float *data = config->gradients + spans[i].start;
        b->parts[b->n_parts++] =
            (struct part){.count = spans[i].end - spans[i].start,
                          .wire_type = config->wire,
                          .data = data,
                          .wire = b->wire ? (void *)(b->wire + spans[i].start) : data};
    }
}

// Which parts each row lies in. Both are in the order of the arena.
static void place_rows(struct dt_buckets *b, const int64_t *row_ends,
                       const struct dt_bucket_span *spans)
{
    int64_t k = b->n_sums_parts, sums = k;
    for (int64_t row = 0, begin = 0; row < b->config.n_rows; begin = row_ends[row++]) {
        int64_t end = row_ends[row];
        if (end == begin)
            continue;
        while (spans[k - sums].end <= begin)
            k++;
        b->rows[row] = (struct row){.first = k, .end = k};
        for (int64_t i = k; i < b->n_parts && spans[i - sums].start < end; i++) {
            b->rows[row].end = i + 1;
            b->parts[i].missing = ++b->parts[i].n_rows;
        }
    }
}

int64_t dt_buckets_bytes(const struct dt_buckets_config *config, int n_ranks)
{
    if (config->wire == DT_F32 || n_ranks == 1) // a lone rank sends nothing
        return 0;
    return config->elements * (int64_t)sizeof(dt_bf16);
}

int64_t dt_buckets_host_bytes(const struct dt_buckets_config *config,
                              const struct dt_backend *backend, int n_ranks)
{
    if (n_ranks == 1 || config->between_devices || backend->table->unified)
        return 0;
    return config->n_sums * (int64_t)sizeof *config->sums +
           config->elements * dt_dtype_size(config->wire);
}

// Memory and events of the parts that travel.
static dt_status equip_parts(struct dt_buckets *b)
{
    int64_t bytes = dt_buckets_host_bytes(&b->config, &b->backend, b->comm->info.size), used = 0;
    if (bytes > 0)
        DT_TRY_NOTE(dt_alloc_host(&b->backend, bytes, &b->host),
                    "pinning %.1f MiB for gradient buckets", (double)bytes / 0x1p20);
    DT_TRY(dt_stream_create(&b->backend, &b->stream));
    DT_TRY(dt_event_create(&b->backend, &b->arrived));
    for (int64_t i = 0; i < b->n_parts; i++) {
        struct part *part = &b->parts[i];
        part->host = b->host ? b->host + used : part->wire;
        used += wire_bytes(part);
        DT_TRY(dt_event_create(&b->backend, &part->ready));
        DT_TRY(dt_event_create(&b->backend, &part->sent));
    }
    return DT_OK;
}

static dt_status build(struct dt_buckets *b, const int64_t *row_ends,
                       const struct dt_bucket_span *spans, int64_t n)
{
    int64_t bytes = dt_buckets_bytes(&b->config, b->comm->info.size);
    b->parts = calloc((size_t)n + 1, sizeof *b->parts); // 1: the sums
    b->rows = calloc((size_t)b->config.n_rows + 1, sizeof *b->rows);
    if (!b->parts || !b->rows)
        return DT_FAIL(DT_MACHINE, NULL, "no memory for %lld buckets", (long long)n);
    if (bytes > 0)
        DT_TRY_NOTE(dt_alloc(&b->backend, bytes, &b->wire),
                    "allocating %.1f MiB for bf16 gradient buckets", (double)bytes / 0x1p20);
    list_parts(b, spans, n);
    place_rows(b, row_ends, spans);
    return b->alone ? DT_OK : equip_parts(b);
}

dt_status dt_buckets_create(struct dt_comm *comm, const struct dt_backend *backend,
                            const struct dt_buckets_config *config, struct dt_buckets **result)
{
    struct dt_bucket_plan_config plan = {.row_ends = config->row_ends,
                                         .n_rows = config->n_rows,
                                         .bucket_bytes = config->bucket_bytes,
                                         .staged =
                                             !config->between_devices && !backend->table->unified};
    struct dt_bucket_span *spans = NULL;
    int64_t n;
    *result = NULL;
    DT_TRY(check_config(config));
    struct dt_buckets *b = malloc(sizeof *b);
    if (!b)
        return DT_FAIL(DT_MACHINE, NULL, "no memory for buckets");
    *b = (struct dt_buckets){
        .config = *config, .comm = comm, .backend = *backend, .alone = comm->info.size == 1};
    b->config.row_ends = NULL;
    dt_status status = dt_bucket_plan(&plan, &spans, &n);
    if (status == DT_OK)
        status = build(b, config->row_ends, spans, n);
    free(spans);
    if (status != DT_OK)
        dt_buckets_destroy(b);
    else
        *result = b;
    return status;
}

dt_status dt_buckets_connect(struct dt_buckets *b)
{
    if (!b->config.between_devices || b->alone)
        return DT_OK;
    struct dt_device_comm_config config = {
        .comm = b->comm, .backend = &b->backend, .n_collectives = (int)b->n_parts};
    return dt_device_comm_known->open(&config, &b->device_comm);
}

void dt_buckets_destroy(struct dt_buckets *b)
{
    if (!b)
        return;
    if (b->device_comm)
        b->device_comm->table->close(b->device_comm);
    for (int64_t i = 0; i < b->n_parts; i++) {
        dt_event_destroy(&b->backend, b->parts[i].ready);
        dt_event_destroy(&b->backend, b->parts[i].sent);
    }
    dt_event_destroy(&b->backend, b->arrived);
    dt_stream_destroy(&b->backend, b->stream);
    dt_free_host(&b->backend, b->host);
    dt_free(&b->backend, b->wire);
    free(b->parts);
    free(b->rows);
    free(b);
}

int64_t dt_buckets_count(const struct dt_buckets *b)
{
    return b->n_parts - b->n_sums_parts;
}

bool dt_buckets_can_be_captured(const struct dt_buckets *b)
{
    return b->alone || b->device_comm;
}

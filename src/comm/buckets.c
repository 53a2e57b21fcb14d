// Gradient buckets: runs of rows that leave for the all-reduce when the last of their rows is
// ready, and the copies that travel in their place. Each is one part of a step's traffic; the sums
// are another, the first.
#include "comm/buckets.h"

#include "base/arena.h"
#include "comm/bucket_plan.h"
#include "comm/device_comm.h"

#include <stdlib.h>
#include <string.h>

// What travels as one all-reduce.
struct part {
    int64_t count; // elements
    enum dt_dtype wire_type;
    void *data;             // what is summed, device memory
    void *wire;             // `data` itself, or its copy in the type of the wire; device memory
    void *host;             // `wire` itself, or its copy in pinned memory; host path only
    struct dt_event *ready; // on the caller's stream: `data` is final
    struct dt_event *left;  // on the own stream: `host` holds it
    struct dt_request *request;
};

struct bucket {
    int64_t n_rows;
    int64_t missing; // rows not ready yet in this step
};

struct row {
    int64_t first, end; // the buckets that hold it: none, where it is empty
};

struct dt_buckets {
    struct dt_comm *comm;
    struct dt_backend backend;
    struct dt_device_comm *device_comm; // NULL: through the host
    bool between_devices, alone;
    struct dt_stream *caller, *stream; // the caller's, and the one on which parts travel
    struct dt_event *arrived;
    float *gradients;
    dt_bf16 *wire; // [elements], device memory; NULL where fp32 travels
    void *host;    // pinned copies; NULL where none are needed
    int64_t n_rows;
    struct bucket *buckets;
    int64_t n_buckets;
    int64_t next;       // the next bucket to leave: they leave in table order
    struct row *rows;   // [n_rows]
    bool *ready;        // [n_rows], in this step
    struct part *parts; // the sums, where there are any, then the buckets
    int64_t n_parts, n_sums_parts;
    int64_t left;    // parts that have left in this step
    int64_t boarded; // host path: parts whose all-reduce has begun
};

static dt_status check_config(const struct dt_buckets_config *config)
{
    int64_t end = 0;
    if (config->wire != DT_F32 && config->wire != DT_BF16)
        return DT_FAIL(DT_MACHINE, NULL, "gradients cannot travel as %s",
                       dt_dtype_name(config->wire));
    if (config->bucket_bytes < 1)
        return DT_FAIL(DT_MACHINE, NULL, "buckets of %lld bytes", (long long)config->bucket_bytes);
    for (int64_t row = 0; row < config->n_rows; row++) {
        if (config->row_ends[row] < end)
            return DT_FAIL(DT_MACHINE, NULL, "row %lld ends at %lld, before the one before it",
                           (long long)row, (long long)config->row_ends[row]);
        end = config->row_ends[row];
    }
    if (end != config->elements)
        return DT_FAIL(DT_MACHINE, NULL, "rows end at %lld, the arena at %lld", (long long)end,
                       (long long)config->elements);
    return DT_OK;
}

// Which buckets each row lies in. Both are in the order of the arena.
static void place_rows(struct dt_buckets *b, const struct dt_buckets_config *config,
                       const struct dt_bucket_span *spans)
{
    int64_t k = 0;
    for (int64_t row = 0, begin = 0; row < b->n_rows; begin = config->row_ends[row++]) {
        int64_t end = config->row_ends[row];
        if (end == begin)
            continue;
        while (spans[k].end <= begin)
            k++;
        b->rows[row] = (struct row){k, k};
        for (int64_t i = k; i < b->n_buckets && spans[i].start < end; i++) {
            b->rows[row].end = i + 1;
            b->buckets[i].missing = ++b->buckets[i].n_rows;
        }
    }
}

static struct part make_part(void *data, int64_t count, enum dt_dtype wire_type)
{
    return (struct part){.count = count, .wire_type = wire_type, .data = data, .wire = data};
}

static int64_t wire_bytes(const struct part *part)
{
    return part->count * dt_dtype_size(part->wire_type);
}

// The parts in the order in which they leave.
static void list_parts(struct dt_buckets *b, const struct dt_buckets_config *config,
                       const struct dt_bucket_span *spans)
{
    b->n_sums_parts = config->n_sums > 0;
    if (b->n_sums_parts)
        b->parts[b->n_parts++] = make_part(config->sums, config->n_sums, DT_F64);
    for (int64_t i = 0; i < b->n_buckets; i++) {
        int64_t start = spans[i].start, end = spans[i].end;
        struct part *part = &b->parts[b->n_parts++];
        *part = make_part(b->gradients + start, end - start, config->wire);
        if (b->wire)
            part->wire = b->wire + start;
    }
}

static void place_on_host(struct dt_buckets *b, struct dt_arena *arena)
{
    for (int64_t i = 0; i < b->n_parts; i++)
        b->parts[i].host = dt_arena_take(arena, wire_bytes(&b->parts[i]));
}

// Where the host does not read device memory, each part has its place in pinned memory.
static dt_status take_host_copies(struct dt_buckets *b)
{
    const struct dt_device_table *table = b->backend.table;
    if (table->unified) {
        for (int64_t i = 0; i < b->n_parts; i++)
            b->parts[i].host = b->parts[i].wire;
        return DT_OK;
    }
    struct dt_arena arena = dt_arena_measure();
    place_on_host(b, &arena);
    DT_TRY_NOTE(table->alloc_host(b->backend.device, arena.peak, (void **)&b->host),
                "pinning %.1f MiB for gradients on their way", (double)arena.peak / 0x1p20);
    arena = dt_arena_place(b->host, arena.peak);
    place_on_host(b, &arena);
    return DT_OK;
}

static dt_status take_events(struct dt_buckets *b)
{
    const struct dt_device_table *table = b->backend.table;
    DT_TRY(table->stream_create(b->backend.device, &b->stream));
    DT_TRY(table->event_create(b->backend.device, &b->arrived));
    for (int64_t i = 0; i < b->n_parts; i++) {
        DT_TRY(table->event_create(b->backend.device, &b->parts[i].ready));
        DT_TRY(table->event_create(b->backend.device, &b->parts[i].left));
    }
    return DT_OK;
}

static dt_status allocate_tables(struct dt_buckets *b)
{
    size_t rows = (size_t)b->n_rows + 1;       // calloc(0) may give NULL
    size_t buckets = (size_t)b->n_buckets + 1; // parts: the sums
    b->buckets = calloc(buckets, sizeof *b->buckets);
    b->parts = calloc(buckets, sizeof *b->parts);
    b->rows = calloc(rows, sizeof *b->rows);
    b->ready = calloc(rows, sizeof *b->ready);
    if (!b->buckets || !b->parts || !b->rows || !b->ready)
        return DT_FAIL(DT_MACHINE, NULL, "no memory for %lld buckets", (long long)b->n_buckets);
    return DT_OK;
}

static dt_status allocate(struct dt_buckets *b, const struct dt_buckets_config *config,
                          const struct dt_bucket_span *spans)
{
    int64_t bytes = dt_buckets_bytes(config, b->comm->info.size);
    DT_TRY(allocate_tables(b));
    place_rows(b, config, spans);
    if (b->alone)
        return DT_OK;
    if (bytes > 0)
        DT_TRY_NOTE(b->backend.table->alloc(b->backend.device, bytes, (void **)&b->wire),
                    "taking %.1f MiB for bf16 gradients on their way", (double)bytes / 0x1p20);
    list_parts(b, config, spans);
    if (!b->between_devices)
        DT_TRY(take_host_copies(b));
    return take_events(b);
}

static dt_status plan_and_allocate(struct dt_buckets *b, const struct dt_buckets_config *config)
{
    struct dt_bucket_plan_config plan = {.row_ends = config->row_ends,
                                         .n_rows = config->n_rows,
                                         .bucket_bytes = config->bucket_bytes,
                                         .staged =
                                             !b->between_devices && !b->backend.table->unified};
    struct dt_bucket_span *spans;
    DT_TRY(dt_bucket_plan(&plan, &spans, &b->n_buckets));
    dt_status status = allocate(b, config, spans);
    free(spans);
    return status;
}

dt_status dt_buckets_create(struct dt_comm *comm, const struct dt_backend *backend,
                            const struct dt_buckets_config *config, struct dt_buckets **result)
{
    struct dt_buckets *buckets;
    dt_status status;
    *result = NULL;
    DT_TRY(check_config(config));
    buckets = calloc(1, sizeof *buckets);
    if (!buckets)
        return DT_FAIL(DT_MACHINE, NULL, "no memory for buckets");
    *buckets = (struct dt_buckets){.comm = comm,
                                   .backend = *backend,
                                   .between_devices = config->between_devices,
                                   .alone = comm->info.size == 1,
                                   .caller = config->stream,
                                   .gradients = config->gradients,
                                   .n_rows = config->n_rows};
    DT_TRY_GOTO(status, fail, plan_and_allocate(buckets, config));
    *result = buckets;
    return DT_OK;
fail:
    dt_buckets_destroy(buckets);
    return status;
}

dt_status dt_buckets_connect(struct dt_buckets *b)
{
    if (!b->between_devices || b->alone)
        return DT_OK;
    struct dt_device_comm_config config = {
        .comm = b->comm, .backend = &b->backend, .n_collectives = (int)b->n_parts};
    return dt_device_comm_known->open(&config, &b->device_comm);
}

static void destroy_events(struct dt_buckets *b)
{
    const struct dt_device_table *table = b->backend.table;
    for (int64_t i = 0; i < b->n_parts; i++) {
        if (b->parts[i].ready)
            table->event_destroy(b->backend.device, b->parts[i].ready);
        if (b->parts[i].left)
            table->event_destroy(b->backend.device, b->parts[i].left);
    }
    if (b->arrived)
        table->event_destroy(b->backend.device, b->arrived);
    if (b->stream)
        table->stream_destroy(b->backend.device, b->stream);
}

void dt_buckets_destroy(struct dt_buckets *buckets)
{
    if (!buckets)
        return;
    if (buckets->device_comm)
        buckets->device_comm->table->close(buckets->device_comm);
    destroy_events(buckets);
    if (buckets->host)
        buckets->backend.table->free_host(buckets->backend.device, buckets->host);
    if (buckets->wire)
        buckets->backend.table->free(buckets->backend.device, buckets->wire);
    free(buckets->parts);
    free(buckets->ready);
    free(buckets->rows);
    free(buckets->buckets);
    free(buckets);
}

int64_t dt_buckets_count(const struct dt_buckets *buckets)
{
    return buckets->n_buckets;
}

int64_t dt_buckets_bytes(const struct dt_buckets_config *config, int n_ranks)
{
    if (config->wire == DT_F32 || n_ranks == 1) // a lone rank sends nothing
        return 0;
    return config->elements * (int64_t)sizeof(dt_bf16);
}

bool dt_buckets_can_be_captured(const struct dt_buckets *buckets)
{
    return buckets->alone || buckets->device_comm;
}

// Between `data` (fp32) and what travels, on the parts' own stream.
static dt_status convert(struct dt_buckets *b, const struct part *part, bool to_wire)
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

static dt_status leave_for_devices(struct dt_buckets *b, const struct part *part)
{
    DT_TRY(b->device_comm->table->allreduce(b->device_comm, (int)b->left, part->wire, part->count,
                                            part->wire_type, b->stream));
    return convert(b, part, false);
}

static dt_status leave_for_host(struct dt_buckets *b, const struct part *part)
{
    const struct dt_device_table *table = b->backend.table;
    if (part->host != part->wire)
        DT_TRY(
            table->to_host(b->backend.device, part->host, part->wire, wire_bytes(part), b->stream));
    return table->event_record(b->backend.device, part->left, b->stream);
}

// Begins the all-reduces of parts that have come to the host, in the order in which they left.
// Waits for those on their way, or not.
static dt_status board(struct dt_buckets *b, bool wait)
{
    const struct dt_device_table *table = b->backend.table;
    for (; b->boarded < b->left; b->boarded++) {
        struct part *part = &b->parts[b->boarded];
        bool there = true;
        if (wait)
            DT_TRY(table->event_sync(b->backend.device, part->left));
        else
            DT_TRY(table->event_done(b->backend.device, part->left, &there));
        if (!there)
            return DT_OK;
        DT_TRY(dt_allreduce_begin(b->comm, part->host, part->count, part->wire_type, DT_SUM,
                                  &part->request));
    }
    return DT_OK;
}

static dt_status leave(struct dt_buckets *b)
{
    if (b->alone)
        return DT_OK;
    if (b->between_devices && !b->device_comm)
        return DT_FAIL(DT_MACHINE, NULL, "buckets were never connected");
    const struct dt_device_table *table = b->backend.table;
    struct part *part = &b->parts[b->left];
    DT_TRY(table->event_record(b->backend.device, part->ready, b->caller));
    DT_TRY(table->stream_wait(b->backend.device, b->stream, part->ready));
    DT_TRY(convert(b, part, true));
    DT_TRY(b->device_comm ? leave_for_devices(b, part) : leave_for_host(b, part));
    b->left++;
    return b->device_comm ? DT_OK : board(b, false);
}

dt_status dt_buckets_sums_ready(struct dt_buckets *b)
{
    if (b->alone)
        return DT_OK;
    if (b->left > 0 || b->n_sums_parts == 0)
        return DT_FAIL(DT_MACHINE, NULL, "the sums of a step were announced %s",
                       b->left > 0 ? "twice, or behind a bucket" : "and are none");
    return leave(b);
}

dt_status dt_buckets_ready(struct dt_buckets *buckets, int64_t row)
{
    if (row < 0 || row >= buckets->n_rows || buckets->ready[row])
        return DT_FAIL(DT_MACHINE, NULL, "gradient row %lld of %lld was announced %s",
                       (long long)row, (long long)buckets->n_rows,
                       row < 0 || row >= buckets->n_rows ? "and is none" : "twice in a step");
    buckets->ready[row] = true;
    for (int64_t i = buckets->rows[row].first; i < buckets->rows[row].end; i++)
        buckets->buckets[i].missing--;
    if (buckets->left < buckets->n_sums_parts)
        return DT_FAIL(DT_MACHINE, NULL, "gradient row %lld was announced before the step's sums",
                       (long long)row);
    // In table order even where rows come otherwise: every rank must begin them alike.
    while (buckets->next < buckets->n_buckets && buckets->buckets[buckets->next].missing == 0) {
        DT_TRY(leave(buckets));
        buckets->next++;
    }
    return DT_OK;
}

static dt_status check_all_left(const struct dt_buckets *buckets)
{
    for (int64_t row = 0; row < buckets->n_rows; row++)
        if (!buckets->ready[row])
            return DT_FAIL(DT_MACHINE, NULL, "the gradient of row %lld was never announced",
                           (long long)row);
    if (buckets->left < buckets->n_parts)
        return DT_FAIL(DT_MACHINE, NULL, "the sums of a step were never announced");
    return DT_OK;
}

static dt_status return_from_host(struct dt_buckets *b, struct part *part)
{
    struct dt_request *request = part->request;
    part->request = NULL;
    DT_TRY(dt_wait(b->comm, request));
    if (part->host != part->wire)
        DT_TRY(b->backend.table->to_device(b->backend.device, part->wire, part->host,
                                           wire_bytes(part), b->stream));
    return convert(b, part, false);
}

static dt_status collect(struct dt_buckets *b)
{
    const struct dt_device_table *table = b->backend.table;
    if (!b->device_comm) {
        DT_TRY(board(b, true));
        for (int64_t i = 0; i < b->n_parts; i++)
            DT_TRY(return_from_host(b, &b->parts[i]));
    }
    DT_TRY(table->event_record(b->backend.device, b->arrived, b->stream));
    return table->stream_wait(b->backend.device, b->caller, b->arrived);
}

dt_status dt_buckets_wait(struct dt_buckets *buckets)
{
    DT_TRY(check_all_left(buckets));
    if (!buckets->alone)
        DT_TRY(collect(buckets));
    for (int64_t i = 0; i < buckets->n_buckets; i++)
        buckets->buckets[i].missing = buckets->buckets[i].n_rows;
    memset(buckets->ready, 0, (size_t)buckets->n_rows * sizeof *buckets->ready);
    buckets->next = buckets->left = buckets->boarded = 0;
    return DT_OK;
}

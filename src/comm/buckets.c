// Gradient buckets, in the order in which a step walks through them. A row becomes ready. The
// bucket that it completes is sent: between devices by one collective on the buckets' stream;
// through the host by a copy, whose collective is posted to the communicator as soon as the copy is
// there. dt_buckets_wait brings the sums back. Each bucket is one part of a step's traffic, and the
// fp64 sums are the first part. Where the optimizer is sharded, more phases follow: the norms,
// which are one part, and the buckets of weights, those that a forward pass reads first before
// others. If these are bf16 copies, the fp32 weights beside them come before: as one packed array,
// zero but for this rank's own, whose bits are summed over ranks. A phase of its own gathers the
// masters, and another one the gradients, if they are gathered.
#include "comm/buckets.h"

#include "base/memory.h"
#include "comm/bucket_plan.h"
#include "comm/device_comm.h"
#include "comm/selftest.h"
#include "kernels/sum_squares.h"

// The data of one collective.
struct part {
    enum dt_operation operation; // with blocks (DT_REDUCE_SCATTER, DT_ALL_GATHER): one a rank
    int64_t n_rows, missing; // rows that it holds (the sums: 1), and those not ready in this step
    int64_t elements;        // of all blocks
    struct dt_span out, in;  // elements that its collective reads and gives on this rank
    enum dt_dtype wire_type;
    void *data;             // what is summed or gathered, device memory
    void *wire;             // `data` itself, or its copy in the type of the wire; device memory
    void *host;             // `wire` itself, or its copy in pinned memory; host path only
    dt_bf16 *copy;          // of what was gathered, or NULL; device memory
    struct dt_span packed;  // of the arena: its fp32 weights come from `packed` with this part
    struct dt_event *ready; // on the caller's stream: `data` is final
    struct dt_event *sent;  // on the own stream: `host` holds it; later: what came is in `data`
    struct dt_request *request;
};

// A phase sends parts [first, end), in this order.
struct phase {
    int64_t first, end;
    int64_t sent;     // parts before this one are sent in this step
    int64_t posted;   // host path: … and their collectives have begun
    int64_t received; // … and the caller's stream waits for them
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
    dt_bf16 *wire;            // [elements], device memory; NULL where fp32 travels
    float *packed;            // [masters.elements], device memory; NULL where not needed
    char *host;               // pinned copies of all parts; NULL where none are needed
    struct row *rows;
    struct part *parts;                              // of all phases
    struct phase gradients, norms, weights, masters; // the last two may be the same parts
    struct phase updates;                            // the gathered gradients
    int64_t n_sums_parts; // first of the gradients' phase: the sums, where there are any
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
    if (b->gradients.sent < b->n_sums_parts)
        return DT_FAIL(DT_MACHINE, NULL, "gradient row %lld was announced before the step's sums",
                       (long long)row);
    b->rows[row].ready = true;
    for (int64_t i = b->rows[row].first; i < b->rows[row].end; i++)
        b->parts[i].missing--;
    return send_complete(b);
}

// ---- … sent …

// Copies what `span` is of a part between its places on the device and on the host, if these
// differ.
static dt_status copy(struct dt_buckets *b, const struct part *part, struct dt_span span,
                      bool to_host)
{
    int64_t each = dt_dtype_size(part->wire_type), bytes = (span.end - span.first) * each;
    char *host = (char *)part->host + span.first * each;
    char *wire = (char *)part->wire + span.first * each;
    if (host == wire)
        return DT_OK;
    return to_host ? dt_to_host(&b->backend, host, wire, bytes, b->stream)
                   : dt_to_device(&b->backend, wire, host, bytes, b->stream);
}

// Converts between fp32 and bf16, on the buckets' stream.
static dt_status cast(struct dt_buckets *b, struct dt_span span, void *x, enum dt_dtype x_type,
                      void *y, enum dt_dtype y_type)
{
    struct dt_cast_args args = {.n = span.end - span.first,
                                .x = (char *)x + span.first * dt_dtype_size(x_type),
                                .x_type = x_type,
                                .y = (char *)y + span.first * dt_dtype_size(y_type),
                                .y_type = y_type};
    return dt_cast(&b->backend, &args, b->stream);
}

// Copies the fp32 weights that travel packed, as far as elements [first, end) of the arena have
// any.
static dt_status copy_packed(struct dt_buckets *b, int64_t first, int64_t end, bool pack)
{
    const struct dt_pieces *masters = &b->config.masters;
    for (struct dt_held h = {0}; dt_pieces_next(masters, masters->n, first, end, &h);) {
        float *weights = b->config.weights + h.first, *packed = b->packed + h.at;
        DT_TRY(dt_copy(&b->backend, pack ? packed : weights, pack ? weights : packed,
                       (h.end - h.first) * (int64_t)sizeof *packed, b->stream));
    }
    return DT_OK;
}

// Brings what is sent to the wire.
static dt_status pack(struct dt_buckets *b, const struct part *part)
{
    if (part->data == b->packed) {
        int64_t bytes = b->config.masters.elements * (int64_t)sizeof *b->packed;
        DT_TRY(dt_fill(&b->backend, b->packed, 0, bytes, b->stream));
        for (int64_t i = b->weights.first + 1; i < b->weights.end; i++) {
            const struct part *copies = &b->parts[i];
            DT_TRY(copy_packed(b, copies->packed.first + copies->out.first,
                               copies->packed.first + copies->out.end, true));
        }
    }
    return part->wire == part->data
               ? DT_OK
               : cast(b, part->out, part->data, DT_F32, part->wire, part->wire_type);
}

// Brings what the collective gave to where it belongs.
static dt_status unpack(struct dt_buckets *b, const struct part *part)
{
    if (part->wire != part->data)
        DT_TRY(cast(b, part->in, part->wire, part->wire_type, part->data, DT_F32));
    DT_TRY(copy_packed(b, part->packed.first, part->packed.end, false));
    return part->copy ? cast(b, part->in, part->data, DT_F32, part->copy, DT_BF16) : DT_OK;
}

static struct dt_collective collective(const struct dt_buckets *b, const struct part *part,
                                       void *data)
{
    return (struct dt_collective){
        .operation = part->operation,
        .reduce = DT_SUM,
        .dtype = part->wire_type,
        .count = part->elements / (part->operation == DT_ALLREDUCE ? 1 : b->comm->info.size),
        .data = data,
        .order = part->wire_type == DT_I64 || part->operation == DT_ALL_GATHER ? DT_SUM_FAST
                                                                               : b->config.order};
}

// Posts the parts whose copies have arrived on the host, in the order in which they were sent. With
// `wait` it waits for the copies, and posts all parts that were sent.
static dt_status post(struct dt_buckets *b, struct phase *phase, bool wait)
{
    for (; phase->posted < phase->sent; phase->posted++) {
        struct part *part = &b->parts[phase->posted];
        bool arrived = true;
        if (wait)
            DT_TRY(dt_event_sync(&b->backend, part->sent));
        else
            DT_TRY(dt_event_done(&b->backend, part->sent, &arrived));
        if (!arrived)
            return DT_OK;
        struct dt_collective call = collective(b, part, part->host);
        DT_TRY(dt_begin(b->comm, &call, &part->request));
    }
    return DT_OK;
}

// Devices that sum among themselves keep some multiprocessors for it: ops leave these free from the
// first part of the gradients that is sent to the wait for all of them. Both are fixed places in a
// step: what is in flight in between never changes a bit. Weights that are gathered do not count:
// after a checkpoint a step gathers none. Sums in the order DT_SUM_TREE give the same bits alone,
// where nothing is shared.
static void share(struct dt_buckets *b, bool on)
{
    if (b->device_comm && b->config.order == DT_SUM_FAST && b->backend.table->share)
        b->backend.table->share(b->backend.device, on);
}

static dt_status send_next(struct dt_buckets *b, struct phase *phase)
{
    int64_t i = phase->sent++;
    const struct part *part = &b->parts[i];
    if (b->alone)
        return DT_OK;
    if (b->config.between_devices && !b->device_comm)
        return DT_FAIL(DT_MACHINE, NULL, "buckets were never connected");
    DT_TRY(dt_event_record(&b->backend, part->ready, b->config.stream));
    DT_TRY(dt_stream_wait(&b->backend, b->stream, part->ready));
    DT_TRY(pack(b, part));
    if (b->device_comm) {
        struct dt_collective call = collective(b, part, part->wire);
        DT_TRY(b->device_comm->table->enqueue(b->device_comm, (int)i, &call, b->stream));
        DT_TRY(unpack(b, part));
    } else
        DT_TRY(copy(b, part, part->out, true));
    return dt_event_record(&b->backend, part->sent, b->stream);
}

static dt_status post_some(struct dt_buckets *b, struct phase *phase)
{
    return b->alone || b->device_comm ? DT_OK : post(b, phase, false);
}

// Sends in table order even where rows become ready in another: every rank must begin its
// collectives in the same order.
static dt_status send_complete(struct dt_buckets *b)
{
    struct phase *phase = &b->gradients;
    while (phase->sent < phase->end && b->parts[phase->sent].missing == 0) {
        share(b, true);
        DT_TRY(send_next(b, phase));
    }
    return post_some(b, phase);
}

// ---- … and summed

// Makes the caller's stream wait for the parts of a phase before `end`, all of which were sent.
static dt_status receive(struct dt_buckets *b, struct phase *phase, int64_t end)
{
    if (b->alone || phase->received >= end)
        return DT_OK;
    const struct part *last = &b->parts[end - 1];
    if (!b->device_comm) {
        DT_TRY(post(b, phase, true));
        for (struct part *part = b->parts + phase->received; part <= last; part++) {
            struct dt_request *request = part->request;
            part->request = NULL;
            DT_TRY(dt_wait(b->comm, request));
            DT_TRY(copy(b, part, part->in, false));
            DT_TRY(unpack(b, part));
        }
        DT_TRY(dt_event_record(&b->backend, last->sent, b->stream));
    }
    phase->received = end;
    return dt_stream_wait(&b->backend, b->config.stream, last->sent); // and so for those before it
}

// Receives all of a phase, which can then be sent again.
static dt_status collect(struct dt_buckets *b, struct phase *phase)
{
    DT_TRY(receive(b, phase, phase->end));
    phase->sent = phase->posted = phase->received = phase->first;
    return DT_OK;
}

dt_status dt_buckets_wait(struct dt_buckets *b)
{
    for (int64_t row = 0; row < b->config.n_rows; row++)
        if (!b->rows[row].ready)
            return DT_FAIL(DT_MACHINE, NULL, "the gradient of row %lld was never announced",
                           (long long)row);
    if (b->gradients.sent < b->gradients.end)
        return DT_FAIL(DT_MACHINE, NULL, "the sums of a step were never announced");
    DT_TRY(collect(b, &b->gradients));
    share(b, false);
    for (int64_t i = b->gradients.first; i < b->gradients.end; i++)
        b->parts[i].missing = b->parts[i].n_rows;
    for (int64_t row = 0; row < b->config.n_rows; row++)
        b->rows[row].ready = false;
    return DT_OK;
}

dt_status dt_buckets_sum_norms(struct dt_buckets *b)
{
    if (b->norms.sent < b->norms.end)
        DT_TRY(send_next(b, &b->norms));
    return collect(b, &b->norms);
}

dt_status dt_buckets_gather_gradients(struct dt_buckets *b)
{
    while (b->updates.sent < b->updates.end)
        DT_TRY(send_next(b, &b->updates));
    return collect(b, &b->updates);
}

static dt_status gather(struct dt_buckets *b, struct phase *phase)
{
    if (b->weights.sent > b->weights.first)
        return DT_FAIL(DT_MACHINE, NULL, "weights are gathered while they are gathered");
    while (phase->sent < phase->end)
        DT_TRY(send_next(b, phase));
    return post_some(b, phase);
}

dt_status dt_buckets_gather(struct dt_buckets *b)
{
    return gather(b, &b->weights);
}

dt_status dt_buckets_need(struct dt_buckets *b, int64_t row)
{
    while (row < b->config.n_rows && b->rows[row].first == b->rows[row].end) // empty
        row++;
    if (row == b->config.n_rows || b->weights.sent == b->weights.first)
        return DT_OK;
    // Of bucket k comes part `end` - 1 - k; a bucket that all ranks hold has none.
    int64_t bucket = b->rows[row].first - b->n_sums_parts;
    return receive(b, &b->weights, b->weights.end - bucket);
}

dt_status dt_buckets_gathered(struct dt_buckets *b)
{
    if (b->weights.sent < b->weights.end)
        return DT_FAIL(DT_MACHINE, NULL, "weights were never gathered");
    return collect(b, &b->weights);
}

dt_status dt_buckets_gather_masters(struct dt_buckets *b)
{
    DT_TRY(gather(b, &b->masters));
    return collect(b, &b->masters);
}

// ---- creation

static dt_status check_config(const struct dt_buckets_config *config)
{
    int64_t end = 0;
    bool ascends = true,
         copied = !config->shard || (config->storage == DT_BF16) == !!config->copies;
    for (int64_t row = 0; row < config->n_rows; end = config->row_ends[row++])
        ascends &= config->row_ends[row] >= end;
    if ((config->wire == DT_F32 || config->wire == DT_BF16) && config->bucket_bytes >= 1 &&
        ascends && end == config->elements && copied)
        return DT_OK;
    return DT_FAIL(DT_MACHINE, NULL,
                   "impossible buckets: %lld bytes of %s, rows that end at %lld of %lld%s%s",
                   (long long)config->bucket_bytes, dt_dtype_name(config->wire), (long long)end,
                   (long long)config->elements, ascends ? "" : ", one before the previous row",
                   copied ? "" : ", copies that storage does not have");
}

static struct phase phase_from(int64_t first)
{
    return (struct phase){
        .first = first, .end = first, .sent = first, .posted = first, .received = first};
}

static struct part *append(struct dt_buckets *b, struct phase *phase, struct part part)
{
    int64_t rank = b->comm->info.rank, each = part.elements / b->comm->info.size;
    struct dt_span all = {0, part.elements}, block = {rank * each, (rank + 1) * each};
    part.out = part.operation == DT_ALL_GATHER ? block : all;
    part.in = part.operation == DT_REDUCE_SCATTER ? block : all;
    b->parts[phase->end] = part;
    return &b->parts[phase->end++];
}

static bool is_sharded(const struct dt_buckets_config *config, int n_ranks)
{
    return config->shard && n_ranks > 1;
}

static int64_t sharded_elements(const struct dt_buckets_config *config, int n_ranks)
{
    return is_sharded(config, n_ranks) ? dt_bucket_sharded(config->elements, n_ranks) : 0;
}

// Returns the bytes of the fp32 weights that travel beside bf16 copies.
static int64_t packed_bytes(const struct dt_buckets_config *config, int n_ranks)
{
    if (config->storage == DT_F32 || sharded_elements(config, n_ranks) == 0)
        return 0;
    return config->masters.elements * (int64_t)sizeof(float);
}

// A part of what is never rounded and stays where it is.
static struct part in_place(enum dt_operation operation, void *data, int64_t n, enum dt_dtype type)
{
    return (struct part){
        .operation = operation, .elements = n, .wire_type = type, .data = data, .wire = data};
}

// Lists the parts in the order in which they are sent, at most 4 n + 3.
static void list_parts(struct dt_buckets *b, const struct dt_span *spans, int64_t n)
{
    const struct dt_buckets_config *config = &b->config;
    int n_ranks = b->comm->info.size;
    int64_t sharded = sharded_elements(config, n_ranks);
    b->gradients = phase_from(0);
    if (config->n_sums > 0) {
        struct part *sums =
            append(b, &b->gradients, in_place(DT_ALLREDUCE, config->sums, config->n_sums, DT_F64));
        sums->n_rows = sums->missing = 1;
    }
    b->n_sums_parts = b->gradients.end;
    for (const struct dt_span *span = spans; span < spans + n; span++) {
        float *data = config->gradients + span->first;
        append(b, &b->gradients,
               (struct part){.operation = span->first < sharded ? DT_REDUCE_SCATTER : DT_ALLREDUCE,
                             .elements = span->end - span->first,
                             .wire_type = config->wire,
                             .data = data,
                             .wire = b->wire ? (void *)(b->wire + span->first) : data});
    }
    b->norms = phase_from(b->gradients.end);
    if (is_sharded(config, n_ranks))
        append(b, &b->norms, in_place(DT_ALLREDUCE, config->norms, config->n_norms, DT_F64));
    while (n > 0 && spans[n - 1].first >= sharded)
        n--;
    b->weights = phase_from(b->norms.end);
    if (b->packed)
        append(b, &b->weights,
               in_place(DT_ALLREDUCE, b->packed, config->masters.elements / 2, DT_I64));
    for (int64_t i = n - 1; i >= 0 && config->copies; i--)
        append(b, &b->weights,
               in_place(DT_ALL_GATHER, config->copies + spans[i].first,
                        spans[i].end - spans[i].first, DT_BF16))
            ->packed = spans[i];
    b->masters = phase_from(b->weights.end);
    for (int64_t i = n - 1; i >= 0; i--)
        append(b, &b->masters,
               in_place(DT_ALL_GATHER, config->weights + spans[i].first,
                        spans[i].end - spans[i].first, DT_F32))
            ->copy = config->copies ? config->copies + spans[i].first : NULL;
    b->updates = phase_from(b->masters.end);
    for (int64_t i = n - 1; i >= 0 && config->gathers_gradients; i--)
        append(b, &b->updates,
               in_place(DT_ALL_GATHER, config->gradients + spans[i].first,
                        spans[i].end - spans[i].first, DT_F32));
    if (!config->copies)
        b->weights = b->masters;
}

// The most that devices sum at once by a tree: a bucket, which a cut at norm blocks may lengthen.
static int64_t tree_bytes(const struct dt_buckets_config *config, int n_ranks)
{
    if (config->order != DT_SUM_TREE || !config->between_devices || n_ranks == 1)
        return 0;
    int64_t row = config->largest_row * (int64_t)sizeof(float);
    int64_t moved = n_ranks * DT_NORM_BLOCK * (int64_t)sizeof(float);
    return dt_max_i64(config->n_sums * (int64_t)sizeof(double),
                      dt_max_i64(config->bucket_bytes, row) +
                          (is_sharded(config, n_ranks) ? moved : 0));
}

int64_t dt_buckets_tree_bytes(const struct dt_buckets_config *config, int n_ranks)
{
    return dt_device_comm_scratch(tree_bytes(config, n_ranks));
}

static int64_t wire_bytes(const struct dt_buckets_config *config, int n_ranks)
{
    if (config->wire == DT_F32 || n_ranks == 1) // a lone rank sends nothing
        return 0;
    return config->elements * (int64_t)sizeof(dt_bf16);
}

int64_t dt_buckets_bytes(const struct dt_buckets_config *config, int n_ranks)
{
    return wire_bytes(config, n_ranks) + packed_bytes(config, n_ranks);
}

// Returns the larger of two sizes: what a forward pass reads, and the masters. They share the
// memory, since they never travel at the same time.
static int64_t host_weights_bytes(const struct dt_buckets_config *config, int n_ranks)
{
    int64_t sharded = sharded_elements(config, n_ranks);
    int64_t copies = packed_bytes(config, n_ranks) + sharded * (int64_t)sizeof *config->copies;
    return dt_max_i64(copies, sharded * (int64_t)sizeof *config->weights);
}

int64_t dt_buckets_host_bytes(const struct dt_buckets_config *config,
                              const struct dt_backend *backend, int n_ranks)
{
    if (n_ranks == 1 || config->between_devices || backend->table->unified)
        return 0;
    int64_t bytes = config->n_sums * (int64_t)sizeof *config->sums +
                    config->elements * dt_dtype_size(config->wire);
    if (is_sharded(config, n_ranks))
        bytes +=
            config->n_norms * (int64_t)sizeof *config->norms + host_weights_bytes(config, n_ranks);
    return bytes;
}

// Creates the memory and events of the parts, where there is another rank to send them to.
static dt_status equip_parts(struct dt_buckets *b)
{
    int64_t bytes = dt_buckets_host_bytes(&b->config, &b->backend, b->comm->info.size);
    int64_t used = 0, weights = 0; // where those begin
    if (bytes > 0)
        DT_TRY_NOTE(dt_alloc_host(&b->backend, bytes, &b->host),
                    "pinning %.1f MiB for gradient buckets", (double)bytes / 0x1p20);
    DT_TRY(dt_stream_create_urgent(&b->backend, &b->stream));
    for (int64_t i = 0; i < b->updates.end; i++) {
        struct part *part = &b->parts[i];
        if (i == b->norms.end)
            weights = used;
        if (i == b->masters.first || i == b->updates.first) // these never travel together
            used = weights;
        part->host = b->host ? b->host + used : part->wire;
        used += part->elements * dt_dtype_size(part->wire_type);
        DT_TRY(dt_event_create(&b->backend, &part->ready));
        DT_TRY(dt_event_create(&b->backend, &part->sent));
    }
    return DT_OK;
}

static dt_status build(struct dt_buckets *b, const int64_t *row_ends, const struct dt_span *spans,
                       int64_t n)
{
    int64_t bytes = wire_bytes(&b->config, b->comm->info.size);
    int64_t packed = packed_bytes(&b->config, b->comm->info.size);
    DT_TRY(DT_NEW(&b->parts, 4 * n + 3, "%lld buckets", (long long)n));
    DT_TRY(DT_NEW(&b->rows, b->config.n_rows + 1, "%lld rows in buckets",
                  (long long)b->config.n_rows));
    if (bytes > 0)
        DT_TRY_NOTE(dt_alloc(&b->backend, bytes, &b->wire),
                    "allocating %.1f MiB for bf16 gradient buckets", (double)bytes / 0x1p20);
    if (packed > 0)
        DT_TRY_NOTE(dt_alloc(&b->backend, packed, &b->packed),
                    "allocating %.1f MiB for fp32 weights to be gathered", (double)packed / 0x1p20);
    list_parts(b, spans, n);
    // Which parts hold each row; both are in the order of the arena.
    int64_t k = b->n_sums_parts, sums = k;
    for (int64_t row = 0, begin = 0; row < b->config.n_rows; begin = row_ends[row++]) {
        int64_t end = row_ends[row];
        if (end == begin)
            continue;
        while (spans[k - sums].end <= begin)
            k++;
        b->rows[row] = (struct row){.first = k, .end = k};
        for (int64_t i = k; i < b->gradients.end && spans[i - sums].first < end; i++) {
            b->rows[row].end = i + 1;
            b->parts[i].missing = ++b->parts[i].n_rows;
        }
    }
    return b->alone ? DT_OK : equip_parts(b);
}

static struct dt_bucket_plan_config plan_config(const struct dt_buckets_config *config,
                                                const struct dt_backend *backend, int n_ranks)
{
    return (struct dt_bucket_plan_config){.row_ends = config->row_ends,
                                          .n_rows = config->n_rows,
                                          .bucket_bytes = config->bucket_bytes,
                                          .staged =
                                              !config->between_devices && !backend->table->unified,
                                          .n_ranks = is_sharded(config, n_ranks) ? n_ranks : 1};
}

int64_t dt_buckets_held(const struct dt_buckets_config *config, int n_ranks)
{
    int64_t sharded = sharded_elements(config, n_ranks);
    return config->elements - sharded + sharded / n_ranks;
}

dt_status dt_buckets_pieces(const struct dt_buckets_config *config,
                            const struct dt_backend *backend, const struct dt_comm_info *info,
                            struct dt_pieces *pieces)
{
    struct dt_bucket_plan_config plan = plan_config(config, backend, info->size);
    return dt_bucket_pieces(&plan, info->rank, pieces);
}

dt_status dt_buckets_create(struct dt_comm *comm, const struct dt_backend *backend,
                            const struct dt_buckets_config *config, struct dt_buckets **result)
{
    struct dt_bucket_plan_config plan = plan_config(config, backend, comm->info.size);
    struct dt_span *spans = NULL;
    int64_t n;
    *result = NULL;
    DT_TRY(check_config(config));
    struct dt_buckets *b;
    DT_TRY(DT_NEW(&b, 1, "buckets"));
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
    bool test = b->config.selftest && !b->alone;
    if (test)
        DT_TRY(dt_comm_selftest(b->comm));
    if (!b->config.between_devices || b->alone)
        return DT_OK;
    struct dt_device_comm_config config = {.comm = b->comm,
                                           .backend = &b->backend,
                                           .n_collectives = (int)b->updates.end,
                                           .tree_bytes =
                                               tree_bytes(&b->config, b->comm->info.size)};
    DT_TRY(dt_device_comm_known->open(&config, &b->device_comm));
    if (test)
        DT_TRY(dt_device_comm_selftest(&config, b->device_comm));
    return DT_OK;
}

void dt_buckets_destroy(struct dt_buckets *b)
{
    if (!b)
        return;
    if (b->device_comm)
        b->device_comm->table->close(b->device_comm);
    for (int64_t i = 0; i < b->updates.end; i++) {
        dt_event_destroy(&b->backend, b->parts[i].ready);
        dt_event_destroy(&b->backend, b->parts[i].sent);
    }
    dt_stream_destroy(&b->backend, b->stream);
    dt_free_host(&b->backend, b->host);
    dt_free(&b->backend, b->wire);
    dt_free(&b->backend, b->packed);
    free(b->parts);
    free(b->rows);
    free(b);
}

int64_t dt_buckets_count(const struct dt_buckets *b)
{
    return b->gradients.end - b->n_sums_parts;
}

bool dt_buckets_can_be_captured(const struct dt_buckets *b)
{
    return b->alone || b->device_comm;
}

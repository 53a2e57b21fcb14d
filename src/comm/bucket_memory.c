// Creates the buckets of a run: memory, and the parts of all phases.
#include "base/memory.h"
#include "comm/bucket_parts.h"
#include "comm/bucket_plan.h"
#include "comm/selftest.h"
#include "kernels/sum_squares.h"

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

static struct phase phase_after(const struct phase *before)
{
    return (struct phase){before->end, before->end};
}

static struct part *append(struct dt_buckets *b, struct phase *phase, struct part part)
{
    int64_t rank = b->comm->info.rank, each = part.elements / b->comm->info.size;
    struct dt_span all = {0, part.elements}, block = {rank * each, (rank + 1) * each};
    part.out = part.operation == DT_ALL_GATHER ? block : all;
    part.in = part.operation == DT_REDUCE_SCATTER ? block : all;
    b->parts[phase->end] = part;
    b->n_parts = phase->end + 1;
    return &b->parts[phase->end++];
}

static bool is_sharded(const struct dt_buckets_config *config, int n_ranks)
{
    return config->shard && n_ranks > 1;
}

// Whether the weights that a pass reads are in a ring.
static bool spreads_weights(const struct dt_buckets_config *config)
{
    return config->shard >= DT_SHARD_WEIGHTS && config->ring.n > 0;
}

// Number of sharded elements; 0 on one rank.
static int64_t sharded_elements(const struct dt_buckets_config *config, int n_ranks)
{
    return is_sharded(config, n_ranks) ? dt_bucket_sharded(config->elements, n_ranks) : 0;
}

// Bytes of the fp32 weights that are sent with bf16 copies.
static int64_t packed_bytes(const struct dt_buckets_config *config, int n_ranks)
{
    if (config->storage == DT_F32 || sharded_elements(config, n_ranks) == 0 ||
        spreads_weights(config))
        return 0; // otherwise a pass reads the weights themselves
    return config->masters.elements * (int64_t)sizeof(float);
}

// A part that is never rounded and is sent in place.
static struct part in_place(enum dt_operation operation, void *data, int64_t n, enum dt_dtype type)
{
    return (struct part){
        .operation = operation, .elements = n, .wire_type = type, .data = data, .wire = data};
}

// Adds the gradients of a bucket: in the whole array, or in a unit's slot with this rank's block
// from `held` on in a separate array.
static void add_gradients(struct dt_buckets *b, const struct dt_span *span,
                          const struct dt_unit *unit, int64_t held, bool sharded)
{
    int64_t at = unit ? dt_ring_at(unit, span->first) : span->first;
    float *data = b->config.gradients + at;
    append(b, &b->gradients,
           (struct part){.operation = sharded ? DT_REDUCE_SCATTER : DT_ALLREDUCE,
                         .elements = span->end - span->first,
                         .wire_type = b->config.wire,
                         .data = data,
                         .wire = b->wire ? (void *)(b->wire + at) : data,
                         .own = unit ? b->config.own + held : NULL,
                         .first = span->first,
                         .held = held});
}

// With DT_SHARD_WEIGHTS a bucket's gathered weights have the same position in their ring as its
// gradients in theirs.
static void add_spread_weights(struct dt_buckets *b, const struct part *gradients)
{
    const struct dt_buckets_config *config = &b->config;
    int64_t at = (float *)gradients->data - config->gradients, held = gradients->held;
    struct part part =
        config->copies ? in_place(DT_ALL_GATHER, config->copies + at, gradients->elements, DT_BF16)
                       : in_place(DT_ALL_GATHER, config->weights + at, gradients->elements, DT_F32);
    part.own = config->copies ? (void *)(config->own_copies + held) : config->own_weights + held;
    append(b, &b->weights, part);
}

// Lists the parts in the order in which they are sent, at most 4 n + 3.
static void list_parts(struct dt_buckets *b, const struct dt_span *spans, int64_t n)
{
    const struct dt_buckets_config *config = &b->config;
    const struct dt_ring *ring = &config->ring;
    int n_ranks = b->comm->info.size;
    int64_t sharded = sharded_elements(config, n_ranks), held = 0, unit = 0;
    const bool spread = spreads_weights(config);
    if (config->n_sums > 0)
        append(b, &b->sums, in_place(DT_ALLREDUCE, config->sums, config->n_sums, DT_F64));
    b->gradients = phase_after(&b->sums);
    for (const struct dt_span *span = spans; span < spans + n; span++) {
        for (; unit < ring->n && ring->units[unit].first <= span->first; unit++)
            b->units[unit] = phase_after(&b->gradients);
        bool owned = span->first < sharded;
        add_gradients(b, span, unit > 0 ? &ring->units[unit - 1] : NULL, held, owned);
        if (unit > 0)
            b->units[unit - 1].end = b->gradients.end;
        held += (span->end - span->first) / (owned ? n_ranks : 1);
        b->n_sharded += owned;
    }
    n = b->n_sharded;
    b->norms = phase_after(&b->gradients);
    if (is_sharded(config, n_ranks))
        append(b, &b->norms, in_place(DT_ALLREDUCE, config->norms, config->n_norms, DT_F64));
    b->weights = phase_after(&b->norms);
    if (b->packed)
        append(b, &b->weights,
               in_place(DT_ALLREDUCE, b->packed, config->masters.elements / 2, DT_I64));
    for (int64_t i = n - 1; i >= 0 && spread; i--)
        add_spread_weights(b, &b->parts[b->gradients.first + i]);
    for (int64_t i = n - 1; i >= 0 && config->copies && !spread; i--)
        append(b, &b->weights,
               in_place(DT_ALL_GATHER, config->copies + spans[i].first,
                        spans[i].end - spans[i].first, DT_BF16))
            ->packed = spans[i];
    b->masters = phase_after(&b->weights);
    for (int64_t i = n - 1; i >= 0 && !spread; i--)
        append(b, &b->masters,
               in_place(DT_ALL_GATHER, config->weights + spans[i].first,
                        spans[i].end - spans[i].first, DT_F32))
            ->copy = config->copies ? config->copies + spans[i].first : NULL;
    b->updates = phase_after(&b->masters);
    for (int64_t i = n - 1; i >= 0 && config->gathers_gradients; i--) {
        const struct part gradients = b->parts[b->gradients.first + i];
        append(b, &b->updates, in_place(DT_ALL_GATHER, gradients.data, gradients.elements, DT_F32))
            ->own = gradients.own;
    }
    if (!config->copies && !spread)
        b->weights = b->masters;
}

// The largest sum by a tree between devices: a bucket, which a cut at norm blocks may lengthen.
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
    if (config->wire == DT_F32 || n_ranks == 1) // a single rank sends nothing
        return 0;
    int64_t elements = config->ring.n > 0 ? config->ring.elements : config->elements;
    return elements * (int64_t)sizeof(dt_bf16);
}

int64_t dt_buckets_bytes(const struct dt_buckets_config *config, int n_ranks)
{
    return wire_bytes(config, n_ranks) + packed_bytes(config, n_ranks);
}

// The larger of the bytes that a forward pass reads and of the masters, which share memory because
// they are never sent at the same time.
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

// Creates the memory and events of the parts if there are several ranks.
static dt_status equip_parts(struct dt_buckets *b)
{
    int64_t bytes = dt_buckets_host_bytes(&b->config, &b->backend, b->comm->info.size);
    int64_t used = 0, weights = 0; // where those begin
    if (bytes > 0)
        DT_TRY_NOTE(dt_alloc_host(&b->backend, bytes, &b->host),
                    "pinning %.1f MiB for gradient buckets", (double)bytes / 0x1p20);
    DT_TRY(dt_stream_create_urgent(&b->backend, &b->stream));
    DT_TRY(DT_NEW(&b->queue, b->n_parts, "%lld buckets", (long long)b->n_parts));
    for (int64_t i = 0; i < b->n_parts; i++) {
        struct part *part = &b->parts[i];
        if (i == b->norms.end)
            weights = used;
        if (i == b->masters.first || i == b->updates.first) // these are never sent together
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
    DT_TRY(DT_NEW(&b->units, b->config.ring.n + 1, "units of a ring"));
    DT_TRY(DT_NEW(&b->states, b->config.ring.n + 1, "units of a ring"));
    if (spreads_weights(&b->config) && b->config.copies)
        b->packed = b->config.weights;
    if (bytes > 0)
        DT_TRY_NOTE(dt_alloc(&b->backend, bytes, &b->wire),
                    "allocating %.1f MiB for bf16 gradient buckets", (double)bytes / 0x1p20);
    if (packed > 0)
        DT_TRY_NOTE(dt_alloc(&b->backend, packed, &b->packed),
                    "allocating %.1f MiB for fp32 weights to be gathered", (double)packed / 0x1p20);
    list_parts(b, spans, n);
    b->next = b->gradients.first;
    // Find the parts of each row; both are in the order of the arena.
    const struct dt_ring *ring = &b->config.ring;
    int64_t k = b->next, sums = k, unit = 0;
    for (int64_t row = 0, begin = 0; row < b->config.n_rows; begin = row_ends[row++]) {
        int64_t end = row_ends[row];
        while (unit < ring->n - 1 && ring->units[unit].end <= begin)
            unit++;
        b->rows[row].unit = unit;
        if (end == begin)
            continue;
        while (spans[k - sums].end <= begin)
            k++;
        b->rows[row].first = b->rows[row].end = k;
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
                                          .n_ranks = is_sharded(config, n_ranks) ? n_ranks : 1,
                                          .ring = config->ring};
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
                                           .n_collectives = (int)b->n_parts,
                                           .tree_bytes = tree_bytes(&b->config, b->comm->info.size),
                                           .ring = b->config.context,
                                           .channels = b->config.order == DT_SUM_TREE ? 2 : 1};
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
    for (int64_t i = 0; i < b->n_parts; i++) {
        dt_event_destroy(&b->backend, b->parts[i].ready);
        dt_event_destroy(&b->backend, b->parts[i].sent);
    }
    dt_stream_destroy(&b->backend, b->stream);
    dt_free_host(&b->backend, b->host);
    dt_free(&b->backend, b->wire);
    if (!spreads_weights(&b->config))
        dt_free(&b->backend, b->packed);
    free(b->parts);
    free(b->rows);
    free(b->units);
    free(b->states);
    free(b->queue);
    free(b);
}

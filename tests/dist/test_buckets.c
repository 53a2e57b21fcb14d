// Gradient buckets over several ranks. Sums are right in both wire types, in whatever order the
// rows become ready, step after step. In sharded modes, the ring included, every element has one
// owner, its sum reaches that owner, and its weight reaches all ranks. Misuse is refused.
#include "base/round.h"
#include "comm/buckets.h"
#include "kernels/sum_squares.h"
#include "sums.h"

enum { ROWS = 9, STEPS = 3 };

static struct dt_comm *comm;
static struct dt_backend backend;
// Rows of awkward sizes: the second is empty, and the fifth is larger than a bucket of 200 KB.
static const int64_t row_ends[ROWS] = {3, 3, 300, 301, 70000, 70017, 90000, 90001, 123457};
enum { ELEMENTS = 123457 };

static int64_t check_steps(enum dt_dtype wire, int64_t bucket_bytes)
{
    float *gradients = malloc(ELEMENTS * sizeof *gradients);
    double sums[2];
    struct dt_buckets_config config = {.gradients = gradients,
                                       .elements = ELEMENTS,
                                       .row_ends = row_ends,
                                       .n_rows = ROWS,
                                       .bucket_bytes = bucket_bytes,
                                       .wire = wire,
                                       .sums = sums,
                                       .n_sums = 2};
    struct dt_buckets *buckets = NULL;
    int64_t count;
    CHECK_OK(dt_buckets_create(comm, &backend, &config, &buckets));
    CHECK_OK(dt_buckets_connect(buckets));
    CHECK(!dt_buckets_can_be_captured(buckets), "what goes through the host cannot be captured");
    for (int step = 0; step < STEPS; step++) {
        fill_exact(gradients, DT_F32, ELEMENTS, comm->info.rank, step);
        // The sums that travel with the gradients are doubles which fp32 could not hold.
        sums[0] = 1 + 0x1p-40 * (comm->info.rank + step);
        sums[1] = comm->info.rank;
        CHECK_OK(dt_buckets_sums_ready(buckets));
        for (int k = 0; k < ROWS; k++) { // in order, backwards, in a different order on each rank
            int row = step == 0 ? k : step == 1 ? ROWS - 1 - k : (k * 4 + comm->info.rank) % ROWS;
            CHECK_OK(dt_buckets_ready(buckets, row));
        }
        CHECK_OK(dt_buckets_wait(buckets));
        check_reduced("buckets", gradients, DT_F32, 0, ELEMENTS, comm->info.size, step, DT_SUM);
        int n = comm->info.size;
        double ranks = n * (n - 1) / 2.0;
        CHECK(sums[0] == n + 0x1p-40 * (ranks + n * step) && sums[1] == ranks,
              "step %d: the sums are %a and %g", step, sums[0], sums[1]);
    }
    count = dt_buckets_count(buckets);
    dt_buckets_destroy(buckets);
    free(gradients);
    return count;
}

// ---- sharded buckets

enum { SHARDED_ROWS = 6, NORMS_MAX = 16 };

// Rows end anywhere in norm blocks. With all sizes divided by `smaller`, fewer blocks are left than
// there are ranks.
static const int64_t sharded_ends[SHARDED_ROWS] = {70, 70, 299000, 300001, 700123, 933333};

struct sharded {
    struct dt_buckets *buckets;
    struct dt_buckets_config config;
    struct dt_pieces pieces;
    int64_t ends[SHARDED_ROWS];
    double norms[NORMS_MAX];
};

// Ranges that are read in fp32 although there are bf16 copies: inside a piece and a bucket, across
// the ends of several, and within what all ranks hold.
static struct dt_span master_spans[] = {
    {0, 70}, {65534, 65538}, {200000, 500000}, {930000, 930002}};
static const struct dt_pieces masters = {
    .spans = master_spans, .n = 4, .elements = 70 + 4 + 300000 + 2};

static void open_sharded(struct sharded *s, enum dt_dtype wire, enum dt_dtype storage,
                         int64_t bucket_bytes, int smaller)
{
    *s = (struct sharded){0};
    for (int i = 0; i < SHARDED_ROWS; i++)
        s->ends[i] = sharded_ends[i] / smaller;
    int64_t n = s->ends[SHARDED_ROWS - 1];
    s->config = (struct dt_buckets_config){.gradients = calloc((size_t)n, sizeof(float)),
                                           .elements = n,
                                           .row_ends = s->ends,
                                           .n_rows = SHARDED_ROWS,
                                           .bucket_bytes = bucket_bytes,
                                           .wire = wire,
                                           .shard = DT_SHARD_STATES,
                                           .storage = storage,
                                           .weights = calloc((size_t)n, sizeof(float)),
                                           .norms = s->norms,
                                           .n_norms = dt_ceil_div(n, DT_NORM_BLOCK)};
    if (storage == DT_BF16) {
        s->config.copies = calloc((size_t)n, sizeof(dt_bf16));
        s->config.masters = masters;
    }
    CHECK_OK(dt_buckets_pieces(&s->config, &backend, &comm->info, &s->pieces));
    CHECK_OK(dt_buckets_create(comm, &backend, &s->config, &s->buckets));
}

static void close_sharded(struct sharded *s)
{
    dt_buckets_destroy(s->buckets);
    free(s->config.gradients);
    free(s->config.weights);
    free(s->config.copies);
    free(s->pieces.spans);
}

// Checks that each element either has one owner or is held by all ranks, and that the number of
// held elements is the planned one.
static void check_pieces(const struct sharded *s)
{
    int64_t n = s->config.elements, held = 0, wrong = 0, size = comm->info.size;
    float *holders = calloc((size_t)n, sizeof *holders);
    for (int64_t k = 0; k < s->pieces.n; k++)
        for (int64_t i = s->pieces.spans[k].first; i < s->pieces.spans[k].end; i++, held++)
            // This rank owns the element, or all ranks hold it.
            holders[i] = k < s->pieces.n_own ? 1000 : 1;
    CHECK_INT(held, s->pieces.elements);
    CHECK_INT(held, dt_buckets_held(&s->config, comm->info.size));
    CHECK_OK(dt_allreduce(comm, holders, n, DT_F32, DT_SUM));
    for (int64_t i = 0; i < n; i++)
        wrong += holders[i] != 1000 && holders[i] != (float)size;
    CHECK(wrong == 0, "%lld elements have no owner or two", (long long)wrong);
    free(holders);
}

static void check_norms(struct sharded *s)
{
    int64_t last = s->pieces.n - 1;
    int64_t sharded = s->pieces.n_own <= last ? s->pieces.spans[last].first : s->config.elements;
    memset(s->norms, 0, sizeof s->norms);
    for (int64_t k = 0; k < s->pieces.n_own; k++)
        for (int64_t i = s->pieces.spans[k].first; i < s->pieces.spans[k].end; i++)
            s->norms[i / DT_NORM_BLOCK]++;
    CHECK_OK(dt_buckets_sum_norms(s->buckets));
    for (int64_t b = 0; b < s->config.n_norms; b++)
        CHECK_INT((int64_t)s->norms[b], b * DT_NORM_BLOCK < sharded ? DT_NORM_BLOCK : 0);
}

// Bytes of the arrays that were passed to each kind of collective.
static const struct dt_comm_table *uncounted;
static int64_t sent[DT_OPERATIONS];
static int under_way; // collectives that have begun and not ended

static dt_status count_and_begin(struct dt_comm *c, const struct dt_collective *collective,
                                 struct dt_request **request)
{
    int64_t blocks = dt_operation_kinds[collective->operation].in_blocks ? c->info.size : 1;
    sent[collective->operation] += blocks * collective->count * dt_dtype_size(collective->dtype);
    under_way++;
    return uncounted->begin(c, collective, request);
}

static dt_status count_and_wait(struct dt_comm *c, struct dt_request *request)
{
    under_way--;
    return uncounted->wait(c, request);
}

static void check_sent(int64_t gathered, int64_t reduced_bytes)
{
    CHECK_INT(sent[DT_ALL_GATHER], gathered);
    CHECK_INT(sent[DT_ALLREDUCE], reduced_bytes);
    memset(sent, 0, sizeof sent);
}

// The weight of element i. One in 251 is a negative zero, and bf16 can represent none of the
// others.
static float weight(int64_t i, int step)
{
    int64_t k = (i + step) % 251;
    return k == 0 ? -0.0f : 1 + 0x1p-20f * (float)k;
}

// How many elements of [first, end) differ from the owner's last update, in the weights or in the
// bf16 copies.
static int64_t count_stale(const struct sharded *s, int64_t first, int64_t end, int step,
                           bool copies)
{
    int64_t stale = 0;
    for (int64_t i = first; i < end; i++) {
        float x = weight(i, step);
        dt_bf16 copy = dt_f32_to_bf16(x);
        stale += (copies ? memcmp(&s->config.copies[i], &copy, sizeof copy)
                         : memcmp(&s->config.weights[i], &x, sizeof x)) != 0;
    }
    return stale;
}

// Gathers the rows in the order in which a forward pass reads them, then all weights.
static void check_gathers(struct sharded *s, int step)
{
    int64_t sharded = s->pieces.n_own > 0 ? s->config.elements / DT_NORM_BLOCK : 0;
    int64_t end = s->config.elements, stale = 0;
    bool copies = s->config.copies != NULL;
    sharded = (sharded - sharded % comm->info.size) * DT_NORM_BLOCK;
    for (int64_t k = 0; k < s->pieces.n; k++)
        for (int64_t i = s->pieces.spans[k].first; i < s->pieces.spans[k].end; i++) {
            s->config.weights[i] = weight(i, step);
            if (copies)
                s->config.copies[i] = dt_f32_to_bf16(s->config.weights[i]);
        }
    memset(sent, 0, sizeof sent);
    CHECK_OK(dt_buckets_gather(s->buckets));
    CHECK_INT(dt_buckets_gather(s->buckets), sharded > 0 ? DT_MACHINE : DT_OK);
    CHECK_INT(dt_buckets_gather_masters(s->buckets), sharded > 0 ? DT_MACHINE : DT_OK);
    dt_error_clear();
    for (int row = SHARDED_ROWS - 1; row >= 0; row--) {
        int64_t begin = row > 0 ? s->ends[row - 1] : 0;
        CHECK_OK(dt_buckets_need(s->buckets, row));
        stale += count_stale(s, begin, s->ends[row], step, copies);
        for (struct dt_held h = {0};
             dt_pieces_next(&s->config.masters, s->config.masters.n, begin, s->ends[row], &h);)
            stale += count_stale(s, h.first, h.end, step, false);
    }
    CHECK(stale == 0, "%lld elements that forward reads are not gathered", (long long)stale);
    CHECK_OK(dt_buckets_gathered(s->buckets));
    check_sent(sharded * (copies ? 2 : 4), copies && sharded > 0 ? masters.elements * 4 : 0);
    CHECK_OK(dt_buckets_gather_masters(s->buckets));
    CHECK_INT(count_stale(s, 0, end, step, false), 0);
    CHECK_INT(copies ? count_stale(s, 0, end, step, true) : 0, 0);
    check_sent(sharded * 4, 0);
}

static void check_sharded(enum dt_dtype wire, enum dt_dtype storage, int64_t bucket_bytes,
                          int smaller)
{
    struct sharded s;
    open_sharded(&s, wire, storage, bucket_bytes, smaller);
    check_pieces(&s);
    for (int step = 0; step < STEPS; step++) {
        fill_exact(s.config.gradients, DT_F32, s.config.elements, comm->info.rank, step);
        for (int row = SHARDED_ROWS - 1; row >= 0; row--)
            CHECK_OK(dt_buckets_ready(s.buckets, row));
        CHECK_OK(dt_buckets_wait(s.buckets));
        for (int64_t k = 0; k < s.pieces.n; k++)
            check_reduced("sums of this rank", s.config.gradients, DT_F32, s.pieces.spans[k].first,
                          s.pieces.spans[k].end, comm->info.size, step, DT_SUM);
        check_norms(&s);
        check_gathers(&s, step);
    }
    if (smaller > 1)
        CHECK_INT(s.pieces.elements, s.config.elements); // too small to be sharded
    else
        CHECK(s.pieces.elements < s.config.elements, "nothing is sharded");
    close_sharded(&s);
}

// ---- buckets in a ring

enum { PARTS = 9, RING_ROWS = 2 * PARTS, MICRO_BATCHES = 2 };

struct ringed {
    struct dt_buckets *buckets;
    struct dt_buckets_config config;
    struct dt_pieces pieces;
    int64_t ends[RING_ROWS];
};

// Every part has two rows, which end anywhere. The parts between the first and the last share
// slots.
static void open_ring(struct ringed *r, enum dt_dtype wire, enum dt_dtype storage,
                      enum dt_sharding shard, int64_t bucket_bytes)
{
    int64_t align = comm->info.size * (int64_t)DT_NORM_BLOCK, parts[PARTS], n = 0;
    bool spread = shard == DT_SHARD_WEIGHTS;
    for (int i = 0; i < PARTS; i++) {
        r->ends[2 * i] = n += 64 * (1 + i);
        r->ends[2 * i + 1] = parts[i] = n +=
            dt_round_up(i == 0 ? 1000 : align + align / (2 + i), 64);
    }
    struct dt_buckets_config *config = &r->config;
    *config = (struct dt_buckets_config){.elements = n,
                                         .row_ends = r->ends,
                                         .n_rows = RING_ROWS,
                                         .bucket_bytes = bucket_bytes,
                                         .wire = wire,
                                         .storage = storage,
                                         .shard = shard,
                                         .gathers_gradients = true,
                                         .n_norms = dt_ceil_div(n, DT_NORM_BLOCK)};
    CHECK_OK(dt_ring_create(parts, PARTS, align, &config->ring));
    CHECK_INT(config->ring.n, PARTS);
    if (storage == DT_BF16)
        config->masters = masters;
    CHECK_OK(dt_buckets_pieces(config, &backend, &comm->info, &r->pieces));
    size_t ring = (size_t)config->ring.elements, held = (size_t)r->pieces.elements;
    config->gradients = calloc(ring, sizeof(float));
    config->own = calloc(held, sizeof(float));
    config->norms = calloc((size_t)config->n_norms, sizeof(double));
    config->weights = calloc(storage == DT_F32 && spread ? ring : (size_t)n, sizeof(float));
    config->own_weights = spread ? calloc(held, sizeof(float)) : NULL;
    config->copies = storage == DT_BF16 ? calloc(ring, sizeof(dt_bf16)) : NULL;
    config->own_copies = storage == DT_BF16 ? calloc(held, sizeof(dt_bf16)) : NULL;
    CHECK_OK(dt_buckets_create(comm, &backend, config, &r->buckets));
}

static void close_ring(struct ringed *r)
{
    void *memory[] = {r->config.gradients, r->config.own,    r->config.norms,
                      r->config.weights,   r->config.copies, r->config.own_weights,
                      r->config.own_copies};
    dt_buckets_destroy(r->buckets);
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        free(memory[i]);
    free(r->config.ring.units);
    free(r->pieces.spans);
}

// How many weights of the unit that has `row` differ from their owners' when a pass reads them.
static int64_t count_stale_in_slot(const struct ringed *r, int64_t row, int step)
{
    const struct dt_buckets_config *config = &r->config;
    const struct dt_unit *u = &config->ring.units[row / 2];
    int64_t stale = 0;
    for (int64_t e = u->first; e < u->end; e++) {
        float x = weight(e, step);
        dt_bf16 copy = dt_f32_to_bf16(x);
        int64_t at = dt_ring_at(u, e);
        stale += (config->copies ? memcmp(&config->copies[at], &copy, sizeof copy)
                                 : memcmp(&config->weights[at], &x, sizeof x)) != 0;
    }
    for (struct dt_held h = {0};
         dt_pieces_next(&config->masters, config->masters.n, u->first, u->end, &h);)
        for (int64_t e = h.first; e < h.end; e++) {
            float x = weight(e, step);
            stale += memcmp(&config->weights[h.at + e - h.first], &x, sizeof x) != 0;
        }
    return stale;
}

// Checks the weights in a forward and a backward pass, in a forward pass alone, as in a validation,
// and again after an update.
static void check_spread_weights(enum dt_dtype storage)
{
    struct ringed r;
    open_ring(&r, DT_F32, storage, DT_SHARD_WEIGHTS, 1 << 20);
    const struct dt_buckets_config *config = &r.config;
    for (int step = 0; step < STEPS; step++) {
        for (struct dt_held p = {0};
             dt_pieces_next(&r.pieces, r.pieces.n, 0, config->elements, &p);)
            for (int64_t e = p.first; e < p.end; e++) {
                config->own_weights[p.at + e - p.first] = weight(e, step);
                if (config->own_copies)
                    config->own_copies[p.at + e - p.first] = dt_f32_to_bf16(weight(e, step));
            }
        for (int pass = 0; pass < 3; pass++) {
            int64_t stale = 0;
            // The first unit stays on every rank and sends nothing. All others must be under way in
            // time.
            CHECK_OK(dt_buckets_begin_pass(r.buckets, pass == 0));
            for (int64_t row = RING_ROWS - 2; row >= 0; row -= 2) {
                CHECK_OK(dt_buckets_read(r.buckets, row, false));
                CHECK((under_way > 0) == (row > 2), "%d collectives are under way after row %lld",
                      under_way, (long long)row);
                stale += count_stale_in_slot(&r, row, step);
            }
            for (int64_t row = 2; row < RING_ROWS && pass != 1; row += 2) {
                CHECK_OK(dt_buckets_read(r.buckets, row, true));
                stale += count_stale_in_slot(&r, row, step);
            }
            CHECK(stale == 0, "step %d, pass %d: %lld elements are stale", step, pass,
                  (long long)stale);
        }
    }
    close_ring(&r);
}

static void check_ring(enum dt_dtype wire, int64_t bucket_bytes)
{
    struct ringed r;
    open_ring(&r, wire, DT_F32, DT_SHARD_GRADIENTS, bucket_bytes);
    const struct dt_buckets_config config = r.config;
    const struct dt_pieces pieces = r.pieces;
    struct dt_buckets *buckets = r.buckets;
    int64_t n = config.elements, wrong = 0;
    const int64_t *ends = r.ends;
    for (int step = 0; step < STEPS; step++) {
        for (int k = 0; k < MICRO_BATCHES; k++) {
            dt_buckets_add(buckets, k > 0);
            for (int64_t row = 0, e = 0; row < RING_ROWS; row++) {
                const struct dt_unit *u = &config.ring.units[row / 2];
                CHECK_OK(dt_buckets_enter(buckets, row));
                for (; e < ends[row]; e++)
                    config.gradients[dt_ring_at(u, e)] =
                        (float)exact(DT_F32, e, comm->info.rank, step + k);
                CHECK_OK(dt_buckets_ready(buckets, row));
            }
            CHECK_OK(dt_buckets_wait(buckets));
        }
        for (struct dt_held p = {0}; dt_pieces_next(&pieces, pieces.n, 0, n, &p);)
            for (int64_t e = p.first; e < p.end; e++) {
                double sum = 0;
                for (int k = 0; k < MICRO_BATCHES; k++)
                    sum += reduced(DT_F32, e, comm->info.size, step + k, DT_SUM);
                wrong += config.own[p.at + e - p.first] != (float)sum;
                config.own[p.at + e - p.first] = (float)(e % 1000003 + step);
            }
        CHECK(wrong == 0, "step %d: %lld sums are wrong", step, (long long)wrong);
        for (int64_t unit = config.ring.n - 1; unit >= 0; unit--) {
            const struct dt_unit *u = &config.ring.units[unit];
            CHECK_OK(dt_buckets_gather_gradients(buckets, unit));
            for (int64_t e = u->first; e < u->end; e++)
                wrong += config.gradients[dt_ring_at(u, e)] != (float)(e % 1000003 + step);
            CHECK(wrong == 0, "unit %lld: %lld gathered elements are wrong", (long long)unit,
                  (long long)wrong);
        }
    }
    // The next unit is the first to share a slot.
    CHECK_OK(dt_buckets_enter(buckets, 2 * DT_RING_SLOTS));
    CHECK_FAILS(dt_buckets_enter(buckets, RING_ROWS - 1), DT_MACHINE, "before earlier ones");
    dt_error_clear();
    close_ring(&r);
}

static void check_misuse(void)
{
    float gradients[10] = {0};
    int64_t ends[2] = {4, 10}, falling[2] = {10, 4};
    struct dt_buckets *buckets = NULL;
    struct dt_buckets_config config = {.gradients = gradients,
                                       .elements = 10,
                                       .row_ends = ends,
                                       .n_rows = 2,
                                       .bucket_bytes = 1024,
                                       .wire = DT_F32};
    CHECK_OK(dt_buckets_create(comm, &backend, &config, &buckets));
    CHECK_INT(dt_buckets_ready(buckets, 2), DT_MACHINE);
    CHECK_INT(dt_buckets_ready(buckets, -1), DT_MACHINE);
    CHECK_OK(dt_buckets_ready(buckets, 1));
    CHECK_INT(dt_buckets_ready(buckets, 1), DT_MACHINE);
    CHECK_FAILS(dt_buckets_wait(buckets), DT_MACHINE, "row 0 ");
    CHECK_OK(dt_buckets_ready(buckets, 0));
    CHECK_OK(dt_buckets_wait(buckets));
    dt_buckets_destroy(buckets);
    config.row_ends = falling;
    CHECK_INT(dt_buckets_create(comm, &backend, &config, &buckets), DT_MACHINE);
    config.row_ends = ends;
    config.elements = 11;
    CHECK_INT(dt_buckets_create(comm, &backend, &config, &buckets), DT_MACHINE);
    config.elements = 10;
    config.wire = DT_F16;
    CHECK_INT(dt_buckets_create(comm, &backend, &config, &buckets), DT_MACHINE);
    CHECK(buckets == NULL, "a refused create left buckets");
    struct sharded s;
    open_sharded(&s, DT_F32, DT_F32, 1 << 20, 1);
    CHECK_INT(dt_buckets_gathered(s.buckets), DT_MACHINE);
    CHECK_OK(dt_buckets_need(s.buckets, 0)); // nothing is under way, so this does nothing
    s.config.storage = DT_BF16;
    CHECK_FAILS(dt_buckets_create(comm, &backend, &s.config, &buckets), DT_MACHINE, "copies");
    close_sharded(&s);
    dt_error_clear();
}

static void check_misuse_of_sums(void)
{
    float gradients[4] = {0};
    double sums[1] = {0};
    int64_t ends[1] = {4};
    struct dt_buckets *buckets = NULL;
    struct dt_buckets_config config = {.gradients = gradients,
                                       .elements = 4,
                                       .row_ends = ends,
                                       .n_rows = 1,
                                       .bucket_bytes = 1024,
                                       .wire = DT_F32,
                                       .sums = sums,
                                       .n_sums = 1};
    CHECK_OK(dt_buckets_create(comm, &backend, &config, &buckets));
    CHECK_FAILS(dt_buckets_ready(buckets, 0), DT_MACHINE, "before the step's sums");
    dt_buckets_destroy(buckets);
    CHECK_OK(dt_buckets_create(comm, &backend, &config, &buckets));
    CHECK_OK(dt_buckets_sums_ready(buckets));
    CHECK_INT(dt_buckets_sums_ready(buckets), DT_MACHINE);
    CHECK_OK(dt_buckets_ready(buckets, 0));
    CHECK_OK(dt_buckets_wait(buckets));
    dt_buckets_destroy(buckets);
    config.n_sums = 0;
    CHECK_OK(dt_buckets_create(comm, &backend, &config, &buckets));
    CHECK_INT(dt_buckets_sums_ready(buckets), DT_MACHINE);
    dt_buckets_destroy(buckets);
    dt_error_clear();
}

static void check_planned_bytes(void)
{
    struct dt_device_table cuda_like = *backend.table;
    struct dt_backend staged = {.table = &cuda_like, .device = backend.device};
    struct dt_buckets_config config = {.elements = 10, .wire = DT_BF16, .n_sums = 2};
    cuda_like.unified = false;
    CHECK_INT(dt_buckets_bytes(&config, 2), 20);
    CHECK_INT(dt_buckets_bytes(&config, 1), 0);
    CHECK_INT(dt_buckets_host_bytes(&config, &staged, 2), 36);
    CHECK_INT(dt_buckets_host_bytes(&config, &staged, 1), 0);
    CHECK_INT(dt_buckets_host_bytes(&config, &backend, 2), 0);
    config.wire = DT_F32;
    CHECK_INT(dt_buckets_bytes(&config, 2), 0);
    CHECK_INT(dt_buckets_host_bytes(&config, &staged, 2), 56);
    config.shard = DT_SHARD_STATES;
    config.n_norms = 3;
    config.elements = 5 * DT_NORM_BLOCK; // four of the blocks are sharded over two or four ranks
    CHECK_INT(dt_buckets_held(&config, 1), 5 * DT_NORM_BLOCK);
    CHECK_INT(dt_buckets_held(&config, 2), 3 * DT_NORM_BLOCK);
    CHECK_INT(dt_buckets_held(&config, 4), 2 * DT_NORM_BLOCK);
    CHECK_INT(dt_buckets_held(&config, 8), 5 * DT_NORM_BLOCK);
    CHECK_INT(dt_buckets_host_bytes(&config, &staged, 2), 16 + 24 + (5 + 4) * DT_NORM_BLOCK * 4);
    config.storage = DT_BF16; // masters share the memory of the bf16 copies
    config.masters.elements = 10;
    CHECK_INT(dt_buckets_bytes(&config, 2), 40);
    CHECK_INT(dt_buckets_bytes(&config, 8), 0);
    CHECK_INT(dt_buckets_host_bytes(&config, &staged, 2), 16 + 24 + (5 + 4) * DT_NORM_BLOCK * 4);
    config.masters.elements = 3 * DT_NORM_BLOCK;
    CHECK_INT(dt_buckets_host_bytes(&config, &staged, 2),
              16 + 24 + (5 + 3 + 2) * DT_NORM_BLOCK * 4);
    config.between_devices = true;
    CHECK_INT(dt_buckets_host_bytes(&config, &staged, 2), 0);
}

int main(void)
{
    CHECK_OK(dt_comm_open(DT_COMM_KIND_MPI, &comm));
    if (!comm)
        return test_end();
    CHECK_OK(dt_backend_open("cpu", 0, 1, &backend));
    CHECK_INT(check_steps(DT_F32, 1 << 20), 1);
    // Buckets of 200 KB hold rows 0 to 3, row 4 (larger than a bucket), rows 5 to 7 and row 8.
    CHECK_INT(check_steps(DT_F32, 200000), 4);
    CHECK_INT(check_steps(DT_BF16, 200000), 4);
    CHECK_INT(check_steps(DT_F32, 1), ROWS - 1); // the empty row needs no bucket
    struct dt_comm_table counting = *comm->table;
    uncounted = comm->table;
    counting.begin = count_and_begin;
    counting.wait = count_and_wait;
    comm->table = &counting;
    check_sharded(DT_F32, DT_F32, 1 << 20, 1);
    check_sharded(DT_F32, DT_F32, 1 << 30, 1);
    check_sharded(DT_F32, DT_BF16, 1 << 20, 1);
    check_sharded(DT_BF16, DT_BF16, 1 << 30, 1);
    check_sharded(DT_F32, DT_BF16, 1 << 20, 10);
    check_spread_weights(DT_F32);
    check_spread_weights(DT_BF16);
    comm->table = uncounted;
    check_ring(DT_F32, 1 << 20);
    check_ring(DT_BF16, 1 << 30);
    check_misuse();
    check_misuse_of_sums();
    check_planned_bytes();
    dt_backend_close(&backend);
    dt_comm_close(comm);
    return test_end();
}

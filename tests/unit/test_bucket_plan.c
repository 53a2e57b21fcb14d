// Tests which gradients are sent together. Every element is in one bucket, in order. Rows stay
// whole, except large ones on the staged path. Little is left to send when backward ends.
#include "comm/bucket_plan.h"

#include "base/rng.h"
#include "base/round.h"
#include "comm/buckets.h"
#include "comm/device_comm.h"
#include "default_model.h"
#include "kernels/sum_squares.h"
#include "test.h"

enum { MB = 1000000, MIB = 1 << 20 };

struct planned {
    int64_t *row_ends;
    int64_t n_rows, bucket_bytes, elements;
    bool staged;
    int n_ranks;
    struct dt_ring ring;
    struct dt_span *spans;
    int64_t n;
};

static void plan(struct planned *p, int64_t bucket_bytes, bool staged)
{
    struct dt_bucket_plan_config config = {.row_ends = p->row_ends,
                                           .n_rows = p->n_rows,
                                           .bucket_bytes = bucket_bytes,
                                           .staged = staged,
                                           .n_ranks = p->n_ranks,
                                           .ring = p->ring};
    p->bucket_bytes = bucket_bytes;
    p->staged = staged;
    p->elements = p->n_rows > 0 ? p->row_ends[p->n_rows - 1] : 0;
    free(p->spans);
    p->spans = NULL;
    CHECK_OK(dt_bucket_plan(&config, &p->spans, &p->n));
}

static void release(struct planned *p)
{
    free(p->row_ends);
    free(p->spans);
    *p = (struct planned){0};
}

static int64_t bytes(const struct planned *p, int64_t bucket)
{
    return (p->spans[bucket].end - p->spans[bucket].first) * 4;
}

static bool is_row_end(const struct planned *p, int64_t element)
{
    for (int64_t row = 0; row < p->n_rows; row++)
        if (p->row_ends[row] == element)
            return true;
    return false;
}

static bool is_of_one_row(const struct planned *p, int64_t bucket)
{
    for (int64_t row = 0; row < p->n_rows; row++)
        if (p->row_ends[row] > p->spans[bucket].first && p->row_ends[row] < p->spans[bucket].end)
            return false;
    return true;
}

static void check_plan(const struct planned *p)
{
    int64_t at = 0;
    for (int64_t i = 0; i < p->n; i++) {
        CHECK_INT(p->spans[i].first, at);
        CHECK(p->spans[i].end > at, "bucket %lld is empty", (long long)i);
        at = p->spans[i].end;
        CHECK(is_of_one_row(p, i) || bytes(p, i) <= p->bucket_bytes, "bucket %lld has %lld bytes",
              (long long)i, (long long)bytes(p, i));
        CHECK(p->staged || is_row_end(p, at), "bucket %lld cuts a row", (long long)i);
        // Copies between host and device and casts of vectors begin at multiples of 128 bytes.
        CHECK(is_row_end(p, at) || (at - p->spans[i].first) % 64 == 0,
              "bucket %lld has %lld elements", (long long)i, (long long)(at - p->spans[i].first));
        CHECK(is_row_end(p, at) || is_of_one_row(p, i), "bucket %lld ends in a row of others",
              (long long)i);
    }
    CHECK_INT(at, p->elements);
}

// Rows of many sizes, some empty.
static struct planned random_rows(uint64_t seed)
{
    struct dt_philox random = dt_philox_init(seed, 0, 0);
    struct planned p = {.n_rows = 1 + (int64_t)(40 * dt_philox_uniform(&random))};
    p.row_ends = calloc((size_t)p.n_rows, sizeof *p.row_ends);
    for (int64_t row = 0, end = 0; row < p.n_rows; row++) {
        float size = dt_philox_uniform(&random);
        if (dt_philox_uniform(&random) > 0.2F)
            end += 1 + (int64_t)(3e6F * size * size * size * size);
        p.row_ends[row] = end;
    }
    return p;
}

static void test_any_rows(void)
{
    static const int64_t sizes[] = {1, 3000, MIB, 5 * MB, 25 * MB};
    for (uint64_t seed = 0; seed < 40; seed++) {
        struct planned p = random_rows(seed);
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
            for (int staged = 0; staged < 2; staged++) {
                plan(&p, sizes[i], staged);
                check_plan(&p);
            }
        release(&p);
    }
    struct planned none = {0};
    plan(&none, MB, false);
    CHECK_INT(none.n, 0);
    release(&none);
}

static struct planned rows_of(int64_t d_model, int64_t n_layer, int64_t vocab, bool tied)
{
    struct dt_model_config config = default_model("", d_model, vocab);
    config.n_layer = n_layer;
    config.tie_embeddings = tied;
    struct dt_params params;
    CHECK_OK(dt_model_config_check(&config));
    CHECK_OK(dt_model_list(&config, &params, NULL));
    struct planned p = {.n_rows = params.n, .row_ends = calloc((size_t)params.n, sizeof(int64_t))};
    for (int i = 0; i < params.n; i++)
        p.row_ends[i] = i + 1 < params.n ? params.rows[i + 1].offset : params.elements;
    dt_params_free(&params);
    return p;
}

// 130M: no row that is complete before the embedding waits for the embedding. On the staged path
// the embedding is cut, so that copies and sums of its pieces overlap.
static void test_large_vocabulary(void)
{
    for (int tied = 0; tied < 2; tied++) {
        struct planned p = rows_of(768, 24, 50280, tied);
        int64_t embedding = (int64_t)50280 * 768 * 4;
        plan(&p, 25 * MB, false);
        check_plan(&p);
        CHECK_INT(bytes(&p, p.n - 1), embedding);
        CHECK(p.n > 15 && p.n < 40, "%lld buckets", (long long)p.n);
        int64_t whole = p.n;
        plan(&p, 25 * MB, true);
        check_plan(&p);
        CHECK_INT(p.n, whole + (tied ? 1 : 2) * 6); // 154 MB in 7 pieces; if untied, the head's too
        for (int64_t i = p.n - 7; i < p.n; i++)
            CHECK(bytes(&p, i) <= 25 * MB && bytes(&p, i) >= embedding / 7 - 7 * 256,
                  "a piece of %lld bytes", (long long)bytes(&p, i));
        release(&p);
    }
}

// A vocabulary of bytes: the embedding is small, and so is the bucket that is sent with it, however
// small the model.
static void test_small_vocabulary(void)
{
    static const int64_t models[][2] = {{256, 4}, {512, 8}, {768, 24}};
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        struct planned p = rows_of(models[i][0], models[i][1], 256, true);
        plan(&p, 25 * MB, false);
        check_plan(&p);
        CHECK(bytes(&p, p.n - 1) <= MIB, "%lld bytes leave last", (long long)bytes(&p, p.n - 1));
        CHECK(bytes(&p, 0) <= p.elements * 4 / 2, "%lld bytes leave first",
              (long long)bytes(&p, 0));
        release(&p);
    }
    struct planned p = rows_of(48, 2, 256, true); // a small model is sent as one message
    plan(&p, 25 * MB, false);
    CHECK_INT(p.n, 1);
    release(&p);
}

// Sharded: buckets end at multiples of a norm block for each rank, and what is left at the end is
// one bucket.
static void test_sharded(void)
{
    static const int64_t sizes[] = {1, MIB, 25 * MB};
    for (uint64_t seed = 0; seed < 40; seed++)
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            struct planned p = random_rows(seed);
            int64_t at = 0, last = p.row_ends[p.n_rows - 1], largest = last;
            for (int64_t row = 1, begin = largest = p.row_ends[0]; row < p.n_rows; row++) {
                largest = dt_max_i64(largest, p.row_ends[row] - begin);
                begin = p.row_ends[row];
            }
            p.n_ranks = 1 + (int)(seed % 4);
            plan(&p, sizes[i], seed % 2);
            int64_t unit = p.n_ranks * (int64_t)DT_NORM_BLOCK;
            const struct dt_buckets_config buckets = {.elements = last,
                                                      .largest_row = largest,
                                                      .bucket_bytes = sizes[i],
                                                      .order = DT_SUM_TREE,
                                                      .between_devices = true,
                                                      .shard = DT_SHARD_STATES};
            for (int64_t k = 0; k < p.n; k++) {
                CHECK_INT(p.spans[k].first, at);
                at = p.spans[k].end;
                CHECK(p.n_ranks == 1 || dt_buckets_tree_bytes(&buckets, p.n_ranks) >=
                                            dt_device_comm_scratch(bytes(&p, k)),
                      "bucket %lld of %lld bytes has no room for its tree", (long long)k,
                      (long long)bytes(&p, k));
                CHECK(p.n_ranks == 1 || at % unit == 0 ||
                          (at == last && last - p.spans[k].first < unit),
                      "bucket %lld ends at %lld", (long long)k, (long long)at);
            }
            CHECK_INT(at, last);
            release(&p);
        }
}

// In a ring no bucket has elements of two units, the end of a unit is within the first bucket of
// the next one, and units that are in use at the same time do not share memory.
static void test_ring(void)
{
    for (uint64_t seed = 0; seed < 40; seed++) {
        struct planned p = random_rows(seed);
        int64_t align = (2 + (int64_t)(seed % 3)) * DT_NORM_BLOCK, bucket = 0;
        for (int64_t row = 0; row < p.n_rows; row++)
            p.row_ends[row] = dt_round_up(p.row_ends[row], 64);
        p.n_ranks = (int)(align / DT_NORM_BLOCK);
        CHECK_OK(dt_ring_create(p.row_ends, p.n_rows, align, &p.ring));
        plan(&p, 5 * MB, false);
        const struct dt_unit *units = p.ring.units;
        for (int64_t i = 0, begin = 0; i < p.ring.n; begin = units[i++].end) {
            const struct dt_unit *u = &units[i];
            int64_t sent = i + 1 < p.ring.n ? units[i + 1].first : p.elements;
            CHECK(u->first <= begin && begin - u->first < align && u->first % align == 0,
                  "unit %lld begins at %lld, its rows at %lld", (long long)i, (long long)u->first,
                  (long long)begin);
            CHECK(u->at >= 0 && dt_ring_at(u, u->end) <= p.ring.elements, "unit %lld is outside",
                  (long long)i);
            CHECK_INT(dt_ring_unit(&p.ring, u->end - 1), i);
            for (int64_t k = i + 1; k < p.ring.n && (k < i + DT_RING_SLOTS || i == 0); k++)
                CHECK(dt_ring_at(u, u->end) <= units[k].at ||
                          dt_ring_at(&units[k], units[k].end) <= u->at,
                      "units %lld and %lld overlap", (long long)i, (long long)k);
            for (; bucket < p.n && p.spans[bucket].first < sent; bucket++)
                CHECK(p.spans[bucket].end <= sent, "bucket %lld is in two units",
                      (long long)bucket);
            if (i + 2 < p.ring.n)
                CHECK(units[i + 2].first >= u->end, "the tail of unit %lld is longer than the next",
                      (long long)i);
        }
        CHECK_INT(p.ring.n > 0 ? units[p.ring.n - 1].end : 0, p.elements);
        free(p.ring.units);
        release(&p);
    }
}

// 130 M and 1.4 B parameters have 516 MB and 5.49 GB of gradients.
static void test_auto(void)
{
    static const struct {
        int64_t elements;
        int n_ranks;
        bool between_devices;
        int64_t megabytes;
    } cases[] = {
        {129135360, 8, true, 25},         {1372178432, 8, true, 100}, {1372178432, 64, true, 125},
        {1372178432, 2, true, 50},        {1372178432, 1, true, 25},  {1372178432, 64, false, 25},
        {INT64_C(1) << 36, 8, true, 700}, {1, 4096, true, 25},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        CHECK_INT(dt_bucket_auto(cases[i].elements, cases[i].n_ranks, cases[i].between_devices),
                  cases[i].megabytes * MB);
}

int main(void)
{
    RUN(test_auto, test_any_rows, test_large_vocabulary, test_small_vocabulary, test_sharded,
        test_ring);
    return test_end();
}

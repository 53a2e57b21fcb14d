// Tests the loader against the order: every row of every batch must hold what was written, computed
// token by token, in every layout, on any number of ranks, starting at any step and closed at any
// moment.
#include "data/order.h"
#include "data/shard_cache.h"
#include "loader_data.h"

static bool want_reset(const struct dt_loader_config *config, int64_t s, int64_t p)
{
    if (p == 0)
        return true;
    if (config->dataset->shards[s].doc_starts)
        return starts_document(s, p);
    return config->rules.reset_token >= 0 &&
           token(s, p - config->rules.reset_after) == config->rules.reset_token;
}

static int wrong_tokens(const struct dt_batch *batch, int64_t row, const struct dt_position *at)
{
    const int32_t *ids = row_of(batch, "input_ids", row), *labels = row_of(batch, "labels", row);
    int wrong = 0;
    for (int64_t t = 0; t < T; t++) {
        int64_t p = at->window * T + t;
        bool end = at->window < 0;
        wrong += ids[t] != (end ? 0 : token(at->shard, p));
        wrong += labels[t] != (end ? DT_IGNORED : token(at->shard, p + 1));
    }
    return wrong;
}

static int wrong_resets(const struct dt_batch *batch, int64_t row, const struct dt_position *at,
                        const struct dt_loader_config *config)
{
    const struct dt_array *array = dt_batch_find(batch, "reset");
    int wrong = 0;
    bool wanted = config->rules.carry || config->rules.reset_token >= 0 ||
                  config->dataset->shards[0].doc_starts;
    CHECK_INT(array != NULL, wanted);
    for (int64_t t = 0; array && t < T; t++) {
        int got = ((const uint8_t *)array->data)[row * T + t];
        wrong += got != (at->window >= 0 && want_reset(config, at->shard, at->window * T + t));
    }
    return wrong;
}

// Checks that batches of steps [first, first + n) hold what the order says, and nothing else.
static void check_batches(const struct dt_loader_config *config, int64_t first, int64_t n)
{
    struct dt_order_config order_config = {config->dataset, config->rules.seed, config->batch,
                                           config->block,   config->shuffle,    config->sequential,
                                           config->parts};
    struct dt_order *order;
    CHECK_OK(dt_order_create(&order_config, &order));
    struct dt_loader *loader = open_loader(config, first);
    int64_t share = config->batch / config->size, wrong = 0;
    for (int64_t step = first; step < first + n; step++) {
        const struct dt_batch *batch;
        double wait_ms = -1;
        dt_status status = dt_loader_next(loader, &batch, &wait_ms);
        CHECK(status == DT_OK && batch, "step %ld: %s", (long)step, dt_error_current()->message);
        if (!batch)
            break;
        CHECK_INT(batch->step, step);
        CHECK_INT(batch->sequences, share);
        CHECK(wait_ms >= 0, "no waiting time");
        for (int64_t row = 0; row < share; row++) {
            struct dt_position at;
            dt_order_at(order, step, config->rank * share + row, &at);
            wrong += wrong_tokens(batch, row, &at) + wrong_resets(batch, row, &at, config);
        }
    }
    CHECK_INT(wrong, 0);
    dt_loader_close(loader);
    dt_order_free(order);
}

static void test_layouts(void)
{
    for (int64_t size = 1; size <= 4; size *= 2)
        for (enum layout layout = PLAIN; layout <= USERBLOCK; layout++) {
            write_shards(size, layout, false);
            struct dt_loader_config config = config_for(in_scratch("s*.h5"));
            check_batches(&config, 0, 100); // more than three epochs
        }
}

// Rows follow the global order whatever the ranks, blocks, prefetch and first step are.
static void test_shapes(void)
{
    write_shards(2, HASHED, true);
    const struct dt_loader_config usual = config_for(in_scratch("s*.h5"));
    struct dt_loader_config config = usual;
    for (config.size = 1; config.size <= 8; config.size *= 2)
        for (config.rank = 0; config.rank < config.size; config.rank++)
            check_batches(&config, 3, 40);
    config = usual;
    for (config.prefetch = 1; config.prefetch < 6; config.prefetch++)
        check_batches(&config, 7 * config.prefetch, 30);
    static const int64_t blocks[] = {1, 3, 64, INT64_MAX / 2};
    for (int i = 0; i < 4; i++) {
        config.block = blocks[i];
        check_batches(&config, 1000, 40);
        config.shuffle = !config.shuffle;
    }
}

static void test_resets(void)
{
    for (int i = 0; i < 4; i++) {
        write_shards(1 + i % 2, HASHED, i / 2);
        struct dt_loader_config config = config_for(in_scratch("s*.h5"));
        check_batches(&config, 0, 70);
        config.rules.reset_token = RESET_TOKEN;
        check_batches(&config, 0, 70);
        config.rules.reset_after = true;
        check_batches(&config, 0, 70);
        config.sequential = true;
        check_batches(&config, 0, 36);
        config.rules.reset_token = RESET_TOKEN + 65536; // neither u8 nor u16 holds it
        check_batches(&config, 0, 36);
        config.rules.reset_token = -1; // only segments reset
        config.rules.reset_after = false;
        config.rules.carry = true;
        check_batches(&config, 0, 36);
        config.parts = true;
        check_batches(&config, 0, 36);
        config.sequential = config.shuffle = false;
        check_batches(&config, 3, 70);
    }
}

static void test_sequential(void)
{
    write_shards(2, HASHED, true);
    struct dt_loader_config config = config_for(in_scratch("s*.h5"));
    static const int64_t batches[] = {2, 10, 64, 400};
    config.sequential = true;
    for (int i = 0; i < 4; i++)
        for (config.size = 1; config.size <= 2; config.size++)
            for (config.rank = 0; config.rank < config.size; config.rank++) {
                config.batch = batches[i];
                int64_t steps = (config.dataset->windows + config.batch - 1) / config.batch;
                check_batches(&config, 0, steps);
                struct dt_loader *loader = open_loader(&config, steps - 1);
                CHECK(next_batch(loader) != NULL, "no last batch");
                for (int again = 0; again < 2; again++)
                    CHECK(next_batch(loader) == NULL, "a batch past the last");
                dt_loader_close(loader);
            }
}

// Rows without a window hold the padding of their arrays, whatever the width and type.
static void list_wide(const struct dt_dataset *dataset, const struct dt_read_rules *rules,
                      struct dt_array_list *list)
{
    (void)dataset, (void)rules;
    list->arrays[dt_array_list_add(list, "ids", DT_I32, 3, false)].pad = -7;
    list->arrays[dt_array_list_add(list, "numbers", DT_F32, 2, false)].pad = -7;
    dt_array_list_add(list, "bytes", DT_U8, 5, false);
}

static dt_status write_ones(const struct dt_dataset *dataset, const struct dt_read_rules *rules,
                            const struct dt_block *block, int64_t window, void *const *rows)
{
    (void)dataset, (void)rules, (void)block, (void)window;
    memset(rows[0], 1, 3 * T * sizeof(int32_t));
    memset(rows[1], 1, 2 * T * sizeof(float));
    memset(rows[2], 1, 5 * T);
    return DT_OK;
}

static void test_padding(void)
{
    write_layout(in_scratch("s0.h5"), 0, 2, PLAIN); // 62 windows
    struct dt_loader_config config = config_for(in_scratch("s0.h5"));
    struct dt_dataset dataset = *config.dataset;
    const struct dt_reader_kind wide = {.arrays = list_wide, .write = write_ones};
    dataset.kind = &wide;
    config.dataset = &dataset;
    config.sequential = true;
    struct dt_loader *loader = open_loader(&config, 7);
    const struct dt_batch *batch = next_batch(loader);
    int wrong = 0;
    for (int row = 6; row < 8; row++) {
        for (int i = 0; i < 3 * T; i++)
            wrong += ((const int32_t *)batch->arrays[0].data)[row * 3 * T + i] != -7;
        for (int i = 0; i < 2 * T; i++)
            wrong += fabsf(((const float *)batch->arrays[1].data)[row * 2 * T + i] + 7) > 0;
        for (int i = 0; i < 5 * T; i++)
            wrong += ((const uint8_t *)batch->arrays[2].data)[row * 5 * T + i] != 0;
    }
    CHECK_INT(wrong, 0);
    CHECK_INT(((const uint8_t *)batch->arrays[2].data)[6 * 5 * T - 1], 1);
    dt_loader_close(loader);
}

static void test_pairs(void)
{
    for (hsize_t chunk = 0; chunk < 20; chunk += 7) {
        write_pairs(103, 0, 1, -100, chunk);
        struct dt_loader_config config = config_for(in_scratch("p.h5"));
        config.shuffle = false;
        config.rules.reset_token = pair_value(2, 5);
        struct dt_loader *loader = open_loader(&config, 0);
        for (int64_t step = 0; step < 12; step++) {
            const struct dt_batch *batch = next_batch(loader);
            const uint8_t *reset = dt_batch_find(batch, "reset")->data;
            for (int64_t k = 1; k < 8; k++)
                for (int64_t t = 0; t < T; t++) {
                    int64_t i = (k * 12 + step) * T + t;
                    int32_t want = pair_value(i / T, t);
                    CHECK_INT(row_of(batch, "input_ids", k)[t], want);
                    CHECK_INT(row_of(batch, "labels", k)[t],
                              i % 5 == 0 ? -100 : pair_value(i / T, t + 1));
                    CHECK_INT(reset[k * T + t], t == 0 || want == config.rules.reset_token);
                }
        }
        dt_loader_close(loader);
    }
}

// Masked windows of several epochs as the first loader read them: ids, then labels.
enum { EPOCHS = 5, WINDOWS = 210, MASK = 250 };
static int32_t masked[EPOCHS][N_SHARDS][WINDOWS][2 * T];

// Reads all steps of these epochs. The first loader stores each window, and later ones compare
// theirs.
static void walk_masked(const struct dt_loader_config *config, bool first)
{
    const struct dt_order_config order_config = {.dataset = config->dataset,
                                                 .seed = config->rules.seed,
                                                 .batch = config->batch,
                                                 .block = config->block,
                                                 .shuffle = config->shuffle};
    struct dt_order *order;
    int64_t share = config->batch / config->size, wrong = 0;
    CHECK_OK(dt_order_create(&order_config, &order));
    int64_t steps = EPOCHS * dt_order_steps_per_epoch(order), from = first ? 0 : 7;
    struct dt_loader *loader = open_loader(config, from);
    for (int64_t step = from; step < steps; step++) {
        const struct dt_batch *batch = next_batch(loader);
        for (int64_t row = 0; row < share; row++) {
            struct dt_position at;
            dt_order_at(order, step, config->rank * share + row, &at);
            int32_t *seen = masked[at.epoch][at.shard][at.window], got[2 * T];
            memcpy(got, row_of(batch, "input_ids", row), sizeof got / 2);
            memcpy(got + T, row_of(batch, "labels", row), sizeof got / 2);
            // Another loader may read windows that the first one left out in that epoch.
            if (first || seen[0] < 0)
                memcpy(seen, got, sizeof got);
            wrong += memcmp(seen, got, sizeof got) != 0;
        }
    }
    CHECK_INT(wrong, 0);
    dt_loader_close(loader);
    dt_order_free(order);
}

// Checks a share of n draws, which may be wrong by four standard deviations.
static void check_share(const char *what, int64_t got, int64_t n, double share)
{
    CHECK(fabs((double)got / (double)n - share) <= 4 * sqrt(share * (1 - share) / (double)n),
          "%s: %ld of %ld, not %g", what, (long)got, (long)n, share);
}

// A window's mask depends on seed, epoch and window alone: not on the rank, the order or the first
// step. Each epoch has other masks. Tokens that are not predicted stay.
static void test_masking(void)
{
    int64_t n = 0, predicted = 0, hidden = 0, random = 0, both = 0, wrong = 0, pairs = 0;
    write_shards(2, PLAIN, false);
    struct dt_loader_config config = config_for(in_scratch("s*.h5"));
    config.rules.masking = (struct dt_masking){.on = true, .rate = 0.15, .token = MASK};
    memset(masked, -1, sizeof masked);
    walk_masked(&config, true);
    config.size = 4;
    for (config.rank = 0; config.rank < 4; config.rank++)
        walk_masked(&config, false);
    config.rank = 2;
    config.block = WINDOWS; // a slot keeps a block from one epoch to the next
    walk_masked(&config, false);
    config.shuffle = false;
    walk_masked(&config, false);
    for (int64_t i = 0; i < EPOCHS * N_SHARDS; i++)
        for (int64_t w = 0; w < WINDOWS; w++) {
            const int32_t *ids = masked[i / N_SHARDS][i % N_SHARDS][w], *labels = ids + T;
            const int32_t *next = masked[(i / N_SHARDS + 1) % EPOCHS][i % N_SHARDS][w] + T;
            for (int64_t t = 0; t < T && ids[0] >= 0; t++) {
                int32_t real = (int32_t)token(i % N_SHARDS, w * T + t);
                bool chosen = labels[t] != DT_IGNORED;
                n++, predicted += chosen;
                wrong += chosen ? labels[t] != real : ids[t] != real;
                hidden += chosen && ids[t] == MASK && real != MASK;
                random += chosen && ids[t] != MASK && ids[t] != real;
                pairs += next[-T] >= 0;
                both += next[-T] >= 0 && chosen && next[t] != DT_IGNORED;
            }
        }
    CHECK_INT(wrong, 0);
    check_share("predicted", predicted, n, 0.15);
    check_share("masked", hidden, predicted, 0.8);
    check_share("random", random, predicted, 0.1); // one of 251 is the token itself or the mask
    check_share("predicted in this epoch and the next", both, pairs, 0.15 * 0.15);
    // With rate 0, as for predictions of whole shards, every token is a label and none is masked.
    config.rules.masking.rate = 0;
    struct dt_loader *loader = open_loader(&config, 0);
    const struct dt_batch *batch = next_batch(loader);
    CHECK(memcmp(row_of(batch, "input_ids", 0), row_of(batch, "labels", 0), T * 4) == 0, "labels");
    dt_loader_close(loader);
    // With masking, labels of pairs are their own tokens, where the file has labels.
    write_pairs(103, 0, 1, -100, 0);
    config = config_for(in_scratch("p.h5"));
    config.rules.masking = (struct dt_masking){.on = true, .rate = 1, .token = MASK};
    config.shuffle = false;
    loader = open_loader(&config, 0);
    batch = next_batch(loader);
    for (int64_t t = 0; t < T; t++)
        CHECK_INT(row_of(batch, "labels", 1)[t],
                  (12 * T + t) % 5 == 0 ? DT_IGNORED : pair_value(12, t));
    dt_loader_close(loader);
}

// More shards, each with one window, than are kept open.
static void test_many_shards(void)
{
    enum { SHARDS = 3 * DT_OPEN_SHARDS / 2 };
    int64_t wrong = 0;
    for (int64_t s = 0; s < SHARDS; s++)
        put_alone(in_scratch("m%03d.h5", (int)s), "tokens", H5T_STD_U8LE, T + 1,
                  (const char *)tokens_of(0, 1) + s);
    struct dt_loader_config config = config_for(in_scratch("m*.h5"));
    config.batch = SHARDS / 2;
    config.shuffle = false;
    struct dt_loader *loader = open_loader(&config, 0);
    for (int64_t step = 0; step < 6; step++) {
        const struct dt_batch *batch = next_batch(loader);
        for (int64_t k = 0; k < config.batch; k++)
            wrong += row_of(batch, "labels", k)[5] != token(0, 2 * k + step % 2 + 6);
    }
    CHECK_INT(wrong, 0);
    dt_loader_close(loader);
}

static void test_close(void)
{
    write_shards(2, HASHED, true);
    struct dt_loader_config config = config_for(in_scratch("s*.h5"));
    for (int i = 0; i < 100; i++) {
        struct dt_loader *loader = open_loader(&config, i);
        for (int n = 0; n < i % 4; n++)
            next_batch(loader);
        usleep((unsigned)(i % 7) * 50);
        dt_loader_close(loader);
    }
    dt_loader_close(NULL);
}

// Two loaders at the same time, as in training with validation.
static void test_two_loaders(void)
{
    write_shards(2, GZIP, false);
    struct dt_loader_config config = config_for(in_scratch("s*.h5")), val = config;
    val.sequential = true;
    struct dt_loader *loader = open_loader(&config, 0);
    for (int i = 0; i < 5; i++) {
        next_batch(loader);
        check_batches(&val, 0, 5);
        check_batches(&config, 10, 20);
    }
    dt_loader_close(loader);
}

static void test_synthetic(void)
{
    struct dt_loader_config config = config_for("synthetic:random");
    struct dt_loader *a = open_loader(&config, 5), *b;
    config.size = 2;
    config.rank = 1;
    b = open_loader(&config, 5);
    int64_t seen[VOCAB] = {0}, wrong = 0;
    for (int step = 0; step < 400; step++) {
        const struct dt_batch *x = next_batch(a), *y = next_batch(b);
        const int32_t *all = row_of(x, "input_ids", 4), *mine = row_of(y, "input_ids", 0);
        const int32_t *labels = row_of(x, "labels", 4);
        wrong += memcmp(all, mine, 4 * T * sizeof *all) != 0;
        for (int t = 0; t < 4 * T; t++) {
            wrong += all[t] < 0 || all[t] >= VOCAB || (t % T && labels[t - 1] != all[t]);
            seen[all[t] % VOCAB]++;
        }
    }
    CHECK_INT(wrong, 0);
    // 25,600 draws, 102 for each token, within six standard deviations (61).
    for (int v = 0; v < VOCAB; v++)
        CHECK(seen[v] > 41 && seen[v] < 163, "token %d is drawn %ld times", v, (long)seen[v]);
    dt_loader_close(a);
    dt_loader_close(b);
}

// Synthetic frames are normalised already: mean 0 and deviation 1, within six standard errors.
static void test_synthetic_frames(dt_dtype type)
{
    enum { WIDTH = 8, STEPS = 100, DRAWS = STEPS * 8 * T * WIDTH };
    struct dt_scan_rules rules = {
        .seq_len = T, .frame_width = WIDTH, .n_targets = 1, .target = {{"buttons", 3, 2}}};
    struct dt_loader_config config = config_for("synthetic:random");
    config.dataset = scan("synthetic:frames", &rules);
    config.rules.frames_type = type;
    struct dt_loader *loader = open_loader(&config, 0);
    double sum = 0, squares = 0;
    for (int step = 0; step < STEPS; step++) {
        const struct dt_array *frames = dt_batch_find(next_batch(loader), "frames");
        for (int i = 0; i < DRAWS / STEPS; i++) {
            double x = type == DT_BF16 ? dt_bf16_to_f32(((const dt_bf16 *)frames->data)[i])
                                       : ((const float *)frames->data)[i];
            sum += x;
            squares += x * x;
        }
    }
    CHECK_NEAR(sum / DRAWS, 0, 6 / sqrt(DRAWS));
    CHECK_NEAR(squares / DRAWS, 1, 6 / sqrt(DRAWS)); // the standard deviation of x^2 is 0.9
    dt_loader_close(loader);
}

// Compares the arrays that a reader yields with those that a model reads.
static void test_lists(void)
{
    struct dt_array_list yields, reads = {0};
    struct dt_loader_config config = config_for("synthetic:random");
    dt_loader_arrays(&config, &yields);
    CHECK_INT(yields.n, 2);
    CHECK_INT(dt_array_list_add(&reads, "labels", DT_I32, 1, false), 0);
    CHECK_INT(dt_array_list_add(&reads, "reset", DT_U8, 1, true), 1);
    CHECK_INT(dt_array_list_add(&reads, "labels", DT_I32, 1, true), 0);
    CHECK(!reads.arrays[0].optional, "required by one, and optional");
    CHECK(dt_array_list_missing(&yields, &reads) == NULL, "an optional array is missed");
    CHECK_INT(dt_array_list_add(&reads, "labels", DT_F32, 1, false), -1);
    CHECK_INT(dt_array_list_add(&reads, "labels", DT_I32, 2, false), -1);
    CHECK_SAYS("int32 of width 2");
    reads.arrays[1].optional = false;
    CHECK(dt_array_list_missing(&yields, &reads) == &reads.arrays[1], "no reset is missed");
    config.rules.reset_token = RESET_TOKEN;
    dt_loader_arrays(&config, &yields);
    CHECK(dt_array_list_missing(&yields, &reads) == NULL, "reset is missed");
    reads.arrays[1] = (struct dt_array_spec){"reset", DT_F32, 1, true, 0, 0};
    CHECK(dt_array_list_missing(&yields, &reads) == &reads.arrays[1], "another type passes");
    reads.arrays[1] = (struct dt_array_spec){"reset", DT_U8, 2, true, 0, 0};
    CHECK(dt_array_list_missing(&yields, &reads) == &reads.arrays[1], "another width passes");
    for (const char *name = "abcdefg"; *name; name++)
        CHECK_INT(dt_array_list_add(&reads, name, DT_F32, 3, false),
                  *name < 'g' ? reads.n - 1 : -1);
}

int main(void)
{
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    dt_log_quiet(true);
    int threads = thread_count();
    make_scratch();
    RUN(test_layouts, test_shapes, test_resets, test_sequential, test_padding, test_pairs,
        test_masking, test_many_shards, test_close, test_two_loaders, test_synthetic);
    test_synthetic_frames(DT_F32);
    test_synthetic_frames(DT_BF16);
    test_lists();
    check_threads(threads);
    remove_scratch();
    return test_end();
}

// The loader against the order: what every row of every batch must hold, computed token by token
// from what was written. Then everything that can go wrong once training runs.
#include "base/log.h"
#include "data/h5_pack.h"
#include "data/loader.h"
#include "data/slot.h"
#include "shards.h"

enum { T = 16, N_SHARDS = 4, MOST = 5000, VOCAB = 251, RESET_TOKEN = 3 };
static const int64_t lengths[N_SHARDS] = {1000, 5, 1 + 16 * 40, 3333};

// Token p of shard s; prime periods, so that no two windows are alike.
static int64_t token(int64_t s, int64_t p)
{
    return (p * p + 7 * p + 13 * s) % VOCAB;
}

static const void *tokens_of(int64_t s, int64_t size)
{
    static uint8_t u8[MOST];
    static uint16_t u16[MOST];
    static uint32_t u32[MOST];
    for (int64_t p = 0; p < MOST; p++) {
        u8[p] = (uint8_t)token(s, p);
        u16[p] = (uint16_t)token(s, p);
        u32[p] = (uint32_t)token(s, p);
    }
    return size == 1 ? (void *)u8 : size == 2 ? (void *)u16 : (void *)u32;
}

// Documents of shard s start at 0, then every 37 + s tokens.
static bool starts_document(int64_t s, int64_t p)
{
    return p % (37 + s) == 0;
}

enum layout { PLAIN, HASHED, CHUNKED, GZIP, FLETCHER, COMPACT, USERBLOCK };

static void write_hashed(const char *path, int64_t s, int64_t size, bool documents)
{
    struct dt_shard_writer *writer;
    dt_dtype type = size == 1 ? DT_U8 : size == 2 ? DT_U16 : DT_U32;
    const char *tokens = tokens_of(s, size);
    CHECK_INT(dt_shard_create(path, type, lengths[s], &writer), DT_OK);
    for (int64_t p = 0; p < lengths[s]; p++) {
        if (documents && starts_document(s, p))
            CHECK_INT(dt_shard_start_document(writer), DT_OK);
        CHECK_INT(dt_shard_append(writer, tokens + p * size, 1), DT_OK);
    }
    CHECK_INT(dt_shard_finish(writer, documents), DT_OK);
}

static void write_layout(const char *path, int64_t s, int64_t size, enum layout layout)
{
    const hid_t disk[] = {0, H5T_STD_U8LE, H5T_STD_U16LE, 0, H5T_STD_U32LE};
    struct put what = {.name = "tokens", .disk = disk[size], .memory = disk[size], .n_dims = 1};
    what.dims[0] = (hsize_t)lengths[s];
    what.data = tokens_of(s, size);
    if (layout == CHUNKED || layout == GZIP || layout == FLETCHER)
        what.chunk = lengths[s] < 300 ? (hsize_t)lengths[s] : 300;
    what.gzip = layout == GZIP;
    what.fletcher = layout == FLETCHER;
    what.compact = layout == COMPACT;
    hid_t plist = H5Pcreate(H5P_FILE_CREATE);
    if (layout == USERBLOCK)
        H5Pset_userblock(plist, 1024);
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, plist, H5P_DEFAULT);
    put(file, &what);
    H5Fclose(file);
    H5Pclose(plist);
}

static void write_shards(int64_t size, enum layout layout, bool documents)
{
    for (int64_t s = 0; s < N_SHARDS; s++) {
        char name[32];
        snprintf(name, sizeof name, "s%ld.h5", (long)s);
        if (layout == HASHED)
            write_hashed(in_scratch(name), s, size, documents);
        else
            write_layout(in_scratch(name), s, size, layout);
    }
}

static struct dt_dataset *scan(const char *pattern)
{
    struct dt_dataset *dataset;
    char glob[DT_PATH];
    snprintf(glob, sizeof glob, "%s/%s", scratch, pattern);
    dt_status status = dt_dataset_scan(glob, T, 0, &dataset);
    CHECK(status == DT_OK, "%s", dt_error_current()->message);
    return dataset;
}

static struct dt_loader_config config_of(const struct dt_dataset *dataset)
{
    return (struct dt_loader_config){
        .dataset = dataset,
        .seed = 99,
        .batch = 8,
        .block = 5,
        .shuffle = true,
        .size = 1,
        .vocab_size = VOCAB,
        .prefetch = 2,
        .reset_token = -1,
        .verify = true,
    };
}

static struct dt_loader *open_loader(const struct dt_loader_config *config, int64_t first_step)
{
    struct dt_loader *loader;
    dt_status status = dt_loader_open(config, first_step, &loader);
    CHECK(status == DT_OK, "%s", dt_error_current()->message);
    return loader;
}

static const int32_t *row_of(const struct dt_batch *batch, const char *name, int64_t row)
{
    const struct dt_array *array = dt_batch_find(batch, name);
    CHECK(array && array->type == DT_I32 && array->n_dims == 2 && array->shape[1] == T &&
              array->shape[0] == batch->sequences,
          "no good %s", name);
    return (const int32_t *)array->data + row * T;
}

static bool want_reset(const struct dt_loader_config *config, int64_t s, int64_t p)
{
    if (p == 0)
        return true;
    if (config->dataset->shards[s].doc_starts)
        return starts_document(s, p);
    return config->reset_token >= 0 && token(s, p - config->reset_after) == config->reset_token;
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
    bool wanted = config->reset_token >= 0 || config->dataset->shards[0].doc_starts;
    CHECK_INT(array != NULL, wanted);
    for (int64_t t = 0; array && t < T; t++) {
        int got = ((const uint8_t *)array->data)[row * T + t];
        wrong += got != (at->window >= 0 && want_reset(config, at->shard, at->window * T + t));
    }
    return wrong;
}

// Batches of steps [first, first + n) hold what the order says, and nothing else.
static void check_batches(const struct dt_loader_config *config, int64_t first, int64_t n)
{
    struct dt_order_config order_config = {config->dataset, config->seed,    config->batch,
                                           config->block,   config->shuffle, config->sequential};
    struct dt_order *order;
    CHECK_INT(dt_order_create(&order_config, &order), DT_OK);
    struct dt_loader *loader = open_loader(config, first);
    CHECK_INT(dt_loader_steps_per_epoch(loader), dt_order_steps_per_epoch(order));
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
            struct dt_dataset *dataset = scan("s*.h5");
            CHECK_INT(dataset->shards[0].plain, layout != GZIP && layout != FLETCHER);
            struct dt_loader_config config = config_of(dataset);
            check_batches(&config, 0, 100); // over three epochs
            dt_dataset_free(dataset);
        }
}

// Ranks, blocks, prefetch, restarts: rows follow the global order whatever is chosen.
static void test_shapes(void)
{
    write_shards(2, HASHED, true);
    struct dt_dataset *dataset = scan("s*.h5");
    struct dt_loader_config config = config_of(dataset);
    for (config.size = 1; config.size <= 8; config.size *= 2)
        for (config.rank = 0; config.rank < config.size; config.rank++)
            check_batches(&config, 3, 40);
    config = config_of(dataset);
    for (config.prefetch = 1; config.prefetch < 6; config.prefetch++)
        check_batches(&config, 7 * config.prefetch, 30);
    static const int64_t blocks[] = {1, 3, 64, INT64_MAX / 2};
    for (int i = 0; i < 4; i++) {
        config.block = blocks[i];
        check_batches(&config, 1000, 40);
        config.shuffle = !config.shuffle;
    }
    dt_dataset_free(dataset);
}

static void test_resets(void)
{
    for (int i = 0; i < 4; i++) {
        write_shards(1 + i % 2, HASHED, i / 2);
        struct dt_dataset *dataset = scan("s*.h5");
        struct dt_loader_config config = config_of(dataset);
        check_batches(&config, 0, 70);
        config.reset_token = RESET_TOKEN;
        check_batches(&config, 0, 70);
        config.reset_after = true;
        check_batches(&config, 0, 70);
        config.sequential = true;
        check_batches(&config, 0, 36);
        config.reset_token = RESET_TOKEN + 65536; // no u8 or u16 holds it
        check_batches(&config, 0, 36);
        dt_dataset_free(dataset);
    }
}

static void test_sequential(void)
{
    write_shards(2, HASHED, true);
    struct dt_dataset *dataset = scan("s*.h5");
    struct dt_loader_config config = config_of(dataset);
    static const int64_t batches[] = {2, 10, 64, 400};
    config.sequential = true;
    for (int i = 0; i < 4; i++)
        for (config.size = 1; config.size <= 2; config.size++)
            for (config.rank = 0; config.rank < config.size; config.rank++) {
                const struct dt_batch *batch;
                config.batch = batches[i];
                int64_t steps = (dataset->windows + config.batch - 1) / config.batch;
                check_batches(&config, 0, steps);
                struct dt_loader *loader = open_loader(&config, steps - 1);
                CHECK_INT(dt_loader_next(loader, &batch, NULL), DT_OK);
                CHECK(batch != NULL, "no last batch");
                for (int again = 0; again < 2; again++) {
                    CHECK_INT(dt_loader_next(loader, &batch, NULL), DT_OK);
                    CHECK(batch == NULL, "a batch past the last");
                }
                dt_loader_close(loader);
            }
    dt_dataset_free(dataset);
}

static int32_t pair_value(int64_t i, int64_t t)
{
    return (int32_t)((i * i + 3 * t) % VOCAB);
}

static void write_pairs(int64_t n, int64_t bad_row, int32_t bad_id, int32_t bad_label,
                        hsize_t chunk)
{
    static int32_t ids[200 * T], labels[200 * T];
    for (int64_t i = 0; i < n * T; i++) {
        ids[i] = pair_value(i / T, i % T);
        labels[i] = i % 5 == 0 ? -100 : pair_value(i / T, i % T + 1);
    }
    ids[bad_row * T + 4] = bad_id;
    labels[bad_row * T + 6] = bad_label;
    hid_t file = new_file(in_scratch("p.h5")), type = H5T_STD_I32LE;
    struct put what = {"input_ids", type, type, 2, {(hsize_t)n, T}, ids, chunk, 0, false, false};
    put(file, &what);
    what.name = "labels";
    what.data = labels;
    put(file, &what);
    H5Fclose(file);
}

// Pulls until an error comes; gives the number of batches before it, -1 where none comes in `most`.
static int64_t batches_before_error(struct dt_loader *loader, int64_t most)
{
    const struct dt_batch *batch;
    for (int64_t n = 0; n < most; n++) {
        dt_error_clear();
        if (dt_loader_next(loader, &batch, NULL) == DT_OK)
            continue;
        CHECK(batch == NULL, "a batch beside an error");
        CHECK_INT(dt_loader_next(loader, &batch, NULL), DT_USER); // it stays
        return n;
    }
    return -1;
}

static void expect_error(const struct dt_loader_config *config, int64_t first, int64_t before,
                         const char *const *phrases)
{
    struct dt_loader *loader = open_loader(config, first);
    CHECK_INT(batches_before_error(loader, 60), before);
    CHECK_INT(dt_error_current()->code, DT_USER);
    for (; *phrases; phrases++)
        CHECK(strstr(dt_error_current()->message, *phrases), "\"%s\" does not say \"%s\"",
              dt_error_current()->message, *phrases);
    dt_loader_close(loader);
}

static void test_pairs(void)
{
    for (hsize_t chunk = 0; chunk < 20; chunk += 7) {
        write_pairs(103, 0, 1, -100, chunk);
        struct dt_dataset *dataset = scan("p.h5");
        struct dt_loader_config config = config_of(dataset);
        config.shuffle = false;
        config.reset_token = pair_value(2, 5);
        struct dt_loader *loader = open_loader(&config, 0);
        for (int64_t step = 0; step < 12; step++) {
            const struct dt_batch *batch;
            CHECK_INT(dt_loader_next(loader, &batch, NULL), DT_OK);
            const uint8_t *reset = dt_batch_find(batch, "reset")->data;
            for (int64_t k = 1; k < 8; k++)
                for (int64_t t = 0; t < T; t++) {
                    int64_t i = (k * 12 + step) * T + t;
                    int32_t want = pair_value(i / T, t);
                    CHECK_INT(row_of(batch, "input_ids", k)[t], want);
                    CHECK_INT(row_of(batch, "labels", k)[t],
                              i % 5 == 0 ? -100 : pair_value(i / T, t + 1));
                    CHECK_INT(reset[k * T + t], t == 0 || want == config.reset_token);
                }
        }
        dt_loader_close(loader);
        dt_dataset_free(dataset);
    }
}

static void test_bad_pairs(void)
{
    const struct {
        int32_t id, label;
        const char *phrases[4];
    } bad[] = {
        {VOCAB, 1, {"p.h5", "/input_ids at row 9, column 4 is 251", "vocabulary of 251"}},
        {-100, 1, {"p.h5", "/input_ids at row 9, column 4 is -100"}},
        {1, -1, {"p.h5", "/labels at row 9, column 6 is -1"}},
        {1, VOCAB, {"p.h5", "/labels at row 9, column 6 is 251"}},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_pairs(50, 9, bad[i].id, bad[i].label, 0);
        struct dt_dataset *dataset = scan("p.h5");
        struct dt_loader_config config = config_of(dataset);
        config.shuffle = false; // 6 steps; slot 1 is at row 9 in step 3
        expect_error(&config, 0, 3, bad[i].phrases);
        dt_dataset_free(dataset);
    }
}

static void test_vocabulary(int64_t size, int64_t vocab_size)
{
    write_shards(size, PLAIN, false);
    struct dt_dataset *dataset = scan("s0.h5");
    struct dt_loader_config config = config_of(dataset);
    config.batch = 1;
    config.shuffle = false;
    config.vocab_size = vocab_size;
    int64_t p = 0;
    while (token(0, p) < config.vocab_size)
        p++;
    char where[64], limit[64];
    snprintf(where, sizeof where, "offset %ld is %ld", (long)p, (long)token(0, p));
    snprintf(limit, sizeof limit, "vocabulary of %ld", (long)config.vocab_size);
    const char *phrases[] = {"s0.h5", "/tokens", where, limit, NULL};
    expect_error(&config, 0, (p - 1) / T, phrases); // the window whose last label it is
    dt_dataset_free(dataset);
}

enum { LONG = 20000, FLIPPED = 4096 * 2 + 77 };

static void write_long(const char *path)
{
    struct dt_shard_writer *writer;
    CHECK_INT(dt_shard_create(path, DT_U32, LONG, &writer), DT_OK);
    for (uint32_t p = 0; p < LONG; p++) {
        uint32_t x = p % VOCAB & ~1u;
        CHECK_INT(dt_shard_append(writer, &x, 1), DT_OK);
    }
    CHECK_INT(dt_shard_finish(writer, false), DT_OK);
}

static void test_bit_flips(void)
{
    const char *path = in_scratch("long.h5");
    write_long(path);
    flip_bit(path, offset_of(path, "tokens") + 4 * FLIPPED);
    struct dt_dataset *dataset = scan("long.h5");
    struct dt_loader_config config = config_of(dataset);
    config.batch = 1;
    config.shuffle = false;
    config.block = 4;
    // Windows 500 … 507 are good; with 508 comes a block that ends with token 8192, in the bad one.
    expect_error(
        &config, 500, 8,
        (const char *[]){"long.h5", "checksum mismatch", "block 2 (bytes 32768 to 49151)", NULL});
    config.sequential = true;
    expect_error(&config, 500, 11, (const char *[]){"long.h5", "checksum mismatch", NULL});
    config.verify = false;
    struct dt_loader *loader = open_loader(&config, 500);
    CHECK_INT(batches_before_error(loader, 60), -1);
    dt_loader_close(loader);
    dt_dataset_free(dataset);
}

// A flipped checksum counts like flipped data; a filter's own checksum works as well.
static void test_other_flips(void)
{
    const char *path = in_scratch("long.h5");
    write_long(path);
    flip_bit(path, offset_of(path, "tokens_xxh64") + 8);
    struct dt_dataset *dataset = scan("long.h5");
    struct dt_loader_config config = config_of(dataset);
    expect_error(&config, 0, 0, (const char *[]){"long.h5", "block 1 (bytes 16384", NULL});
    dt_dataset_free(dataset);

    write_layout(in_scratch("s3.h5"), 3, 2, FLETCHER);
    dataset = scan("s3.h5");
    config = config_of(dataset);
    const uint16_t *tokens = tokens_of(3, 2);
    char *text;
    int64_t size;
    CHECK_INT(dt_read_file(in_scratch("s3.h5"), 1 << 20, &text, &size), DT_OK);
    char *at = memmem(text, (size_t)size, tokens + 3000, 100);
    CHECK(at != NULL, "the tokens are not in the file as they are");
    flip_bit(in_scratch("s3.h5"), at - text);
    free(text);
    struct dt_loader *loader = open_loader(&config, 0);
    CHECK(batches_before_error(loader, 60) >= 0, "a flipped bit passes");
    CHECK(strstr(dt_error_current()->message, "s3.h5"), "%s", dt_error_current()->message);
    dt_loader_close(loader);
    dt_dataset_free(dataset);
}

static void test_bad_documents(void)
{
    const struct {
        uint64_t starts[3];
        const char *phrase;
    } bad[] = {{{0, 900, 50}, "/doc_starts[2] is 50"},
               {{0, 0, 50}, "/doc_starts[1] is 0"},
               {{0, 30, 1000}, "/doc_starts[2] is 1000"}};
    for (int i = 0; i < 3; i++) {
        write_layout(in_scratch("d.h5"), 0, 1, PLAIN);
        hid_t file = H5Fopen(in_scratch("d.h5"), H5F_ACC_RDWR, H5P_DEFAULT), u64 = H5T_STD_U64LE;
        put(file, &(struct put){.name = "doc_starts",
                                .disk = u64,
                                .memory = u64,
                                .n_dims = 1,
                                .dims = {3},
                                .data = bad[i].starts});
        H5Fclose(file);
        struct dt_dataset *dataset = scan("d.h5");
        struct dt_loader_config config = config_of(dataset);
        config.block = INT64_MAX / 2;
        expect_error(&config, 0, 0, (const char *[]){"d.h5", bad[i].phrase, NULL});
        dt_dataset_free(dataset);
    }
}

// s0.h5 of its own length, with the tokens of another.
static void put_same_length(void)
{
    hid_t file = new_file(in_scratch("s0.h5")), u16 = H5T_STD_U16LE;
    put(file, &(struct put){.name = "tokens",
                            .disk = u16,
                            .memory = u16,
                            .n_dims = 1,
                            .dims = {(hsize_t)lengths[0]},
                            .data = tokens_of(1, 2)});
    H5Fclose(file);
}

// What happens to a shard between the look at the start and the first read.
static void test_changed_shards(void)
{
    write_shards(2, PLAIN, false);
    struct dt_dataset *dataset = scan("s*.h5");
    struct dt_loader_config config = config_of(dataset);
    char all[128];
    write_layout(in_scratch("s0.h5"), 2, 2, PLAIN);
    snprintf(all, sizeof all, "%s/s0.h5 has changed", scratch);
    struct dt_loader *loader = open_loader(&config, 0);
    CHECK(batches_before_error(loader, 60) >= 0, "another shard passes");
    CHECK(strstr(dt_error_current()->message, all), "%s", dt_error_current()->message);
    dt_loader_close(loader);
    put_same_length();
    loader = open_loader(&config, 0);
    CHECK(batches_before_error(loader, 60) >= 0, "another shard of the same length passes");
    CHECK(strstr(dt_error_current()->message, all), "%s", dt_error_current()->message);
    dt_loader_close(loader);
    CHECK(truncate(in_scratch("s0.h5"), 3000) == 0, "cannot truncate");
    loader = open_loader(&config, 0);
    CHECK(batches_before_error(loader, 60) >= 0, "a truncated shard passes");
    dt_loader_close(loader);
    unlink(in_scratch("s0.h5"));
    loader = open_loader(&config, 0);
    CHECK(batches_before_error(loader, 60) >= 0, "a missing shard passes");
    CHECK(strstr(dt_error_current()->message, "No such file"), "%s", dt_error_current()->message);
    dt_loader_close(loader);
    dt_dataset_free(dataset);
}

// More shards than are kept open, all alike but for their length.
static void test_many_shards(void)
{
    enum { SHARDS = 3 * DT_OPEN_SHARDS / 2 };
    char name[32];
    int64_t wrong = 0;
    for (int64_t s = 0; s < SHARDS; s++) {
        snprintf(name, sizeof name, "m%03ld.h5", (long)s);
        struct put what = {.name = "tokens",
                           .disk = H5T_STD_U8LE,
                           .memory = H5T_STD_U8LE,
                           .n_dims = 1,
                           .dims = {T + 1},
                           .data = (const char *)tokens_of(0, 1) + s};
        hid_t file = new_file(in_scratch(name));
        put(file, &what);
        H5Fclose(file);
    }
    struct dt_dataset *dataset = scan("m*.h5");
    struct dt_loader_config config = config_of(dataset);
    config.batch = SHARDS / 2;
    config.shuffle = false;
    struct dt_loader *loader = open_loader(&config, 0);
    for (int64_t step = 0; step < 6; step++) {
        const struct dt_batch *batch;
        CHECK_INT(dt_loader_next(loader, &batch, NULL), DT_OK);
        for (int64_t k = 0; k < config.batch; k++)
            wrong += row_of(batch, "labels", k)[5] != token(0, 2 * k + step % 2 + 6);
    }
    CHECK_INT(wrong, 0);
    dt_loader_close(loader);
    dt_dataset_free(dataset);
}

static void test_close(void)
{
    write_shards(2, HASHED, true);
    struct dt_dataset *dataset = scan("s*.h5");
    struct dt_loader_config config = config_of(dataset);
    for (int i = 0; i < 100; i++) {
        const struct dt_batch *batch;
        struct dt_loader *loader = open_loader(&config, i);
        for (int n = 0; n < i % 4; n++)
            CHECK_INT(dt_loader_next(loader, &batch, NULL), DT_OK);
        usleep((unsigned)(i % 7) * 50);
        dt_loader_close(loader);
    }
    dt_loader_close(NULL);
    dt_dataset_free(dataset);
}

// Two loaders at once, as training and validation have them.
static void test_two_loaders(void)
{
    write_shards(2, GZIP, false);
    struct dt_dataset *dataset = scan("s*.h5");
    struct dt_loader_config config = config_of(dataset), val = config;
    val.sequential = true;
    const struct dt_batch *batch;
    struct dt_loader *loader = open_loader(&config, 0);
    for (int i = 0; i < 5; i++) {
        CHECK_INT(dt_loader_next(loader, &batch, NULL), DT_OK);
        check_batches(&val, 0, 5);
        check_batches(&config, 10, 20);
    }
    dt_loader_close(loader);
    dt_dataset_free(dataset);
}

static int64_t hooked_bytes;

static dt_status hooked_alloc(void *context, int64_t bytes, void **memory)
{
    if (context)
        return DT_FAIL(DT_MACHINE, NULL, "no pinned memory");
    hooked_bytes = bytes;
    *memory = aligned_alloc(64, (size_t)bytes);
    return DT_OK;
}

static void hooked_free(void *context, void *memory)
{
    (void)context;
    free(memory);
    hooked_bytes = -1;
}

static void test_memory(void)
{
    struct dt_dataset *dataset = scan("s*.h5");
    struct dt_loader_config config = config_of(dataset);
    struct dt_loader *loader;
    int failing;
    config.alloc_host = hooked_alloc;
    config.free_host = hooked_free;
    loader = open_loader(&config, 0);
    // 2 batches of 8 rows of input_ids and labels; 8 slots of 5 windows of uint16, rounded up
    // to 64.
    CHECK_INT(hooked_bytes, 2 * 2 * 8 * T * 4);
    CHECK_INT(dt_loader_bytes(&config), hooked_bytes + 8 * 192);
    dt_loader_close(loader);
    CHECK_INT(hooked_bytes, -1);
    config.context = &failing;
    CHECK_INT(dt_loader_open(&config, 0, &loader), DT_MACHINE);
    CHECK(loader == NULL, "a refusal gives a loader");
    dt_dataset_free(dataset);
}

static void test_refusals(void)
{
    struct dt_dataset *dataset = scan("s*.h5");
    struct dt_loader *loader;
    for (int i = 0; i < 6; i++) {
        struct dt_loader_config config = config_of(dataset);
        if (i == 0)
            config.prefetch = 0;
        else if (i == 1)
            config.size = 3;
        else if (i == 2)
            config.batch = dataset->windows + 1;
        else if (i == 3)
            config.vocab_size = 0;
        else if (i == 4)
            config.block = 0;
        else
            config.prefetch = INT64_MAX / 2;
        CHECK_INT(dt_loader_open(&config, 0, &loader), DT_USER);
    }
    dt_dataset_free(dataset);
}

static void test_synthetic(void)
{
    struct dt_dataset *dataset;
    CHECK_INT(dt_dataset_scan("synthetic:random", T, 0, &dataset), DT_OK);
    struct dt_loader_config config = config_of(dataset);
    struct dt_loader *a = open_loader(&config, 5), *b;
    config.size = 2;
    config.rank = 1;
    b = open_loader(&config, 5);
    int64_t seen[VOCAB] = {0}, wrong = 0;
    for (int step = 0; step < 400; step++) {
        const struct dt_batch *x, *y;
        CHECK_INT(dt_loader_next(a, &x, NULL), DT_OK);
        CHECK_INT(dt_loader_next(b, &y, NULL), DT_OK);
        const int32_t *all = row_of(x, "input_ids", 4), *mine = row_of(y, "input_ids", 0);
        const int32_t *labels = row_of(x, "labels", 4);
        wrong += memcmp(all, mine, 4 * T * sizeof *all) != 0;
        for (int t = 0; t < 4 * T; t++) {
            wrong += all[t] < 0 || all[t] >= VOCAB || (t % T && labels[t - 1] != all[t]);
            seen[all[t] % VOCAB]++;
        }
    }
    CHECK_INT(wrong, 0);
    // 25,600 draws, 102 a token: within six standard deviations (61).
    for (int v = 0; v < VOCAB; v++)
        CHECK(seen[v] > 41 && seen[v] < 163, "token %d is drawn %ld times", v, (long)seen[v]);
    dt_loader_close(a);
    dt_loader_close(b);
    dt_dataset_free(dataset);
}

int main(void)
{
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    dt_log_quiet(true);
    make_scratch();
    test_layouts();
    test_shapes();
    test_resets();
    test_sequential();
    test_pairs();
    test_bad_pairs();
    for (int64_t size = 1; size <= 4; size *= 2) {
        test_vocabulary(size, 200);
        test_vocabulary(size, 250); // the largest token of all
    }
    test_bit_flips();
    test_other_flips();
    test_bad_documents();
    test_changed_shards();
    test_many_shards();
    test_close();
    test_two_loaders();
    test_memory();
    test_refusals();
    test_synthetic();
    remove_scratch();
    return test_end();
}

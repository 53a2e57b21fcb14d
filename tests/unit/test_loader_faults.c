// Tests everything that can be wrong with the data during training. An error comes after the good
// batches, names the shard and the place, and is repeated by later calls.
#include "data/shard_cache.h"
#include "loader_data.h"

// Reads batches until an error and returns how many came before it; -1 if there is no error in
// `most`.
static int64_t batches_before_error(struct dt_loader *loader, int64_t most)
{
    const struct dt_batch *batch;
    for (int64_t n = 0; n < most; n++) {
        dt_error_clear();
        if (dt_loader_next(loader, &batch, NULL) == DT_OK)
            continue;
        CHECK(batch == NULL, "a batch beside an error");
        CHECK_INT(dt_loader_next(loader, &batch, NULL), DT_USER); // the error is repeated
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
        CHECK_SAYS(*phrases);
    char step[64], text[2 * DT_ERROR_MESSAGE];
    snprintf(step, sizeof step, "the batch of step %lld\n", (long long)(first + before + 1));
    dt_error_format(dt_error_current(), 0, text, sizeof text);
    CHECK(strstr(text, step), "not of step %lld: %s", (long long)(first + before + 1), text);
    dt_loader_close(loader);
}

static void expect_some_error(const struct dt_loader_config *config, const char *phrase)
{
    struct dt_loader *loader = open_loader(config, 0);
    CHECK(batches_before_error(loader, 60) >= 0, "a damaged or changed shard passes");
    CHECK_SAYS(phrase);
    dt_loader_close(loader);
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
        struct dt_loader_config config = config_for(in_scratch("p.h5"));
        config.shuffle = false; // there are 6 steps; slot 1 has row 9 in step 3
        expect_error(&config, 0, 3, bad[i].phrases);
    }
    // 2^64 - 100 is a wrong label, not the one that is ignored.
    static uint64_t values[50 * T];
    hid_t file = new_file(in_scratch("p.h5"));
    put_matrix(file, "input_ids", H5T_STD_U64LE, 50, T, values);
    values[9 * T + 6] = (uint64_t)DT_IGNORED;
    put_matrix(file, "labels", H5T_STD_U64LE, 50, T, values);
    H5Fclose(file);
    struct dt_loader_config config = config_for(in_scratch("p.h5"));
    config.shuffle = false;
    expect_error( // when the block with it is converted
        &config, 0, 0,
        (const char *[]){"/labels at row 9, column 6 is 18446744073709551516, which no", NULL});
}

static void test_vocabulary(int64_t size, int64_t vocab_size)
{
    write_shards(size, PLAIN, false);
    struct dt_loader_config config = config_for(in_scratch("s0.h5"));
    config.batch = 1;
    config.shuffle = false;
    config.rules.vocab_size = vocab_size;
    int64_t p = 0;
    while (token(0, p) < config.rules.vocab_size)
        p++;
    char where[64], limit[64];
    snprintf(where, sizeof where, "offset %ld is %ld", (long)p, (long)token(0, p));
    snprintf(limit, sizeof limit, "vocabulary of %ld", (long)config.rules.vocab_size);
    const char *phrases[] = {"s0.h5", "/tokens", where, limit, NULL};
    expect_error(&config, 0, (p - 1) / T, phrases); // in the window of which it is the last label
}

enum { LONG = 20000, FLIPPED = 4096 * 2 + 77 };

static void test_bit_flips(void)
{
    const char *path = in_scratch("long.h5");
    static uint32_t tokens[LONG];
    struct dt_shard_writer *writer;
    for (uint32_t i = 0; i < LONG; i++)
        tokens[i] = i % VOCAB & ~1u;
    CHECK_OK(dt_shard_create(path, DT_U32, LONG, &writer));
    CHECK_OK(dt_shard_append(writer, tokens, LONG));
    CHECK_OK(dt_shard_finish(writer, false));
    flip_bit(path, offset_of(path, "tokens") + 4 * FLIPPED);
    struct dt_loader_config config = config_for(in_scratch("long.h5"));
    config.batch = 1;
    config.shuffle = false;
    config.block = 4;
    // Windows 500 … 507 are good. Window 508 begins a block whose end, token 8192, is in the
    // damaged part.
    expect_error(
        &config, 500, 8,
        (const char *[]){"long.h5", "checksum mismatch", "block 2 (bytes 32768 to 49151)", NULL});
    config.sequential = true;
    expect_error(&config, 500, 11, (const char *[]){"long.h5", "checksum mismatch", NULL});
    config.rules.verify = false;
    struct dt_loader *loader = open_loader(&config, 500);
    CHECK_INT(batches_before_error(loader, 60), -1);
    dt_loader_close(loader);
}

// A filter's own checksum protects the data too.
static void test_filter_flip(void)
{
    write_layout(in_scratch("s3.h5"), 3, 2, FLETCHER);
    struct dt_loader_config config = config_for(in_scratch("s3.h5"));
    const uint16_t *tokens = tokens_of(3, 2);
    char *text;
    int64_t size;
    CHECK_OK(dt_read_file(in_scratch("s3.h5"), 1 << 20, &text, &size));
    char *at = memmem(text, (size_t)size, tokens + 3000, 100);
    CHECK(at != NULL, "the tokens are not in the file as they are");
    flip_bit(in_scratch("s3.h5"), at - text);
    free(text);
    expect_some_error(&config, "s3.h5: chunk 0 of /tokens does not match its fletcher32");
}

// A shard changes between the scan at the start and the first read.
static void test_changed_shards(void)
{
    write_shards(2, PLAIN, false);
    struct dt_loader_config config = config_for(in_scratch("s*.h5"));
    write_layout(in_scratch("s0.h5"), 2, 2, PLAIN); // another length
    expect_some_error(&config, "s0.h5 has changed");
    put_alone(in_scratch("s0.h5"), "tokens", H5T_STD_U16LE, lengths[0], tokens_of(1, 2));
    expect_some_error(&config, "s0.h5 has changed"); // its length, but the tokens of another shard
    CHECK(truncate(in_scratch("s0.h5"), 3000) == 0, "cannot truncate");
    expect_some_error(&config, "s0.h5");
    unlink(in_scratch("s0.h5"));
    expect_some_error(&config, "No such file");
}

// A shard changes between two validations, during which shards stay open.
static void test_replaced_shards(void)
{
    write_shards(2, PLAIN, false);
    struct dt_loader_config config = config_for(in_scratch("s*.h5"));
    CHECK_OK(dt_shard_cache_open(config.dataset, &config.shards));
    const struct {
        int64_t tokens_of;
        const char *says;
    } cases[] = {{0, NULL}, {1, "s0.h5 has changed"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dt_loader *loader = open_loader(&config, 0);
        CHECK_INT(batches_before_error(loader, 60), -1);
        dt_loader_close(loader);
        unlink(in_scratch("s3.h5")); // the file is still open
        put_alone(in_scratch("new"), "tokens", H5T_STD_U16LE, lengths[0],
                  tokens_of(cases[i].tokens_of, 2));
        CHECK(rename(in_scratch("new"), in_scratch("s0.h5")) == 0, "cannot replace a shard");
        if (cases[i].says)
            expect_some_error(&config, cases[i].says);
    }
    dt_shard_cache_close(config.shards);
}

// A shard of the same length and the same first tokens has another last token, then document
// starts.
static void test_changed_end(void)
{
    static uint32_t tokens[LONG];
    const uint64_t starts[] = {0, 77};
    const char *path = in_scratch("end.h5");
    put_alone(path, "tokens", H5T_STD_U32LE, LONG, tokens);
    struct dt_loader_config config = config_for(in_scratch("end.h5"));
    tokens[LONG - 1] = 1;
    put_alone(path, "tokens", H5T_STD_U32LE, LONG, tokens);
    expect_some_error(&config, "end.h5 has changed");
    tokens[LONG - 1] = 0;
    hid_t file = new_file(path);
    put_vector(file, "tokens", H5T_STD_U32LE, LONG, tokens);
    put_vector(file, "doc_starts", H5T_STD_U64LE, 2, starts);
    H5Fclose(file);
    expect_some_error(&config, "end.h5 has changed");
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
    struct dt_loader_config config = config_for(in_scratch("s*.h5"));
    struct dt_loader *loader;
    int failing;
    config.alloc_host = hooked_alloc;
    config.free_host = hooked_free;
    loader = open_loader(&config, 0);
    // 2 batches of 8 rows of input_ids and labels; 8 slots of 5 windows of uint16, rounded up to
    // 64.
    CHECK_INT(hooked_bytes, 2 * 2 * 8 * T * 4);
    CHECK_INT(dt_loader_bytes(&config), hooked_bytes + 8 * 192);
    dt_loader_close(loader);
    CHECK_INT(hooked_bytes, -1);
    config.context = &failing;
    CHECK_INT(dt_loader_open(&config, 0, &loader), DT_MACHINE);
    CHECK(loader == NULL, "a refusal gives a loader");
}

static void test_refusals(void)
{
    enum { WRONG = 6 };
    const struct dt_loader_config good = config_for(in_scratch("s*.h5"));
    struct dt_loader_config config[WRONG];
    struct dt_loader *loader;
    for (int i = 0; i < WRONG; i++)
        config[i] = good;
    config[0].prefetch = 0;
    config[1].size = 3;
    config[2].batch = good.dataset->windows + 1;
    config[3].rules.vocab_size = -1;
    config[4].block = 0;
    config[5].prefetch = INT64_MAX / 2;
    for (int i = 0; i < WRONG; i++)
        CHECK_INT(dt_loader_open(&config[i], 0, &loader), DT_USER);
}

int main(void)
{
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    dt_log_quiet(true);
    int threads = thread_count();
    make_scratch();
    test_bad_pairs();
    for (int64_t size = 1; size <= 4; size *= 2) {
        test_vocabulary(size, 200);
        test_vocabulary(size, 244); // first as a label: token 32, which begins the next window
        test_vocabulary(size, 250); // the largest token of all
    }
    RUN(test_bit_flips, test_filter_flip, test_changed_shards, test_replaced_shards,
        test_changed_end, test_memory, test_refusals);
    check_threads(threads);
    remove_scratch();
    return test_end();
}

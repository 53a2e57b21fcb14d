// Tests weights of frames and missing targets: the arrays of every window, what is refused, and
// what distinguishes a shard that is read with them from the same file read without.
#include "base/file.h"
#include "data/h5_episodes.h"
#include "data/pack.h"
#include "episode_cases.h"

enum { ROWS = 122, H = 2 }; // frames of the first six episodes; number of heads

static float weight(int64_t row, int64_t column)
{
    return (float)((row * 7 + column * 5) % 16) / 4;
}

// Writes a file of the native layout with "w" [n], weights for all heads, and "pair" [n, 2].
static void write_weights(hid_t type)
{
    static float w[ROWS], pair[2 * ROWS];
    write_a(NATIVE);
    for (int64_t i = 0; i < ROWS; i++) {
        w[i] = weight(i, 0);
        pair[2 * i] = weight(i, 1);
        pair[2 * i + 1] = weight(i, 2);
    }
    hid_t file = change("a.h5");
    put_numbers(file, "", "w", type, H5T_NATIVE_FLOAT, 1, ROWS, 1, w, false);
    put_numbers(file, "", "pair", type, H5T_NATIVE_FLOAT, 2, ROWS, 2, pair, false);
    H5Fclose(file);
}

static struct dt_scan_rules weighted_rules(const char *weights)
{
    struct dt_scan_rules rules = rules_of(NATIVE, 0);
    strcpy(rules.weights, weights);
    return rules;
}

// Calls `check` with each window of a pass and the number of its first row in the file.
static void each_window(const struct dt_scan_rules *rules,
                        void (*check)(const struct dt_batch *, int64_t row, int64_t first,
                                      int64_t n, void *),
                        void *context)
{
    static struct expected want[EPISODES * LONGEST];
    struct dt_dataset *dataset = scan_all(rules);
    struct dt_loader *loader;
    const struct dt_batch *batch;
    int64_t n = expect_windows(0, 6, T, want);
    if (!dataset)
        return;
    struct dt_loader_config config = one_pass(dataset);
    CHECK_OK(dt_loader_open(&config, 0, &loader));
    for (int64_t i = 0; i < n; i++) {
        int64_t first = want[i].first;
        if (i % 4 == 0)
            CHECK_OK(dt_loader_next(loader, &batch, NULL));
        for (int64_t e = 0; e < want[i].episode; e++)
            first += episode_frames[e];
        if (batch)
            check(batch, i % 4, first, want[i].n, context);
    }
    dt_loader_close(loader);
}

// Checks weights. columns[0] is the column of the file for all heads, and the next ones are for
// each head; -1: none.
static void check_weights(const struct dt_batch *batch, int64_t row, int64_t first, int64_t n,
                          void *context)
{
    const int *columns = context;
    const struct dt_array *array = dt_batch_find(batch, "weights");
    CHECK(array && array->spec.type == DT_F32 && array->spec.width == 1 + H, "no weights");
    const float *weights = array ? (const float *)array->data + row * T * (1 + H) : NULL;
    int64_t wrong = 0;
    for (int64_t t = 0; weights && t < T; t++)
        for (int64_t k = 0; k <= H; k++) {
            float all = columns[0] < 0 ? 1 : weight(first + t, columns[0]);
            float own = k == 0 || columns[k] < 0 ? 1 : weight(first + t, columns[k]);
            wrong += weights[t * (1 + H) + k] != (t < n ? all * own : 0);
        }
    CHECK(wrong == 0, "%ld wrong weights from row %ld", (long)wrong, (long)first);
}

static void test_weights(void)
{
    static const struct {
        const char *text;
        int columns[1 + H];
    } cases[] = {{"w", {0, -1, -1}},
                 {"pair[1]", {2, -1, -1}},
                 {"pair[0]:stick", {-1, -1, 1}},
                 {"w /pair[0]:stick  pair[1:2]:buttons", {0, 2, 1}}};
    hid_t f16 = f16_type();
    for (int half = 0; half < 2; half++) {
        write_weights(half ? f16 : H5T_IEEE_F64LE);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            struct dt_scan_rules rules = weighted_rules(cases[i].text);
            each_window(&rules, check_weights, (void *)cases[i].columns);
        }
    }
    H5Tclose(f16);
    struct dt_scan_rules rules = rules_of(NATIVE, 0);
    struct dt_dataset *dataset = scan_all(&rules);
    struct dt_array_list list = {0};
    dt_episodes_arrays(dataset, &(struct dt_read_rules){0}, &list);
    CHECK(dt_array_list_find(&list, "weights") < 0, "there are weights");
}

static void refuse_weights(const char *text, const char *phrase)
{
    struct dt_scan_rules rules = weighted_rules(text);
    refuse_scan(&rules, phrase);
}

// Reads one kind of numbers of all rows and expects an error with this phrase.
static void refuse_numbers(const struct dt_scan_rules *rules, enum dt_numbers which,
                           const char *phrase)
{
    static float numbers[ROWS * 8];
    struct dt_dataset *dataset = scan_all(rules);
    struct dt_shard_cache *shards;
    struct dt_reader *reader;
    CHECK_OK(dt_shard_cache_open(dataset, &shards));
    CHECK_OK(dt_shard_cache_get(shards, 0, false, &reader));
    CHECK_FAILS(dataset->kind->numbers(reader, which, 0, ROWS, numbers), DT_USER, phrase);
    dt_shard_cache_close(shards);
}

static void test_weights_refused(void)
{
    write_weights(H5T_IEEE_F64LE);
    refuse_weights("v", "a.h5 has no /v (data.weights)");
    refuse_weights("pair", "/pair has 2 columns; a weight (data.weights) is one number");
    refuse_weights("pair[2]", "/pair has 2 columns; there is no column 2");
    refuse_weights("w:stik",
                   "data.weights: 'w:stik': there is no head 'stik': did you mean 'stick'?");
    refuse_weights("w pair[0]", "data.weights: w and pair are both of all heads");
    refuse_weights("w:stick pair[0]:stick", "data.weights: w and pair are both of stick");
    refuse_weights("w@1", "data.weights: 'w@1' is not understood");
    refuse_weights("pair[0", "data.weights: 'pair[0' is not understood");
    refuse_weights(":stick", "data.weights: ':stick' has no path");
    put_zeros("a.h5", "/short", 1, 60, 1);
    refuse_weights("short", "/short has 60 rows");
    const struct {
        double value;
        const char *phrase;
    } bad[] = {{-0.5, "/w, row 8 (row 2 of episode 2): -0.5 is not a weight (data.weights)"},
               {NAN, "/w, row 8 (row 2 of episode 2): nan is not a weight"},
               {INFINITY, "row 8 (row 2 of episode 2): inf is not a weight"},
               {1.1e18, "row 8 (row 2 of episode 2): 1.1e+18 is not a weight"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct dt_scan_rules rules = weighted_rules("w:stick");
        put_value(in_scratch("a.h5"), "/w", 8, 0, bad[i].value);
        refuse_numbers(&rules, DT_NUMBERS_WEIGHTS, bad[i].phrase);
    }
    put_alone(in_scratch("a.h5"), "tokens", H5T_STD_U8LE, 64, (uint8_t[64]){0});
    struct dt_scan_rules rules = {.seq_len = T, .weights = "w"};
    refuse_scan(&rules, "holds tokens: data.weights is for episodes of frames");
}

// Checks that of row 8 the targets in columns 0 (a bit) and 2 (a class) are missing, and no others.
static void check_missing(const struct dt_batch *batch, int64_t row, int64_t first, int64_t n,
                          void *context)
{
    const float *targets = (const float *)dt_batch_find(batch, "targets")->data + row * T * W;
    (void)context;
    for (int64_t t = 0; t < n; t++)
        for (int64_t c = 0; c < W; c++)
            CHECK(isnan(targets[t * W + c]) == (first + t == 8 && c != 1), "row %ld, column %ld",
                  (long)(first + t), (long)c);
}

static void test_missing(void)
{
    const hid_t types[] = {H5T_STD_I16LE, H5T_IEEE_F32LE, H5T_IEEE_F64LE};
    struct dt_scan_rules rules = rules_of(NATIVE, 0);
    for (int i = 0; i < 4; i++) { // -100 marks them as missing, and NaN in the last case
        struct episode_types stored = *plain_types();
        stored.actions = types[i < 3 ? i : 2];
        write_episodes(in_scratch("a.h5"), NATIVE, &stored, 0, 6);
        put_value(in_scratch("a.h5"), "/actions", 8, 0, i == 3 ? NAN : -100);
        put_value(in_scratch("a.h5"), "/actions", 8, 2, i == 3 ? NAN : -100);
        each_window(&rules, check_missing, NULL);
    }
    // For a regression, -100 is a number like any other. Other wrong targets are still refused.
    rules.target[0].classes = 0;
    put_value(in_scratch("a.h5"), "/actions", 8, 0, -100);
    struct dt_dataset *dataset = scan_all(&rules);
    struct dt_shard_cache *shards;
    struct dt_reader *reader;
    static float numbers[ROWS * W];
    CHECK_OK(dt_shard_cache_open(dataset, &shards));
    CHECK_OK(dt_shard_cache_get(shards, 0, false, &reader));
    CHECK_OK(dataset->kind->numbers(reader, DT_NUMBERS_TARGETS, 0, ROWS, numbers));
    CHECK(numbers[8 * W] == -100, "a regression to -100 is %g", numbers[8 * W]);
    dt_shard_cache_close(shards);
    rules = rules_of(NATIVE, 0);
    put_value(in_scratch("a.h5"), "/actions", 8, 1, INFINITY);
    refuse_numbers(&rules, DT_NUMBERS_TARGETS,
                   "/actions, row 8 (row 2 of episode 2), column 1: inf is not a finite float32");
    put_value(in_scratch("a.h5"), "/actions", 8, 1, -99);
    refuse_numbers(&rules, DT_NUMBERS_TARGETS,
                   "column 1: -99 is not a whole number in [0, 2) for the head buttons, nor -100");
    put_value(in_scratch("a.h5"), "/frames", 8, 1, NAN);
    refuse_numbers(&rules, DT_NUMBERS_FRAMES, "/frames, row 8 (row 2 of episode 2), column 1: nan");
}

// `dtrain verify` counts the frames with missing targets.
static void test_verify(void)
{
    struct dt_shard shard = {0};
    write_a(ROBOMIMIC);
    put_value(in_scratch("a.h5"), "/data/demo_2/actions", 3, 1, NAN);
    put_value(in_scratch("a.h5"), "/data/demo_2/actions", 3, 2, NAN);
    put_value(in_scratch("a.h5"), "/data/demo_5/actions", 49, 0, NAN);
    // A number, since verify knows no heads.
    put_value(in_scratch("a.h5"), "/data/demo_4/actions", 0, 0, -100);
    CHECK_OK(dt_verify_shard(in_scratch("a.h5"), NULL, false, &shard));
    CHECK_INT(shard.unlabeled, 2);
}

// Data that are read without weights and shifts must have the hashes of older versions, which had
// neither.
static void test_identity(void)
{
    static const uint64_t first_hash[D4RL + 1] = {0x43b72a4541d6cc26, 0xfc8312293eecf698,
                                                  0xb7abb177c4992036, 0xdc034d0c8adafac5};
    for (enum episode_layout layout = 0; layout <= D4RL; layout++) { // GROUPS is younger
        struct dt_scan_rules rules = rules_of(layout, 0);
        write_a(layout);
        const struct dt_shard *shard = scan_all(&rules)->shards;
        CHECK(shard->first_hash == first_hash[layout], "%s: first hash", layout_name[layout]);
        CHECK(shard->last_hash == 0xcc227dbc8ded7a5d, "%s: last hash", layout_name[layout]);
        CHECK(shard->data_hash == 0xaa91dbaa0f7abb62, "%s: data hash", layout_name[layout]);
    }
    static const char *const weights[] = {"", "w", "w:stick", "w:buttons", "pair[0]", "pair[1]"};
    enum { N = sizeof weights / sizeof *weights };
    uint64_t columns[N], data[N];
    write_weights(H5T_IEEE_F32LE);
    for (int i = 0; i < N; i++) {
        struct dt_scan_rules rules = weighted_rules(weights[i]);
        const struct dt_shard *shard = scan_all(&rules)->shards;
        columns[i] = shard->layout.columns;
        data[i] = shard->data_hash;
        for (int k = 0; k < i; k++)
            CHECK(columns[i] != columns[k], "'%s' is '%s'", weights[i], weights[k]);
    }
    put_value(in_scratch("a.h5"), "/w", 100, 0, 17);
    for (int i = 0; i < 2; i++) {
        struct dt_scan_rules rules = weighted_rules(weights[i]);
        CHECK((scan_all(&rules)->shards[0].data_hash != data[i]) == (i == 1), "'%s'", weights[i]);
    }
}

int main(void)
{
    make_scratch();
    RUN(test_weights, test_weights_refused, test_missing, test_verify, test_identity);
    remove_scratch();
    return test_end();
}

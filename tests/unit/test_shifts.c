// Tests columns of other rows (@SHIFT, @FROM:TO, :valid). Every number of every window is compared
// with what was written, in each layout, normalised or as stored, in one pass and in shuffled
// blocks. Also tests what is missing at an episode's ends, and that statistics leave it out.
#include "base/text.h"
#include "data/columns.h"
#include "episode_cases.h"

// A number of row t + shift: 'a', 'i' (img), 'b' or 'u' (an action); or 'v', whether that row
// exists.
struct want {
    char kind;
    int64_t column, shift;
};

enum { FRAMES = 14, IDS = 2, TARGETS = 9 };
static const struct want frames_want[FRAMES] = {
    {'a', 0, -2}, {'a', 1, -2}, {'a', 2, -2}, {'v', 0, -2}, {'a', 0, -1},
    {'a', 1, -1}, {'a', 2, -1}, {'v', 0, -1}, {'i', 1, 1},  {'i', 2, 1},
    {'v', 0, 1},  {'a', 0, 0},  {'a', 1, 0},  {'a', 2, 0}};
static const struct want ids_want[IDS] = {{'b', 0, -1}, {'b', 0, 1}};
static const struct want targets_want[TARGETS] = {{'u', 0, -1}, {'u', 1, -1}, {'u', 2, -1},
                                                  {'u', 0, 0},  {'u', 1, 0},  {'u', 2, 0},
                                                  {'u', 0, 1},  {'u', 1, 1},  {'u', 2, 1}};
static const char *const names[LAYOUTS][3] = {
    {"frames", "img", "b"},
    {"obs/a", "obs/img", "obs/b"},
    {"observations/a", "observations/img", "observations/b"},
    {"observations", "img", "b"},
    {"obs/a", "obs/img", "obs/b"}};

static struct dt_scan_rules shifted_rules(enum episode_layout layout, int64_t stride)
{
    struct dt_scan_rules rules = rules_of(layout, stride);
    const char *const *name = names[layout];
    snprintf(rules.inputs, sizeof rules.inputs,
             "%s@-2:0:valid %s[1:3]@+1 %s:id*7@-1 %s:id*7@1:valid %s", name[0], name[1], name[2],
             name[2], name[0]);
    snprintf(rules.targets, sizeof rules.targets, "actions@-1:2");
    rules.n_targets = 6;
    for (int i = 2; i < 6; i++)
        rules.target[i] = rules.target[i % 2];
    return rules;
}

// Minari has one more row of observations.
static bool is_there(enum episode_layout layout, const struct want *want, int64_t e, int64_t t)
{
    int64_t rows = episode_frames[e] + (layout == MINARI && want->kind != 'u');
    return t + want->shift >= 0 && t + want->shift < rows;
}

// The expected number. Missing numbers are NaN, missing ids are 0.
static float value(enum episode_layout layout, const struct want *want, int64_t e, int64_t t)
{
    bool there = is_there(layout, want, e, t);
    t += want->shift;
    switch (want->kind) {
    case 'v':
        return there;
    case 'b':
        return there ? (float)value_b(e, t) : 0;
    case 'a':
        return there ? value_a(e, t, want->column) : NAN;
    case 'i':
        return there ? (float)value_img(e, t, want->column) : NAN;
    default:
        return there ? (float)value_action(e, t, want->column) : NAN;
    }
}

static enum episode_layout layout_now;
static float mean[FRAMES], deviation[FRAMES];

static void check_row(const struct dt_batch *batch, int64_t row, const struct dt_read_rules *rules,
                      const struct expected *window)
{
    const float *frames = dt_batch_find(batch, "frames")->data;
    const dt_bf16 *halves = dt_batch_find(batch, "frames")->data;
    const int32_t *ids = dt_batch_find(batch, "ids")->data;
    const float *targets = dt_batch_find(batch, "targets")->data;
    const uint8_t *mask = dt_batch_find(batch, "mask")->data;
    int64_t wrong = 0;
    for (int64_t i = 0; i < T; i++) {
        int64_t at = row * T + i, e = window ? window->episode : 0,
                t = window ? window->first + i : 0;
        bool there = window && i < window->n;
        for (int64_t c = 0; c < FRAMES; c++) {
            float x = there ? value(layout_now, &frames_want[c], e, t) : 0;
            if (isnan(x))
                x = rules->mean || !rules->missing ? 0 : mean[c];
            else if (there && rules->mean)
                x = (x - mean[c]) / deviation[c];
            wrong += rules->frames_type == DT_F32 ? frames[at * FRAMES + c] != x
                                                  : halves[at * FRAMES + c] != dt_f32_to_bf16(x);
        }
        for (int64_t c = 0; c < IDS; c++)
            wrong += ids[at * IDS + c] != (there ? value(layout_now, &ids_want[c], e, t) : 0);
        for (int64_t c = 0; c < TARGETS; c++) {
            float x = there ? value(layout_now, &targets_want[c], e, t) : 0;
            float is = targets[at * TARGETS + c];
            wrong += isnan(x) ? !isnan(is) : is != x;
        }
        wrong += mask[at] != there;
    }
    CHECK(wrong == 0, "%s: %ld wrong numbers in row %ld, episode %ld from %ld",
          layout_name[layout_now], (long)wrong, (long)row, (long)(window ? window->episode : -1),
          (long)(window ? window->first : -1));
}

// Statistics leave out missing numbers, and flags are not normalised.
static void check_statistics(const struct dt_dataset *dataset)
{
    float of_mean[FRAMES], of_deviation[FRAMES];
    CHECK_INT(statistics_of(dataset, NULL, NULL, of_mean, of_deviation), 0);
    for (int64_t c = 0; c < FRAMES; c++) {
        double sum = 0, squares = 0, count = 0;
        for (int pass = 0; pass < 2; pass++)
            for (int64_t e = 0; e < EPISODES; e++)
                for (int64_t t = 0; t < episode_frames[e]; t++) {
                    double x = value(layout_now, &frames_want[c], e, t);
                    if (isnan(x))
                        continue;
                    sum += pass == 0 ? x : 0;
                    count += pass == 0;
                    squares += pass == 0 ? 0 : (x - sum / count) * (x - sum / count);
                }
        bool flag = frames_want[c].kind == 'v';
        CHECK_NEAR(of_mean[c], flag ? 0 : sum / count, 1e-6);
        CHECK_NEAR(of_deviation[c], flag ? 1 : sqrt(squares / count), 1e-6);
    }
    int64_t n = dt_statistics_size(dataset, DT_NUMBERS_TARGETS);
    struct dt_shard_cache *shards;
    double *blocks = calloc((size_t)n, sizeof *blocks);
    CHECK_OK(dt_shard_cache_open(dataset, &shards));
    CHECK_OK(dt_statistics_read(shards, DT_NUMBERS_TARGETS, 0, 1, blocks, NULL, NULL));
    // One row of each episode is missing, except in the middle column.
    for (int64_t c = 0; c < TARGETS; c++)
        CHECK_INT((int64_t)dt_statistics_count(dataset, DT_NUMBERS_TARGETS, blocks, c),
                  dataset->tokens - (c / 3 == 1 ? 0 : EPISODES));
    dt_shard_cache_close(shards);
    free(blocks);
}

static void test_layouts(void)
{
    static struct expected want[EPISODES * LONGEST];
    struct episode_types zipped = *plain_types();
    zipped.gzip = true;
    for (int64_t c = 0; c < FRAMES; c++) {
        bool flag = frames_want[c].kind == 'v';
        mean[c] = flag ? 0 : 0.5f * (float)c - 2;
        deviation[c] = flag ? 1 : 0.3f + (float)c;
    }
    for (int zip = 0; zip < 2; zip++)
        for (layout_now = 0; layout_now < LAYOUTS; layout_now++) {
            time_second = layout_now == GROUPS;
            write_episodes(in_scratch("a.h5"), layout_now, zip ? &zipped : plain_types(), 0,
                           EPISODES);
            // Less than, equal to and more than T.
            for (int64_t stride = 5; stride <= 27; stride += 11) {
                struct dt_scan_rules rules = shifted_rules(layout_now, stride);
                struct dt_dataset *dataset = scan_all(&rules);
                int64_t n = expect_windows(0, EPISODES, stride, want);
                if (!dataset)
                    return;
                CHECK_INT(dataset->windows, n);
                CHECK_INT(dataset->layout.frame_width, FRAMES);
                CHECK_INT(dataset->layout.n_ids, IDS);
                CHECK_INT(dataset->layout.target_width, TARGETS);
                struct dt_read_rules read = {.frames_type = DT_F32, .missing = mean};
                check_reading(dataset, &read, want, false, 2, check_row);
                read = (struct dt_read_rules){
                    .frames_type = DT_F32, .mean = mean, .deviation = deviation};
                check_reading(dataset, &read, want, true, 1, check_row);
                read.frames_type = DT_BF16;
                check_reading(dataset, &read, want, true, 4, check_row);
                if (stride == 5)
                    check_statistics(dataset);
            }
        }
    time_second = false;
}

// Returns the hash of the columns' names and checks how many numbers a frame has.
static uint64_t columns_of(const char *text, int64_t width)
{
    struct dt_scan_rules rules = rules_of(ROBOMIMIC, 0);
    strcpy(rules.inputs, text);
    struct dt_dataset *dataset = scan_all(&rules);
    if (!dataset)
        return 0;
    CHECK_INT(dataset->layout.frame_width, width);
    return dataset->layout.columns;
}

// With a shift, a group gives all of its datasets at the first row, then at the next; then the
// flags.
static void test_groups(void)
{
    struct dt_scan_rules rules = rules_of(ROBOMIMIC, 0);
    float frame[18];
    write_episodes(in_scratch("a.h5"), ROBOMIMIC, plain_types(), 0, 6);
    strcpy(rules.inputs, "obs@0:2:valid");
    struct dt_dataset *dataset = scan_all(&rules);
    struct dt_shard_cache *shards;
    struct dt_reader *reader;
    CHECK_INT(dataset->layout.frame_width, 18);
    // The flags of ids, one for each row, are numbers of the frame.
    strcpy(rules.inputs, "obs/a obs/b:id*7@0:2:valid");
    CHECK_INT(scan_all(&rules)->layout.frame_width, 3 + 2);
    strcpy(rules.inputs, "obs@0:2:valid");
    dataset = scan_all(&rules);
    CHECK_OK(dt_shard_cache_open(dataset, &shards));
    CHECK_OK(dt_shard_cache_get(shards, 0, false, &reader));
    CHECK_OK(dataset->kind->numbers(reader, DT_NUMBERS_FRAMES, 2, 1, frame)); // row 2 of episode 0
    for (int64_t s = 0; s < 2; s++) {
        CHECK_INT((int64_t)(8 * frame[9 * s + 2]), (int64_t)(8 * value_a(0, 2 + s, 2)));
        CHECK_INT((int64_t)frame[9 * s + 3], value_b(0, 2 + s));
        CHECK_INT((int64_t)frame[9 * s + 7], value_img(0, 2 + s, 3));
        CHECK(isnan(frame[9 * s + 8]), "a flag has statistics");
    }
    dt_shard_cache_close(shards);
}

// The same file with other shifts is other data. Another way to write the same shift is not.
static void test_identity(void)
{
    static const char *const words[] = {
        "obs/a",         "obs/a@+1",  "obs/a@-1",        "obs/a@-1:valid",
        "obs/a@0:valid", "obs/a@0:2", "obs/a@0:2:valid", "obs/a@0 obs/a@1:valid"};
    static const int64_t width[] = {3, 3, 3, 4, 4, 6, 8, 7};
    enum { N = sizeof words / sizeof *words };
    uint64_t hash[N];
    for (int i = 0; i < N; i++) {
        hash[i] = columns_of(words[i], width[i]);
        for (int k = 0; k < i; k++)
            CHECK(hash[i] != hash[k], "%s is the same as %s", words[i], words[k]);
    }
    CHECK(columns_of("/obs/a@1:2", 3) == hash[1], "@1:2 is not @+1");
    CHECK(columns_of("obs/a@0", 3) == hash[0] && columns_of("obs/a[0:3]@-0", 3) == hash[0],
          "@0 is not the row itself");
    // Shifted bytes, and flags among bytes, become floats.
    struct dt_scan_rules rules = rules_of(ROBOMIMIC, 0);
    static const uint8_t zeros[LONGEST * 70];
    for (int e = 0; e < 6; e++) {
        char path[64];
        snprintf(path, sizeof path, "/data/demo_%d/obs/wide", e);
        hid_t file = change("a.h5");
        put_matrix(file, path, H5T_STD_U8LE, episode_frames[e], 70, zeros);
        H5Fclose(file);
    }
    strcpy(rules.inputs, "obs/wide obs/b:id*7@-1:valid obs/wide@+1 obs/wide");
    struct dt_dataset *dataset = scan_all(&rules);
    CHECK_INT(dataset->bytes.n, 2);
    CHECK_INT(dataset->bytes.at[0].end, 70);
    CHECK_INT(dataset->bytes.at[1].first, 141);
    CHECK_INT(dataset->bytes.at[1].end, 211);
}

// Columns are named in full, and these names read back to the same columns.
static void test_names(void)
{
    struct dt_scan_rules rules = rules_of(ROBOMIMIC, 0);
    strcpy(rules.inputs, "/obs/a[1:3]@-2:0:valid obs/b:id*7=b@+1 obs@0:2:valid  obs/a");
    strcpy(rules.targets, "actions[0:2]@1 actions[2]");
    struct dt_dataset *dataset = scan_all(&rules);
    uint64_t columns = dataset->layout.columns;
    CHECK_STR(dataset->layout.tables[0], "b");
    CHECK_STR(dataset->inputs,
              "obs/a[1:3]@-2:0:valid obs/b[0:1]:id*7=b@+1 obs/a[0:3] obs/b[0:1] obs/img[0:4]"
              " obs/wide[0:70]@+0:valid obs/a[0:3]@+1 obs/b[0:1]@+1 obs/img[0:4]@+1"
              " obs/wide[0:70]@+1:valid obs/a[0:3]");
    CHECK_STR(dataset->targets, "actions[0:2]@+1 actions[2:3]");
    int64_t width = dataset->layout.frame_width;
    strcpy(rules.inputs, dataset->inputs);
    strcpy(rules.targets, dataset->targets);
    dataset = scan_all(&rules);
    CHECK_INT(dataset->layout.frame_width, width);
    CHECK_STR(dataset->inputs, rules.inputs);
    strcpy(rules.inputs, "obs/a obs/b:id*7 obs/b:id*7=b");
    CHECK(scan_all(&rules)->layout.columns != columns, "other columns");
    columns = scan_all(&rules)->layout.columns;
    strcpy(rules.inputs, "obs/a obs/b:id*7=b obs/b:id*7=b");
    CHECK(scan_all(&rules)->layout.columns != columns, "another table");
    rules.inputs[0] = 0;
    for (int i = 0; i < 100; i++) // too long when the columns are named in full
        strcat(rules.inputs, i ? " obs@" : "obs@"),
            strcat(rules.inputs, (char[]){(char)('0' + i % 10), 0});
    CHECK_STR(scan_all(&rules)->inputs, rules.inputs);
}

static void tidy(const char *words, bool target, const char *want)
{
    char text[DT_DATA_TEXT];
    strcpy(text, words);
    dt_columns_tidy(target, text);
    CHECK_STR(text, want);
}

// Texts of a key that mean the same are equal after tidying.
static void test_tidy(void)
{
    static const char *const words[] = {"a@1", "/a@+1", " a@1:2 ", "//a@+1:+2", "a@+1"};
    for (int i = 0; i < 5; i++)
        tidy(words[i], true, "a@+1");
    tidy("a@0 b[3]@0:1 c[3:4] @label@0 x/@y", true, "a b[3:4] c[3:4] @label x/@y");
    tidy("a@-1:2:valid b:id*7=t@1 obs@0:valid", false, "a@-1:2:valid b:id*7=t@+1 obs@+0:valid");
    tidy("a@1 b@", false, "a@1 b@"); // refused later
    char text[DT_DATA_TEXT];
    memset(text, 'a', sizeof text);
    for (int i = 0; i < 8; i++)
        memcpy(text + 126 * i + 123, "@1 ", 3);
    memcpy(text + sizeof text - 3, "@1", 3);
    tidy(text, false, text); // would become too long
    static const char *const others[][2] = {{" /a[0]\t b[2:3]:x  //c/d:y", "a b[2]:x c/d:y"},
                                            {"a:x", "a:x"},
                                            {"a[0:2]  b", "a[0:2]  b"},
                                            {"/a[1]:x", "a[1]:x"},
                                            {"a  :x", "a  :x"},
                                            {"a[0 ", "a[0 "},
                                            {"", ""}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        strcpy(text, others[i][0]);
        dt_columns_tidy_weights(text);
        CHECK_STR(text, others[i][1]);
    }
    static const char *const groups[][2] = {
        {"//a_*//b/", "a_*/b"}, {"a/b", "a/b"}, {"/a", "a"}, {"//", "/"}, {"", ""}};
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        strcpy(text, groups[i][0]);
        dt_columns_tidy_groups(text);
        CHECK_STR(text, groups[i][1]);
    }
}

static void meet(const char *from, const char *to, const char *want)
{
    char which[DT_COLUMN_PATH + 64] = "";
    CHECK(dt_columns_meet(from, to, which) == (want[0] != 0), "%s and %s", from, to);
    CHECK_STR(which, want);
}

// Finds a target that is also an input, so that the model could copy it.
static void test_meet(void)
{
    meet("a[0:3] b[0:4]", "c[0:1] b[2:3]", "b[2]");
    meet("a[0:3] b[0:4]", "b[4:5] a[0:3]@+1", "");
    meet("a[0:3]@-2:0", "a[0:3]", "");
    meet("a[0:3]@-2:1", "a[0:3]", "a[0]");
    meet("a[0:3]@0:4:valid", "a[2:9]@3:9", "a[2]@+3");
    meet("a[0:1]:id*7=x@-1", "a[0:1]@-1", "a[0]@-1");
    meet("a[0:1]", "ab[0:1]", "");
    meet("", "a[0:1]", "");
}

static void beyond(const char *text, int64_t rows, bool all, const char *want)
{
    char which[DT_DATA_TEXT];
    CHECK(dt_columns_beyond(text, false, rows, which) == all, "%s of %ld rows", text, (long)rows);
    CHECK_STR(which, want);
}

// Finds columns that no frame has.
static void test_beyond(void)
{
    beyond("a[0:2]@-5:6:valid b[0:1]", 5, false, "a[0:2]@-5:valid a[0:2]@+5:valid");
    beyond("a[0:2]@-5:6:valid b[0:1]", 6, false, "");
    beyond("a[0:2]@-6 b[0:1]:id*7=t@5:9", 5, true, "a[0:2]@-6 b[0:1]:id*7=t@5:9");
    beyond("a[0:2]@-5 b[0:1]@4:9", 5, false, "a[0:2]@-5 b[0:1]@5:9");
    beyond("", 5, false, "");
    beyond("a[0:2]@+9 [b", 5, false, ""); // a dataset named "[b": no columns are known
}

// Counts the frames in windows; padding does not count.
static void test_padding(void)
{
    static struct expected want[EPISODES * LONGEST];
    for (int64_t stride = 1; stride <= 40; stride++) {
        struct dt_scan_rules rules = rules_of(ROBOMIMIC, stride);
        int64_t n = expect_windows(0, 6, stride, want), frames = 0;
        for (int64_t i = 0; i < n; i++)
            frames += want[i].n;
        CHECK_INT(scan_all(&rules)->in_windows, frames);
    }
}

static void refuse(const char *text, bool target, const char *phrase)
{
    struct dt_scan_rules rules = rules_of(ROBOMIMIC, 0);
    strcpy(target ? rules.targets : rules.inputs, text);
    refuse_scan(&rules, phrase);
}

// As many inputs may be earlier targets as DT_FED_MOST says, and no more.
static void test_fed_limit(void)
{
    struct dt_fed fed[DT_FED_MOST];
    char of_inputs[32 * (DT_FED_MOST + 1)] = "", of_targets[sizeof of_inputs] = "";
    int n;
    for (int k = 0; k <= DT_FED_MOST; k++) {
        dt_append(of_inputs, sizeof of_inputs, " a[%d:%d]@-1", 2 * k, 2 * k + 1);
        dt_append(of_targets, sizeof of_targets, " a[%d:%d]", 2 * k, 2 * k + 1);
        if (k + 1 == DT_FED_MOST)
            CHECK_OK(dt_columns_fed(of_inputs, of_targets, &n, fed));
    }
    CHECK_INT(n, DT_FED_MOST);
    CHECK_FAILS(dt_columns_fed(of_inputs, of_targets, &n, fed), DT_USER,
                "more than 64 parts of a frame are earlier targets");
}

static void test_refused(void)
{
    static const char *const words[] = {"obs/a@",       "obs/a@x",     "obs/a@1.5",
                                        "obs/a@--1",    "obs/a@1:",    "obs/a@1:2x",
                                        "obs/a@1:v",    "obs/a:valid", "obs/a@1[0]",
                                        "obs/a@1:id*3", "obs/a@1:2:",  "obs/a@99999999999"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        refuse(words[i], false, "data.inputs: 'obs/a");
    refuse("obs/a@2:2", false, "'obs/a@2:2' is not understood: @FROM:TO means FROM to TO - 1");
    CHECK(columns_of("obs/a@0:4096", 3 * 4096) != 0, "4096 rows are allowed");
    refuse("obs/a@0:4097", false, "at most 4096 rows");
    refuse("actions@1:valid", true, "a target that is missing has no loss, and no flag");
    refuse("actions@0:2", true,
           "the targets have 6 columns, the heads need 3 (buttons 2, stick 1)");
    CHECK(columns_of("obs/b:id*7@0:16", 0) != 0, "16 columns of ids are allowed");
    refuse("obs/b:id*7@0:17", false, "data.inputs has 17 columns of ids, the most are 16");
    refuse("@1", false, "data.inputs: '@1' has no path");
    refuse("//", false, "data.inputs: '//' has no path");
    refuse("obs/b:id*7=", false, "data.inputs: 'obs/b:id*7='");
    refuse("obs/b:id*7=7", false, "data.inputs: 'obs/b:id*7=7'");
    refuse("obs/b:id*7=a:valid", false, "data.inputs: 'obs/b:id*7=a:valid'");
    refuse("obs/b:id*7=x obs/b:id*8=x@1", false,
           "data.inputs: the table x has 7 rows for obs/b, 8 for obs/b");
}

static void refuse_numbers(enum dt_numbers which, const char *phrase)
{
    static float numbers[122 * FRAMES];
    struct dt_scan_rules rules = shifted_rules(ROBOMIMIC, 0);
    struct dt_dataset *dataset = scan_all(&rules);
    struct dt_shard_cache *shards;
    struct dt_reader *reader;
    CHECK_OK(dt_shard_cache_open(dataset, &shards));
    CHECK_OK(dt_shard_cache_get(shards, 0, false, &reader));
    CHECK_FAILS(dataset->kind->numbers(reader, which, 0, 122, numbers), DT_USER, phrase);
    dt_shard_cache_close(shards);
}

// An error names a value by the row that holds it.
static void test_values_refused(void)
{
    put_value(in_scratch("a.h5"), "/data/demo_5/obs/a", 33, 2, INFINITY);
    refuse_numbers(DT_NUMBERS_FRAMES,
                   "/data/demo_5/obs/a, row 33, column 2: inf is not a finite float32");
    put_value(in_scratch("a.h5"), "/data/demo_1/actions", 0, 2, 5);
    refuse_numbers(DT_NUMBERS_TARGETS,
                   "/data/demo_1/actions, row 0, column 2: 5 is not a whole number in [0, 5)");
}

int main(void)
{
    make_scratch();
    RUN(test_layouts, test_groups, test_identity, test_names, test_tidy, test_meet, test_beyond,
        test_padding, test_fed_limit, test_refused, test_values_refused);
    remove_scratch();
    return test_end();
}

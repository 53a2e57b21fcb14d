// The columns of episodes: which groups a pattern names, values that are constant in an episode or
// belong to its parent groups, and which columns a batch stores as bytes. test_episodes.c checks
// how windows are read.
#include "episode_cases.h"

static void put_scalar(hid_t file, const char *path, hid_t type, const void *value, bool compact)
{
    hid_t plist = H5Pcreate(H5P_DATASET_CREATE);
    if (compact)
        H5Pset_layout(plist, H5D_COMPACT);
    put_in(file, path, type, H5Screate(H5S_SCALAR), plist, type, value);
}

static void put_numbers_of(hid_t file, const char *owner, const char *name, hid_t type, int64_t n,
                           const void *values)
{
    hid_t space = n > 0 ? H5Screate_simple(1, &(hsize_t){(hsize_t)n}, NULL) : H5Screate(H5S_SCALAR);
    hid_t id = H5Oopen(file, owner, H5P_DEFAULT);
    hid_t attribute = H5Acreate2(id, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    CHECK(H5Awrite(attribute, type, values) >= 0, "no %s", name);
    H5Aclose(attribute);
    H5Oclose(id);
    H5Sclose(space);
}

// Counts the numbers of a batch that differ from the window `want`, its only row.
typedef int64_t count_wrong_fn(const struct dt_batch *batch, const struct expected *want);

// Reads the windows of episodes [0, episodes) in order, one a batch, and checks each of them.
static void check_windows(const struct dt_dataset *dataset, int64_t episodes,
                          count_wrong_fn *count_wrong)
{
    static struct expected want[EPISODES * LONGEST];
    int64_t n = expect_windows(0, episodes, T, want), wrong = 0, step = 0;
    struct dt_loader_config config = one_pass(dataset);
    struct dt_loader *loader;
    const struct dt_batch *batch;
    CHECK_INT(dataset->windows, n);
    config.batch = 1;
    CHECK_OK(dt_loader_open(&config, 0, &loader));
    for (; dt_loader_next(loader, &batch, NULL) == DT_OK && batch; step++)
        wrong += count_wrong(batch, &want[step]);
    dt_loader_close(loader);
    CHECK_INT(step, n);
    CHECK_INT(wrong, 0);
}

static int64_t wrong_of_parents(const struct dt_batch *batch, const struct expected *want)
{
    int64_t wrong = 0;
    for (int64_t t = 0; t < want->n; t++) {
        int64_t s = 8 + want->episode / 5;
        const float *frame = (const float *)dt_batch_find(batch, "frames")->data + t * (A + 2);
        wrong += frame[0] != value_a(want->episode, want->first + t, 0);
        wrong += frame[A] != (float)(3 * s) || frame[A + 1] != 5;
        wrong += ((const float *)dt_batch_find(batch, "targets")->data)[t * (W + 1) + W] !=
                 (float)(s % 2);
    }
    return wrong;
}

// An episode may read values of the groups above its own.
static void test_parents(void)
{
    struct dt_scan_rules rules = {.seq_len = T};
    strcpy(rules.inputs, "obs/a ../@age ../../@place");
    strcpy(rules.targets, "actions ../label");
    strcpy(rules.episodes, layout_episodes[GROUPS]);
    write_episodes(in_scratch("a.h5"), GROUPS, plain_types(), 0, EPISODES);
    hid_t file = change("a.h5");
    for (int s = 8; s < 11; s++) {
        char group[32], path[64];
        double age = 3 * s;
        snprintf(group, sizeof group, "/subject_%d", s);
        snprintf(path, sizeof path, "%s/label", group);
        put_numbers_of(file, group, "age", H5T_IEEE_F64LE, 0, &age);
        put_scalar(file, path, H5T_STD_I64LE, &(int64_t){s % 2}, false);
    }
    put_numbers_of(file, "/", "place", H5T_STD_I8LE, 0, &(int8_t){5});
    H5Fclose(file);
    check_windows(scan_all(&rules), EPISODES, wrong_of_parents);
}

enum { CONSTANTS = A + 1 + 2 + 2 + 1 }; // columns of a frame in test_constants

static int64_t wrong_of_constants(const struct dt_batch *batch, const struct expected *want)
{
    const float *frames = dt_batch_find(batch, "frames")->data;
    const float *targets = dt_batch_find(batch, "targets")->data;
    const int32_t *ids = dt_batch_find(batch, "ids")->data;
    int64_t wrong = 0, e = want->episode;
    for (int64_t t = 0; t < want->n; t++) {
        int64_t at = want->first + t;
        const float all[CONSTANTS] = {value_a(e, at, 0), value_a(e, at, 1), value_a(e, at, 2),
                                      (float)e / 4,      (float)(e + 30),   (float)(e + 40),
                                      (float)(e + 10),   (float)(e + 20),   (float)(e % 2)};
        wrong += memcmp(frames + t * CONSTANTS, all, sizeof all) != 0;
        wrong += ids[2 * t] != e || ids[2 * t + 1] != e + 40;
        wrong += targets[t * (W + 1)] != (float)value_action(e, at, 0) ||
                 targets[t * (W + 1) + W] != (float)(e % CLASSES);
    }
    return wrong;
}

// An episode may store one value for all of its frames, as a scalar, a vector of one, a row or an
// attribute. Each frame then has it, as an input, an id or a target.
static void test_constants(void)
{
    struct dt_scan_rules rules = {.seq_len = T};
    hid_t boolean = bool_type();
    strcpy(rules.inputs, "obs/a level obs/one:id*9 row[1:3] @speeds[1:3] obs/a/@unit:id*50 @flag");
    strcpy(rules.targets, "actions @label");
    write_a(ROBOMIMIC);
    hid_t file = change("a.h5");
    for (int64_t e = 0; e < 6; e++) {
        char group[64], path[96];
        double level = (double)e / 4, speeds[3] = {-1, (double)(e + 10), (double)(e + 20)};
        float row[3] = {0, (float)(e + 30), (float)(e + 40)};
        snprintf(group, sizeof group, "/data/demo_%ld", (long)e);
        snprintf(path, sizeof path, "%s/level", group);
        put_scalar(file, path, H5T_IEEE_F64LE, &level, e % 2);
        snprintf(path, sizeof path, "%s/obs/one", group);
        put_vector(file, path, H5T_STD_I64LE, 1, &e);
        snprintf(path, sizeof path, "%s/row", group);
        put_matrix(file, path, H5T_IEEE_F32LE, 1, 3, row);
        put_numbers_of(file, group, "speeds", H5T_IEEE_F64LE, 3, speeds);
        put_numbers_of(file, group, "label", H5T_STD_I16LE, 0, &(int16_t){(int16_t)(e % CLASSES)});
        put_numbers_of(file, group, "flag", boolean, 0, &(int8_t){(int8_t)(e % 2)});
        snprintf(path, sizeof path, "%s/obs/a", group);
        put_numbers_of(file, path, "unit", H5T_STD_U64LE, 0, &(uint64_t){(uint64_t)(e + 40)});
    }
    H5Fclose(file);
    H5Tclose(boolean);
    struct dt_dataset *dataset = scan_all(&rules);
    CHECK_INT(dataset->layout.frame_width, CONSTANTS);
    CHECK_INT(dataset->layout.target_width, W + 1);
    check_windows(dataset, 6, wrong_of_constants);
}

// data.episodes names groups by a pattern: they are read in natural order, and a mask selects some
// of them. An empty pattern makes the whole file one episode.
static void test_patterns(void)
{
    static const char *const groups[] = {"a",      "a/10",  "a/2",  "a-b",  "a-b/1",
                                         "a1",     "a1/03", "a1/3", "c",    "c/x",
                                         "c/x/10", "c/x/9", "d*",   "d*/1", "mask"};
    static const struct {
        const char *pattern, *mask, *first, *last;
        int64_t n;
    } cases[] = {{"*/*", "", "/a/2", "/d*/1", 7},     {"a*/?", "", "/a/2", "/a1/3", 3},
                 {"/a//2", "", "/a/2", "/a/2", 1},    {"?/x/*", "", "/c/x/9", "/c/x/10", 2},
                 {"*/*", "some", "/a/10", "/c/x", 2}, {"", "", "", "", 1},
                 {"d*/1", "", "/d*/1", "/d*/1", 1},   {"a1/*3*", "", "/a1/03", "/a1/3", 2}};
    static const char *const some[] = {"c/x", "a/10"};
    static float rows[4];
    hid_t file = new_file(in_scratch("a.h5"));
    put_vector(file, "/v", H5T_NATIVE_FLOAT, 4, rows);
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        char path[32];
        snprintf(path, sizeof path, "/%s", groups[i]);
        new_group(file, path);
        snprintf(path, sizeof path, "/%s/v", groups[i]);
        put_vector(file, path, H5T_NATIVE_FLOAT, 4, rows);
    }
    put_names(file, "/mask/some", 2, some, true);
    H5Fclose(file);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dt_scan_rules rules = {.seq_len = 4, .inputs = "v", .targets = "v"};
        struct dt_shard shard;
        struct dt_reader *reader;
        strcpy(rules.episodes, cases[i].pattern);
        strcpy(rules.mask, cases[i].mask);
        CHECK_OK(dt_reader_open(in_scratch("a.h5"), &rules, &shard, &reader));
        char text[64], want[64];
        snprintf(want, sizeof want, "%s:0", cases[i].first);
        shard.kind->place(reader, 0, text, sizeof text);
        CHECK_STR(text, want);
        snprintf(want, sizeof want, "%s:0", cases[i].last);
        shard.kind->place(reader, shard.windows - 1, text, sizeof text);
        CHECK_STR(text, want);
        CHECK_INT(shard.episodes, cases[i].n);
        CHECK_STR(shard.mask, cases[i].mask);
        dt_reader_close(reader);
    }
}

// Adds a dataset "wide" of 70 columns to episodes [from, 6) of a robomimic file.
static void put_wide(const char *name, hid_t type, int64_t from)
{
    static const uint8_t zeros[LONGEST * 70];
    for (int64_t e = from; e < 6; e++) {
        char path[64];
        snprintf(path, sizeof path, "/data/demo_%d/obs/wide", (int)e);
        struct put what = {
            .name = path, .disk = type, .memory = H5T_STD_U8LE, .n_dims = 2, .data = zeros};
        what.dims[0] = (hsize_t)episode_frames[e];
        what.dims[1] = 70;
        hid_t file = change(name);
        put(file, &what);
        H5Fclose(file);
    }
}

// A number that a shift leaves missing is the mean of its column, also after columns that are
// stored as bytes.
static void test_missing(void)
{
    struct dt_scan_rules rules = rules_of(ROBOMIMIC, 0);
    static float means[67] = {[64] = 5, 6, 7};
    struct dt_loader *loader;
    const struct dt_batch *batch;
    strcpy(rules.inputs, "obs/wide[0:64] obs/a@-1");
    struct dt_dataset *dataset = scan_all(&rules);
    struct dt_loader_config config = one_pass(dataset);
    config.rules =
        (struct dt_read_rules){.frames_type = DT_F32, .missing = means, .bytes = dataset->bytes};
    CHECK_OK(dt_loader_open(&config, 0, &loader));
    CHECK_OK(dt_loader_next(loader, &batch, NULL));
    const struct dt_array *frames = dt_batch_find(batch, "frames");
    CHECK_INT(frames->spec.width, 3);
    CHECK(memcmp(frames->data, means + 64, 3 * sizeof *means) == 0, "not the means");
    dt_loader_close(loader);
}

// Neighbouring columns of bytes stay bytes in a batch. Columns become floats where only a few
// neighbours are bytes, and where an episode or a shard stores another type.
static void test_bytes(void)
{
    struct dt_scan_rules rules = rules_of(ROBOMIMIC, 0);
    strcpy(rules.inputs, "obs/a obs/wide obs/img obs/b:id*7 obs/wide[0:60] obs/a obs/wide[0:63] "
                         "obs/a[0] obs/wide[3:67]");
    write_a(ROBOMIMIC);
    put_wide("a.h5", H5T_STD_U8LE, 0);
    struct dt_dataset *dataset = scan_all(&rules);
    CHECK_INT(dataset->layout.frame_width, 268);
    CHECK_INT(dataset->bytes.n, 2);
    CHECK_INT(dataset->bytes.at[0].first, 3);
    CHECK_INT(dataset->bytes.at[0].end, 137);
    CHECK_INT(dataset->bytes.at[1].first, 204);
    CHECK_INT(dataset->bytes.at[1].end, 268);
    CHECK_INT(dt_bytes_before(&dataset->bytes, 268), 134 + 64);
    test_missing();

    write_episodes(in_scratch("b.h5"), ROBOMIMIC, plain_types(), 0, 6);
    put_wide("b.h5", H5T_STD_U16LE, 0);
    dataset = scan_all(&rules);
    CHECK_INT(dataset->shards[0].bytes.n, 2);
    CHECK_INT(dataset->bytes.n, 0);
    CHECK_INT(remove(in_scratch("b.h5")), 0);

    remove_name("a.h5", "/data/demo_5/obs/wide");
    put_wide("a.h5", H5T_STD_U16LE, 5);
    dataset = scan_all(&rules);
    CHECK_INT(dataset->bytes.n, 0);
}

int main(void)
{
    make_scratch();
    RUN(test_bytes, test_constants, test_parents, test_patterns);
    remove_scratch();
    return test_end();
}

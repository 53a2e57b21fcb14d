// Tests the readers of episodes: every number of every window in each layout and type, windows and
// padding, the order on any number of ranks, and the totals of a shard.
#include "base/file.h"
#include "base/log.h"
#include "base/rng.h"
#include "data/pack.h"
#include "data/statistics.h"
#include "episode_cases.h"

static const float mean[F] = {0.5f, -1, 2, 100, 7}, deviation[F] = {2, 0.3f, 1, 60, 9};

static float frame_value(const struct dt_read_rules *rules, int64_t e, int64_t t, int64_t c)
{
    float x = c < A ? value_a(e, t, c) : (float)value_img(e, t, c - A + 1);
    return rules->mean ? (x - mean[c]) / deviation[c] : x;
}

// Compares row `row` of the batch with the window `want`; NULL: padding.
static void check_row(const struct dt_batch *batch, int64_t row, const struct dt_read_rules *rules,
                      const struct expected *want)
{
    const float *frames = dt_batch_find(batch, "frames")->data;
    const dt_bf16 *halves = dt_batch_find(batch, "frames")->data;
    const struct dt_array *bytes = dt_batch_find(batch, "bytes");
    int64_t n_bytes = dt_bytes_before(&rules->bytes, F);
    const int32_t *ids = dt_batch_find(batch, "ids")->data;
    const float *targets = dt_batch_find(batch, "targets")->data;
    const uint8_t *mask = dt_batch_find(batch, "mask")->data;
    const struct dt_array *reset = dt_batch_find(batch, "reset");
    int64_t wrong = 0;
    CHECK(rules->carry == (reset != NULL), "reset");
    CHECK(n_bytes > 0 ? bytes && bytes->spec.type == DT_U8 && bytes->spec.width == n_bytes : !bytes,
          "bytes stay bytes");
    for (int64_t t = 0; t < T; t++) {
        int64_t at = row * T + t, frame = want ? want->first + t : 0, e = want ? want->episode : 0;
        bool there = want && t < want->n;
        for (int64_t c = 0; c < F; c++) {
            float x = there ? frame_value(rules, e, frame, c) : 0;
            int64_t before = dt_bytes_before(&rules->bytes, c), i = at * (F - n_bytes) + c - before;
            if (dt_bytes_before(&rules->bytes, c + 1) > before)
                wrong += !bytes || ((const uint8_t *)bytes->data)[at * n_bytes + before] != x;
            else
                wrong +=
                    rules->frames_type == DT_F32 ? frames[i] != x : halves[i] != dt_f32_to_bf16(x);
        }
        wrong += ids[at] != (there ? value_b(e, frame) : 0);
        for (int64_t c = 0; c < W; c++)
            wrong += targets[at * W + c] != (float)(there ? value_action(e, frame, c) : 0);
        wrong += mask[at] != there;
        if (reset)
            wrong += ((const uint8_t *)reset->data)[at] != (there && frame == 0);
    }
    CHECK(wrong == 0, "%ld wrong numbers in row %ld, episode %ld from %ld", (long)wrong, (long)row,
          (long)(want ? want->episode : -1), (long)(want ? want->first : -1));
}

static void note_share(void *last, double share)
{
    *(double *)last = share;
}

// Mean and deviation are those of the numbers written, with the same bits on any number of ranks.
static void check_statistics(const struct dt_dataset *dataset)
{
    float some[2 * F], one[2 * F];
    int64_t n = dt_statistics_size(dataset, DT_NUMBERS_FRAMES);
    for (int size = 1; size <= 5; size++) {
        double *blocks = calloc((size_t)n, sizeof *blocks);
        for (int rank = 0; rank < size; rank++) {
            struct dt_shard_cache *shards;
            CHECK_OK(dt_shard_cache_open(dataset, &shards));
            double share = 0; // which part of this rank's share is read
            CHECK_OK(dt_statistics_read(shards, DT_NUMBERS_FRAMES, rank, size, blocks, note_share,
                                        &share));
            CHECK(share == 1, "rank %d of %d ends at %g", rank, size, share);
            dt_shard_cache_close(shards);
        }
        dt_statistics_merge(dataset, DT_NUMBERS_FRAMES, blocks);
        dt_statistics_finish(dataset, DT_NUMBERS_FRAMES, blocks, size == 1 ? one : some,
                             size == 1 ? one + F : some + F);
        CHECK(size == 1 || memcmp(one, some, sizeof one) == 0, "%d ranks differ", size);
        free(blocks);
    }
    for (int64_t c = 0; c < F; c++) {
        struct dt_read_rules rules = {0};
        double sum = 0, squares = 0, count = 0;
        for (int pass = 0; pass < 2; pass++)
            for (int64_t e = 0; e < EPISODES; e++)
                for (int64_t t = 0; t < episode_frames[e]; t++) {
                    double x = frame_value(&rules, e, t, c);
                    sum += pass == 0 ? x : 0;
                    count += pass == 0;
                    squares += pass == 0 ? 0 : (x - sum / count) * (x - sum / count);
                }
        CHECK_NEAR(one[c], sum / count, 1e-6);
        CHECK_NEAR(one[F + c], sqrt(squares / count), 1e-6);
    }
    double *same = calloc((size_t)n, sizeof *same);
    for (int64_t i = 0; i < n; i++)
        if (i % F > 0)                                // the first column has no numbers
            same[i] = (double[]){5, 0, 3}[i / F % 3]; // mean, sum of squares, count of each block
    dt_statistics_merge(dataset, DT_NUMBERS_FRAMES, same);
    CHECK_INT(dt_statistics_finish(dataset, DT_NUMBERS_FRAMES, same, some, some + F), F - 1);
    for (int64_t c = 0; c < F; c++)
        CHECK(some[c] == (c > 0 ? 5 : 0) && some[F + c] == 1, "%g is divided by %g", some[c],
              some[F + c]);
    free(same);
}

// Reads two shards of a layout: the numbers are those written, whatever their types.
static void check_layout(enum episode_layout layout, const struct episode_types *types)
{
    enum { CUT = 9 }; // the longest episode is in the first shard
    static struct expected want[EPISODES * LONGEST];
    int64_t frames = 0;
    for (int64_t e = 0; e < EPISODES; e++)
        frames += episode_frames[e];
    make_scratch();
    write_episodes(in_scratch("a.h5"), layout, types, 0, CUT);
    write_episodes(in_scratch("b.h5"), layout, types, CUT, EPISODES);
    for (int64_t stride = 5; stride <= 27; stride += 11) { // below, at and above T
        struct dt_scan_rules rules = rules_of(layout, stride);
        struct dt_dataset *dataset = scan_all(&rules), *copy;
        void *bytes;
        int64_t size, n = expect_windows(0, EPISODES, stride, want);
        if (!dataset)
            break;
        CHECK_STR(dataset->kind->name, layout_name[layout]);
        CHECK_INT(dataset->windows, n);
        CHECK_INT(dataset->tokens, frames);
        CHECK_INT(dataset->episodes, EPISODES);
        CHECK_INT(dataset->longest, LONGEST + (layout == MINARI)); // Minari has one row more
        int64_t in_windows = 0;
        for (int64_t i = 0; i < n; i++)
            in_windows += want[i].n;
        CHECK_INT(dataset->in_windows, in_windows);
        CHECK_NEAR(dt_dataset_filled(dataset), (double)in_windows / (double)(n * T), 1e-12);
        CHECK_INT(dataset->layout.frame_width, F);
        CHECK_INT(dataset->layout.target_width, W);
        CHECK_INT(dataset->layout.n_ids, 1);
        CHECK_INT(dataset->layout.ids[0], B_TABLE);
        if (stride < T)
            check_statistics(dataset);
        struct dt_read_rules read = {.frames_type = DT_F32};
        check_reading(dataset, &read, want, false, 1, check_row);
        check_reading(dataset, &read, want, true, 1, check_row);
        read = (struct dt_read_rules){
            .frames_type = DT_BF16, .mean = mean, .deviation = deviation, .carry = true};
        CHECK_OK(dt_dataset_pack(dataset, &bytes, &size));
        CHECK_OK(dt_dataset_unpack(bytes, size, &copy));
        check_reading(copy, &read, want, false, 2, check_row);
        check_reading(copy, &read, want, true, 4, check_row);
        read.frames_type = DT_F32;
        check_reading(copy, &read, want, true, 2, check_row);
        read = (struct dt_read_rules){.bytes = img_bytes, .carry = true};
        if (types->img == H5T_STD_U8LE) {
            check_reading(copy, &read, want, false, 2, check_row);
            check_reading(copy, &read, want, true, 1, check_row);
        }
        free(bytes);
        dt_dataset_free(copy);
    }
    remove_scratch();
}

static void test_layouts(void)
{
    hid_t f16 = f16_type();
    const struct episode_types types[] = {
        {H5T_IEEE_F32LE, H5T_STD_I64LE, H5T_STD_U8LE, H5T_IEEE_F32LE, false},
        {H5T_IEEE_F64LE, H5T_STD_U16LE, H5T_STD_U16LE, H5T_IEEE_F64LE, true},
        {f16, H5T_STD_I32LE, H5T_STD_U8LE, H5T_STD_I8LE, true},
        {f16, H5T_STD_U8LE, H5T_STD_I16LE, f16, false},
        {H5T_IEEE_F32LE, H5T_STD_U64LE, H5T_STD_U32LE, H5T_STD_U8LE, false},
    };
    for (enum episode_layout layout = 0; layout < LAYOUTS; layout++)
        for (size_t i = 0; i < sizeof types / sizeof *types; i++)
            check_layout(layout, &types[i]);
    time_second = true;
    for (enum episode_layout layout = 0; layout < LAYOUTS; layout++)
        for (size_t i = 0; i < 2; i++)
            check_layout(layout, &types[i]);
    time_second = false;
    H5Tclose(f16);
}

// Episodes that are links to another file of the folder, as Minari writes them, under other names.
static void test_linked(void)
{
    static struct expected want[EPISODES * LONGEST];
    for (int zip = 0; zip < 2; zip++) {
        struct episode_types types = *plain_types();
        struct dt_scan_rules rules = rules_of(MINARI, 7);
        types.gzip = zip;
        write_episodes(in_scratch("a.h5"), MINARI, &types, 0, 6);
        write_episodes(in_scratch("more_0.hdf5"), MINARI, &types, 6, 9);
        write_episodes(in_scratch("more_1.hdf5"), MINARI, &types, 9, EPISODES);
        hid_t file = change("a.h5");
        for (int e = 6; e < EPISODES; e++) {
            char name[32];
            snprintf(name, sizeof name, "/episode_%d", e);
            H5Lcreate_external(e < 9 ? "more_0.hdf5" : "more_1.hdf5", name, file, name, H5P_DEFAULT,
                               H5P_DEFAULT);
        }
        H5Fclose(file);
        int64_t n = expect_windows(0, EPISODES, 7, want);
        struct dt_dataset *dataset = scan_all(&rules);
        CHECK_INT(dataset->episodes, EPISODES);
        CHECK_INT(dataset->windows, n);
        check_reading(dataset, &(struct dt_read_rules){.carry = true}, want, false, 1, check_row);
        check_reading(dataset, &(struct dt_read_rules){0}, want, true, 2, check_row);
        check_statistics(dataset);
        CHECK_OK(dt_verify_shard(in_scratch("a.h5"), NULL, false, &(struct dt_shard){0}));
    }
    CHECK_INT(remove(in_scratch("more_0.hdf5")), 0);
    CHECK_INT(remove(in_scratch("more_1.hdf5")), 0);
}

// Which episodes are held out depends on their numbers, the seed and the share alone: neither on
// the layout nor on the number of shards. Each episode is either trained on or held out.
static void test_held_out(void)
{
    enum { CUT = 6 };
    static const double shares[] = {0.5, 0.3, 0.1};
    static struct expected want[2][EPISODES * LONGEST];
    for (int run = 0; run < 6; run++) {
        double share = shares[run % 3];
        bool held[EPISODES] = {false};
        int64_t n_held = 0;
        for (enum episode_layout layout = 0; layout < LAYOUTS; layout++) {
            struct dt_scan_rules rules = rules_of(layout, 0);
            int64_t n[2] = {0}, frames = 0, in_a = run > 2 ? CUT : EPISODES;
            rules.val_fraction = share;
            rules.seed = 11 + (uint64_t)run;
            write_episodes(in_scratch("a.h5"), layout, plain_types(), 0, in_a);
            if (in_a == CUT)
                write_episodes(in_scratch("b.h5"), layout, plain_types(), CUT, EPISODES);
            if (layout == 0) { // layouts with names, once
                write_episodes(in_scratch("c.h5"), ROBOMIMIC, plain_types(), 0, EPISODES);
                struct dt_scan_rules named = rules_of(ROBOMIMIC, 0);
                struct dt_shard shard = {0};
                struct dt_reader *reader;
                named.val_fraction = share;
                named.seed = rules.seed;
                named.held_out = true;
                CHECK_OK(dt_reader_open(in_scratch("c.h5"), &named, &shard, &reader));
                for (int64_t w = 0; w < shard.windows; w++) {
                    char text[64];
                    shard.kind->place(reader, w, text, sizeof text);
                    held[atoi(text + strlen("/data/demo_"))] = true;
                }
                dt_reader_close(reader);
                CHECK_INT(remove(in_scratch("c.h5")), 0);
                for (int e = 0; e < EPISODES; e++)
                    n_held += held[e];
                CHECK(n_held >= (int64_t)(EPISODES * share) &&
                          n_held <= (int64_t)(EPISODES * share) + 1,
                      "%ld of %d are held out", (long)n_held, EPISODES);
            }
            for (int64_t e = 0; e < EPISODES; e++)
                n[held[e]] += expect_windows(e, e + 1, T, want[held[e]] + n[held[e]]);
            for (int side = 0; side < 2; side++) {
                rules.held_out = side;
                struct dt_dataset *dataset = scan_all(&rules);
                CHECK_INT(dataset->windows, n[side]);
                CHECK_INT(dataset->episodes, side ? n_held : EPISODES - n_held);
                frames += dataset->tokens;
                if (dataset->windows > 0)
                    check_reading(dataset, &(struct dt_read_rules){.carry = true}, want[side],
                                  false, 1 + side, check_row);
            }
            CHECK_INT(frames, 317);
            if (in_a == CUT)
                CHECK_INT(remove(in_scratch("b.h5")), 0);
        }
    }
}

// Episodes without frames are skipped; those of a mask are read in numeric order.
static void test_some_episodes(void)
{
    struct dt_scan_rules rules = rules_of(ROBOMIMIC, 0);
    static struct expected want[EPISODES * LONGEST];
    write_episodes(in_scratch("a.h5"), ROBOMIMIC, plain_types(), 0, EPISODES);
    for (int valid = 0; valid < 2; valid++) {
        int64_t n = expect_windows(valid ? 0 : 4, valid ? 4 : EPISODES, T, want);
        strcpy(rules.mask_default, valid ? "valid" : "train");
        struct dt_dataset *dataset = scan_all(&rules);
        CHECK_INT(dataset->windows, n);
        check_reading(dataset, &(struct dt_read_rules){.carry = true}, want, false, 1, check_row);
    }
    strcpy(rules.mask_default, "holdout");
    struct dt_dataset *dataset = scan_all(&rules);
    CHECK_INT(dataset->episodes, EPISODES);

    write_a(MINARI);
    rules = rules_of(MINARI, 0);
    static const char *const names[] = {"actions", "observations/a", "observations/b",
                                        "observations/img"};
    for (int e = 0; e < 6; e += 5)
        for (int i = 0; i < 4; i++) {
            char path[64];
            snprintf(path, sizeof path, "/episode_%d/%s", e, names[i]);
            if (i == 2)
                replace_vector("a.h5", path, H5T_STD_I64LE, 1, &(int64_t){0});
            else
                put_zeros("a.h5", path, 2, i > 0, i == 3 ? IMG : A);
        }
    int64_t n = expect_windows(1, 5, T, want);
    dataset = scan_all(&rules);
    CHECK_INT(dataset->shards[0].empty, 2);
    CHECK_INT(dataset->windows, n);
    check_reading(dataset, &(struct dt_read_rules){0}, want, false, 1, check_row);
}

// The native layout may have a dataset for each head.
static void test_targets_by_head(void)
{
    static struct numbers all;
    struct dt_scan_rules rules = rules_of(NATIVE, 0);
    uint8_t buttons[6 * LONGEST * 2], stick[6 * LONGEST];
    static struct expected want[EPISODES * LONGEST];
    write_a(NATIVE);
    all.n = 0;
    for (int64_t e = 0; e < 6; e++)
        add_numbers(&all, e, 0);
    for (int64_t i = 0; i < all.n; i++) {
        buttons[2 * i] = (uint8_t)all.actions[ACTIONS * i];
        buttons[2 * i + 1] = (uint8_t)all.actions[ACTIONS * i + 1];
        stick[i] = (uint8_t)all.actions[ACTIONS * i + 2];
    }
    hid_t file = change("a.h5");
    new_group(file, "/targets");
    put_numbers(file, "/targets", "buttons", H5T_STD_U8LE, H5T_STD_U8LE, 2, all.n, 2, buttons,
                false);
    put_numbers(file, "/targets", "stick", H5T_STD_U8LE, H5T_STD_U8LE, 1, all.n, 1, stick, false);
    H5Fclose(file);
    rules.targets[0] = 0;
    expect_windows(0, 6, T, want);
    struct dt_dataset *dataset = scan_all(&rules);
    check_reading(dataset, &(struct dt_read_rules){0}, want, false, 2, check_row);
    rules.target[0].width = 1;
    rules.target[1].width = 2;
    refuse_scan(&rules, "a.h5: /targets/buttons has 2 columns, the head buttons needs 1");
    remove_name("a.h5", "/targets/stick");
    refuse_scan(&rules, "a.h5 has no /targets/stick (the targets of model.heads)");
}

static int64_t reports;

static void count_report(void)
{
    reports++;
}

// Opening a shard with many episodes and computing statistics must report that the rank is at work.
static void test_progress(void)
{
    struct dt_scan_rules rules = rules_of(ROBOMIMIC, 0);
    struct dt_shard shard;
    struct dt_reader *reader;
    float mean_read[F], deviation_read[F];
    write_a(ROBOMIMIC);
    dt_file_on_progress(count_report);
    CHECK_OK(dt_reader_open(in_scratch("a.h5"), &rules, &shard, &reader));
    CHECK(reports >= shard.episodes, "%ld reports", (long)reports);
    dt_reader_close(reader);
    struct dt_dataset *dataset = scan_all(&rules);
    reports = 0;
    statistics_of(dataset, NULL, NULL, mean_read, deviation_read);
    CHECK(reports >= dataset->episodes, "%ld reports", (long)reports);
    dt_file_on_progress(NULL);
}

// The statistics and the loaders after them use the same open readers.
static void test_shared_readers(void)
{
    struct dt_scan_rules rules = rules_of(ROBOMIMIC, 0);
    static struct expected want[EPISODES * LONGEST];
    struct dt_shard_cache *shards;
    write_a(ROBOMIMIC);
    struct dt_dataset *dataset = scan_all(&rules);
    double *blocks = calloc((size_t)dt_statistics_size(dataset, DT_NUMBERS_FRAMES), sizeof *blocks);
    CHECK_OK(dt_shard_cache_open(dataset, &shards));
    CHECK_OK(dt_statistics_read(shards, DT_NUMBERS_FRAMES, 0, 1, blocks, NULL, NULL));
    const struct dt_reader *reader = shards->place[0].reader;
    for (int pass = 0; pass < 2; pass++) {
        int64_t clock = shards->clock;
        struct dt_loader_config config = one_pass(dataset);
        config.shards = shards;
        struct dt_loader *loader;
        const struct dt_batch *batch;
        CHECK_OK(dt_loader_open(&config, 0, &loader));
        CHECK_OK(dt_loader_next(loader, &batch, NULL));
        expect_windows(0, 6, T, want);
        check_row(batch, 0, &config.rules, want);
        dt_loader_close(loader);
        CHECK(reader && shards->place[0].reader == reader && shards->clock > clock, "opened again");
    }
    dt_shard_cache_close(shards);
    free(blocks);
}

// A shard that changes during training is noticed when it is opened again.
static void test_changed_shard(void)
{
    struct dt_scan_rules rules = rules_of(ROBOMIMIC, 0);
    write_a(ROBOMIMIC);
    struct dt_dataset *dataset = scan_all(&rules);
    struct dt_loader_config config = one_pass(dataset);
    struct dt_loader *loader;
    const struct dt_batch *batch;
    write_episodes(in_scratch("a.h5"), ROBOMIMIC, plain_types(), 1, 7);
    CHECK_OK(dt_loader_open(&config, 0, &loader));
    CHECK_FAILS(dt_loader_next(loader, &batch, NULL), DT_USER, "has changed since the start");
    dt_loader_close(loader);
}

// Checks every binary16 against the definition.
static void test_f16(void)
{
    int wrong = 0;
    for (int x = 0; x < 1 << 16; x++) {
        int exponent = x >> 10 & 31, mantissa = x & 1023;
        double magnitude = exponent == 31 ? (mantissa ? NAN : INFINITY)
                           : exponent     ? ldexp(1024 + mantissa, exponent - 25)
                                          : ldexp(mantissa, -24);
        float got = dt_f16_to_f32((uint16_t)x);
        wrong += isnan(magnitude) ? !isnan(got) : fabs(got) != magnitude;
        wrong += (signbit(got) != 0) != (x >> 15);
    }
    CHECK_INT(wrong, 0);
}

// Without rules all observations are inputs, so `dtrain verify` reads the whole shard.
static void test_verify(void)
{
    for (enum episode_layout layout = 0; layout < GROUPS; layout++) {
        struct dt_shard shard = {0};
        write_a(layout);
        CHECK_OK(dt_verify_shard(in_scratch("a.h5"), NULL, false, &shard));
        CHECK_INT(shard.count, 122);
        CHECK_INT(shard.width, layout == NATIVE || layout == D4RL ? A : A + 1 + IMG);
    }
}

int main(void)
{
    test_layouts();
    make_scratch();
    RUN(test_some_episodes, test_held_out, test_linked, test_targets_by_head, test_changed_shard,
        test_progress, test_shared_readers, test_verify, test_f16);
    remove_scratch();
    return test_end();
}

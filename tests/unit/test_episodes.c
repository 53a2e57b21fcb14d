// Readers of episodes: every number of every window, in each layout and type; windows and padding;
// order on any number of ranks; what is refused.
#include "base/log.h"
#include "base/rng.h"
#include "data/loader.h"
#include "data/order.h"
#include "data/pack.h"
#include "data/statistics.h"
#include "episode_files.h"

enum { T = 16 };

// The columns of the tests: a, two of img, b as ids; all actions.
enum { F = A + 2, W = ACTIONS };
static const char *const inputs[LAYOUTS] = {
    "frames img[1:3] b:id*7", "obs/a /obs/img[1:3]\tobs/b:id*7",
    "observations/a observations/img[1:3] observations/b:id*7", "observations img[1:3] b:id*7"};

static struct dt_scan_rules rules_of(enum episode_layout layout, int64_t stride)
{
    struct dt_scan_rules rules = {.seq_len = T, .stride = stride};
    snprintf(rules.inputs, sizeof rules.inputs, "%s", inputs[layout]);
    snprintf(rules.targets, sizeof rules.targets, "actions");
    rules.n_targets = 2;
    rules.target[0] = (struct dt_target){"buttons", 2, 2};
    rules.target[1] = (struct dt_target){"stick", 1, CLASSES};
    return rules;
}

static struct dt_dataset *scan_all(const struct dt_scan_rules *rules)
{
    struct dt_dataset *dataset = NULL;
    char glob[DT_PATH];
    snprintf(glob, sizeof glob, "%s/*.h5", scratch);
    CHECK_OK(dt_dataset_scan(glob, rules, &dataset));
    return dataset;
}

// The windows that episodes [from, to) give, counted plainly.
struct expected {
    int64_t episode, first, n;
};
static int64_t expect_windows(int64_t from, int64_t to, int64_t stride, struct expected *list)
{
    int64_t count = 0;
    for (int64_t e = from; e < to; e++)
        for (int64_t first = 0;; first += stride) {
            int64_t left = episode_frames[e] - first;
            list[count++] = (struct expected){e, first, left < T ? left : T};
            if (left <= T || left <= stride)
                break;
        }
    return count;
}

static const float mean[F] = {0.5f, -1, 2, 100, 7}, deviation[F] = {2, 0.3f, 1, 60, 9};

static float frame_value(const struct dt_read_rules *rules, int64_t e, int64_t t, int64_t c)
{
    float x = c < A ? value_a(e, t, c) : (float)value_img(e, t, c - A + 1);
    return rules->mean ? (x - mean[c]) / deviation[c] : x;
}

// Row `row` of the batch against the window `want`; NULL: padding.
static void check_row(const struct dt_batch *batch, int64_t row, const struct dt_read_rules *rules,
                      const struct expected *want)
{
    const float *frames = dt_batch_find(batch, "frames")->data;
    const dt_bf16 *halves = dt_batch_find(batch, "frames")->data;
    const int32_t *ids = dt_batch_find(batch, "ids")->data;
    const float *targets = dt_batch_find(batch, "targets")->data;
    const uint8_t *mask = dt_batch_find(batch, "mask")->data;
    const struct dt_array *reset = dt_batch_find(batch, "reset");
    int64_t wrong = 0;
    CHECK(rules->carry == (reset != NULL), "reset");
    for (int64_t t = 0; t < T; t++) {
        int64_t at = row * T + t, frame = want ? want->first + t : 0, e = want ? want->episode : 0;
        bool there = want && t < want->n;
        for (int64_t c = 0; c < F; c++) {
            float x = there ? frame_value(rules, e, frame, c) : 0;
            wrong += rules->frames_type == DT_F32 ? frames[at * F + c] != x
                                                  : halves[at * F + c] != dt_f32_to_bf16(x);
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

// One sequential pass over the data on `size` ranks.
static void check_pass(const struct dt_dataset *dataset, const struct dt_read_rules *rules,
                       const struct expected *want, int64_t n, int size)
{
    for (int rank = 0; rank < size; rank++) {
        struct dt_loader_config config = {.dataset = dataset,
                                          .rules = *rules,
                                          .batch = 4,
                                          .block = 3,
                                          .rank = rank,
                                          .size = size,
                                          .prefetch = 2,
                                          .sequential = true};
        struct dt_loader *loader;
        const struct dt_batch *batch;
        CHECK_OK(dt_loader_open(&config, 0, &loader));
        for (int64_t step = 0;; step++) {
            CHECK_OK(dt_loader_next(loader, &batch, NULL));
            if (!batch) {
                CHECK_INT(step, (n + 3) / 4);
                break;
            }
            for (int64_t row = 0; row < 4 / size; row++) {
                int64_t number = step * 4 + rank * (4 / size) + row;
                check_row(batch, row, rules, number < n ? &want[number] : NULL);
            }
        }
        dt_loader_close(loader);
    }
}

// Shuffled training on `size` ranks: the windows that the order names, read in blocks.
static void check_training(const struct dt_dataset *dataset, const struct dt_read_rules *rules,
                           const struct expected *want, int size)
{
    struct dt_order_config order_config = {
        .dataset = dataset, .seed = 5, .batch = 4, .block = 3, .shuffle = true};
    struct dt_order *order;
    int64_t first[3] = {0};
    for (int64_t i = 0; i < dataset->n_shards && i < 2; i++)
        first[i + 1] = first[i] + dataset->shards[i].windows;
    CHECK_OK(dt_order_create(&order_config, &order));
    for (int rank = 0; rank < size; rank++) {
        struct dt_loader_config config = {.dataset = dataset,
                                          .rules = *rules,
                                          .batch = 4,
                                          .block = 3,
                                          .shuffle = true,
                                          .rank = rank,
                                          .size = size,
                                          .prefetch = 2};
        struct dt_loader *loader;
        const struct dt_batch *batch;
        config.rules.seed = 5;
        CHECK_OK(dt_loader_open(&config, 0, &loader));
        for (int64_t step = 0; step < 2 * dt_order_steps_per_epoch(order); step++) {
            CHECK_OK(dt_loader_next(loader, &batch, NULL));
            for (int64_t row = 0; row < 4 / size && batch; row++) {
                struct dt_position at;
                CHECK_OK(dt_order_at(order, step, rank * (4 / size) + row, &at));
                check_row(batch, row, rules, &want[first[at.shard] + at.window]);
            }
        }
        dt_loader_close(loader);
    }
    dt_order_free(order);
}

static void check_dataset(enum episode_layout layout, const struct dt_dataset *dataset,
                          int64_t windows, int64_t frames)
{
    CHECK_STR(dataset->kind->name, layout_name[layout]);
    CHECK_INT(dataset->windows, windows);
    CHECK_INT(dataset->tokens, frames);
    CHECK_INT(dataset->episodes, EPISODES);
    CHECK_INT(dataset->layout.frame_width, F);
    CHECK_INT(dataset->layout.target_width, W);
    CHECK_INT(dataset->layout.n_ids, 1);
    CHECK_INT(dataset->layout.ids[0], B_TABLE);
}

// Mean and deviation of what was written; the same bits whatever the number of ranks.
static void check_statistics(const struct dt_dataset *dataset)
{
    float some[2 * F], one[2 * F];
    int64_t n = dt_statistics_size(dataset);
    for (int size = 1; size <= 5; size++) {
        double *blocks = calloc((size_t)n, sizeof *blocks);
        for (int rank = 0; rank < size; rank++)
            CHECK_OK(dt_statistics_read(dataset, rank, size, blocks, NULL, NULL));
        dt_statistics_finish(dataset, blocks, size == 1 ? one : some,
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
}

// Two shards of a layout: what is read is what was written, whatever the types.
static void check_layout(enum episode_layout layout, const struct episode_types *types)
{
    enum { CUT = 6 };
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
        check_dataset(layout, dataset, n, frames);
        if (stride < T)
            check_statistics(dataset);
        struct dt_read_rules read = {.frames_type = DT_F32};
        check_pass(dataset, &read, want, n, 1);
        check_training(dataset, &read, want, 1);
        read = (struct dt_read_rules){
            .frames_type = DT_BF16, .mean = mean, .deviation = deviation, .carry = true};
        CHECK_OK(dt_dataset_pack(dataset, &bytes, &size));
        CHECK_OK(dt_dataset_unpack(bytes, size, &copy));
        check_pass(copy, &read, want, n, 2);
        check_training(copy, &read, want, 4);
        read.frames_type = DT_F32;
        check_training(copy, &read, want, 2);
        free(bytes);
        dt_dataset_free(copy);
        dt_dataset_free(dataset);
    }
    remove_scratch();
    strcpy(scratch + strlen(scratch) - 6, "XXXXXX");
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
    H5Tclose(f16);
}

int main(void)
{
    test_layouts();
    return test_end();
}

// Shared by tests of episode readers: windows and columns, and scanning and changing shards in the
// scratch folder.
#pragma once

#include "data/loader.h"
#include "data/order.h"
#include "episode_files.h"

enum { T = 16 };

// The columns of the tests: a, two columns of img, and b as ids; targets are all actions.
enum { F = A + 2, W = ACTIONS };
static const char *const inputs[LAYOUTS] = {
    "frames img[1:3] b:id*7", "obs/a /obs/img[1:3]\tobs/b:id*7",
    "observations/a observations/img[1:3] observations/b:id*7", "observations img[1:3] b:id*7",
    "obs/a obs/img[1:3] obs/b:id*7"};

// The two columns of img.
static const struct dt_byte_columns img_bytes = {.n = 1, .at = {{A, F}}};

static inline struct dt_scan_rules rules_of(enum episode_layout layout, int64_t stride)
{
    struct dt_scan_rules rules = {.seq_len = T, .stride = stride, .time_axis = time_second};
    if (layout_episodes[layout])
        strcpy(rules.episodes, layout_episodes[layout]);
    snprintf(rules.inputs, sizeof rules.inputs, "%s", inputs[layout]);
    snprintf(rules.targets, sizeof rules.targets, "actions");
    rules.n_targets = 2;
    rules.target[0] = (struct dt_target){"buttons", 2, 2};
    rules.target[1] = (struct dt_target){"stick", 1, CLASSES};
    return rules;
}

static inline struct dt_dataset *scan_all(const struct dt_scan_rules *rules)
{
    return scan(in_scratch("*.h5"), rules);
}

static inline struct dt_loader_config one_pass(const struct dt_dataset *dataset)
{
    return (struct dt_loader_config){
        .dataset = dataset, .batch = 4, .block = 3, .size = 1, .prefetch = 2, .sequential = true};
}

static inline const struct episode_types *plain_types(void)
{
    static struct episode_types types;
    types =
        (struct episode_types){H5T_IEEE_F32LE, H5T_STD_I64LE, H5T_STD_U8LE, H5T_IEEE_F64LE, false};
    return &types;
}

// Puts n rows of `width` zeros in place of the dataset at this path.
static inline void put_zeros(const char *name, const char *path, int n_dims, int64_t n,
                             int64_t width)
{
    static const float zeros[LONGEST * 8];
    hid_t file = change_without(name, path);
    if (n_dims == 1)
        put_vector(file, path, H5T_IEEE_F32LE, n, zeros);
    else
        put_matrix(file, path, H5T_IEEE_F32LE, n, width, zeros);
    H5Fclose(file);
}

// Writes a new a.h5 with the first six episodes.
static inline void write_a(enum episode_layout layout)
{
    write_episodes(in_scratch("a.h5"), layout, plain_types(), 0, 6);
}

static inline void refuse_scan(const struct dt_scan_rules *rules, const char *phrase)
{
    struct dt_dataset *dataset = NULL;
    CHECK_FAILS(dt_dataset_scan(in_scratch("*.h5"), rules, &dataset), DT_USER, phrase);
    dt_dataset_free(dataset);
}

// The windows of episodes [from, to), counted in a plain loop.
struct expected {
    int64_t episode, first, n;
};
static inline int64_t expect_windows(int64_t from, int64_t to, int64_t stride,
                                     struct expected *list)
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

// Compares row `row` of the batch with the window `want`; NULL: padding.
typedef void check_row_fn(const struct dt_batch *batch, int64_t row,
                          const struct dt_read_rules *rules, const struct expected *want);

// Reads one pass in order, or two shuffled epochs, on `size` ranks, and checks that the windows are
// those of `want` that the order names. The end of a pass is padding.
static inline void check_reading(const struct dt_dataset *dataset,
                                 const struct dt_read_rules *rules, const struct expected *want,
                                 bool shuffle, int size, check_row_fn *check_row)
{
    struct dt_order_config order_config = {.dataset = dataset,
                                           .seed = 5,
                                           .batch = 4,
                                           .block = 3,
                                           .shuffle = shuffle,
                                           .sequential = !shuffle};
    struct dt_order *order;
    CHECK_OK(dt_order_create(&order_config, &order));
    int64_t steps = shuffle ? 2 * dt_order_steps_per_epoch(order) : (dataset->windows + 3) / 4;
    for (int rank = 0; rank < size; rank++) {
        struct dt_loader_config config = one_pass(dataset);
        config.rules = *rules;
        config.rules.seed = 5;
        config.sequential = !shuffle;
        config.shuffle = shuffle;
        config.rank = rank;
        config.size = size;
        struct dt_loader *loader;
        const struct dt_batch *batch;
        CHECK_OK(dt_loader_open(&config, 0, &loader));
        for (int64_t step = 0; step < steps; step++) {
            CHECK_OK(dt_loader_next(loader, &batch, NULL));
            CHECK(batch, "no batch at step %ld", (long)step);
            for (int64_t row = 0; row < 4 / size && batch; row++) {
                struct dt_position at;
                CHECK_OK(dt_order_at(order, step, rank * (4 / size) + row, &at));
                int64_t window = at.window;
                for (int64_t shard = 0; window >= 0 && shard < at.shard; shard++)
                    window += dataset->shards[shard].windows;
                check_row(batch, row, rules, window < 0 ? NULL : &want[window]);
            }
        }
        if (!shuffle) {
            CHECK_OK(dt_loader_next(loader, &batch, NULL));
            CHECK(!batch, "a batch after the last");
        }
        dt_loader_close(loader);
    }
    dt_order_free(order);
}

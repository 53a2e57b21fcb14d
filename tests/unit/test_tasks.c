// Tests rows of the synthetic tasks: each answer follows from its row by the task's rule, rows
// differ, and packing gives the same rows in any number of shards.
#include "data/batch.h"
#include "data/h5_reader.h"
#include "data/pack.h"
#include "scratch.h"
#include "test.h"

#include <math.h>
#include <string.h>

enum { MOST = 4096, ROWS = 200 };

static int32_t ids[MOST], labels[MOST];
static int64_t scratch_numbers[MOST + 8192];

static void fill(const struct dt_task *task, const struct dt_task_shape *shape, int side,
                 int64_t row)
{
    task->fill(shape, 7, side, row, ids, labels, scratch_numbers);
    for (int64_t i = 0; i < shape->length; i++)
        CHECK(ids[i] >= 0 && ids[i] < shape->vocab && labels[i] < shape->vocab &&
                  (labels[i] >= 0 || labels[i] == DT_IGNORED),
              "%s: %d, %d at %lld", task->name, ids[i], labels[i], (long long)i);
}

static int64_t answers(const struct dt_task_shape *shape)
{
    int64_t n = 0;
    for (int64_t i = 0; i < shape->length; i++)
        n += labels[i] != DT_IGNORED;
    return n;
}

static void test_induction(void)
{
    const struct dt_task *task = dt_task_find("induction");
    struct dt_task_shape shape = {.length = 9, .vocab = 5, .items = 1};
    int places[9] = {0};
    for (int64_t row = 0; row < ROWS; row++) {
        int first = 0;
        fill(task, &shape, 0, row);
        while (ids[first] != 4)
            first++;
        places[first]++;
        CHECK_INT(ids[8], 4);
        CHECK(first < 7, "the trigger has no answer");
        CHECK_INT(labels[8], ids[first + 1]);
        CHECK_INT(answers(&shape), 1);
        for (int i = first + 1; i < 8; i++)
            CHECK(ids[i] != 4, "a second trigger");
    }
    for (int i = 0; i < 7; i++)
        CHECK(places[i] > 0, "never at %d", i);
}

static void test_copy(void)
{
    const struct dt_task *task = dt_task_find("selective-copy");
    struct dt_task_shape shape = {.length = 20, .vocab = 6, .items = 5};
    for (int64_t row = 0; row < ROWS; row++) {
        int n = 0;
        fill(task, &shape, 0, row);
        for (int i = 0; i < 15; i++)
            if (ids[i] != 0)
                CHECK_INT(labels[15 + n++], ids[i]);
        CHECK_INT(n, 5);
        CHECK_INT(answers(&shape), 5);
        CHECK_INT(ids[15], 5);
    }
}

// The mean log gap of the first key, which is drawn from the whole distribution.
static void test_mqar(void)
{
    const struct dt_task *task = dt_task_find("mqar");
    struct dt_task_shape shape = {.length = 64, .vocab = 40, .items = 8};
    double mean = 0, want = 0, weight = 0, square = 0;
    enum { SPACE = 24, DRAWS = 4000 };
    for (int64_t row = 0; row < DRAWS; row++) {
        int32_t value[40];
        memset(value, -1, sizeof value);
        fill(task, &shape, 0, row);
        for (int i = 0; i < 16; i += 2) {
            CHECK(ids[i] >= 1 && ids[i] < 20 && ids[i + 1] >= 20 && value[ids[i]] < 0,
                  "no new pair at %d", i);
            value[ids[i]] = ids[i + 1];
        }
        CHECK_INT(answers(&shape), 8);
        for (int i = 0; i < 64; i++) {
            if (labels[i] == DT_IGNORED)
                continue;
            CHECK(i >= 16 && i % 2 == 0, "an answer at %d", i);
            CHECK_INT(labels[i], value[ids[i]]);
            if (ids[i] == ids[0])
                mean += log((i - 16) / 2 + 1) / DRAWS;
        }
    }
    for (int g = 1; g <= SPACE; g++) {
        double p = pow(g, 0.01 - 1);
        weight += p;
        want += p * log(g);
        square += p * log(g) * log(g);
    }
    want /= weight;
    // Allows five standard deviations of the mean.
    CHECK_NEAR(mean, want, 5 * sqrt((square / weight - want * want) / DRAWS));
}

static void test_latch(void)
{
    const struct dt_task *task = dt_task_find("latch");
    struct dt_task_shape shape = {.length = 20, .vocab = 6, .items = 5};
    int rows_of[6] = {0};
    for (int64_t row = 0; row < ROWS; row++) {
        fill(task, &shape, 0, row);
        rows_of[ids[0]]++;
        for (int i = 1; i < 19; i++)
            CHECK_INT(ids[i], i < 5 ? ids[0] : 0);
        CHECK_INT(ids[19], 5);
        CHECK_INT(labels[19], ids[0]);
        CHECK_INT(answers(&shape), 1);
    }
    for (int i = 1; i < 5; i++)
        CHECK_INT(rows_of[i], ROWS / 4);
}

static void test_parity(void)
{
    const struct dt_task *task = dt_task_find("parity");
    struct dt_task_shape shape = {.length = 40, .vocab = 2, .items = 1};
    for (int64_t row = 0; row < ROWS; row++) {
        int ones = 0;
        fill(task, &shape, 0, row);
        for (int i = 0; i < 40; i++)
            CHECK_INT(labels[i], (ones += ids[i]) % 2);
    }
}

static void test_refused(void)
{
    static const struct {
        const char *name;
        struct dt_task_shape shape;
    } cases[] = {
        {"induction", {2, 16, 1}},      {"induction", {256, 2, 1}},
        {"selective-copy", {9, 16, 5}}, {"selective-copy", {64, 2, 16}},
        {"mqar", {31, 8192, 8}},        {"mqar", {64, 16, 8}},
        {"latch", {5, 6, 5}},           {"latch", {9, 2, 1}},
        {"parity", {40, 3, 1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        CHECK_FAILS(dt_task_find(cases[i].name)->check(&cases[i].shape), DT_USER, cases[i].name);
    for (const struct dt_task *task = dt_tasks; task->name; task++)
        CHECK_OK(task->check(&task->published));
    CHECK(!dt_task_find("copy"), "found a task that does not exist");
}

// Reads all ids and labels of a side in the order of a loader.
static int64_t read_side(const char *output, const char *side, int64_t n_shards, int8_t *values)
{
    int64_t n = 0;
    for (int64_t i = 0; i < n_shards; i++) {
        char path[DT_PATH];
        struct dt_shard shard;
        struct dt_reader *reader;
        snprintf(path, sizeof path, "%s/%s-%05d.h5", output, side, (int)i);
        CHECK_OK(dt_verify_shard(path, NULL, false, &shard));
        CHECK_INT(shard.vocab_size, 16);
        CHECK_OK(dt_reader_open(path, &(struct dt_scan_rules){.seq_len = 8}, &shard, &reader));
        for (int k = 0; k < 2; k++, n += shard.count * 8)
            CHECK_OK(dt_h5_array_read(&reader->arrays[k], 0, shard.count, values + n));
        dt_reader_close(reader);
    }
    return n / 16;
}

static void test_pack(void)
{
    static int8_t one[4096], many[4096], val[4096];
    struct dt_pack_result result;
    struct dt_pack_config config = {.task = dt_task_find("induction"),
                                    .shape = {8, 16, 1},
                                    .rows = 50,
                                    .output = in_scratch("one"),
                                    .shard_bytes = 1 << 20,
                                    .val_fraction = 0.2,
                                    .seed = 7};
    CHECK_OK(dt_pack(&config, &result));
    CHECK_INT(result.train_shards, 1);
    CHECK_INT(read_side(config.output, "train", 1, one), 40);
    CHECK_INT(read_side(config.output, "val", 1, val), 10);
    fill(config.task, &config.shape, 0, 39);
    for (int i = 0; i < 8; i++) {
        CHECK_INT(one[39 * 8 + i], ids[i]);
        CHECK_INT(one[40 * 8 + 39 * 8 + i], labels[i]);
    }
    CHECK(memcmp(one, val, 10 * 8) != 0, "validation is on rows of training");
    config.output = in_scratch("many");
    config.shard_bytes = 17 * 16; // of 16 bytes a row
    CHECK_OK(dt_pack(&config, &result));
    CHECK_INT(result.train_shards, 3);
    CHECK_INT(read_side(config.output, "train", 3, many), 40);
    CHECK(memcmp(one, many, 14 * 8) == 0, "the first shard has other rows");
    CHECK_FAILS(dt_pack(&config, &result), DT_USER, "already contains shards");
}

int main(void)
{
    make_scratch();
    RUN(test_induction, test_copy, test_mqar, test_latch, test_parity, test_refused, test_pack);
    remove_scratch();
    return test_end();
}

// Tests the order of windows against a slow reference that lists all windows, against numbers of
// another program, and against its promise: every window once, whatever is asked in whatever order.
#include "base/rng.h"
#include "data/order.h"
#include "test.h"

#include <stdbool.h>

enum { MOST = 512, SHARDS = 7 };

// Shards in memory with these numbers of windows; two have none.
static const int64_t shard_windows[SHARDS] = {0, 5, 13, 1, 0, 64, 7};
static struct dt_shard shards[SHARDS];
static struct dt_dataset dataset;

static void make_dataset(const int64_t *windows, int n)
{
    dataset = (struct dt_dataset){.rules.seq_len = 8, .n_shards = n, .shards = shards};
    for (int i = 0; i < n; i++) {
        shards[i] = (struct dt_shard){.path = "shard", .count = windows[i] * 8 + 1};
        shards[i].windows = windows[i];
        dataset.windows += windows[i];
    }
}

static void shuffle(int64_t *list, int64_t n, uint64_t seed, uint32_t epoch, uint64_t substream)
{
    struct dt_philox rng = dt_philox_init(seed, epoch, substream);
    for (int64_t i = n - 1; i >= 1; i--) {
        int64_t j = (int64_t)dt_philox_below(&rng, (uint64_t)(i + 1));
        int64_t x = list[i];
        list[i] = list[j];
        list[j] = x;
    }
}

// Lists an epoch: numbers of windows, counted in file order over all shards.
static void reference(int64_t block, uint64_t seed, uint32_t epoch, int64_t *list)
{
    int64_t first[MOST], size[MOST], which[MOST], n_blocks = 0, base = 0, n = 0;
    for (int64_t s = 0; s < dataset.n_shards; base += shards[s++].windows)
        for (int64_t w = 0; w < shards[s].windows; w += block) {
            first[n_blocks] = base + w;
            size[n_blocks] = shards[s].windows - w < block ? shards[s].windows - w : block;
            which[n_blocks] = n_blocks;
            n_blocks++;
        }
    shuffle(which, n_blocks, seed, epoch, 0);
    for (int64_t i = 0; i < n_blocks; i++) {
        int64_t b = which[i];
        for (int64_t w = 0; w < size[b]; w++)
            list[n + w] = first[b] + w;
        shuffle(list + n, size[b], seed, epoch, (uint64_t)b + 1);
        n += size[b];
    }
}

static int64_t number_of(const struct dt_position *at)
{
    int64_t number = at->window;
    for (int64_t s = 0; s < at->shard; s++)
        number += shards[s].windows;
    return number;
}

static struct dt_order *create(int64_t batch, int64_t block, bool is_shuffled, bool sequential)
{
    struct dt_order_config config = {&dataset, 1337, batch, block, is_shuffled, sequential, false};
    struct dt_order *order;
    CHECK_OK(dt_order_create(&config, &order));
    return order;
}

// Every step of three epochs has the windows of the reference, and each window comes at most once
// an epoch.
static void test_against_reference(int64_t batch, int64_t block)
{
    struct dt_order *order = create(batch, block, true, false);
    int64_t steps = dt_order_steps_per_epoch(order), list[MOST];
    CHECK_INT(steps, dataset.windows / batch);
    for (uint32_t epoch = 0; epoch < 3; epoch++) {
        bool seen[MOST] = {false};
        reference(block, 1337, epoch, list);
        for (int64_t s = 0; s < steps; s++)
            for (int64_t k = 0; k < batch; k++) {
                struct dt_position at;
                CHECK_OK(dt_order_at(order, epoch * steps + s, k, &at));
                CHECK_INT(at.epoch, epoch);
                CHECK_INT(at.list, k * steps + s);
                CHECK_INT(number_of(&at), list[k * steps + s]);
                CHECK(at.window >= at.block_first &&
                          at.window < at.block_first + at.block_windows &&
                          at.block_first + at.block_windows <= shards[at.shard].windows,
                      "window %ld is not in its block", (long)at.window);
                CHECK(!seen[number_of(&at)], "window %ld comes twice", (long)number_of(&at));
                seen[number_of(&at)] = true;
            }
    }
    dt_order_free(order);
}

// Positions that two objects are asked for at random do not depend on earlier questions.
static void test_independence(void)
{
    struct dt_order *a = create(6, 4, true, false), *b = create(6, 4, true, false);
    struct dt_philox rng = dt_philox_init(5, 0, 0);
    int64_t steps = dt_order_steps_per_epoch(a);
    for (int i = 0; i < 2000; i++) {
        struct dt_position x, y;
        int64_t step = (int64_t)dt_philox_below(&rng, (uint64_t)(4 * steps));
        int64_t slot = (int64_t)dt_philox_below(&rng, 6);
        dt_order_at(a, step, slot, &x);
        dt_order_at(b, steps + i % 3, i % 6, &y); // moves b elsewhere in between
        dt_order_at(b, step, slot, &y);
        CHECK(memcmp(&x, &y, sizeof x) == 0, "step %ld, slot %ld differ", (long)step, (long)slot);
    }
    dt_order_free(a);
    dt_order_free(b);
}

// Results of a separate implementation of Philox, Fisher-Yates and the list.
static void test_fixed_numbers(void)
{
    static const int64_t windows[] = {0, 5, 13, 1, 4};
    static const int64_t want[2][23] = {
        {17, 16, 13, 14, 15, 4, 18, 11, 10, 12, 9, 3, 0, 2, 1, 8, 5, 7, 6, 20, 22, 19, 21},
        {4, 14, 13, 16, 15, 7, 6, 8, 5, 17, 22, 19, 21, 20, 10, 12, 11, 9, 18, 3, 0, 1, 2}};
    make_dataset(windows, 5);
    struct dt_order *order = create(1, 4, true, false);
    for (int64_t step = 0; step < 46; step++) {
        struct dt_position at;
        dt_order_at(order, step, 0, &at);
        CHECK_INT(number_of(&at), want[step / 23][step % 23]);
    }
    dt_order_free(order);
    make_dataset(shard_windows, SHARDS);
}

static void test_unshuffled(void)
{
    struct dt_order *order = create(7, 4, false, false);
    int64_t steps = dt_order_steps_per_epoch(order);
    CHECK_INT(steps, 90 / 7);
    for (int64_t step = 0; step < 2 * steps; step++)
        for (int64_t k = 0; k < 7; k++) {
            struct dt_position at;
            dt_order_at(order, step, k, &at);
            CHECK_INT(number_of(&at), k * steps + step % steps);
            CHECK_INT(at.epoch, step / steps);
        }
    dt_order_free(order);
}

static void test_sequential(int64_t batch)
{
    struct dt_order *order = create(batch, 4, true, true);
    int64_t steps = dt_order_steps_per_epoch(order);
    CHECK_INT(steps, (90 + batch - 1) / batch);
    for (int64_t i = 0; i < steps * batch; i++) {
        struct dt_position at;
        dt_order_at(order, i / batch, i % batch, &at);
        if (i < 90)
            CHECK_INT(number_of(&at), i);
        else
            CHECK_INT(at.window, -1);
    }
    dt_order_free(order);
}

// Each slot reads its own part of the list. After the last window there is nothing.
static void test_parts(int64_t batch)
{
    struct dt_order_config config = {&dataset, 1, batch, 4, true, true, true};
    struct dt_order *order;
    CHECK_OK(dt_order_create(&config, &order));
    int64_t steps = dt_order_steps_per_epoch(order);
    CHECK_INT(steps, (90 + batch - 1) / batch);
    for (int64_t i = 0; i < steps * batch; i++) {
        struct dt_position at;
        dt_order_at(order, i % steps, i / steps, &at);
        if (i >= 90) {
            CHECK_INT(at.window, -1);
            continue;
        }
        CHECK_INT(number_of(&at), i);
        CHECK(at.window >= at.block_first && at.window < at.block_first + at.block_windows,
              "window %ld is not in its block", (long)at.window);
    }
    dt_order_free(order);
}

// Two sources with weights 3 : 1, the first of shards 0 … 2. Each slot reads its own part of each
// source's list, always the next window of that source, whatever it has read of the other.
static void test_mixture(void)
{
    enum { BATCH = 4, STEPS = 300 };
    struct dt_order_config config = {&dataset, 9, BATCH, 4, true, false, false};
    struct dt_order *order;
    int64_t read[2][BATCH] = {{0}}, epochs[2] = {0};
    static bool seen[2][64][MOST]; // by source and epoch
    dataset.n_sources = 2;
    dataset.sources[0] = (struct dt_source){.weight = 3, .n_shards = 3, .windows = 18};
    dataset.sources[1] =
        (struct dt_source){.weight = 1, .first_shard = 3, .n_shards = SHARDS - 3, .windows = 72};
    CHECK_OK(dt_mixture_resolve(dataset.sources, 2, BATCH, &dataset.mixture));
    CHECK_OK(dt_order_create(&config, &order));
    for (int64_t i = 0; i < STEPS * BATCH; i++) {
        struct dt_position at;
        int64_t slot = i % BATCH;
        CHECK_OK(dt_order_at(order, i / BATCH, slot, &at));
        int64_t steps = dataset.sources[at.source].windows / BATCH;
        int64_t n = read[at.source][slot]++;
        CHECK_INT(at.source, at.shard >= 3);
        CHECK_INT(at.epoch, n / steps);
        CHECK_INT(at.list, slot * steps + n % steps);
        bool *twice = &seen[at.source][at.epoch % 64][number_of(&at)];
        CHECK(!*twice, "window %ld comes twice in epoch %ld", (long)number_of(&at), (long)at.epoch);
        *twice = true;
        epochs[at.source] = at.epoch;
    }
    CHECK(epochs[0] > 40 && epochs[0] < 64 && epochs[1] >= 4, "epochs %ld, %ld", (long)epochs[0],
          (long)epochs[1]);
    dt_order_free(order);

    // Validation reads one source after another, each in whole batches.
    config.sequential = true;
    CHECK_OK(dt_order_create(&config, &order));
    CHECK_INT(dt_order_steps_per_epoch(order), 5 + 18);
    for (int64_t i = 0; i < 23 * BATCH; i++) {
        struct dt_position at;
        CHECK_OK(dt_order_at(order, i / BATCH, i % BATCH, &at));
        CHECK_INT(at.window < 0 ? -1 : number_of(&at), i < 18 ? i : i < 20 ? -1 : i - 2);
    }
    dt_order_free(order);
    dataset.n_sources = 0;
    dataset.mixture = (struct dt_mixture){0};
}

static void test_refusals(void)
{
    struct dt_order_config config = {&dataset, 1, 91, 4, true, false, false};
    struct dt_order *order;
    CHECK_FAILS(dt_order_create(&config, &order), DT_USER, "90 windows");
    CHECK(order == NULL, "a refusal gives an order");
    config.batch = 0;
    CHECK_INT(dt_order_create(&config, &order), DT_USER);
    config.batch = 90;
    config.block = 0;
    CHECK_INT(dt_order_create(&config, &order), DT_USER);
    static const int64_t none[] = {0, 0};
    make_dataset(none, 2);
    config = (struct dt_order_config){&dataset, 1, 4, 4, false, true, false};
    CHECK_INT(dt_order_create(&config, &order), DT_USER);
    make_dataset(shard_windows, SHARDS);
}

int main(void)
{
    make_dataset(shard_windows, SHARDS);
    static const int64_t batches[] = {1, 3, 8, 89, 90}, blocks[] = {1, 4, 64, 1000000};
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < 4; j++)
            test_against_reference(batches[i], blocks[j]);
    RUN(test_independence, test_fixed_numbers, test_unshuffled);
    test_sequential(8);
    test_sequential(90);
    test_sequential(100);
    test_parts(1);
    test_parts(7);
    test_parts(100);
    test_mixture();
    test_refusals();
    return test_end();
}

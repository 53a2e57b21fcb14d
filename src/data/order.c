// Computes the order of windows as a function of the step. It keeps the permuted list of blocks of
// one epoch and, for each slot, the permutation inside its block.
#include "data/order.h"

#include "base/memory.h"
#include "base/rng.h"
#include "base/round.h"

#include <inttypes.h>

// The block that a slot is in.
struct inside {
    int64_t epoch, block; // block -1: none yet
    int64_t room;
    uint32_t *windows; // [windows of the block], permuted
};

struct dt_order {
    struct dt_order_config config;
    int64_t steps; // an epoch's
    int64_t n_blocks;
    int64_t *first;      // [n_shards + 1] number of a shard's first block
    uint32_t *list;      // [n_blocks] blocks in the epoch's order
    int64_t *before;     // [n_blocks + 1] windows in list[0, i); NULL: i, blocks have one
    int64_t epoch;       // of the list; -1: none yet
    struct inside *slot; // [batch]; NULL: nothing is permuted
};

// Finds the last index i of rising[0, n) with rising[i] <= value; rising[0] <= value.
static int64_t find_last(const int64_t *rising, int64_t n, int64_t value)
{
    int64_t low = 0, high = n;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (rising[middle] <= value)
            low = middle;
        else
            high = middle;
    }
    return low;
}

// Shards without windows have the same first block as the next shard: the last of them has it.
static void locate_block(const struct dt_order *order, int64_t block, struct dt_position *at)
{
    const struct dt_dataset *dataset = order->config.dataset;
    at->block = block;
    at->shard = find_last(order->first, dataset->n_shards, block);
    at->block_first = (block - order->first[at->shard]) * order->config.block;
    at->block_windows =
        dt_min_i64(dataset->shards[at->shard].windows - at->block_first, order->config.block);
}

static void shuffle(uint32_t *list, int64_t n, struct dt_philox rng)
{
    for (int64_t i = n - 1; i >= 1; i--) {
        int64_t j = (int64_t)dt_philox_below(&rng, (uint64_t)i + 1);
        uint32_t kept = list[i];
        list[i] = list[j];
        list[j] = kept;
    }
}

static void begin_epoch(struct dt_order *order, int64_t epoch)
{
    if (order->epoch == epoch || (order->epoch >= 0 && !order->config.shuffle))
        return;
    for (int64_t i = 0; i < order->n_blocks; i++)
        order->list[i] = (uint32_t)i;
    if (order->config.shuffle)
        shuffle(order->list, order->n_blocks,
                dt_philox_init(order->config.seed, (uint32_t)epoch, 0));
    for (int64_t i = 0; order->before && i < order->n_blocks; i++) {
        struct dt_position at;
        locate_block(order, order->list[i], &at);
        order->before[i + 1] = order->before[i] + at.block_windows;
    }
    order->epoch = epoch;
}

static dt_status permute_inside(const struct dt_order *order, struct inside *inside,
                                const struct dt_position *at)
{
    if (inside->block == at->block && inside->epoch == at->epoch)
        return DT_OK;
    DT_TRY(DT_ROOM(&inside->windows, &inside->room, at->block_windows, "lower data.block",
                   "permuting %" PRId64 " windows", at->block_windows));
    for (int64_t i = 0; i < at->block_windows; i++)
        inside->windows[i] = (uint32_t)i;
    shuffle(inside->windows, at->block_windows,
            dt_philox_init(order->config.seed, (uint32_t)at->epoch, (uint64_t)at->block + 1));
    inside->block = at->block;
    inside->epoch = at->epoch;
    return DT_OK;
}

static dt_status allocate(struct dt_order *order)
{
    int64_t n_shards = order->config.dataset->n_shards;
    DT_TRY(DT_NEW(&order->first, n_shards + 1, "the order of %" PRId64 " shards", n_shards));
    for (int64_t i = 0; i < n_shards; i++)
        order->first[i + 1] =
            order->first[i] +
            dt_ceil_div(order->config.dataset->shards[i].windows, order->config.block);
    order->n_blocks = order->first[n_shards];
    if (order->n_blocks > UINT32_MAX)
        return DT_FAIL(DT_USER, "raise data.block or data.seq_len",
                       "the order has %" PRId64 " blocks, more than 2^32", order->n_blocks);
    bool equal = order->config.block == 1;
    DT_TRY(DT_NEW_HINT(&order->list, order->n_blocks, "raise data.block",
                       "the order of %" PRId64 " blocks", order->n_blocks));
    if (!equal)
        DT_TRY(DT_NEW_HINT(&order->before, order->n_blocks + 1, "raise data.block",
                           "the order of %" PRId64 " blocks", order->n_blocks));
    if (order->config.shuffle)
        DT_TRY(DT_NEW_HINT(&order->slot, order->config.batch, "lower data.batch",
                           "%" PRId64 " sequences of a batch", order->config.batch));
    for (int64_t i = 0; order->slot && i < order->config.batch; i++)
        order->slot[i].block = -1;
    return DT_OK;
}

dt_status dt_order_create(const struct dt_order_config *config, struct dt_order **order)
{
    int64_t windows = config->dataset->windows, batch = config->batch;
    struct dt_order *o;
    *order = NULL;
    if (batch < 1 || config->block < 1)
        return DT_FAIL(DT_USER, "give numbers above 0",
                       "data.batch is %" PRId64 ", data.block is %" PRId64, batch, config->block);
    if (windows < (config->sequential ? 1 : batch))
        return DT_FAIL(DT_USER, "use more data, a shorter data.seq_len or a smaller data.batch",
                       "the shards (%s%s) hold %" PRId64 " windows of data.seq_len = %" PRId64
                       " in %" PRId64 " tokens; a batch needs %" PRId64,
                       config->dataset->shards[0].path, config->dataset->n_shards > 1 ? " …" : "",
                       windows, config->dataset->rules.seq_len, config->dataset->tokens,
                       config->sequential ? 1 : batch);
    DT_TRY(DT_NEW(&o, 1, "the data order"));
    o->config = *config;
    o->config.shuffle = config->shuffle && !config->sequential;
    o->steps = config->sequential ? (windows - 1) / batch + 1 : windows / batch;
    o->epoch = -1;
    dt_status status = allocate(o);
    if (status == DT_OK)
        *order = o;
    else
        dt_order_free(o);
    return status;
}

void dt_order_free(struct dt_order *order)
{
    if (!order)
        return;
    for (int64_t i = 0; order->slot && i < order->config.batch; i++)
        free(order->slot[i].windows);
    free(order->slot);
    free(order->before);
    free(order->list);
    free(order->first);
    free(order);
}

int64_t dt_order_steps_per_epoch(const struct dt_order *order)
{
    return order->steps;
}

dt_status dt_order_at(struct dt_order *order, int64_t step, int64_t slot,
                      struct dt_position *position)
{
    bool sequential = order->config.sequential;
    *position = (struct dt_position){.epoch = sequential ? 0 : step / order->steps};
    position->list = sequential && !order->config.parts ? step * order->config.batch + slot
                                                        : slot * order->steps + step % order->steps;
    if (position->list >= order->config.dataset->windows) {
        *position = (struct dt_position){.window = -1};
        return DT_OK;
    }
    begin_epoch(order, position->epoch);
    int64_t i = position->list, inside = 0;
    if (order->before) {
        i = find_last(order->before, order->n_blocks, position->list);
        inside = position->list - order->before[i];
    }
    locate_block(order, order->list[i], position);
    if (order->slot) {
        DT_TRY(permute_inside(order, &order->slot[slot], position));
        inside = order->slot[slot].windows[inside];
    }
    position->window = position->block_first + inside;
    return DT_OK;
}

// Computes the order of windows as a function of the step. Caches the permuted list of blocks of an
// epoch and, for each slot, the permutation inside its block.
#include "data/order.h"

#include "base/memory.h"
#include "base/rng.h"
#include "base/round.h"

#include <inttypes.h>

enum { EPOCHS_KEPT = 2, SOURCE_STREAM_BITS = 40 };

// A slot's current block.
struct inside {
    int64_t epoch, block; // block -1: none yet
    int64_t room;
    uint32_t *windows; // [windows of the block], permuted
};

// The list of one epoch of a source.
struct list {
    int64_t epoch;    // -1: none yet
    uint32_t *blocks; // [n_blocks], in the epoch's order
    int64_t *before;  // [n_blocks + 1] windows in blocks[0, i); NULL: one window per block
};

struct source {
    int64_t windows, steps;         // per epoch
    int64_t first_block, n_blocks;  // in file order
    struct list lists[EPOCHS_KEPT]; // by epoch mod EPOCHS_KEPT
};

struct dt_order {
    struct dt_order_config config;
    int n_sources;
    int epochs_kept;
    struct source *sources; // [n_sources]
    struct dt_mixer *mixer; // NULL: one source, or sequential
    int64_t *first;         // [n_shards + 1] a shard's first block
    struct inside *slot;    // [n_sources, batch]; NULL: nothing is permuted
};

// Finds the last index i in ascending rising[0, n) with rising[i] <= value; rising[0] <= value.
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

// Shards without windows have the same first block as the next shard, so the last of them has the
// block.
static void locate_block(const struct dt_order *order, int64_t block, struct dt_position *at)
{
    const struct dt_dataset *dataset = order->config.dataset;
    at->block = block;
    at->shard = find_last(order->first, dataset->n_shards, block);
    at->block_first = (block - order->first[at->shard]) * order->config.block;
    at->block_windows =
        dt_min_i64(dataset->shards[at->shard].windows - at->block_first, order->config.block);
}

static struct list *list_of(struct dt_order *order, int number, int64_t epoch)
{
    const struct dt_order_config *config = &order->config;
    struct source *source = &order->sources[number];
    struct list *list = &source->lists[config->shuffle ? epoch % order->epochs_kept : 0];
    if (list->epoch == epoch || (list->epoch >= 0 && !config->shuffle))
        return list;
    for (int64_t i = 0; i < source->n_blocks; i++)
        list->blocks[i] = (uint32_t)(source->first_block + i);
    if (config->shuffle) {
        struct dt_philox rng =
            dt_philox_init(config->seed, (uint32_t)epoch, (uint64_t)number << SOURCE_STREAM_BITS);
        dt_philox_shuffle(&rng, list->blocks, source->n_blocks);
    }
    for (int64_t i = 0; list->before && i < source->n_blocks; i++) {
        struct dt_position at;
        locate_block(order, list->blocks[i], &at);
        list->before[i + 1] = list->before[i] + at.block_windows;
    }
    list->epoch = epoch;
    return list;
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
    struct dt_philox rng =
        dt_philox_init(order->config.seed, (uint32_t)at->epoch, (uint64_t)at->block + 1);
    dt_philox_shuffle(&rng, inside->windows, at->block_windows);
    inside->block = at->block;
    inside->epoch = at->epoch;
    return DT_OK;
}

// Numbers the blocks and assigns each source its range.
static dt_status number_blocks(struct dt_order *order)
{
    const struct dt_dataset *dataset = order->config.dataset;
    int64_t n_shards = dataset->n_shards;
    DT_TRY(DT_NEW(&order->first, n_shards + 1, "the order of %" PRId64 " shards", n_shards));
    for (int64_t i = 0; i < n_shards; i++)
        order->first[i + 1] =
            order->first[i] + dt_ceil_div(dataset->shards[i].windows, order->config.block);
    if (order->first[n_shards] > UINT32_MAX)
        return DT_FAIL(DT_USER, "raise data.block or data.seq_len",
                       "the order has %" PRId64 " blocks, more than 2^32", order->first[n_shards]);
    for (int i = 0; i < order->n_sources; i++) {
        bool all = order->n_sources == 1;
        struct source *source = &order->sources[i];
        int64_t shard = all ? 0 : dataset->sources[i].first_shard;
        int64_t end = all ? n_shards : shard + dataset->sources[i].n_shards;
        source->windows = all ? dataset->windows : dataset->sources[i].windows;
        source->steps = order->config.sequential ? dt_ceil_div(source->windows, order->config.batch)
                                                 : source->windows / order->config.batch;
        source->first_block = order->first[shard];
        source->n_blocks = order->first[end] - order->first[shard];
    }
    return DT_OK;
}

static dt_status allocate(struct dt_order *order)
{
    int64_t batch = order->config.batch;
    DT_TRY(DT_NEW(&order->sources, order->n_sources, "the sources of the data order"));
    DT_TRY(number_blocks(order));
    for (int i = 0; i < order->n_sources; i++)
        for (int k = 0; k < order->epochs_kept; k++) {
            struct list *list = &order->sources[i].lists[k];
            int64_t n = order->sources[i].n_blocks;
            list->epoch = -1;
            DT_TRY(DT_NEW_HINT(&list->blocks, n, "raise data.block",
                               "the order of %" PRId64 " blocks", n));
            if (order->config.block > 1)
                DT_TRY(DT_NEW_HINT(&list->before, n + 1, "raise data.block",
                                   "the order of %" PRId64 " blocks", n));
        }
    if (order->config.shuffle)
        DT_TRY(DT_NEW_HINT(&order->slot, order->n_sources * batch, "lower data.batch",
                           "%" PRId64 " sequences of a batch", batch));
    for (int64_t i = 0; order->slot && i < order->n_sources * batch; i++)
        order->slot[i].block = -1;
    const struct dt_mixture *mixture = &order->config.dataset->mixture;
    return order->n_sources > 1 && !order->config.sequential
               ? dt_mixer_create(mixture, order->config.seed, batch, &order->mixer)
               : DT_OK;
}

dt_status dt_order_create(const struct dt_order_config *config, struct dt_order **order)
{
    const struct dt_dataset *dataset = config->dataset;
    int64_t windows = dataset->windows, batch = config->batch;
    struct dt_order *o;
    *order = NULL;
    if (batch < 1 || config->block < 1)
        return DT_FAIL(DT_USER, "give numbers above 0",
                       "data.batch is %" PRId64 ", data.block is %" PRId64, batch, config->block);
    if (windows < (config->sequential ? 1 : batch))
        return DT_FAIL(DT_USER, "use more data, a shorter data.seq_len or a smaller data.batch",
                       "the shards (%s%s) hold %" PRId64 " windows of data.seq_len = %" PRId64
                       " in %" PRId64 " tokens; a batch needs %" PRId64,
                       dataset->shards[0].path, dataset->n_shards > 1 ? " …" : "", windows,
                       dataset->rules.seq_len, dataset->tokens, config->sequential ? 1 : batch);
    DT_TRY(DT_NEW(&o, 1, "the data order"));
    o->config = *config;
    o->config.shuffle = config->shuffle && !config->sequential;
    o->n_sources = config->sequential ? dataset->n_sources : dataset->mixture.n;
    o->n_sources = o->n_sources > 1 ? o->n_sources : 1;
    o->epochs_kept = o->n_sources > 1 && o->config.shuffle ? EPOCHS_KEPT : 1;
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
    for (int64_t i = 0; order->slot && i < order->n_sources * order->config.batch; i++)
        free(order->slot[i].windows);
    for (int i = 0; order->sources && i < order->n_sources; i++)
        for (int k = 0; k < EPOCHS_KEPT; k++) {
            free(order->sources[i].lists[k].blocks);
            free(order->sources[i].lists[k].before);
        }
    dt_mixer_free(order->mixer);
    free(order->slot);
    free(order->sources);
    free(order->first);
    free(order);
}

int64_t dt_order_steps_per_epoch(const struct dt_order *order)
{
    const struct dt_dataset *dataset = order->config.dataset;
    int64_t steps = 0;
    if (order->mixer)
        return dt_mixture_epoch_steps(dataset->sources, dataset->n_sources, order->config.batch);
    for (int i = 0; i < order->n_sources; i++)
        steps += order->sources[i].steps;
    return steps;
}

// Finds what a slot trains in its source's list; position->window -1: nothing.
static void find_place(const struct dt_order *order, int64_t step, int64_t slot,
                       struct dt_position *position)
{
    const struct dt_order_config *config = &order->config;
    int64_t n = step;
    int number = 0;
    if (order->mixer)
        number = dt_mixer_at(order->mixer, step, slot, &n);
    while (config->sequential && number < order->n_sources - 1 && n >= order->sources[number].steps)
        n -= order->sources[number++].steps;
    const struct source *source = &order->sources[number];
    *position = (struct dt_position){.source = number};
    if (config->sequential && !config->parts)
        position->list = n * config->batch + slot;
    else if (config->sequential)
        position->list = slot * source->steps + n;
    else {
        position->epoch = n / source->steps;
        position->list = slot * source->steps + n % source->steps;
    }
    if (position->list >= source->windows)
        *position = (struct dt_position){.window = -1};
}

dt_status dt_order_at(struct dt_order *order, int64_t step, int64_t slot,
                      struct dt_position *position)
{
    find_place(order, step, slot, position);
    if (position->window < 0)
        return DT_OK;
    const struct list *list = list_of(order, position->source, position->epoch);
    int64_t i = position->list, inside = 0;
    if (list->before) {
        i = find_last(list->before, order->sources[position->source].n_blocks, position->list);
        inside = position->list - list->before[i];
    }
    locate_block(order, list->blocks[i], position);
    if (order->slot) {
        struct inside *kept = &order->slot[position->source * order->config.batch + slot];
        DT_TRY(permute_inside(order, kept, position));
        inside = kept->windows[inside];
    }
    position->window = position->block_first + inside;
    return DT_OK;
}

// Which window is trained when: a pure function of the shards, seed, batch, block, shuffle and
// mixture. Windows of all shards are numbered in file order; blocks of `block` consecutive windows
// never cross a shard, and are numbered through all sources.
//
// Each source has a list of its windows. With `shuffle`, dt_philox_shuffle permutes the blocks of
// the list in epoch e of source i, from Philox stream (seed, e, i * 2^40), and the windows inside
// block b, from (seed, e, b + 1); otherwise the list is in file order. A list of W windows has S =
// floor(W / batch) steps. If slot k has read n windows of the source before, it trains list
// position k * S + n mod S, in epoch floor(n / S). With a single source n is the step; mixture.h
// says what n is in a mixture.
//
// A sequential order (validation) is one pass in file order, source after source, each in S =
// ceil(W / batch) steps: at step s of a source slot k reads list position s * batch + k or, with
// `parts`, k * S + s, and nothing after the last window.
#pragma once

#include "data/dataset.h"

struct dt_order_config {
    const struct dt_dataset *dataset; // borrowed, with its mixture
    uint64_t seed;
    int64_t batch, block;
    bool shuffle;
    bool sequential; // ignores shuffle and mixture; may have fewer windows than `batch`
    bool parts;      // sequential: each slot walks its own part of the list, as in training
};

struct dt_order;

struct dt_position {
    int64_t epoch; // of the source
    int64_t list;  // position in the epoch's list
    int64_t block; // number of the block in file order
    int64_t shard;
    int64_t window; // in the shard; -1, and all other fields 0: after the end of a sequential pass
    int64_t block_first, block_windows; // windows of the shard in the block
    int source;
};

// DT_USER if there are no windows or fewer than `batch`, batch or block < 1, or 2^32 blocks.
// Memory: 12 bytes per block, 4 if blocks have one window (twice that for a mixture, whose slots
// may be in two epochs), and 4 per window of the slots' current blocks.
dt_status dt_order_create(const struct dt_order_config *config, struct dt_order **order);
void dt_order_free(struct dt_order *order); // NULL is fine
// Steps of one pass over all windows; for a mixture dt_mixture_epoch_steps.
int64_t dt_order_steps_per_epoch(const struct dt_order *order);
// The window of slot `slot` in [0, batch) at step `step` (from 0). Not thread-safe, because it
// caches the epoch's permutation.
dt_status dt_order_at(struct dt_order *order, int64_t step, int64_t slot,
                      struct dt_position *position);

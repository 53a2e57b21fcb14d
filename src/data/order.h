// The order says which window is trained when, as a pure function of the shards, seed, batch,
// block, shuffle and mixture. Windows of all shards are numbered in file order; blocks of `block`
// consecutive windows never cross a shard (a segment), and are numbered through all sources.
// Shuffled, epoch e of source i: the list of its blocks is permuted by dt_philox_shuffle from
// Philox stream (seed, e, i * 2^40), the windows inside block b by (seed, e, b + 1). The permuted
// list has W windows and S = floor(W / batch) steps; where slot k has read n windows of the source
// before, it trains list position k * S + n mod S, in epoch floor(n / S). Of a single source n is
// the step, of a mixture what mixture.h gives. Unshuffled: the list is in file order. Sequential
// (validation): one pass in file order, source after source, each in S = ceil(W / batch) steps of
// its own; slot k of a source's step s is list position s * batch + k or, with `parts`, k * S + s;
// after its last window there is nothing.
#pragma once

#include "data/dataset.h"

struct dt_order_config {
    const struct dt_dataset *dataset; // borrowed; its mixture, too
    uint64_t seed;
    int64_t batch, block;
    bool shuffle;
    bool sequential; // ignores shuffle and the mixture; fewer windows than `batch` are fine
    bool parts;      // sequential: each slot walks its own part of the list, as in training
};

struct dt_order;

struct dt_position {
    int64_t epoch; // of the source
    int64_t list;  // position in the epoch's list
    int64_t block; // number of the block in file order
    int64_t shard;
    int64_t window; // in the shard; -1: after the end of a sequential pass, all else is then 0
    int64_t block_first, block_windows; // the block: the shard's windows [first, first + windows)
    int source;
};

// DT_USER if there are fewer windows than `batch`, none at all, batch or block < 1, or 2^32 blocks.
// Needs 12 bytes per block, 4 where blocks have one window (of a mixture twice that: its slots may
// be in two epochs), and 4 for each window of the blocks that the slots are in.
dt_status dt_order_create(const struct dt_order_config *config, struct dt_order **order);
void dt_order_free(struct dt_order *order); // NULL is fine
// The steps of one pass over all windows. A mixture's pass has as many windows as its sources have
// together, or as their `epochs` ask for.
int64_t dt_order_steps_per_epoch(const struct dt_order *order);
// Gives the window of slot `slot` in [0, batch) at step `step` (from 0). Not thread-safe: keeps the
// epoch's permutation.
dt_status dt_order_at(struct dt_order *order, int64_t step, int64_t slot,
                      struct dt_position *position);

// The loader of one rank: a reader thread fills a ring of `prefetch` host batches with the rank's
// slots of each step, in order. Its whole state is the step number. The thread never ends the
// process: its error travels through the ring to dt_loader_next.
#pragma once

#include "data/batch.h"
#include "data/dataset.h"
#include "data/order.h"

struct dt_loader;

struct dt_loader_config {
    const struct dt_dataset *dataset; // borrowed
    uint64_t seed;
    int64_t batch, block; // global batch; order block
    bool shuffle;
    int rank, size;      // slots [rank * batch / size, (rank + 1) * batch / size)
    int64_t vocab_size;  // tokens at or above are DT_USER errors: shard, offset, token, vocabulary
    int64_t prefetch;    // host batches in the ring, >= 1
    int64_t reset_token; // -1: none. Documents start where /doc_starts says, else here; and at the
                         // start of a segment and of each row of pairs
    bool reset_after;    // … behind the token instead of at it
    bool verify;         // check /tokens_xxh64 of the blocks read
    bool sequential;     // validation: file order, every window once, last batch padded with
                         // ignored labels; ends after ceil(windows / batch) steps
    // Host memory of the ring (pinned by a GPU backend), aligned to 64 bytes. NULL: malloc.
    dt_status (*alloc_host)(void *context, int64_t bytes, void **memory);
    void (*free_host)(void *context, void *memory);
    void *context;
};

// Starts the thread at `first_step` (from 0).
dt_status dt_loader_open(const struct dt_loader_config *config, int64_t first_step,
                         struct dt_loader **loader);
void dt_loader_close(struct dt_loader *loader); // NULL is fine; also in mid-read
// The next step's batch; valid until the next call. *wait_ms (may be NULL): how long the caller
// waited. Past the last step of a sequential loader *batch is NULL. An error comes behind the
// batches that were whole before it, and stays.
dt_status dt_loader_next(struct dt_loader *loader, const struct dt_batch **batch, double *wait_ms);
// Steps of one pass: an epoch's, or of the sequential pass.
int64_t dt_loader_steps_per_epoch(const struct dt_loader *loader);
// Bytes of host memory the ring and the slots' blocks take, for the memory plan.
int64_t dt_loader_bytes(const struct dt_loader_config *config);

// The loader of one rank: a thread reads the rank's slots of each step into a ring of `prefetch`
// host batches, in order. Its whole state is the step number.
//
// Who may touch a batch when: the caller owns the batch that dt_loader_next returned last, until
// its next call; the thread owns all others. So wait for an asynchronous copy of a batch before
// that call (train/input.h). The thread never ends the process; dt_loader_next returns its error.
#pragma once

#include "data/batch.h"
#include "data/reader.h"
#include "data/skips.h"

struct dt_loader;
struct dt_shard_cache;

struct dt_loader_config {
    const struct dt_dataset *dataset; // borrowed
    struct dt_shard_cache *shards;    // of the dataset, borrowed; NULL: the loader opens its own
    struct dt_read_rules rules;       // its seed also fixes the order
    int64_t batch, block;             // global batch; order block
    bool shuffle;
    int rank, size;        // slots [rank * batch / size, (rank + 1) * batch / size)
    int64_t run;           // not 0: ranks take turns instead, this many slots at a time
    int64_t prefetch;      // host batches in the ring, >= 1
    bool sequential;       // validation: file order, every window once, the last batch padded with
                           // ignored rows; ends after ceil(windows / batch) steps
    bool parts;            // sequential: each slot walks its own part of the list (order.h)
    struct dt_skips skips; // batches to leave out; not if sequential
    // Host memory of the ring (pinned by a GPU backend), aligned to 64 bytes. NULL: malloc.
    dt_status (*alloc_host)(void *context, int64_t bytes, void **memory);
    void (*free_host)(void *context, void *memory);
    void *context;
};

// Starts the thread at `first_step` (from 0).
dt_status dt_loader_open(const struct dt_loader_config *config, int64_t first_step,
                         struct dt_loader **loader);
void dt_loader_close(struct dt_loader *loader); // NULL is fine; any time
// Returns the next step's batch, valid until the next call. *wait_ms (may be NULL): how long the
// caller waited. After the last step of a sequential loader *batch is NULL. An error is returned
// after the batches before it, and again by every later call.
dt_status dt_loader_next(struct dt_loader *loader, const struct dt_batch **batch, double *wait_ms);
// The slot of a row of this rank's batches.
int64_t dt_loader_slot(const struct dt_loader_config *config, int64_t row);
// Bytes of host memory for the ring and the slots' blocks, for the memory plan.
int64_t dt_loader_bytes(const struct dt_loader_config *config);
// The arrays that the batches have.
void dt_loader_arrays(const struct dt_loader_config *config, struct dt_array_list *arrays);

// A host snapshot of weights and optimizer states. Checkpoints are written from it and read into
// it. Rank 0 has room for everything; the other ranks for a piece, through which rank 0's arrays
// are copied to their devices. If states are spread over ranks, each rank has room for its own
// pieces; so too for weights that are spread as the state "weights". The snapshot is allocated
// once, pinned, before the first step and counted in the memory plan; using it allocates nothing. A
// device with its own memory fills it on a stream while training continues; with unified memory all
// threads fill it before training continues.
#pragma once

#include "checkpoint/checkpoint.h"
#include "comm/comm.h"

struct dt_snapshot {
    const struct dt_backend *backend; // borrowed; NULL: not created
    struct dt_model *model;           // borrowed
    int n;                            // arrays: weights, then each state
    struct dt_snapshot_array {
        float *device, *host; // host NULL: not on this rank
        int64_t elements;
    } arrays[1 + DT_OPTIMIZER_STATES];
    bool spread;                      // states are spread over ranks
    struct dt_checkpoint_arrays host; // NULL for arrays that are not on this rank
    float *memory;                    // of these arrays, pinned
    float *piece; // [DT_SNAPSHOT_PIECE] at most, pinned; NULL: unified memory and whole weights
    struct dt_stream *stream; // for the copies
    struct dt_event *filled;  // recorded at the end of the last fill
};

enum { DT_SNAPSHOT_PIECE = 4 << 20 }; // elements: 16 MiB

// Bytes of host memory that create allocates, for the memory plan. held: elements of this rank's
// pieces; states: elements of all its states, 0: only weights.
int64_t dt_snapshot_bytes(const struct dt_backend *backend, const struct dt_params *params,
                          int64_t held, int64_t states, bool root);
// `states` are on the device. NULL makes a snapshot of weights only, which cannot be filled and,
// with unified memory, is the device's own array. Destroy it even if create fails.
dt_status dt_snapshot_create(const struct dt_backend *backend, struct dt_model *model,
                             const struct dt_optimizer_states *states, bool root,
                             struct dt_snapshot *snapshot);
void dt_snapshot_destroy(struct dt_snapshot *snapshot); // zeros are fine
// Begins to copy the device's arrays to the snapshot. Weights and states must not change until
// snapshot->filled.
dt_status dt_snapshot_fill(struct dt_snapshot *snapshot);
// Waits for the last fill. Thread-safe.
dt_status dt_snapshot_wait(const struct dt_snapshot *snapshot);
// Copies rank 0's snapshot to the devices of all ranks, including the model's bf16 copies.
// Collective; comm NULL: single process. States that are spread stay on their ranks.
dt_status dt_snapshot_share(struct dt_snapshot *snapshot, struct dt_comm *comm);
dt_status dt_snapshot_share_weights(struct dt_snapshot *snapshot, struct dt_comm *comm);

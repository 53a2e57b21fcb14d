// The host's snapshot of what training changes: weights and optimizer states. Rank 0 has room for
// all of it, which checkpoints are written from and read into; the other ranks for a piece, through
// which rank 0's arrays come to their devices. Where the states are spread over ranks, each has
// room for its own; so it is with the weights, where they are the state "weights" and the model has
// none that are whole. Allocated once, pinned, before the first step, and counted by the memory
// plan: using it allocates nothing. On a device with memory of its own it is filled by a stream
// beside the training; where memory is unified, by all threads, before training continues.
#pragma once

#include "checkpoint/checkpoint.h"
#include "comm/comm.h"

struct dt_snapshot {
    const struct dt_backend *backend; // borrowed; NULL: not created
    struct dt_model *model;           // borrowed
    int n;                            // arrays: the weights, then each state
    struct dt_snapshot_array {
        float *device, *host; // host NULL: this rank has no room for it
        int64_t elements;
    } arrays[1 + DT_OPTIMIZER_STATES];
    bool spread;                      // the states are, over ranks
    struct dt_checkpoint_arrays host; // without the arrays that this rank has no room for
    float *memory;                    // of those, pinned
    float *piece; // [DT_SNAPSHOT_PIECE] at most, pinned; NULL where unified and weights are whole
    struct dt_stream *stream; // of the copies
    struct dt_event *filled;  // the last fill is complete
};

enum { DT_SNAPSHOT_PIECE = 4 << 20 }; // elements: 16 MiB

// Bytes of host memory that create allocates, for the memory plan. held: the elements of this
// rank's pieces; states: those of all its states together, 0: of weights alone.
int64_t dt_snapshot_bytes(const struct dt_backend *backend, const struct dt_params *params,
                          int64_t held, int64_t states, bool root);
// `states`: on the device; NULL for a snapshot of weights alone, which cannot be filled, and is the
// device's own array where memory is unified. Where it fails, destroy it all the same.
dt_status dt_snapshot_create(const struct dt_backend *backend, struct dt_model *model,
                             const struct dt_optimizer_states *states, bool root,
                             struct dt_snapshot *snapshot);
void dt_snapshot_destroy(struct dt_snapshot *snapshot); // fine where it was not created
// Begins to copy what the device holds now into the arrays. Until snapshot->filled weights and
// states must not change.
dt_status dt_snapshot_fill(struct dt_snapshot *snapshot);
// Waits for the last fill; any thread may.
dt_status dt_snapshot_wait(const struct dt_snapshot *snapshot);
// Copies rank 0's snapshot to the devices of all ranks, the model's bf16 copies included. All ranks
// call it together; comm NULL: this process is alone. States that are spread stay on their ranks.
dt_status dt_snapshot_share(struct dt_snapshot *snapshot, struct dt_comm *comm);
dt_status dt_snapshot_share_weights(struct dt_snapshot *snapshot, struct dt_comm *comm);

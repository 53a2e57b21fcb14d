// The host's snapshot of what training changes: weights and optimizer states. Rank 0 has room for
// all of it, which checkpoints are written from and read into; the other ranks for a piece, through
// which rank 0's arrays come to their devices. Allocated once, pinned, before the first step, and
// counted by the memory plan: using it allocates nothing. Where memory is unified it is the
// device's own arrays and costs nothing.
#pragma once

#include "checkpoint/checkpoint.h"
#include "comm/comm.h"

struct dt_snapshot {
    const struct dt_backend *backend;  // borrowed; NULL: not created
    struct dt_model *model;            // borrowed
    struct dt_optimizer_states device; // those of the optimizer
    struct dt_checkpoint_arrays host;  // on rank 0 (or unified), else without arrays
    float *memory;                     // pinned; NULL where unified
};

// Bytes of host memory that create allocates, for the memory plan.
int64_t dt_snapshot_bytes(const struct dt_backend *backend, const struct dt_params *params,
                          int n_states, bool root);
// `states`: on the device; NULL for a snapshot of weights alone.
dt_status dt_snapshot_create(const struct dt_backend *backend, struct dt_model *model,
                             const struct dt_optimizer_states *states, bool root,
                             struct dt_snapshot *snapshot);
void dt_snapshot_destroy(struct dt_snapshot *snapshot); // fine where it was not created
// Rank 0: what the device holds now.
dt_status dt_snapshot_fill(struct dt_snapshot *snapshot);
// Rank 0's snapshot to the devices of all ranks, the model's bf16 copies included; all ranks
// together, or comm NULL: this process alone.
dt_status dt_snapshot_share(struct dt_snapshot *snapshot, struct dt_comm *comm);
dt_status dt_snapshot_share_weights(struct dt_snapshot *snapshot, struct dt_comm *comm);
// xxh64 of the weights on this rank's device, any rank; rank 0's snapshot of them is overwritten.
dt_status dt_snapshot_hash_weights(struct dt_snapshot *snapshot, uint64_t *hash);

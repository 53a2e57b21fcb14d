// Saves checkpoints while training continues. The training thread fills the snapshot and begins a
// save; on each rank that has a part, a thread writes, syncs and hashes it. The vote at every
// training step tells the ranks when all parts are complete or one failed. Then rank 0's thread
// publishes the checkpoint and removes old ones. A failure before that leaves existing checkpoints
// unchanged.
#pragma once

#include "checkpoint/snapshot.h"

struct dt_saved {
    int64_t step;
    const char *path;
    double stall_ms; // training waited
    double write_ms; // from the snapshot until it was published
};

struct dt_saver_config {
    struct dt_comm *comm;               // borrowed, like all pointers here
    const struct dt_snapshot *snapshot; // the data to save
    const struct dt_dataset *train;
    const char *dir;                // folder of the checkpoints
    int64_t keep;                   // see dt_checkpoint_prune
    bool best;                      // the checkpoint of state.best_step is kept and linked
    double timeout_s;               // a write without progress for this long ends the job
    struct dt_trainer_state *state; // state after the last collected step
    // Called on rank 0's writing thread, before and after a checkpoint is published.
    dt_status (*sync)(void *context);
    dt_status (*published)(void *context, int64_t step);
    // Called on rank 0's training thread, at the next vote.
    dt_status (*log)(void *context, const struct dt_saved *saved);
    // Called on every rank's training thread after a failed save has reset the best in `state`.
    void (*reset)(void *context);
    void *context;
};

// A rank's report to the others, summed over all ranks.
struct dt_save_votes {
    double writing, failed;
};

enum dt_patience {
    DT_WAIT_BRIEFLY, // but not for a write that has already taken longer
    DT_WAIT,
    DT_WAIT_AND_FAIL, // a failed save is an error, not a warning
};

struct dt_saver;
// Collective.
dt_status dt_saver_create(const struct dt_saver_config *config, struct dt_saver **saver);
// Collective, after success or an error that all ranks have, which is kept: completes a running
// save. NULL is fine.
void dt_saver_destroy(struct dt_saver *saver);
bool dt_saver_is_free(const struct dt_saver *saver);
// Whether a failed save should be retried, or no save has begun for this many seconds (0: any
// time).
bool dt_saver_is_overdue(const struct dt_saver *saver, double seconds);
// Begins to save the state and the filled snapshot. The saver must be free. start: dt_seconds when
// training began to wait.
dt_status dt_saver_begin(struct dt_saver *saver, double start);
// This rank's votes. Ends the job if a write hangs.
struct dt_save_votes dt_saver_vote(struct dt_saver *saver);
// Collective, with the sum of all votes.
dt_status dt_saver_advance(struct dt_saver *saver, const struct dt_save_votes *sum);
// Collective: votes until the saver is free.
dt_status dt_saver_settle(struct dt_saver *saver, enum dt_patience patience);

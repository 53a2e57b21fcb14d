// Saves checkpoints while training continues. The training thread fills the snapshot and begins a
// save; a thread of each rank that writes a part writes, syncs and hashes it. In the vote that
// training takes at every step the ranks learn that all parts are complete, or that one failed.
// Then rank 0's thread publishes the checkpoint and removes old ones. Whatever fails before leaves
// the checkpoints that are there as they are.
#pragma once

#include "checkpoint/snapshot.h"

struct dt_saved {
    int64_t step;
    const char *path;
    double stall_ms; // training waited
    double write_ms; // from the snapshot until it was published
};

struct dt_saver_config {
    struct dt_comm *comm;               // borrowed, as are the others
    const struct dt_snapshot *snapshot; // what is saved
    const struct dt_dataset *train;
    const char *dir;                // of the checkpoints
    int64_t keep;                   // as dt_checkpoint_prune has it
    bool best;                      // the checkpoint of state.best_step is kept and linked
    double timeout_s;               // a write that reports no progress for so long ends the job
    struct dt_trainer_state *state; // of the training, after the step collected last
    // Called on rank 0's writing thread, before a checkpoint is published and after.
    dt_status (*sync)(void *context);
    dt_status (*published)(void *context, int64_t step);
    // On rank 0's training thread, at the vote after that.
    dt_status (*log)(void *context, const struct dt_saved *saved);
    void *context;
};

// A rank's report to the others, to be summed over all.
struct dt_save_votes {
    double writing, failed;
};

enum dt_patience {
    DT_WAIT_BRIEFLY, // not for a write that has already taken more than a moment
    DT_WAIT,
    DT_WAIT_AND_FAIL, // a failed save is an error, not a warning
};

struct dt_saver;
// All ranks call it together.
dt_status dt_saver_create(const struct dt_saver_config *config, struct dt_saver **saver);
// All ranks together, after success or an error that all share, which stays: completes a save that
// is under way. NULL is fine.
void dt_saver_destroy(struct dt_saver *saver);
bool dt_saver_is_free(const struct dt_saver *saver);
// Whether a failed save should be tried again, or none has begun for this many seconds (0: any
// time).
bool dt_saver_is_overdue(const struct dt_saver *saver, double seconds);
// Begins to save the state and what the snapshot was filled with. The saver must be free.
// start: dt_seconds when training began to wait for this.
dt_status dt_saver_begin(struct dt_saver *saver, double start);
// This rank's votes. A write that hangs ends the job here.
struct dt_save_votes dt_saver_vote(struct dt_saver *saver);
// All ranks together, with the sum of their votes.
dt_status dt_saver_advance(struct dt_saver *saver, const struct dt_save_votes *sum);
// All ranks call it together; it votes until the saver is free.
dt_status dt_saver_settle(struct dt_saver *saver, enum dt_patience patience);

// A run in training. Private to start.c, which builds it, train.c, which steps it, and rollback.c,
// which returns it to a checkpoint.
#pragma once

#include "checkpoint/saver.h"
#include "train/metrics.h"
#include "train/profile.h"
#include "train/replicas.h"
#include "train/schedule.h"
#include "train/spikes.h"
#include "train/step.h"

struct trainer {
    struct dt_job *job;
    bool root;
    struct dt_model *model;
    struct dt_stepper *stepper;
    struct dt_profile profile;
    struct dt_snapshot snapshot;
    struct dt_loader *loader;
    struct dt_metrics *metrics; // only root
    struct dt_mixer *mixer;     // NULL: one source
    struct dt_loss_part *slots; // [data.batch], for a mixture
    struct dt_lr_schedule schedule;
    struct dt_replicas replicas;   // with comm.verify_replicas
    struct dt_skips left_out;      // state.left_out
    struct dt_trainer_state state; // after the last collected step
    struct dt_saver *saver;
    char checkpoints[DT_PATH]; // folder where they are saved
    bool save_owed;            // a save became due during another save, or after a bad step
    bool config_changes;       // root: config.resolved.ini is written with the first step
};

static inline bool dt_trainer_is_out_of_patience(const struct trainer *t)
{
    int64_t patience = t->job->settings.run.patience;
    return patience > 0 && t->state.evaluations_since_best >= patience;
}

// Expects a `t` with only job and root set. Creates the model, the stepper, the weights, the run's
// files and the loader; `t` is then ready for step t->state.step + 1. Destroy the fields of `t`
// even on failure.
dt_status dt_trainer_start(struct trainer *t);

// Rank 0 reads job->resume and sends it to all ranks.
dt_status dt_trainer_resume(struct trainer *t);
// Open what the steps after t->state.step need. It must be closed before.
dt_status dt_trainer_open_sinks(struct trainer *t);
dt_status dt_trainer_open_loader(struct trainer *t);

// Begins to save the state after the last step, with no step in flight. `waits`: waits for the
// save, which must succeed.
dt_status dt_trainer_save(struct trainer *t, bool waits);

// Saves before the first step with optim.rollback, so that a run can return to its start.
dt_status dt_trainer_save_start(struct trainer *t);
bool dt_trainer_must_roll_back(const struct trainer *t);
// Call after optim.rollback bad steps in a row: continues from the checkpoint before them with the
// batches after theirs. The checkpoint is saved again with a record of this, so that a resumed run
// does the same.
dt_status dt_trainer_roll_back(struct trainer *t);

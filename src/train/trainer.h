// A run in training, as its three files share it: start.c builds it, train.c steps it, and
// rollback.c returns it to a checkpoint. Private to them.
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
    struct dt_metrics *metrics; // root only
    struct dt_mixer *mixer;     // NULL: one source
    struct dt_loss_part *slots; // [data.batch] of a mixture
    struct dt_lr_schedule schedule;
    struct dt_replicas replicas;   // with comm.verify_replicas
    struct dt_skips left_out;      // state.left_out
    struct dt_trainer_state state; // after the last step that was collected
    struct dt_saver *saver;
    char checkpoints[DT_PATH]; // where it saves them
    bool save_owed;      // one became due while another was being written, or after a bad step
    bool config_changes; // root: config.resolved.ini is written with the first step
};

static inline bool dt_trainer_is_out_of_patience(const struct trainer *t)
{
    int64_t patience = t->job->settings.run.patience;
    return patience > 0 && t->state.evaluations_since_best >= patience;
}

// Starts with a `t` that holds job and root alone. Makes the model, the step, the weights, the
// run's files and the loader; `t` is then ready for step t->state.step + 1. Where it fails, what
// `t` holds is to be destroyed all the same.
dt_status dt_trainer_start(struct trainer *t);

// Rank 0 reads job->resume and sends it to all.
dt_status dt_trainer_resume(struct trainer *t);
// These open what the steps after t->state.step need; all of it is closed before.
dt_status dt_trainer_open_sinks(struct trainer *t);
dt_status dt_trainer_open_loader(struct trainer *t);

// Begins to save the state after the last step, with none in flight; `waits`: until it is saved,
// which must succeed.
dt_status dt_trainer_save(struct trainer *t, bool waits);

// Before the first step: with optim.rollback a run can return to where it started.
dt_status dt_trainer_save_start(struct trainer *t);
bool dt_trainer_must_roll_back(const struct trainer *t);
// After optim.rollback bad steps in a row: continues from the checkpoint before them with the
// batches that follow theirs. The checkpoint is saved again with a record of that, so that a
// resumed run agrees.
dt_status dt_trainer_roll_back(struct trainer *t);

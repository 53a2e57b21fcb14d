// trainer.json: the training state and fingerprints of the shards. Private to src/checkpoint.
#pragma once

#include "base/problems.h"
#include "checkpoint/checkpoint.h"

dt_status dt_trainer_text(const struct dt_trainer_state *state, const struct dt_dataset *train,
                          char **text); // malloc
// The stamp for the optimizer files. It identifies the run by seed, sizes, updates and the losses
// so far, so it is equal on all ranks and in bitwise identical runs.
struct dt_part_stamp dt_trainer_stamp(const struct dt_trainer_state *state);
// Fills only the fields of shards that dt_trainer_compare needs. Free with dt_dataset_free.
dt_status dt_trainer_read(const char *path, struct dt_trainer_state *state,
                          struct dt_dataset **train);
// Adds each key of the data order that differs, and each shard that differs.
void dt_trainer_compare(struct dt_problems *problems, const struct dt_trainer_state *now,
                        const struct dt_dataset *train_now, const struct dt_trainer_state *saved,
                        const struct dt_dataset *train_saved);

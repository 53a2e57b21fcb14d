// trainer.json: the state of training and fingerprints of the shards. Private to the checkpoint
// room.
#pragma once

#include "base/problems.h"
#include "checkpoint/checkpoint.h"

dt_status dt_trainer_text(const struct dt_trainer_state *state, const struct dt_dataset *train,
                          char **text); // malloc
// The stamp of the optimizer files beside it. The run is known by what it did: seed, sizes and
// updates, and the losses so far. It has the same bits on all ranks, and in runs that train the
// same bits.
struct dt_part_stamp dt_trainer_stamp(const struct dt_trainer_state *state);
// The shards are filled with what dt_trainer_compare needs, no more. Free with
// dt_dataset_free.
dt_status dt_trainer_read(const char *path, struct dt_trainer_state *state,
                          struct dt_dataset **train);
// Adds each key that fixes the order and differs, and each shard that does.
void dt_trainer_compare(struct dt_problems *problems, const struct dt_trainer_state *now,
                        const struct dt_dataset *train_now, const struct dt_trainer_state *saved,
                        const struct dt_dataset *train_saved);

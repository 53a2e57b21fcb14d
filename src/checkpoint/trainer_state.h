// trainer.json: the state of training and what the data looked like. Private to the checkpoint
// room.
#pragma once

#include "base/problems.h"
#include "checkpoint/checkpoint.h"

// A shard as its name (without folders: data may move), size, count, first and last hash.
struct dt_fingerprint {
    char *name;
    int64_t size, count;
    uint64_t first_hash, last_hash;
};

struct dt_fingerprints {
    int64_t n;
    struct dt_fingerprint *shards; // in the order of the dataset
};

dt_status dt_trainer_text(const struct dt_trainer_state *state, const struct dt_dataset *train,
                          char **text); // malloc
dt_status dt_trainer_read(const char *path, struct dt_trainer_state *state,
                          struct dt_fingerprints *shards);
void dt_fingerprints_free(struct dt_fingerprints *shards);
// Adds each field that fixes the order and differs, by its configuration key.
void dt_trainer_compare(struct dt_problems *problems, const struct dt_trainer_state *now,
                        const struct dt_trainer_state *saved);
void dt_fingerprints_compare(struct dt_problems *problems, const struct dt_dataset *now,
                             const struct dt_fingerprints *saved);

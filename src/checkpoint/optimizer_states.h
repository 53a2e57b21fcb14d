// The states of an optimizer: named flat arrays beside the weights ("exp_avg" and "exp_avg_sq" of
// AdamW), and their optimizer files in a checkpoint, with entries "STATE.TENSOR[first:last]". A
// file holds any ranges of any tensors' states; together they must cover every element once.
#pragma once

#include "base/problems.h"
#include "base/span.h"
#include "checkpoint/manifest.h"
#include "model/params.h"

enum { DT_OPTIMIZER_STATES = 8 }; // at most

struct dt_optimizer_state {
    const char *name; // without a dot
    float *data;      // [pieces.elements] fp32
    bool weights;     // other weights of the model, in a file of their own (DT_HF_EMA), not in the
                      // optimizer's
};

struct dt_optimizer_states {
    int n;
    struct dt_optimizer_state list[DT_OPTIMIZER_STATES];
    struct dt_pieces pieces; // of the parameter table's flat arrays: what each of these holds
};

// The array of that name, or NULL.
float *dt_optimizer_state(const struct dt_optimizer_states *states, const char *name);

// For the checkpoint room; arrays are host memory.
// Writes all states as file 1 of 1 and lists it.
dt_status dt_optimizer_states_write(struct dt_manifest *manifest, const char *folder,
                                    const struct dt_params *params,
                                    const struct dt_optimizer_states *states);
// Adds what is wrong with the set of optimizer files listed: none, or not all of one set.
void dt_optimizer_states_check_names(const struct dt_manifest *manifest,
                                     struct dt_problems *problems);
// Reads all states from a folder's files; padding becomes 0.
dt_status dt_optimizer_states_read(const struct dt_manifest *manifest, const char *folder,
                                   const struct dt_params *params,
                                   const struct dt_optimizer_states *states);

// The states of an optimizer: named flat arrays beside the weights ("exp_avg" and "exp_avg_sq" of
// AdamW), and their optimizer files in a checkpoint, with entries "STATE.TENSOR[first:last]". A
// file holds any ranges of any tensors' states; together they must cover every element once.
#pragma once

#include "base/file.h"
#include "base/problems.h"
#include "base/span.h"
#include "checkpoint/manifest.h"
#include "model/params.h"

enum { DT_OPTIMIZER_STATES = 8 }; // at most

struct dt_optimizer_state {
    const char *name; // without a dot
    float *data;      // [elements of its pieces] fp32
    bool weights;     // other weights of the model, in a file of their own (DT_HF_EMA), not in the
                      // optimizer's
    bool squares;     // never negative
    bool vectors;     // of what is no matrix (dt_param.matrix): its pieces are `others`
};

struct dt_optimizer_states {
    int n;
    struct dt_optimizer_state list[DT_OPTIMIZER_STATES];
    struct dt_pieces pieces; // of the parameter table's flat arrays: what each of these holds
    struct dt_pieces others; // those without the matrices
};

// The checkpoint that a file belongs to, in the file's metadata as "step" and "run" (16 hex
// digits).
struct dt_part_stamp {
    int64_t step;
    uint64_t run; // differs between trainings that differ: dt_trainer_stamp
};

const struct dt_pieces *dt_state_pieces(const struct dt_optimizer_states *states, int index);
// others = states->pieces without matrices; the caller frees its spans.
dt_status dt_states_leave_out_matrices(struct dt_optimizer_states *states,
                                       const struct dt_params *params);
// The array of that name, or NULL.
float *dt_optimizer_state(const struct dt_optimizer_states *states, const char *name);

// The functions below are for the checkpoint room; arrays are host memory.
// A set of files PREFIX-00001-of-0000N.safetensors.
#define DT_OPTIMIZER_FILES "optimizer"
#define DT_EMA_FILES       "ema"     // of a draft only …
#define DT_WEIGHTS_FILES   "weights" // … as these
dt_status dt_states_file(char path[DT_PATH], const char *folder, const char *prefix, int part,
                         int parts);
// Writes the pieces that are this rank's to write as file `part` (from 0), and gives its row of the
// manifest.
dt_status dt_optimizer_states_write(const char *folder, const char *prefix, int part, int parts,
                                    const struct dt_params *params,
                                    const struct dt_optimizer_states *states,
                                    const struct dt_part_stamp *stamp,
                                    struct dt_manifest_file *file);
// Adds what is wrong with the set of optimizer files listed: none, or not all of one set.
void dt_optimizer_states_check_names(const struct dt_manifest *manifest,
                                     struct dt_problems *problems);
// How many optimizer files the set listed has; 0 where none is listed.
int dt_optimizer_states_files(const struct dt_manifest *manifest);
// Reads the pieces of all states from a folder's set of n files, which must hold every element
// once; padding becomes 0. Files of another stamp are DT_USER; older ones have none. `stamp` NULL:
// it is not looked at.
dt_status dt_optimizer_states_read(const char *folder, const char *prefix, int n,
                                   const struct dt_params *params,
                                   const struct dt_optimizer_states *states,
                                   const struct dt_part_stamp *stamp);
// compact = the pieces of `whole`.
void dt_pieces_pick(const struct dt_pieces *pieces, const float *whole, float *compact);

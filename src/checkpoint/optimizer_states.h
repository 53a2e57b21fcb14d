// Optimizer states: named flat arrays parallel to the weights (AdamW: "exp_avg" and "exp_avg_sq"),
// and their files in a checkpoint, with entries "STATE.TENSOR[first:last]". A file may have any
// ranges of any tensors' states; together the files must cover every element once.
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
    bool weights;     // a second set of model weights, in their own file (DT_HF_EMA)
    bool squares;     // never negative
    bool vectors;     // only for rows that are no matrix (dt_param.matrix): its pieces are `others`
};

struct dt_optimizer_states {
    int n;
    struct dt_optimizer_state list[DT_OPTIMIZER_STATES];
    struct dt_pieces pieces; // pieces of the parameter table's flat arrays in each state
    struct dt_pieces others; // `pieces` without the matrices
};

// Identifies the checkpoint of a file, in its metadata as "step" and "run" (16 hex digits).
struct dt_part_stamp {
    int64_t step;
    uint64_t run; // differs between different trainings: dt_trainer_stamp
};

const struct dt_pieces *dt_state_pieces(const struct dt_optimizer_states *states, int index);
// others = states->pieces without matrices. Caller frees its spans.
dt_status dt_states_leave_out_matrices(struct dt_optimizer_states *states,
                                       const struct dt_params *params);
// The state with that name, or NULL.
float *dt_optimizer_state(const struct dt_optimizer_states *states, const char *name);

// The functions below are private to src/checkpoint; arrays are in host memory. A set of files is
// PREFIX-00001-of-0000N.safetensors.
#define DT_OPTIMIZER_FILES "optimizer"
#define DT_EMA_FILES       "ema"     // of a draft only …
#define DT_WEIGHTS_FILES   "weights" // … as these
dt_status dt_states_file(char path[DT_PATH], const char *folder, const char *prefix, int part,
                         int parts);
// Writes this rank's pieces as file `part` (from 0), and returns its row of the manifest.
dt_status dt_optimizer_states_write(const char *folder, const char *prefix, int part, int parts,
                                    const struct dt_params *params,
                                    const struct dt_optimizer_states *states,
                                    const struct dt_part_stamp *stamp,
                                    struct dt_manifest_file *file);
// Adds a problem if the manifest lists no optimizer files, or not all files of one set.
void dt_optimizer_states_check_names(const struct dt_manifest *manifest,
                                     struct dt_problems *problems);
// How many optimizer files the manifest lists.
int dt_optimizer_states_files(const struct dt_manifest *manifest);
// Reads the pieces of all states from a folder's set of n files, which must cover every element
// once; padding becomes 0. DT_USER if a file has another stamp (older files have none); `stamp`
// NULL: any.
dt_status dt_optimizer_states_read(const char *folder, const char *prefix, int n,
                                   const struct dt_params *params,
                                   const struct dt_optimizer_states *states,
                                   const struct dt_part_stamp *stamp);
// Copies the pieces of `whole` to `compact`.
void dt_pieces_pick(const struct dt_pieces *pieces, const float *whole, float *compact);

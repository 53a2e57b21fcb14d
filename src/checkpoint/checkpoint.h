// Checkpoints: a folder step-00001000 that is complete and verified, or does not exist.
//   config.json, model.safetensors         a Hugging Face directory (fp32 masters)
//   optimizer-00001-of-00001.safetensors   optimizer states: entries "exp_avg.NAME[first:last]",
//                                          one-dimensional ranges (last exclusive) of a tensor's
//                                          elements, so that any file split resumes on any; a file
//                                          per rank if the states are spread over ranks
//                                          (optim.shard); step and run in the metadata, which must
//                                          agree with trainer.json
//   ema.safetensors                        the moving average of the weights, if the run has one
//   carried.safetensors                    the state carried by slots, if the run carries it
//   trainer.json                           struct dt_trainer_state and fingerprints of the shards
//   tokenizer.json and others              copies of the tokenizer's files (tokenizer.h)
//   MANIFEST                               a line for each file: xxh64 (16 hex digits), size, name
// A checkpoint is written into a temporary folder next to it: every file is fsynced, MANIFEST last,
// then the folder is renamed and its parent fsynced. All arrays are in host memory.
#pragma once

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/optimizer_states.h"
#include "checkpoint/slot_states.h"
#include "checkpoint/tokenizer.h"
#include "data/dataset.h"
#include "data/skips.h"
#include "model/model.h"

#include <stdbool.h>
#include <stdint.h>

// The configuration keys that define the order and the windows of the data. None may change on
// resume.
struct dt_order_keys {
    int64_t seed, batch, seq_len, block, reset_token;
    bool shuffle, reset_after, carry_state, reverse_complement;
    // Keys for frames; otherwise zeros.
    int64_t stride, time_axis;
    double val_fraction;
    char inputs[DT_DATA_TEXT], targets[DT_DATA_TEXT], weights[DT_DATA_TEXT], mask[DT_DATA_TEXT],
        episodes[DT_DATA_TEXT];
    char mixture[DT_MIXTURE_TEXT]; // data/mixture.h; "": one source. Compared by the job.
};
// Rewrites the keys' texts to a canonical form.
void dt_order_tidy(struct dt_order_keys *order);

// Statistics of the losses so far (train/spikes.h).
struct dt_loss_statistics {
    double mean, variance;
    int64_t count;
};

// The state of training besides weights and optimizer states; stored as trainer.json.
struct dt_trainer_state {
    int64_t step;    // optimizer steps done, applied or skipped
    int64_t updates; // applied steps
    int64_t skips;   // skipped steps
    int64_t skipped_in_a_row;
    int64_t tokens; // trained so far
    struct dt_order_keys order;
    // The validation with the lowest loss so far; step 0: none.
    int64_t best_step;
    double best_loss;
    int64_t evaluations_since_best;
    int64_t evaluations; // validations by this process; not in trainer.json
    struct dt_loss_statistics losses;
    int64_t bad_in_a_row;         // steps that were skipped or spiked
    int64_t rollbacks;            // so far (optim.rollback)
    char left_out[DT_SKIPS_TEXT]; // batches that they left out: dt_skips_text
    // enum dt_dtype, or -1: unknown. A resumed run keeps it unless run.precision says otherwise.
    int storage;
    // Rank 0's device. A run that resumes on another one does not continue bitwise identically.
    char device[DT_CONFIG_STRING_MAX]; // "": unknown
};

struct dt_checkpoint_arrays {
    const struct dt_model_config *model;
    const struct dt_params *params;
    float *weights; // flat, in host memory like the states. Read by save, unless there is a state
                    // "weights"; written by load; NULL on ranks other than 0
    struct dt_optimizer_states states;
    const struct dt_slot_states *slots;   // NULL: nothing is carried
    const struct dt_tokenizer *tokenizer; // written by save; may be NULL
};

// An unfinished checkpoint: ranks write their parts into one hidden folder concurrently; when all
// are complete, rank 0 renames it.
struct dt_checkpoint_draft {
    char path[DT_PATH];   // dir/step-%08d, when complete
    char folder[DT_PATH]; // until then
    int part, parts;      // this rank's part, from 0; ranks that write one
};

// `id` names the folder: equal on all ranks, unique among drafts of this step.
dt_status dt_checkpoint_draft(const char *dir, int64_t step, uint64_t id, int part, int parts,
                              struct dt_checkpoint_draft *draft);
// Writes and syncs this rank's part and lists its files: the optimizer file, and for part 0 all
// other files.
dt_status dt_checkpoint_write(const struct dt_checkpoint_draft *draft,
                              const struct dt_checkpoint_arrays *arrays,
                              const struct dt_trainer_state *state, const struct dt_dataset *train,
                              struct dt_manifest *manifest);
// Called by rank 0, whose manifest lists the files of all parts. Writes MANIFEST and renames the
// folder, replacing a checkpoint of the same step. If the states are spread, overwrites
// arrays->weights.
dt_status dt_checkpoint_publish(const struct dt_checkpoint_draft *draft,
                                const struct dt_checkpoint_arrays *arrays,
                                struct dt_manifest *manifest);
// Removes the folder; the current error is kept.
void dt_checkpoint_discard(const struct dt_checkpoint_draft *draft);
// Removes leftover temporary folders, and all checkpoints except the `keep` newest (0: all), the
// newest that verifies, and that of step `best` (0: none). This process hashed the checkpoint of
// step `saved` (-1: none) while writing it, so it is not read again.
dt_status dt_checkpoint_prune(const char *dir, int64_t keep, int64_t saved, int64_t best);
// Links dir/best to the checkpoint of that step; step 0: removes the link. The link is for users:
// dtrain does not read it, and a failure to update it is a warning.
void dt_checkpoint_mark_best(const char *dir, int64_t step);
// Checks that MANIFEST lists all that a run resumes from, and that every file listed exists with
// its size and hash. DT_USER naming each wrong file, and how it differs; DT_MACHINE if one cannot
// be read.
dt_status dt_checkpoint_verify(const char *path);
// Checks a folder to read weights from: a checkpoint (it has a MANIFEST) must verify; any other
// Hugging Face directory is accepted.
dt_status dt_checkpoint_verify_weights(const char *path);
// The step of the newest checkpoint in `dir` up to step `limit`, by name, valid or not; -1: none.
dt_status dt_checkpoint_last_step(const char *dir, int64_t limit, int64_t *step);
// Removes the checkpoints after `step`. DT_USER if none would be left.
dt_status dt_checkpoint_cut(const char *dir, int64_t step);
// Writes to `path` (DT_PATH bytes) the newest checkpoint in `dir` that verifies and is of the step
// in its name, or "" if there are no checkpoints. Warns about each one skipped, and why. DT_USER
// (DT_MACHINE if one could not be read) if there are checkpoints but none verifies, so that no run
// silently starts over damaged checkpoints.
dt_status dt_checkpoint_newest(const char *dir, char *path);
// Reads the training state of a verified checkpoint.
dt_status dt_checkpoint_state(const char *path, struct dt_trainer_state *state);
// Reads a verified checkpoint into `arrays` and `state`. If the model, the order keys or the shards
// differ from arrays->model, expected->order and `train`, one DT_USER error lists all differences
// and nothing is written.
dt_status dt_checkpoint_load(const char *path, const struct dt_checkpoint_arrays *arrays,
                             const struct dt_trainer_state *expected,
                             const struct dt_dataset *train, struct dt_trainer_state *state);
// Called by the other ranks if the states are spread: reads their pieces from a checkpoint that
// rank 0 has loaded.
dt_status dt_checkpoint_load_states(const char *path, const struct dt_checkpoint_arrays *arrays);

// Checkpoints: a folder step-00001000 that is complete and verified, or does not exist.
//   config.json, model.safetensors         a Hugging Face directory (fp32 masters)
//   optimizer-00001-of-00001.safetensors   optimizer states: entries "exp_avg.NAME[first:last]",
//                                          one-dimensional ranges (last exclusive) of a tensor's
//                                          elements, so that any file split resumes on any; a file
//                                          of each rank where the states are spread over them
//                                          (optim.shard); step and run in the metadata, which must
//                                          agree with trainer.json
//   ema.safetensors                        the moving average of the weights, where a run has one
//   carried.safetensors                    the state that slots carry, where a run carries it
//   trainer.json                           struct dt_trainer_state and fingerprints of the shards
//   tokenizer.json and others              copies of the tokenizer's files (tokenizer.h)
//   MANIFEST                               a line for each file: xxh64 (16 hex digits), size, name
// Written into a temporary folder beside it, every file fsynced, MANIFEST last, then renamed, the
// parent fsynced. All arrays are in host memory.
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

// The keys of the configuration that define the order and the windows of the data: none may change
// on resume.
struct dt_order_keys {
    int64_t seed, batch, seq_len, block, reset_token;
    bool shuffle, reset_after, carry_state, reverse_complement;
    // Keys of datasets of frames; zeros for others.
    int64_t stride, time_axis;
    double val_fraction;
    char inputs[DT_DATA_TEXT], targets[DT_DATA_TEXT], weights[DT_DATA_TEXT], mask[DT_DATA_TEXT],
        episodes[DT_DATA_TEXT];
    char mixture[DT_MIXTURE_TEXT]; // data/mixture.h; "": one source. The job compares it.
};
// Rewrites the keys' texts so that those that mean the same are equal.
void dt_order_tidy(struct dt_order_keys *order);

// Statistics of the losses so far (train/spikes.h).
struct dt_loss_statistics {
    double mean, variance;
    int64_t count;
};

// What training must know besides weights and optimizer states, kept as trainer.json.
struct dt_trainer_state {
    int64_t step;    // optimizer steps done, applied or skipped: the next is step + 1
    int64_t updates; // applied
    int64_t skips;   // skipped, total
    int64_t skipped_in_a_row;
    int64_t tokens; // trained so far
    struct dt_order_keys order;
    // The validation with the lowest loss so far; step 0 where there was none.
    int64_t best_step;
    double best_loss;
    int64_t evaluations_since_best;
    int64_t evaluations; // by this process; not in trainer.json
    struct dt_loss_statistics losses;
    int64_t bad_in_a_row;         // steps that were skipped or spiked
    int64_t rollbacks;            // so far (optim.rollback)
    char left_out[DT_SKIPS_TEXT]; // batches that these left out: dt_skips_text
    // A resumed run keeps it unless run.precision says otherwise: enum dt_dtype; -1: not known.
    int storage;
    // The device that it was trained on, rank 0's. A run that resumes on another does not continue
    // with the same bits.
    char device[DT_CONFIG_STRING_MAX]; // "": not known
};

struct dt_checkpoint_arrays {
    const struct dt_model_config *model;
    const struct dt_params *params;
    float *weights; // flat, host memory, as the states are: read by save, unless they are the state
                    // "weights", and written by load; NULL on ranks other than 0
    struct dt_optimizer_states states;
    const struct dt_slot_states *slots;   // NULL: nothing is carried
    const struct dt_tokenizer *tokenizer; // written by save; NULL: none
};

// A checkpoint in the making: ranks write their parts into one hidden folder, at once; when all are
// complete, rank 0 gives it its name.
struct dt_checkpoint_draft {
    char path[DT_PATH];   // dir/step-%08d, once it is complete
    char folder[DT_PATH]; // until then
    int part, parts;      // this rank's, from 0, and how many ranks write one
};

// `id` names the folder: the same on all ranks, and in no other draft of this step.
dt_status dt_checkpoint_draft(const char *dir, int64_t step, uint64_t id, int part, int parts,
                              struct dt_checkpoint_draft *draft);
// Writes and syncs this rank's part, and lists its files: the optimizer file; for part 0 all
// others, too.
dt_status dt_checkpoint_write(const struct dt_checkpoint_draft *draft,
                              const struct dt_checkpoint_arrays *arrays,
                              const struct dt_trainer_state *state, const struct dt_dataset *train,
                              struct dt_manifest *manifest);
// Called by rank 0, whose manifest lists the files of all parts. Writes MANIFEST and gives the
// folder its name; a checkpoint of the same step is replaced. Where the states are spread,
// arrays->weights are overwritten.
dt_status dt_checkpoint_publish(const struct dt_checkpoint_draft *draft,
                                const struct dt_checkpoint_arrays *arrays,
                                struct dt_manifest *manifest);
// Removes the folder; the current error stays.
void dt_checkpoint_discard(const struct dt_checkpoint_draft *draft);
// Removes all but the `keep` newest and the newest that verifies, and leftover temporary folders.
// keep 0: all checkpoints stay. The one of step `saved` was hashed as this process wrote it and is
// not read again; -1: there is none. The one of step `best` stays, too, uncounted; 0: there is
// none.
dt_status dt_checkpoint_prune(const char *dir, int64_t keep, int64_t saved, int64_t best);
// Links dir/best to the checkpoint of that step; step 0: removes the link. The link is for users:
// nothing in dtrain reads it, and failing to update it is a warning.
void dt_checkpoint_mark_best(const char *dir, int64_t step);
// Checks that MANIFEST lists all that a run resumes from, and that every file listed exists with
// its size and hash. DT_USER naming each file that does not, and how it differs; DT_MACHINE where
// one cannot be read.
dt_status dt_checkpoint_verify(const char *path);
// A folder to read weights from: a checkpoint (it has a MANIFEST) must verify, any other Hugging
// Face directory is accepted as it is.
dt_status dt_checkpoint_verify_weights(const char *path);
// The step of the newest checkpoint of `dir` up to step `limit` by name, intact or not; -1 where
// there is none.
dt_status dt_checkpoint_last_step(const char *dir, int64_t limit, int64_t *step);
// Removes the checkpoints after `step`, unless there is none up to it: DT_USER.
dt_status dt_checkpoint_cut(const char *dir, int64_t step);
// The newest checkpoint of `dir` that verifies, and is of the step in its name, into `path`
// (DT_PATH bytes); "" where the folder holds none, or does not exist. Warns of each that it skips
// and why. Where there are some and none verifies: DT_USER (DT_MACHINE where one could not be
// read), so that no run starts over its damaged checkpoints unless it is asked to.
dt_status dt_checkpoint_newest(const char *dir, char *path);
// Reads the state of training in a verified checkpoint.
dt_status dt_checkpoint_state(const char *path, struct dt_trainer_state *state);
// Reads a checkpoint that was verified into `arrays` and `state`. Where the model, the order keys
// or the shards differ from arrays->model, expected->order and `train`, one DT_USER error lists all
// differences and nothing is written.
dt_status dt_checkpoint_load(const char *path, const struct dt_checkpoint_arrays *arrays,
                             const struct dt_trainer_state *expected,
                             const struct dt_dataset *train, struct dt_trainer_state *state);
// Called by the other ranks where the states are spread: reads their pieces from a checkpoint that
// rank 0 has loaded.
dt_status dt_checkpoint_load_states(const char *path, const struct dt_checkpoint_arrays *arrays);

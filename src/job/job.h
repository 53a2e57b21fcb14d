// A job is what every command that needs a configuration starts from: settings, backend, data,
// model architecture and batch arithmetic, the same on every rank. Rank 0 reads files and
// broadcasts.
#pragma once

#include "backend/backend.h"
#include "checkpoint/snapshot.h"
#include "comm/buckets.h"
#include "comm/comm.h"
#include "data/loader.h"
#include "job/places.h"
#include "job/run_folder.h"
#include "job/settings.h"
#include "model/model.h"

enum dt_purpose {
    DT_PURPOSE_TRAIN, // owns the run's folder; the others write nothing
    DT_PURPOSE_CHECK, // everything that training needs is checked
    DT_PURPOSE_EVAL,  // forward passes only
    DT_PURPOSE_WHOLE, // forward passes over whole episodes of data.val, the only data
    DT_PURPOSE_ORDER, // the data alone: no device but the CPU
};

struct dt_job {
    struct dt_settings settings;
    struct dt_config *config;
    struct dt_comm *comm; // borrowed
    struct dt_backend backend;
    int ranks_on_device;         // ranks on this rank's device, itself among them
    struct dt_run_folder folder; // rank 0 of a training job
    struct dt_model_config model;
    struct dt_dataset *train, *val;                   // NULL: none
    struct dt_shard_cache *train_shards, *val_shards; // theirs, open
    int64_t local_batch, micro_batch; // sequences of this rank's step, and of one forward pass
    int64_t steps_per_epoch, steps;
    double started;                   // dt_seconds, as dt_job_open began
    float *mean, *deviation;          // [F], by which frames are normalised; or NULL
    double *blocks[DT_NUMBERS_KINDS]; // statistics.h, of the training data; NULL: not read yet
    char run_path[DT_PATH];
    char resume[DT_PATH];          // the checkpoint to resume from, or ""
    struct dt_tokenizer tokenizer; // rank 0; without files: none
};

// `words`: of the command line, the configuration file, then section.key=value.
dt_status dt_job_open(struct dt_comm *comm, enum dt_purpose purpose, char *const *words,
                      int n_words, struct dt_job *job);
void dt_job_close(struct dt_job *job);
// Whether run.resume names a checkpoint (neither auto nor never).
bool dt_job_resume_is_named(const struct dt_job *job);

// Whether gradients are summed by the device communicator (NCCL) and not by job->comm: several
// ranks on CUDA devices of their own, comm.backend = nccl or auto.
bool dt_job_uses_device_comm(const struct dt_job *job);
// The order in which gradients, losses and metrics are summed over micro-batches and ranks:
// comm.reduce.
static inline enum dt_sum_order dt_job_sum_order(const struct dt_job *job)
{
    return job->settings.comm.reduce == DT_REDUCE_REPRODUCIBLE ? DT_SUM_TREE : DT_SUM_FAST;
}
// Whether collectives are checked on known values before training (comm.selftest).
bool dt_job_wants_selftest(const struct dt_job *job);
// For dt_job_open: decides what to resume from, job->resume, a verified checkpoint or "".
dt_status dt_job_resolve_resume(struct dt_job *job, enum dt_purpose purpose);
// For dt_job_open: the mixture that job->train is trained in, once job->resume is known. DT_USER
// where the checkpoint has another that it cannot continue with.
dt_status dt_job_resolve_mixture(struct dt_job *job);
// For dt_job_open: job->tokenizer, from data.tokenizer, the checkpoint to resume or run.init_from;
// data.tokenizer also sets the special tokens of job->model. DT_USER where a shard is of another.
dt_status dt_job_load_tokenizer(struct dt_job *job);
// The mixture as trainer.json has it; "" of a single source.
dt_status dt_job_mixture_text(const struct dt_job *job, char text[DT_MIXTURE_TEXT]);
// A dt_config_check: the fields without a default, of those that the kinds of the model read.
void dt_job_require_model(struct dt_problems *problems, const void *settings,
                          const struct dt_config *config);
// job->model: from the checkpoint to resume, else from run.init_from, else from [model]. Its
// storage type and settings.data.block, where they are `auto`: those of the checkpoint to resume.
dt_status dt_job_resolve_model(struct dt_job *job);
// settings.comm.bucket_mb, where it is `auto`, once the model and the backend are known.
dt_status dt_job_resolve_buckets(struct dt_job *job);
// An error that begins with a key of the model: where the key was set comes before it.
dt_status dt_job_name_origin(const struct dt_config *config, dt_status status);
// Settings that do not fit the way the job was launched: the communicator was chosen by that.
dt_status dt_job_check_launch(const struct dt_job *job, enum dt_purpose purpose);
// Settings that the device does not allow in training.
dt_status dt_job_check_device(const struct dt_job *job);
// "AMD EPYC 9575F (avx512 bf16)": the model of this rank's device, without its
// threads, on which no bit depends, and what it can do.
dt_status dt_job_describe_device(const struct dt_job *job, char text[DT_DEVICE_TEXT]);
// Checks that NCCL is available if training would use it.
dt_status dt_job_check_nccl(const struct dt_job *job);

// Allocates the loader's host memory with the backend: pinned where copies overlap other work.
void dt_job_pin_ring(const struct dt_backend *backend, struct dt_loader_config *loader);
// The loader of this rank's training slots; memory for the ring comes from the backend.
struct dt_loader_config dt_job_train_loader(const struct dt_job *job);
struct dt_loader_config dt_job_val_loader(const struct dt_job *job);
// Fills job->mean and job->deviation on all ranks from the rows of rank 0's weights, of a model
// that reads frames. computed: first computes them from the training data's frames, with the same
// bits on any number of ranks, and puts them into these rows; and likewise the heads' rows, of a
// model that predicts numbers.
dt_status dt_job_normalize(struct dt_job *job, const struct dt_checkpoint_arrays *host,
                           bool computed);
// At the start of a run on data of frames: reads all training and validation data, each rank a
// share, and checks every value, and that there are targets and weights. What this finds of the
// training data is kept for dt_job_normalize. keeps: also in the folder of runs, for later runs on
// the same data, which then read nothing.
dt_status dt_job_check_data(struct dt_job *job, bool keeps);
void dt_job_free_blocks(struct dt_job *job);
// Positions that a pass has at a time: those of a window, or of a segment (model.segment).
static inline int64_t dt_job_segment(const struct dt_job *job)
{
    int64_t segment = job->model.segment, length = job->settings.data.seq_len;
    return segment > 0 && segment < length ? segment : length;
}
struct dt_model_shape dt_job_shape(const struct dt_job *job, bool training);
enum dt_sharding dt_job_sharding(const struct dt_job *job);
// Whether the ranks take turns in the slots of a batch, a micro-batch each: else a rank's micro-
// batches follow each other.
bool dt_job_takes_turns(const struct dt_job *job);
// What the heads of a policy learn from: adds columns of the targets, and which numbers these may
// be.
dt_status dt_job_targets(const struct dt_model_config *model, struct dt_scan_rules *rules);
// The weights of a snapshot's model: from `dir` where not "" (a Hugging Face directory or a
// checkpoint; ema: their moving average in a checkpoint), else initial ones. Read on rank 0, then
// on the devices of all ranks.
dt_status dt_job_load_weights(struct dt_job *job, const char *dir, bool ema,
                              struct dt_snapshot *snapshot);

// A job is the starting point of every command that needs a configuration: settings, backend, data,
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
    DT_PURPOSE_TRAIN, // owns the run's folder; other purposes write nothing
    DT_PURPOSE_CHECK, // checks everything that training needs
    DT_PURPOSE_EVAL,  // forward passes only
    DT_PURPOSE_WHOLE, // forward passes over whole episodes of data.val, without data.train
    DT_PURPOSE_ORDER, // only the data, on the CPU
};

struct dt_job {
    struct dt_settings settings;
    struct dt_config *config;
    struct dt_comm *comm; // borrowed
    struct dt_backend backend;
    int ranks_on_device;         // ranks on this rank's device, including itself
    struct dt_run_folder folder; // only rank 0 of a training job
    struct dt_model_config model;
    struct dt_dataset *train, *val;                   // NULL: none
    struct dt_shard_cache *train_shards, *val_shards; // open shards of train and val
    int64_t local_batch, micro_batch; // sequences per step of this rank's group, and per pass
    int64_t steps_per_epoch, steps;
    double started;                   // dt_seconds when dt_job_open began
    float *mean, *deviation;          // [F], for normalising frames; or NULL
    double *blocks[DT_NUMBERS_KINDS]; // statistics.h, for the training data; NULL: not read yet
    char run_path[DT_PATH];
    char resume[DT_PATH];          // the checkpoint to resume from, or ""
    struct dt_tokenizer tokenizer; // rank 0; no files: no tokenizer
};

// `words` of the command line: the configuration file, then section.key=value.
dt_status dt_job_open(struct dt_comm *comm, enum dt_purpose purpose, char *const *words,
                      int n_words, struct dt_job *job);
void dt_job_close(struct dt_job *job);
// Whether run.resume names a checkpoint (neither auto nor never).
bool dt_job_resume_is_named(const struct dt_job *job);

// Whether the device communicator (NCCL) sums gradients instead of job->comm: several ranks, each
// with its own CUDA device, and comm.backend = nccl or auto.
bool dt_job_uses_device_comm(const struct dt_job *job);
// The order in which gradients, losses and metrics are summed over micro-batches and ranks:
// comm.reduce.
static inline enum dt_sum_order dt_job_sum_order(const struct dt_job *job)
{
    return job->settings.comm.reduce == DT_REDUCE_REPRODUCIBLE ? DT_SUM_TREE : DT_SUM_FAST;
}
// Whether collectives are checked on known values before training (comm.selftest).
bool dt_job_wants_selftest(const struct dt_job *job);
// For dt_job_open: sets job->resume to the verified checkpoint to resume from, or "".
dt_status dt_job_resolve_resume(struct dt_job *job, enum dt_purpose purpose);
// For dt_job_open: sets the mixture of job->train, once job->resume is known. DT_USER if it cannot
// continue the mixture of the checkpoint.
dt_status dt_job_resolve_mixture(struct dt_job *job);
// For dt_job_open: reads job->tokenizer from data.tokenizer, the checkpoint to resume or
// run.init_from; data.tokenizer also sets the special tokens of job->model. DT_USER if a shard was
// made with another tokenizer.
dt_status dt_job_load_tokenizer(struct dt_job *job);
// The mixture as in trainer.json; "" for a single source.
dt_status dt_job_mixture_text(const struct dt_job *job, char text[DT_MIXTURE_TEXT]);
// A dt_config_check: reports missing fields that the kinds of the model read and that have no
// default.
void dt_job_require_model(struct dt_problems *problems, const void *settings,
                          const struct dt_config *config);
// Sets job->model from the checkpoint to resume, else from run.init_from, else from [model]. If the
// storage type or settings.data.block is `auto`, takes it from the checkpoint to resume.
dt_status dt_job_resolve_model(struct dt_job *job);
// Sets settings.comm.bucket_mb if `auto`, once the model and the backend are known.
dt_status dt_job_resolve_buckets(struct dt_job *job);
// Prefixes an error that begins with a key of the model with the origin of that key.
dt_status dt_job_name_origin(const struct dt_config *config, dt_status status);
// Checks settings against the way in which the job was launched, which chose the communicator.
dt_status dt_job_check_launch(const struct dt_job *job, enum dt_purpose purpose);
// Checks that the device supports the settings of training.
dt_status dt_job_check_device(const struct dt_job *job);
// "AMD EPYC 9575F (avx512 bf16)": name and features of this rank's device, without its threads, on
// which no bit depends.
dt_status dt_job_describe_device(const struct dt_job *job, char text[DT_DEVICE_TEXT]);
// Checks that NCCL is available if training uses it.
dt_status dt_job_check_nccl(const struct dt_job *job);

// Makes the loader allocate host memory with the backend: pinned if copies overlap other work.
void dt_job_pin_ring(const struct dt_backend *backend, struct dt_loader_config *loader);
// The loader configuration of this rank's training slots; the backend allocates the ring.
struct dt_loader_config dt_job_train_loader(const struct dt_job *job);
struct dt_loader_config dt_job_val_loader(const struct dt_job *job);
// For models that read frames: fills job->mean and job->deviation on all ranks from rows of rank
// 0's weights. computed: first computes these rows from the training frames, with the same bits on
// any number of ranks, and likewise the heads' rows of a model that predicts numbers.
dt_status dt_job_normalize(struct dt_job *job, const struct dt_checkpoint_arrays *host,
                           bool computed);
// At the start of a run on frames: reads all training and validation data, each rank a share, and
// checks every value and the existence of targets and weights. Keeps the statistics of the training
// data for dt_job_normalize and, with `keeps`, in the folder of runs, so that later runs on the
// same data read nothing.
dt_status dt_job_check_data(struct dt_job *job, bool keeps);
void dt_job_free_blocks(struct dt_job *job);
// Groups of ranks that each train on windows of their own (comm.context); rank r is in group r /
// comm.context.
static inline int dt_job_groups(const struct dt_job *job)
{
    return job->comm->info.size / (int)job->settings.comm.context;
}
// Positions per pass: those of a window, or of a segment (model.segment).
static inline int64_t dt_job_segment(const struct dt_job *job)
{
    int64_t segment = job->model.segment, length = job->settings.data.seq_len;
    return segment > 0 && segment < length ? segment : length;
}
struct dt_model_shape dt_job_shape(const struct dt_job *job, bool training);
enum dt_sharding dt_job_sharding(const struct dt_job *job);
// Whether the ranks take turns in the slots of a batch, one micro-batch each; otherwise a rank's
// micro-batches are consecutive.
bool dt_job_takes_turns(const struct dt_job *job);
// Whether windows may be run in segments. Ranks that take turns send the gradients of a micro-batch
// once. So does a model that reads both ways, but others send those of each segment.
bool dt_job_may_segment(const struct dt_job *job);
// Adds to the rules the target columns of a policy's heads, and the values that they may have.
dt_status dt_job_targets(const struct dt_model_config *model, struct dt_scan_rules *rules);
// Loads the weights of a snapshot's model from `dir` (a Hugging Face directory or a checkpoint;
// ema: the checkpoint's moving average), or initial weights if `dir` is "". Rank 0 reads them and
// shares them with the devices of all ranks.
dt_status dt_job_load_weights(struct dt_job *job, const char *dir, bool ema,
                              struct dt_snapshot *snapshot);

// Reads all numbers once: checks every value and that there is something to learn, and computes the
// means and deviations of the training data, by which frames and targets are normalised. Every rank
// reads a share of the blocks; the results become rows of the model.
#include "data/statistics.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "comm/job_control.h"
#include "job/job.h"

#include <string.h>

// The rows of frames belong to the stem, those of targets to the heads.
static const struct numbers {
    enum dt_numbers which;
    const char *name, *mean, *deviation;
} frames = {DT_NUMBERS_FRAMES, "frames", "stem.mean", "stem.deviation"},
  targets = {DT_NUMBERS_TARGETS, "targets", "heads.mean", "heads.deviation"};

struct progress {
    struct dt_comm *comm;
    const char *what;
    double next; // time of the next progress line
};

static void report(void *context, double share)
{
    struct progress *progress = context;
    dt_comm_busy(progress->comm);
    if (dt_log_due(&progress->next))
        dt_info("%s: %.0f %%", progress->what, 100 * share);
}

// Checks one kind of numbers of a dataset. *blocks: the merged statistics, on every rank; for
// training data in job->blocks and read once, else malloc'ed. If `folder` ("": none) has them,
// nothing is read and *read is unchanged.
static dt_status read_blocks(struct dt_job *job, struct dt_shard_cache *shards,
                             enum dt_numbers which, const char *folder, double **blocks, bool *read)
{
    static const char *const texts[DT_NUMBERS_KINDS] = {
        "checking the frames", "checking the targets", "checking the weights"};
    const struct dt_comm_info *info = &job->comm->info;
    double **kept = shards == job->train_shards ? &job->blocks[which] : NULL;
    int64_t n = dt_statistics_size(shards->dataset, which), there = 0;
    struct progress progress = {.comm = job->comm, .what = texts[which]};
    *blocks = kept ? *kept : NULL;
    if (*blocks)
        return DT_OK;
    dt_comm_progress(job->comm, 0, texts[which]);
    dt_status status = DT_NEW(blocks, n, "%lld sums", (long long)n);
    if (kept)
        *kept = *blocks;
    DT_TRY(dt_agree(job->comm, status));
    if (info->rank == 0 && folder[0])
        there = dt_statistics_recall(folder, shards->dataset, which, *blocks);
    DT_TRY(dt_allreduce(job->comm, &there, 1, DT_I64, DT_SUM));
    if (!there) {
        *read = true;
        status =
            dt_statistics_read(shards, which, info->rank, info->size, *blocks, report, &progress);
        DT_TRY(dt_agree(job->comm, status));
    }
    // Each number is non-zero on one rank only, so summing the bits as integers is exact.
    DT_TRY(dt_allreduce(job->comm, *blocks, n, DT_I64, DT_SUM));
    dt_statistics_merge(shards->dataset, which, *blocks);
    if (info->rank == 0 && folder[0] && !there)
        dt_statistics_keep(folder, shards->dataset, which, *blocks);
    return DT_OK;
}

// Resets mean and deviation of targets that are not scaled, such as classes.
static dt_status keep_scaled(const struct dt_job *job, float *mean, float *deviation)
{
    struct dt_outputs outputs;
    DT_TRY(dt_model_outputs_of(&job->model, &outputs));
    for (int k = 0; k < outputs.n; k++) {
        const struct dt_output *output = &outputs.list[k];
        for (int64_t i = output->target; i < output->target + output->target_width; i++)
            if (!output->scaled)
                mean[i] = 0, deviation[i] = 1;
    }
    return DT_OK;
}

static dt_status compute(struct dt_job *job, const struct numbers *numbers, float *mean,
                         float *deviation)
{
    double *blocks;
    bool read;
    DT_TRY(read_blocks(job, job->train_shards, numbers->which, "", &blocks, &read));
    int64_t constant = dt_statistics_finish(job->train, numbers->which, blocks, mean, deviation);
    if (numbers == &targets)
        return keep_scaled(job, mean, deviation);
    if (constant > 0)
        dt_info("%lld of %lld columns of the frames are constant in the training data",
                (long long)constant, (long long)job->train->layout.frame_width);
    return DT_OK;
}

// Checks that at least one head has targets.
static dt_status check_targets(const struct dt_dataset *dataset, const char *key,
                               const double *blocks)
{
    const struct dt_scan_rules *rules = &dataset->rules;
    int64_t column = 0;
    int without = 0;
    char names[512] = "";
    for (int k = 0; k < rules->n_targets; k++) {
        double count = 0;
        for (int64_t i = 0; i < rules->target[k].width; i++)
            count += dt_statistics_count(dataset, DT_NUMBERS_TARGETS, blocks, column++);
        if (count > 0)
            continue;
        without++;
        dt_append(names, sizeof names, "%s%s", names[0] ? ", " : "", rules->target[k].name);
    }
    if (without == rules->n_targets)
        return DT_FAIL(DT_USER, "see data.targets: its shifts, and NaN or -100 in its datasets",
                       "all targets of %s are missing: there is nothing to learn", key);
    if (without > 0)
        dt_warn("all targets of %s are missing for some heads, which have no loss: %s", key, names);
    return DT_OK;
}

// Checks that each head has a non-zero weight somewhere.
static dt_status check_weights(const struct dt_dataset *dataset, const char *key,
                               const double *blocks)
{
    int64_t H = dataset->layout.weight_width;
    float *mean;
    dt_status status = DT_NEW(&mean, 2 * H, "the weights of %lld heads", (long long)H - 1);
    if (status != DT_OK)
        return status;
    dt_statistics_finish(dataset, DT_NUMBERS_WEIGHTS, blocks, mean, mean + H);
    for (int64_t k = 0; k < H && status == DT_OK; k++)
        if (mean[k] == 0)
            status = DT_FAIL(DT_USER, "correct the data, or remove data.weights",
                             "data.weights: all weights of %s%s in %s are 0",
                             k > 0 ? "the head " : "the frames",
                             k > 0 ? dataset->rules.target[k - 1].name : "", key);
    free(mean);
    return status;
}

// Checks one kind of numbers in the data of `key`.
static dt_status check_numbers(struct dt_job *job, struct dt_shard_cache *shards, const char *key,
                               enum dt_numbers which, const char *folder, bool *read)
{
    double *blocks;
    dt_status status = read_blocks(job, shards, which, folder, &blocks, read), fine = DT_OK;
    if (status == DT_OK && which == DT_NUMBERS_TARGETS)
        fine = check_targets(shards->dataset, key, blocks);
    if (status == DT_OK && which == DT_NUMBERS_WEIGHTS)
        fine = check_weights(shards->dataset, key, blocks);
    if (shards != job->train_shards)
        free(blocks);
    return status == DT_OK ? dt_agree(job->comm, fine) : status;
}

dt_status dt_job_check_data(struct dt_job *job, bool keeps)
{
    char folder[DT_PATH] = "";
    struct dt_shard_cache *const sets[] = {job->train_shards, job->val_shards};
    static const char *const keys[] = {"data.train", "data.val"};
    if (keeps)
        DT_TRY(dt_path(folder, "%s/.checked", job->settings.run.dir[0] ? job->run_path : "runs"));
    for (int i = 0; i < 2; i++) {
        const struct dt_dataset *dataset = sets[i] ? sets[i]->dataset : NULL;
        bool read = false;
        if (!dataset || dataset->layout.target_width == 0 || dataset->kind->source)
            continue;
        for (int which = 0; which < DT_NUMBERS_KINDS; which++)
            if (which != DT_NUMBERS_WEIGHTS || dataset->layout.weight_width > 0)
                DT_TRY(check_numbers(job, sets[i], keys[i], (enum dt_numbers)which, folder, &read));
        if (!read)
            dt_info("%s: an earlier run has checked every value (%s)", keys[i], folder);
    }
    return DT_OK;
}

// Fills mean and deviation, [columns], on all ranks.
static dt_status share_rows(struct dt_job *job, const struct dt_checkpoint_arrays *host,
                            const struct numbers *numbers, bool computed, float *mean,
                            float *deviation)
{
    const struct dt_param *row = dt_params_find(host->params, numbers->mean);
    bool root = job->comm->info.rank == 0, scaled = false;
    float *mine[] = {mean, deviation}, *rows[2] = {NULL, NULL};
    dt_status status = DT_OK;
    if (root) {
        rows[0] = host->weights + row->offset;
        rows[1] = host->weights + dt_params_find(host->params, numbers->deviation)->offset;
    }
    if (computed)
        DT_TRY(compute(job, numbers, mean, deviation));
    for (int i = 0; i < 2; i++) {
        size_t bytes = (size_t)row->count * sizeof(float);
        if (root)
            memcpy(computed ? rows[i] : mine[i], computed ? mine[i] : rows[i], bytes);
        DT_TRY(dt_broadcast(job->comm, mine[i], (int64_t)bytes, 0));
    }
    for (int64_t i = 0; i < row->count && root; i++)
        scaled |= mean[i] != 0 || deviation[i] != 1;
    if (scaled && !job->settings.data.normalize)
        status = dt_config_reject(job->config, "data.normalize", "remove the key",
                                  "false, but these weights were trained on normalised %s",
                                  numbers->name);
    return dt_agree(job->comm, status);
}

// Allocates arrays for the two rows; NULL if the model has none.
static dt_status open_rows(const struct dt_job *job, const struct dt_checkpoint_arrays *host,
                           const struct numbers *numbers, float **mean, float **deviation)
{
    const struct dt_param *row = dt_params_find(host->params, numbers->mean);
    dt_status status = DT_OK;
    *mean = *deviation = NULL;
    if (row)
        status = DT_NEW(mean, row->count, "the mean of %s", numbers->name);
    if (row && status == DT_OK)
        status = DT_NEW(deviation, row->count, "the deviation of %s", numbers->name);
    return dt_agree(job->comm, status);
}

void dt_job_free_blocks(struct dt_job *job)
{
    for (int which = 0; which < DT_NUMBERS_KINDS; which++) {
        free(job->blocks[which]);
        job->blocks[which] = NULL;
    }
}

dt_status dt_job_normalize(struct dt_job *job, const struct dt_checkpoint_arrays *host,
                           bool computed)
{
    float *mean, *deviation; // the loader needs those of frames, only the model the others
    free(job->mean);
    free(job->deviation);
    dt_status status = open_rows(job, host, &frames, &job->mean, &job->deviation);
    if (status == DT_OK && job->mean)
        status = share_rows(job, host, &frames, computed, job->mean, job->deviation);
    DT_TRY(status);
    status = open_rows(job, host, &targets, &mean, &deviation);
    if (status == DT_OK && mean)
        status = share_rows(job, host, &targets, computed, mean, deviation);
    free(mean);
    free(deviation);
    dt_job_free_blocks(job);
    return status;
}

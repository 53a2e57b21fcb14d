// Computes what frames are normalised by: the mean and deviation of the training data, and checks
// every value, and that there is something to learn. Every rank reads a share of the blocks; the
// means and deviations are rows of the model from then on.
#include "data/statistics.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "comm/job_control.h"
#include "job/job.h"

#include <string.h>

struct progress {
    struct dt_comm *comm;
    const char *what;
    double next; // line
};

static void report(void *context, double share)
{
    struct progress *progress = context;
    dt_comm_busy(progress->comm);
    if (dt_log_due(&progress->next))
        dt_info("%s: %.0f %%", progress->what, 100 * share);
}

// What is known of all blocks of a dataset, on every rank (malloc).
static dt_status read_blocks(const struct dt_job *job, const char *what,
                             struct dt_shard_cache *shards, enum dt_numbers which, double **blocks)
{
    const struct dt_comm_info *info = &job->comm->info;
    int64_t n = dt_statistics_size(shards->dataset, which);
    struct progress progress = {.comm = job->comm, .what = what};
    dt_comm_progress(job->comm, 0, what);
    dt_status status = DT_NEW(blocks, n, "%lld sums", (long long)n);
    if (status == DT_OK)
        status =
            dt_statistics_read(shards, which, info->rank, info->size, *blocks, report, &progress);
    status = dt_agree(job->comm, status);
    // Only one rank's bits of each number are not zero: as integers their sum is exact.
    if (status == DT_OK)
        status = dt_allreduce(job->comm, *blocks, n, DT_I64, DT_SUM);
    return status;
}

static dt_status compute(const struct dt_job *job, float *mean, float *deviation)
{
    double *blocks = NULL;
    dt_status status = read_blocks(job, "computing the mean and deviation of the frames",
                                   job->train_shards, DT_NUMBERS_FRAMES, &blocks);
    int64_t constant = status == DT_OK ? dt_statistics_finish(job->train, DT_NUMBERS_FRAMES, blocks,
                                                              mean, deviation)
                                       : 0;
    if (constant > 0)
        dt_info("%lld of %lld columns of the frames are constant in the training data",
                (long long)constant, (long long)job->train->layout.frame_width);
    free(blocks);
    return status;
}

// Some head must have targets; others may have none.
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

// Each head must have a weight somewhere.
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

dt_status dt_job_check_data(const struct dt_job *job)
{
    const struct dt_settings *s = &job->settings;
    bool known =
        s->data.normalize && !s->run.init_from[0]; // training's frames, by their statistics
    struct dt_shard_cache *const sets[] = {job->train_shards, job->val_shards};
    static const char *const keys[] = {"data.train", "data.val"};
    dt_status status = DT_OK;
    for (int i = 0; i < 2 && status == DT_OK; i++) {
        const struct dt_dataset *dataset = sets[i] ? sets[i]->dataset : NULL;
        double *blocks = NULL;
        if (!dataset || dataset->layout.target_width == 0 || dataset->kind->source)
            continue;
        if (i > 0 || !known)
            status = read_blocks(job, "checking the frames", sets[i], DT_NUMBERS_FRAMES, &blocks);
        free(blocks);
        blocks = NULL;
        if (status == DT_OK)
            status = read_blocks(job, "checking the targets", sets[i], DT_NUMBERS_TARGETS, &blocks);
        if (status == DT_OK)
            status = dt_agree(job->comm, check_targets(dataset, keys[i], blocks));
        free(blocks);
        blocks = NULL;
        if (status != DT_OK || dataset->layout.weight_width == 0)
            continue;
        status = read_blocks(job, "checking the weights", sets[i], DT_NUMBERS_WEIGHTS, &blocks);
        if (status == DT_OK)
            status = dt_agree(job->comm, check_weights(dataset, keys[i], blocks));
        free(blocks);
    }
    return status;
}

dt_status dt_job_normalize(struct dt_job *job, const struct dt_checkpoint_arrays *host,
                           bool computed)
{
    const struct dt_param *rows[] = {dt_params_find(host->params, "stem.mean"),
                                     dt_params_find(host->params, "stem.deviation")};
    float **mine[] = {&job->mean, &job->deviation};
    bool root = job->comm->info.rank == 0;
    dt_status status = DT_OK;
    if (!rows[0] || !rows[1])
        return DT_OK;
    size_t bytes = (size_t)rows[0]->count * sizeof(float);
    for (int i = 0; i < 2; i++) {
        free(*mine[i]);
        *mine[i] = NULL;
        if (status == DT_OK)
            status = DT_NEW(mine[i], rows[i]->count, "the mean and deviation of frames");
    }
    DT_TRY(dt_agree(job->comm, status));
    if (computed)
        DT_TRY(compute(job, job->mean, job->deviation));
    for (int i = 0; i < 2; i++) {
        float *row = root ? host->weights + rows[i]->offset : NULL;
        if (root)
            memcpy(computed ? row : *mine[i], computed ? *mine[i] : row, bytes);
        DT_TRY(dt_broadcast(job->comm, *mine[i], (int64_t)bytes, 0));
    }
    for (int64_t i = 0;
         i < rows[0]->count && root && !job->settings.data.normalize && status == DT_OK; i++)
        if (job->mean[i] != 0 || job->deviation[i] != 1)
            status = dt_config_reject(job->config, "data.normalize", "remove the key",
                                      "false, but these weights were trained on normalised frames");
    return dt_agree(job->comm, status);
}

// Computes what frames are normalised by: the mean and deviation of the training data. Every rank
// reads a share of the blocks; the results are rows of the model from then on.
#include "data/statistics.h"

#include "base/log.h"
#include "base/memory.h"
#include "comm/job_control.h"
#include "job/job.h"

#include <string.h>

struct progress {
    struct dt_comm *comm;
    double next; // line
};

static void report(void *context, double share)
{
    struct progress *progress = context;
    dt_comm_busy(progress->comm);
    if (dt_log_due(&progress->next))
        dt_info("computing the mean and deviation of the frames: %.0f %%", 100 * share);
}

static dt_status compute(const struct dt_job *job, float *mean, float *deviation)
{
    const struct dt_comm_info *info = &job->comm->info;
    int64_t n = dt_statistics_size(job->train, DT_NUMBERS_FRAMES);
    struct progress progress = {.comm = job->comm};
    double *blocks;
    dt_comm_progress(job->comm, 0, "mean and deviation of the frames");
    dt_status status = DT_NEW(&blocks, n, "%lld sums of frames", (long long)n);
    if (status == DT_OK)
        status = dt_statistics_read(job->train_shards, DT_NUMBERS_FRAMES, info->rank, info->size,
                                    blocks, report, &progress);
    status = dt_agree(job->comm, status);
    // Only one rank's bits of each number are not zero: as integers their sum is exact.
    if (status == DT_OK)
        status = dt_allreduce(job->comm, blocks, n, DT_I64, DT_SUM);
    int64_t constant = status == DT_OK ? dt_statistics_finish(job->train, DT_NUMBERS_FRAMES, blocks,
                                                              mean, deviation)
                                       : 0;
    if (constant > 0)
        dt_info("%lld of %lld columns of the frames are constant in the training data",
                (long long)constant, (long long)job->train->layout.frame_width);
    free(blocks);
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

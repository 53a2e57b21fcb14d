// Mean and deviation of the training data's frames: every rank reads a share of the blocks.
#include "data/statistics.h"

#include "comm/job_control.h"
#include "job/job.h"

#include <stdlib.h>

static void report(void *comm)
{
    dt_comm_busy(comm);
}

dt_status dt_job_statistics(const struct dt_job *job, float *mean, float *deviation)
{
    const struct dt_comm_info *info = &job->comm->info;
    int64_t n = dt_statistics_size(job->train);
    double *blocks = calloc((size_t)n + 1, sizeof *blocks);
    dt_comm_progress(job->comm, 0, "computing the mean and deviation of the frames");
    dt_status status =
        blocks ? dt_statistics_read(job->train, info->rank, info->size, blocks, report, job->comm)
               : DT_FAIL(DT_MACHINE, NULL, "no memory for %lld numbers", (long long)n);
    status = dt_agree(job->comm, status);
    // Only one rank's bits of each number are not zero: as integers their sum is exact.
    if (status == DT_OK)
        status = dt_allreduce(job->comm, blocks, n, DT_I64, DT_SUM);
    if (status == DT_OK)
        dt_statistics_finish(job->train, blocks, mean, deviation);
    free(blocks);
    return status;
}

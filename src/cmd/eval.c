// `dtrain eval CONFIG`: the validation loss of the checkpoint that training would go on from (or of
// run.init_from).
#include "cmd/cmd.h"
#include "train/evaluate.h"
#include "train/job.h"

#include <math.h>
#include <stdio.h>

static dt_status evaluate(struct dt_job *job)
{
    const char *from = job->resume[0] ? job->resume : job->settings.run.init_from;
    if (!job->val)
        return DT_FAIL(DT_USER, "set data.val to the shards to evaluate on", "data.val is empty");
    if (!from[0])
        return DT_FAIL(DT_USER, "train first, or give run.resume or run.init_from",
                       "%s holds no checkpoint", job->run_path);
    struct dt_model *model = NULL;
    struct dt_staging staging = {0};
    struct dt_loss_sum total;
    struct dt_model_shape shape = dt_job_shape(job, false);
    dt_status status;
    DT_TRY_GOTO(status, out, dt_model_create(&job->backend, &job->model, &shape, &model));
    DT_TRY_GOTO(status, out, dt_staging_create(job, &staging));
    DT_TRY_GOTO(status, out, dt_job_load_weights(job, from, model));
    DT_TRY_GOTO(status, out,
                dt_evaluate(job, model, &staging, job->settings.log.eval_batches, &total));
    if (job->comm->info.rank == 0) {
        double loss = total.loss / total.counted;
        printf("{\"event\":\"eval\",\"model\":\"%s\",\"loss\":%.9g,\"perplexity\":%.9g,\"tokens\":%"
               ".0f}\n",
               from, loss, exp(loss), total.counted);
    }
out:
    if (staging.backend)
        dt_staging_destroy(&staging);
    dt_model_destroy(model);
    return status;
}

dt_status dt_cmd_eval(struct dt_comm *comm, int argc, char **argv)
{
    struct dt_job job;
    if (argc < 2)
        return DT_FAIL(DT_USER, "dtrain eval CONFIG [key=value …]", "no configuration file given");
    dt_status status = dt_job_open(comm, DT_PURPOSE_INSPECT, argv[1], argv + 2, argc - 2, &job);
    if (status == DT_OK)
        status = evaluate(&job);
    dt_job_close(&job);
    return status;
}

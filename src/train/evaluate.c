// Validation on the training model: forward passes only.
#include "train/evaluate.h"

static dt_status evaluate_batch(struct dt_model *model, struct dt_staging *staging,
                                const struct dt_batch *batch, struct dt_stream *stream,
                                struct dt_loss_sum *sum)
{
    DT_TRY(dt_staging_load(staging, batch, 0, stream));
    for (int64_t i = 0; i < dt_staging_micro_batches(staging); i++) {
        struct dt_model_input input;
        DT_TRY(dt_staging_take(staging, i, stream, &input));
        DT_TRY(dt_model_forward(model, &input, NULL, NULL, stream));
        DT_TRY(dt_model_loss(model, &input, 0, false, sum, stream));
    }
    return DT_OK;
}

static dt_status evaluate_all(struct dt_model *model, struct dt_staging *staging,
                              struct dt_loader *loader, int64_t max_batches,
                              struct dt_stream *stream, struct dt_loss_sum *sum)
{
    for (int64_t i = 0; max_batches == 0 || i < max_batches; i++) {
        const struct dt_batch *batch;
        DT_TRY(dt_staging_settle(staging));
        DT_TRY(dt_loader_next(loader, &batch, NULL));
        if (!batch)
            break;
        DT_TRY(evaluate_batch(model, staging, batch, stream, sum));
    }
    return DT_OK;
}

dt_status dt_evaluate(const struct dt_job *job, struct dt_model *model, struct dt_staging *staging,
                      int64_t max_batches, struct dt_stream *stream, struct dt_loss_sum *total)
{
    const struct dt_device_table *table = job->backend.table;
    struct dt_loader_config config = dt_job_val_loader(job);
    struct dt_loader *loader = NULL;
    struct dt_loss_sum *sum = NULL;
    dt_status status;
    DT_TRY_GOTO(status, out, table->alloc(job->backend.device, sizeof *sum, (void **)&sum));
    DT_TRY_GOTO(status, out, dt_loader_open(&config, 0, &loader));
    DT_TRY_GOTO(status, out, evaluate_all(model, staging, loader, max_batches, stream, sum));
    DT_TRY_GOTO(status, out,
                table->to_host(job->backend.device, total, sum, sizeof *total, stream));
    DT_TRY_GOTO(status, out, table->stream_sync(job->backend.device, stream));
out:
    dt_loader_close(loader);
    if (sum)
        table->free(job->backend.device, sum);
    if (status != DT_OK)
        return status;
    return dt_allreduce(job->comm, total, sizeof *total / sizeof(double), DT_F64, DT_SUM);
}

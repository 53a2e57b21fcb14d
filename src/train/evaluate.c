// Validation on the training model: forward passes only.
#include "train/evaluate.h"

static dt_status evaluate_batches(struct dt_model *model, struct dt_input *input,
                                  struct dt_carry *carry, struct dt_loader *loader,
                                  int64_t max_batches, struct dt_stream *stream,
                                  struct dt_loss_sum *sum)
{
    DT_TRY(dt_carry_clear(carry, carry->next, stream));
    for (int64_t i = 0; max_batches == 0 || i < max_batches; i++) {
        int64_t micro_batches;
        DT_TRY(dt_input_next(input, loader, stream, &micro_batches, NULL));
        if (micro_batches == 0)
            break;
        for (int64_t k = 0; k < micro_batches; k++) {
            struct dt_pass pass = {
                .before = carry->before, .after = carry->after, .stream = stream};
            DT_TRY(dt_carry_load(carry, carry->next, k, stream));
            DT_TRY(dt_input_micro_batch(input, stream, &pass.input));
            DT_TRY(dt_model_forward(model, &pass));
            DT_TRY(dt_model_loss(model, &pass, 0, sum));
            DT_TRY(dt_carry_store(carry, carry->next, k, stream));
        }
    }
    return DT_OK;
}

dt_status dt_evaluate(const struct dt_job *job, struct dt_model *model, struct dt_input *input,
                      struct dt_carry *carry, int64_t max_batches, struct dt_stream *stream,
                      struct dt_loss_sum *total)
{
    struct dt_loader_config config = dt_job_val_loader(job);
    struct dt_loader *loader = NULL;
    struct dt_loss_sum *sum = NULL;
    dt_status status;
    DT_TRY_GOTO(status, out, dt_alloc(&job->backend, sizeof *sum, &sum));
    DT_TRY_GOTO(status, out, dt_loader_open(&config, 0, &loader));
    DT_TRY_GOTO(status, out,
                evaluate_batches(model, input, carry, loader, max_batches, stream, sum));
    DT_TRY_GOTO(status, out, dt_to_host(&job->backend, total, sum, sizeof *total, stream));
    DT_TRY_GOTO(status, out, dt_stream_sync(&job->backend, stream));
out:
    dt_input_settle(input);
    dt_loader_close(loader);
    dt_free(&job->backend, sum);
    if (status != DT_OK)
        return status;
    return dt_allreduce(job->comm, total, sizeof *total / sizeof(double), DT_F64, DT_SUM);
}

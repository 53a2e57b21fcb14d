// Validation on the training model, by forward passes only. In the order DT_SUM_TREE each place in
// the global batch has a sum over all batches, and a tree adds up these: those of a rank here,
// those of all ranks by the communicator.
#include "train/evaluate.h"

#include "base/memory.h"

enum { SUMS = sizeof(struct dt_loss_sum) / sizeof(double) };

static dt_status evaluate_batch(const struct dt_evaluation *e, int64_t micro_batches,
                                struct dt_loss_sum *sums, int64_t n_sums)
{
    for (int64_t k = 0; k < micro_batches; k++) {
        struct dt_pass pass = {
            .before = e->carry->before, .after = e->carry->after, .stream = e->stream};
        DT_TRY(dt_carry_load(e->carry, e->carry->next, k, e->stream));
        DT_TRY(dt_input_micro_batch(e->input, e->stream, &pass.input));
        DT_TRY(dt_model_forward(e->model, &pass));
        DT_TRY(dt_model_loss(e->model, &pass, 0, sums + k % n_sums));
        DT_TRY(dt_carry_store(e->carry, e->carry->next, k, e->stream));
    }
    return DT_OK;
}

// Adds the losses to sums[0]; where there are `n_sums`, each micro-batch has the sum of its place
// in the batch. Times the ops of the first batch, or of all batches where memory is unified.
static dt_status evaluate_batches(struct dt_evaluation *e, struct dt_loader *loader,
                                  struct dt_loss_sum *sums, int64_t n_sums)
{
    DT_TRY(dt_carry_clear(e->carry, e->carry->next, e->stream));
    for (int64_t i = 0; e->max_batches == 0 || i < e->max_batches; i++) {
        int64_t micro_batches;
        bool timed = e->times && (i == 0 || e->job->backend.table->unified);
        DT_TRY(dt_input_next(e->input, loader, e->stream, &micro_batches, NULL));
        if (micro_batches == 0)
            break;
        if (timed)
            dt_op_times_start(e->times, DT_LANE_VALIDATION);
        DT_TRY(evaluate_batch(e, micro_batches, sums, n_sums));
        e->batches++;
        if (!timed)
            continue;
        e->timed++;
        DT_TRY(dt_op_times_stop(e->times, e->stream));
        DT_TRY(dt_stream_sync(&e->job->backend, e->stream));
        dt_op_times_collect(e->times);
    }
    return DT_OK;
}

// Adds up n sums, a power of two, into sums[0] by a binary tree.
static void add_up(struct dt_loss_sum *sums, int64_t n)
{
    double(*x)[SUMS] = (double(*)[SUMS])sums;
    for (int64_t step = 1; step < n; step *= 2)
        for (int64_t i = 0; i < n; i += 2 * step)
            for (int k = 0; k < SUMS; k++)
                x[i][k] += x[i + step][k];
}

dt_status dt_evaluate(struct dt_evaluation *e)
{
    const struct dt_job *job = e->job;
    struct dt_loader_config config = dt_job_val_loader(job);
    struct dt_loader *loader = NULL;
    struct dt_loss_sum *sums = NULL, *host = NULL;
    bool tree = dt_job_sum_order(job) == DT_SUM_TREE;
    int64_t n = tree ? job->local_batch / job->micro_batch : 1, bytes = n * (int64_t)sizeof *sums;
    dt_status status;
    DT_TRY_GOTO(status, out, dt_alloc(&job->backend, bytes, &sums));
    DT_TRY_GOTO(status, out, DT_NEW(&host, n, "validation sums"));
    DT_TRY_GOTO(status, out, dt_loader_open(&config, 0, &loader));
    DT_TRY_GOTO(status, out, evaluate_batches(e, loader, sums, n));
    DT_TRY_GOTO(status, out, dt_to_host(&job->backend, host, sums, bytes, e->stream));
    DT_TRY_GOTO(status, out, dt_stream_sync(&job->backend, e->stream));
    add_up(host, n);
    e->total = host[0];
out:
    dt_input_settle(e->input);
    dt_loader_close(loader);
    free(host);
    dt_free(&job->backend, sums);
    if (status != DT_OK)
        return status;
    return dt_collective(job->comm, &(struct dt_collective){.operation = DT_ALLREDUCE,
                                                            .dtype = DT_F64,
                                                            .count = SUMS,
                                                            .data = &e->total,
                                                            .order = dt_job_sum_order(job)});
}

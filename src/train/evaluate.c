// Validation on the training model, by forward passes only. In the order DT_SUM_TREE each place in
// the global batch has a sum over all batches, and a tree adds up these: those of a rank here,
// those of all ranks by the communicator.
#include "train/evaluate.h"

#include "base/memory.h"
#include "base/round.h"

enum { SUMS = sizeof(struct dt_loss_sum) / sizeof(double) };

// The predictions of a micro-batch in host memory.
struct predictions {
    float *values, *targets, *weights, *losses;
    int32_t *labels;
    uint8_t *mask;
};

// The most rows that an evaluation has, on all ranks together.
static int64_t rows_of(const struct dt_job *job)
{
    const struct dt_settings *s = &job->settings;
    int64_t most = s->log.eval_batches * s->data.batch, windows = 0;
    for (int i = 0; job->val && i < job->val->n_sources; i++) {
        int64_t all = job->val->sources[i].windows;
        windows += most > 0 ? dt_min_i64(all, most) : all;
    }
    return windows * s->data.seq_len;
}

static dt_status measured_of(const struct dt_job *job, struct dt_outputs *outputs)
{
    DT_TRY(dt_model_outputs_of(&job->model, outputs));
    if (outputs->n > 0 && !outputs->list[0].measure)
        outputs->n = 0;
    return DT_OK;
}

dt_status dt_evaluation_plan(const struct dt_job *job, struct dt_memory_plan *plan)
{
    struct dt_outputs outputs;
    int64_t all = rows_of(job), rows = dt_ceil_div(all, job->comm->info.size);
    DT_TRY(measured_of(job, &outputs));
    dt_memory_plan_add(plan, "scores", dt_scores_bytes(&outputs, rows, all), true);
    return DT_OK;
}

dt_status dt_evaluation_warn(const struct dt_job *job)
{
    struct dt_outputs outputs;
    DT_TRY(measured_of(job, &outputs));
    dt_scores_warn(&outputs, rows_of(job));
    return DT_OK;
}

dt_status dt_evaluation_scores(const struct dt_job *job, const struct dt_model *model,
                               struct dt_scores **scores)
{
    const struct dt_outputs *measured = dt_model_measured(model);
    *scores = NULL;
    return measured ? dt_scores_create(measured, rows_of(job), scores) : DT_OK;
}

// Copies what is there to *host, the address of a pointer that the first copy allocates.
static dt_status copy_out(const struct dt_evaluation *e, void *host, const void *device,
                          int64_t bytes)
{
    void *to;
    memcpy(&to, host, sizeof to);
    if (!device)
        return DT_OK;
    if (!to)
        DT_TRY(dt_alloc_host(&e->job->backend, bytes, host));
    memcpy(&to, host, sizeof to);
    return dt_to_host(&e->job->backend, to, device, bytes, e->stream);
}

static int64_t bytes_of(const struct dt_view *view)
{
    return view->rows * view->stride * (int64_t)sizeof(float);
}

// Adds what is predicted at the positions of a pass, or in its windows, to the scores. Windows need
// less room than positions, which come first; all micro-batches have the same shape.
static dt_status score(const struct dt_evaluation *e, const struct dt_pass *pass, bool windows,
                       struct predictions *host)
{
    const struct dt_outputs *outputs = dt_model_outputs(e->model);
    struct dt_predictions on;
    DT_TRY(dt_model_predictions(e->model, pass, windows, &on));
    DT_TRY(copy_out(e, &host->values, on.values.data, bytes_of(&on.values)));
    DT_TRY(copy_out(e, &host->targets, on.targets.data, bytes_of(&on.targets)));
    DT_TRY(copy_out(e, &host->weights, on.weights.data, bytes_of(&on.weights)));
    DT_TRY(copy_out(e, &host->mask, on.mask, on.values.rows));
    DT_TRY(dt_stream_sync(&e->job->backend, e->stream));
    for (int64_t row = 0; row < on.values.rows; row++) {
        const float *values = host->values + row * on.values.stride,
                    *targets = host->targets + row * on.targets.stride;
        if (on.mask && !host->mask[row])
            continue;
        for (int k = 0; k < outputs->n; values += outputs->list[k++].width)
            DT_TRY(dt_scores_add(
                e->scores, k, values, targets + outputs->list[k].target,
                on.weights.data ? (double)host->weights[row * on.weights.stride + 1 + k] : 1));
    }
    return DT_OK;
}

// Adds the losses of a pass to those of their positions.
static dt_status add_positions(const struct dt_evaluation *e, const struct dt_pass *pass,
                               struct predictions *host)
{
    int64_t rows = pass->input.sequences * pass->input.length;
    const float *losses;
    const int32_t *labels;
    if (!dt_model_row_losses(e->model, &pass->input, &losses, &labels))
        return DT_OK;
    DT_TRY(copy_out(e, &host->losses, losses, rows * (int64_t)sizeof *losses));
    DT_TRY(copy_out(e, &host->labels, labels, rows * (int64_t)sizeof *labels));
    DT_TRY(dt_stream_sync(&e->job->backend, e->stream));
    for (int64_t i = 0; i < rows; i++) {
        struct dt_loss_part *part = &e->positions[i % pass->input.length];
        if (host->labels[i] == DT_LABEL_IGNORED)
            continue;
        part->loss += (double)host->losses[i];
        part->counted++;
    }
    return DT_OK;
}

static dt_status evaluate_batch(const struct dt_evaluation *e, int64_t micro_batches,
                                struct dt_loss_sum *sums, int64_t n_sums,
                                struct predictions *predictions)
{
    for (int64_t k = 0; k < micro_batches; k++) {
        struct dt_pass pass = {
            .before = e->carry->before, .after = e->carry->after, .stream = e->stream};
        DT_TRY(dt_carry_load(e->carry, e->carry->next, k, e->stream));
        DT_TRY(dt_input_micro_batch(e->input, e->stream, &pass.input));
        DT_TRY(dt_model_forward(e->model, &pass));
        DT_TRY(dt_model_loss(e->model, &pass, 0, sums + k % n_sums));
        if (e->positions)
            DT_TRY(add_positions(e, &pass, predictions));
        for (int windows = 0; e->scores && windows < 2; windows++)
            DT_TRY(score(e, &pass, windows, predictions));
        DT_TRY(dt_carry_store(e->carry, e->carry->next, k, e->stream));
    }
    return DT_OK;
}

// Adds the losses to sums[0]; where there are `n_sums`, each micro-batch has the sum of its place
// in the batch. Times the ops of the first batch, or of all batches where memory is unified.
static dt_status evaluate_batches(struct dt_evaluation *e, struct dt_loader *loader,
                                  int64_t batches, struct dt_loss_sum *sums, int64_t n_sums,
                                  struct predictions *predictions)
{
    DT_TRY(dt_carry_clear(e->carry, e->carry->next, e->stream));
    for (int64_t i = 0; i < batches; i++) {
        int64_t micro_batches;
        bool timed = e->times && (i == 0 || e->job->backend.table->unified);
        DT_TRY(dt_input_next(e->input, loader, e->stream, &micro_batches, NULL));
        if (micro_batches == 0)
            break;
        if (timed)
            dt_op_times_start(e->times, DT_LANE_VALIDATION);
        DT_TRY(evaluate_batch(e, micro_batches, sums, n_sums, predictions));
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

// Evaluates source i, whose batches begin with *first, and adds its sums to the total.
static dt_status evaluate_source(struct dt_evaluation *e, int i, int64_t *first,
                                 struct dt_loss_sum *sums, struct dt_loss_sum *host, int64_t n_sums,
                                 struct predictions *predictions)
{
    const struct dt_job *job = e->job;
    struct dt_loader_config config = dt_job_val_loader(job);
    struct dt_loader *loader;
    int64_t all = dt_ceil_div(job->val->sources[i].windows, job->settings.data.batch);
    int64_t batches = e->max_batches > 0 ? dt_min_i64(all, e->max_batches) : all;
    int64_t bytes = n_sums * (int64_t)sizeof *sums;
    DT_TRY(dt_loader_open(&config, *first, &loader));
    dt_status status = dt_fill(&job->backend, sums, 0, bytes, e->stream);
    if (status == DT_OK)
        status = evaluate_batches(e, loader, batches, sums, n_sums, predictions);
    if (status == DT_OK)
        status = dt_to_host(&job->backend, host, sums, bytes, e->stream);
    if (status == DT_OK)
        status = dt_stream_sync(&job->backend, e->stream);
    dt_input_settle(e->input);
    dt_loader_close(loader);
    DT_TRY(status);
    add_up(host, n_sums);
    e->sources[i] = (struct dt_loss_part){host->loss, host->counted};
    double *total = (double *)&e->total;
    for (int k = 0; k < SUMS; k++)
        total[k] += ((const double *)host)[k];
    *first += all;
    return DT_OK;
}

dt_status dt_evaluate(struct dt_evaluation *e)
{
    const struct dt_job *job = e->job;
    struct dt_loss_sum *sums = NULL, *host = NULL;
    struct predictions predictions = {0};
    bool tree = dt_job_sum_order(job) == DT_SUM_TREE;
    int64_t n = tree ? job->local_batch / job->micro_batch : 1, first = 0;
    int n_sources = job->val->n_sources;
    dt_status status;
    e->total = (struct dt_loss_sum){0};
    DT_TRY_GOTO(status, out, dt_alloc(&job->backend, n * (int64_t)sizeof *sums, &sums));
    DT_TRY_GOTO(status, out, DT_NEW(&host, n, "validation sums"));
    for (int i = 0; i < n_sources; i++)
        DT_TRY_GOTO(status, out, evaluate_source(e, i, &first, sums, host, n, &predictions));
out:
    free(host);
    dt_free(&job->backend, sums);
    void *copies[] = {predictions.values, predictions.targets, predictions.weights,
                      predictions.mask,   predictions.losses,  predictions.labels};
    for (size_t i = 0; i < sizeof copies / sizeof *copies; i++)
        dt_free_host(&job->backend, copies[i]);
    if (status != DT_OK)
        return status;
    DT_TRY(dt_collective(job->comm, &(struct dt_collective){.operation = DT_ALLREDUCE,
                                                            .dtype = DT_F64,
                                                            .count = SUMS,
                                                            .data = &e->total,
                                                            .order = dt_job_sum_order(job)}));
    if (n_sources > 1)
        DT_TRY(dt_collective(job->comm, &(struct dt_collective){.operation = DT_ALLREDUCE,
                                                                .dtype = DT_F64,
                                                                .count = 2 * n_sources,
                                                                .data = e->sources,
                                                                .order = dt_job_sum_order(job)}));
    if (e->positions)
        DT_TRY(dt_collective(job->comm,
                             &(struct dt_collective){.operation = DT_ALLREDUCE,
                                                     .dtype = DT_F64,
                                                     .count = 2 * job->settings.data.seq_len,
                                                     .data = e->positions,
                                                     .order = dt_job_sum_order(job)}));
    return e->scores ? dt_scores_finish(e->scores, job->comm) : DT_OK;
}

// Validation on the training model by forward passes. In the order DT_SUM_TREE each slot of the
// global batch has a sum over all batches, and a tree adds these sums: within a rank here, between
// ranks by the communicator.
#include "train/evaluate.h"

#include "base/memory.h"
#include "base/round.h"
#include "data/order.h"
#include "data/shard_cache.h"

enum { SUMS = sizeof(struct dt_loss_sum) / sizeof(double) };

// The predictions of a micro-batch in host memory.
struct predictions {
    float *values, *targets, *weights, *losses;
    int32_t *labels;
    uint8_t *mask, *right;
};

// Finds the document of a position, with an order and shards separate from the loader thread's.
struct documents {
    struct dt_order *order; // NULL: not needed
    struct dt_shard_cache *shards;
    int64_t step, first_slot; // of the batch; of this rank
    int64_t *lengths;         // [seq_len] lengths of a window's documents
};

// Host memory of an evaluation.
struct host {
    struct predictions predictions;
    struct documents documents;
};

// The most rows of an evaluation, on all ranks together.
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
    int64_t all = rows_of(job), rows = dt_ceil_div(all, dt_job_groups(job));
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

// Copies a view, if it exists, to *host, which the first copy allocates.
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

// Adds the predictions of a pass, per position or per window, to the scores. The first copy is the
// largest: positions come before windows, a last segment is not longer than earlier ones, and all
// micro-batches have the same shape.
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

static dt_status open_documents(const struct dt_evaluation *e, struct documents *documents)
{
    const struct dt_loader_config config = dt_job_val_loader(e->job);
    const struct dt_order_config order = {.dataset = config.dataset,
                                          .seed = config.rules.seed,
                                          .batch = config.batch,
                                          .block = config.block,
                                          .sequential = config.sequential,
                                          .parts = config.parts};
    documents->first_slot = config.rank * e->job->local_batch;
    DT_TRY(dt_order_create(&order, &documents->order));
    DT_TRY(dt_shard_cache_open(config.dataset, &documents->shards));
    return DT_NEW(&documents->lengths, e->job->settings.data.seq_len, "lengths of documents");
}

static void close_documents(struct documents *documents)
{
    dt_order_free(documents->order);
    dt_shard_cache_close(documents->shards);
    free(documents->lengths);
}

// Fills `lengths` for the window of a slot of this rank.
static dt_status find_documents(const struct dt_evaluation *e, struct documents *documents,
                                int64_t slot)
{
    const struct dt_dataset *val = e->job->val;
    struct dt_position at;
    struct dt_reader *reader;
    DT_TRY(dt_order_at(documents->order, documents->step, documents->first_slot + slot, &at));
    if (at.window < 0) // ignored by the loss
        return DT_OK;
    DT_TRY(dt_shard_cache_get(documents->shards, at.shard, false, &reader));
    return val->kind->documents(reader, &val->shards[at.shard], at.window, documents->lengths);
}

static void add_loss(struct dt_loss_part *part, float loss)
{
    part->loss += (double)loss;
    part->counted++;
}

// The smallest k with 2^k >= n.
static int class_of(int64_t n)
{
    return n <= 1 ? 0 : 64 - __builtin_clzll((unsigned long long)n - 1);
}

// Adds the losses of micro-batch k of a batch to the sums of their positions and documents.
static dt_status add_losses(struct dt_evaluation *e, const struct dt_pass *pass, int64_t k,
                            struct host *host)
{
    int64_t B = pass->input.sequences, L = pass->input.length;
    struct predictions *rows = &host->predictions;
    struct dt_row_losses on;
    if (!dt_segments_row_losses(e->segments, &pass->input, &on))
        return DT_OK;
    DT_TRY(copy_out(e, &rows->losses, on.losses, B * L * (int64_t)sizeof *on.losses));
    DT_TRY(copy_out(e, &rows->labels, on.labels, B * L * (int64_t)sizeof *on.labels));
    DT_TRY(copy_out(e, &rows->right, on.right, B * L));
    DT_TRY(dt_stream_sync(&e->job->backend, e->stream));
    for (int64_t b = 0; b < B; b++) {
        bool any = false, all = true;
        if (e->documents)
            DT_TRY(find_documents(e, &host->documents, k * B + b));
        for (int64_t t = 0; t < L; t++) {
            int64_t i = b * L + t;
            if (rows->labels[i] == DT_LABEL_IGNORED)
                continue;
            if (e->positions)
                add_loss(&e->positions[t], rows->losses[i]);
            if (e->documents)
                add_loss(&e->documents[class_of(host->documents.lengths[t])], rows->losses[i]);
            any = true;
            all &= rows->right[i];
        }
        e->windows.counted += any;
        e->windows.right += any && all;
    }
    return DT_OK;
}

static dt_status evaluate_batch(struct dt_evaluation *e, int64_t micro_batches,
                                struct dt_loss_sum *sums, int64_t n_sums, struct host *host)
{
    for (int64_t k = 0; k < micro_batches; k++) {
        struct dt_pass pass = {
            .before = e->carry->before, .after = e->carry->after, .stream = e->stream};
        struct dt_pass part;
        DT_TRY(dt_carry_load(e->carry, e->carry->next, k, e->stream));
        DT_TRY(dt_input_micro_batch(e->input, e->stream, &pass.input));
        if (e->stepper)
            DT_TRY(dt_stepper_begin_pass(e->stepper, &pass));
        for (int64_t i = 0; i < e->segments->n; i++) {
            DT_TRY(dt_segments_forward(e->segments, &pass, i, &part));
            DT_TRY(dt_segments_loss(e->segments, &part, 0, sums + k % n_sums));
            if (e->scores)
                DT_TRY(score(e, &part, false, &host->predictions));
        }
        DT_TRY(dt_segments_settle(e->segments));
        if (e->by_position)
            DT_TRY(add_losses(e, &pass, k, host));
        if (e->scores && dt_segments_own(e->segments, pass.input.length - 1))
            DT_TRY(score(e, &part, true, &host->predictions));
        DT_TRY(dt_carry_store(e->carry, e->carry->next, k, e->stream));
    }
    return DT_OK;
}

// Adds the losses to sums[0], or with `n_sums` to the sum of each micro-batch's place in the batch.
// Times the ops of the first batch, or of all batches with unified memory.
static dt_status evaluate_batches(struct dt_evaluation *e, struct dt_loader *loader,
                                  int64_t batches, struct dt_loss_sum *sums, int64_t n_sums,
                                  struct host *host)
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
        DT_TRY(evaluate_batch(e, micro_batches, sums, n_sums, host));
        e->batches++;
        host->documents.step++;
        if (!timed)
            continue;
        e->timed++;
        DT_TRY(dt_op_times_stop(e->times, e->stream));
        DT_TRY(dt_stream_sync(&e->job->backend, e->stream));
        dt_op_times_collect(e->times);
    }
    return DT_OK;
}

// Adds n sums, a power of two, into sums[0] by a binary tree.
static void add_up(struct dt_loss_sum *sums, int64_t n)
{
    double(*x)[SUMS] = (double(*)[SUMS])sums;
    for (int64_t step = 1; step < n; step *= 2)
        for (int64_t i = 0; i < n; i += 2 * step)
            for (int k = 0; k < SUMS; k++)
                x[i][k] += x[i + step][k];
}

// Evaluates source i, whose batches begin at *first, and adds its sums to the total.
static dt_status evaluate_source(struct dt_evaluation *e, int i, int64_t *first,
                                 struct dt_loss_sum *sums, struct dt_loss_sum *host_sums,
                                 int64_t n_sums, struct host *host)
{
    const struct dt_job *job = e->job;
    struct dt_loader_config config = dt_job_val_loader(job);
    struct dt_loader *loader;
    int64_t all = dt_ceil_div(job->val->sources[i].windows, job->settings.data.batch);
    int64_t batches = e->max_batches > 0 ? dt_min_i64(all, e->max_batches) : all;
    int64_t bytes = n_sums * (int64_t)sizeof *sums;
    host->documents.step = *first;
    DT_TRY(dt_loader_open(&config, *first, &loader));
    dt_status status = dt_fill(&job->backend, sums, 0, bytes, e->stream);
    if (status == DT_OK)
        status = evaluate_batches(e, loader, batches, sums, n_sums, host);
    if (status == DT_OK)
        status = dt_to_host(&job->backend, host_sums, sums, bytes, e->stream);
    if (status == DT_OK)
        status = dt_stream_sync(&job->backend, e->stream);
    dt_input_settle(e->input);
    dt_loader_close(loader);
    DT_TRY(status);
    add_up(host_sums, n_sums);
    e->sources[i] = (struct dt_loss_part){host_sums->loss, host_sums->counted};
    e->right[i] = host_sums->metrics[1];
    double *total = (double *)&e->total;
    for (int k = 0; k < SUMS; k++)
        total[k] += ((const double *)host_sums)[k];
    *first += all;
    return DT_OK;
}

static dt_status add_over_ranks(const struct dt_job *job, void *doubles, int64_t n)
{
    return dt_collective(job->comm, &(struct dt_collective){.operation = DT_ALLREDUCE,
                                                            .dtype = DT_F64,
                                                            .count = n,
                                                            .data = doubles,
                                                            .order = dt_job_sum_order(job)});
}

dt_status dt_evaluate(struct dt_evaluation *e)
{
    const struct dt_job *job = e->job;
    struct dt_loss_sum *sums = NULL, *host_sums = NULL;
    struct host host = {0};
    bool tree = dt_job_sum_order(job) == DT_SUM_TREE;
    int64_t n = tree ? job->local_batch / job->micro_batch : 1, first = 0;
    int n_sources = job->val->n_sources;
    dt_status status;
    e->total = (struct dt_loss_sum){0};
    DT_TRY_GOTO(status, out, dt_alloc(&job->backend, n * (int64_t)sizeof *sums, &sums));
    DT_TRY_GOTO(status, out, DT_NEW(&host_sums, n, "validation sums"));
    if (e->documents)
        DT_TRY_GOTO(status, out, open_documents(e, &host.documents));
    for (int i = 0; i < n_sources; i++)
        DT_TRY_GOTO(status, out, evaluate_source(e, i, &first, sums, host_sums, n, &host));
out:
    free(host_sums);
    close_documents(&host.documents);
    dt_free(&job->backend, sums);
    const struct predictions *p = &host.predictions;
    void *copies[] = {p->values, p->targets, p->weights, p->mask, p->losses, p->labels, p->right};
    for (size_t i = 0; i < sizeof copies / sizeof *copies; i++)
        dt_free_host(&job->backend, copies[i]);
    if (status != DT_OK)
        return status;
    DT_TRY(add_over_ranks(job, &e->total, SUMS));
    if (n_sources > 1) {
        DT_TRY(add_over_ranks(job, e->sources, 2 * n_sources));
        DT_TRY(add_over_ranks(job, e->right, n_sources));
    }
    if (e->by_position)
        DT_TRY(add_over_ranks(job, &e->windows, 2));
    if (e->positions)
        DT_TRY(add_over_ranks(job, e->positions, 2 * job->settings.data.seq_len));
    if (e->documents)
        DT_TRY(add_over_ranks(job, e->documents, 2 * DT_DOCUMENT_CLASSES));
    return e->scores ? dt_scores_finish(e->scores, job->comm) : DT_OK;
}

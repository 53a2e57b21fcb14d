// `dtrain eval CONFIG`: computes the validation loss of the checkpoint that training would resume
// from (or of run.init_from), on all ranks.
#include "base/json.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "cmd/cmd.h"
#include "job/job.h"
#include "train/evaluate.h"
#include "train/memory.h"
#include "train/metrics.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct options {
    bool ema, positions, documents;
};

static const struct dt_option options[] = {
    {DT_OPTION(FLAG, ema, "false", "the moving average of the weights (optim.ema)")},
    {DT_OPTION(FLAG, positions, "false", "the loss by position, of a language model")},
    {DT_OPTION(FLAG, documents, "false", "the loss by length of documents (/doc_starts)")},
    {.key = {0}},
};

static const char *source(const struct dt_job *job)
{
    return job->resume[0] ? job->resume : job->settings.run.init_from;
}

// Checks the options; the result is the same on every rank.
static dt_status check(const struct dt_job *job, const struct options *o)
{
    struct dt_outputs outputs;
    if (!job->val)
        return DT_FAIL(DT_USER, "set data.val to the shards to evaluate on, or data.val_fraction",
                       "there is no data.val");
    if (!source(job)[0])
        return DT_FAIL(DT_USER, "train first, or give run.resume or run.init_from",
                       "no checkpoint in %s", job->run_path);
    DT_TRY(dt_model_outputs_of(&job->model, &outputs));
    if ((o->positions || o->documents) && !outputs.perplexity)
        return DT_FAIL(DT_USER, "leave it out", "--%s is for language models",
                       o->positions ? "positions" : "documents");
    for (int64_t i = 0; o->documents && i < job->val->n_shards; i++)
        if (!job->val->shards[i].doc_starts)
            return DT_FAIL(DT_USER, "leave it out, or pack shards with /doc_starts",
                           "--documents: %s does not say where documents start",
                           job->val->shards[i].path);
    return DT_OK;
}

static void add_matrix(cJSON *json, const double *cells, int64_t n)
{
    cJSON *matrix = cJSON_AddArrayToObject(json, "confusion");
    for (int64_t i = 0; i < n; i++)
        cJSON_AddItemToArray(matrix, cJSON_CreateDoubleArray(cells + i * n, (int)n));
}

// Prints the matrix for people; programs read the JSON line.
static void show_matrix(const struct dt_output *head, const double *cells)
{
    int64_t n = head->classes;
    dt_info("%s: rows are the classes of the data, columns the predicted ones", head->name);
    for (int64_t i = -1; i < n; i++) {
        char line[1024] = "";
        if (i < 0)
            dt_append(line, sizeof line, "%8s", "");
        else
            dt_append(line, sizeof line, "%8lld", (long long)i);
        for (int64_t j = 0; j < n; j++)
            dt_append(line, sizeof line, " %7.6g", i < 0 ? (double)j : cells[i * n + j]);
        dt_log_message("", "%s", line);
    }
}

// Bytes of text per token: 1 for byte tokens, else from the shards; 0: unknown.
static double bytes_per_token(const struct dt_job *job)
{
    double bytes = 0, tokens = 0;
    for (int64_t i = 0; i < job->val->n_shards; i++) {
        const struct dt_shard *shard = &job->val->shards[i];
        bool is_bytes = shard->text_bytes == 0 && shard->type == DT_U8 && shard->vocab_size == 256;
        if (shard->text_bytes == 0 && !is_bytes)
            return 0;
        bytes += (double)(is_bytes ? shard->count : shard->text_bytes);
        tokens += (double)shard->count;
    }
    return tokens > 0 ? bytes / tokens : 0;
}

static cJSON *add_part(cJSON *json, const char *name, const struct dt_loss_part *part)
{
    cJSON *one = cJSON_AddObjectToObject(json, name);
    cJSON_AddNumberToObject(one, "loss", part->loss / part->counted);
    cJSON_AddNumberToObject(one, "tokens", part->counted);
    return one;
}

// Adds "64":{"loss":2.4,"tokens":192} for documents of 33 to 64 tokens, and so on for each power of
// two.
static void add_documents(cJSON *json, const struct dt_loss_part parts[DT_DOCUMENT_CLASSES])
{
    cJSON *list = cJSON_AddObjectToObject(json, "loss_by_document");
    for (int k = 0; k < DT_DOCUMENT_CLASSES; k++)
        if (parts[k].counted > 0) {
            char name[32];
            snprintf(name, sizeof name, "%lld", 1LL << k);
            add_part(list, name, &parts[k]);
        }
}

// Adds "1":2.9,"2":2.7,"4":2.4 …: the mean loss of positions after the previous limit up to this
// one.
static void add_positions(cJSON *json, const struct dt_loss_part *parts, int64_t n)
{
    cJSON *list = cJSON_AddObjectToObject(json, "loss_by_position");
    for (int64_t from = 0, to = 1; from < n; from = to, to = 2 * to < n ? 2 * to : n) {
        char name[32];
        struct dt_loss_part sum = {0};
        for (int64_t i = from; i < to; i++)
            sum.loss += parts[i].loss, sum.counted += parts[i].counted;
        snprintf(name, sizeof name, "%lld", (long long)to);
        if (sum.counted > 0)
            cJSON_AddNumberToObject(list, name, sum.loss / sum.counted);
    }
}

static dt_status print(const char *from, const struct dt_model *model,
                       const struct dt_evaluation *e)
{
    const struct dt_outputs *measured = dt_model_measured(model);
    double loss = e->total.loss / e->total.counted; // cJSON writes null if not finite
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "event", "eval");
    cJSON_AddStringToObject(json, "model", from);
    cJSON_AddNumberToObject(json, "loss", loss);
    if (e->by_position) {
        cJSON_AddNumberToObject(json, "perplexity", exp(loss));
        cJSON_AddNumberToObject(json, "accuracy", e->total.metrics[1] / e->total.counted);
        // A row of pairs is a window, unless data.carry_state lets it span several.
        if (e->job->val->shards[0].row > 1 && !e->job->settings.data.carry_state)
            cJSON_AddNumberToObject(json, "rows_right", e->windows.right / e->windows.counted);
    }
    cJSON_AddNumberToObject(json, "tokens", e->total.counted);
    double bytes =
        e->by_position && !dt_model_masking(&e->job->model).on ? bytes_per_token(e->job) : 0;
    if (bytes > 0)
        cJSON_AddNumberToObject(json, "bits_per_byte", loss / (bytes * log(2.0)));
    if (e->positions)
        add_positions(json, e->positions, e->job->settings.data.seq_len);
    if (e->documents)
        add_documents(json, e->documents);
    const struct dt_dataset *val = e->job->val;
    cJSON *sources = val->n_sources > 1 ? cJSON_AddObjectToObject(json, "sources") : NULL;
    for (int i = 0; sources && i < val->n_sources; i++) { // "web/*.h5":{"loss":2.1,"tokens":4096}
        cJSON *one = add_part(sources, val->sources[i].name, &e->sources[i]);
        if (e->by_position)
            cJSON_AddNumberToObject(one, "accuracy", e->right[i] / e->sources[i].counted);
    }
    cJSON *heads = measured ? cJSON_AddObjectToObject(json, "heads") : NULL;
    for (int k = 0; measured && k < measured->n; k++) { // "buttons":{"loss":0.3,"accuracy":0.9, …}
        struct dt_named_number list[DT_HEAD_NUMBERS];
        int n = dt_head_numbers(measured, &e->total, e->scores, k, list);
        const double *confusion = dt_scores_confusion(e->scores, k);
        cJSON *one = cJSON_AddObjectToObject(heads, measured->list[k].name);
        for (int i = 0; i < n; i++)
            cJSON_AddNumberToObject(one, list[i].name, list[i].value);
        if (confusion)
            add_matrix(one, confusion, measured->list[k].classes);
        if (confusion)
            show_matrix(&measured->list[k], confusion);
    }
    char *text = dt_json_line(json);
    cJSON_Delete(json);
    if (!text)
        return DT_FAIL(DT_MACHINE, NULL, "no memory for a line");
    fputs(text, stdout);
    free(text);
    return DT_OK;
}

static dt_status evaluate(struct dt_job *job, const struct options *o)
{
    struct dt_model *model = NULL;
    struct dt_input input = {0};
    struct dt_carry carry = {0};
    struct dt_segments segments = {0};
    DT_TRY(dt_job_settle_segment(job));
    struct dt_snapshot snapshot = {0};
    struct dt_model_shape shape = dt_job_shape(job, false);
    struct dt_stepper_config step = dt_job_stepper(job);
    struct dt_evaluation e = {.job = job,
                              .input = &input,
                              .carry = &carry,
                              .segments = &segments,
                              .max_batches = job->settings.log.eval_batches};
    struct dt_outputs outputs;
    dt_status status;
    DT_TRY(dt_model_outputs_of(&job->model, &outputs));
    e.by_position = shape.losses = outputs.perplexity;
    if (o->positions)
        DT_TRY_GOTO(status, out,
                    DT_NEW(&e.positions, job->settings.data.seq_len, "the losses by position"));
    if (o->documents)
        DT_TRY_GOTO(status, out,
                    DT_NEW(&e.documents, DT_DOCUMENT_CLASSES, "the losses by document"));
    DT_TRY_GOTO(status, out, dt_model_create(&job->backend, &job->model, &shape, &model));
    DT_TRY_GOTO(status, out,
                dt_input_create(&job->backend, dt_model_arrays(model), &step.batch, &input));
    DT_TRY_GOTO(status, out, dt_segments_create(&job->backend, model, &step.batch, &segments));
    if (job->settings.data.carry_state)
        DT_TRY_GOTO(status, out, dt_carry_create(&job->backend, model, &step.batch, NULL, &carry));
    DT_TRY_GOTO(
        status, out,
        dt_snapshot_create(&job->backend, model, NULL, job->comm->info.rank == 0, &snapshot));
    DT_TRY_GOTO(status, out, dt_job_load_weights(job, source(job), o->ema, &snapshot));
    e.model = model;
    DT_TRY_GOTO(status, out, dt_evaluation_warn(job));
    DT_TRY_GOTO(status, out, dt_evaluation_scores(job, model, &e.scores));
    DT_TRY_GOTO(status, out, dt_evaluate(&e));
    if (job->comm->info.rank == 0)
        status = print(source(job), model, &e);
out:
    dt_scores_destroy(e.scores);
    free(e.positions);
    free(e.documents);
    dt_input_destroy(&input);
    dt_carry_destroy(&carry);
    dt_segments_destroy(&segments);
    dt_snapshot_destroy(&snapshot);
    dt_model_destroy(model);
    return status;
}

static dt_status run(struct dt_comm *comm, const struct dt_call *call)
{
    struct dt_job job;
    dt_status status = dt_job_open(comm, DT_PURPOSE_EVAL, call->words, call->n_words, &job);
    if (status == DT_OK)
        status = dt_agree(comm, check(&job, call->options));
    if (status == DT_OK)
        status = evaluate(&job, call->options);
    dt_job_close(&job);
    return status;
}

const struct dt_command dt_cmd_eval = {
    .name = "eval",
    .usage = "CONFIG [section.key=value …] [options]",
    .help = "validation loss of the run's newest checkpoint",
    .about = "Evaluates the checkpoint that training would resume from, or else run.init_from, on "
             "data.val (at most log.eval_batches batches) and prints one JSON line; of categorical "
             "heads of up to 20 classes also the confusion matrix, on stderr.",
    .min_words = 1,
    .max_words = INT_MAX,
    .configured = true,
    .communicates = true,
    .options = options,
    .options_size = sizeof(struct options),
    .run = run,
};

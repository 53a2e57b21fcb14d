// Plans predictions: the arrays of the output, the groups of segments that run side by side, and
// sizes. predict_run.c executes the plan.
#include "train/predict.h"

#include "base/file.h"
#include "base/list.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/round.h"
#include "data/shard_cache.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

// Bounds of one pass: enough rows for fast products, and few enough streams that short episodes
// form enough groups for all ranks.
enum { ROWS = 4096, STREAMS_MOST = 64, GROUPS_LEAST = 8, LOGITS_MOST = 1 << 28 };

static void add_column(struct dt_predict_plan *plan, enum dt_prediction what, int output,
                       int64_t width)
{
    plan->columns[plan->n_columns++] =
        (struct dt_predict_column){.what = what, .output = output, .width = width};
}

static bool has_probabilities(const struct dt_output_type *type)
{
    return type->one_of || type->classes == 2;
}

static dt_status list_columns(struct dt_predict_plan *plan)
{
    const struct dt_predict_options *options = &plan->options;
    DT_TRY(dt_model_outputs_of(&plan->job->model, &plan->outputs));
    bool tokens = plan->outputs.perplexity;
    if (tokens && options->draw)
        return DT_FAIL(DT_USER, "dtrain sample generates text",
                       "--draw is for the heads of a policy, not for a language model");
    if (!tokens && (plan->outputs.n == 0 || !plan->outputs.list[0].measure))
        return DT_FAIL(DT_USER, NULL, "the model's head \"%s\" has no outputs to predict",
                       plan->job->model.heads);
    if (plan->outputs.autoregressive && plan->job->val->layout.target_width == 0 && !options->draw)
        return DT_FAIL(DT_USER, "use --draw: they are then conditioned on what is drawn",
                       "each head is conditioned on the targets of those before it "
                       "(model.autoregressive), and %s has none",
                       plan->job->val->shards[0].path);
    if (tokens)
        add_column(plan, DT_PREDICT_TOKENS, 0, 1);
    for (int k = 0; k < plan->outputs.n && !tokens; k++) {
        const struct dt_output *output = &plan->outputs.list[k];
        add_column(plan, DT_PREDICT_VALUES, k, output->width);
        if (has_probabilities(output->type))
            add_column(plan, DT_PREDICT_PROBABILITIES, k, output->width);
        if (options->draw)
            add_column(plan, DT_PREDICT_DRAWN, k, output->target_width);
        if (options->hidden && strcmp(output->name, "hidden") == 0)
            return DT_FAIL(DT_USER, "predict without --hidden",
                           "a head is called hidden, as the dataset of --hidden is");
    }
    if (options->hidden)
        add_column(plan, DT_PREDICT_HIDDEN, 0, plan->job->model.d_model);
    return DT_OK;
}

// "/data/demo_3/action/logits": the path of a column below that of a segment's group.
static dt_status name_column(const struct dt_predict_plan *plan, int column, const char *file,
                             const char *group, char **path)
{
    const struct dt_predict_column *c = &plan->columns[column];
    const struct dt_output *output = &plan->outputs.list[c->output];
    const char *const names[] = {[DT_PREDICT_VALUES] =
                                     has_probabilities(output->type) ? "logits" : "values",
                                 [DT_PREDICT_PROBABILITIES] = "probabilities",
                                 [DT_PREDICT_DRAWN] = "drawn",
                                 [DT_PREDICT_HIDDEN] = "hidden",
                                 [DT_PREDICT_TOKENS] = "log_probabilities"};
    bool of_head = c->what != DT_PREDICT_HIDDEN && c->what != DT_PREDICT_TOKENS;
    return dt_memory_text(path, "%s%s%s%s%s/%s", file[0] ? "/" : "", file, group,
                          of_head ? "/" : "", of_head ? output->name : "", names[c->what]);
}

static dt_status add_arrays(struct dt_predict_plan *plan, const struct dt_shard *shard,
                            const char *file, const char *group, int64_t rows)
{
    struct dt_prediction_file *to = &plan->file;
    for (int i = 0; i < plan->n_columns; i++) {
        DT_TRY(dt_list_grow(&to->arrays, to->n, sizeof *to->arrays));
        struct dt_prediction_array *array = &to->arrays[to->n];
        int64_t width = plan->columns[i].width * shard->row;
        bool flat = plan->columns[i].what == DT_PREDICT_TOKENS && shard->row == 1;
        *array = (struct dt_prediction_array){.rows = rows, .width = flat ? 0 : width};
        DT_TRY(name_column(plan, i, file, group, &array->path));
        to->n++;
    }
    return DT_OK;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

// With several files, each has a group with its name.
static dt_status name_file(const struct dt_dataset *data, int64_t shard, const char **name)
{
    *name = data->n_shards > 1 ? base_name(data->shards[shard].path) : "";
    for (int64_t i = 0; i < shard; i++)
        if (strcmp(base_name(data->shards[i].path), *name) == 0)
            return DT_FAIL(DT_USER, "predict them one after another",
                           "%s and %s have the same name, by which the output has a group for each",
                           data->shards[i].path, data->shards[shard].path);
    return DT_OK;
}

static dt_status list_shard(struct dt_predict_plan *plan, int64_t number)
{
    struct dt_job *job = plan->job;
    const struct dt_shard *shard = &job->val->shards[number];
    struct dt_reader *reader;
    struct dt_segment segment;
    const char *file;
    int64_t shared = plan->file.n; // if segments share arrays
    bool any = false;
    DT_TRY(name_file(job->val, number, &file));
    if (!job->val->kind->segment)
        return DT_FAIL(DT_USER, "give --data GLOB",
                       "%s is not a file whose groups could be mirrored", shard->path);
    DT_TRY(dt_shard_cache_get(job->val_shards, number, false, &reader));
    for (int64_t i = 0; job->val->kind->segment(reader, shard, i, &segment); i++) {
        if (segment.group)
            DT_TRY(add_arrays(plan, shard, file, segment.group, segment.count));
        else if (!any)
            DT_TRY(add_arrays(plan, shard, file, "", segment.rows));
        any = true;
        DT_TRY(dt_list_grow(&plan->segments, plan->n_segments, sizeof *plan->segments));
        plan->segments[plan->n_segments] = (struct dt_predict_segment){
            .shard = number,
            .window = segment.window,
            .rows = segment.count * shard->row,
            .number = plan->n_segments,
            .first = segment.first * shard->row,
            .array = segment.group ? plan->file.n - plan->n_columns : shared,
            .label = dt_model_masking(&job->model).on ? 0 : segment.label};
        plan->n_segments++;
    }
    return DT_OK;
}

static int by_length(const void *a, const void *b)
{
    const struct dt_predict_segment *x = a, *y = b;
    if (x->rows != y->rows)
        return x->rows < y->rows ? 1 : -1;
    return x->number < y->number ? -1 : 1;
}

// A folder cannot be replaced, and the predicted data must not be.
static dt_status check_output(const struct dt_predict_plan *plan)
{
    const char *path = plan->options.output;
    const struct dt_dataset *data = plan->job->val;
    struct stat output, shard;
    if (dt_is_dir(path))
        return DT_FAIL(DT_USER, "give the name of a file", "%s is a folder", path);
    if (!plan->options.force && dt_file_exists(path))
        return DT_FAIL(DT_USER, "give another name, or --force to replace it", "%s exists", path);
    for (int64_t i = 0; i < data->n_shards && stat(path, &output) == 0; i++)
        if (stat(data->shards[i].path, &shard) == 0 && shard.st_dev == output.st_dev &&
            shard.st_ino == output.st_ino)
            return DT_FAIL(DT_USER, "give another name", "%s is data that is to be predicted",
                           path);
    return DT_OK;
}

static dt_status list_segments(struct dt_predict_plan *plan)
{
    DT_TRY(check_output(plan));
    for (int64_t i = 0; i < plan->job->val->n_shards; i++)
        DT_TRY(list_shard(plan, i));
    if (plan->n_segments > 0)
        qsort(plan->segments, (size_t)plan->n_segments, sizeof *plan->segments, by_length);
    return DT_OK;
}

int64_t dt_predict_streams(int64_t n_segments, int64_t length, int64_t vocab)
{
    int64_t fit = ROWS / length, few = dt_ceil_div(n_segments, GROUPS_LEAST);
    if (vocab > 0)
        fit = dt_min_i64(fit, LOGITS_MOST / (length * vocab));
    return dt_max_i64(1, dt_min_i64(dt_min_i64(fit, few), STREAMS_MOST));
}

dt_status dt_predict_prepare(struct dt_job *job, const struct dt_predict_options *options,
                             struct dt_predict_plan *plan)
{
    struct dt_comm *comm = job->comm;
    bool root = comm->info.rank == 0;
    *plan = (struct dt_predict_plan){.job = job,
                                     .options = *options,
                                     .source =
                                         job->resume[0] ? job->resume : job->settings.run.init_from,
                                     .length = job->settings.data.seq_len};
    dt_status status = DT_OK;
    if (!plan->source[0])
        status = DT_FAIL(DT_USER, "train first, or give run.resume or run.init_from",
                         "no checkpoint in %s", job->run_path);
    if (status == DT_OK)
        status = list_columns(plan);
    if (status == DT_OK && root)
        status = list_segments(plan);
    DT_TRY(dt_agree(comm, status));
    void *segments = plan->segments;
    int64_t bytes = plan->n_segments * (int64_t)sizeof *plan->segments;
    status = dt_broadcast_buffer(comm, &segments, &bytes, 0);
    plan->segments = segments;
    DT_TRY(status);
    plan->n_segments = bytes / (int64_t)sizeof *plan->segments;
    for (int64_t i = 0; i < plan->n_segments; i++)
        plan->rows += plan->segments[i].rows;
    plan->streams = dt_predict_streams(plan->n_segments, plan->length,
                                       plan->outputs.perplexity ? job->model.vocab_size : 0);
    plan->n_groups = dt_ceil_div(plan->n_segments, plan->streams);
    return DT_OK;
}

void dt_predict_free(struct dt_predict_plan *plan)
{
    for (int64_t i = 0; plan->file.arrays && i < plan->file.n; i++) // rank 0
        free(plan->file.arrays[i].path);
    free(plan->file.arrays);
    free(plan->segments);
    *plan = (struct dt_predict_plan){0};
}

int64_t dt_predict_bytes(const struct dt_predict_plan *plan)
{
    int64_t bytes = 0;
    for (int64_t i = 0; i < plan->file.n; i++)
        bytes += plan->file.arrays[i].rows * dt_prediction_row_bytes(&plan->file.arrays[i]);
    return bytes;
}

// Executes a plan of predictions (predict.h): a group of segments at a time, window by window.
#include "base/clock.h"
#include "base/finite.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/rng.h"
#include "comm/job_control.h"
#include "data/shard_cache.h"
#include "data/xxh3.h"
#include "train/predict.h"

#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

// Limits of what a stream reads at once, except that it reads at least one window.
enum { READ_ROWS = 1 << 15, READ_BYTES = 1 << 24, SYNC_S = 2 };

struct predictor {
    const struct dt_predict_plan *plan;
    const struct dt_backend *backend;
    struct dt_model *model;
    struct dt_model_state *before, *after;
    int64_t state_bytes;
    // Batch arrays: those of the reader in pinned host memory, and those of the model on the
    // device.
    struct dt_read_rules rules;
    struct dt_array_list yields, reads;
    void *host[DT_BATCH_ARRAYS], *device[DT_BATCH_ARRAYS];
    struct dt_block *blocks; // [streams] of `at_once` windows
    char *block_memory;
    int64_t at_once;
    struct dt_philox *rng; // [streams, outputs]
    float *logits;         // [streams * length, vocabulary] on the device; only for tokens
    char *staged;          // predictions of the device; NULL: unified memory
    int64_t staged_bytes;
    float *rows;      // [length, widest column], to be written
    int64_t *offsets; // of the arrays in the file
    int fd;           // of the file
    uint8_t *done;    // [groups]: 1 marked in the file, 2 to be marked
    double synced, next, began;
    int64_t mine, predicted; // rows of this rank; rows of these that are done
};

// An upper bound of the bytes of a block of `windows` windows.
static int64_t block_bytes(const struct predictor *p, int64_t windows)
{
    const struct dt_dataset *data = p->plan->job->val;
    int64_t most = 0;
    for (int64_t i = 0; i < data->n_shards; i++)
        most =
            dt_max_i64(most, data->kind->block_bytes(data, &p->rules, &data->shards[i],
                                                     dt_min_i64(windows, data->shards[i].windows)));
    return most;
}

static dt_status create_arrays(struct predictor *p)
{
    const struct dt_predict_plan *plan = p->plan;
    const struct dt_dataset *data = plan->job->val;
    struct dt_loader_config loader = dt_job_val_loader(plan->job);
    int64_t rows = plan->streams * plan->length, widest = 1;
    p->rules = loader.rules;
    p->rules.carry = true;
    p->rules.masking.rate = 0;
    data->kind->arrays(data, &p->rules, &p->yields);
    p->reads = *dt_model_arrays(p->model);
    int targets = dt_array_list_find(&p->reads, "targets");
    if (targets >= 0) // filled with drawn values if the data have none
        dt_array_list_add(&p->yields, "targets", DT_F32, p->reads.arrays[targets].width, true);
    for (int i = 0; i < p->yields.n; i++)
        DT_TRY(dt_alloc_host(p->backend, dt_array_bytes(&p->yields.arrays[i], rows), &p->host[i]));
    for (int i = 0; i < p->reads.n; i++)
        DT_TRY(dt_alloc(p->backend, dt_array_bytes(&p->reads.arrays[i], rows), &p->device[i]));
    for (int i = 0; i < plan->n_columns; i++)
        widest = dt_max_i64(widest, plan->columns[i].width);
    DT_TRY(DT_NEW(&p->rows, plan->length * widest, "predictions"));
    DT_TRY(DT_NEW(&p->rng, plan->streams * plan->outputs.n, "%" PRId64 " segments", plan->streams));
    DT_TRY(DT_NEW(&p->blocks, plan->streams, "%" PRId64 " segments", plan->streams));
    p->at_once = READ_BYTES / dt_max_i64(block_bytes(p, 1), 1);
    p->at_once = dt_max_i64(1, dt_min_i64(p->at_once, READ_ROWS / plan->length));
    int64_t bytes = dt_reader_align(block_bytes(p, p->at_once));
    DT_TRY(DT_NEW_ALIGNED(&p->block_memory, plan->streams * bytes, DT_READER_ALIGN,
                          "use shorter windows (data.seq_len)", "%" PRId64 " segments",
                          plan->streams));
    for (int64_t i = 0; i < plan->streams; i++)
        p->blocks[i].memory = p->block_memory + i * bytes;
    return plan->outputs.perplexity
               ? dt_alloc(p->backend, rows * plan->job->model.vocab_size * (int64_t)sizeof(float),
                          &p->logits)
               : DT_OK;
}

static dt_status create(struct predictor *p, struct dt_snapshot *snapshot)
{
    const struct dt_predict_plan *plan = p->plan;
    struct dt_job *job = plan->job;
    const struct dt_model_shape shape = {.sequences = plan->streams, .length = plan->length};
    p->backend = &job->backend;
    DT_TRY(dt_model_create(p->backend, &job->model, &shape, &p->model));
    if (job->model.direction == DT_DIRECTION_FORWARD) { // else each window is read by itself
        DT_TRY(dt_model_state_bytes(&job->model, plan->streams, &p->state_bytes));
        DT_TRY(dt_model_state_create(p->model, plan->streams, &p->before));
        DT_TRY(dt_model_state_create(p->model, plan->streams, &p->after));
    }
    DT_TRY(dt_snapshot_create(p->backend, p->model, NULL, job->comm->info.rank == 0, snapshot));
    DT_TRY(dt_job_load_weights(job, plan->source, plan->options.ema, snapshot));
    return create_arrays(p);
}

static void destroy(struct predictor *p)
{
    for (int i = 0; i < DT_BATCH_ARRAYS; i++) {
        dt_free_host(p->backend, p->host[i]);
        dt_free(p->backend, p->device[i]);
    }
    dt_free_host(p->backend, p->staged);
    dt_free(p->backend, p->logits);
    if (p->model) {
        dt_model_state_destroy(p->model, p->before);
        dt_model_state_destroy(p->model, p->after);
    }
    dt_model_destroy(p->model);
    free(p->block_memory);
    free(p->blocks);
    free(p->rng);
    free(p->rows);
    free(p->offsets);
    free(p->done);
    if (p->fd >= 0)
        close(p->fd);
}

// Input.

// Writes a window of a segment from the block of its stream to row `stream` of the arrays.
static dt_status read_window(struct predictor *p, int64_t stream,
                             const struct dt_predict_segment *segment, int64_t number)
{
    struct dt_job *job = p->plan->job;
    const struct dt_dataset *data = job->val;
    struct dt_block *block = &p->blocks[stream];
    int64_t window = segment->window + number;
    void *rows[DT_BATCH_ARRAYS] = {NULL};
    if (block->windows == 0 || block->shard != segment->shard || window < block->first ||
        window >= block->first + block->windows) {
        struct dt_reader *reader;
        int64_t left = dt_ceil_div(segment->rows, p->plan->length) - number;
        *block = (struct dt_block){.shard = segment->shard,
                                   .first = window,
                                   .windows = dt_min_i64(left, p->at_once),
                                   .memory = block->memory};
        DT_TRY(dt_shard_cache_get(job->val_shards, segment->shard, p->rules.verify, &reader));
        DT_TRY(data->kind->read(reader, data, &p->rules, block));
    }
    for (int i = 0; i < p->yields.n; i++)
        rows[i] =
            (char *)p->host[i] + stream * dt_array_bytes(&p->yields.arrays[i], p->plan->length);
    return data->kind->write(data, &p->rules, block, window, rows);
}

static dt_status send(struct predictor *p, int array, int64_t rows)
{
    int from = dt_array_list_find(&p->yields, p->reads.arrays[array].name);
    return from < 0 ? DT_OK
                    : dt_to_device(p->backend, p->device[array], p->host[from],
                                   dt_array_bytes(&p->reads.arrays[array], rows), NULL);
}

// Output.

// Copies a view to host memory, valid until the next call.
static dt_status fetch(struct predictor *p, struct dt_view *view)
{
    int64_t bytes = ((view->rows - 1) * view->stride + view->cols) * dt_dtype_size(view->dtype);
    if (p->backend->table->unified)
        return DT_OK;
    if (bytes > p->staged_bytes) {
        dt_free_host(p->backend, p->staged);
        p->staged = NULL;
        DT_TRY(dt_alloc_host(p->backend, bytes, &p->staged));
        p->staged_bytes = bytes;
    }
    DT_TRY(dt_to_host(p->backend, p->staged, view->data, bytes, NULL));
    view->data = p->staged;
    return dt_stream_sync(p->backend, NULL);
}

// Writes n rows of a column from row `row` of the segment on.
static dt_status write_rows(const struct predictor *p, const struct dt_predict_segment *segment,
                            int column, int64_t row, int64_t n, const float *values)
{
    int64_t bytes = p->plan->columns[column].width * (int64_t)sizeof *values;
    return dt_pwrite_all(p->fd, p->plan->file.path, values, n * bytes,
                         p->offsets[segment->array + column] + (segment->first + row) * bytes);
}

static dt_status check_finite(const struct predictor *p, const struct dt_predict_segment *segment,
                              int64_t row, int64_t n, int64_t width, const char *name)
{
    const struct dt_job *job = p->plan->job;
    int64_t bad = dt_find_outside(p->rows, n * width, -FLT_MAX, FLT_MAX);
    struct dt_reader *reader;
    char place[1024] = "";
    if (bad == n * width)
        return DT_OK;
    float value = p->rows[bad];
    DT_TRY(dt_shard_cache_get(job->val_shards, segment->shard, false, &reader));
    if (job->val->kind->place)
        job->val->kind->place(reader, segment->window, place, sizeof place);
    return DT_FAIL(DT_MACHINE,
                   "the data is far outside the values of training, or the weights have diverged: "
                   "use an earlier checkpoint",
                   "%s: the prediction \"%s\" for row %" PRId64 " of the segment at %s is %g",
                   job->val->shards[segment->shard].path, name, row + bad / width,
                   place[0] ? place : "its start", (double)value);
}

static void to_probabilities(const struct dt_output *output, int64_t n, float *rows)
{
    int64_t width = output->width;
    for (float *row = rows; row < rows + n * width; row += width) {
        double most = row[0], total = 0;
        for (int64_t i = 1; i < width; i++)
            most = row[i] > most ? row[i] : most;
        for (int64_t i = 0; i < width; i++)
            total += exp(row[i] - most);
        for (int64_t i = 0; i < width; i++)
            row[i] = (float)(output->type->one_of ? exp(row[i] - most) / total
                                                  : 1 / (1 + exp(-(double)row[i])));
    }
}

// The window being predicted.
struct now {
    const struct dt_predict_segment *segments;
    int64_t n, window; // segments that reach it; its index
};

static int64_t rows_of(const struct predictor *p, const struct now *now, int64_t stream)
{
    return dt_min_i64(now->segments[stream].rows - now->window * p->plan->length, p->plan->length);
}

// Copies the n rows of a stream from a view with a row per position or, with `windows`, per stream,
// which then applies to all its positions.
static void copy_rows(struct predictor *p, const struct dt_view *view, bool windows, int64_t stream,
                      int64_t n)
{
    for (int64_t t = 0; t < n; t++) {
        const void *from = dt_view_at(view, windows ? stream : stream * p->plan->length + t, 0);
        float *to = p->rows + t * view->cols;
        if (view->dtype == DT_F32)
            memcpy(to, from, (size_t)view->cols * sizeof *to);
        else
            for (int64_t i = 0; i < view->cols; i++)
                to[i] = dt_bf16_to_f32(((const dt_bf16 *)from)[i]);
    }
}

// Draws values in place of the rows in p->rows, and for the model's array of targets.
static void draw(struct predictor *p, int k, int64_t stream, int64_t n)
{
    const struct dt_output *output = &p->plan->outputs.list[k];
    int i = dt_array_list_find(&p->yields, "targets");
    int64_t width = p->yields.arrays[i].width;
    float *targets = (float *)p->host[i] + stream * p->plan->length * width + output->target;
    float *drawn = p->rows;
    for (int64_t t = 0; t < n; t++, targets += width, drawn += output->target_width) {
        output->type->draw(output, p->rows + t * output->width, p->plan->options.temperature,
                           &p->rng[stream * p->plan->outputs.n + k], targets);
        memcpy(drawn, targets, (size_t)output->target_width * sizeof *drawn);
    }
}

// Writes the columns of output k, or (k < 0) the hidden states, from one view in host memory.
static dt_status write_columns(struct predictor *p, const struct now *now, int k, bool windows,
                               struct dt_view view)
{
    const struct dt_predict_plan *plan = p->plan;
    const char *name = k < 0 ? "hidden" : plan->outputs.list[k].name;
    for (int64_t stream = 0; stream < now->n; stream++) {
        const struct dt_predict_segment *segment = &now->segments[stream];
        int64_t n = rows_of(p, now, stream), row = now->window * plan->length;
        for (int c = 0; c < plan->n_columns; c++) {
            const struct dt_predict_column *column = &plan->columns[c];
            if ((column->what == DT_PREDICT_HIDDEN) != (k < 0) || (k >= 0 && column->output != k))
                continue;
            copy_rows(p, &view, windows, stream, n);
            DT_TRY(check_finite(p, segment, row, n, view.cols, name));
            if (column->what == DT_PREDICT_PROBABILITIES)
                to_probabilities(&plan->outputs.list[k], n, p->rows);
            if (column->what == DT_PREDICT_DRAWN)
                draw(p, k, stream, n);
            DT_TRY(write_rows(p, segment, c, row, n, p->rows));
        }
    }
    return DT_OK;
}

// If outputs are conditioned on earlier ones and values are drawn, the model computes outputs one
// by one and sees the drawn values.
static dt_status write_outputs(struct predictor *p, const struct now *now,
                               const struct dt_pass *pass)
{
    const struct dt_outputs *outputs = &p->plan->outputs;
    bool one_by_one = p->plan->options.draw && outputs->autoregressive;
    int targets = dt_array_list_find(&p->reads, "targets");
    struct dt_predictions on;
    int64_t first = 0;
    for (int k = 0; k < outputs->n; first += outputs->list[k++].width) {
        if (k == 0 || one_by_one) {
            DT_TRY(dt_model_predictions(p->model, pass, false, &on));
            if (on.values.rows > 0)
                DT_TRY(fetch(p, &on.values));
        }
        if (outputs->list[k].pool != DT_POOL_NONE)
            continue;
        DT_TRY(write_columns(p, now, k, false,
                             dt_view_cols(on.values, first, first + outputs->list[k].width)));
        if (one_by_one)
            DT_TRY(send(p, targets, now->n * p->plan->length));
    }
    for (int k = 0; k < outputs->n; k++) {
        struct dt_view values; // over the segment up to the end of this window
        if (outputs->list[k].pool == DT_POOL_NONE)
            continue;
        DT_TRY(dt_model_output(p->model, pass, k, &values));
        DT_TRY(fetch(p, &values));
        DT_TRY(write_columns(p, now, k, true, values));
    }
    return DT_OK;
}

static double log_probability(const float *logits, int64_t vocab, int32_t label)
{
    double most = logits[0], total = 0;
    for (int64_t i = 1; i < vocab; i++)
        most = logits[i] > most ? logits[i] : most;
    for (int64_t i = 0; i < vocab; i++)
        total += exp(logits[i] - most);
    return logits[label] - most - log(total);
}

// Writes the log-probability of each position's label, at the label's position; NaN without a
// label.
static dt_status write_tokens(struct predictor *p, const struct now *now,
                              const struct dt_pass *pass)
{
    int64_t length = p->plan->length, vocab = p->plan->job->model.vocab_size;
    const int32_t *labels = p->host[dt_array_list_find(&p->yields, "labels")];
    struct dt_view logits = {.data = p->logits};
    DT_TRY(dt_model_logits(p->model, pass, &logits));
    DT_TRY(fetch(p, &logits));
    for (int64_t stream = 0; stream < now->n; stream++) {
        const struct dt_predict_segment *segment = &now->segments[stream];
        int64_t row = now->window * length + segment->label;
        int64_t n = dt_min_i64(rows_of(p, now, stream), segment->rows - row);
        for (int64_t t = 0; t < n; t++) {
            const float *at = dt_view_at(&logits, stream * length + t, 0);
            int32_t label = labels[stream * length + t];
            p->rows[t] = label < 0 ? 0 : (float)log_probability(at, vocab, label);
        }
        DT_TRY(check_finite(p, segment, row, n, 1, "log_probabilities"));
        for (int64_t t = 0; t < n; t++)
            if (labels[stream * length + t] < 0)
                p->rows[t] = NAN;
        DT_TRY(write_rows(p, segment, 0, row, n, p->rows));
    }
    return DT_OK;
}

// Passes.

static dt_status predict_window(struct predictor *p, const struct now *now)
{
    struct dt_pass pass = {.input = {.sequences = now->n, .length = p->plan->length},
                           .before = p->before,
                           .after = p->after};
    for (int64_t stream = 0; stream < now->n; stream++)
        DT_TRY(read_window(p, stream, &now->segments[stream], now->window));
    for (int i = 0; i < p->reads.n; i++) {
        DT_TRY(send(p, i, now->n * p->plan->length));
        if (dt_array_list_find(&p->yields, p->reads.arrays[i].name) >= 0)
            pass.input.arrays[i] = p->device[i];
    }
    DT_TRY(dt_model_forward(p->model, &pass));
    if (p->plan->options.hidden) {
        struct dt_view hidden = dt_model_hidden(p->model, &pass);
        DT_TRY(fetch(p, &hidden));
        DT_TRY(write_columns(p, now, -1, false, hidden));
    }
    DT_TRY(p->plan->outputs.perplexity ? write_tokens(p, now, &pass)
                                       : write_outputs(p, now, &pass));
    struct dt_model_state *after = p->after;
    p->after = p->before;
    p->before = after;
    return DT_OK;
}

static dt_status predict_group(struct predictor *p, int64_t group)
{
    const struct dt_predict_plan *plan = p->plan;
    int64_t first = group * plan->streams;
    struct now now = {.segments = plan->segments + first,
                      .n = dt_min_i64(plan->streams, plan->n_segments - first)};
    if (p->state_bytes > 0)
        DT_TRY(dt_fill(p->backend, dt_model_state_memory(p->before), 0, p->state_bytes, NULL));
    for (int64_t i = 0; i < now.n; i++) {
        p->blocks[i].windows = 0;
        for (int k = 0; k < plan->outputs.n; k++)
            p->rng[i * plan->outputs.n + k] = dt_philox_init(
                (uint64_t)plan->options.seed, (uint32_t)k, (uint64_t)now.segments[i].number);
    }
    for (;; now.window++) {
        while (now.n > 0 && now.segments[now.n - 1].rows <= now.window * plan->length)
            now.n--;
        if (now.n == 0)
            return DT_OK;
        DT_TRY(predict_window(p, &now));
        for (int64_t i = 0; i < now.n; i++)
            p->predicted += rows_of(p, &now, i);
        dt_comm_busy(plan->job->comm);
        double seconds = dt_seconds() - p->began;
        if (dt_log_due(&p->next))
            dt_info("predicted %.0f %%, about %.0f s left",
                    100 * (double)p->predicted / (double)p->mine,
                    seconds / (double)p->predicted * (double)(p->mine - p->predicted));
    }
}

// Marks groups whose numbers are on disk.
static dt_status mark(struct predictor *p)
{
    const char *path = p->plan->file.path;
    const uint8_t one = 1;
    if (fdatasync(p->fd) != 0)
        return DT_FAIL_ERRNO("write", path);
    for (int64_t g = 0; g < p->plan->n_groups; g++)
        if (p->done[g] == 2) {
            DT_TRY(dt_pwrite_all(p->fd, path, &one, 1, p->plan->file.progress + g));
            p->done[g] = 1;
        }
    p->synced = dt_seconds();
    return DT_OK;
}

static dt_status predict_groups(struct predictor *p)
{
    const struct dt_predict_plan *plan = p->plan;
    const struct dt_comm_info *ranks = &plan->job->comm->info;
    p->began = p->synced = dt_seconds();
    for (int64_t i = 0; i < plan->n_segments; i++)
        if (i / plan->streams % ranks->size == ranks->rank && !p->done[i / plan->streams])
            p->mine += plan->segments[i].rows;
    for (int64_t g = ranks->rank; g < plan->n_groups; g += ranks->size) {
        if (p->done[g])
            continue;
        DT_TRY(predict_group(p, g));
        p->done[g] = 2;
        if (dt_seconds() > p->synced + SYNC_S)
            DT_TRY(mark(p));
    }
    return mark(p);
}

// The file.

static uint64_t mix(uint64_t hash, const void *data, size_t bytes)
{
    uint64_t both[] = {hash, dt_xxh3(data, bytes)};
    return dt_xxh3(both, sizeof both);
}

// Hashes everything that the numbers depend on.
static uint64_t key_of(const struct dt_predict_plan *plan, const struct dt_snapshot *snapshot)
{
    const struct dt_predict_options *o = &plan->options;
    const struct dt_dataset *data = plan->job->val;
    const struct dt_read_rules rules = dt_job_val_loader(plan->job).rules;
    const int64_t numbers[] = {plan->length,
                               plan->streams,
                               plan->n_segments,
                               plan->n_columns,
                               plan->job->model.storage,
                               rules.reset_token,
                               rules.reset_after,
                               o->hidden,
                               o->draw,
                               o->draw ? o->seed : 0};
    double temperature = o->draw ? o->temperature : 0;
    uint64_t hash = mix(0, numbers, sizeof numbers);
    hash = mix(hash, &temperature, sizeof temperature);
    hash =
        mix(hash, snapshot->host.weights, (size_t)snapshot->host.params->elements * sizeof(float));
    for (int64_t i = 0; i < data->n_shards; i++) {
        const struct dt_shard *shard = &data->shards[i];
        const uint64_t hashes[] = {shard->first_hash, shard->last_hash, shard->data_hash};
        hash = mix(hash, hashes, sizeof hashes);
    }
    for (int64_t i = 0; i < plan->file.n; i++)
        hash = mix(hash, plan->file.arrays[i].path, strlen(plan->file.arrays[i].path));
    return hash;
}

// Rank 0: reopens or creates the file, under a lock that is held while *lock is open.
static dt_status open_file(struct dt_predict_plan *plan, int *lock)
{
    const struct dt_predict_options *o = &plan->options;
    struct dt_prediction_file *file = &plan->file;
    char temperature[32], seed[32];
    bool found = false;
    snprintf(temperature, sizeof temperature, "%g", o->temperature);
    snprintf(seed, sizeof seed, "%" PRId64, o->seed);
    const char *const attributes[][2] = {
        {"model", plan->source}, {"temperature", temperature}, {"seed", seed}};
    file->attributes = attributes;
    file->n_attributes = o->draw ? 3 : 1;
    *lock = open(file->path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (*lock < 0)
        return DT_FAIL_ERRNO("create", file->path);
    if (flock(*lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return DT_FAIL(DT_USER, "wait for it to end, or give another name",
                       "another job is writing %s", file->path);
    dt_status status = dt_prediction_reopen(file, &found);
    if (status == DT_USER && o->force)
        dt_error_clear(), found = false, status = DT_OK;
    DT_TRY(status);
    if (found)
        dt_info("continuing %s", file->path);
    return found ? DT_OK : dt_prediction_create(file);
}

static dt_status share_file(struct predictor *p, struct dt_prediction_file *file)
{
    struct dt_comm *comm = p->plan->job->comm;
    bool root = comm->info.rank == 0;
    dt_status status = DT_OK;
    DT_TRY(dt_broadcast(comm, &file->n, sizeof file->n, 0));
    DT_TRY(dt_broadcast(comm, &file->progress, sizeof file->progress, 0));
    DT_TRY_GOTO(status, out, DT_NEW(&p->offsets, file->n, "%" PRId64 " arrays", file->n));
    DT_TRY_GOTO(status, out, DT_NEW(&p->done, file->pieces, "%" PRId64 " groups", file->pieces));
    for (int64_t i = 0; i < file->n && root; i++)
        p->offsets[i] = file->arrays[i].offset;
    p->fd = open(file->path, O_RDWR | O_CLOEXEC);
    if (p->fd < 0)
        status = DT_FAIL_ERRNO("open", file->path);
    if (status == DT_OK && root)
        status = dt_pread_all(p->fd, file->path, p->done, file->pieces, file->progress);
out:
    DT_TRY(dt_agree(comm, status));
    DT_TRY(dt_broadcast(comm, p->offsets, file->n * (int64_t)sizeof *p->offsets, 0));
    return dt_broadcast(comm, p->done, file->pieces, 0);
}

dt_status dt_predict(struct dt_predict_plan *plan)
{
    struct dt_comm *comm = plan->job->comm;
    struct predictor p = {.plan = plan, .backend = &plan->job->backend, .fd = -1};
    struct dt_snapshot snapshot = {0};
    struct dt_prediction_file *file = &plan->file;
    char path[DT_PATH];
    bool root = comm->info.rank == 0;
    int lock = -1;
    dt_status status;
    DT_TRY(dt_path(path, "%s.part", plan->options.output));
    file->path = path;
    file->pieces = plan->n_groups;
    DT_TRY_GOTO(status, out, create(&p, &snapshot));
    if (root) {
        file->key = key_of(plan, &snapshot);
        status = open_file(plan, &lock);
    }
    DT_TRY_GOTO(status, out, dt_agree(comm, status));
    DT_TRY_GOTO(status, out, share_file(&p, file));
    dt_comm_progress(comm, 0, "predicting");
    DT_TRY_GOTO(status, out, predict_groups(&p));
    DT_TRY_GOTO(status, out, dt_agree(comm, DT_OK)); // all ranks are done
    if (root)
        status = dt_prediction_finish(file, plan->options.output);
    status = dt_agree(comm, status);
out:
    if (lock >= 0)
        close(lock);
    dt_snapshot_destroy(&snapshot);
    destroy(&p);
    return status;
}

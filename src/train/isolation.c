// Compares the losses of packed documents with those after other documents were changed, and with
// those of each document alone.
#include "train/isolation.h"

#include "base/memory.h"
#include "base/round.h"
#include "data/shard_cache.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

enum {
    DOCUMENTS = 64,        // documents to compare
    WINDOWS_LOOKED = 4096, // windows searched for documents at most
};
struct check {
    struct dt_job *job;
    struct dt_model *model;
    struct dt_array_list reads, yields;
    int64_t length, vocab;
    void *device[DT_BATCH_ARRAYS]; // the model's arrays, one window each
    struct dt_view logits;         // on the device; the rest in host memory:
    float *host;
    int32_t *ids, *labels; // of the window, [length]
    uint8_t *reset;
    double *packed, *other; // losses, [length]
    struct dt_block block;  // for one window
    struct dt_isolation *result;
};

static dt_status create(struct check *c, struct dt_snapshot *snapshot)
{
    struct dt_job *job = c->job;
    const char *source = job->resume[0] ? job->resume : job->settings.run.init_from;
    const struct dt_model_shape shape = {.sequences = 1, .length = c->length};
    int64_t bytes = c->length * c->vocab * (int64_t)sizeof *c->host, block = 0;
    DT_TRY(dt_model_create(&job->backend, &job->model, &shape, &c->model));
    DT_TRY(dt_snapshot_create(&job->backend, c->model, NULL, true, snapshot));
    DT_TRY(dt_job_load_weights(job, source, false, snapshot));
    c->reads = *dt_model_arrays(c->model);
    for (int i = 0; i < c->reads.n; i++)
        DT_TRY(
            dt_alloc(&job->backend, dt_array_bytes(&c->reads.arrays[i], c->length), &c->device[i]));
    DT_TRY(dt_alloc(&job->backend, bytes, &c->logits.data));
    DT_TRY(dt_alloc_host(&job->backend, bytes, &c->host));
    for (int64_t i = 0; i < job->train->n_shards; i++)
        block = dt_max_i64(
            block, job->train->kind->block_bytes(job->train, &(struct dt_read_rules){.carry = true},
                                                 &job->train->shards[i], 1));
    DT_TRY(DT_NEW_ALIGNED(&c->block.memory, dt_reader_align(block), DT_READER_ALIGN, NULL,
                          "a window"));
    DT_TRY(DT_NEW(&c->ids, 2 * c->length, "a window"));
    c->labels = c->ids + c->length;
    DT_TRY(DT_NEW(&c->reset, c->length, "a window"));
    DT_TRY(DT_NEW(&c->packed, 2 * c->length, "losses"));
    c->other = c->packed + c->length;
    return DT_OK;
}

static void destroy(struct check *c)
{
    for (int i = 0; i < c->reads.n; i++)
        dt_free(&c->job->backend, c->device[i]);
    dt_free(&c->job->backend, c->logits.data);
    dt_free_host(&c->job->backend, c->host);
    dt_model_destroy(c->model);
    free(c->block.memory);
    free(c->ids);
    free(c->reset);
    free(c->packed);
}

static double loss_of(const float *logits, int64_t vocab, int32_t label)
{
    double most = -INFINITY, total = 0;
    for (int64_t i = 0; i < vocab; i++)
        most = fmax(most, (double)logits[i]);
    for (int64_t i = 0; i < vocab; i++)
        total += exp((double)logits[i] - most);
    return most + log(total) - (double)logits[label];
}

// Computes losses[t] for labels[t] of a window with these tokens; NaN if ignored.
static dt_status forward(struct check *c, const int32_t *ids, const uint8_t *reset,
                         const int32_t *labels, double *losses)
{
    const struct dt_backend *backend = &c->job->backend;
    struct dt_pass pass = {.input = {.sequences = 1, .length = c->length}};
    for (int i = 0; i < c->reads.n; i++) {
        const struct dt_array_spec *spec = &c->reads.arrays[i];
        const void *from = strcmp(spec->name, "reset") == 0    ? (const void *)reset
                           : strcmp(spec->name, "labels") == 0 ? (const void *)labels
                                                               : ids;
        DT_TRY(dt_to_device(backend, c->device[i], from, dt_array_bytes(spec, c->length), NULL));
        pass.input.arrays[i] = c->device[i];
    }
    DT_TRY(dt_model_forward(c->model, &pass));
    DT_TRY(dt_model_logits(c->model, &pass, &c->logits));
    DT_TRY(dt_to_host(backend, c->host, c->logits.data,
                      c->length * c->vocab * (int64_t)sizeof *c->host, NULL));
    DT_TRY(dt_stream_sync(backend, NULL));
    for (int64_t t = 0; t < c->length; t++)
        losses[t] = labels[t] >= 0 ? loss_of(c->host + t * c->vocab, c->vocab, labels[t]) : NAN;
    return DT_OK;
}

// Compares the loss of token t, in the document that starts at `first`, with that in the pack.
static dt_status compare(const struct check *c, struct dt_difference *difference, int64_t first,
                         int64_t t, double loss, const char *where)
{
    double by = fabs(loss - c->packed[t]);
    difference->largest = fmax(difference->largest, by);
    if (by <= difference->allowed)
        return DT_OK;
    return DT_FAIL(DT_MACHINE,
                   "documents leak into each other: do not train packed documents with these "
                   "layers, and report it",
                   "%s: window %" PRId64 ", position %" PRId64
                   ": in the document that starts at position %" PRId64
                   " the loss of this token is %.6g in the pack, %.6g %s",
                   c->job->train->shards[c->block.shard].path, c->block.first, t, first,
                   c->packed[t], loss, where);
}

// Changes the tokens of all even or all odd documents and compares the others.
static dt_status compare_changed(struct check *c, int odd)
{
    int32_t *changed;
    int64_t document = 0, first = 0;
    dt_status status;
    DT_TRY(DT_NEW(&changed, c->length, "a window"));
    for (int64_t t = 0; t < c->length; t++) {
        document += t > 0 && c->reset[t];
        changed[t] = document % 2 == odd
                         ? c->ids[t]
                         : (int32_t)((c->ids[t] + 1 + t % dt_max_i64(c->vocab - 1, 1)) % c->vocab);
    }
    DT_TRY_GOTO(status, out, forward(c, changed, c->reset, c->labels, c->other));
    document = 0;
    for (int64_t t = 0; t < c->length && status == DT_OK; t++) {
        if (t > 0 && c->reset[t]) {
            document++;
            first = t;
        }
        if (document % 2 == odd && c->labels[t] >= 0)
            status = compare(c, &c->result->changed, first, t, c->other[t],
                             "after tokens of other documents were changed");
    }
out:
    free(changed);
    return status;
}

// Compares the document [first, end), alone at the start of a window.
static dt_status compare_apart(struct check *c, int64_t first, int64_t end)
{
    int32_t *ids, *labels;
    uint8_t *reset;
    dt_status status;
    DT_TRY(DT_NEW(&ids, 2 * c->length, "a window"));
    DT_TRY_GOTO(status, out, DT_NEW(&reset, c->length, "a window"));
    labels = ids + c->length;
    for (int64_t t = 0; t < c->length; t++) {
        bool inside = first + t < end;
        ids[t] = inside ? c->ids[first + t] : 0;
        labels[t] = inside ? c->labels[first + t] : DT_IGNORED;
    }
    reset[0] = 1;
    status = forward(c, ids, reset, labels, c->other);
    free(reset);
    for (int64_t t = 0; t < end - first && status == DT_OK; t++) {
        if (labels[t] < 0)
            continue;
        status = compare(c, &c->result->apart, first, first + t, c->other[t], "apart");
        c->result->tokens++;
    }
    c->result->documents++;
out:
    free(ids);
    return status;
}

static dt_status compare_window(struct check *c)
{
    int64_t first = 0;
    DT_TRY(forward(c, c->ids, c->reset, c->labels, c->packed));
    for (int odd = 0; odd < 2; odd++)
        DT_TRY(compare_changed(c, odd));
    c->result->windows++;
    for (int64_t t = 1; t <= c->length; t++) {
        if (t < c->length && !c->reset[t])
            continue;
        if (first > 0) // the first document is at the start already
            DT_TRY(compare_apart(c, first, t));
        first = t;
    }
    return DT_OK;
}

// Reads window `window` of a shard into ids, labels and reset.
static dt_status read_window(struct check *c, int64_t shard, int64_t window)
{
    struct dt_job *job = c->job;
    struct dt_read_rules rules = dt_job_train_loader(job).rules;
    struct dt_reader *reader;
    void *rows[DT_BATCH_ARRAYS] = {0};
    rules.reverse_complement = false;
    rules.carry = true; // always fills `reset`
    c->yields = (struct dt_array_list){0};
    job->train->kind->arrays(job->train, &rules, &c->yields);
    for (int i = 0; i < c->yields.n; i++)
        rows[i] = strcmp(c->yields.arrays[i].name, "reset") == 0    ? (void *)c->reset
                  : strcmp(c->yields.arrays[i].name, "labels") == 0 ? (void *)c->labels
                                                                    : c->ids;
    DT_TRY(dt_shard_cache_get(job->train_shards, shard, rules.verify, &reader));
    c->block.shard = shard;
    c->block.first = window;
    c->block.windows = 1;
    DT_TRY(job->train->kind->read(reader, job->train, &rules, &c->block));
    return job->train->kind->write(job->train, &rules, &c->block, window, rows);
}

static dt_status walk(struct check *c)
{
    const struct dt_dataset *data = c->job->train;
    int64_t looked = 0;
    for (int64_t i = 0; i < data->n_shards; i++)
        for (int64_t window = 0; window < data->shards[i].windows; window++) {
            if (c->result->documents >= DOCUMENTS || looked++ >= WINDOWS_LOOKED)
                return DT_OK;
            DT_TRY(read_window(c, i, window));
            bool several = false;
            for (int64_t t = 1; t < c->length; t++)
                several |= c->reset[t];
            if (several)
                DT_TRY(compare_window(c));
        }
    return DT_OK;
}

dt_status dt_isolation_check(struct dt_job *job, struct dt_isolation *result)
{
    const char *unit = dt_model_unit(&job->model);
    struct dt_snapshot snapshot = {0};
    struct check c = {.job = job,
                      .length = job->settings.data.seq_len,
                      .vocab = job->model.vocab_size,
                      .result = result};
    bool f32 = job->model.storage == DT_F32;
    *result = (struct dt_isolation){.changed.allowed = f32 ? 1e-5 : 0.1,
                                    .apart.allowed = f32 ? 1e-4 : 0.1};
    if (!dt_model_reads_tokens(&job->model) || !job->train || job->train->kind->source)
        return DT_FAIL(DT_USER, "give a language model and shards of tokens or pairs",
                       "documents share windows of tokens, but this model reads %s of %s", unit,
                       job->train ? job->train->kind->name : "no data");
    dt_status status = create(&c, &snapshot);
    if (status == DT_OK)
        status = walk(&c);
    if (status == DT_OK && result->documents == 0)
        status =
            DT_FAIL(DT_USER,
                    "set data.reset_token to the token that separates documents, or pack with "
                    "document starts",
                    "no document starts inside the first %d windows of data.train", WINDOWS_LOOKED);
    destroy(&c);
    dt_snapshot_destroy(&snapshot);
    return status;
}

// Where loader batches become model inputs: names are bound to arrays here.
#include "train/staging.h"

enum { TOKEN_BYTES = 4 + 4 + 1 };

int64_t dt_staging_bytes(const struct dt_staging_config *config)
{
    return (config->sequences + config->micro) * config->length * TOKEN_BYTES;
}

static dt_status take_arrays(const struct dt_backend *backend, int64_t tokens,
                             struct dt_staged *arrays)
{
    const struct dt_device_table *table = backend->table;
    DT_TRY(table->alloc(backend->device, tokens * 4, (void **)&arrays->ids));
    DT_TRY(table->alloc(backend->device, tokens * 4, (void **)&arrays->labels));
    return table->alloc(backend->device, tokens, (void **)&arrays->reset);
}

static dt_status take_all(struct dt_staging *s)
{
    const struct dt_device_table *table = s->backend->table;
    struct dt_device *device = s->backend->device;
    DT_TRY(take_arrays(s->backend, s->config.sequences * s->config.length, &s->arrived));
    DT_TRY(take_arrays(s->backend, s->config.micro * s->config.length, &s->input));
    DT_TRY(table->alloc(device, sizeof *s->arrived_lr, (void **)&s->arrived_lr));
    DT_TRY(table->alloc_host(device, sizeof *s->host_lr, (void **)&s->host_lr));
    DT_TRY(table->stream_create(device, &s->copies));
    DT_TRY(table->event_create(device, &s->there));
    return table->event_create(device, &s->taken);
}

dt_status dt_staging_create(const struct dt_backend *backend,
                            const struct dt_staging_config *config, struct dt_staging *s)
{
    *s = (struct dt_staging){.backend = backend, .config = *config};
    dt_status status = take_all(s);
    if (status != DT_OK)
        dt_staging_destroy(s);
    return status;
}

void dt_staging_destroy(struct dt_staging *s)
{
    const struct dt_device_table *table = s->backend->table;
    struct dt_device *device = s->backend->device;
    void *memory[] = {s->arrived.ids,  s->arrived.labels, s->arrived.reset, s->input.ids,
                      s->input.labels, s->input.reset,    s->arrived_lr};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        if (memory[i])
            table->free(device, memory[i]);
    if (s->host_lr)
        table->free_host(device, s->host_lr);
    if (s->there)
        table->event_destroy(device, s->there);
    if (s->taken)
        table->event_destroy(device, s->taken);
    if (s->copies)
        table->stream_destroy(device, s->copies);
    *s = (struct dt_staging){0};
}

dt_status dt_staging_settle(struct dt_staging *s)
{
    return s->backend->table->event_sync(s->backend->device, s->there);
}

static dt_status load_array(const struct dt_staging *s, const struct dt_batch *batch,
                            const char *name, enum dt_dtype type, void *to)
{
    const struct dt_array *array = dt_batch_find(batch, name);
    if (!array || array->spec.type != type || batch->sequences != s->config.sequences ||
        batch->length != s->config.length)
        return DT_FAIL(DT_MACHINE, NULL, "the loader's array %s is missing or of another shape",
                       name);
    return s->backend->table->to_device(
        s->backend->device, to, array->data,
        s->config.sequences * s->config.length * dt_dtype_size(type), s->copies);
}

dt_status dt_staging_load(struct dt_staging *s, const struct dt_batch *batch, double lr,
                          struct dt_stream *stream)
{
    const struct dt_device_table *table = s->backend->table;
    struct dt_device *device = s->backend->device;
    DT_TRY(table->stream_wait(device, s->copies, s->taken));
    DT_TRY(load_array(s, batch, "input_ids", DT_I32, s->arrived.ids));
    DT_TRY(load_array(s, batch, "labels", DT_I32, s->arrived.labels));
    s->has_reset = dt_batch_find(batch, "reset") != NULL;
    if (s->has_reset)
        DT_TRY(load_array(s, batch, "reset", DT_U8, s->arrived.reset));
    *s->host_lr = (float)lr;
    DT_TRY(table->to_device(device, s->arrived_lr, s->host_lr, sizeof *s->host_lr, s->copies));
    DT_TRY(table->event_record(device, s->there, s->copies));
    return table->stream_wait(device, stream, s->there);
}

int64_t dt_staging_micro_batches(const struct dt_staging *s)
{
    return s->config.sequences / s->config.micro;
}

dt_status dt_staging_take_lr(struct dt_staging *s, float *lr, struct dt_stream *stream)
{
    return s->backend->table->copy(s->backend->device, lr, s->arrived_lr, sizeof *lr, stream);
}

dt_status dt_staging_take(struct dt_staging *s, int64_t index, struct dt_stream *stream,
                          struct dt_model_input *input)
{
    const struct dt_device_table *table = s->backend->table;
    struct dt_device *device = s->backend->device;
    int64_t n = s->config.micro * s->config.length, first = index * n;
    DT_TRY(table->copy(device, s->input.ids, s->arrived.ids + first, n * 4, stream));
    DT_TRY(table->copy(device, s->input.labels, s->arrived.labels + first, n * 4, stream));
    if (s->has_reset)
        DT_TRY(table->copy(device, s->input.reset, s->arrived.reset + first, n, stream));
    if (index == dt_staging_micro_batches(s) - 1)
        DT_TRY(table->event_record(device, s->taken, stream));
    *input = (struct dt_model_input){.sequences = s->config.micro,
                                     .length = s->config.length,
                                     .ids = s->input.ids,
                                     .labels = s->input.labels,
                                     .reset = s->has_reset ? s->input.reset : NULL};
    return DT_OK;
}

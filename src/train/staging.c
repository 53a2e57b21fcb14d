// Where loader batches become model inputs: names are bound to arrays here.
#include "train/staging.h"

int64_t dt_staging_bytes(const struct dt_job *job)
{
    return job->local_batch * job->settings.data.seq_len * (4 + 4 + 1);
}

dt_status dt_staging_create(const struct dt_job *job, struct dt_staging *s)
{
    *s = (struct dt_staging){.backend = &job->backend,
                             .sequences = job->local_batch,
                             .length = job->settings.data.seq_len,
                             .micro = job->micro_batch};
    const struct dt_device_table *table = s->backend->table;
    int64_t n = s->sequences * s->length;
    dt_status status = table->alloc(s->backend->device, n * 4, (void **)&s->ids);
    if (status == DT_OK)
        status = table->alloc(s->backend->device, n * 4, (void **)&s->labels);
    if (status == DT_OK)
        status = table->alloc(s->backend->device, n, (void **)&s->reset);
    if (status != DT_OK)
        dt_staging_destroy(s);
    return status;
}

void dt_staging_destroy(struct dt_staging *s)
{
    void *memory[] = {s->ids, s->labels, s->reset};
    for (int i = 0; i < 3; i++)
        if (memory[i])
            s->backend->table->free(s->backend->device, memory[i]);
    *s = (struct dt_staging){0};
}

static dt_status load_array(const struct dt_staging *s, const struct dt_batch *batch,
                            const char *name, enum dt_dtype type, void *to,
                            struct dt_stream *stream)
{
    const struct dt_array *array = dt_batch_find(batch, name);
    if (!array || array->type != type || array->shape[0] != s->sequences ||
        array->shape[1] != s->length)
        return DT_FAIL(DT_MACHINE, NULL, "the loader's array %s is missing or of another shape",
                       name);
    return s->backend->table->to_device(s->backend->device, to, array->data,
                                        s->sequences * s->length * dt_dtype_size(type), stream);
}

dt_status dt_staging_load(struct dt_staging *s, const struct dt_batch *batch,
                          struct dt_stream *stream)
{
    DT_TRY(load_array(s, batch, "input_ids", DT_I32, s->ids, stream));
    DT_TRY(load_array(s, batch, "labels", DT_I32, s->labels, stream));
    s->has_reset = dt_batch_find(batch, "reset") != NULL;
    return s->has_reset ? load_array(s, batch, "reset", DT_U8, s->reset, stream) : DT_OK;
}

int64_t dt_staging_micro_batches(const struct dt_staging *s)
{
    return s->sequences / s->micro;
}

struct dt_model_input dt_staging_micro_batch(const struct dt_staging *s, int64_t index)
{
    int64_t first = index * s->micro * s->length;
    return (struct dt_model_input){.sequences = s->micro,
                                   .length = s->length,
                                   .ids = s->ids + first,
                                   .labels = s->labels + first,
                                   .reset = s->has_reset ? s->reset + first : NULL};
}

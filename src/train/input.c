// Copies batches and micro-batches to the device: each array that the model reads.
#include "train/input.h"

int64_t dt_input_bytes(const struct dt_array_list *arrays, const struct dt_input_config *config)
{
    int64_t bytes = 0;
    for (int i = 0; i < arrays->n; i++)
        bytes += dt_array_bytes(&arrays->arrays[i],
                                (config->sequences + config->micro) * config->length);
    return bytes;
}

dt_status dt_input_create(const struct dt_backend *backend, const struct dt_array_list *arrays,
                          const struct dt_input_config *config, struct dt_input *input)
{
    *input = (struct dt_input){.backend = backend, .config = *config, .arrays = *arrays};
    for (int i = 0; i < arrays->n; i++) {
        const struct dt_array_spec *spec = &arrays->arrays[i];
        int64_t batch = config->sequences * config->length, micro = config->micro * config->length;
        DT_TRY(dt_alloc(backend, dt_array_bytes(spec, batch), &input->batch[i]));
        DT_TRY(dt_alloc(backend, dt_array_bytes(spec, micro), &input->micro[i]));
    }
    DT_TRY(dt_stream_create(backend, &input->copies));
    DT_TRY(dt_event_create(backend, &input->copied));
    return dt_event_create(backend, &input->used);
}

void dt_input_destroy(struct dt_input *input)
{
    if (!input->backend)
        return;
    const struct dt_backend *backend = input->backend;
    dt_input_settle(input);
    for (int i = 0; i < DT_BATCH_ARRAYS; i++) {
        dt_free(backend, input->batch[i]);
        dt_free(backend, input->micro[i]);
    }
    dt_event_destroy(backend, input->copied);
    dt_event_destroy(backend, input->used);
    dt_stream_destroy(backend, input->copies);
    *input = (struct dt_input){0};
}

void dt_input_settle(struct dt_input *input)
{
    dt_stream_settle(input->backend, input->copies);
}

dt_status dt_input_next(struct dt_input *input, struct dt_loader *loader, struct dt_stream *stream,
                        int64_t *micro_batches, double *wait_ms)
{
    const struct dt_backend *backend = input->backend;
    const struct dt_batch *batch;
    *micro_batches = 0;
    if (input->next != input->micro_batches)
        return DT_FAIL(DT_MACHINE, NULL, "a micro-batch of the previous batch was not used");
    DT_TRY(dt_event_sync(backend, input->copied));
    DT_TRY(dt_loader_next(loader, &batch, wait_ms));
    if (!batch)
        return DT_OK;
    DT_TRY(dt_stream_wait(backend, input->copies, input->used));
    const struct dt_input_config *config = &input->config;
    for (int i = 0; i < input->arrays.n; i++) {
        const struct dt_array_spec *spec = &input->arrays.arrays[i];
        const struct dt_array *array = dt_batch_find(batch, spec->name);
        input->present[i] = array != NULL;
        if (!array && spec->optional)
            continue;
        if (!array || array->spec.type != spec->type || array->spec.width != spec->width ||
            batch->sequences != config->sequences || batch->length != config->length)
            return DT_FAIL(DT_MACHINE, NULL,
                           "the loader's array %s is missing or of another type or shape",
                           spec->name);
        DT_TRY(dt_to_device(input->backend, input->batch[i], array->data,
                            dt_array_bytes(spec, config->sequences * config->length),
                            input->copies));
    }
    DT_TRY(dt_event_record(backend, input->copied, input->copies));
    DT_TRY(dt_stream_wait(backend, stream, input->copied));
    input->next = 0;
    *micro_batches = input->micro_batches = input->config.sequences / input->config.micro;
    return DT_OK;
}

dt_status dt_input_micro_batch(struct dt_input *input, struct dt_stream *stream,
                               struct dt_model_input *micro)
{
    const struct dt_backend *backend = input->backend;
    int64_t positions = input->config.micro * input->config.length;
    if (input->next == input->micro_batches)
        return DT_FAIL(DT_MACHINE, NULL, "the batch has no further micro-batch");
    *micro =
        (struct dt_model_input){.sequences = input->config.micro, .length = input->config.length};
    for (int i = 0; i < input->arrays.n; i++) {
        int64_t bytes = dt_array_bytes(&input->arrays.arrays[i], positions);
        const char *from = (const char *)input->batch[i] + input->next * bytes;
        if (!input->present[i])
            continue;
        DT_TRY(dt_copy(backend, input->micro[i], from, bytes, stream));
        micro->arrays[i] = input->micro[i];
    }
    return ++input->next == input->micro_batches ? dt_event_record(backend, input->used, stream)
                                                 : DT_OK;
}

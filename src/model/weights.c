// In place where the host reads the device's memory, else through pinned memory.
#include "model/weights.h"

static dt_status load_copied(const struct dt_backend *backend, struct dt_model *model,
                             dt_weights_source source, void *context)
{
    const struct dt_device_table *table = backend->table;
    const struct dt_params *params = dt_model_params(model);
    int64_t bytes = params->elements * (int64_t)sizeof(float);
    float *host = NULL;
    DT_TRY(table->alloc_host(backend->device, bytes, (void **)&host));
    dt_status status = source(context, params, host);
    if (status == DT_OK)
        status = table->to_device(backend->device, dt_model_weights(model), host, bytes, NULL);
    if (status == DT_OK)
        status = table->stream_sync(backend->device, NULL);
    table->free_host(backend->device, host);
    return status;
}

dt_status dt_weights_load(const struct dt_backend *backend, struct dt_model *model,
                          dt_weights_source source, void *context)
{
    if (backend->table->unified)
        DT_TRY(source(context, dt_model_params(model), dt_model_weights(model)));
    else
        DT_TRY(load_copied(backend, model, source, context));
    DT_TRY(dt_model_refresh(model, NULL));
    return backend->table->stream_sync(backend->device, NULL);
}

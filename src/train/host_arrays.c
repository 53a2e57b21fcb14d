// Moves weights and moments between device, host and ranks.
#include "train/host_arrays.h"

static dt_status take_copies(struct dt_host_arrays *host, enum dt_host_arrays_use use)
{
    const struct dt_device_table *table = host->backend->table;
    struct dt_device *device = host->backend->device;
    float **copies[] = {&host->weights, &host->m, &host->v};
    for (int i = 0; i < 3; i++) {
        if (use == DT_HOST_ARRAYS_RECEIVE && i > 0)
            *copies[i] = host->weights;
        else
            DT_TRY(table->alloc_host(device, host->bytes, (void **)copies[i]));
        if (use == DT_HOST_ARRAYS_SAVE)
            DT_TRY(table->to_host(device, *copies[i], host->device[i], host->bytes, NULL));
    }
    return table->stream_sync(device, NULL);
}

dt_status dt_host_arrays_take(const struct dt_backend *backend, struct dt_model *model,
                              const struct dt_optimizer *optimizer, enum dt_host_arrays_use use,
                              struct dt_host_arrays *host)
{
    *host =
        (struct dt_host_arrays){.backend = backend,
                                .bytes = dt_model_params(model)->elements * (int64_t)sizeof(float),
                                .device = {dt_model_weights(model), optimizer->m, optimizer->v}};
    if (!backend->table->unified)
        return take_copies(host, use);
    host->weights = host->device[0];
    host->m = host->device[1];
    host->v = host->device[2];
    return DT_OK;
}

void dt_host_arrays_drop(struct dt_host_arrays *host)
{
    const struct dt_backend *backend = host->backend;
    float *copies[] = {host->weights, host->m, host->v};
    for (int i = 0; i < 3 && !backend->table->unified; i++)
        if (copies[i] && (i == 0 || copies[i] != host->weights))
            backend->table->free_host(backend->device, copies[i]);
}

dt_status dt_host_arrays_share(const struct dt_host_arrays *host, struct dt_comm *comm)
{
    const struct dt_backend *backend = host->backend;
    float *const copies[] = {host->weights, host->m, host->v};
    for (int i = 0; i < 3; i++) {
        DT_TRY(dt_broadcast(comm, copies[i], host->bytes, 0));
        if (backend->table->unified)
            continue;
        DT_TRY(backend->table->to_device(backend->device, host->device[i], copies[i], host->bytes,
                                         NULL));
        DT_TRY(backend->table->stream_sync(backend->device, NULL)); // the copy may take the next
    }
    return DT_OK;
}

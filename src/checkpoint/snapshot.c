// Moves weights and optimizer states between device, host and ranks, a piece at a time.
#include "checkpoint/snapshot.h"

#include "base/round.h"

#include <xxhash.h>

enum { PIECE = 4 << 20 }; // elements that ranks other than 0 have room for: 16 MiB

int64_t dt_snapshot_bytes(const struct dt_backend *backend, const struct dt_params *params,
                          int n_states, bool root)
{
    int64_t arrays = 1 + n_states;
    if (backend->table->unified)
        return 0;
    return (root ? arrays * params->elements : dt_min_i64(PIECE, params->elements)) *
           (int64_t)sizeof(float);
}

dt_status dt_snapshot_create(const struct dt_backend *backend, struct dt_model *model,
                             const struct dt_optimizer_states *states, bool root,
                             struct dt_snapshot *s)
{
    const struct dt_params *params = dt_model_params(model);
    *s = (struct dt_snapshot){.backend = backend,
                              .model = model,
                              .host = {.model = dt_model_config(model), .params = params}};
    if (states)
        s->device = s->host.states = *states;
    if (backend->table->unified) {
        s->host.weights = dt_model_weights(model);
        return DT_OK;
    }
    int64_t bytes = dt_snapshot_bytes(backend, params, s->device.n, root);
    DT_TRY_NOTE(dt_alloc_host(backend, bytes, &s->memory),
                "pinning %.1f MiB for the snapshot of weights and optimizer states",
                (double)bytes / 0x1p20);
    s->host.weights = root ? s->memory : NULL;
    for (int i = 0; i < s->device.n; i++)
        s->host.states.list[i].data = root ? s->memory + (i + 1) * params->elements : NULL;
    return DT_OK;
}

void dt_snapshot_destroy(struct dt_snapshot *s)
{
    if (s->memory)
        dt_free_host(s->backend, s->memory);
    *s = (struct dt_snapshot){0};
}

// The arrays by number: the weights, then each state.
static float *device_array(const struct dt_snapshot *s, int i)
{
    return i == 0 ? dt_model_weights(s->model) : s->device.list[i - 1].data;
}

// Where the host keeps elements of it from `first` on: in their place, or in the one piece.
static float *host_place(const struct dt_snapshot *s, int i, int64_t first)
{
    float *array = i == 0 ? s->host.weights : s->host.states.list[i - 1].data;
    return array ? array + first : s->memory;
}

dt_status dt_snapshot_fill(struct dt_snapshot *s)
{
    int64_t bytes = s->host.params->elements * (int64_t)sizeof(float);
    for (int i = 0; i <= s->device.n && s->memory; i++)
        DT_TRY(dt_to_host(s->backend, host_place(s, i, 0), device_array(s, i), bytes, NULL));
    return dt_stream_sync(s->backend, NULL);
}

static dt_status share_array(struct dt_snapshot *s, struct dt_comm *comm, int i)
{
    for (int64_t first = 0, elements = s->host.params->elements; first < elements; first += PIECE) {
        int64_t bytes = dt_min_i64(PIECE, elements - first) * (int64_t)sizeof(float);
        float *host = host_place(s, i, first);
        if (comm)
            DT_TRY(dt_broadcast(comm, host, bytes, 0));
        if (!s->memory)
            continue;
        DT_TRY(dt_to_device(s->backend, device_array(s, i) + first, host, bytes, NULL));
        DT_TRY(dt_stream_sync(s->backend, NULL)); // the next piece may overwrite this one
    }
    return DT_OK;
}

dt_status dt_snapshot_share_weights(struct dt_snapshot *s, struct dt_comm *comm)
{
    DT_TRY(share_array(s, comm, 0));
    DT_TRY(dt_model_refresh(s->model, NULL));
    return dt_stream_sync(s->backend, NULL);
}

dt_status dt_snapshot_share(struct dt_snapshot *s, struct dt_comm *comm)
{
    DT_TRY(dt_snapshot_share_weights(s, comm));
    for (int i = 1; i <= s->device.n; i++)
        DT_TRY(share_array(s, comm, i));
    return DT_OK;
}

dt_status dt_snapshot_hash_weights(struct dt_snapshot *s, uint64_t *hash)
{
    XXH64_state_t *state = XXH64_createState();
    dt_status status = DT_OK;
    if (!state)
        return DT_FAIL(DT_MACHINE, NULL, "no memory to hash weights");
    XXH64_reset(state, 0);
    for (int64_t first = 0, elements = s->host.params->elements; first < elements; first += PIECE) {
        int64_t bytes = dt_min_i64(PIECE, elements - first) * (int64_t)sizeof(float);
        float *host = host_place(s, 0, first);
        if (s->memory)
            DT_TRY_GOTO(status, out,
                        dt_to_host(s->backend, host, device_array(s, 0) + first, bytes, NULL));
        DT_TRY_GOTO(status, out, dt_stream_sync(s->backend, NULL));
        XXH64_update(state, host, (size_t)bytes);
    }
    *hash = XXH64_digest(state);
out:
    XXH64_freeState(state);
    return status;
}

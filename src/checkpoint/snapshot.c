// Copies weights and optimizer states from the device to the host, and from rank 0 to the devices
// of all ranks, a piece at a time.
#include "checkpoint/snapshot.h"

#include "base/round.h"

#include <string.h>

static int64_t piece_elements(const struct dt_backend *backend, const struct dt_params *params,
                              bool root)
{
    bool direct = backend->table->unified && (root || !params->ring_weights);
    return direct ? 0 : dt_min_i64(DT_SNAPSHOT_PIECE, params->elements);
}

// Elements of host arrays: the weights on rank 0, and the states on rank 0 or, if spread, on every
// rank.
static int64_t array_elements(const struct dt_backend *backend, const struct dt_params *params,
                              int64_t held, int64_t states, bool root)
{
    int64_t elements = 0;
    if (root && (states > 0 || !backend->table->unified))
        elements += params->elements;
    if (root || held < params->elements)
        elements += states;
    return elements;
}

int64_t dt_snapshot_bytes(const struct dt_backend *backend, const struct dt_params *params,
                          int64_t held, int64_t states, bool root)
{
    return (array_elements(backend, params, held, states, root) +
            piece_elements(backend, params, root)) *
           (int64_t)sizeof(float);
}

static dt_status pin(const struct dt_backend *backend, int64_t elements, float **memory)
{
    int64_t bytes = elements * (int64_t)sizeof **memory;
    if (elements > 0)
        DT_TRY_NOTE(dt_alloc_host(backend, bytes, memory),
                    "pinning %.1f MiB for the snapshot of weights and optimizer states",
                    (double)bytes / 0x1p20);
    return DT_OK;
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
        s->host.states = *states;
    int n = s->host.states.n;
    int64_t held = s->host.states.pieces.elements, all = 0;
    for (int i = 0; i < n; i++)
        all += dt_state_pieces(&s->host.states, i)->elements;
    DT_TRY(pin(backend, array_elements(backend, params, held, all, root), &s->memory));
    DT_TRY(pin(backend, piece_elements(backend, params, root), &s->piece));
    float *next = s->memory;
    if (root && next) {
        s->host.weights = next;
        next += params->elements;
    } else if (n == 0 && backend->table->unified)
        s->host.weights = dt_model_weights(model);
    s->n = 1 + n;
    s->arrays[0] = (struct dt_snapshot_array){params->ring_weights ? NULL : dt_model_weights(model),
                                              s->host.weights, params->elements};
    for (int i = 0; i < n; i++) {
        float **data = &s->host.states.list[i].data, *device = *data;
        int64_t elements = dt_state_pieces(&s->host.states, i)->elements;
        *data = next;
        next = next ? next + elements : NULL;
        s->arrays[1 + i] = (struct dt_snapshot_array){device, *data, elements};
    }
    s->spread = dt_pieces_are_spread(&s->host.states.pieces, params->elements);
    DT_TRY(dt_stream_create(backend, &s->stream));
    return dt_event_create(backend, &s->filled);
}

void dt_snapshot_destroy(struct dt_snapshot *s)
{
    if (!s->backend)
        return;
    dt_stream_settle(s->backend,
                     s->stream); // a fill may be running if the run ends on an error
    dt_stream_destroy(s->backend, s->stream);
    dt_event_destroy(s->backend, s->filled);
    dt_free_host(s->backend, s->memory);
    dt_free_host(s->backend, s->piece);
    *s = (struct dt_snapshot){0};
}

dt_status dt_snapshot_fill(struct dt_snapshot *s)
{
    for (const struct dt_snapshot_array *a = s->arrays; a < s->arrays + s->n; a++)
        if (a->host && a->device)
            DT_TRY(dt_to_host(s->backend, a->host, a->device, a->elements * (int64_t)sizeof(float),
                              s->stream));
    return dt_event_record(s->backend, s->filled, s->stream);
}

dt_status dt_snapshot_wait(const struct dt_snapshot *s)
{
    return dt_event_sync(s->backend, s->filled);
}

// The state "weights"; NULL: the model's weights are whole.
static const struct dt_snapshot_array *own_weights(const struct dt_snapshot *s)
{
    for (int i = 0; i < s->n - 1; i++)
        if (strcmp(s->host.states.list[i].name, "weights") == 0)
            return &s->arrays[1 + i];
    return NULL;
}

// Copies from the host this rank's pieces of the weights' elements from `first` on.
static dt_status keep_pieces(struct dt_snapshot *s, int64_t first, int64_t elements,
                             const float *host)
{
    const struct dt_pieces *pieces = &s->host.states.pieces;
    float *own = own_weights(s)->device;
    for (struct dt_held p = {0}; dt_pieces_next(pieces, pieces->n, first, first + elements, &p);)
        DT_TRY(dt_to_device(s->backend, own + p.at, host + p.first - first,
                            (p.end - p.first) * (int64_t)sizeof *own, NULL));
    return dt_stream_sync(s->backend, NULL);
}

static dt_status share_array(struct dt_snapshot *s, struct dt_comm *comm,
                             const struct dt_snapshot_array *a)
{
    for (int64_t first = 0; first < a->elements; first += DT_SNAPSHOT_PIECE) {
        int64_t elements = dt_min_i64(DT_SNAPSHOT_PIECE, a->elements - first);
        int64_t bytes = elements * (int64_t)sizeof(float);
        float *device = a->device ? a->device + first : NULL;
        float *host = a->host ? a->host + first : s->piece ? s->piece : device;
        if (comm)
            DT_TRY(dt_broadcast(comm, host, bytes, 0));
        if (!device)
            DT_TRY(keep_pieces(s, first, elements, host));
        if (!device || host == device)
            continue;
        DT_TRY(dt_to_device(s->backend, device, host, bytes, NULL));
        DT_TRY(dt_stream_sync(s->backend, NULL)); // the next piece may overwrite this one
    }
    return DT_OK;
}

dt_status dt_snapshot_share_weights(struct dt_snapshot *s, struct dt_comm *comm)
{
    DT_TRY(share_array(s, comm, &s->arrays[0]));
    DT_TRY(dt_model_refresh(s->model, NULL));
    return dt_stream_sync(s->backend, NULL);
}

dt_status dt_snapshot_share(struct dt_snapshot *s, struct dt_comm *comm)
{
    DT_TRY(dt_snapshot_share_weights(s, comm));
    for (int i = 1; i < s->n; i++)
        if (&s->arrays[i] != own_weights(s)) // own weights are shared separately
            DT_TRY(share_array(s, s->spread ? NULL : comm, &s->arrays[i]));
    return DT_OK;
}

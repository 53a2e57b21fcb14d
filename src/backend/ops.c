// Opens a backend by name and dispatches the ops: each entry checks its arguments (check.h), then
// calls the backend's slot and times it if requested. Generated from DT_OPS.
#include "backend/backend.h"

#include "backend/check.h"
#include "backend/op_times.h"

#include <string.h>

const struct dt_known_backend *dt_backend_find(const char *name)
{
    for (const struct dt_known_backend *known = dt_known_backends; known->table; known++)
        if (strcmp(known->table->name, name) == 0)
            return known;
    return NULL;
}

dt_status dt_backend_open(const char *name, int index, int threads, struct dt_backend *backend)
{
    const struct dt_known_backend *known = dt_backend_find(name);
    struct dt_device *device = NULL;
    if (!known)
        return DT_FAIL(DT_USER, "run.device = cpu", "this build has no backend named \"%s\"", name);
    DT_TRY_NOTE(known->table->open(index, threads, &device), "opening device %s %d", name, index);
    *backend = (struct dt_backend){.table = known->table, .op = known->op, .device = device};
    return DT_OK;
}

void dt_backend_plan_gpu(const struct dt_backend *here, struct dt_planned_tables *room,
                         struct dt_backend *gpu)
{
    const struct dt_known_backend *known = dt_backend_find("cuda");
    if (known) {
        *gpu = (struct dt_backend){known->table, known->op, known->table->planned, NULL};
        return;
    }
    *room = (struct dt_planned_tables){*here->table, *here->op};
    room->device.unified = false;
    room->device.graphs = room->device.device_comm = true;
    room->op.scan_chunk = DT_SCAN_CHUNK_CUDA;
    room->op.scan_keeps_s = true;
    room->op.ssd_chunk = DT_SSD_CHUNK_CUDA;
    room->op.logits_tile = DT_LOGITS_TILE_CUDA;
    *gpu = (struct dt_backend){&room->device, &room->op, here->device, NULL};
}

void dt_backend_close(struct dt_backend *backend)
{
    if (backend->device)
        backend->table->close(backend->device);
    *backend = (struct dt_backend){0};
}

static dt_status no_slot(const char *op, const char *backend)
{
    return DT_FAIL(DT_MACHINE, "run.device = cpu has every op", "the %s backend has no %s", backend,
                   op);
}

// Stamps measure other ops; only a listener wants their own times.
static inline struct dt_op_times *times_of(const char *slot)
{
    bool is_timed = strcmp(slot, "stamp") != 0 || dt_op_times_has_listener(dt_op_times_now);
    return is_timed ? dt_op_times_now : NULL;
}

#define DT_OP_DISPATCH(slot)                                                                       \
    dt_status dt_##slot(const struct dt_backend *backend, const struct dt_##slot##_args *args,     \
                        struct dt_stream *stream)                                                  \
    {                                                                                              \
        if (!backend->op->slot)                                                                    \
            return no_slot(#slot, backend->table->name);                                           \
        DT_TRY(dt_check_##slot(backend, args));                                                    \
        struct dt_op_times *times = times_of(#slot);                                               \
        if (!times) {                                                                              \
            DT_TRY(backend->op->slot(backend->device, args, stream));                              \
            return DT_OK;                                                                          \
        }                                                                                          \
        struct dt_op_cost cost = dt_##slot##_cost(backend, args);                                  \
        if (dt_op_times_warms(times))                                                              \
            DT_TRY(backend->op->slot(backend->device, args, stream));                              \
        DT_TRY(dt_op_times_begin(times, stream));                                                  \
        DT_TRY(backend->op->slot(backend->device, args, stream));                                  \
        return dt_op_times_end(times, DT_LANE_OP, #slot, args, &cost, stream);                     \
    }                                                                                              \
    int64_t dt_##slot##_workspace(const struct dt_backend *backend,                                \
                                  const struct dt_##slot##_args *args)                             \
    {                                                                                              \
        return backend->op->slot##_workspace                                                       \
                   ? backend->op->slot##_workspace(backend->device, args)                          \
                   : 0;                                                                            \
    }
DT_OPS(DT_OP_DISPATCH)

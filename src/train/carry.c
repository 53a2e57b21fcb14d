// Carried state on the device, and its transfer to rank 0 and back for checkpoints.
#include "train/carry.h"

#include "base/list.h"

#include <stdlib.h>

// The number of blocks in host memory: on rank 0 those of all ranks, for checkpoints.
static int64_t host_blocks(const struct dt_backend *backend, int64_t blocks,
                           const struct dt_comm_info *ranks)
{
    if (ranks->rank == 0)
        return blocks * ranks->size;
    return backend->table->unified ? 0 : blocks;
}

dt_status dt_carry_plan(const struct dt_backend *backend, const struct dt_model_config *config,
                        const struct dt_input_config *batch, const struct dt_comm_info *ranks,
                        struct dt_memory_plan *plan)
{
    int64_t bytes, blocks = batch->sequences / batch->micro;
    DT_TRY(dt_model_state_bytes(config, batch->micro, &bytes));
    // kept and next, before and after
    dt_memory_plan_add(plan, "carried state", 2 * (blocks + 1) * bytes, false);
    dt_memory_plan_add(plan, "host states", host_blocks(backend, blocks, ranks) * bytes, true);
    return DT_OK;
}

// Lists the arrays of all layers and their offsets in a block.
static dt_status list_arrays(struct dt_carry *c)
{
    struct dt_slot_states *s = &c->slots;
    const char *base = dt_model_state_memory(c->before);
    for (int64_t layer = 0; layer < dt_model_config(c->model)->n_layer; layer++) {
        const struct dt_array_list *list = dt_model_state_arrays(c->model, layer);
        for (int i = 0; i < list->n; i++) {
            const char *array = dt_model_state_array(c->before, layer, i);
            if (!array)
                continue;
            DT_TRY(dt_list_grow(&s->arrays, s->n, sizeof *s->arrays));
            struct dt_slot_array *slot = &s->arrays[s->n++];
            *slot = (struct dt_slot_array){.type = list->arrays[i].type,
                                           .width = list->arrays[i].width,
                                           .last = list->arrays[i].last,
                                           .offset = array - base};
            snprintf(slot->name, sizeof slot->name, "layers.%lld.%s", (long long)layer,
                     list->arrays[i].name);
        }
    }
    return DT_OK;
}

dt_status dt_carry_create(const struct dt_backend *backend, struct dt_model *model,
                          const struct dt_input_config *batch, const struct dt_comm_info *ranks,
                          struct dt_carry *c)
{
    int64_t bytes, blocks = batch->sequences / batch->micro;
    *c = (struct dt_carry){0};
    DT_TRY(dt_model_state_bytes(dt_model_config(model), batch->micro, &bytes));
    if (bytes == 0)
        return DT_OK;
    *c = (struct dt_carry){.backend = backend,
                           .model = model,
                           .blocks = blocks,
                           .bytes = bytes,
                           .run = batch->takes_turns ? 1 : blocks};
    DT_TRY(dt_model_state_create(model, batch->micro, &c->before));
    DT_TRY(dt_model_state_create(model, batch->micro, &c->after));
    DT_TRY(dt_alloc(backend, blocks * bytes, &c->next));
    if (!ranks)
        return DT_OK;
    int64_t host = host_blocks(backend, blocks, ranks) * bytes;
    DT_TRY(dt_alloc(backend, blocks * bytes, &c->kept));
    if (host > 0)
        DT_TRY_NOTE(dt_alloc_host(backend, host, &c->host), "pinning %.1f MiB for carried states",
                    (double)host / 0x1p20);
    c->slots = (struct dt_slot_states){.slots = ranks->size * blocks * batch->micro,
                                       .each = batch->micro,
                                       .block_bytes = bytes,
                                       .blocks = c->host ? c->host : c->kept};
    return list_arrays(c);
}

void dt_carry_destroy(struct dt_carry *c)
{
    if (!c->backend)
        return;
    dt_model_state_destroy(c->model, c->before);
    dt_model_state_destroy(c->model, c->after);
    dt_free(c->backend, c->kept);
    dt_free(c->backend, c->next);
    dt_free_host(c->backend, c->host);
    free(c->slots.arrays);
    *c = (struct dt_carry){0};
}

dt_status dt_carry_clear(struct dt_carry *c, char *store, struct dt_stream *stream)
{
    return c->backend ? dt_fill(c->backend, store, 0, c->blocks * c->bytes, stream) : DT_OK;
}

dt_status dt_carry_load(struct dt_carry *c, const char *store, int64_t block,
                        struct dt_stream *stream)
{
    return c->backend ? dt_copy(c->backend, dt_model_state_memory(c->before),
                                store + block * c->bytes, c->bytes, stream)
                      : DT_OK;
}

dt_status dt_carry_store(struct dt_carry *c, char *store, int64_t block, struct dt_stream *stream)
{
    return c->backend ? dt_copy(c->backend, store + block * c->bytes,
                                dt_model_state_memory(c->after), c->bytes, stream)
                      : DT_OK;
}

dt_status dt_carry_commit(struct dt_carry *c, const struct dt_update_control *control,
                          struct dt_stream *stream)
{
    struct dt_commit_args args = {
        .bytes = c->blocks * c->bytes, .from = c->next, .to = c->kept, .control = control};
    return c->backend ? dt_commit(c->backend, &args, stream) : DT_OK;
}

// The address on rank 0 of block `block`, the first of a run, of a rank.
static char *place_on_root(const struct dt_carry *c, int size, int rank, int64_t block)
{
    return c->slots.blocks + (block * size + rank * c->run) * c->bytes;
}

// Sends the blocks of every rank to rank 0, or back.
static dt_status exchange(struct dt_carry *c, struct dt_comm *comm, bool gathers)
{
    int size = comm->info.size;
    for (int64_t block = 0; block < c->blocks; block += c->run)
        for (int rank = 1; rank < size; rank++) {
            bool root = comm->info.rank == 0;
            char *place =
                root ? place_on_root(c, size, rank, block) : c->slots.blocks + block * c->bytes;
            if (root || rank == comm->info.rank)
                DT_TRY(dt_exchange(comm, root ? rank : 0, root == gathers ? NULL : place,
                                   root == gathers ? place : NULL, c->run * c->bytes));
        }
    return DT_OK;
}

// Copies this rank's blocks between the device and the host.
static dt_status move(struct dt_carry *c, const struct dt_comm_info *ranks, bool to_host)
{
    for (int64_t block = 0; c->host && block < c->blocks; block += c->run) {
        char *kept = c->kept + block * c->bytes;
        char *host =
            ranks->rank == 0 ? place_on_root(c, ranks->size, 0, block) : c->host + block * c->bytes;
        DT_TRY(to_host ? dt_to_host(c->backend, host, kept, c->run * c->bytes, NULL)
                       : dt_to_device(c->backend, kept, host, c->run * c->bytes, NULL));
    }
    return dt_stream_sync(c->backend, NULL);
}

dt_status dt_carry_gather(struct dt_carry *c, struct dt_comm *comm)
{
    if (!c->backend)
        return DT_OK;
    DT_TRY(move(c, &comm->info, true));
    return exchange(c, comm, true);
}

dt_status dt_carry_share(struct dt_carry *c, struct dt_comm *comm)
{
    if (!c->backend)
        return DT_OK;
    DT_TRY(exchange(c, comm, false));
    return move(c, &comm->info, false);
}

// Carried state on the device.
#include "train/carry.h"

static int64_t block_count(const struct dt_input_config *batch)
{
    return batch->sequences / batch->micro;
}

dt_status dt_carry_bytes(const struct dt_model_config *config, const struct dt_input_config *batch,
                         int64_t *bytes)
{
    int64_t block;
    DT_TRY(dt_model_state_bytes(config, batch->micro, &block));
    *bytes = 2 * (block_count(batch) + 1) * block; // kept and next, before and after
    return DT_OK;
}

static dt_status create_all(struct dt_carry *c, int64_t micro, bool training)
{
    DT_TRY(dt_model_state_create(c->model, micro, &c->before));
    DT_TRY(dt_model_state_create(c->model, micro, &c->after));
    if (training)
        DT_TRY(dt_alloc(c->backend, c->blocks * c->bytes, &c->kept));
    return dt_alloc(c->backend, c->blocks * c->bytes, &c->next);
}

dt_status dt_carry_create(const struct dt_backend *backend, struct dt_model *model,
                          const struct dt_input_config *batch, bool training,
                          struct dt_carry *carry)
{
    int64_t bytes;
    *carry = (struct dt_carry){0};
    DT_TRY(dt_model_state_bytes(dt_model_config(model), batch->micro, &bytes));
    if (bytes == 0)
        return DT_OK;
    *carry = (struct dt_carry){
        .backend = backend, .model = model, .blocks = block_count(batch), .bytes = bytes};
    dt_status status = create_all(carry, batch->micro, training);
    if (status != DT_OK)
        dt_carry_destroy(carry);
    return status;
}

void dt_carry_destroy(struct dt_carry *c)
{
    if (!c->backend)
        return;
    dt_model_state_destroy(c->model, c->before);
    dt_model_state_destroy(c->model, c->after);
    dt_free(c->backend, c->kept);
    dt_free(c->backend, c->next);
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

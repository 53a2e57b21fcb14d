// AdamW over the flat arrays of the model, driven by the device's control struct.
#include "train/optimizer.h"

#include <math.h>
#include <stdlib.h>

struct dt_optimizer_states dt_optimizer_states(const struct dt_optimizer_config *config)
{
    return (struct dt_optimizer_states){
        config->ema > 0 ? 3 : 2,
        {{.name = "exp_avg"}, {.name = "exp_avg_sq"}, {.name = "ema", .weights = true}}};
}

int64_t dt_optimizer_bytes(const struct dt_params *params, const struct dt_optimizer_config *config)
{
    return dt_optimizer_states(config).n * params->elements * (int64_t)sizeof(float);
}

static struct dt_sum_squares_args norm_args(const struct dt_optimizer *o)
{
    return (struct dt_sum_squares_args){.n = dt_model_params(o->model)->elements,
                                        .x = dt_model_gradients(o->model),
                                        .sum = o->sum_squares,
                                        .workspace = o->workspace,
                                        .workspace_bytes = o->workspace_bytes};
}

static dt_status allocate(struct dt_optimizer *o, int64_t bytes, void *pointer, const char *what)
{
    DT_TRY_NOTE(dt_alloc(o->backend, bytes, pointer), "allocating %.1f MiB for %s",
                (double)bytes / 0x1p20, what);
    return DT_OK;
}

static dt_status allocate_all(struct dt_optimizer *o)
{
    const struct dt_params *params = dt_model_params(o->model);
    struct dt_sum_squares_args norm = norm_args(o);
    struct dt_adamw_span *spans;
    o->workspace_bytes = dt_sum_squares_workspace(o->backend, &norm);
    for (struct dt_optimizer_state *s = o->states.list; s < o->states.list + o->states.n; s++)
        DT_TRY(allocate(o, params->elements * (int64_t)sizeof *s->data, &s->data, s->name));
    DT_TRY(allocate(o, sizeof *o->lr, &o->lr, "the learning rate"));
    DT_TRY(allocate(o, sizeof *o->sum, &o->sum, "the loss"));
    DT_TRY(allocate(o, sizeof *o->control, &o->control, "the update control"));
    DT_TRY(allocate(o, sizeof *o->sum_squares, &o->sum_squares, "the norm"));
    DT_TRY(allocate(o, o->workspace_bytes, &o->workspace, "the norm's workspace"));
    DT_TRY(dt_params_spans(params, o->config.weight_decay, &spans, &o->n_spans));
    int64_t bytes = o->n_spans * (int64_t)sizeof *spans;
    dt_status status = allocate(o, bytes, &o->spans, "the decay spans");
    if (status == DT_OK)
        status = dt_to_device(o->backend, o->spans, spans, bytes, NULL);
    if (status == DT_OK)
        status = dt_stream_sync(o->backend, NULL);
    free(spans);
    return status;
}

dt_status dt_optimizer_create(const struct dt_backend *backend, struct dt_model *model,
                              const struct dt_optimizer_config *config, struct dt_optimizer *o)
{
    *o = (struct dt_optimizer){.backend = backend,
                               .model = model,
                               .states = dt_optimizer_states(config),
                               .config = *config};
    dt_status status = allocate_all(o);
    if (status != DT_OK)
        dt_optimizer_destroy(o);
    return status;
}

void dt_optimizer_destroy(struct dt_optimizer *o)
{
    void *memory[] = {o->lr, o->sum, o->control, o->sum_squares, o->spans, o->workspace};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        dt_free(o->backend, memory[i]);
    for (int i = 0; i < o->states.n; i++)
        dt_free(o->backend, o->states.list[i].data);
    *o = (struct dt_optimizer){0};
}

dt_status dt_optimizer_restore(struct dt_optimizer *o, int64_t updates, int64_t skipped_in_a_row)
{
    struct dt_update_control control = {.updates = updates,
                                        .skipped_in_a_row = (int32_t)skipped_in_a_row};
    DT_TRY(dt_to_device(o->backend, o->control, &control, sizeof control, NULL));
    return dt_stream_sync(o->backend, NULL);
}

dt_status dt_optimizer_start_ema(struct dt_optimizer *o)
{
    float *ema = dt_optimizer_state(&o->states, "ema");
    int64_t bytes = dt_model_params(o->model)->elements * (int64_t)sizeof *ema;
    if (!ema)
        return DT_OK;
    DT_TRY(dt_copy(o->backend, ema, dt_model_weights(o->model), bytes, NULL));
    return dt_stream_sync(o->backend, NULL);
}

dt_status dt_optimizer_swap_ema(struct dt_optimizer *o, struct dt_stream *stream)
{
    float *ema = dt_optimizer_state(&o->states, "ema"), *weights = dt_model_weights(o->model);
    float *spare = dt_model_gradients(o->model); // of padding it is zero again afterwards
    int64_t bytes = dt_model_params(o->model)->elements * (int64_t)sizeof *ema;
    DT_TRY(dt_copy(o->backend, spare, weights, bytes, stream));
    DT_TRY(dt_copy(o->backend, weights, ema, bytes, stream));
    DT_TRY(dt_copy(o->backend, ema, spare, bytes, stream));
    DT_TRY(dt_fill(o->backend, spare, 0, bytes, stream));
    return dt_model_refresh(o->model, stream);
}

dt_status dt_optimizer_step(struct dt_optimizer *o, double expected, struct dt_stream *stream)
{
    struct dt_sum_squares_args norm = norm_args(o);
    DT_TRY(dt_sum_squares(o->backend, &norm, stream));
    struct dt_update_control_args control = {.sum = o->sum,
                                             .sum_squares = o->sum_squares,
                                             .expected = expected,
                                             .lr = o->lr,
                                             .beta1 = o->config.beta1,
                                             .beta2 = o->config.beta2,
                                             .grad_clip = o->config.grad_clip,
                                             .control = o->control};
    DT_TRY(dt_update_control(o->backend, &control, stream));
    struct dt_adamw_args adamw = {.n = dt_model_params(o->model)->elements,
                                  .weight = dt_model_weights(o->model),
                                  .m = dt_optimizer_state(&o->states, "exp_avg"),
                                  .v = dt_optimizer_state(&o->states, "exp_avg_sq"),
                                  .grad = dt_model_gradients(o->model),
                                  .copy = dt_model_weights_bf16(o->model),
                                  .average = dt_optimizer_state(&o->states, "ema"),
                                  .average_decay = o->config.ema,
                                  .beta1 = o->config.beta1,
                                  .beta2 = o->config.beta2,
                                  .eps = o->config.eps,
                                  .n_spans = o->n_spans,
                                  .spans = o->spans,
                                  .control = o->control};
    return dt_adamw(o->backend, &adamw, stream);
}

struct dt_update_control dt_optimizer_readable(const struct dt_update_control *control)
{
    struct dt_update_control readable = *control;
    readable.loss = fabs(control->loss);
    readable.grad_norm = fabs(control->grad_norm);
    return readable;
}

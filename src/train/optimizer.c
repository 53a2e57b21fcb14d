// AdamW over the flat arrays of the model, piece by piece, driven by the device's control struct.
#include "train/optimizer.h"

#include "base/round.h"
#include "kernels/sum_squares.h"

#include <stdlib.h>

struct dt_optimizer_states dt_optimizer_states(const struct dt_optimizer_config *config)
{
    return (struct dt_optimizer_states){.n = config->ema > 0 ? 3 : 2,
                                        .list = {{.name = "exp_avg"},
                                                 {.name = "exp_avg_sq", .squares = true},
                                                 {.name = "ema", .weights = true}}};
}

int64_t dt_optimizer_bytes(int64_t elements, const struct dt_optimizer_config *config)
{
    return dt_optimizer_states(config).n * elements * (int64_t)sizeof(float);
}

static dt_status allocate(struct dt_optimizer *o, int64_t bytes, void *pointer, const char *what)
{
    DT_TRY_NOTE(dt_alloc(o->backend, bytes, pointer), "allocating %.1f MiB for %s",
                (double)bytes / 0x1p20, what);
    return DT_OK;
}

dt_status dt_optimizer_create(const struct dt_backend *backend, struct dt_model *model,
                              const struct dt_optimizer_config *config,
                              const struct dt_pieces *pieces, struct dt_optimizer *o)
{
    const struct dt_params *params = dt_model_params(model);
    struct dt_adamw_span *spans;
    *o = (struct dt_optimizer){.backend = backend,
                               .model = model,
                               .states = dt_optimizer_states(config),
                               .config = *config,
                               .n_norms = dt_ceil_div(params->elements, DT_NORM_BLOCK)};
    o->states.pieces = *pieces;
    for (struct dt_optimizer_state *s = o->states.list; s < o->states.list + o->states.n; s++)
        DT_TRY(allocate(o, pieces->elements * (int64_t)sizeof *s->data, &s->data, s->name));
    DT_TRY(allocate(o, sizeof *o->lr, &o->lr, "the learning rate"));
    DT_TRY(allocate(o, sizeof *o->sum, &o->sum, "the loss"));
    DT_TRY(allocate(o, sizeof *o->control, &o->control, "the update control"));
    DT_TRY(allocate(o, sizeof *o->sum_squares, &o->sum_squares, "the norm"));
    DT_TRY(allocate(o, o->n_norms * (int64_t)sizeof *o->norms, &o->norms, "the norm's blocks"));
    DT_TRY(dt_params_spans(params, config->weight_decay, &spans, &o->n_spans));
    int64_t bytes = o->n_spans * (int64_t)sizeof *spans;
    dt_status status = allocate(o, bytes, &o->spans, "the decay spans");
    if (status == DT_OK)
        status = dt_to_device(backend, o->spans, spans, bytes, NULL);
    if (status == DT_OK)
        status = dt_stream_sync(backend, NULL);
    free(spans);
    return status;
}

void dt_optimizer_destroy(struct dt_optimizer *o)
{
    if (!o->backend)
        return;
    void *memory[] = {o->lr, o->sum, o->control, o->sum_squares, o->spans, o->norms};
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

static bool next_piece(const struct dt_optimizer *o, struct dt_held *piece)
{
    return dt_pieces_next(&o->states.pieces, o->states.pieces.n, 0, INT64_MAX, piece);
}

dt_status dt_optimizer_start_ema(struct dt_optimizer *o)
{
    float *ema = dt_optimizer_state(&o->states, "ema"), *weights = dt_model_weights(o->model);
    for (struct dt_held p = {0}; ema && next_piece(o, &p);)
        DT_TRY(dt_copy(o->backend, ema + p.at, weights + p.first,
                       (p.end - p.first) * (int64_t)sizeof *ema, NULL));
    return dt_stream_sync(o->backend, NULL);
}

dt_status dt_optimizer_swap_ema(struct dt_optimizer *o, struct dt_stream *stream)
{
    float *ema = dt_optimizer_state(&o->states, "ema"), *weights = dt_model_weights(o->model);
    float *spare = dt_model_gradients(o->model); // of padding it is zero again afterwards
    for (struct dt_held p = {0}; next_piece(o, &p);) {
        int64_t bytes = (p.end - p.first) * (int64_t)sizeof *ema;
        DT_TRY(dt_copy(o->backend, spare + p.first, weights + p.first, bytes, stream));
        DT_TRY(dt_copy(o->backend, weights + p.first, ema + p.at, bytes, stream));
        DT_TRY(dt_copy(o->backend, ema + p.at, spare + p.first, bytes, stream));
    }
    DT_TRY(dt_fill(o->backend, spare, 0,
                   dt_model_params(o->model)->elements * (int64_t)sizeof *spare, stream));
    if (o->buckets)
        DT_TRY(dt_buckets_gather_masters(o->buckets));
    return dt_model_refresh(o->model, stream);
}

// Sums the squares of the gradients' norm blocks in pieces [first, end).
static dt_status sum_blocks(struct dt_optimizer *o, int64_t first, int64_t end,
                            struct dt_stream *stream)
{
    for (int64_t i = first; i < end; i++) {
        const struct dt_span *span = &o->states.pieces.spans[i];
        int64_t block = span->first / DT_NORM_BLOCK;
        struct dt_sum_squares_args args = {.n = span->end - span->first,
                                           .part = DT_SQUARES_BLOCKS,
                                           .x = dt_model_gradients(o->model) + span->first,
                                           .workspace = o->norms + block,
                                           .workspace_bytes =
                                               (o->n_norms - block) * (int64_t)sizeof *o->norms};
        DT_TRY(dt_sum_squares(o->backend, &args, stream));
    }
    return DT_OK;
}

// Computes *sum_squares of the gradients: first of each norm block, on the rank that holds it, then
// of all blocks in order. So it has the same bits whether the states are sharded or not.
static dt_status sum_squares(struct dt_optimizer *o, struct dt_stream *stream)
{
    const struct dt_pieces *pieces = &o->states.pieces;
    int64_t bytes = o->n_norms * (int64_t)sizeof *o->norms;
    struct dt_sum_squares_args total = {.n = dt_model_params(o->model)->elements,
                                        .part = DT_SQUARES_TOTAL,
                                        .sum = o->sum_squares,
                                        .workspace = o->norms,
                                        .workspace_bytes = bytes};
    if (o->buckets) {
        DT_TRY(dt_fill(o->backend, o->norms, 0, bytes, stream));
        DT_TRY(sum_blocks(o, 0, pieces->n_own, stream));
        DT_TRY(dt_buckets_sum_norms(o->buckets));
    }
    DT_TRY(sum_blocks(o, pieces->n_own, pieces->n, stream));
    return dt_sum_squares(o->backend, &total, stream);
}

dt_status dt_optimizer_control(struct dt_optimizer *o, double expected, struct dt_stream *stream)
{
    struct dt_update_control_args control = {.sum = o->sum,
                                             .sum_squares = o->sum_squares,
                                             .expected = expected,
                                             .lr = o->lr,
                                             .beta1 = o->config.beta1,
                                             .beta2 = o->config.beta2,
                                             .grad_clip = o->config.grad_clip,
                                             .control = o->control};
    DT_TRY(sum_squares(o, stream));
    return dt_update_control(o->backend, &control, stream);
}

// Where the compact array of a state holds a piece; NULL where there is no such state.
static float *state_at(const struct dt_optimizer *o, const char *name, int64_t at)
{
    float *data = dt_optimizer_state(&o->states, name);
    return data ? data + at : NULL;
}

dt_status dt_optimizer_update(struct dt_optimizer *o, struct dt_stream *stream)
{
    dt_bf16 *copies = dt_model_weights_bf16(o->model);
    for (struct dt_held p = {0}; next_piece(o, &p);) {
        struct dt_adamw_args adamw = {.n = p.end - p.first,
                                      .first = p.first,
                                      .weight = dt_model_weights(o->model) + p.first,
                                      .m = state_at(o, "exp_avg", p.at),
                                      .v = state_at(o, "exp_avg_sq", p.at),
                                      .grad = dt_model_gradients(o->model) + p.first,
                                      .copy = copies ? copies + p.first : NULL,
                                      .average = state_at(o, "ema", p.at),
                                      .average_decay = o->config.ema,
                                      .beta1 = o->config.beta1,
                                      .beta2 = o->config.beta2,
                                      .eps = o->config.eps,
                                      .n_spans = o->n_spans,
                                      .spans = o->spans,
                                      .control = o->control};
        DT_TRY(dt_adamw(o->backend, &adamw, stream));
    }
    return DT_OK;
}

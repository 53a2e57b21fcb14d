// AdamW on the flat arrays of the model, piece by piece, and Muon on its matrices, controlled by
// the device's control struct.
#include "train/optimizer.h"

#include "base/round.h"
#include "kernels/sum_squares.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ITERATIONS = 5 };

struct dt_optimizer_states dt_optimizer_states(const struct dt_optimizer_config *config)
{
    struct dt_optimizer_states states = {
        .n = 2,
        .list = {{.name = "exp_avg"},
                 {.name = "exp_avg_sq", .squares = true, .vectors = config->muon}}};
    if (config->ema > 0)
        states.list[states.n++] = (struct dt_optimizer_state){.name = "ema", .weights = true};
    if (config->keeps_weights)
        states.list[states.n++] = (struct dt_optimizer_state){.name = "weights", .weights = true};
    return states;
}

int64_t dt_optimizer_elements(const struct dt_params *params, int64_t held,
                              const struct dt_optimizer_config *config)
{
    const struct dt_optimizer_states states = dt_optimizer_states(config);
    int64_t others = params->elements, all = 0;
    for (const struct dt_param *row = params->rows; row < params->rows + params->n; row++)
        others -= row->matrix ? row->count : 0;
    for (int i = 0; i < states.n; i++)
        all += states.list[i].vectors ? dt_min_i64(others, held) : held;
    return all;
}

static dt_status allocate(struct dt_optimizer *o, int64_t bytes, void *pointer, const char *what)
{
    DT_TRY_NOTE(dt_alloc(o->backend, bytes, pointer), "allocating %.1f MiB for %s",
                (double)bytes / 0x1p20, what);
    return DT_OK;
}

// ---- Muon's products

static struct dt_view matrix(void *data, int64_t rows, int64_t cols, enum dt_dtype type)
{
    return dt_view_of(data, rows, cols, type);
}

// The products of an iteration on the matrix of `row`: gram, its square, and the next x.
static void products(const struct dt_muon_scratch *s, const struct dt_param *row,
                     enum dt_dtype type, int from, struct dt_gemm_args list[3])
{
    const int64_t r = row->shape[0], c = row->shape[1], side = dt_min_i64(r, c);
    const struct dt_view x = matrix(s->x[from], r, c, type), next = matrix(s->x[!from], r, c, type),
                         gram = matrix(s->gram, side, side, type),
                         square = matrix(s->square, side, side, type),
                         p = matrix(s->p, side, side, type);
    const bool wide = r <= c;
    list[0] = (struct dt_gemm_args){.a = x, .b = x, .c = gram, .trans_a = !wide, .trans_b = wide};
    list[1] = (struct dt_gemm_args){.a = gram, .b = gram, .c = square};
    list[2] = (struct dt_gemm_args){.a = wide ? p : x, .b = wide ? x : p, .c = next};
    for (int i = 0; i < 3; i++) {
        list[i].workspace = s->workspace;
        list[i].workspace_bytes = s->workspace_bytes;
    }
}

static void measure_scratch(const struct dt_backend *backend, const struct dt_params *params,
                            enum dt_dtype type, struct dt_muon_scratch *s)
{
    struct dt_gemm_args list[3];
    *s = (struct dt_muon_scratch){0};
    for (const struct dt_param *row = params->rows; row < params->rows + params->n; row++) {
        if (!row->matrix)
            continue;
        s->elements = dt_max_i64(s->elements, row->count);
        s->side = dt_max_i64(s->side, dt_min_i64(row->shape[0], row->shape[1]));
        products(s, row, type, 0, list);
        for (int i = 0; i < 3; i++)
            s->workspace_bytes =
                dt_max_i64(s->workspace_bytes, dt_gemm_workspace(backend, &list[i]));
    }
}

// Arrays and sizes of the scratch memory, for the plan and for creation.
enum { SCRATCH = 8 };
struct scratch_array {
    void **at;
    int64_t bytes;
};
static void list_scratch(struct dt_muon_scratch *s, enum dt_dtype type,
                         struct scratch_array list[SCRATCH])
{
    const int64_t x = s->elements * dt_dtype_size(type), square = s->side * s->side;
    const int64_t sums = dt_ceil_div(s->elements, DT_NORM_BLOCK) * (int64_t)sizeof *s->sums;
    const struct scratch_array all[SCRATCH] = {
        {&s->x[0], x},
        {&s->x[1], x},
        {&s->gram, square * dt_dtype_size(type)},
        {&s->square, square * dt_dtype_size(type)},
        {&s->p, square * dt_dtype_size(type)},
        {&s->workspace, s->workspace_bytes},
        {(void **)&s->sum, sizeof *s->sum},
        {(void **)&s->sums, sums},
    };
    memcpy(list, all, sizeof all);
}

dt_status dt_optimizer_scratch(const struct dt_backend *backend, const struct dt_params *params,
                               enum dt_dtype storage, const struct dt_optimizer_config *config,
                               int64_t *bytes)
{
    struct dt_muon_scratch s;
    struct scratch_array list[SCRATCH];
    *bytes = 0;
    if (!config->muon)
        return DT_OK;
    measure_scratch(backend, params, storage, &s);
    list_scratch(&s, storage, list);
    for (int i = 0; i < SCRATCH; i++)
        *bytes += list[i].bytes;
    return DT_OK;
}

static dt_status create_scratch(struct dt_optimizer *o)
{
    const enum dt_dtype type = dt_model_config(o->model)->storage;
    struct scratch_array list[SCRATCH];
    if (!o->config.muon)
        return DT_OK;
    measure_scratch(o->backend, dt_model_params(o->model), type, &o->muon);
    list_scratch(&o->muon, type, list);
    for (int i = 0; i < SCRATCH; i++)
        if (list[i].bytes > 0)
            DT_TRY(allocate(o, list[i].bytes, list[i].at, "Muon's iterations"));
    return DT_OK;
}

// ---- creation

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
    if (config->muon)
        DT_TRY(dt_states_leave_out_matrices(&o->states, params));
    for (int i = 0; i < o->states.n; i++) {
        struct dt_optimizer_state *s = &o->states.list[i];
        int64_t elements = dt_state_pieces(&o->states, i)->elements;
        DT_TRY(allocate(o, elements * (int64_t)sizeof *s->data, &s->data, s->name));
    }
    if (params->ring.n > 0)
        DT_TRY(allocate(o, pieces->elements * (int64_t)sizeof *o->gradients, &o->gradients,
                        "this rank's gradients"));
    if (config->keeps_weights && dt_model_config(model)->storage == DT_BF16)
        DT_TRY(allocate(o, pieces->elements * (int64_t)sizeof *o->copies, &o->copies,
                        "this rank's weights in bf16"));
    DT_TRY(allocate(o, sizeof *o->lr, &o->lr, "the learning rate"));
    DT_TRY(allocate(o, sizeof *o->sum, &o->sum, "the loss"));
    DT_TRY(allocate(o, sizeof *o->control, &o->control, "the update control"));
    DT_TRY(allocate(o, sizeof *o->sum_squares, &o->sum_squares, "the norm"));
    DT_TRY(allocate(o, o->n_norms * (int64_t)sizeof *o->norms, &o->norms, "the norm's blocks"));
    DT_TRY(create_scratch(o));
    DT_TRY(dt_params_rates(params, config->groups ? config->groups : "", config->lr, config->muon,
                           &o->rates));
    DT_TRY(dt_params_spans(params, config->weight_decay, o->rates, &spans, &o->n_spans));
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
    void *memory[] = {o->lr,    o->sum,   o->control,   o->sum_squares,
                      o->spans, o->norms, o->gradients, o->copies};
    struct scratch_array list[SCRATCH];
    list_scratch(&o->muon, DT_F32, list);
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        dt_free(o->backend, memory[i]);
    for (int i = 0; i < SCRATCH; i++)
        dt_free(o->backend, *list[i].at);
    free(o->rates);
    free(o->states.others.spans);
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

static float *gradient_at(const struct dt_optimizer *o, const struct dt_held *piece)
{
    return o->gradients ? o->gradients + piece->at : dt_model_gradients(o->model) + piece->first;
}

static float *weight_at(const struct dt_optimizer *o, const struct dt_held *piece)
{
    float *own = dt_optimizer_state(&o->states, "weights");
    return own ? own + piece->at : dt_model_weights(o->model) + piece->first;
}

static dt_bf16 *copy_at(const struct dt_optimizer *o, const struct dt_held *piece)
{
    dt_bf16 *copies = dt_model_weights_bf16(o->model);
    if (o->copies)
        return o->copies + piece->at;
    return copies ? copies + piece->first : NULL;
}

dt_status dt_optimizer_start_ema(struct dt_optimizer *o)
{
    float *ema = dt_optimizer_state(&o->states, "ema");
    for (struct dt_held p = {0}; ema && next_piece(o, &p);)
        DT_TRY(dt_copy(o->backend, ema + p.at, weight_at(o, &p),
                       (p.end - p.first) * (int64_t)sizeof *ema, NULL));
    return dt_stream_sync(o->backend, NULL);
}

dt_status dt_optimizer_refresh(struct dt_optimizer *o, struct dt_stream *stream)
{
    struct dt_cast_args args = {.n = o->states.pieces.elements,
                                .x = dt_optimizer_state(&o->states, "weights"),
                                .x_type = DT_F32,
                                .y = o->copies,
                                .y_type = DT_BF16};
    return o->copies ? dt_cast(o->backend, &args, stream) : DT_OK;
}

dt_status dt_optimizer_swap_ema(struct dt_optimizer *o, struct dt_stream *stream)
{
    float *ema = dt_optimizer_state(&o->states, "ema");
    for (struct dt_held p = {0}; next_piece(o, &p);) {
        float *weights = weight_at(o, &p);
        float *spare = gradient_at(o, &p); // padding is zero again afterwards
        int64_t bytes = (p.end - p.first) * (int64_t)sizeof *ema;
        DT_TRY(dt_copy(o->backend, spare, weights, bytes, stream));
        DT_TRY(dt_copy(o->backend, weights, ema + p.at, bytes, stream));
        DT_TRY(dt_copy(o->backend, ema + p.at, spare, bytes, stream));
        DT_TRY(dt_fill(o->backend, spare, 0, bytes, stream));
    }
    if (o->buckets)
        DT_TRY(dt_buckets_gather_masters(o->buckets));
    return dt_model_refresh(o->model, stream);
}

// Sums the squares of the gradients' norm blocks in pieces [first, end).
static dt_status sum_blocks(struct dt_optimizer *o, int64_t first, int64_t end,
                            struct dt_stream *stream)
{
    for (struct dt_held p = {0}; next_piece(o, &p) && p.next <= end;) {
        int64_t block = p.first / DT_NORM_BLOCK;
        struct dt_sum_squares_args args = {.n = p.end - p.first,
                                           .part = DT_SQUARES_BLOCKS,
                                           .x = gradient_at(o, &p),
                                           .workspace = o->norms + block,
                                           .workspace_bytes =
                                               (o->n_norms - block) * (int64_t)sizeof *o->norms};
        if (p.next <= first)
            continue;
        DT_TRY(dt_sum_squares(o->backend, &args, stream));
    }
    return DT_OK;
}

// Computes *sum_squares of the gradients: first of each norm block, on the rank that holds it, then
// of all blocks in order, so that the bits do not depend on sharding.
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

// The address of a piece in the compact array of a state; NULL: no such state.
static float *state_at(const struct dt_optimizer *o, const char *name, int64_t at)
{
    float *data = dt_optimizer_state(&o->states, name);
    return data ? data + at : NULL;
}

// Runs AdamW on this rank's part of [first, end), which has no matrix of Muon.
static dt_status update_adamw(struct dt_optimizer *o, int64_t first, int64_t end,
                              struct dt_stream *stream)
{
    const struct dt_pieces *pieces = &o->states.pieces,
                           *of_squares = o->config.muon ? &o->states.others : pieces;
    struct dt_held q = {0};
    for (struct dt_held p = {0}; dt_pieces_next(pieces, pieces->n, first, end, &p);) {
        dt_pieces_next(of_squares, of_squares->n, first, end, &q);
        struct dt_adamw_args adamw = {.n = p.end - p.first,
                                      .first = p.first,
                                      .weight = weight_at(o, &p),
                                      .m = state_at(o, "exp_avg", p.at),
                                      .v = state_at(o, "exp_avg_sq", q.at),
                                      .grad = gradient_at(o, &p),
                                      .copy = copy_at(o, &p),
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

// Updates the momentum of this rank's part of a matrix; the look-ahead overwrites the gradient.
static dt_status update_momentum(struct dt_optimizer *o, const struct dt_param *row,
                                 struct dt_stream *stream)
{
    const struct dt_pieces *pieces = &o->states.pieces;
    for (struct dt_held p = {0};
         dt_pieces_next(pieces, pieces->n, row->offset, row->offset + row->count, &p);) {
        struct dt_muon_args muon = {.part = DT_MUON_MOMENTUM,
                                    .n = p.end - p.first,
                                    .side = 1,
                                    .m = state_at(o, "exp_avg", p.at),
                                    .u = gradient_at(o, &p),
                                    .momentum = o->config.momentum,
                                    .control = o->control};
        DT_TRY(dt_muon(o->backend, &muon, stream));
    }
    return DT_OK;
}

// Orthogonalises a row's look-ahead into o->muon.x[ITERATIONS % 2].
static dt_status orthogonalise(struct dt_optimizer *o, const struct dt_param *row,
                               struct dt_stream *stream)
{
    const struct dt_muon_scratch *s = &o->muon;
    const enum dt_dtype type = dt_model_config(o->model)->storage;
    const int64_t side = dt_min_i64(row->shape[0], row->shape[1]);
    float *u = dt_model_gradient(o->model, (int)(row - dt_model_params(o->model)->rows));
    struct dt_sum_squares_args squares = {
        .n = row->count,
        .x = u,
        .sum = s->sum,
        .workspace = s->sums,
        .workspace_bytes = dt_ceil_div(row->count, DT_NORM_BLOCK) * (int64_t)sizeof *s->sums};
    struct dt_muon_args start = {.part = DT_MUON_START,
                                 .n = row->count,
                                 .side = 1,
                                 .type = type,
                                 .u = u,
                                 .sum = s->sum,
                                 .x = s->x[0]};
    struct dt_muon_args polynomial = {.part = DT_MUON_POLYNOMIAL,
                                      .n = side * side,
                                      .side = side,
                                      .type = type,
                                      .gram = s->gram,
                                      .square = s->square,
                                      .p = s->p};
    DT_TRY(dt_sum_squares(o->backend, &squares, stream));
    DT_TRY(dt_muon(o->backend, &start, stream));
    for (int i = 0; i < ITERATIONS; i++) {
        struct dt_gemm_args list[3];
        products(s, row, type, i % 2, list);
        DT_TRY(dt_gemm(o->backend, &list[0], stream));
        DT_TRY(dt_gemm(o->backend, &list[1], stream));
        DT_TRY(dt_muon(o->backend, &polynomial, stream));
        DT_TRY(dt_gemm(o->backend, &list[2], stream));
    }
    return DT_OK;
}

static dt_status update_matrix(struct dt_optimizer *o, int index, struct dt_stream *stream)
{
    const struct dt_param *row = &dt_model_params(o->model)->rows[index];
    const struct dt_param_rate *rate = &o->rates[index];
    const enum dt_dtype type = dt_model_config(o->model)->storage;
    const struct dt_pieces *pieces = &o->states.pieces;
    bool first = true;
    for (struct dt_held p = {0};
         dt_pieces_next(pieces, pieces->n, row->offset, row->offset + row->count, &p);
         first = false) {
        double side = (double)dt_max_i64(row->shape[0], row->shape[1]);
        struct dt_muon_args apply = {.part = DT_MUON_APPLY,
                                     .n = p.end - p.first,
                                     .side = 1,
                                     .type = type,
                                     .x = (char *)o->muon.x[ITERATIONS % 2] +
                                          (p.first - row->offset) * dt_dtype_size(type),
                                     .weight = weight_at(o, &p),
                                     .copy = copy_at(o, &p),
                                     .average = state_at(o, "ema", p.at),
                                     .average_decay = o->config.ema,
                                     .decay = row->decay ? o->config.weight_decay * rate->group : 0,
                                     .rate = rate->lr * (float)(0.2 * sqrt(side)),
                                     .control = o->control};
        if (first)
            DT_TRY(orthogonalise(o, row, stream));
        DT_TRY(dt_muon(o->backend, &apply, stream));
    }
    return DT_OK;
}

dt_status dt_optimizer_update(struct dt_optimizer *o, struct dt_stream *stream)
{
    const struct dt_params *params = dt_model_params(o->model);
    int64_t first = 0; // start of AdamW's rows before the next matrix
    for (int i = 0; i < params->n && o->config.muon; i++) {
        const struct dt_param *row = &params->rows[i];
        if (!row->matrix)
            continue;
        DT_TRY(update_adamw(o, first, row->offset, stream));
        DT_TRY(update_momentum(o, row, stream));
        first = row->offset + row->count;
    }
    DT_TRY(update_adamw(o, first, params->elements, stream));
    if (!o->config.muon)
        return DT_OK;
    // The matrices, by units if the model's gradients are in a ring.
    int64_t unit = dt_max_i64(params->ring.n - 1, 0);
    for (int i = params->n - 1; unit >= 0; unit--) {
        int64_t begin = unit > 0 ? params->ring.units[unit - 1].end : 0;
        if (o->buckets)
            DT_TRY(dt_buckets_gather_gradients(o->buckets, unit));
        for (; i >= 0 && params->rows[i].offset >= begin; i--)
            if (params->rows[i].matrix)
                DT_TRY(update_matrix(o, i, stream));
    }
    return DT_OK;
}

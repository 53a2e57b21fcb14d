// Creates a model: parts, memory plan, weights and carried states.
#include "model/model_internal.h"

#include "base/memory.h"
#include "base/round.h"

#include <string.h>

const char *const dt_memory_name[DT_MEMORY_COUNT] = {"weights",   "bf16 weights", "int8 weights",
                                                     "gradients", "activations",  "scratch",
                                                     "logits",    "workspace"};

enum { ROW_ALIGN = 64 }; // bytes of a cache line, to which rows of h are aligned

struct dt_model_state {
    void *memory;
    void *arrays[][DT_BATCH_ARRAYS]; // [n_layer + 1], the head last
};

static void parts_free(struct dt_parts *parts)
{
    for (int64_t i = 0; parts->all && i < parts->layers + 2; i++) {
        if (parts->all[i])
            free(parts->all[i]->reverse);
        free(parts->all[i]);
    }
    free(parts->all);
    dt_params_free(&parts->params);
}

static dt_status part_new(const struct dt_build *build, const struct dt_kind *kind, int64_t layer,
                          struct dt_part **part)
{
    DT_TRY(DT_NEW_BYTES(part, kind->size, "a part of kind %s", kind->name));
    **part = (struct dt_part){.kind = kind, .layer = layer, .first_row = build->params->n};
    kind->create(*part, build);
    return DT_OK;
}

static dt_status part_create(struct dt_parts *parts, int64_t i, const struct dt_kind *kind,
                             const struct dt_model_config *config)
{
    struct dt_build build = {config, &parts->params, &parts->arrays, &parts->outputs, NULL};
    DT_TRY(part_new(&build, kind, i - 1, &parts->all[i]));
    struct dt_part *part = parts->all[i];
    if (i > 0 && i <= parts->layers && dt_block_is_twofold(config, kind)) {
        build.twin = part;
        DT_TRY(part_new(&build, kind, i - 1, &part->reverse));
        part->flops += part->reverse->flops;
        parts->reverses = true;
        parts->reset = dt_build_array(&build, "reset", DT_U8, 1, true);
        parts->mask = dt_build_array(&build, "mask", DT_U8, 1, true);
    }
    if (part == parts->all[parts->layers + 1])
        part->norm = dt_params_add(&parts->params, dt_init_one, 0, config->d_model, 1,
                                   &config->d_model, "backbone.norm_f.weight");
    else if (i > 0)
        part->norm = dt_build_row(&build, part, "norm.weight", dt_init_one, 0, 1, &config->d_model);
    for (int row = part->first_row; i > 0 && i <= parts->layers && row < parts->params.n; row++) {
        struct dt_param *param = &parts->params.rows[row];
        param->matrix = param->n_dims == 2 && param->decay && !param->frozen;
    }
    return DT_OK;
}

static dt_status parts_create(const struct dt_model_config *config, struct dt_parts *parts);

// µP [Yang et al. 2022, table 8]: compares the rows with those of the same model of width mup_base.
// A matrix's rate follows its fan-in. The output's multiplier and rate are applied to the last
// norm's weight, which is equivalent under Adam and keeps exported models unchanged.
static dt_status scale_widths(const struct dt_model_config *config, struct dt_parts *parts)
{
    static const char norm[] = "backbone.norm_f.weight";
    struct dt_model_config base = *config;
    struct dt_parts of_base;
    base.mup_base = 0;
    dt_model_config_narrow(&base, config->mup_base);
    dt_status status = parts_create(&base, &of_base);
    if (status == DT_OK && of_base.params.n != parts->params.n)
        status = DT_FAIL(DT_USER, "choose another width",
                         "model.mup_base: a model of width %lld has other tensors",
                         (long long)config->mup_base);
    for (int i = 0; i < parts->params.n && status == DT_OK; i++) {
        struct dt_param *row = &parts->params.rows[i];
        const struct dt_param *narrow = &of_base.params.rows[i];
        if (row->matrix)
            row->width = (float)row->shape[1] / (float)narrow->shape[1];
        if (strcmp(row->name, norm) != 0)
            continue;
        row->width = (float)config->d_model / (float)config->mup_base;
        row->init = dt_init_constant;
        row->init_scale = 1 / row->width;
    }
    parts_free(&of_base);
    return status;
}

// Creates the last part first, so that rows are in the order in which backward finishes them.
// Caller frees, even on failure.
static dt_status parts_create(const struct dt_model_config *config, struct dt_parts *parts)
{
    struct dt_layers layers;
    *parts = (struct dt_parts){0};
    DT_TRY(dt_layers_parse(config->layers, config->n_layer, &layers));
    DT_TRY(dt_stem_find(config, &parts->stem));
    DT_TRY(dt_head_find(config, &parts->head));
    DT_TRY(dt_model_outputs_of(config, &parts->outputs));
    int64_t n = parts->layers = layers.n_layer;
    DT_TRY(DT_NEW(&parts->all, n + 2, "%lld layers", (long long)n));
    DT_TRY(part_create(parts, n + 1, &parts->head->kind, config));
    parts->head_part = parts->all[n + 1];
    parts->head_rows = parts->params.n;
    for (int64_t i = n; i > 0; i--)
        DT_TRY(part_create(parts, i, dt_layers_kind(&layers, i - 1), config));
    DT_TRY(part_create(parts, 0, &parts->stem->kind, config));
    DT_TRY(dt_params_complete(&parts->params));
    return config->mup_base > 0 ? scale_widths(config, parts) : DT_OK;
}

dt_status dt_model_list(const struct dt_model_config *config, struct dt_params *params,
                        struct dt_array_list *arrays)
{
    struct dt_parts parts;
    dt_status status = parts_create(config, &parts);
    if (arrays)
        *arrays = parts.arrays;
    if (params && status == DT_OK) {
        *params = parts.params;
        parts.params = (struct dt_params){0};
    }
    parts_free(&parts);
    return status;
}

double dt_model_flops_per_token(const struct dt_model_config *config)
{
    struct dt_parts parts;
    double flops = 0;
    if (parts_create(config, &parts) == DT_OK)
        for (int64_t i = 0; i < parts.layers + 2; i++)
            flops += parts.all[i]->flops;
    parts_free(&parts);
    return flops;
}

// The rows of arrays between parts.
static int64_t rows_between(const struct dt_plan *plan)
{
    const struct dt_model_shape *shape = &plan->shape;
    return shape->window > 0 ? shape->sequences * shape->window : plan->rows;
}

// Plans the arrays of a part and of the norm before it.
static void plan_part(struct dt_part *part, struct dt_plan *plan, bool head)
{
    const struct dt_model_config *config = plan->net->config;
    enum dt_memory memory = head ? DT_MEMORY_ACTIVATIONS : plan->block;
    const int64_t rows = plan->rows;
    part->h = part->dh = (struct dt_view){0};
    if (part->kind->plan)
        part->kind->plan(part, plan);
    if (part->layer < 0)
        return; // the stem has no norm
    part->rstd = dt_plan_view(plan, memory, plan->rows, 1, DT_F32).data;
    if (part->h.cols > 0)
        return; // planned by the part itself
    part->h = dt_plan_aligned(plan, memory, config->d_model, ROW_ALIGN);
    if (!plan->shape.training)
        return;
    if (part->reverse) // the first sweep leaves it to the second one
        plan->rows = rows_between(plan);
    part->dh = dt_plan_aligned(plan, DT_MEMORY_SCRATCH, config->d_model, ROW_ALIGN);
    plan->rows = rows;
}

// Plans the arrays of a block. Its directions run one after the other, so the second shares the
// first one's scratch, and its input is reversed again in backward.
static void plan_block(struct dt_part *block, struct dt_plan *plan)
{
    struct dt_arena *scratch = &plan->arenas[DT_MEMORY_SCRATCH];
    struct dt_part *reverse = block->reverse;
    int64_t d = plan->net->config->d_model, mark = dt_arena_mark(scratch), rows = plan->rows;
    if (((const struct dt_block_kind *)block->kind)->whole)
        plan->rows = rows_between(plan);
    plan_part(block, plan, false);
    plan->rows = rows;
    if (!reverse)
        return;
    int64_t end = dt_arena_mark(scratch);
    dt_arena_release(scratch, mark);
    reverse->kind->plan(reverse, plan);
    dt_arena_take(scratch, end - dt_arena_mark(scratch));
    reverse->h = dt_plan_aligned(plan, DT_MEMORY_SCRATCH, d, ROW_ALIGN);
    if (plan->shape.training)
        reverse->dh = dt_plan_aligned(plan, DT_MEMORY_SCRATCH, d, ROW_ALIGN);
}

// Places everything in the arenas of `plan`, always in the same order.
static void arrange(struct dt_model *model, struct dt_plan *plan)
{
    struct dt_parts *parts = &model->parts;
    struct dt_net *net = &model->net;
    int64_t d = model->config.d_model, M = rows_between(plan), elements = parts->params.elements,
            mark = 0;
    bool training = plan->shape.training;
    enum dt_memory border = training ? DT_MEMORY_ACTIVATIONS : DT_MEMORY_SCRATCH;
    enum dt_recompute recompute = model->config.recompute;
    plan->block = recompute < DT_RECOMPUTE_BLOCK ? border : DT_MEMORY_SCRATCH;
    plan->scan = recompute < DT_RECOMPUTE_SCAN ? border : DT_MEMORY_SCRATCH;
    int64_t ring = parts->params.ring.n > 0 ? parts->params.ring.elements : elements;
    bool spread = parts->params.ring_weights, bf16 = model->config.storage == DT_BF16;
    int64_t read = spread ? ring : elements;
    if (!net->rows && !(spread && bf16)) // otherwise only rows that a measured pass reads
        net->stored = net->weights = dt_plan_view(plan, DT_MEMORY_WEIGHTS, read, 1, DT_F32).data;
    if (!net->rows && bf16)
        net->stored = dt_plan_view(plan, DT_MEMORY_WEIGHTS_BF16, read, 1, DT_BF16).data;
    if (training)
        net->gradients = dt_plan_view(plan, DT_MEMORY_GRADIENTS, ring, 1, DT_F32).data;
    for (int64_t i = 0; i <= parts->layers; i++)
        model->residual[i] =
            i == 0 || training ? dt_plan_view(plan, border, M, d, DT_F32) : model->residual[0];
    model->out = dt_plan_view(plan, DT_MEMORY_SCRATCH, M, d, model->config.storage);
    if (training)
        model->dresidual = dt_plan_view(plan, DT_MEMORY_SCRATCH, M, d, DT_F32);
    if (parts->reverses) {
        model->resets = dt_plan_view(plan, DT_MEMORY_SCRATCH, plan->rows, 1, DT_U8).data;
        model->reversed =
            dt_plan_view(plan, DT_MEMORY_SCRATCH, plan->rows, d, model->config.storage);
    }
    for (int64_t i = 0; i < parts->layers + 2; i++) {
        struct dt_arena *scratch = &plan->arenas[DT_MEMORY_SCRATCH];
        if (i == 1)
            mark = dt_arena_mark(scratch);
        if (i > 1 && i <= parts->layers) // shared by blocks
            dt_arena_release(scratch, mark);
        if (i > 0 && i <= parts->layers)
            plan_block(parts->all[i], plan);
        else
            plan_part(parts->all[i], plan, i > parts->layers);
    }
}

dt_status dt_model_outputs_of(const struct dt_model_config *config, struct dt_outputs *outputs)
{
    const struct dt_head_kind *head;
    *outputs = (struct dt_outputs){0};
    DT_TRY(dt_head_find(config, &head));
    return head->outputs ? head->outputs(config, outputs) : DT_OK;
}

const struct dt_outputs *dt_model_outputs(const struct dt_model *model)
{
    return &model->parts.outputs;
}

const struct dt_outputs *dt_model_measured(const struct dt_model *model)
{
    const struct dt_outputs *outputs = &model->parts.outputs;
    return outputs->n > 0 && outputs->list[0].measure ? outputs : NULL;
}

// The largest workspace of any op in any pass.
static dt_status measure_workspace(const struct dt_model *model, int64_t *bytes)
{
    const struct dt_model_shape *shape = &model->shape;
    struct dt_pass pass = {.input = {.sequences = shape->sequences, .length = shape->length},
                           .measured = bytes};
    struct dt_view values = {0};
    *bytes = 0;
    DT_TRY(dt_model_forward(model, &pass));
    DT_TRY(dt_model_loss(model, &pass, 0, NULL));
    if (model->parts.head->logits)
        DT_TRY(dt_model_logits(model, &pass, &values));
    for (int k = 0; k < model->parts.outputs.n; k++)
        DT_TRY(dt_model_output(model, &pass, k, &values));
    for (int add = 0; shape->training && add < 2; add++) { // the first micro-batch and a later one
        pass.accumulate = add;
        DT_TRY(dt_model_loss(model, &pass, 1, NULL));
        DT_TRY(dt_model_backward(model, &pass));
    }
    return DT_OK;
}

// Places what a measured pass needs: the masters beside a ring, the weights that are kept row by
// row in the types in which it reads them, and the int8 weights of linear layers.
static void place_rows(struct dt_model *model, struct dt_arena *arenas)
{
    struct dt_params *params = &model->parts.params;
    struct dt_arena *int8 = &arenas[DT_MEMORY_WEIGHTS_INT8];
    int64_t packed = 0;
    for (int i = 0; i < params->n && params->ring_weights; i++) {
        int64_t end = i + 1 < params->n ? params->rows[i + 1].offset : params->elements;
        params->rows[i].packed = packed;
        packed += params->rows[i].reads_master ? end - params->rows[i].offset : 0;
    }
    if (params->ring_weights && model->config.storage == DT_BF16)
        model->net.weights =
            dt_arena_take(&arenas[DT_MEMORY_WEIGHTS], packed * (int64_t)sizeof(float));
    for (int i = 0; i < model->parts.params.n; i++) {
        int64_t n = model->parts.params.rows[i].count;
        struct dt_net_row *row = model->net.rows ? &model->net.rows[i] : NULL;
        struct dt_int8 *linear = model->net.int8 ? &model->net.int8[i] : NULL;
        if (row && model->parts.params.rows[i].reads_master)
            row->weight = dt_arena_take(&arenas[DT_MEMORY_WEIGHTS], n * (int64_t)sizeof(float));
        if (row && row->reads_stored)
            row->stored =
                dt_arena_take(&arenas[DT_MEMORY_WEIGHTS_BF16], n * (int64_t)sizeof(dt_bf16));
        if (linear && linear->out > 0) {
            linear->data = dt_arena_take(int8, linear->out * linear->in);
            linear->scale = dt_arena_take(int8, linear->out * (int64_t)sizeof(float));
        }
    }
}

static dt_status measure(struct dt_model *model)
{
    int64_t workspace;
    const struct dt_model_shape *shape = &model->shape;
    struct dt_plan plan = {.net = &model->net, .shape = *shape};
    plan.too_large = __builtin_mul_overflow(shape->sequences, shape->length, &plan.rows);
    if (!plan.too_large)
        arrange(model, &plan);
    if (plan.too_large)
        return DT_FAIL(DT_USER, "choose a smaller model, data.seq_len or data.micro_batch",
                       "%lld sequences of %lld positions at a time, in %lld layers of width %lld, "
                       "need more memory than any machine has",
                       (long long)shape->sequences, (long long)shape->length,
                       (long long)model->parts.layers, (long long)model->config.d_model);
    DT_TRY(measure_workspace(model, &workspace));
    place_rows(model, plan.arenas);
    for (int i = 0; i < DT_MEMORY_COUNT; i++)
        model->bytes[i] = plan.arenas[i].peak;
    model->bytes[DT_MEMORY_WORKSPACE] = workspace;
    return DT_OK;
}

// Places each row in the ring, if gradients are in a ring.
static dt_status place_in_ring(struct dt_parts *parts, int64_t align, bool weights)
{
    struct dt_params *params = &parts->params;
    params->ring_weights = align > 0 && weights;
    int64_t *ends, n = parts->layers + 2;
    DT_TRY(DT_NEW(&ends, n, "the rows of %lld layers", (long long)n));
    for (int64_t i = 0; i < n; i++) { // a part ends where the previous part of a pass begins
        int row = i + 1 < n ? parts->all[n - 2 - i]->first_row : params->n;
        ends[i] = row < params->n ? params->rows[row].offset : params->elements;
    }
    dt_status status = dt_ring_create(ends, n, align, &params->ring);
    free(ends);
    for (int i = 0; status == DT_OK && params->ring.n > 0 && i < params->n; i++) {
        struct dt_param *row = &params->rows[i];
        row->place =
            dt_ring_at(&params->ring.units[dt_ring_unit(&params->ring, row->offset)], row->offset);
    }
    return status;
}

// Creates a model without memory and computes how much it needs of each kind.
static dt_status model_new(const struct dt_backend *backend, const struct dt_model_config *config,
                           const struct dt_model_shape *shape, struct dt_model **out)
{
    struct dt_model *model;
    DT_TRY(DT_NEW(&model, 1, "a model"));
    dt_status status = DT_OK;
    *model = (struct dt_model){.config = *config, .shape = *shape, .backend = *backend};
    model->shape.context = dt_max_i64(shape->context, 1);
    if (shape->window > 0) // each segment of a layer is computed again just before its backward
        model->config.recompute = DT_RECOMPUTE_BLOCK;
    DT_TRY_GOTO(status, fail, dt_model_config_check(&model->config));
    DT_TRY_GOTO(status, fail, parts_create(&model->config, &model->parts));
    DT_TRY_GOTO(status, fail, place_in_ring(&model->parts, shape->ring_align, shape->ring_weights));
    DT_TRY_GOTO(status, fail,
                DT_NEW(&model->residual, model->parts.layers + 1, "the residual stream"));
    model->net = (struct dt_net){
        .backend = &model->backend, .config = &model->config, .params = &model->parts.params};
    int n = model->parts.params.n;
    if (shape->int8)
        DT_TRY_GOTO(status, fail, DT_NEW(&model->net.int8, n, "the int8 forms of %d rows", n));
    if (shape->play)
        DT_TRY_GOTO(status, fail, DT_NEW(&model->net.rows, n, "the packed forms of %d rows", n));
    DT_TRY_GOTO(status, fail, measure(model));
    *out = model;
    return DT_OK;
fail:
    dt_model_destroy(model);
    return status;
}

dt_status dt_model_plan(const struct dt_backend *backend, const struct dt_model_config *config,
                        const struct dt_model_shape *shape, struct dt_memory_plan *plan,
                        struct dt_params *params)
{
    struct dt_model *model = NULL;
    DT_TRY(model_new(backend, config, shape, &model));
    for (int i = 0; i < DT_MEMORY_COUNT; i++)
        dt_memory_plan_add(plan, dt_memory_name[i], model->bytes[i], false);
    if (params) {
        *params = model->parts.params;
        model->parts.params = (struct dt_params){0};
    }
    dt_model_destroy(model);
    return DT_OK;
}

dt_status dt_model_create(const struct dt_backend *backend, const struct dt_model_config *config,
                          const struct dt_model_shape *shape, struct dt_model **out)
{
    struct dt_model *model = NULL;
    DT_TRY(model_new(backend, config, shape, &model));
    struct dt_plan plan = {
        .net = &model->net, .shape = model->shape, .rows = shape->sequences * shape->length};
    for (int i = 0; i < DT_MEMORY_COUNT; i++) {
        dt_status status = model->bytes[i] == 0
                               ? DT_OK
                               : dt_alloc(&model->backend, model->bytes[i], &model->memory[i]);
        if (status != DT_OK) {
            dt_model_destroy(model);
            return dt_error_push(status, __FILE__, __LINE__, __func__, "allocating the model's %s",
                                 dt_memory_name[i]);
        }
        plan.arenas[i] = dt_arena_place(model->memory[i], model->bytes[i]);
    }
    arrange(model, &plan);
    place_rows(model, plan.arenas);
    model->net.workspace = model->memory[DT_MEMORY_WORKSPACE];
    model->net.workspace_bytes = model->bytes[DT_MEMORY_WORKSPACE];
    *out = model;
    return DT_OK;
}

void dt_model_destroy(struct dt_model *model)
{
    if (!model)
        return;
    for (int i = 0; i < DT_MEMORY_COUNT; i++)
        dt_free(&model->backend, model->memory[i]);
    parts_free(&model->parts);
    free(model->net.int8);
    free(model->net.rows);
    free(model->residual);
    free(model);
}

const struct dt_model_config *dt_model_config(const struct dt_model *model)
{
    return &model->config;
}

const struct dt_model_shape *dt_model_shape(const struct dt_model *model)
{
    return &model->shape;
}

const struct dt_params *dt_model_params(const struct dt_model *model)
{
    return &model->parts.params;
}

const struct dt_array_list *dt_model_arrays(const struct dt_model *model)
{
    return &model->parts.arrays;
}

dt_status dt_model_token_array(const struct dt_model *model, int *index)
{
    const struct dt_stem_kind *stem = model->parts.stem;
    if (!stem->tokens)
        return DT_FAIL(DT_USER, NULL, "the model's stem \"%s\" reads no tokens", stem->kind.name);
    *index = dt_array_list_find(&model->parts.arrays, stem->tokens);
    return DT_OK;
}

float *dt_model_weights(struct dt_model *model)
{
    return model->net.weights;
}

dt_bf16 *dt_model_weights_bf16(struct dt_model *model)
{
    return model->memory[DT_MEMORY_WEIGHTS_BF16];
}

int64_t dt_model_weight_bytes(const struct dt_model *model)
{
    const int64_t *bytes = model->bytes;
    return bytes[DT_MEMORY_WEIGHTS] + bytes[DT_MEMORY_WEIGHTS_BF16] + bytes[DT_MEMORY_WEIGHTS_INT8];
}

float *dt_model_gradients(struct dt_model *model)
{
    return model->net.gradients;
}

float *dt_model_gradient(const struct dt_model *model, int row)
{
    return dt_net_gradient(&model->net, row);
}

const struct dt_int8 *dt_model_int8(const struct dt_model *model)
{
    return model->net.int8;
}

// Rounds row i of `weights` of this type to int8, if the model multiplies it in int8.
static dt_status quantize_row(struct dt_model *model, int i, const void *weights,
                              enum dt_dtype type, struct dt_stream *stream)
{
    const struct dt_int8 *row = model->net.int8 ? &model->net.int8[i] : NULL;
    if (!row || row->out == 0)
        return DT_OK;
    struct dt_quantize_args args = {.x = dt_view_of((void *)weights, row->out, row->in, type),
                                    .y = dt_view_of(row->data, row->out, row->in, DT_I8),
                                    .scale = row->scale};
    return dt_quantize(&model->backend, &args, stream);
}

dt_status dt_model_refresh(struct dt_model *model, struct dt_stream *stream)
{
    struct dt_cast_args args = {.n = model->parts.params.elements,
                                .x = model->net.weights,
                                .x_type = DT_F32,
                                .y = model->net.stored,
                                .y_type = DT_BF16};
    if (model->parts.params.ring_weights)
        return DT_OK;
    if (model->config.storage == DT_BF16)
        DT_TRY(dt_cast(&model->backend, &args, stream));
    for (int i = 0; i < model->parts.params.n; i++)
        DT_TRY(
            quantize_row(model, i, dt_net_stored(&model->net, i), model->config.storage, stream));
    return DT_OK;
}

// With shape.play each row is converted on the device from `staged` to the types in which the model
// keeps it.
dt_status dt_model_set_weights(struct dt_model *model, const float *weights)
{
    const struct dt_params *params = &model->parts.params;
    const struct dt_backend *backend = &model->backend;
    int64_t largest = 0;
    float *staged;
    dt_status status = DT_OK;
    if (!model->net.rows) {
        DT_TRY(dt_to_device(backend, model->net.weights, weights,
                            params->elements * (int64_t)sizeof *weights, NULL));
        DT_TRY(dt_model_refresh(model, NULL));
        return dt_stream_sync(backend, NULL);
    }
    for (int i = 0; i < params->n; i++)
        largest = params->rows[i].count > largest ? params->rows[i].count : largest;
    DT_TRY(dt_alloc(backend, largest * (int64_t)sizeof *staged, &staged));
    for (int i = 0; i < params->n; i++) {
        const struct dt_net_row *row = &model->net.rows[i];
        const float *from = weights + params->rows[i].offset;
        int64_t n = params->rows[i].count;
        struct dt_cast_args to_f32 = {n, staged, DT_F32, row->weight, DT_F32},
                            to_bf16 = {n, staged, DT_F32, row->stored, DT_BF16};
        DT_TRY_GOTO(status, out,
                    dt_to_device(backend, staged, from, n * (int64_t)sizeof *staged, NULL));
        DT_TRY_GOTO(status, out, row->weight ? dt_cast(backend, &to_f32, NULL) : DT_OK);
        DT_TRY_GOTO(status, out, row->stored ? dt_cast(backend, &to_bf16, NULL) : DT_OK);
        DT_TRY_GOTO(status, out, quantize_row(model, i, staged, DT_F32, NULL));
        DT_TRY_GOTO(status, out, dt_stream_sync(backend, NULL)); // before reusing `staged`
    }
out:
    dt_free(backend, staged);
    return status;
}

const struct dt_array_list *dt_model_state_arrays(const struct dt_model *model, int64_t layer)
{
    return &model->parts.all[layer + 1]->states;
}

// Bytes of the states of all layers and the head, or of their gradients; `state` (may be NULL) gets
// their addresses in the arena.
static int64_t place_state(const struct dt_parts *parts, int64_t sequences, bool gradients,
                           struct dt_arena arena, struct dt_model_state *state)
{
    for (int64_t layer = 0; layer <= parts->layers; layer++) {
        const struct dt_array_list *list = &parts->all[layer + 1]->states;
        for (int i = 0; i < list->n; i++) {
            const struct dt_array_spec spec =
                gradients ? dt_state_gradient(&list->arrays[i]) : list->arrays[i];
            int64_t bytes = dt_array_bytes(&spec, sequences);
            void *array = dt_arena_take(&arena, bytes);
            if (state)
                state->arrays[layer][i] = bytes > 0 ? array : NULL;
        }
    }
    return arena.used;
}

static dt_status state_bytes(const struct dt_model_config *config, int64_t sequences,
                             bool gradients, int64_t *bytes)
{
    struct dt_parts parts;
    dt_status status = parts_create(config, &parts);
    if (status == DT_OK)
        *bytes = place_state(&parts, sequences, gradients, dt_arena_measure(), NULL);
    parts_free(&parts);
    return status;
}

dt_status dt_model_state_bytes(const struct dt_model_config *config, int64_t sequences,
                               int64_t *bytes)
{
    return state_bytes(config, sequences, false, bytes);
}

dt_status dt_model_state_gradient_bytes(const struct dt_model_config *config, int64_t sequences,
                                        int64_t *bytes)
{
    return state_bytes(config, sequences, true, bytes);
}

static dt_status create_state(struct dt_model *model, int64_t sequences, bool gradients,
                              struct dt_model_state **out)
{
    int64_t bytes = place_state(&model->parts, sequences, gradients, dt_arena_measure(), NULL);
    struct dt_model_state *state;
    size_t arrays = (size_t)(model->parts.layers + 1) * sizeof *state->arrays;
    DT_TRY(DT_NEW_BYTES(&state, sizeof *state + arrays, "a carried state"));
    dt_status status = bytes > 0 ? dt_alloc(&model->backend, bytes, &state->memory) : DT_OK;
    if (status != DT_OK) {
        free(state);
        return dt_error_push(status, __FILE__, __LINE__, __func__,
                             "carried state of %lld sequences", (long long)sequences);
    }
    place_state(&model->parts, sequences, gradients, dt_arena_place(state->memory, bytes), state);
    *out = state;
    return DT_OK;
}

dt_status dt_model_state_create(struct dt_model *model, int64_t sequences,
                                struct dt_model_state **state)
{
    return create_state(model, sequences, false, state);
}

dt_status dt_model_state_create_gradient(struct dt_model *model, int64_t sequences,
                                         struct dt_model_state **gradient)
{
    return create_state(model, sequences, true, gradient);
}

void dt_model_state_destroy(struct dt_model *model, struct dt_model_state *state)
{
    if (!state)
        return;
    dt_free(&model->backend, state->memory);
    free(state);
}

void *dt_model_state_memory(const struct dt_model_state *state)
{
    return state->memory;
}

void *dt_model_state_array(const struct dt_model_state *state, int64_t layer, int index)
{
    return state ? state->arrays[layer][index] : NULL;
}

// The model as a whole: creation and memory plan, carried state, and the passes through stem,
// blocks and head.
#include "model/model.h"

#include "model/net.h"

#include <stdlib.h>
#include <string.h>

const char *const dt_memory_name[DT_MEMORY_COUNT] = {
    "weights", "bf16 copies", "gradients", "activations", "scratch", "logits", "workspace"};

// The parts of a model before it has memory: what the parameter table and the plan are made from.
struct parts {
    struct dt_params params;
    int stem; // row of the embedding
    struct dt_head head;
    int64_t n_blocks;
    struct dt_block **blocks;
};

struct dt_model {
    struct dt_model_config config;
    struct dt_model_shape shape;
    struct parts parts;
    struct dt_backend backend;
    struct dt_net net;
    void *memory[DT_MEMORY_COUNT];
    float **residual; // [n_layer + 1]: the stream at block i's norm, and at the final one; one
                      // array in inference
    void *out;        // [M, d] storage: output of a block, backward: its gradient
    float *dresidual; // [M, d] fp32
};

struct dt_model_state {
    void *memory;
    int64_t scan_bytes, conv_bytes; // of a layer
};

static void parts_free(struct parts *parts)
{
    for (int64_t i = 0; parts->blocks && i < parts->n_blocks; i++)
        if (parts->blocks[i])
            parts->blocks[i]->kind->destroy(parts->blocks[i]);
    free(parts->blocks);
    dt_params_free(&parts->params);
}

// Rows in the order in which backward finishes them: head, blocks from the last to the first, stem.
static dt_status parts_create(const struct dt_model_config *config, struct parts *parts)
{
    *parts = (struct parts){.n_blocks = config->n_layer};
    parts->blocks = calloc((size_t)config->n_layer, sizeof *parts->blocks);
    if (!parts->blocks)
        return DT_FAIL(DT_MACHINE, NULL, "no memory for %lld layers", (long long)config->n_layer);
    dt_head_params(&parts->head, config, &parts->params);
    for (int64_t i = config->n_layer - 1; i >= 0; i--) {
        parts->blocks[i] = dt_mamba_block.create(config, i, &parts->params);
        if (!parts->blocks[i]) {
            parts_free(parts);
            return DT_FAIL(DT_MACHINE, NULL, "no memory for layer %lld", (long long)i);
        }
    }
    parts->stem = dt_stem_params(config, &parts->params);
    if (config->tie_embeddings)
        parts->head.linear.row = parts->stem;
    if (!parts->params.failed)
        return DT_OK;
    parts_free(parts);
    return dt_error_push(dt_error_current()->code, __FILE__, __LINE__, __func__,
                         "listing the model's tensors");
}

dt_status dt_model_list_params(const struct dt_model_config *config, struct dt_params *params)
{
    struct parts parts;
    DT_TRY(parts_create(config, &parts));
    *params = parts.params;
    parts.params = (struct dt_params){0};
    parts_free(&parts);
    return DT_OK;
}

double dt_model_flops_per_token(const struct dt_model_config *config)
{
    double head = 6 * (double)config->vocab_size * (double)config->d_model;
    return head + (double)config->n_layer * dt_mamba_block.flops_per_token(config);
}

// Takes everything from the arenas of `plan`, in the same order each time it is run.
static void take(struct dt_model *model, struct dt_plan *plan)
{
    const struct dt_model_config *config = &model->config;
    int64_t rows = plan->shape.sequences * plan->shape.length, stream = rows * config->d_model * 4;
    struct dt_arena *border = plan->shape.training ? &plan->kept : &plan->scratch;
    for (int64_t i = 0; i <= config->n_layer; i++)
        model->residual[i] =
            i == 0 || plan->shape.training ? dt_arena_take(border, stream) : model->residual[0];
    model->out =
        dt_arena_take(&plan->scratch, rows * config->d_model * dt_net_storage_size(plan->net));
    if (plan->shape.training)
        model->dresidual = dt_arena_take(&plan->scratch, stream);
    dt_stem_plan(plan, model->parts.stem);
    int64_t mark = dt_arena_mark(&plan->scratch);
    for (int64_t i = 0; i < config->n_layer; i++) {
        dt_arena_release(&plan->scratch, mark);
        model->parts.blocks[i]->kind->plan(model->parts.blocks[i], plan);
    }
    dt_head_plan(&model->parts.head, plan);
}

static void measure(struct dt_model *model, int64_t bytes[DT_MEMORY_COUNT])
{
    struct dt_plan plan = {.net = &model->net,
                           .shape = model->shape,
                           .kept = dt_arena_measure(),
                           .scratch = dt_arena_measure(),
                           .logits = dt_arena_measure()};
    int64_t elements = model->parts.params.elements;
    take(model, &plan);
    bytes[DT_MEMORY_WEIGHTS] = elements * 4;
    bytes[DT_MEMORY_WEIGHTS_BF16] = model->config.storage == DT_BF16 ? elements * 2 : 0;
    bytes[DT_MEMORY_GRADIENTS] = model->shape.training ? elements * 4 : 0;
    bytes[DT_MEMORY_ACTIVATIONS] = plan.kept.peak;
    bytes[DT_MEMORY_SCRATCH] = plan.scratch.peak;
    bytes[DT_MEMORY_LOGITS] = plan.logits.peak;
    bytes[DT_MEMORY_WORKSPACE] = plan.workspace;
}

static void place(struct dt_model *model, const int64_t bytes[DT_MEMORY_COUNT])
{
    struct dt_net *net = &model->net;
    net->weights = model->memory[DT_MEMORY_WEIGHTS];
    net->matrices =
        bytes[DT_MEMORY_WEIGHTS_BF16] ? model->memory[DT_MEMORY_WEIGHTS_BF16] : net->weights;
    net->gradients = model->memory[DT_MEMORY_GRADIENTS];
    net->workspace = model->memory[DT_MEMORY_WORKSPACE];
    net->workspace_bytes = bytes[DT_MEMORY_WORKSPACE];
    struct dt_plan plan = {
        .net = net,
        .shape = model->shape,
        .kept = dt_arena_place(model->memory[DT_MEMORY_ACTIVATIONS], bytes[DT_MEMORY_ACTIVATIONS]),
        .scratch = dt_arena_place(model->memory[DT_MEMORY_SCRATCH], bytes[DT_MEMORY_SCRATCH]),
        .logits = dt_arena_place(model->memory[DT_MEMORY_LOGITS], bytes[DT_MEMORY_LOGITS])};
    take(model, &plan);
}

// So that no size of the plan passes 64 bits: the widest arrays of a row of activations, in every
// layer, are far below what any machine has. Logits come in tiles and do not count.
static dt_status check_sizes(const struct dt_model_config *c, const struct dt_model_shape *shape)
{
    double rows = (double)shape->sequences * (double)shape->length;
    double width = (double)dt_model_inner(c) * (double)(16 + c->d_state) + 8 * (double)c->d_model;
    if (rows * width * (double)(c->n_layer + 1) <= 0x1p52)
        return DT_OK;
    return DT_FAIL(
        DT_USER, "choose a smaller model, data.seq_len or data.micro_batch",
        "%lld sequences of %lld tokens at a time, in %lld layers of %lld channels, fit no "
        "memory",
        (long long)shape->sequences, (long long)shape->length, (long long)c->n_layer,
        (long long)dt_model_inner(c));
}

// A model without memory: enough to plan.
static dt_status model_new(const struct dt_backend *backend, const struct dt_model_config *config,
                           const struct dt_model_shape *shape, struct dt_model **out)
{
    struct dt_model *model = calloc(1, sizeof *model);
    if (!model)
        return DT_FAIL(DT_MACHINE, NULL, "no memory for a model");
    dt_status status = DT_OK;
    *model = (struct dt_model){.config = *config, .shape = *shape, .backend = *backend};
    DT_TRY_GOTO(status, fail, dt_model_config_check(&model->config));
    DT_TRY_GOTO(status, fail, check_sizes(&model->config, shape));
    DT_TRY_GOTO(status, fail, parts_create(&model->config, &model->parts));
    model->residual = calloc((size_t)config->n_layer + 1, sizeof *model->residual);
    if (!model->residual) {
        status = DT_FAIL(DT_MACHINE, NULL, "no memory for %lld layers", (long long)config->n_layer);
        goto fail;
    }
    model->net = (struct dt_net){
        .backend = &model->backend, .config = &model->config, .params = &model->parts.params};
    *out = model;
    return DT_OK;
fail:
    dt_model_destroy(model);
    return status;
}

dt_status dt_model_plan(const struct dt_backend *backend, const struct dt_model_config *config,
                        const struct dt_model_shape *shape, struct dt_memory_plan *plan)
{
    struct dt_model *model = NULL;
    int64_t bytes[DT_MEMORY_COUNT];
    DT_TRY(model_new(backend, config, shape, &model));
    measure(model, bytes);
    for (int i = 0; i < DT_MEMORY_COUNT; i++)
        dt_memory_plan_add(plan, dt_memory_name[i], bytes[i], false);
    dt_model_destroy(model);
    return DT_OK;
}

dt_status dt_model_create(const struct dt_backend *backend, const struct dt_model_config *config,
                          const struct dt_model_shape *shape, struct dt_model **out)
{
    struct dt_model *model = NULL;
    int64_t bytes[DT_MEMORY_COUNT];
    DT_TRY(model_new(backend, config, shape, &model));
    measure(model, bytes);
    dt_status status = DT_OK;
    for (int i = 0; i < DT_MEMORY_COUNT && status == DT_OK; i++)
        if (bytes[i] > 0) {
            status = backend->table->alloc(backend->device, bytes[i], &model->memory[i]);
            if (status != DT_OK)
                dt_error_push(
                    status, __FILE__, __LINE__, __func__,
                    "taking %.1f MiB for %s (data.micro_batch and model.recompute make it less)",
                    (double)bytes[i] / 0x1p20, dt_memory_name[i]);
        }
    if (status != DT_OK) {
        dt_model_destroy(model);
        return status;
    }
    place(model, bytes);
    *out = model;
    return DT_OK;
}

void dt_model_destroy(struct dt_model *model)
{
    if (!model)
        return;
    for (int i = 0; i < DT_MEMORY_COUNT; i++)
        if (model->memory[i])
            model->backend.table->free(model->backend.device, model->memory[i]);
    parts_free(&model->parts);
    free(model->residual);
    free(model);
}

const struct dt_model_config *dt_model_config(const struct dt_model *model)
{
    return &model->config;
}

const struct dt_params *dt_model_params(const struct dt_model *model)
{
    return &model->parts.params;
}

float *dt_model_weights(struct dt_model *model)
{
    return model->net.weights;
}

dt_bf16 *dt_model_weights_bf16(struct dt_model *model)
{
    return model->memory[DT_MEMORY_WEIGHTS_BF16];
}

float *dt_model_gradients(struct dt_model *model)
{
    return model->net.gradients;
}

dt_status dt_model_refresh(struct dt_model *model, struct dt_stream *stream)
{
    if (model->config.storage == DT_F32)
        return DT_OK;
    struct dt_cast_args args = {.n = model->parts.params.elements,
                                .x = model->net.weights,
                                .x_type = DT_F32,
                                .y = model->net.matrices,
                                .y_type = DT_BF16};
    return dt_cast(&model->backend, &args, stream);
}

static int64_t round_up(int64_t bytes)
{
    return (bytes + DT_ARENA_ALIGN - 1) / DT_ARENA_ALIGN * DT_ARENA_ALIGN;
}

static struct dt_model_state state_sizes(const struct dt_model *model, int64_t sequences)
{
    const struct dt_model_config *c = &model->config;
    int64_t channels = sequences * dt_model_inner(c);
    return (struct dt_model_state){
        .scan_bytes = round_up(channels * c->d_state * 4),
        .conv_bytes = round_up(channels * (c->d_conv - 1) * dt_dtype_size(c->storage))};
}

int64_t dt_model_state_bytes(const struct dt_model *model, int64_t sequences)
{
    struct dt_model_state s = state_sizes(model, sequences);
    return model->config.n_layer * (s.scan_bytes + s.conv_bytes);
}

dt_status dt_model_state_create(struct dt_model *model, int64_t sequences,
                                struct dt_model_state **out)
{
    struct dt_model_state *state = malloc(sizeof *state);
    if (!state)
        return DT_FAIL(DT_MACHINE, NULL, "no memory for a carried state");
    *state = state_sizes(model, sequences);
    dt_status status = model->backend.table->alloc(
        model->backend.device, dt_model_state_bytes(model, sequences), &state->memory);
    if (status != DT_OK) {
        free(state);
        return dt_error_push(status, __FILE__, __LINE__, __func__,
                             "carried state of %lld sequences", (long long)sequences);
    }
    *out = state;
    return DT_OK;
}

void dt_model_state_destroy(struct dt_model *model, struct dt_model_state *state)
{
    if (!state)
        return;
    model->backend.table->free(model->backend.device, state->memory);
    free(state);
}

void *dt_model_state_scan(const struct dt_model_state *state, int64_t layer)
{
    return (char *)state->memory + layer * (state->scan_bytes + state->conv_bytes);
}

void *dt_model_state_conv(const struct dt_model_state *state, int64_t layer)
{
    return (char *)dt_model_state_scan(state, layer) + state->scan_bytes;
}

static struct dt_pass make_pass(const struct dt_model *model, const struct dt_model_input *input,
                                struct dt_stream *stream)
{
    return (struct dt_pass){.net = &model->net,
                            .input = input,
                            .rows = input->sequences * input->length,
                            .stream = stream};
}

// The flow at block i; i = n_layer is the head.
static struct dt_flow flow_at(const struct dt_model *model, int64_t i)
{
    return (struct dt_flow){.residual_in = model->residual[i > 0 ? i - 1 : 0],
                            .residual = model->residual[i],
                            .x = model->out,
                            .out = model->out,
                            .dresidual = model->dresidual};
}

static dt_status check_input(const struct dt_model *model, const struct dt_model_input *input)
{
    if (input->sequences < 1 || input->length < 1 ||
        input->sequences * input->length > model->shape.sequences * model->shape.length ||
        input->sequences > model->shape.sequences)
        return DT_FAIL(DT_MACHINE, NULL,
                       "a batch of %lld x %lld does not fit the model's %lld x %lld",
                       (long long)input->sequences, (long long)input->length,
                       (long long)model->shape.sequences, (long long)model->shape.length);
    return DT_OK;
}

dt_status dt_model_forward(struct dt_model *model, const struct dt_model_input *input,
                           const struct dt_model_state *before, struct dt_model_state *after,
                           struct dt_stream *stream)
{
    DT_TRY(check_input(model, input));
    struct dt_pass pass = make_pass(model, input, stream);
    pass.before = before;
    pass.after = after;
    DT_TRY(dt_stem_forward(&pass, model->parts.stem, model->residual[0]));
    for (int64_t i = 0; i < model->config.n_layer; i++) {
        struct dt_block *block = model->parts.blocks[i];
        struct dt_flow flow = flow_at(model, i);
        if (i == 0) // the stem wrote the stream itself
            flow.x = NULL, flow.residual = NULL;
        DT_TRY_NOTE(block->kind->forward(block, &pass, &flow), "forward of layer %lld",
                    (long long)i);
    }
    struct dt_flow flow = flow_at(model, model->config.n_layer);
    return dt_head_forward(&model->parts.head, &pass, &flow);
}

dt_status dt_model_loss(struct dt_model *model, const struct dt_model_input *input, double scale,
                        bool accumulate, struct dt_loss_sum *sum, struct dt_stream *stream)
{
    struct dt_pass pass = make_pass(model, input, stream);
    struct dt_flow flow = flow_at(model, model->config.n_layer);
    pass.accumulate = accumulate;
    return dt_head_loss(&model->parts.head, &pass, &flow, scale, sum);
}

dt_status dt_model_last_logits(struct dt_model *model, const struct dt_model_input *input,
                               const float **logits, int64_t *stride, struct dt_stream *stream)
{
    const struct dt_head *head = &model->parts.head;
    int64_t d = model->config.d_model;
    *logits = head->logits;
    *stride = head->width;
    return dt_linear_forward(&model->net, head->linear, input->sequences,
                             dt_net_at(&model->net, head->h, (input->length - 1) * d),
                             input->length * d, head->logits, head->width, DT_F32, stream);
}

dt_status dt_model_logits(struct dt_model *model, const struct dt_model_input *input, float *logits,
                          struct dt_stream *stream)
{
    const struct dt_head *head = &model->parts.head;
    int64_t d = model->config.d_model, vocab = model->config.vocab_size,
            rows = input->sequences * input->length;
    struct dt_linear linear = {.row = head->linear.row, .in = d, .out = vocab};
    for (int64_t row = 0; row < rows; row += head->tile) {
        int64_t n = rows - row < head->tile ? rows - row : head->tile;
        DT_TRY(dt_linear_forward(&model->net, linear, n, dt_net_at(&model->net, head->h, row * d),
                                 d, logits + row * vocab, vocab, DT_F32, stream));
    }
    return DT_OK;
}

dt_status dt_model_backward(struct dt_model *model, const struct dt_model_input *input,
                            const struct dt_model_state *before, bool accumulate,
                            dt_grad_ready grad_ready, void *context, struct dt_stream *stream)
{
    const struct parts *parts = &model->parts;
    bool tied = model->config.tie_embeddings;
    struct dt_pass pass = make_pass(model, input, stream);
    pass.before = before;
    pass.accumulate = accumulate;
    pass.grad_ready = grad_ready;
    pass.context = context;
    if (!tied)
        DT_TRY(dt_pass_ready(&pass, parts->head.linear.row));
    DT_TRY(dt_pass_ready(&pass, parts->head.norm));
    for (int64_t i = model->config.n_layer - 1; i >= 0; i--) {
        struct dt_block *block = parts->blocks[i];
        struct dt_flow flow = flow_at(model, i);
        DT_TRY_NOTE(block->kind->backward(block, &pass, &flow), "backward of layer %lld",
                    (long long)i);
    }
    return dt_stem_backward(&pass, parts->stem, model->dresidual, tied);
}

// Gives parts the rows of the flat weight arrays and planned memory, and runs linear layers,
// convolutions and blocks between two linear layers.
#include "model/kinds.h"

#include "base/round.h"

#include <math.h>
#include <string.h>
#include <xxhash.h>

// Far more than any machine has, and products of sizes still fit 64 bits.
static const int64_t bytes_max = INT64_C(1) << 52;

const float *dt_net_weight(const struct dt_net *net, int row)
{
    net->params->rows[row].reads_master = true;
    if (net->rows)
        return net->rows[row].weight;
    const struct dt_param *param = &net->params->rows[row];
    if (!net->weights)
        return NULL;
    if (!net->params->ring_weights)
        return net->weights + param->offset;
    return net->weights + (net->config->storage == DT_BF16 ? param->packed : param->place);
}

const void *dt_net_stored(const struct dt_net *net, int row)
{
    if (net->rows && net->config->storage == DT_F32)
        return dt_net_weight(net, row);
    if (net->rows) {
        net->rows[row].reads_stored = true;
        return net->rows[row].stored;
    }
    const struct dt_param *param = &net->params->rows[row];
    int64_t at = net->params->ring_weights ? param->place : param->offset;
    return net->stored ? (const char *)net->stored + at * dt_dtype_size(net->config->storage)
                       : NULL;
}

float *dt_net_gradient(const struct dt_net *net, int row)
{
    const struct dt_param *param = &net->params->rows[row];
    if (!net->gradients)
        return NULL;
    return net->gradients + (net->params->ring.n > 0 ? param->place : param->offset);
}

int dt_build_array(const struct dt_build *build, const char *name, enum dt_dtype type,
                   int64_t width, bool optional)
{
    int index = dt_array_list_add(build->arrays, name, type, width, optional);
    build->params->failed |= index < 0;
    return index;
}

int dt_build_state(const struct dt_build *build, struct dt_part *block, const char *name,
                   enum dt_dtype type, int64_t width)
{
    int index = dt_array_list_add(&block->states, name, type, width, false);
    build->params->failed |= index < 0;
    return index;
}

bool dt_block_is_twofold(const struct dt_model_config *config, const struct dt_kind *block)
{
    return config->direction == DT_DIRECTION_BOTH && !((const struct dt_block_kind *)block)->once;
}

// The name of a row in the direction of `twin`, NULL: in the first.
static void name_row(const struct dt_build *build, const struct dt_part *block,
                     const struct dt_part *twin, const char *name, char out[DT_PARAM_NAME])
{
    static const char mixer[] = "mixer.";
    size_t part = dt_block_is_twofold(build->config, block->kind) &&
                          strncmp(name, mixer, sizeof mixer - 1) == 0
                      ? sizeof mixer - 1
                      : 0;
    snprintf(out, DT_PARAM_NAME, "backbone.layers.%d.%.*s%s%s%s", (int)block->layer, (int)part,
             name, part ? block->kind->name : "",
             !part  ? ""
             : twin ? "_rev."
                    : "_fwd.",
             name + part);
}

int dt_build_row(const struct dt_build *build, const struct dt_part *block, const char *name,
                 dt_init *init, double scale, int n_dims, const int64_t *shape)
{
    char full[DT_PARAM_NAME];
    name_row(build, block, build->twin, name, full);
    return dt_params_add(build->params, init, scale, shape[0], n_dims, shape, "%s", full);
}

struct dt_linear dt_build_linear(const struct dt_build *build, struct dt_part *block,
                                 const char *name, int64_t in, int64_t out, double scale)
{
    block->flops += 6 * (double)in * (double)out;
    int row = dt_build_row(build, block, name, dt_init_uniform, scale, 2, (int64_t[]){out, in});
    return (struct dt_linear){.row = row, .in = in, .out = out};
}

struct dt_linear dt_build_projection(const struct dt_build *build, struct dt_part *block,
                                     const char *name, int64_t in, int64_t out, double scale)
{
    char full[DT_PARAM_NAME];
    if (!build->twin || !build->config->tie_directions)
        return dt_build_linear(build, block, name, in, out, scale);
    block->flops += 6 * (double)in * (double)out;
    name_row(build, block, NULL, name, full);
    const struct dt_param *row = dt_params_find(build->params, full);
    int index = row ? (int)(row - build->params->rows) : -1; // -1: a row could not be added
    return (struct dt_linear){.row = index, .in = in, .out = out, .shared = true};
}

struct dt_conv dt_build_conv(const struct dt_build *build, struct dt_part *block, int64_t channels,
                             int64_t K)
{
    double scale = 1 / sqrt((double)K);
    struct dt_conv conv = {.block = block, .taps = K};
    conv.weight = dt_build_row(build, block, "mixer.conv1d.weight", dt_init_uniform, scale, 3,
                               (int64_t[]){channels, 1, K});
    conv.bias =
        dt_build_row(build, block, "mixer.conv1d.bias", dt_init_uniform, scale, 1, &channels);
    conv.state =
        dt_build_state(build, block, "conv_state", build->config->storage, (K - 1) * channels);
    conv.reset = dt_build_array(build, "reset", DT_U8, 1, true);
    return conv;
}

struct dt_view dt_plan_view(struct dt_plan *plan, enum dt_memory memory, int64_t rows, int64_t cols,
                            enum dt_dtype type)
{
    struct dt_arena *arena = &plan->arenas[memory];
    int64_t bytes = 0;
    plan->too_large = plan->too_large || __builtin_mul_overflow(rows, cols, &bytes) ||
                      __builtin_mul_overflow(bytes, dt_dtype_size(type), &bytes) ||
                      bytes > bytes_max - arena->used;
    return dt_view_of(dt_arena_take(arena, plan->too_large ? 0 : bytes), rows, cols, type);
}

struct dt_view dt_plan_aligned(struct dt_plan *plan, enum dt_memory memory, int64_t cols,
                               int64_t bytes)
{
    enum dt_dtype storage = plan->net->config->storage;
    int64_t padded = dt_round_up(cols, bytes / dt_dtype_size(storage));
    struct dt_view view = dt_plan_view(plan, memory, plan->rows, padded, storage);
    view.cols = cols;
    return view;
}

void dt_pass_rows(const struct dt_pass *pass, void *arrays, size_t size)
{
    struct dt_view *views = arrays;
    for (size_t i = 0; i < size / sizeof *views; i++)
        views[i].rows = pass->rows;
}

struct dt_view dt_pass_last(const struct dt_pass *pass, struct dt_view view)
{
    int64_t B = pass->input.sequences, L = pass->input.length;
    struct dt_view last = dt_view_rows(view, L - 1, L - 1 + B);
    last.stride = L * view.stride;
    return last;
}

void *dt_pass_state(const struct dt_pass *pass, const struct dt_part *block,
                    const struct dt_model_state *state, int index)
{
    char *array = dt_model_state_array(state, block->layer, index);
    return array ? array + dt_array_bytes(&block->states.arrays[index], pass->first) : NULL;
}

struct dt_array_spec dt_state_gradient(const struct dt_array_spec *state)
{
    struct dt_array_spec gradient = *state;
    gradient.type = DT_F32;
    if (state->type != DT_F32 && state->type != DT_BF16)
        gradient.width = 0;
    return gradient;
}

float *dt_pass_gradient(const struct dt_pass *pass, const struct dt_part *block,
                        const struct dt_model_state *gradient, int index)
{
    float *array = dt_model_state_array(gradient, block->layer, index);
    return array ? array + pass->first * block->states.arrays[index].width : NULL;
}

dt_status dt_pass_relay(const struct dt_pass *pass, const struct dt_part *part, int index,
                        enum dt_relayed what)
{
    const bool gradient = what == DT_GRADIENT_AFTER || what == DT_GRADIENT_BEFORE,
               sends = what == DT_AFTER || what == DT_GRADIENT_BEFORE;
    const struct dt_relay *relay = gradient ? pass->gradient_relay : pass->relay;
    if (!relay)
        return DT_OK;
    const struct dt_model_state *const states[] = {
        [DT_BEFORE] = pass->before,
        [DT_AFTER] = pass->after,
        [DT_GRADIENT_AFTER] = pass->dafter,
        [DT_GRADIENT_BEFORE] = pass->dbefore,
    };
    struct dt_array_spec array = part->states.arrays[index];
    void *data = dt_model_state_array(states[what], part->layer, index);
    const bool after = what == DT_AFTER || what == DT_GRADIENT_AFTER,
               onward = after != pass->reversed;
    const int64_t name[] = {pass->at + (onward ? pass->input.length : 0), part->layer, index,
                            gradient + 2 * pass->reversed};
    if (gradient)
        array = dt_state_gradient(&array);
    return data ? relay->move(relay->context, sends, onward, XXH32(name, sizeof name, 0), data,
                              dt_array_bytes(&array, pass->input.sequences))
                : DT_OK;
}

dt_status dt_pass_relay_all(const struct dt_pass *pass, const struct dt_part *part,
                            enum dt_relayed what)
{
    for (int i = 0; i < part->states.n; i++)
        DT_TRY(dt_pass_relay(pass, part, i, what));
    return DT_OK;
}

dt_status dt_pass_swap(const struct dt_pass *pass, const struct dt_part *part, int index,
                       bool spreads, struct dt_view own, void *all)
{
    const struct dt_relay *relay = pass->gradient_relay;
    const int64_t name[] = {part->layer, index};
    return relay ? relay->swap(relay->context, spreads, XXH32(name, sizeof name, 0), own.data, all,
                               own.rows * own.stride * dt_dtype_size(own.dtype))
                 : DT_OK; // memory is being measured
}

// The arrays of a block, x and y first, and after them their gradients: with the rows of the pass.
static const struct dt_view *arrays_of(struct dt_part *block, const struct dt_pass *pass)
{
    const struct dt_block_kind *kind = (const struct dt_block_kind *)block->kind;
    dt_pass_rows(pass, (char *)block + kind->arrays, 2 * kind->arrays_size);
    return (struct dt_view *)((char *)block + kind->arrays);
}

dt_status dt_projected_forward(struct dt_part *part, const struct dt_pass *pass, struct dt_view h,
                               struct dt_view out)
{
    struct dt_projected *block = (struct dt_projected *)part;
    const struct dt_view *a = arrays_of(part, pass);
    DT_TRY(dt_linear_forward(pass, block->in, h, a[0]));
    DT_TRY(((const struct dt_block_kind *)part->kind)->inner(block, pass, pass->after));
    return dt_linear_forward(pass, block->out, a[1], out);
}

dt_status dt_projected_backward(struct dt_part *part, const struct dt_pass *pass, struct dt_view h,
                                struct dt_view dout, struct dt_view dh)
{
    const struct dt_block_kind *kind = (const struct dt_block_kind *)part->kind;
    struct dt_projected *block = (struct dt_projected *)part;
    const struct dt_view *a = arrays_of(part, pass), *da = a + kind->arrays_size / sizeof *a;
    if (pass->net->config->recompute >= DT_RECOMPUTE_BLOCK)
        DT_TRY(dt_linear_forward(pass, block->in, h, a[0]));
    if (pass->net->config->recompute >= DT_RECOMPUTE_SCAN)
        DT_TRY(kind->inner(block, pass, NULL));
    DT_TRY(dt_linear_backward(pass, block->out, a[1], dout, da[1]));
    DT_TRY(kind->inner_backward(block, pass));
    return dt_linear_backward(pass, block->in, h, da[0], dh);
}

dt_status dt_pass_ready(const struct dt_pass *pass, int row)
{
    return pass->grad_ready ? pass->grad_ready(pass->context, row) : DT_OK;
}

dt_status dt_pass_measure(const struct dt_pass *pass, int64_t workspace)
{
    if (workspace > *pass->measured)
        *pass->measured = workspace;
    return DT_OK;
}

// c [m, n] (+)= a · b, each of them as stored or, with its flag, transposed. The workspace's first
// `used` bytes are operands.
static dt_status multiply(const struct dt_pass *pass, struct dt_gemm_args args, int64_t used)
{
    const struct dt_net *net = pass->net;
    args.workspace = net->workspace ? (char *)net->workspace + used : NULL;
    args.workspace_bytes = net->workspace_bytes - used;
    if (pass->measured)
        return dt_pass_measure(pass, used + dt_gemm_workspace(net->backend, &args));
    return dt_gemm(net->backend, &args, pass->stream);
}

// The next bytes of the workspace.
static void *take(const struct dt_net *net, int64_t bytes, int64_t *used)
{
    char *at = net->workspace ? (char *)net->workspace + *used : NULL;
    *used += dt_round_up(bytes, DT_ARENA_ALIGN);
    return at;
}

// Rounds an operand to int8, into the workspace; `type`: int8, or storage for the same values.
static dt_status quantize(const struct dt_pass *pass, struct dt_view *view, enum dt_dtype type,
                          float **scale, int64_t *used)
{
    struct dt_quantize_args args = {.x = *view, .y = *view};
    args.y.dtype = type;
    args.y.stride = dt_round_up(view->cols, 16 / dt_dtype_size(type));
    args.y.data = take(pass->net, args.y.rows * args.y.stride * dt_dtype_size(type), used);
    if (scale)
        args.scale = *scale = take(pass->net, view->rows * (int64_t)sizeof **scale, used);
    *view = args.y;
    return DT_RUN(pass, quantize, &args);
}

// The operands of a linear layer in fp32 or bf16. With model.quantize both are rounded first.
static dt_status operands(const struct dt_pass *pass, struct dt_linear linear, struct dt_view *x,
                          struct dt_view *w, int64_t *used)
{
    int64_t end = linear.first + linear.out;
    *w = dt_view_of(dt_net_stored(pass->net, linear.row), end, linear.in, x->dtype);
    *w = dt_view_rows(*w, linear.first, end);
    if (pass->net->config->quantize == DT_QUANTIZE_NONE || linear.exact)
        return DT_OK;
    DT_TRY(quantize(pass, x, x->dtype, NULL, used));
    return quantize(pass, w, w->dtype, NULL, used);
}

dt_status dt_linear_forward(const struct dt_pass *pass, struct dt_linear linear, struct dt_view x,
                            struct dt_view y)
{
    struct dt_view w;
    int64_t used = 0, end = linear.first + linear.out;
    float *scale;
    if (!pass->net->int8) {
        DT_TRY(operands(pass, linear, &x, &w, &used));
        bool play = pass->net->rows != NULL;
        return multiply(
            pass, (struct dt_gemm_args){.a = x, .b = w, .c = y, .trans_b = true, .play = play},
            used);
    }
    struct dt_int8 *row = &pass->net->int8[linear.row];
    if (pass->measured) { // how much of the row is a linear layer's
        row->in = linear.in;
        row->out = end > row->out ? end : row->out;
    }
    DT_TRY(quantize(pass, &x, DT_I8, &scale, &used));
    w = dt_view_of(row->data, end, linear.in, DT_I8);
    struct dt_gemm_args args = {.a = x,
                                .b = dt_view_rows(w, linear.first, end),
                                .c = y,
                                .trans_b = true,
                                .a_scale = scale,
                                .b_scale = row->scale ? row->scale + linear.first : NULL};
    return multiply(pass, args, used);
}

dt_status dt_linear_backward(const struct dt_pass *pass, struct dt_linear linear, struct dt_view x,
                             struct dt_view dy, struct dt_view dx)
{
    struct dt_view w, dw = dt_view_of(dt_net_gradient(pass->net, linear.row),
                                      linear.first + linear.out, linear.in, DT_F32);
    dw = dt_view_rows(dw, linear.first, dw.rows);
    struct dt_gemm_args of_w = {.a = dy,
                                .c = dw,
                                .trans_a = true,
                                .accumulate = pass->accumulate || linear.shared},
                        of_x = {.a = dy, .c = dx, .accumulate = linear.adds};
    int64_t used = 0;
    DT_TRY(operands(pass, linear, &x, &w, &used));
    of_w.b = x, of_x.b = w;
    DT_TRY(multiply(pass, of_w, used));
    DT_TRY(dt_pass_ready(pass, linear.row));
    return dx.cols == 0 ? DT_OK : multiply(pass, of_x, used);
}

dt_status dt_add_bias(const struct dt_pass *pass, int row, int64_t first, struct dt_view y)
{
    const float *bias = dt_net_weight(pass->net, row);
    struct dt_bias_forward_args args = {.bias = bias ? bias + first : NULL, .y = y};
    return DT_RUN(pass, bias_forward, &args);
}

dt_status dt_add_bias_backward(const struct dt_pass *pass, int row, struct dt_view dy)
{
    struct dt_bias_backward_args args = {.dy = dy, .dbias = dt_net_gradient(pass->net, row)};
    DT_TRY(DT_RUN(pass, bias_backward, &args));
    return dt_pass_ready(pass, row);
}

static struct dt_conv1d_silu_inputs conv_inputs(const struct dt_pass *pass,
                                                const struct dt_conv *conv, struct dt_view x)
{
    return (struct dt_conv1d_silu_inputs){
        .batch = pass->input.sequences,
        .length = pass->input.length,
        .taps = conv->taps,
        .x = x,
        .weight = dt_net_weight(pass->net, conv->weight),
        .bias = dt_net_weight(pass->net, conv->bias),
        .x0 = dt_pass_state(pass, conv->block, pass->before, conv->state),
        .reset = pass->input.arrays[conv->reset]};
}

dt_status dt_conv_forward(const struct dt_pass *pass, const struct dt_conv *conv, struct dt_view x,
                          struct dt_view y, const struct dt_model_state *after)
{
    struct dt_conv1d_silu_forward_args args = {
        .in = conv_inputs(pass, conv, x),
        .y = y,
        .x_last = dt_pass_state(pass, conv->block, after, conv->state)};
    DT_TRY(dt_pass_relay(pass, conv->block, conv->state, DT_BEFORE));
    DT_TRY(DT_RUN(pass, conv1d_silu_forward, &args));
    return dt_pass_relay(pass, conv->block, conv->state, DT_AFTER);
}

dt_status dt_conv_backward(const struct dt_pass *pass, const struct dt_conv *conv, struct dt_view x,
                           struct dt_view dy, struct dt_view dx)
{
    const struct dt_net *net = pass->net;
    struct dt_conv1d_silu_backward_args args = {
        .in = conv_inputs(pass, conv, x),
        .dx_last = dt_pass_gradient(pass, conv->block, pass->dafter, conv->state),
        .dy = dy,
        .dx = dx,
        .dx0 = dt_pass_gradient(pass, conv->block, pass->dbefore, conv->state),
        .dweight = dt_net_gradient(net, conv->weight),
        .dbias = dt_net_gradient(net, conv->bias)};
    DT_TRY(dt_pass_relay(pass, conv->block, conv->state, DT_GRADIENT_AFTER));
    DT_TRY(DT_RUN(pass, conv1d_silu_backward, &args));
    DT_TRY(dt_pass_relay(pass, conv->block, conv->state, DT_GRADIENT_BEFORE));
    DT_TRY(dt_pass_ready(pass, conv->weight));
    return dt_pass_ready(pass, conv->bias);
}

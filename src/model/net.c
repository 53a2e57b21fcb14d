// Rows of the flat weight arrays, planned memory, linear layers and norms.
#include "model/kinds.h"

// Far more than any machine has, and products of sizes still fit 64 bits.
static const int64_t bytes_max = INT64_C(1) << 52;

const float *dt_net_weight(const struct dt_net *net, int row)
{
    return net->weights ? net->weights + net->params->rows[row].offset : NULL;
}

const void *dt_net_stored(const struct dt_net *net, int row)
{
    int64_t bytes = net->params->rows[row].offset * dt_dtype_size(net->config->storage);
    return net->stored ? (const char *)net->stored + bytes : NULL;
}

float *dt_net_gradient(const struct dt_net *net, int row)
{
    return net->gradients ? net->gradients + net->params->rows[row].offset : NULL;
}

int dt_build_array(const struct dt_build *build, const char *name, enum dt_dtype type,
                   int64_t width, bool optional)
{
    int index = dt_array_list_add(build->arrays, name, type, width, optional);
    build->params->failed = build->params->failed || index < 0;
    return index;
}

struct dt_linear dt_build_linear(const struct dt_build *build, const struct dt_part *block,
                                 const char *name, int64_t in, int64_t out, double scale)
{
    int row = dt_params_add(build->params, DT_INIT_UNIFORM, scale, out, 2, (int64_t[]){out, in},
                            "backbone.layers.%d.%s", (int)block->layer, name);
    return (struct dt_linear){.row = row, .in = in, .out = out};
}

struct dt_norm dt_build_norm(const struct dt_build *build, const struct dt_part *block)
{
    int64_t d = build->config->d_model;
    int row = dt_params_add(build->params, DT_INIT_ONE, 0, d, 1, &d,
                            "backbone.layers.%d.norm.weight", (int)block->layer);
    return (struct dt_norm){.row = row};
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

enum dt_memory dt_plan_memory(const struct dt_plan *plan, enum dt_recompute level)
{
    bool kept = plan->shape.training && plan->net->config->recompute < level;
    return kept ? DT_MEMORY_ACTIVATIONS : DT_MEMORY_SCRATCH;
}

struct dt_view dt_pass_last(const struct dt_pass *pass, struct dt_view view)
{
    int64_t B = pass->input.sequences, L = pass->input.length;
    struct dt_view last = dt_view_rows(view, L - 1, L - 1 + B);
    last.stride = L * view.stride;
    return last;
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

// c [m, n] (+)= a · b, each of them as stored or, with its flag, transposed.
static dt_status multiply(const struct dt_pass *pass, struct dt_view a, bool trans_a,
                          struct dt_view b, bool trans_b, struct dt_view c, bool accumulate)
{
    struct dt_gemm_args args = {.a = a,
                                .b = b,
                                .c = c,
                                .trans_a = trans_a,
                                .trans_b = trans_b,
                                .accumulate = accumulate,
                                .workspace = pass->net->workspace,
                                .workspace_bytes = pass->net->workspace_bytes};
    return DT_RUN(pass, gemm, &args);
}

static struct dt_view weight_of(const struct dt_net *net, struct dt_linear linear)
{
    struct dt_view all = dt_view_of(dt_net_stored(net, linear.row), linear.first + linear.out,
                                    linear.in, net->config->storage);
    return dt_view_rows(all, linear.first, linear.first + linear.out);
}

dt_status dt_linear_forward(const struct dt_pass *pass, struct dt_linear linear, struct dt_view x,
                            struct dt_view y)
{
    return multiply(pass, x, false, weight_of(pass->net, linear), true, y, false);
}

dt_status dt_linear_backward(const struct dt_pass *pass, struct dt_linear linear, struct dt_view x,
                             struct dt_view dy, struct dt_view dx)
{
    struct dt_view dw =
        dt_view_of(dt_net_gradient(pass->net, linear.row), linear.out, linear.in, DT_F32);
    DT_TRY(multiply(pass, dy, true, x, false, dw, pass->accumulate));
    DT_TRY(dt_pass_ready(pass, linear.row));
    return dx.cols == 0
               ? DT_OK
               : multiply(pass, dy, false, weight_of(pass->net, linear), false, dx, linear.adds);
}

dt_status dt_add_bias(const struct dt_pass *pass, int row, int64_t first, struct dt_view y)
{
    const float *bias = dt_net_weight(pass->net, row);
    struct dt_bias_forward_args args = {.rows = y.rows,
                                        .width = y.cols,
                                        .bias = bias ? bias + first : NULL,
                                        .y = y.data,
                                        .y_stride = y.stride};
    return DT_RUN(pass, bias_forward, &args);
}

dt_status dt_add_bias_backward(const struct dt_pass *pass, int row, struct dt_view dy)
{
    struct dt_bias_backward_args args = {.rows = dy.rows,
                                         .width = dy.cols,
                                         .dtype = dy.dtype,
                                         .dy = dy.data,
                                         .dy_stride = dy.stride,
                                         .dbias = dt_net_gradient(pass->net, row),
                                         .accumulate = pass->accumulate,
                                         .workspace = pass->net->workspace,
                                         .workspace_bytes = pass->net->workspace_bytes};
    DT_TRY(DT_RUN(pass, bias_backward, &args));
    return dt_pass_ready(pass, row);
}

dt_status dt_norm_forward(const struct dt_pass *pass, const struct dt_norm *norm,
                          const struct dt_flow *flow, struct dt_view h)
{
    struct dt_rmsnorm_residual_forward_args args = {.rows = h.rows,
                                                    .width = h.cols,
                                                    .dtype = h.dtype,
                                                    .eps = (float)pass->net->config->norm_eps,
                                                    .residual = flow->residual_in.data,
                                                    .x = flow->x.data,
                                                    .x_stride = flow->x.stride,
                                                    .weight = dt_net_weight(pass->net, norm->row),
                                                    .residual_out = flow->residual.data,
                                                    .y = h.data,
                                                    .y_stride = h.stride,
                                                    .rstd = norm->rstd};
    return DT_RUN(pass, rmsnorm_residual_forward, &args);
}

dt_status dt_norm_recompute(const struct dt_pass *pass, const struct dt_norm *norm,
                            const struct dt_flow *flow, struct dt_view h)
{
    const struct dt_flow again = {.residual_in = flow->residual};
    return dt_norm_forward(pass, norm, &again, h);
}

dt_status dt_norm_backward(const struct dt_pass *pass, const struct dt_norm *norm,
                           const struct dt_flow *flow, struct dt_view dh)
{
    struct dt_rmsnorm_residual_backward_args args = {.rows = dh.rows,
                                                     .width = dh.cols,
                                                     .dtype = dh.dtype,
                                                     .dy = dh.data,
                                                     .dy_stride = dh.stride,
                                                     .residual = flow->residual.data,
                                                     .rstd = norm->rstd,
                                                     .weight = dt_net_weight(pass->net, norm->row),
                                                     .dresidual = flow->dresidual.data,
                                                     .first = norm->last,
                                                     .dx = flow->x.data,
                                                     .dx_stride = flow->x.stride,
                                                     .dweight =
                                                         dt_net_gradient(pass->net, norm->row),
                                                     .accumulate = pass->accumulate,
                                                     .workspace = pass->net->workspace,
                                                     .workspace_bytes = pass->net->workspace_bytes};
    DT_TRY(DT_RUN(pass, rmsnorm_residual_backward, &args));
    return dt_pass_ready(pass, norm->row);
}

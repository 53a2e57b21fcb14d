// Rows of the flat weight arrays, planned memory, linear layers and norms.
#include "model/kinds.h"

// Far more than any machine has, and products of sizes still fit 64 bits.
static const int64_t bytes_max = INT64_C(1) << 52;

void *dt_plan_take(struct dt_plan *plan, struct dt_arena *arena, int64_t rows, int64_t cols,
                   enum dt_dtype type)
{
    int64_t bytes = 0;
    plan->too_large = plan->too_large || __builtin_mul_overflow(rows, cols, &bytes) ||
                      __builtin_mul_overflow(bytes, dt_dtype_size(type), &bytes) ||
                      bytes > bytes_max - arena->used;
    return dt_arena_take(arena, plan->too_large ? 0 : bytes);
}

struct dt_arena *dt_plan_arena(struct dt_plan *plan, enum dt_recompute level)
{
    bool kept = plan->shape.training && plan->net->config->recompute < level;
    return kept ? &plan->kept : &plan->scratch;
}

void dt_plan_workspace(struct dt_plan *plan, int64_t bytes)
{
    if (bytes > plan->workspace)
        plan->workspace = bytes;
}

const float *dt_net_weight(const struct dt_net *net, int row)
{
    return net->weights ? net->weights + net->params->rows[row].offset : NULL;
}

const void *dt_net_stored(const struct dt_net *net, int row)
{
    return dt_net_at(net, net->stored, net->params->rows[row].offset);
}

float *dt_net_gradient(const struct dt_net *net, int row)
{
    return net->gradients ? net->gradients + net->params->rows[row].offset : NULL;
}

void *dt_net_at(const struct dt_net *net, const void *pointer, int64_t elements)
{
    return pointer ? (char *)pointer + elements * dt_net_storage_size(net) : NULL;
}

int64_t dt_net_stride(const struct dt_net *net, int64_t width)
{
    int64_t step = 16 / dt_net_storage_size(net);
    return (width + step - 1) / step * step;
}

static struct dt_view view_of(const void *data, int64_t rows, int64_t cols, int64_t stride,
                              enum dt_dtype dtype)
{
    struct dt_view view = dt_view_of(data, rows, cols, dtype);
    view.stride = stride;
    return view;
}

static struct dt_gemm_args linear_forward_args(const struct dt_net *net, struct dt_linear linear,
                                               int64_t rows, const void *x, int64_t ldx, void *y,
                                               int64_t ldy, enum dt_dtype y_type)
{
    enum dt_dtype storage = net->config->storage;
    return (struct dt_gemm_args){
        .a = view_of(x, rows, linear.in, ldx, storage),
        .b = dt_view_of(dt_net_stored(net, linear.row), linear.out, linear.in, storage),
        .c = view_of(y, rows, linear.out, ldy, y_type),
        .trans_b = true,
        .workspace = net->workspace,
        .workspace_bytes = net->workspace_bytes};
}

static struct dt_gemm_args linear_input_args(const struct dt_net *net, struct dt_linear linear,
                                             int64_t rows, const void *dy, int64_t lddy, void *dx,
                                             int64_t lddx)
{
    enum dt_dtype storage = net->config->storage;
    return (struct dt_gemm_args){
        .a = view_of(dy, rows, linear.out, lddy, storage),
        .b = dt_view_of(dt_net_stored(net, linear.row), linear.out, linear.in, storage),
        .c = view_of(dx, rows, linear.in, lddx, storage),
        .accumulate = linear.adds,
        .workspace = net->workspace,
        .workspace_bytes = net->workspace_bytes};
}

static struct dt_gemm_args linear_weight_args(const struct dt_net *net, struct dt_linear linear,
                                              int64_t rows, const void *dy, int64_t lddy,
                                              const void *x, int64_t ldx, bool accumulate)
{
    enum dt_dtype storage = net->config->storage;
    return (struct dt_gemm_args){
        .a = view_of(dy, rows, linear.out, lddy, storage),
        .b = view_of(x, rows, linear.in, ldx, storage),
        .c = dt_view_of(dt_net_gradient(net, linear.row), linear.out, linear.in, DT_F32),
        .trans_a = true,
        .accumulate = accumulate,
        .workspace = net->workspace,
        .workspace_bytes = net->workspace_bytes};
}

dt_status dt_linear_forward(const struct dt_net *net, struct dt_linear linear, int64_t rows,
                            const void *x, int64_t ldx, void *y, int64_t ldy, enum dt_dtype y_type,
                            struct dt_stream *stream)
{
    struct dt_gemm_args args = linear_forward_args(net, linear, rows, x, ldx, y, ldy, y_type);
    return dt_gemm(net->backend, &args, stream);
}

dt_status dt_linear_backward_input(const struct dt_net *net, struct dt_linear linear, int64_t rows,
                                   const void *dy, int64_t lddy, void *dx, int64_t lddx,
                                   struct dt_stream *stream)
{
    struct dt_gemm_args args = linear_input_args(net, linear, rows, dy, lddy, dx, lddx);
    return dt_gemm(net->backend, &args, stream);
}

dt_status dt_linear_backward_weight(const struct dt_net *net, struct dt_linear linear, int64_t rows,
                                    const void *dy, int64_t lddy, const void *x, int64_t ldx,
                                    bool accumulate, struct dt_stream *stream)
{
    struct dt_gemm_args args = linear_weight_args(net, linear, rows, dy, lddy, x, ldx, accumulate);
    return dt_gemm(net->backend, &args, stream);
}

void dt_linear_plan_forward(struct dt_plan *plan, struct dt_linear linear, int64_t rows,
                            int64_t ldx, int64_t ldy, enum dt_dtype y_type)
{
    struct dt_gemm_args forward =
        linear_forward_args(plan->net, linear, rows, NULL, ldx, NULL, ldy, y_type);
    dt_plan_workspace(plan, dt_gemm_workspace(plan->net->backend, &forward));
}

// Weight gradients: of the first micro-batch, and added to those before it.
void dt_linear_plan(struct dt_plan *plan, struct dt_linear linear, int64_t rows, int64_t ldx,
                    int64_t ldy, enum dt_dtype y_type)
{
    const struct dt_net *net = plan->net;
    dt_linear_plan_forward(plan, linear, rows, ldx, ldy, y_type);
    if (!plan->shape.training)
        return;
    struct dt_gemm_args input = linear_input_args(net, linear, rows, NULL, ldy, NULL, ldx);
    dt_plan_workspace(plan, dt_gemm_workspace(net->backend, &input));
    for (int add = 0; add < 2; add++) {
        struct dt_gemm_args weight =
            linear_weight_args(net, linear, rows, NULL, ldy, NULL, ldx, add);
        dt_plan_workspace(plan, dt_gemm_workspace(net->backend, &weight));
    }
}

dt_status dt_pass_ready(const struct dt_pass *pass, int row)
{
    return pass->grad_ready ? pass->grad_ready(pass->context, row) : DT_OK;
}

static struct dt_rmsnorm_residual_forward_args norm_args(const struct dt_pass *pass,
                                                         const struct dt_norm *norm, void *h)
{
    const struct dt_model_config *config = pass->net->config;
    return (struct dt_rmsnorm_residual_forward_args){.rows = pass->rows,
                                                     .width = config->d_model,
                                                     .dtype = config->storage,
                                                     .eps = (float)config->norm_eps,
                                                     .x_stride = config->d_model,
                                                     .weight = dt_net_weight(pass->net, norm->row),
                                                     .y = h,
                                                     .y_stride = config->d_model,
                                                     .rstd = norm->rstd};
}

dt_status dt_norm_forward(const struct dt_pass *pass, const struct dt_norm *norm,
                          const struct dt_flow *flow, void *h)
{
    struct dt_rmsnorm_residual_forward_args args = norm_args(pass, norm, h);
    args.residual = flow->residual_in;
    args.x = flow->x;
    args.residual_out = flow->residual;
    return dt_rmsnorm_residual_forward(pass->net->backend, &args, pass->stream);
}

dt_status dt_norm_recompute(const struct dt_pass *pass, const struct dt_norm *norm,
                            const struct dt_flow *flow, void *h)
{
    struct dt_rmsnorm_residual_forward_args args = norm_args(pass, norm, h);
    args.residual = flow->residual;
    return dt_rmsnorm_residual_forward(pass->net->backend, &args, pass->stream);
}

static struct dt_rmsnorm_residual_backward_args
norm_backward_args(const struct dt_net *net, const struct dt_norm *norm, int64_t rows)
{
    return (struct dt_rmsnorm_residual_backward_args){.rows = rows,
                                                      .width = net->config->d_model,
                                                      .dtype = net->config->storage,
                                                      .dy_stride = net->config->d_model,
                                                      .rstd = norm->rstd,
                                                      .weight = dt_net_weight(net, norm->row),
                                                      .first = norm->last,
                                                      .dx_stride = net->config->d_model,
                                                      .dweight = dt_net_gradient(net, norm->row),
                                                      .workspace = net->workspace,
                                                      .workspace_bytes = net->workspace_bytes};
}

dt_status dt_norm_backward(const struct dt_pass *pass, const struct dt_norm *norm,
                           const struct dt_flow *flow, const void *dh)
{
    struct dt_rmsnorm_residual_backward_args args = norm_backward_args(pass->net, norm, pass->rows);
    args.dy = dh;
    args.residual = flow->residual;
    args.dresidual = flow->dresidual;
    args.dx = flow->x;
    args.accumulate = pass->accumulate;
    DT_TRY(dt_rmsnorm_residual_backward(pass->net->backend, &args, pass->stream));
    return dt_pass_ready(pass, norm->row);
}

void dt_norm_plan_workspace(struct dt_plan *plan, const struct dt_norm *norm)
{
    struct dt_rmsnorm_residual_backward_args args = norm_backward_args(plan->net, norm, plan->rows);
    if (plan->shape.training)
        dt_plan_workspace(plan, dt_rmsnorm_residual_backward_workspace(plan->net->backend, &args));
}

int dt_build_array(const struct dt_build *build, const char *name, enum dt_dtype type,
                   int64_t width, bool optional)
{
    int index = dt_array_list_add(build->arrays, name, type, width, optional);
    build->params->failed = build->params->failed || index < 0;
    return index;
}

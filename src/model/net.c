// Views into the flat weight arrays, linear layers, and the workspace they need.
#include "model/net.h"

void dt_plan_workspace(struct dt_plan *plan, int64_t bytes)
{
    if (bytes > plan->workspace)
        plan->workspace = bytes;
}

const float *dt_net_weight(const struct dt_net *net, int row)
{
    return net->weights ? net->weights + net->params->rows[row].offset : NULL;
}

const void *dt_net_matrix(const struct dt_net *net, int row)
{
    return dt_net_at(net, net->matrices, net->params->rows[row].offset);
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

static struct dt_gemm_args linear_forward_args(const struct dt_net *net, struct dt_linear linear,
                                               int64_t rows, const void *x, int64_t ldx, void *y,
                                               int64_t ldy, enum dt_dtype y_type)
{
    enum dt_dtype storage = net->config->storage;
    return (struct dt_gemm_args){.m = rows,
                                 .n = linear.out,
                                 .k = linear.in,
                                 .a = x,
                                 .lda = ldx,
                                 .a_type = storage,
                                 .b = dt_net_matrix(net, linear.row),
                                 .ldb = linear.in,
                                 .b_type = storage,
                                 .trans_b = true,
                                 .c = y,
                                 .ldc = ldy,
                                 .c_type = y_type,
                                 .workspace = net->workspace,
                                 .workspace_bytes = net->workspace_bytes};
}

static struct dt_gemm_args linear_input_args(const struct dt_net *net, struct dt_linear linear,
                                             int64_t rows, const void *dy, int64_t lddy, void *dx,
                                             int64_t lddx)
{
    enum dt_dtype storage = net->config->storage;
    return (struct dt_gemm_args){.m = rows,
                                 .n = linear.in,
                                 .k = linear.out,
                                 .a = dy,
                                 .lda = lddy,
                                 .a_type = storage,
                                 .b = dt_net_matrix(net, linear.row),
                                 .ldb = linear.in,
                                 .b_type = storage,
                                 .c = dx,
                                 .ldc = lddx,
                                 .c_type = storage,
                                 .accumulate = linear.adds,
                                 .workspace = net->workspace,
                                 .workspace_bytes = net->workspace_bytes};
}

static struct dt_gemm_args linear_weight_args(const struct dt_net *net, struct dt_linear linear,
                                              int64_t rows, const void *dy, int64_t lddy,
                                              const void *x, int64_t ldx, bool accumulate)
{
    enum dt_dtype storage = net->config->storage;
    return (struct dt_gemm_args){.m = linear.out,
                                 .n = linear.in,
                                 .k = rows,
                                 .a = dy,
                                 .lda = lddy,
                                 .a_type = storage,
                                 .trans_a = true,
                                 .b = x,
                                 .ldb = ldx,
                                 .b_type = storage,
                                 .c = dt_net_gradient(net, linear.row),
                                 .ldc = linear.in,
                                 .c_type = DT_F32,
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

// The demands of kernels/NAME.h for products, frames, embeddings, norms, gates, biases and the
// convolution.
#include "backend/check_argument.h"

static bool gemm_types_fit(const struct dt_backend *backend, const struct dt_gemm_args *args)
{
    if (args->a.dtype != args->b.dtype)
        return false;
    if (args->a.dtype == DT_I8)
        return backend->op->int8;
    return args->a.dtype == DT_F32 ? args->c.dtype == DT_F32 : true;
}

static dt_status check_gemm_int8(const char *op, const struct dt_gemm_args *args)
{
    POINTER(a_scale);
    POINTER(b_scale);
    DT_TRY(dt_check_range(op, "k", dt_gemm_k(args), 1, DT_GEMM_INT8_K));
    DT_TRY(dt_check_range(op, "trans_a", args->trans_a, 0, 0));
    DT_TRY(dt_check_range(op, "trans_b", args->trans_b, 1, 1));
    DT_TRY(dt_check_range(op, "accumulate", args->accumulate, 0, 0));
    return dt_check_range(op, "batch", args->batch, 0, 1);
}

CHECK(gemm)
{
    int64_t m = args->c.rows, n = args->c.cols, k = dt_gemm_k(args);
    SIZE(c.rows);
    SIZE(c.cols);
    DT_TRY(dt_check_range(op, "k", k, 1, DT_CHECK_SIZE));
    STORAGE(c.dtype);
    if (args->a.dtype != DT_I8)
        STORAGE(a.dtype);
    if (args->b.dtype != DT_I8)
        STORAGE(b.dtype);
    if (!gemm_types_fit(backend, args))
        return DT_FAIL(DT_MACHINE, dt_check_hint,
                       "gemm: unsupported a.dtype %s, b.dtype %s, c.dtype %s",
                       dt_dtype_name(args->a.dtype), dt_dtype_name(args->b.dtype),
                       dt_dtype_name(args->c.dtype));
    if (args->a.dtype == DT_I8)
        DT_TRY(check_gemm_int8(op, args));
    VIEW(a, args->trans_a ? k : m, args->trans_a ? m : k, args->a.dtype);
    VIEW(b, args->trans_b ? n : k, args->trans_b ? k : n, args->b.dtype);
    VIEW(c, m, n, args->c.dtype);
    RANGE(batch, 0, DT_GEMM_BATCH_MAX);
    if (args->batch > 1) {
        RANGE(a_step, 0, DT_CHECK_COUNT);
        RANGE(b_step, 0, DT_CHECK_COUNT);
        RANGE(c_step, 1, DT_CHECK_COUNT);
    }
    APART(c.data, a.data);
    APART(c.data, b.data);
    WORKSPACE(gemm);
    return DT_OK;
}

CHECK(normalize)
{
    dt_dtype stored = args->x.dtype == DT_U8 ? DT_U8 : DT_F32;
    SIZE(x.rows);
    SIZE(x.cols);
    STORAGE(y.dtype);
    VIEW(x, args->x.rows, args->x.cols, stored);
    VIEW(y, args->x.rows, args->x.cols, args->y.dtype);
    POINTER(mean);
    POINTER(deviation);
    APART(y.data, x.data);
    return DT_OK;
}

CHECK(embed_forward)
{
    SIZE(rows);
    SIZE(width);
    SIZE(vocab);
    SIZE(ids_stride);
    STORAGE(dtype);
    POINTER(ids);
    POINTER(table);
    POINTER(out);
    return DT_OK;
}

CHECK(embed_backward)
{
    SIZE(rows);
    SIZE(width);
    SIZE(vocab);
    SIZE(ids_stride);
    POINTER(ids);
    POINTER(dout);
    POINTER(dtable);
    WORKSPACE(embed_backward);
    return DT_OK;
}

CHECK(rmsnorm_residual_forward)
{
    SIZE(rows);
    SIZE(width);
    STORAGE(dtype);
    NUMBER(eps, 0.0, 2.0);
    POINTER(residual);
    POINTER(weight);
    POINTER(y);
    if (args->x)
        STRIDE(x_stride, width);
    STRIDE(y_stride, width);
    APART(y, x);
    return DT_OK;
}

CHECK(rmsnorm_residual_backward)
{
    SIZE(rows);
    SIZE(width);
    STORAGE(dtype);
    POINTER(dy);
    POINTER(residual);
    POINTER(rstd);
    POINTER(weight);
    POINTER(dresidual);
    POINTER(dweight);
    STRIDE(dy_stride, width);
    if (args->dx)
        STRIDE(dx_stride, width);
    APART(dx, dy);
    WORKSPACE(rmsnorm_residual_backward);
    return DT_OK;
}

static dt_status check_conv_inputs(const char *op, const struct dt_conv1d_silu_forward_args *args)
{
    const struct dt_conv1d_silu_inputs *in = &args->in;
    SIZE(in.batch);
    SIZE(in.length);
    SIZE(in.x.cols);
    RANGE(in.taps, 1, DT_CONV1D_TAPS_MAX);
    STORAGE(in.x.dtype);
    VIEW(in.x, in->batch * in->length, in->x.cols, in->x.dtype);
    POINTER(in.weight);
    POINTER(in.bias);
    if (in->taps == 1 && (in->x0 || args->x_last))
        return DT_FAIL(DT_MACHINE, dt_check_hint, "%s: in.taps is 1: in.x0 and x_last must be NULL",
                       op);
    return DT_OK;
}

CHECK(conv1d_silu_forward)
{
    DT_TRY(check_conv_inputs(op, args));
    VIEW(y, args->in.x.rows, args->in.x.cols, args->in.x.dtype);
    APART(y.data, in.x.data);
    APART(x_last, in.x0);
    return DT_OK;
}

CHECK(conv1d_silu_backward)
{
    const struct dt_view *x = &args->in.x;
    DT_TRY(check_conv_inputs(op, &(struct dt_conv1d_silu_forward_args){.in = args->in}));
    VIEW(dy, x->rows, x->cols, x->dtype);
    VIEW(dx, x->rows, x->cols, x->dtype);
    POINTER(dweight);
    POINTER(dbias);
    APART(dx.data, dy.data);
    APART(dx.data, in.x.data);
    WORKSPACE(conv1d_silu_backward);
    return DT_OK;
}

CHECK(silu_gate_forward)
{
    int64_t rows = args->x.rows, cols = args->x.cols;
    SIZE(x.rows);
    SIZE(x.cols);
    STORAGE(x.dtype);
    VIEW(x, rows, cols, args->x.dtype);
    VIEW(y, rows, cols, args->x.dtype);
    if (args->u.data)
        VIEW(u, rows, cols, args->x.dtype);
    return DT_OK;
}

CHECK(silu_gate_backward)
{
    int64_t rows = args->x.rows, cols = args->x.cols;
    SIZE(x.rows);
    SIZE(x.cols);
    STORAGE(x.dtype);
    VIEW(x, rows, cols, args->x.dtype);
    VIEW(dy, rows, cols, args->x.dtype);
    VIEW(dx, rows, cols, args->x.dtype);
    APART(dx.data, x.data);
    APART(dx.data, dy.data);
    if (args->u.data) {
        VIEW(u, rows, cols, args->x.dtype);
        VIEW(du, rows, cols, args->x.dtype);
    }
    return DT_OK;
}

static dt_status check_gated_inputs(const char *op,
                                    const struct dt_gated_rmsnorm_forward_args *args)
{
    const struct dt_view *x = &args->x;
    SIZE(x.rows);
    SIZE(x.cols);
    STORAGE(x.dtype);
    RANGE(groups, 1, x->cols);
    if (x->cols % args->groups != 0)
        return DT_FAIL(DT_MACHINE, dt_check_hint,
                       "%s: groups is %lld, does not divide x.cols = %lld", op,
                       (long long)args->groups, (long long)x->cols);
    VIEW(x, x->rows, x->cols, x->dtype);
    VIEW(z, x->rows, x->cols, x->dtype);
    POINTER(weight);
    return DT_OK;
}

CHECK(gated_rmsnorm_forward)
{
    const struct dt_view *x = &args->x;
    DT_TRY(check_gated_inputs(op, args));
    NUMBER(eps, 0.0, 2.0);
    VIEW(y, x->rows, x->cols, x->dtype);
    return DT_OK;
}

CHECK(gated_rmsnorm_backward)
{
    const struct dt_view *x = &args->x;
    DT_TRY(check_gated_inputs(
        op, &(struct dt_gated_rmsnorm_forward_args){
                .groups = args->groups, .x = args->x, .z = args->z, .weight = args->weight}));
    POINTER(rstd);
    VIEW(dy, x->rows, x->cols, x->dtype);
    VIEW(dx, x->rows, x->cols, x->dtype);
    VIEW(dz, x->rows, x->cols, x->dtype);
    POINTER(dweight);
    WORKSPACE(gated_rmsnorm_backward);
    return DT_OK;
}

CHECK(bias_forward)
{
    SIZE(rows);
    SIZE(width);
    POINTER(bias);
    POINTER(y);
    STRIDE(y_stride, width);
    return DT_OK;
}

CHECK(bias_backward)
{
    SIZE(rows);
    SIZE(width);
    STORAGE(dtype);
    POINTER(dy);
    POINTER(dbias);
    STRIDE(dy_stride, width);
    WORKSPACE(bias_backward);
    return DT_OK;
}

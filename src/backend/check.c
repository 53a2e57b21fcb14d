// The demands of kernels/NAME.h, op by op. A check function reads as the list of its op's demands;
// the macros turn a field into its name and value.
#include "backend/check.h"

#include <math.h>

static const char hint[] = "a bug in the caller: see the op's header in kernels/";

// Larger sizes are garbage; products of two of them still fit into 64 bits.
static const int64_t size_limit = (int64_t)1 << 31;
static const int64_t count_limit = (int64_t)1 << 48;

static dt_status check_range(const char *op, const char *name, int64_t value, int64_t low,
                             int64_t high)
{
    if (value >= low && value <= high)
        return DT_OK;
    return DT_FAIL(DT_MACHINE, hint, "%s: %s is %lld, not in %lld … %lld", op, name,
                   (long long)value, (long long)low, (long long)high);
}

static dt_status check_stride(const char *op, const char *name, int64_t stride,
                              const char *width_name, int64_t width)
{
    if (stride >= width && stride <= size_limit)
        return DT_OK;
    return DT_FAIL(DT_MACHINE, hint, "%s: %s is %lld, %s %s = %lld", op, name, (long long)stride,
                   stride < width ? "less than" : "far more than", width_name, (long long)width);
}

static dt_status check_pointer(const char *op, const char *name, const void *pointer)
{
    if (pointer)
        return DT_OK;
    return DT_FAIL(DT_MACHINE, hint, "%s: %s is NULL", op, name);
}

static dt_status check_storage(const char *op, const char *name, dt_dtype type)
{
    if (type == DT_F32 || type == DT_BF16)
        return DT_OK;
    const char *what = (unsigned)type < DT_DTYPE_COUNT ? dt_dtype_name(type) : "no dtype";
    return DT_FAIL(DT_MACHINE, hint, "%s: %s is %s (%d), neither fp32 nor bf16", op, name, what,
                   (int)type);
}

static dt_status check_number(const char *op, const char *name, double value, double low,
                              double below)
{
    if (value >= low && value < below)
        return DT_OK;
    return DT_FAIL(DT_MACHINE, hint, "%s: %s is %g, not in [%g, %g)", op, name, value, low, below);
}

// A view of `rows` rows and `cols` columns of `type`, which the caller has checked themselves.
// Kernels count the bytes between rows in 32 bits.
static dt_status check_view(const char *op, const char *name, const struct dt_view *view,
                            int64_t rows, int64_t cols, dt_dtype type)
{
    int64_t stride_max = UINT32_MAX / dt_dtype_size(type);
    DT_TRY(check_pointer(op, name, view->data));
    if (view->rows != rows || view->cols != cols)
        return DT_FAIL(DT_MACHINE, hint, "%s: %s is [%lld, %lld], must be [%lld, %lld]", op, name,
                       (long long)view->rows, (long long)view->cols, (long long)rows,
                       (long long)cols);
    if (view->stride < cols || view->stride > stride_max)
        return DT_FAIL(DT_MACHINE, hint, "%s: %s.stride is %lld, not in %lld … %lld", op, name,
                       (long long)view->stride, (long long)cols, (long long)stride_max);
    if (type != DT_I8)
        DT_TRY(check_storage(op, name, view->dtype));
    if (view->dtype != type)
        return DT_FAIL(DT_MACHINE, hint, "%s: %s is %s, must be %s", op, name,
                       dt_dtype_name(view->dtype), dt_dtype_name(type));
    return DT_OK;
}

static dt_status check_apart(const char *op, const char *a_name, const void *a, const char *b_name,
                             const void *b)
{
    if (a != b || !a)
        return DT_OK;
    return DT_FAIL(DT_MACHINE, hint, "%s: %s must not be %s itself", op, a_name, b_name);
}

static dt_status check_workspace(const char *op, int64_t needed, const void *workspace,
                                 int64_t bytes)
{
    if (needed <= 0 || (workspace && bytes >= needed))
        return DT_OK;
    if (!workspace)
        return DT_FAIL(DT_MACHINE, hint, "%s: workspace is NULL, %lld bytes are needed", op,
                       (long long)needed);
    return DT_FAIL(DT_MACHINE, hint, "%s: workspace_bytes is %lld, %lld are needed", op,
                   (long long)bytes, (long long)needed);
}

// In the check functions: `args` is the struct, `op` the name.
#define RANGE(field, low, high)       DT_TRY(check_range(op, #field, args->field, low, high))
#define SIZE(field)                   RANGE(field, 1, size_limit)
#define COUNT(field)                  RANGE(field, 0, count_limit)
#define STRIDE(field, width)          DT_TRY(check_stride(op, #field, args->field, #width, args->width))
#define VIEW(field, rows, cols, type) DT_TRY(check_view(op, #field, &args->field, rows, cols, type))
#define POINTER(field)                DT_TRY(check_pointer(op, #field, args->field))
#define STORAGE(field)                DT_TRY(check_storage(op, #field, args->field))
#define NUMBER(field, low, below)     DT_TRY(check_number(op, #field, (double)args->field, low, below))
#define APART(a, b)                   DT_TRY(check_apart(op, #a, args->a, #b, args->b))
#define WORKSPACE(name)                                                                            \
    DT_TRY(check_workspace(                                                                        \
        op,                                                                                        \
        backend->op->name##_workspace ? backend->op->name##_workspace(backend->device, args) : 0,  \
        args->workspace, args->workspace_bytes))

#define UNUSED __attribute__((unused))
#define CHECK(name)                                                                                \
    static dt_status check_##name(const char *op, const struct dt_backend *backend,                \
                                  const struct dt_##name##_args *args);                            \
    dt_status dt_check_##name(const struct dt_backend *backend,                                    \
                              const struct dt_##name##_args *args)                                 \
    {                                                                                              \
        DT_TRY(check_pointer(#name, "args", args));                                                \
        return check_##name(#name, backend, args);                                                 \
    }                                                                                              \
    static dt_status check_##name(UNUSED const char *op, UNUSED const struct dt_backend *backend,  \
                                  UNUSED const struct dt_##name##_args *args)

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
    DT_TRY(check_range(op, "k", dt_gemm_k(args), 1, DT_GEMM_INT8_K));
    DT_TRY(check_range(op, "trans_a", args->trans_a, 0, 0));
    DT_TRY(check_range(op, "trans_b", args->trans_b, 1, 1));
    DT_TRY(check_range(op, "accumulate", args->accumulate, 0, 0));
    return check_range(op, "batch", args->batch, 0, 1);
}

CHECK(gemm)
{
    int64_t m = args->c.rows, n = args->c.cols, k = dt_gemm_k(args);
    SIZE(c.rows);
    SIZE(c.cols);
    DT_TRY(check_range(op, "k", k, 1, size_limit));
    STORAGE(c.dtype);
    if (args->a.dtype != DT_I8)
        STORAGE(a.dtype);
    if (args->b.dtype != DT_I8)
        STORAGE(b.dtype);
    if (!gemm_types_fit(backend, args))
        return DT_FAIL(DT_MACHINE, hint, "gemm: unsupported a.dtype %s, b.dtype %s, c.dtype %s",
                       dt_dtype_name(args->a.dtype), dt_dtype_name(args->b.dtype),
                       dt_dtype_name(args->c.dtype));
    if (args->a.dtype == DT_I8)
        DT_TRY(check_gemm_int8(op, args));
    VIEW(a, args->trans_a ? k : m, args->trans_a ? m : k, args->a.dtype);
    VIEW(b, args->trans_b ? n : k, args->trans_b ? k : n, args->b.dtype);
    VIEW(c, m, n, args->c.dtype);
    RANGE(batch, 0, DT_GEMM_BATCH_MAX);
    if (args->batch > 1) {
        RANGE(a_step, 0, count_limit);
        RANGE(b_step, 0, count_limit);
        RANGE(c_step, 1, count_limit);
    }
    APART(c.data, a.data);
    APART(c.data, b.data);
    WORKSPACE(gemm);
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
        return DT_FAIL(DT_MACHINE, hint, "%s: in.taps is 1: in.x0 and x_last must be NULL", op);
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

// Kernels count the bytes of a column in 31 bits.
static dt_status check_length(const char *op, int64_t length, dt_dtype type)
{
    int64_t longest = INT32_MAX / dt_dtype_size(type);
    if (length <= longest)
        return DT_OK;
    return DT_FAIL(DT_MACHINE, "train on shorter sequences: data.seq_len",
                   "%s: in.length is %lld, at most %lld tokens of %s", op, (long long)length,
                   (long long)longest, dt_dtype_name(type));
}

static dt_status check_scan_inputs(const char *op, const struct dt_scan_forward_args *args)
{
    const struct dt_scan_inputs *in = &args->in;
    int64_t D = in->u.cols, N = in->b.cols;
    SIZE(in.batch);
    SIZE(in.length);
    SIZE(in.chunk);
    SIZE(in.u.cols);
    RANGE(in.b.cols, 1, DT_SCAN_STATES_MAX);
    STORAGE(in.u.dtype);
    int64_t rows = in->batch * in->length;
    DT_TRY(check_length(op, in->length, in->u.dtype));
    VIEW(in.u, rows, D, in->u.dtype);
    VIEW(in.delta, rows, D, in->u.dtype);
    VIEW(in.z, rows, D, in->u.dtype);
    VIEW(in.b, rows, N, in->u.dtype);
    VIEW(in.c, rows, N, in->u.dtype);
    POINTER(in.a_log);
    POINTER(in.d_skip);
    POINTER(in.dt_bias);
    return DT_OK;
}

CHECK(scan_forward)
{
    const struct dt_view *u = &args->in.u;
    DT_TRY(check_scan_inputs(op, args));
    VIEW(y, u->rows, u->cols, u->dtype);
    WORKSPACE(scan_forward);
    return DT_OK;
}

CHECK(scan_backward)
{
    const struct dt_view *u = &args->in.u, *b = &args->in.b;
    DT_TRY(check_scan_inputs(op, &(struct dt_scan_forward_args){.in = args->in}));
    POINTER(states);
    VIEW(dy, u->rows, u->cols, u->dtype);
    VIEW(du, u->rows, u->cols, u->dtype);
    VIEW(ddelta, u->rows, u->cols, u->dtype);
    VIEW(dz, u->rows, u->cols, u->dtype);
    VIEW(db, b->rows, b->cols, u->dtype);
    VIEW(dc, b->rows, b->cols, u->dtype);
    POINTER(da_log);
    POINTER(dd_skip);
    POINTER(ddt_bias);
    WORKSPACE(scan_backward);
    return DT_OK;
}

static dt_status check_attention_inputs(const char *op,
                                        const struct dt_attention_forward_args *args)
{
    const struct dt_attention_inputs *in = &args->in;
    int64_t rows = in->batch * in->length, kept = in->window - 1;
    SIZE(in.batch);
    SIZE(in.length);
    RANGE(in.width, 2, DT_ATTENTION_HEAD_MAX);
    RANGE(in.n_head, 1, size_limit / in->width);
    RANGE(in.n_kv_head, 1, in->n_head);
    RANGE(in.window, 1, DT_ATTENTION_WINDOW_MAX);
    NUMBER(in.rope_base, 0.0, HUGE_VAL);
    if (in->width % 2 != 0)
        return DT_FAIL(DT_MACHINE, hint, "%s: in.width is %lld, must be even", op,
                       (long long)in->width);
    if (in->n_head % in->n_kv_head != 0)
        return DT_FAIL(DT_MACHINE, hint,
                       "%s: in.n_head is %lld, must be a multiple of in.n_kv_head %lld", op,
                       (long long)in->n_head, (long long)in->n_kv_head);
    STORAGE(in.q.dtype);
    VIEW(in.q, rows, in->n_head * in->width, in->q.dtype);
    VIEW(in.k, rows, in->n_kv_head * in->width, in->q.dtype);
    VIEW(in.v, rows, in->n_kv_head * in->width, in->q.dtype);
    if (kept == 0 && (in->k0 || args->k_last))
        return DT_FAIL(DT_MACHINE, hint, "%s: in.window is 1: in.k0 and k_last must be NULL", op);
    if (in->k0) {
        POINTER(in.v0);
        POINTER(in.count0);
    }
    return DT_OK;
}

CHECK(attention_forward)
{
    const struct dt_view *q = &args->in.q;
    DT_TRY(check_attention_inputs(op, args));
    VIEW(y, q->rows, q->cols, q->dtype);
    if (args->k_last) {
        POINTER(v_last);
        POINTER(count_last);
        APART(k_last, in.k0);
        APART(v_last, in.v0);
        APART(count_last, in.count0);
    }
    WORKSPACE(attention_forward);
    return DT_OK;
}

CHECK(attention_backward)
{
    const struct dt_view *q = &args->in.q, *k = &args->in.k;
    DT_TRY(check_attention_inputs(op, &(struct dt_attention_forward_args){.in = args->in}));
    VIEW(y, q->rows, q->cols, q->dtype);
    VIEW(dy, q->rows, q->cols, q->dtype);
    VIEW(dq, q->rows, q->cols, q->dtype);
    VIEW(dk, k->rows, k->cols, q->dtype);
    VIEW(dv, k->rows, k->cols, q->dtype);
    POINTER(lse);
    WORKSPACE(attention_backward);
    return DT_OK;
}

static dt_status check_rnn_inputs(const char *op, const struct dt_rnn_forward_args *args)
{
    const struct dt_rnn_inputs *in = &args->in;
    SIZE(in.batch);
    SIZE(in.length);
    RANGE(in.cell, DT_RNN_GRU, DT_RNN_LSTM);
    STORAGE(in.w_hh.dtype);
    SIZE(in.w_hh.cols);
    VIEW(in.w_hh, dt_rnn_gates(in->cell) * in->w_hh.cols, in->w_hh.cols, in->w_hh.dtype);
    return DT_OK;
}

CHECK(rnn_forward)
{
    const struct dt_rnn_inputs *in = &args->in;
    int64_t M = in->batch * in->length, H = in->w_hh.cols;
    enum dt_dtype type = in->w_hh.dtype;
    bool lstm = in->cell == DT_RNN_LSTM;
    DT_TRY(check_rnn_inputs(op, args));
    VIEW(x, M, dt_rnn_gates(in->cell) * H, type);
    POINTER(b_ih);
    POINTER(b_hh);
    VIEW(y, M, H, type);
    VIEW(previous, M, H, type);
    APART(y.data, previous.data);
    APART(h_last, in.h0);
    APART(c_last, in.c0);
    if (args->gates.data)
        VIEW(gates, M, 4 * H, type);
    if (args->gates.data && lstm)
        VIEW(cells, M, H, type);
    if (lstm && !args->h_last != !args->c_last)
        return DT_FAIL(DT_MACHINE, hint, "%s: h_last and c_last go together", op);
    WORKSPACE(rnn_forward);
    return DT_OK;
}

CHECK(rnn_backward)
{
    const struct dt_rnn_inputs *in = &args->in;
    int64_t M = in->batch * in->length, H = in->w_hh.cols, G = dt_rnn_gates(in->cell);
    enum dt_dtype type = in->w_hh.dtype;
    DT_TRY(check_rnn_inputs(op, &(struct dt_rnn_forward_args){.in = args->in}));
    VIEW(gates, M, 4 * H, type);
    VIEW(previous, M, H, type);
    VIEW(dy, M, H, type);
    VIEW(dx, M, G * H, type);
    if (in->cell == DT_RNN_LSTM)
        VIEW(cells, M, H, type);
    else
        VIEW(dp, M, G * H, type);
    POINTER(db_ih);
    POINTER(db_hh);
    WORKSPACE(rnn_backward);
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

static dt_status check_ssd_inputs(const char *op, const struct dt_ssd_forward_args *args)
{
    const struct dt_ssd_inputs *in = &args->in;
    const struct dt_view *x = &in->x, *b = &in->b;
    SIZE(in.batch);
    SIZE(in.length);
    SIZE(in.chunk);
    DT_TRY(check_range(op, "in.chunk", in->chunk < in->length ? in->chunk : in->length, 1,
                       DT_SSD_CHUNK_MAX));
    SIZE(in.heads);
    RANGE(in.groups, 1, in->heads);
    SIZE(in.x.cols);
    SIZE(in.b.cols);
    STORAGE(in.x.dtype);
    if (in->heads % in->groups != 0 || x->cols % in->heads != 0 || b->cols % in->groups != 0)
        return DT_FAIL(DT_MACHINE, hint,
                       "%s: %lld heads, %lld groups, %lld columns of x and %lld of b do not divide",
                       op, (long long)in->heads, (long long)in->groups, (long long)x->cols,
                       (long long)b->cols);
    DT_TRY(check_range(op, "P", x->cols / in->heads, 1, DT_SSD_HEAD_MAX));
    DT_TRY(check_range(op, "N", b->cols / in->groups, 1, DT_SSD_STATES_MAX));
    DT_TRY(check_length(op, in->length, x->dtype));
    NUMBER(in.dt_min, 0.0, HUGE_VAL);
    if (!(in->dt_max >= in->dt_min))
        return DT_FAIL(DT_MACHINE, hint, "%s: in.dt_max is %g, less than in.dt_min = %g", op,
                       (double)in->dt_max, (double)in->dt_min);
    int64_t rows = in->batch * in->length;
    VIEW(in.x, rows, x->cols, x->dtype);
    VIEW(in.dt, rows, in->heads, x->dtype);
    VIEW(in.b, rows, b->cols, x->dtype);
    VIEW(in.c, rows, b->cols, x->dtype);
    POINTER(in.a_log);
    POINTER(in.d_skip);
    POINTER(in.dt_bias);
    return DT_OK;
}

CHECK(ssd_forward)
{
    const struct dt_view *x = &args->in.x;
    DT_TRY(check_ssd_inputs(op, args));
    VIEW(y, x->rows, x->cols, x->dtype);
    WORKSPACE(ssd_forward);
    return DT_OK;
}

CHECK(ssd_backward)
{
    const struct dt_view *x = &args->in.x, *b = &args->in.b;
    DT_TRY(check_ssd_inputs(op, &(struct dt_ssd_forward_args){.in = args->in}));
    POINTER(states);
    VIEW(dy, x->rows, x->cols, x->dtype);
    VIEW(dx, x->rows, x->cols, x->dtype);
    VIEW(ddt, x->rows, args->in.heads, x->dtype);
    VIEW(db, b->rows, b->cols, x->dtype);
    VIEW(dc, b->rows, b->cols, x->dtype);
    POINTER(da_log);
    POINTER(dd_skip);
    POINTER(ddt_bias);
    APART(dx.data, dy.data);
    WORKSPACE(ssd_backward);
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
        return DT_FAIL(DT_MACHINE, hint, "%s: groups is %lld, does not divide x.cols = %lld", op,
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

CHECK(xent)
{
    SIZE(rows);
    SIZE(vocab);
    SIZE(width);
    STRIDE(width, vocab);
    STORAGE(dtype);
    POINTER(logits);
    POINTER(labels);
    POINTER(sum);
    STRIDE(logits_stride, width);
    if (args->dlogits)
        STRIDE(dlogits_stride, width);
    if (args->dlogits == args->logits &&
        (args->dtype != DT_F32 || args->dlogits_stride != args->logits_stride))
        return DT_FAIL(
            DT_MACHINE, hint,
            "xent: dlogits is logits itself, but dtype is %s and the strides are %lld and %lld",
            dt_dtype_name(args->dtype), (long long)args->dlogits_stride,
            (long long)args->logits_stride);
    WORKSPACE(xent);
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

// Slices of `width` columns and of `target_width` targets.
static dt_status check_outputs(const char *op, const struct dt_output_slice *outputs, int64_t n,
                               int64_t width, int64_t target_width)
{
    DT_TRY(check_range(op, "n", n, 1, DT_OUTPUTS_MAX));
    for (int64_t k = 0, from = 0; k < n; k++) {
        const struct dt_output_slice *o = &outputs[k];
        int64_t targets = o->kind == DT_OUTPUT_CATEGORICAL ? 1 : o->width;
        DT_TRY(check_range(op, "outputs.kind", (int64_t)o->kind, 0, DT_OUTPUT_HUBER));
        DT_TRY(check_range(op, "outputs.first", o->first, from, width - 1));
        DT_TRY(check_range(op, "outputs.width", o->width, 1, width - o->first));
        DT_TRY(check_range(op, "outputs.target", o->target, 0, target_width - targets));
        DT_TRY(check_number(op, "outputs.weight", o->weight, 0.0, INFINITY));
        DT_TRY(check_number(op, "outputs.smoothing", o->smoothing, 0.0, 1.0));
        from = o->first + o->width;
    }
    return DT_OK;
}

CHECK(encode_targets)
{
    int64_t rows = args->out.rows;
    SIZE(out.rows);
    SIZE(out.cols);
    SIZE(targets.cols);
    STORAGE(out.dtype);
    VIEW(out, rows, args->out.cols, args->out.dtype);
    VIEW(targets, rows, args->targets.cols, DT_F32);
    return check_outputs(op, args->outputs, args->n, args->out.cols, args->targets.cols);
}

CHECK(policy_loss)
{
    SIZE(rows);
    SIZE(width);
    SIZE(target_width);
    DT_TRY(check_outputs(op, args->outputs, args->n, args->width, args->target_width));
    STORAGE(dtype);
    POINTER(logits);
    POINTER(bias);
    POINTER(targets);
    POINTER(sum);
    STRIDE(logits_stride, width);
    if (args->dlogits)
        STRIDE(dlogits_stride, width);
    if (args->dlogits == args->logits &&
        (args->dtype != DT_F32 || args->dlogits_stride != args->logits_stride))
        return DT_FAIL(DT_MACHINE, hint,
                       "policy_loss: dlogits is logits itself, but dtype is %s and the strides are "
                       "%lld and %lld",
                       dt_dtype_name(args->dtype), (long long)args->dlogits_stride,
                       (long long)args->logits_stride);
    WORKSPACE(policy_loss);
    return DT_OK;
}

CHECK(sum_squares)
{
    COUNT(n);
    if (args->n > 0 && args->part != DT_SQUARES_TOTAL)
        POINTER(x);
    if (args->part != DT_SQUARES_BLOCKS)
        POINTER(sum);
    WORKSPACE(sum_squares);
    return DT_OK;
}

CHECK(checksum)
{
    COUNT(n);
    if (args->n > 0)
        POINTER(x);
    POINTER(sum);
    WORKSPACE(checksum);
    return DT_OK;
}

CHECK(update_control)
{
    POINTER(sum);
    POINTER(sum_squares);
    POINTER(control);
    if (!(args->expected > 0.0 && isfinite(args->expected)))
        return DT_FAIL(DT_MACHINE, hint, "update_control: expected is %g, not a positive number",
                       args->expected);
    POINTER(lr);
    NUMBER(beta1, 0.0, 1.0);
    NUMBER(beta2, 0.0, 1.0);
    NUMBER(grad_clip, 0.0, HUGE_VAL);
    return DT_OK;
}

CHECK(adamw)
{
    COUNT(n);
    NUMBER(beta1, 0.0, 1.0);
    NUMBER(beta2, 0.0, 1.0);
    NUMBER(eps, 0.0, 2.0);
    NUMBER(average_decay, 0.0, 1.0);
    POINTER(control);
    if (args->n == 0)
        return DT_OK;
    RANGE(n_spans, 1, count_limit);
    POINTER(spans);
    POINTER(weight);
    POINTER(m);
    POINTER(v);
    POINTER(grad);
    return DT_OK;
}

CHECK(quantize)
{
    SIZE(x.rows);
    SIZE(x.cols);
    STORAGE(x.dtype);
    VIEW(x, args->x.rows, args->x.cols, args->x.dtype);
    VIEW(y, args->x.rows, args->x.cols, args->y.dtype == DT_I8 ? DT_I8 : args->x.dtype);
    if (args->y.dtype == DT_I8)
        POINTER(scale);
    APART(y.data, x.data);
    return DT_OK;
}

CHECK(cast)
{
    COUNT(n);
    STORAGE(x_type);
    STORAGE(y_type);
    if (args->n > 0) {
        POINTER(x);
        POINTER(y);
    }
    APART(y, x);
    return DT_OK;
}

CHECK(accumulate)
{
    COUNT(n);
    if (args->x_type != DT_F64)
        STORAGE(x_type);
    if (args->n > 0) {
        POINTER(x);
        POINTER(y);
    }
    return DT_OK;
}

CHECK(commit)
{
    COUNT(bytes);
    POINTER(control);
    if (args->bytes % DT_COMMIT_UNIT != 0)
        return DT_FAIL(DT_MACHINE, hint, "commit: bytes is %lld, not a multiple of %d",
                       (long long)args->bytes, DT_COMMIT_UNIT);
    if (args->bytes == 0)
        return DT_OK;
    POINTER(from);
    POINTER(to);
    APART(to, from);
    return DT_OK;
}

CHECK(stamp)
{
    return DT_OK;
}

CHECK(spin)
{
    RANGE(kind, DT_SPIN_EXP, DT_SPIN_FMA);
    COUNT(n);
    COUNT(rounds);
    if (args->n > 0)
        POINTER(y);
    return DT_OK;
}

// The demands of kernels/NAME.h for ops that run along a sequence.
#include "backend/check_argument.h"

#include <math.h>

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
    RANGE(in.u.cols, 1, DT_SCAN_CHANNELS_MAX);
    RANGE(in.b.cols, 1, DT_SCAN_STATES_MAX);
    STORAGE(in.u.dtype);
    int64_t rows = in->batch * in->length;
    DT_TRY(check_length(op, in->length, in->u.dtype));
    DT_TRY(dt_check_range(op, "in.batch * in.length", rows, 1, UINT32_MAX));
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
    if (args->states && backend->op->scan_keeps_s)
        POINTER(s);
    WORKSPACE(scan_forward);
    return DT_OK;
}

CHECK(scan_backward)
{
    const struct dt_view *u = &args->in.u, *b = &args->in.b;
    DT_TRY(check_scan_inputs(op, &(struct dt_scan_forward_args){.in = args->in}));
    POINTER(states);
    if (backend->op->scan_keeps_s)
        POINTER(s);
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
    RANGE(in.n_head, 1, DT_CHECK_SIZE / in->width);
    RANGE(in.n_kv_head, 1, in->n_head);
    RANGE(in.window, 1, DT_ATTENTION_WINDOW_MAX);
    NUMBER(in.rope_base, 0.0, HUGE_VAL);
    if (in->width % 2 != 0)
        return DT_FAIL(DT_MACHINE, dt_check_hint, "%s: in.width is %lld, must be even", op,
                       (long long)in->width);
    if (in->n_head % in->n_kv_head != 0)
        return DT_FAIL(DT_MACHINE, dt_check_hint,
                       "%s: in.n_head is %lld, must be a multiple of in.n_kv_head %lld", op,
                       (long long)in->n_head, (long long)in->n_kv_head);
    STORAGE(in.q.dtype);
    VIEW(in.q, rows, in->n_head * in->width, in->q.dtype);
    VIEW(in.k, rows, in->n_kv_head * in->width, in->q.dtype);
    VIEW(in.v, rows, in->n_kv_head * in->width, in->q.dtype);
    if (kept == 0 && (in->k0 || args->k_last))
        return DT_FAIL(DT_MACHINE, dt_check_hint,
                       "%s: in.window is 1: in.k0 and k_last must be NULL", op);
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
        return DT_FAIL(DT_MACHINE, dt_check_hint, "%s: h_last and c_last go together", op);
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

static dt_status check_ssd_inputs(const char *op, const struct dt_ssd_forward_args *args)
{
    const struct dt_ssd_inputs *in = &args->in;
    const struct dt_view *x = &in->x, *b = &in->b;
    SIZE(in.batch);
    SIZE(in.length);
    SIZE(in.chunk);
    DT_TRY(dt_check_range(op, "in.chunk", in->chunk < in->length ? in->chunk : in->length, 1,
                          DT_SSD_CHUNK_MAX));
    SIZE(in.heads);
    RANGE(in.groups, 1, in->heads);
    SIZE(in.x.cols);
    SIZE(in.b.cols);
    STORAGE(in.x.dtype);
    if (in->heads % in->groups != 0 || x->cols % in->heads != 0 || b->cols % in->groups != 0)
        return DT_FAIL(DT_MACHINE, dt_check_hint,
                       "%s: %lld heads, %lld groups, %lld columns of x and %lld of b do not divide",
                       op, (long long)in->heads, (long long)in->groups, (long long)x->cols,
                       (long long)b->cols);
    DT_TRY(dt_check_range(op, "P", x->cols / in->heads, 1, DT_SSD_HEAD_MAX));
    DT_TRY(dt_check_range(op, "N", b->cols / in->groups, 1, DT_SSD_STATES_MAX));
    DT_TRY(check_length(op, in->length, x->dtype));
    NUMBER(in.dt_min, 0.0, HUGE_VAL);
    if (!(in->dt_max >= in->dt_min))
        return DT_FAIL(DT_MACHINE, dt_check_hint, "%s: in.dt_max is %g, less than in.dt_min = %g",
                       op, (double)in->dt_max, (double)in->dt_min);
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

// The demands of kernels/NAME.h for losses, the optimizer and ops on flat arrays.
#include "backend/check_argument.h"

#include <math.h>

// Gradients in the place of logits, which are fp32.
static dt_status check_in_place(const char *op, dt_dtype type, int64_t dlogits_stride,
                                int64_t logits_stride)
{
    if (type == DT_F32 && dlogits_stride == logits_stride)
        return DT_OK;
    return DT_FAIL(
        DT_MACHINE, dt_check_hint,
        "%s: dlogits is logits itself, but dtype is %s and the strides are %lld and %lld", op,
        dt_dtype_name(type), (long long)dlogits_stride, (long long)logits_stride);
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
    if (args->dlogits == args->logits)
        DT_TRY(check_in_place(op, args->dtype, args->dlogits_stride, args->logits_stride));
    WORKSPACE(xent);
    return DT_OK;
}

// Slices of `width` columns and of `target_width` targets.
static dt_status check_outputs(const char *op, const struct dt_output_slice *outputs, int64_t n,
                               int64_t width, int64_t target_width)
{
    DT_TRY(dt_check_range(op, "n", n, 1, DT_OUTPUTS_MAX));
    for (int64_t k = 0, from = 0; k < n; k++) {
        const struct dt_output_slice *o = &outputs[k];
        int64_t targets = o->kind == DT_OUTPUT_CATEGORICAL ? 1 : o->width;
        DT_TRY(dt_check_range(op, "outputs.kind", (int64_t)o->kind, 0, DT_OUTPUT_HUBER));
        DT_TRY(dt_check_range(op, "outputs.first", o->first, from, width - 1));
        DT_TRY(dt_check_range(op, "outputs.width", o->width, 1, width - o->first));
        DT_TRY(dt_check_range(op, "outputs.target", o->target, 0, target_width - targets));
        DT_TRY(dt_check_number(op, "outputs.weight", o->weight, 0.0, INFINITY));
        DT_TRY(dt_check_number(op, "outputs.smoothing", o->smoothing, 0.0, 1.0));
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
    if (args->dlogits == args->logits)
        DT_TRY(check_in_place(op, args->dtype, args->dlogits_stride, args->logits_stride));
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
        return DT_FAIL(DT_MACHINE, dt_check_hint,
                       "update_control: expected is %g, not a positive number", args->expected);
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
    RANGE(n_spans, 1, DT_CHECK_COUNT);
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
        return DT_FAIL(DT_MACHINE, dt_check_hint, "commit: bytes is %lld, not a multiple of %d",
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

// What an argument of an op may be.
#include "backend/check_argument.h"

const char dt_check_hint[] = "a bug in the caller: see the op's header in kernels/";

dt_status dt_check_range(const char *op, const char *name, int64_t value, int64_t low, int64_t high)
{
    if (value >= low && value <= high)
        return DT_OK;
    return DT_FAIL(DT_MACHINE, dt_check_hint, "%s: %s is %lld, not in %lld … %lld", op, name,
                   (long long)value, (long long)low, (long long)high);
}

dt_status dt_check_stride(const char *op, const char *name, int64_t stride, const char *width_name,
                          int64_t width)
{
    if (stride >= width && stride <= DT_CHECK_SIZE)
        return DT_OK;
    return DT_FAIL(DT_MACHINE, dt_check_hint, "%s: %s is %lld, %s %s = %lld", op, name,
                   (long long)stride, stride < width ? "less than" : "far more than", width_name,
                   (long long)width);
}

dt_status dt_check_pointer(const char *op, const char *name, const void *pointer)
{
    if (pointer)
        return DT_OK;
    return DT_FAIL(DT_MACHINE, dt_check_hint, "%s: %s is NULL", op, name);
}

dt_status dt_check_storage(const char *op, const char *name, dt_dtype type)
{
    if (type == DT_F32 || type == DT_BF16)
        return DT_OK;
    const char *what = (unsigned)type < DT_DTYPE_COUNT ? dt_dtype_name(type) : "no dtype";
    return DT_FAIL(DT_MACHINE, dt_check_hint, "%s: %s is %s (%d), neither fp32 nor bf16", op, name,
                   what, (int)type);
}

dt_status dt_check_number(const char *op, const char *name, double value, double low, double below)
{
    if (value >= low && value < below)
        return DT_OK;
    return DT_FAIL(DT_MACHINE, dt_check_hint, "%s: %s is %g, not in [%g, %g)", op, name, value, low,
                   below);
}

// Kernels count the bytes between rows in 32 bits.
dt_status dt_check_view(const char *op, const char *name, const struct dt_view *view, int64_t rows,
                        int64_t cols, dt_dtype type)
{
    int64_t stride_max = UINT32_MAX / dt_dtype_size(type);
    DT_TRY(dt_check_pointer(op, name, view->data));
    if (view->rows != rows || view->cols != cols)
        return DT_FAIL(DT_MACHINE, dt_check_hint, "%s: %s is [%lld, %lld], must be [%lld, %lld]",
                       op, name, (long long)view->rows, (long long)view->cols, (long long)rows,
                       (long long)cols);
    if (view->stride < cols || view->stride > stride_max)
        return DT_FAIL(DT_MACHINE, dt_check_hint, "%s: %s.stride is %lld, not in %lld … %lld", op,
                       name, (long long)view->stride, (long long)cols, (long long)stride_max);
    if (type != DT_I8 && type != DT_U8)
        DT_TRY(dt_check_storage(op, name, view->dtype));
    if (view->dtype != type)
        return DT_FAIL(DT_MACHINE, dt_check_hint, "%s: %s is %s, must be %s", op, name,
                       dt_dtype_name(view->dtype), dt_dtype_name(type));
    return DT_OK;
}

dt_status dt_check_apart(const char *op, const char *a_name, const void *a, const char *b_name,
                         const void *b)
{
    if (a != b || !a)
        return DT_OK;
    return DT_FAIL(DT_MACHINE, dt_check_hint, "%s: %s must not be %s itself", op, a_name, b_name);
}

dt_status dt_check_workspace(const char *op, int64_t needed, const void *workspace, int64_t bytes)
{
    if (needed <= 0 || (workspace && bytes >= needed))
        return DT_OK;
    if (!workspace)
        return DT_FAIL(DT_MACHINE, dt_check_hint, "%s: workspace is NULL, %lld bytes are needed",
                       op, (long long)needed);
    return DT_FAIL(DT_MACHINE, dt_check_hint, "%s: workspace_bytes is %lld, %lld are needed", op,
                   (long long)bytes, (long long)needed);
}

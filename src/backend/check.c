// Words the error about an argument that violates its row (op_rows.h).
#include "backend/check.h"

#include "backend/op_rows.h"

static const char hint[] = "a bug in the caller: see the op's header in kernels/";

static const char *type_name(enum dt_dtype type)
{
    return dt_dtype_name((unsigned)type < DT_DTYPE_COUNT ? type : DT_DTYPE_COUNT);
}

static dt_status refuse_array(const char *op, const struct dt_op_row *row)
{
    const char *name = row->field.name;
    const struct dt_view *view = &row->field.view;
    switch (dt_array_fault(row)) {
    case DT_ROW_NULL:
        return DT_FAIL(DT_MACHINE, hint, "%s: %s is NULL", op, name);
    case DT_ROW_NOT_NULL:
        return DT_FAIL(DT_MACHINE, hint, "%s: %s must be NULL, it has no rows", op, name);
    case DT_ROW_SHAPE:
        return DT_FAIL(DT_MACHINE, hint, "%s: %s is [%lld, %lld], must be [%lld, %lld]", op, name,
                       (long long)view->rows, (long long)view->cols, (long long)row->rows,
                       (long long)row->cols);
    case DT_ROW_STRIDE:
        return DT_FAIL(DT_MACHINE, hint, "%s: %s.stride is %lld, not in %lld … %lld", op, name,
                       (long long)view->stride, (long long)row->cols,
                       (long long)DT_STRIDE_MAX(row->type));
    default:
        return DT_FAIL(DT_MACHINE, hint, "%s: %s is %s, must be %s", op, name,
                       type_name(view->dtype), dt_dtype_name(row->type));
    }
}

static dt_status refuse_row(void *op_name, const struct dt_op_row *row)
{
    const char *op = op_name, *name = row->field.name;
    const struct dt_view *view = &row->field.view, *twin = &row->other.view;
    switch (row->kind) {
    case DT_ROW_RANGE:
        return DT_FAIL(DT_MACHINE, hint, "%s: %s is %lld, not in %lld … %lld", op, name,
                       (long long)row->value, (long long)row->least, (long long)row->most);
    case DT_ROW_LENGTH:
        return DT_FAIL(DT_MACHINE, "train on shorter sequences: data.seq_len",
                       "%s: %s is %lld, at most %lld tokens of %s", op, name, (long long)row->value,
                       (long long)row->most, dt_dtype_name(row->type));
    case DT_ROW_MULTIPLE:
        return DT_FAIL(DT_MACHINE, hint, "%s: %s is %lld, not a multiple of %s = %lld", op, name,
                       (long long)row->value, row->other.name, (long long)row->least);
    case DT_ROW_NUMBER:
        return DT_FAIL(DT_MACHINE, hint, "%s: %s is %g, not in [%g, %g)", op, name, row->number,
                       row->from, row->below);
    case DT_ROW_TYPE:
        return DT_FAIL(DT_MACHINE, hint, "%s: %s is %s (%d), neither fp32 nor %s", op, name,
                       type_name(row->type), (int)row->type,
                       row->also == DT_F32 ? "bf16" : dt_dtype_name(row->also));
    case DT_ROW_ARRAY:
        return refuse_array(op, row);
    case DT_ROW_APART:
        return DT_FAIL(DT_MACHINE, hint, "%s: %s must not be %s itself", op, name, row->other.name);
    case DT_ROW_IN_PLACE:
        return DT_FAIL(DT_MACHINE, hint,
                       "%s: %s is %s itself, but the dtypes are %s and %s, the strides %lld and "
                       "%lld",
                       op, name, row->other.name, dt_dtype_name(view->dtype),
                       dt_dtype_name(twin->dtype), (long long)view->stride,
                       (long long)twin->stride);
    }
    return DT_OK;
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

#define CHECK_BEGIN(name)                                                                          \
    dt_status dt_check_##name(const struct dt_backend *backend,                                    \
                              const struct dt_##name##_args *args)                                 \
    {                                                                                              \
        static char op[] = #name;                                                                  \
        if (!args)                                                                                 \
            return DT_FAIL(DT_MACHINE, hint, "%s: args is NULL", op);                              \
        DT_TRY(dt_visit_faults_##name(backend, args, refuse_row, op));
#define CHECK(name)                                                                                \
    CHECK_BEGIN(name) return DT_OK;                                                                \
    }
#define CHECK_WORKSPACE(name)                                                                      \
    CHECK_BEGIN(name)                                                                              \
    return check_workspace(op, dt_##name##_workspace(backend, args), args->workspace,              \
                           args->workspace_bytes);                                                 \
    }
DT_OPS_BY_WORKSPACE(CHECK_WORKSPACE, CHECK)

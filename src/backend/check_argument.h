// What the check functions (check_*.c) share. Each reads as the list of its op's demands: the
// macros turn a field into its name and value.
#pragma once

#include "backend/check.h"

extern const char dt_check_hint[];

// Larger sizes are garbage; products of two of them still fit into 64 bits.
#define DT_CHECK_SIZE  ((int64_t)1 << 31)
#define DT_CHECK_COUNT ((int64_t)1 << 48)

dt_status dt_check_range(const char *op, const char *name, int64_t value, int64_t low,
                         int64_t high);
dt_status dt_check_stride(const char *op, const char *name, int64_t stride, const char *width_name,
                          int64_t width);
dt_status dt_check_pointer(const char *op, const char *name, const void *pointer);
dt_status dt_check_storage(const char *op, const char *name, dt_dtype type);
dt_status dt_check_number(const char *op, const char *name, double value, double low, double below);
// A view of `rows` rows and `cols` columns of `type`, all of which the caller has checked.
dt_status dt_check_view(const char *op, const char *name, const struct dt_view *view, int64_t rows,
                        int64_t cols, dt_dtype type);
dt_status dt_check_apart(const char *op, const char *a_name, const void *a, const char *b_name,
                         const void *b);
dt_status dt_check_workspace(const char *op, int64_t needed, const void *workspace, int64_t bytes);

// In the check functions: `args` is the struct, `op` the name.
#define RANGE(field, low, high) DT_TRY(dt_check_range(op, #field, args->field, low, high))
#define SIZE(field)             RANGE(field, 1, DT_CHECK_SIZE)
#define COUNT(field)            RANGE(field, 0, DT_CHECK_COUNT)
#define STRIDE(field, width)    DT_TRY(dt_check_stride(op, #field, args->field, #width, args->width))
#define VIEW(field, rows, cols, type)                                                              \
    DT_TRY(dt_check_view(op, #field, &args->field, rows, cols, type))
#define POINTER(field) DT_TRY(dt_check_pointer(op, #field, args->field))
#define STORAGE(field) DT_TRY(dt_check_storage(op, #field, args->field))
#define NUMBER(field, low, below)                                                                  \
    DT_TRY(dt_check_number(op, #field, (double)args->field, low, below))
#define APART(a, b) DT_TRY(dt_check_apart(op, #a, args->a, #b, args->b))
#define WORKSPACE(name)                                                                            \
    DT_TRY(dt_check_workspace(                                                                     \
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
        DT_TRY(dt_check_pointer(#name, "args", args));                                             \
        return check_##name(#name, backend, args);                                                 \
    }                                                                                              \
    static dt_status check_##name(UNUSED const char *op, UNUSED const struct dt_backend *backend,  \
                                  UNUSED const struct dt_##name##_args *args)

// Gives all ops one signature, for tests that loop over the ops: dt_NAME, dt_visit_NAME and
// dt_NAME_workspace by the op's index.
#pragma once

#include "backend/op_rows.h"

enum op_index {
#define OP_INDEX(op) OP_##op,
    DT_OPS(OP_INDEX)
#undef OP_INDEX
        N_OPS
};

enum { ARGS_MOST = 4096, FIELDS_MOST = 64 }; // bytes of an args struct; rows of an op

struct op_form {
    const char *name;
    size_t size; // of the args
    size_t workspace_at, workspace_bytes_at;
    bool has_workspace;
    dt_status (*run)(const struct dt_backend *backend, const void *args, struct dt_stream *stream);
    dt_status (*visit)(const struct dt_backend *backend, const void *args, dt_row_visitor visit,
                       void *context);
    int64_t (*workspace)(const struct dt_backend *backend, const void *args);
};

#define OP_FORM(op)                                                                                \
    static dt_status op_run_##op(const struct dt_backend *backend, const void *args,               \
                                 struct dt_stream *stream)                                         \
    {                                                                                              \
        return dt_##op(backend, args, stream);                                                     \
    }                                                                                              \
    static dt_status op_visit_##op(const struct dt_backend *backend, const void *args,             \
                                   dt_row_visitor visit, void *context)                            \
    {                                                                                              \
        return dt_visit_##op(backend, args, visit, context);                                       \
    }                                                                                              \
    static int64_t op_workspace_##op(const struct dt_backend *backend, const void *args)           \
    {                                                                                              \
        return dt_##op##_workspace(backend, args);                                                 \
    }                                                                                              \
    _Static_assert(sizeof(struct dt_##op##_args) <= ARGS_MOST, "a larger ARGS_MOST is needed");
DT_OPS(OP_FORM)
#undef OP_FORM

static const struct op_form op_forms[N_OPS] = {
#define OP_ROW(op, ...)                                                                            \
    [OP_##op] = {.name = #op,                                                                      \
                 .size = sizeof(struct dt_##op##_args),                                            \
                 .run = op_run_##op,                                                               \
                 .visit = op_visit_##op,                                                           \
                 .workspace = op_workspace_##op,                                                   \
                 __VA_ARGS__},
#define OP_ROW_WITH_WORKSPACE(op)                                                                  \
    OP_ROW(op, .has_workspace = true, .workspace_at = offsetof(struct dt_##op##_args, workspace),  \
           .workspace_bytes_at = offsetof(struct dt_##op##_args, workspace_bytes))
    DT_OPS_BY_WORKSPACE(OP_ROW_WITH_WORKSPACE, OP_ROW)
#undef OP_ROW
#undef OP_ROW_WITH_WORKSPACE
};

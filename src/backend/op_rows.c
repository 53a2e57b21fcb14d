// Generates a function from the rows of each op. A row that defines a name becomes a constant; the
// visitor sees every row except LET and DEMAND.
#include "backend/op_rows.h"

#include "base/round.h"

#include <float.h>
#include <math.h>

// The roles as written in rows.
enum {
    UNUSED = 0,
    IN = DT_ROLE_IN,
    OUT = DT_ROLE_OUT,
    ADD = DT_ROLE_IN | DT_ROLE_OUT,
    OR_NULL = DT_ROLE_OR_NULL,
    CACHED = DT_ROLE_CACHED,
};
#define SUM           (a->accumulate ? ADD : OUT)
#define NEED(when)    ((when) ? 0 : OR_NULL)
#define BYTES(object) ((int64_t)sizeof(object))

#define INLINE static inline __attribute__((always_inline))

INLINE struct dt_view view_of(const void *field, bool is_view, int64_t rows, int64_t cols,
                              enum dt_dtype type)
{
    struct dt_view view;
    void *pointer;
    if (is_view) {
        memcpy(&view, field, sizeof view);
        return view;
    }
    memcpy(&pointer, field, sizeof pointer);
    return dt_view_of(pointer, rows, cols, type);
}

#define IS_VIEW(member) _Generic(&a->member, const struct dt_view * : true, default : false)
#define FIELD(member)                                                                              \
    {                                                                                              \
        .name = #member, .at = offsetof(args_of, member), .bytes = sizeof a->member                \
    }
#define ARRAY_FIELD(member, n_rows, n_cols, dtype)                                                 \
    {                                                                                              \
        .name = #member, .at = offsetof(args_of, member), .bytes = sizeof a->member,               \
        .is_view = IS_VIEW(member),                                                                \
        .view = view_of(&a->member, IS_VIEW(member), n_rows, n_cols, dtype)                        \
    }
// The row is written twice, so that the first copy, which no visitor sees, never reaches memory.
#define VISIT(of, ...)                                                                             \
    if (!faults_only || dt_row_fault(&(struct dt_op_row){.kind = of, __VA_ARGS__}))                \
        DT_TRY(visit(context, &(struct dt_op_row){.kind = of, __VA_ARGS__}));

#define LET(constant, of) const int64_t constant __attribute__((unused)) = (of);
#define LIMIT(constant, of, low, high)                                                             \
    LET(constant, of)                                                                              \
    VISIT(DT_ROW_RANGE, .field = {.name = #constant " = " #of}, .value = constant, .least = low,   \
          .most = high)
#define RANGE(constant, member, low, high)                                                         \
    LET(constant, (int64_t)a->member)                                                              \
    VISIT(DT_ROW_RANGE, .field = FIELD(member), .value = constant, .least = low, .most = high)
#define SIZE(constant, member)  RANGE(constant, member, 1, DT_SIZE_MAX)
#define COUNT(constant, member) RANGE(constant, member, 0, DT_COUNT_MAX)
#define LENGTH(member, dtype)   /* kernels count the bytes of a column in 31 bits */               \
    VISIT(DT_ROW_LENGTH, .field = FIELD(member), .value = a->member, .least = 1,                   \
          .most = INT32_MAX / dt_dtype_size(dtype), .type = dtype)
#define MULTIPLE(member, of)                                                                       \
    VISIT(DT_ROW_MULTIPLE, .field = FIELD(member), .value = a->member, .least = of,                \
          .other.name = #of)
#define NUMBER(member, low, limit)                                                                 \
    VISIT(DT_ROW_NUMBER, .field = FIELD(member), .number = (double)a->member, .from = low,         \
          .below = limit)
#define TYPE(constant, member, or)                                                                 \
    const enum dt_dtype constant __attribute__((unused)) = a->member;                              \
    VISIT(DT_ROW_TYPE, .field = FIELD(member), .type = constant, .also = or)
#define STORAGE(constant, member) TYPE(constant, member, DT_F32)
#define APART(member, twin)                                                                        \
    VISIT(DT_ROW_APART, .field = ARRAY_FIELD(member, 0, 0, DT_F32),                                \
          .other = ARRAY_FIELD(twin, 0, 0, DT_F32))
#define IN_PLACE(member, twin)                                                                     \
    VISIT(DT_ROW_IN_PLACE, .field = ARRAY_FIELD(member, 0, 0, DT_F32),                             \
          .other = ARRAY_FIELD(twin, 0, 0, DT_F32))
#define DEMAND(condition, format, ...)                                                             \
    if (!(condition))                                                                              \
        return DT_FAIL(DT_MACHINE, "a bug in the caller: see the op's header in kernels/",         \
                       "%s: " format, op, __VA_ARGS__);
#define OUTPUTS(n_cols, n_targets)                                                                 \
    DT_TRY(visit_outputs(a, a->outputs, a->n, n_cols, n_targets, visit, context, faults_only));

#define ONE(joined, n_rows, n_cols, dtype, member)                                                 \
    VISIT(DT_ROW_ARRAY, .field = ARRAY_FIELD(member, n_rows, n_cols, dtype), .role = joined,       \
          .rows = n_rows, .cols = n_cols, .type = dtype)
#define TWO(role, rows, cols, dtype, x, y)                                                         \
    ONE(role, rows, cols, dtype, x) ONE(role, rows, cols, dtype, y)
#define THREE(role, rows, cols, dtype, x, y, z)                                                    \
    TWO(role, rows, cols, dtype, x, y) ONE(role, rows, cols, dtype, z)
#define FOURTH(x, y, z, macro, ...) macro
#define ARRAY(role, rows, cols, dtype, ...)                                                        \
    FOURTH(__VA_ARGS__, THREE, TWO, ONE, )(role, rows, cols, dtype, __VA_ARGS__)

// Visits the slices of a policy's logits and targets in `args`.
INLINE dt_status visit_outputs(const void *args, const struct dt_output_slice *outputs, int64_t n,
                               int64_t cols, int64_t target_cols, dt_row_visitor visit,
                               void *context, bool faults_only)
{
    for (int64_t k = 0, from = 0; k < n; k++) {
        const struct dt_output_slice *o = &outputs[k];
        bool one = o->kind == DT_OUTPUT_CATEGORICAL;
        int64_t width = dt_output_width(o), parts = o->kind == DT_OUTPUT_GMM ? DT_OUTPUT_COMPONENTS
                                                    : o->kind == DT_OUTPUT_QUANTILE
                                                        ? DT_OUTPUT_LEVELS
                                                        : 1;
#define OF(kind_, member, ...)                                                                     \
    VISIT(kind_,                                                                                   \
          .field = {.name = "outputs." #member,                                                    \
                    .at = (size_t)((const char *)&o->member - (const char *)args),                 \
                    .bytes = sizeof o->member},                                                    \
          __VA_ARGS__)
#define RANGE_OF(member, low, high)                                                                \
    OF(DT_ROW_RANGE, member, .value = (int64_t)o->member, .least = low, .most = high)
#define NUMBER_OF(member, limit)                                                                   \
    OF(DT_ROW_NUMBER, member, .number = (double)o->member, .below = limit)
        RANGE_OF(kind, 0, DT_OUTPUT_QUANTILE)
        RANGE_OF(first, from, cols - 1)
        RANGE_OF(width, 1, cols - o->first)
        RANGE_OF(columns, 1, one ? 1 : target_cols)
        RANGE_OF(parts, 1, parts)
        RANGE_OF(median, 0, o->parts - 1)
        if (!one)
            RANGE_OF(width, width, width)
        RANGE_OF(target, 0, target_cols - o->columns)
        NUMBER_OF(weight, HUGE_VAL)
        NUMBER_OF(smoothing, 1.0)
        for (int j = 0; j < o->parts && o->kind == DT_OUTPUT_QUANTILE; j++)
            NUMBER_OF(levels[j], 1.0)
        from = o->first + o->width;
    }
    return DT_OK;
}

#define ROWS(name)                                                                                 \
    INLINE dt_status rows_of_##name(__attribute__((unused)) const struct dt_backend *backend,      \
                                    const struct dt_##name##_args *a, dt_row_visitor visit,        \
                                    void *context, const bool faults_only)                         \
    {                                                                                              \
        typedef struct dt_##name##_args args_of;                                                   \
        static const char op[] __attribute__((unused)) = #name;                                    \
        DT_ROWS_##name return DT_OK;                                                               \
    }                                                                                              \
    dt_status dt_visit_##name(const struct dt_backend *backend, const struct dt_##name##_args *a,  \
                              dt_row_visitor visit, void *context)                                 \
    {                                                                                              \
        return rows_of_##name(backend, a, visit, context, false);                                  \
    }                                                                                              \
    dt_status dt_visit_faults_##name(const struct dt_backend *backend,                             \
                                     const struct dt_##name##_args *a, dt_row_visitor visit,       \
                                     void *context)                                                \
    {                                                                                              \
        return rows_of_##name(backend, a, visit, context, true);                                   \
    }
DT_OPS(ROWS)

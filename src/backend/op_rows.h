// The rows of an op (kernels/ops.h) with the values of one call. A visitor sees them one after
// another: the argument checks (check.c), the bytes of a call (cost.c), tests/parity and the tests
// of wrong arguments are visitors.
#pragma once

#include "backend/backend.h"

// Kernels keep the bytes between rows in 32 bits.
#define DT_STRIDE_MAX(dtype) (UINT32_MAX / dt_dtype_size(dtype))

enum dt_row_kind {
    DT_ROW_RANGE,    // a whole number in [least, most]
    DT_ROW_LENGTH,   // a whole number in [least, most]: tokens of a sequence
    DT_ROW_MULTIPLE, // a whole number that `least` divides
    DT_ROW_NUMBER,   // a number in [from, below)
    DT_ROW_TYPE,     // fp32, bf16 or `also`
    DT_ROW_ARRAY,
    DT_ROW_APART,    // not the array of the field `other`
    DT_ROW_IN_PLACE, // if it is that array, then with its dtype and stride
};

// What an op does with an array; roles may be joined.
enum dt_row_role { DT_ROLE_IN = 1, DT_ROLE_OUT = 2, DT_ROLE_OR_NULL = 4, DT_ROLE_CACHED = 8 };

struct dt_op_field {
    const char *name; // "in.u"
    size_t at, bytes; // in the args; bytes 0: derived from fields
    bool is_view;
    struct dt_view view; // the array as passed; a pointer gives a dense view
};

struct dt_op_row {
    enum dt_row_kind kind;
    struct dt_op_field field, other;
    int64_t value, least, most;
    double number, from, below;
    enum dt_dtype type, also;
    int role;
    int64_t rows, cols; // required shape of an array, with `type` as its dtype
};

// Ways in which a call's args can violate a row. All but DT_ROW_VALUE concern arrays.
enum dt_row_fault {
    DT_ROW_FITS,
    DT_ROW_VALUE,
    DT_ROW_NULL,
    DT_ROW_NOT_NULL,
    DT_ROW_SHAPE,
    DT_ROW_STRIDE,
    DT_ROW_DTYPE,
};

// Inline, so that a literal row compiles to its comparisons only.
static inline __attribute__((always_inline)) enum dt_row_fault
dt_array_fault(const struct dt_op_row *row)
{
    const struct dt_view *view = &row->field.view;
    bool wanted = row->cols > 0 && !(row->role & DT_ROLE_OR_NULL);
    if (!row->role || (!view->data && !wanted))
        return DT_ROW_FITS;
    if (!view->data)
        return DT_ROW_NULL;
    if (row->rows == 0)
        return DT_ROW_NOT_NULL;
    if (view->rows != row->rows || view->cols != row->cols)
        return DT_ROW_SHAPE;
    if (row->field.is_view && (view->stride < row->cols || view->stride > DT_STRIDE_MAX(row->type)))
        return DT_ROW_STRIDE;
    return view->dtype == row->type ? DT_ROW_FITS : DT_ROW_DTYPE;
}

static inline __attribute__((always_inline)) enum dt_row_fault
dt_row_fault(const struct dt_op_row *row)
{
    const struct dt_view *view = &row->field.view, *twin = &row->other.view;
    bool fits = false;
    switch (row->kind) {
    case DT_ROW_RANGE:
        fits = row->value >= row->least && row->value <= row->most;
        break;
    case DT_ROW_LENGTH:
        fits = row->value <= row->most;
        break;
    case DT_ROW_MULTIPLE:
        fits = row->value % row->least == 0;
        break;
    case DT_ROW_NUMBER:
        fits = row->number >= row->from && row->number < row->below;
        break;
    case DT_ROW_TYPE:
        fits = row->type == DT_F32 || row->type == DT_BF16 || row->type == row->also;
        break;
    case DT_ROW_ARRAY:
        return dt_array_fault(row);
    case DT_ROW_APART:
        fits = view->data != twin->data || !view->data;
        break;
    case DT_ROW_IN_PLACE:
        fits = view->data != twin->data ||
               (view->dtype == twin->dtype && view->stride == twin->stride);
        break;
    }
    return fits ? DT_ROW_FITS : DT_ROW_VALUE;
}

typedef dt_status (*dt_row_visitor)(void *context, const struct dt_op_row *row);

// dt_visit_NAME visits every row of a call; dt_visit_faults_NAME only rows with a fault, at the
// cost of a few comparisons if there is none. Both stop at the first row for which `visit` fails,
// or at the first DEMAND that is not met. Pointers in args are compared with NULL, but not
// followed.
#define DT_OP_ROWS(op)                                                                             \
    dt_status dt_visit_##op(const struct dt_backend *backend, const struct dt_##op##_args *a,      \
                            dt_row_visitor visit, void *context);                                  \
    dt_status dt_visit_faults_##op(const struct dt_backend *backend,                               \
                                   const struct dt_##op##_args *a, dt_row_visitor visit,           \
                                   void *context);
DT_OPS(DT_OP_ROWS)
#undef DT_OP_ROWS

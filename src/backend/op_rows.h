// The rows of an op (kernels/ops.h says how to read them) with the values that they have in one
// call: a visitor sees one after another. The argument checks (check.c), the bytes of a call
// (cost.c), tests/parity and the tests of wrong arguments are such visitors.
#pragma once

#include "backend/backend.h"

enum dt_row_kind {
    DT_ROW_RANGE,    // a whole number in [least, most]
    DT_ROW_LENGTH,   // the same, of the tokens of a sequence
    DT_ROW_MULTIPLE, // a whole number that `least` divides
    DT_ROW_NUMBER,   // a number in [from, below)
    DT_ROW_TYPE,     // fp32, bf16 or `also`
    DT_ROW_ARRAY,
    DT_ROW_APART,    // not the array of the field `other`
    DT_ROW_IN_PLACE, // the same dtype and stride where it is
};

// Of an array; they may be joined.
enum dt_row_role { DT_ROLE_IN = 1, DT_ROLE_OUT = 2, DT_ROLE_OR_NULL = 4, DT_ROLE_CACHED = 8 };

struct dt_op_field {
    const char *name; // "in.u"
    size_t at, bytes; // in the args; bytes 0: no field, but what follows from some
    bool is_view;
    struct dt_view view; // of an array, as it is given; that of a pointer is dense
};

struct dt_op_row {
    enum dt_row_kind kind;
    struct dt_op_field field, other;
    int64_t value, least, most;
    double number, from, below;
    enum dt_dtype type, also;
    int role;
    int64_t rows, cols; // that an array must have, as it must have the dtype `type`
};

typedef dt_status (*dt_row_visitor)(void *context, const struct dt_op_row *row);

// dt_visit_NAME: ends with the first row that `visit` fails at, or where a demand that is no row is
// not met. Of the pointers in args only NULL or not matters; none is followed.
#define DT_OP_ROWS(op)                                                                             \
    dt_status dt_visit_##op(const struct dt_backend *backend, const struct dt_##op##_args *a,      \
                            dt_row_visitor visit, void *context);
DT_OPS(DT_OP_ROWS)
#undef DT_OP_ROWS

// Checks the arguments of every op against its rows (op_rows.h), and its workspace, before a
// backend sees them. Data on the device (ids, labels, spans) is not checked.
#pragma once

#include "backend/backend.h"

// A violation is DT_MACHINE and names op, argument and value.
#define DT_OP_CHECK(op)                                                                            \
    dt_status dt_check_##op(const struct dt_backend *backend, const struct dt_##op##_args *args);
DT_OPS(DT_OP_CHECK)
#undef DT_OP_CHECK

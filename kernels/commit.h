// Keeps a step's results for the next step, unless the step was skipped, which only the device
// knows:
//   to_i = from_i      if control->skip is 0; otherwise `to` is unchanged
// The bytes may be of any type, such as the recurrent state of a sequence.
#pragma once

#include "kernels/update_control.h"

enum { DT_COMMIT_UNIT = 16 };

struct dt_commit_args {
    int64_t bytes;
    const void *from; // aligned to DT_COMMIT_UNIT, as `to` is
    void *to;
    const struct dt_update_control *control; // of this step, on the device
};

// clang-format off
#define DT_ROWS_commit                                        \
    COUNT(n, bytes)                                           \
    MULTIPLE(bytes, DT_COMMIT_UNIT)                           \
    ARRAY(IN,          1, n,                  DT_U8, from)    \
    ARRAY(OUT,         1, n,                  DT_U8, to)      \
    ARRAY(IN | CACHED, 1, BYTES(*a->control), DT_U8, control) \
    APART(to, from)
// clang-format on

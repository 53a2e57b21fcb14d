// What a step leaves for the next one, unless the step was skipped, which the device alone knows:
//   to_i = from_i      where control->skip is 0; else `to` stays as it is
// Bytes of any types, such as the recurrent state of a sequence.
#pragma once

#include "kernels/update_control.h"

#include <stdint.h>

enum { DT_COMMIT_UNIT = 16 };

struct dt_commit_args {
    int64_t bytes;                           // a multiple of DT_COMMIT_UNIT
    const void *from;                        // [bytes], in; aligned to DT_COMMIT_UNIT, as `to` is
    void *to;                                // [bytes], =; not `from`
    const struct dt_update_control *control; // one on the device, in: of this step
};

// Kernels with planted bugs, and correct ones that use the whole model; each returns the status of
// DT_LAUNCHED.
#pragma once

#include "base/error.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct planted_bug {
    const char *says; // a part of the message
    const char *name;
    dt_status (*launch)(void);
};
extern const struct planted_bug planted_bugs[]; // ends with a row without a name

// A kernel that uses 64 KB of dynamic shared memory, and the answer of dt_allow_shared for it.
dt_status use_much_shared(void);
int allow_much_shared(int64_t bytes);
// out[i] = in[127 - i], i < 128, through shared memory, with or without the barrier between.
dt_status reverse_block(const float *in, float *out, int with_barrier);
// The same with asynchronous copies, with or without a wait.
dt_status copy_block(const float *in, float *out, int with_wait);
// out[i] = i for i < 2·3·2 blocks of 4·3·2 threads.
dt_status count_threads(int32_t *out);
// out[5][64]: the results of shuffles from lane + 1, lane - 1, lane ^ 5 and lane 3, and of the
// ballot of odd lanes.
dt_status use_shuffles(int32_t *out);
// Over one block of 256: sum[0] of in[n] by dt_block_sum, sum[1] of 2 in[n] by another call right
// after it, max[0] by dt_block_max.
dt_status reduce_block(const float *in, int64_t n, float *sum, float *max);

#ifdef __cplusplus
}
#endif

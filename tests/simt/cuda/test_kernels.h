// Small kernels for the tests of the simulated CUDA runtime; each returns what DT_LAUNCHED said.
#pragma once

#include "base/error.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

dt_status add(float *x, float y, int64_t n, void *stream);   // x[n] += y
dt_status scale(float *x, float y, int64_t n, void *stream); // x[n] *= y
dt_status part_at_barrier(void *stream);                     // a kernel that fails on the device
dt_status launch_too_wide(void *stream);                     // one that no device takes

#ifdef __cplusplus
}
#endif

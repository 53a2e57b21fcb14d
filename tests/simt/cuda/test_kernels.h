// Small kernels for tests of the simulated CUDA runtime. Each returns the status of DT_LAUNCHED.
#pragma once

#include "base/error.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

dt_status add(float *x, float y, int64_t n, void *stream);   // x[n] += y
dt_status scale(float *x, float y, int64_t n, void *stream); // x[n] *= y
dt_status part_at_barrier(void *stream);                     // fails on the device
dt_status launch_too_wide(void *stream);                     // no device can launch it

#ifdef __cplusplus
}
#endif

// A mark in a stream records when, and how often, the device reached it. The host learns from it,
// without waiting, how long the device worked and waited; the watchdog learns how far collectives
// got. It works in graphs too.
//   *time = the device's clock, in ns;   *count += 1
// The clock belongs to a device and its zero is arbitrary, so compare only stamps of one device.
// Its resolution may be as coarse as 1 us.
#pragma once

#include <stdint.h>

struct dt_stamp_args {
    uint64_t *time; // or NULL
    int64_t *count; // or NULL: device memory or pinned host memory, no other writer
};

// clang-format off
#define DT_ROWS_stamp                         \
    ARRAY(OUT | OR_NULL, 1, 1, DT_U64, time)  \
    ARRAY(ADD | OR_NULL, 1, 1, DT_I64, count)
// clang-format on

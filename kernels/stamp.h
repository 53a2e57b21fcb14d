// A mark in a stream: when the device reached it, and how often. From it the host learns, without
// waiting, how long the device worked and waited, and the watchdog how far collectives got; in
// graphs too.
//   *time = the device's clock, in ns;   *count += 1
// One clock a device, so differences between stamps of one device mean something, its zero does
// not. Steps of it may be as coarse as 1 us.
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

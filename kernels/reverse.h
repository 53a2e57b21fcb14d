// Reverses documents, for layers that read a sequence from its end. The M rows are sequences of L.
//   reverse_map:   map[b, t] = s + e - 1 - t      for t in the document [s, e) of sequence b
//   reverse_rows:  y[b·L + t, :] (+)= x[b·L + map[b, t], :]
// A document starts at 0 and where reset is 1. The last one ends after the last row whose mask is
// 1; rows after that are padding and do not move: map[b, t] = t. Documents keep their places too,
// so the map is its own inverse: the gradient of reverse_rows is reverse_rows of dy.
#pragma once

#include "base/view.h"

#include <stdbool.h>
#include <stdint.h>

struct dt_reverse_map_args {
    int64_t batch, length; // B, L
    const uint8_t *reset;  // 0 or 1; NULL: none
    const uint8_t *mask;   // 0 or 1; NULL: no padding
    int32_t *map;
};

struct dt_reverse_rows_args {
    int64_t length;
    const int32_t *map;
    struct dt_view x, y;
    bool accumulate;
};

// clang-format off
#define DT_ROWS_reverse_map                               \
    SIZE(B, batch) RANGE(L, length, 1, INT32_MAX)         \
    ARRAY(IN | OR_NULL, B, L, DT_U8,  reset, mask)        \
    ARRAY(OUT,          B, L, DT_I32, map)
#define DT_ROWS_reverse_rows                              \
    SIZE(M, x.rows) SIZE(D, x.cols)                       \
    RANGE(L, length, 1, M)                                \
    MULTIPLE(x.rows, L)                                   \
    STORAGE(T, x.dtype)                                   \
    ARRAY(IN | CACHED, 1, M, DT_I32, map)                 \
    ARRAY(IN,          M, D, T,      x)                   \
    ARRAY(SUM,         M, D, T,      y)                   \
    APART(y, x)
// clang-format on

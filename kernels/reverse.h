// Reverses sequences, for layers that read them from their end. The M rows are sequences of L.
//   reverse_rows:    y[b, t, :] (+)= x[b, L - 1 - t, :]
//   reverse_resets:  y[b, t] = 1 where row t of the reversed sequence begins a document, else 0
// A document starts at 0 and where reset is 1. The last one ends after the last row whose mask is
// 1; rows after that are padding. So the reversed sequence begins with its padding, and its first
// document is the last one, read from its end. reverse_rows is its own inverse: the gradient of x
// is reverse_rows of dy.
//
// reverse_resets gives the part of the reversed sequence that is the reversal of rows [first,
// first + length) of whole sequences of `window` rows.
#pragma once

#include "base/view.h"

#include <stdbool.h>
#include <stdint.h>

struct dt_reverse_rows_args {
    int64_t length; // L
    struct dt_view x, y;
    bool accumulate;
};

struct dt_reverse_resets_args {
    int64_t batch, window, first, length; // B, W
    const uint8_t *reset;                 // 0 or 1; NULL: none
    const uint8_t *mask;                  // 0 or 1; NULL: no padding
    uint8_t *y;
};

// clang-format off
#define DT_ROWS_reverse_rows                              \
    SIZE(M, x.rows) SIZE(D, x.cols)                       \
    RANGE(L, length, 1, M)                                \
    MULTIPLE(x.rows, L)                                   \
    STORAGE(T, x.dtype)                                   \
    ARRAY(IN,          M, D, T,      x)                   \
    ARRAY(SUM,         M, D, T,      y)                   \
    APART(y, x)
#define DT_ROWS_reverse_resets                            \
    SIZE(B, batch) SIZE(W, window)                        \
    RANGE(F, first, 0, W - 1)                             \
    RANGE(L, length, 1, W - F)                            \
    ARRAY(IN | OR_NULL, B, W, DT_U8, reset, mask)         \
    ARRAY(OUT,          B, L, DT_U8, y)
// clang-format on

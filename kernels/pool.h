// Pools the hidden states of a window into one, and chooses the window's targets. The M rows are
// windows of L rows; a row counts if its mask is 1. A pool visits the rows that count in order, and
// keeps their number c and, for each column x, a value v:
//   mean:  c += 1,  v += (x - v) / c
//   last:  c += 1,  v = x
//   max:   c += 1,  v = x if c = 1, x > v or x is NaN, else v
//   forward:   out = v after the last row, rounded to storage
//   backward:  g = dout + dafter
//              dh (+)= of a row that counts: mean: g / c; last: g if it is the last one; max: g
//              where v was last set by it, which is the first of equal ones; else 0
//              dbefore = mean: g c_before / c; last, max: g where no row set v; else 0
// c and v start from 0, or from `before`, and are left in `after`, so that rows given one at a time
// end with the same bits.
//
// pool_targets: for each chosen output, copies the targets (and the output's weight) of the
// window's last row that counts and has a target, that is, one that is not NaN. The window's own
// weight, column 0, comes from the last of these rows. Without such a row, and for outputs that are
// not chosen, targets are NaN and weights 0. With L = 1 a window is a row.
#pragma once

#include "base/view.h"
#include "kernels/loss_sum.h"

#include <stdbool.h>
#include <stdint.h>

// An output reads the hidden state of every position (NONE), or one pooled from the whole window.
enum dt_pool { DT_POOL_NONE, DT_POOL_MEAN, DT_POOL_LAST, DT_POOL_MAX, DT_POOLS };

struct dt_pool_forward_args {
    enum dt_pool pool;
    int64_t length; // L
    struct dt_view h;
    const uint8_t *mask;                // 0 or 1; NULL: all count
    const float *before, *before_count; // v and c; NULL: zeros
    struct dt_view out;
    float *after, *after_count; // NULL: not wanted
};

struct dt_pool_backward_args {
    enum dt_pool pool;
    int64_t length;
    struct dt_view h; // as in forward
    const uint8_t *mask;
    const float *before, *before_count;
    struct dt_view dout; // data NULL: zeros
    const float *dafter; // gradient of v in `after`; NULL: zeros
    struct dt_view dh;
    float *dbefore; // NULL: not wanted
    bool first;     // dh =, else +=
};

struct dt_target_columns {
    int32_t first, n; // n 0: the output is not chosen
};
struct dt_pool_targets_args {
    int64_t n, length; // outputs; L
    struct dt_target_columns outputs[DT_OUTPUTS_MAX];
    struct dt_view targets;
    const uint8_t *mask;
    struct dt_view weights; // data NULL: none
    struct dt_view targets_out, weights_out;
};

// clang-format off
#define DT_POOL_INPUTS                                   \
    SIZE(M, h.rows) SIZE(D, h.cols)                      \
    RANGE(L, length, 1, M)                               \
    MULTIPLE(h.rows, L)                                  \
    LET(B, M / L)                                        \
    STORAGE(T, h.dtype)                                  \
    RANGE(kind, pool, DT_POOL_MEAN, DT_POOL_MAX)         \
    ARRAY(IN,                    M, D, T,     h)         \
    ARRAY(IN | CACHED | OR_NULL, 1, M, DT_U8, mask)
#define DT_ROWS_pool_forward                                           \
    DT_POOL_INPUTS                                                     \
    ARRAY(IN | OR_NULL,                  B, D, DT_F32, before)         \
    ARRAY(IN | CACHED | NEED(a->before), 1, B, DT_F32, before_count)   \
    ARRAY(OUT,                           B, D, T,      out)            \
    ARRAY(OUT | OR_NULL,                 B, D, DT_F32, after)          \
    ARRAY(OUT | CACHED | NEED(a->after), 1, B, DT_F32, after_count)
#define DT_ROWS_pool_backward                                          \
    DT_POOL_INPUTS                                                     \
    ARRAY(IN | OR_NULL,                  B, D, DT_F32, before)         \
    ARRAY(IN | CACHED | NEED(a->before), 1, B, DT_F32, before_count)   \
    ARRAY(IN | OR_NULL,                  B, D, T,      dout)           \
    ARRAY(IN | OR_NULL,                  B, D, DT_F32, dafter)         \
    ARRAY(a->first ? OUT : ADD,          M, D, T,      dh)             \
    ARRAY(OUT | OR_NULL,                 B, D, DT_F32, dbefore)        \
    APART(dbefore, dafter)
#define DT_ROWS_pool_targets                                                   \
    SIZE(M, targets.rows) SIZE(W, targets.cols)                                \
    RANGE(L, length, 1, M)                                                     \
    MULTIPLE(targets.rows, L)                                                  \
    LET(B, M / L)                                                              \
    RANGE(n, n, 1, DT_OUTPUTS_MAX)                                             \
    ARRAY(IN,                              M, W,     DT_F32, targets)          \
    ARRAY(IN | CACHED | OR_NULL,           1, M,     DT_U8,  mask)             \
    ARRAY(IN | OR_NULL,                    M, 1 + n, DT_F32, weights)          \
    ARRAY(OUT,                             B, W,     DT_F32, targets_out)      \
    ARRAY(OUT | NEED(a->weights.data),     B, 1 + n, DT_F32, weights_out)
// clang-format on

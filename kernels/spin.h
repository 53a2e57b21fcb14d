// Pure arithmetic at the device's full rate, with which the benchmark compares kernels. Each of n
// values stays in a register:
//   x = 1/2 + (i mod 4096) / 8192, then `rounds` times x = f(x);  y_i = x
//   exp:   f(x) = e^(-x)        converges to 0.5671…
//   exp2:  f(x) = 2^(-x)        converges to 0.6411…: the exponential of the scan's recurrence
//   fma:   f(x) = x · a + b     converges to b / (1 - a) where |a| < 1
// Every f is a contraction, so implementations that round differently stay within a few roundings
// of each other.
#pragma once

#include <stdint.h>

enum dt_spin_kind { DT_SPIN_EXP, DT_SPIN_EXP2, DT_SPIN_FMA };

// Starts differ, so that no compiler merges the values.
enum { DT_SPIN_STARTS = 4096 };

struct dt_spin_args {
    enum dt_spin_kind kind;
    int64_t n, rounds;
    float a, b; // for fma; arguments, so that no compiler folds the rounds
    float *y;
};

// clang-format off
#define DT_ROWS_spin                            \
    RANGE(kind, kind, DT_SPIN_EXP, DT_SPIN_FMA) \
    COUNT(n, n) COUNT(rounds, rounds)           \
    ARRAY(OUT, 1, n, DT_F32, y)
// clang-format on

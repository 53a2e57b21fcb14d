// Numbers as they are stored, normalised by their columns' means and deviations, in fp32:
//   y[r, i] = (x[r, i] - mean[i]) / deviation[i]      where keep[r], else 0
#pragma once

#include "base/view.h"

struct dt_normalize_args {
    struct dt_view x;              // [rows, cols] uint8 or fp32, in
    const float *mean, *deviation; // [cols] fp32, in
    const uint8_t *keep;           // [rows], in; NULL: all
    struct dt_view y;              // [rows, cols] storage, =
};

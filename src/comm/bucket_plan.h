// The plan of the gradient buckets (buckets.h): which elements of the arena travel together. Apart
// from devices and communicators.
#pragma once

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct dt_bucket_plan_config {
    const int64_t *row_ends; // [n_rows], ascending, in the order in which backward finishes them
    int64_t n_rows;
    int64_t bucket_bytes; // of fp32 gradient
    bool staged;          // buckets travel by copies on the host
};

struct dt_bucket_span {
    int64_t start, end; // elements
};

// *spans, malloc'ed: n of them, one after the other, none empty; those of a row that is larger than
// a bucket hold nothing else. Where staged, such a row is cut into equal pieces of at most a bucket
// or 4 KiB, whichever is larger, rounded up to 64 elements.
dt_status dt_bucket_plan(const struct dt_bucket_plan_config *config, struct dt_bucket_span **spans,
                         int64_t *n);

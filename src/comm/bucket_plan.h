// The plan of the gradient buckets (buckets.h): which elements of the arena are sent together. It
// depends on numbers alone, not on devices or communicators.
#pragma once

#include "base/error.h"
#include "base/ring.h"
#include "base/span.h"

#include <stdbool.h>

struct dt_bucket_plan_config {
    const int64_t *row_ends; // [n_rows], ascending, in the order in which backward finishes them
    int64_t n_rows;
    int64_t bucket_bytes; // of fp32 gradient
    bool staged;          // buckets travel by copies on the host
    int n_ranks;          // over which buckets are sharded; 0 or 1: they are not
    struct dt_ring ring;  // no bucket is in two of its units
};

// The bytes of a bucket where the user names none. Between devices G bytes of gradients in buckets
// of b take G/b starts of a collective, and at the end the links have one more bucket to send: the
// sum is least where b = sqrt(G · the bytes that could have been sent during a start), rounded down
// to 25 MB. That is 25 MB for 130 M parameters on 8 GPUs, 100 MB for 1.4 B. Through the host, whose
// copies and sums of one bucket overlap those of others, it stays at 25 MB.
int64_t dt_bucket_auto(int64_t elements, int n_ranks, bool between_devices);

// Gives n spans, one after the other and none empty, in *spans (malloc'ed). A row that is larger
// than a bucket shares no span with another. Where staged, such a row is cut into equal pieces of
// at most a bucket or 4 KiB, whichever is larger, rounded up to 64 elements.
//
// A sharded bucket holds the same number of norm blocks (kernels/sum_squares.h) for each rank: each
// cut above moves down to a multiple of n_ranks blocks. What is left after the last multiple, less
// than n_ranks blocks, is a bucket that is not sharded.
dt_status dt_bucket_plan(const struct dt_bucket_plan_config *config, struct dt_span **spans,
                         int64_t *n);
// Gives what a rank holds of the buckets: block `rank` of each sharded bucket, then all of the
// bucket that is not sharded. pieces->spans is malloc'ed.
dt_status dt_bucket_pieces(const struct dt_bucket_plan_config *config, int rank,
                           struct dt_pieces *pieces);
// How many of the arena's elements are sharded over n_ranks; the rest is held by all.
int64_t dt_bucket_sharded(int64_t elements, int n_ranks);

// Plans the gradient buckets (buckets.h): which elements of the arena are sent together. A pure
// function of numbers, without devices or communicators.
#pragma once

#include "base/error.h"
#include "base/ring.h"
#include "base/span.h"

#include <stdbool.h>

struct dt_bucket_plan_config {
    const int64_t *row_ends; // [n_rows], ascending, in the order in which backward finishes them
    int64_t n_rows;
    int64_t bucket_bytes; // of fp32 gradient
    bool staged;          // buckets are copied through the host
    int n_ranks;          // ranks over which buckets are sharded; 0 or 1: not sharded
    struct dt_ring ring;  // no bucket crosses a border of its units
};

// The default bucket size in bytes. Between devices, G bytes of gradients in buckets of b cost G/b
// starts of a collective plus the time to send the last bucket. The sum is smallest at b = sqrt(G ·
// bytes that could be sent during a start), here rounded down to 25 MB: 25 MB for 130 M parameters
// on 8 GPUs, 100 MB for 1.4 B. Through the host it is 25 MB, since copies and sums of buckets
// overlap.
int64_t dt_bucket_auto(int64_t elements, int n_ranks, bool between_devices);

// Returns n contiguous, non-empty spans in *spans (caller frees). A row larger than a bucket shares
// no span with other rows; if staged, it is cut into equal pieces of at most max(bucket, 4 KiB),
// rounded up to 64 elements.
//
// A sharded bucket has the same number of norm blocks (kernels/sum_squares.h) for each rank, so
// each cut moves down to a multiple of n_ranks blocks. The rest after the last multiple, less than
// n_ranks blocks, is a bucket that is not sharded.
dt_status dt_bucket_plan(const struct dt_bucket_plan_config *config, struct dt_span **spans,
                         int64_t *n);
// Returns a rank's pieces of the buckets: block `rank` of each sharded bucket, then the whole of
// the bucket that is not sharded. Caller frees pieces->spans.
dt_status dt_bucket_pieces(const struct dt_bucket_plan_config *config, int rank,
                           struct dt_pieces *pieces);
// How many of the arena's elements are sharded over n_ranks; all ranks hold the rest.
int64_t dt_bucket_sharded(int64_t elements, int n_ranks);

// Cuts the arena greedily: rows join the open bucket while they fit. A bucket has at most half of
// the remaining elements, so that buckets become smaller towards the end: a bucket waits for its
// last row, and buckets sent after backward overlap with nothing. For the same reason a model
// smaller than one bucket is cut too.
//
// The embedding is the last row. With a small vocabulary it is sent with a few other rows; if it is
// larger than a bucket, it is sent last and alone (130M: 154 of 516 MB, 0.73 ms at the 211 GB/s
// below, in a step of about 35 ms). comm.dtype = bf16 halves that. Alternatives between devices are
// no better:
//
// - With tied weights the head's part of its gradient is ready when backward begins. Sending that
//   part early leaves the embedding's part, which is as large: more bytes, no fewer at the end.
// - A row that is complete before the embedding must not join it: it would wait for it.
// - The weight gradients of layer 0 could be computed after it. The GEMM of in_proj would hide
//   0.13 ms, but its own 9 MB would then be sent last: a gain of 0.09 ms at 211 GB/s, none at 70.
// - Pieces would be slower, since one message fills the links.
//
// Rates are those of bytes summed. A GPU of 8 with NVLink sends at most 370 GB/s in a ring, where
// each byte passes it 2 · 7/8 times: 211 GB/s.
//
// Through pinned copies (staged) pieces are better: one is copied from the device while the one
// before it is summed and the one before that is copied back.
#include "comm/bucket_plan.h"

#include "base/memory.h"
#include "base/round.h"
#include "kernels/sum_squares.h"

#include <math.h>

enum { ALIGN = 64 };                              // elements
static const int64_t least_bytes = 1 << 20;       // sending smaller buckets early gains nothing
static const int64_t auto_unit = 25000000;        // buckets of `auto` are multiples of it
static const double start_s = 3e-6;               // start of a collective per doubling of ranks
static const double link_rate = 211e9;            // bytes/s
static const int64_t least_piece_bytes = 1 << 12; // lower limit for any bucket size

struct plan {
    const struct dt_bucket_plan_config *config;
    int64_t all, sharded;  // elements
    struct dt_span *spans; // NULL: only count
    int64_t n, end;        // end of the last span
};

static void add(struct plan *plan, int64_t end)
{
    if (end <= plan->end)
        return;
    if (plan->spans)
        plan->spans[plan->n] = (struct dt_span){plan->end, end};
    plan->n++;
    plan->end = end;
}

// Ends the open bucket at `end`, or a little earlier if sharded.
static void close_bucket(struct plan *plan, int64_t end)
{
    if (plan->sharded > 0)
        add(plan, dt_bucket_sharded(dt_min_i64(end, plan->sharded), plan->config->n_ranks));
    if (plan->config->n_ranks <= 1 || end == plan->all)
        add(plan, end);
}

// The most bytes of a bucket when `left` elements remain.
static int64_t limit(const struct plan *plan, int64_t left)
{
    int64_t most = plan->config->bucket_bytes, half = left * (int64_t)sizeof(float) / 2;
    return dt_min_i64(most, dt_max_i64(half, least_bytes));
}

static void cut(struct plan *plan)
{
    const int64_t *ends = plan->config->row_ends, rows = plan->config->n_rows;
    const struct dt_ring *ring = &plan->config->ring;
    int64_t all = plan->all, start = 0; // start of the open bucket
    for (int64_t row = 0, begin = 0, unit = 0; row < rows; begin = ends[row++]) {
        if (unit < ring->n && begin == ring->units[unit].end) {
            close_bucket(plan, begin);
            start = begin;
            unit++;
        }
        int64_t most = limit(plan, all - start) / (int64_t)sizeof(float);
        if (ends[row] - start <= most)
            continue;
        close_bucket(plan, begin);
        start = begin;
        if (ends[row] - start <= limit(plan, all - start) / (int64_t)sizeof(float))
            continue;
        int64_t piece =
            dt_max_i64(plan->config->bucket_bytes, least_piece_bytes) / (int64_t)sizeof(float);
        int64_t elements = ends[row] - start,
                n = plan->config->staged ? dt_ceil_div(elements, piece) : 1;
        int64_t each = n > 1 ? dt_round_up(dt_ceil_div(elements, n), ALIGN) : elements;
        for (; start < ends[row]; start += each)
            close_bucket(plan, dt_min_i64(start + each, ends[row]));
        start = ends[row];
    }
    close_bucket(plan, all);
}

int64_t dt_bucket_auto(int64_t elements, int n_ranks, bool between_devices)
{
    if (!between_devices || n_ranks < 2)
        return auto_unit;
    double start = start_s * log2(n_ranks) * link_rate; // bytes that links could send meanwhile
    int64_t best = (int64_t)sqrt((double)elements * sizeof(float) * start);
    return dt_max_i64(best / auto_unit, 1) * auto_unit;
}

int64_t dt_bucket_sharded(int64_t elements, int n_ranks)
{
    return n_ranks > 1 ? elements - elements % (n_ranks * (int64_t)DT_NORM_BLOCK) : 0;
}

dt_status dt_bucket_plan(const struct dt_bucket_plan_config *config, struct dt_span **spans,
                         int64_t *n)
{
    int64_t all = config->n_rows > 0 ? config->row_ends[config->n_rows - 1] : 0;
    struct plan plan = {
        .config = config, .all = all, .sharded = dt_bucket_sharded(all, config->n_ranks)};
    cut(&plan);
    DT_TRY(DT_NEW(&plan.spans, plan.n + 1, "%lld buckets", (long long)plan.n));
    plan.n = plan.end = 0;
    cut(&plan);
    *spans = plan.spans;
    *n = plan.n;
    return DT_OK;
}

dt_status dt_bucket_pieces(const struct dt_bucket_plan_config *config, int rank,
                           struct dt_pieces *pieces)
{
    struct dt_span *spans;
    int64_t n, n_ranks = config->n_ranks > 1 ? config->n_ranks : 1;
    DT_TRY(dt_bucket_plan(config, &spans, &n));
    int64_t all = n > 0 ? spans[n - 1].end : 0, sharded = dt_bucket_sharded(all, config->n_ranks);
    *pieces = (struct dt_pieces){.spans = spans};
    for (; pieces->n < n && spans[pieces->n].first < sharded; pieces->n++) {
        struct dt_span *span = &spans[pieces->n];
        int64_t count = (span->end - span->first) / n_ranks;
        *span = (struct dt_span){span->first + rank * count, span->first + (rank + 1) * count};
    }
    pieces->n_own = pieces->n;
    if (sharded < all)
        spans[pieces->n++] = (struct dt_span){sharded, all};
    pieces->elements = sharded / n_ranks + all - sharded;
    return DT_OK;
}

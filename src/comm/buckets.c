// Gradient buckets, in the order in which a step walks through them. A row becomes ready, and the
// bucket that it completes is sent. dt_buckets_wait brings the sums back. Each bucket is one part
// of a step's traffic, and the fp64 sums are the first part. Where the optimizer is sharded, more
// phases follow: the norms, which are one part, and the buckets of weights, those that a forward
// pass reads first before others. If these are bf16 copies, the fp32 weights beside them come
// before: as one packed array, zero but for this rank's own, whose bits are summed over ranks. A
// phase of its own gathers the masters, and another one the gradients, if they are gathered.
#include "comm/bucket_parts.h"

// ---- a step: ready and sent …

// With a ring the sums belong to some micro-batches only.
static bool lacks_sums(const struct dt_buckets *b)
{
    return !b->sums_sent && b->sums.first < b->sums.end && b->config.ring.n == 0;
}

// Devices that sum among themselves keep some multiprocessors for it: ops leave these free from the
// first part of a step that is sent to the wait for all of them. Both are fixed places in a
// step: what is in flight in between never changes a bit. Weights that are gathered do not count:
// after a checkpoint a step gathers none. Sums in the order DT_SUM_TREE give the same bits alone,
// where nothing is shared.
static void share(struct dt_buckets *b, bool on)
{
    if (b->device_comm && b->config.order == DT_SUM_FAST && b->backend.table->share)
        b->backend.table->share(b->backend.device, on);
}

dt_status dt_buckets_sums_ready(struct dt_buckets *b)
{
    if (b->sums.first == b->sums.end || b->sums_sent)
        return DT_FAIL(DT_MACHINE, NULL, "the sums of a step were announced %s",
                       b->sums_sent ? "twice" : "where there are none");
    b->sums_sent = true;
    share(b, true);
    return dt_part_send(b, b->sums.first);
}

// Sends in table order even where rows become ready in another: every rank must begin its
// collectives in the same order.
dt_status dt_buckets_ready(struct dt_buckets *b, int64_t row)
{
    bool exists = row >= 0 && row < b->config.n_rows;
    if (!exists || b->rows[row].ready)
        return DT_FAIL(DT_MACHINE, NULL, "gradient row %lld of %lld %s", (long long)row,
                       (long long)b->config.n_rows,
                       exists ? "was announced twice in a step" : "does not exist");
    if (lacks_sums(b))
        return DT_FAIL(DT_MACHINE, NULL, "gradient row %lld was announced before the step's sums",
                       (long long)row);
    b->rows[row].ready = true;
    for (int64_t i = b->rows[row].first; i < b->rows[row].end; i++)
        b->parts[i].missing--;
    while (b->next < b->gradients.end && b->parts[b->next].missing == 0) {
        share(b, true);
        DT_TRY(dt_part_send(b, b->next++));
    }
    return b->alone ? DT_OK : dt_parts_post(b, false);
}

void dt_buckets_add(struct dt_buckets *b, bool adds)
{
    b->adds = adds;
}

// The tail of a unit becomes what the next one's slot begins with.
static dt_status copy_tail(struct dt_buckets *b, const struct dt_unit *from,
                           const struct dt_unit *to, int64_t first, int64_t end)
{
    float *memory = b->config.gradients;
    return dt_copy(&b->backend, memory + dt_ring_at(to, first), memory + dt_ring_at(from, first),
                   (end - first) * (int64_t)sizeof *memory, b->config.stream);
}

dt_status dt_buckets_enter(struct dt_buckets *b, int64_t row)
{
    const struct dt_ring *ring = &b->config.ring;
    for (int64_t k = b->rows[row].unit; b->unit < k; b->unit++) {
        int64_t i = b->unit + 1, before = i - DT_RING_SLOTS; // which had the slot
        if (before > 0 && b->next < b->units[before].end)
            return DT_FAIL(DT_MACHINE, NULL, "row %lld is entered before earlier ones are ready",
                           (long long)row);
        if (before > 0 && i + 1 < ring->n)
            DT_TRY(dt_parts_receive(b, b->units[before].first, b->units[before].end));
        DT_TRY(copy_tail(b, &ring->units[i - 1], &ring->units[i], ring->units[i].first,
                         ring->units[i - 1].end));
    }
    return DT_OK;
}

// ---- … and summed

dt_status dt_buckets_wait(struct dt_buckets *b)
{
    for (int64_t row = 0; row < b->config.n_rows; row++)
        if (!b->rows[row].ready)
            return DT_FAIL(DT_MACHINE, NULL, "the gradient of row %lld was never announced",
                           (long long)row);
    if (lacks_sums(b))
        return DT_FAIL(DT_MACHINE, NULL, "the sums of a step were never announced");
    DT_TRY(dt_parts_receive(b, b->sums.first, b->gradients.end));
    share(b, false);
    for (int64_t i = b->gradients.first; i < b->gradients.end; i++)
        b->parts[i].missing = b->parts[i].n_rows;
    for (int64_t row = 0; row < b->config.n_rows; row++)
        b->rows[row].ready = false;
    b->next = b->gradients.first;
    b->unit = 0;
    b->sums_sent = false;
    return DT_OK;
}

static dt_status send(struct dt_buckets *b, int64_t first, int64_t end)
{
    for (int64_t i = first; i < end; i++)
        DT_TRY(dt_part_send(b, i));
    return DT_OK;
}

dt_status dt_buckets_sum_norms(struct dt_buckets *b)
{
    DT_TRY(send(b, b->norms.first, b->norms.end));
    return dt_parts_receive(b, b->norms.first, b->norms.end);
}

dt_status dt_buckets_gather_gradients(struct dt_buckets *b, int64_t unit)
{
    const struct dt_ring *ring = &b->config.ring;
    if (ring->n == 0) {
        DT_TRY(send(b, b->updates.first, b->updates.end));
        return dt_parts_receive(b, b->updates.first, b->updates.end);
    }
    // Of bucket k comes part `end` - 1 - k; a bucket that all ranks hold has none.
    const struct dt_unit *u = &ring->units[unit], *above = u + 1;
    int64_t first = b->units[unit].first - b->gradients.first;
    int64_t end = dt_min_i64(b->units[unit].end - b->gradients.first, b->n_sharded);
    DT_TRY(send(b, b->updates.end - end, b->updates.end - first));
    DT_TRY(dt_parts_receive(b, b->updates.end - end, b->updates.end - first));
    if (unit + 1 < ring->n)
        return copy_tail(b, above, u, above->first, u->end);
    const struct part *rest = &b->parts[b->gradients.end - 1]; // held by all, if there is any
    return b->n_sharded == b->gradients.end - b->gradients.first
               ? DT_OK
               : dt_copy(&b->backend, rest->data, rest->own,
                         rest->elements * (int64_t)sizeof *rest->own, b->config.stream);
}

static dt_status gather(struct dt_buckets *b, struct phase phase)
{
    if (b->gathers)
        return DT_FAIL(DT_MACHINE, NULL, "weights are gathered while they are gathered");
    return send(b, phase.first, phase.end);
}

dt_status dt_buckets_gather(struct dt_buckets *b)
{
    DT_TRY(gather(b, b->weights));
    b->gathers = b->weights.first < b->weights.end;
    return DT_OK;
}

dt_status dt_buckets_need(struct dt_buckets *b, int64_t row)
{
    while (row < b->config.n_rows && b->rows[row].first == b->rows[row].end) // empty
        row++;
    if (row == b->config.n_rows || !b->gathers)
        return DT_OK;
    // Of bucket k comes part `end` - 1 - k; a bucket that all ranks hold has none.
    int64_t bucket = b->rows[row].first - b->gradients.first;
    return dt_parts_receive(b, b->weights.first, b->weights.end - bucket);
}

dt_status dt_buckets_gathered(struct dt_buckets *b)
{
    if (!b->gathers && b->weights.first < b->weights.end)
        return DT_FAIL(DT_MACHINE, NULL, "weights were never gathered");
    b->gathers = false;
    return dt_parts_receive(b, b->weights.first, b->weights.end);
}

dt_status dt_buckets_gather_masters(struct dt_buckets *b)
{
    DT_TRY(gather(b, b->masters));
    return dt_parts_receive(b, b->masters.first, b->masters.end);
}

int64_t dt_buckets_count(const struct dt_buckets *b)
{
    return b->gradients.end - b->gradients.first;
}

bool dt_buckets_can_be_captured(const struct dt_buckets *b)
{
    return b->alone || b->device_comm;
}

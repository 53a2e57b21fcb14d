// Gradient buckets, in the order of a step. When a row becomes ready, the bucket that it completes
// is sent; dt_buckets_wait brings the sums back. Each bucket is one part of a step's traffic, and
// the fp64 sums are the first part. If the optimizer is sharded, more phases follow: the norms in
// one part, then the buckets of weights, in the order in which a forward pass reads them. With bf16
// copies the fp32 weights come first, as one packed array, zero except for this rank's own, whose
// bits are summed over ranks. Separate phases gather the masters and, if needed, the gradients.
#include "comm/bucket_parts.h"

#include "base/round.h"

// ---- a step: ready and sent …

// Whether the sums of this step must still be sent. With a ring not every micro-batch has sums.
static bool lacks_sums(const struct dt_buckets *b)
{
    return !b->sums_sent && b->sums.first < b->sums.end && b->config.ring.n == 0;
}

// Reserves some multiprocessors for sums between devices: ops leave them free from the first part
// sent in a step to the wait for all parts. Both are fixed points of a step, so what is in flight
// never changes a bit. Gathered weights do not count, because a step after a checkpoint gathers
// none. Nothing is reserved with DT_SUM_TREE, whose bits must not depend on the number of ranks.
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

// Sends in table order even if rows become ready in another order, since every rank must begin its
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

// Copies elements [first, end) of a ring from one unit's slot to another's, which begins with the
// tail of the first.
static dt_status copy_tail(struct dt_buckets *b, void *ring, enum dt_dtype type,
                           const struct dt_unit *from, const struct dt_unit *to, int64_t first,
                           int64_t end)
{
    char *memory = ring;
    int64_t each = dt_dtype_size(type);
    return dt_copy(&b->backend, memory + dt_ring_at(to, first) * each,
                   memory + dt_ring_at(from, first) * each, (end - first) * each, b->config.stream);
}

dt_status dt_buckets_enter(struct dt_buckets *b, int64_t row)
{
    const struct dt_ring *ring = &b->config.ring;
    for (int64_t k = b->rows[row].unit; b->unit < k; b->unit++) {
        int64_t i = b->unit + 1, before = i - DT_RING_SLOTS; // the unit that had the slot before
        if (before > 0 && b->next < b->units[before].end)
            return DT_FAIL(DT_MACHINE, NULL, "row %lld is entered before earlier ones are ready",
                           (long long)row);
        if (before > 0 && i + 1 < ring->n)
            DT_TRY(dt_parts_receive(b, b->units[before].first, b->units[before].end));
        DT_TRY(copy_tail(b, b->config.gradients, DT_F32, &ring->units[i - 1], &ring->units[i],
                         ring->units[i].first, ring->units[i - 1].end));
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

// The parts of a unit in `phase`, where the last parts are the first buckets: bucket k is part
// `end` - 1 - k; a bucket that all ranks hold has no part.
static struct phase of_unit(const struct dt_buckets *b, struct phase phase, int64_t unit)
{
    int64_t first = b->units[unit].first - b->gradients.first;
    int64_t end = dt_min_i64(b->units[unit].end - b->gradients.first, b->n_sharded);
    return (struct phase){phase.end - end, phase.end - first};
}

// Called after a unit's parts have arrived: copies the rest of its slot, which is the tail in the
// unit above, or what all ranks hold from `own`.
static dt_status complete_unit(struct dt_buckets *b, int64_t unit, void *ring, enum dt_dtype type,
                               const void *own)
{
    const struct dt_unit *u = &b->config.ring.units[unit], *above = u + 1;
    const struct part *rest = &b->parts[b->gradients.end - 1];
    int64_t each = dt_dtype_size(type);
    if (unit + 1 < b->config.ring.n)
        return copy_tail(b, ring, type, above, u, above->first, u->end);
    if (b->n_sharded == b->gradients.end - b->gradients.first)
        return DT_OK;
    return dt_copy(&b->backend, (char *)ring + dt_ring_at(u, rest->first) * each,
                   (const char *)own + rest->held * each, rest->elements * each, b->config.stream);
}

dt_status dt_buckets_gather_gradients(struct dt_buckets *b, int64_t unit)
{
    struct phase parts = b->updates;
    if (b->config.ring.n > 0)
        parts = of_unit(b, parts, unit);
    DT_TRY(send(b, parts.first, parts.end));
    DT_TRY(dt_parts_receive(b, parts.first, parts.end));
    return b->config.ring.n == 0
               ? DT_OK
               : complete_unit(b, unit, b->config.gradients, DT_F32, b->config.own);
}

// ---- weights in a ring

dt_status dt_buckets_begin_pass(struct dt_buckets *b, bool changed)
{
    for (int64_t i = 0; i < b->config.ring.n; i++)
        if (changed || (i > 0 && i + 1 < b->config.ring.n))
            b->states[i] = (struct unit_state){0};
    return changed && b->packed ? dt_part_send(b, b->weights.first) : DT_OK;
}

// Begins to gather a unit, replacing the one in its slot.
static dt_status fetch(struct dt_buckets *b, int64_t unit)
{
    const struct dt_ring *ring = &b->config.ring;
    if (unit < 0 || unit >= ring->n || b->states[unit].here)
        return DT_OK;
    for (int64_t i = 0; i < ring->n; i++)
        if (ring->units[i].at == ring->units[unit].at)
            b->states[i] = (struct unit_state){.here = i == unit};
    struct phase parts = of_unit(b, b->weights, unit);
    return send(b, parts.first, parts.end);
}

dt_status dt_buckets_read(struct dt_buckets *b, int64_t row, bool backward)
{
    const struct dt_buckets_config *config = &b->config;
    int64_t unit = b->rows[row].unit, n = config->ring.n;
    const bool whole = b->states[unit].whole;
    if (b->packed)
        DT_TRY(dt_parts_receive(b, b->weights.first, b->weights.first + 1));
    for (int64_t i = unit; i <= unit + 1 && !whole; i++)
        DT_TRY(fetch(b, i));
    DT_TRY(fetch(b, backward ? unit + 2 : unit - 1));
    for (int64_t i = unit; i <= dt_min_i64(unit + 1, n - 1) && !whole; i++) {
        struct phase parts = of_unit(b, b->weights, i);
        DT_TRY(dt_parts_receive(b, parts.first, parts.end));
    }
    b->states[unit].whole = true;
    if (whole)
        return DT_OK;
    return config->copies ? complete_unit(b, unit, config->copies, DT_BF16, config->own_copies)
                          : complete_unit(b, unit, config->weights, DT_F32, config->own_weights);
}

// ---- weights in a whole array

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
    int64_t bucket = b->rows[row].first - b->gradients.first;
    return dt_parts_receive(b, b->weights.first, b->weights.end - bucket); // see of_unit
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

struct dt_device_comm *dt_buckets_device_comm(const struct dt_buckets *b)
{
    return b->device_comm;
}

bool dt_buckets_can_be_captured(const struct dt_buckets *b)
{
    return b->alone || b->device_comm;
}

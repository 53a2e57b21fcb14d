// Groups parts of a flat array into units and assigns them to slots of a ring.
#include "base/ring.h"

#include "base/memory.h"
#include "base/round.h"

static void place(struct dt_ring *ring)
{
    int64_t between = ring->n - 2, size = 0; // units that share slots; size of the largest
    struct dt_unit *units = ring->units;
    for (int64_t i = 1; i <= between; i++)
        size = dt_max_i64(size, units[i].end - units[i].first);
    ring->elements = units[0].end;
    if (ring->n > 1) {
        struct dt_unit *last = &units[ring->n - 1];
        last->at = ring->elements;
        ring->elements += last->end - last->first;
    }
    for (int64_t i = 1; i <= between; i++)
        units[i].at = ring->elements + (i - 1) % DT_RING_SLOTS * size;
    ring->elements += dt_max_i64(0, dt_min_i64(between, DT_RING_SLOTS)) * size;
}

dt_status dt_ring_create(const int64_t *part_ends, int64_t n, int64_t align, struct dt_ring *ring)
{
    int64_t all = n > 0 ? part_ends[n - 1] : 0, start = 0; // start of the next unit
    *ring = (struct dt_ring){0};
    if (align == 0)
        return DT_OK;
    DT_TRY(DT_NEW(&ring->units, n, "%lld parts of a ring", (long long)n));
    struct dt_unit *units = ring->units;
    for (int64_t i = 0; i < n; i++) {
        if (i > 0 && i + 1 < n && part_ends[i] - start < align)
            continue;
        units[ring->n++] = (struct dt_unit){.first = start - start % align, .end = part_ends[i]};
        start = part_ends[i];
    }
    for (; ring->n > 1 && units[ring->n - 1].first == all - all % align; ring->n--)
        units[ring->n - 2].end = all; // the last unit would have nothing to send
    place(ring);
    return DT_OK;
}

int64_t dt_ring_unit(const struct dt_ring *ring, int64_t element)
{
    int64_t i = 0;
    while (ring->units[i].end <= element)
        i++;
    return i;
}

// A ring is memory for a few parts of a flat array at a time. The array's rows are grouped into
// units, which are used one after the other, in ascending or descending order. The first and the
// last unit have memory of their own, the others share DT_RING_SLOTS slots: unit i is always in
// slot i mod DT_RING_SLOTS, so that addresses never change.
//
// Ranks exchange the array in pieces cut at multiples of `align` elements, where units seldom end.
// So a unit's slot begins at the last such multiple before its rows, with fewer than `align`
// elements of the previous unit: that unit's tail, which is copied from slot to slot. Every unit
// but the first has at least `align` elements, so a tail lies within one unit.
#pragma once

#include "base/error.h"

#include <stdint.h>

enum { DT_RING_SLOTS = 3 };

struct dt_unit {
    int64_t first, end; // elements of the array in its slot; its rows end at `end`
    int64_t at;         // start of its slot in memory, in elements
};

struct dt_ring {
    struct dt_unit *units; // [n]
    int64_t n;             // 0: no ring, the array is whole
    int64_t elements;      // elements of memory
};

// Groups parts of the array, which end at part_ends [n] (ascending, multiples of 64), into units:
// the first part is one, then each unit has as many parts as needed for `align` elements. align 0:
// the array stays whole. Caller frees ring->units.
dt_status dt_ring_create(const int64_t *part_ends, int64_t n, int64_t align, struct dt_ring *ring);
// The unit of the row that begins at this element.
int64_t dt_ring_unit(const struct dt_ring *ring, int64_t element);
// The position in memory of an element of a unit.
static inline int64_t dt_ring_at(const struct dt_unit *unit, int64_t element)
{
    return unit->at + element - unit->first;
}

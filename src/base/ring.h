// A ring: memory for a few parts of a flat array at a time. The array's rows come in units, which
// are used one after the other, up or down. The first and the last unit have memory of their own,
// those between share DT_RING_SLOTS slots: unit i is always in slot i mod DT_RING_SLOTS, so that
// addresses never change.
//
// What ranks exchange of the array is cut at multiples of `align` elements, where units seldom end:
// a unit's slot begins with the last such multiple before its rows. What it has before them, less
// than `align`, are the last elements of the unit before it, its tail: they are copied from one
// slot to the other. Every unit but the first has `align` elements at least, so a tail never goes
// further.
#pragma once

#include "base/error.h"

#include <stdint.h>

enum { DT_RING_SLOTS = 3 };

struct dt_unit {
    int64_t first, end; // elements of the array that its slot holds: its rows end with `end`
    int64_t at;         // element of memory where its slot begins
};

struct dt_ring {
    struct dt_unit *units; // [n]
    int64_t n;             // 0: the array is whole
    int64_t elements;      // of memory
};

// Parts of the array, which end at part_ends [n] (ascending, multiples of 64), become units: the
// first one a unit, then as many as have `align` elements, and so on. align 0: it stays whole.
// ring->units is malloc'ed.
dt_status dt_ring_create(const int64_t *part_ends, int64_t n, int64_t align, struct dt_ring *ring);
// The unit of a row that begins with this element.
int64_t dt_ring_unit(const struct dt_ring *ring, int64_t element);
// Where an element of a unit is in memory.
static inline int64_t dt_ring_at(const struct dt_unit *unit, int64_t element)
{
    return unit->at + element - unit->first;
}

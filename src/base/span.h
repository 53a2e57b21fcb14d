// Ranges of a flat array, and which of them a rank holds if the array is spread over ranks.
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct dt_span {
    int64_t first, end; // elements [first, end)
};

// One rank's pieces of a flat array: ascending, non-empty ranges, stored one after the other in a
// compact array. Every element is held either by one rank alone or by all ranks. The first n_own
// ranges are this rank's alone, the rest are held by all; without sharding the rest is the whole
// array.
struct dt_pieces {
    struct dt_span *spans; // [n]
    int64_t n, n_own;
    int64_t elements; // of the compact array: the sum of the spans
};

// Elements [first, end) of the flat array that one piece holds, from `at` on in the compact array.
struct dt_held {
    int64_t first, end, at;
    int64_t next, passed; // the next piece; elements of the pieces before it
};

// Advances to the next of the first n pieces that overlaps [first, end). Start with a zeroed
// `piece`; false after the last one.
static inline bool dt_pieces_next(const struct dt_pieces *pieces, int64_t n, int64_t first,
                                  int64_t end, struct dt_held *piece)
{
    while (piece->next < n) {
        const struct dt_span *span = &pieces->spans[piece->next++];
        piece->first = first > span->first ? first : span->first;
        piece->end = end < span->end ? end : span->end;
        piece->at = piece->passed + piece->first - span->first;
        piece->passed += span->end - span->first;
        if (piece->first < piece->end)
            return true;
    }
    return false;
}

// Whether the array is spread over ranks; the same on every rank.
static inline bool dt_pieces_are_spread(const struct dt_pieces *pieces, int64_t elements)
{
    return pieces->n_own > 0 || pieces->elements < elements;
}

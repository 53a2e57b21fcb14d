// Ranges of a flat array, and which of them one rank holds where the array is spread over ranks.
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct dt_span {
    int64_t first, end; // elements [first, end)
};

// What one rank holds of a flat array: ascending ranges, none empty, kept one after the other in a
// compact array. The first n_own are held by this rank alone, those after them by every rank alike:
// where nothing is spread that is the whole array. Every element is one rank's own, or all hold it.
struct dt_pieces {
    struct dt_span *spans; // [n]
    int64_t n, n_own;
    int64_t elements; // of the compact array: the spans' sum
};

// What one piece holds of a range of the flat array: elements [first, end), from `at` on in the
// compact array.
struct dt_held {
    int64_t first, end, at;
    int64_t next, passed; // the next piece; elements of those before it
};

// The next piece of the first n that holds some of [first, end), ascending. A zeroed `piece` is
// before the first one; false: there is none after it.
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

// Whether the array is spread over ranks, which is the same on every rank of it.
static inline bool dt_pieces_are_spread(const struct dt_pieces *pieces, int64_t elements)
{
    return pieces->n_own > 0 || pieces->elements < elements;
}

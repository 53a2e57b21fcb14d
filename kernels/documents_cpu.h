// The documents of a sequence on the CPU, for ops that read both ways (reverse.h says where
// documents start and end). A row of padding counts as a document of one row. A walk from the end:
//   for (int64_t end = L, first; end > 0; end = first)
//       first = dt_document_first(reset, counted, end);
#pragma once

#include <stdint.h>

// The number of rows before padding: up to the last one whose mask is 1. mask NULL: all n.
static inline int64_t dt_counted_rows(const uint8_t *mask, int64_t n)
{
    while (mask && n > 0 && !mask[n - 1])
        n--;
    return n;
}

// The first row of the document that ends before row `end` > 0.
static inline int64_t dt_document_first(const uint8_t *reset, int64_t counted, int64_t end)
{
    int64_t first = end - 1;
    while (first > 0 && first < counted && !(reset && reset[first]))
        first--;
    return first;
}

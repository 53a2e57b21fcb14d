// Arrays that grow by an item at a time: one of n items has room up to the next power of two.
#pragma once

#include "base/error.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

// Makes room for item n after the n of the list whose pointer `list` is the address of (NULL where
// n is 0). Where memory is short the list stays as it is.
static inline dt_status dt_list_grow(void *list, int64_t n, size_t item_bytes)
{
    void *items;
    if (n & (n - 1))
        return DT_OK;
    memcpy(&items, list, sizeof items);
    items = realloc(items, (size_t)(n > 0 ? 2 * n : 1) * item_bytes);
    if (!items)
        return DT_FAIL(DT_MACHINE, NULL, "no memory for a list of %lld items of %zu bytes",
                       2 * (long long)n, item_bytes);
    memcpy(list, &items, sizeof items);
    return DT_OK;
}

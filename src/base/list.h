// Arrays that grow by one item at a time. An array of n items has room for the next power of two.
#pragma once

#include "base/error.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

// Makes room for one more item. `list` is the address of the pointer to the n items (NULL if n is
// 0). On failure the list is unchanged.
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

// Plain loops over stored tokens of 8, 16 or 32 bit (and int32 ids where said).
#pragma once

#include "base/dtype.h"

#include <stdint.h>

static inline const void *dt_tokens_at(dt_dtype type, const void *tokens, int64_t i)
{
    return (const char *)tokens + i * dt_dtype_size(type);
}
int64_t dt_tokens_get(dt_dtype type, const void *tokens, int64_t i);
// The largest of n; 0 where n is 0.
uint32_t dt_tokens_largest(dt_dtype type, const void *tokens, int64_t n);
// The first i < n with tokens[i] >= limit; n where there is none.
int64_t dt_tokens_find(dt_dtype type, const void *tokens, int64_t n, int64_t limit);
// input_ids[i] = tokens[i], labels[i] = tokens[i + 1] for i < n; gives the largest of the n + 1.
uint32_t dt_tokens_widen(dt_dtype type, const void *tokens, int64_t n, int32_t *input_ids,
                         int32_t *labels);
// mark[i] = tokens[i] == token; DT_I32 too.
void dt_tokens_mark(dt_dtype type, const void *tokens, int64_t n, int64_t token, uint8_t *mark);

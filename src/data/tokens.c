// One macro a loop, so that each compiles to straight code for its type.
#include "data/tokens.h"

#define DEFINE_LOOPS(type, bits)                                                                   \
    static uint32_t largest_##bits(const void *tokens, int64_t n)                                  \
    {                                                                                              \
        const type *t = tokens;                                                                    \
        type largest = 0;                                                                          \
        for (int64_t i = 0; i < n; i++)                                                            \
            largest = t[i] > largest ? t[i] : largest;                                             \
        return largest;                                                                            \
    }                                                                                              \
    static uint32_t widen_##bits(const void *tokens, int64_t n, int32_t *restrict input_ids,       \
                                 int32_t *restrict labels)                                         \
    {                                                                                              \
        const type *t = tokens;                                                                    \
        for (int64_t i = 0; i < n; i++) {                                                          \
            input_ids[i] = (int32_t)t[i];                                                          \
            labels[i] = (int32_t)t[i + 1];                                                         \
        }                                                                                          \
        return largest_##bits(tokens, n + 1);                                                      \
    }                                                                                              \
    static void mark_##bits(const void *tokens, int64_t n, type token, uint8_t *restrict mark)     \
    {                                                                                              \
        const type *t = tokens;                                                                    \
        for (int64_t i = 0; i < n; i++)                                                            \
            mark[i] = t[i] == token;                                                               \
    }
DEFINE_LOOPS(uint8_t, u8)
DEFINE_LOOPS(uint16_t, u16)
DEFINE_LOOPS(uint32_t, u32)

int64_t dt_tokens_get(dt_dtype type, const void *tokens, int64_t i)
{
    switch (type) {
    case DT_U8:
        return ((const uint8_t *)tokens)[i];
    case DT_U16:
        return ((const uint16_t *)tokens)[i];
    default:
        return ((const uint32_t *)tokens)[i];
    }
}

uint32_t dt_tokens_largest(dt_dtype type, const void *tokens, int64_t n)
{
    switch (type) {
    case DT_U8:
        return largest_u8(tokens, n);
    case DT_U16:
        return largest_u16(tokens, n);
    default:
        return largest_u32(tokens, n);
    }
}

int64_t dt_tokens_find(dt_dtype type, const void *tokens, int64_t n, int64_t limit)
{
    int64_t i = 0;
    while (i < n && dt_tokens_get(type, tokens, i) < limit)
        i++;
    return i;
}

uint32_t dt_tokens_widen(dt_dtype type, const void *tokens, int64_t n, int32_t *input_ids,
                         int32_t *labels)
{
    switch (type) {
    case DT_U8:
        return widen_u8(tokens, n, input_ids, labels);
    case DT_U16:
        return widen_u16(tokens, n, input_ids, labels);
    default:
        return widen_u32(tokens, n, input_ids, labels);
    }
}

// A token that the type cannot hold is never there; int32 ids are compared bit by bit.
void dt_tokens_mark(dt_dtype type, const void *tokens, int64_t n, int64_t token, uint8_t *mark)
{
    if (type == DT_U8 && token <= UINT8_MAX)
        mark_u8(tokens, n, (uint8_t)token, mark);
    else if (type == DT_U16 && token <= UINT16_MAX)
        mark_u16(tokens, n, (uint16_t)token, mark);
    else if ((type == DT_U32 || type == DT_I32) && token <= INT32_MAX)
        mark_u32(tokens, n, (uint32_t)token, mark);
    else
        for (int64_t i = 0; i < n; i++)
            mark[i] = 0;
}

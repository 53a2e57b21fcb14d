// Shared by reader kinds of tokens: the arrays of a batch, loops over tokens, errors.
#include "data/tokens.h"

#include "base/rng.h"
#include "data/columns.h"

#include <inttypes.h>
#include <stdio.h>

bool dt_tokens_have_reset(const struct dt_dataset *dataset, const struct dt_read_rules *rules)
{
    return rules->carry || rules->reset_token >= 0 || dataset->doc_starts;
}

void dt_tokens_arrays(const struct dt_dataset *dataset, const struct dt_read_rules *rules,
                      struct dt_array_list *list)
{
    dt_array_list_add(list, "input_ids", DT_I32, 1, false);
    list->arrays[dt_array_list_add(list, "labels", DT_I32, 1, false)].pad = DT_IGNORED;
    if (dt_tokens_have_reset(dataset, rules))
        dt_array_list_add(list, "reset", DT_U8, 1, true);
}

// Defines the loops for one type, without branches on the type. `order` is the unsigned type in
// which tokens are compared, so that negative tokens are above all others. A limit that the type
// cannot reach is never found.
#define DEFINE_LOOPS(type, order, bits)                                                            \
    static uint64_t largest_##bits(const void *tokens, int64_t n)                                  \
    {                                                                                              \
        const type *t = tokens;                                                                    \
        order largest = 0;                                                                         \
        for (int64_t i = 0; i < n; i++)                                                            \
            largest = (order)t[i] > largest ? (order)t[i] : largest;                               \
        return largest;                                                                            \
    }                                                                                              \
    static void widen_##bits(const void *tokens, int64_t n, int32_t *restrict input_ids,           \
                             int32_t *restrict labels)                                             \
    {                                                                                              \
        const type *t = tokens;                                                                    \
        for (int64_t i = 0; i < n; i++) {                                                          \
            input_ids[i] = (int32_t)t[i];                                                          \
            labels[i] = (int32_t)t[i + 1];                                                         \
        }                                                                                          \
    }                                                                                              \
    static void mark_##bits(const void *tokens, int64_t n, int64_t token, uint8_t *restrict mark)  \
    {                                                                                              \
        const type *t = tokens, wanted = (type)token;                                              \
        const bool possible = (int64_t)wanted == token;                                            \
        for (int64_t i = 0; i < n; i++)                                                            \
            mark[i] = possible & (t[i] == wanted);                                                 \
    }
DEFINE_LOOPS(uint8_t, uint8_t, u8)
DEFINE_LOOPS(uint16_t, uint16_t, u16)
DEFINE_LOOPS(uint32_t, uint32_t, u32)
DEFINE_LOOPS(uint64_t, uint64_t, u64)
DEFINE_LOOPS(int8_t, uint32_t, i8)
DEFINE_LOOPS(int16_t, uint32_t, i16)
DEFINE_LOOPS(int32_t, uint32_t, i32)
DEFINE_LOOPS(int64_t, uint64_t, i64)

static const struct {
    uint64_t (*largest)(const void *tokens, int64_t n);
    void (*widen)(const void *tokens, int64_t n, int32_t *input_ids, int32_t *labels);
    void (*mark)(const void *tokens, int64_t n, int64_t token, uint8_t *mark);
} loops[DT_DTYPE_COUNT] = {
    [DT_U8] = {largest_u8, widen_u8, mark_u8},     [DT_U16] = {largest_u16, widen_u16, mark_u16},
    [DT_U32] = {largest_u32, widen_u32, mark_u32}, [DT_U64] = {largest_u64, widen_u64, mark_u64},
    [DT_I8] = {largest_i8, widen_i8, mark_i8},     [DT_I16] = {largest_i16, widen_i16, mark_i16},
    [DT_I32] = {largest_i32, widen_i32, mark_i32}, [DT_I64] = {largest_i64, widen_i64, mark_i64},
};

uint64_t dt_tokens_largest(dt_dtype type, const void *tokens, int64_t n)
{
    return loops[type].largest(tokens, n);
}

int64_t dt_tokens_find(dt_dtype type, const void *tokens, int64_t n, int64_t limit)
{
    int64_t i = 0;
    while (i < n && (uint64_t)dt_columns_integer(type, tokens, i) < (uint64_t)limit)
        i++;
    return i;
}

uint64_t dt_tokens_widen(dt_dtype type, const void *tokens, int64_t n, int32_t *input_ids,
                         int32_t *labels)
{
    loops[type].widen(tokens, n, input_ids, labels);
    return loops[type].largest(tokens, n + 1);
}

void dt_tokens_mark_starts(const struct dt_read_rules *rules, dt_dtype type, const void *tokens,
                           int64_t n, bool before, uint8_t *starts)
{
    if (rules->reset_token < 0)
        memset(starts, 0, (size_t)n);
    else if (!rules->reset_after)
        loops[type].mark(tokens, n, rules->reset_token, starts);
    else if (before)
        loops[type].mark(dt_tokens_at(type, tokens, -1), n, rules->reset_token, starts);
    else
        loops[type].mark(tokens, n - 1, rules->reset_token, starts + 1);
}

// Each position draws the same number of random numbers. The streams of the order (order.h) have
// far lower numbers.
void dt_tokens_mask(const struct dt_dataset *dataset, const struct dt_read_rules *rules,
                    const struct dt_block *block, int64_t window, void *const *rows)
{
    const struct dt_masking *masking = &rules->masking;
    uint64_t number = (uint64_t)block->shard << 40 | (uint64_t)window;
    struct dt_philox rng = dt_philox_init(rules->seed, (uint32_t)block->epoch, UINT64_MAX - number);
    int32_t *ids = rows[DT_TOKENS_IDS], *labels = rows[DT_TOKENS_LABELS];
    for (int64_t t = 0; t < dataset->rules.seq_len && masking->on; t++) {
        double chosen = dt_philox_u32(&rng) * 0x1p-32, how = dt_philox_u32(&rng) * 0x1p-32;
        uint64_t token = dt_philox_u32(&rng) * (uint64_t)rules->vocab_size;
        if (labels[t] == DT_IGNORED)
            continue;
        labels[t] = masking->rate == 0 || chosen < masking->rate ? ids[t] : DT_IGNORED;
        if (masking->rate == 0 || labels[t] == DT_IGNORED || how >= 0.9)
            continue;
        ids[t] = how < 0.8 ? masking->token : (int32_t)(token >> 32);
    }
}

dt_status dt_tokens_fail(const struct dt_shard *shard, const char *where, int64_t token,
                         int64_t vocab_size)
{
    char text[DT_INTEGER_TEXT];
    return DT_FAIL(DT_USER, "set model.vocab_size above the largest token, or fix the shard",
                   "%s: %s is %s, outside the vocabulary of %" PRId64, shard->path, where,
                   dt_columns_integer_text(shard->type, token, text), vocab_size);
}

int64_t dt_tokens_limit(const struct dt_shard *shard)
{
    if (shard->vocab_size > 0)
        return shard->vocab_size;
    bool wide = shard->type == DT_U8 || shard->type == DT_U16 || shard->type == DT_U32;
    return (int64_t)(wide ? UINT32_MAX : INT32_MAX) + 1;
}

dt_status dt_tokens_fail_verify(const char *path, const struct dt_shard *shard, const char *where,
                                int64_t value, bool label)
{
    char text[DT_INTEGER_TEXT], attribute[48] = "no attribute vocab_size";
    if (shard->vocab_size > 0)
        snprintf(attribute, sizeof attribute, "attribute vocab_size = %" PRId64, shard->vocab_size);
    return DT_FAIL(DT_USER, "create the shard again, or correct its attribute vocab_size",
                   "%s: %s is %s; %s must be from 0 to %" PRId64 "%s (%s)", path, where,
                   dt_columns_integer_text(shard->type, value, text), label ? "a label" : "a token",
                   dt_tokens_limit(shard) - 1, label ? ", or -100 for none" : "", attribute);
}

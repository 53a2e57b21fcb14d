// Synthetic data, for benchmarks: uniform tokens from Philox, a pure function of seed and window.
#include "base/rng.h"
#include "data/reader.h"
#include "data/tokens.h"

enum { WINDOWS = 1 << 20, STREAM = -1 }; // no epoch of the order has that number

static dt_status open_synthetic(struct dt_reader *reader, const struct dt_scan_rules *rules,
                                struct dt_shard *shard)
{
    int64_t seq_len = rules->seq_len;
    (void)reader;
    shard->type = DT_U32;
    shard->windows = WINDOWS;
    shard->stride = seq_len;
    shard->count = WINDOWS * seq_len + 1;
    return DT_OK;
}

static dt_status write_window(const struct dt_dataset *dataset, const struct dt_read_rules *rules,
                              const struct dt_block *block, int64_t window, void *const *rows)
{
    (void)block;
    struct dt_philox rng = dt_philox_init(rules->seed, (uint32_t)STREAM, (uint64_t)window);
    int32_t *ids = rows[DT_TOKENS_IDS], *labels = rows[DT_TOKENS_LABELS];
    int64_t T = dataset->rules.seq_len;
    for (int64_t t = 0; t <= T; t++) {
        uint64_t draw = dt_philox_u32(&rng) * (uint64_t)rules->vocab_size;
        int32_t token = (int32_t)(draw >> 32);
        if (t < T)
            ids[t] = token;
        if (t > 0)
            labels[t - 1] = token;
    }
    if (rows[DT_TOKENS_RESET]) { // all windows are one segment
        memset(rows[DT_TOKENS_RESET], 0, (size_t)T);
        *(uint8_t *)rows[DT_TOKENS_RESET] = window == 0;
    }
    return DT_OK;
}

const struct dt_reader_kind dt_synthetic_reader = {
    .name = "synthetic",
    .unit = "tokens",
    .source = "synthetic:random",
    .open = open_synthetic,
    .arrays = dt_tokens_arrays,
    .write = write_window,
    .pad = dt_tokens_pad,
};

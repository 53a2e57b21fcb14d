// Reads a whole shard to find what would make training fail (`dtrain verify`).
#include "base/clock.h"
#include "base/log.h"
#include "data/pack.h"
#include "data/reader.h"

#include <stdio.h>

enum { PIECE_BYTES = 1 << 22 };

dt_status dt_verify_shard(const char *path, const struct dt_scan_rules *rules, bool progress,
                          struct dt_shard *shard)
{
    struct dt_reader *reader;
    dt_status status = DT_OK;
    double drawn = 0;
    DT_TRY(dt_reader_open(path, rules ? rules : &(struct dt_scan_rules){0}, shard, &reader));
    if (shard->warning[0])
        dt_warn("%s: %s", path, shard->warning);
    const struct dt_reader_kind *kind = shard->kind;
    int64_t width = shard->width + shard->layout.n_ids + shard->layout.target_width;
    int64_t unit = shard->row * width * dt_dtype_size(shard->type), n = shard->count;
    int64_t at_once = PIECE_BYTES > unit ? PIECE_BYTES / unit : 1;
    for (int64_t first = 0; kind->verify && first < n && status == DT_OK; first += at_once) {
        status = kind->verify(reader, shard, first, dt_min_i64(n - first, at_once));
        if (progress && dt_seconds() - drawn >= 0.1) {
            char line[256];
            drawn = dt_seconds();
            snprintf(line, sizeof line, "checking %3.0f %%  %s", 100.0 * (double)first / (double)n,
                     path);
            dt_log_live(line);
        }
    }
    if (status == DT_OK && kind->check)
        status = kind->check(reader, true);
    dt_log_live(NULL);
    dt_reader_close(reader);
    return status;
}

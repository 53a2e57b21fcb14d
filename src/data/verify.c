// Reads a shard from end to end, to find what training would fail on (`dtrain verify`).
#include "base/clock.h"
#include "base/log.h"
#include "data/pack.h"
#include "data/reader.h"

#include <stdio.h>

enum { PIECE_BYTES = 1 << 22 };

static dt_status verify_all(struct dt_reader *reader, const struct dt_shard *shard,
                            const char *path, bool progress)
{
    int64_t unit = shard->row * shard->width * dt_dtype_size(shard->type);
    int64_t at_once = PIECE_BYTES > unit ? PIECE_BYTES / unit : 1;
    double drawn = 0;
    for (int64_t first = 0; shard->kind->verify && first < shard->count; first += at_once) {
        DT_TRY(
            shard->kind->verify(reader, shard, first, dt_min_i64(shard->count - first, at_once)));
        if (progress && dt_seconds() - drawn >= 0.1) {
            char line[256];
            drawn = dt_seconds();
            snprintf(line, sizeof line, "checking %3.0f %%  %s",
                     100.0 * (double)first / (double)shard->count, path);
            dt_log_live(line);
        }
    }
    return shard->kind->check ? shard->kind->check(reader, true) : DT_OK;
}

dt_status dt_verify_shard(const char *path, bool progress, struct dt_shard *shard)
{
    struct dt_reader *reader;
    DT_TRY(dt_reader_open(path, &(struct dt_scan_rules){0}, shard, &reader));
    if (shard->warning[0])
        dt_warn("%s: %s", path, shard->warning);
    dt_status status = verify_all(reader, shard, path, progress);
    dt_log_live(NULL);
    dt_reader_close(reader);
    return status;
}

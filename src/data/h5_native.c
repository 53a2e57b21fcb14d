// dtrain's schema of episodes has /frames [n, F], /targets/NAME [n] or [n, N] for each head, and
// /episode_starts, ascending row numbers from 0; without it the shard is one episode.
#include "data/h5_episodes.h"

#include <inttypes.h>

enum { PIECE = 1024 };

static dt_status add_starts(const struct dt_h5_array *array, int64_t rows,
                            struct dt_episodes *episodes)
{
    int64_t before = 0;
    uint64_t stored[PIECE];
    for (int64_t i = 0; i < array->shape[0]; i++) {
        if (i % PIECE == 0)
            DT_TRY(dt_h5_array_read(array, i, dt_min_i64(array->shape[0] - i, PIECE), stored));
        int64_t start = dt_columns_integer(array->type, stored, i % PIECE);
        if (start < before || start > rows || (i == 0 && start != 0)) {
            char value[DT_INTEGER_TEXT];
            return DT_FAIL(DT_USER, "store ascending row numbers of /frames, the first of them 0",
                           "%s: /episode_starts[%" PRId64 "] is %s, not in [%" PRId64 ", %" PRId64
                           "]",
                           array->file->path, i, dt_columns_integer_text(array->type, start, value),
                           before, i == 0 ? 0 : rows);
        }
        DT_TRY(dt_episodes_add_start(episodes, start));
        before = start;
    }
    return DT_OK;
}

static dt_status list_starts(struct dt_reader *reader, struct dt_episodes *episodes)
{
    struct dt_h5_array array;
    bool found;
    DT_TRY(dt_h5_array_open(&reader->file, "/episode_starts", &array, &found));
    if (!found)
        return dt_episodes_add_start(episodes, 0);
    dt_status status = dt_h5_check_vector(&array);
    if (status == DT_OK && !dt_columns_is_integer(array.type))
        status = DT_H5_REJECT(&array, "store row numbers of /frames as integers", "holds %s",
                              array.type_text);
    if (status == DT_OK)
        status = add_starts(&array, reader->arrays[0].shape[0], episodes);
    dt_h5_array_close(&array);
    return status;
}

static const struct dt_episode_schema schema = {
    .inputs = "frames", .targets = "targets", .by_head = true, .list = list_starts};

const struct dt_reader_kind dt_native_reader = {
    .name = "episodes", .datasets = {"/frames"}, .schema = &schema, DT_EPISODES_FUNCTIONS};

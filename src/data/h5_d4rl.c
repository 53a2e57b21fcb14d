// The schema D4RL [Fu et al. 2020] stores all episodes one after another in /observations and
// /actions; an episode ends with a row in which /terminals or /timeouts (either may be missing) is
// true.
#include "data/h5_episodes.h"

#include <inttypes.h>
#include <math.h>

enum { PIECE = 4096, ENDS = 2 };

static dt_status add_episodes(const struct dt_h5_array *arrays, int64_t n,
                              struct dt_episodes *episodes)
{
    bool ended = true; // by the previous row
    char stored[PIECE * 8];
    float values[PIECE];
    for (int64_t first = 0; first < n; first += PIECE) {
        bool ends[PIECE] = {false};
        int64_t some = dt_min_i64(n - first, PIECE);
        for (const struct dt_h5_array *array = arrays; array < arrays + ENDS; array++) {
            if (array->n_dims == 0)
                continue;
            DT_TRY(dt_h5_array_read(array, first, some, stored));
            dt_columns_to_floats(array->type, stored, some, 1, 0, 1, values, 1);
            for (int64_t i = 0; i < some; i++) {
                if (!isfinite(values[i]))
                    return DT_FAIL(DT_USER, "store true or false, 1 or 0, in each row",
                                   "%s: %s, row %" PRId64 ": %g is neither true nor false",
                                   array->file->path, array->name, first + i, values[i]);
                ends[i] |= values[i] != 0;
            }
        }
        for (int64_t i = 0; i < some; i++) {
            if (ended)
                DT_TRY(dt_episodes_add_start(episodes, first + i));
            ended = ends[i];
        }
    }
    if (episodes->n == 1 && !ended)
        snprintf(episodes->warning, sizeof episodes->warning,
                 "all %" PRId64 " rows are one episode, since /terminals and /timeouts mark no "
                 "end; store /timeouts, true in the last row of each episode",
                 n);
    return DT_OK;
}

static dt_status list_ends(struct dt_reader *reader, struct dt_episodes *episodes)
{
    static const char *const names[ENDS] = {"/terminals", "/timeouts"};
    static const char hint[] = "store a boolean for each row of /observations";
    struct dt_h5_array arrays[ENDS] = {0};
    int64_t n = reader->arrays[0].shape[0];
    dt_status status = DT_OK;
    for (int i = 0; i < ENDS && status == DT_OK; i++) {
        bool found = false;
        const struct dt_h5_array *array = &arrays[i];
        status = dt_h5_array_open(&reader->file, names[i], &arrays[i], &found);
        if (status == DT_OK && found && array->type == DT_DTYPE_COUNT)
            status = DT_H5_REJECT(array, hint, "holds %s", array->type_text);
        else if (status == DT_OK && found && (array->shape[1] != 1 || array->shape[0] != n))
            status = DT_H5_REJECT(array, hint,
                                  "has %" PRId64 " rows of %" PRId64
                                  " values, /observations has %" PRId64 " rows",
                                  array->shape[0], array->shape[1], n);
    }
    if (status == DT_OK)
        status = add_episodes(arrays, n, episodes);
    for (int i = 0; i < ENDS; i++)
        dt_h5_array_close(&arrays[i]);
    return status;
}

static const struct dt_episode_schema schema = {
    .inputs = "observations", .targets = "actions", .list = list_ends};

const struct dt_reader_kind dt_d4rl_reader = {
    .name = "d4rl", .datasets = {"/observations"}, .schema = &schema, DT_EPISODES_FUNCTIONS};

// The schema Minari has groups /episode_K, each with observations (one frame more than the episode
// has actions: the state after the last), actions, rewards, terminations, truncations.
#include "data/h5_episodes.h"

static dt_status list_groups(struct dt_reader *reader, const struct dt_scan_rules *rules,
                             struct dt_episodes *episodes)
{
    struct dt_h5_names names;
    (void)rules;
    dt_status status = dt_episodes_numbered(&reader->file, "/", "episode_", &names, NULL);
    for (int64_t i = 0; i < names.n && status == DT_OK; i++)
        status = dt_episodes_add_group(episodes, "", names.at[i]);
    dt_h5_names_free(&names);
    return status;
}

static const struct dt_episode_schema schema = {
    .inputs = "observations", .targets = "actions", .longer = "observations", .list = list_groups};

static dt_status has_episodes(const struct dt_h5_file *file, bool *found)
{
    struct dt_h5_names names;
    dt_status status = dt_episodes_numbered(file, "/", "episode_", &names, NULL);
    *found = names.n > 0;
    dt_h5_names_free(&names);
    return status;
}

const struct dt_reader_kind dt_minari_reader = {.name = "minari",
                                                .mark = "/episode_0",
                                                .has = has_episodes,
                                                .schema = &schema,
                                                DT_EPISODES_FUNCTIONS};

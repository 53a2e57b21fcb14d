// robomimic: /data/demo_K, each with obs/KEY and actions; /mask/NAME lists demos of a split.
#include "data/h5_episodes.h"

#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

// The list of rules->mask, sorted. *found: false where there is none, and none is asked for.
static dt_status read_mask(const struct dt_h5_file *file, const struct dt_scan_rules *rules,
                           struct dt_h5_names *mask, bool *found)
{
    char path[DT_DATA_NAME + 8], hint[DT_ERROR_HINT] = "";
    enum dt_h5_node node = DT_H5_NOTHING;
    const char *name = rules->mask[0] ? rules->mask : rules->mask_default;
    snprintf(path, sizeof path, "/mask/%s", name);
    if (name[0])
        DT_TRY(dt_h5_find(file, path, &node));
    *found = node == DT_H5_DATASET;
    if (!*found && rules->mask[0]) {
        dt_h5_name_members(file, "/mask", hint, sizeof hint);
        return DT_FAIL(DT_USER, hint, "%s has no list of episodes %s", file->path, path);
    }
    if (*found) {
        DT_TRY(dt_h5_strings(file, path, mask));
        qsort(mask->at, (size_t)mask->n, sizeof *mask->at, compare);
    }
    return DT_OK;
}

// Adds those of `names` that the mask lists, and counts them.
static dt_status add_demos(const struct dt_h5_names *names, const struct dt_h5_names *mask,
                           struct dt_episodes *episodes, int64_t *added)
{
    for (int64_t i = 0; i < names->n; i++) {
        if (mask && (mask->n == 0 ||
                     !bsearch(&names->at[i], mask->at, (size_t)mask->n, sizeof *mask->at, compare)))
            continue;
        DT_TRY(dt_episodes_add_group(episodes, "/data", names->at[i]));
        ++*added;
    }
    return DT_OK;
}

static dt_status list_demos(struct dt_reader *reader, const struct dt_scan_rules *rules,
                            struct dt_episodes *episodes)
{
    struct dt_h5_names names = {0}, mask = {0};
    bool masked = false;
    int64_t added = 0;
    dt_status status = dt_episodes_numbered(&reader->file, "/data", "demo_", &names);
    if (status == DT_OK)
        status = read_mask(&reader->file, rules, &mask, &masked);
    if (status == DT_OK)
        status = add_demos(&names, masked ? &mask : NULL, episodes, &added);
    if (status == DT_OK && masked && added < mask.n)
        status = DT_FAIL(DT_USER, "create the mask again",
                         "%s: /mask/%s lists %lld episodes, of which /data has %lld",
                         reader->file.path, rules->mask[0] ? rules->mask : rules->mask_default,
                         (long long)mask.n, (long long)added);
    dt_h5_names_free(&names);
    dt_h5_names_free(&mask);
    return status;
}

static dt_status open_robomimic(struct dt_reader *reader, const struct dt_scan_rules *rules,
                                struct dt_shard *shard)
{
    static const struct dt_episode_schema schema = {
        .inputs = "obs", .targets = "actions", .masks = true, .list = list_demos};
    return dt_episodes_open(reader, rules, &schema, shard);
}

const struct dt_reader_kind dt_robomimic_reader = {
    .name = "robomimic", .mark = "/data", .open = open_robomimic, DT_EPISODES_FUNCTIONS};

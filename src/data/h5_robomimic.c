// The schema robomimic has groups /data/demo_K, each with obs/KEY and actions; /mask/NAME lists the
// demos of a split.
#include "data/h5_episodes.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>

// Reads the list of rules->mask, by number, its first `most` names. *found: false where there is no
// list, and none is asked for.
static dt_status read_mask(const struct dt_h5_file *file, const struct dt_scan_rules *rules,
                           int64_t most, struct dt_h5_names *mask, bool *found)
{
    char path[DT_DATA_NAME + 8], hint[DT_ERROR_HINT] = "";
    enum dt_h5_node node = DT_H5_NOTHING;
    uint64_t address;
    const char *name = rules->mask[0] ? rules->mask : rules->mask_default;
    snprintf(path, sizeof path, "/mask/%s", name);
    if (name[0])
        DT_TRY(dt_h5_find(file, path, &node, &address));
    *found = node == DT_H5_DATASET;
    if (!*found && rules->mask[0]) {
        dt_h5_name_members(file, "/mask", hint, sizeof hint);
        return DT_FAIL(DT_USER, hint, "%s has no list of episodes %s", file->path, path);
    }
    if (*found) {
        DT_TRY_NOTE(dt_h5_strings(file, path, most, mask), "reading %s", path);
        if (mask->n > 0)
            qsort(mask->at, (size_t)mask->n, sizeof *mask->at, dt_episodes_by_number);
    }
    return DT_OK;
}

// Adds those of `names` that the mask lists; both lists are sorted by number.
static dt_status add_listed(const struct dt_reader *reader, const struct dt_scan_rules *rules,
                            const struct dt_h5_names *names, const struct dt_h5_names *mask,
                            struct dt_episodes *episodes)
{
    int64_t i = 0;
    for (int64_t j = 0; j < mask->n; j++) {
        while (i < names->n && dt_episodes_by_number(&names->at[i], &mask->at[j]) < 0)
            i++;
        bool again = j > 0 && strcmp(mask->at[j], mask->at[j - 1]) == 0;
        if (again || i == names->n || strcmp(names->at[i], mask->at[j]) != 0)
            return DT_FAIL(DT_USER, "create the mask again", "%s: /mask/%s lists %.64s%s",
                           reader->file.path, rules->mask[0] ? rules->mask : rules->mask_default,
                           mask->at[j],
                           again ? " twice" : ", but /data has no episode of that name");
        DT_TRY(dt_episodes_add_group(episodes, "/data", names->at[i]));
    }
    return DT_OK;
}

// Names the groups among `others`, which may have been meant as episodes.
static dt_status warn_of_others(const struct dt_h5_file *file, const struct dt_h5_names *others,
                                char *text, size_t size)
{
    enum { MOST = 5 };
    int64_t n = 0;
    for (int64_t i = 0; i < others->n; i++) {
        enum dt_h5_node node;
        uint64_t address;
        char path[DT_H5_PATH];
        snprintf(path, sizeof path, "/data/%s", others->at[i]);
        DT_TRY(dt_h5_find(file, path, &node, &address));
        if (node == DT_H5_GROUP && n++ < MOST)
            dt_append(text, size, "%s%.40s",
                      n > 1 ? ", " : "skipped groups of /data that are not named demo_NUMBER: ",
                      others->at[i]);
    }
    if (n > MOST)
        dt_append(text, size, " and %lld more", (long long)n - MOST);
    return DT_OK;
}

static dt_status list_demos(struct dt_reader *reader, const struct dt_scan_rules *rules,
                            struct dt_episodes *episodes)
{
    const struct dt_h5_file *file = &reader->file;
    struct dt_h5_names names = {0}, others = {0}, mask = {0};
    bool masked = false;
    dt_status status = dt_episodes_numbered(file, "/data", "demo_", &names, &others);
    if (status == DT_OK) // one more than there are: among so many, one is wrong
        status = read_mask(file, rules, names.n + 1, &mask, &masked);
    if (status == DT_OK && masked)
        status = add_listed(reader, rules, &names, &mask, episodes);
    for (int64_t i = 0; i < names.n && status == DT_OK && !masked; i++)
        status = dt_episodes_add_group(episodes, "/data", names.at[i]);
    if (status == DT_OK && !masked)
        status = warn_of_others(file, &others, episodes->warning, sizeof episodes->warning);
    dt_h5_names_free(&names);
    dt_h5_names_free(&others);
    dt_h5_names_free(&mask);
    return status;
}

static const struct dt_episode_schema schema = {
    .inputs = "obs", .targets = "actions", .masks = true, .list = list_demos};

const struct dt_reader_kind dt_robomimic_reader = {
    .name = "robomimic", .mark = "/data", .schema = &schema, DT_EPISODES_FUNCTIONS};

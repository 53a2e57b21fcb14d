// Episodes with one group each: finds the groups that match a pattern, and those of them listed in
// /mask. The kind `groups` uses the pattern data.episodes; robomimic and Minari are presets of it.
#include "data/h5_episodes.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

// Compares paths level by level, with numbers by value: demo_2, demo_10; a/10, a-b/2.
static int compare_paths(const void *a, const void *b)
{
    const char *x = *(char *const *)a, *y = *(char *const *)b;
    while (*x && *y) {
        if (is_digit(*x) && is_digit(*y)) {
            x += strspn(x, "0");
            y += strspn(y, "0");
            size_t n = strspn(x, "0123456789"), m = strspn(y, "0123456789");
            int order = n != m ? (n > m) - (n < m) : strncmp(x, y, n);
            if (order != 0)
                return order;
            x += n;
            y += m;
        } else if (*x != *y) {
            int c = *x == '/' ? 1 : (unsigned char)*x, d = *y == '/' ? 1 : (unsigned char)*y;
            return c - d;
        } else {
            x++;
            y++;
        }
    }
    return *x || *y ? (*x != 0) - (*y != 0) : strcmp(*(char *const *)a, *(char *const *)b);
}

static void sort(struct dt_h5_names *names)
{
    if (names->n > 0)
        qsort(names->at, (size_t)names->n, sizeof *names->at, compare_paths);
}

// Whether a name matches a part of a pattern: `*` stands for any bytes, `?` for one.
static bool matches(const char *part, const char *name)
{
    const char *star = NULL, *from = name;
    while (*name) {
        if (*part == '*') {
            star = part++;
            from = name;
        } else if (*part == '?' || *part == *name) {
            part++;
            name++;
        } else if (star) {
            part = star + 1;
            name = ++from;
        } else {
            return false;
        }
    }
    return part[strspn(part, "*")] == 0;
}

// Appends the groups below `group` ("": the root) that match a pattern, up to `most`.
static dt_status find_groups(const struct dt_h5_file *file, const char *group, const char *pattern,
                             int64_t most, struct dt_h5_names *found)
{
    pattern += strspn(pattern, "/");
    size_t length = strcspn(pattern, "/");
    char part[DT_DATA_NAME], path[DT_H5_PATH];
    struct dt_h5_names names = {0};
    if (length == 0)
        return dt_h5_names_add(found, group, strlen(group));
    snprintf(part, sizeof part, "%.*s", (int)length, pattern);
    dt_status status = strpbrk(part, "*?") ? dt_h5_list(file, group[0] ? group : "/", &names)
                                           : dt_h5_names_add(&names, part, length);
    for (int64_t i = 0; i < names.n && status == DT_OK && found->n < most; i++) {
        enum dt_h5_node node;
        uint64_t address;
        if (!matches(part, names.at[i]))
            continue;
        if (snprintf(path, sizeof path, "%s/%s", group, names.at[i]) >= DT_H5_PATH)
            status = DT_FAIL(DT_USER, NULL, "%s: the path of %s/%s is too long", file->path, group,
                             names.at[i]);
        bool external = false; // an episode may be in another file, its parent groups not
        if (status == DT_OK && !pattern[length + strspn(pattern + length, "/")])
            status = dt_h5_external(file, path, NULL, NULL, &external);
        if (status == DT_OK && external)
            status = dt_h5_names_add(found, path, strlen(path));
        else if (status == DT_OK)
            status = dt_h5_find(file, path, &node, &address);
        if (status == DT_OK && !external && node == DT_H5_GROUP)
            status = find_groups(file, path, pattern + length, most, found);
    }
    dt_h5_names_free(&names);
    return status;
}

dt_status dt_groups_has(const struct dt_h5_file *file, const char *pattern, bool *found)
{
    struct dt_h5_names names = {0};
    dt_status status = find_groups(file, "", pattern, 1, &names);
    *found = names.n > 0;
    dt_h5_names_free(&names);
    return status;
}

// Reads the first `most` names of the list rules->mask, in order. *found: false if there is no list
// and none was requested.
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
        return DT_FAIL(DT_USER, hint[0] ? hint : "store the names of episodes there",
                       "%s has no list of episodes %s", file->path, path);
    }
    if (*found) {
        DT_TRY_NOTE(dt_h5_strings(file, path, most, mask), "reading %s", path);
        sort(mask);
    }
    return DT_OK;
}

// Keeps those of `groups` whose paths below `parent` are in the mask; both are sorted.
static dt_status keep_listed(const struct dt_h5_file *file, const char *list, const char *parent,
                             const struct dt_h5_names *mask, struct dt_h5_names *groups)
{
    int64_t i = 0, kept = 0;
    for (int64_t j = 0; j < mask->n; j++) {
        const char *name = mask->at[j];
        bool again = j > 0 && strcmp(name, mask->at[j - 1]) == 0;
        while (i < groups->n && strcmp(groups->at[i] + strlen(parent) + 1, name) != 0)
            i++;
        if (again || i == groups->n)
            return DT_FAIL(DT_USER, "create the mask again", "%s: /mask/%s lists %.64s%s%s%s",
                           file->path, list, name, again ? " twice" : ", but ",
                           again       ? ""
                           : parent[0] ? parent
                                       : "the file",
                           again ? "" : " has no episode of that name");
        char *group = groups->at[i];
        groups->at[i++] = groups->at[kept];
        groups->at[kept++] = group;
    }
    while (groups->n > kept)
        free(groups->at[--groups->n]);
    return DT_OK;
}

// "/data" of "/data/demo_*": the parent of the list's names.
static void fixed_part(const char *pattern, char parent[DT_H5_PATH])
{
    parent[0] = 0;
    for (;;) {
        pattern += strspn(pattern, "/");
        size_t n = strcspn(pattern, "/");
        const char *next = pattern + n + strspn(pattern + n, "/");
        if (!*next || strcspn(pattern, "*?") < n)
            return;
        dt_append(parent, DT_H5_PATH, "/%.*s", (int)n, pattern);
        pattern = next;
    }
}

dt_status dt_groups_list(const struct dt_reader *reader, const char *pattern,
                         struct dt_episodes *episodes)
{
    const struct dt_h5_file *file = &reader->file;
    const struct dt_scan_rules *rules = &episodes->rules;
    const char *list = rules->mask[0] ? rules->mask : rules->mask_default;
    struct dt_h5_names groups = {0}, mask = {0};
    char parent[DT_H5_PATH], hint[DT_ERROR_HINT] = "";
    bool masked = false;
    if (!pattern[strspn(pattern, "/")])
        return dt_episodes_add_group(reader, episodes, "");
    fixed_part(pattern, parent);
    dt_status status = find_groups(file, "", pattern, INT64_MAX, &groups);
    sort(&groups);
    if (status == DT_OK && groups.n == 0) {
        dt_h5_name_members(file, parent[0] ? parent : "/", hint, sizeof hint);
        status =
            DT_FAIL(DT_USER, hint, "%s has no episodes: no group is named %s", file->path, pattern);
    }
    if (status == DT_OK) // one more than exist, so one of them must be wrong
        status = read_mask(file, rules, groups.n + 1, &mask, &masked);
    if (status == DT_OK && masked)
        status = keep_listed(file, list, parent, &mask, &groups);
    if (status == DT_OK && masked && groups.n == 0)
        status = DT_FAIL(DT_USER, "create the mask again", "%s: /mask/%s lists no episode",
                         file->path, list);
    if (masked)
        snprintf(episodes->mask, sizeof episodes->mask, "%s", list);
    for (int64_t i = 0; i < groups.n && status == DT_OK; i++)
        status = dt_episodes_add_group(reader, episodes, groups.at[i]);
    dt_h5_names_free(&groups);
    dt_h5_names_free(&mask);
    return status;
}

static const struct dt_episode_schema any = {.inputs = "", .targets = "", .groups = ""};
const struct dt_reader_kind dt_groups_reader = {
    .name = "groups", .schema = &any, DT_EPISODES_FUNCTIONS};

// /data/NAME/obs/KEY and /data/NAME/actions.
static const struct dt_episode_schema robomimic = {
    .inputs = "obs", .targets = "actions", .groups = "/data/*"};
const struct dt_reader_kind dt_robomimic_reader = {
    .name = "robomimic", .schema = &robomimic, DT_EPISODES_FUNCTIONS};

// /episode_K has actions, rewards, terminations, truncations, and observations and infos with one
// more row (the state after the last action).
static const struct dt_episode_schema minari = {.inputs = "observations",
                                                .targets = "actions",
                                                .groups = "/episode_*",
                                                .longer = {"observations", "infos"}};
const struct dt_reader_kind dt_minari_reader = {
    .name = "minari", .schema = &minari, DT_EPISODES_FUNCTIONS};

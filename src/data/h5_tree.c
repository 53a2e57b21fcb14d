// What a file holds: what a path names, the names in a group, lists of strings.
#include "base/list.h"
#include "base/text.h"
#include "data/h5_file.h"

#include <stdlib.h>
#include <string.h>

// The datasets of episodes are many, and most of a path is that of the one before. Each of these
// groups was checked to be no link.
enum { DEPTH = 32, PATH_BYTES = 1024 };
struct dt_h5_trail {
    char path[PATH_BYTES];
    int n;
    struct {
        size_t end; // path[0, end) names the group
        hid_t id;
    } at[DEPTH];
};

struct dt_h5_trail *dt_h5_trail_new(void)
{
    return calloc(1, sizeof(struct dt_h5_trail));
}

// A soft or external link may lead to another file, of which nothing was checked. `end` of `path`.
static dt_status check_link(const struct dt_h5_file *file, hid_t group, const char *name,
                            const char *path, size_t end, bool *found)
{
    H5L_info_t link;
    *found = H5Lget_info(group, name, &link, H5P_DEFAULT) >= 0;
    if (!*found) {
        H5Eclear2(H5E_DEFAULT);
        if (H5Lexists(group, name, H5P_DEFAULT) == 0)
            return DT_OK;
        return dt_h5_fail(DT_USER, "inspect", file->path, "copy or create the file again");
    }
    if (link.type != H5L_TYPE_HARD)
        return DT_FAIL(DT_USER, "store the data in the shard itself",
                       "%s: %.*s is a link, not a dataset", file->path, (int)end, path);
    return DT_OK;
}

static dt_status node_type(const struct dt_h5_file *file, hid_t group, const char *name, hid_t *id,
                           enum dt_h5_node *node)
{
    *id = H5Oopen(group, name, H5P_DEFAULT);
    if (*id < 0)
        return dt_h5_fail(DT_USER, "inspect", file->path, "copy or create the file again");
    H5I_type_t type = H5Iget_type(*id);
    *node = type == H5I_GROUP ? DT_H5_GROUP : type == H5I_DATASET ? DT_H5_DATASET : DT_H5_NOTHING;
    return DT_OK;
}

// Appends the group path[start, end) to the trail. *found: whether it is one.
static dt_status follow(const struct dt_h5_file *file, const char *path, size_t start, size_t end,
                        bool *found)
{
    struct dt_h5_trail *trail = file->trail;
    hid_t parent = trail->n > 0 ? trail->at[trail->n - 1].id : file->id, id;
    enum dt_h5_node node;
    if (trail->n == DEPTH)
        return DT_FAIL(DT_USER, NULL, "%s: %s has more than %d levels", file->path, path, DEPTH);
    memcpy(trail->path + start, path + start, end - start);
    trail->path[end] = 0;
    DT_TRY(check_link(file, parent, trail->path + start, path, end, found));
    if (!*found)
        return DT_OK;
    DT_TRY(node_type(file, parent, trail->path + start, &id, &node));
    *found = node == DT_H5_GROUP;
    if (!*found) {
        H5Oclose(id);
        return DT_OK;
    }
    trail->path[end] = '/';
    trail->at[trail->n].end = end;
    trail->at[trail->n++].id = id;
    return DT_OK;
}

dt_status dt_h5_locate(const struct dt_h5_file *file, const char *path, hid_t *group,
                       const char **name, bool *found)
{
    struct dt_h5_trail *trail = file->trail;
    size_t length = strlen(path), last = length;
    if (length >= PATH_BYTES)
        return DT_FAIL(DT_USER, NULL, "%s: a path of %zu bytes is too long: %.64s…", file->path,
                       length, path);
    while (last > 0 && path[last - 1] != '/')
        last--;
    *name = path + last;
    int shared = 0;
    while (shared < trail->n && trail->at[shared].end < last &&
           memcmp(trail->path, path, trail->at[shared].end + 1) == 0)
        shared++;
    while (trail->n > shared)
        H5Oclose(trail->at[--trail->n].id);
    size_t start = shared > 0 ? trail->at[shared - 1].end + 1 : 1;
    memcpy(trail->path, path, start < last ? start : last);
    *found = true;
    for (size_t end; *found && start < last; start = end + 1) {
        end = start + strcspn(path + start, "/");
        if (end == start) // "//" is "/"
            trail->path[start] = '/';
        else
            DT_TRY(follow(file, path, start, end, found));
    }
    *group = trail->n > 0 ? trail->at[trail->n - 1].id : file->id;
    if (*found && !**name) // "obs/" is "obs"
        *name = ".";
    else if (*found)
        return check_link(file, *group, *name, path, length, found);
    return DT_OK;
}

dt_status dt_h5_has(const struct dt_h5_file *file, const char *path, bool *found)
{
    hid_t group;
    const char *name;
    return dt_h5_locate(file, path, &group, &name, found);
}

dt_status dt_h5_find(const struct dt_h5_file *file, const char *path, enum dt_h5_node *node)
{
    hid_t group, id;
    const char *name;
    bool found;
    *node = DT_H5_NOTHING;
    DT_TRY(dt_h5_locate(file, path, &group, &name, &found));
    if (!found)
        return DT_OK;
    DT_TRY(node_type(file, group, name, &id, node));
    H5Oclose(id);
    return DT_OK;
}

static dt_status add_name(struct dt_h5_names *names, const char *name, size_t length)
{
    DT_TRY(dt_list_grow(&names->at, names->n, sizeof *names->at));
    names->at[names->n] = strndup(name, length);
    if (!names->at[names->n])
        return DT_FAIL(DT_MACHINE, NULL, "no memory for a list of %lld names",
                       (long long)names->n + 1);
    names->n++;
    return DT_OK;
}

struct listing {
    struct dt_h5_names *names;
    dt_status status;
};

static herr_t note_name(hid_t group, const char *name, const H5L_info_t *info, void *context)
{
    struct listing *listing = context;
    (void)group, (void)info;
    listing->status = add_name(listing->names, name, strlen(name));
    return listing->status == DT_OK ? 0 : -1;
}

dt_status dt_h5_list(const struct dt_h5_file *file, const char *group, struct dt_h5_names *names)
{
    *names = (struct dt_h5_names){0};
    hid_t id = H5Gopen2(file->id, group, H5P_DEFAULT);
    if (id < 0)
        return dt_h5_fail(DT_USER, "open a group of", file->path, "copy or create the file again");
    struct listing listing = {names, DT_OK};
    herr_t failed = H5Literate(id, H5_INDEX_NAME, H5_ITER_INC, NULL, note_name, &listing);
    dt_status status = listing.status;
    if (failed < 0 && status == DT_OK)
        status = dt_h5_fail(DT_USER, "list a group of", file->path, "create the file again");
    H5Gclose(id);
    return status;
}

void dt_h5_names_free(struct dt_h5_names *names)
{
    for (int64_t i = 0; i < names->n; i++)
        free(names->at[i]);
    free(names->at);
    *names = (struct dt_h5_names){0};
}

void dt_h5_name_members(const struct dt_h5_file *file, const char *group, char *text, size_t size)
{
    enum { MOST = 20 };
    struct dt_h5_names names = {0};
    enum dt_h5_node node;
    if (dt_h5_find(file, group, &node) == DT_OK && node == DT_H5_GROUP)
        dt_h5_list(file, group, &names);
    dt_error_clear();
    for (int64_t i = 0; i < names.n && i < MOST; i++)
        dt_append(text, size, "%s%s", i ? ", " : "it has ", names.at[i]);
    dt_h5_names_free(&names);
}

// `memory`: the strings' type, as stored. Fixed strings may fill their whole size, without a zero.
static dt_status read_strings(const struct dt_h5_file *file, hid_t id, hid_t memory, hid_t space,
                              struct dt_h5_names *names)
{
    bool variable = H5Tis_variable_str(memory) > 0;
    size_t size = H5Tget_size(memory), n = (size_t)H5Sget_simple_extent_npoints(space);
    char *bytes = calloc(n + 1, size);
    dt_status status = DT_OK;
    if (!bytes)
        return DT_FAIL(DT_MACHINE, NULL, "no memory for %zu strings", n);
    if (H5Dread(id, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes) < 0)
        status = dt_h5_fail(DT_USER, "read strings of", file->path, "create the file again");
    for (size_t i = 0; i < n && status == DT_OK; i++) {
        const char *text = bytes + i * size;
        if (variable)
            memcpy(&text, bytes + i * size, sizeof text);
        size_t length = !text ? 0 : variable ? strlen(text) : strnlen(text, size);
        status = add_name(names, text ? text : "", length);
    }
    if (variable)
        H5Dvlen_reclaim(memory, space, H5P_DEFAULT, bytes);
    free(bytes);
    return status;
}

dt_status dt_h5_strings(const struct dt_h5_file *file, const char *path, struct dt_h5_names *names)
{
    *names = (struct dt_h5_names){0};
    hid_t id = H5Dopen2(file->id, path, H5P_DEFAULT);
    if (id < 0)
        return dt_h5_fail(DT_USER, "open a dataset of", file->path, "create the file again");
    hid_t type = H5Dget_type(id), space = H5Dget_space(id);
    dt_status status;
    if (H5Tget_class(type) == H5T_STRING && H5Sget_simple_extent_ndims(space) == 1)
        status = read_strings(file, id, type, space, names);
    else
        status = DT_FAIL(DT_USER, "store the episodes' names in one dimension",
                         "%s: %s is not a list of strings", file->path, path);
    H5Tclose(type);
    H5Sclose(space);
    H5Dclose(id);
    return status;
}

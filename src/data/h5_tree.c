// Looks up paths in a file and lists the names in a group.
#include "base/file.h"
#include "base/list.h"
#include "base/memory.h"
#include "base/text.h"
#include "data/h5_file.h"

#include <stdlib.h>
#include <string.h>

// Caches the groups of the last path that was looked up, because successive datasets of episodes
// share most of their path. Each group of the trail was checked not to be a link.
enum { DEPTH = 32, PATH_BYTES = 1024 };
struct dt_h5_trail {
    char path[PATH_BYTES];
    int n;
    struct {
        size_t end; // path[0, end) names the group
        hid_t id;
    } at[DEPTH];
};

dt_status dt_h5_trail_new(struct dt_h5_trail **trail)
{
    return DT_NEW(trail, 1, "the path of a group");
}

// Refuses a soft or external link, which may lead to an unchecked file. Messages show path[0, end).
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

// Finds the kind of an object in a group and the address of its header, without decoding its
// contents, as opening it would.
static dt_status node_of(const struct dt_h5_file *file, hid_t group, const char *name,
                         enum dt_h5_node *node, uint64_t *address)
{
#if H5_VERSION_GE(1, 12, 0)
    H5O_info2_t info;
    haddr_t at = HADDR_UNDEF;
    bool failed = H5Oget_info_by_name3(group, name, &info, H5O_INFO_BASIC, H5P_DEFAULT) < 0 ||
                  H5VLnative_token_to_addr(file->id, info.token, &at) < 0;
#else
    H5O_info_t info;
    bool failed = H5Oget_info_by_name2(group, name, &info, H5O_INFO_BASIC, H5P_DEFAULT) < 0;
    haddr_t at = info.addr;
#endif
    if (failed)
        return dt_h5_fail(DT_USER, "inspect", file->path, "copy or create the file again");
    *node = info.type == H5O_TYPE_GROUP     ? DT_H5_GROUP
            : info.type == H5O_TYPE_DATASET ? DT_H5_DATASET
                                            : DT_H5_OTHER;
    *address = at;
    return DT_OK;
}

// Appends the group path[start, end) to the trail. *found: whether it is a group.
static dt_status follow(const struct dt_h5_file *file, const char *path, size_t start, size_t end,
                        bool *found)
{
    struct dt_h5_trail *trail = file->trail;
    hid_t parent = trail->n > 0 ? trail->at[trail->n - 1].id : file->id, id;
    enum dt_h5_node node;
    uint64_t address;
    if (trail->n == DEPTH)
        return DT_FAIL(DT_USER, "store the data in fewer groups within groups",
                       "%s: %s has more than %d levels", file->path, path, DEPTH);
    memcpy(trail->path + start, path + start, end - start);
    trail->path[end] = 0;
    DT_TRY(check_link(file, parent, trail->path + start, path, end, found));
    if (!*found)
        return DT_OK;
    DT_TRY(node_of(file, parent, trail->path + start, &node, &address));
    *found = node == DT_H5_GROUP;
    if (!*found)
        return DT_OK;
    id = H5Gopen2(parent, trail->path + start, H5P_DEFAULT);
    if (id < 0)
        return dt_h5_fail(DT_USER, "open a group of", file->path, "copy or create the file again");
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
        H5Gclose(trail->at[--trail->n].id);
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

dt_status dt_h5_find(const struct dt_h5_file *file, const char *path, enum dt_h5_node *node,
                     uint64_t *address)
{
    hid_t group;
    const char *name;
    bool found;
    *node = DT_H5_NOTHING;
    DT_TRY(dt_h5_locate(file, path, &group, &name, &found));
    return found ? node_of(file, group, name, node, address) : DT_OK;
}

dt_status dt_h5_external(const struct dt_h5_file *file, const char *path, char *target, char *inner,
                         bool *external)
{
    char parent[PATH_BYTES], value[DT_PATH + DT_H5_PATH];
    const char *last = strrchr(path, '/'), *name, *other, *in_other;
    H5L_info_t link;
    hid_t group;
    bool found;
    *external = false;
    if (!last)
        return DT_OK;
    snprintf(parent, sizeof parent, "%.*s", (int)(last + 1 - path), path);
    DT_TRY(dt_h5_locate(file, parent, &group, &name, &found));
    if (!found || !last[1] || H5Lget_info(group, last + 1, &link, H5P_DEFAULT) < 0 ||
        link.type != H5L_TYPE_EXTERNAL) {
        H5Eclear2(H5E_DEFAULT);
        return DT_OK;
    }
    *external = true;
    if (!target)
        return DT_OK;
    unsigned flags;
    if (link.u.val_size > sizeof value ||
        H5Lget_val(group, last + 1, value, sizeof value, H5P_DEFAULT) < 0 ||
        H5Lunpack_elink_val(value, link.u.val_size, &flags, &other, &in_other) < 0)
        return dt_h5_fail(DT_USER, "follow a link of", file->path, "copy or create the file again");
    int length = snprintf(inner, DT_H5_PATH, "%s%s", in_other[0] == '/' ? "" : "/", in_other);
    if (strchr(other, '/') || length >= DT_H5_PATH)
        return DT_FAIL(DT_USER, "put both files into one folder, and create the link again",
                       "%s: %s is a link to %s, which is not in the folder of the file", file->path,
                       path, other);
    const char *slash = strrchr(file->path, '/');
    return dt_path(target, "%.*s%s", slash ? (int)(slash + 1 - file->path) : 0, file->path, other);
}

dt_status dt_h5_names_add(struct dt_h5_names *names, const char *name, size_t length)
{
    DT_TRY(dt_list_grow(&names->at, names->n, sizeof *names->at));
    DT_TRY(dt_memory_text(&names->at[names->n], "%.*s", (int)length, name));
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
    listing->status = dt_h5_names_add(listing->names, name, strlen(name));
    return listing->status == DT_OK ? 0 : -1;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

// The library lists names in storage order, and we sort them: when libhdf5 (1.10.8) sorts a damaged
// group of more than eight links, it frees an uninitialised table.
dt_status dt_h5_list(const struct dt_h5_file *file, const char *group, struct dt_h5_names *names)
{
    *names = (struct dt_h5_names){0};
    hid_t id = H5Gopen2(file->id, group, H5P_DEFAULT);
    if (id < 0)
        return dt_h5_fail(DT_USER, "open a group of", file->path, "copy or create the file again");
    struct listing listing = {names, DT_OK};
    herr_t failed = H5Literate(id, H5_INDEX_NAME, H5_ITER_NATIVE, NULL, note_name, &listing);
    dt_status status = listing.status;
    if (failed < 0 && status == DT_OK)
        status = dt_h5_fail(DT_USER, "list a group of", file->path, "create the file again");
    H5Gclose(id);
    if (names->n > 0)
        qsort(names->at, (size_t)names->n, sizeof *names->at, compare_names);
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
    uint64_t address;
    if (dt_h5_find(file, group, &node, &address) == DT_OK && node == DT_H5_GROUP)
        dt_h5_list(file, group, &names);
    dt_error_clear();
    for (int64_t i = 0; i < names.n && i < MOST; i++)
        dt_append(text, size, "%s%s", i ? ", " : "it has ", names.at[i]);
    dt_h5_names_free(&names);
}

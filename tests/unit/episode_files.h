// Writes files of episodes with known numbers in the layouts of dtrain, robomimic, Minari and D4RL
// and in nested groups. A frame has a [3] floats, b an integer in [0, B_TABLE) and img [2, 2]
// bytes; its actions [3] are two that are 0 or 1 and a class in [0, CLASSES).
#pragma once

#include "shards.h"

enum { A = 3, IMG = 4, ACTIONS = 3, B_TABLE = 7, CLASSES = 5, EPISODES = 13, LONGEST = 60 };
enum episode_layout { NATIVE, ROBOMIMIC, MINARI, D4RL, GROUPS, LAYOUTS };
static const char *const layout_name[LAYOUTS] = {"episodes", "robomimic", "minari", "d4rl",
                                                 "groups"};
// The pattern of data.episodes. Files of groups also contain groups that are no episodes.
static const char *const layout_episodes[LAYOUTS] = {[GROUPS] = "subject_*/trial_?"};
// Lengths for windows of 16: one frame, one less, equal, one more, two windows, and others.
static const int64_t episode_frames[EPISODES] = {5, 1, 17, 16, 33, 50, 15, 32, 60, 2, 48, 31, 7};

static float unit_of_a = 1; // the number that is written for a 1 of `a`

// fp16 holds these values exactly, too.
static inline float value_a(int64_t e, int64_t t, int64_t c)
{
    return unit_of_a * ((float)((e * 31 + t * 7 + c * 3) % 101) / 8 - 3);
}
static inline int64_t value_b(int64_t e, int64_t t)
{
    return (e + 2 * t) % B_TABLE;
}
static inline int value_img(int64_t e, int64_t t, int64_t c)
{
    return (int)((e * 5 + t * 11 + c * 50) % 256);
}
static inline int value_action(int64_t e, int64_t t, int64_t c)
{
    return (int)(c < 2 ? (e + t * (c + 1)) % 2 : (e + t) % CLASSES);
}

static inline hid_t f16_type(void)
{
    hid_t type = H5Tcopy(H5T_IEEE_F32LE);
    H5Tset_fields(type, 15, 10, 5, 0, 10);
    H5Tset_size(type, 2);
    H5Tset_ebias(type, 15);
    return type;
}

static inline hid_t bool_type(void) // as h5py does
{
    hid_t type = H5Tenum_create(H5T_STD_I8LE);
    int8_t value = 0;
    H5Tenum_insert(type, "FALSE", &value);
    value = 1;
    H5Tenum_insert(type, "TRUE", &value);
    return type;
}

static inline void new_group(hid_t file, const char *path)
{
    H5Gclose(H5Gcreate2(file, path, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
}

struct episode_types {
    hid_t a, b, img, actions; // types in the file
    bool gzip;
};

// Numbers of several episodes one after another, which put_frames writes.
struct numbers {
    float a[EPISODES * (LONGEST + 1) * A];
    int64_t b[EPISODES * (LONGEST + 1)];
    uint8_t img[EPISODES * (LONGEST + 1) * IMG];
    int32_t actions[EPISODES * (LONGEST + 1) * ACTIONS];
    uint8_t ends[EPISODES * LONGEST], late[EPISODES * LONGEST];
    int64_t n;
};

// `more`: how many frames follow the last action, which is one in Minari.
static inline void add_numbers(struct numbers *to, int64_t e, int64_t more)
{
    int64_t frames = episode_frames[e] + more;
    for (int64_t t = 0; t < frames; t++, to->n++) {
        for (int64_t c = 0; c < A; c++)
            to->a[to->n * A + c] = value_a(e, t, c);
        to->b[to->n] = value_b(e, t);
        for (int64_t c = 0; c < IMG; c++)
            to->img[to->n * IMG + c] = (uint8_t)value_img(e, t, c);
        for (int64_t c = 0; c < ACTIONS; c++)
            to->actions[to->n * ACTIONS + c] = value_action(e, t, c);
        if (!more) {
            to->ends[to->n] = t + 1 == frames && e % 2 == 0;
            to->late[to->n] = t + 1 == frames && e % 2 == 1;
        }
    }
}

static inline void put_numbers(hid_t file, const char *group, const char *name, hid_t disk,
                               hid_t memory, int n_dims, int64_t n, int64_t width, const void *data,
                               bool gzip)
{
    char path[256], *turned = NULL;
    snprintf(path, sizeof path, "%s/%s", group, name);
    struct put what = {.name = path, .disk = disk, .memory = memory, .n_dims = n_dims};
    what.dims[0] = (hsize_t)n;
    what.dims[1] = (hsize_t)width;
    if (n_dims == 3)
        what.dims[1] = what.dims[2] = 2;
    what.data = data;
    what.chunk = gzip ? (n < 7 ? (hsize_t)n : 7) : 0;
    what.gzip = gzip ? 4 : 0;
    if (time_second && n_dims > 1) {
        size_t outer = what.dims[1], piece = H5Tget_size(memory) * (size_t)width / outer;
        what.dims[0] = outer;
        what.dims[1] = (hsize_t)n;
        turned = malloc((size_t)n * outer * piece);
        for (size_t t = 0; data && t < (size_t)n; t++)
            for (size_t i = 0; i < outer; i++)
                memcpy(turned + (i * (size_t)n + t) * piece,
                       (const char *)data + (t * outer + i) * piece, piece);
        what.data = data ? turned : NULL;
    }
    put(file, &what);
    free(turned);
}

// Writes a, b and img into `group` and actions into `parent`.
static inline void put_frames(hid_t file, const char *group, const char *a,
                              const struct episode_types *types, const struct numbers *numbers)
{
    int64_t n = numbers->n;
    put_numbers(file, group, a, types->a, H5T_NATIVE_FLOAT, 2, n, A, numbers->a, types->gzip);
    put_numbers(file, group, "b", types->b, H5T_NATIVE_INT64, 1, n, 1, numbers->b, types->gzip);
    put_numbers(file, group, "img", types->img, H5T_NATIVE_UINT8, 3, n, IMG, numbers->img,
                types->gzip);
}

static inline void put_actions(hid_t file, const char *group, const struct episode_types *types,
                               const struct numbers *numbers)
{
    put_numbers(file, group, "actions", types->actions, H5T_NATIVE_INT32, 2, numbers->n, ACTIONS,
                numbers->actions, types->gzip);
}

static inline void put_names(hid_t file, const char *path, int n, const char *const *names,
                             bool variable)
{
    hid_t type = H5Tcopy(H5T_C_S1);
    char fixed[EPISODES][16] = {{0}};
    H5Tset_size(type, variable ? H5T_VARIABLE : sizeof fixed[0]);
    for (int i = 0; i < n; i++)
        snprintf(fixed[i], sizeof fixed[i], "%s", names[i]);
    put_vector(file, path, type, n, variable ? (const void *)names : fixed);
    H5Tclose(type);
}

static inline void write_shared(hid_t file, enum episode_layout layout,
                                const struct episode_types *types, int64_t from, int64_t to)
{
    static struct numbers all;
    uint64_t starts[EPISODES];
    all.n = 0;
    for (int64_t e = from; e < to; e++) {
        starts[e - from] = (uint64_t)all.n;
        add_numbers(&all, e, 0);
    }
    put_frames(file, "", layout == NATIVE ? "frames" : "observations", types, &all);
    put_actions(file, "", types, &all);
    if (layout == NATIVE) {
        put_vector(file, "episode_starts", H5T_STD_U64LE, to - from, starts);
    } else {
        hid_t boolean = bool_type();
        put_numbers(file, "", "terminals", boolean, boolean, 1, all.n, 1, all.ends, false);
        put_numbers(file, "", "timeouts", H5T_STD_U8LE, H5T_STD_U8LE, 1, all.n, 1, all.late, false);
        H5Tclose(boolean);
    }
}

static inline void write_groups(hid_t file, enum episode_layout layout,
                                const struct episode_types *types, int64_t from, int64_t to)
{
    static struct numbers frames, actions;
    const char *names[EPISODES];
    char texts[EPISODES][32];
    if (layout == ROBOMIMIC) {
        new_group(file, "/data");
        new_group(file, "/mask");
    }
    for (int64_t e = from; e < to; e++) {
        char group[64], inner[96];
        snprintf(texts[e], sizeof texts[e], "demo_%ld", (long)e);
        names[e - from] = texts[e];
        snprintf(group, sizeof group, layout == ROBOMIMIC ? "/data/demo_%ld" : "/episode_%ld",
                 (long)e);
        if (layout == GROUPS) { // in the order of numbers: 8, 9, 10
            snprintf(group, sizeof group, "/subject_%ld", (long)(8 + e / 5));
            if (e == from || e % 5 == 0)
                new_group(file, group);
            snprintf(group, sizeof group, "/subject_%ld/trial_%ld", (long)(8 + e / 5), (long)e % 5);
        }
        snprintf(inner, sizeof inner, "%s/%s", group, layout == MINARI ? "observations" : "obs");
        frames.n = actions.n = 0;
        add_numbers(&frames, e, layout == MINARI);
        add_numbers(&actions, e, 0);
        new_group(file, group);
        new_group(file, inner);
        put_frames(file, inner, "a", types, &frames);
        put_actions(file, group, types, &actions);
    }
    if (layout == GROUPS) {
        new_group(file, "/subject_8/notes");
        new_group(file, "/other");
        new_group(file, "/other/trial_1");
    }
    if (layout == ROBOMIMIC) { // the first four in disorder, and all others
        const char *first[4] = {names[2], names[0], names[3], names[1]};
        put_names(file, "/mask/valid", 4, first, true);
        put_names(file, "/mask/train", (int)(to - from) - 4, names + 4, false);
    }
}

// Writes episodes [from, to).
static inline void write_episodes(const char *path, enum episode_layout layout,
                                  const struct episode_types *types, int64_t from, int64_t to)
{
    hid_t file = new_file(path);
    if (layout == NATIVE || layout == D4RL)
        write_shared(file, layout, types, from, to);
    else
        write_groups(file, layout, types, from, to);
    H5Fclose(file);
}

// Sets one column of a row.
static inline void put_value(const char *path, const char *dataset, hsize_t row, hsize_t column,
                             double value)
{
    hid_t file = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT),
          id = H5Dopen2(file, dataset, H5P_DEFAULT);
    hid_t space = H5Dget_space(id), one = H5Screate(H5S_SCALAR);
    hsize_t start[3] = {row, column}, count[3] = {1, 1, 1};
    H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, count, NULL);
    CHECK(H5Dwrite(id, H5T_NATIVE_DOUBLE, one, space, H5P_DEFAULT, &value) >= 0,
          "cannot change %s of %s", dataset, path);
    H5Sclose(one);
    H5Sclose(space);
    H5Dclose(id);
    H5Fclose(file);
}

// Shards of episodes that are refused, or read with a warning: which message says so.
#include "base/file.h"
#include "base/log.h"
#include "captured.h"
#include "data/h5_file.h"
#include "data/pack.h"
#include "episode_cases.h"

#include <malloc.h>

static void refuse_inputs(enum episode_layout layout, const char *text, const char *phrase)
{
    struct dt_scan_rules rules = rules_of(layout, 0);
    snprintf(rules.inputs, sizeof rules.inputs, "%s", text);
    refuse_scan(&rules, phrase);
}

// The error's hint, too.
static void refuse_with(const struct dt_scan_rules *rules, const char *phrase, const char *hint)
{
    struct dt_dataset *dataset;
    CHECK_INT(dt_dataset_scan(in_scratch("a.h5"), rules, &dataset), DT_USER);
    CHECK_SAYS(phrase);
    CHECK(strstr(dt_error_current()->hint, hint), "'%s' is not in the hint '%s'", hint,
          dt_error_current()->hint);
    dt_error_clear();
}

// The first error of a pass over the data, and of `dtrain verify`'s reading.
static void refuse_reading(const struct dt_scan_rules *rules, const struct dt_read_rules *read,
                           const char *phrase)
{
    struct dt_dataset *dataset = scan_all(rules);
    struct dt_loader_config config = one_pass(dataset);
    config.rules = *read;
    struct dt_loader *loader;
    const struct dt_batch *batch;
    dt_status status = DT_OK;
    CHECK_OK(dt_loader_open(&config, 0, &loader));
    do
        status = dt_loader_next(loader, &batch, NULL);
    while (status == DT_OK && batch);
    CHECK_FAILS(status, DT_USER, phrase);
    dt_loader_close(loader);
}

static void refuse_values(const struct dt_scan_rules *rules, const char *phrase)
{
    refuse_reading(rules, &(struct dt_read_rules){0}, phrase);
}

static void test_columns_refused(void)
{
    struct dt_scan_rules rules;
    write_a(ROBOMIMIC);
    rules = rules_of(ROBOMIMIC, 0);
    strcpy(rules.inputs, "obs/c");
    refuse_with(&rules, "a.h5 has no /data/demo_0/obs/c (data.inputs)", "it has a, b, img");
    strcpy(rules.inputs, "@unit");
    refuse_with(&rules, "a.h5 has no /data/demo_0/@unit (data.inputs)", "name an attribute that");
    strcpy(rules.inputs, "obs/a[3]");
    refuse_with(&rules, "has 3 columns; there is no column 3", "columns are counted from 0");
    refuse_inputs(ROBOMIMIC, "obs/a[1:4]",
                  "/data/demo_0/obs/a has 3 columns; there is no column 3");
    refuse_inputs(ROBOMIMIC, "obs/a:id*4", "obs/a holds 32-bit floating-point numbers");
    refuse_inputs(ROBOMIMIC, "obs/a obs/img[2:2]", "data.inputs: 'obs/img[2:2]'");
    refuse_inputs(ROBOMIMIC, "obs/b:id*2147483648", "data.inputs: 'obs/b:id*2147483648'");
    static const char *const words[] = {"obs/a[",    "obs/a[1",     "[1]",
                                        "obs/a:id",  "obs/b:id*0",  "obs/b:id*3x",
                                        "obs/a[-1]", "obs/a[1:2]x", "/"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        refuse_inputs(ROBOMIMIC, words[i], "data.inputs: '");
    rules = rules_of(ROBOMIMIC, 0);
    strcpy(rules.targets, "actions:id*3");
    refuse_scan(&rules, "a target has no table");
    strcpy(rules.targets, "actions[0:2]");
    refuse_scan(&rules, "the targets have 2 columns, the heads need 3 (buttons 2, stick 1)");
    strcpy(rules.mask, "expert");
    refuse_with(&rules, "a.h5 has no list of episodes /mask/expert", "it has train, valid");
    strcpy(rules.format, "minari");
    refuse_scan(&rules, "a.h5 has no /episode_*: it is not minari, as data.format says");
    strcpy(rules.format, "tokens");
    strcpy(rules.episodes, "data/*");
    refuse_scan(&rules, "a.h5 has no /tokens: it is not tokens, as data.format says");
    rules.episodes[0] = 0;
    put_zeros("a.h5", "/data/demo_0/obs/none", 2, episode_frames[0], 0);
    refuse_inputs(ROBOMIMIC, "obs/none", "/data/demo_0/obs/none has no columns");
    remove_name("a.h5", "/data/demo_4/obs/a");
    refuse_inputs(ROBOMIMIC, inputs[ROBOMIMIC], "a.h5 has no /data/demo_4/obs/a");
    put_zeros("a.h5", "/data/demo_4/obs/a", 2, episode_frames[4], A + 1);
    refuse_inputs(ROBOMIMIC, inputs[ROBOMIMIC],
                  "/data/demo_4/obs/a has 4 columns, in the first episode 3");
    put_zeros("a.h5", "/data/demo_4/obs/a", 2, episode_frames[4] - 1, A);
    refuse_inputs(ROBOMIMIC, inputs[ROBOMIMIC],
                  "/data/demo_4/obs/img has 33 rows, /data/demo_4/obs/a has 32");
    remove_name("a.h5", "/data/demo_2");
    refuse_inputs(ROBOMIMIC, inputs[ROBOMIMIC], "/data/demo_4/obs/img has 33 rows");
    rules = rules_of(ROBOMIMIC, 0);
    strcpy(rules.mask_default, "valid");
    refuse_scan(&rules, "/mask/valid lists demo_2, but /data has no episode of that name");
}

// A group on the way may be a link to elsewhere, or no group.
static void test_paths_refused(void)
{
    write_a(ROBOMIMIC);
    hid_t file = change("a.h5");
    H5Ldelete(file, "/data/demo_4/obs", H5P_DEFAULT);
    H5Lcreate_soft("/data/demo_0/obs", file, "/data/demo_4/obs", H5P_DEFAULT, H5P_DEFAULT);
    H5Fclose(file);
    refuse_inputs(ROBOMIMIC, inputs[ROBOMIMIC], "/data/demo_4/obs is a link");
    put_zeros("a.h5", "/data/demo_4/obs", 2, episode_frames[4], A);
    refuse_inputs(ROBOMIMIC, inputs[ROBOMIMIC], "a.h5 has no /data/demo_4/obs/a");
    put_zeros("a.h5", "/data/demo_4", 2, episode_frames[4], A); // no group, so no episode
    CHECK_INT(scan_all(&(struct dt_scan_rules){.seq_len = T})->episodes, 5);
}

// Attributes that are not there, or hold no numbers; wrong patterns of groups; time on another
// axis.
static void test_layouts_refused(void)
{
    struct dt_scan_rules rules = rules_of(GROUPS, 0);
    write_a(GROUPS);
    hid_t file = change("a.h5"), type = H5Tcopy(H5T_C_S1), space = H5Screate(H5S_SCALAR);
    hid_t group = H5Gopen2(file, "/subject_8/trial_0", H5P_DEFAULT), null = H5Screate(H5S_NULL);
    H5Aclose(H5Acreate2(group, "text", type, space, H5P_DEFAULT, H5P_DEFAULT));
    H5Aclose(H5Acreate2(group, "empty", H5T_STD_I8LE, null, H5P_DEFAULT, H5P_DEFAULT));
    H5Aclose(H5Acreate2(group, "unit", H5T_IEEE_F32LE, space, H5P_DEFAULT, H5P_DEFAULT));
    H5Gclose(group);
    H5Sclose(null);
    H5Sclose(space);
    H5Tclose(type);
    H5Fclose(file);
    refuse_inputs(GROUPS, "@none", "a.h5 has no /subject_8/trial_0/@none (data.inputs)");
    refuse_inputs(GROUPS, "obs/none/@unit", "a.h5 has no /subject_8/trial_0/obs/none/@unit");
    refuse_inputs(GROUPS, "@text", "/subject_8/trial_0/@text holds strings");
    refuse_inputs(GROUPS, "@empty", "/subject_8/trial_0/@empty has no columns");
    refuse_inputs(GROUPS, "@unit[1]",
                  "/subject_8/trial_0/@unit has 1 columns; there is no column 1");
    refuse_inputs(GROUPS, "@unit:id*3", "/subject_8/trial_0/@unit holds 32-bit floating-point");
    refuse_inputs(GROUPS, "obs/a @unit", "a.h5 has no /subject_8/trial_1/@unit (data.inputs)");
    static const char *const words[] = {"@", "obs/@", "@a/b", "obs@a", "@a[", "@3"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        refuse_inputs(GROUPS, words[i], "data.inputs: '");
    refuse_inputs(GROUPS, "../../../@a",
                  "../../../@a leads out of the file from /subject_8/trial_0");
    refuse_inputs(GROUPS, "../@a", "a.h5 has no /subject_8/@a (data.inputs)");
    refuse_inputs(GROUPS, "../../@a", "a.h5 has no /@a (data.inputs)");
    refuse_inputs(GROUPS, "", "data.inputs is required: name datasets of the episodes of");
    rules.targets[0] = 0;
    refuse_scan(&rules, "data.targets is required");
    rules = rules_of(GROUPS, 0);
    strcpy(rules.episodes, "subject_*/run_?");
    refuse_scan(&rules, "a.h5 has no episodes: no group is named subject_*/run_?");
    strcpy(rules.episodes, "subject_*/trial_0/obs/a");
    refuse_scan(&rules, "no group is named subject_*/trial_0/obs/a");
    strcpy(rules.episodes, "subject_*");
    refuse_scan(&rules, "a.h5 has no /subject_8/obs/a (data.inputs)");
    rules = rules_of(GROUPS, 0);
    strcpy(rules.mask, "train");
    refuse_with(&rules, "a.h5 has no list of episodes /mask/train", "store the names of episodes");
    strcpy(rules.episodes, "/");
    refuse_scan(&rules, "is groups: it has no mask train");
    rules = rules_of(GROUPS, 0);
    rules.time_axis = 1;
    refuse_with(&rules, "/subject_8/trial_0/obs/img has 2 rows, /subject_8/trial_0/obs/a has 3",
                "data.time_axis = 0");
    time_second = true;
    write_a(GROUPS);
    time_second = false;
    rules.time_axis = 0;
    refuse_with(&rules, "obs/img has 2 rows, /subject_8/trial_0/obs/a has 3", "data.time_axis = 1");
    strcpy(rules.inputs, "obs/a obs/b:id*7"); // the one that is refused has no other axis
    refuse_with(&rules, "/subject_8/trial_0/obs/b has ", "data.time_axis = 1");
    file = change("a.h5");
    new_group(file, "/subject_8/trial_0/hollow");
    H5Fclose(file);
    refuse_inputs(GROUPS, "hollow", "data.inputs: hollow names no dataset of ");
    strcpy(rules.format, "robomimic");
    strcpy(rules.episodes, "subject_*/trial_?");
    rules.time_axis = 1;
    scan_all(&rules); // a pattern in the place of the layout's own
    write_a(D4RL);
    rules = rules_of(D4RL, 0);
    strcpy(rules.format, "d4rl");
    strcpy(rules.episodes, "a*");
    refuse_scan(&rules, "is d4rl: its episodes share datasets and have no groups");
}

static void test_schemas_refused(void)
{
    struct dt_scan_rules rules = rules_of(NATIVE, 0);
    write_a(NATIVE);
    put_zeros("a.h5", "/observations", 2, 4, 2);
    refuse_scan(&rules, "a.h5 has both /frames and /observations");
    strcpy(rules.format, "episodes");
    scan_all(&rules);
    strcpy(rules.mask, "train");
    refuse_scan(&rules, "is episodes: it has no mask train");
    uint64_t starts[] = {0, 20, 10}, late[] = {1, 20};
    remove_name("a.h5", "/observations");
    replace_vector("a.h5", "/episode_starts", H5T_STD_U64LE, 3, starts);
    rules = rules_of(NATIVE, 0);
    refuse_scan(&rules, "/episode_starts[2] is 10, not in [20, ");
    replace_vector("a.h5", "/episode_starts", H5T_STD_U64LE, 2, late);
    refuse_scan(&rules, "/episode_starts[0] is 1, not in [0, 0]");
    replace_vector("a.h5", "/episode_starts", H5T_IEEE_F64LE, 2, starts);
    refuse_scan(&rules, "/episode_starts holds 64-bit floating-point numbers");
    put_zeros("a.h5", "/episode_starts", 2, 2, 2);
    refuse_scan(&rules, "/episode_starts has 2 dimensions, not 1");
    put_zeros("a.h5", "/actions", 2, 7, 3);
    remove_name("a.h5", "/episode_starts");
    refuse_scan(&rules, "/actions has 7 rows, /frames has 122");
    write_episodes(in_scratch("b.h5"), D4RL, plain_types(), 0, 2);
    write_a(NATIVE);
    rules.inputs[0] = rules.targets[0] = 0;
    strcpy(rules.targets, "actions");
    CHECK_FAILS(dt_dataset_scan(in_scratch("*.h5"), &rules, &(struct dt_dataset *){NULL}), DT_USER,
                "b.h5 holds d4rl, ");
    CHECK_INT(remove(in_scratch("b.h5")), 0);
    hid_t file = change("a.h5");
    H5Ldelete(file, "/frames", H5P_DEFAULT);
    new_group(file, "/frames");
    H5Fclose(file);
    refuse_scan(&rules, "a.h5: /frames is not a dataset");

    write_a(D4RL);
    rules = rules_of(D4RL, 0);
    remove_name("a.h5", "/terminals");
    scan_all(&rules); // timeouts remain

    write_a(MINARI);
    rules = rules_of(MINARI, 0);
    put_zeros("a.h5", "/episode_3/actions", 2, episode_frames[3] + 1, 3);
    refuse_scan(&rules, "(observations have one more than actions)");
    write_a(MINARI);
    write_episodes(in_scratch("b.h5"), MINARI, plain_types(), 6, 8);
    strcpy(rules.inputs, "observations");
    scan_all(&rules);
    remove_name("b.h5", "/episode_6/observations/b");
    remove_name("b.h5", "/episode_7/observations/b");
    put_zeros("b.h5", "/episode_6/observations/z", 1, episode_frames[6] + 1, 1);
    put_zeros("b.h5", "/episode_7/observations/z", 1, episode_frames[7] + 1, 1);
    refuse_scan(&rules, "b.h5 has different columns from");
    CHECK_INT(remove(in_scratch("b.h5")), 0);
}

// The last episode of Minari is a link.
static void link_last(const char *to, const char *path)
{
    write_a(MINARI);
    hid_t file = change("a.h5");
    H5Ldelete(file, "/episode_5", H5P_DEFAULT);
    H5Lcreate_external(to, path, file, "/episode_5", H5P_DEFAULT, H5P_DEFAULT);
    H5Fclose(file);
}

static void test_links_refused(void)
{
    struct dt_scan_rules rules = rules_of(MINARI, 0);
    write_episodes(in_scratch("more.hdf5"), MINARI, plain_types(), 5, 7);
    link_last("more.hdf5", "episode_6");
    CHECK_INT(scan_all(&rules)->episodes, 6);
    link_last("./more.hdf5", "/episode_5");
    refuse_scan(&rules, "/episode_5 is a link to ./more.hdf5, which is not in the folder");
    link_last("/etc/passwd", "/episode_5");
    refuse_scan(&rules, "/episode_5 is a link to /etc/passwd, which is not in the folder");
    link_last("absent.hdf5", "/episode_5");
    refuse_scan(&rules, "absent.hdf5");
    link_last("more.hdf5", "/episode_9");
    refuse_scan(&rules, "/episode_5 is a link to /episode_9 of ");
    link_last("more.hdf5", "/episode_5/actions");
    refuse_scan(&rules, "which is no group");
    put_value(in_scratch("more.hdf5"), "/episode_6/observations/a", 3, 1, NAN);
    link_last("more.hdf5", "/episode_6");
    refuse_values(&rules, "more.hdf5: /episode_6/observations/a, row 3, column 1: nan");
    hid_t file = change("more.hdf5"); // two levels
    H5Ldelete(file, "/episode_6", H5P_DEFAULT);
    H5Lcreate_external("a.h5", "/episode_0", file, "/episode_6", H5P_DEFAULT, H5P_DEFAULT);
    H5Fclose(file);
    refuse_scan(&rules, "more.hdf5: /episode_6 is a link");
    write_a(MINARI); // a dataset, and a group on the way
    file = change("a.h5");
    H5Ldelete(file, "/episode_5/observations", H5P_DEFAULT);
    H5Lcreate_external("more.hdf5", "/episode_5/observations", file, "/episode_5/observations",
                       H5P_DEFAULT, H5P_DEFAULT);
    H5Fclose(file);
    refuse_scan(&rules, "a.h5: /episode_5/observations is a link");
    CHECK_INT(remove(in_scratch("more.hdf5")), 0);
}

static void test_values_refused(void)
{
    struct dt_scan_rules rules = rules_of(ROBOMIMIC, 0);
    write_a(ROBOMIMIC);
    put_value(in_scratch("a.h5"), "/data/demo_5/obs/a", 33, 2, NAN);
    refuse_values(&rules,
                  "a.h5: /data/demo_5/obs/a, row 33, column 2: nan is not a finite float32");
    struct dt_scan_rules sliced = rules; // columns are counted in the file
    snprintf(sliced.inputs, sizeof sliced.inputs, "obs/b:id*7 obs/a[1:3]");
    refuse_values(&sliced, "row 33, column 2: nan");
    CHECK_FAILS(dt_verify_shard(in_scratch("a.h5"), NULL, false, &(struct dt_shard){0}), DT_USER,
                "/data/demo_5/obs/a, row 33");
    write_a(ROBOMIMIC);
    put_value(in_scratch("a.h5"), "/data/demo_2/obs/b", 3, 0, 7);
    refuse_values(&rules, "a.h5: /data/demo_2/obs/b, row 3: id 7 is not in [0, 7)");
    put_value(in_scratch("a.h5"), "/data/demo_2/obs/b", 3, 0, -1);
    refuse_values(&rules, "id -1 is not in [0, 7)");
    write_a(ROBOMIMIC);
    put_value(in_scratch("a.h5"), "/data/demo_1/actions", 0, 2, 5);
    refuse_values(&rules,
                  "/data/demo_1/actions, row 0, column 2: 5 is not a whole number in [0, 5) "
                  "for the head stick");
    put_value(in_scratch("a.h5"), "/data/demo_1/actions", 0, 2, 1);
    put_value(in_scratch("a.h5"), "/data/demo_1/actions", 0, 0, 0.5);
    refuse_values(&rules, "column 0: 0.5 is not a whole number in [0, 2) for the head buttons");
    struct episode_types types = *plain_types();
    types.img = H5T_STD_U16LE;
    write_episodes(in_scratch("a.h5"), ROBOMIMIC, &types, 0, 6);
    refuse_reading(&rules, &(struct dt_read_rules){.bytes = img_bytes},
                   "/obs/img holds uint16 where it held bytes");
    write_a(D4RL);
    rules = rules_of(D4RL, 0);
    put_value(in_scratch("a.h5"), "/observations", 5 + 1 + 4, 1, INFINITY);
    refuse_values(
        &rules,
        "/observations, row 10 (row 4 of episode 2), column 1: inf is not a finite float32");
}

// A robomimic file whose groups of more than eight links have the library's newer form.
static void write_dense(const char *path)
{
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_libver_bounds(access, H5F_LIBVER_LATEST, H5F_LIBVER_LATEST);
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access);
    write_groups(file, ROBOMIMIC, plain_types(), 0, EPISODES);
    H5Fclose(file);
    H5Pclose(access);
}

// One flipped bit in what lists such a group. Memory that was never filled is not zero by chance.
static void test_damaged_groups(void)
{
    static const char *const signatures[] = {"BTLF", "FRHP", "FHDB"};
    const char *path = in_scratch("a.h5");
    char *text;
    int64_t size;
    write_dense(path);
    struct dt_scan_rules rules = rules_of(ROBOMIMIC, 0);
    scan_all(&rules);
    CHECK_OK(dt_read_file(path, 1 << 24, &text, &size));
    mallopt(M_PERTURB, 0x55);
    for (int i = 0; i < 3; i++) {
        char *at = memmem(text, (size_t)size, signatures[i], 4);
        CHECK(at != NULL, "no %s", signatures[i]);
        for (int bit = 0; at && bit < 40 * 8; bit += 7) {
            at[bit / 8] = (char)(at[bit / 8] ^ 1 << bit % 8);
            put_bytes(path, text, (size_t)size);
            refuse_scan(&rules, "a.h5");
            at[bit / 8] = (char)(at[bit / 8] ^ 1 << bit % 8);
        }
    }
    mallopt(M_PERTURB, 0);
    free(text);
}

// Hard links that unfold to 2^27 paths, that lead in a circle, or that are too many; groups too
// deep.
static void test_unfolding(void)
{
    struct dt_scan_rules rules = rules_of(ROBOMIMIC, 0);
    char path[128] = "/data/demo_0/obs", link[DT_PATH];
    strcpy(rules.inputs, "obs");
    write_a(ROBOMIMIC);
    hid_t file = change("a.h5");
    for (int i = 0; i < 27; i++) {
        snprintf(link, sizeof link, "%s/y", path);
        strcat(path, "/x");
        new_group(file, path);
        H5Lcreate_hard(file, path, file, link, H5P_DEFAULT, H5P_DEFAULT);
    }
    H5Fclose(file);
    refuse_scan(&rules, "/x/y is the group /data/demo_0/obs/x/x/");

    write_a(ROBOMIMIC);
    file = change("a.h5");
    CHECK(H5Lcreate_hard(file, "/data/demo_0/obs", file, "/data/demo_0/obs/again", H5P_DEFAULT,
                         H5P_DEFAULT) >= 0,
          "no link");
    H5Fclose(file);
    refuse_scan(&rules,
                "/data/demo_0/obs/again is the group /data/demo_0/obs again, by a hard link "
                "(data.inputs)");

    write_a(ROBOMIMIC);
    file = change("a.h5");
    for (int i = 0; i < 4096; i++) {
        snprintf(link, sizeof link, "/data/demo_0/obs/a%d", i);
        H5Lcreate_hard(file, "/data/demo_0/obs/a", file, link, H5P_DEFAULT, H5P_DEFAULT);
    }
    H5Fclose(file);
    refuse_scan(&rules, "is one of more than 4096 datasets (data.inputs)");

    write_a(ROBOMIMIC);
    file = change("a.h5");
    snprintf(path, sizeof path, "/data/demo_0/obs");
    for (int i = 0; i < 40; i++) {
        strcat(path, "/x");
        new_group(file, path);
    }
    H5Fclose(file);
    refuse_scan(&rules, "has more than 32 levels");

    write_a(ROBOMIMIC);
    file = change("a.h5");
    for (int i = 0; i < 4096; i++) {
        snprintf(path, sizeof path, "/data/demo_0/obs/g%d", i);
        new_group(file, path);
    }
    H5Fclose(file);
    refuse_scan(&rules, "there are more than 4096 groups on the way to /data/demo_0/obs/g");
}

// A mask of n strings of `type`, [n, 1] with two dimensions; nothing is written where `names` is
// NULL.
static void put_mask(hid_t type, int n_dims, int64_t n, hid_t plist, const void *names)
{
    hid_t file = change("a.h5");
    hsize_t dims[2] = {(hsize_t)n, 1};
    H5Ldelete(file, "/mask/train", H5P_DEFAULT);
    hid_t space = H5Screate_simple(n_dims, dims, NULL);
    hid_t id = H5Dcreate2(file, "/mask/train", type, space, H5P_DEFAULT, plist, H5P_DEFAULT);
    CHECK(id >= 0, "no mask");
    if (names)
        CHECK(H5Dwrite(id, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, names) >= 0, "no names");
    H5Dclose(id);
    H5Sclose(space);
    H5Fclose(file);
}

static void mask_gives(const struct dt_scan_rules *rules, int64_t episodes)
{
    struct dt_dataset *dataset = scan_all(rules);
    if (dataset)
        CHECK_INT(dataset->episodes, episodes);
}

// Strings that fill several heaps, of at most 2^16 bytes each.
static void test_heaps(hid_t type)
{
    enum { MANY = 150, BYTES = 1000 };
    static char texts[MANY][BYTES + 1];
    const char *list[MANY];
    struct dt_h5_file file;
    struct dt_h5_names names;
    for (int i = 0; i < MANY; i++) {
        memset(texts[i], 'A' + i % 26, BYTES - (size_t)i);
        list[i] = texts[i];
    }
    put_mask(type, 1, MANY, H5P_DEFAULT, list);
    dt_h5_enter(NULL);
    CHECK_OK(dt_h5_open(in_scratch("a.h5"), &file));
    CHECK_OK(dt_h5_strings(&file, "/mask/train", MANY, &names));
    CHECK_INT(names.n, MANY);
    for (int64_t i = 0; i < names.n; i++)
        CHECK_STR(names.at[i], texts[i]);
    dt_h5_names_free(&names);
    dt_h5_close(&file);
    dt_h5_leave();
}

// A list of strings passes the checks of any other dataset.
static void test_masks(void)
{
    struct dt_scan_rules rules = rules_of(ROBOMIMIC, 0);
    static const char fixed[3][8] = {"demo_4", "demo_0", "demo_2"}, other[2][8] = {"demo_1", "x_7"},
                      twice[3][8] = {"demo_3", "demo_1", "demo_3"};
    const char *variable[3] = {fixed[0], fixed[1], fixed[2]}, *wrong[2] = {"demo_1", "demo_10"};
    static char lengthy[2000];
    hid_t type = H5Tcopy(H5T_C_S1), any = H5Tcopy(H5T_C_S1), plist = H5Pcreate(H5P_DATASET_CREATE);
    H5Tset_size(type, sizeof fixed[0]);
    H5Tset_size(any, H5T_VARIABLE);
    strcpy(rules.mask, "train");
    write_a(ROBOMIMIC);
    put_mask(type, 1, 3, H5P_DEFAULT, fixed);
    mask_gives(&rules, 3);
    put_mask(any, 1, 3, H5P_DEFAULT, variable);
    mask_gives(&rules, 3);
    H5Pset_chunk(plist, 1, &(hsize_t){2});
    put_mask(any, 1, 3, plist, variable);
    mask_gives(&rules, 3);
    H5Pset_deflate(plist, 4);
    put_mask(type, 1, 3, plist, fixed);
    mask_gives(&rules, 3);
    put_mask(any, 1, 3, plist, variable);
    mask_gives(&rules, 3);
    put_mask(type, 1, 2, H5P_DEFAULT, other);
    refuse_scan(&rules, "/mask/train lists x_7, but /data has no episode of that name");
    put_mask(any, 1, 2, H5P_DEFAULT, wrong);
    refuse_scan(&rules, "/mask/train lists demo_10, but /data has no episode");
    put_mask(type, 1, 3, H5P_DEFAULT, twice);
    refuse_scan(&rules, "/mask/train lists demo_3 twice");
    put_mask(type, 2, 3, H5P_DEFAULT, fixed);
    refuse_scan(&rules, "/mask/train is not a list of strings");
    put_mask(H5T_STD_I32LE, 1, 3, H5P_DEFAULT, NULL);
    refuse_scan(&rules, "/mask/train was never written");
    put_mask(type, 1, 1 << 26, H5P_DEFAULT, NULL);
    refuse_scan(&rules, "/mask/train was never written");
    put_mask(type, 1, 3, plist, NULL);
    refuse_scan(&rules, "/mask/train was never written");
    memset(lengthy, 'x', sizeof lengthy - 1);
    put_mask(any, 1, 1, H5P_DEFAULT, &(const char *){lengthy});
    refuse_scan(&rules, "string 0 of /mask/train is damaged, or has more than 1023 bytes");
    put_mask(any, 1, 0, H5P_DEFAULT, NULL);
    refuse_scan(&rules, "a.h5: /mask/train lists no episode");
    test_heaps(any);
    H5Tset_size(type, sizeof lengthy);
    put_mask(type, 1, 1, H5P_DEFAULT, lengthy);
    refuse_scan(&rules, "the strings of /mask/train have 2000 bytes, the most are 1023");
    H5Tset_size(type, sizeof fixed[0]);
    H5Pclose(plist);

    const char *path = in_scratch("names");
    put_bytes(path, (const char *)fixed, sizeof fixed);
    plist = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_external(plist, path, 0, sizeof fixed);
    put_mask(type, 1, 3, plist, NULL);
    refuse_scan(&rules, "/mask/train is stored in external files");
    H5Pclose(plist);
    plist = H5Pcreate(H5P_DATASET_CREATE);
    hid_t space = H5Screate_simple(1, &(hsize_t){3}, NULL);
    H5Pset_virtual(plist, space, in_scratch("absent.h5"), "names", space);
    put_mask(type, 1, 3, plist, NULL);
    refuse_scan(&rules, "/mask/train is a virtual dataset");
    H5Sclose(space);
    H5Pclose(plist);
    H5Tclose(any);
    H5Tclose(type);
}

// A flipped bit in the references to strings of variable length, or in their heap: the list is
// read, or refused.
static void test_damaged_strings(void)
{
    struct dt_scan_rules rules = rules_of(ROBOMIMIC, 0);
    const char *names[3] = {"demo_4", "demo_0", "demo_2"};
    const char *path = in_scratch("a.h5");
    char *text;
    int64_t size, start[2], bits[2] = {3 * 16 * 8, 96 * 8};
    hid_t any = H5Tcopy(H5T_C_S1);
    H5Tset_size(any, H5T_VARIABLE);
    strcpy(rules.mask, "train");
    write_a(ROBOMIMIC);
    remove_name("a.h5", "/mask/valid");
    put_mask(any, 1, 3, H5P_DEFAULT, names);
    H5Tclose(any);
    CHECK_OK(dt_read_file(path, 1 << 24, &text, &size));
    start[0] = offset_of(path, "/mask/train");
    memcpy(&start[1], text + start[0] + 4, sizeof start[1]); // the heap's address
    for (int i = 0; i < 2; i++)
        for (int64_t bit = 0; bit < bits[i]; bit++) {
            struct dt_dataset *dataset = NULL;
            char *at = text + start[i] + bit / 8, byte = *at;
            *at = (char)(byte ^ 1 << bit % 8);
            put_bytes(path, text, (size_t)size);
            dt_status status = dt_dataset_scan(path, &rules, &dataset);
            CHECK(status == DT_OK || status == DT_USER, "bit %ld: %d", (long)bit, (int)status);
            dt_dataset_free(dataset);
            *at = byte;
        }
    put_bytes(path, text, (size_t)size);
    mask_gives(&rules, 3);
    free(text);
}

static void expect_warning(const struct dt_scan_rules *rules, const char *phrase)
{
    struct dt_dataset *dataset = scan_all(rules);
    const char *warning = dataset ? dataset->shards[0].warning : "";
    CHECK(*phrase ? strstr(warning, phrase) != NULL : !*warning, "\"%s\" is not in \"%s\"", phrase,
          warning);
}

// What may not be as its author meant it.
static void test_warnings(void)
{
    struct dt_scan_rules rules = rules_of(ROBOMIMIC, 0);
    write_a(ROBOMIMIC);
    put_zeros("a.h5", "/data/notes", 1, 3, 1);
    expect_warning(&rules, "");
    hid_t file = change("a.h5"); // an episode of any name
    H5Lmove(file, "/data/demo_3", file, "/data/expert", H5P_DEFAULT, H5P_DEFAULT);
    H5Fclose(file);
    CHECK_INT(scan_all(&rules)->episodes, 6);

    rules = rules_of(D4RL, 0);
    write_a(D4RL);
    remove_name("a.h5", "/timeouts");
    expect_warning(&rules, "");
    static const char one[] =
        "all 122 rows are one episode, since /terminals and /timeouts mark no "
        "end; store /timeouts";
    put_zeros("a.h5", "/terminals", 1, 122, 1);
    expect_warning(&rules, one);
    put_zeros("a.h5", "/timeouts", 1, 122, 1);
    expect_warning(&rules, one);
    put_value(in_scratch("a.h5"), "/timeouts", 121, 0, 1);
    expect_warning(&rules, "");
    remove_name("a.h5", "/timeouts");
    remove_name("a.h5", "/terminals");
    expect_warning(&rules, one);

    rules = rules_of(ROBOMIMIC, 0);
    strcpy(rules.inputs, "obs/a");
    write_a(ROBOMIMIC);
    put_zeros("a.h5", "/data/demo_2/obs/a", 2, 0, A);
    put_zeros("a.h5", "/data/demo_2/actions", 2, 0, W);
    capture_stderr();
    struct dt_dataset *dataset = scan_all(&rules);
    const char *said = captured();
    CHECK(strstr(said, "a.h5: skipped empty episodes: 1"), "not in: %s", said);
    CHECK_INT(dataset->episodes, 5);
    put_alone(in_scratch("a.h5"), "tokens", H5T_STD_U8LE, T, (uint8_t[T]){0});
    capture_stderr();
    CHECK_INT(scan_all(&(struct dt_scan_rules){.seq_len = T})->windows, 0);
    CHECK(strstr(captured(), "tokens: too short for a window of data.seq_len = "), "no warning");
}

// The values that mark where episodes of D4RL end.
static void test_ends_refused(void)
{
    struct dt_scan_rules rules = rules_of(D4RL, 0);
    write_a(D4RL);
    put_zeros("a.h5", "/terminals", 1, 122, 1);
    put_value(in_scratch("a.h5"), "/terminals", 7, 0, NAN);
    refuse_scan(&rules, "/terminals, row 7: nan is neither true nor false");
    put_zeros("a.h5", "/terminals", 2, 64, 2);
    refuse_scan(&rules, "/terminals has 64 rows of 2 values, /observations has 122 rows");
    remove_name("a.h5", "/terminals");
    hid_t type = bool_type(), file = change("a.h5");
    H5Tenum_insert(type, "UNKNOWN", &(int8_t){2});
    put_numbers(file, "", "terminals", type, H5T_NATIVE_INT8, 1, 122, 1, NULL, false);
    H5Fclose(file);
    H5Tclose(type);
    refuse_scan(&rules, "/terminals holds an enumeration");
}

// Values of unsigned types have no sign in a message.
static void test_unsigned(void)
{
    struct dt_scan_rules rules = rules_of(NATIVE, 0);
    struct episode_types types = *plain_types();
    uint64_t starts[] = {0, UINT64_MAX - 4};
    write_a(NATIVE);
    replace_vector("a.h5", "/episode_starts", H5T_STD_U64LE, 2, starts);
    refuse_scan(&rules, "/episode_starts[1] is 18446744073709551611, not in [0, 122]");
    replace_vector("a.h5", "/episode_starts", H5T_STD_I64LE, 2, starts);
    refuse_scan(&rules, "/episode_starts[1] is -5, not in [0, 122]");
    types.b = H5T_STD_U64LE;
    write_episodes(in_scratch("a.h5"), NATIVE, &types, 0, 6);
    put_value(in_scratch("a.h5"), "/b", 3, 0, 0x1p63);
    refuse_values(&rules,
                  "/b, row 3 (row 3 of episode 0): id 9223372036854775808 is not in [0, 7)");
}

// A sparse file: two frames of 2^30 numbers.
static void test_wide_frames(void)
{
    struct dt_scan_rules rules = rules_of(NATIVE, 0);
    hsize_t dims[2] = {2, 1 << 30};
    write_a(NATIVE);
    hid_t file = new_file(in_scratch("a.h5")), plist = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_alloc_time(plist, H5D_ALLOC_TIME_EARLY);
    H5Pset_fill_time(plist, H5D_FILL_TIME_NEVER);
    hid_t space = H5Screate_simple(2, dims, NULL);
    H5Dclose(H5Dcreate2(file, "/frames", H5T_STD_U8LE, space, H5P_DEFAULT, plist, H5P_DEFAULT));
    H5Sclose(space);
    H5Pclose(plist);
    H5Fclose(file);
    put_zeros("a.h5", "/actions", 2, 2, ACTIONS);
    strcpy(rules.inputs, "frames");
    refuse_scan(&rules,
                "a.h5: a frame has 1073741824 numbers and 3 targets, the most are 67108864");
    plist = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(plist, 2, (hsize_t[]){1, 1});
    space = H5Screate_simple(2, (hsize_t[]){INT64_C(1) << 40, INT64_C(1) << 40}, NULL);
    file = change_without("a.h5", "/frames");
    H5Dclose(H5Dcreate2(file, "/frames", H5T_STD_U8LE, space, H5P_DEFAULT, plist, H5P_DEFAULT));
    H5Sclose(space);
    H5Pclose(plist);
    H5Fclose(file);
    refuse_scan(&rules, "a.h5: /frames is impossibly large");
}

int main(void)
{
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    make_scratch();
    test_columns_refused();
    test_paths_refused();
    test_links_refused();
    test_schemas_refused();
    test_layouts_refused();
    test_values_refused();
    test_ends_refused();
    test_unsigned();
    test_unfolding();
    test_masks();
    test_damaged_strings();
    test_warnings();
    test_wide_frames();
    test_damaged_groups();
    remove_scratch();
    return test_end();
}

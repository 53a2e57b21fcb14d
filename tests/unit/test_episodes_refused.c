// Tests shards of episodes that are refused, or read with a warning, and the messages.
#include "base/file.h"
#include "base/log.h"
#include "captured.h"
#include "data/h5_file.h"
#include "data/pack.h"
#include "episode_cases.h"

#include <malloc.h>

// A case: the first six episodes of a layout with changes, read by rules that differ from rules_of.
struct refusal {
    enum episode_layout layout;
    const char *changes, *keys; // for change_a; for rules_with
    const char *said, *hint; // parts of the error; NULL: there is no error, the hint is not checked
};

// Changes a.h5 by a list of commands that ";" separates:
//   -PATH                   removes what has this path
//   0PATH rows [columns]    puts zeros in its place
//   uPATH n …, iPATH, fPATH puts a vector of unsigned, signed or floating-point numbers there
//   =PATH row column value  sets one number
static void change_a(const char *commands)
{
    char text[512], *rest = text, *command;
    snprintf(text, sizeof text, "%s", commands);
    while ((command = strsep(&rest, ";")) && *command) {
        char of = *command++, *path = strsep(&command, " "), *word;
        uint64_t whole[4];
        double x[4];
        int n = 0;
        for (; n < 4 && (word = strsep(&command, " ")); n++) {
            x[n] = strtod(word, NULL);
            whole[n] = strtoull(word, NULL, 10); // the bits of a negative number
        }
        if (of == '-')
            remove_name("a.h5", path);
        else if (of == '0')
            put_zeros("a.h5", path, n, (int64_t)x[0], n > 1 ? (int64_t)x[1] : 1);
        else if (of == '=')
            put_value(in_scratch("a.h5"), path, (hsize_t)x[0], (hsize_t)x[1], x[2]);
        else if (of == 'f')
            replace_vector("a.h5", path, H5T_NATIVE_DOUBLE, n, x);
        else
            replace_vector("a.h5", path, of == 'u' ? H5T_STD_U64LE : H5T_STD_I64LE, n, whole);
    }
}

// Returns the rules of a layout with other values, given as "inputs=obs/a obs/b:id*7;mask=train".
static struct dt_scan_rules rules_with(enum episode_layout layout, const char *keys)
{
    struct dt_scan_rules rules = rules_of(layout, 0);
    const struct {
        const char *name;
        char *value;
    } texts[] = {{"inputs", rules.inputs},
                 {"targets", rules.targets},
                 {"episodes", rules.episodes},
                 {"mask", rules.mask},
                 {"mask_default", rules.mask_default},
                 {"format", rules.format}};
    char text[512], *rest = text, *key;
    snprintf(text, sizeof text, "%s", keys);
    while ((key = strsep(&rest, ";")) && *key) {
        char *value = strchr(key, '=');
        *value++ = 0;
        if (strcmp(key, "time_axis") == 0)
            rules.time_axis = atoi(value);
        for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
            if (strcmp(key, texts[i].name) == 0)
                strcpy(texts[i].value, value);
    }
    return rules;
}

// Reads all data and expects an error with this phrase.
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

// Tests shards that are refused when they are opened.
static void test_refused(void)
{
    static const struct refusal list[] = {
        // clang-format off
        // columns
        {ROBOMIMIC, "", "inputs=obs/c", "a.h5 has no /data/demo_0/obs/c (data.inputs)", "it has a, b, img"},
        {ROBOMIMIC, "", "inputs=@unit", "a.h5 has no /data/demo_0/@unit (data.inputs)", "name an attribute that"},
        {ROBOMIMIC, "", "inputs=obs/a[3]", "has 3 columns; there is no column 3", "columns are counted from 0"},
        {ROBOMIMIC, "", "inputs=obs/a[1:4]", "/data/demo_0/obs/a has 3 columns; there is no column 3", NULL},
        {ROBOMIMIC, "", "inputs=obs/a:id*4", "obs/a holds 32-bit floating-point numbers", NULL},
        {ROBOMIMIC, "", "inputs=obs/a obs/img[2:2]", "data.inputs: 'obs/img[2:2]'", NULL},
        {ROBOMIMIC, "", "inputs=obs/b:id*2147483648", "data.inputs: 'obs/b:id*2147483648'", NULL},
        {ROBOMIMIC, "", "targets=actions:id*3", "a target has no table", NULL},
        {ROBOMIMIC, "", "targets=actions[0:2]", "the targets have 2 columns, the heads need 3 (buttons 2, stick 1)", NULL},
        {ROBOMIMIC, "", "mask=expert", "a.h5 has no list of episodes /mask/expert", "it has train, valid"},
        {ROBOMIMIC, "", "format=minari", "a.h5 has no /episode_*: it is not minari, as data.format says", NULL},
        {ROBOMIMIC, "", "format=tokens;episodes=data/*", "a.h5 has no /tokens: it is not tokens, as data.format says", NULL},
        {ROBOMIMIC, "0/data/demo_0/obs/none 5 0", "inputs=obs/none", "/data/demo_0/obs/none has no columns", NULL},
        {ROBOMIMIC, "-/data/demo_4/obs/a", "", "a.h5 has no /data/demo_4/obs/a", NULL},
        {ROBOMIMIC, "0/data/demo_4/obs/a 33 4", "", "/data/demo_4/obs/a has 4 columns, in the first episode 3", NULL},
        {ROBOMIMIC, "0/data/demo_4/obs/a 32 3", "", "/data/demo_4/obs/img has 33 rows, /data/demo_4/obs/a has 32", NULL},
        {ROBOMIMIC, "0/data/demo_4/obs/a 32 3;-/data/demo_2", "", "/data/demo_4/obs/img has 33 rows", NULL},
        {ROBOMIMIC, "-/data/demo_2", "mask_default=valid", "/mask/valid lists demo_2, but /data has no episode of that name", NULL},
        {ROBOMIMIC, "0/data/demo_4/obs 33 3", "", "a.h5 has no /data/demo_4/obs/a", NULL},
        // attributes, patterns of groups, the axis of time
        {GROUPS, "", "inputs=@none", "a.h5 has no /subject_8/trial_0/@none (data.inputs)", NULL},
        {GROUPS, "", "inputs=obs/none/@unit", "a.h5 has no /subject_8/trial_0/obs/none/@unit", NULL},
        {GROUPS, "", "inputs=../../../@a", "../../../@a leads out of the file from /subject_8/trial_0", NULL},
        {GROUPS, "", "inputs=../@a", "a.h5 has no /subject_8/@a (data.inputs)", NULL},
        {GROUPS, "", "inputs=../../@a", "a.h5 has no /@a (data.inputs)", NULL},
        {GROUPS, "", "inputs=", "data.inputs is required: name datasets of the episodes of", NULL},
        {GROUPS, "", "targets=", "data.targets is required", NULL},
        {GROUPS, "", "episodes=subject_*/run_?", "a.h5 has no episodes: no group is named subject_*/run_?", NULL},
        {GROUPS, "", "episodes=subject_*/trial_0/obs/a", "no group is named subject_*/trial_0/obs/a", NULL},
        {GROUPS, "", "episodes=subject_*", "a.h5 has no /subject_8/obs/a (data.inputs)", NULL},
        {GROUPS, "", "mask=train", "a.h5 has no list of episodes /mask/train", "store the names of episodes"},
        {GROUPS, "", "mask=train;episodes=/", "is groups: it has no mask train", NULL},
        {GROUPS, "", "time_axis=1", "/subject_8/trial_0/obs/img has 2 rows, /subject_8/trial_0/obs/a has 3", "data.time_axis = 0"},
        {GROUPS, "", "format=robomimic;episodes=subject_*/trial_?", NULL, NULL}, // a pattern in the place of the layout's own
        // datasets that episodes share
        {D4RL, "", "format=d4rl;episodes=a*", "is d4rl: its episodes share datasets and have no groups", NULL},
        {D4RL, "-/terminals", "", NULL, NULL}, // timeouts remain
        {D4RL, "0/terminals 122;=/terminals 7 0 nan", "", "/terminals, row 7: nan is neither true nor false", NULL},
        {D4RL, "0/terminals 64 2", "", "/terminals has 64 rows of 2 values, /observations has 122 rows", NULL},
        {NATIVE, "0/observations 4 2", "", "a.h5 has both /frames and /observations", NULL},
        {NATIVE, "0/observations 4 2", "format=episodes", NULL, NULL},
        {NATIVE, "0/observations 4 2", "format=episodes;mask=train", "is episodes: it has no mask train", NULL},
        {NATIVE, "u/episode_starts 0 20 10", "", "/episode_starts[2] is 10, not in [20, ", NULL},
        {NATIVE, "u/episode_starts 1 20", "", "/episode_starts[0] is 1, not in [0, 0]", NULL},
        {NATIVE, "f/episode_starts 0 20", "", "/episode_starts holds 64-bit floating-point numbers", NULL},
        // values of unsigned types have no sign in a message
        {NATIVE, "u/episode_starts 0 18446744073709551611", "", "/episode_starts[1] is 18446744073709551611, not in [0, 122]", NULL},
        {NATIVE, "i/episode_starts 0 -5", "", "/episode_starts[1] is -5, not in [0, 122]", NULL},
        {NATIVE, "0/episode_starts 2 2", "", "/episode_starts has 2 dimensions, not 1", NULL},
        {NATIVE, "0/actions 7 3;-/episode_starts", "", "/actions has 7 rows, /frames has 122", NULL},
        {MINARI, "0/episode_3/actions 17 3", "", "(observations have one more than actions)", NULL},
        // clang-format on
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        const struct refusal *r = &list[i];
        struct dt_scan_rules rules = rules_with(r->layout, r->keys);
        struct dt_dataset *dataset = NULL;
        write_a(r->layout);
        change_a(r->changes);
        dt_status status = dt_dataset_scan(in_scratch("*.h5"), &rules, &dataset);
        CHECK(status == (r->said ? DT_USER : DT_OK), "row %zu gave %d: %s", i, (int)status,
              dt_error_current()->message);
        if (r->said)
            CHECK_SAYS(r->said);
        if (r->hint)
            CHECK_ADVISES(r->hint);
        dt_error_clear();
        dt_dataset_free(dataset);
    }
    // Texts that name no column.
    static const char *const words[] = {"obs/a[",     "obs/a[1",     "[1]",       "obs/a:id",
                                        "obs/b:id*0", "obs/b:id*3x", "obs/a[-1]", "obs/a[1:2]x",
                                        "/",          "@",           "obs/@",     "@a/b",
                                        "obs@a",      "@a[",         "@3"};
    write_a(ROBOMIMIC);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        struct dt_scan_rules rules = rules_of(ROBOMIMIC, 0);
        strcpy(rules.inputs, words[i]);
        refuse_scan(&rules, "data.inputs: '");
    }
    change_a("0/data/demo_4 33 3"); // this is no group, so it is no episode
    CHECK_INT(scan_all(&(struct dt_scan_rules){.seq_len = T})->episodes, 5);
}

static void refuse_inputs(enum episode_layout layout, const char *text, const char *phrase)
{
    struct dt_scan_rules rules = rules_of(layout, 0);
    strcpy(rules.inputs, text);
    refuse_scan(&rules, phrase);
}

// A group on the path may be a link to another file; attributes may hold no numbers, and a group
// may hold no dataset.
static void test_groups_refused(void)
{
    write_a(ROBOMIMIC);
    hid_t file = change("a.h5");
    H5Ldelete(file, "/data/demo_4/obs", H5P_DEFAULT);
    H5Lcreate_soft("/data/demo_0/obs", file, "/data/demo_4/obs", H5P_DEFAULT, H5P_DEFAULT);
    H5Fclose(file);
    refuse_inputs(ROBOMIMIC, inputs[ROBOMIMIC], "/data/demo_4/obs is a link");

    write_a(GROUPS);
    file = change("a.h5");
    hid_t type = H5Tcopy(H5T_C_S1), space = H5Screate(H5S_SCALAR), null = H5Screate(H5S_NULL);
    hid_t group = H5Gopen2(file, "/subject_8/trial_0", H5P_DEFAULT);
    H5Aclose(H5Acreate2(group, "text", type, space, H5P_DEFAULT, H5P_DEFAULT));
    H5Aclose(H5Acreate2(group, "empty", H5T_STD_I8LE, null, H5P_DEFAULT, H5P_DEFAULT));
    H5Aclose(H5Acreate2(group, "unit", H5T_IEEE_F32LE, space, H5P_DEFAULT, H5P_DEFAULT));
    new_group(file, "/subject_8/trial_0/hollow");
    H5Gclose(group);
    H5Sclose(null);
    H5Sclose(space);
    H5Tclose(type);
    H5Fclose(file);
    static const char *const list[][2] = {
        {"@text", "/subject_8/trial_0/@text holds strings"},
        {"@empty", "/subject_8/trial_0/@empty has no columns"},
        {"@unit[1]", "/subject_8/trial_0/@unit has 1 columns; there is no column 1"},
        {"@unit:id*3", "/subject_8/trial_0/@unit holds 32-bit floating-point"},
        {"obs/a @unit", "a.h5 has no /subject_8/trial_1/@unit (data.inputs)"},
        {"hollow", "data.inputs: hollow names no dataset of "}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        refuse_inputs(GROUPS, list[i][0], list[i][1]);

    time_second = true;
    write_a(GROUPS);
    time_second = false;
    for (int other = 0; other < 2; other++) { // the refused dataset may have a single axis
        struct dt_scan_rules rules =
            rules_with(GROUPS, other ? "time_axis=0;inputs=obs/a obs/b:id*7" : "time_axis=0");
        struct dt_dataset *dataset;
        CHECK_INT(dt_dataset_scan(in_scratch("a.h5"), &rules, &dataset), DT_USER);
        CHECK_SAYS(other ? "/subject_8/trial_0/obs/b has "
                         : "obs/img has 2 rows, /subject_8/trial_0/obs/a has 3");
        CHECK_ADVISES("data.time_axis = 1");
        dt_error_clear();
    }
}

// Shards of different schemas or columns; a group where a dataset must be; an enumeration with more
// values than true and false.
static void test_schemas_refused(void)
{
    struct dt_scan_rules rules = rules_with(NATIVE, "inputs=");
    write_episodes(in_scratch("b.h5"), D4RL, plain_types(), 0, 2);
    write_a(NATIVE);
    refuse_scan(&rules, "b.h5 holds d4rl, ");
    CHECK_INT(remove(in_scratch("b.h5")), 0);
    hid_t file = change_without("a.h5", "/frames");
    new_group(file, "/frames");
    H5Fclose(file);
    refuse_scan(&rules, "a.h5: /frames is not a dataset");

    rules = rules_with(MINARI, "inputs=observations");
    write_a(MINARI);
    write_episodes(in_scratch("b.h5"), MINARI, plain_types(), 6, 8);
    scan_all(&rules);
    remove_name("b.h5", "/episode_6/observations/b");
    remove_name("b.h5", "/episode_7/observations/b");
    put_zeros("b.h5", "/episode_6/observations/z", 1, episode_frames[6] + 1, 1);
    put_zeros("b.h5", "/episode_7/observations/z", 1, episode_frames[7] + 1, 1);
    refuse_scan(&rules, "b.h5 has different columns from");
    CHECK_INT(remove(in_scratch("b.h5")), 0);

    write_a(D4RL);
    hid_t type = bool_type();
    file = change_without("a.h5", "/terminals");
    H5Tenum_insert(type, "UNKNOWN", &(int8_t){2});
    put_numbers(file, "", "terminals", type, H5T_NATIVE_INT8, 1, 122, 1, NULL, false);
    H5Fclose(file);
    H5Tclose(type);
    rules = rules_of(D4RL, 0);
    refuse_scan(&rules, "/terminals holds an enumeration");
}

// Replaces the last episode of a Minari file by a link.
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
    refuse_reading(&rules, &(struct dt_read_rules){0},
                   "more.hdf5: /episode_6/observations/a, row 3, column 1: nan");
    hid_t file = change("more.hdf5"); // links over two levels
    H5Ldelete(file, "/episode_6", H5P_DEFAULT);
    H5Lcreate_external("a.h5", "/episode_0", file, "/episode_6", H5P_DEFAULT, H5P_DEFAULT);
    H5Fclose(file);
    refuse_scan(&rules, "more.hdf5: /episode_6 is a link");
    write_a(MINARI); // links to a dataset, and by a group on the path
    file = change("a.h5");
    H5Ldelete(file, "/episode_5/observations", H5P_DEFAULT);
    H5Lcreate_external("more.hdf5", "/episode_5/observations", file, "/episode_5/observations",
                       H5P_DEFAULT, H5P_DEFAULT);
    H5Fclose(file);
    refuse_scan(&rules, "a.h5: /episode_5/observations is a link");
    CHECK_INT(remove(in_scratch("more.hdf5")), 0);
}

// Tests shards that are refused when their values are read.
static void test_values_refused(void)
{
    static const struct refusal list[] = {
        // clang-format off
        {ROBOMIMIC, "=/data/demo_5/obs/a 33 2 nan", "", "a.h5: /data/demo_5/obs/a, row 33, column 2: nan is not a finite float32", NULL},
        // columns are counted in the file
        {ROBOMIMIC, "=/data/demo_5/obs/a 33 2 nan", "inputs=obs/b:id*7 obs/a[1:3]", "row 33, column 2: nan", NULL},
        {ROBOMIMIC, "=/data/demo_2/obs/b 3 0 7", "", "a.h5: /data/demo_2/obs/b, row 3: id 7 is not in [0, 7)", NULL},
        {ROBOMIMIC, "=/data/demo_2/obs/b 3 0 -1", "", "id -1 is not in [0, 7)", NULL},
        {ROBOMIMIC, "=/data/demo_1/actions 0 2 5", "", "/data/demo_1/actions, row 0, column 2: 5 is not a whole number in [0, 5) for the head stick", NULL},
        {ROBOMIMIC, "=/data/demo_1/actions 0 0 0.5", "", "column 0: 0.5 is not a whole number in [0, 2) for the head buttons", NULL},
        {D4RL, "=/observations 10 1 inf", "", "/observations, row 10 (row 4 of episode 2), column 1: inf is not a finite float32", NULL},
        // clang-format on
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        struct dt_scan_rules rules = rules_with(list[i].layout, list[i].keys);
        write_a(list[i].layout);
        change_a(list[i].changes);
        refuse_reading(&rules, &(struct dt_read_rules){0}, list[i].said);
    }
    write_a(ROBOMIMIC);
    change_a(list[0].changes);
    CHECK_FAILS(dt_verify_shard(in_scratch("a.h5"), NULL, false, &(struct dt_shard){0}), DT_USER,
                "/data/demo_5/obs/a, row 33");

    struct dt_scan_rules rules = rules_of(ROBOMIMIC, 0);
    struct episode_types types = *plain_types();
    types.img = H5T_STD_U16LE;
    write_episodes(in_scratch("a.h5"), ROBOMIMIC, &types, 0, 6);
    refuse_reading(&rules, &(struct dt_read_rules){.bytes = img_bytes},
                   "/obs/img holds uint16 where it held bytes");
    rules = rules_of(NATIVE, 0);
    types.b = H5T_STD_U64LE;
    write_episodes(in_scratch("a.h5"), NATIVE, &types, 0, 6);
    change_a("=/b 3 0 0x1p63");
    refuse_reading(&rules, &(struct dt_read_rules){0},
                   "/b, row 3 (row 3 of episode 0): id 9223372036854775808 is not in [0, 7)");
}

// Writes a robomimic file in which groups of more than eight links have the library's newer form.
static void write_dense(const char *path)
{
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_libver_bounds(access, H5F_LIBVER_LATEST, H5F_LIBVER_LATEST);
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access);
    write_groups(file, ROBOMIMIC, plain_types(), 0, EPISODES);
    H5Fclose(file);
    H5Pclose(access);
}

// Flips one bit in the metadata that list the links of such a group. Memory that was not written is
// not zero by chance.
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

// Hard links that unfold to 2^27 paths, that form a cycle, or that are too many; groups that are
// too deep.
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
                "/data/demo_0/obs/again is the group /data/demo_0/obs again, by a hard link");

    // As many datasets as are allowed, with that of the targets; one more.
    for (int more = 0; more < 2; more++) {
        H5G_info_t there;
        write_a(ROBOMIMIC);
        file = change("a.h5");
        H5Gget_info_by_name(file, "/data/demo_0/obs", &there, H5P_DEFAULT);
        for (int i = 0; i < 4095 - (int)there.nlinks + more; i++) {
            snprintf(link, sizeof link, "/data/demo_0/obs/a%d", i);
            H5Lcreate_hard(file, "/data/demo_0/obs/a", file, link, H5P_DEFAULT, H5P_DEFAULT);
        }
        H5Fclose(file);
        refuse_scan(&rules, more ? "/data/demo_0/actions is one of more than 4096 datasets"
                                 : "/data/demo_1/obs/a0");
    }

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
    for (int i = 0; i < 4096; i++) { // obs itself is one more group
        if (i == 4095)
            CHECK(scan_all(&rules) != NULL, "4096 groups are allowed");
        file = change("a.h5");
        snprintf(path, sizeof path, "/data/demo_0/obs/g%d", i);
        new_group(file, path);
        H5Fclose(file);
    }
    refuse_scan(&rules, "there are more than 4096 groups on the way to /data/demo_0/obs/g");
}

// Replaces the mask by n strings of `type`, [n, 1] if there are two dimensions. If `names` is NULL,
// nothing is written into it.
static void put_mask(hid_t type, int n_dims, int64_t n, hid_t plist, const void *names)
{
    hid_t file = change("a.h5");
    hsize_t dims[2] = {(hsize_t)n, 1};
    H5Ldelete(file, "/mask/train", H5P_DEFAULT);
    put_in(file, "/mask/train", type, H5Screate_simple(n_dims, dims, NULL),
           plist == H5P_DEFAULT ? plist : H5Pcopy(plist), type, names);
    H5Fclose(file);
}

static void mask_gives(const struct dt_scan_rules *rules, int64_t episodes)
{
    struct dt_dataset *dataset = scan_all(rules);
    if (dataset)
        CHECK_INT(dataset->episodes, episodes);
}

// Strings that fill several heaps of at most 2^16 bytes each.
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

// A list of strings is checked like any other dataset.
static void test_masks(void)
{
    struct dt_scan_rules rules = rules_of(ROBOMIMIC, 0);
    static const char fixed[3][8] = {"demo_4", "demo_0", "demo_2"}, other[2][8] = {"demo_1", "x_7"},
                      twice[3][8] = {"demo_3", "demo_1", "demo_3"};
    const char *variable[3] = {fixed[0], fixed[1], fixed[2]}, *wrong[2] = {"demo_1", "demo_10"};
    static char lengthy[2000];
    hid_t type = H5Tcopy(H5T_C_S1), any = H5Tcopy(H5T_C_S1);
    hid_t chunked = H5Pcreate(H5P_DATASET_CREATE), zipped = H5Pcreate(H5P_DATASET_CREATE);
    H5Tset_size(type, sizeof fixed[0]);
    H5Tset_size(any, H5T_VARIABLE);
    H5Pset_chunk(chunked, 1, &(hsize_t){2});
    H5Pset_chunk(zipped, 1, &(hsize_t){2});
    H5Pset_deflate(zipped, 4);
    memset(lengthy, 'x', sizeof lengthy - 1);
    const struct {
        hid_t type;
        int n_dims;
        int64_t n;
        hid_t plist;
        const void *names;
        const char *said; // NULL: the list is read
    } list[] = {
        {type, 1, 3, H5P_DEFAULT, fixed, NULL},
        {any, 1, 3, H5P_DEFAULT, variable, NULL},
        {any, 1, 3, chunked, variable, NULL},
        {type, 1, 3, zipped, fixed, NULL},
        {any, 1, 3, zipped, variable, NULL},
        {type, 1, 2, H5P_DEFAULT, other,
         "/mask/train lists x_7, but /data has no episode of that name"},
        {any, 1, 2, H5P_DEFAULT, wrong, "/mask/train lists demo_10, but /data has no episode"},
        {type, 1, 3, H5P_DEFAULT, twice, "/mask/train lists demo_3 twice"},
        {type, 2, 3, H5P_DEFAULT, fixed, "/mask/train is not a list of strings"},
        {H5T_STD_I32LE, 1, 3, H5P_DEFAULT, NULL, "/mask/train was never written"},
        {type, 1, 1 << 26, H5P_DEFAULT, NULL, "/mask/train was never written"},
        {type, 1, 3, zipped, NULL, "/mask/train was never written"},
        {any, 1, 0, H5P_DEFAULT, NULL, "/mask/train lists no episode"},
    };
    strcpy(rules.mask, "train");
    write_a(ROBOMIMIC);
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        put_mask(list[i].type, list[i].n_dims, list[i].n, list[i].plist, list[i].names);
        if (list[i].said)
            refuse_scan(&rules, list[i].said);
        else
            mask_gives(&rules, 3);
    }
    test_heaps(any);
    put_mask(any, 1, 1, H5P_DEFAULT, &(const char *){lengthy});
    refuse_scan(&rules, "string 0 of /mask/train is damaged, or has more than 1023 bytes");
    H5Tset_size(type, sizeof lengthy);
    put_mask(type, 1, 1, H5P_DEFAULT, lengthy);
    refuse_scan(&rules, "the strings of /mask/train have 2000 bytes, the most are 1023");
    H5Tset_size(type, sizeof fixed[0]);
    H5Pclose(chunked);
    H5Pclose(zipped);

    const char *path = in_scratch("names");
    put_bytes(path, (const char *)fixed, sizeof fixed);
    hid_t plist = H5Pcreate(H5P_DATASET_CREATE);
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

// Flips bits in the references to strings of variable length and in their heap. The list is then
// either read or refused.
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
    memcpy(&start[1], text + start[0] + 4, sizeof start[1]); // the address of the heap
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

// Tests data that may not be what their author meant.
static void test_warnings(void)
{
    static const char one[] =
        "all 122 rows are one episode, since /terminals and /timeouts mark no end; store /timeouts";
    static const struct refusal list[] = {
        {ROBOMIMIC, "0/data/notes 3", "", NULL, NULL},
        {D4RL, "-/timeouts", "", NULL, NULL},
        {D4RL, "-/timeouts;0/terminals 122", "", one, NULL},
        {D4RL, "0/terminals 122;0/timeouts 122", "", one, NULL},
        {D4RL, "0/terminals 122;0/timeouts 122;=/timeouts 121 0 1", "", NULL, NULL},
        {D4RL, "-/terminals;-/timeouts", "", one, NULL}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        struct dt_scan_rules rules = rules_with(list[i].layout, list[i].keys);
        write_a(list[i].layout);
        change_a(list[i].changes);
        struct dt_dataset *dataset = scan_all(&rules);
        const char *warning = dataset ? dataset->shards[0].warning : "", *want = list[i].said;
        CHECK(want ? strstr(warning, want) != NULL : !*warning, "row %zu warns: %s", i, warning);
    }
    struct dt_scan_rules rules = rules_of(ROBOMIMIC, 0);
    write_a(ROBOMIMIC);
    hid_t file = change("a.h5"); // episodes may have any name
    H5Lmove(file, "/data/demo_3", file, "/data/expert", H5P_DEFAULT, H5P_DEFAULT);
    H5Fclose(file);
    CHECK_INT(scan_all(&rules)->episodes, 6);
    rules = rules_with(ROBOMIMIC, "inputs=obs/a");
    write_a(ROBOMIMIC);
    change_a("0/data/demo_2/obs/a 0 3;0/data/demo_2/actions 0 3");
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

// Tests frames of 2^30 numbers, in a sparse file.
static void test_wide_frames(void)
{
    struct dt_scan_rules rules = rules_of(NATIVE, 0);
    hsize_t dims[2] = {2, 1 << 30};
    write_a(NATIVE);
    hid_t file = new_file(in_scratch("a.h5")), plist = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_alloc_time(plist, H5D_ALLOC_TIME_EARLY);
    H5Pset_fill_time(plist, H5D_FILL_TIME_NEVER);
    put_in(file, "/frames", H5T_STD_U8LE, H5Screate_simple(2, dims, NULL), plist, 0, NULL);
    H5Fclose(file);
    put_zeros("a.h5", "/actions", 2, 2, ACTIONS);
    strcpy(rules.inputs, "frames");
    refuse_scan(&rules,
                "a.h5: a frame has 1073741824 numbers and 3 targets, the most are 67108864");
    plist = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(plist, 2, (hsize_t[]){1, 1});
    dims[0] = dims[1] = INT64_C(1) << 40;
    file = change_without("a.h5", "/frames");
    put_in(file, "/frames", H5T_STD_U8LE, H5Screate_simple(2, dims, NULL), plist, 0, NULL);
    H5Fclose(file);
    refuse_scan(&rules, "a.h5: /frames is impossibly large");
}

int main(void)
{
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    make_scratch();
    RUN(test_refused, test_groups_refused, test_links_refused, test_schemas_refused,
        test_values_refused, test_unfolding, test_masks, test_damaged_strings, test_warnings,
        test_wide_frames, test_damaged_groups);
    remove_scratch();
    return test_end();
}

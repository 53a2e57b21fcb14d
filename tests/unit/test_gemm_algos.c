// GEMM choices: what the run's folder holds wins over the user's cache, both are kept, and a cache
// that cannot be used is no error. The device is the CPU with choices of its own: a shape "own",
// and a number that says which call made it.
#include "job/gemm_algos.h"

#include "small_model.h"

#include <cjson/cJSON.h>
#include <sys/stat.h>

static struct dt_device_table table;
static int calls;               // of choose
static char known_text[4096];   // what choose was given, "" for NULL
static char used_text[4096];    // what use was given
static const char *device_name; // of choose's record

// The shapes of a record that are of this device; NULL where it is of another or none.
static const cJSON *own_shapes(const cJSON *record)
{
    const cJSON *device = cJSON_GetObjectItem(record, "device");
    bool own = device && strcmp(cJSON_GetStringValue(device), device_name) == 0;
    return own ? cJSON_GetObjectItem(record, "gemm") : NULL;
}

static dt_status choose(struct dt_device *device, const char *known, char **text)
{
    (void)device;
    calls++;
    snprintf(known_text, sizeof known_text, "%s", known ? known : "");
    cJSON *record = known ? cJSON_Parse(known) : NULL;
    const cJSON *before = cJSON_GetObjectItem(own_shapes(record), "own");
    char json[256];
    snprintf(json, sizeof json, "{\"device\":\"%s\",\"gemm\":{\"own\":%d}}", device_name,
             before ? before->valueint : calls);
    cJSON_Delete(record);
    *text = strdup(json);
    return DT_OK;
}

static dt_status use(struct dt_device *device, const char *text)
{
    (void)device;
    snprintf(used_text, sizeof used_text, "%s", text);
    return DT_OK;
}

// The value of a shape in a record, -1 where it has none.
static int value_of(const char *text, const char *shape)
{
    cJSON *record = cJSON_Parse(text);
    const cJSON *item = cJSON_GetObjectItem(cJSON_GetObjectItem(record, "gemm"), shape);
    int value = item ? item->valueint : -1;
    cJSON_Delete(record);
    return value;
}

static void check_value(const char *path, const char *shape, int want)
{
    char *text = get_text(path);
    CHECK_INT(value_of(text, shape), want);
    free(text);
}

static void test_merge(void)
{
    static const char a[] = "{\"device\":\"d\",\"gemm\":{\"x\":1,\"y\":2}}";
    static const char b[] = "{\"device\":\"d\",\"gemm\":{\"y\":3,\"z\":4}}";
    static const char other[] = "{\"device\":\"e\",\"gemm\":{\"z\":4}}";
    static const char *const alone[] = {NULL, other, "", "{", "[]", "{\"device\":\"d\"}", "17"};
    char *merged;
    CHECK_INT(dt_gemm_algos_merge(a, b, &merged), DT_OK);
    CHECK_INT(value_of(merged, "x"), 1);
    CHECK_INT(value_of(merged, "y"), 2);
    CHECK_INT(value_of(merged, "z"), 4);
    CHECK(strlen(merged) > 0 && merged[strlen(merged) - 1] == '\n', "a last line of '%s'", merged);
    free(merged);
    for (size_t i = 0; i < sizeof alone / sizeof *alone; i++) {
        CHECK_INT(dt_gemm_algos_merge(a, alone[i], &merged), DT_OK);
        CHECK_INT(value_of(merged, "x"), 1);
        CHECK_INT(value_of(merged, "z"), -1);
        free(merged);
    }
    CHECK_INT(dt_gemm_algos_merge("damaged", b, &merged), DT_OK);
    CHECK_STR(merged, "damaged"); // the device judges it
    free(merged);
}

// A job with a run's folder `name` in the scratch folder.
static struct dt_job open_job(const char *name, const struct small_model *model)
{
    struct dt_job job = {.model = model->config,
                         .micro_batch = 2,
                         .settings.data.seq_len = 16,
                         .ranks_on_device = 1};
    CHECK_INT(dt_comm_open(DT_COMM_KIND_SELF, &job.comm), DT_OK);
    CHECK_INT(dt_backend_open("cpu", 0, 1, &job.backend), DT_OK);
    table = *job.backend.table;
    table.choose = choose;
    table.use = use;
    job.backend.table = &table;
    CHECK_INT(dt_path(job.run_path, "%s", in_scratch(name)), DT_OK);
    CHECK_INT(dt_make_dirs(job.run_path), DT_OK);
    return job;
}

static void close_job(struct dt_job *job)
{
    dt_backend_close(&job->backend);
    dt_comm_close(job->comm);
}

// Applies in run `name`, where choose must be given `known` for "own" (-1: nothing) and all ranks
// then use `want`.
static void apply(const char *name, const struct small_model *model, int known, int want)
{
    struct dt_job job = open_job(name, model);
    CHECK_INT(dt_gemm_algos_apply(&job), DT_OK);
    CHECK_INT(value_of(known_text, "own"), known);
    CHECK_INT(value_of(used_text, "own"), want);
    close_job(&job);
}

static const char *the_cache(void)
{
    static char path[DT_PATH];
    char command[DT_PATH + 16];
    snprintf(command, sizeof command, "ls %s/gemm-*", in_scratch("cache/dtrain"));
    FILE *ls = popen(command, "r");
    CHECK(ls && fgets(path, sizeof path, ls), "there is a cache");
    char more[16];
    CHECK(ls && !fgets(more, sizeof more, ls), "one file, nothing beside it");
    pclose(ls);
    path[strcspn(path, "\n")] = '\0';
    return path;
}

static void test_run_and_cache(const struct small_model *model)
{
    setenv("XDG_CACHE_HOME", in_scratch("cache"), 1);
    device_name = "d";
    apply("a", model, -1, 1); // nothing known
    check_value(in_scratch("a/gemm.json"), "own", 1);
    check_value(the_cache(), "own", 1);
    apply("b", model, 1, 1); // from the cache
    check_value(in_scratch("b/gemm.json"), "own", 1);

    // The run's own wins; its shapes and the cache's stay beside what is chosen.
    put_text(in_scratch("b/gemm.json"), "{\"device\":\"d\",\"gemm\":{\"own\":50,\"old\":7}}");
    put_text(the_cache(), "{\"device\":\"d\",\"gemm\":{\"own\":1,\"others\":9}}");
    apply("b", model, 50, 50);
    CHECK_INT(value_of(known_text, "others"), 9);
    check_value(in_scratch("b/gemm.json"), "own", 50);
    check_value(in_scratch("b/gemm.json"), "old", 7);
    check_value(the_cache(), "own", 50);
    check_value(the_cache(), "others", 9);

    // A run that goes on elsewhere: its record is of another device, the new one takes its place.
    device_name = "e";
    calls = 100;
    apply("b", model, 50, 101);
    check_value(in_scratch("b/gemm.json"), "own", 101);
    check_value(in_scratch("b/gemm.json"), "old", -1);
}

static void test_damage(const struct small_model *model)
{
    device_name = "d";
    calls = 200;
    put_text(the_cache(), "{\"device\":");
    apply("c", model, -1, 201);
    check_value(the_cache(), "own", 201);
    put_text(in_scratch("c/gemm.json"), "not JSON at all");
    apply("c", model, -1, 202);
    check_value(in_scratch("c/gemm.json"), "own", 202);
}

static void test_no_cache(const struct small_model *model)
{
    calls = 300;
    put_text(in_scratch("file"), "");
    setenv("XDG_CACHE_HOME", in_scratch("file"), 1); // no folder, and none can be made in it
    apply("d", model, -1, 301);
    apply("e", model, -1, 302);
    apply("d", model, 301, 301);
    setenv("XDG_CACHE_HOME", "relative", 1); // of no use, as its specification says
    unsetenv("HOME");
    apply("f", model, -1, 304);
    setenv("HOME", in_scratch("home"), 1);
    apply("g", model, -1, 305);
    CHECK(dt_is_dir(in_scratch("home/.cache/dtrain")), "the cache is made where HOME has none");
    apply("h", model, 305, 305);
}

// An evaluation takes what its run chose, and neither times nor writes.
static void test_recall(const struct small_model *model)
{
    struct dt_job job = open_job("nothing", model);
    used_text[0] = '\0';
    calls = 400;
    CHECK_INT(dt_gemm_algos_recall(&job), DT_OK);
    CHECK_STR(used_text, "");
    CHECK(!dt_file_exists(in_scratch("nothing/gemm.json")), "an evaluation writes nothing");
    close_job(&job);
    job = open_job("b", model);
    CHECK_INT(dt_gemm_algos_recall(&job), DT_OK);
    CHECK_INT(value_of(used_text, "own"), 101);
    CHECK_INT(calls, 400);
    close_job(&job);
}

int main(void)
{
    make_scratch();
    struct small_model model = small_model_make(true);
    test_merge();
    test_run_and_cache(&model);
    test_damage(&model);
    test_no_cache(&model);
    test_recall(&model);
    small_model_free(&model);
    remove_scratch();
    return test_end();
}

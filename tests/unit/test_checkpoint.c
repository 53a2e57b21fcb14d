// Checkpoints: the bits come back, every damage is named, what may not change is refused, and a
// save that fails leaves what was there.
#include "base/safetensors.h"
#include "train/checkpoint.h"

#include "small_model.h"

#include <dirent.h>
#include <inttypes.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static const char optimizer[] = "optimizer-00001-of-00001.safetensors";
static const char *const file_names[] = {"config.json", "model.safetensors", optimizer,
                                         "trainer.json", "MANIFEST"};
enum { FILES = sizeof file_names / sizeof *file_names };

static struct dt_shard shards[] = {
    {.path = (char *)"/data/one/a.h5",
     .file_bytes = 1234567,
     .count = 600000,
     .first_hash = UINT64_C(0xfedcba9876543210),
     .last_hash = 1},
    {.path = (char *)"b \"quoted\".h5",
     .file_bytes = 42,
     .count = 7,
     .first_hash = 0,
     .last_hash = UINT64_MAX},
};
static const struct dt_dataset dataset = {.n_shards = 2, .shards = shards};

static struct dt_trainer_state state_at(int64_t step)
{
    return (struct dt_trainer_state){.step = step,
                                     .updates = step - 3,
                                     .skips = 3,
                                     .skipped_in_a_row = 1,
                                     .tokens = INT64_C(9007199254740991), // 2^53 - 1
                                     .seed = UINT64_C(0xffffffffffffff01),
                                     .batch = 16,
                                     .seq_len = 77,
                                     .block = 64,
                                     .shuffle = true,
                                     .reset_token = 4000000000,
                                     .reset_after = true};
}

static struct dt_checkpoint_arrays arrays_of(const struct small_model *model)
{
    return (struct dt_checkpoint_arrays){&model->config, &model->params, model->weights, model->m,
                                         model->v};
}

static dt_status save(const char *dir, const struct small_model *model, int64_t step)
{
    char path[DT_PATH];
    struct dt_checkpoint_arrays arrays = arrays_of(model);
    struct dt_trainer_state state = state_at(step);
    return dt_checkpoint_save(dir, &arrays, &state, &dataset, path);
}

static dt_status load(const char *path, struct small_model *model,
                      const struct dt_trainer_state *expected, const struct dt_dataset *train,
                      struct dt_trainer_state *state)
{
    struct dt_checkpoint_arrays arrays = arrays_of(model);
    return dt_checkpoint_load(path, &arrays, expected, train, state);
}

static void check_same(const struct small_model *a, const struct small_model *b)
{
    size_t bytes = (size_t)a->params.elements * sizeof(float);
    CHECK(memcmp(a->weights, b->weights, bytes) == 0, "other weights");
    CHECK(memcmp(a->m, b->m, bytes) == 0, "other first moments");
    CHECK(memcmp(a->v, b->v, bytes) == 0, "other second moments");
}

static struct small_model make_blank(bool tied)
{
    struct small_model model = small_model_make(tied);
    for (int64_t i = 0; i < model.params.elements; i++)
        model.weights[i] = model.m[i] = model.v[i] = NAN; // padding must be written too
    return model;
}

static void test_round_trip(bool tied)
{
    struct small_model model = small_model_make(tied), blank = make_blank(tied);
    struct dt_checkpoint_arrays arrays = arrays_of(&model);
    struct dt_trainer_state state = state_at(1000), got;
    char path[DT_PATH];
    CHECK_INT(dt_checkpoint_save(in_scratch("trip/sub"), &arrays, &state, &dataset, path), DT_OK);
    CHECK_STR(path, in_scratch("trip/sub/step-00001000"));
    CHECK_INT(dt_checkpoint_verify(path), DT_OK);
    CHECK_INT(load(path, &blank, &state, &dataset, &got), DT_OK);
    check_same(&model, &blank);
    CHECK_INT(got.step, 1000);
    CHECK_INT(got.updates, 997);
    CHECK_INT(got.skips, 3);
    CHECK_INT(got.skipped_in_a_row, 1);
    CHECK_INT(got.tokens, INT64_C(9007199254740991));
    CHECK(got.seed == UINT64_C(0xffffffffffffff01), "seed %" PRIu64, got.seed);
    CHECK_INT(got.batch, 16);
    CHECK_INT(got.seq_len, 77);
    CHECK_INT(got.block, 64);
    CHECK_INT(got.shuffle, true);
    CHECK_INT(got.reset_token, 4000000000);
    CHECK_INT(got.reset_after, true);
    small_model_free(&model);
    small_model_free(&blank);
}

static int count_entries(const char *dir)
{
    int n = 0;
    DIR *stream = opendir(dir);
    for (const struct dirent *entry; stream && (entry = readdir(stream));)
        n += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    if (stream)
        closedir(stream);
    return n;
}

static void fresh_save(const char *dir, const struct small_model *model, int64_t step)
{
    CHECK_INT(dt_remove_tree(dir), DT_OK);
    CHECK_INT(save(dir, model, step), DT_OK);
}

// A name in the only checkpoint of scratch/one.
static const char *in_one(const char *name)
{
    char path[DT_PATH];
    dt_path(path, "one/step-00000007/%s", name);
    return in_scratch(path);
}

static void check_damage(const char *part)
{
    CHECK_FAILS(dt_checkpoint_verify(in_scratch("one/step-00000007")), DT_USER, part);
}

static void test_truncated(void)
{
    struct small_model model = small_model_make(true);
    for (int i = 0; i < FILES; i++)
        for (int how = 0; how < 3; how++) {
            fresh_save(in_scratch("one"), &model, 7);
            const char *path = in_one(file_names[i]);
            int64_t size = dt_file_size(path), cut[] = {size - 1, size / 2, 0};
            CHECK_INT(truncate(path, cut[how]), 0);
            check_damage(file_names[i]);
        }
    small_model_free(&model);
}

static void test_flipped(void)
{
    struct small_model model = small_model_make(true);
    for (int i = 0; i < FILES; i++)
        for (int how = 0; how < 3; how++) {
            fresh_save(in_scratch("one"), &model, 7);
            char path[DT_PATH];
            dt_path(path, "%s", in_one(file_names[i]));
            int64_t size = dt_file_size(path), place[] = {0, size / 2, size - 1};
            flip_byte(path, place[how]);
            check_damage(i == FILES - 1 ? "MANIFEST" : file_names[i]);
        }
    small_model_free(&model);
}

// Any byte of MANIFEST, and any cut: it is small, so all of them.
static void test_manifest_bytes(void)
{
    struct small_model model = small_model_make(true);
    fresh_save(in_scratch("one"), &model, 7);
    char path[DT_PATH], *text;
    int64_t size;
    dt_path(path, "%s", in_one("MANIFEST"));
    CHECK_INT(dt_read_file(path, 1 << 20, &text, &size), DT_OK);
    for (int64_t i = 0; i < size; i++) {
        CHECK_INT(dt_write_file_atomic(path, text, i), DT_OK);
        check_damage("MANIFEST");
    }
    for (int64_t i = 0; i < size; i++) {
        CHECK_INT(dt_write_file_atomic(path, text, size), DT_OK);
        flip_byte(path, i);
        CHECK_INT(dt_checkpoint_verify(in_scratch("one/step-00000007")), DT_USER);
        dt_error_clear();
    }
    CHECK_INT(dt_write_file_atomic(path, text, size), DT_OK);
    CHECK_INT(dt_checkpoint_verify(in_scratch("one/step-00000007")), DT_OK);
    free(text);
    small_model_free(&model);
}

static void test_missing_files(void)
{
    struct small_model model = small_model_make(true);
    for (int i = 0; i < FILES; i++) {
        fresh_save(in_scratch("one"), &model, 7);
        CHECK_INT(unlink(in_one(file_names[i])), 0);
        check_damage(file_names[i]);
    }
    check_damage("MANIFEST");
    fresh_save(in_scratch("one"), &model, 7);
    unlink(in_one("config.json"));
    truncate(in_one(optimizer), 100);
    check_damage("config.json is missing\n"); // all at once
    check_damage("optimizer-00001-of-00001.safetensors has 100 bytes");
    CHECK_FAILS(dt_checkpoint_verify(in_scratch("nothing here")), DT_USER, "nothing here/MANIFEST");
    small_model_free(&model);
}

static void test_hostile_manifest(void)
{
    struct small_model model = small_model_make(true);
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"", "lacks config.json"},
        {"0123456789abcdef 1 ../../../etc/passwd\n", "MANIFEST:1: not a line"},
        {"0123456789abcdef 1 /etc/passwd\n", "MANIFEST:1: not a line"},
        {"0123456789abcdef 1 ..\n", "MANIFEST:1: not a line"},
        {"0123456789abcdef 1 a\n0123456789ABCDEF 1 b\n", "MANIFEST:2: not a line"},
        {"0123456789abcdef 1 a\n0123456789abcdef 1 a\n", "MANIFEST:2: a is listed twice"},
        {"0123456789abcdef -1 a\n", "MANIFEST:1: not a line"},
        {"0123456789abcdef 01 a\n", "MANIFEST:1: not a line"},
        {"0123456789abcdef 99999999999999999999 a\n", "MANIFEST:1: not a line"},
        {"0123456789abcdef 1 a b\n", "MANIFEST:1: not a line"},
        {"0123456789abcdef 1 a", "MANIFEST:1: not a line"},
        {"0123456789abcdef 1 optimizer-00001-of-99999.safetensors\n",
         "MANIFEST lacks optimizer-00002-of-99999.safetensors"},
        {"0123456789abcdef 1 "
         "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
         "a\n",
         "MANIFEST:1: not a line"},
    };
    fresh_save(in_scratch("one"), &model, 7);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_text(in_one("MANIFEST"), cases[i].text);
        check_damage(cases[i].part);
    }
    small_model_free(&model);
}

static void check_newest(const char *dir, const char *want)
{
    char path[DT_PATH];
    CHECK_INT(dt_checkpoint_newest(dir, path), DT_OK);
    CHECK_STR(path, want);
}

static void test_newest(void)
{
    struct small_model model = small_model_make(true);
    char dir[DT_PATH], path[DT_PATH];
    dt_path(dir, "%s", in_scratch("many"));
    check_newest(dir, "");
    dt_make_dirs(dir);
    check_newest(dir, "");
    for (int64_t step = 9; step <= 11; step++)
        CHECK_INT(save(dir, &model, step), DT_OK);
    CHECK_INT(save(dir, &model, 123456789), DT_OK); // nine digits: by number, not by name
    check_newest(dir, in_scratch("many/step-123456789"));
    truncate(in_scratch("many/step-123456789/model.safetensors"), 99);
    dt_make_dirs(in_scratch("many/step-2000000000")); // no MANIFEST
    dt_make_dirs(in_scratch("many/step-99"));         // other names are not looked at
    dt_make_dirs(in_scratch("many/step-00000099.bak"));
    put_text(in_scratch("many/step-00000098"), "a file");
    check_newest(dir, in_scratch("many/step-00000011"));
    for (int64_t step = 9; step <= 11; step++) {
        dt_path(path, "%s/step-%08d/trainer.json", dir, (int)step);
        flip_byte(path, 20);
    }
    CHECK_FAILS(dt_checkpoint_newest(dir, path), DT_USER, "none of the 5 checkpoints");
    CHECK_STR(path, "");
    CHECK_FAILS(dt_checkpoint_newest(in_scratch("many/step-00000098"), path), DT_USER,
                "step-00000098");
    small_model_free(&model);
}

static bool has_step(const char *dir, int step)
{
    char path[DT_PATH];
    dt_path(path, "%s/step-%08d", dir, step);
    return dt_is_dir(path);
}

static void check_steps(const char *dir, int n, const char *there)
{
    for (int step = 1; step <= n; step++)
        CHECK(has_step(dir, step) == (there[step - 1] == 'x'), "step %d of %s", step, there);
}

static void test_prune(void)
{
    struct small_model model = small_model_make(true);
    char dir[DT_PATH];
    dt_path(dir, "%s", in_scratch("prune"));
    CHECK_INT(dt_checkpoint_prune(dir, 3), DT_OK); // no folder yet
    for (int64_t step = 1; step <= 6; step++)
        CHECK_INT(save(dir, &model, step), DT_OK);
    CHECK_INT(dt_checkpoint_prune(dir, 0), DT_OK);
    check_steps(dir, 6, "xxxxxx");
    CHECK_INT(dt_checkpoint_prune(dir, 4), DT_OK);
    check_steps(dir, 6, "..xxxx");
    // The two newest are damaged: the newest whole one, 4, stays besides them.
    truncate(in_scratch("prune/step-00000006/MANIFEST"), 10);
    flip_byte(in_scratch("prune/step-00000005/config.json"), 5);
    CHECK_INT(dt_checkpoint_prune(dir, 1), DT_OK);
    check_steps(dir, 6, "...x.x");
    // No whole one at all: nothing goes.
    flip_byte(in_scratch("prune/step-00000004/config.json"), 5);
    CHECK_INT(dt_checkpoint_prune(dir, 1), DT_OK);
    check_steps(dir, 6, "...x.x");
    CHECK_INT(count_entries(dir), 2);
    small_model_free(&model);
}

// What a job killed in mid-save leaves: not taken for a checkpoint, in nobody's way, removed.
static void test_leftovers(void)
{
    struct small_model model = small_model_make(true);
    char dir[DT_PATH], mine[64];
    dt_path(dir, "%s", in_scratch("left"));
    CHECK_INT(save(dir, &model, 5), DT_OK);
    snprintf(mine, sizeof mine, "left/.step-00000006.tmp-%ld", (long)getpid());
    dt_make_dirs(in_scratch(mine));
    dt_make_dirs(in_scratch("left/.step-00000006.tmp-12345/deeper"));
    put_text(in_scratch("left/.step-00000006.tmp-12345/model.safetensors"), "torn");
    dt_make_dirs(in_scratch("left/other"));
    check_newest(dir, in_scratch("left/step-00000005"));
    CHECK_INT(save(dir, &model, 6), DT_OK); // over the leftover of this very process
    CHECK_INT(dt_checkpoint_prune(dir, 0), DT_OK);
    CHECK_INT(count_entries(dir), 3); // 5, 6, other
    check_newest(dir, in_scratch("left/step-00000006"));
    small_model_free(&model);
}

static void check_weight_of(const char *path, float want)
{
    struct small_model blank = make_blank(true);
    struct dt_trainer_state state = state_at(8), got;
    CHECK_INT(dt_checkpoint_verify(path), DT_OK);
    CHECK_INT(load(path, &blank, &state, &dataset, &got), DT_OK);
    CHECK(blank.weights[0] == want, "weight %g, not %g", (double)blank.weights[0], (double)want);
    small_model_free(&blank);
}

static void test_same_step(void)
{
    struct small_model model = small_model_make(true);
    char dir[DT_PATH], path[DT_PATH];
    dt_path(dir, "%s", in_scratch("same"));
    dt_path(path, "%s", in_scratch("same/step-00000008"));
    for (int i = 0; i < 2; i++) {
        model.weights[0] = (float)i;
        CHECK_INT(save(dir, &model, 8), DT_OK);
        check_weight_of(path, (float)i);
    }
    CHECK_INT(dt_remove_tree(path), DT_OK);
    put_text(path, "a file in the way");
    CHECK_INT(save(dir, &model, 8), DT_OK);
    check_weight_of(path, 1);
    CHECK_INT(count_entries(dir), 1);
    small_model_free(&model);
}

// From here on this process has no renameat2, as on file systems that cannot exchange names.
static bool forbid_exchange(void)
{
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_renameat2, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof rules / sizeof *rules, .filter = rules};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// Runs `part` in a child process: what it does to itself (limits, filters, mounts) ends with it.
static void in_child(void (*part)(void))
{
    int status = 0;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        test_checks = test_failures = 0;
        part();
        _exit(test_failures > 0);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0, "child: status %d",
          status);
}

static void without_exchange(void)
{
    if (!forbid_exchange()) {
        fprintf(stderr, "seccomp is not available: saving without renameat2 is not tested\n");
        return;
    }
    test_same_step();
}

// A disk that fills up: the write fails at any of many places.
static void check_full(const char *dir, const struct small_model *model)
{
    int before = count_entries(dir);
    CHECK_FAILS(save(dir, model, 2), DT_MACHINE, "step-00000002");
    CHECK_INT(count_entries(dir), before);
    CHECK_INT(dt_checkpoint_verify(in_scratch("full/step-00000001")), DT_OK);
}

static void with_size_limit(void)
{
    struct small_model model = small_model_make(true);
    char dir[DT_PATH];
    dt_path(dir, "%s", in_scratch("full"));
    CHECK_INT(save(dir, &model, 1), DT_OK);
    signal(SIGXFSZ, SIG_IGN);
    for (rlim_t limit = 0; limit < 16000; limit += 997) {
        if ((int64_t)limit >= dt_file_size(in_scratch("full/step-00000001/" /* the largest file */
                                                      "optimizer-00001-of-00001.safetensors")))
            break;
        CHECK_INT(setrlimit(RLIMIT_FSIZE, &(struct rlimit){limit, RLIM_INFINITY}), 0);
        check_full(dir, &model);
    }
    CHECK_INT(setrlimit(RLIMIT_FSIZE, &(struct rlimit){RLIM_INFINITY, RLIM_INFINITY}), 0);
    CHECK_INT(save(dir, &model, 2), DT_OK);
    small_model_free(&model);
}

static void with_small_disk(void)
{
    struct small_model model = small_model_make(true);
    char dir[DT_PATH];
    dt_path(dir, "%s", in_scratch("full"));
    dt_make_dirs(dir);
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", dir, "tmpfs", 0, "size=64k") != 0) {
        fprintf(stderr, "no right to mount: saving on a full disk is not tested\n");
        return;
    }
    CHECK_INT(save(dir, &model, 1), DT_OK);
    check_full(dir, &model);
    umount(dir);
    small_model_free(&model);
}

static void test_no_right(void)
{
    struct small_model model = small_model_make(true);
    put_text(in_scratch("in the way"), "a file");
    CHECK_FAILS(save(in_scratch("in the way"), &model, 1), DT_USER, "in the way");
    CHECK_FAILS(save("/proc/self", &model, 1), DT_USER, "/proc/self");
    small_model_free(&model);
}

static void test_load_refuses(void)
{
    struct small_model model = small_model_make(true);
    struct dt_trainer_state state = state_at(7), other = state, got = {.step = -1};
    struct dt_shard moved[3] = {shards[0], shards[1], shards[1]};
    struct dt_dataset train = {.n_shards = 2, .shards = moved};
    const char *path = in_scratch("one/step-00000007");
    fresh_save(in_scratch("one"), &model, 7);

    moved[0].path = (char *)"elsewhere/a.h5"; // data may move
    other.step = other.tokens = other.skips = 0;
    CHECK_INT(load(path, &model, &other, &train, &got), DT_OK);
    CHECK_INT(got.step, 7);

    float first = model.weights[0];
    other.seed = 1;
    other.batch = 17;
    other.seq_len = 78;
    other.block = 65;
    other.shuffle = false;
    other.reset_token = -1;
    other.reset_after = false;
    model.config.norm_eps = 1e-5;
    moved[0].count++;
    moved[1].last_hash--;
    model.weights[0] = 77;
    CHECK_INT(load(path, &model, &other, &train, &got), DT_USER);
    CHECK_SAYS("run.seed is 1, the checkpoint has 18446744073709551361");
    CHECK_SAYS("data.batch is 17, the checkpoint has 16");
    CHECK_SAYS("data.seq_len is 78, the checkpoint has 77");
    CHECK_SAYS("data.block is 65, the checkpoint has 64");
    CHECK_SAYS("data.shuffle is false, the checkpoint has true");
    CHECK_SAYS("data.reset_token is -1, the checkpoint has 4000000000");
    CHECK_SAYS("data.reset_after is false");
    CHECK_SAYS("model.norm_eps is 1e-05, the checkpoint has 1.25e-06");
    CHECK_SAYS("shard 1, a.h5, has 600001 elements, had 600000");
    CHECK_SAYS("shard 2, b \"quoted\".h5, holds other data");
    dt_error_clear();
    CHECK(model.weights[0] == 77.0f && first != 77.0f, "a refused load wrote weights");

    model.config.norm_eps = 1.25e-6;
    train.n_shards = 3;
    moved[0] = shards[1];
    CHECK_INT(load(path, &model, &state, &train, &got), DT_USER);
    CHECK_SAYS("data.train has 3 shards, the checkpoint has 2");
    CHECK_SAYS("shard 1 is b \"quoted\".h5, the checkpoint has a.h5");
    dt_error_clear();
    moved[0] = shards[0];
    moved[0].file_bytes--;
    CHECK_FAILS(load(path, &model, &state, &train, &got), DT_USER, "has 1234566 bytes");
    small_model_free(&model);
}

static void test_other_model(void)
{
    struct small_model model = small_model_make(true), untied = small_model_make(false);
    struct dt_trainer_state state = state_at(7), got;
    fresh_save(in_scratch("one"), &model, 7);
    untied.config.d_model = 13;
    untied.config.n_layer = 2;
    untied.config.vocab_size = 38;
    untied.config.d_state = 6;
    untied.config.d_conv = 4;
    untied.config.expand = 2;
    untied.config.dt_rank = 9;
    CHECK_INT(load(in_scratch("one/step-00000007"), &untied, &state, &dataset, &got), DT_USER);
    CHECK_SAYS("model.d_model is 13, the checkpoint has 12");
    CHECK_SAYS("model.n_layer is 2, the checkpoint has 1");
    CHECK_SAYS("model.vocab_size is 38, the checkpoint has 37");
    CHECK_SAYS("model.d_state is 6, the checkpoint has 5");
    CHECK_SAYS("model.d_conv is 4, the checkpoint has 3");
    CHECK_SAYS("model.expand is 2, the checkpoint has 3");
    CHECK_SAYS("model.dt_rank is 9, the checkpoint has 1");
    CHECK_SAYS("model.tie_embeddings is false, the checkpoint has true");
    dt_error_clear();
    small_model_free(&model);
    small_model_free(&untied);
}

static void check_trainer(struct small_model *model, const char *good, const char *from,
                          const char *to, const char *part)
{
    char text[8192];
    const char *place = strstr(good, from);
    struct dt_trainer_state state = state_at(7), got;
    CHECK(place, "trainer.json has no %s", from);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(place - good), good, to, place + strlen(from));
    put_text(in_one("trainer.json"), text);
    CHECK_FAILS(load(in_scratch("one/step-00000007"), model, &state, &dataset, &got), DT_USER,
                part);
}

static void test_hostile_trainer(void)
{
    struct small_model model = small_model_make(true);
    fresh_save(in_scratch("one"), &model, 7);
    char *good = get_text(in_one("trainer.json"));
    check_trainer(&model, good, "\"step\":\t7", "\"step\": -7", "step is -7");
    check_trainer(&model, good, "\"step\":\t7", "\"step\": 7.5", "step is 7.5");
    check_trainer(&model, good, "\"step\":\t7", "\"step\": 1e300", "step is 1e+300");
    check_trainer(&model, good, "\"step\":\t7", "\"stop\": 7", "step is missing");
    check_trainer(&model, good, "\"format\":\t1", "\"format\": 2", "format is 2");
    check_trainer(&model, good, "\"18446744073709551361\"", "1337", "seed is 1337");
    check_trainer(&model, good, "\"18446744073709551361\"", "\"-1\"", "seed is \"-1\"");
    check_trainer(&model, good, "\"18446744073709551361\"", "\"18446744073709551616\"", "seed is");
    check_trainer(&model, good, "fedcba9876543210", "fedcba987654321", "first_hash is");
    check_trainer(&model, good, "fedcba9876543210", "fedcba987654321G", "first_hash is");
    check_trainer(&model, good, "\"a.h5\"", "[]", "name is []");
    check_trainer(&model, good, "\"shards\":\t[", "\"shards\": 1, \"x\":[", "shards is 1");
    free(good);
    small_model_free(&model);
}

struct range { // elements [first, last) of row's m (kind 0) or v (kind 1)
    int row, kind;
    int64_t first, last;
};

static void range_entry(const struct small_model *model, const struct range *range, char name[192],
                        struct dt_safetensors_entry *entry)
{
    snprintf(name, 192, "%s.%s[%lld:%lld]", range->kind ? "exp_avg_sq" : "exp_avg",
             model->params.rows[range->row].name, (long long)range->first, (long long)range->last);
    *entry = (struct dt_safetensors_entry){
        .name = name, .dtype = DT_F32, .n_dims = 1, .shape = {range->last - range->first}};
}

static void write_ranges(const char *path, const struct small_model *model,
                         const struct range *ranges, int n)
{
    struct dt_safetensors_entry entries[64];
    char names[64][192];
    struct dt_safetensors_writer *writer;
    for (int i = 0; i < n; i++)
        range_entry(model, &ranges[i], names[i], &entries[i]);
    CHECK_INT(dt_safetensors_create(path, entries, n, NULL, 0, &writer), DT_OK);
    for (int i = 0; i < n; i++) {
        const float *from = ranges[i].kind ? model->v : model->m;
        from += model->params.rows[ranges[i].row].offset + ranges[i].first;
        CHECK_INT(dt_safetensors_write(writer, from, (ranges[i].last - ranges[i].first) * 4),
                  DT_OK);
    }
    CHECK_INT(dt_safetensors_finish(writer, NULL, NULL), DT_OK);
}

// Cuts every tensor into three parts and deals them to three files, as another number of writers
// would; `spoil` is the first element of one range, moved by `by`.
static void write_split(const struct small_model *model, int spoil, int64_t by)
{
    struct range ranges[3][64];
    int n[3] = {0}, made = 0;
    for (int row = 0; row < model->params.n; row++)
        for (int kind = 0; kind < 2; kind++)
            for (int part = 2; part >= 0; part--, made++) {
                int64_t count = model->params.rows[row].file_count;
                struct range r = {row, kind, count * part / 3, count * (part + 1) / 3};
                if (made == spoil)
                    r.first += by;
                ranges[(row + part) % 3][n[(row + part) % 3]++] = r;
            }
    char name[64];
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "optimizer-%05d-of-00003.safetensors", i + 1);
        write_ranges(in_one(name), model, ranges[i], n[i]);
    }
}

// MANIFEST anew, from the files that are there but the one-file optimizer.
static void rewrite_manifest(void)
{
    static const char *const names[] = {"config.json",
                                        "model.safetensors",
                                        "trainer.json",
                                        "optimizer-00003-of-00003.safetensors",
                                        "optimizer-00001-of-00003.safetensors",
                                        "optimizer-00002-of-00003.safetensors"};
    char text[1024];
    int used = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        uint64_t hash;
        int64_t size;
        CHECK_INT(dt_hash_file(in_one(names[i]), &hash, &size), DT_OK);
        used += snprintf(text + used, sizeof text - (size_t)used, "%016" PRIx64 " %" PRId64 " %s\n",
                         hash, size, names[i]);
    }
    put_text(in_one("MANIFEST"), text);
}

static dt_status load_split(struct small_model *blank)
{
    struct dt_trainer_state state = state_at(7), got;
    rewrite_manifest();
    CHECK_INT(dt_checkpoint_verify(in_scratch("one/step-00000007")), DT_OK);
    return load(in_scratch("one/step-00000007"), blank, &state, &dataset, &got);
}

static void test_split_optimizer(void)
{
    struct small_model model = small_model_make(true), blank = make_blank(true);
    fresh_save(in_scratch("one"), &model, 7);
    unlink(in_one(optimizer));
    write_split(&model, -1, 0);
    CHECK_INT(load_split(&blank), DT_OK);
    check_same(&model, &blank);
    write_split(&model, 7, 1); // part 1 of row 1's m begins one later
    CHECK_FAILS(load_split(&blank), DT_USER, "leave out or repeat");
    write_split(&model, 7, -1);
    CHECK_FAILS(load_split(&blank), DT_USER, "leave out or repeat");
    small_model_free(&model);
    small_model_free(&blank);
}

static void test_hostile_ranges(void)
{
    struct small_model model = small_model_make(true), blank = make_blank(true);
    static const char *const names[] = {"exp_avg.backbone.norm_f.weight",
                                        "exp_avg.backbone.norm_f.weight[0:13]",
                                        "exp_avg.backbone.norm_f.weight[-1:11]",
                                        "exp_avg.backbone.norm_f.weight[0:12",
                                        "exp_avg.backbone.norm_f.weight[0:12]x",
                                        "exp_avg.backbone.norm_f.weight[1:13]",
                                        "exp_avg.backbone.norm_f.weight[12:0]",
                                        "exp_avg.backbone.norm[0:12]",
                                        "exp_avg_sq.backbone.norm_f.weights[0:12]",
                                        "momentum.backbone.norm_f.weight[0:12]",
                                        "exp_avg.backbone.norm_f.weight[0:99999999999999999999]",
                                        "",
                                        "exp_avg."};
    fresh_save(in_scratch("one"), &model, 7);
    write_split(&model, -1, 0);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const float zeros[12] = {0};
        struct dt_safetensors_entry entry = {
            .name = names[i], .dtype = DT_F32, .n_dims = 1, .shape = {12}};
        struct dt_safetensors_writer *writer;
        const char *path = in_one("optimizer-00003-of-00003.safetensors");
        CHECK_INT(dt_safetensors_create(path, &entry, 1, NULL, 0, &writer), DT_OK);
        CHECK_INT(dt_safetensors_write(writer, zeros, sizeof zeros), DT_OK);
        CHECK_INT(dt_safetensors_finish(writer, NULL, NULL), DT_OK);
        CHECK_FAILS(load_split(&blank), DT_USER, "optimizer-00003-of-00003.safetensors");
    }
    small_model_free(&model);
    small_model_free(&blank);
}

int main(void)
{
    scratch_begin();
    test_round_trip(true);
    test_round_trip(false);
    test_truncated();
    test_flipped();
    test_manifest_bytes();
    test_missing_files();
    test_hostile_manifest();
    test_newest();
    test_prune();
    test_leftovers();
    test_same_step();
    in_child(without_exchange);
    in_child(with_size_limit);
    in_child(with_small_disk);
    test_no_right();
    test_load_refuses();
    test_other_model();
    test_hostile_trainer();
    test_split_optimizer();
    test_hostile_ranges();
    CHECK_INT(dt_remove_tree(scratch), DT_OK);
    return test_end();
}

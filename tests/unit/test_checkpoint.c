// Tests folders of checkpoints: damage is reported with the file's name, the newest whole
// checkpoint is found and kept, and a failed save leaves the folder as it was.
#include "durable.h"
#include "small_checkpoint.h"

#include <dirent.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

static const char *const file_names[] = {"config.json", "model.safetensors", optimizer,
                                         "trainer.json", "MANIFEST"};
enum { FILES = sizeof file_names / sizeof *file_names };

static struct small_model small; // the model that all tests save

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

static void check_damage(const char *part)
{
    CHECK_FAILS(dt_checkpoint_verify(in_scratch("one/step-00000007")), DT_USER, part);
}

// Replaces file `name` by `size` bytes, which must be reported, and restores it.
static void check_replaced(const char *name, const char *good, int64_t good_size, const char *bytes,
                           int64_t size)
{
    put_bytes(in_one(name), bytes, size);
    check_damage(name);
    put_bytes(in_one(name), good, good_size);
}

static void test_damaged(void)
{
    fresh_save(in_scratch("one"), &small, 7);
    for (int i = 0; i < FILES; i++) {
        char *good, *bad;
        int64_t size, other;
        CHECK_OK(dt_read_file(in_one(file_names[i]), 1 << 24, &good, &size));
        CHECK_OK(dt_read_file(in_one(file_names[i]), 1 << 24, &bad, &other));
        const int64_t cut[] = {size - 1, size / 2, 0}, place[] = {0, size / 2, size - 1};
        for (int how = 0; how < 3; how++) {
            check_replaced(file_names[i], good, size, bad, cut[how]);
            bad[place[how]] ^= 1;
            check_replaced(file_names[i], good, size, bad, size);
            bad[place[how]] ^= 1;
        }
        free(good);
        free(bad);
    }
    CHECK_OK(dt_checkpoint_verify(in_scratch("one/step-00000007")));
}

// Changes every byte of MANIFEST and cuts it at every length. It is small enough for that.
static void test_manifest_bytes(void)
{
    fresh_save(in_scratch("one"), &small, 7);
    const char *path = in_scratch("one/step-00000007/MANIFEST");
    char *text;
    int64_t size;
    CHECK_OK(dt_read_file(path, 1 << 20, &text, &size));
    for (int64_t i = 0; i < size; i++) {
        put_bytes(path, text, i);
        check_damage("MANIFEST");
    }
    for (int64_t i = 0; i < size; i++) {
        put_bytes(path, text, size);
        flip_bit(path, i);
        CHECK_INT(dt_checkpoint_verify(in_scratch("one/step-00000007")), DT_USER);
        dt_error_clear();
    }
    put_bytes(path, text, size);
    CHECK_OK(dt_checkpoint_verify(in_scratch("one/step-00000007")));
    free(text);
}

static void test_missing_files(void)
{
    for (int i = 0; i < FILES; i++) {
        fresh_save(in_scratch("one"), &small, 7);
        CHECK_INT(unlink(in_one(file_names[i])), 0);
        check_damage(file_names[i]);
    }
    check_damage("MANIFEST");
    fresh_save(in_scratch("one"), &small, 7);
    unlink(in_one("config.json"));
    truncate(in_one(optimizer), 100);
    check_damage("config.json is missing\n"); // all files at once
    check_damage("optimizer-00001-of-00001.safetensors has 100 bytes");
    CHECK_FAILS(dt_checkpoint_verify(in_scratch("nothing here")), DT_USER, "nothing here/MANIFEST");
}

static void test_hostile_manifest(void)
{
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
         "a23456789012345678901234567890123456789012345678901234567890123\n",
         "a23456789012345678901234567890123456789012345678901234567890123 is missing"},
        {"0123456789abcdef 1 "
         "a234567890123456789012345678901234567890123456789012345678901234\n",
         "MANIFEST:1: not a line"},
    };
    fresh_save(in_scratch("one"), &small, 7);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_text(in_one("MANIFEST"), cases[i].text);
        check_damage(cases[i].part);
    }
}

static void check_newest(const char *dir, const char *want)
{
    char path[DT_PATH];
    CHECK_OK(dt_checkpoint_newest(dir, path));
    CHECK_STR(path, want);
}

static void test_newest(void)
{
    const char *dir = in_scratch("many");
    char path[DT_PATH];
    check_newest(dir, "");
    dt_make_dirs(dir);
    check_newest(dir, "");
    for (int64_t step = 9; step <= 11; step++)
        CHECK_OK(save(dir, &small, step));
    CHECK_OK(save(dir, &small, 123456789)); // nine digits: compares numbers, not names
    check_newest(dir, in_scratch("many/step-123456789"));
    truncate(in_scratch("many/step-123456789/model.safetensors"), 99);
    dt_make_dirs(in_scratch("many/step-2000000000")); // without MANIFEST
    dt_make_dirs(in_scratch("many/step-99"));         // other names are ignored
    dt_make_dirs(in_scratch("many/step-00000099.bak"));
    put_text(in_scratch("many/step-00000098"), "a file");
    const char *eleven = in_scratch("many/step-00000011"),
               *later = in_scratch("many/step-00000012");
    check_newest(dir, eleven);
    CHECK_INT(rename(eleven, later), 0); // whole, but its name has another step
    check_newest(dir, in_scratch("many/step-00000010"));
    CHECK_INT(rename(later, eleven), 0);
    for (int step = 9; step <= 11; step++)
        flip_bit(in_scratch("many/step-%08d/trainer.json", step), 20);
    CHECK_FAILS(dt_checkpoint_newest(dir, path), DT_USER, "none of the 5 checkpoints");
    CHECK_STR(path, "");
    CHECK_FAILS(dt_checkpoint_newest(in_scratch("many/step-00000098"), path), DT_USER,
                "step-00000098");
}

static void check_steps(const char *dir, int n, const char *there)
{
    char path[DT_PATH];
    for (int step = 1; step <= n; step++) {
        dt_path(path, "%s/step-%08d", dir, step);
        CHECK(dt_is_dir(path) == (there[step - 1] == 'x'), "step %d of %s", step, there);
    }
}

static void test_prune(void)
{
    const char *dir = in_scratch("prune");
    CHECK_OK(dt_checkpoint_prune(dir, 3, -1, 0)); // there is no folder yet
    for (int64_t step = 1; step <= 6; step++)
        CHECK_OK(save(dir, &small, step));
    // This is no checkpoint, and does not count as one.
    dt_make_dirs(in_scratch("prune/step-00000006.bak"));
    CHECK_OK(dt_checkpoint_prune(dir, 0, -1, 0));
    check_steps(dir, 6, "xxxxxx");
    durable[0] = 0;
    CHECK_OK(dt_checkpoint_prune(dir, 4, -1, 1)); // the best checkpoint is kept as well
    CHECK(strstr(durable, "rename .step-"), "a checkpoint is removed under its own name: %s",
          durable);
    check_steps(dir, 6, "x.xxxx");
    CHECK_OK(dt_checkpoint_prune(dir, 4, -1, 5));
    check_steps(dir, 6, "..xxxx");
    // The two newest checkpoints are damaged, so the newest whole one, 4, is kept besides them.
    truncate(in_scratch("prune/step-00000006/MANIFEST"), 10);
    flip_bit(in_scratch("prune/step-00000005/config.json"), 5);
    CHECK_OK(dt_checkpoint_prune(dir, 1, 5, 0)); // 5 was just saved, so it is not read
    check_steps(dir, 6, "....xx");
    CHECK_OK(save(dir, &small, 4));
    CHECK_OK(dt_checkpoint_prune(dir, 1, -1, 0));
    check_steps(dir, 6, "...x.x");
    // Without any whole checkpoint, none is removed.
    flip_bit(in_scratch("prune/step-00000004/config.json"), 5);
    CHECK_OK(dt_checkpoint_prune(dir, 1, -1, 0));
    check_steps(dir, 6, "...x.x");
    CHECK_INT(count_entries(dir), 3);
}

static void check_best(const char *dir, const char *want)
{
    char path[DT_PATH], target[64] = "";
    dt_path(path, "%s/best", dir);
    ssize_t n = readlink(path, target, sizeof target - 1);
    CHECK_STR(n > 0 ? target : "", want);
}

static void test_best(void)
{
    const char *dir = in_scratch("best");
    for (int64_t step = 1; step <= 3; step++)
        CHECK_OK(save(dir, &small, step));
    static const int marked[] = {0, 2, 3, 3, 0, 0, 3}; // 0: none is the best any more
    // Left by a kill.
    CHECK_INT(symlink("step-00000003", in_scratch("best/.step-best.tmp-link")), 0);
    for (int i = 0; i < 7; i++) {
        char want[64] = "";
        if (marked[i] > 0)
            snprintf(want, sizeof want, "step-%08d", marked[i]);
        dt_checkpoint_mark_best(dir, marked[i]);
        check_best(dir, want);
    }
    // The link can be verified as a checkpoint.
    CHECK_OK(dt_checkpoint_verify(in_scratch("best/best")));
    check_newest(dir, in_scratch("best/step-00000003"));
    // A kill leaves a link with a hidden name. The link is removed, its target is not.
    CHECK_INT(symlink("step-00000003", in_scratch("best/.step-best.tmp-1")), 0);
    CHECK_OK(dt_checkpoint_prune(dir, 1, -1, 2));
    check_steps(dir, 3, ".xx");
    CHECK_INT(count_entries(dir), 3);
    CHECK_OK(dt_checkpoint_verify(in_scratch("best/step-00000003")));
    // Where a copy of the folder has a folder in place of the link, that folder stays as it is.
    unlink(in_scratch("best/best"));
    dt_make_dirs(in_scratch("best/best"));
    dt_checkpoint_mark_best(dir, 3);
    check_best(dir, "");
    CHECK_OK(dt_checkpoint_prune(dir, 1, -1, 0));
    CHECK_INT(count_entries(dir), 2);
}

// The remains of a job that was killed during a save are not taken for a checkpoint, do not disturb
// a save, and are removed.
static void test_leftovers(void)
{
    const char *dir = in_scratch("left");
    CHECK_OK(save(dir, &small, 5));
    dt_make_dirs(in_scratch("left/.step-00000006.tmp-12345/deeper"));
    put_text(in_scratch("left/.step-00000006.tmp-12345/model.safetensors"), "torn");
    dt_make_dirs(in_scratch("left/other"));
    check_newest(dir, in_scratch("left/step-00000005"));
    CHECK_OK(save(dir, &small, 6));
    CHECK_OK(dt_checkpoint_prune(dir, 0, -1, 0));
    CHECK_INT(count_entries(dir), 3); // folders 5, 6 and other
    check_newest(dir, in_scratch("left/step-00000006"));
    dt_make_dirs(in_scratch("left/.step-00000006.tmp-removed/deeper")); // killed while removing 6
    CHECK_OK(dt_checkpoint_cut(dir, 5));
    CHECK_INT(count_entries(dir), 2);
}

static void check_weight_of(const char *path, float want)
{
    struct small_model blank = make_blank(true);
    struct dt_trainer_state state = state_at(8), got;
    CHECK_OK(dt_checkpoint_verify(path));
    CHECK_OK(load(path, &blank, &state, &dataset, &got));
    CHECK(blank.weights[0] == want, "weight %g, not %g", (double)blank.weights[0], (double)want);
    small_model_free(&blank);
}

static void test_same_step(void)
{
    const char *dir = in_scratch("same"), *path = in_scratch("same/step-00000008");
    // The new checkpoint's name must be durable before the old checkpoint is removed.
    static const char last[] = " step-00000008\nfsync same\n";
    for (int i = 0; i < 2; i++) {
        small.weights[0] = (float)i;
        durable[0] = 0;
        CHECK_OK(save(dir, &small, 8));
        const char *synced = strstr(durable, "fsync .step-00000008.tmp-");
        CHECK(synced && strstr(synced, "rename step-"), "its folder is not synced: %s", durable);
        size_t n = strlen(durable);
        CHECK_STR(n < sizeof last ? durable : durable + n - (sizeof last - 1), last);
        check_weight_of(path, (float)i);
    }
    CHECK_OK(dt_remove_tree(path));
    put_text(path, "a file in the way");
    CHECK_OK(save(dir, &small, 8));
    check_weight_of(path, 1);
    CHECK_INT(count_entries(dir), 1);
}

// Makes renameat2 fail in this process from here on, as on file systems that cannot exchange names.
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

static void without_exchange(void)
{
    if (!forbid_exchange()) {
        fprintf(stderr, "seccomp is not available: saving without renameat2 is not tested\n");
        return;
    }
    test_same_step();
    fail_rename = 3; // to the name, which exists; the old one aside; to the name
    small.weights[0] = 7;
    CHECK_FAILS(save(in_scratch("same"), &small, 8), DT_MACHINE, "step-00000008: No space left");
    check_weight_of(in_scratch("same/step-00000008"), 1); // the old one has its name again
}

// A save on a full disk fails and leaves nothing.
static void check_full(const char *dir)
{
    int before = count_entries(dir);
    CHECK_FAILS(save(dir, &small, 2), DT_MACHINE, "step-00000002");
    CHECK_INT(count_entries(dir), before);
    CHECK_OK(dt_checkpoint_verify(in_scratch("full/step-00000001")));
}

static void with_size_limit(void)
{
    const char *dir = in_scratch("full");
    CHECK_OK(save(dir, &small, 1));
    for (rlim_t limit = 0; limit < 16000; limit += 997) {
        if ((int64_t)limit >= dt_file_size(in_scratch("full/step-00000001/" /* the largest file */
                                                      "optimizer-00001-of-00001.safetensors")))
            break;
        limit_file_size(limit);
        check_full(dir);
    }
    limit_file_size(RLIM_INFINITY);
    CHECK_OK(save(dir, &small, 2));
}

static void with_small_disk(void)
{
    const char *dir = in_scratch("full");
    dt_make_dirs(dir);
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", dir, "tmpfs", 0, "size=64k") != 0) {
        fprintf(stderr, "no right to mount: saving on a full disk is not tested\n");
        return;
    }
    CHECK_OK(save(dir, &small, 1));
    check_full(dir);
    umount(dir);
}

// Another rank's file is missing, or has another size than that rank reported.
static void test_missing_part(void)
{
    struct dt_checkpoint_arrays arrays = arrays_of(&small);
    struct dt_trainer_state state = state_at(9);
    struct dt_checkpoint_draft draft;
    struct dt_manifest manifest = {0};
    CHECK_OK(dt_checkpoint_draft(in_scratch("parts"), 9, 1, 0, 2, &draft));
    CHECK_OK(dt_checkpoint_write(&draft, &arrays, &state, &dataset, &manifest));
    CHECK_OK(dt_manifest_add(&manifest, "optimizer-00002-of-00002.safetensors", 10, 0));
    // Missing, one byte too short, one too long.
    for (int bytes = 0; bytes < 12; bytes += bytes == 0 ? 9 : 2) {
        char path[DT_PATH];
        CHECK_OK(dt_path(path, "%s/optimizer-00002-of-00002.safetensors", draft.folder));
        if (bytes > 0)
            put_bytes(path, "0123456789a", bytes);
        CHECK_FAILS(dt_checkpoint_publish(&draft, &arrays, &manifest), DT_USER,
                    "optimizer-00002-of-00002.safetensors, which another rank wrote, is missing");
    }
    dt_checkpoint_discard(&draft);
    dt_manifest_free(&manifest);
}

static void test_no_right(void)
{
    put_text(in_scratch("in the way"), "a file");
    CHECK_FAILS(save(in_scratch("in the way"), &small, 1), DT_USER, "in the way");
    CHECK_FAILS(save("/proc/self", &small, 1), DT_USER, "/proc/self");
}

int main(void)
{
    make_scratch();
    small = small_model_make(true);
    RUN(test_damaged, test_manifest_bytes, test_missing_files, test_hostile_manifest, test_newest,
        test_prune, test_best, test_leftovers, test_same_step);
    CHECK_INT(in_child(without_exchange), 0);
    CHECK_INT(in_child(with_size_limit), 0);
    CHECK_INT(in_child(with_small_disk), 0);
    test_missing_part();
    test_no_right();
    small_model_free(&small);
    remove_scratch();
    return test_end();
}

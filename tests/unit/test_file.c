// Tests files: whole writes, exact reads, trees, hashes, and the message of each failure.
#include "base/file.h"

#include "durable.h"
#include "scratch.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static size_t at_once = SIZE_MAX; // the most bytes that one call reads or writes, as if interrupted
static int close_error;

ssize_t read(int fd, void *data, size_t size)
{
    return syscall(SYS_read, fd, data, size < at_once ? size : at_once);
}

ssize_t write(int fd, const void *data, size_t size)
{
    return syscall(SYS_write, fd, data, size < at_once ? size : at_once);
}

ssize_t pread(int fd, void *data, size_t size, off_t offset)
{
    return syscall(SYS_pread64, fd, data, size < at_once ? size : at_once, offset);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset)
{
    return syscall(SYS_pwrite64, fd, data, size < at_once ? size : at_once, offset);
}

int close(int fd)
{
    int code = (int)syscall(SYS_close, fd);
    errno = close_error ? close_error : errno;
    return close_error ? -1 : code;
}

static void put(const char *name, const char *text)
{
    CHECK_OK(dt_write_file_atomic(in_scratch("%s", name), text, (int64_t)strlen(text)));
}

static void test_path(void)
{
    char path[DT_PATH], name[DT_PATH + 10];
    memset(name, 'x', sizeof name);
    name[DT_PATH - 1] = 0;
    CHECK_OK(dt_path(path, "%s", name));
    CHECK_STR(path, name);
    CHECK_FAILS(dt_path(path, "%sy", name), DT_USER, "4096 bytes");
}

static void test_write_and_read(void)
{
    char *text;
    int64_t size;
    put("a", "first, longer");
    put("a", "second");
    CHECK_OK(dt_read_file(in_scratch("a"), 100, &text, &size));
    CHECK_INT(size, 6);
    CHECK_STR(text, "second");
    free(text);
    CHECK(!dt_file_exists(in_scratch("a.tmp")), "the temporary file stayed");
    CHECK_INT(dt_file_size(in_scratch("a")), 6);
}

static void test_read_limits(void)
{
    char *text;
    int64_t size, length = 300001; // the buffer grows several times
    char *long_text = malloc((size_t)length);
    for (int64_t i = 0; i < length; i++)
        long_text[i] = (char)(i * 7);
    CHECK_OK(dt_write_file_atomic(in_scratch("long"), long_text, length));
    CHECK_OK(dt_read_file(in_scratch("long"), length, &text, &size));
    CHECK(size == length && memcmp(text, long_text, (size_t)size) == 0, "got %lld bytes",
          (long long)size);
    CHECK(text[size] == 0, "no final zero");
    free(text);
    CHECK_FAILS(dt_read_file(in_scratch("long"), length - 1, &text, &size), DT_USER,
                "300000 bytes");
    CHECK(!text, "text was left behind an error");
    free(long_text);

    put("empty", "");
    CHECK_OK(dt_read_file(in_scratch("empty"), 0, &text, &size));
    CHECK(size == 0 && text && text[0] == 0, "%lld bytes", (long long)size);
    free(text);
    CHECK_OK(dt_read_file("/proc/self/status", 1 << 20, &text, &size)); // stat reports a size of 0
    CHECK(size > 100, "%lld bytes of /proc/self/status", (long long)size);
    free(text);
}

static void test_read_failures(void)
{
    char *text;
    int64_t size;
    int fd;
    put("plain", "x");
    CHECK_FAILS(dt_read_file(in_scratch("absent"), 10, &text, &size), DT_USER,
                "absent: No such file");
    CHECK_FAILS(dt_read_file(scratch, 10, &text, &size), DT_USER, "is a folder");
    CHECK_FAILS(dt_read_file(in_scratch("plain/below"), 10, &text, &size), DT_USER,
                "Not a directory");
    CHECK_FAILS(dt_open_read(scratch, &fd, &size), DT_USER, "is a folder");
    CHECK_FAILS(dt_open_read("/dev/null", &fd, &size), DT_USER, "not a regular file");
    CHECK_INT(mkfifo(in_scratch("fifo"), 0600), 0); // must not wait for a writer
    CHECK_FAILS(dt_open_read(in_scratch("fifo"), &fd, &size), DT_USER, "not a regular file");
    CHECK_FAILS(dt_read_file("/dev/zero", 10, &text, &size), DT_USER, "not a regular file");
    CHECK_FAILS(dt_read_file(in_scratch("fifo"), 10, &text, &size), DT_USER, "not a regular file");
    int writer = open(in_scratch("fifo"), O_RDWR); // must not wait for what a writer may write
    CHECK_FAILS(dt_read_file(in_scratch("fifo"), 10, &text, &size), DT_USER, "not a regular file");
    close(writer);
    CHECK_FAILS(dt_write_file_atomic(in_scratch("no/such"), "", 0), DT_USER, "such.tmp");
    CHECK_OK(dt_make_dirs(in_scratch("folder/inside")));
    CHECK_FAILS(dt_write_file_atomic(in_scratch("folder"), "", 0), DT_USER, "Is a directory");
    CHECK(!dt_file_exists(in_scratch("folder.tmp")), "the temporary file stayed");
}

// A pipe, as a shell's <(command) gives: it holds less than what is read, so that reading must
// wait.
static void test_read_pipe(void)
{
    enum { BYTES = 1 << 20 };
    static char bytes[BYTES];
    char *text, path[32];
    int64_t size;
    int ends[2], exit_status = 0;
    for (int i = 0; i < BYTES; i++)
        bytes[i] = (char)(i * 13 / 7);
    CHECK_INT(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        _exit(dt_write_all(ends[1], "pipe", bytes, BYTES) == DT_OK ? 0 : 1);
    }
    close(ends[1]);
    snprintf(path, sizeof path, "/dev/fd/%d", ends[0]);
    CHECK_OK(dt_read_file(path, BYTES, &text, &size));
    CHECK(size == BYTES && memcmp(text, bytes, BYTES) == 0, "%lld bytes", (long long)size);
    free(text);
    close(ends[0]);
    CHECK(waitpid(child, &exit_status, 0) == child && exit_status == 0, "the writer failed");
}

static void test_pread(void)
{
    char data[8] = "";
    put("digits", "0123456789");
    int fd = open(in_scratch("digits"), O_RDONLY);
    CHECK_OK(dt_pread_all(fd, "digits", data, 4, 6));
    CHECK_STR(data, "6789");
    CHECK_FAILS(dt_pread_all(fd, "digits", data, 5, 6), DT_USER,
                "digits ends at byte 10, expected 11 bytes");
    CHECK_OK(dt_pread_all(fd, "digits", data, 0, 99));
    close(fd);
    CHECK_FAILS(dt_pread_all(fd, "digits", data, 1, 0), DT_MACHINE, "cannot read digits");
    fd = open(in_scratch("digits"), O_RDWR);
    CHECK_OK(dt_pwrite_all(fd, "digits", "abc", 3, 4));
    CHECK_OK(dt_pwrite_all(fd, "digits", "de", 2, 10));
    CHECK_OK(dt_pread_all(fd, "digits", data, 8, 4));
    CHECK(memcmp(data, "abc789de", 8) == 0, "%.8s", data);
    close(fd);
    CHECK_FAILS(dt_pwrite_all(fd, "digits", "a", 1, 0), DT_MACHINE, "cannot write digits");
    CHECK_OK(dt_fsync_file(in_scratch("digits")));
    CHECK_FAILS(dt_fsync_file(in_scratch("no digits")), DT_USER, "cannot open");
}

static void count_piece(void *n)
{
    ++*(int *)n;
}

// Calls that read or write less than requested are repeated, and each of them reports progress.
static void test_pieces(void)
{
    const char *const text = "0123456789";
    char got[11] = "", *all;
    uint64_t whole, hash;
    int64_t size;
    int fd, n = 0;
    put("pieces", text);
    CHECK_OK(dt_hash_file(in_scratch("pieces"), &whole, NULL));
    dt_file_on_progress_here(count_piece, &n);
    at_once = 3;
    put("pieces", text);
    CHECK_INT(n, 4 + 2); // four pieces and two syncs
    CHECK_OK(dt_hash_file(in_scratch("pieces"), &hash, &size));
    CHECK(hash == whole && size == 10 && n == 10, "%d pieces of %lld bytes", n, (long long)size);
    fd = open(in_scratch("pieces"), O_RDWR);
    CHECK_OK(dt_pwrite_all(fd, "pieces", text, 9, 1));
    CHECK_OK(dt_pread_all(fd, "pieces", got, 9, 1));
    CHECK_INT(n, 10 + 3 + 3);
    CHECK_STR(got, "012345678");
    CHECK_OK(dt_pwrite_all(fd, "pieces", text, 10, 0));
    CHECK_OK(dt_read_file(in_scratch("pieces"), 10, &all, &size));
    CHECK_INT(n, 16 + 4 + 4);
    CHECK_STR(all, text);
    at_once = SIZE_MAX;
    dt_file_on_progress_here(NULL, NULL);
    free(all);
    close(fd);
}

static void test_full_disk(void)
{
    int fd = open("/dev/null", O_WRONLY); // /dev/null has no fsync
    CHECK_FAILS(dt_close_synced(fd, "run/x"), DT_MACHINE, "cannot write run/x");
    close_error = EDQUOT; // NFS reports it when the file is closed
    CHECK_FAILS(dt_write_synced(in_scratch("late"), "x", 1), DT_MACHINE, "late: Disk quota");
    close_error = 0;
    fd = open("/dev/full", O_WRONLY);
    if (fd >= 0) {
        CHECK_FAILS(dt_write_all(fd, "run/x", "data", 4), DT_MACHINE,
                    "run/x: No space left on device");
        close(fd);
    }
    // A size limit simulates a disk that fills up in the middle of a write. The old file must stay,
    // and nothing else.
    put("kept", "old");
    char *data = calloc(1, 1 << 20);
    limit_file_size(4096);
    CHECK_FAILS(dt_write_file_atomic(in_scratch("kept"), data, 1 << 20), DT_MACHINE,
                "kept.tmp: File");
    limit_file_size(RLIM_INFINITY);
    free(data);
    CHECK_INT(dt_file_size(in_scratch("kept")), 3);
    CHECK(!dt_file_exists(in_scratch("kept.tmp")), "the half-written file stayed");
}

static void test_make_dirs(void)
{
    put("a-file", "");
    struct stat info;
    mode_t mask = umask(0); // only the umask decides who may use files of dtrain
    CHECK_OK(dt_make_dirs(in_scratch("d/e/f")));
    put("d/e/f/shared", "x");
    umask(mask);
    CHECK(stat(in_scratch("d/e/f"), &info) == 0 && info.st_mode == (S_IFDIR | 0777), "%o",
          info.st_mode);
    CHECK(stat(in_scratch("d/e/f/shared"), &info) == 0 && info.st_mode == (S_IFREG | 0666), "%o",
          info.st_mode);
    CHECK_OK(dt_make_dirs(in_scratch("d/e/f")));
    CHECK_OK(dt_make_dirs(in_scratch("d//e/g/")));
    CHECK(dt_is_dir(in_scratch("d/e/g")), "d/e/g is not there");
    CHECK_OK(dt_make_dirs("/"));
    CHECK_FAILS(dt_make_dirs(in_scratch("a-file")), DT_USER, "a-file: File exists");
    CHECK_FAILS(dt_make_dirs(in_scratch("a-file/x")), DT_USER, "File exists");
    CHECK_FAILS(dt_make_dirs("/proc/no/x"), DT_USER, "/proc/no: No such file");
}

static void test_no_rights(void)
{
    if (geteuid() == 0) // permissions do not restrict root
        return;
    CHECK_OK(dt_make_dirs(in_scratch("locked")));
    chmod(in_scratch("locked"), 0500);
    CHECK_FAILS(dt_make_dirs(in_scratch("locked/x")), DT_USER, "locked/x: Permission denied");
    CHECK_FAILS(dt_write_file_atomic(in_scratch("locked/x"), "", 0), DT_USER, "Permission denied");
    chmod(in_scratch("locked"), 0300);
    CHECK_OK(dt_make_dirs(in_scratch("locked/x")));
    chmod(in_scratch("locked"), 0700);
}

static void test_remove_tree(void)
{
    char outside[DT_PATH];
    CHECK_OK(dt_path(outside, "%s", in_scratch("outside")));
    CHECK_OK(dt_make_dirs(in_scratch("tree/a/b")));
    CHECK_OK(dt_make_dirs(outside));
    put("outside/stays", "x");
    put("tree/a/one", "x");
    put("tree/.hidden", "x");
    CHECK_INT(symlink(outside, in_scratch("tree/a/link")), 0);
    CHECK_INT(symlink("nowhere", in_scratch("tree/dangling")), 0);
    CHECK_OK(dt_remove_tree(in_scratch("tree")));
    CHECK(!dt_file_exists(in_scratch("tree")), "the tree stayed");
    CHECK(dt_file_exists(in_scratch("outside/stays")), "a link was followed");

    CHECK_OK(dt_remove_tree(in_scratch("tree"))); // a missing folder is no error
    CHECK_OK(dt_remove_tree(in_scratch("outside/stays")));
    CHECK(!dt_file_exists(in_scratch("outside/stays")), "the file stayed");
}

static void test_proc_value(void)
{
    char value[16];
    put("proc", "Mem\nMemTotal:  2 kB\nmodel name\t: A B\nMem: 1 kB\nMem: 3 kB\n");
    dt_proc_value(in_scratch("proc"), "Mem", value, sizeof value);
    CHECK_STR(value, "1 kB"); // the first line whose whole key matches
    dt_proc_value(in_scratch("proc"), "model name", value, sizeof value);
    CHECK_STR(value, "A B");
    dt_proc_value(in_scratch("proc"), "Swap", value, sizeof value);
    CHECK_STR(value, "");
    dt_proc_value(in_scratch("missing"), "Mem", value, sizeof value);
    CHECK_STR(value, "");
}

// Where something cannot be removed, here a path through a file, the earlier error is kept.
static void test_discard_tree(void)
{
    put("file", "x");
    CHECK_FAILS(dt_remove_tree(in_scratch("file/leftover")), DT_USER, "Not a directory");
    DT_FAIL(DT_USER, NULL, "the first error");
    dt_discard_tree(in_scratch("file/leftover"));
    CHECK_STR(dt_error_current()->message, "the first error");
    CHECK_INT(dt_error_current()->code, DT_USER);
    dt_error_clear();
}

static void test_hash(void)
{
    uint64_t hash;
    int64_t size;
    // The hashes are those of xxhsum -H64: of nothing, of "abc", and of 1 MiB + 3 bytes of 'z' (two
    // chunks).
    put("h", "");
    CHECK_OK(dt_hash_file(in_scratch("h"), &hash, &size));
    CHECK(hash == 0xef46db3751d8e999 && size == 0, "%016llx", (unsigned long long)hash);
    put("h", "abc");
    CHECK_OK(dt_hash_file(in_scratch("h"), &hash, NULL));
    CHECK(hash == 0x44bc2cf5ad770999, "%016llx", (unsigned long long)hash);
    char *zs = malloc((1 << 20) + 4);
    memset(zs, 'z', (1 << 20) + 3);
    zs[(1 << 20) + 3] = 0;
    put("h", zs);
    free(zs);
    CHECK_OK(dt_hash_file(in_scratch("h"), &hash, &size));
    CHECK(hash == 0x58ca237518e6909b && size == (1 << 20) + 3, "%016llx", (unsigned long long)hash);
    CHECK_FAILS(dt_hash_file(in_scratch("gone"), &hash, &size), DT_USER, "gone: No such file");
}

static void test_sync(void)
{
    char here[DT_PATH];
    CHECK_OK(dt_fsync_dir(scratch));
    CHECK_OK(dt_fsync_dir("/proc")); // a file system that cannot sync folders
    CHECK_FAILS(dt_fsync_dir(in_scratch("absent")), DT_USER, "absent: No such file");
    put("plain", "x");
    CHECK_FAILS(dt_fsync_dir(in_scratch("plain")), DT_USER, "Not a directory");
    CHECK_OK(dt_fsync_parent(in_scratch("plain")));
    CHECK(getcwd(here, sizeof here), "no working folder");
    CHECK_INT(chdir(scratch), 0);
    CHECK_OK(dt_write_file_atomic("beside", "x", 1)); // a path without a slash
    CHECK_INT(dt_file_size("beside"), 1);
    CHECK_INT(chdir(here), 0);
}

// A file survives a power failure under its name: its bytes are synced, then it is renamed, then
// the folder is synced.
static void test_durable(void)
{
    int fd;
    CHECK_OK(dt_make_dirs(in_scratch("firm")));
    durable[0] = 0;
    CHECK_OK(dt_make_dirs(in_scratch("firm/new")));
    CHECK_STR(durable, "fsync firm\n"); // which the new folder is in
    CHECK_OK(dt_make_dirs(in_scratch("lasting")));
    durable[0] = 0;
    put("lasting/state", "x");
    CHECK_STR(durable, "fsync state.tmp\nrename state\nfsync lasting\n");
    durable[0] = 0;
    CHECK_OK(dt_open_append(in_scratch("lasting/log"), false, &fd));
    CHECK_STR(durable, "fsync lasting\n");
    durable[0] = 0;
    CHECK_OK(dt_close_synced(fd, "log"));
    CHECK_STR(durable, "fsync log\n");
}

// Anything but a folder that has the name of the temporary file is replaced: the rest of a killed
// write, a FIFO without a reader (opening it would wait forever), and a link, whose target stays as
// it is.
static void test_temporary_in_the_way(void)
{
    char *text;
    put("precious", "precious");
    for (int i = 0; i < 4; i++) {
        alarm(20); // opening the FIFO would wait
        if (i == 0)
            put_text(in_scratch("way.tmp"), "a leftover that is longer");
        else if (i == 1)
            CHECK_INT(mkfifo(in_scratch("way.tmp"), 0600), 0);
        else
            CHECK_INT(symlink(i == 2 ? "precious" : "nowhere", in_scratch("way.tmp")), 0);
        put("way", "short");
        alarm(0);
        text = get_text(in_scratch("way"));
        CHECK_STR(text, "short");
        free(text);
        CHECK(!dt_file_exists(in_scratch("way.tmp")), "the temporary file stayed");
    }
    text = get_text(in_scratch("precious"));
    CHECK_STR(text, "precious");
    free(text);
    CHECK_OK(dt_make_dirs(in_scratch("way.tmp/inside")));
    CHECK_FAILS(dt_write_file_atomic(in_scratch("way"), "", 0), DT_USER, "way.tmp: File exists");
    CHECK(dt_is_dir(in_scratch("way.tmp/inside")), "a folder was removed");
}

// Errors are the user's (exit code 2) or the machine's (3), depending on who can fix them.
static void test_errno(void)
{
    static const int user[] = {ENOENT, EISDIR, EACCES, EROFS};
    static const int machine[] = {ENOSPC, EDQUOT, EFBIG, EMFILE, EIO};
    for (size_t i = 0; i < sizeof user / sizeof *user; i++)
        CHECK_INT(dt_errno_status(user[i]), DT_USER);
    for (size_t i = 0; i < sizeof machine / sizeof *machine; i++)
        CHECK_INT(dt_errno_status(machine[i]), DT_MACHINE);
}

int main(void)
{
    make_scratch();
    RUN(test_errno, test_path, test_write_and_read, test_read_limits, test_read_failures,
        test_read_pipe, test_pread, test_pieces, test_full_disk, test_make_dirs, test_no_rights,
        test_remove_tree, test_discard_tree, test_proc_value, test_hash, test_sync, test_durable,
        test_temporary_in_the_way);
    remove_scratch();
    return test_end();
}

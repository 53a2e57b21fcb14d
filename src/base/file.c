// Reads and writes files by POSIX calls. Interrupted calls are repeated and partial ones continued:
// every byte is written and synced, or an error says why not.
#include "base/file.h"

#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <xxhash.h>

enum { CALL_MAX = 1 << 26, HASH_CHUNK = 1 << 20 }; // bytes

static void (*_Atomic on_progress)(void);
static _Thread_local struct {
    void (*report)(void *context);
    void *context;
} here; // the calling thread's

void dt_file_on_progress(void (*report)(void))
{
    on_progress = report;
}

void dt_file_on_progress_here(void (*report)(void *context), void *context)
{
    here.report = report;
    here.context = context;
}

void dt_file_progress(void)
{
    void (*report)(void) = on_progress;
    if (here.report)
        here.report(here.context);
    else if (report)
        report();
}

// Status and hint for each errno; others are DT_MACHINE without a hint.
static const struct errno_row {
    int error;
    dt_status status;
    const char *hint;
} errno_rows[] = {
    {ENOENT, DT_USER, "check the path"},
    {ENOTDIR, DT_USER,
     "a part of the path that should be a folder is a file, or a link to nothing"},
    {EEXIST, DT_USER, "a part of the path that should be a folder is a file, or a link to nothing"},
    {EISDIR, DT_USER, "give a file, not a folder"},
    {EACCES, DT_USER, "change the permissions, or choose another path"},
    {EPERM, DT_USER, "change the permissions, or choose another path"},
    {EROFS, DT_USER, "the file system is mounted read-only; choose another path"},
    {ENOTEMPTY, DT_USER, NULL},
    {ELOOP, DT_USER, "a link in the path leads back to itself"},
    {ENAMETOOLONG, DT_USER, "choose a shorter path"},
    {ENXIO, DT_USER, NULL},
    {ETXTBSY, DT_USER, NULL},
    {ENOSPC, DT_MACHINE,
     "free some space or inodes (df, df -i), or choose a path on another file system"},
    {EDQUOT, DT_MACHINE,
     "your quota is used up: delete files, or choose a path on another file system"},
    {EFBIG, DT_MACHINE,
     "raise the file size limit (ulimit -f), or choose a file system that "
     "allows such files"},
    {EMFILE, DT_MACHINE, "raise the open file limit (ulimit -n)"},
    {ENFILE, DT_MACHINE, "raise the open file limit (ulimit -n)"},
    {0, DT_MACHINE, NULL},
};

static const struct errno_row *errno_row(int error)
{
    const struct errno_row *row = errno_rows;
    while (row->error && row->error != error)
        row++;
    return row;
}

dt_status dt_errno_status(int error)
{
    return errno_row(error)->status;
}

const char *dt_errno_hint(int error)
{
    return errno_row(error)->hint;
}

dt_status dt_path(char *path, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int length = vsnprintf(path, DT_PATH, format, args);
    va_end(args);
    if (length < 0 || length >= DT_PATH)
        return DT_FAIL(DT_USER, "use a shorter path",
                       "path too long: %d bytes, at most %d are allowed: %.100s…", length,
                       DT_PATH - 1, path);
    return DT_OK;
}

dt_status dt_make_dirs(const char *path)
{
    char folder[DT_PATH], *end = folder; // end of the part being created
    DT_TRY(dt_path(folder, "%s", path));
    do {
        end += *end != 0;
        end += strcspn(end, "/");
        char next = *end;
        *end = 0;
        int error = mkdir(folder, 0777) == 0 ? 0 : errno;
        if (error && !dt_is_dir(folder)) { // created by another rank, or "/" or "."
            errno = error;
            return DT_FAIL_ERRNO("create folder", folder);
        }
        if (!error)
            DT_TRY(dt_fsync_parent(folder));
        *end = next;
    } while (*end);
    return DT_OK;
}

static int compare_names(const FTSENT **a, const FTSENT **b)
{
    return strcmp((*a)->fts_name, (*b)->fts_name);
}

dt_status dt_walk_tree(const char *path, int options, const char *action, dt_visit *visit,
                       void *context)
{
    char root[DT_PATH];
    DT_TRY(dt_path(root, "%s", path));
    FTS *tree =
        fts_open((char *[]){root, NULL}, FTS_PHYSICAL | FTS_NOCHDIR | options, compare_names);
    if (!tree)
        return DT_FAIL_ERRNO(action, path);
    dt_status status = DT_OK;
    errno = 0;
    for (FTSENT *entry; status == DT_OK && (entry = fts_read(tree)); errno = 0)
        status = visit(context, tree, entry);
    if (status == DT_OK && errno != 0)
        status = DT_FAIL_ERRNO(action, path);
    fts_close(tree);
    return status;
}

static dt_status remove_entry(void *context, FTS *tree, FTSENT *entry)
{
    (void)context;
    (void)tree;
    dt_file_progress();
    switch (entry->fts_info) {
    case FTS_D: // before its contents; it comes again after them
        return DT_OK;
    case FTS_DNR:
    case FTS_ERR:
    case FTS_NS:
        errno = entry->fts_errno;
        return errno == ENOENT ? DT_OK : DT_FAIL_ERRNO("remove", entry->fts_path);
    default:
        if (remove(entry->fts_accpath) == 0 || errno == ENOENT)
            return DT_OK;
        return DT_FAIL_ERRNO(entry->fts_info == FTS_DP ? "remove folder" : "remove",
                             entry->fts_path);
    }
}

dt_status dt_remove_tree(const char *path)
{
    return dt_walk_tree(path, 0, "remove", remove_entry, NULL);
}

void dt_discard_tree(const char *path)
{
    struct dt_error first;
    dt_error_take(&first);
    dt_remove_tree(path);
    dt_error_restore(&first);
}

bool dt_file_exists(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 || (errno != ENOENT && errno != ENOTDIR && errno != ENAMETOOLONG);
}

bool dt_is_dir(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

int64_t dt_file_size(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode) ? (int64_t)info.st_size : -1;
}

// Opens without waiting for the writer of a FIFO or for a device. `pipes` allows a shell's pipe
// such as /dev/fd/63 or /dev/stdin, which already has a writer; a named FIFO may wait for one
// forever.
static dt_status open_checked(const char *path, bool pipes, int *fd, int64_t *size)
{
    struct statfs system;
    struct stat info;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (*fd < 0)
        return DT_FAIL_ERRNO("open", path);
    dt_status status = DT_OK;
    if (fstat(*fd, &info) != 0)
        status = DT_FAIL_ERRNO("open", path);
    else if (!S_ISREG(info.st_mode) &&
             !(pipes && S_ISFIFO(info.st_mode) && fstatfs(*fd, &system) == 0 &&
               system.f_type == PIPEFS_MAGIC))
        status = DT_FAIL(DT_USER, "give a regular file", "%s is %s", path,
                         S_ISDIR(info.st_mode) ? "a folder" : "not a regular file");
    else if (fcntl(*fd, F_SETFL, 0) != 0) // reading a pipe must wait
        status = DT_FAIL_ERRNO("open", path);
    else
        *size = (int64_t)info.st_size;
    if (status != DT_OK) {
        close(*fd);
        *fd = -1;
    }
    return status;
}

dt_status dt_open_read(const char *path, int *fd, int64_t *size)
{
    return open_checked(path, false, fd, size);
}

dt_status dt_open_append(const char *path, bool truncate, int *fd)
{
    int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (truncate ? O_TRUNC : 0);
    *fd = open(path, flags, 0666);
    if (*fd < 0)
        return DT_FAIL_ERRNO("write", path);
    dt_status status = dt_fsync_parent(path);
    if (status != DT_OK) {
        close(*fd);
        *fd = -1;
    }
    return status;
}

// Reads up to `size` bytes from the position of fd; fewer only at the end of the file.
static dt_status read_some(int fd, const char *path, char *data, int64_t size, int64_t *got)
{
    *got = 0;
    while (*got < size) {
        int64_t want = size - *got < CALL_MAX ? size - *got : CALL_MAX;
        ssize_t n = read(fd, data + *got, (size_t)want);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return DT_FAIL_ERRNO("read", path);
        if (n == 0)
            break;
        *got += n;
        dt_file_progress();
    }
    return DT_OK;
}

// Reads into growing memory, since pipes and /proc do not report a size. Room for one byte more
// than the limit detects a file that is too long.
static dt_status read_growing(int fd, const char *path, int64_t limit, char **text, int64_t *size)
{
    int64_t room = 1 << 16, got;
    for (*size = 0;;) {
        if (room > limit)
            room = limit + 1;
        char *grown = realloc(*text, (size_t)room + 1);
        if (!grown)
            return DT_FAIL(DT_MACHINE, NULL, "no memory for %" PRId64 " bytes of %s", room, path);
        *text = grown;
        DT_TRY(read_some(fd, path, *text + *size, room - *size, &got));
        *size += got;
        if (*size > limit)
            return DT_FAIL(DT_USER, NULL, "%s is larger than %" PRId64 " bytes", path, limit);
        if (*size < room)
            break;
        room *= 2;
    }
    (*text)[*size] = 0;
    return DT_OK;
}

dt_status dt_read_file(const char *path, int64_t limit, char **text, int64_t *size)
{
    int fd;
    *text = NULL;
    *size = 0;
    DT_TRY(open_checked(path, true, &fd, size));
    dt_status status = read_growing(fd, path, limit, text, size);
    close(fd);
    if (status != DT_OK) {
        free(*text);
        *text = NULL;
        *size = 0;
    }
    return status;
}

int dt_fsync(int fd)
{
    int code;
    while ((code = fsync(fd)) != 0 && errno == EINTR)
        ;
    return code;
}

// Ignores a failure of fsync with the errno `harmless`.
static dt_status close_synced(int fd, const char *action, const char *path, int harmless)
{
    int error = dt_fsync(fd) == 0 ? 0 : errno;
    if (close(fd) != 0 && !error) // NFS reports a full quota here
        error = errno;
    dt_file_progress();
    if (error == 0 || error == harmless)
        return DT_OK;
    errno = error;
    return DT_FAIL_ERRNO(action, path);
}

dt_status dt_close_synced(int fd, const char *path)
{
    return close_synced(fd, "write", path, 0);
}

dt_status dt_fsync_parent(const char *path)
{
    char parent[DT_PATH];
    DT_TRY(dt_path(parent, "%s", path));
    char *slash = strrchr(parent, '/');
    if (!slash)
        return dt_fsync_dir(".");
    slash[slash == parent] = 0; // "/name" is in "/"
    return dt_fsync_dir(parent);
}

dt_status dt_write_synced(const char *path, const void *data, int64_t size)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return DT_FAIL_ERRNO("create", path);
    dt_status status = dt_write_all(fd, path, data, size);
    if (status != DT_OK)
        close(fd);
    else
        status = dt_close_synced(fd, path);
    return status;
}

void dt_proc_value(const char *path, const char *key, char *value, size_t size)
{
    char line[256];
    FILE *file = fopen(path, "r");
    value[0] = '\0';
    while (file && !value[0] && fgets(line, sizeof line, file)) {
        if (strncmp(line, key, strlen(key)) != 0)
            continue;
        const char *at = line + strlen(key);
        at += strspn(at, " \t");
        if (*at != ':')
            continue; // a longer key
        at += 1 + strspn(at + 1, " \t");
        snprintf(value, size, "%.*s", (int)strcspn(at, "\n"), at);
    }
    if (file)
        fclose(file);
}

dt_status dt_write_file_atomic(const char *path, const void *data, int64_t size)
{
    char temporary[DT_PATH];
    DT_TRY(dt_path(temporary, "%s.tmp", path));
    unlink(temporary); // never open it: it may be a FIFO, on which open(2) would wait
    dt_status status = dt_write_synced(temporary, data, size);
    if (status == DT_OK && rename(temporary, path) != 0)
        status = DT_FAIL_ERRNO("write", path);
    if (status != DT_OK) {
        unlink(temporary);
        return status;
    }
    return dt_fsync_parent(path);
}

dt_status dt_fsync_file(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return DT_FAIL_ERRNO("open", path);
    return dt_close_synced(fd, path);
}

dt_status dt_fsync_dir(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 && errno == EACCES) // a folder that may be written but not read cannot be synced
        return DT_OK;
    if (fd < 0)
        return DT_FAIL_ERRNO("open folder", path);
    // EINVAL: the file system cannot sync folders, so nothing more can be done.
    return close_synced(fd, "sync folder", path, EINVAL);
}

dt_status dt_write_all(int fd, const char *path, const void *data, int64_t size)
{
    const char *at = data;
    while (size > 0) {
        ssize_t n = write(fd, at, (size_t)(size < CALL_MAX ? size : CALL_MAX));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return DT_FAIL_ERRNO("write", path);
        at += n;
        size -= n;
        dt_file_progress();
    }
    return DT_OK;
}

dt_status dt_pread_all(int fd, const char *path, void *data, int64_t size, int64_t offset)
{
    char *at = data;
    int64_t end = offset + size;
    while (offset < end) {
        int64_t want = end - offset < CALL_MAX ? end - offset : CALL_MAX;
        ssize_t n = pread(fd, at, (size_t)want, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return DT_FAIL_ERRNO("read", path);
        if (n == 0)
            return DT_FAIL(DT_USER, "the file is truncated; copy or create it again",
                           "%s ends at byte %" PRId64 ", expected %" PRId64 " bytes", path, offset,
                           end);
        at += n;
        offset += n;
        dt_file_progress();
    }
    return DT_OK;
}

dt_status dt_pwrite_all(int fd, const char *path, const void *data, int64_t size, int64_t offset)
{
    const char *at = data;
    int64_t end = offset + size;
    while (offset < end) {
        int64_t want = end - offset < CALL_MAX ? end - offset : CALL_MAX;
        ssize_t n = pwrite(fd, at, (size_t)want, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return DT_FAIL_ERRNO("write", path);
        at += n;
        offset += n;
        dt_file_progress();
    }
    return DT_OK;
}

dt_status dt_hash_file(const char *path, uint64_t *hash, int64_t *size)
{
    int fd;
    int64_t total, got;
    DT_TRY(dt_open_read(path, &fd, &total));
    XXH64_state_t *state = XXH64_createState();
    char *chunk = NULL;
    dt_status status;
    DT_TRY_GOTO(status, out,
                state ? DT_OK : DT_FAIL(DT_MACHINE, NULL, "no memory to hash %s", path));
    DT_TRY_GOTO(status, out, DT_NEW(&chunk, HASH_CHUNK, "reading %s", path));
    XXH64_reset(state, 0);
    total = 0;
    do {
        DT_TRY_GOTO(status, out, read_some(fd, path, chunk, HASH_CHUNK, &got));
        XXH64_update(state, chunk, (size_t)got);
        total += got;
    } while (got == HASH_CHUNK);
    *hash = XXH64_digest(state);
    if (size)
        *size = total;
out:
    free(chunk);
    XXH64_freeState(state);
    close(fd);
    return status;
}

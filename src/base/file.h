// File functions for checkpoints: complete, synced, hashed. Errors name the path and give errno's
// text. A path that does not exist, is of the wrong kind or may not be used (permissions,
// read-only) is DT_USER; a full disk, a read error or too little memory is DT_MACHINE.
#pragma once

#include "base/error.h"

#include <errno.h>
#include <fts.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { DT_PATH = 4096 };

// Registers a function that is called after each piece of file work (at most 64 MiB, a sync, a
// removal) on the thread that does it, so that a rank busy with files does not appear stalled.
// NULL: none.
void dt_file_on_progress(void (*report)(void));
// Registers a replacement for work on the calling thread.
void dt_file_on_progress_here(void (*report)(void *context), void *context);
// Reports progress of file work that a library has done.
void dt_file_progress(void);

// DT_USER or DT_MACHINE for an errno, and a hint (or NULL).
dt_status dt_errno_status(int error);
const char *dt_errno_hint(int error);
// if (fd < 0) return DT_FAIL_ERRNO("open", path);
#define DT_FAIL_ERRNO(action, path)                                                                \
    DT_FAIL(dt_errno_status(errno), dt_errno_hint(errno), "cannot %s %s: %s", (action), (path),    \
            strerror(errno))

// snprintf into a buffer of DT_PATH bytes; a longer result is a DT_USER error.
dt_status dt_path(char *path, const char *format, ...) __attribute__((format(printf, 2, 3)));
// Creates the folder and its parents, which last through a power failure. An existing folder is no
// error.
dt_status dt_make_dirs(const char *path);
// Removes a file, or a folder with all in it. A missing path is no error.
dt_status dt_remove_tree(const char *path);
// dt_remove_tree after a failure; the current error is kept.
void dt_discard_tree(const char *path);
// Calls `visit` for `path` and everything in it, in bytewise order of names, as fts(3) does with
// FTS_PHYSICAL | FTS_NOCHDIR | `options`. Messages use the verb `action` ("read").
typedef dt_status dt_visit(void *context, FTS *tree, FTSENT *entry);
dt_status dt_walk_tree(const char *path, int options, const char *action, dt_visit *visit,
                       void *context);
// Also true if that cannot be determined (an I/O error, permissions): opening the file will report
// why.
bool dt_file_exists(const char *path);
bool dt_is_dir(const char *path);
// A stamp changes when the file is written to or replaced. Taking one does not read the file.
struct dt_file_stamp {
    int64_t bytes, inode, changed_ns; // time of the last write
    int64_t status_ns;                // last change of any kind, which nobody can set back
};
static inline struct dt_file_stamp dt_file_stamp(const struct stat *file)
{
    return (struct dt_file_stamp){
        file->st_size, (int64_t)file->st_ino,
        file->st_mtim.tv_sec * INT64_C(1000000000) + file->st_mtim.tv_nsec,
        file->st_ctim.tv_sec * INT64_C(1000000000) + file->st_ctim.tv_nsec};
}
int64_t dt_file_size(const char *path); // -1 if unknown or not a regular file
// Opens a regular file; anything else (folder, FIFO, device) is DT_USER. Caller closes.
dt_status dt_open_read(const char *path, int *fd, int64_t *size);
// Opens a file for appending, truncated with `truncate`; creates it if needed, and syncs its name.
// Caller closes; *fd is -1 on failure.
dt_status dt_open_append(const char *path, bool truncate, int *fd);

// Reads a whole file of at most `limit` bytes (more is an error) and adds a final zero; caller
// frees. Accepts regular files (/proc too) and a shell's pipe (/dev/fd/63); a FIFO or a device is
// DT_USER, without waiting for it.
dt_status dt_read_file(const char *path, int64_t limit, char **text, int64_t *size);
// The value of the first line "key : value" of a /proc file, without leading blanks, or "".
void dt_proc_value(const char *path, const char *key, char *value, size_t size);
// Writes and fsyncs a new file; it is an error if the file exists.
dt_status dt_write_synced(const char *path, const void *data, int64_t size);
// Writes path.tmp, fsyncs, renames it to `path`, fsyncs the folder: readers see the old or the new
// file. An existing path.tmp is removed first; if it is a folder, that is an error.
dt_status dt_write_file_atomic(const char *path, const void *data, int64_t size);
// Calls fsync(2), retrying after a signal; returns 0, or -1 with errno.
int dt_fsync(int fd);
dt_status dt_fsync_file(const char *path);
dt_status dt_fsync_dir(const char *path);
dt_status dt_fsync_parent(const char *path); // the folder that holds `path`
// Syncs and closes, checking both; fd is closed even on failure.
dt_status dt_close_synced(int fd, const char *path);

// write(2)/pwrite until all is written; read(2)/pread until all is read (a short file is an error).
dt_status dt_write_all(int fd, const char *path, const void *data, int64_t size);
dt_status dt_pread_all(int fd, const char *path, void *data, int64_t size, int64_t offset);
dt_status dt_pwrite_all(int fd, const char *path, const void *data, int64_t size, int64_t offset);

// xxh64 (seed 0) of a whole regular file, as `xxhsum -H64` prints it. `size` may be NULL.
dt_status dt_hash_file(const char *path, uint64_t *hash, int64_t *size);

// Files as a checkpoint needs them: whole, synced, hashed. Paths are plain C strings. Errors name
// the path and say errno's text; a full disk, a missing right or a read error is DT_MACHINE, a path
// that the user gave and that does not exist is DT_USER.
#pragma once

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { DT_PATH = 4096 };

// snprintf into a path buffer of DT_PATH bytes; a longer result is a DT_USER error.
dt_status dt_path(char *path, const char *format, ...) __attribute__((format(printf, 2, 3)));
// Creates the folder and its parents. An existing folder is no error.
dt_status dt_make_dirs(const char *path);
// Removes a file, or a folder with all in it. A path that is not there is no error.
dt_status dt_remove_tree(const char *path);
bool dt_file_exists(const char *path);
bool dt_is_dir(const char *path);
int64_t dt_file_size(const char *path); // -1 where it cannot be told

// The whole file with a final zero added, by malloc; at most `limit` bytes (more is an error).
dt_status dt_read_file(const char *path, int64_t limit, char **text, int64_t *size);
// Writes path.tmp, fsyncs, renames onto path, fsyncs the folder: readers see the old or the new one.
dt_status dt_write_file_atomic(const char *path, const void *data, int64_t size);
dt_status dt_fsync_dir(const char *path);

// write(2) until all is written; read(2)/pread until all is read (a short file is an error).
dt_status dt_write_all(int fd, const char *path, const void *data, int64_t size);
dt_status dt_pread_all(int fd, const char *path, void *data, int64_t size, int64_t offset);

// xxh64 (seed 0) of a whole file, as `xxhsum -H64` prints it.
dt_status dt_hash_file(const char *path, uint64_t *hash, int64_t *size);

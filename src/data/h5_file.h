// What every use of HDF5 shares: one lock, no printing by the library, its reasons put into our
// errors, files opened so that nothing but their own bytes can be read. Only h5_*.c include this.
#pragma once

#include "base/dtype.h"
#include "base/error.h"

#include <hdf5.h>
#include <stdbool.h>
#include <stdint.h>

// Every call of the library stands between these two: it may have been built without its own lock,
// and its error printing is switched off thread by thread. May be nested.
void dt_h5_enter(void);
void dt_h5_leave(void);

// The error of the library call just before, which failed: "cannot <action> <path>: <innermost
// reason>". The next call of the library, were it a close, forgets the reason. An errno in the
// reason decides the status; without one it is `code`.
dt_status dt_h5_fail(dt_status code, const char *action, const char *path, const char *hint);

// Access properties of every file: plain system calls, no locks, closing takes all ids with it.
hid_t dt_h5_access(void);

struct dt_h5_file {
    const char *path; // borrowed
    hid_t id;         // -1: not open
    int fd;           // the library's own, for pread; it closes it
    int64_t bytes;
};

// Opens a shard for reading. Empty, not HDF5, truncated: each is a DT_USER error of its own.
dt_status dt_h5_open(const char *path, struct dt_h5_file *file);
void dt_h5_close(struct dt_h5_file *file); // with all that is open in it

struct dt_h5_chunks; // h5_chunks.h

// One dataset of a file, opened and looked at: its bytes lie in this file, and all of them do.
struct dt_h5_array {
    const struct dt_h5_file *file; // borrowed
    const char *name;              // "/tokens"; a literal
    hid_t id;
    dt_dtype type;      // DT_DTYPE_COUNT: none that dtrain reads
    char type_text[64]; // "big-endian unsigned 16-bit integers"
    int n_dims;
    int64_t shape[2]; // [0] is 1 for a scalar; [1] is 1 where n_dims < 2
    int64_t offset;   // of contiguous bytes in the file; -1: in chunks, or with the header
    bool filtered;
    struct dt_h5_chunks *chunks; // of a filtered dataset
};

// *found: whether the file has a dataset or group of that name; a link to elsewhere is an error.
dt_status dt_h5_has(const struct dt_h5_file *file, const char *name, bool *found);
// *found: whether the file has the dataset; a link to elsewhere, a virtual one, one whose space was
// never written, or a filter that dtrain does not undo is an error.
dt_status dt_h5_array_open(const struct dt_h5_file *file, const char *name,
                           struct dt_h5_array *array, bool *found);
// Frees memory; the library's ids go with the file. An array of zeros is fine.
void dt_h5_array_close(struct dt_h5_array *array);
// Rows [first, first + count) of the first dimension, in the stored type.
dt_status dt_h5_array_read(const struct dt_h5_array *array, int64_t first, int64_t count,
                           void *data);
// DT_USER where it has not one dimension.
dt_status dt_h5_check_vector(const struct dt_h5_array *array);
// An integer attribute; *found says whether it is there. Not one integer, or below 1: DT_USER.
dt_status dt_h5_attribute(const struct dt_h5_array *array, const char *name, int64_t *value,
                          bool *found);
// The same for any unsigned integer.
dt_status dt_h5_attribute_u64(const struct dt_h5_array *array, const char *name, uint64_t *value,
                              bool *found);

// Shared by all users of HDF5: one lock, the library's messages in dtrain's errors instead of on
// stderr, and files opened so that only their own bytes can be read. h5_file.c opens files,
// h5_tree.c finds what is in one, h5_array.c and h5_chunks.c read its datasets, h5_strings.c lists
// of strings; h5_header.c checks what the library would trust. Only h5_* files include this.
#pragma once

#include "base/dtype.h"
#include "base/error.h"

#include <hdf5.h>
#include <stdbool.h>
#include <stdint.h>

// Every library call must be between these two: the library may have been built without a lock, and
// error printing is switched off per thread. May be nested. If the library crashes, the error
// message names the `path` of the outermost call (NULL: none).
void dt_h5_enter(const char *path);
void dt_h5_leave(void);

// Reports the preceding library call, which failed: "cannot <action> <path>: <innermost reason>".
// Make no other library call, not even a close, in between. An errno in the reason decides the
// status; otherwise it is `code`.
dt_status dt_h5_fail(dt_status code, const char *action, const char *path, const char *hint);

// Refuses a dataset: DT_USER, "<path>: <name> " and the text.
#define DT_H5_REJECT(array, hint, ...)                                                             \
    dt_h5_reject((array), __FILE__, __LINE__, __func__, (hint), __VA_ARGS__)
struct dt_h5_array;
dt_status dt_h5_reject(const struct dt_h5_array *array, const char *file, int line,
                       const char *function, const char *hint, const char *format, ...)
    __attribute__((format(printf, 6, 7)));

// Access properties for all files: plain system calls, no locks, closing a file closes all its ids.
hid_t dt_h5_access(void);

enum { DT_H5_PATH = 512 }; // bytes of a path in a file

struct dt_h5_trail; // h5_tree.c; freed after the file is closed
dt_status dt_h5_trail_new(struct dt_h5_trail **trail);

struct dt_h5_file {
    const char *path; // borrowed
    hid_t id;         // -1: not open
    int fd;           // for pread; owned by the library
    int64_t bytes;
    int64_t base;              // base of addresses in the file; -1: addresses do not have 8 bytes
    int time_axis;             // for datasets with more dimensions than this
    struct dt_h5_trail *trail; // the groups of the last path that was looked up
};

// Opens a shard for reading. An empty file, one that is not HDF5 and a truncated one each have
// their own DT_USER error.
dt_status dt_h5_open(const char *path, struct dt_h5_file *file);
void dt_h5_close(struct dt_h5_file *file); // and everything open in it
// Closes a file that was written, where the library may write, and fail, as late as here; -1: not
// open. Returns `status` or, if that is DT_OK, the failure.
dt_status dt_h5_finish(const char *path, hid_t file, dt_status status);
// Creates an attribute of an open dataset or group: n values, 0: a scalar.
dt_status dt_h5_put_attribute(const char *path, hid_t id, const char *name, hid_t type, hsize_t n,
                              const void *values);

struct dt_h5_chunks;           // h5_chunks.h
enum { DT_H5_REFERENCE = 16 }; // bytes of a reference to a string of variable length

// An open dataset, checked to have all its bytes in this file.
struct dt_h5_array {
    const struct dt_h5_file *file; // borrowed
    const char *name;              // "/tokens"; borrowed
    hid_t id;
    dt_dtype type;      // DT_DTYPE_COUNT: unsupported; booleans are DT_U8
    char type_text[64]; // "big-endian unsigned 16-bit integers"
    int n_dims;
    int axis;         // the dimension of time, which rows follow
    int64_t shape[2]; // [0]: its size, 1 for a scalar; [1]: the product of all others
    int64_t outer;    // … of those before it: a row has pieces of shape[1] / outer elements
    bool constant;    // its single row is read for every row
    void *value;      // value of an attribute; malloc
    int64_t string;   // bytes per string; 0: not strings
    bool variable;    // strings of variable length, stored as references
    int64_t offset;   // of contiguous data in the file; -1: chunked or compact
    struct dt_h5_chunks *chunks; // of a filtered dataset
};

// Opens the parent group of `path`, until the next path is looked up, and returns the last name of
// the path ("." if `path` ends in a slash). *found: whether the group has that name. A link to
// another place is an error.
dt_status dt_h5_locate(const struct dt_h5_file *file, const char *path, hid_t *group,
                       const char **name, bool *found);
// *found: whether the file has a dataset or group of that name. A link to another place is an
// error.
dt_status dt_h5_has(const struct dt_h5_file *file, const char *name, bool *found);
// Finds what a path names, "/data/demo_0/obs", without opening it; links to other places are
// errors. *address identifies an object that has several names; not set for DT_H5_NOTHING.
enum dt_h5_node { DT_H5_NOTHING, DT_H5_GROUP, DT_H5_DATASET, DT_H5_OTHER };
dt_status dt_h5_find(const struct dt_h5_file *file, const char *path, enum dt_h5_node *node,
                     uint64_t *address);
// *external: whether the last part of a path is a link to another file. Then `target` [DT_PATH] is
// that file, which must be in the same folder, and `inner` [DT_H5_PATH] the path in it. Both may be
// NULL.
dt_status dt_h5_external(const struct dt_h5_file *file, const char *path, char *target, char *inner,
                         bool *external);
// DT_USER if the type of the dataset `name` (header at `address`) or of one of its attributes has
// sizes with which the library would read beyond its memory.
dt_status dt_h5_check_types(const struct dt_h5_file *file, const char *name, uint64_t address);
// A list of names; zero-initialised is empty. Free with dt_h5_names_free.
struct dt_h5_names {
    int64_t n;
    char **at;
};
dt_status dt_h5_names_add(struct dt_h5_names *names, const char *name, size_t length);
// Lists the names in a group, sorted bytewise.
dt_status dt_h5_list(const struct dt_h5_file *file, const char *group, struct dt_h5_names *names);
// Appends "it has a, b, c" for hints, or nothing if there is no such group.
void dt_h5_name_members(const struct dt_h5_file *file, const char *group, char *text, size_t size);
// Reads the first `most` strings, of fixed or variable length, of a one-dimensional dataset, with
// the checks of dt_h5_array_open. A string longer than 1023 bytes is an error.
dt_status dt_h5_strings(const struct dt_h5_file *file, const char *path, int64_t most,
                        struct dt_h5_names *names);
void dt_h5_names_free(struct dt_h5_names *names);
// *found: whether the file has the dataset. Errors: a link to another place, a virtual dataset, one
// that was never written, an unsupported filter.
dt_status dt_h5_array_open(const struct dt_h5_file *file, const char *name,
                           struct dt_h5_array *array, bool *found);
// dt_h5_array_open for an attribute of a dataset or group, "/episode_3/@label", which is a
// constant.
dt_status dt_h5_attribute_open(const struct dt_h5_file *file, const char *name,
                               struct dt_h5_array *array, bool *found);
// Zeros are fine, and an array whose file is closed.
void dt_h5_array_close(struct dt_h5_array *array);
// Bytes of a stored element; 0: unsupported type.
static inline int64_t dt_h5_element(const struct dt_h5_array *array)
{
    return array->type != DT_DTYPE_COUNT ? dt_dtype_size(array->type) : array->string;
}
// Reads rows [first, first + count) in the stored type; the elements of a row keep their order in
// the file.
dt_status dt_h5_array_read(const struct dt_h5_array *array, int64_t first, int64_t count,
                           void *data);
hid_t dt_h5_type(dt_dtype type); // for files and for memory
// DT_USER unless it has one dimension.
dt_status dt_h5_check_vector(const struct dt_h5_array *array);
// Reads an integer attribute; *found: whether it exists. DT_USER unless it is one integer, at
// least 1.
dt_status dt_h5_attribute(const struct dt_h5_array *array, const char *name, int64_t *value,
                          bool *found);
// Reads any unsigned integer attribute in this way.
dt_status dt_h5_attribute_u64(const struct dt_h5_array *array, const char *name, uint64_t *value,
                              bool *found);

// Declares what every use of HDF5 shares: one lock, the library's messages in errors of dtrain
// instead of on stderr, and files opened so that only their own bytes can be read. h5_file.c opens
// files, h5_tree.c finds what is in one, h5_array.c and h5_chunks.c read its datasets, h5_strings.c
// lists of strings; h5_header.c checks what the library would trust. Only h5_* files include this.
#pragma once

#include "base/dtype.h"
#include "base/error.h"

#include <hdf5.h>
#include <stdbool.h>
#include <stdint.h>

// Every call of the library is made between these two: it may have been built without a lock of its
// own, and its error printing is switched off per thread. May be nested. Should the library crash,
// the last words name `path`, that of the outermost call (NULL: none).
void dt_h5_enter(const char *path);
void dt_h5_leave(void);

// Reports the library call just before, which failed: "cannot <action> <path>: <innermost reason>".
// No other call of the library, not even a close, may come between. An errno in the reason decides
// the status; without one it is `code`.
dt_status dt_h5_fail(dt_status code, const char *action, const char *path, const char *hint);

// Refuses a dataset: DT_USER, "<path>: <name> " and the text.
#define DT_H5_REJECT(array, hint, ...)                                                             \
    dt_h5_reject((array), __FILE__, __LINE__, __func__, (hint), __VA_ARGS__)
struct dt_h5_array;
dt_status dt_h5_reject(const struct dt_h5_array *array, const char *file, int line,
                       const char *function, const char *hint, const char *format, ...)
    __attribute__((format(printf, 6, 7)));

// Access properties of every file: plain system calls, no locks, closing a file closes all ids in
// it.
hid_t dt_h5_access(void);

enum { DT_H5_PATH = 512 }; // bytes of a path in a file

struct dt_h5_trail; // h5_tree.c; free() it with the file closed
dt_status dt_h5_trail_new(struct dt_h5_trail **trail);

struct dt_h5_file {
    const char *path; // borrowed
    hid_t id;         // -1: not open
    int fd;           // the library's, which closes it; for pread
    int64_t bytes;
    int64_t base;  // what addresses in the file count from; -1: they do not have 8 bytes
    int time_axis; // that of datasets with more dimensions than this
    struct dt_h5_trail *trail; // the groups of the path that was looked up last
};

// Opens a shard for reading. Empty, not HDF5, truncated: each is a DT_USER error of its own.
dt_status dt_h5_open(const char *path, struct dt_h5_file *file);
void dt_h5_close(struct dt_h5_file *file); // and all that is open in it

struct dt_h5_chunks;           // h5_chunks.h
enum { DT_H5_REFERENCE = 16 }; // bytes of a reference to a string of variable length

// One dataset of a file, opened and checked: all its bytes are in this file.
struct dt_h5_array {
    const struct dt_h5_file *file; // borrowed
    const char *name;              // "/tokens"; borrowed
    hid_t id;
    dt_dtype type;      // DT_DTYPE_COUNT: one that dtrain does not read; booleans are DT_U8
    char type_text[64]; // "big-endian unsigned 16-bit integers"
    int n_dims;
    int axis;         // the dimension of time, which rows follow
    int64_t shape[2]; // [0] is its size, 1 for a scalar; [1] is the product of all other dimensions
    int64_t outer;    // … of those before it: a row is pieces of shape[1] / outer elements
    bool constant;    // has one row, which is read for every row
    void *value;      // … of an attribute; malloc
    int64_t string;   // bytes of each of its strings; 0: it does not hold strings
    bool variable;    // … of the references to them, since their lengths vary
    int64_t offset;   // of contiguous bytes in the file; -1: chunked or compact
    struct dt_h5_chunks *chunks; // of a filtered dataset
};

// Opens the group that holds what `path` names, until the next path is looked up, and gives the
// name there (in `path`; "." if that ends in a slash). *found: whether the group has it; a link to
// elsewhere is an error.
dt_status dt_h5_locate(const struct dt_h5_file *file, const char *path, hid_t *group,
                       const char **name, bool *found);
// *found: whether the file has a dataset or group of that name; a link to elsewhere is an error.
dt_status dt_h5_has(const struct dt_h5_file *file, const char *name, bool *found);
// Finds what a path of any depth names, "/data/demo_0/obs", without opening it; links to elsewhere
// are errors. *address tells objects apart that have several names; unset for DT_H5_NOTHING.
enum dt_h5_node { DT_H5_NOTHING, DT_H5_GROUP, DT_H5_DATASET, DT_H5_OTHER };
dt_status dt_h5_find(const struct dt_h5_file *file, const char *path, enum dt_h5_node *node,
                     uint64_t *address);
// *external: whether the last part of a path is a link to another file; `target` [DT_PATH] is then
// that file, which must be in the folder of this one, and `inner` [DT_H5_PATH] the path in it. Both
// may be NULL.
dt_status dt_h5_external(const struct dt_h5_file *file, const char *path, char *target, char *inner,
                         bool *external);
// DT_USER where the type of the dataset `name` with its header at `address`, or of an attribute of
// it, has sizes with which the library would read beyond its memory.
dt_status dt_h5_check_types(const struct dt_h5_file *file, const char *name, uint64_t address);
// A list of texts; free with dt_h5_names_free. One of zeros is empty.
struct dt_h5_names {
    int64_t n;
    char **at;
};
dt_status dt_h5_names_add(struct dt_h5_names *names, const char *name, size_t length);
// Lists the names in a group, sorted bytewise.
dt_status dt_h5_list(const struct dt_h5_file *file, const char *group, struct dt_h5_names *names);
// Appends "it has a, b, c", for hints; nothing where there is no such group.
void dt_h5_name_members(const struct dt_h5_file *file, const char *group, char *text, size_t size);
// Reads the first `most` strings of a one-dimensional dataset, of fixed or variable length. It is
// checked as any other (dt_h5_array_open); a string beyond 1023 bytes is an error.
dt_status dt_h5_strings(const struct dt_h5_file *file, const char *path, int64_t most,
                        struct dt_h5_names *names);
void dt_h5_names_free(struct dt_h5_names *names);
// *found: whether the file has the dataset; a link to elsewhere, a virtual one, one that was never
// written, or a filter that dtrain does not support is an error.
dt_status dt_h5_array_open(const struct dt_h5_file *file, const char *name,
                           struct dt_h5_array *array, bool *found);
// The same for an attribute of a dataset or group, "/episode_3/@label": a constant.
dt_status dt_h5_attribute_open(const struct dt_h5_file *file, const char *name,
                               struct dt_h5_array *array, bool *found);
// An array of zeros is fine, and one whose file is closed.
void dt_h5_array_close(struct dt_h5_array *array);
// Bytes of a stored element; 0: dtrain does not read its type.
static inline int64_t dt_h5_element(const struct dt_h5_array *array)
{
    return array->type != DT_DTYPE_COUNT ? dt_dtype_size(array->type) : array->string;
}
// Reads rows [first, first + count), in the stored type; the elements of a row are in their order
// in the file.
dt_status dt_h5_array_read(const struct dt_h5_array *array, int64_t first, int64_t count,
                           void *data);
hid_t dt_h5_type(dt_dtype type); // in the file and in memory
// DT_USER unless it has one dimension.
dt_status dt_h5_check_vector(const struct dt_h5_array *array);
// Reads an integer attribute; *found: whether it exists. DT_USER unless it is one integer, at
// least 1.
dt_status dt_h5_attribute(const struct dt_h5_array *array, const char *name, int64_t *value,
                          bool *found);
// Reads any unsigned integer in the same way.
dt_status dt_h5_attribute_u64(const struct dt_h5_array *array, const char *name, uint64_t *value,
                              bool *found);

// Tensors that are written by range: a safetensors file holds entries "NAME[first:last]", the items
// [first, last) of the tensor NAME. An item is one element, or a row of `width` elements. Any
// number of files may cut the tensors anywhere; together they must hold every item of every tensor
// once. The optimizer files and the file of carried states are made of these.
#pragma once

#include "base/safetensors.h"
#include "checkpoint/manifest.h"

#include <stdbool.h>

enum { DT_RANGED_NAME = 128 };

struct dt_ranged_tensor {
    char name[DT_RANGED_NAME];
    enum dt_dtype type;
    int64_t items;
    int64_t width; // 0: an item is one element, and an entry has one dimension
    bool optional; // it may be missing as a whole
};

struct dt_range {
    int tensor;
    int64_t first, last; // items
    const void *data;    // to be written; those read have none
};

struct dt_ranges {
    const char *what, *item; // "optimizer states", "element": for messages
    const char *hint;        // where some are missing
    bool widens;             // an fp32 tensor may be stored as bf16, and the other way round
    int n;
    struct dt_ranged_tensor *tensors; // [n]
    int64_t n_ranges;
    struct dt_range
        *list; // those to be written, in order of tensor and first item; or those read so far
};

dt_status dt_ranges_add(struct dt_ranges *ranges, struct dt_range range);
// Writes the list as one file, `metadata` as for dt_safetensors_create, and gives its size and
// hash.
dt_status dt_ranges_write(const struct dt_ranges *ranges, const char *path,
                          const char *const *metadata, int n_metadata,
                          struct dt_manifest_file *file);
// The range that an entry of an open file holds, which is added to the list. DT_USER where no
// tensor has such a range, or the entry's type or shape are not the tensor's.
dt_status dt_ranges_read(struct dt_ranges *ranges, const struct dt_safetensors *file,
                         const struct dt_safetensor *entry, struct dt_range *range);
// After all entries are read: DT_USER naming the tensors that are not complete, and their first
// item that is missing or duplicate. `where` names the files.
dt_status dt_ranges_check(struct dt_ranges *ranges, const char *where);
void dt_ranges_free(struct dt_ranges *ranges);

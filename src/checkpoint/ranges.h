// Tensors written by range: a safetensors file has entries "NAME[first:last]", the items [first,
// last) of the tensor NAME. An item is one element, or a row of `width` elements. The tensors may
// be cut anywhere into any number of files, which together must have every item once. Used for
// optimizer files and carried states.
#pragma once

#include "base/safetensors.h"
#include "checkpoint/manifest.h"

#include <stdbool.h>

enum { DT_RANGED_NAME = 128 };

struct dt_ranged_tensor {
    char name[DT_RANGED_NAME];
    enum dt_dtype type;
    int64_t items;
    int64_t width; // 0: items are elements, and entries have one dimension
    bool optional; // the whole tensor may be missing
};

struct dt_range {
    int tensor;
    int64_t first, last; // items
    const void *data;    // data to write; NULL after reading
};

struct dt_ranges {
    const char *what, *item; // "optimizer states", "element": for messages
    const char *hint;        // if items are missing
    bool widens;             // converts between fp32 and bf16
    int n;
    struct dt_ranged_tensor *tensors; // [n]
    int64_t n_ranges;
    struct dt_range
        *list; // ranges to write, in order of tensor and first item; or ranges read so far
};

dt_status dt_ranges_add(struct dt_ranges *ranges, struct dt_range range);
// Writes the list as one file; returns its size and hash. `metadata` as for dt_safetensors_create.
dt_status dt_ranges_write(const struct dt_ranges *ranges, const char *path,
                          const char *const *metadata, int n_metadata,
                          struct dt_manifest_file *file);
// Adds the range of an open file's entry to the list. DT_USER if no tensor has such a range, or if
// the entry's type or shape differ from the tensor's.
dt_status dt_ranges_read(struct dt_ranges *ranges, const struct dt_safetensors *file,
                         const struct dt_safetensor *entry, struct dt_range *range);
// Call after all entries are read. DT_USER naming the incomplete tensors, and the first missing or
// duplicate item of each. `where` names the files.
dt_status dt_ranges_check(struct dt_ranges *ranges, const char *where);
void dt_ranges_free(struct dt_ranges *ranges);

// A file of predictions: HDF5 datasets of fp32, contiguous, whose size is known before the first
// number. The file is created whole, all of it NaN; then any process writes rows straight to where
// a dataset lies in the file, without the library. Until it is finished the file also holds a byte
// for each piece of the work, which says whether that is done.
#pragma once

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct dt_prediction_array {
    char *path;          // "/data/demo_3/action/logits"
    int64_t rows, width; // width 0: one dimension
    int64_t offset;      // of its first byte in the file
};
static inline int64_t dt_prediction_row_bytes(const struct dt_prediction_array *array)
{
    return (array->width > 0 ? array->width : 1) * (int64_t)sizeof(float);
}

struct dt_prediction_file {
    const char *path;
    int64_t n;                          // arrays
    struct dt_prediction_array *arrays; // of which offsets are filled in
    int64_t pieces, progress;           // and where their bytes lie
    int n_attributes;
    const char *const (*attributes)[2]; // names and texts, of the root
    uint64_t key;                       // says which predictions these are
};

// Creates the file, or replaces it. A file that could not be
// created is removed.
dt_status dt_prediction_create(struct dt_prediction_file *file);
// Finds the arrays of a file that was not finished. *found: false where it is not such a file, or
// creating it was interrupted. DT_USER where it has another key.
dt_status dt_prediction_reopen(struct dt_prediction_file *file, bool *found);
// Removes the bytes of progress, syncs the file and renames it to `path`.
dt_status dt_prediction_finish(const struct dt_prediction_file *file, const char *path);

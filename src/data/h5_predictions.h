// A file of predictions: contiguous fp32 HDF5 datasets whose sizes are known in advance. The whole
// file is created first, filled with NaN; then any process writes rows directly at a dataset's
// offset in the file, without the library. Until it is finished the file also has a byte per piece
// of the work, which says whether the piece is done.
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
    struct dt_prediction_array *arrays; // dt_prediction_create sets their offsets
    int64_t pieces, progress;           // pieces of the work; offset of their bytes
    int n_attributes;
    const char *const (*attributes)[2]; // names and values, of the root
    uint64_t key;                       // identifies the predictions
};

// Creates or replaces the file; removes it on failure.
dt_status dt_prediction_create(struct dt_prediction_file *file);
// Reopens a file that was not finished and finds its arrays. *found is false if the file is no such
// file, or if its creation was interrupted. DT_USER if its key differs.
dt_status dt_prediction_reopen(struct dt_prediction_file *file, bool *found);
// Removes the progress bytes, syncs the file and renames it to `path`.
dt_status dt_prediction_finish(const struct dt_prediction_file *file, const char *path);

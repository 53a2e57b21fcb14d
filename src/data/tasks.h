// Synthetic tasks of the papers, as pairs: a row of `length` tokens and a label for each position,
// DT_IGNORED where there is nothing to predict. A row is a pure function of (seed, side, row), by
// Philox, so that shards are the same on every machine.
#pragma once

#include "base/error.h"

#include <stdint.h>

struct dt_task_shape {
    int64_t length; // tokens per row
    int64_t vocab;  // tokens are in [0, vocab)
    int64_t items;  // items to remember per row; 1 if the task has no such number
};

struct dt_task {
    const char *name, *help;
    struct dt_task_shape published; // the paper's settings
    // DT_USER if the task has no rows of this shape.
    dt_status (*check)(const struct dt_task_shape *shape);
    // Fills ids and labels, both [length]; scratch has room for length + vocab numbers.
    void (*fill)(const struct dt_task_shape *shape, uint64_t seed, int side, int64_t row,
                 int32_t *ids, int32_t *labels, int64_t *scratch);
};

// Ends with a row without a name.
extern const struct dt_task dt_tasks[];
const struct dt_task *dt_task_find(const char *name); // or NULL

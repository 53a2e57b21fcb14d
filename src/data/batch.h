// A batch is a list of named arrays, each [b, T] of `width` elements. A reader kind lists the
// arrays that its files yield, the model the arrays that it reads. Everything between them (loader,
// input, evaluation) handles the listed arrays as bytes and knows no names.
#pragma once

#include "base/dtype.h"
#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    DT_BATCH_ARRAYS = 8,
    DT_IGNORED = -100, // a label that the loss skips (kernels/xent.h: DT_LABEL_IGNORED)
};

struct dt_array_spec {
    const char *name; // a literal
    enum dt_dtype type;
    int64_t width; // elements per position: 1 for token ids, the frame size for frames
    bool optional; // yields: only some datasets have it; reads: not required
    int32_t last;  // i32 arrays of a recurrent state: values are in [0, last]
    double pad;    // yields, fp32 and i32: value in rows that the loss ignores; others have zeros
};

struct dt_array_list {
    int n;
    struct dt_array_spec arrays[DT_BATCH_ARRAYS];
};

// Adds an array and returns its index. Adding a name again returns the same array, which becomes
// required unless both are optional; type and width must agree. -1, with an error: they differ, or
// the list is full.
int dt_array_list_add(struct dt_array_list *list, const char *name, enum dt_dtype type,
                      int64_t width, bool optional);
int dt_array_list_find(const struct dt_array_list *list, const char *name); // index, or -1
// The first array of `reads` that `yields` lacks or has with another type or width; NULL: none.
const struct dt_array_spec *dt_array_list_missing(const struct dt_array_list *yields,
                                                  const struct dt_array_list *reads);
static inline int64_t dt_array_bytes(const struct dt_array_spec *spec, int64_t positions)
{
    return positions * spec->width * dt_dtype_size(spec->type);
}

struct dt_array {
    struct dt_array_spec spec;
    void *data; // [sequences, length, width], host memory
};
struct dt_batch {
    int64_t step;              // from 0
    int64_t sequences, length; // b, T
    int n_arrays;
    struct dt_array arrays[DT_BATCH_ARRAYS];
};
const struct dt_array *dt_batch_find(const struct dt_batch *batch, const char *name); // or NULL

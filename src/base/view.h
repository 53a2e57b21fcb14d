// A matrix in borrowed memory: rows of `cols` elements, `stride` elements apart. Rows of
// activations are the tokens of all sequences, B · L; columns are channels or states. Inputs and
// outputs share this type. NULL data: only the shape is known yet.
#pragma once

#include "base/dtype.h"

struct dt_view {
    void *data;
    int64_t rows, cols, stride;
    enum dt_dtype dtype;
};

// A dense matrix.
static inline struct dt_view dt_view_of(const void *data, int64_t rows, int64_t cols,
                                        enum dt_dtype dtype)
{
    struct dt_view view;
    view.data = (void *)(uintptr_t)data;
    view.rows = rows;
    view.cols = view.stride = cols;
    view.dtype = dtype;
    return view;
}

static inline void *dt_view_at(const struct dt_view *view, int64_t row, int64_t col)
{
    int64_t offset = (row * view->stride + col) * dt_dtype_size(view->dtype);
    return view->data ? (char *)view->data + offset : NULL;
}

// Rows [row, row + rows) and columns [col, col + cols).
static inline struct dt_view dt_view_block(struct dt_view view, int64_t row, int64_t col,
                                           int64_t rows, int64_t cols)
{
    view.data = dt_view_at(&view, row, col);
    view.rows = rows;
    view.cols = cols;
    return view;
}

// Columns [from, to) of all rows, and rows [from, to).
static inline struct dt_view dt_view_cols(struct dt_view view, int64_t from, int64_t to)
{
    return dt_view_block(view, 0, from, view.rows, to - from);
}

static inline struct dt_view dt_view_rows(struct dt_view view, int64_t from, int64_t to)
{
    return dt_view_block(view, from, 0, to - from, view.cols);
}

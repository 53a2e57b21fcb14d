// Reads and writes storage (fp32 or bf16) as fp32, by element or by row, for cloned loops.
#pragma once

#include "kernels/math_cpu.h"

#include "base/round.h"
#include "base/view.h"

#include <stdbool.h>

// Runs the statement with `name` as a constant, so that inlined loops do not test it.
#define DT_BOOL_SWITCH(condition, name, ...)                                                       \
    do {                                                                                           \
        if (condition) {                                                                           \
            const bool name = true;                                                                \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            const bool name = false;                                                               \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)
#define DT_STORAGE_SWITCH(type, bf16, ...) DT_BOOL_SWITCH((type) == DT_BF16, bf16, __VA_ARGS__)

DT_INLINE float dt_load(const void *x, int64_t i, bool bf16)
{
    return bf16 ? dt_bf16_to_f32(((const dt_bf16 *)x)[i]) : ((const float *)x)[i];
}

DT_INLINE void dt_store(void *y, int64_t i, float value, bool bf16)
{
    if (bf16)
        ((dt_bf16 *)y)[i] = dt_f32_to_bf16(value);
    else
        ((float *)y)[i] = value;
}

// out[0, count) = in[0, count), out[count, padded) = 0.
DT_INLINE void dt_load_row(dt_dtype type, const void *in, int64_t count, int64_t padded,
                           float *restrict out)
{
    if (type == DT_BF16)
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            out[i] = dt_load(in, i, true);
    else
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            out[i] = dt_load(in, i, false);
    for (int64_t i = count; i < padded; i++)
        out[i] = 0.0f;
}

// out[0, count) = in[0, count), rounded to storage.
DT_INLINE void dt_store_row(dt_dtype type, const float *restrict in, int64_t count, void *out)
{
    if (type == DT_BF16)
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            dt_store(out, i, in[i], true);
    else
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            dt_store(out, i, in[i], false);
}

// Prefetches columns [col, col + n) of a row, if the row exists: hardware does not prefetch rows
// that are far apart.
static inline void dt_prefetch_row(const struct dt_view *view, int64_t row, int64_t col, int64_t n)
{
    if (row >= view->rows)
        return;
    const char *columns = dt_view_at(view, row, col);
    for (int64_t byte = 0; byte < n * dt_dtype_size(view->dtype); byte += 64)
        __builtin_prefetch(columns + byte);
}

// Rows per block when a parameter's gradient is summed over rows by blocks: at least `least`, and
// enough for at most `most` blocks.
static inline int64_t dt_block_rows(int64_t rows, int64_t least, int64_t most)
{
    return dt_max_i64(dt_ceil_div(rows, most), least);
}

// Adds the blocks' sums, [blocks, width], in order: to (+)= columns [from, end).
DT_INLINE void dt_add_blocks(float *to, const float *sums, int64_t blocks, int64_t width,
                             int64_t from, int64_t end, bool accumulate)
{
    if (!accumulate)
        memset(to + from, 0, (size_t)(end - from) * sizeof *to);
    for (int64_t b = 0; b < blocks; b++)
        for (int64_t i = from; i < end; i++)
            to[i] += sums[b * width + i];
}

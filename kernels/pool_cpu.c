// Pooling on the CPU: a thread walks the rows of a strip of columns of one window.
#include "kernels/cpu.h"
#include "kernels/storage_cpu.h"

#include <math.h>

enum { STRIP = 256 };

// Adds the strip's columns of the c-th row that counts to v; at[i]: the row that set v last.
DT_INLINE void add_row(enum dt_pool pool, const void *x, int64_t n, float c, int32_t row, float *v,
                       int32_t *at, bool bf16)
{
    float share = 1.0f / c;
    if (pool == DT_POOL_MEAN)
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            v[i] += (dt_load(x, i, bf16) - v[i]) * share;
    else if (pool == DT_POOL_LAST)
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            v[i] = dt_load(x, i, bf16);
    else
        for (int64_t i = 0; i < n; i++) {
            float y = dt_load(x, i, bf16);
            bool sets = c == 1.0f || y > v[i] || y != y;
            v[i] = sets ? y : v[i];
            at[i] = sets ? row : at[i];
        }
}

static bool counts(const uint8_t *mask, int64_t row)
{
    return !mask || mask[row];
}

DT_INLINE void forward_strip(const struct dt_pool_forward_args *a, int64_t window, int64_t from,
                             int64_t n, bool bf16)
{
    float v[STRIP] = {0}, c = a->before ? a->before_count[window] : 0.0f;
    int32_t at[STRIP];
    if (a->before)
        memcpy(v, a->before + window * a->h.cols + from, (size_t)n * sizeof *v);
    for (int64_t t = 0; t < a->length; t++) {
        int64_t row = window * a->length + t;
        if (counts(a->mask, row))
            add_row(a->pool, dt_view_at(&a->h, row, from), n, c += 1.0f, 0, v, at, bf16);
    }
    void *out = dt_view_at(&a->out, window, from);
    for (int64_t i = 0; i < n; i++)
        dt_store(out, i, v[i], bf16);
    if (a->after)
        memcpy(a->after + window * a->h.cols + from, v, (size_t)n * sizeof *v);
    if (a->after && from == 0)
        a->after_count[window] = c;
}

DT_INLINE void backward_strip(const struct dt_pool_backward_args *a, int64_t window, int64_t from,
                              int64_t n, bool bf16)
{
    const float before = a->before ? a->before_count[window] : 0.0f;
    float v[STRIP] = {0}, g[STRIP] = {0}, c = before;
    int32_t at[STRIP], last = -1;
    int64_t place = window * a->h.cols + from;
    if (a->before)
        memcpy(v, a->before + place, (size_t)n * sizeof *v);
    for (int64_t i = 0; i < n; i++) {
        at[i] = -1;
        if (a->dout.data)
            g[i] = dt_load(dt_view_at(&a->dout, window, from), i, bf16);
        if (a->dafter)
            g[i] += a->dafter[place + i];
    }
    for (int64_t t = 0; t < a->length; t++) {
        int64_t row = window * a->length + t;
        if (!counts(a->mask, row))
            continue;
        c += 1.0f, last = (int32_t)t;
        if (a->pool == DT_POOL_MAX)
            add_row(a->pool, dt_view_at(&a->h, row, from), n, c, (int32_t)t, v, at, bf16);
    }
    for (int64_t t = 0; t < a->length; t++) {
        int64_t row = window * a->length + t;
        void *dh = dt_view_at(&a->dh, row, from);
        float share = !counts(a->mask, row)                 ? 0.0f
                      : a->pool == DT_POOL_MEAN             ? 1.0f / c
                      : a->pool == DT_POOL_MAX || t == last ? 1.0f
                                                            : 0.0f;
        for (int64_t i = 0; i < n; i++) {
            bool flows = share > 0.0f && (a->pool != DT_POOL_MAX || at[i] == (int32_t)t);
            float dx = flows ? g[i] * share : 0.0f;
            dt_store(dh, i, a->first ? dx : dt_load(dh, i, bf16) + dx, bf16);
        }
    }
    for (int64_t i = 0; a->dbefore && i < n; i++) {
        bool kept = a->pool == DT_POOL_MAX ? at[i] < 0 : last < 0;
        a->dbefore[place + i] = kept ? g[i] : a->pool == DT_POOL_MEAN ? g[i] * (before / c) : 0.0f;
    }
}

DT_CLONES static void forward_typed(const struct dt_pool_forward_args *a, int64_t window,
                                    int64_t from, int64_t n)
{
    DT_STORAGE_SWITCH(a->h.dtype, bf16, forward_strip(a, window, from, n, bf16));
}

DT_CLONES static void backward_typed(const struct dt_pool_backward_args *a, int64_t window,
                                     int64_t from, int64_t n)
{
    DT_STORAGE_SWITCH(a->h.dtype, bf16, backward_strip(a, window, from, n, bf16));
}

DT_OP_CPU(pool_forward)
{
    int64_t d = args->h.cols, strips = dt_ceil_div(d, STRIP), n = args->out.rows * strips;
#pragma omp parallel for num_threads(device->threads) if (n > 1)
    for (int64_t i = 0; i < n; i++) {
        int64_t from = i % strips * STRIP;
        forward_typed(args, i / strips, from, dt_min_i64(STRIP, d - from));
    }
    return DT_OK;
}

DT_OP_CPU(pool_backward)
{
    int64_t d = args->h.cols, strips = dt_ceil_div(d, STRIP),
            n = args->h.rows / args->length * strips;
#pragma omp parallel for num_threads(device->threads) if (n > 1)
    for (int64_t i = 0; i < n; i++) {
        int64_t from = i % strips * STRIP;
        backward_typed(args, i / strips, from, dt_min_i64(STRIP, d - from));
    }
    return DT_OK;
}

// Finds the last row of a window that counts and has one of these targets, or -1.
static int64_t find_target(const struct dt_pool_targets_args *a, int64_t window,
                           const struct dt_target_columns *output)
{
    for (int64_t row = (window + 1) * a->length - 1; row >= window * a->length; row--) {
        const float *t = dt_view_at(&a->targets, row, output->first);
        for (int64_t i = 0; counts(a->mask, row) && i < output->n; i++)
            if (!isnan(t[i]))
                return row;
    }
    return -1;
}

static void choose_targets(const struct dt_pool_targets_args *a, int64_t window)
{
    float *to = dt_view_at(&a->targets_out, window, 0),
          *weights = dt_view_at(&a->weights_out, window, 0);
    int64_t last = -1;
    for (int64_t i = 0; i < a->targets.cols; i++)
        to[i] = NAN;
    for (int64_t k = 0; k < a->n; k++) {
        const struct dt_target_columns *output = &a->outputs[k];
        int64_t row = find_target(a, window, output);
        last = dt_max_i64(row, last);
        if (row >= 0)
            memcpy(to + output->first, dt_view_at(&a->targets, row, output->first),
                   (size_t)output->n * sizeof *to);
        if (weights)
            weights[1 + k] = row < 0 ? 0.0f : *(float *)dt_view_at(&a->weights, row, 1 + k);
    }
    if (weights)
        weights[0] = last < 0 ? 0.0f : *(float *)dt_view_at(&a->weights, last, 0);
}

DT_OP_CPU(pool_targets)
{
    int64_t n = args->targets_out.rows;
#pragma omp parallel for num_threads(device->threads) if (n > STRIP)
    for (int64_t window = 0; window < n; window++)
        choose_targets(args, window);
    return DT_OK;
}

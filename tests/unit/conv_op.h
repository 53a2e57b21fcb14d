// A problem of the convolution as the op takes it: arguments over guarded arrays made from a seed.
#pragma once

#include "op_fixture.h"

#include <stdbool.h>

enum resets { NO_RESETS, AT_ZERO, IN_A_ROW, MANY, AT_END };

struct problem {
    int64_t batch, length, channels, taps;
    dt_dtype type;
    bool x0, wide, accumulate; // wide: strides larger than rows
    enum resets resets;
};

struct op {
    struct dt_conv1d_silu_forward_args forward;
    struct dt_conv1d_silu_backward_args backward;
};

static inline uint8_t *make_reset(const struct problem *p)
{
    uint8_t *reset = p->resets == NO_RESETS ? NULL : guarded(p->batch * p->length);
    for (int64_t row = 0; reset && row < p->batch * p->length; row++) {
        int64_t b = row / p->length, t = row % p->length;
        bool chosen[] = {false, t == 0, t >= 30 && t <= 33, (t * 7 + b * 3) % 11 < 2,
                         t == p->length - 1 - b % 2};
        reset[row] = chosen[p->resets];
    }
    return reset;
}

static inline int64_t stride_of(const struct problem *p, int64_t gap)
{
    int64_t unit = 16 / dt_dtype_size(p->type);
    return (p->channels + (p->wide ? gap : 0) + unit - 1) / unit * unit;
}

static inline struct op make_op(const struct problem *p)
{
    int64_t rows = p->batch * p->length, D = p->channels, K = p->taps;
    int64_t kept = p->batch * (K - 1), F32 = (int64_t)sizeof(float);
    struct dt_conv1d_silu_inputs in = {
        .batch = p->batch,
        .length = p->length,
        .taps = K,
        .x = normal_view(p->type, rows, D, stride_of(p, 9), 1.0, 1),
        .weight = normal(D * K, 0.7, 2),
        .bias = normal(D, 0.5, 3),
        .x0 = p->x0 && K > 1 ? normal_rows(p->type, kept, D, D, 1.0, 4) : NULL,
        .reset = make_reset(p)};
    struct dt_conv1d_silu_forward_args f = {
        .in = in,
        .y = fresh_view(p->type, rows, D, stride_of(p, 1)),
        .x_last = K > 1 ? guarded(kept * D * dt_dtype_size(p->type)) : NULL};
    struct dt_conv1d_silu_backward_args g = {
        .in = in,
        .dy = normal_view(p->type, rows, D, stride_of(p, 17), 1.0, 5),
        .dx = fresh_view(p->type, rows, D, stride_of(p, 2)),
        .dweight = p->accumulate ? normal(D * K, 1.0, 6) : guarded(D * K * F32),
        .dbias = p->accumulate ? normal(D, 1.0, 7) : guarded(D * F32),
        .accumulate = p->accumulate};
    return (struct op){f, g};
}

static inline void free_op(struct op *op)
{
    const struct dt_conv1d_silu_inputs *in = &op->forward.in;
    const struct dt_conv1d_silu_backward_args *g = &op->backward;
    const void *all[] = {
        in->x.data,         in->weight, in->bias,   in->x0,     in->reset, op->forward.y.data,
        op->forward.x_last, g->dy.data, g->dx.data, g->dweight, g->dbias};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i])
            release((void *)(uintptr_t)all[i], "an array of the convolution");
}

static inline void describe(const struct problem *p, char *text, size_t size)
{
    snprintf(text, size, "B %d L %d D %d K %d %s%s%s%s resets %d", (int)p->batch, (int)p->length,
             (int)p->channels, (int)p->taps, dt_dtype_name(p->type), p->x0 ? " x0" : "",
             p->wide ? " wide" : "", p->accumulate ? " accumulate" : "", (int)p->resets);
}

static inline int64_t nans(const void *x, dt_dtype type, int64_t first, int64_t n)
{
    int64_t count = 0;
    for (int64_t i = first; i < first + n; i++)
        count += isnan(get(x, type, i)) != 0;
    return count;
}

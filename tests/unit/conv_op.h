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
    int64_t size = dt_dtype_size(p->type), kept = p->batch * (K - 1);
    struct dt_conv1d_silu_forward_args f = {.batch = p->batch,
                                            .length = p->length,
                                            .channels = D,
                                            .taps = K,
                                            .dtype = p->type,
                                            .x_stride = stride_of(p, 9),
                                            .y_stride = stride_of(p, 1)};
    f.x = normal_rows(p->type, rows, D, f.x_stride, 1.0, 1);
    f.weight = normal(D * K, 0.7, 2);
    f.bias = normal(D, 0.5, 3);
    f.x0 = p->x0 && K > 1 ? normal_rows(p->type, kept, D, D, 1.0, 4) : NULL;
    f.reset = make_reset(p);
    f.y = guarded(rows * f.y_stride * size);
    f.x_last = K > 1 ? guarded(kept * D * size) : NULL;
    struct dt_conv1d_silu_backward_args g = {.batch = f.batch,
                                             .length = f.length,
                                             .channels = D,
                                             .taps = K,
                                             .dtype = f.dtype,
                                             .x = f.x,
                                             .x_stride = f.x_stride,
                                             .weight = f.weight,
                                             .bias = f.bias,
                                             .x0 = f.x0,
                                             .reset = f.reset,
                                             .dy_stride = stride_of(p, 17),
                                             .dx_stride = stride_of(p, 2),
                                             .accumulate = p->accumulate};
    g.dy = normal_rows(p->type, rows, D, g.dy_stride, 1.0, 5);
    g.dx = guarded(rows * g.dx_stride * size);
    g.dweight = p->accumulate ? normal(D * K, 1.0, 6) : guarded(D * K * (int64_t)sizeof(float));
    g.dbias = p->accumulate ? normal(D, 1.0, 7) : guarded(D * (int64_t)sizeof(float));
    return (struct op){f, g};
}

static inline void free_op(struct op *op)
{
    const void *all[] = {op->forward.x,        op->forward.weight, op->forward.bias,
                         op->forward.x0,       op->forward.reset,  op->forward.y,
                         op->forward.x_last,   op->backward.dy,    op->backward.dx,
                         op->backward.dweight, op->backward.dbias};
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

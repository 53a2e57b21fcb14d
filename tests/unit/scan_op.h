// A scan problem as the op takes it: arguments over guarded arrays made from a seed, the op's
// results in double, and what comparing two of them needs.
#pragma once

#include "scan_reference.h"

// The op's side: arguments over guarded arrays.
struct op {
    struct dt_scan_forward_args forward;
    struct dt_scan_backward_args backward;
};

static inline int64_t stride_of(const struct problem *p, int64_t width, int64_t gap)
{
    int64_t unit = 16 / dt_dtype_size(p->type);
    return p->wide ? (width + gap + unit - 1) / unit * unit : (width + unit - 1) / unit * unit;
}

static inline uint8_t *make_reset(const struct problem *p)
{
    uint8_t *reset = p->resets == NO_RESETS ? NULL : guarded(p->batch * p->length);
    for (int64_t row = 0; reset && row < p->batch * p->length; row++) {
        int64_t b = row / p->length, t = row % p->length;
        bool chosen[] = {false, t == 0, t >= 3 && t <= 5, t % p->chunk == 0,
                         (t * 7 + b * 3) % 11 < 2 || (t == 0 && b == 0)};
        reset[row] = chosen[p->resets];
    }
    return reset;
}

static inline void *output_rows(const struct problem *p, int64_t stride)
{
    return guarded(p->batch * p->length * stride * dt_dtype_size(p->type));
}

// Inputs of the size that Mamba has: Δ between about 0.01 and 1, A between -0.4 and -7.
static inline void make_inputs(const struct problem *p, struct dt_scan_forward_args *f)
{
    int64_t rows = p->batch * p->length, D = p->channels, N = p->state;
    f->u_stride = stride_of(p, D, 9), f->delta_stride = stride_of(p, D, 1);
    f->z_stride = stride_of(p, D, 20), f->b_stride = stride_of(p, N, 3);
    f->c_stride = stride_of(p, N, 8), f->y_stride = stride_of(p, D, 5);
    f->u = normal_rows(p->type, rows, D, f->u_stride, 1.0, 1);
    f->delta = normal_rows(p->type, rows, D, f->delta_stride, 1.0, 2);
    f->z = normal_rows(p->type, rows, D, f->z_stride, 1.5, 3);
    f->b = normal_rows(p->type, rows, N, f->b_stride, 1.0, 4);
    f->c = normal_rows(p->type, rows, N, f->c_stride, 1.0, 5);
    f->a_log = normal(D * N, 0.7, 6);
    f->d_skip = normal(D, 1.0, 7);
    float *dt_bias = normal(D, 0.5, 8);
    for (int64_t d = 0; d < D; d++)
        dt_bias[d] -= 2.0f;
    f->dt_bias = dt_bias;
    f->h0 = p->h0 ? normal(p->batch * D * N, 1.0, 9) : NULL;
    f->reset = make_reset(p);
}

static inline struct op make_op(const struct problem *p)
{
    int64_t rows = p->batch * p->length, D = p->channels, N = p->state;
    int64_t chunks = (p->length - 1) / p->chunk + 1, F32 = (int64_t)sizeof(float);
    struct dt_scan_forward_args f = {.batch = p->batch,
                                     .length = p->length,
                                     .channels = D,
                                     .state = N,
                                     .chunk = p->chunk,
                                     .dtype = p->type};
    make_inputs(p, &f);
    f.y = output_rows(p, f.y_stride);
    f.h_last = guarded(p->batch * D * N * F32);
    f.states = guarded(p->batch * chunks * N * D * F32);
    struct dt_scan_backward_args g = {.batch = f.batch,
                                      .length = f.length,
                                      .channels = D,
                                      .state = N,
                                      .chunk = f.chunk,
                                      .dtype = f.dtype,
                                      .u = f.u,
                                      .u_stride = f.u_stride,
                                      .delta = f.delta,
                                      .delta_stride = f.delta_stride,
                                      .z = f.z,
                                      .z_stride = f.z_stride,
                                      .b = f.b,
                                      .b_stride = f.b_stride,
                                      .c = f.c,
                                      .c_stride = f.c_stride,
                                      .a_log = f.a_log,
                                      .d_skip = f.d_skip,
                                      .dt_bias = f.dt_bias,
                                      .reset = f.reset,
                                      .states = f.states,
                                      .accumulate = p->accumulate};
    g.dy_stride = stride_of(p, D, 2), g.du_stride = stride_of(p, D, 7);
    g.ddelta_stride = stride_of(p, D, 3), g.dz_stride = stride_of(p, D, 30);
    g.db_stride = stride_of(p, N, 4), g.dc_stride = stride_of(p, N, 1);
    g.dy = normal_rows(p->type, rows, D, g.dy_stride, 1.0, 10);
    g.du = output_rows(p, g.du_stride), g.ddelta = output_rows(p, g.ddelta_stride);
    g.dz = output_rows(p, g.dz_stride);
    g.db = output_rows(p, g.db_stride), g.dc = output_rows(p, g.dc_stride);
    g.da_log = p->accumulate ? normal(D * N, 1.0, 11) : guarded(D * N * F32);
    g.dd_skip = p->accumulate ? normal(D, 1.0, 12) : guarded(D * F32);
    g.ddt_bias = p->accumulate ? normal(D, 1.0, 13) : guarded(D * F32);
    return (struct op){f, g};
}

static inline void free_input(const void *data, const char *name)
{
    if (data)
        release((void *)(uintptr_t)data, name);
}

static inline void free_op(struct op *op)
{
    struct dt_scan_forward_args *f = &op->forward;
    struct dt_scan_backward_args *g = &op->backward;
    const void *all[] = {f->u,      f->delta,   f->z,       f->b,       f->c,  f->a_log,
                         f->d_skip, f->dt_bias, f->h0,      f->reset,   f->y,  f->h_last,
                         f->states, g->dy,      g->du,      g->ddelta,  g->dz, g->db,
                         g->dc,     g->da_log,  g->dd_skip, g->ddt_bias};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free_input(all[i], "an array of the scan");
}

static inline void to_double(double *to, const void *from, dt_dtype type, int64_t rows,
                             int64_t width, int64_t stride)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i++)
            to[r * width + i] = get(from, type, r * stride + i);
}

static inline struct values gradient_values(const struct problem *p,
                                            const struct dt_scan_backward_args *g)
{
    struct values v = make_values(p);
    int64_t rows = p->batch * p->length, D = p->channels, N = p->state;
    to_double(v.u, g->du, p->type, rows, D, g->du_stride);
    to_double(v.delta, g->ddelta, p->type, rows, D, g->ddelta_stride);
    to_double(v.z, g->dz, p->type, rows, D, g->dz_stride);
    to_double(v.b, g->db, p->type, rows, N, g->db_stride);
    to_double(v.c, g->dc, p->type, rows, N, g->dc_stride);
    to_double(v.a_log, g->da_log, DT_F32, D, N, N);
    to_double(v.d_skip, g->dd_skip, DT_F32, 1, D, D);
    to_double(v.dt_bias, g->ddt_bias, DT_F32, 1, D, D);
    return v;
}

// Relative error of a tensor: 2-norms, and no element beyond 30 times its share once its own
// rounding to storage is granted.
static inline double distance(dt_dtype type, const double *got, const double *want, int64_t n)
{
    double error = 0.0, size = 0.0, worst = 0.0;
    for (int64_t i = 0; i < n; i++) {
        error += (got[i] - want[i]) * (got[i] - want[i]);
        size += want[i] * want[i];
        worst = fmax(worst, fabs(got[i] - want[i]) - 1.01 * rounding(type) * fabs(want[i]));
        if (isnan(got[i]))
            return (double)NAN;
    }
    double norm = sqrt(error / (size + 1e-30)), peak = worst / (sqrt(size / (double)n) + 1e-30);
    return fmax(norm, peak / 30.0);
}

static inline void describe(const struct problem *p, char *text, size_t size)
{
    snprintf(text, size, "B %d L %d D %d N %d chunk %d %s%s%s%s resets %d", (int)p->batch,
             (int)p->length, (int)p->channels, (int)p->state, (int)p->chunk, dt_dtype_name(p->type),
             p->h0 ? " h0" : "", p->wide ? " wide" : "", p->accumulate ? " accumulate" : "",
             (int)p->resets);
}

// What the ops of one problem wrote, compared by bits.
static inline void check_same_bits(const struct op *a, const struct op *b, const char *what)
{
    CHECK(same_bits(a->forward.y, b->forward.y), "%s: y differs", what);
    CHECK(same_bits(a->forward.h_last, b->forward.h_last), "%s: h_last differs", what);
    CHECK(same_bits(a->forward.states, b->forward.states), "%s: states differ", what);
    CHECK(same_bits(a->backward.du, b->backward.du), "%s: du differs", what);
    CHECK(same_bits(a->backward.ddelta, b->backward.ddelta), "%s: ddelta differs", what);
    CHECK(same_bits(a->backward.dz, b->backward.dz), "%s: dz differs", what);
    CHECK(same_bits(a->backward.db, b->backward.db), "%s: db differs", what);
    CHECK(same_bits(a->backward.dc, b->backward.dc), "%s: dc differs", what);
    CHECK(same_bits(a->backward.da_log, b->backward.da_log), "%s: da_log differs", what);
    CHECK(same_bits(a->backward.dd_skip, b->backward.dd_skip), "%s: dd_skip differs", what);
    CHECK(same_bits(a->backward.ddt_bias, b->backward.ddt_bias), "%s: ddt_bias differs", what);
}

static inline bool has_nan(const void *x, dt_dtype type, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (isnan(get(x, type, i)))
            return true;
    return false;
}

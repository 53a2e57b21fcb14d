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

static inline struct dt_view output_view(const struct problem *p, int64_t cols, int64_t gap)
{
    return fresh_view(p->type, p->batch * p->length, cols, stride_of(p, cols, gap));
}

static inline struct dt_view input_view(const struct problem *p, int64_t cols, int64_t gap,
                                        double scale, uint32_t seed)
{
    return normal_view(p->type, p->batch * p->length, cols, stride_of(p, cols, gap), scale, seed);
}

// Inputs of the size that Mamba has: Δ between about 0.01 and 1, A between -0.4 and -7.
static inline struct dt_scan_inputs make_inputs(const struct problem *p)
{
    int64_t D = p->channels, N = p->state;
    float *dt_bias = normal(D, 0.5, 8);
    for (int64_t d = 0; d < D; d++)
        dt_bias[d] -= 2.0f;
    return (struct dt_scan_inputs){.batch = p->batch,
                                   .length = p->length,
                                   .chunk = p->chunk,
                                   .u = input_view(p, D, 9, 1.0, 1),
                                   .delta = input_view(p, D, 1, 1.0, 2),
                                   .z = input_view(p, D, 20, 1.5, 3),
                                   .b = input_view(p, N, 3, 1.0, 4),
                                   .c = input_view(p, N, 8, 1.0, 5),
                                   .a_log = normal(D * N, 0.7, 6),
                                   .d_skip = normal(D, 1.0, 7),
                                   .dt_bias = dt_bias,
                                   .h0 = p->h0 ? normal(p->batch * D * N, 1.0, 9) : NULL,
                                   .reset = make_reset(p)};
}

static inline struct op make_op(const struct problem *p)
{
    int64_t D = p->channels, N = p->state;
    int64_t chunks = (p->length - 1) / p->chunk + 1, F32 = (int64_t)sizeof(float);
    struct dt_scan_forward_args f = {.in = make_inputs(p),
                                     .y = output_view(p, D, 5),
                                     .h_last = guarded(p->batch * D * N * F32),
                                     .states = guarded(p->batch * chunks * N * D * F32)};
    struct dt_scan_backward_args g = {
        .in = f.in,
        .states = f.states,
        .dy = input_view(p, D, 2, 1.0, 10),
        .du = output_view(p, D, 7),
        .ddelta = output_view(p, D, 3),
        .dz = output_view(p, D, 30),
        .db = output_view(p, N, 4),
        .dc = output_view(p, N, 1),
        .da_log = p->accumulate ? normal(D * N, 1.0, 11) : guarded(D * N * F32),
        .dd_skip = p->accumulate ? normal(D, 1.0, 12) : guarded(D * F32),
        .ddt_bias = p->accumulate ? normal(D, 1.0, 13) : guarded(D * F32),
        .accumulate = p->accumulate};
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
    const void *all[] = {
        f->in.u.data, f->in.delta.data, f->in.z.data, f->in.b.data,   f->in.c.data, f->in.a_log,
        f->in.d_skip, f->in.dt_bias,    f->in.h0,     f->in.reset,    f->y.data,    f->h_last,
        f->states,    g->dy.data,       g->du.data,   g->ddelta.data, g->dz.data,   g->db.data,
        g->dc.data,   g->da_log,        g->dd_skip,   g->ddt_bias};
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

static inline void view_to_double(double *to, const struct dt_view *from)
{
    to_double(to, from->data, from->dtype, from->rows, from->cols, from->stride);
}

static inline struct values gradient_values(const struct problem *p,
                                            const struct dt_scan_backward_args *g)
{
    struct values v = make_values(p);
    int64_t D = p->channels, N = p->state;
    view_to_double(v.u, &g->du);
    view_to_double(v.delta, &g->ddelta);
    view_to_double(v.z, &g->dz);
    view_to_double(v.b, &g->db);
    view_to_double(v.c, &g->dc);
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
    CHECK(same_bits(a->forward.y.data, b->forward.y.data), "%s: y differs", what);
    CHECK(same_bits(a->forward.h_last, b->forward.h_last), "%s: h_last differs", what);
    CHECK(same_bits(a->forward.states, b->forward.states), "%s: states differ", what);
    CHECK(same_bits(a->backward.du.data, b->backward.du.data), "%s: du differs", what);
    CHECK(same_bits(a->backward.ddelta.data, b->backward.ddelta.data), "%s: ddelta differs", what);
    CHECK(same_bits(a->backward.dz.data, b->backward.dz.data), "%s: dz differs", what);
    CHECK(same_bits(a->backward.db.data, b->backward.db.data), "%s: db differs", what);
    CHECK(same_bits(a->backward.dc.data, b->backward.dc.data), "%s: dc differs", what);
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

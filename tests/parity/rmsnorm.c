// Residual addition and RMSNorm, forward and backward: widths on both sides of a lane's, a warp's
// and a block's share and of what registers and shared memory hold, aligned and not; numbers of
// rows on both sides of a block's share and of the CPU's parts; with and without each optional
// array.
#include "parity.h"

static const double eps = 1e-5;

struct shape {
    int64_t rows, width, gap; // gap: elements between the rows
    dt_dtype type;
    bool with_x, in_place, with_out; // forward
    bool first, accumulate, with_dx; // backward
};

REFERENCE(rmsnorm_residual_forward)
{
    int64_t d = a->y.cols;
    for (int64_t r = 0; r < a->y.rows; r++) {
        double *v = dense_array(a->residual + r * d, d), sum = 0.0;
        for (int64_t i = 0; i < d; i++) {
            v[i] += a->x.data ? get_at(&a->x, r, i) : 0.0;
            sum += v[i] * v[i];
        }
        double rstd = 1.0 / sqrt(sum / (double)d + (double)a->eps);
        for (int64_t i = 0; i < d; i++)
            set_at(&a->y, r, i, v[i] * rstd * (double)a->weight[i]);
        store_array(a->residual_out ? a->residual_out + r * d : NULL, d, v, false);
        store_array(a->rstd ? a->rstd + r : NULL, 1, &rstd, false);
    }
    return DT_OK;
}

REFERENCE(rmsnorm_residual_backward)
{
    int64_t d = a->dy.cols;
    double *dweight = zeros(d);
    for (int64_t r = 0; r < a->dy.rows; r++) {
        const float *residual = a->residual + r * d;
        double rstd = (double)a->rstd[r], mean = 0.0;
        for (int64_t i = 0; i < d; i++) {
            double dn = get_at(&a->dy, r, i) * (double)residual[i] * rstd;
            mean += dn * (double)a->weight[i] / (double)d;
            dweight[i] += dn;
        }
        for (int64_t i = 0; i < d; i++) {
            double g = get_at(&a->dy, r, i) * (double)a->weight[i];
            double dr = rstd * (g - (double)residual[i] * rstd * mean);
            dr += a->first ? 0.0 : (double)a->dresidual[r * d + i];
            a->dresidual[r * d + i] = (float)dr;
            if (a->dx.data)
                set_at(&a->dx, r, i, dr);
        }
    }
    store_array(a->dweight, d, dweight, a->accumulate);
    return DT_OK;
}

// The sum of the two inputs is one addition, so its bits are equal. Squares are added in another
// order: each of a few hundred terms rounds by 2^-24 of a sum of positive numbers, for which 2e-6
// is ample.
static void forward(struct parity *p, const struct shape *s)
{
    int64_t rows = s->rows, d = s->width, stride = d + s->gap;
    struct dt_rmsnorm_residual_forward_args a = {.eps = (float)eps,
                                                 .residual = normal(rows * d, 1.0, 1),
                                                 .weight = normal(d, 1.0, 3),
                                                 .y = fresh_view(s->type, rows, d, stride),
                                                 .rstd = s->with_x ? guarded(rows * 4) : NULL};
    if (s->with_x)
        a.x = normal_view(s->type, rows, d, stride, 1.0, 2);
    if (s->with_out)
        a.residual_out = s->in_place ? (float *)(uintptr_t)a.residual : guarded(rows * d * 4);
    PARITY(p, rmsnorm_residual_forward, &a, OUT(y, .each = 4e-6, .norm = 1e-5),
           OUT(rstd, .each = 2e-6, .floor = 1e-30));
}

struct values {
    int64_t rows, width;
    double *residual, *weight;
};

static void y_of(const void *values, double *y)
{
    const struct values *v = values;
    for (int64_t r = 0; r < v->rows; r++) {
        const double *residual = v->residual + r * v->width;
        double sum = 0.0;
        for (int64_t i = 0; i < v->width; i++)
            sum += residual[i] * residual[i];
        for (int64_t i = 0; i < v->width; i++)
            y[r * v->width + i] = residual[i] * v->weight[i] / sqrt(sum / (double)v->width + eps);
    }
}

// Gradients are sums of products in fp32.
static void check_directions(const struct parity *p,
                             const struct dt_rmsnorm_residual_backward_args *a)
{
    int64_t rows = a->dy.rows, d = a->dy.cols, n = rows * d;
    struct values v = {rows, d, dense_array(a->residual, n), dense_array(a->weight, d)};
    const struct objective objective = {.dy = &a->dy, .forward = y_of, .problem = &v};
    check_direction(p, "residual", v.residual, dense_array(a->dresidual, n), n, &objective, 1e-5);
    check_direction(p, "weight", v.weight, dense_array(a->dweight, d), d, &objective, 1e-5);
}

// Tolerances as in forward. A row of width 1 or 2 has a large rstd and cancels, so the error of an
// element is also relative to rstd. dweight adds rows in another order, with an error relative to
// the size of the sum.
static void backward(struct parity *p, const struct shape *s)
{
    int64_t rows = s->rows, d = s->width, stride = d + s->gap;
    struct dt_rmsnorm_residual_backward_args a = {
        .dy = normal_view(s->type, rows, d, stride, 1.0, 13),
        .residual = normal(rows * d, 1.0, 11),
        .weight = normal(d, 1.0, 12),
        .dresidual = s->first ? guarded(rows * d * 4) : normal(rows * d, 1.0, 14),
        .first = s->first,
        .dweight = gradient_array(d, s->accumulate, 15),
        .accumulate = s->accumulate};
    if (s->with_dx)
        a.dx = fresh_view(s->type, rows, d, stride);
    float *rstd = guarded(rows * 4);
    double *floors = zeros(rows * d), size = fmax(1.0, 2.0 * sqrt((double)rows));
    for (int64_t r = 0; r < rows; r++) {
        double sum = 0.0;
        for (int64_t i = 0; i < d; i++)
            sum += pow((double)a.residual[r * d + i], 2.0);
        rstd[r] = (float)(1.0 / sqrt(sum / (double)d + eps));
        for (int64_t i = 0; i < d; i++)
            floors[r * d + i] = (1.0 + (double)rstd[r]) *
                                fmax(1.0, fabs(get_at(&a.dy, r, i) * (double)a.weight[i]));
    }
    a.rstd = rstd;
    PARITY(p, rmsnorm_residual_backward, &a, OTHERS(.each = 4e-6, .floors = floors),
           OUT(dweight, .each = 4e-6, .floor = size));
    // dx is dresidual, rounded.
    for (int64_t i = 0; i < rows * d && a.dx.data && s->type == DT_BF16; i++)
        CHECK(((dt_bf16 *)a.dx.data)[i / d * stride + i % d] == dt_f32_to_bf16(a.dresidual[i]),
              "%s: dx %lld is not dresidual", p->text, (long long)i);
    // A row of one or two elements cancels to less than its rounding errors.
    if (s->first && !s->accumulate && p->is_cpu && d > 2 && rows * d < 1000)
        check_directions(p, &a);
}

// A number that is not finite affects only its row.
static void check_not_finite(struct parity *p, float bad)
{
    if (!parity_case(p, "rmsnorm: %g in the residual", (double)bad))
        return;
    float *residual = normal(3 * 20, 1.0, 1), *y = guarded(3 * 20 * 4);
    residual[20 + 7] = bad;
    struct dt_rmsnorm_residual_forward_args a = {.eps = 1e-5f,
                                                 .residual = residual,
                                                 .weight = normal(20, 1.0, 2),
                                                 .y = dt_view_of(y, 3, 20, DT_F32)};
    PARITY(p, rmsnorm_residual_forward, &a, OUT(y, .each = 4e-6));
    CHECK(!isfinite(y[20 + 7]), "%g in the residual stream is lost", (double)bad);
    CHECK(isfinite(y[0]) && isfinite(y[59]), "%g reaches other rows", (double)bad);
}

static void compare(struct parity *p, const struct shape *s)
{
    if (!parity_case(p, "rmsnorm: rows %lld, width %lld, gap %lld, %s%s%s%s%s%s%s",
                     (long long)s->rows, (long long)s->width, (long long)s->gap,
                     dt_dtype_name(s->type), s->with_x ? " x" : "", s->in_place ? " in place" : "",
                     s->with_out ? " out" : "", s->first ? " first" : "",
                     s->accumulate ? " +=" : "", s->with_dx ? " dx" : ""))
        return;
    forward(p, s);
    backward(p, s);
}

void parity_rmsnorm(struct parity *p)
{
    static const struct shape shapes[] = {
        {1, 1, 0, DT_F32, 1, 0, 1, 1, 0, 1},     {5, 3, 2, DT_BF16, 1, 1, 1, 0, 1, 1},
        {4, 8, 8, DT_BF16, 0, 0, 1, 0, 0, 0},    {9, 255, 1, DT_F32, 1, 0, 0, 1, 1, 1},
        {3, 256, 0, DT_BF16, 1, 1, 1, 0, 0, 1},  {6, 264, 8, DT_F32, 0, 0, 0, 0, 1, 1},
        {2, 1032, 0, DT_BF16, 1, 0, 1, 1, 0, 1}, {3, 8200, 0, DT_F32, 1, 0, 1, 0, 0, 1},
        {3, 768, 0, DT_BF16, 1, 0, 1, 0, 1, 1},  {3, 1024, 0, DT_F32, 0, 0, 1, 0, 0, 1},
        {3, 2056, 8, DT_BF16, 1, 1, 1, 0, 1, 1}, {2, 2560, 0, DT_F32, 1, 0, 1, 1, 0, 0},
        {2, 3072, 0, DT_BF16, 0, 0, 1, 0, 0, 1}, {3, 3080, 0, DT_BF16, 1, 0, 1, 0, 0, 1},
        {5, 1536, 0, DT_BF16, 0, 0, 0, 0, 0, 1}, {5, 2048, 8, DT_BF16, 1, 0, 1, 0, 1, 1},
        {1025, 5, 0, DT_F32, 1, 0, 1, 0, 1, 1},  {2051, 8, 0, DT_BF16, 0, 1, 1, 0, 0, 1},
    };
    // On the CPU, every combination of optional arrays, in shapes that cross its blocks of rows.
    static const int64_t sizes[][2] = {{3, 5}, {64, 16}, {65, 77}, {300, 300}, {17000, 3}};
    static const dt_dtype types[] = {DT_F32, DT_BF16};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes && !p->model; i++)
        compare(p, &shapes[i]);
    for (int i = 0; i < 5 && p->is_cpu; i++)
        for (int k = 0; k < 16; k++)
            compare(p, &(struct shape){sizes[i][0], sizes[i][1], 3, types[k / 8], k & 1, k & 2,
                                       k & 4, k & 1, k & 2, k & 4});
    for (int64_t batch = 1; batch <= 2 && p->model; batch++)
        for (int k = 0; k < 2; k++)
            compare(p, &(struct shape){batch * MODEL_LENGTH, MODEL_WIDTH, 8, types[k], 1, 0, 1, 0,
                                       1, 1});
    check_not_finite(p, NAN);
    check_not_finite(p, INFINITY);
}

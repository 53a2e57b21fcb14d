// Residual addition and RMSNorm against the formulas of its header in double, at awkward widths,
// strides and row counts on both sides of the row blocks; the gradients against finite differences
// as well.
#include "op_fixture.h"

struct problem {
    int64_t rows, width;
    dt_dtype type;
    bool with_x, in_place, with_out; // forward
    bool first, accumulate, with_dx; // backward
};

static const double eps = 1e-5;

struct forward {
    float *residual, *weight, *out, *rstd;
    void *x, *y;
    int64_t x_stride, y_stride;
};

static struct forward run_forward(const struct problem *p, int threads)
{
    struct dt_backend backend = open_cpu(threads);
    struct forward f = {.x_stride = p->width + 3, .y_stride = p->width + 8};
    f.residual = normal(p->rows * p->width, 1.0, 1);
    f.weight = normal(p->width, 1.0, 2);
    f.x = normal_rows(p->type, p->rows, p->width, f.x_stride, 1.0, 3);
    f.y = guarded(p->rows * f.y_stride * dt_dtype_size(p->type));
    f.out = p->in_place ? f.residual : guarded(p->rows * p->width * 4);
    f.rstd = guarded(p->rows * 4);
    struct dt_rmsnorm_residual_forward_args args = {.rows = p->rows,
                                                    .width = p->width,
                                                    .dtype = p->type,
                                                    .eps = (float)eps,
                                                    .residual = f.residual,
                                                    .x = p->with_x ? f.x : NULL,
                                                    .x_stride = f.x_stride,
                                                    .weight = f.weight,
                                                    .residual_out =
                                                        p->with_out || p->in_place ? f.out : NULL,
                                                    .y = f.y,
                                                    .y_stride = f.y_stride,
                                                    .rstd = f.rstd};
    check_ok(dt_rmsnorm_residual_forward(&backend, &args, NULL), "forward");
    dt_backend_close(&backend);
    return f;
}

static void free_forward(struct forward *f)
{
    if (f->out != f->residual)
        release(f->out, "residual_out");
    release(f->residual, "residual");
    release(f->weight, "weight");
    release(f->x, "x");
    release(f->y, "y");
    release(f->rstd, "rstd");
}

// fp32: width additions and a handful of roundings, each 2^-24 of values near 1: 2e-6 is ample to
// width 1000. Storage rounds y once more.
static void check_forward(const struct problem *p, const struct forward *f)
{
    int64_t wrong = 0;
    float *residual = normal(p->rows * p->width, 1.0, 1);
    for (int64_t r = 0; r < p->rows; r++) {
        double sum = 0.0;
        for (int pass = 0; pass < 2; pass++)
            for (int64_t i = 0; i < p->width; i++) {
                double x = p->with_x ? get(f->x, p->type, r * f->x_stride + i) : 0.0;
                double v = (double)residual[r * p->width + i] + x;
                double rstd = 1.0 / sqrt(sum / (double)p->width + eps);
                double want = v * rstd * (double)f->weight[i],
                       got = get(f->y, p->type, r * f->y_stride + i);
                if (pass == 0)
                    sum += v * v;
                else
                    wrong +=
                        !(fabs(got - want) <= (2e-6 + rounding(p->type)) * fmax(1.0, fabs(want)));
                if (pass == 1 && (p->with_out || p->in_place))
                    wrong += f->out[r * p->width + i] != (float)v;
            }
        wrong += !(fabs((double)f->rstd[r] * sqrt(sum / (double)p->width + eps) - 1.0) <= 2e-6);
    }
    CHECK(wrong == 0, "%lld wrong: rows %lld width %lld %s", (long long)wrong, (long long)p->rows,
          (long long)p->width, dt_dtype_name(p->type));
    CHECK(gaps_fresh(f->y, p->type, p->rows, p->width, f->y_stride), "wrote between the rows of y");
    RELEASE(residual);
}

static void test_forward(const struct problem *p)
{
    struct forward one = run_forward(p, 1);
    check_forward(p, &one);
    for (int threads = 2; threads <= 3; threads++) {
        struct forward f = run_forward(p, threads);
        CHECK(same_bits(one.y, f.y) && same_bits(one.rstd, f.rstd), "other bits, %d threads",
              threads);
        free_forward(&f);
    }
    free_forward(&one);
}

struct backward {
    float *residual, *rstd, *weight, *dresidual, *dweight;
    void *dy, *dx;
    int64_t dy_stride, dx_stride;
};

static struct backward run_backward(const struct problem *p, int threads)
{
    struct dt_backend backend = open_cpu(threads);
    struct backward b = {.dy_stride = p->width + 5, .dx_stride = p->width + 1};
    b.residual = normal(p->rows * p->width, 1.0, 11);
    b.weight = normal(p->width, 1.0, 12);
    b.rstd = guarded(p->rows * 4);
    for (int64_t r = 0; r < p->rows; r++) {
        double sum = 0.0;
        for (int64_t i = 0; i < p->width; i++)
            sum += pow((double)b.residual[r * p->width + i], 2.0);
        b.rstd[r] = (float)(1.0 / sqrt(sum / (double)p->width + eps));
    }
    b.dy = normal_rows(p->type, p->rows, p->width, b.dy_stride, 1.0, 13);
    b.dresidual = p->first ? guarded(p->rows * p->width * 4) : normal(p->rows * p->width, 1.0, 14);
    b.dweight = p->accumulate ? normal(p->width, 1.0, 15) : guarded(p->width * 4);
    b.dx = guarded(p->rows * b.dx_stride * dt_dtype_size(p->type));
    struct dt_rmsnorm_residual_backward_args args = {.rows = p->rows,
                                                     .width = p->width,
                                                     .dtype = p->type,
                                                     .dy = b.dy,
                                                     .dy_stride = b.dy_stride,
                                                     .residual = b.residual,
                                                     .rstd = b.rstd,
                                                     .weight = b.weight,
                                                     .dresidual = b.dresidual,
                                                     .first = p->first,
                                                     .dx = p->with_dx ? b.dx : NULL,
                                                     .dx_stride = b.dx_stride,
                                                     .dweight = b.dweight,
                                                     .accumulate = p->accumulate};
    RUN_WITH_WORKSPACE(rmsnorm_residual_backward, &backend, &args);
    dt_backend_close(&backend);
    return b;
}

static void free_backward(struct backward *b)
{
    release(b->residual, "residual");
    release(b->rstd, "rstd");
    release(b->weight, "weight");
    release(b->dresidual, "dresidual");
    release(b->dweight, "dweight");
    release(b->dy, "dy");
    release(b->dx, "dx");
}

static int64_t wrong_row(const struct problem *p, const struct backward *b, const float *before,
                         int64_t r, double *dweight)
{
    const float *residual = b->residual + r * p->width;
    double rstd = (double)b->rstd[r], mean = 0.0;
    int64_t wrong = 0;
    for (int64_t i = 0; i < p->width; i++) {
        double dn = get(b->dy, p->type, r * b->dy_stride + i) * (double)residual[i] * rstd;
        mean += dn * (double)b->weight[i] / (double)p->width;
        dweight[i] += dn;
    }
    for (int64_t i = 0; i < p->width; i++) {
        double g = get(b->dy, p->type, r * b->dy_stride + i) * (double)b->weight[i];
        double want = rstd * (g - (double)residual[i] * rstd * mean);
        float got = b->dresidual[r * p->width + i];
        want += p->first ? 0.0 : (double)before[r * p->width + i];
        // as in forward; a row of width 1 or 2 has a large rstd and cancels, so relative to rstd
        // too
        wrong +=
            !(fabs((double)got - want) <= 4e-6 * (1.0 + rstd) * fmax(1.0, fabs(g) + fabs(want)));
        if (p->with_dx)
            wrong +=
                get(b->dx, p->type, r * b->dx_stride + i) !=
                (p->type == DT_BF16 ? (double)dt_bf16_to_f32(dt_f32_to_bf16(got)) : (double)got);
    }
    return wrong;
}

static void check_backward(const struct problem *p, const struct backward *b)
{
    float *before = normal(p->rows * p->width, 1.0, 14), *weight_before = normal(p->width, 1.0, 15);
    double *dweight = calloc((size_t)p->width, sizeof *dweight);
    int64_t wrong = 0, wrong_weight = 0;
    for (int64_t r = 0; r < p->rows && dweight; r++)
        wrong += wrong_row(p, b, before, r, dweight);
    for (int64_t i = 0; i < p->width && dweight; i++) {
        double want = dweight[i] + (p->accumulate ? (double)weight_before[i] : 0.0);
        // blocks of 64 rows or more, added in fp32: relative to the sum's size, which grows as
        // sqrt(rows)
        wrong_weight += !(fabs((double)b->dweight[i] - want) <=
                          4e-6 * fmax(2.0 * sqrt((double)p->rows), fabs(want)));
    }
    CHECK(wrong == 0 && wrong_weight == 0,
          "%lld of dresidual, %lld of dweight wrong: rows %lld width %lld", (long long)wrong,
          (long long)wrong_weight, (long long)p->rows, (long long)p->width);
    CHECK(gaps_fresh(b->dx, p->type, p->rows, p->with_dx ? p->width : 0, b->dx_stride),
          "wrote where dx is not");
    free(dweight);
    RELEASE(before);
    RELEASE(weight_before);
}

static void test_backward(const struct problem *p)
{
    struct backward one = run_backward(p, 1);
    check_backward(p, &one);
    for (int threads = 2; threads <= 3; threads++) {
        struct backward b = run_backward(p, threads);
        CHECK(same_bits(one.dresidual, b.dresidual) && same_bits(one.dweight, b.dweight) &&
                  same_bits(one.dx, b.dx),
              "other bits with %d threads", threads);
        free_backward(&b);
    }
    free_backward(&one);
}

// F(r, w) = Σ dy · y(r, w), in double.
static double objective(const struct problem *p, const struct backward *b, const double *r,
                        const double *w)
{
    double total = 0.0;
    for (int64_t row = 0; row < p->rows; row++) {
        double sum = 0.0, dot = 0.0;
        for (int64_t i = 0; i < p->width; i++) {
            double v = r[row * p->width + i];
            sum += v * v;
            dot += get(b->dy, p->type, row * b->dy_stride + i) * v * w[i];
        }
        total += dot / sqrt(sum / (double)p->width + eps);
    }
    return total;
}

static double *moved(const float *x, const float *direction, int64_t n, double step)
{
    double *y = malloc((size_t)n * sizeof *y);
    for (int64_t i = 0; i < n && y; i++)
        y[i] = (double)x[i] + step * (double)direction[i];
    return y;
}

// Central differences of a double-precision forward along a random direction of (r, w): their own
// error is near 1e-9, the op's gradient is a sum of rows · width products in fp32.
static void test_direction(void)
{
    struct problem p = {.rows = 9, .width = 37, .type = DT_F32, .first = true};
    struct backward b = run_backward(&p, 2);
    int64_t n = p.rows * p.width;
    float *dr = normal(n, 1.0, 21), *dw = normal(p.width, 1.0, 22);
    double want = 0.0, got = 0.0, step = 1e-5;
    for (int sign = -1; sign <= 1; sign += 2) {
        double *r = moved(b.residual, dr, n, sign * step),
               *w = moved(b.weight, dw, p.width, sign * step);
        want += sign * objective(&p, &b, r, w) / (2.0 * step);
        free(r);
        free(w);
    }
    for (int64_t i = 0; i < n; i++)
        got += (double)b.dresidual[i] * (double)dr[i];
    for (int64_t i = 0; i < p.width; i++)
        got += (double)b.dweight[i] * (double)dw[i];
    CHECK_NEAR(got, want, 1e-5);
    RELEASE(dr);
    RELEASE(dw);
    free_backward(&b);
}

static void test_not_finite(float bad)
{
    struct dt_backend backend = open_cpu(2);
    float *residual = normal(3 * 20, 1.0, 1), *weight = normal(20, 1.0, 2),
          *y = guarded(3 * 20 * 4);
    residual[20 + 7] = bad;
    struct dt_rmsnorm_residual_forward_args args = {.rows = 3,
                                                    .width = 20,
                                                    .dtype = DT_F32,
                                                    .eps = 1e-5f,
                                                    .residual = residual,
                                                    .weight = weight,
                                                    .y = y,
                                                    .y_stride = 20};
    check_ok(dt_rmsnorm_residual_forward(&backend, &args, NULL), "forward");
    CHECK(!isfinite(y[20 + 7]), "%g in the residual stream is lost", (double)bad);
    CHECK(isfinite(y[0]) && isfinite(y[59]), "%g reaches other rows", (double)bad);
    RELEASE(residual);
    RELEASE(weight);
    RELEASE(y);
    dt_backend_close(&backend);
}

static void test_size(int64_t rows, int64_t width, dt_dtype type)
{
    for (int i = 0; i < 8; i++) {
        test_forward(&(struct problem){.rows = rows,
                                       .width = width,
                                       .type = type,
                                       .with_x = i & 1,
                                       .in_place = i & 2,
                                       .with_out = i & 4});
        test_backward(&(struct problem){.rows = rows,
                                        .width = width,
                                        .type = type,
                                        .first = i & 1,
                                        .accumulate = i & 2,
                                        .with_dx = i & 4});
    }
}

int main(void)
{
    static const int64_t size[][2] = {{1, 1}, {3, 5}, {64, 16}, {65, 77}, {300, 300}, {17000, 3}};
    for (size_t i = 0; i < sizeof size / sizeof *size; i++) {
        test_size(size[i][0], size[i][1], DT_F32);
        test_size(size[i][0], size[i][1], DT_BF16);
    }
    test_direction();
    test_not_finite(NAN);
    test_not_finite(INFINITY);
    return test_end();
}

// Residual addition and RMSNorm: CUDA's form on the host against the CPU's, forward and backward,
// at widths on both sides of a lane's, a warp's and a block's share, of what registers and what
// shared memory keep, aligned and not, at row counts on both sides of a block's and with more rows
// than parts; the same bits in every order of threads.
#include "simt_backend.h"

struct problem {
    int64_t rows, width, gap;
    dt_dtype type;
    int with_x, in_place, with_out; // forward
    int first, accumulate, with_dx; // backward
};

struct forward {
    float *residual, *weight, *out, *rstd;
    void *x, *y;
};

static struct forward run_forward(const struct dt_backend *backend, const struct problem *p)
{
    int64_t n = p->rows * p->width, stride = p->width + p->gap;
    struct forward f = {.residual = normal(n, 1.0, 1),
                        .weight = normal(p->width, 1.0, 2),
                        .out = guarded(n * 4),
                        .rstd = guarded(p->rows * 4),
                        .x = normal_rows(p->type, p->rows, p->width, stride, 1.0, 3),
                        .y = guarded(p->rows * stride * dt_dtype_size(p->type))};
    struct dt_rmsnorm_residual_forward_args args = {.rows = p->rows,
                                                    .width = p->width,
                                                    .dtype = p->type,
                                                    .eps = 1e-5f,
                                                    .residual = f.residual,
                                                    .x = p->with_x ? f.x : NULL,
                                                    .x_stride = stride,
                                                    .weight = f.weight,
                                                    .y = f.y,
                                                    .y_stride = stride,
                                                    .rstd = p->with_x ? f.rstd : NULL};
    if (p->with_out)
        args.residual_out = p->in_place ? f.residual : f.out;
    check_ok(dt_rmsnorm_residual_forward(backend, &args, NULL), "forward");
    return f;
}

static void free_forward(struct forward *f)
{
    release(f->residual, "residual");
    release(f->weight, "weight");
    release(f->out, "residual_out");
    release(f->rstd, "rstd");
    release(f->x, "x");
    release(f->y, "y");
}

static int same_forward(const struct forward *a, const struct forward *b)
{
    return same_bits(a->residual, b->residual) && same_bits(a->out, b->out) &&
           same_bits(a->rstd, b->rstd) && same_bits(a->y, b->y);
}

// The sum is one addition and so the same bits. Squares are added in another order: a lane's or a
// vector's few hundred terms, each rounding 2^-24 of a sum of one sign, 2e-6 is ample; a value near
// the middle may be rounded to storage on the other side.
static void check_forward(const struct problem *p, const struct forward *got,
                          const struct forward *want)
{
    int64_t stride = p->width + p->gap;
    CHECK(same_bits(got->residual, want->residual) && same_bits(got->out, want->out),
          "the residual: rows %lld width %lld", (long long)p->rows, (long long)p->width);
    CHECK(!differences(got->y, want->y, p->type, p->rows, p->width, stride,
                       2e-6 + 2 * rounding(p->type)) &&
              (!p->with_x || !differences(got->rstd, want->rstd, DT_F32, 1, p->rows, 0, 2e-6)),
          "rows %lld width %lld gap %lld %s", (long long)p->rows, (long long)p->width,
          (long long)p->gap, dt_dtype_name(p->type));
    CHECK(gaps_fresh(got->y, p->type, p->rows, p->width, stride), "wrote between the rows of y");
}

static void test_forward(const struct problem *p)
{
    struct dt_backend cpu = open_cpu(1), simt = open_simt();
    struct forward want = run_forward(&cpu, p), first = {0};
    for (int order = 0; order < SIMT_ORDERS; order++) {
        simt_set_order((enum simt_order)order, 23);
        struct forward got = run_forward(&simt, p);
        check_forward(p, &got, &want);
        if (order == 0) {
            first = got;
            continue;
        }
        CHECK(same_forward(&got, &first), "other bits, order %s",
              simt_order_name((enum simt_order)order));
        free_forward(&got);
    }
    free_forward(&first);
    free_forward(&want);
    dt_backend_close(&cpu);
    dt_backend_close(&simt);
}

struct backward {
    float *residual, *rstd, *weight, *dresidual, *dweight;
    void *dy, *dx;
};

static struct backward run_backward(const struct dt_backend *backend, const struct problem *p)
{
    int64_t n = p->rows * p->width, stride = p->width + p->gap;
    struct backward b = {.residual = normal(n, 1.0, 11),
                         .rstd = guarded(p->rows * 4),
                         .weight = normal(p->width, 1.0, 12),
                         .dresidual = p->first ? guarded(n * 4) : normal(n, 1.0, 14),
                         .dweight =
                             p->accumulate ? normal(p->width, 1.0, 15) : guarded(p->width * 4),
                         .dy = normal_rows(p->type, p->rows, p->width, stride, 1.0, 13),
                         .dx = guarded(p->rows * stride * dt_dtype_size(p->type))};
    for (int64_t r = 0; r < p->rows; r++)
        b.rstd[r] = 0.8f + 0.4f * (float)(r % 7) / 7.0f;
    struct dt_rmsnorm_residual_backward_args args = {.rows = p->rows,
                                                     .width = p->width,
                                                     .dtype = p->type,
                                                     .dy = b.dy,
                                                     .dy_stride = stride,
                                                     .residual = b.residual,
                                                     .rstd = b.rstd,
                                                     .weight = b.weight,
                                                     .dresidual = b.dresidual,
                                                     .first = p->first,
                                                     .dx = p->with_dx ? b.dx : NULL,
                                                     .dx_stride = stride,
                                                     .dweight = b.dweight,
                                                     .accumulate = p->accumulate};
    RUN_WITH_WORKSPACE(rmsnorm_residual_backward, backend, &args);
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

// As in forward; dweight adds rows in another order: relative to the size of the sum, sqrt(rows).
static void check_backward(const struct problem *p, const struct backward *got,
                           const struct backward *want)
{
    int64_t stride = p->width + p->gap;
    double size = 2.0 * sqrt((double)p->rows);
    CHECK(
        !differences(got->dresidual, want->dresidual, DT_F32, p->rows, p->width, p->width, 4e-6) &&
            !differences(got->dweight, want->dweight, DT_F32, 1, p->width, 0, 4e-6 * size),
        "rows %lld width %lld gap %lld %s first %d", (long long)p->rows, (long long)p->width,
        (long long)p->gap, dt_dtype_name(p->type), p->first);
    if (p->with_dx)
        CHECK(!differences(got->dx, want->dx, p->type, p->rows, p->width, stride,
                           4e-6 + 2 * rounding(p->type)) &&
                  gaps_fresh(got->dx, p->type, p->rows, p->width, stride),
              "dx: rows %lld width %lld", (long long)p->rows, (long long)p->width);
}

static int same_backward(const struct backward *a, const struct backward *b)
{
    return same_bits(a->dresidual, b->dresidual) && same_bits(a->dweight, b->dweight) &&
           same_bits(a->dx, b->dx);
}

static void test_backward(const struct problem *p)
{
    struct dt_backend cpu = open_cpu(1), simt = open_simt();
    struct backward want = run_backward(&cpu, p), first = {0};
    for (int order = 0; order < SIMT_ORDERS; order++) {
        simt_set_order((enum simt_order)order, 29);
        struct backward got = run_backward(&simt, p);
        check_backward(p, &got, &want);
        if (order == 0) {
            first = got;
            continue;
        }
        CHECK(same_backward(&got, &first), "other bits, order %s",
              simt_order_name((enum simt_order)order));
        free_backward(&got);
    }
    free_backward(&first);
    free_backward(&want);
    dt_backend_close(&cpu);
    dt_backend_close(&simt);
}

int main(void)
{
    static const struct problem problems[] = {
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
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) {
        test_forward(&problems[i]);
        test_backward(&problems[i]);
    }
    return test_end();
}

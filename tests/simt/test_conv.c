// The convolution's CUDA form, run on the host, against the CPU's: y, x_last and every gradient,
// for each K, at channels that are and are not whole vectors, tiles whole and torn, resets at and
// near their seams, read one by one and by words; guard bands; the same bits in every order of
// threads; a NaN reaches only what sees it.
#include "simt_backend.h"

#include "unit/conv_op.h"

static void run_op(struct op *op, struct dt_backend backend)
{
    check_ok(dt_conv1d_silu_forward(&backend, &op->forward, NULL), "forward");
    RUN_WITH_WORKSPACE(conv1d_silu_backward, &backend, &op->backward);
    dt_backend_close(&backend);
}

// fp32: sums of up to 9 products and another exponential; sums over up to 600 tokens in another
// order. bf16: at most one step, 2^-7 of the value, where the two fall on either side of a
// rounding.
static double apart(dt_dtype type)
{
    return type == DT_BF16 ? 0x1p-7 : 1e-5;
}

static void check_view(const char *problem, const char *name, const struct dt_view *got,
                       const struct dt_view *want)
{
    int64_t different = differences(got->data, want->data, got->dtype, got->rows, got->cols,
                                    got->stride, apart(got->dtype));
    CHECK(different == 0, "%s: %lld of %s differ", problem, (long long)different, name);
    CHECK(view_gaps_fresh(got), "%s: written between rows of %s", problem, name);
}

static void check_array(const char *problem, const char *name, const float *got, const float *want,
                        int64_t n)
{
    struct dt_view g = dt_view_of(got, 1, n, DT_F32), w = dt_view_of(want, 1, n, DT_F32);
    check_view(problem, name, &g, &w);
}

static void check_against_cpu(const struct problem *p, const struct op *got, const struct op *want)
{
    char name[128];
    const struct dt_conv1d_silu_backward_args *g = &got->backward, *c = &want->backward;
    describe(p, name, sizeof name);
    check_view(name, "y", &got->forward.y, &want->forward.y);
    check_view(name, "dx", &g->dx, &c->dx);
    check_array(name, "dweight", g->dweight, c->dweight, p->channels * p->taps);
    check_array(name, "dbias", g->dbias, c->dbias, p->channels);
    CHECK(!got->forward.x_last || same_bits(got->forward.x_last, want->forward.x_last),
          "%s: x_last differs", name);
}

static void check_same(const struct op *a, const struct op *b, const char *what)
{
    CHECK(same_bits(a->forward.y.data, b->forward.y.data), "%s: y differs", what);
    CHECK(!a->forward.x_last || same_bits(a->forward.x_last, b->forward.x_last),
          "%s: x_last differs", what);
    CHECK(same_bits(a->backward.dx.data, b->backward.dx.data), "%s: dx differs", what);
    CHECK(same_bits(a->backward.dweight, b->backward.dweight), "%s: dweight differs", what);
    CHECK(same_bits(a->backward.dbias, b->backward.dbias), "%s: dbias differs", what);
}

static void check_problem(const struct problem *p)
{
    struct op cpu = make_op(p), first = make_op(p);
    run_op(&cpu, open_cpu(1));
    simt_set_order(SIMT_ASCENDING, 1);
    run_op(&first, open_simt());
    check_against_cpu(p, &first, &cpu);
    for (int order = 1; order < SIMT_ORDERS; order++) {
        struct op other = make_op(p);
        simt_set_order((enum simt_order)order, 77);
        run_op(&other, open_simt());
        check_same(&other, &first, simt_order_name((enum simt_order)order));
        free_op(&other);
    }
    simt_set_order(SIMT_ASCENDING, 1);
    free_op(&cpu);
    free_op(&first);
}

// A NaN in x reaches the K outputs of its channel that see it, the 2 K - 1 dx that these see,
// dweight and dbias; nothing past a reset. At token 29 this crosses a seam of tiles.
static void check_nan(int64_t K, int64_t D)
{
    struct problem p = {1, 40, D, K, DT_F32, .x0 = true, .resets = NO_RESETS};
    struct op op = make_op(&p);
    ((float *)op.forward.in.x.data)[29 * op.forward.in.x.stride + 2] = NAN;
    run_op(&op, open_simt());
    CHECK_INT(nans(op.forward.y.data, DT_F32, 0, 40 * op.forward.y.stride), K);
    CHECK_INT(nans(op.backward.dx.data, DT_F32, 0, 40 * op.backward.dx.stride), 2 * K - 1);
    CHECK_INT(nans(op.backward.dweight, DT_F32, 0, D * K), K);
    CHECK_INT(nans(op.backward.dbias, DT_F32, 0, D), 1);
    free_op(&op);
    p.resets = IN_A_ROW;
    op = make_op(&p);
    ((float *)op.forward.in.x.data)[29 * op.forward.in.x.stride + 2] = NAN;
    run_op(&op, open_simt());
    CHECK_INT(nans(op.forward.y.data, DT_F32, 0, 40 * op.forward.y.stride), 1);
    free_op(&op);
}

int main(void)
{
    const struct problem problems[] = {
        {1, 1, 5, 4, DT_F32, .x0 = true, .wide = true},
        {2, 2, 16, 8, DT_F32, .x0 = true, .resets = AT_END},
        {3, 1, 7, 3, DT_F32, .x0 = true, .resets = AT_ZERO},
        {1, 2, 3, 4, DT_F32, .x0 = false},
        {2, 77, 48, 4, DT_F32, .x0 = true, .wide = true, .accumulate = true, .resets = MANY},
        {2, 130, 132, 4, DT_F32, .x0 = true, .resets = IN_A_ROW},
        {1, 64, 20, 4, DT_F32, .resets = AT_ZERO},
        {1, 77, 100, 1, DT_F32, .wide = true, .resets = IN_A_ROW},
        {1, 77, 5, 2, DT_F32, .x0 = true, .resets = IN_A_ROW},
        {2, 33, 300, 5, DT_F32, .x0 = true, .resets = IN_A_ROW},
        {2, 65, 48, 6, DT_F32, .accumulate = true, .resets = AT_ZERO},
        {9, 67, 130, 7, DT_F32, .x0 = true, .wide = true, .resets = MANY},
        {2, 77, 100, 4, DT_BF16, .x0 = true, .wide = true, .resets = MANY},
        {2, 70, 136, 4, DT_BF16, .x0 = true, .accumulate = true, .resets = MANY},
        {1, 66, 24, 5, DT_BF16, .x0 = true, .resets = IN_A_ROW},
        {1, 3, 5, 8, DT_BF16, .x0 = true, .accumulate = true, .resets = AT_ZERO},
        // resets read four at a time
        {2, 136, 24, 4, DT_BF16, .x0 = true, .wide = true, .resets = MANY},
        {2, 68, 12, 5, DT_F32, .resets = IN_A_ROW},
    };
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++)
        check_problem(&problems[i]);
    check_nan(4, 16);
    check_nan(4, 4);
    check_nan(3, 16);
    check_nan(2, 8);
    return test_end();
}

// The scan's CUDA form, run on the host, against the CPU's: outputs, states and every gradient, at
// shapes that meet a warp's channels, a tile's tokens, segments, one and two channels a lane, every
// width of states and both kinds of kernel (N above 64 forward, above 32 backward is the plain
// one's) with whole and with torn pieces; guard bands; the same bits in every order
// of threads; a NaN comes through, but not past a reset.
#include "simt_backend.h"

#include "kernels/scan_cut.h"
#include "unit/scan_op.h"

static void run_op(struct op *op, struct dt_backend backend)
{
    RUN_WITH_WORKSPACE(scan_forward, &backend, &op->forward);
    RUN_WITH_WORKSPACE(scan_backward, &backend, &op->backward);
    dt_backend_close(&backend);
}

// Both forms round differently: other exponentials, other orders of sums over up to 300 channels
// and 700 tokens, segments started from products of exponentials. Each is within 5e-6 of a double
// (the CPU's test), so 1e-5 apart; bf16 outputs may fall on either side of a rounding, by 2^-8 of
// some elements.
static double apart(dt_dtype type)
{
    return type == DT_BF16 ? 2e-3 : 1e-5;
}

// The relative distance of two arrays of the op.
static void check_view(const char *problem, const char *name, const struct dt_view *got,
                       const struct dt_view *want)
{
    int64_t n = got->rows * got->cols;
    double *g = zeros(n), *w = zeros(n);
    view_to_double(g, got);
    view_to_double(w, want);
    double error = distance(got->dtype, g, w, n);
    CHECK(error <= apart(got->dtype), "%s: %s is off by %g", problem, name, error);
    CHECK(view_gaps_fresh(got), "%s: written between rows of %s", problem, name);
    free(g);
    free(w);
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
    int64_t D = p->channels, N = p->state, chunks = (p->length - 1) / p->chunk + 1;
    const struct dt_scan_forward_args *f = &got->forward, *cf = &want->forward;
    const struct dt_scan_backward_args *g = &got->backward, *cg = &want->backward;
    describe(p, name, sizeof name);
    check_view(name, "y", &f->y, &cf->y);
    check_array(name, "h_last", f->h_last, cf->h_last, p->batch * D * N);
    check_array(name, "states", f->states, cf->states, p->batch * chunks * N * D);
    check_view(name, "du", &g->du, &cg->du);
    check_view(name, "ddelta", &g->ddelta, &cg->ddelta);
    check_view(name, "dz", &g->dz, &cg->dz);
    check_view(name, "db", &g->db, &cg->db);
    check_view(name, "dc", &g->dc, &cg->dc);
    check_array(name, "da_log", g->da_log, cg->da_log, D * N);
    check_array(name, "dd_skip", g->dd_skip, cg->dd_skip, D);
    check_array(name, "ddt_bias", g->ddt_bias, cg->ddt_bias, D);
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
        check_same_bits(&other, &first, simt_order_name((enum simt_order)order));
        free_op(&other);
    }
    simt_set_order(SIMT_ASCENDING, 1);
    free_op(&cpu);
    free_op(&first);
}

// Without states forward alone; h_last may be h0 itself, whatever the segments.
static void test_h_last_over_h0(void)
{
    const struct problem p = {2, 77, 21, 16, 32, DT_F32, .h0 = true, .resets = NO_RESETS};
    struct op whole = make_op(&p), over = make_op(&p);
    run_op(&whole, open_simt());
    struct dt_backend simt = open_simt();
    struct dt_scan_forward_args f = over.forward;
    f.states = NULL;
    f.h_last = (float *)(uintptr_t)f.in.h0;
    RUN_WITH_WORKSPACE(scan_forward, &simt, &f);
    CHECK(same_bits(f.y.data, whole.forward.y.data), "y differs");
    CHECK(same_bits(f.h_last, whole.forward.h_last), "h_last over h0 differs");
    dt_backend_close(&simt);
    free_op(&whole);
    free_op(&over);
}

// A NaN of token 0 reaches the y of its segment and the next, and nothing past a reset.
static void check_nan(int64_t state, enum resets resets)
{
    const struct problem p = {1, 77, 16, state, 32, DT_F32, .h0 = true, .resets = resets};
    struct op op = make_op(&p);
    ((float *)op.forward.in.u.data)[5] = NAN;
    run_op(&op, open_simt());
    const float *y = op.forward.y.data, *du = op.backward.du.data;
    bool passes = resets == NO_RESETS;
    CHECK(isnan(y[5]) && !has_nan(y, DT_F32, 5), "N %d: a NaN in u is not in its y alone",
          (int)state);
    CHECK(isnan(y[76 * 16 + 5]) == passes, "N %d: the last y is %g", (int)state,
          (double)y[76 * 16 + 5]);
    CHECK(passes || !has_nan(du + 3 * 16, DT_F32, 74 * 16), "N %d: a NaN passes a reset backwards",
          (int)state);
    free_op(&op);
}

enum { WHOLE, SEGMENTS, BOTH, CUTS };

static void note_cut(const struct problem *p, int64_t unit, const scan_costs *costs,
                     bool (*seen)[CUTS])
{
    const int64_t widths[2] = {32, 64};
    scan_cut cut = scan_choose_cut(p->batch, p->length, p->channels, widths, p->chunk, unit, costs,
                                   &SCAN_SMALL_DEVICE);
    seen[cut.width > 32][cut.segments == 1 ? WHOLE : cut.whole == 0 ? SEGMENTS : BOTH] = true;
}

// The problems meet every kind of cut, with one channel a lane and with two.
static void check_cuts(const struct problem *problems, size_t count)
{
    bool forward[2][CUTS] = {{false}}, backward[2][CUTS] = {{false}};
    for (size_t i = 0; i < count; i++)
        if (problems[i].state <= 16 && problems[i].type == DT_BF16) {
            note_cut(&problems[i], 16, &SCAN_FORWARD_COSTS, forward);
            note_cut(&problems[i], problems[i].chunk, &SCAN_BACKWARD_COSTS, backward);
        }
    for (int two = 0; two < 2; two++)
        for (int cut = 0; cut < CUTS; cut++) {
            CHECK(forward[two][cut], "no forward with %d channels a lane and cut %d", two + 1, cut);
            CHECK(backward[two][cut], "no backward with %d channels a lane and cut %d", two + 1,
                  cut);
        }
}

int main(void)
{
    const struct problem problems[] = {
        {1, 1, 16, 16, 32, DT_F32, .h0 = false},
        {1, 1, 5, 1, 1, DT_F32, .h0 = true, .wide = true, .resets = AT_ZERO},
        {1, 77, 5, 3, 32, DT_F32, .wide = true, .resets = MANY},
        {2, 77, 48, 16, 32, DT_F32, .h0 = true, .wide = true, .accumulate = true, .resets = MANY},
        {2, 100, 131, 8, 7, DT_F32, .h0 = true, .resets = AT_CHUNKS},
        {1, 130, 300, 16, 100, DT_F32, .h0 = true, .resets = IN_A_ROW},
        {7, 20, 70, 16, 1, DT_F32, .accumulate = true, .resets = AT_ZERO},
        {1, 700, 24, 16, 16, DT_F32, .h0 = true},
        {1, 77, 129, 9, 1000, DT_F32, .h0 = true},
        {2, 40, 130, 17, 7, DT_F32, .h0 = true, .wide = true, .accumulate = true, .resets = MANY},
        {1, 9, 16, 256, 1000, DT_F32, .h0 = true},
        {2, 70, 33, 32, 20, DT_F32, .h0 = true, .wide = true, .resets = MANY},
        {2, 50, 34, 64, 16, DT_F32, .h0 = true, .resets = AT_CHUNKS},
        {10, 70, 33, 16, 16, DT_F32, .h0 = true, .wide = true, .resets = MANY},
        {13, 35, 45, 7, 5, DT_F32, .h0 = true},
        {1, 77, 5, 3, 32, DT_BF16, .wide = true, .resets = MANY},
        {2, 77, 48, 16, 32, DT_BF16, .h0 = true, .accumulate = true, .resets = MANY},
        {2, 33, 160, 8, 1000, DT_BF16, .h0 = true, .wide = true, .resets = AT_ZERO},
        {13, 100, 40, 16, 16, DT_BF16, .h0 = true, .resets = MANY},
        {5, 35, 128, 16, 16, DT_BF16, .h0 = true, .resets = MANY},
        {10, 100, 40, 12, 8, DT_BF16, .h0 = true, .resets = IN_A_ROW},
        {13, 65, 20, 16, 8, DT_BF16, .resets = MANY},
        {1, 465, 37, 16, 16, DT_BF16, .resets = MANY},
        {2, 90, 50, 16, 8, DT_BF16, .h0 = true, .resets = AT_ZERO},
        {10, 50, 20, 16, 16, DT_BF16, .resets = MANY},
        {2, 130, 64, 16, 16, DT_BF16, .h0 = true, .resets = MANY},
        {2, 45, 40, 64, 16, DT_BF16, .resets = MANY},
        {2, 45, 40, 32, 16, DT_BF16, .resets = MANY},
        {1, 33, 20, 33, 16, DT_BF16, .h0 = true, .resets = IN_A_ROW},
    };
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++)
        check_problem(&problems[i]);
    check_cuts(problems, sizeof problems / sizeof *problems);
    test_h_last_over_h0();
    check_nan(16, NO_RESETS);
    check_nan(16, IN_A_ROW);
    check_nan(20, NO_RESETS);
    check_nan(20, IN_A_ROW);
    check_nan(70, IN_A_ROW);
    return test_end();
}

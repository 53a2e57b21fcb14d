// The selective scan against a plain double-precision form of kernels/scan.h, over awkward shapes:
// outputs, states and every gradient; directional derivatives of the whole op; guard bands; the
// same bits with 1, 2 and 3 threads; any chunk; a sequence cut in two; NaN in is NaN out.
#include "scan_op.h"

static void run_forward(struct op *op, int threads)
{
    struct dt_backend backend = open_cpu(threads);
    RUN_WITH_WORKSPACE(scan_forward, &backend, &op->forward);
    dt_backend_close(&backend);
}

static void run_backward(struct op *op, int threads)
{
    struct dt_backend backend = open_cpu(threads);
    RUN_WITH_WORKSPACE(scan_backward, &backend, &op->backward);
    dt_backend_close(&backend);
}

static struct values input_values(const struct problem *p, const struct dt_scan_inputs *in)
{
    struct values v = make_values(p);
    int64_t D = p->channels, N = p->state;
    view_to_double(v.u, &in->u);
    view_to_double(v.delta, &in->delta);
    view_to_double(v.z, &in->z);
    view_to_double(v.b, &in->b);
    view_to_double(v.c, &in->c);
    to_double(v.a_log, in->a_log, DT_F32, D, N, N);
    to_double(v.d_skip, in->d_skip, DT_F32, 1, D, D);
    to_double(v.dt_bias, in->dt_bias, DT_F32, 1, D, D);
    if (in->h0)
        to_double(v.h0, in->h0, DT_F32, p->batch * D, N, N);
    return v;
}

// fp32 arithmetic over sums of up to some thousand terms: ten roundings' worth of error stays under
// 2e-6 in every case here; the promise is 1e-4. bf16 outputs are rounded once, by up to 2^-9 each.
static double tolerance(dt_dtype type)
{
    return type == DT_BF16 ? 3e-3 : 5e-6;
}

static void check_forward(const struct problem *p, struct op *op, const struct values *v)
{
    char name[128];
    int64_t D = p->channels, N = p->state, n_y = p->batch * p->length * D;
    int64_t n_states = p->batch * ((p->length - 1) / p->chunk + 1) * N * D;
    struct outputs want = {zeros(n_y), zeros(p->batch * D * N), zeros(n_states)};
    struct outputs got = {zeros(n_y), zeros(p->batch * D * N), zeros(n_states)};
    describe(p, name, sizeof name);
    reference_forward(p, v, op->forward.in.reset, &want);
    view_to_double(got.y, &op->forward.y);
    to_double(got.h_last, op->forward.h_last, DT_F32, 1, p->batch * D * N, 0);
    to_double(got.states, op->forward.states, DT_F32, 1, n_states, 0);
    double y = distance(p->type, got.y, want.y, n_y);
    double last = distance(DT_F32, got.h_last, want.h_last, p->batch * D * N);
    double states = distance(DT_F32, got.states, want.states, n_states);
    CHECK(y <= tolerance(p->type), "%s: y is off by %g", name, y);
    CHECK(last <= tolerance(DT_F32), "%s: h_last is off by %g", name, last);
    CHECK(states <= tolerance(DT_F32), "%s: states are off by %g", name, states);
    CHECK(view_gaps_fresh(&op->forward.y), "%s: written between the rows of y", name);
    double *all[] = {want.y, want.h_last, want.states, got.y, got.h_last, got.states};
    for (int i = 0; i < 6; i++)
        free(all[i]);
}

static void check_gaps(const struct dt_scan_backward_args *g, const char *name)
{
    CHECK(view_gaps_fresh(&g->du) && view_gaps_fresh(&g->ddelta) && view_gaps_fresh(&g->dz) &&
              view_gaps_fresh(&g->db) && view_gaps_fresh(&g->dc),
          "%s: written between the rows of a gradient", name);
}

// The gradient along a random direction of every input at once and of each alone, against a central
// difference of the reference in double: its error is near 1e-9, the op's decides.
static void check_directions(const struct problem *p, const struct values *v,
                             const struct values *gradient, const uint8_t *reset, const double *dy,
                             const char *name)
{
    const double step = 1e-5;
    int64_t n_y = p->batch * p->length * p->channels;
    struct outputs low = {.y = zeros(n_y)}, high = {.y = zeros(n_y)};
    struct dt_philox rng = dt_philox_init(77, 1, 0);
    for (int which = 0; which < N_INPUTS; which++) {
        struct values x = *v;
        int64_t n = input_size(p, which);
        double *base = *input(&x, which), *along = zeros(n), *moved = zeros(n);
        double analytic = 0.0, numeric = 0.0, size = 0.0;
        for (int64_t i = 0; i < n; i++) {
            along[i] = (double)dt_philox_normal(&rng);
            analytic += along[i] * (*input((struct values *)(uintptr_t)gradient, which))[i];
            size += pow((*input((struct values *)(uintptr_t)gradient, which))[i], 2.0);
        }
        *input(&x, which) = moved;
        for (int64_t i = 0; i < n; i++)
            moved[i] = base[i] + step * along[i];
        reference_forward(p, &x, reset, &high);
        for (int64_t i = 0; i < n; i++)
            moved[i] = base[i] - step * along[i];
        reference_forward(p, &x, reset, &low);
        for (int64_t i = 0; i < n_y; i++)
            numeric += dy[i] * (high.y[i] - low.y[i]) / (2.0 * step);
        // A random direction meets the gradient with about its norm.
        CHECK(fabs(analytic - numeric) <= 5.0 * tolerance(p->type) * sqrt(size),
              "%s: along %s the op's gradient gives %g, differences %g", name, input_name[which],
              analytic, numeric);
        free(along);
        free(moved);
    }
    free(low.y);
    free(high.y);
}

static void check_backward(const struct problem *p, struct op *op, const struct values *v)
{
    char name[128];
    int64_t rows = p->batch * p->length, D = p->channels;
    double *dy = zeros(rows * D);
    struct values want = make_values(p), start = gradient_values(p, &op->backward);
    describe(p, name, sizeof name);
    view_to_double(dy, &op->backward.dy);
    reference_backward(p, v, op->forward.in.reset, dy, &want);
    run_backward(op, 2);
    struct values got = gradient_values(p, &op->backward);
    for (int i = 0; i < N_INPUTS; i++) {
        double *x = *input(&got, i);
        for (int64_t k = 0; k < input_size(p, i) && p->accumulate && i >= 5; k++)
            x[k] -= (*input(&start, i))[k];
        double error = distance(i < 5 ? p->type : DT_F32, x, *input(&want, i), input_size(p, i));
        CHECK(error <= tolerance(i < 5 ? p->type : DT_F32), "%s: d%s is off by %g", name,
              input_name[i], error);
    }
    check_gaps(&op->backward, name);
    if (rows * D < 20000)
        check_directions(p, v, &got, op->forward.in.reset, dy, name);
    free_values(&want);
    free_values(&start);
    free_values(&got);
    free(dy);
}

static void check_problem(const struct problem *p)
{
    struct op op = make_op(p);
    struct values v = input_values(p, &op.forward.in);
    run_forward(&op, 2);
    check_forward(p, &op, &v);
    check_backward(p, &op, &v);
    free_values(&v);
    free_op(&op);
}

static void test_threads(void)
{
    const struct problem p = {3, 77, 100, 16, 32, DT_F32, .h0 = true, .resets = MANY};
    struct op op[3];
    for (int i = 0; i < 3; i++) {
        op[i] = make_op(&p);
        run_forward(&op[i], i + 1);
        run_backward(&op[i], i + 1);
    }
    check_same_bits(&op[0], &op[1], "2 threads against 1");
    check_same_bits(&op[0], &op[2], "3 threads against 1");
    for (int i = 0; i < 3; i++)
        free_op(&op[i]);
}

// Forward runs the same operations whatever the chunk; backward starts blocks from other places.
static void test_chunks(void)
{
    const int64_t chunk[] = {77, 1, 7, 32, 33, 1000};
    struct problem p = {2, 77, 20, 5, chunk[0], DT_F32, .resets = IN_A_ROW};
    struct op whole = make_op(&p);
    run_forward(&whole, 2);
    run_backward(&whole, 2);
    struct values want = gradient_values(&p, &whole.backward);
    for (size_t k = 1; k < sizeof chunk / sizeof *chunk; k++) {
        p.chunk = chunk[k];
        struct op op = make_op(&p);
        run_forward(&op, 2);
        run_backward(&op, 2);
        struct values got = gradient_values(&p, &op.backward);
        CHECK(same_bits(op.forward.y.data, whole.forward.y.data), "chunk %d: y differs",
              (int)p.chunk);
        for (int i = 0; i < N_INPUTS; i++) {
            double error = distance(DT_F32, *input(&got, i), *input(&want, i), input_size(&p, i));
            CHECK(error <= tolerance(DT_F32), "chunk %d: d%s is off by %g", (int)p.chunk,
                  input_name[i], error);
        }
        free_values(&got);
        free_op(&op);
    }
    free_values(&want);
    free_op(&whole);
}

// A sequence in two parts, h_last of the first going in as h0 of the second in place, gives the
// bits of the whole.
static void test_carry(void)
{
    const struct problem p = {2, 50, 20, 4, 32, DT_F32, .h0 = true, .resets = MANY};
    const int64_t first = 19;
    struct op op = make_op(&p);
    run_forward(&op, 1);
    int64_t D = p.channels, N = p.state;
    struct dt_view y = op.forward.y;
    float *h = guarded(D * N * 4);
    y.data = guarded(guarded_size(y.data));
    for (int64_t b = 0; b < p.batch; b++)
        for (int64_t part = 0; part < 2; part++) {
            struct dt_scan_forward_args f = op.forward;
            int64_t row = b * p.length + part * first,
                    end = part ? (b + 1) * p.length : row + first;
            struct dt_backend backend = open_cpu(1);
            f.in.batch = 1, f.in.length = end - row;
            f.in.u = dt_view_rows(f.in.u, row, end);
            f.in.delta = dt_view_rows(f.in.delta, row, end);
            f.in.z = dt_view_rows(f.in.z, row, end);
            f.in.b = dt_view_rows(f.in.b, row, end);
            f.in.c = dt_view_rows(f.in.c, row, end);
            f.in.reset += row;
            f.y = dt_view_rows(y, row, end);
            f.in.h0 = part ? h : f.in.h0 + b * D * N;
            f.h_last = h, f.states = NULL;
            RUN_WITH_WORKSPACE(scan_forward, &backend, &f);
            dt_backend_close(&backend);
            CHECK(!part || memcmp(h, op.forward.h_last + b * D * N, (size_t)(D * N) * 4) == 0,
                  "h_last of sequence %d in two parts differs", (int)b);
        }
    CHECK(same_bits(y.data, op.forward.y.data), "y in two parts differs");
    RELEASE(y.data);
    RELEASE(h);
    free_op(&op);
}

// A NaN in any one input, with any payload, reaches y (but for dt_bias and a_log only in its
// channel) and some gradient.
static void check_nan(dt_dtype type, int which)
{
    const struct problem p = {1, 40, 16, 8, 32, type, .h0 = true};
    struct op op = make_op(&p);
    const struct dt_scan_inputs *in = &op.forward.in;
    const void *array[] = {in->u.data, in->delta.data, in->z.data,  in->b.data, in->c.data,
                           in->a_log,  in->d_skip,     in->dt_bias, in->h0};
    void *at = (char *)(uintptr_t)array[which];
    if (which < 5 && type == DT_BF16)
        ((dt_bf16 *)at)[3] = 0x7f81;
    else
        ((uint32_t *)at)[3] = 0xff8001ffu;
    run_forward(&op, 1);
    run_backward(&op, 1);
    CHECK(has_nan(op.forward.y.data, type, p.length * 16), "a NaN in input %d (%s) is not in y",
          which, dt_dtype_name(type));
    struct dt_scan_backward_args *g = &op.backward;
    CHECK(has_nan(g->du.data, type, p.length * 16) ||
              has_nan(g->ddelta.data, type, p.length * 16) ||
              has_nan(g->dz.data, type, p.length * 16),
          "a NaN in input %d (%s) is in no gradient", which, dt_dtype_name(type));
    free_op(&op);
}

static void test_nan(void)
{
    for (int which = 0; which <= N_INPUTS; which++) {
        check_nan(DT_F32, which);
        check_nan(DT_BF16, which);
    }
}

// After a reset nothing of what was before is left, not even a NaN.
static void test_reset_drops_nan(void)
{
    const struct problem p = {1, 6, 16, 8, 4, DT_F32, .h0 = true, .resets = IN_A_ROW};
    struct op op = make_op(&p);
    ((float *)op.forward.in.u.data)[0] = NAN;
    run_forward(&op, 1);
    run_backward(&op, 1);
    CHECK(has_nan(op.forward.y.data, DT_F32, 16), "a NaN in u is not in y");
    CHECK(!has_nan((float *)op.forward.y.data + 3 * 16, DT_F32, 3 * 16), "a NaN passes a reset");
    CHECK(!has_nan((float *)op.backward.du.data + 3 * 16, DT_F32, 3 * 16),
          "a NaN passes a reset in backward");
    free_op(&op);
}

int main(void)
{
    const struct problem problems[] = {
        {1, 1, 16, 16, 32, DT_F32, .h0 = false},
        {1, 1, 5, 1, 1, DT_F32, .h0 = true, .wide = true, .resets = AT_ZERO},
        {1, 77, 5, 3, 32, DT_F32, .wide = true, .resets = MANY},
        {2, 77, 48, 16, 32, DT_F32, .h0 = true, .wide = true, .accumulate = true, .resets = MANY},
        {3, 40, 100, 8, 7, DT_F32, .h0 = true, .resets = AT_CHUNKS},
        {1, 130, 300, 16, 100, DT_F32, .h0 = true, .resets = IN_A_ROW},
        {17, 20, 130, 16, 1, DT_F32, .accumulate = true, .resets = AT_ZERO},
        {2, 9, 16, 256, 1000, DT_F32, .h0 = true},
        {1, 2, 1, 1, 2, DT_F32, .h0 = false},
        {2, 700, 24, 16, 32, DT_F32, .h0 = true},
        {1, 77, 5, 3, 32, DT_BF16, .wide = true, .resets = MANY},
        {2, 77, 48, 16, 32, DT_BF16, .h0 = true, .accumulate = true, .resets = MANY},
        {4, 33, 160, 8, 1000, DT_BF16, .h0 = true, .wide = true, .resets = AT_ZERO},
    };
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++)
        check_problem(&problems[i]);
    test_threads();
    test_chunks();
    test_carry();
    test_nan();
    test_reset_drops_nan();
    return test_end();
}

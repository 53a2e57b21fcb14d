// The ops on flat arrays against plain double-precision loops: cast, accumulate, sum_squares,
// update_control, adamw. Sizes lie on both sides of the blocks that threads share; bits with 1, 2
// and 3 threads are the same.
#include "op_fixture.h"

#include <float.h>

static const int64_t sizes[] = {0, 1, 7, 16384, 16385, 65535, 65537, 200003};
enum { N_SIZES = sizeof sizes / sizeof *sizes };

// Round to nearest even in double: bf16 has 8 significant bits, the least normal is 2^-126.
static double round_bf16(double x)
{
    int exponent;
    if (x == 0.0 || !isfinite(x))
        return x;
    frexp(x, &exponent);
    double unit = ldexp(1.0, (exponent < -125 ? -125 : exponent) - 8);
    return nearbyint(x / unit) * unit;
}

static void test_narrow(const struct dt_backend *backend, int64_t n)
{
    float *x = normal(n, 1e3, 1);
    dt_bf16 *y = guarded(n * 2);
    if (n > 6) // ties up and down, a carry into the exponent, a subnormal
        memcpy(x, (float[]){0x1.01p0f, 0x1.03p0f, -0x1.ffp3f, 0x1.8p-133f, 0.0f, 1e-40f},
               6 * sizeof(float));
    check_ok(dt_cast(backend, &(struct dt_cast_args){n, x, DT_F32, y, DT_BF16}, NULL), "cast");
    int64_t wrong = 0;
    for (int64_t i = 0; i < n; i++)
        wrong += (double)dt_bf16_to_f32(y[i]) != round_bf16((double)x[i]);
    CHECK_INT(wrong, 0);
    float *back = guarded(n * 4);
    check_ok(dt_cast(backend, &(struct dt_cast_args){n, y, DT_BF16, back, DT_F32}, NULL), "cast");
    for (int64_t i = 0; i < n; i++)
        wrong += back[i] != dt_bf16_to_f32(y[i]);
    CHECK_INT(wrong, 0);
    RELEASE(x);
    RELEASE(y);
    RELEASE(back);
}

static void test_cast_same(const struct dt_backend *backend, dt_dtype type)
{
    void *x = normal_rows(type, 1, 40001, 40001, 1.0, 4), *y = guarded(guarded_size(x));
    check_ok(dt_cast(backend, &(struct dt_cast_args){40001, x, type, y, type}, NULL), "cast");
    CHECK(same_bits(x, y), "a cast to the same type changes bits");
    RELEASE(x);
    RELEASE(y);
}

static void test_cast_special(const struct dt_backend *backend)
{
    float x[] = {NAN, INFINITY, -INFINITY, FLT_MAX, -0.0f};
    uint32_t signalling = 0x7f800001u; // its upper half alone would be infinity
    dt_bf16 y[6];
    float all[6];
    memcpy(all, x, sizeof x);
    memcpy(&all[5], &signalling, sizeof signalling);
    check_ok(dt_cast(backend, &(struct dt_cast_args){6, all, DT_F32, y, DT_BF16}, NULL), "cast");
    CHECK(isnan(dt_bf16_to_f32(y[0])) && isnan(dt_bf16_to_f32(y[5])), "NaN became a number");
    CHECK_INT(y[1], 0x7f80);
    CHECK_INT(y[2], 0xff80);
    CHECK_INT(y[3], 0x7f80); // the greatest fp32 is nearer to 2^128
    CHECK_INT(y[4], 0x8000);
}

static void test_accumulate(const struct dt_backend *backend, int64_t n, dt_dtype type)
{
    void *x = normal_rows(type, 1, n, n, 1.0, 2);
    float *y = normal(n, 1.0, 3), *before = normal(n, 1.0, 3);
    check_ok(dt_accumulate(backend, &(struct dt_accumulate_args){n, x, type, y}, NULL),
             "accumulate");
    int64_t wrong = 0;
    for (int64_t i = 0; i < n; i++)
        wrong += y[i] != (float)((double)before[i] + get(x, type, i));
    CHECK_INT(wrong, 0);
    RELEASE(x);
    RELEASE(y);
    RELEASE(before);
}

static double sum_squares(const float *x, int64_t n, int threads)
{
    struct dt_backend backend = open_cpu(threads);
    double *sum = guarded(sizeof *sum);
    struct dt_sum_squares_args args = {.n = n, .x = x, .sum = sum};
    RUN_WITH_WORKSPACE(sum_squares, &backend, &args);
    double got = *sum;
    RELEASE(sum);
    dt_backend_close(&backend);
    return got;
}

static void test_sum_squares(int64_t n)
{
    float *x = normal(n, 1.0, 5);
    double want = 0.0, one = sum_squares(x, n, 1);
    for (int64_t i = 0; i < n; i++)
        want += (double)x[i] * (double)x[i];
    CHECK_NEAR(one, want, 1e-12); // double sums: 2^-53 an addition, n below 2^18
    for (int threads = 2; threads <= 3; threads++)
        CHECK(sum_squares(x, n, threads) == one, "other bits with %d threads", threads);
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3 && n > 0; i++) {
        float kept = x[n / 2];
        x[n / 2] = bad[i];
        CHECK(!isfinite(sum_squares(x, n, 2)), "%g is lost", (double)bad[i]);
        x[n / 2] = kept;
    }
    if (n > 0) {
        x[n - 1] = 1e30f; // its square is past fp32
        CHECK_NEAR(sum_squares(x, n, 2) / ((double)x[n - 1] * (double)x[n - 1]), 1.0, 1e-12);
    }
    RELEASE(x);
}

static struct dt_update_control control_after(struct dt_update_control before, double loss,
                                              double counted, double squares)
{
    struct dt_backend backend = open_cpu(1);
    struct dt_loss_sum sum = {loss, counted};
    float lr = 0.01f;
    struct dt_update_control control = before;
    struct dt_update_control_args args = {.sum = &sum,
                                          .sum_squares = &squares,
                                          .expected = 100.0,
                                          .lr = &lr,
                                          .beta1 = 0.9f,
                                          .beta2 = 0.95f,
                                          .grad_clip = 1.0f,
                                          .control = &control};
    check_ok(dt_update_control(&backend, &args, NULL), "update_control");
    dt_backend_close(&backend);
    return control;
}

static void test_update_control(void)
{
    struct dt_update_control start = {.updates = 4, .skipped_in_a_row = 2};
    struct dt_update_control c = control_after(start, 160.0, 80.0, 4.0);
    CHECK_NEAR(c.loss, 2.0, 1e-15);
    CHECK_NEAR(c.grad_norm, 2.0 * 100.0 / 80.0, 1e-15);
    CHECK_NEAR(c.grad_scale, 1.25 / (2.5 + 1e-6), 1e-7);
    CHECK_NEAR(c.bias1, 1.0 - pow(0.9, 5.0), 1e-6);
    CHECK_NEAR(c.bias2, 1.0 - pow(0.95, 5.0), 1e-6);
    CHECK(c.lr == 0.01f && c.counted == 80.0, "lr or counted");
    CHECK(c.skip == 0 && c.updates == 5 && c.skipped_in_a_row == 0, "not counted as an update");
    c = control_after(start, 160.0, 80.0, 0.01);
    CHECK_NEAR(c.grad_scale, 1.25, 1e-7); // below the clip
}

static void test_skipped(const char *what, double loss, double counted, double squares)
{
    struct dt_update_control start = {.updates = 4, .skipped_in_a_row = 2, .bias1 = 0.5f};
    struct dt_update_control c = control_after(start, loss, counted, squares);
    CHECK(c.skip == 1, "%s: not skipped", what);
    CHECK(c.updates == 4 && c.skipped_in_a_row == 3 && c.bias1 == 0.5f, "%s: counted", what);
}

struct optimizer {
    float *weight, *m, *v;
    dt_bf16 *copy;
};

static const struct dt_update_control applied = {
    .lr = 0.02f, .grad_scale = 0.5f, .bias1 = 0.271f, .bias2 = 0.142625f};

static struct optimizer run_adamw(int64_t n, const struct dt_adamw_span *spans, int64_t n_spans,
                                  const struct dt_update_control *control, bool copy, int threads)
{
    struct dt_backend backend = open_cpu(threads);
    struct optimizer o = {normal(n, 1.0, 11), normal(n, 0.1, 12), normal(n, 0.1, 13),
                          guarded(n * 2)};
    float *grad = normal(n, 1.0, 14);
    for (int64_t i = 0; i < n; i++)
        o.v[i] = fabsf(o.v[i]);
    struct dt_adamw_args args = {.n = n,
                                 .weight = o.weight,
                                 .m = o.m,
                                 .v = o.v,
                                 .grad = grad,
                                 .copy = copy ? o.copy : NULL,
                                 .beta1 = 0.9f,
                                 .beta2 = 0.95f,
                                 .eps = 1e-8f,
                                 .n_spans = n_spans,
                                 .spans = spans,
                                 .control = control};
    check_ok(dt_adamw(&backend, &args, NULL), "adamw");
    RELEASE(grad);
    dt_backend_close(&backend);
    return o;
}

static void free_optimizer(struct optimizer o)
{
    RELEASE(o.weight);
    RELEASE(o.m);
    RELEASE(o.v);
    RELEASE(o.copy);
}

static double decay_of(const struct dt_adamw_span *spans, int64_t i)
{
    while (i >= spans->end)
        spans++;
    return (double)spans->decay;
}

// The formulas of adamw.h in double; fp32 rounds about ten times, 2^-24 each, of values near 1.
static void check_adamw(const struct optimizer *o, int64_t n, const struct dt_adamw_span *spans)
{
    float *w0 = normal(n, 1.0, 11), *m0 = normal(n, 0.1, 12), *v0 = normal(n, 0.1, 13),
          *g0 = normal(n, 1.0, 14);
    int64_t wrong = 0, wrong_copy = 0;
    for (int64_t i = 0; i < n; i++) {
        double g = (double)g0[i] * 0.5, lr = (double)applied.lr, b1 = (double)0.9f,
               b2 = (double)0.95f;
        double m = b1 * (double)m0[i] + (1.0 - b1) * g;
        double v = b2 * fabs((double)v0[i]) + (1.0 - b2) * g * g;
        double w = (double)w0[i] * (1.0 - lr * decay_of(spans, i));
        w -= lr * (m / (double)applied.bias1) / (sqrt(v / (double)applied.bias2) + (double)1e-8f);
        double tolerance = 1e-6;
        wrong += !(fabs((double)o->weight[i] - w) <= tolerance * fmax(1.0, fabs(w)));
        wrong +=
            !(fabs((double)o->m[i] - m) <= tolerance && fabs((double)o->v[i] - v) <= tolerance);
        wrong_copy += o->copy[i] != dt_f32_to_bf16(o->weight[i]);
    }
    CHECK_INT(wrong, 0);
    CHECK_INT(wrong_copy, 0);
    RELEASE(w0);
    RELEASE(m0);
    RELEASE(v0);
    RELEASE(g0);
}

static void test_adamw(int64_t n)
{
    // spans end inside of blocks, at their borders, and after one element
    struct dt_adamw_span spans[] = {
        {1, 0.1f}, {16384, 0.0f}, {16390, 0.3f}, {70000, 0.0f}, {200003, 0.1f}};
    struct optimizer one = run_adamw(n, spans, 5, &applied, true, 1);
    check_adamw(&one, n, spans);
    for (int threads = 2; threads <= 3; threads++) {
        struct optimizer o = run_adamw(n, spans, 5, &applied, true, threads);
        CHECK(same_bits(one.weight, o.weight) && same_bits(one.m, o.m) && same_bits(one.v, o.v) &&
                  same_bits(one.copy, o.copy),
              "other bits with %d threads", threads);
        free_optimizer(o);
    }
    struct optimizer plain = run_adamw(n, spans, 5, &applied, false, 2);
    CHECK(same_bits(one.weight, plain.weight), "other weights without a copy");
    free_optimizer(plain);
    free_optimizer(one);
}

static void test_adamw_skip(void)
{
    struct dt_adamw_span span = {100, 0.1f};
    struct dt_update_control skip = applied;
    float *weight = normal(100, 1.0, 11), *m = normal(100, 0.1, 12);
    skip.skip = 1;
    skip.grad_scale = NAN;
    struct optimizer o = run_adamw(100, &span, 1, &skip, true, 2);
    CHECK(same_bits(o.weight, weight) && same_bits(o.m, m), "a skipped step changes something");
    RELEASE(weight);
    RELEASE(m);
    free_optimizer(o);
}

static void test_short_spans(void)
{
    struct dt_backend backend = open_cpu(1);
    float x[10] = {0};
    struct dt_adamw_span span = {9, 0.0f};
    struct dt_adamw_args args = {.n = 10,
                                 .weight = x,
                                 .m = x,
                                 .v = x,
                                 .grad = x,
                                 .beta1 = 0.9f,
                                 .beta2 = 0.9f,
                                 .eps = 1e-8f,
                                 .n_spans = 1,
                                 .spans = &span,
                                 .control = &applied};
    CHECK_INT(dt_adamw(&backend, &args, NULL), DT_MACHINE);
    CHECK(strstr(dt_error_current()->message, "9") != NULL, "the message lacks the span's end");
    dt_error_clear();
    dt_backend_close(&backend);
}

// Each kind after three rounds, from the same starts in double: three roundings of 1 and less.
static void test_spin(const struct dt_backend *backend, int64_t n)
{
    for (int kind = DT_SPIN_EXP; kind <= DT_SPIN_FMA; kind++) {
        float *y = guarded(n * 4);
        struct dt_spin_args args = {
            .kind = (enum dt_spin_kind)kind, .n = n, .rounds = 3, .a = 0.75f, .b = 0.125f, .y = y};
        check_ok(dt_spin(backend, &args, NULL), "spin");
        int64_t wrong = 0;
        for (int64_t i = 0; i < n; i++) {
            double x = 0.5 + (double)(i % DT_SPIN_STARTS) / (2 * DT_SPIN_STARTS);
            for (int k = 0; k < 3; k++)
                x = kind == DT_SPIN_EXP    ? exp(-x)
                    : kind == DT_SPIN_EXP2 ? exp2(-x)
                                           : x * 0.75 + 0.125;
            wrong += !(fabs((double)y[i] - x) <= 3 * 0x1p-23);
        }
        CHECK_INT(wrong, 0);
        RELEASE(y);
    }
}

int main(void)
{
    struct dt_backend backend = open_cpu(2);
    for (int i = 0; i < N_SIZES; i++) {
        test_narrow(&backend, sizes[i]);
        test_accumulate(&backend, sizes[i], DT_F32);
        test_accumulate(&backend, sizes[i], DT_BF16);
        test_sum_squares(sizes[i]);
        test_adamw(sizes[i]);
        test_spin(&backend, sizes[i]);
    }
    test_cast_same(&backend, DT_F32);
    test_cast_same(&backend, DT_BF16);
    test_cast_special(&backend);
    test_update_control();
    test_skipped("NaN loss", NAN, 80.0, 4.0);
    test_skipped("infinite loss", INFINITY, 80.0, 4.0);
    test_skipped("NaN norm", 160.0, 80.0, NAN);
    test_skipped("infinite norm", 160.0, 80.0, INFINITY);
    test_skipped("nothing counted", 0.0, 0.0, 0.0);
    test_adamw_skip();
    test_short_spans();
    dt_backend_close(&backend);
    return test_end();
}

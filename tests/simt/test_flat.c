// The ops over flat arrays (cast, accumulate, sum_squares, update_control, adamw): CUDA's form on
// the host against the CPU's, at counts on both sides of a thread's and a block's share, aligned
// and one element off, in every order of threads.
#include "simt_backend.h"

static const int64_t counts[] = {1, 3, 4, 7, 8, 9, 1023, 1024, 1025, 2047, 2048, 2053, 5003};
enum { COUNTS = sizeof counts / sizeof *counts };

// Elements `from` on: 0 is aligned to 16 bytes, 1 is not.
static void *at(void *x, dt_dtype type, int64_t from)
{
    return (char *)x + from * dt_dtype_size(type);
}

// Both round the same numbers in the same way: the same bits.
static void test_cast(int64_t n, int64_t off, dt_dtype x_type, dt_dtype y_type)
{
    struct dt_backend cpu = open_cpu(1), simt = open_simt();
    void *x = normal_rows(x_type, 1, n + off, n + off, 100.0, 1);
    void *want = guarded((n + off) * dt_dtype_size(y_type)),
         *got = guarded((n + off) * dt_dtype_size(y_type));
    struct dt_cast_args args = {.n = n, .x_type = x_type, .y_type = y_type};
    if (n > 0)
        set(x, x_type, off, INFINITY);
    args.x = at(x, x_type, off);
    args.y = at(want, y_type, off);
    check_ok(dt_cast(&cpu, &args, NULL), "cast");
    args.y = at(got, y_type, off);
    check_ok(dt_cast(&simt, &args, NULL), "cast");
    CHECK(same_bits(got, want), "cast of %lld at %lld, %s to %s", (long long)n, (long long)off,
          dt_dtype_name(x_type), dt_dtype_name(y_type));
    RELEASE(x);
    RELEASE(want);
    RELEASE(got);
    dt_backend_close(&cpu);
    dt_backend_close(&simt);
}

static void test_accumulate(int64_t n, int64_t off, dt_dtype type)
{
    struct dt_backend cpu = open_cpu(1), simt = open_simt();
    void *x = normal_rows(type, 1, n + off, n + off, 1.0, 2);
    float *want = normal(n + off, 1.0, 3), *got = normal(n + off, 1.0, 3);
    struct dt_accumulate_args args = {
        .n = n, .x = at(x, type, off), .x_type = type, .y = want + off};
    check_ok(dt_accumulate(&cpu, &args, NULL), "accumulate");
    args.y = got + off;
    check_ok(dt_accumulate(&simt, &args, NULL), "accumulate");
    CHECK(same_bits(got, want), "accumulate of %lld at %lld, %s", (long long)n, (long long)off,
          dt_dtype_name(type));
    RELEASE(x);
    RELEASE(want);
    RELEASE(got);
    dt_backend_close(&cpu);
    dt_backend_close(&simt);
}

static double sum_squares(const struct dt_backend *backend, const float *x, int64_t n)
{
    double sum = -1.0;
    struct dt_sum_squares_args args = {.n = n, .x = x, .sum = &sum};
    RUN_WITH_WORKSPACE(sum_squares, backend, &args);
    return sum;
}

// Sums of squares in double in another order than the CPU's: 70,000 roundings of 2^-53 at most. The
// same bits in every order of threads, and wherever the array lies.
static void test_sum_squares(int64_t n)
{
    struct dt_backend cpu = open_cpu(1), simt = open_simt();
    float *x = normal(n + 1, 1.0, 4), *moved = normal(n + 1, 1.0, 4);
    memmove(moved + 1, moved, (size_t)n * sizeof *moved);
    simt_set_order(SIMT_ASCENDING, 1);
    double want = sum_squares(&cpu, x, n), first = sum_squares(&simt, x, n);
    CHECK_NEAR(first / (want + (n == 0)), n == 0 ? 0.0 : 1.0, 70000 * 0x1p-53);
    for (int order = 0; order < SIMT_ORDERS; order++) {
        simt_set_order((enum simt_order)order, 1);
        CHECK(sum_squares(&simt, x, n) == first, "other bits, order %s",
              simt_order_name((enum simt_order)order));
        CHECK(sum_squares(&simt, moved + 1, n) == first, "other bits where not aligned");
    }
    if (n > 0) {
        x[n / 2] = INFINITY;
        CHECK(!isfinite(sum_squares(&simt, x, n)), "an infinity was lost");
    }
    RELEASE(x);
    RELEASE(moved);
    dt_backend_close(&cpu);
    dt_backend_close(&simt);
}

// More blocks than the second launch has threads. Of ones, so every sum is exact.
static void test_many_blocks(void)
{
    struct dt_backend simt = open_simt();
    int64_t n = 513 * (int64_t)DT_NORM_BLOCK + 1;
    float *x = guarded(n * 4);
    for (int64_t i = 0; i < n; i++)
        x[i] = 1.0f;
    CHECK(sum_squares(&simt, x, n) == (double)n, "of %lld ones", (long long)n);
    RELEASE(x);
    dt_backend_close(&simt);
}

// One or two roundings of double more or less between two libraries' expm1 and log.
static void check_control(const struct dt_update_control *got, const struct dt_update_control *want)
{
    CHECK(isfinite(want->loss) ? fabs(got->loss - want->loss) <= 1e-14 : !isfinite(got->loss),
          "loss %g, not %g", got->loss, want->loss);
    CHECK(isfinite(want->grad_norm) ? fabs(got->grad_norm - want->grad_norm) <= 1e-14
                                    : !isfinite(got->grad_norm),
          "grad_norm %g, not %g", got->grad_norm, want->grad_norm);
    CHECK_INT(got->skip, want->skip);
    CHECK_INT(got->updates, want->updates);
    CHECK_INT(got->skipped_in_a_row, want->skipped_in_a_row);
    CHECK(got->counted == want->counted && got->lr == want->lr, "counted or lr");
    CHECK_NEAR(got->bias1, want->bias1, 0x1p-23);
    CHECK_NEAR(got->bias2, want->bias2, 0x1p-23);
    if (!want->skip)
        CHECK_NEAR(got->grad_scale, want->grad_scale, 0x1p-23);
}

static void test_update_control(double loss, double counted, double squares, float clip)
{
    struct dt_backend cpu = open_cpu(1), simt = open_simt();
    struct dt_loss_sum sum = {loss, counted};
    float lr = 1e-3f;
    struct dt_update_control want = {.updates = 6, .skipped_in_a_row = 2, .bias1 = 0.5f},
                             got = want;
    struct dt_update_control_args args = {.sum = &sum,
                                          .sum_squares = &squares,
                                          .expected = 100.0,
                                          .lr = &lr,
                                          .beta1 = 0.9f,
                                          .beta2 = 0.95f,
                                          .grad_clip = clip,
                                          .control = &want};
    check_ok(dt_update_control(&cpu, &args, NULL), "update_control");
    args.control = &got;
    check_ok(dt_update_control(&simt, &args, NULL), "update_control");
    check_control(&got, &want);
    dt_backend_close(&cpu);
    dt_backend_close(&simt);
}

struct adamw {
    float *weight, *m, *v, *grad;
    dt_bf16 *copy;
};

static struct adamw run_adamw(const struct dt_backend *backend, int64_t n, int64_t off,
                              int with_copy, int skip)
{
    int64_t all = n + off;
    struct adamw a = {normal(all, 1.0, 5), normal(all, 0.1, 6), normal(all, 0.1, 7),
                      normal(all, 1.0, 8), normal_rows(DT_BF16, 1, all, all, 1.0, 9)};
    for (int64_t i = 0; i < all; i++)
        a.v[i] = fabsf(a.v[i]);
    // a span that ends inside a thread's elements, one of a single element, one over blocks
    struct dt_adamw_span spans[] = {{n / 3, 0.1f}, {n / 3 + 1, 0.0f}, {n - n / 5, 0.3f}, {n, 0.0f}};
    struct dt_update_control control = {
        .lr = 0.01f, .grad_scale = 0.7f, .bias1 = 0.3f, .bias2 = 0.1f, .skip = skip};
    struct dt_adamw_args args = {.n = n,
                                 .weight = a.weight + off,
                                 .m = a.m + off,
                                 .v = a.v + off,
                                 .grad = a.grad + off,
                                 .copy = with_copy ? a.copy + off : NULL,
                                 .beta1 = 0.9f,
                                 .beta2 = 0.95f,
                                 .eps = 1e-8f,
                                 .n_spans = 4,
                                 .spans = spans,
                                 .control = &control};
    check_ok(dt_adamw(backend, &args, NULL), "adamw");
    return a;
}

static void free_adamw(struct adamw *a)
{
    release(a->weight, "weight");
    release(a->m, "m");
    release(a->v, "v");
    release(a->grad, "grad");
    release(a->copy, "copy");
}

// The CPU contracts to FMA and this form does not: a few roundings of values up to 10. A weight
// that lies near the middle of two bf16 may then round to the other.
static void test_adamw(int64_t n, int64_t off, int with_copy, int skip)
{
    struct dt_backend cpu = open_cpu(1), simt = open_simt();
    struct adamw want = run_adamw(&cpu, n, off, with_copy, skip),
                 got = run_adamw(&simt, n, off, with_copy, skip);
    double tolerance = skip ? 0.0 : 4 * 0x1p-23;
    CHECK(!differences(got.weight, want.weight, DT_F32, 1, n + off, 0, tolerance) &&
              !differences(got.m, want.m, DT_F32, 1, n + off, 0, tolerance) &&
              !differences(got.v, want.v, DT_F32, 1, n + off, 0, tolerance) &&
              !differences(got.copy, want.copy, DT_BF16, 1, n + off, 0, 0x1p-7),
          "n %lld at %lld, copy %d, skip %d", (long long)n, (long long)off, with_copy, skip);
    free_adamw(&want);
    free_adamw(&got);
    dt_backend_close(&cpu);
    dt_backend_close(&simt);
}

// Every round shrinks a difference by half or more, so what stays is two roundings of the last
// ones: 2^-22. With no round the starts are the same bits.
static void test_spin(enum dt_spin_kind kind, int64_t n, int64_t rounds)
{
    struct dt_backend cpu = open_cpu(1), simt = open_simt();
    float *want = guarded(n * 4), *got = guarded(n * 4);
    struct dt_spin_args args = {
        .kind = kind, .n = n, .rounds = rounds, .a = 0.5f, .b = 0.25f, .y = want};
    check_ok(dt_spin(&cpu, &args, NULL), "spin");
    args.y = got;
    check_ok(dt_spin(&simt, &args, NULL), "spin");
    double tolerance = rounds == 0 ? 0.0 : 0x1p-22;
    CHECK(!differences(got, want, DT_F32, 1, n, n, tolerance), "spin %d of %lld, %lld rounds", kind,
          (long long)n, (long long)rounds);
    RELEASE(want);
    RELEASE(got);
    dt_backend_close(&cpu);
    dt_backend_close(&simt);
}

static void test_counts(int64_t n, int64_t off)
{
    static const dt_dtype types[] = {DT_F32, DT_BF16};
    for (int i = 0; i < 2; i++) {
        test_accumulate(n, off, types[i]);
        for (int j = 0; j < 2; j++)
            test_cast(n, off, types[i], types[j]);
    }
    if (n >= 3)
        for (int k = 0; k < 3; k++)
            test_adamw(n, off, k != 1, k == 2);
}

int main(void)
{
    for (int order = 0; order < SIMT_ORDERS; order++) {
        simt_set_order((enum simt_order)order, 11);
        for (int i = 0; i < COUNTS; i++)
            for (int64_t off = 0; off < 2; off++)
                test_counts(counts[i], off);
    }
    test_cast(0, 0, DT_F32, DT_BF16);
    for (int kind = DT_SPIN_EXP; kind <= DT_SPIN_FMA; kind++)
        for (int64_t rounds = 0; rounds < 12; rounds += 3)
            for (int i = 0; i < COUNTS; i++)
                test_spin((enum dt_spin_kind)kind, counts[i], rounds);
    static const int64_t squares[] = {0, 1, 5, 2047, DT_NORM_BLOCK, DT_NORM_BLOCK + 3};
    for (int i = 0; i < 6; i++)
        test_sum_squares(squares[i]);
    test_many_blocks();
    test_update_control(250.0, 90.0, 16.0, 1.0f);
    test_update_control(250.0, 100.0, 0.01, 1.0f);
    test_update_control(250.0, 100.0, 16.0, 0.0f);
    test_update_control(0.0, 0.0, 1.0, 1.0f);
    test_update_control((double)NAN, 90.0, 1.0, 1.0f);
    test_update_control(250.0, 90.0, (double)INFINITY, 1.0f);
    return test_end();
}

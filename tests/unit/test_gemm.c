// dt_gemm against a double-precision product: every transpose, dtype and accumulate at awkward
// sizes, with strides wider than rows; the same bits with 1, 2, 3 and 5 threads; NaN and infinity
// pass through. An argument is set as ONEDNN_MAX_CPU_ISA: AVX2 takes bf16's instructions away, so
// operands are widened; below AVX-512 the products are dtrain's own.
#include "op_fixture.h"

struct problem {
    int64_t m, n, k;
    dt_dtype type, c_type;
    bool trans_a, trans_b, accumulate;
};

static struct dt_gemm_args make_args(const struct problem *p)
{
    int64_t a_rows = p->trans_a ? p->k : p->m, a_cols = p->trans_a ? p->m : p->k;
    int64_t b_rows = p->trans_b ? p->n : p->k, b_cols = p->trans_b ? p->k : p->n;
    return (struct dt_gemm_args){
        .a = normal_view(p->type, a_rows, a_cols, a_cols + 3, 1.0, 1),
        .b = normal_view(p->type, b_rows, b_cols, b_cols + 8, 1.0, 2),
        .c = {.rows = p->m, .cols = p->n, .stride = p->n + 5, .dtype = p->c_type},
        .trans_a = p->trans_a,
        .trans_b = p->trans_b,
        .accumulate = p->accumulate,
    };
}

// Fresh C is NaN: where it is not accumulated to, none of that may come through.
static void *run(struct dt_gemm_args *args, int threads)
{
    struct dt_backend backend = open_cpu(threads);
    const struct dt_view *c = &args->c;
    args->c = args->accumulate ? normal_view(c->dtype, c->rows, c->cols, c->stride, 1.0, 3)
                               : fresh_view(c->dtype, c->rows, c->cols, c->stride);
    RUN_WITH_WORKSPACE(gemm, &backend, args);
    dt_backend_close(&backend);
    return args->c.data;
}

static void free_operands(struct dt_gemm_args *args)
{
    release(args->a.data, "a");
    release(args->b.data, "b");
}

// The value of an element and Σ |a b| + |c|, which rounding errors are relative to.
static double product(const struct dt_gemm_args *g, int64_t i, int64_t j, double c,
                      double *magnitude)
{
    double sum = c;
    *magnitude = fabs(c);
    for (int64_t l = 0; l < dt_gemm_k(g); l++) {
        double a = g->trans_a ? get_at(&g->a, l, i) : get_at(&g->a, i, l);
        double b = g->trans_b ? get_at(&g->b, j, l) : get_at(&g->b, l, j);
        sum += a * b;
        *magnitude += fabs(a * b);
    }
    return sum;
}

// fp32 accumulation: each of k additions rounds by 2^-24 of the partial sum; errors add like a
// random walk, so sqrt(k) times that, with a factor 4 to spare. The result is rounded to C's type
// (twice, where it is staged in fp32 or added to C in bf16).
static void check_product(const struct dt_gemm_args *g, const void *c, const void *before,
                          const char *what)
{
    int64_t wrong = 0;
    for (int64_t i = 0; i < g->c.rows; i++)
        for (int64_t j = 0; j < g->c.cols; j++) {
            double magnitude,
                start = g->accumulate ? get(before, g->c.dtype, i * g->c.stride + j) : 0.0;
            double want = product(g, i, j, start, &magnitude),
                   got = get(c, g->c.dtype, i * g->c.stride + j);
            double tolerance = 4.0 * sqrt((double)dt_gemm_k(g)) * 0x1p-24 * magnitude +
                               2.0 * rounding(g->c.dtype) * fabs(want);
            wrong += !(fabs(got - want) <= tolerance);
        }
    CHECK(wrong == 0, "%s: %lld of %lld elements are wrong", what, (long long)wrong,
          (long long)(g->c.rows * g->c.cols));
    CHECK(gaps_fresh(c, g->c.dtype, g->c.rows, g->c.cols, g->c.stride),
          "%s: wrote between the rows of C", what);
}

static void test_problem(const struct problem *p)
{
    char what[160];
    snprintf(what, sizeof what, "m %lld n %lld k %lld %s -> %s trans %d %d accumulate %d",
             (long long)p->m, (long long)p->n, (long long)p->k, dt_dtype_name(p->type),
             dt_dtype_name(p->c_type), p->trans_a, p->trans_b, p->accumulate);
    struct dt_gemm_args args = make_args(p);
    void *before = normal_rows(p->c_type, p->m, p->n, args.c.stride, 1.0, 3);
    void *one = run(&args, 1);
    check_product(&args, one, before, what);
    static const int threads[] = {2, 3, 5};
    for (size_t i = 0; i < sizeof threads / sizeof *threads; i++) {
        void *c = run(&args, threads[i]);
        CHECK(same_bits(one, c), "%s: other bits with %d threads", what, threads[i]);
        release(c, "c");
    }
    release(one, "c");
    release(before, "before");
    free_operands(&args);
}

static void test_forms(int64_t m, int64_t n, int64_t k)
{
    static const dt_dtype type[3][2] = {{DT_F32, DT_F32}, {DT_BF16, DT_BF16}, {DT_BF16, DT_F32}};
    for (int t = 0; t < 3; t++)
        for (int i = 0; i < 8; i++)
            test_problem(&(struct problem){m, n, k, type[t][0], type[t][1], i & 1, i & 2, i & 4});
}

// The forms that a linear layer takes: y = x Wᵀ, dx = dy W (accumulated), dW = dyᵀ x (accumulated,
// fp32).
static void test_layer(int64_t tokens, int64_t out, int64_t in)
{
    for (int t = 0; t < 2; t++) {
        dt_dtype type = t ? DT_BF16 : DT_F32;
        test_problem(&(struct problem){tokens, out, in, type, type, false, true, false});
        test_problem(&(struct problem){tokens, in, out, type, type, false, false, true});
        test_problem(&(struct problem){out, in, tokens, type, DT_F32, true, false, true});
    }
}

static void test_not_finite(dt_dtype type, float bad)
{
    struct problem p = {70, 40, 33, type, DT_F32, false, true, false};
    struct dt_gemm_args args = make_args(&p);
    set(args.a.data, type, 50 * args.a.stride + 20, (double)bad);
    float *c = run(&args, 2);
    int passed = 1, spared = 1;
    for (int64_t j = 0; j < p.n; j++) {
        passed &= !isfinite(c[50 * args.c.stride + j]);
        spared &= isfinite(c[49 * args.c.stride + j]) && isfinite(c[51 * args.c.stride + j]);
    }
    CHECK(passed, "%g in a row of A (%s) does not reach C", (double)bad, dt_dtype_name(type));
    CHECK(spared, "%g in a row of A (%s) reaches other rows", (double)bad, dt_dtype_name(type));
    RELEASE(c);
    free_operands(&args);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        setenv("ONEDNN_MAX_CPU_ISA", argv[1], 1);
    struct dt_backend backend = open_cpu(1);
    struct dt_device_info info;
    check_ok(backend.table->info(backend.device, &info), "info");
    CHECK(argc == 1 || !info.bf16, "bf16 instructions with ONEDNN_MAX_CPU_ISA=%s",
          argc > 1 ? argv[1] : "");
    bool avx2 = strncmp(info.features, "avx2,", 5) == 0;
    CHECK(info.bf16_faster == (info.bf16 || avx2), "auto takes %s with %s",
          info.bf16_faster ? "bf16" : "fp32", info.features);
    dt_backend_close(&backend);

    static const int64_t size[][3] = {{1, 1, 1},    {1, 7, 5},      {3, 1, 2},     {17, 33, 65},
                                      {64, 48, 16}, {131, 101, 77}, {1, 530, 260}, {270, 16, 140}};
    for (size_t i = 0; i < sizeof size / sizeof *size; i++)
        test_forms(size[i][0], size[i][1], size[i][2]);
    test_layer(1100, 48, 96); // more than one tile of rows, more than one block of widened k
    test_layer(520, 16, 70);
    test_layer(90, 600, 24);
    test_layer(4000, 16, 300); // rows of a tile and k of a weight gradient in several blocks
    test_layer(2567, 70, 9);   // parts of k that are not of one size
    for (int t = 0; t < 2; t++) {
        test_not_finite(t ? DT_BF16 : DT_F32, NAN);
        test_not_finite(t ? DT_BF16 : DT_F32, INFINITY);
    }
    return test_end();
}

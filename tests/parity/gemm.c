// gemm: every transpose, dtype and accumulate at awkward sizes, with strides larger than rows;
// batches of products; the products of a linear layer. What is not finite passes through and stays
// in its row. Forward, rows have the same bits when they are computed in pieces.
#include "parity.h"

struct product {
    int64_t m, n, k;
    dt_dtype type, c_type;
    bool trans_a, trans_b, accumulate;
    int64_t gap;   // elements between the end of a row and the next row
    int shifted;   // 1: A, 2: B begins one element after a multiple of 16 bytes
    int64_t batch; // 0: a single product without a batch
    bool share_b;  // one B for all products of a batch
};

// Computes an element of C, and Σ |a b| + |c|, to which rounding errors are relative.
static double element(const struct dt_gemm_args *g, int64_t i, int64_t j, double *magnitude)
{
    double sum = g->accumulate ? get_at(&g->c, i, j) : 0.0;
    *magnitude = fabs(sum);
    int64_t a_row = g->trans_a ? 1 : g->a.stride, a_col = g->trans_a ? g->a.stride : 1;
    int64_t b_row = g->trans_b ? 1 : g->b.stride, b_col = g->trans_b ? g->b.stride : 1;
    for (int64_t l = 0, k = dt_gemm_k(g); l < k; l++) {
        double a = get(g->a.data, g->a.dtype, i * a_row + l * a_col);
        double b = get(g->b.data, g->b.dtype, l * b_row + j * b_col);
        sum += a * b;
        *magnitude += fabs(a * b);
    }
    if (g->a.dtype != DT_I8)
        return sum;
    double scale = (double)(g->a_scale[i] * g->b_scale[j]);
    *magnitude *= scale;
    return sum * scale;
}

static double *magnitudes; // those of the case's elements, if it needs them

// Computes product p of a batch. Writes its C if `write` is set, and its magnitudes into `of`
// [batch, m, n] unless that is NULL.
static void multiply(const struct dt_gemm_args *batch, int64_t p, bool write, double *of)
{
    double unused;
    struct dt_gemm_args one = dt_gemm_product(batch, p);
    for (int64_t i = 0; i < one.c.rows; i++)
        for (int64_t j = 0; j < one.c.cols; j++) {
            double *magnitude = of ? &of[(p * one.c.rows + i) * one.c.cols + j] : &unused;
            double value = element(&one, i, j, magnitude);
            if (write)
                set_at(&one.c, i, j, value);
        }
}

REFERENCE(gemm)
{
    for (int64_t p = 0; p < dt_gemm_batch(a); p++)
        multiply(a, p, true, magnitudes);
    return DT_OK;
}

static struct dt_gemm_args make_args(const struct product *s)
{
    int64_t a_rows = s->trans_a ? s->k : s->m, a_cols = s->trans_a ? s->m : s->k;
    int64_t b_rows = s->trans_b ? s->n : s->k, b_cols = s->trans_b ? s->k : s->n;
    int64_t c_stride = s->n + 3 * s->gap, batch = s->batch > 0 ? s->batch : 1;
    struct dt_gemm_args args = {
        .a = normal_view(s->type, batch * a_rows, a_cols, a_cols + s->gap, 1.0, 1),
        .b = normal_view(s->type, (s->share_b ? 1 : batch) * b_rows, b_cols, b_cols + 2 * s->gap,
                         1.0, 2),
        .c = s->accumulate ? normal_view(s->c_type, batch * s->m, s->n, c_stride, 1.0, 3)
                           : fresh_view(s->c_type, batch * s->m, s->n, c_stride),
        .trans_a = s->trans_a,
        .trans_b = s->trans_b,
        .accumulate = s->accumulate,
        .batch = s->batch};
    args.a_step = a_rows * args.a.stride, args.b_step = s->share_b ? 0 : b_rows * args.b.stride;
    args.c_step = s->m * c_stride;
    args.a.rows = a_rows, args.b.rows = b_rows, args.c.rows = s->m;
    struct dt_view *view = s->shifted == 1 ? &args.a : &args.b;
    if (s->shifted) {
        void *wider = normal_rows(s->type, view->rows, view->stride, view->stride + 8, 1.0, 4);
        view->data = (char *)wider + dt_dtype_size(s->type);
        view->stride += 8;
    }
    return args;
}

static void run(struct parity *p, struct dt_gemm_args *a, double each, const double *floors,
                double norm)
{
    PARITY(
        p, gemm, a,
        OUT(c, .rows = dt_gemm_batch(a) * a->c.rows, .each = each, .floors = floors, .norm = norm));
}

// fp32 accumulation: each of k additions rounds by 2^-24 of the partial sum, and errors add like a
// random walk: sqrt(k) times that, with a factor 4 to spare for each backend. In the norm errors
// are as large as the sums, which grow as sqrt(k). Storage rounds twice if C is staged or added to.
static void compare(struct parity *p, const struct product *s)
{
    if (!parity_case(p,
                     "gemm: m %lld n %lld k %lld gap %lld, %s -> %s, trans %d %d%s, shifted %d, "
                     "batch %lld%s",
                     (long long)s->m, (long long)s->n, (long long)s->k, (long long)s->gap,
                     dt_dtype_name(s->type), dt_dtype_name(s->c_type), s->trans_a, s->trans_b,
                     s->accumulate ? " +=" : "", s->shifted, (long long)s->batch,
                     s->share_b ? " of one B" : ""))
        return;
    struct dt_gemm_args a = make_args(s);
    double sums = 0x1p-21 * sqrt((double)s->k);
    if (p->model) {
        run(p, &a, 0.0, NULL, sums);
        return;
    }
    magnitudes = zeros(dt_gemm_batch(&a) * s->m * s->n);
    for (int64_t i = 0; i < dt_gemm_batch(&a) && !p->is_cpu; i++)
        multiply(&a, i, false, magnitudes);
    run(p, &a, (p->is_cpu ? 4.0 : 8.0) * sqrt((double)s->k) * 0x1p-24, magnitudes, 0.0);
    magnitudes = NULL;
}

static void compare_forms(struct parity *p, int64_t m, int64_t n, int64_t k)
{
    static const dt_dtype type[3][2] = {{DT_F32, DT_F32}, {DT_BF16, DT_BF16}, {DT_BF16, DT_F32}};
    for (int t = 0; t < 3; t++) // even gaps keep vectors aligned on a device, odd ones do not
        for (int i = 0; i < (p->is_cpu ? 8 : 16); i++)
            compare(p, &(struct product){m, n, k, type[t][0], type[t][1], i & 1, i & 2, i & 4,
                                         i & 8 ? 8 : 3, .shifted = 0});
}

// Integer sums are exact, so only the scales and the storage round.
static void compare_int8(struct parity *p, int64_t m, int64_t n, int64_t k, dt_dtype c_type)
{
    if (!p->is_cpu || !parity_case(p, "gemm: m %lld n %lld k %lld, int8 -> %s", (long long)m,
                                   (long long)n, (long long)k, dt_dtype_name(c_type)))
        return;
    struct dt_gemm_args a = {.a = normal_view(DT_I8, m, k, k + 3, 50.0, 1),
                             .b = normal_view(DT_I8, n, k, k + 5, 50.0, 2),
                             .c = fresh_view(c_type, m, n, n + 7),
                             .trans_b = true,
                             .a_scale = normal_rows(DT_F32, 1, m, m, 1.0, 3),
                             .b_scale = normal_rows(DT_F32, 1, n, n, 1.0, 4)};
    set(a.a.data, DT_I8, 0, -127);
    PARITY(p, gemm, &a, OUT(c, .each = 0x1p-21));
}

// The products of a sequence's chunks: all operands separate, or with a shared B.
static void compare_batches(struct parity *p, dt_dtype type)
{
    for (int i = 0; i < 16; i++)
        compare(p, &(struct product){13, 24, 40, type, i & 8 ? DT_F32 : type, i & 1, i & 2, i & 4,
                                     i % 3 ? 8 : 3, 0, 1 + i % 7, i % 5 == 1});
}

// A linear layer: y = x Wᵀ, dx = dy W and dW = dyᵀ x (fp32); dx and dW are also added to existing
// values.
static void compare_layer(struct parity *p, int64_t rows, int64_t out, int64_t in, bool head,
                          dt_dtype type)
{
    int64_t gap = p->model ? 0 : 8;
    for (int add = 0; add < 2; add++) {
        if (!add)
            compare(p, &(struct product){rows, out, in, type, head ? DT_F32 : type, 0, 1, 0, gap,
                                         .shifted = 0});
        compare(p, &(struct product){rows, in, out, type, type, 0, 0, add, gap, .shifted = 0});
        compare(p, &(struct product){out, in, rows, type, DT_F32, 1, 0, add, gap, .shifted = 0});
    }
}

static void check_not_finite(struct parity *p, dt_dtype type, float bad)
{
    const struct product s = {70, 40, 33, type, DT_F32, false, true, false, 3, .shifted = 0};
    if (!parity_case(p, "gemm: %g in a row of A, %s", (double)bad, dt_dtype_name(type)))
        return;
    struct dt_gemm_args a = make_args(&s);
    bool passed = true, spared = true;
    set(a.a.data, type, 50 * a.a.stride + 20, (double)bad);
    p->run_only = true;
    run(p, &a, 0.0, NULL, 0.0);
    p->run_only = false;
    for (int64_t j = 0; j < s.n; j++) {
        passed &= !isfinite(get_at(&a.c, 50, j));
        spared &= isfinite(get_at(&a.c, 49, j)) && isfinite(get_at(&a.c, 51, j));
    }
    CHECK(passed, "%s: it does not reach C", p->text);
    CHECK(spared, "%s: it reaches other rows", p->text);
}

// Computes columns [j, j + n) of `rows` rows of A from row i on as a product of its own, into `c`.
static void multiply_piece(const struct dt_backend *cpu, const struct dt_gemm_args *whole,
                           int64_t i, int64_t rows, int64_t j, int64_t n, struct dt_view c)
{
    struct dt_gemm_args piece = *whole;
    piece.a = dt_view_rows(whole->a, i, i + rows);
    piece.b = dt_view_rows(whole->b, j, j + n);
    piece.c = c;
    RUN_WITH_WORKSPACE(gemm, cpu, &piece);
}

// Forward, the bits of an element do not depend on what else is computed: m rows at once have the
// bits of pieces of any size, at any place, by any number of threads.
static void check_pieces(struct parity *p, dt_dtype type, dt_dtype c_type, int64_t m, bool play)
{
    static const int64_t sizes[] = {1, 3, 7, 50, 64, 601};
    const struct product s = {m, 70, 1057, type, c_type, false, true, false, 8, .shifted = 0};
    if (!p->is_cpu ||
        !parity_case(p, "gemm: %lld rows in pieces, %s -> %s%s", (long long)m, dt_dtype_name(type),
                     dt_dtype_name(c_type), play ? ", play" : ""))
        return;
    struct dt_gemm_args whole = make_args(&s);
    struct dt_view c = fresh_view(c_type, m, s.n, s.n + 5);
    size_t bytes = (size_t)s.n * (size_t)dt_dtype_size(c_type);
    whole.play = play;
    multiply_piece(&p->tested[0], &whole, 0, m, 0, s.n, whole.c);
    for (size_t size = 0; size < sizeof sizes / sizeof *sizes; size++) {
        const struct dt_backend *cpu = &p->tested[size % (size_t)p->runs];
        int64_t differ = 0, left = sizes[size] % s.n;
        for (int64_t i = 0, rows; i < m; i += rows) {
            rows = sizes[size] < m - i ? sizes[size] : m - i;
            multiply_piece(cpu, &whole, i, rows, 0, left, dt_view_block(c, i, 0, rows, left));
            multiply_piece(cpu, &whole, i, rows, left, s.n - left,
                           dt_view_block(c, i, left, rows, s.n - left));
        }
        for (int64_t i = 0; i < m; i++)
            differ += memcmp(dt_view_at(&c, i, 0), dt_view_at(&whole.c, i, 0), bytes) != 0;
        CHECK(differ == 0, "%s: %lld rows differ in pieces of %lld", p->text, (long long)differ,
              (long long)sizes[size]);
    }
}

// Checks what the CPU reports of its instructions, with and without those that --isa removed.
static void check_features(struct parity *p)
{
    const char *isa = getenv("DTRAIN_MAX_ISA");
    struct dt_device_info info;
    if (!p->is_cpu || !parity_case(p, "gemm: features of the CPU"))
        return;
    CHECK_OK(dt_backend_info(&p->tested[0], &info));
    CHECK(!isa || strstr(isa, "bf16") || !info.bf16, "bf16 instructions with DTRAIN_MAX_ISA=%s",
          isa ? isa : "");
    bool avx2 = strcmp(info.features, "avx2") == 0;
    CHECK(info.bf16_faster == (info.bf16 || avx2), "auto uses %s with %s",
          info.bf16_faster ? "bf16" : "fp32", info.features);
}

void parity_gemm(struct parity *p)
{
    static const int64_t sizes[][3] = {{1, 1, 1},    {1, 7, 5},      {3, 1, 2},     {17, 33, 65},
                                       {64, 48, 16}, {131, 101, 77}, {1, 530, 260}, {270, 16, 140}};
    // [rows, out, in]: more than one tile of rows; more than one block of widened k; several blocks
    // of k in a weight gradient; parts of k with different sizes.
    static const int64_t layers[][3] = {
        {1100, 48, 96}, {520, 16, 70}, {90, 600, 24}, {4000, 16, 300}, {2567, 70, 9}};
    static const int64_t model[][3] = {
        {MODEL_LENGTH, 2 * MODEL_INNER, MODEL_WIDTH},              // in_proj
        {MODEL_LENGTH, MODEL_RANK + 2 * MODEL_STATE, MODEL_INNER}, // x_proj
        {MODEL_LENGTH, MODEL_INNER, MODEL_RANK},                   // dt_proj
        {MODEL_LENGTH, MODEL_WIDTH, MODEL_INNER},                  // out_proj
        {2 * MODEL_LENGTH, MODEL_WIDTH, MODEL_INNER},              // of two sequences
        {MODEL_LENGTH, MODEL_VOCAB, MODEL_WIDTH}};                 // head
    if (strcmp(p->name, "simt") == 0) // the product of a library, not of a kernel
        return;
    for (int t = 0; t < 2; t++) {
        dt_dtype type = t ? DT_BF16 : DT_F32;
        for (int i = 0; i < 5 && !p->model; i++)
            compare_layer(p, layers[i][0], layers[i][1], layers[i][2], false, type);
        for (int i = 0; i < 6 && p->model; i++)
            compare_layer(p, model[i][0], model[i][1], model[i][2], i == 5, type);
        for (int which = 1; which <= 2 && !p->model; which++)
            compare(p, &(struct product){16, 24, 40, type, type, 0, 1, 0, 8, .shifted = which});
        if (!p->model)
            compare_batches(p, type);
        check_not_finite(p, type, NAN);
        check_not_finite(p, type, INFINITY);
        for (int bf16 = 0; bf16 <= t && !p->model; bf16++) {
            check_pieces(p, type, bf16 ? DT_BF16 : DT_F32, 601, false);
            check_pieces(p, type, bf16 ? DT_BF16 : DT_F32, DT_GEMM_FEW_ROWS, true);
        }
    }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && !p->model; i++)
        compare_forms(p, sizes[i][0], sizes[i][1], sizes[i][2]);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && !p->model; i++)
        for (int bf16 = 0; bf16 < 2; bf16++)
            compare_int8(p, sizes[i][0], sizes[i][1], sizes[i][2], bf16 ? DT_BF16 : DT_F32);
    check_features(p);
}

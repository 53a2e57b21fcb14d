// The ops over rows: every product of a training step, embedding, norm, cross-entropy.
#include "parity.h"

// A result in storage may fall on either side of a rounding: 2^-8 of a few elements.
static double stored(dt_dtype type, double tolerance)
{
    return type == DT_BF16 ? 2e-3 : tolerance;
}

struct product {
    const char *name;
    int64_t in, out;  // of the layer
    dt_dtype y_type;  // of forward's result
    int64_t x_stride; // of its input
};

static const char *describe(char *text, size_t size, const struct product *linear, const char *role,
                            const struct dt_gemm_args *a)
{
    snprintf(text, size, "%s %s %lldx%lldx%lld %s%s", linear->name, role, (long long)a->c.rows,
             (long long)a->c.cols, (long long)dt_gemm_k(a), dt_dtype_name(a->a.dtype),
             a->accumulate ? " +=" : "");
    return text;
}

// As training does: the device is told the shape and chooses.
static void choose_algorithm(struct parity *p, const struct dt_gemm_args *args)
{
    char *chosen = NULL;
    dt_gemm_workspace(&p->cuda, args);
    check_ok(p->cuda.table->choose(p->cuda.device, p->algorithms, &chosen), "choose");
    free(p->algorithms);
    p->algorithms = chosen;
}

// Sums of k products in another order, and the matrix units' own: in fp32 each addition rounds by
// 2^-24 of sums that grow as their square root, and some of these errors add up.
static void compare_gemm(struct parity *p, const struct product *linear, const char *role,
                         struct dt_gemm_args args)
{
    char text[96];
    args.a.data = many_rows(args.a.dtype, args.a.rows, args.a.cols, args.a.stride, 1.0, 1);
    args.b.data = many_rows(args.b.dtype, args.b.rows, args.b.cols, args.b.stride, 1.0, 2);
    struct dt_view *c = &args.c;
    c->data = args.accumulate ? many_rows(c->dtype, c->rows, c->cols, c->stride, 1.0, 3)
                              : guarded(c->rows * c->stride * dt_dtype_size(c->dtype));
    double sums = 0x1p-21 * sqrt((double)dt_gemm_k(&args));
    const struct parity_field fields[] = {
        FIELD_IN(gemm, a.data),
        FIELD_IN(gemm, b.data),
        FIELD_OUT(gemm, c.data, c->dtype, c->rows, c->cols, c->stride, stored(c->dtype, sums), 0),
        FIELD_WORKSPACE(gemm),
        {0}};
    choose_algorithm(p, &args);
    parity_compare(p, PARITY_gemm, fields, &args, describe(text, sizeof text, linear, role, &args));
    release(args.a.data, "a");
    release(args.b.data, "b");
    RELEASE(c->data);
}

static int64_t stride_of(dt_dtype type, int64_t width)
{
    int64_t step = 16 / dt_dtype_size(type);
    return (width + step - 1) / step * step;
}

// A layer's three products over `rows` tokens: y = x · Wᵀ, dx = dy · W, dW = dyᵀ · x.
static void compare_linear(struct parity *p, const struct product *l, int64_t rows, dt_dtype type)
{
    struct dt_view x = {NULL, rows, l->in, l->x_stride, type},
                   w = dt_view_of(NULL, l->out, l->in, type);
    struct dt_view y = {NULL, rows, l->out, stride_of(l->y_type, l->out), l->y_type};
    struct dt_view dy = {NULL, rows, l->out, stride_of(type, l->out), type};
    struct dt_view dw = dt_view_of(NULL, l->out, l->in, DT_F32);
    struct dt_gemm_args forward = {.a = x, .b = w, .c = y, .trans_b = true};
    struct dt_gemm_args input = {.a = dy, .b = w, .c = x};
    struct dt_gemm_args weight = {.a = dy, .b = x, .c = dw, .trans_a = true};
    compare_gemm(p, l, "forward", forward);
    compare_gemm(p, l, "dX", input);
    compare_gemm(p, l, "dW", weight);
    input.accumulate = weight.accumulate = true;
    compare_gemm(p, l, "dX", input);
    compare_gemm(p, l, "dW", weight);
}

static void compare_products(struct parity *p, const struct parity_sizes *s)
{
    int64_t rows = s->batch * s->length, columns = s->dt_rank + 2 * s->state;
    const struct product layers[] = {
        {"in_proj", s->d_model, 2 * s->inner, s->type, stride_of(s->type, s->d_model)},
        {"x_proj", s->inner, columns, s->type, stride_of(s->type, s->inner)},
        {"dt_proj", s->dt_rank, s->inner, s->type, stride_of(s->type, columns)},
        {"out_proj", s->inner, s->d_model, s->type, stride_of(s->type, s->inner)}};
    const struct product head = {"head", s->d_model, s->vocab, DT_F32,
                                 stride_of(s->type, s->d_model)};
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        compare_linear(p, &layers[i], rows, s->type);
    if (s->batch == 1) // a tile does not grow with it
        compare_linear(p, &head, s->tile, s->type);
}

// Tokens as text has them: a few often, the last of the vocabulary too.
static int32_t *make_ids(int64_t rows, int64_t vocab)
{
    struct dt_philox rng = dt_philox_init(21, 7, 0);
    int32_t *ids = guarded(rows * 4);
    for (int64_t r = 0; r < rows; r++) {
        double u = (double)dt_philox_u32(&rng) * 0x1p-32;
        ids[r] = (int32_t)(u * u * u * (double)vocab);
    }
    ids[rows / 2] = (int32_t)(vocab - 1);
    return ids;
}

// Forward copies, and both add a token's rows in the same runs: the same bits.
static void compare_embed(struct parity *p, const struct parity_sizes *s)
{
    int64_t rows = s->batch * s->length, d = s->d_model, V = s->vocab;
    int32_t *ids = make_ids(rows, V);
    struct dt_embed_forward_args forward = {.rows = rows,
                                            .width = d,
                                            .vocab = V,
                                            .dtype = s->type,
                                            .ids = ids,
                                            .table = many_rows(s->type, V, d, d, 1.0, 1),
                                            .out = guarded(rows * d * 4)};
    const struct parity_field forward_fields[] = {
        FIELD_IN(embed_forward, ids),
        FIELD_IN(embed_forward, table),
        FIELD_OUT(embed_forward, out, DT_F32, rows, d, d, 0.0, 0),
        {0}};
    struct dt_embed_backward_args backward = {.rows = rows,
                                              .width = d,
                                              .vocab = V,
                                              .ids = ids,
                                              .dout = many(rows * d, 1.0, 2),
                                              .dtable = many(V * d, 1.0, 3),
                                              .accumulate = true};
    const struct parity_field backward_fields[] = {
        FIELD_IN(embed_backward, ids),
        FIELD_IN(embed_backward, dout),
        FIELD_OUT(embed_backward, dtable, DT_F32, V, d, d, 0.0, 0),
        FIELD_WORKSPACE(embed_backward),
        {0}};
    parity_compare(p, PARITY_embed_forward, forward_fields, &forward, dt_dtype_name(s->type));
    parity_compare(p, PARITY_embed_backward, backward_fields, &backward, "+=");
    RELEASE(ids);
    release((void *)(uintptr_t)forward.table, "table");
    RELEASE(forward.out);
    release((void *)(uintptr_t)backward.dout, "dout");
    RELEASE(backward.dtable);
}

// The sum is one addition: the same bits. Squares and, backward, a thousand rows are added in
// another order.
static void compare_norm(struct parity *p, const struct parity_sizes *s)
{
    const double near = 1e-5;
    int64_t rows = s->batch * s->length, d = s->d_model, stride = stride_of(s->type, d + 3);
    int64_t bytes = rows * stride * dt_dtype_size(s->type);
    struct dt_rmsnorm_residual_forward_args forward = {
        .rows = rows,
        .width = d,
        .dtype = s->type,
        .eps = 1e-5f,
        .residual = many(rows * d, 1.0, 1),
        .x = many_rows(s->type, rows, d, stride, 1.0, 2),
        .x_stride = stride,
        .weight = many(d, 1.0, 3),
        .residual_out = guarded(rows * d * 4),
        .y = guarded(bytes),
        .y_stride = stride,
        .rstd = guarded(rows * 4)};
    const struct parity_field forward_fields[] = {
        FIELD_IN(rmsnorm_residual_forward, residual),
        FIELD_IN(rmsnorm_residual_forward, x),
        FIELD_IN(rmsnorm_residual_forward, weight),
        FIELD_OUT(rmsnorm_residual_forward, residual_out, DT_F32, rows, d, d, 0.0, 0),
        FIELD_OUT(rmsnorm_residual_forward, y, s->type, rows, d, stride, stored(s->type, near), 0),
        FIELD_OUT(rmsnorm_residual_forward, rstd, DT_F32, 1, rows, rows, near, 0),
        {0}};
    parity_compare(p, PARITY_rmsnorm_residual_forward, forward_fields, &forward,
                   dt_dtype_name(s->type));
    struct dt_rmsnorm_residual_backward_args backward = {
        .rows = rows,
        .width = d,
        .dtype = s->type,
        .dy = many_rows(s->type, rows, d, stride, 1.0, 4),
        .dy_stride = stride,
        .residual = forward.residual_out,
        .rstd = forward.rstd,
        .weight = forward.weight,
        .dresidual = many(rows * d, 1.0, 5),
        .dx = guarded(bytes),
        .dx_stride = stride,
        .dweight = many(d, 1.0, 6),
        .accumulate = true};
    const struct parity_field backward_fields[] = {
        FIELD_IN(rmsnorm_residual_backward, dy),
        FIELD_IN(rmsnorm_residual_backward, residual),
        FIELD_IN(rmsnorm_residual_backward, rstd),
        FIELD_IN(rmsnorm_residual_backward, weight),
        FIELD_OUT(rmsnorm_residual_backward, dresidual, DT_F32, rows, d, d, near, 0),
        FIELD_OUT(rmsnorm_residual_backward, dx, s->type, rows, d, stride, stored(s->type, near),
                  0),
        FIELD_OUT(rmsnorm_residual_backward, dweight, DT_F32, 1, d, d, near, 0),
        FIELD_WORKSPACE(rmsnorm_residual_backward),
        {0}};
    parity_compare(p, PARITY_rmsnorm_residual_backward, backward_fields, &backward,
                   dt_dtype_name(s->type));
    release((void *)(uintptr_t)forward.residual, "residual");
    release((void *)(uintptr_t)forward.x, "x");
    release((void *)(uintptr_t)forward.weight, "weight");
    RELEASE(forward.residual_out);
    RELEASE(forward.y);
    RELEASE(forward.rstd);
    release((void *)(uintptr_t)backward.dy, "dy");
    RELEASE(backward.dresidual);
    RELEASE(backward.dx);
    RELEASE(backward.dweight);
}

// The device's exponential is within 2 ulp plus 2^-21.4 |x| of x up to 20 or so; sums over the
// vocabulary in another order.
static void compare_xent(struct parity *p, const struct parity_sizes *s)
{
    const double near = 1e-5;
    int64_t rows = s->tile, width = s->vocab, vocab = width - 3, stride = width + 8;
    int32_t *labels = make_ids(rows, vocab);
    labels[rows / 3] = DT_LABEL_IGNORED;
    struct dt_xent_args args = {.rows = rows,
                                .vocab = vocab,
                                .width = width,
                                .logits = many_rows(DT_F32, rows, vocab, stride, 3.0, 1),
                                .logits_stride = stride,
                                .labels = labels,
                                .scale = 0.25f,
                                .dtype = s->type,
                                .dlogits = guarded(rows * stride * dt_dtype_size(s->type)),
                                .dlogits_stride = stride,
                                .losses = guarded(rows * 4),
                                .sum = guarded(sizeof(struct dt_loss_sum))};
    *args.sum = (struct dt_loss_sum){1.5, 2.0};
    const struct parity_field fields[] = {
        FIELD_IN(xent, logits),
        FIELD_IN(xent, labels),
        FIELD_OUT(xent, dlogits, s->type, rows, width, stride, stored(s->type, near), 0),
        FIELD_OUT(xent, losses, DT_F32, 1, rows, rows, near, 0),
        FIELD_OUT(xent, sum, DT_F64, 1, 2, 2, near, 0),
        FIELD_WORKSPACE(xent),
        {0}};
    parity_compare(p, PARITY_xent, fields, &args, dt_dtype_name(s->type));
    RELEASE(labels);
    release((void *)(uintptr_t)args.logits, "logits");
    RELEASE(args.dlogits);
    RELEASE(args.losses);
    RELEASE(args.sum);
}

int parity_rows(struct parity *p, const struct parity_sizes *s)
{
    if (s->products)
        compare_products(p, s);
    compare_embed(p, s);
    compare_norm(p, s);
    if (s->batch == 1)
        compare_xent(p, s);
    return test_end();
}

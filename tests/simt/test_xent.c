// Cross-entropy: CUDA's form on the host against the CPU's, at vocabularies on both sides of a
// thread's and a block's share and up to what shared memory holds, padded, strided, aligned and
// not, with ignored labels, in place, and with logits that are not finite; the same bits in every
// order of threads, and whether a row is kept in shared memory or read again.
#include "simt_backend.h"

struct problem {
    int64_t rows, vocab, width, gap; // gap: elements between the rows
    dt_dtype type;
    int gradient, in_place, with_losses;
    float strange; // a logit of row 1, where it is not 0
};

struct result {
    float *logits, *losses;
    void *dlogits;
    int32_t *labels;
    struct dt_loss_sum sum;
};

// Of many rows most are ignored, which costs little: they are there for the sum of the losses.
static int32_t *make_labels(const struct problem *p)
{
    int32_t *labels = guarded(p->rows * 4);
    for (int64_t r = 0; r < p->rows; r++)
        labels[r] = (p->rows > 100 ? r % 64 != 0 : r % 5 == 3)
                        ? DT_LABEL_IGNORED
                        : (int32_t)((r * 7919 + p->vocab - 1) % p->vocab);
    return labels;
}

static struct result run(const struct dt_backend *backend, const struct problem *p)
{
    int64_t stride = p->width + p->gap;
    struct result r = {.sum = {1.5, 2.0}, .labels = make_labels(p)};
    r.logits = normal_rows(DT_F32, p->rows, p->vocab, stride, 3.0, 1);
    if (p->strange != 0.0f)
        r.logits[stride + p->vocab / 2] = p->strange;
    r.losses = guarded(p->rows * 4);
    r.dlogits = guarded(p->rows * stride * dt_dtype_size(p->type));
    struct dt_xent_args args = {.rows = p->rows,
                                .vocab = p->vocab,
                                .width = p->width,
                                .logits = r.logits,
                                .logits_stride = stride,
                                .labels = r.labels,
                                .scale = 0.25f,
                                .dtype = p->type,
                                .dlogits_stride = stride,
                                .losses = p->with_losses ? r.losses : NULL,
                                .sum = &r.sum};
    if (p->gradient)
        args.dlogits = p->in_place ? r.logits : r.dlogits;
    RUN_WITH_WORKSPACE(xent, backend, &args);
    return r;
}

static void free_result(struct result *r)
{
    release(r->logits, "logits");
    release(r->losses, "losses");
    release(r->dlogits, "dlogits");
    release(r->labels, "labels");
}

static int same_result(const struct result *a, const struct result *b)
{
    return same_bits(a->logits, b->logits) && same_bits(a->losses, b->losses) &&
           same_bits(a->dlogits, b->dlogits) && memcmp(&a->sum, &b->sum, sizeof a->sum) == 0;
}

static int near(double got, double want, double tolerance)
{
    return isnan(want) ? isnan(got) : fabs(got - want) <= tolerance * fmax(1.0, fabs(want));
}

// Exponentials of two kinds, each within 2 ulp, of arguments up to 25 (2^-24 · 25 relative), summed
// in fp32 by up to vocab / 1024 terms a thread here and 2048 there: 4e-6 of probabilities up to 1.
// Storage may round a value near the middle to the other side.
static void check_result(const struct problem *p, const struct result *got,
                         const struct result *want)
{
    const double tolerance = 4e-6;
    int64_t stride = p->width + p->gap;
    const void *dgot = p->in_place ? (void *)got->logits : got->dlogits,
               *dwant = p->in_place ? (void *)want->logits : want->dlogits;
    int64_t wrong = 0;
    if (p->gradient)
        wrong += differences(dgot, dwant, p->type, p->rows, p->width, stride,
                             tolerance + 2 * rounding(p->type));
    if (p->with_losses)
        wrong += differences(got->losses, want->losses, DT_F32, 1, p->rows, 0, tolerance);
    CHECK(wrong == 0 && got->sum.counted == want->sum.counted &&
              near(got->sum.loss, want->sum.loss, tolerance),
          "%lld wrong, loss %.9g for %.9g: rows %lld vocab %lld width %lld gap %lld %s",
          (long long)wrong, got->sum.loss, want->sum.loss, (long long)p->rows, (long long)p->vocab,
          (long long)p->width, (long long)p->gap, dt_dtype_name(p->type));
    CHECK(gaps_fresh(p->gradient && !p->in_place ? dgot : got->logits,
                     p->in_place   ? DT_F32
                     : p->gradient ? p->type
                                   : DT_F32,
                     p->rows, p->gradient ? p->width : p->vocab, stride),
          "wrote between the rows");
}

static void test(const struct problem *p)
{
    struct dt_backend cpu = open_cpu(1), simt = open_simt();
    struct result want = run(&cpu, p), first = {0};
    for (int order = 0; order < SIMT_ORDERS; order++) {
        simt_set_order((enum simt_order)order, 19);
        struct result got = run(&simt, p);
        check_result(p, &got, &want);
        if (order == 0) {
            first = got;
            continue;
        }
        CHECK(same_result(&got, &first), "other bits, order %s",
              simt_order_name((enum simt_order)order));
        free_result(&got);
    }
    simt_set_shared_most(0);
    struct result again = run(&simt, p);
    CHECK(same_result(&again, &first), "other bits where shared memory does not hold a row");
    simt_set_shared_most(227 << 10);
    free_result(&again);
    free_result(&first);
    free_result(&want);
    dt_backend_close(&cpu);
    dt_backend_close(&simt);
}

int main(void)
{
    static const struct problem problems[] = {
        {1, 1, 1, 0, DT_F32, 1, 0, 1, 0.0f},          {7, 5, 8, 0, DT_BF16, 1, 0, 1, 0.0f},
        {9, 8, 8, 8, DT_BF16, 1, 0, 0, 0.0f},         {6, 97, 104, 3, DT_F32, 1, 0, 1, 0.0f},
        {5, 4095, 4096, 0, DT_BF16, 1, 0, 1, 0.0f},   {4, 4097, 4104, 0, DT_F32, 1, 1, 0, 0.0f},
        {3, 9001, 9001, 0, DT_F32, 1, 1, 1, 0.0f},    {3, 12291, 12296, 0, DT_F32, 0, 0, 1, 0.0f},
        {2, 28685, 28688, 4, DT_BF16, 1, 0, 1, 0.0f}, // every loop over vectors, and one logit more
        {1, 57856, 57856, 0, DT_F32, 1, 1, 1, 0.0f},  // all of the shared memory
        {1030, 3, 4, 0, DT_F32, 0, 0, 0, 0.0f},       {3, 700, 704, 0, DT_BF16, 1, 0, 1, INFINITY},
        {3, 700, 704, 0, DT_F32, 1, 0, 1, -INFINITY}, {3, 700, 704, 0, DT_BF16, 1, 0, 1, NAN},
        {3, 700, 704, 0, DT_F32, 1, 0, 1, 1e30f},
    };
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++)
        test(&problems[i]);
    return test_end();
}

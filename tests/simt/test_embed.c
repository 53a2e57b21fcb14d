// Token embedding: CUDA's form on the host against the CPU's. Both copy, and both add a token's
// rows in their order, so the bits are the same. Vocabularies of one, two and three passes of the
// sort; more rows than a sorting warp takes; tokens that never occur; one token in all rows.
#include "simt_backend.h"

struct problem {
    int64_t rows, width, vocab;
    dt_dtype type;
    int accumulate, one_token;
};

// Tokens as text has them: a few often, the last one of the vocabulary at least once.
static int32_t *tokens(const struct problem *p)
{
    struct dt_philox rng = dt_philox_init(21, 7, 0);
    int32_t *ids = guarded(p->rows * 4);
    for (int64_t r = 0; r < p->rows; r++) {
        double u = (double)dt_philox_u32(&rng) * 0x1p-32;
        ids[r] = p->one_token ? (int32_t)(p->vocab / 2) : (int32_t)(u * u * u * (double)p->vocab);
    }
    ids[p->rows / 2] = (int32_t)(p->vocab - 1);
    return ids;
}

static void test_forward(const struct problem *p)
{
    struct dt_backend cpu = open_cpu(1), simt = open_simt();
    int32_t *ids = tokens(p);
    void *table = normal_rows(p->type, p->vocab, p->width, p->width, 1.0, 1);
    float *want = guarded(p->rows * p->width * 4), *got = guarded(p->rows * p->width * 4);
    struct dt_embed_forward_args args = {.rows = p->rows,
                                         .width = p->width,
                                         .vocab = p->vocab,
                                         .dtype = p->type,
                                         .ids = ids,
                                         .table = table,
                                         .out = want};
    check_ok(dt_embed_forward(&cpu, &args, NULL), "embed_forward");
    args.out = got;
    check_ok(dt_embed_forward(&simt, &args, NULL), "embed_forward");
    CHECK(same_bits(got, want), "forward: rows %lld width %lld %s", (long long)p->rows,
          (long long)p->width, dt_dtype_name(p->type));
    RELEASE(ids);
    RELEASE(table);
    RELEASE(want);
    RELEASE(got);
    dt_backend_close(&cpu);
    dt_backend_close(&simt);
}

static float *backward(const struct dt_backend *backend, const struct problem *p,
                       const int32_t *ids, const float *dout)
{
    int64_t n = p->vocab * p->width;
    float *dtable = p->accumulate ? normal(n, 1.0, 3) : guarded(n * 4);
    struct dt_embed_backward_args args = {.rows = p->rows,
                                          .width = p->width,
                                          .vocab = p->vocab,
                                          .ids = ids,
                                          .dout = dout,
                                          .dtable = dtable,
                                          .accumulate = p->accumulate};
    RUN_WITH_WORKSPACE(embed_backward, backend, &args);
    return dtable;
}

static void test_backward(const struct problem *p)
{
    struct dt_backend cpu = open_cpu(1), simt = open_simt();
    int32_t *ids = tokens(p);
    float *dout = normal(p->rows * p->width, 1.0, 2), *want = backward(&cpu, p, ids, dout),
          *got = backward(&simt, p, ids, dout);
    CHECK(same_bits(got, want), "backward: rows %lld width %lld vocab %lld accumulate %d",
          (long long)p->rows, (long long)p->width, (long long)p->vocab, p->accumulate);
    RELEASE(ids);
    RELEASE(dout);
    RELEASE(want);
    RELEASE(got);
    dt_backend_close(&cpu);
    dt_backend_close(&simt);
}

int main(void)
{
    static const struct problem problems[] = {
        {1, 1, 1, DT_F32, 0, 0},       {2, 3, 2, DT_BF16, 1, 0},      {67, 8, 255, DT_F32, 0, 0},
        {300, 20, 256, DT_BF16, 1, 0}, {129, 264, 257, DT_F32, 0, 0}, {500, 12, 40, DT_BF16, 1, 1},
        {2049, 4, 1000, DT_F32, 0, 0}, {5000, 5, 300, DT_BF16, 1, 0},
    };
    for (int order = 0; order < SIMT_ORDERS; order++) {
        simt_set_order((enum simt_order)order, 13);
        for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) {
            test_forward(&problems[i]);
            test_backward(&problems[i]);
        }
        // more sorting threads than a block sums counters at a time
        test_backward(&(struct problem){.rows = 64 * 300, .width = 1, .vocab = 300});
    }
    test_backward(&(struct problem){.rows = 33, .width = 1, .vocab = 70001}); // three passes
    return test_end();
}

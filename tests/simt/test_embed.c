// Token embedding: CUDA's form on the host against the CPU's. Both copy, and both add a token's
// rows in runs of DT_EMBED_RUN and then these, so the bits are the same. Vocabularies of one, two
// and three passes of the sort; more rows than a sorting warp takes; tokens that never occur; one
// token in all rows, two tokens, and lists that end before, at and after the end of a run.
#include "simt_backend.h"

enum tokens {
    TEXT,   // a few tokens often, most never
    ONE,    // the same in all rows
    TWO,    // in turn, the second a third of the rows
    UNEVEN, // lists of the lengths below; the other rows have higher tokens
};

struct problem {
    int64_t rows, width, vocab;
    dt_dtype type;
    int accumulate;
    enum tokens tokens;
};

// Rows of tokens 1, 2, …: the lists begin at, just before and within a slot of the device's, and
// are runs of every fullness.
static const int64_t uneven[] = {
    DT_EMBED_RUN,         DT_EMBED_RUN + 1, 2 * DT_EMBED_RUN - 1, 1, 0, 2 * DT_EMBED_RUN,
    2 * DT_EMBED_RUN + 1, DT_EMBED_RUN - 2, 8 * DT_EMBED_RUN + 7, 3};

static int64_t uneven_rows(void)
{
    int64_t rows = 0;
    for (size_t i = 0; i < sizeof uneven / sizeof *uneven; i++)
        rows += uneven[i];
    return rows;
}

static int32_t uneven_token(int64_t row)
{
    int32_t v = 1;
    for (; row >= uneven[v - 1]; v++)
        row -= uneven[v - 1];
    return v;
}

// The last token of the vocabulary at least once, where there is room for it.
static int32_t *make_tokens(const struct problem *p)
{
    struct dt_philox rng = dt_philox_init(21, 7, 0);
    int32_t *ids = guarded(p->rows * 4);
    for (int64_t r = 0; r < p->rows; r++) {
        double u = (double)dt_philox_u32(&rng) * 0x1p-32;
        int64_t mixed = r * 7 % p->rows; // rows is no multiple of 7: each row once
        ids[r] = (int32_t)(u * u * u * (double)p->vocab);
        if (p->tokens == ONE)
            ids[r] = (int32_t)(p->vocab / 2);
        if (p->tokens == TWO)
            ids[r] = (int32_t)(r % 3 == 2 ? p->vocab - 1 : 0);
        if (p->tokens == UNEVEN)
            ids[r] = mixed < uneven_rows() ? uneven_token(mixed) : 20 + (int32_t)(r % 90);
    }
    if (p->tokens == TEXT || p->tokens == UNEVEN)
        ids[p->rows - 1] = (int32_t)(p->vocab - 1);
    return ids;
}

static void test_forward(const struct problem *p)
{
    struct dt_backend cpu = open_cpu(1), simt = open_simt();
    int32_t *ids = make_tokens(p);
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
    int32_t *ids = make_tokens(p);
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

// Every problem in one order of threads; one that takes every kind of block, in all of them.
int main(void)
{
    static const struct problem problems[] = {
        {1, 1, 1, DT_F32, 0, TEXT},       {2, 3, 2, DT_BF16, 1, TEXT},
        {67, 8, 255, DT_F32, 0, TEXT},    {300, 20, 256, DT_BF16, 1, TEXT},
        {60, 264, 257, DT_F32, 0, TEXT},  {500, 12, 40, DT_BF16, 1, ONE},
        {128, 4, 3, DT_F32, 0, ONE},      {129, 3, 3, DT_F32, 1, ONE},
        {700, 520, 9, DT_F32, 0, TWO},    {384, 4, 300, DT_F32, 1, TWO},
        {2100, 5, 300, DT_BF16, 1, TEXT},
    };
    const struct problem all = {2600, 4, 1000, DT_F32, 1, UNEVEN};
    for (int order = 0; order < SIMT_ORDERS; order++) {
        simt_set_order((enum simt_order)order, 13);
        for (size_t i = 0; i < sizeof problems / sizeof *problems; i++)
            if (SIMT_ORDERS == 1 || (int)i % SIMT_ORDERS == order) {
                test_forward(&problems[i]);
                test_backward(&problems[i]);
            }
        test_forward(&all);
        test_backward(&all);
    }
    // more sorting threads than a block sums counters at a time
    test_backward(&(struct problem){.rows = 64 * 256 + 1, .width = 1, .vocab = 200});
    test_backward(&(struct problem){.rows = 33, .width = 1, .vocab = 70001}); // three passes
    return test_end();
}

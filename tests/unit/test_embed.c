// The embedding against plain loops: rows chosen and widened exactly, gradients summed in runs of
// DT_EMBED_RUN rows in their order (so bit for bit), with tokens that occur never, once and very
// often.
#include "op_fixture.h"

static int32_t *random_ids(int64_t rows, int64_t vocab, uint32_t seed)
{
    struct dt_philox rng = dt_philox_init(seed, 9, 0);
    int32_t *ids = guarded(rows * 4);
    for (int64_t r = 0; r < rows; r++) // half of the rows are one token: the work is uneven
        ids[r] = r % 2 ? (int32_t)(vocab / 2) : (int32_t)dt_philox_below(&rng, (uint64_t)vocab);
    return ids;
}

static void test_forward(int64_t rows, int64_t width, int64_t vocab, dt_dtype type, int threads)
{
    struct dt_backend backend = open_cpu(threads);
    int32_t *ids = random_ids(rows, vocab, 1);
    void *table = normal_rows(type, vocab, width, width, 1.0, 2);
    float *out = guarded(rows * width * 4);
    struct dt_embed_forward_args args = {rows, width, vocab, type, ids, table, out};
    check_ok(dt_embed_forward(&backend, &args, NULL), "embed_forward");
    int64_t wrong = 0;
    for (int64_t i = 0; i < rows * width; i++)
        wrong += (double)out[i] != get(table, type, ids[i / width] * width + i % width);
    CHECK_INT(wrong, 0);
    RELEASE(ids);
    RELEASE(table);
    RELEASE(out);
    dt_backend_close(&backend);
}

// want[v, i] += Σ of token v's rows.
static void add_in_runs(float *want, const int32_t *ids, const float *dout, int64_t rows,
                        int64_t width, int64_t vocab)
{
    for (int64_t v = 0; v < vocab; v++)
        for (int64_t i = 0; i < width; i++) {
            float sum = 0.0f, run = 0.0f;
            int64_t n = 0;
            for (int64_t r = 0; r < rows; r++) {
                if (ids[r] != v)
                    continue;
                run += dout[r * width + i];
                if (++n % DT_EMBED_RUN == 0) {
                    sum += run;
                    run = 0.0f;
                }
            }
            want[v * width + i] += sum + run;
        }
}

static void test_backward(int64_t rows, int64_t width, int64_t vocab, bool accumulate, int threads)
{
    struct dt_backend backend = open_cpu(threads);
    int32_t *ids = random_ids(rows, vocab, 3);
    float *dout = normal(rows * width, 1.0, 4), *want = normal(vocab * width, 1.0, 5);
    float *dtable = accumulate ? normal(vocab * width, 1.0, 5) : guarded(vocab * width * 4);
    if (!accumulate)
        memset(want, 0, (size_t)(vocab * width) * 4);
    add_in_runs(want, ids, dout, rows, width, vocab);
    struct dt_embed_backward_args args = {.rows = rows,
                                          .width = width,
                                          .vocab = vocab,
                                          .ids = ids,
                                          .dout = dout,
                                          .dtable = dtable,
                                          .accumulate = accumulate};
    RUN_WITH_WORKSPACE(embed_backward, &backend, &args);
    CHECK(same_bits(want, dtable), "rows %lld width %lld vocab %lld accumulate %d threads %d",
          (long long)rows, (long long)width, (long long)vocab, accumulate, threads);
    RELEASE(ids);
    RELEASE(dout);
    RELEASE(want);
    RELEASE(dtable);
    dt_backend_close(&backend);
}

// ⟨dout, forward(v)⟩ = ⟨backward(dout), v⟩ for a linear op: the sign and the indices agree.
static void test_adjoint(void)
{
    enum { ROWS = 57, WIDTH = 19, VOCAB = 23 };
    struct dt_backend backend = open_cpu(2);
    int32_t *ids = random_ids(ROWS, VOCAB, 6);
    float *v = normal(VOCAB * WIDTH, 1.0, 7), *dout = normal(ROWS * WIDTH, 1.0, 8);
    float *out = guarded(ROWS * WIDTH * 4), *dtable = guarded(VOCAB * WIDTH * 4);
    struct dt_embed_forward_args forward = {ROWS, WIDTH, VOCAB, DT_F32, ids, v, out};
    struct dt_embed_backward_args backward = {
        .rows = ROWS, .width = WIDTH, .vocab = VOCAB, .ids = ids, .dout = dout, .dtable = dtable};
    double left = 0.0, right = 0.0;
    check_ok(dt_embed_forward(&backend, &forward, NULL), "embed_forward");
    RUN_WITH_WORKSPACE(embed_backward, &backend, &backward);
    for (int i = 0; i < ROWS * WIDTH; i++)
        left += (double)dout[i] * (double)out[i];
    for (int i = 0; i < VOCAB * WIDTH; i++)
        right += (double)dtable[i] * (double)v[i];
    CHECK_NEAR(left, right, 1e-5); // fp32 sums of up to 30 rows
    RELEASE(ids);
    RELEASE(v);
    RELEASE(dout);
    RELEASE(out);
    RELEASE(dtable);
    dt_backend_close(&backend);
}

int main(void)
{
    static const int64_t size[][3] = {
        {1, 1, 1}, {5, 3, 2}, {130, 65, 300}, {700, 200, 11}, {64, 64, 64}};
    for (size_t i = 0; i < sizeof size / sizeof *size; i++)
        for (int threads = 1; threads <= 3; threads++) {
            test_forward(size[i][0], size[i][1], size[i][2], DT_F32, threads);
            test_forward(size[i][0], size[i][1], size[i][2], DT_BF16, threads);
            test_backward(size[i][0], size[i][1], size[i][2], false, threads);
            test_backward(size[i][0], size[i][1], size[i][2], true, threads);
        }
    test_adjoint();
    return test_end();
}

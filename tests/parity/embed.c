// The embedding. Forward copies. Backward adds a token's rows in runs of DT_EMBED_RUN and then adds
// the runs, on both backends, so the bits are equal. Vocabularies need one, two and three passes of
// the device's sort. There are more rows than a sorting warp has, tokens that never occur, one
// token in all rows, two tokens, and lists that end before, at and after the end of a run.
#include "parity.h"

enum tokens {
    TEXT,   // few tokens are frequent, most never occur
    ONE,    // one token in all rows
    TWO,    // two tokens; every third row has the second one
    UNEVEN, // lists with the lengths below; other rows have higher tokens
};

struct shape {
    int64_t rows, width, vocab;
    dt_dtype type;
    bool accumulate;
    enum tokens tokens;
};

// The stride of the ids, which may be one of several columns.
static int64_t stride_of(const struct shape *s)
{
    return 1 + s->rows % 3;
}

// How many rows tokens 1, 2, … have. The lists begin at, just before and within a slot of the
// device, and fill their last runs to every degree.
static const int64_t uneven[] = {
    DT_EMBED_RUN,         DT_EMBED_RUN + 1, 2 * DT_EMBED_RUN - 1, 1, 0, 2 * DT_EMBED_RUN,
    2 * DT_EMBED_RUN + 1, DT_EMBED_RUN - 2, 8 * DT_EMBED_RUN + 7, 3};
enum { UNEVEN_TOKENS = sizeof uneven / sizeof *uneven };

static int32_t uneven_token(int64_t row)
{
    int32_t v = 1;
    for (; v <= UNEVEN_TOKENS && row >= uneven[v - 1]; v++)
        row -= uneven[v - 1];
    return v <= UNEVEN_TOKENS ? v : 20 + (int32_t)(row % 90);
}

// Makes the ids. The last token of the vocabulary occurs at least once, unless all rows have the
// same one or two tokens.
static int32_t *make_tokens(const struct shape *s)
{
    struct dt_philox rng = dt_philox_init(21, 7, 0);
    int64_t stride = stride_of(s);
    int32_t *ids = guarded(s->rows * stride * 4);
    for (int64_t i = 0; i < s->rows * stride; i++)
        ids[i] = (int32_t)(i % s->vocab); // also fills the other columns
    for (int64_t r = 0; r < s->rows; r++) {
        double u = (double)dt_philox_u32(&rng) * 0x1p-32;
        ids[r * stride] =
            s->tokens == ONE   ? (int32_t)(s->vocab / 2)
            : s->tokens == TWO ? (int32_t)(r % 3 == 2 ? s->vocab - 1 : 0)
            : s->tokens == UNEVEN
                ? uneven_token(r * 7 % s->rows) // rows is no multiple of 7, so each row comes once
                : (int32_t)(u * u * u * (double)s->vocab);
    }
    if (s->tokens == TEXT || s->tokens == UNEVEN)
        ids[(s->rows - 1) * stride] = (int32_t)(s->vocab - 1);
    return ids;
}

REFERENCE(embed_forward)
{
    int64_t d = a->table.cols;
    for (int64_t i = 0; i < a->ids.rows * d; i++)
        a->out[i] = (float)get_at(&a->table, *(int32_t *)dt_view_at(&a->ids, i / d, 0), i % d);
    return DT_OK;
}

// Adds in fp32, in the order that the contract states.
REFERENCE(embed_backward)
{
    for (int64_t v = 0; v < a->vocab; v++)
        for (int64_t i = 0; i < a->width; i++) {
            float sum = 0.0f, run = 0.0f;
            int64_t n = 0;
            for (int64_t r = 0; r < a->ids.rows; r++) {
                if (*(int32_t *)dt_view_at(&a->ids, r, 0) != v)
                    continue;
                run += a->dout[r * a->width + i];
                if (++n % DT_EMBED_RUN == 0)
                    sum += run, run = 0.0f;
            }
            float *to = &a->dtable[v * a->width + i];
            *to = (a->accumulate ? *to : 0.0f) + (sum + run);
        }
    return DT_OK;
}

static double dot(const float *x, const float *y, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)y[i];
    return sum;
}

static void compare(struct parity *p, const struct shape *s)
{
    int64_t rows = s->rows, d = s->width, V = s->vocab;
    if (!parity_case(p, "embed: rows %lld, width %lld, vocab %lld, %s%s, tokens %d",
                     (long long)rows, (long long)d, (long long)V, dt_dtype_name(s->type),
                     s->accumulate ? " +=" : "", s->tokens))
        return;
    struct dt_view ids = dt_view_of(make_tokens(s), rows, 1, DT_I32);
    ids.stride = stride_of(s);
    struct dt_embed_forward_args forward = {
        .ids = ids, .table = normal_view(s->type, V, d, d, 1.0, 1), .out = guarded(rows * d * 4)};
    struct dt_embed_backward_args backward = {.width = d,
                                              .vocab = V,
                                              .ids = ids,
                                              .dout = normal(rows * d, 1.0, 2),
                                              .dtable = gradient_array(V * d, s->accumulate, 3),
                                              .accumulate = s->accumulate};
    // Lists of uneven length have blocks of every kind, so they run in every order of threads.
    p->one_run = !p->is_cpu && s->tokens != UNEVEN;
    PARITY(p, embed_forward, &forward);
    PARITY(p, embed_backward, &backward);
    p->one_run = false;
    // For a linear op ⟨dout, forward(v)⟩ = ⟨backward(dout), v⟩, in fp32 sums of up to `rows` terms.
    if (s->type == DT_F32 && !s->accumulate && rows * d < 2000)
        CHECK_NEAR(dot(backward.dout, forward.out, rows * d),
                   dot(backward.dtable, forward.table.data, V * d), 1e-5);
}

void parity_embed(struct parity *p)
{
    static const struct shape shapes[] = {
        {1, 1, 1, DT_F32, false, TEXT},
        {2, 3, 2, DT_BF16, true, TEXT},
        {57, 19, 23, DT_F32, false, TEXT},
        {67, 8, 255, DT_F32, false, TEXT},
        {130, 65, 300, DT_F32, true, TEXT},
        {300, 20, 256, DT_BF16, true, TEXT},
        {60, 264, 257, DT_F32, false, TEXT},
        {500, 12, 40, DT_BF16, true, ONE},
        {128, 4, 3, DT_F32, false, ONE},
        {129, 3, 3, DT_F32, true, ONE},
        {700, 520, 9, DT_F32, false, TWO},
        {384, 4, 300, DT_F32, true, TWO},
        {2100, 5, 300, DT_BF16, true, TEXT},
        {2600, 4, 1000, DT_F32, true, UNEVEN},
        // There are more sorting threads than a block sums counters at a time; three passes.
        {64 * 256 + 1, 1, 200, DT_F32, false, TEXT},
        {33, 1, 70001, DT_F32, false, TEXT},
    };
    static const struct shape model[] = {
        {MODEL_LENGTH, MODEL_WIDTH, MODEL_VOCAB, DT_F32, true, TEXT},
        {2 * MODEL_LENGTH, MODEL_WIDTH, MODEL_VOCAB, DT_BF16, true, TEXT}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes && !p->model; i++)
        compare(p, &shapes[i]);
    for (size_t i = 0; i < sizeof model / sizeof *model && p->model; i++)
        compare(p, &model[i]);
}

// A window that is run in segments, forward keeping the states at their borders and backward from
// the last segment to the first with the gradients of these states, gives the gradients of the
// whole window: models of every kind of block, documents that start anywhere, windows that are no
// whole number of segments.
#include "random_pass.h"

enum { B = 3, L = 171, ROWS = B * L, SEGMENTS_MOST = 8 };

// Copies positions [first, first + length) of all sequences of the pass's arrays.
static struct dt_model_input cut(const struct random_pass *p, int64_t first, int64_t length)
{
    struct dt_model_input input = {.sequences = B, .length = length};
    for (int i = 0; i < dt_model_arrays(p->model)->n; i++) {
        const struct dt_array_spec *spec = &dt_model_arrays(p->model)->arrays[i];
        size_t each = (size_t)dt_array_bytes(spec, 1), bytes = each * (size_t)length;
        char *to = malloc(B * bytes);
        for (int64_t b = 0; b < B; b++)
            memcpy(to + (size_t)b * bytes, (char *)p->arrays[i] + (size_t)(b * L + first) * each,
                   bytes);
        input.arrays[i] = to;
    }
    return input;
}

static void release(struct dt_model_input *input)
{
    for (int i = 0; i < DT_BATCH_ARRAYS; i++)
        free((void *)(uintptr_t)input->arrays[i]);
}

// The residual streams of all positions into `streams` [B, L, d], the sum of losses into *sum.
static void run_segments(struct random_pass *p, int64_t segment, float *streams,
                         struct dt_loss_sum *sum)
{
    int64_t n = (L + segment - 1) / segment, d = dt_model_config(p->model)->d_model;
    struct dt_model_state *states[SEGMENTS_MOST + 1], *gradients[2];
    for (int64_t i = 0; i <= n; i++)
        CHECK_OK(dt_model_state_create(p->model, B, &states[i]));
    for (int i = 0; i < 2; i++)
        CHECK_OK(dt_model_state_create_gradient(p->model, B, &gradients[i]));
    for (int64_t turn = 0; turn < 2 * n; turn++) {
        bool backward = turn >= n;
        int64_t i = backward ? 2 * n - 1 - turn : turn, first = i * segment,
                length = first + segment < L ? segment : L - first;
        struct dt_pass pass = {.input = cut(p, first, length),
                               .before = i > 0 ? states[i] : NULL,
                               .after = states[i + 1]};
        if (backward) {
            pass.accumulate = i < n - 1;
            pass.dafter = i < n - 1 ? gradients[(i + 1) % 2] : NULL;
            pass.dbefore = i > 0 ? gradients[i % 2] : NULL;
        }
        CHECK_OK(dt_model_forward(p->model, &pass));
        const float *stream = dt_model_residual(p->model, &pass).data;
        for (int64_t b = 0; b < B; b++)
            memcpy(streams + (b * L + first) * d, stream + b * length * d,
                   (size_t)(length * d) * sizeof *stream);
        if (backward) {
            CHECK_OK(dt_model_loss(p->model, &pass, 0x1p-9, sum));
            CHECK_OK(dt_model_backward(p->model, &pass));
        }
        release(&pass.input);
    }
    for (int64_t i = 0; i <= n; i++)
        dt_model_state_destroy(p->model, states[i]);
    for (int i = 0; i < 2; i++)
        dt_model_state_destroy(p->model, gradients[i]);
}

// Sums are in fp32 and in another order: of a product of matrices, whose order follows from its
// number of rows, of what a position sees in attention, and of gradients over positions.
static void test_model(const char *layers, enum dt_recompute recompute, int64_t segment,
                       int64_t window)
{
    struct dt_model_config config = random_pass_config("tokens", layers, "lm");
    struct random_pass p;
    struct dt_loss_sum got = {0};
    int64_t d = config.d_model;
    config.recompute = recompute;
    WHOLE_OF(config, attn_window) = window;
    random_pass_open(&p, 2);
    random_pass_create(&p, &config, B, L);
    struct dt_loss_sum want = random_pass_run(&p, false);
    size_t bytes = (size_t)p.elements * sizeof(float), stream_bytes = ROWS * (size_t)d * 4;
    float *gradients = malloc(bytes), *whole = malloc(stream_bytes), *parts = malloc(stream_bytes);
    memcpy(gradients, dt_model_gradients(p.model), bytes);
    memcpy(whole, dt_model_residual(p.model, &p.pass).data, stream_bytes);
    run_segments(&p, segment, parts, &got);
    double off = random_pass_distance(parts, whole, ROWS * d);
    CHECK(off < 1e-6, "%s, segments of %d: the stream differs by %.2g", layers, (int)segment, off);
    CHECK(got.counted == want.counted && fabs(got.loss / want.loss - 1) < 1e-6,
          "%s, segments of %d: loss %.9g of %g, not %.9g of %g", layers, (int)segment, got.loss,
          got.counted, want.loss, want.counted);
    for (int i = 0; i < dt_model_params(p.model)->n; i++) {
        const struct dt_param *row = &dt_model_params(p.model)->rows[i];
        off = random_pass_distance(dt_model_gradients(p.model) + row->offset,
                                   gradients + row->offset, row->count);
        CHECK(off < 1e-5, "%s, segments of %d: the gradient of %s differs by %.2g", layers,
              (int)segment, row->name, off);
    }
    free(gradients);
    free(whole);
    free(parts);
    random_pass_close(&p);
}

int main(void)
{
    static const char *const layers[] = {"mamba*2", "mamba2*2", "gru*2", "lstm*2", "attention*2"};
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        for (int64_t segment = 50; segment <= 64; segment += 14) // not whole chunks, and whole ones
            test_model(layers[i], DT_RECOMPUTE_NONE, segment, 8);
    test_model("attention*2", DT_RECOMPUTE_NONE, 64, 100); // a window of two segments
    for (enum dt_recompute recompute = DT_RECOMPUTE_NONE; recompute <= DT_RECOMPUTE_BLOCK;
         recompute++)
        test_model("mamba attention mlp gru mamba2 lstm", recompute, 64, 8);
    return test_end();
}

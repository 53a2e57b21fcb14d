// Exchanges weights and moving average, for a validation, and exchanges them back. The gradients,
// whose memory serves for that, must be zero again, padding included, and the bf16 copies must
// follow.
#include "train/optimizer.h"

#include "op_fixture.h"
#include "small_model.h"

static void fill(float *x, int64_t n, float value)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = value + (float)i;
}

static void check(const char *what, const float *x, int64_t n, float value, float step)
{
    int64_t wrong = 0;
    for (int64_t i = 0; i < n; i++)
        wrong += x[i] != value + step * (float)i;
    CHECK(wrong == 0, "%lld of %lld %s are wrong", (long long)wrong, (long long)n, what);
}

int main(void)
{
    struct dt_backend backend;
    struct dt_optimizer o;
    CHECK_OK(dt_backend_open("cpu", 0, 1, &backend));
    struct small_model small = small_model_make(true);
    small.config.storage = DT_BF16;
    const struct dt_model_shape shape = {.sequences = 1, .length = 1, .training = true};
    struct dt_model *model;
    CHECK_OK(dt_model_create(&backend, &small.config, &shape, &model));
    int64_t n = dt_model_params(model)->elements;
    struct dt_span all = {0, n};
    struct dt_pieces pieces = {&all, 1, 0, n};
    const struct dt_optimizer_config config = {.beta1 = 0.9f, .beta2 = 0.95f, .ema = 0.5f};
    CHECK_OK(dt_optimizer_create(&backend, model, &config, &pieces, &o));
    float *weights = dt_model_weights(model), *gradients = dt_model_gradients(model);
    float *average = dt_optimizer_state(&o.states, "ema");
    fill(weights, n, 1);
    CHECK_OK(dt_optimizer_start_ema(&o));
    check("averages at the start", average, n, 1, 1);
    fill(weights, n, 2000);
    for (int swaps = 1; swaps <= 2; swaps++) {
        fill(gradients, n, 5);
        CHECK_OK(dt_optimizer_swap_ema(&o, NULL));
        check("weights", weights, n, swaps == 1 ? 1 : 2000, 1);
        check("averages", average, n, swaps == 1 ? 2000 : 1, 1);
        check("gradients", gradients, n, 0, 0);
        const dt_bf16 *copies = dt_model_weights_bf16(model);
        for (int64_t i = 0; i < n; i++)
            CHECK(copies[i] == dt_f32_to_bf16(weights[i]), "copy %lld", (long long)i);
    }
    dt_optimizer_destroy(&o);
    dt_model_destroy(model);
    small_model_free(&small);
    dt_backend_close(&backend);
    return test_end();
}

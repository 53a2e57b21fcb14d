// A training step on synthetic tokens in one process, as train.c takes it but for data and ranks.
#include "cmd/bench.h"

#include "base/rng.h"
#include "train/device.h"
#include "train/weights.h"

#include <stdlib.h>

enum { SEED = 1337 };
static const float learning_rate = 1e-3f;

static struct dt_settings optimizer_settings(void)
{
    return (struct dt_settings){
        .optim = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .grad_clip = 1.0}};
}

static dt_status open_backend(const struct dt_bench_options *options, dt_bench_wrap wrap,
                              struct dt_bench_rig *rig)
{
    DT_TRY(dt_device_open_alone((int)options->device, (int)options->threads, &rig->backend));
    DT_TRY(rig->backend.table->info(rig->backend.device, &rig->info));
    if (wrap)
        rig->backend.op = wrap(rig->backend.op);
    return DT_OK;
}

static dt_status create_model(const struct dt_bench_options *options, struct dt_bench_rig *rig)
{
    bool bf16 = options->precision == DT_PRECISION_BF16 ||
                (options->precision == DT_PRECISION_AUTO && rig->info.bf16);
    struct dt_model_config config = {.d_model = options->d_model,
                                     .n_layer = options->n_layer,
                                     .vocab_size = options->vocab,
                                     .d_state = options->d_state,
                                     .d_conv = 4,
                                     .expand = 2,
                                     .norm_eps = 1e-5,
                                     .tie_embeddings = true,
                                     .pad_vocab_multiple = 8,
                                     .recompute = (enum dt_recompute)options->recompute,
                                     .storage = bf16 ? DT_BF16 : DT_F32};
    struct dt_model_shape shape = {
        .sequences = rig->micro, .length = rig->length, .training = true};
    DT_TRY(dt_model_create(&rig->backend, &config, &shape, &rig->model));
    struct dt_settings settings = optimizer_settings();
    DT_TRY(dt_optimizer_create(&rig->backend, rig->model, &settings, &rig->optimizer));
    return rig->backend.table->to_device(rig->backend.device, rig->optimizer.lr, &learning_rate,
                                         sizeof learning_rate, NULL);
}

static dt_status draw_weights(void *context, const struct dt_params *params, float *weights)
{
    (void)context;
    dt_params_init(params, SEED, weights);
    return DT_OK;
}

static dt_status take_tokens(struct dt_bench_rig *rig)
{
    const struct dt_device_table *table = rig->backend.table;
    int64_t bytes = rig->batch * rig->length * (int64_t)sizeof *rig->ids;
    DT_TRY(table->alloc(rig->backend.device, bytes, (void **)&rig->ids));
    DT_TRY(table->alloc(rig->backend.device, bytes, (void **)&rig->labels));
    rig->tokens = malloc((size_t)(rig->batch * (rig->length + 1)) * sizeof *rig->tokens);
    return rig->tokens ? DT_OK
                       : DT_FAIL(DT_MACHINE, NULL, "no memory for %lld sequences of %lld tokens",
                                 (long long)rig->batch, (long long)rig->length);
}

dt_status dt_bench_rig_choose(struct dt_bench_rig *rig)
{
    const struct dt_device_table *table = rig->backend.table;
    char *text = NULL;
    if (!table->choose)
        return DT_OK;
    DT_TRY(table->choose(rig->backend.device, rig->algorithms, &text));
    free(rig->algorithms);
    rig->algorithms = text;
    return DT_OK;
}

static dt_status rig_open(const struct dt_bench_options *options, dt_bench_wrap wrap,
                          struct dt_bench_rig *rig)
{
    DT_TRY(open_backend(options, wrap, rig));
    DT_TRY(create_model(options, rig));
    DT_TRY(dt_weights_load(&rig->backend, rig->model, draw_weights, NULL));
    DT_TRY(take_tokens(rig));
    DT_TRY(dt_bench_rig_choose(rig));
    if (!wrap)
        return DT_OK;
    int64_t bytes = dt_model_table(rig->model)->elements * (int64_t)sizeof *rig->spare;
    return rig->backend.table->alloc(rig->backend.device, bytes, (void **)&rig->spare);
}

dt_status dt_bench_rig_open(const struct dt_bench_options *options, dt_bench_wrap wrap,
                            struct dt_bench_rig *rig)
{
    *rig = (struct dt_bench_rig){.batch = options->batch,
                                 .micro = options->micro_batch > 0 ? options->micro_batch
                                                                   : options->batch,
                                 .length = options->seq_len};
    dt_status status = rig_open(options, wrap, rig);
    if (status != DT_OK)
        dt_bench_rig_close(rig);
    return status;
}

void dt_bench_rig_close(struct dt_bench_rig *rig)
{
    void *memory[] = {rig->ids, rig->labels, rig->spare};
    for (int i = 0; i < 3; i++)
        if (memory[i])
            rig->backend.table->free(rig->backend.device, memory[i]);
    if (rig->optimizer.backend)
        dt_optimizer_destroy(&rig->optimizer);
    dt_model_destroy(rig->model);
    if (rig->backend.table)
        dt_backend_close(&rig->backend);
    free(rig->tokens);
    free(rig->algorithms);
    *rig = (struct dt_bench_rig){0};
}

dt_status dt_bench_rig_draw(struct dt_bench_rig *rig)
{
    const struct dt_device_table *table = rig->backend.table;
    struct dt_philox rng = dt_philox_init(SEED, 0, rig->steps);
    uint64_t vocab = (uint64_t)dt_model_config(rig->model)->vocab_size;
    int64_t window = rig->length + 1, bytes = rig->length * (int64_t)sizeof *rig->ids;
    for (int64_t i = 0; i < rig->batch * window; i++)
        rig->tokens[i] = (int32_t)dt_philox_below(&rng, vocab);
    for (int64_t b = 0; b < rig->batch; b++) {
        const int32_t *row = rig->tokens + b * window;
        int64_t to = b * rig->length;
        DT_TRY(table->to_device(rig->backend.device, rig->ids + to, row, bytes, NULL));
        DT_TRY(table->to_device(rig->backend.device, rig->labels + to, row + 1, bytes, NULL));
    }
    rig->steps++;
    return table->stream_sync(rig->backend.device, NULL);
}

dt_status dt_bench_rig_step(struct dt_bench_rig *rig)
{
    const struct dt_device_table *table = rig->backend.table;
    double expected = (double)rig->batch * (double)rig->length;
    DT_TRY(
        table->fill(rig->backend.device, rig->optimizer.sum, 0, sizeof *rig->optimizer.sum, NULL));
    for (int64_t b = 0; b < rig->batch; b += rig->micro) {
        struct dt_model_input input = {.sequences = rig->micro,
                                       .length = rig->length,
                                       .ids = rig->ids + b * rig->length,
                                       .labels = rig->labels + b * rig->length};
        DT_TRY(dt_model_forward(rig->model, &input, NULL, NULL, NULL));
        DT_TRY(dt_model_loss(rig->model, &input, 1 / expected, b > 0, rig->optimizer.sum, NULL));
        DT_TRY(dt_model_backward(rig->model, &input, NULL, b > 0, NULL, NULL, NULL));
    }
    DT_TRY(dt_optimizer_step(&rig->optimizer, expected, NULL));
    return table->stream_sync(rig->backend.device, NULL);
}

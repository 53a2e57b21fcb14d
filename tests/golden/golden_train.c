// Ten training steps on the batches of a golden file, as the training loop runs them on one rank:
// forward, loss and backward of every micro-batch, then sum_squares, update_control, adamw.
#include "golden.h"

#include <stdlib.h>
#include <string.h>

struct trainer {
    const struct golden_run *run;
    const struct dt_backend *backend;
    const struct golden *golden;
    struct dt_model *model;
    int64_t elements, positions; // positions: B * T
    int64_t n_micro;
    struct dt_model_state **before; // [n_micro], or NULL: no initial state
    // Device memory.
    int32_t *ids, *labels;
    uint8_t *reset;
    float *m, *v;
    struct dt_adamw_span *spans;
    int64_t n_spans;
    struct dt_loss_sum *sum;
    double *sum_squares;
    struct dt_update_control *control;
    float *logits; // of a micro-batch
    void *workspace;
    int64_t workspace_bytes;
};

static void *alloc(const struct dt_backend *backend, int64_t bytes)
{
    void *memory = NULL;
    golden_must(dt_alloc(backend, bytes, &memory));
    return memory;
}

static void to_device(const struct dt_backend *backend, void *to, const void *from, int64_t bytes)
{
    golden_must(dt_to_device(backend, to, from, bytes, NULL));
    golden_must(dt_stream_sync(backend, NULL));
}

static void to_host(const struct dt_backend *backend, void *to, const void *from, int64_t bytes)
{
    golden_must(dt_to_host(backend, to, from, bytes, NULL));
    golden_must(dt_stream_sync(backend, NULL));
}

static void *host_copy(const struct dt_backend *backend, const void *from, int64_t bytes)
{
    void *to = malloc((size_t)bytes);
    to_host(backend, to, from, bytes);
    return to;
}

static void load_weights(struct trainer *t)
{
    const struct dt_params *params = dt_model_params(t->model);
    float *flat = calloc((size_t)t->elements, sizeof *flat);
    for (int row = 0; row < params->n; row++) {
        const struct dt_param *param = &params->rows[row];
        int64_t count;
        float *values = golden_tensor(t->golden, &count, "%s", param->name);
        if (!values || count != param->file_count) {
            golden_must(DT_FAIL(DT_USER, "run make_golden.py",
                                "%s: tensor %s is missing or has another size",
                                t->golden->file->path, param->name));
        }
        memcpy(flat + param->offset, values, (size_t)count * sizeof *flat);
        free(values);
    }
    to_device(t->backend, dt_model_weights(t->model), flat, t->elements * 4);
    free(flat);
    golden_must(dt_model_refresh(t->model, NULL));
}

// `values` [count] fp32 into device memory of storage type.
static void put_storage(struct trainer *t, void *to, const float *values, int64_t count)
{
    if (t->run->storage == DT_F32) {
        to_device(t->backend, to, values, count * 4);
        return;
    }
    dt_bf16 *rounded = malloc((size_t)count * sizeof *rounded);
    for (int64_t i = 0; i < count; i++)
        rounded[i] = dt_f32_to_bf16(values[i]);
    to_device(t->backend, to, rounded, count * 2);
    free(rounded);
}

// The state before micro-batch `index`: its sequences' part of the golden tensors.
static struct dt_model_state *load_state(struct trainer *t, int64_t index)
{
    int64_t micro = t->run->micro, h_count, x_count;
    struct dt_model_state *state;
    golden_must(dt_model_state_create(t->model, micro, &state));
    for (int64_t layer = 0; layer < t->golden->config.n_layer; layer++) {
        float *h0 = golden_tensor(t->golden, &h_count, "golden.h0.%d", (int)layer);
        float *x0 = golden_tensor(t->golden, &x_count, "golden.x0.%d", (int)layer);
        int64_t h_part = h_count / t->n_micro, x_part = x_count / t->n_micro;
        const struct dt_array_list *arrays = dt_model_state_arrays(t->model, layer);
        int ssm = dt_array_list_find(arrays, "ssm_state"),
            conv = dt_array_list_find(arrays, "conv_state");
        to_device(t->backend, dt_model_state_array(state, layer, ssm), h0 + index * h_part,
                  h_part * 4);
        put_storage(t, dt_model_state_array(state, layer, conv), x0 + index * x_part, x_part);
        free(h0);
        free(x0);
    }
    return state;
}

static void make_spans(struct trainer *t)
{
    struct dt_adamw_span *spans;
    golden_must(dt_params_spans(dt_model_params(t->model), (float)t->golden->weight_decay, &spans,
                                &t->n_spans));
    t->spans = alloc(t->backend, t->n_spans * (int64_t)sizeof *spans);
    to_device(t->backend, t->spans, spans, t->n_spans * (int64_t)sizeof *spans);
    free(spans);
}

static void trainer_open(struct trainer *t, const struct golden_run *run)
{
    const struct golden *golden = run->golden;
    *t = (struct trainer){.run = run, .backend = run->backend, .golden = golden};
    struct dt_model_config config = golden->config;
    struct dt_model_shape shape = {run->micro, golden->length, true};
    config.recompute = run->recompute;
    config.storage = run->storage;
    golden_must(dt_model_create(t->backend, &config, &shape, &t->model));
    t->elements = dt_model_params(t->model)->elements;
    t->positions = golden->batch * golden->length;
    t->n_micro = golden->batch / run->micro;
    load_weights(t);
    if (golden->state) {
        t->before = calloc((size_t)t->n_micro, sizeof(struct dt_model_state *));
        for (int64_t i = 0; i < t->n_micro; i++)
            t->before[i] = load_state(t, i);
    }
    t->ids = alloc(t->backend, t->positions * 4);
    t->labels = alloc(t->backend, t->positions * 4);
    t->reset = golden->reset ? alloc(t->backend, t->positions) : NULL;
    t->m = alloc(t->backend, t->elements * 4);
    t->v = alloc(t->backend, t->elements * 4);
    make_spans(t);
    t->sum = alloc(t->backend, sizeof *t->sum);
    t->sum_squares = alloc(t->backend, sizeof *t->sum_squares);
    t->control = alloc(t->backend, sizeof *t->control);
    t->logits = alloc(t->backend, run->micro * golden->length * config.vocab_size * 4);
    t->workspace_bytes =
        dt_sum_squares_workspace(t->backend, &(struct dt_sum_squares_args){.n = t->elements});
    t->workspace = alloc(t->backend, t->workspace_bytes);
}

static void trainer_close(struct trainer *t)
{
    void *memory[] = {t->ids, t->labels,      t->reset,   t->m,      t->v,        t->spans,
                      t->sum, t->sum_squares, t->control, t->logits, t->workspace};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        dt_free(t->backend, memory[i]);
    for (int64_t i = 0; t->before && i < t->n_micro; i++)
        dt_model_state_destroy(t->model, t->before[i]);
    free(t->before);
    dt_model_destroy(t->model);
}

static void load_batch(struct trainer *t, int step)
{
    const struct golden *golden = t->golden;
    int64_t first = step * t->positions;
    to_device(t->backend, t->ids, golden->ids + first, t->positions * 4);
    to_device(t->backend, t->labels, golden->labels + first, t->positions * 4);
    if (golden->reset)
        to_device(t->backend, t->reset, golden->reset + first, t->positions);
}

static void set_array(const struct trainer *t, struct dt_model_input *input, const char *name,
                      const void *data)
{
    input->arrays[dt_array_list_find(dt_model_arrays(t->model), name)] = data;
}

// Forward, loss, backward of micro-batch `index`; logits of the first step into `logits` where not
// NULL.
static void micro_step(struct trainer *t, int64_t index, float *logits)
{
    int64_t micro = t->run->micro, length = t->golden->length, rows = micro * length;
    int64_t at = index * rows, vocab = t->golden->config.vocab_size;
    struct dt_pass pass = {.input = {.sequences = micro, .length = length},
                           .before = t->before ? t->before[index] : NULL,
                           .accumulate = index > 0};
    set_array(t, &pass.input, "input_ids", t->ids + at);
    set_array(t, &pass.input, "labels", t->labels + at);
    set_array(t, &pass.input, "reset", t->reset ? t->reset + at : NULL);
    golden_must(dt_model_forward(t->model, &pass));
    if (logits) {
        struct dt_view all = {.data = t->logits};
        golden_must(dt_model_logits(t->model, &pass, false, &all));
        to_host(t->backend, logits + at * vocab, t->logits, rows * vocab * 4);
    }
    golden_must(dt_model_loss(t->model, &pass, 1.0 / (double)t->positions, t->sum));
    golden_must(dt_model_backward(t->model, &pass));
}

static struct dt_update_control update(struct trainer *t, int step)
{
    const struct golden *golden = t->golden;
    float beta1 = (float)golden->beta1, beta2 = (float)golden->beta2;
    float lr = (float)golden->lr[step];
    struct dt_update_control control;
    golden_must(dt_sum_squares(t->backend,
                               &(struct dt_sum_squares_args){
                                   .n = t->elements,
                                   .x = dt_model_gradients(t->model),
                                   .sum = t->sum_squares,
                                   .workspace = t->workspace,
                                   .workspace_bytes = t->workspace_bytes,
                               },
                               NULL));
    golden_must(dt_update_control(t->backend,
                                  &(struct dt_update_control_args){
                                      .sum = t->sum,
                                      .sum_squares = t->sum_squares,
                                      .expected = (double)t->positions,
                                      .lr = &lr,
                                      .beta1 = beta1,
                                      .beta2 = beta2,
                                      .grad_clip = (float)golden->grad_clip,
                                      .control = t->control,
                                  },
                                  NULL));
    golden_must(dt_adamw(t->backend,
                         &(struct dt_adamw_args){
                             .n = t->elements,
                             .weight = dt_model_weights(t->model),
                             .m = t->m,
                             .v = t->v,
                             .grad = dt_model_gradients(t->model),
                             .copy = dt_model_weights_bf16(t->model),
                             .beta1 = beta1,
                             .beta2 = beta2,
                             .eps = (float)golden->eps,
                             .n_spans = t->n_spans,
                             .spans = t->spans,
                             .control = t->control,
                         },
                         NULL));
    to_host(t->backend, &control, t->control, sizeof control);
    return control;
}

static void keep_gradients(struct trainer *t, struct golden_trace *trace, double correction)
{
    trace->gradients = host_copy(t->backend, dt_model_gradients(t->model), t->elements * 4);
    for (int64_t i = 0; i < t->elements; i++)
        trace->gradients[i] = (float)(trace->gradients[i] * correction);
}

void golden_train(const struct golden_run *run, struct golden_trace *trace)
{
    struct trainer t;
    trainer_open(&t, run);
    *trace = (struct golden_trace){0};
    trace->logits = malloc((size_t)(t.positions * run->golden->config.vocab_size) * sizeof(float));
    for (int step = 0; step < GOLDEN_STEPS; step++) {
        load_batch(&t, step);
        golden_must(dt_fill(t.backend, t.sum, 0, sizeof *t.sum, NULL));
        for (int64_t index = 0; index < t.n_micro; index++)
            micro_step(&t, index, step == 0 ? trace->logits : NULL);
        struct dt_update_control control = update(&t, step);
        if (step == 0)
            keep_gradients(&t, trace, (double)t.positions / control.counted);
        trace->loss[step] = control.loss;
        trace->grad_norm[step] = control.grad_norm;
    }
    trace->weights = host_copy(t.backend, dt_model_weights(t.model), t.elements * 4);
    golden_must(dt_model_list(dt_model_config(t.model), &trace->params, NULL));
    trainer_close(&t);
}

void golden_trace_free(struct golden_trace *trace)
{
    free(trace->gradients);
    free(trace->weights);
    free(trace->logits);
    dt_params_free(&trace->params);
}

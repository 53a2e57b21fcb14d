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
    void *arrays[DT_BATCH_ARRAYS]; // that the model reads, of one step; NULL: not in the file
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
            golden_must(DT_FAIL(DT_USER, "run the family's Python file",
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

// `values` [count] as device memory of `type`.
static void put(const struct dt_backend *backend, void *to, enum dt_dtype type, const float *values,
                int64_t count)
{
    int64_t bytes = count * dt_dtype_size(type);
    char *typed = malloc((size_t)bytes);
    for (int64_t i = 0; i < count; i++)
        if (type == DT_F32)
            ((float *)typed)[i] = values[i];
        else if (type == DT_BF16)
            ((dt_bf16 *)typed)[i] = dt_f32_to_bf16(values[i]);
        else if (type == DT_I32)
            ((int32_t *)typed)[i] = (int32_t)values[i];
        else
            typed[i] = (char)values[i];
    to_device(backend, to, typed, bytes);
    free(typed);
}

// The state before sequences [first, first + n) of the batch.
static struct dt_model_state *load_state(struct trainer *t, int64_t first, int64_t n)
{
    struct dt_model_state *state;
    golden_must(dt_model_state_create(t->model, n, &state));
    for (int64_t layer = 0; layer < t->golden->config.n_layer; layer++) {
        const struct dt_array_list *list = dt_model_state_arrays(t->model, layer);
        for (int i = 0; i < list->n; i++) {
            const struct dt_array_spec *spec = &list->arrays[i];
            if (spec->width == 0)
                continue;
            float *values = golden_tensor(t->golden, NULL, "before.%d.%s", (int)layer, spec->name);
            put(t->backend, dt_model_state_array(state, layer, i), spec->type,
                values + first * spec->width, n * spec->width);
            free(values);
        }
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
    struct dt_model_shape shape = {
        .sequences = run->micro, .length = golden->length, .training = true};
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
            t->before[i] = load_state(t, i * run->micro, run->micro);
    }
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
    void *memory[] = {t->m,           t->v,       t->spans,  t->sum,
                      t->sum_squares, t->control, t->logits, t->workspace};
    for (int i = 0; i < DT_BATCH_ARRAYS; i++)
        dt_free(t->backend, t->arrays[i]);
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        dt_free(t->backend, memory[i]);
    for (int64_t i = 0; t->before && i < t->n_micro; i++)
        dt_model_state_destroy(t->model, t->before[i]);
    free(t->before);
    dt_model_destroy(t->model);
}

static void load_batch(struct trainer *t, int step)
{
    const struct dt_array_list *list = dt_model_arrays(t->model);
    for (int i = 0; i < list->n; i++) {
        const struct dt_array_spec *spec = &list->arrays[i];
        int64_t count, elements = t->positions * spec->width;
        float *values = golden_tensor(t->golden, &count, "batch.%s", spec->name);
        if (!values && spec->optional)
            continue;
        if (!values || count != t->golden->steps * elements)
            golden_must(DT_FAIL(DT_USER, "run the family's Python file",
                                "%s: batch.%s is missing or has another size",
                                t->golden->file->path, spec->name));
        if (!t->arrays[i])
            t->arrays[i] = alloc(t->backend, dt_array_bytes(spec, t->positions));
        put(t->backend, t->arrays[i], spec->type, values + step * elements, elements);
        free(values);
    }
}

// `sequences` times `length` positions of the batch, from position `first` of its B·T.
static struct dt_model_input input_rows(const struct trainer *t, int64_t sequences, int64_t length,
                                        int64_t first)
{
    const struct dt_array_list *list = dt_model_arrays(t->model);
    struct dt_model_input input = {.sequences = sequences, .length = length};
    for (int i = 0; i < list->n; i++)
        if (t->arrays[i])
            input.arrays[i] = (char *)t->arrays[i] + dt_array_bytes(&list->arrays[i], first);
    return input;
}

// Forward, loss, backward of micro-batch `index`; logits of the first step into `logits` where not
// NULL.
static void micro_step(struct trainer *t, int64_t index, float *logits)
{
    int64_t micro = t->run->micro, length = t->golden->length, rows = micro * length;
    int64_t at = index * rows, vocab = t->golden->config.vocab_size;
    struct dt_pass pass = {.input = input_rows(t, micro, length, at),
                           .before = t->before ? t->before[index] : NULL,
                           .accumulate = index > 0};
    golden_must(dt_model_forward(t->model, &pass));
    if (logits) {
        struct dt_view all = {.data = t->logits};
        golden_must(dt_model_logits(t->model, &pass, &all));
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
    if (dt_safetensors_find(run->golden->file, "golden.logits"))
        trace->logits =
            malloc((size_t)(t.positions * run->golden->config.vocab_size) * sizeof(float));
    for (int step = 0; step < run->golden->steps; step++) {
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

static int64_t state_count(const struct dt_model *model)
{
    int64_t count = 0;
    for (int64_t layer = 0; layer < dt_model_config(model)->n_layer; layer++)
        for (int i = 0; i < dt_model_state_arrays(model, layer)->n; i++)
            count += dt_model_state_arrays(model, layer)->arrays[i].width;
    return count;
}

static void to_floats(enum dt_dtype type, const void *from, int64_t count, float *to)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = type == DT_F32    ? ((const float *)from)[i]
                : type == DT_BF16 ? dt_bf16_to_f32(((const dt_bf16 *)from)[i])
                                  : (float)((const int32_t *)from)[i];
}

// Of one sequence.
static float *state_values(const struct trainer *t, const struct dt_model_state *state)
{
    float *values = malloc((size_t)state_count(t->model) * sizeof *values), *at = values;
    for (int64_t layer = 0; layer < t->golden->config.n_layer; layer++) {
        const struct dt_array_list *list = dt_model_state_arrays(t->model, layer);
        for (int i = 0; i < list->n; at += list->arrays[i++].width) {
            const struct dt_array_spec *spec = &list->arrays[i];
            if (spec->width == 0)
                continue;
            void *raw = host_copy(t->backend, dt_model_state_array(state, layer, i),
                                  dt_array_bytes(spec, 1));
            to_floats(spec->type, raw, spec->width, at);
            free(raw);
        }
    }
    return values;
}

double golden_windows(const struct golden_run *run, int64_t sequence, int64_t window, float **state)
{
    struct trainer t;
    struct dt_loss_sum sum;
    struct dt_model_state *states[2];
    const struct golden *golden = run->golden;
    trainer_open(&t, run);
    load_batch(&t, 0);
    golden_must(dt_fill(t.backend, t.sum, 0, sizeof *t.sum, NULL));
    golden_must(dt_model_state_create(t.model, 1, &states[1]));
    if (golden->state)
        states[0] = load_state(&t, sequence, 1);
    else
        golden_must(dt_model_state_create(t.model, 1, &states[0]));
    for (int64_t at = 0; at < golden->length; at += window) {
        struct dt_pass pass = {.input = input_rows(&t, 1, window, sequence * golden->length + at),
                               .before = states[at / window % 2],
                               .after = states[(at / window + 1) % 2]};
        golden_must(dt_model_forward(t.model, &pass));
        golden_must(dt_model_loss(t.model, &pass, 0, t.sum));
    }
    *state = state_values(&t, states[golden->length / window % 2]);
    to_host(t.backend, &sum, t.sum, sizeof sum);
    dt_model_state_destroy(t.model, states[0]);
    dt_model_state_destroy(t.model, states[1]);
    trainer_close(&t);
    return sum.loss;
}

float *golden_state(const struct golden_run *run, int64_t sequence, int64_t *count)
{
    struct trainer t;
    trainer_open(&t, run);
    *count = state_count(t.model);
    float *state = malloc((size_t)*count * sizeof *state), *at = state;
    for (int64_t layer = 0; layer < run->golden->config.n_layer; layer++) {
        const struct dt_array_list *list = dt_model_state_arrays(t.model, layer);
        for (int i = 0; i < list->n; at += list->arrays[i++].width) {
            const struct dt_array_spec *spec = &list->arrays[i];
            if (spec->width == 0)
                continue;
            float *values = golden_tensor(run->golden, NULL, "after.%d.%s", (int)layer, spec->name);
            memcpy(at, values + sequence * spec->width, (size_t)spec->width * sizeof *at);
            free(values);
        }
    }
    trainer_close(&t);
    return state;
}

// Trains on the batches of a golden file as the training loop does: forward, loss and backward of
// every micro-batch, sums over ranks, then the optimizer. The backend is the CPU, so the host may
// read and write its memory.
#include "golden.h"

#include "base/round.h"
#include "train/optimizer.h"
#include "train/segments.h"
#include "typed.h"

#include <stdlib.h>
#include <string.h>

struct trainer {
    const struct golden_run *run;
    const struct golden *golden;
    struct dt_model *model;
    struct dt_span all; // spans of the parameters' elements
    struct dt_optimizer optimizer;
    struct dt_segments segments;
    int64_t elements, positions; // positions: B * T
    int64_t first, n_micro; // this rank's sequences start at `first` and make n_micro micro-batches
    struct dt_model_state **before; // [n_micro] initial states; NULL: none
    void *arrays[DT_BATCH_ARRAYS]; // arrays of one step that the model reads; NULL: not in the file
};

// Returns a tensor of `count` elements that the file must have (malloc).
static float *need_tensor(const struct golden *golden, const char *name, int64_t count)
{
    int64_t there = 0;
    float *values = golden_tensor(golden, &there, "%s", name);
    if (!values || there != count)
        golden_must(DT_FAIL(DT_USER, "run the family's Python file",
                            "%s: tensor %s is missing or has another size", golden->file->path,
                            name));
    return values;
}

static void put(void *to, enum dt_dtype type, const float *values, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        set(to, type, i, (double)values[i]);
}

// One array of a state: the k-th that holds values, with its layers one after another.
struct state_array {
    int64_t layer;
    int index;
    const struct dt_array_spec *spec;
};

static bool state_array(const struct dt_model *model, int64_t k, struct state_array *array)
{
    for (int64_t layer = 0; layer < dt_model_config(model)->n_layer; layer++) {
        const struct dt_array_list *list = dt_model_state_arrays(model, layer);
        for (int i = 0; i < list->n; i++)
            if (list->arrays[i].width > 0 && k-- == 0) {
                *array = (struct state_array){layer, i, &list->arrays[i]};
                return true;
            }
    }
    return false;
}

// Returns the state before sequences [first, first + n) of the batch; zeros if the file has none.
static struct dt_model_state *load_state(struct trainer *t, int64_t first, int64_t n)
{
    struct dt_model_state *state;
    struct state_array a;
    golden_must(dt_model_state_create(t->model, n, &state));
    for (int64_t k = 0; t->golden->state && state_array(t->model, k, &a); k++) {
        float *values = golden_tensor(t->golden, NULL, "before.%d.%s", (int)a.layer, a.spec->name);
        put(dt_model_state_array(state, a.layer, a.index), a.spec->type,
            values + first * a.spec->width, n * a.spec->width);
        free(values);
    }
    return state;
}

static void trainer_open(struct trainer *t, const struct golden_run *run)
{
    const struct golden *golden = run->golden;
    struct dt_model_config config = golden->config;
    const struct dt_comm_info *ranks = &run->comm->info;
    const int64_t groups = ranks->size / run->context, sequences = golden->batch / groups;
    const struct dt_input_config batch = {.sequences = sequences,
                                          .length = golden->length,
                                          .micro = run->micro,
                                          .segment = run->segment,
                                          .context = run->context,
                                          .comm = run->comm};
    struct dt_model_shape shape = {.sequences = run->micro,
                                   .length = run->segment > 0 ? run->segment : golden->length,
                                   .training = true};
    const struct dt_optimizer_config optimizer = {.beta1 = (float)golden->beta1,
                                                  .beta2 = (float)golden->beta2,
                                                  .eps = (float)golden->eps,
                                                  .weight_decay = (float)golden->weight_decay,
                                                  .grad_clip = (float)golden->grad_clip,
                                                  .muon = golden->muon,
                                                  .momentum = (float)golden->momentum,
                                                  .groups = golden->groups,
                                                  .lr = 1};
    *t = (struct trainer){.run = run, .golden = golden};
    config.recompute = run->recompute;
    config.storage = run->storage;
    if (config.direction == DT_DIRECTION_BOTH && run->segment > 0) {
        shape.window = dt_round_up(golden->length, run->segment) / run->context;
        shape.context = run->context;
    }
    golden_must(dt_model_create(run->backend, &config, &shape, &t->model));
    t->elements = t->all.end = dt_model_params(t->model)->elements;
    t->positions = golden->batch * golden->length;
    t->first = ranks->rank / run->context * sequences;
    t->n_micro = sequences / run->micro;
    const struct dt_params *params = dt_model_params(t->model);
    for (const struct dt_param *row = params->rows; row < params->rows + params->n; row++) {
        float *values = need_tensor(golden, row->name, row->file_count);
        memcpy(dt_model_weights(t->model) + row->offset, values,
               (size_t)row->file_count * sizeof *values);
        free(values);
    }
    golden_must(dt_model_refresh(t->model, NULL));
    if (golden->state) {
        t->before = calloc((size_t)t->n_micro, sizeof(struct dt_model_state *));
        for (int64_t i = 0; i < t->n_micro; i++)
            t->before[i] = load_state(t, t->first + i * run->micro, run->micro);
    }
    golden_must(dt_segments_create(run->backend, t->model, &batch, &t->segments));
    golden_must(dt_optimizer_create(run->backend, t->model, &optimizer,
                                    &(struct dt_pieces){&t->all, 1, 0, t->elements},
                                    &t->optimizer));
}

static void trainer_close(struct trainer *t)
{
    dt_optimizer_destroy(&t->optimizer);
    dt_segments_destroy(&t->segments);
    for (int i = 0; i < DT_BATCH_ARRAYS; i++)
        free(t->arrays[i]);
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
        int64_t elements = t->positions * spec->width;
        char name[64];
        snprintf(name, sizeof name, "batch.%s", spec->name);
        if (spec->optional && !dt_safetensors_find(t->golden->file, name))
            continue;
        float *values = need_tensor(t->golden, name, t->golden->batches * elements);
        if (!t->arrays[i])
            t->arrays[i] = malloc((size_t)dt_array_bytes(spec, t->positions));
        put(t->arrays[i], spec->type, values + step % t->golden->batches * elements, elements);
        free(values);
    }
    memset(t->optimizer.sum, 0, sizeof *t->optimizer.sum);
}

// Returns the inputs for `sequences` sequences of `length` positions that start at position `first`
// of the batch's B·T.
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

// Runs forward, loss and backward of micro-batch `index`. Its logits are copied to those of the
// batch unless `logits` is NULL.
static void micro_step(struct trainer *t, int64_t index, float *logits)
{
    int64_t micro = t->run->micro, length = t->golden->length;
    int64_t at = (t->first + index * micro) * length, last = t->segments.n - 1;
    double scale = 1.0 / (double)t->positions;
    struct dt_pass pass = {.input = input_rows(t, micro, length, at),
                           .before = t->before ? t->before[index] : NULL,
                           .accumulate = index > 0},
                   part;
    for (int64_t i = 0; i <= last; i++)
        golden_must(dt_segments_forward(&t->segments, &pass, i, &part));
    if (logits) {
        struct dt_view rows = {.data = logits + at * t->golden->config.vocab_size};
        golden_must(dt_model_logits(t->model, &pass, &rows));
    }
    golden_must(dt_segments_loss(&t->segments, &part, scale, t->optimizer.sum));
    golden_must(dt_segments_backward(&t->segments, &pass, last, &part));
    for (int64_t i = last - 1; i >= 0; i--) {
        golden_must(dt_segments_again(&t->segments, &pass, i, scale, t->optimizer.sum, &part));
        golden_must(dt_segments_backward(&t->segments, &pass, i, &part));
    }
    golden_must(dt_segments_settle(&t->segments));
}

static void sum_over_ranks(struct trainer *t)
{
    golden_must(
        dt_allreduce(t->run->comm, dt_model_gradients(t->model), t->elements, DT_F32, DT_SUM));
    golden_must(dt_allreduce(t->run->comm, t->optimizer.sum,
                             sizeof *t->optimizer.sum / sizeof(double), DT_F64, DT_SUM));
}

static float *copy_of(const float *from, int64_t n)
{
    return memcpy(malloc((size_t)n * sizeof *from), from, (size_t)n * sizeof *from);
}

void golden_train(const struct golden_run *run, struct golden_trace *trace)
{
    struct trainer t;
    trainer_open(&t, run);
    *trace = (struct golden_trace){0};
    if (dt_safetensors_find(run->golden->file, "golden.logits"))
        trace->logits =
            malloc((size_t)(t.positions * run->golden->config.vocab_size) * sizeof(float));
    for (int step = 0; step < run->steps; step++) {
        const struct dt_update_control *control = t.optimizer.control;
        load_batch(&t, step);
        for (int64_t index = 0; index < t.n_micro; index++)
            micro_step(&t, index, step == 0 ? trace->logits : NULL);
        sum_over_ranks(&t);
        *t.optimizer.lr = (float)run->golden->lr[step];
        golden_must(dt_optimizer_control(&t.optimizer, (double)t.positions, NULL));
        if (step == 0) { // before the update, which may overwrite the gradients

            trace->gradients = copy_of(dt_model_gradients(t.model), t.elements);
            for (int64_t i = 0; i < t.elements; i++)
                trace->gradients[i] =
                    (float)(trace->gradients[i] * ((double)t.positions / control->counted));
        }
        golden_must(dt_optimizer_update(&t.optimizer, NULL));
        trace->loss[step] = control->loss;
        trace->grad_norm[step] = control->grad_norm;
    }
    trace->weights = copy_of(dt_model_weights(t.model), t.elements);
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
    struct state_array a;
    int64_t count = 0;
    for (int64_t k = 0; state_array(model, k, &a); k++)
        count += a.spec->width;
    return count;
}

// Returns the values of the state of one sequence.
static float *state_values(const struct trainer *t, const struct dt_model_state *state)
{
    float *values = malloc((size_t)state_count(t->model) * sizeof *values), *at = values;
    struct state_array a;
    for (int64_t k = 0; state_array(t->model, k, &a); k++) {
        const void *from = dt_model_state_array(state, a.layer, a.index);
        for (int64_t i = 0; i < a.spec->width; i++)
            *at++ = (float)get(from, a.spec->type, i);
    }
    return values;
}

double golden_windows(const struct golden_run *run, int64_t sequence, int64_t window, float **state)
{
    struct trainer t;
    const struct golden *golden = run->golden;
    trainer_open(&t, run);
    load_batch(&t, 0);
    struct dt_model_state *states[2] = {load_state(&t, sequence, 1)};
    golden_must(dt_model_state_create(t.model, 1, &states[1]));
    for (int64_t at = 0; at < golden->length; at += window) {
        struct dt_pass pass = {.input = input_rows(&t, 1, window, sequence * golden->length + at),
                               .before = states[at / window % 2],
                               .after = states[(at / window + 1) % 2]};
        golden_must(dt_model_forward(t.model, &pass));
        golden_must(dt_model_loss(t.model, &pass, 0, t.optimizer.sum));
    }
    *state = state_values(&t, states[golden->length / window % 2]);
    double loss = t.optimizer.sum->loss;
    dt_model_state_destroy(t.model, states[0]);
    dt_model_state_destroy(t.model, states[1]);
    trainer_close(&t);
    return loss;
}

float *golden_state(const struct golden_run *run, int64_t sequence, int64_t *count)
{
    struct trainer t;
    struct state_array a;
    trainer_open(&t, run);
    *count = state_count(t.model);
    float *state = malloc((size_t)*count * sizeof *state), *at = state;
    for (int64_t k = 0; state_array(t.model, k, &a); k++, at += a.spec->width) {
        float *values = golden_tensor(run->golden, NULL, "after.%d.%s", (int)a.layer, a.spec->name);
        memcpy(at, values + sequence * a.spec->width, (size_t)a.spec->width * sizeof *at);
        free(values);
    }
    trainer_close(&t);
    return state;
}

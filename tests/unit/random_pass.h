// Passes of small models over random batches, on a CPU backend whose table of ops a test may change
// before it creates the model.
#pragma once

#include "backend/backend.h"
#include "base/rng.h"
#include "model/kinds.h"

#include "default_model.h"
#include "test.h"

// The defaults with these kinds and small sizes, which are multiples of 8.
static inline struct dt_model_config random_pass_config(const char *stem, const char *layers,
                                                        const char *heads)
{
    struct dt_model_config c = default_model(layers, 24, 40);
    snprintf(c.stem, sizeof c.stem, "%s", stem);
    snprintf(c.heads, sizeof c.heads, "%s", heads);
    c.frame_size = 16, WHOLE_OF(c, attn_window) = 8;
    WHOLE_OF(c, n_head) = 3, WHOLE_OF(c, n_kv_head) = 1, WHOLE_OF(c, head_dim) = 8,
                WHOLE_OF(c, n_groups) = 2, WHOLE_OF(c, d_state) = 4;
    WHOLE_OF(c, d_rnn) = 16;
    WHOLE_OF(c, d_mlp) = 40;
    CHECK_OK(dt_model_config_check(&c));
    return c;
}

struct random_pass {
    struct dt_op_table op; // of `backend`
    struct dt_backend backend;
    struct dt_model *model;
    struct dt_pass pass;
    void *arrays[DT_BATCH_ARRAYS];
    int64_t elements;
    // Set before random_pass_create:
    bool losses;     // of rows are wanted
    int64_t segment; // not 0: the model runs windows part by part, in segments of this length
};

static inline void random_pass_open(struct random_pass *p, int threads)
{
    *p = (struct random_pass){0};
    CHECK_OK(dt_backend_open("cpu", 0, threads, &p->backend));
    p->op = *p->backend.op;
    p->backend.op = &p->op;
}

// Weights are in [0, 1). A seventh of the labels and of the mask's positions does not count;
// documents start now and then.
static inline void random_pass_fill(const struct random_pass *p, const struct dt_array_spec *spec,
                                    int64_t positions, struct dt_philox *rng, void *to)
{
    const struct dt_outputs *outputs = dt_model_outputs(p->model);
    const int64_t vocab = dt_model_config(p->model)->vocab_size;
    for (int64_t i = 0; i < positions * spec->width; i++)
        if (strcmp(spec->name, "labels") == 0)
            ((int32_t *)to)[i] =
                i % 7 == 3 ? DT_IGNORED : (int32_t)dt_philox_below(rng, (uint32_t)vocab);
        else if (spec->type == DT_I32)
            ((int32_t *)to)[i] = (int32_t)dt_philox_below(rng, (uint32_t)vocab);
        else if (spec->type == DT_U8)
            ((uint8_t *)to)[i] = (uint8_t)(spec->name[0] == 'm' ? i % 7 != 3 : i % 50 == 31);
        else if (spec->type == DT_BF16)
            ((dt_bf16 *)to)[i] = dt_f32_to_bf16(dt_philox_normal(rng));
        else
            ((float *)to)[i] =
                spec->name[0] == 'w' ? dt_philox_uniform(rng) : dt_philox_normal(rng);
    bool targets = strcmp(spec->name, "targets") == 0;
    for (int64_t i = 0; i < positions && targets; i++)
        for (int k = 0; k < outputs->n; k++) {
            const struct dt_output *output = &outputs->list[k];
            float *value = (float *)to + i * spec->width + output->target;
            if (output->type == &dt_categorical)
                *value = (float)dt_philox_below(rng, (uint32_t)output->width);
            for (int64_t j = 0; output->type == &dt_bernoulli && j < output->size; j++)
                value[j] = (float)(value[j] > 0);
        }
}

// A model with initial weights, and a pass over `sequences` of `length`; the same ones of equal
// configurations, however the ops are cut.
static inline void random_pass_create(struct random_pass *p, const struct dt_model_config *config,
                                      int64_t sequences, int64_t length)
{
    const struct dt_model_shape shape = {.sequences = sequences,
                                         .length = p->segment > 0 ? p->segment : length,
                                         .window = p->segment > 0 ? length : 0,
                                         .training = true,
                                         .losses = p->losses};
    struct dt_philox rng = dt_philox_init(7, 0, 0);
    CHECK_OK(dt_model_create(&p->backend, config, &shape, &p->model));
    p->elements = dt_model_params(p->model)->elements;
    float *weights = calloc((size_t)p->elements, sizeof *weights);
    dt_params_init(dt_model_params(p->model), 3, weights);
    CHECK_OK(dt_model_set_weights(p->model, weights));
    free(weights);
    p->pass.input = (struct dt_model_input){.sequences = sequences, .length = length};
    for (int i = 0; i < dt_model_arrays(p->model)->n; i++) {
        const struct dt_array_spec *spec = &dt_model_arrays(p->model)->arrays[i];
        p->arrays[i] = malloc((size_t)dt_array_bytes(spec, sequences * length));
        random_pass_fill(p, spec, sequences * length, &rng, p->arrays[i]);
        p->pass.input.arrays[i] = p->arrays[i];
    }
}

// Forward, loss and backward.
static inline struct dt_loss_sum random_pass_run(struct random_pass *p, bool accumulate)
{
    struct dt_loss_sum sum = {0};
    p->pass.accumulate = accumulate;
    CHECK_OK(dt_model_forward(p->model, &p->pass));
    CHECK_OK(dt_model_loss(p->model, &p->pass, 0x1p-9, &sum));
    CHECK_OK(dt_model_backward(p->model, &p->pass));
    return sum;
}

static inline void random_pass_close(struct random_pass *p)
{
    dt_model_destroy(p->model);
    for (int i = 0; i < DT_BATCH_ARRAYS; i++)
        free(p->arrays[i]);
    dt_backend_close(&p->backend);
}

// |got - want| over |want|
static inline double random_pass_distance(const float *got, const float *want, int64_t n)
{
    double difference = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = (double)got[i] - (double)want[i];
        difference += d * d;
        size += (double)want[i] * (double)want[i];
    }
    return size > 0 ? sqrt(difference / size) : sqrt(difference);
}

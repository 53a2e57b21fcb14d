// Golden files (written by make_golden.py) and the training step that is compared with them: that
// of dtrain's loop, on one rank, through the public headers of model and backend only. A status
// other than DT_OK ends the test with the error's text.
#pragma once

#include "base/safetensors.h"
#include "model/model.h"

enum { GOLDEN_STEPS = 10 };

struct golden {
    struct dt_safetensors *file;
    struct dt_model_config config; // fp32, nothing recomputed
    int64_t batch, length;         // B, T
    double lr[GOLDEN_STEPS], beta1, beta2, eps, weight_decay, grad_clip;
    int32_t *ids, *labels; // [steps, B, T]
    uint8_t *reset;        // [steps, B, T], or NULL
    bool state;            // golden.h0.<layer> and golden.x0.<layer> are there
};

void golden_open(const char *path, struct golden *golden);
void golden_close(struct golden *golden);
// A tensor as fp32, malloc'ed; NULL where there is none. Its element count where `count` is not
// NULL.
float *golden_tensor(const struct golden *golden, int64_t *count, const char *name, ...)
    __attribute__((format(printf, 3, 4)));

struct golden_run {
    const struct golden *golden;
    const struct dt_backend *backend;
    int64_t micro; // sequences a micro-batch, divides B
    enum dt_recompute recompute;
    enum dt_dtype storage;
};

// What ten steps left, in host memory.
struct golden_trace {
    double loss[GOLDEN_STEPS], grad_norm[GOLDEN_STEPS];
    struct dt_params params; // offsets into the two arrays below
    float *gradients; // [elements] of the first step: of the mean over counted tokens, not clipped
    float *weights;   // [elements] after the last step
    float *logits;    // [B * T, vocab_size] of the first step
};

void golden_train(const struct golden_run *run, struct golden_trace *trace);
void golden_trace_free(struct golden_trace *trace);
void golden_must(dt_status status); // prints the error and ends the program where it is not DT_OK

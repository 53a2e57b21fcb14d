// Golden files (reference.py says what is in them) and the passes that are compared with them: the
// training step of dtrain's loop, through the public headers of model and optimizer only, on one
// rank or on ranks that share windows. A status other than DT_OK ends the test with the error's
// text.
#pragma once

#include "base/safetensors.h"
#include "comm/comm.h"
#include "model/model.h"

enum { GOLDEN_STEPS = 10 };

struct golden {
    struct dt_safetensors *file;
    struct dt_model_config config; // fp32, nothing recomputed
    int64_t batch, length;         // B, T
    int steps;                     // up to GOLDEN_STEPS
    double lr[GOLDEN_STEPS], beta1, beta2, eps, weight_decay, grad_clip;
    bool muon;
    double momentum;
    const char *groups;   // of rates, as factors
    bool state;           // before.LAYER.STATE are there
    int batches;          // that the steps use in turn
    const char *segments; // lengths, "64 512"; NULL: none
};

void golden_open(const char *path, struct golden *golden);
void golden_close(struct golden *golden);
// A tensor as fp32, malloc'ed; NULL where there is none. Its element count where `count` is not
// NULL.
float *golden_tensor(const struct golden *golden, int64_t *count, const char *name, ...)
    __attribute__((format(printf, 3, 4)));

struct golden_run {
    const struct golden *golden;
    const struct dt_backend *backend; // the CPU
    int64_t micro;                    // sequences a micro-batch, divides B
    enum dt_recompute recompute;
    enum dt_dtype storage;
    int steps;            // up to the file's
    int64_t segment;      // positions of a pass; 0: all
    struct dt_comm *comm; // its ranks train together, with the same results on each
    int64_t context;      // so many ranks share each window; their groups divide B
};

// What the steps left.
struct golden_trace {
    double loss[GOLDEN_STEPS], grad_norm[GOLDEN_STEPS];
    struct dt_params params; // offsets into the two arrays below
    float *gradients; // [elements] of the first step: of the mean over counted tokens, not clipped
    float *weights;   // [elements] after the last step
    float *logits;    // [B * T, vocab_size] of the first step, where the file has them
};

void golden_train(const struct golden_run *run, struct golden_trace *trace);
void golden_trace_free(struct golden_trace *trace);

// Forward passes of one sequence of the first batch in windows of `window` positions (divides T),
// the state carried: the sum of its losses, and the state after it, fp32, arrays one after another
// (malloc).
double golden_windows(const struct golden_run *run, int64_t sequence, int64_t window,
                      float **state);
// The state after `sequence` in the file, in the same order; NULL if the file has none.
float *golden_state(const struct golden_run *run, int64_t sequence, int64_t *count);
void golden_must(dt_status status); // prints the error and ends the program where it is not DT_OK

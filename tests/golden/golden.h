// Golden files (reference.py states their contents) and the training steps that are compared with
// them. The steps are those of dtrain's loop, on one rank or on ranks that share windows, and use
// only the public headers of model and optimizer. A status other than DT_OK ends the test with the
// error's text.
#pragma once

#include "base/safetensors.h"
#include "comm/comm.h"
#include "model/model.h"

enum { GOLDEN_STEPS = 10 };

struct golden {
    struct dt_safetensors *file;
    struct dt_model_config config; // fp32, nothing recomputed
    int64_t batch, length;         // B, T
    int steps;                     // at most GOLDEN_STEPS
    double lr[GOLDEN_STEPS], beta1, beta2, eps, weight_decay, grad_clip;
    bool muon;
    double momentum;
    const char *groups;   // groups of learning rates, given as factors
    bool state;           // the file has tensors before.LAYER.STATE
    int batches;          // how many batches the steps use in turn
    const char *segments; // lengths, "64 512"; NULL: none
};

void golden_open(const char *path, struct golden *golden);
void golden_close(struct golden *golden);
// Returns a tensor as fp32 (malloc), or NULL if there is none. `count` receives the number of its
// elements unless it is NULL.
float *golden_tensor(const struct golden *golden, int64_t *count, const char *name, ...)
    __attribute__((format(printf, 3, 4)));

struct golden_run {
    const struct golden *golden;
    const struct dt_backend *backend; // a CPU backend
    int64_t micro;                    // sequences in a micro-batch; divides B
    enum dt_recompute recompute;
    enum dt_dtype storage;
    int steps;            // at most as many as the file has
    int64_t segment;      // positions in a segment; 0: the whole window
    struct dt_comm *comm; // ranks that train together; all have the same results
    int64_t context;      // how many ranks share each window; their groups divide B
};

// Results of the steps.
struct golden_trace {
    double loss[GOLDEN_STEPS], grad_norm[GOLDEN_STEPS];
    struct dt_params params; // offsets into the two arrays below
    // [elements] of the first step: of the mean over counted tokens, before clipping.
    float *gradients;
    float *weights; // [elements] after the last step
    float *logits;  // [B * T, vocab_size] of the first step, if the file has logits
};

void golden_train(const struct golden_run *run, struct golden_trace *trace);
void golden_trace_free(struct golden_trace *trace);

// Runs forward passes over one sequence of the first batch in windows of `window` positions (which
// divides T), carrying the state. Returns the sum of the losses; *state receives the final state as
// fp32, one array after another (malloc).
double golden_windows(const struct golden_run *run, int64_t sequence, int64_t window,
                      float **state);
// Returns the state after `sequence` that the file holds, in the same order; NULL if it holds none.
float *golden_state(const struct golden_run *run, int64_t sequence, int64_t *count);
// Prints the error and ends the program unless the status is DT_OK.
void golden_must(dt_status status);

// Inference with models that dtrain trained: one frame or token in, outputs out. A C library
// without MPI and HDF5, for the CPU. A program, built by cc play.c $(pkg-config --cflags --libs
// dtrain_step):
//
//   #include <dtrain_step.h>
//   #include <stdio.h>
//   #include <stdlib.h>
//
//   int main(int argc, char **argv) // play runs/walk/checkpoints/step-00001000
//   {
//       dtrain_step *model;
//       struct dtrain_step_info info;
//       char why[1024];
//       if (argc < 2 || dtrain_step_open(argv[1], NULL, &model) != DTRAIN_STEP_OK)
//           return dtrain_step_error(why, sizeof why), fprintf(stderr, "%s\n", why), 1;
//       dtrain_step_describe(model, &info);
//       float *frame = calloc((size_t)info.frame_size + 1, sizeof *frame);
//       float *action = calloc((size_t)info.n_targets, sizeof *action);
//       int32_t *ids = calloc((size_t)info.n_ids + 1, sizeof *ids); // or the token
//       for (int t = 0; t < 10; t++) { // stream 0 advances by ten positions
//           dtrain_step_sample(model, 0, frame, ids, 1, action, NULL);
//           printf("%g\n", action[0]);
//       }
//       dtrain_step_close(model);
//       return 0;
//   }
//
// A handle has independent streams, each with its own recurrent state. A stream's outputs depend
// on its own inputs alone, and are bitwise identical for the same inputs; pooled outputs
// (model.heads: NAME:KIND/mean) cover all frames since the stream was reset. Functions return a
// code and never print, exit or abort; a failed call has changed no stream, unless the code is
// DTRAIN_STEP_MACHINE. All memory is allocated by dtrain_step_open, after the shapes of the model's
// files have been compared with config.json. Different threads may use different handles
// concurrently; a handle is used by one thread at a time.
//
// Even finite frames and weights can overflow. dtrain_step_step, _sample, _batch and _choose return
// DTRAIN_STEP_NOT_FINITE if an output of any stream of the call is infinite or NaN, or if values
// inside the model are so large that a norm would turn them into zeros. Then no stream of the call
// has advanced or drawn a random number: the program may give another frame, repeat the step, or
// reset the stream. The contents of `outputs` and `drawn` are undefined.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DTRAIN_STEP_API __attribute__((visibility("default")))

enum {
    DTRAIN_STEP_OK = 0,
    DTRAIN_STEP_USER = 2,       // an invalid argument, input or file
    DTRAIN_STEP_MACHINE = 3,    // out of memory, an I/O error
    DTRAIN_STEP_NOT_FINITE = 4, // a step's outputs are infinite or NaN
};

enum {
    DTRAIN_STEP_AS_STORED = 0, // as in the model's files
    DTRAIN_STEP_FP32 = 1,
    DTRAIN_STEP_BF16 = 2,
    DTRAIN_STEP_INT8 = 3, // int8 linear layers, the rest fp32
};

typedef struct dtrain_step dtrain_step;

// All zero: the defaults.
struct dtrain_step_options {
    int32_t streams; // 0: 1
    int32_t threads; // 0: 1
    int32_t weights; // DTRAIN_STEP_AS_STORED, …
    int32_t ema;     // 1: the moving average of the weights, if the checkpoint has one
    // Steps of one prediction to play, from 1 to info.chunk; 0: 1. A model whose targets are a
    // chunk (data.targets = actions@0:8: eight steps, side by side) then predicts only at every
    // action_steps-th step of a stream. In between, the drawn values are the last ones moved up by
    // one row, so that the first row is always the one to play; rows past the chunk's end repeat
    // its last row. The model still reads every frame, and `outputs` are those of the frame.
    int32_t action_steps;
};

struct dtrain_step_info {
    int32_t streams, threads, weights;
    int32_t n_ids;      // id columns per frame
    int64_t frame_size; // numbers per frame; 0: none, as with tokens
    int64_t vocab_size; // tokens are in [0, vocab_size); 0: the model reads frames
    int64_t parameters;
    int64_t state_bytes; // of a stream's saved state
    int32_t n_outputs;
    int32_t n_values;  // floats of all outputs of a position
    int32_t n_targets; // values drawn from the outputs
    int32_t chunk;     // rows of these values, one per step; 1: no chunk
    int32_t action_steps;
};

enum {
    DTRAIN_STEP_CATEGORICAL = 0, // `width` logits of classes; one value, the class, is drawn
    DTRAIN_STEP_BERNOULLI = 1,   // `width` logits; as many values are drawn, each 0 or 1
    DTRAIN_STEP_REGRESSION = 2,  // `width` values, drawn without noise
    // A mixture of K = width / (1 + 2 n) diagonal Gaussians over n = target_width numbers: K
    // logits, K times n means, K times n standard deviations. At temperature 0 the mean of the most
    // likely component is drawn, else a component and noise.
    DTRAIN_STEP_GMM = 3,
    // width / target_width quantiles of target_width numbers, the lowest level's first; those
    // nearest to the median are drawn.
    DTRAIN_STEP_QUANTILE = 4,
};

struct dtrain_step_output {
    char name[32];
    int32_t kind;
    int32_t first, width;         // its part of the outputs
    int32_t target, target_width; // its part of the drawn values
};

// Opens a checkpoint folder, verifying its files, or a Hugging Face directory. options may be NULL.
DTRAIN_STEP_API int dtrain_step_open(const char *path, const struct dtrain_step_options *options,
                                     dtrain_step **handle);
DTRAIN_STEP_API void dtrain_step_close(dtrain_step *handle); // NULL is fine

DTRAIN_STEP_API int dtrain_step_describe(const dtrain_step *handle, struct dtrain_step_info *info);
DTRAIN_STEP_API int dtrain_step_describe_output(const dtrain_step *handle, int32_t index,
                                                struct dtrain_step_output *output);

// Advances a stream by one position. frame: [frame_size] as recorded (the model normalises it), and
// ids [n_ids]; or NULL and one token in `ids`. outputs: [n_values], or NULL. Outputs that are
// conditioned on earlier outputs see their most likely values.
DTRAIN_STEP_API int dtrain_step_step(dtrain_step *handle, int32_t stream, const float *frame,
                                     const int32_t *ids, float *outputs);
// dtrain_step_step that also draws values: drawn [n_targets]. temperature 0: the most likely ones;
// 1: from the model's distribution. Conditioned outputs see the drawn values. outputs may be NULL.
DTRAIN_STEP_API int dtrain_step_sample(dtrain_step *handle, int32_t stream, const float *frame,
                                       const int32_t *ids, double temperature, float *drawn,
                                       float *outputs);
// Advances streams [first, first + n) by one position each; arrays are stored stream after stream.
// drawn and outputs may be NULL.
DTRAIN_STEP_API int dtrain_step_batch(dtrain_step *handle, int32_t first, int32_t n,
                                      const float *frames, const int32_t *ids, double temperature,
                                      float *drawn, float *outputs);

// How the next token of a language model is drawn, as in transformers' generate: positive logits of
// seen tokens are divided by the repetition penalty, others multiplied by it; all are divided by
// the temperature; then top_k, top_p and min_p remove unlikely tokens, in this order. The same
// logits and seed give the same token on every machine.
struct dtrain_step_choice {
    double temperature;        // 0: the most likely token
    double top_p;              // in (0, 1]; 1: all
    double min_p;              // in [0, 1]; 0: all
    double repetition_penalty; // above 0; 1: none
    int64_t top_k;             // 0: all
};
// dtrain_step_batch with tokens drawn by `choice`. seen [n, vocab_size]: 1 if a stream's text has
// the token, for the penalty; or NULL.
DTRAIN_STEP_API int dtrain_step_choose(dtrain_step *handle, int32_t first, int32_t n,
                                       const int32_t *tokens,
                                       const struct dtrain_step_choice *choice, const uint8_t *seen,
                                       float *drawn);

// A model may read its predictions for earlier frames, such as the previous action (data.inputs = …
// actions@-1). The library then overwrites these numbers and ids of a frame with the values drawn
// in the stream's earlier steps (the most likely ones after dtrain_step_step). At a stream's start
// they are missing, as at the start of an episode. Call this after a step if values other than
// those drawn were played: targets [n_targets]. A no-op without such inputs. For a chunk the first
// row is fed back, and with action_steps its later rows are still played.
DTRAIN_STEP_API int dtrain_step_feed(dtrain_step *handle, int32_t stream, const float *targets);

// Resets a stream; its random numbers continue.
DTRAIN_STEP_API int dtrain_step_reset(dtrain_step *handle, int32_t stream);
// Seeds the random numbers of a stream. By default each stream has a different seed.
DTRAIN_STEP_API int dtrain_step_seed(dtrain_step *handle, int32_t stream, uint64_t seed);
// Save and restore a stream, including its random numbers, as one block of state_bytes bytes. The
// block may be copied, stored, and restored into any stream of any handle with the same weights in
// the same type. It contains a hash of the model's architecture and type, a hash of all weights,
// and a checksum. dtrain_step_restore returns DTRAIN_STEP_USER, with a text that says which, for a
// block that is damaged, of another model, type or number of action_steps, of other weights
// (another training, or another step of it), or of an older version of this library without these
// hashes.
DTRAIN_STEP_API int dtrain_step_save(dtrain_step *handle, int32_t stream, void *block,
                                     size_t bytes);
DTRAIN_STEP_API int dtrain_step_restore(dtrain_step *handle, int32_t stream, const void *block,
                                        size_t bytes);

// Writes why the calling thread's last call failed to `text`, at most `size` bytes including the
// final zero; "" if it succeeded.
DTRAIN_STEP_API void dtrain_step_error(char *text, size_t size);

#ifdef __cplusplus
}
#endif

// A sequence model is a stem, a stack of blocks and a head, each of a kind (kinds.h). Its code is
// written once, against the op table. A training step is
//   dt_model_forward → dt_model_loss (with gradient) → dt_model_backward,
// with M = B·L rows of activations, channel-last. Nothing is allocated in a step: memory is planned
// and allocated at creation.
#pragma once

#include "backend/backend.h"
#include "base/arena.h"
#include "base/memory_plan.h"
#include "base/view.h"
#include "data/batch.h"
#include "model/config.h"
#include "model/params.h"

// Lists the parameters of this model (free them with dt_params_free), and the arrays of a batch
// that it reads. Either may be NULL.
dt_status dt_model_list(const struct dt_model_config *config, struct dt_params *params,
                        struct dt_array_list *arrays);
// Training FLOPs per token, the sum over the model's parts.
double dt_model_flops_per_token(const struct dt_model_config *config);

// Where memory goes. All of it is known before anything is allocated.
enum dt_memory {
    DT_MEMORY_WEIGHTS,      // fp32 masters
    DT_MEMORY_WEIGHTS_BF16, // rounded to bf16
    DT_MEMORY_WEIGHTS_INT8, // of linear layers, rounded to int8
    DT_MEMORY_GRADIENTS,    // fp32
    DT_MEMORY_ACTIVATIONS,  // kept from forward to backward
    DT_MEMORY_SCRATCH,      // shared by all layers: gradients of activations, what is recomputed
    DT_MEMORY_LOGITS,       // a tile
    DT_MEMORY_WORKSPACE,    // of ops
    DT_MEMORY_COUNT
};
extern const char *const dt_memory_name[DT_MEMORY_COUNT];

struct dt_model_shape {
    int64_t sequences, length; // the largest micro-batch of a pass
    // If not 0, windows are run part by part (dt_model_part_forward), each part in segments of up
    // to `length` positions. The stream between two parts is kept for this many positions, which
    // are all that this rank runs.
    int64_t window;
    int64_t context;    // with `window`: how many ranks share each window; 0: one
    bool training;      // false: no gradients, nothing kept for backward
    bool int8;          // linear layers multiply int8: not in training, and see gemm.h
    bool play;          // keeps a weight only in the types that forward reads
    bool losses;        // dt_model_loss keeps the loss of each position, if the head can
    int64_t ring_align; // not 0: gradients are a ring, cut at multiples of it (base/ring.h)
    bool ring_weights;  // the weights that a pass reads are a ring too
};
// Adds what this model at this shape allocates on the device, by category; keeps no memory
// itself. *params gets the measured parameter table (free it with dt_params_free); may be NULL.
dt_status dt_model_plan(const struct dt_backend *backend, const struct dt_model_config *config,
                        const struct dt_model_shape *shape, struct dt_memory_plan *plan,
                        struct dt_params *params);

struct dt_model;
struct dt_net; // net.h

// A row of the table that is the weight of a linear layer, in int8 (kernels/quantize.h).
struct dt_int8 {
    int64_t out, in; // 0: no linear layer
    int8_t *data;    // [out, in]
    float *scale;    // [out]
};

dt_status dt_model_create(const struct dt_backend *backend, const struct dt_model_config *config,
                          const struct dt_model_shape *shape, struct dt_model **model);
void dt_model_destroy(struct dt_model *model); // NULL is fine
const struct dt_model_config *dt_model_config(const struct dt_model *model);
const struct dt_model_shape *dt_model_shape(const struct dt_model *model);
const struct dt_params *dt_model_params(const struct dt_model *model);
const struct dt_array_list *dt_model_arrays(const struct dt_model *model); // that it reads
// Index of the array of token ids, where a model can run on tokens alone; else DT_USER.
dt_status dt_model_token_array(const struct dt_model *model, int *index);
// The master weights, [elements] fp32 in device memory; NULL with shape.play. With
// shape.ring_weights the caller keeps the masters, and these are the weights that a pass reads in
// fp32: [ring.elements] or, with bf16 storage, only some rows, one after another with their
// padding.
float *dt_model_weights(struct dt_model *model);
// Sets all weights from the host's [elements] fp32. Waits for the device.
dt_status dt_model_set_weights(struct dt_model *model, const float *weights);
// The weights in bf16, [elements], or of the ring, or NULL where storage is fp32.
dt_bf16 *dt_model_weights_bf16(struct dt_model *model);
// Bytes of device memory for all its weights: fp32, bf16 and int8.
int64_t dt_model_weight_bytes(const struct dt_model *model);
float *dt_model_gradients(struct dt_model *model); // [elements, or of the ring] fp32, or NULL
// The gradient of a row of the table; with a ring, while its unit is in its slot.
float *dt_model_gradient(const struct dt_model *model, int row);
// The rows of linear layers, which are in int8: [rows of the table]; or NULL.
const struct dt_int8 *dt_model_int8(const struct dt_model *model);
// Rounds the masters to bf16 and int8 again, after something other than adamw has changed them.
// Does nothing with shape.ring_weights.
dt_status dt_model_refresh(struct dt_model *model, struct dt_stream *stream);

// One micro-batch, device memory.
struct dt_model_input {
    int64_t sequences, length; // B, L: within the shape
    // The arrays of dt_model_arrays in their order, each [B, L, width]. NULL: an optional array
    // that this batch does not have, or one that only the head reads, in a forward pass without
    // loss.
    const void *arrays[DT_BATCH_ARRAYS];
};

// Recurrent state carried from one window of a sequence to the next: for each layer, and for the
// head as layer n_layer, the arrays that its kind names, each [sequences, width]. Training reads
// and writes the head's state only between the segments of a window.
struct dt_model_state;
dt_status dt_model_state_create(struct dt_model *model, int64_t sequences,
                                struct dt_model_state **state); // zero
// Allocates the gradients of such a state: the same arrays in fp32. Arrays of integers have no
// gradient and are empty here.
dt_status dt_model_state_create_gradient(struct dt_model *model, int64_t sequences,
                                         struct dt_model_state **gradient); // zero
void dt_model_state_destroy(struct dt_model *model, struct dt_model_state *state);
// All arrays of a state are one block of device memory of this size.
dt_status dt_model_state_bytes(const struct dt_model_config *config, int64_t sequences,
                               int64_t *bytes);
dt_status dt_model_state_gradient_bytes(const struct dt_model_config *config, int64_t sequences,
                                        int64_t *bytes);
void *dt_model_state_memory(const struct dt_model_state *state);
// Array `index` of a layer; NULL if `state` is NULL, or the array is empty (width 0).
void *dt_model_state_array(const struct dt_model_state *state, int64_t layer, int index);
// The arrays of a layer: names, types, widths.
const struct dt_array_list *dt_model_state_arrays(const struct dt_model *model, int64_t layer);

// Says that the gradient of table row `row` is complete on the stream; rows come in table order.
typedef dt_status (*dt_grad_ready)(void *context, int64_t row);

// Announces the part that is about to run by its first row. Forward: the weights of this row and of
// all rows after it are read from now on. Backward: the gradients of the part's rows are written
// from now on, after those of all rows before them.
typedef dt_status (*dt_part_begins)(void *context, int64_t row, bool backward);

// Moves an array of a state between two parts of a window that different ranks run: receives it
// before a part reads it, or sends it after a part has written it. `onward`: the other rank has the
// part after this one, else the one before. Both sides move the same arrays in the same order;
// `name` is a hash of the array and the border between the parts. What is sent must not change
// until the caller says so.
struct dt_relay {
    dt_status (*move)(void *context, bool sends, bool onward, uint32_t name, void *array,
                      int64_t bytes);
    // Exchanges an array of `bytes` between all ranks that share the window, from `own`, the
    // rows of this rank's parts [ranks, parts] with a share of them for each rank, to `all`, this
    // rank's share of all rows [parts, ranks] in the order of the window; or back.
    dt_status (*swap)(void *context, bool spreads, uint32_t name, void *own, void *all,
                      int64_t bytes);
    void *context;
};

// A pass over one micro-batch. Its forward, loss and backward get the same struct.
struct dt_pass {
    struct dt_model_input input;
    const struct dt_model_state *before; // read; NULL: zeros
    struct dt_model_state *after;        // written by forward, not `before` itself; or NULL
    // Gradients of these states: backward reads `dafter` (NULL: zeros) and writes `dbefore`, which
    // is another one or NULL. So a window may be run in segments, forward from the first to the
    // last and backward from the last to the first.
    const struct dt_model_state *dafter;
    struct dt_model_state *dbefore;
    // The window of which `input` is the segment from position `at` on, so that `before` and
    // `after` are states inside it, except at its ends. NULL and 0: the input is a whole window.
    const struct dt_model_input *window;
    int64_t at;
    int64_t own_at; // with shape.window: the segment's position among those that this rank runs
    // If other ranks run the segments before and after this one: moves `before` and `after` in
    // forward, their gradients in loss and backward; gradient_relay also swaps, in forward too.
    // NULL: nothing moves.
    const struct dt_relay *relay, *gradient_relay;
    int64_t first;              // index in these states of the pass's first sequence
    bool accumulate;            // weight gradients: += (a later micro-batch), else =
    dt_grad_ready grad_ready;   // called in backward; or NULL
    dt_part_begins part_begins; // called in forward and backward (not of the head); or NULL
    void *context;
    struct dt_stream *stream;
    // The model fills in the rest, for its parts.
    const struct dt_net *net;
    int64_t rows;      // M = B·L
    bool reversed;     // the second sweep of a block that reads both ways
    int64_t *measured; // not NULL: no op runs, the largest workspace that one needs is noted here
};

// Runs stem, blocks, and the head as far as no targets are needed.
dt_status dt_model_forward(const struct dt_model *model, const struct dt_pass *pass);
// A pass of one part of a model: 0 is the stem, the blocks follow, the last one is the head. A
// block that reads both ways takes two sweeps over a window: the second one goes through its
// segments from the last to the first, and `before` is then the state after the segment, `after`
// the one before it. Backward visits the segments of each sweep in the opposite order, and finishes
// a part before it begins the part below. The head's backward is dt_model_loss, which follows each
// call of its part_forward; its part_backward only announces its rows. The caller gives grad_ready
// to the last pass through a part, and part_begins to the first one of forward and of backward.
int64_t dt_model_parts(const struct dt_model *model);
int dt_model_sweeps(const struct dt_model *model, int64_t part); // 1 or 2
dt_status dt_model_part_forward(const struct dt_model *model, const struct dt_pass *pass,
                                int64_t part, int sweep);
dt_status dt_model_part_backward(const struct dt_model *model, const struct dt_pass *pass,
                                 int64_t part, int sweep);
// After a forward: the residual stream at the head's norm, [B·L, d_model] fp32 on the device.
struct dt_view dt_model_residual(const struct dt_model *model, const struct dt_pass *pass);
// What the head reads, the residual stream after the last norm: [B·L, d_model] in storage type.
struct dt_view dt_model_hidden(const struct dt_model *model, const struct dt_pass *pass);
// Runs the head: *sum += the losses; with `scale` > 0 also the head's gradients, of scale · Σ loss,
// and the gradient that backward starts from.
dt_status dt_model_loss(const struct dt_model *model, const struct dt_pass *pass, double scale,
                        struct dt_loss_sum *sum);
// What dt_model_loss leaves with shape.losses, of each position [B·L], in device memory.
struct dt_row_losses {
    const float *losses;
    const int32_t *labels; // not counted where it is DT_IGNORED
    const uint8_t *right;  // 1: the label is counted and the most likely one; after scale 0
};
// false: the head has none.
bool dt_model_row_losses(const struct dt_model *model, const struct dt_model_input *input,
                         struct dt_row_losses *rows);
dt_status dt_model_backward(const struct dt_model *model, const struct dt_pass *pass);
// After a forward, writes the logits of all positions, fp32 on the device, to the caller's
// logits->data [B·L, vocab_size]. DT_USER if the head has no logits.
dt_status dt_model_logits(const struct dt_model *model, const struct dt_pass *pass,
                          struct dt_view *logits);

// What a model predicts: "tokens" of a language model, else one entry per head of model.heads, in
// their order.
enum { DT_OUTPUT_NAME = 32, DT_OUTPUT_PARAMETERS = DT_OUTPUT_LEVELS };
extern const char *const dt_pool_name[]; // by enum dt_pool
struct dt_output {
    char name[DT_OUTPUT_NAME];
    const struct dt_output_type *type;
    int n_parameters; // "KIND(5,-1,1)" has three
    float parameters[DT_OUTPUT_PARAMETERS];
    int64_t size;                 // "*N": classes, or numbers
    int64_t width;                // predicted numbers of a position: logits and others
    int64_t target, target_width; // columns of the batch array "targets"; width 0: none
    int64_t classes;              // each target is a whole number below it; 0: any number
    int64_t parts;                // components of a mixture, levels of quantiles; else 1
    int64_t median;               // the level nearest to 1/2, of equally near ones the first
    float low, high;              // numbers are squashed between them; equal: they are not
    bool scaled;                  // the targets' mean and deviation are rows of the model
    double weight;                // of its loss
    enum dt_pool pool;
    const char *measure; // "accuracy" or "error": struct dt_loss_sum has its metrics; or NULL
};
struct dt_outputs {
    int n;
    bool autoregressive; // output k is conditioned on the targets of those before it
    bool perplexity;     // exp(loss) is one
    struct dt_output list[DT_OUTPUTS_MAX];
};
// A type of output: what its numbers mean, and what becomes of them.
struct dt_output_type {
    const char *name;         // in model.heads
    enum dt_output_kind loss; // kernels/policy_loss.h has its loss, and its measure:
    const char *measure;      // "accuracy" or "error"
    bool one_of;              // its target is one class of `size`; else `size` numbers
    int64_t classes;          // these numbers are whole and below it; 0: any numbers
    bool scaled;              // targets are normalised if the output has no range
    // Sets the fields that follow from the parameters; returns false if the parameters are not of
    // the form `parameters`. NULL: the type has no parameters.
    bool (*shape)(struct dt_output *output);
    const char *parameters; // for a message
    // Draws values from a finite prediction [width] of dt_model_output: at temperature 0 the most
    // likely ones, else with the logarithm of the density divided by the temperature. With `one_of`
    // one value, the class; else `size` values.
    void (*draw)(const struct dt_output *output, const float *predicted, double temperature,
                 struct dt_philox *rng, float *values);
};
// outputs.c; ends with NULL.
extern const struct dt_output_type *const dt_output_types[];
extern const struct dt_output_type dt_categorical, dt_bernoulli, dt_regression, dt_huber, dt_gmm,
    dt_quantile;
// The outputs of this configuration, whose fields need not be complete.
dt_status dt_model_outputs_of(const struct dt_model_config *config, struct dt_outputs *outputs);
const struct dt_outputs *dt_model_outputs(const struct dt_model *model);
// The model's outputs where they have metrics, else NULL.
const struct dt_outputs *dt_model_measured(const struct dt_model *model);
// After a forward: *values = output k at each sequence's last position, [B, width] fp32 on the
// device, in the data's own units (kernels/decode_outputs.h), valid until the next forward. An
// output that pools covers all positions so far: it continues the pool of pass->before into
// pass->after. If outputs are autoregressive, k is computed from the targets of earlier outputs at
// the last position of the pass's array "targets" [B, L, …].
dt_status dt_model_output(const struct dt_model *model, const struct dt_pass *pass, int k,
                          struct dt_view *values);
// After a forward of a model whose outputs have measures: the predictions of the outputs that do
// not pool, at every position, or with `windows` of those that pool, one per window, and the data's
// targets for them; in device memory, valid until the next pass. If outputs are autoregressive,
// each is computed from the data's targets of earlier outputs.
struct dt_predictions {
    // [rows, …] fp32 as dt_model_output gives them: all outputs side by side, each of its `width`.
    // No rows: there is no such output.
    struct dt_view values;
    struct dt_view
        targets; // [rows, W] fp32; NaN: no target, or that of an output not predicted here
    struct dt_view weights; // [rows, 1 + outputs] fp32; data NULL: all 1
    const uint8_t *mask;    // [rows], 0: the row does not count; NULL: all do
};
dt_status dt_model_predictions(const struct dt_model *model, const struct dt_pass *pass,
                               bool windows, struct dt_predictions *predictions);

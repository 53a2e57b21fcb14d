// The parameter table: a row per tensor, in the order in which backward finishes their gradients.
// It drives allocation, initialisation, checkpoints, optimizer groups, buckets and memory planning.
// Master weights, bf16 weights, gradients and optimizer states are flat arrays of `elements`, all
// with these offsets.
#pragma once

#include "base/error.h"
#include "base/ring.h"
#include "kernels/adamw.h"

#include <stdbool.h>
#include <stdint.h>

struct dt_param;
struct dt_philox;
// A rule for initial values: element i of a row, from the row's own random numbers, of which each
// element takes as many as every other.
typedef float dt_init(const struct dt_param *row, int64_t i, struct dt_philox *rng);
dt_init dt_init_normal;  // of standard deviation init_scale
dt_init dt_init_uniform; // in ±init_scale
dt_init dt_init_zero, dt_init_one;
dt_init dt_init_constant; // init_scale

enum { DT_PARAM_NAME = 96, DT_PARAM_DIMS = 3, DT_PARAM_SLICES = 3, DT_PARAMS_WANTED = 4 };

struct dt_param {
    char name[DT_PARAM_NAME]; // as in Hugging Face: "backbone.layers.0.mixer.in_proj.weight"
    int n_dims;
    // The shape in a file. Memory may hold more rows of the first dimension: zeros after them.
    int64_t shape[DT_PARAM_DIMS];
    int64_t file_count;    // elements in a file: the first of the tensor's elements in memory
    int64_t offset, count; // elements in the flat arrays; offset is a multiple of 64
    dt_init *init;
    float init_scale;
    // transformers' names for it, where they differ: the first dimension cut into tensors of their
    // own. Files are written so, and may have it under either. `end` follows "mixer." in the name.
    int n_slices;
    struct dt_param_slice {
        const char *end;
        int64_t first, rows;
    } slices[DT_PARAM_SLICES];
    bool decay;    // weight decay: two or more dimensions, unless the part says otherwise
    bool optional; // files that lack it stand for its initial values, which need no random numbers
    bool frozen; // not trained, but part of the model: its gradient stays 0, and nothing decays it
    bool shared; // with a part that writes this gradient before its owner adds to it
    bool reads_master; // a pass reads its fp32 values: known once a model's passes are measured
    bool matrix;    // hidden: the weight of a linear layer of a block, which Muon makes orthogonal
    int64_t place;  // with a ring: element of it where the row is
    int64_t packed; // with ring_weights and bf16: element of the masters that a pass reads
    float width; // µP: its fan-in over that of the same row in a model of width mup_base; else 1
};

struct dt_params {
    int n;
    bool failed; // a row could not be added: the error is recorded
    struct dt_param *rows;
    int n_wanted;
    struct {
        const char *name;
        int *row;
    } wanted[DT_PARAMS_WANTED]; // rows to be shared that are not added yet
    int64_t elements;           // of the flat arrays: the last row's end, rounded up to 64
    int64_t count;              // parameters as the field counts them: sum of file_count
    struct dt_ring ring;        // of the gradients: a unit has the rows of one or more parts; n 0:
                                // they are a whole array
    bool ring_weights;          // and of the weights as a pass reads them (model.h)
};

// Appends a row of `shape` (positive sizes) and gives its index; memory_rows >= shape[0] is the
// padded first dimension. -1, with the error recorded and nothing appended, if the sizes overflow
// or memory runs out.
int dt_params_add(struct dt_params *params, dt_init *init, double init_scale, int64_t memory_rows,
                  int n_dims, const int64_t *shape, const char *name, ...)
    __attribute__((format(printf, 7, 8)));
// Gives the next `rows` of the row's first dimension a name of their own in files, which ends in
// `end` (borrowed). The slices must take up all of it.
void dt_params_slice(struct dt_params *params, int row, const char *end, int64_t rows);
void dt_param_slice_name(const struct dt_param *row, int slice, char name[DT_PARAM_NAME]);
// Excludes the row from weight decay.
void dt_params_keep(struct dt_params *params, int row);
// Excludes the row from training.
void dt_params_freeze(struct dt_params *params, int row);
// Lets older files lack the row, whose rule for initial values ignores the random numbers.
void dt_params_allow_missing(struct dt_params *params, int row);
// Shares the row `name` (a literal), which another part adds later and owns: *row is its index from
// then on. The part that shares writes the gradient first, the owner adds to it and announces it.
void dt_params_share(struct dt_params *params, const char *name, int *row);
// Call it after all rows: an error if a row to be shared is not there, or if one could not be
// added.
dt_status dt_params_complete(const struct dt_params *params);
void dt_params_free(struct dt_params *params);
const struct dt_param *dt_params_find(const struct dt_params *params, const char *name); // or NULL

// Initial values of every row into the flat fp32 array `weights` (padding 0): official
// initialisation, from a Philox stream per row keyed by (seed, row name's hash), so they depend on
// nothing else.
void dt_params_init(const struct dt_params *params, uint64_t seed, float *weights);
// What the optimizer does with each row. All are factors of the learning rate of a step:
struct dt_param_rate {
    float group; // of optim.lr[PATTERN]: the last pattern that matches the row's name; else 1
    float lr;    // group and µP: group / width, for a matrix under Muon group / sqrt(width)
};
// The rates of all rows, malloc'ed [n]. `groups` is a list "PATTERN:VALUE …" with patterns as in a
// shell (* ? [abc]) over whole names, and values a learning rate or, as in 0.1x, a factor of `lr`.
// DT_USER: a value that is none, or a pattern that matches no name; the names are listed.
dt_status dt_params_rates(const struct dt_params *params, const char *groups, double lr, bool muon,
                          struct dt_param_rate **rates);
// AdamW's spans: n <= params->n + 1 of them, malloc'ed. Decay follows the group's rate, as in
// PyTorch, but not µP's. `rates`: [n].
dt_status dt_params_spans(const struct dt_params *params, float weight_decay,
                          const struct dt_param_rate *rates, struct dt_adamw_span **spans,
                          int64_t *n);

// The parameter table: a row per tensor, in the order in which backward finishes the gradients. It
// drives allocation, initialisation, checkpoints, optimizer groups, buckets and memory planning.
// Master weights, bf16 weights, gradients and optimizer states are flat arrays of `elements` with
// the same offsets.
#pragma once

#include "base/error.h"
#include "base/ring.h"
#include "kernels/adamw.h"

#include <stdbool.h>
#include <stdint.h>

struct dt_param;
struct dt_philox;
// A rule for the initial value of element i of a row, from the row's random numbers. Every element
// must draw the same number of them.
typedef float dt_init(const struct dt_param *row, int64_t i, struct dt_philox *rng);
dt_init dt_init_normal;  // standard deviation init_scale
dt_init dt_init_uniform; // in ±init_scale
dt_init dt_init_zero, dt_init_one;
dt_init dt_init_constant; // init_scale

enum { DT_PARAM_NAME = 96, DT_PARAM_DIMS = 3, DT_PARAM_SLICES = 3, DT_PARAMS_WANTED = 4 };

struct dt_param {
    char name[DT_PARAM_NAME]; // as in Hugging Face: "backbone.layers.0.mixer.in_proj.weight"
    int n_dims;
    // The shape in files. In memory the first dimension may be padded with rows of zeros.
    int64_t shape[DT_PARAM_DIMS];
    int64_t file_count;    // elements in files, which come first in memory
    int64_t offset, count; // elements in the flat arrays; offset is a multiple of 64
    dt_init *init;
    float init_scale;
    // Names in transformers, if they differ: the first dimension is cut into separate tensors.
    // Files are written so and read either way. `end` follows "mixer." in the name.
    int n_slices;
    struct dt_param_slice {
        const char *end;
        int64_t first, rows;
    } slices[DT_PARAM_SLICES];
    bool decay;    // weight decay; default: two or more dimensions
    bool optional; // files may lack it: it then has its initial values, which use no random numbers
    bool frozen;   // part of the model, but not trained: its gradient is 0 and it has no decay
    bool shared;   // another part writes this gradient before its owner adds to it
    bool reads_master; // a pass reads its fp32 values; known after a model's passes are measured
    bool matrix;       // weight of a linear layer of a block, which Muon makes orthogonal
    int64_t place;     // with a ring: the row's first element in it
    int64_t packed;    // with ring_weights and bf16: its first element in the masters that a pass
                       // reads
    float width;       // µP: its fan-in / that in a model of width mup_base; else 1
};

struct dt_params {
    int n;
    bool failed; // a row could not be added; the error is recorded
    struct dt_param *rows;
    int n_wanted;
    struct {
        const char *name;
        int *row;
    } wanted[DT_PARAMS_WANTED]; // shared rows that are not added yet
    int64_t elements;           // in the flat arrays: the end of the last row, rounded up to 64
    int64_t count;              // parameters as commonly counted: sum of file_count
    struct dt_ring ring;        // of the gradients; a unit has the rows of some parts; n 0: none
    bool ring_weights;          // the weights that a pass reads are in a ring too (model.h)
};

// Appends a row of `shape` (positive sizes) and returns its index; memory_rows >= shape[0] is the
// padded first dimension. If the sizes overflow or memory runs out: records the error, appends
// nothing and returns -1.
int dt_params_add(struct dt_params *params, dt_init *init, double init_scale, int64_t memory_rows,
                  int n_dims, const int64_t *shape, const char *name, ...)
    __attribute__((format(printf, 7, 8)));
// In files, makes the next `rows` of the row's first dimension a tensor whose name ends in `end`
// (borrowed). The slices must cover the whole dimension.
void dt_params_slice(struct dt_params *params, int row, const char *end, int64_t rows);
void dt_param_slice_name(const struct dt_param *row, int slice, char name[DT_PARAM_NAME]);
// Excludes the row from weight decay.
void dt_params_keep(struct dt_params *params, int row);
// Excludes the row from training.
void dt_params_freeze(struct dt_params *params, int row);
// Lets older files lack the row; its rule for initial values must ignore the random numbers.
void dt_params_allow_missing(struct dt_params *params, int row);
// Shares the row `name` (a literal), which its owner, another part, adds later; *row is its index
// from then on. The sharing part writes the gradient first, the owner adds to it and announces it.
void dt_params_share(struct dt_params *params, const char *name, int *row);
// Call after all rows. An error if a shared row does not exist or a row could not be added.
dt_status dt_params_complete(const struct dt_params *params);
void dt_params_free(struct dt_params *params);
const struct dt_param *dt_params_find(const struct dt_params *params, const char *name); // or NULL

// Writes the initial values of every row to the flat fp32 array `weights` (padding 0), with a
// Philox stream per row keyed by seed and the hash of the row's name, on which alone they depend.
void dt_params_init(const struct dt_params *params, uint64_t seed, float *weights);
// The optimizer's rates of a row, as factors of a step's learning rate.
struct dt_param_rate {
    float group; // by the last pattern of optim.lr[PATTERN] that matches the row's name; else 1
    float lr;    // with µP: group / width; matrices under Muon: group / sqrt(width)
};
// The rates of all rows [n]; caller frees. `groups` is a list "PATTERN:VALUE …": shell patterns (*
// ? [abc]) for whole names, and values that are a learning rate or, as in 0.1x, a factor of `lr`.
// DT_USER: an invalid value, or a pattern that matches no name; the error lists the names.
dt_status dt_params_rates(const struct dt_params *params, const char *groups, double lr, bool muon,
                          struct dt_param_rate **rates);
// AdamW's spans, at most params->n + 1; caller frees. Decay is scaled by the group's rate, as in
// PyTorch, but not by µP. `rates`: [n].
dt_status dt_params_spans(const struct dt_params *params, float weight_decay,
                          const struct dt_param_rate *rates, struct dt_adamw_span **spans,
                          int64_t *n);

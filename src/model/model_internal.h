// Private to model.c, which creates a model, and passes.c.
#pragma once

#include "model/kinds.h"
#include "model/model.h"

// The parts of a model, from which its parameter table and memory plan are made.
struct dt_parts {
    struct dt_params params;
    struct dt_array_list arrays;
    struct dt_outputs outputs;
    int64_t layers;
    struct dt_part **all; // [layers + 2] stem, blocks, head: in the order of a forward pass
    const struct dt_stem_kind *stem;
    const struct dt_head_kind *head;
    struct dt_part *head_part;
    int head_rows;   // its first row in the table
    bool reverses;   // a block has two directions, which
    int reset, mask; // arrays: need these arrays for document borders
};

struct dt_model {
    struct dt_model_config config;
    struct dt_model_shape shape;
    struct dt_parts parts;
    struct dt_backend backend;
    struct dt_net net;
    int64_t bytes[DT_MEMORY_COUNT]; // per kind of memory
    void *memory[DT_MEMORY_COUNT];
    // Arrays between parts, of all positions of a window if it is run part by part (shape.window).
    struct dt_view *residual; // [n_layer + 1], [M, d] fp32 each: the stream at each block's norm
                              // and at the head's; in inference one array
    struct dt_view out;       // [M, d] storage: output of a block; in backward its gradient
    struct dt_view dresidual; // [M, d] fp32
    // Blocks with two directions use these in a pass: where documents begin in reversed order
    // (kernels/reverse.h), and `out` reversed.
    uint8_t *resets;         // [M]
    struct dt_view reversed; // [M, d] storage
};

// What model.c, which creates a model, and passes.c share.
#pragma once

#include "model/kinds.h"
#include "model/model.h"

// A model before it has memory: what the parameter table and the plan are made from.
struct dt_parts {
    struct dt_params params;
    struct dt_array_list arrays;
    struct dt_outputs outputs;
    int64_t layers;
    struct dt_part **all; // [layers + 2] stem, blocks, head: in the order of a forward pass
    const struct dt_stem_kind *stem;
    const struct dt_head_kind *head;
    struct dt_part *head_part;
    int head_rows;   // of the table, its first
    bool reverses;   // a block has two directions, and
    int reset, mask; // arrays: says where documents are
};

struct dt_model {
    struct dt_model_config config;
    struct dt_model_shape shape;
    struct dt_parts parts;
    struct dt_backend backend;
    struct dt_net net;
    int64_t bytes[DT_MEMORY_COUNT]; // of memory
    void *memory[DT_MEMORY_COUNT];
    struct dt_view *residual; // [n_layer + 1] of [M, d] fp32: the stream at block i's norm, and at
                              // the head's; one array in inference
    struct dt_view out;       // [M, d] storage: output of a block, backward: its gradient
    struct dt_view dresidual; // [M, d] fp32
    // Where a block has two directions (kernels/reverse.h): the map of the pass's sequences, and
    // `out` reversed.
    int32_t *map;            // [M]
    struct dt_view reversed; // [M, d] storage
};

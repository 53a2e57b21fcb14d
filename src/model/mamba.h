// A Mamba block's rows, memory and op arguments: what mamba.c, which reads as the paper, and
// mamba_args.c, which fills args structs and plans memory, share. Names and letters as in mamba.c.
#pragma once

#include "model/kinds.h"

struct mamba {
    struct dt_part part;
    int64_t d, E, N, K, R, chunk;
    int64_t slices; // row stride of dt|B|C and its gradient
    struct dt_norm norm;
    int conv_weight, conv_bias, dt_bias, a_log, d_skip;
    int reset, ssm_state, conv_state; // indices of the batch array and of the states
    struct dt_linear in_proj, x_proj, dt_proj, out_proj;
    // Made by forward, needed by backward; shared between layers where they are made again.
    void *h;       // [M, d] storage
    void *xz;      // [M, 2E] storage
    void *u;       // [M, E] storage
    void *dbc;     // [M, slices] storage: dt, B, C
    void *delta;   // [M, E] storage
    void *y;       // [M, E] storage
    float *states; // [B, ceil(L / chunk), N, E] fp32
    // Gradients, shared by all layers.
    void *dxz, *du, *ddbc, *ddelta, *dy, *dh;
};

// The args of each op for one pass over `input`, or, without memory, to ask for its workspace. What
// differs between calls (carried state, accumulate, the stream of residuals) is left to the caller.
struct dt_conv1d_silu_forward_args mamba_conv_args(const struct mamba *m, const struct dt_net *net,
                                                   const struct dt_model_input *input);
struct dt_conv1d_silu_backward_args mamba_conv_backward_args(const struct mamba *m,
                                                             const struct dt_net *net,
                                                             const struct dt_model_input *input);
struct dt_scan_forward_args mamba_scan_args(const struct mamba *m, const struct dt_net *net,
                                            const struct dt_model_input *input);
struct dt_scan_backward_args mamba_scan_backward_args(const struct mamba *m,
                                                      const struct dt_net *net,
                                                      const struct dt_model_input *input);

void mamba_plan(struct dt_part *part, struct dt_plan *plan);
void mamba_plan_workspace(struct dt_part *part, struct dt_plan *plan);

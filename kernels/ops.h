// Every op, once: the contracts of all of them and the list that the tables of the backends, the
// checked entry points and the benchmark are made from.
#pragma once

#include "kernels/accumulate.h"
#include "kernels/adamw.h"
#include "kernels/attention.h"
#include "kernels/bias.h"
#include "kernels/cast.h"
#include "kernels/checksum.h"
#include "kernels/commit.h"
#include "kernels/conv1d_silu.h"
#include "kernels/embed.h"
#include "kernels/encode_targets.h"
#include "kernels/gated_rmsnorm.h"
#include "kernels/gemm.h"
#include "kernels/normalize.h"
#include "kernels/policy_loss.h"
#include "kernels/quantize.h"
#include "kernels/rmsnorm_residual.h"
#include "kernels/rnn.h"
#include "kernels/scan.h"
#include "kernels/silu_gate.h"
#include "kernels/spin.h"
#include "kernels/ssd.h"
#include "kernels/stamp.h"
#include "kernels/sum_squares.h"
#include "kernels/update_control.h"
#include "kernels/xent.h"

// X: an op that needs no workspace; W: one whose args have a workspace; G: they also say whether
// the gradients of weights are added up (accumulate).
#define DT_OPS_BY_CONTEXT(G, W, X)                                                                 \
    W(gemm)                                                                                        \
    X(normalize)                                                                                   \
    X(embed_forward)                                                                               \
    G(embed_backward)                                                                              \
    X(bias_forward)                                                                                \
    G(bias_backward)                                                                               \
    X(rmsnorm_residual_forward)                                                                    \
    G(rmsnorm_residual_backward)                                                                   \
    X(conv1d_silu_forward)                                                                         \
    G(conv1d_silu_backward)                                                                        \
    W(scan_forward)                                                                                \
    G(scan_backward)                                                                               \
    W(attention_forward)                                                                           \
    W(attention_backward)                                                                          \
    W(rnn_forward)                                                                                 \
    G(rnn_backward)                                                                                \
    X(silu_gate_forward)                                                                           \
    X(silu_gate_backward)                                                                          \
    W(ssd_forward)                                                                                 \
    G(ssd_backward)                                                                                \
    X(gated_rmsnorm_forward)                                                                       \
    G(gated_rmsnorm_backward)                                                                      \
    X(encode_targets)                                                                              \
    W(policy_loss)                                                                                 \
    W(xent)                                                                                        \
    W(sum_squares)                                                                                 \
    W(checksum)                                                                                    \
    X(update_control)                                                                              \
    X(adamw)                                                                                       \
    X(cast)                                                                                        \
    X(quantize)                                                                                    \
    X(accumulate)                                                                                  \
    X(commit)                                                                                      \
    X(stamp)                                                                                       \
    X(spin)
#define DT_OPS_BY_WORKSPACE(W, X) DT_OPS_BY_CONTEXT(W, W, X)
#define DT_OPS(X)                 DT_OPS_BY_WORKSPACE(X, X)

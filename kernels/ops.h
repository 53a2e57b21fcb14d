// Every op, once: the contracts of all of them and the list that the tables of the backends, the
// checked entry points and the benchmark are made from.
//
// Beside the args struct of an op stand its rows, DT_ROWS_NAME: what each argument may be. The
// argument checks, the bytes that an op moves, the arrays that tests/parity compares and the tests
// of wrong arguments all come from them (src/backend/op_rows.h). Expressions call the args `a`, and
// use the names that earlier rows define:
//   SIZE(name, field)                 a whole number in [1, DT_SIZE_MAX]
//   COUNT(name, field)                the same in [0, DT_COUNT_MAX]
//   RANGE(name, field, least, most)   the same in [least, most]
//   LIMIT(name, value, least, most)   what follows from sizes
//   LET(name, value)
//   MULTIPLE(field, of)
//   NUMBER(field, least, below)       a number in [least, below)
//   STORAGE(name, field)              a dtype, fp32 or bf16
//   TYPE(name, field, also)           the same, or `also`
//   LENGTH(field, dtype)              tokens of a sequence: a column takes less than 2^31 bytes
//   ARRAY(role, rows, columns, dtype, fields…)   each a view of that shape, or a pointer to dense
//                                                rows; with no columns it may be NULL, with no rows
//                                                it must be NULL
//   APART(field, other)               not the same array
//   IN_PLACE(field, other)            if the same array, then of the same dtype and stride
//   OUTPUTS(columns, target_columns)  a->outputs[n] fit into so many
//   DEMAND(condition, format, values…)   anything else
// Roles: IN is read, OUT written (=), ADD read and written (+=), SUM the same with `accumulate`,
// else OUT; UNUSED is not looked at in this call. With | OR_NULL it may be NULL, with NEED(c) only
// where c is false. With | CACHED it stays in caches, or is small: its bytes do not count.
#pragma once

#include "base/error.h"
#include "kernels/accumulate.h"
#include "kernels/adamw.h"
#include "kernels/attention.h"
#include "kernels/bias.h"
#include "kernels/cast.h"
#include "kernels/checksum.h"
#include "kernels/commit.h"
#include "kernels/conv1d_silu.h"
#include "kernels/decode_outputs.h"
#include "kernels/embed.h"
#include "kernels/encode_targets.h"
#include "kernels/gated_rmsnorm.h"
#include "kernels/gemm.h"
#include "kernels/muon.h"
#include "kernels/normalize.h"
#include "kernels/policy_loss.h"
#include "kernels/pool.h"
#include "kernels/quantize.h"
#include "kernels/reverse.h"
#include "kernels/rmsnorm.h"
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

// Larger sizes are garbage; products of two of them still fit into 64 bits.
#define DT_SIZE_MAX  ((int64_t)1 << 31)
#define DT_COUNT_MAX ((int64_t)1 << 48)

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
    X(rmsnorm_forward)                                                                             \
    X(rmsnorm_backward)                                                                            \
    X(decode_outputs)                                                                              \
    X(encode_targets)                                                                              \
    W(policy_loss)                                                                                 \
    X(pool_forward)                                                                                \
    X(pool_backward)                                                                               \
    X(pool_targets)                                                                                \
    X(reverse_map)                                                                                 \
    X(reverse_rows)                                                                                \
    W(xent)                                                                                        \
    W(sum_squares)                                                                                 \
    W(checksum)                                                                                    \
    X(update_control)                                                                              \
    X(adamw)                                                                                       \
    X(muon)                                                                                        \
    X(cast)                                                                                        \
    X(quantize)                                                                                    \
    X(accumulate)                                                                                  \
    X(commit)                                                                                      \
    X(stamp)                                                                                       \
    X(spin)
#define DT_OPS_BY_WORKSPACE(W, X) DT_OPS_BY_CONTEXT(W, W, X)
#define DT_OPS(X)                 DT_OPS_BY_WORKSPACE(X, X)

struct dt_device;
struct dt_stream;

// The heads of an op's form on a backend (cpu.h, cuda.h) and of its workspace's size.
#define DT_UNUSED __attribute__((unused))
#define DT_OP_HEAD(op, backend)                                                                    \
    dt_status op##_##backend(DT_UNUSED struct dt_device *device,                                   \
                             const struct dt_##op##_args *args,                                    \
                             DT_UNUSED struct dt_stream *stream)
#define DT_OP_WORKSPACE_HEAD(op, backend)                                                          \
    int64_t op##_##backend##_workspace(DT_UNUSED struct dt_device *device,                         \
                                       const struct dt_##op##_args *args)

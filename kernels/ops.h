// The contracts of all ops, and the list from which the backends' tables, the checked entry points
// and the benchmark are generated.
//
// Next to an op's args struct are its rows, DT_ROWS_NAME, which say what each argument may be. They
// generate the argument checks, the bytes that an op moves, the arrays that tests/parity compares
// and the tests of wrong arguments (src/backend/op_rows.h). In expressions `a` is the args struct,
// and earlier rows define names:
//   SIZE(name, field)                 a whole number in [1, DT_SIZE_MAX]
//   COUNT(name, field)                … in [0, DT_COUNT_MAX]
//   RANGE(name, field, least, most)   … in [least, most]
//   LIMIT(name, value, least, most)   a value derived from sizes
//   LET(name, value)
//   MULTIPLE(field, of)
//   NUMBER(field, least, below)       a number in [least, below)
//   STORAGE(name, field)              a dtype, fp32 or bf16
//   TYPE(name, field, also)           the same, or `also`
//   LENGTH(field, dtype)              tokens of a sequence: a column takes less than 2^31 bytes
//   ARRAY(role, rows, columns, dtype, fields…)   views of that shape, or pointers to dense
//                                                rows; may be NULL if it has no columns; must be
//                                                NULL if it has no rows
//   APART(field, other)               not the same array
//   IN_PLACE(field, other)            if the same array, then of the same dtype and stride
//   OUTPUTS(columns, target_columns)  a->outputs[n] fit into these columns
//   DEMAND(condition, format, values…)   anything else
// Roles: IN is read, OUT written (=), ADD read and written (+=); SUM is ADD with `accumulate`,
// otherwise OUT; UNUSED is ignored in this call. | OR_NULL: may be NULL; | NEED(c): only if c is
// false; | CACHED: stays in caches or is small, so its bytes do not count.
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

// No valid size is larger; products of two sizes fit into 64 bits.
#define DT_SIZE_MAX  ((int64_t)1 << 31)
#define DT_COUNT_MAX ((int64_t)1 << 48)

// X: an op without a workspace; W: its args have a workspace; G: also `accumulate`, for weight
// gradients.
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
    X(reverse_resets)                                                                              \
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

// Declarations of an op on a backend (cpu.h, cuda.h) and of its workspace size.
#define DT_UNUSED __attribute__((unused))
#define DT_OP_HEAD(op, backend)                                                                    \
    dt_status op##_##backend(DT_UNUSED struct dt_device *device,                                   \
                             const struct dt_##op##_args *args,                                    \
                             DT_UNUSED struct dt_stream *stream)
#define DT_OP_WORKSPACE_HEAD(op, backend)                                                          \
    int64_t op##_##backend##_workspace(DT_UNUSED struct dt_device *device,                         \
                                       const struct dt_##op##_args *args)

// Every op, once: the contracts of all of them and the list that the tables of the backends, the
// checked entry points and the benchmark are made from.
#pragma once

#include "kernels/accumulate.h"
#include "kernels/adamw.h"
#include "kernels/cast.h"
#include "kernels/conv1d_silu.h"
#include "kernels/embed.h"
#include "kernels/gemm.h"
#include "kernels/rmsnorm_residual.h"
#include "kernels/scan.h"
#include "kernels/spin.h"
#include "kernels/stamp.h"
#include "kernels/sum_squares.h"
#include "kernels/update_control.h"
#include "kernels/xent.h"

#define DT_OPS(X)                                                                                  \
    X(gemm)                                                                                        \
    X(embed_forward)                                                                               \
    X(embed_backward)                                                                              \
    X(rmsnorm_residual_forward)                                                                    \
    X(rmsnorm_residual_backward)                                                                   \
    X(conv1d_silu_forward)                                                                         \
    X(conv1d_silu_backward)                                                                        \
    X(scan_forward)                                                                                \
    X(scan_backward)                                                                               \
    X(xent)                                                                                        \
    X(sum_squares)                                                                                 \
    X(update_control)                                                                              \
    X(adamw)                                                                                       \
    X(cast)                                                                                        \
    X(accumulate)                                                                                  \
    X(stamp)                                                                                       \
    X(spin)

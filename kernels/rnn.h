// GRU [Cho et al. 2014, with PyTorch's reset after the product] and LSTM [Hochreiter & Schmidhuber
// 1997; Gers et al. 2000], the recurrence over whole sequences. Gates and biases are in PyTorch's
// order, so weights are exchangeable with nn.GRU and nn.LSTM.
//   a_t = x_t + b_ih                    x: the inputs' product with W_ih, made for all t at once
//   p_t = h_{t-1} · W_hhᵀ + b_hh        h_{t-1} rounded to storage
// GRU, gates r, z, n (G = 3):           LSTM, gates i, f, g, o (G = 4):
//   r, z = σ(a + p)                       i, f, o = σ(a + p)        g = tanh(a + p)
//   n    = tanh(a + r ∘ p)                c_t = f ∘ c_{t-1} + i ∘ g
//   h_t  = (1 - z) ∘ n + z ∘ h_{t-1}      h_t = o ∘ tanh(c_t)
// h and c are fp32 from one position to the next; h_{-1}, c_{-1} are h0, c0 or zero. reset[t] = 1:
// a document starts at t, h_{t-1} and c_{t-1} count as zero.
//
// Backward through time: dh_t = dy_t + what comes from t + 1 (nothing where reset[t + 1]; at the
// last t: dh_last, and dc_last for c, or nothing);
//   dx_t = gradient of a_t              db_ih (+)= Σ dx_t
//   dp_t = gradient of p_t              db_hh (+)= Σ dp_t        LSTM: dp is dx
//   dh_{t-1} = dp_t · W_hh + the cell's own part (GRU: z ∘ dh_t)      dc_{t-1} = f ∘ dc_t
// dh0 and dc0 are dh and dc before t = 0 (0 where reset[0]). The caller computes dW_hh = dpᵀ ·
// previous by gemm, over all positions at once. Sums over batch and time have a fixed order.
// Products read dp rounded to storage.
//
// Rows are the positions of B sequences one after another, b·L + t. All views are of one dtype, the
// storage (fp32 or bf16). `gates` keeps r, z, n, p_n (GRU) or i, f, g, o (LSTM).
#pragma once

#include "base/view.h"

#include <stdbool.h>

enum dt_rnn_cell { DT_RNN_GRU, DT_RNN_LSTM };
static inline int64_t dt_rnn_gates(enum dt_rnn_cell cell) // G
{
    return cell == DT_RNN_GRU ? 3 : 4;
}

struct dt_rnn_inputs {
    enum dt_rnn_cell cell;
    int64_t batch, length; // B, L
    struct dt_view w_hh;
    const float *h0, *c0; // NULL: zeros. c0: LSTM
    const uint8_t *reset; // NULL: none
    bool play;            // as in gemm.h
};

struct dt_rnn_forward_args {
    struct dt_rnn_inputs in;
    struct dt_view x;
    const float *b_ih, *b_hh;
    struct dt_view y;        // h_t
    struct dt_view previous; // h_{t-1} as the product reads it: zero after a reset
    struct dt_view gates;    // data NULL: no backward follows
    struct dt_view cells;    // c_t; LSTM
    float *h_last, *c_last;  // the state after the last t, or NULL; c_last: LSTM
    void *workspace;
    int64_t workspace_bytes;
};

struct dt_rnn_backward_args {
    struct dt_rnn_inputs in;               // as in forward
    struct dt_view gates, cells, previous; // from forward
    const float *dh_last, *dc_last;        // gradients of h_last, c_last (LSTM); NULL: zeros
    struct dt_view dy, dx;
    struct dt_view dp; // GRU
    float *dh0, *dc0;  // gradients of h0, c0, or NULL; dc0: LSTM
    float *db_ih, *db_hh;
    bool accumulate;
    void *workspace;
    int64_t workspace_bytes;
};

// clang-format off
#define DT_RNN_INPUTS                                               \
    RANGE(cell, in.cell, DT_RNN_GRU, DT_RNN_LSTM)                   \
    LET(lstm, cell == DT_RNN_LSTM) LET(G, dt_rnn_gates(a->in.cell)) \
    SIZE(B, in.batch) SIZE(L, in.length) SIZE(H, in.w_hh.cols)      \
    STORAGE(T, in.w_hh.dtype)                                       \
    RANGE(play, in.play, 0, 1)                                      \
    ARRAY(IN | CACHED,           G * H, H, T,      in.w_hh)         \
    ARRAY(IN | CACHED | OR_NULL, B,     H, DT_F32, in.h0, in.c0)    \
    ARRAY(IN | CACHED | OR_NULL, B,     L, DT_U8,  in.reset)
#define DT_ROWS_rnn_forward                                                          \
    DT_RNN_INPUTS                                                                    \
    ARRAY(IN,                                     B * L, G * H, T,      x)           \
    ARRAY(IN | CACHED,                            1,     G * H, DT_F32, b_ih, b_hh)  \
    ARRAY(OUT,                                    B * L, H,     T,      y, previous) \
    ARRAY(OUT | OR_NULL,                          B * L, 4 * H, T,      gates)       \
    ARRAY(OUT | NEED(lstm && a->gates.data),      B * L, H,     T,      cells)       \
    ARRAY(OUT | CACHED | NEED(lstm && a->c_last), B,     H,     DT_F32, h_last)      \
    ARRAY(OUT | CACHED | NEED(lstm && a->h_last), B,     H,     DT_F32, c_last)      \
    APART(y, previous) APART(h_last, in.h0) APART(c_last, in.c0)
#define DT_ROWS_rnn_backward                                                       \
    DT_RNN_INPUTS                                                                  \
    ARRAY(IN,                                  B * L, 4 * H, T,      gates)        \
    ARRAY(IN | NEED(lstm),                     B * L, H,     T,      cells)        \
    ARRAY(lstm ? IN | CACHED : IN,             B * L, H,     T,      previous)     \
    ARRAY(IN | CACHED | OR_NULL,               B, H, DT_F32, dh_last, dc_last)     \
    ARRAY(IN,                                  B * L, H,     T,      dy)           \
    ARRAY(OUT,                                 B * L, G * H, T,      dx)           \
    ARRAY(OUT | NEED(!lstm),                   B * L, G * H, T,      dp)           \
    ARRAY(OUT | CACHED | NEED(lstm && a->dc0), B,     H,     DT_F32, dh0)          \
    ARRAY(OUT | CACHED | NEED(lstm && a->dh0), B,     H,     DT_F32, dc0)          \
    ARRAY(SUM | CACHED,                        1,     G * H, DT_F32, db_ih, db_hh) \
    APART(dh0, dh_last) APART(dc0, dc_last)
// clang-format on

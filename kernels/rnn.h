// GRU [Cho et al. 2014, with PyTorch's reset after the product] and LSTM [Hochreiter & Schmidhuber
// 1997; Gers et al. 2000], the recurrence over whole sequences. Gates and biases are in PyTorch's
// order, so that weights are those of nn.GRU and nn.LSTM.
//   a_t = x_t + b_ih                    x: the inputs' product with W_ih, made for all t at once
//   p_t = h_{t-1} · W_hhᵀ + b_hh        h_{t-1} rounded to storage
// GRU, gates r, z, n (G = 3):           LSTM, gates i, f, g, o (G = 4):
//   r, z = σ(a + p)                       i, f, o = σ(a + p)        g = tanh(a + p)
//   n    = tanh(a + r ∘ p)                c_t = f ∘ c_{t-1} + i ∘ g
//   h_t  = (1 - z) ∘ n + z ∘ h_{t-1}      h_t = o ∘ tanh(c_t)
// h and c are fp32 from one position to the next; h_{-1}, c_{-1} are h0, c0 or zero. reset[t] = 1:
// a document starts at t, h_{t-1} and c_{t-1} count as zero. No gradient flows through h0, c0,
// h_last, c_last.
//
// Backward through time: dh_t = dy_t + what comes from t + 1 (nothing where reset[t + 1]);
//   dx_t = gradient of a_t              db_ih (+)= Σ dx_t
//   dp_t = gradient of p_t              db_hh (+)= Σ dp_t        LSTM: dp is dx
//   dh_{t-1} = dp_t · W_hh + the cell's own part (GRU: z ∘ dh_t)
// dW_hh = dpᵀ · previous is left to gemm, over all positions at once. Sums over batch and time have
// a fixed order. dp counts as rounded to storage in its products.
//
// Rows are the positions of B sequences one after another, b·L + t. All views are of one dtype, the
// storage (fp32 or bf16). `gates` keeps r, z, n, p_n (GRU) or i, f, g, o (LSTM).
#pragma once

#include "base/view.h"

#include <stdbool.h>
#include <stdint.h>

enum dt_rnn_cell { DT_RNN_GRU, DT_RNN_LSTM };
static inline int64_t dt_rnn_gates(enum dt_rnn_cell cell) // G
{
    return cell == DT_RNN_GRU ? 3 : 4;
}

struct dt_rnn_inputs {
    enum dt_rnn_cell cell;
    int64_t batch, length; // B, L
    struct dt_view w_hh;   // [G·H, H]
    const float *h0, *c0;  // [B, H], or NULL: zeros. c0: LSTM
    const uint8_t *reset;  // [B, L], or NULL: none
};

struct dt_rnn_forward_args {
    struct dt_rnn_inputs in;
    struct dt_view x;         // [B·L, G·H], in
    const float *b_ih, *b_hh; // [G·H]
    struct dt_view y;         // [B·L, H], = h_t
    struct dt_view previous;  // [B·L, H], = h_{t-1} as the product reads it: zero after a reset
    struct dt_view gates;     // [B·L, 4H], =; data NULL: no backward follows
    struct dt_view cells;     // [B·L, H], = c_t, where gates are kept; LSTM
    float *h_last, *c_last;   // [B, H], = the state after the last t, or NULL; not h0, c0
    void *workspace;
    int64_t workspace_bytes;
};

struct dt_rnn_backward_args {
    struct dt_rnn_inputs in;               // as in forward
    struct dt_view gates, cells, previous; // from forward
    struct dt_view dy;                     // [B·L, H], in
    struct dt_view dx;                     // [B·L, G·H], =
    struct dt_view dp;                     // [B·L, G·H], =; GRU. LSTM: data NULL
    float *db_ih, *db_hh;                  // [G·H], = or, with accumulate, +=
    bool accumulate;
    void *workspace;
    int64_t workspace_bytes;
};

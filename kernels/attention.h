// Attention, causal or both ways, with grouped heads, rotary positions and a sliding window
// [Vaswani et al. 2017; Ainslie et al. 2023; Su et al. 2021; Jiang et al. 2023], computed in tiles
// by online softmax [Dao 2023]: memory is linear in L.
//   q'_t = rotate(q_t, t)      k'_t = rotate(k_t, t)      per head; head h has group g = ⌊h·G/H⌋
//   s_tj = q'_ht · k'_gj / sqrt(E)                        for the j that position t sees
//   lse_ht = log Σ_j exp(s_tj)       p_tj = exp(s_tj - lse_ht)       y_ht = Σ_j p_tj v_gj
// rotate turns the pair (x_i, x_{i + E/2}), i < E/2, by the angle t · rope_base^(-2i / E), as in
// Hugging Face's Llama. Only differences of positions matter: each call counts its own from 0, and
// angles are those of at + t. Calls without `at` have no angle that grows from call to call. Calls
// over parts of a sequence, each with its place in it as `at`, give the bits of one call over all
// of it, where parts begin at multiples of DT_ATTENTION_PART.
//
// Causal: position t sees j in (t - W, t], but nothing before the last t' <= t where reset[t'] = 1
// (a document starts at t'). Without a reset up to t, it also sees positions -1, -2, … of an
// earlier call, as far as the window reaches: the last count0 rows of k0 and v0 are valid. k_last,
// v_last, count_last are the same for the next call: the last W - 1 rows, keys not rotated, rows
// that are not valid zero. Zeros everywhere mean that nothing was before. Both ways: position t
// sees the j of its document with |t - j| < W. The last document ends after the last row whose mask
// is 1; each row after that is padding and sees itself alone. There is no earlier or next call.
// Either way what t sees is one range [start_t, stop_t), and neither bound falls as t grows.
//
// Backward, with ds the gradient of s:
//   delta_ht = dy_ht · y_ht        dp_tj = dy_ht · v_gj        ds_tj = p_tj (dp_tj - delta_ht)
//   dq'_ht = Σ_j ds_tj k'_gj / sqrt(E)       dk'_gj = Σ_{h of g, t} ds_tj q'_ht / sqrt(E)
//   dv_gj = Σ_{h of g, t} p_tj dy_ht         dq, dk: dq', dk' rotated back
// dk0 and dv0 are the dk and dv of j < 0, zero where a row is not valid. dk_last and dv_last count
// in the dk and dv of their rows, of j < 0 too, where a row is valid. All four are fp32. p is
// recomputed from lse. Sums have a fixed order: no atomics, no bit depends on threads.
//
// Views are of one dtype, the storage (bf16 or fp32), row b·L + t, a head's E columns beside each
// other; strides and places are free: q, k and v are usually columns of one matrix.
// The workspace does not depend on which optional arrays there are.
// E even, in [2, DT_ATTENTION_HEAD_MAX]; H a multiple of G; W in [1, DT_ATTENTION_WINDOW_MAX].
#pragma once

#include "base/view.h"

#include <stdbool.h>

enum {
    DT_ATTENTION_HEAD_MAX = 256,
    DT_ATTENTION_WINDOW_MAX = 1 << 24,
    DT_ATTENTION_PART = 64 // the longest tile of queries on GPUs; CPUs take any part
};

struct dt_attention_inputs {
    int64_t batch, length;            // B, L
    int64_t n_head, n_kv_head, width; // H, G, E
    int64_t window;                   // W
    double rope_base;                 // 0: no rotation
    bool both;                        // ways; false: causal
    int64_t at;                       // place of the first position; 0 but in a part of a sequence
    struct dt_view q, k, v;
    const void *k0, *v0;   // NULL: nothing was before, or W = 1
    const int32_t *count0; // in [0, W-1]
    const uint8_t *reset;  // NULL: none
    const uint8_t *mask;   // both ways; NULL: no padding
};

struct dt_attention_forward_args {
    struct dt_attention_inputs in;
    struct dt_view y;
    float *lse;            // NULL: no backward follows
    void *k_last, *v_last; // NULL: not asked for
    int32_t *count_last;
    void *workspace; // angles, ranges of visible positions; tiles of the CPU's threads
    int64_t workspace_bytes;
};

struct dt_attention_backward_args {
    struct dt_attention_inputs in;  // as in forward
    struct dt_view y;               // from forward
    const float *lse;               // from forward
    const float *dk_last, *dv_last; // gradients of k_last, v_last; NULL: zeros
    struct dt_view dy, dq, dk, dv;
    float *dk0, *dv0; // gradients of k0, v0, or NULL
    void *workspace;
    int64_t workspace_bytes;
};

// Whether GPUs take bf16 heads of such a width on tensor cores: the powers of two from 16 to 256.
static inline bool dt_attention_on_mma(enum dt_dtype type, int64_t width)
{
    return type == DT_BF16 && width >= 16 && width <= 256 && (width & (width - 1)) == 0;
}

// Rows of k0 for each sequence.
static inline int64_t dt_attention_kept(const struct dt_attention_inputs *in)
{
    return in->both ? 0 : in->window - 1;
}

// clang-format off
#define DT_ATTENTION_INPUTS                                                     \
    SIZE(B, in.batch) SIZE(L, in.length)                                        \
    RANGE(E, in.width, 2, DT_ATTENTION_HEAD_MAX)                                \
    RANGE(H, in.n_head, 1, DT_SIZE_MAX / E)                                     \
    RANGE(G, in.n_kv_head, 1, H)                                                \
    RANGE(W, in.window, 1, DT_ATTENTION_WINDOW_MAX)                             \
    NUMBER(in.rope_base, 0.0, HUGE_VAL)                                         \
    RANGE(P, in.at, 0, INT64_C(1) << 53)                                        \
    MULTIPLE(in.width, 2) MULTIPLE(in.n_head, G)                                \
    LET(kept, B * dt_attention_kept(&a->in))                                    \
    STORAGE(T, in.q.dtype)                                                      \
    ARRAY(IN,                           B * L,       H * E, T,      in.q)       \
    ARRAY(IN,                           B * L,       G * E, T,      in.k, in.v) \
    ARRAY(IN | CACHED | OR_NULL,        kept,        G * E, T,      in.k0)      \
    ARRAY(IN | CACHED | NEED(a->in.k0), kept,        G * E, T,      in.v0)      \
    ARRAY(IN | CACHED | NEED(a->in.k0), 1,           B,     DT_I32, in.count0)  \
    ARRAY(IN | CACHED | OR_NULL,        B,           L,     DT_U8,  in.reset)   \
    ARRAY(a->in.both ? IN | CACHED | OR_NULL : UNUSED, B, L, DT_U8, in.mask)
#define DT_ROWS_attention_forward                                                 \
    DT_ATTENTION_INPUTS                                                           \
    ARRAY(OUT,                            B * L,       H * E, T,      y)          \
    ARRAY(OUT | CACHED | OR_NULL,         B * L,       H,     DT_F32, lse)        \
    ARRAY(OUT | CACHED | OR_NULL,         kept,        G * E, T,      k_last)     \
    ARRAY(OUT | CACHED | NEED(a->k_last), kept,        G * E, T,      v_last)     \
    ARRAY(OUT | CACHED | NEED(a->k_last), 1,           B,     DT_I32, count_last) \
    APART(k_last, in.k0) APART(v_last, in.v0) APART(count_last, in.count0)
#define DT_ROWS_attention_backward                                               \
    DT_ATTENTION_INPUTS                                                          \
    ARRAY(IN,                              B * L,       H * E, T,      y)        \
    ARRAY(IN | CACHED,                     B * L,       H,     DT_F32, lse)      \
    ARRAY(IN | CACHED | OR_NULL,           kept,        G * E, DT_F32, dk_last)  \
    ARRAY(IN | CACHED | NEED(a->dk_last),  kept,        G * E, DT_F32, dv_last)  \
    ARRAY(IN,                              B * L,       H * E, T,      dy)       \
    ARRAY(OUT,                             B * L,       H * E, T,      dq)       \
    ARRAY(OUT,                             B * L,       G * E, T,      dk, dv)   \
    ARRAY(OUT | CACHED | OR_NULL,          kept,        G * E, DT_F32, dk0)      \
    ARRAY(OUT | CACHED | NEED(a->dk0),     kept,        G * E, DT_F32, dv0)      \
    APART(dk0, dk_last) APART(dv0, dv_last)
// clang-format on

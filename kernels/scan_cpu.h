// Shared by forward and backward of the scan on the CPU: how the work is cut, the rows that a piece
// keeps in cache, and the recurrence. Private to scan_*_cpu.c.
//
// A piece of work is one sequence and a group of up to DT_GROUP neighbouring channels; it walks
// the sequence in blocks of up to DT_BLOCK tokens. Per block the group's inputs are widened to
// fp32 once; then vectors of DT_LANES channels take the tokens in order, SCAN_STATES of the N
// states at a time, so that these states and their A stay in registers, and what backward keeps of
// each step and adds up for it in the L1 cache. N is padded to a multiple
// of SCAN_STATES by columns of B and C that are zero, channels to a multiple of DT_LANES by
// inputs that are zero: padding only adds zeros, and every shape takes one path.
//
// Floor: per vector and state, forward takes an exponential of 11 vector operations and 4 more (Δ
// A, Δ u B, h, C h), backward the same again and 8 in its sweep. On two 16-lane units at 4 GHz that
// is 0.117 and 0.180 ns per element (b, t, d, n). Softplus and gate add an N-th of an element each.
#pragma once

#include "kernels/piece_cpu.h"
#include "kernels/scan.h"
#include "kernels/workspace_cpu.h"

enum {
    SCAN_STATES = 4,
    SCAN_STEPS = DT_BLOCK + 1, // steps between vectors; not a power of two (cache conflicts)
};

// Δ, Δ · u and s of a vector of channels at one token.
struct scan_step {
    float delta[DT_LANES], du[DT_LANES], s[DT_LANES];
};

// What a piece keeps in cache in both directions; rows are DT_PITCH apart.
struct scan_rows {
    float *a;                // [n_state] rows: A · log2(e)
    float *d_skip, *dt_bias; // one row each
    struct scan_step *step;  // [vectors, SCAN_STEPS]
    float *b, *c;            // [DT_BLOCK, n_state]
};

// The recurrence's inputs for one block.
struct scan_block {
    int64_t steps, padded, n_state;
    const float *a, *b, *c; // as in scan_rows
    struct scan_step *step;
    const uint8_t *reset; // [steps], or NULL
    struct dt_ahead ahead[DT_AHEAD];
};

// Returns the index of the first step of the vector of channels from `lane` on.
static inline int64_t scan_steps_at(int64_t lane)
{
    return lane / DT_LANES * SCAN_STEPS;
}

// Carves the steps of a group's vectors; `bytes` is the size of one.
static inline void *scan_take_steps(struct dt_arena *arena, size_t bytes)
{
    return dt_arena_take(arena, scan_steps_at(DT_GROUP) * (int64_t)bytes);
}

static inline int64_t scan_padded_state(int64_t state)
{
    return dt_round_up(state, SCAN_STATES);
}

// The offset in `states` of a piece's channels of the state before token t, [N, D].
static inline int64_t scan_state_at(const struct dt_scan_inputs *in, const struct dt_piece *piece,
                                    int64_t t)
{
    int64_t chunk = piece->sequence * dt_ceil_div(in->length, in->chunk) + t / in->chunk;
    return chunk * in->b.cols * in->u.cols + piece->first;
}

// Loads a piece's part of [B, D, N], h0 or the gradient of h_last (NULL: zeros), into [n_state]
// rows; scan_store_state writes it back unless `to` is NULL.
static inline void scan_load_state(const struct dt_scan_inputs *in, const struct dt_piece *piece,
                                   int64_t n_state, const float *from, float *rows)
{
    int64_t N = in->b.cols, first = (piece->sequence * in->u.cols + piece->first) * N;
    memset(rows, 0, (size_t)(n_state * DT_PITCH) * sizeof *rows);
    for (int64_t i = 0; from && i < piece->count; i++)
        for (int64_t n = 0; n < N; n++)
            rows[n * DT_PITCH + i] = from[first + i * N + n];
}

static inline void scan_store_state(const struct dt_scan_inputs *in, const struct dt_piece *piece,
                                    const float *rows, float *to)
{
    int64_t N = in->b.cols, first = (piece->sequence * in->u.cols + piece->first) * N;
    for (int64_t i = 0; to && i < piece->count; i++)
        for (int64_t n = 0; n < N; n++)
            to[first + i * N + n] = rows[n * DT_PITCH + i];
}

// 2^x for x <= 0, the one exponential of the recurrence: x = k + r with |r| <= 1/2, a polynomial of
// degree 5 (relative error 1.1e-7, and exactly 1 at 0, so that the error of a slowly fading
// state stays bounded over any number of steps), 2^k by adding to the exponent. Below 2^-126:
// 2^-126.
DT_INLINE float scan_exp2(float x)
{
    const float shift = 0x1.8p23f; // adding it rounds to an integer in the low bits
    x = x < -126.0f ? -126.0f : x; // NaN stays
    float t = x + shift, r = x - (t - shift);
    float p = 0x1.5bba10p-10f;
    p = p * r + 0x1.3cea88p-7f;
    p = p * r + 0x1.c6b752p-5f;
    p = p * r + 0x1.ebf9bcp-3f;
    p = p * r + 0x1.62e42ap-1f;
    p = p * r + 1.0f;
    return dt_float_of_bits(dt_bits_of_float(p) + (dt_bits_of_float(t) << 23));
}

// -exp(a_log) · log2(e). Any NaN becomes the default NaN, which scan_exp2 preserves.
DT_INLINE float scan_a(float a_log)
{
    float scaled = dt_expf(a_log) * -0x1.715476p0f;
    return scaled != scaled ? dt_float_of_bits(0x7fc00000u) : scaled;
}

// A tile of states or of their gradients: local arrays of constant size stay in registers.
DT_INLINE void scan_clear(float tile[SCAN_STATES][DT_LANES])
{
    for (int n = 0; n < SCAN_STATES; n++)
#pragma omp simd
        for (int l = 0; l < DT_LANES; l++)
            tile[n][l] = 0.0f;
}

struct scan_rows scan_take_rows(struct dt_arena *arena, int64_t n_state);
// Loads the parameters of a piece's channels.
void scan_open_piece(const struct dt_scan_inputs *in, const struct dt_piece *piece, int64_t n_state,
                     const struct scan_rows *rows);
// Loads B and C of tokens [row, row + steps) of all B · L; the block's other rows are already
// loaded.
struct scan_block scan_open_block(const struct dt_scan_inputs *in, const struct dt_piece *piece,
                                  int64_t n_state, int64_t row, int64_t steps,
                                  const struct scan_rows *rows);
// scan_sweep_cpu.c. Runs a block: advances h ([n_state] rows); s += C · h.
void scan_advance(const struct scan_block *block, float *h);

// What the two directions of the scan share on the CPU: how the work is cut, the rows that a piece
// keeps in fast memory, and the recurrence itself. Private to scan_*_cpu.c.
//
// A piece of work is one sequence and a group of up to DT_GROUP neighbouring channels; it walks
// the sequence in blocks of up to DT_BLOCK tokens. Per block the group's inputs are widened to
// fp32 rows once; then vectors of DT_LANES channels take the tokens in order, SCAN_STATES of the
// N states at a time, so that these states and their A stay in registers. N is padded to a multiple
// of SCAN_STATES by columns of B and C that are zero, channels to a multiple of DT_LANES by
// inputs that are zero: padding adds zeros only and there is one path for every shape.
//
// Floor: 9 operations of the FMA units a vector and state forward (5 of them the exponential's), 17
// backward, which makes exponential and state again; two 16-lane units at 4 GHz: 0.070 and 0.133 ns
// an element (b, t, d, n). Softplus and gate come on top, an N-th of an element each.
#pragma once

#include "base/arena.h"
#include "kernels/piece_cpu.h"
#include "kernels/scan.h"

enum { SCAN_STATES = 8 };

// What the recurrence needs of one block; rows are DT_PITCH apart.
struct scan_block {
    int64_t steps, padded, n_state;
    const float *a;       // [n_state] rows: A · log2(e)
    const float *delta;   // [steps] rows: Δ
    const float *du;      // [steps] rows: Δ · u
    const float *b, *c;   // [steps, n_state]
    const uint8_t *reset; // [steps], or NULL
    struct dt_ahead ahead[DT_AHEAD];
};

static inline int64_t scan_padded_state(int64_t state)
{
    return dt_round_up(state, SCAN_STATES);
}

// Tokens of the block that starts at t: to the end of the block, the chunk or the sequence.
static inline int64_t scan_steps(int64_t length, int64_t chunk, int64_t t)
{
    return dt_min_i64(length - t, dt_min_i64(chunk - t % chunk, DT_BLOCK));
}

// A workspace need not be aligned; this much more of it lets its arena be.
enum { SCAN_SLACK = DT_ARENA_ALIGN };

static inline struct dt_arena scan_arena(void *workspace, int64_t bytes)
{
    uintptr_t base = (uintptr_t)workspace;
    uintptr_t skip = (DT_ARENA_ALIGN - base % DT_ARENA_ALIGN) % DT_ARENA_ALIGN;
    return dt_arena_place((char *)workspace + skip, bytes - SCAN_SLACK);
}

static inline float *scan_take(struct dt_arena *arena, int64_t floats)
{
    return dt_arena_take(arena, floats * (int64_t)sizeof(float));
}

static inline float *scan_take_rows(struct dt_arena *arena, int64_t rows)
{
    return scan_take(arena, rows * DT_PITCH);
}

// 2^x for x <= 0, the one exponential of the recurrence: x = k + r with |r| <= 1/2, a polynomial of
// degree 5 (relative error 1.1e-7, and exactly 1 at 0, so that the error of a slowly fading
// state stays bounded over any number of steps), 2^k by adding to the exponent. Below 2^-126:
// 2^-126.
DT_INLINE float scan_exp2(float x)
{
    const float shift = 0x1.8p23f; // adding it rounds to an integer, which is then in the low bits
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

// -exp(a_log) · log2(e). A NaN is made the plain one: scan_exp2 keeps that.
DT_INLINE float scan_a(float a_log)
{
    float scaled = dt_expf(a_log) * -0x1.715476p0f;
    return scaled != scaled ? dt_float_of_bits(0x7fc00000u) : scaled;
}

// A tile of states or of their gradients: local arrays of constant size, which live in registers.
DT_INLINE void scan_clear(float tile[SCAN_STATES][DT_LANES])
{
    for (int n = 0; n < SCAN_STATES; n++)
#pragma omp simd
        for (int l = 0; l < DT_LANES; l++)
            tile[n][l] = 0.0f;
}

// a[n][i] = scan_a(a_log[i, n]); padding gets 0.
void scan_load_a(const struct dt_piece *piece, int64_t state, int64_t n_state, const float *a_log,
                 float *a);
// to[t, n] = rows [row, row + steps) of b or c, padded by zeros.
void scan_load_columns(const struct dt_view *from, int64_t row, int64_t steps, int64_t n_state,
                       float *to);
// to[i] = from[first + i], padding 0.
void scan_load_channels(const struct dt_piece *piece, const float *from, float *to);
// Runs a block: h ([n_state] rows) is carried on, s ([steps] rows) += C · h.
void scan_advance(const struct scan_block *block, float *h, float *s);

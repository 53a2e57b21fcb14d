// Shared by forward and backward of ssd on the CPU: how the work is cut, and what a chunk's heads
// have in common. Private to ssd_*_cpu.c.
//
// A piece of work is one sequence and a slice of up to SSD_SLICE heads of a group; it walks the
// chunks with the heads' states in cache. Inputs are widened to fp32 rows, which dt_gemm_direct
// multiplies. Tokens, states and columns of a head are padded to DT_LANES by zeros, and no pitch is
// a power of two, which would cause cache conflicts.
//
// Floor: a head's token costs 2 P N + P Q / 2 multiply-adds forward and 4 P N + P Q backward; with
// AVX-512 a core does at most 32 per cycle.
#pragma once

#include "kernels/gemm_tile_cpu.h"
#include "kernels/piece_cpu.h"
#include "kernels/ssd.h"
#include "kernels/workspace_cpu.h"

enum {
    SSD_SLICE = 8,       // heads per piece
    SSD_SLICE_LEAST = 4, // heads per piece, where SSD_SLICE would give fewer than SSD_PIECES pieces
    SSD_PIECES = 6,
    SSD_ROWS = DT_LANES, // rows of a strip of a chunk's causal [Q, Q] matrix
};

struct ssd_sizes {
    int64_t slices, each; // slices per group; heads per slice
    int64_t pieces;
    int64_t P, N;                      // per head
    int64_t q, p, n;                   // tokens per chunk, columns and states per head, padded
    int64_t q_pitch, p_pitch, n_pitch; // floats between rows
    int64_t chunks;                    // per sequence
};

struct ssd_piece {
    int64_t sequence, group, slice;
    int64_t head, heads; // first head, number of heads
};

static inline struct ssd_sizes ssd_sizes(const struct dt_ssd_inputs *in)
{
    int64_t heads = in->heads / in->groups, groups = in->batch * in->groups;
    struct ssd_sizes s = {.each = SSD_SLICE};
    while (s.each > SSD_SLICE_LEAST && groups * dt_ceil_div(heads, s.each) < SSD_PIECES)
        s.each /= 2;
    s.slices = dt_ceil_div(heads, s.each);
    s.pieces = groups * s.slices;
    s.P = in->x.cols / in->heads, s.N = in->b.cols / in->groups;
    s.q = dt_round_up(dt_min_i64(in->chunk, in->length), DT_LANES);
    s.p = dt_round_up(s.P, DT_LANES), s.n = dt_round_up(s.N, DT_LANES);
    s.q_pitch = s.q + DT_LANES, s.p_pitch = s.p + DT_LANES, s.n_pitch = s.n + DT_LANES;
    s.chunks = dt_ceil_div(in->length, in->chunk);
    return s;
}

static inline struct ssd_piece ssd_piece(const struct dt_ssd_inputs *in, const struct ssd_sizes *s,
                                         int64_t index)
{
    int64_t heads = in->heads / in->groups, slice = index % s->slices, rest = index / s->slices;
    return (struct ssd_piece){.sequence = rest / in->groups,
                              .group = rest % in->groups,
                              .slice = slice,
                              .head = rest % in->groups * heads + slice * s->each,
                              .heads = dt_min_i64(s->each, heads - slice * s->each)};
}

// One chunk of a piece.
struct ssd_chunk {
    int64_t row, tokens;  // first row of all B · L; tokens of this chunk
    int64_t next, coming; // row and tokens of the next chunk; 0 tokens: none
    int64_t rows;         // tokens, padded
    const uint8_t *reset; // [tokens], or NULL
    float *b, *c;         // [rows] rows of n_pitch
    float *segment;       // [rows]: resets up to t
};

// A head's steps in a chunk, [rows] each; 0 after the last token.
struct ssd_steps {
    float *raw;   // dt + dt_bias
    float *delta; // Δ
    float *log;   // l_t
    float *keep;  // exp(l_t), 0 from the first reset on
    float *end;   // decay[last, t]
    // Between strips decay[t, s] = strip[k][t] · column[s]: k is the strip of s, e its last token,
    // and the factors are decay[t, e] and decay[e, s], both at most 1.
    float *column; // [rows]
    float *strip;  // [rows / SSD_ROWS, q]
    float a;       // A
    float all;     // keep of the last token
};

// Makes a thread's products. With bf16 storage it rounds operands to bf16 if the CPU has bf16
// instructions.
struct ssd_engine {
    const struct dt_gemm_kernel *kernel;
    bool bf16;
    void *pairs; // memory for the rounded operands
    struct dt_soon soon;
};
static inline struct ssd_engine
ssd_take_engine(struct dt_arena *arena, const struct dt_ssd_inputs *in, const struct ssd_sizes *s)
{
    enum dt_cpu_isa isa = dt_cpu_isa();
    int64_t most = dt_max_i64(s->q, dt_max_i64(s->n, s->p));
    return (struct ssd_engine){
        .kernel = dt_gemm_kernel(isa, DT_F32),
        .bf16 = in->x.dtype == DT_BF16 && isa >= DT_ISA_AVX512_BF16,
        .pairs = dt_arena_take(arena, dt_gemm_direct_bf16_bytes(most, most, most)),
        .soon.view = DT_SOON_VIEWS};
}
// c [m, n] = keep · c + a · b
static inline void ssd_multiply(struct ssd_engine *engine, int64_t m, int64_t n, int64_t k,
                                struct dt_factor a, struct dt_factor b, float *c, int64_t c_row,
                                float keep)
{
    struct dt_gemm_direct product = dt_gemm_direct_of(m, n, k, a, b, c, c_row, keep);
    product.soon = &engine->soon;
    if (engine->bf16)
        dt_gemm_direct_bf16(&product, engine->pairs);
    else
        dt_gemm_direct(engine->kernel, &product);
}

struct ssd_chunk ssd_take_chunk(struct dt_arena *arena, const struct ssd_sizes *s);
struct ssd_steps ssd_take_steps(struct dt_arena *arena, const struct ssd_sizes *s);
void ssd_load_chunk(const struct dt_ssd_inputs *in, const struct ssd_sizes *s,
                    const struct ssd_piece *piece, int64_t index, int64_t next,
                    struct ssd_chunk *chunk);
void ssd_load_steps(const struct dt_ssd_inputs *in, const struct ssd_sizes *s,
                    const struct ssd_chunk *chunk, int64_t head, struct ssd_steps *steps);
// Loads a head's columns of the chunk's rows.
void ssd_load_head(const struct dt_view *from, const struct ssd_sizes *s,
                   const struct ssd_chunk *chunk, int64_t head, float *to);
// Transposes h [P, N], the layout between calls, to rows of n, `pitch` floats apart.
static inline void ssd_turn_state(const struct ssd_sizes *s, const float *h, float *to,
                                  int64_t pitch)
{
    for (int64_t n = 0; n < s->N; n++)
        for (int64_t i = 0; i < s->P; i++)
            to[n * pitch + i] = h[i * s->N + n];
}

// Loads the states of a piece's heads, or their gradients, from [B, H, P, N] (NULL: zeros) to
// [heads][n, p]; the store function writes them back unless the target is NULL.
static inline void ssd_load_states(const struct dt_ssd_inputs *in, const struct ssd_sizes *s,
                                   const struct ssd_piece *piece, const float *from, float *to)
{
    int64_t first = piece->sequence * in->heads + piece->head, size = s->n * s->p_pitch;
    memset(to, 0, (size_t)(piece->heads * size) * sizeof *to);
    for (int64_t i = 0; i < piece->heads && from; i++)
        ssd_turn_state(s, from + (first + i) * s->P * s->N, to + i * size, s->p_pitch);
}

static inline void ssd_store_states(const struct dt_ssd_inputs *in, const struct ssd_sizes *s,
                                    const struct ssd_piece *piece, const float *from, float *to)
{
    int64_t first = piece->sequence * in->heads + piece->head;
    for (int64_t i = 0; i < piece->heads && to; i++)
        for (int64_t p = 0; p < s->P; p++)
            for (int64_t n = 0; n < s->N; n++)
                to[((first + i) * s->P + p) * s->N + n] = from[(i * s->n + n) * s->p_pitch + p];
}

// The view to load after head `index` of the piece: the next head's columns or, after the last
// head, the next chunk's B or C.
static inline struct dt_view ssd_next_head(const struct dt_view *from, const struct ssd_sizes *s,
                                           const struct ssd_piece *piece,
                                           const struct ssd_chunk *chunk, int64_t index)
{
    if (index + 1 < piece->heads)
        return dt_view_block(*from, chunk->row, (piece->head + index + 1) * s->P, chunk->tokens,
                             s->P);
    return dt_view_block(*from, chunk->next, piece->head * s->P, chunk->coming, s->P);
}
static inline struct dt_view ssd_next_group(const struct dt_view *from, const struct ssd_sizes *s,
                                            const struct ssd_piece *piece,
                                            const struct ssd_chunk *chunk, int64_t index)
{
    int64_t rows = index + 1 < piece->heads ? 0 : chunk->coming;
    return dt_view_block(*from, chunk->next, piece->group * s->N, rows, s->N);
}

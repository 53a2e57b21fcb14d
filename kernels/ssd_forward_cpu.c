// State-space duality forward on the CPU, and functions that backward uses too. ssd_cpu.h says how
// the work is cut; pieces write to disjoint places, so nothing is reduced.
#include "kernels/ssd_cpu.h"

#include "kernels/cpu.h"

// Up to this many tokens the plain recurrence is faster than products.
enum { SHORT = 4 };

struct ssd_chunk ssd_take_chunk(struct dt_arena *arena, const struct ssd_sizes *s)
{
    struct ssd_chunk chunk = {0};
    dt_take_arrays(arena, s->q, s->n_pitch, (float **[]){&chunk.b, &chunk.c, NULL});
    dt_take_arrays(arena, 1, s->q, (float **[]){&chunk.segment, NULL});
    return chunk;
}

struct ssd_steps ssd_take_steps(struct dt_arena *arena, const struct ssd_sizes *s)
{
    struct ssd_steps steps = {0};
    dt_take_arrays(arena, 1, s->q,
                   (float **[]){&steps.raw, &steps.delta, &steps.log, &steps.keep, &steps.end,
                                &steps.column, NULL});
    dt_take_arrays(arena, s->q / SSD_ROWS, s->q, (float **[]){&steps.strip, NULL});
    return steps;
}

// Loads columns [first, first + count) of the chunk's tokens into `rows` rows of `pitch` floats;
// the rest is zero.
DT_CLONES static void load_columns(const struct dt_view *from, const struct ssd_chunk *chunk,
                                   int64_t first, int64_t count, int64_t padded, int64_t pitch,
                                   float *to)
{
    for (int64_t t = 0; t < chunk->tokens; t++)
        dt_load_row(from->dtype, dt_view_at(from, chunk->row + t, first), count, padded,
                    to + t * pitch);
    for (int64_t t = chunk->tokens; t < chunk->rows; t++)
        memset(to + t * pitch, 0, (size_t)padded * sizeof *to);
}

void ssd_load_chunk(const struct dt_ssd_inputs *in, const struct ssd_sizes *s,
                    const struct ssd_piece *piece, int64_t index, int64_t next,
                    struct ssd_chunk *chunk)
{
    float resets = 0.0f;
    chunk->row = piece->sequence * in->length + index * in->chunk;
    chunk->tokens = dt_min_i64(in->chunk, in->length - index * in->chunk);
    bool more = next >= 0 && next < s->chunks;
    chunk->next = more ? piece->sequence * in->length + next * in->chunk : chunk->row;
    chunk->coming = more ? dt_min_i64(in->chunk, in->length - next * in->chunk) : 0;
    chunk->rows = dt_round_up(chunk->tokens, DT_LANES);
    chunk->reset = in->reset ? in->reset + chunk->row : NULL;
    load_columns(&in->b, chunk, piece->group * s->N, s->N, s->n, s->n_pitch, chunk->b);
    load_columns(&in->c, chunk, piece->group * s->N, s->N, s->n, s->n_pitch, chunk->c);
    for (int64_t t = 0; t < chunk->rows; t++) {
        resets += chunk->reset && t < chunk->tokens && chunk->reset[t] ? 1.0f : 0.0f;
        chunk->segment[t] = resets;
    }
}

// Exponentials of differences of the sums, which are repeated in padding.
DT_CLONES static void exponents(const struct ssd_sizes *s, const struct ssd_chunk *chunk,
                                const struct ssd_steps *steps)
{
    const float *restrict segment = chunk->segment, *restrict log = steps->log;
    float *restrict keep = steps->keep, *restrict end = steps->end;
    float last = log[chunk->tokens - 1], last_segment = segment[chunk->tokens - 1];
#pragma omp simd
    for (int64_t t = 0; t < chunk->rows; t++) {
        keep[t] = segment[t] == 0.0f ? dt_expf(log[t]) : 0.0f;
        end[t] = segment[t] == last_segment ? dt_expf(last - log[t]) : 0.0f;
    }
    for (int64_t k = 0; k < chunk->rows; k += SSD_ROWS) {
        float *restrict column = steps->column + k, *restrict strip =
                                                        steps->strip + k / SSD_ROWS * s->q;
        float edge = log[k + SSD_ROWS - 1], edge_segment = segment[k + SSD_ROWS - 1];
#pragma omp simd
        for (int64_t t = 0; t < SSD_ROWS; t++)
            column[t] = segment[k + t] == edge_segment ? dt_expf(edge - log[k + t]) : 0.0f;
#pragma omp simd
        for (int64_t t = k + SSD_ROWS; t < chunk->rows; t++)
            strip[t] = segment[t] == edge_segment ? dt_expf(log[t] - edge) : 0.0f;
    }
}

DT_CLONES static void step_sizes(const struct dt_ssd_inputs *in, const struct ssd_steps *steps,
                                 int64_t tokens)
{
    float *restrict raw = steps->raw, *restrict delta = steps->delta;
#pragma omp simd
    for (int64_t t = 0; t < tokens; t++) {
        float step = dt_softplusf(raw[t]);
        step = step < in->dt_min ? in->dt_min : step; // NaN stays
        delta[t] = step > in->dt_max ? in->dt_max : step;
    }
}

void ssd_load_steps(const struct dt_ssd_inputs *in, const struct ssd_sizes *s,
                    const struct ssd_chunk *chunk, int64_t head, struct ssd_steps *steps)
{
    const bool bf16 = in->dt.dtype == DT_BF16;
    double sum = 0.0;
    steps->a = -dt_expf(in->a_log[head]);
    for (int64_t t = 0; t < chunk->tokens; t++)
        steps->raw[t] =
            dt_load(dt_view_at(&in->dt, chunk->row + t, head), 0, bf16) + in->dt_bias[head];
    step_sizes(in, steps, chunk->tokens);
    for (int64_t t = 0; t < chunk->rows; t++) {
        if (t >= chunk->tokens)
            steps->raw[t] = steps->delta[t] = 0.0f;
        sum += (double)(steps->delta[t] * steps->a);
        steps->log[t] = (float)sum;
    }
    exponents(s, chunk, steps);
    steps->all = steps->keep[chunk->tokens - 1];
}

void ssd_load_head(const struct dt_view *from, const struct ssd_sizes *s,
                   const struct ssd_chunk *chunk, int64_t head, float *to)
{
    load_columns(from, chunk, head * s->P, s->P, s->p, s->p_pitch, to);
}

// The rows of one thread.
struct scratch {
    struct ssd_chunk chunk;
    struct ssd_steps steps;
    struct ssd_engine engine;
    float *b_turned; // [n, q]
    float *scores;   // [q, q]: C Bᵀ
    float *m;        // [q, q]: decay ∘ scores, columns times Δ
    float *x;        // [q, p]: x, then end ∘ X
    float *y;        // [q, p]
    float *h;        // [each][n, p]: the heads' states
};

static struct scratch take_scratch(struct dt_arena *arena, const struct dt_ssd_inputs *in,
                                   const struct ssd_sizes *s)
{
    struct scratch x = {.chunk = ssd_take_chunk(arena, s), .steps = ssd_take_steps(arena, s)};
    dt_take_arrays(arena, s->n, s->q_pitch, (float **[]){&x.b_turned, NULL});
    dt_take_arrays(arena, s->q, s->q_pitch, (float **[]){&x.scores, &x.m, NULL});
    dt_take_arrays(arena, s->q, s->p_pitch, (float **[]){&x.x, &x.y, NULL});
    dt_take_arrays(arena, s->each * s->n, s->p_pitch, (float **[]){&x.h, NULL});
    x.engine = ssd_take_engine(arena, in, s);
    return x;
}

struct run {
    const struct dt_ssd_forward_args *args;
    struct ssd_sizes s;
};

// m = decay ∘ scores with column s times Δ_s, so that m x = (decay ∘ scores) X.
DT_CLONES static void apply_decay(const struct ssd_sizes *s, const struct scratch *x)
{
    const float *restrict log = x->steps.log, *restrict segment = x->chunk.segment;
    int32_t rows = (int32_t)x->chunk.rows;
    for (int32_t k = 0; k < rows; k += SSD_ROWS) {
        const float *restrict strip = x->steps.strip + k / SSD_ROWS * s->q;
        float delta[SSD_ROWS], column[SSD_ROWS];
        for (int32_t i = 0; i < SSD_ROWS; i++) {
            delta[i] = x->steps.delta[k + i];
            column[i] = x->steps.column[k + i] * delta[i];
        }
        for (int32_t t = k; t < rows; t++) {
            const float *restrict scores = x->scores + t * s->q_pitch + k;
            float *restrict m = x->m + t * s->q_pitch + k;
            if (t < k + SSD_ROWS)
#pragma omp simd
                for (int32_t i = 0; i < SSD_ROWS; i++) {
                    float part = scores[i] * delta[i] * dt_expf(log[t] - log[k + i]);
                    m[i] = (k + i <= t) & (segment[k + i] == segment[t]) ? part : 0.0f;
                }
            else
#pragma omp simd
                for (int32_t i = 0; i < SSD_ROWS; i++)
                    m[i] = scores[i] * (strip[t] * column[i]);
        }
    }
}

// y = keep ∘ y + d_skip · x; y may be the part of the state, or unused.
DT_CLONES static void skip_rows(const struct ssd_sizes *s, const struct scratch *x, float d_skip,
                                bool empty)
{
    for (int64_t t = 0; t < x->chunk.rows; t++) {
        float *restrict y = x->y + t * s->p_pitch;
        const float *restrict in = x->x + t * s->p_pitch;
        float keep = x->steps.keep[t];
        if (empty || keep == 0.0f)
#pragma omp simd
            for (int64_t i = 0; i < s->p; i++)
                y[i] = d_skip * in[i];
        else
#pragma omp simd
            for (int64_t i = 0; i < s->p; i++)
                y[i] = keep * y[i] + d_skip * in[i];
    }
}

// x = end ∘ X
DT_CLONES static void weigh_rows(const struct ssd_sizes *s, const struct scratch *x)
{
    for (int64_t t = 0; t < x->chunk.rows; t++) {
        float *restrict row = x->x + t * s->p_pitch, weight = x->steps.end[t] * x->steps.delta[t];
#pragma omp simd
        for (int64_t i = 0; i < s->p; i++)
            row[i] *= weight;
    }
}

DT_CLONES static void store_head(const struct run *run, const struct scratch *x, int64_t head)
{
    for (int64_t t = 0; t < x->chunk.tokens; t++)
        dt_store_row(run->args->y.dtype, x->y + t * run->s.p_pitch, run->s.P,
                     dt_view_at(&run->args->y, x->chunk.row + t, head * run->s.P));
}

// The views to prefetch: what the head writes, and what is read and written after it. saved: for
// its state, or NULL.
static struct dt_soon find_soon(const struct run *run, const struct scratch *x,
                                const struct ssd_piece *piece, int64_t index, const float *saved)
{
    const struct dt_ssd_forward_args *a = run->args;
    const struct ssd_sizes *s = &run->s;
    int64_t states = saved && index + 1 < piece->heads ? s->N : 0;
    return (struct dt_soon){
        .views = {
            dt_view_block(a->y, x->chunk.row, (piece->head + index) * s->P, x->chunk.tokens, s->P),
            ssd_next_head(&a->in.x, s, piece, &x->chunk, index),
            ssd_next_group(&a->in.b, s, piece, &x->chunk, index),
            ssd_next_group(&a->in.c, s, piece, &x->chunk, index),
            dt_view_of(states ? saved + s->P * s->N : NULL, states, s->P, DT_F32)}};
}

// Runs a head's chunk. saved: gets the state before it, or NULL; before: that state is not zero;
// after: the next state is needed.
static void run_head(const struct run *run, struct scratch *x, const struct ssd_piece *piece,
                     int64_t index, float *saved, bool before, bool after)
{
    const struct ssd_sizes *s = &run->s;
    int64_t rows = x->chunk.rows, head = piece->head + index;
    float *h = x->h + index * s->n * s->p_pitch;
    for (int64_t n = 0; n < s->N && saved; n++)
        memcpy(saved + n * s->P, h + n * s->p_pitch, (size_t)s->P * sizeof *h);
    ssd_load_steps(&run->args->in, s, &x->chunk, head, &x->steps);
    ssd_load_head(&run->args->in.x, s, &x->chunk, head, x->x);
    x->engine.soon = find_soon(run, x, piece, index, saved);
    apply_decay(s, x);
    if (before)
        ssd_multiply(&x->engine, rows, s->p, s->N, dt_as_rows(x->chunk.c, s->n_pitch),
                     dt_as_rows(h, s->p_pitch), x->y, s->p_pitch, 0.0f);
    skip_rows(s, x, run->args->in.d_skip[head], !before);
    for (int64_t t = 0; t < rows; t += SSD_ROWS)
        ssd_multiply(&x->engine, SSD_ROWS, s->p, t + SSD_ROWS,
                     dt_as_rows(x->m + t * s->q_pitch, s->q_pitch), dt_as_rows(x->x, s->p_pitch),
                     x->y + t * s->p_pitch, s->p_pitch, 1.0f);
    store_head(run, x, head);
    if (!after)
        return;
    weigh_rows(s, x);
    ssd_multiply(&x->engine, s->N, s->p, x->chunk.tokens, dt_as_columns(x->chunk.b, s->n_pitch),
                 dt_as_rows(x->x, s->p_pitch), h, s->p_pitch, before ? x->steps.all : 0.0f);
}

static void run_piece(const struct run *run, const struct ssd_piece *piece, struct scratch *x)
{
    const struct dt_ssd_forward_args *a = run->args;
    const struct ssd_sizes *s = &run->s;
    ssd_load_states(&a->in, s, piece, a->in.h0, x->h);
    for (int64_t k = 0; k < s->chunks; k++) {
        ssd_load_chunk(&a->in, s, piece, k, k + 1, &x->chunk);
        dt_gemm_turn(x->b_turned, s->q_pitch, x->chunk.b, s->n_pitch, s->n, x->chunk.rows);
        for (int64_t t = 0; t < x->chunk.rows; t += SSD_ROWS) // lower triangle of C Bᵀ
            ssd_multiply(&x->engine, SSD_ROWS, t + SSD_ROWS, s->N,
                         dt_as_rows(x->chunk.c + t * s->n_pitch, s->n_pitch),
                         dt_as_rows(x->b_turned, s->q_pitch), x->scores + t * s->q_pitch,
                         s->q_pitch, 0.0f);
        for (int64_t i = 0; i < piece->heads; i++) {
            int64_t saved = (piece->sequence * s->chunks + k) * a->in.heads + piece->head + i;
            run_head(run, x, piece, i, a->states ? a->states + saved * s->P * s->N : NULL,
                     k > 0 || a->in.h0, k < s->chunks - 1 || a->h_last);
        }
    }
    ssd_store_states(&a->in, s, piece, x->h, a->h_last);
}

// Advances h [P, N] of a head by one token: y += C h. b and c are fp32 rows.
DT_CLONES static void step_head(const struct ssd_sizes *s, float decay, float delta, float d_skip,
                                const float *restrict x, const float *restrict b,
                                const float *restrict c, float *restrict h, float *restrict y)
{
    for (int64_t i = 0; i < s->P; i++) {
        float *restrict row = h + i * s->N, in = delta * x[i], sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (int64_t n = 0; n < s->N; n++) {
            row[n] = decay == 0.0f ? in * b[n] : decay * row[n] + in * b[n];
            sum += row[n] * c[n];
        }
        y[i] = sum + d_skip * x[i];
    }
}

// The plain recurrence for a few tokens: each is a chunk whose keep is the token's decay.
static void step_piece(const struct run *run, const struct ssd_piece *piece, struct scratch *x)
{
    const struct dt_ssd_forward_args *a = run->args;
    const struct ssd_sizes *s = &run->s;
    int64_t state = s->P * s->N, first = piece->sequence * a->in.heads + piece->head;
    int64_t all = piece->heads * state * (int64_t)sizeof(float);
    const float *h0 = a->in.h0 ? a->in.h0 + first * state : NULL;
    float *h = a->h_last ? a->h_last + first * state : x->h;
    struct dt_ssd_inputs one = a->in;
    one.chunk = 1;
    if (!h0)
        memset(h, 0, (size_t)all);
    else if (h != h0)
        memcpy(h, h0, (size_t)all);
    for (int64_t t = 0; t < a->in.length; t++) {
        ssd_load_chunk(&one, s, piece, t, t + 1, &x->chunk);
        for (int64_t i = 0; i < piece->heads; i++) {
            int64_t head = piece->head + i, saved = piece->sequence * s->chunks + t / a->in.chunk;
            if (a->states && t % a->in.chunk == 0)
                ssd_turn_state(s, h + i * state, a->states + (saved * a->in.heads + head) * state,
                               s->P);
            ssd_load_steps(&one, s, &x->chunk, head, &x->steps);
            ssd_load_head(&one.x, s, &x->chunk, head, x->x);
            step_head(s, x->steps.keep[0], x->steps.delta[0], a->in.d_skip[head], x->x, x->chunk.b,
                      x->chunk.c, h + i * state, x->y);
            store_head(run, x, head);
        }
    }
}

DT_OP_CPU_WORKSPACE(ssd_forward)
{
    struct dt_arena own = dt_arena_measure();
    struct ssd_sizes s = ssd_sizes(&args->in);
    take_scratch(&own, &args->in, &s);
    return device->threads * own.used + DT_SLACK;
}

DT_OP_CPU(ssd_forward)
{
    struct run run = {args, ssd_sizes(&args->in)};
    struct dt_arena arena = dt_workspace_arena(args->workspace, args->workspace_bytes);
#pragma omp parallel num_threads(device->threads) if (run.s.pieces > 1)
    {
        struct dt_arena own = dt_thread_arena(&arena, device->threads);
        struct scratch scratch = take_scratch(&own, &args->in, &run.s);
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < run.s.pieces; i++) {
            struct ssd_piece piece = ssd_piece(&args->in, &run.s, i);
            (args->in.length <= SHORT ? step_piece : run_piece)(&run, &piece, &scratch);
        }
    }
    return DT_OK;
}

// State-space duality backward on the CPU: chunks from the last to the first, squares in transposed
// order [s, t], so that the products that sum over a head's columns read rows. A slice's sums over
// its heads go to the workspace, where slices are added in order at the end.
#include "kernels/ssd_cpu.h"

#include "kernels/cpu.h"

#include <omp.h>

// A thread's rows.
struct scratch {
    struct ssd_chunk chunk;
    struct ssd_steps steps;
    float *c_turned;                // [n, q]
    float *scores;                  // [q, q]: B Cᵀ
    float *dscores;                 // [q, q]: Σ_heads (dM ∘ decay)ᵀ
    float *m, *dm;                  // [q, q] of a head: (decay ∘ scores)ᵀ; dMᵀ
    float *x, *in, *dy;             // [q, p]: x, X, dY
    float *din;                     // [q, p]: dX
    float *aside;                   // [q, p]: B dh_endᵀ; end ∘ X; keep ∘ dY
    float *turned;                  // [p, q]: dYᵀ and others
    float *dc_head;                 // [n, q]: a head's part of dc
    float *db, *dc;                 // [n, q]: Σ_heads of what comes through states
    float *rows;                    // [q, n]
    float *columns;                 // [q]: sums over s of a square's columns
    float *square, *before, *after; // [q]: parts of dlog
    float *dlog, *ddelta;           // [q]
    float *dh;                      // [each][n, p]: gradients of the heads' states
    void *pairs;
};

static struct scratch take_scratch(struct dt_arena *arena, const struct ssd_sizes *s)
{
    struct scratch x;
    x.chunk = ssd_take_chunk(arena, s);
    x.steps = ssd_take_steps(arena, s);
    x.c_turned = ssd_take(arena, s->n, s->q_pitch);
    x.scores = ssd_take(arena, s->q, s->q_pitch);
    x.dscores = ssd_take(arena, s->q, s->q_pitch);
    x.m = ssd_take(arena, s->q, s->q_pitch);
    x.dm = ssd_take(arena, s->q, s->q_pitch);
    x.x = ssd_take(arena, s->q, s->p_pitch);
    x.in = ssd_take(arena, s->q, s->p_pitch);
    x.dy = ssd_take(arena, s->q, s->p_pitch);
    x.din = ssd_take(arena, s->q, s->p_pitch);
    x.aside = ssd_take(arena, s->q, s->p_pitch);
    x.turned = ssd_take(arena, s->p, s->q_pitch);
    x.dc_head = ssd_take(arena, s->n, s->q_pitch);
    x.db = ssd_take(arena, s->n, s->q_pitch);
    x.dc = ssd_take(arena, s->n, s->q_pitch);
    x.rows = ssd_take(arena, s->q, s->n_pitch);
    x.columns = ssd_take(arena, 1, s->q);
    x.square = ssd_take(arena, 1, s->q);
    x.before = ssd_take(arena, 1, s->q);
    x.after = ssd_take(arena, 1, s->q);
    x.dlog = ssd_take(arena, 1, s->q);
    x.ddelta = ssd_take(arena, 1, s->q);
    x.dh = ssd_take(arena, s->each * s->n, s->p_pitch);
    x.pairs = ssd_take_pairs(arena, s);
    return x;
}

struct run {
    const struct dt_ssd_backward_args *args;
    struct ssd_sizes s;
    struct ssd_engine engine;
    float *heads;   // [B, H, 3]: a sequence's da_log, dd_skip, ddt_bias
    float *db, *dc; // [slices, B·L, G·N]
};

static void multiply(const struct run *run, const struct scratch *x, struct dt_gemm_direct product)
{
    ssd_multiply(&run->engine, x->pairs, product);
}

// (C Bᵀ)ᵀ of the chunk: row s, columns from s's strip on.
static void multiply_scores(const struct run *run, const struct scratch *x)
{
    const struct ssd_sizes *s = &run->s;
    dt_gemm_turn(x->c_turned, s->q_pitch, x->chunk.c, s->n_pitch, s->n, x->chunk.rows);
    for (int64_t i = 0; i < x->chunk.rows; i += SSD_ROWS)
        multiply(run, x,
                 (struct dt_gemm_direct){.m = SSD_ROWS,
                                         .n = x->chunk.rows - i,
                                         .k = s->N,
                                         .a = x->chunk.b + i * s->n_pitch,
                                         .a_row = s->n_pitch,
                                         .a_k = 1,
                                         .b = x->c_turned + i,
                                         .b_k = s->q_pitch,
                                         .c = x->scores + i * s->q_pitch + i,
                                         .c_row = s->q_pitch});
}

// dMᵀ = X dYᵀ, likewise.
static void multiply_dm(const struct run *run, const struct scratch *x)
{
    const struct ssd_sizes *s = &run->s;
    for (int64_t i = 0; i < x->chunk.rows; i += SSD_ROWS)
        multiply(run, x,
                 (struct dt_gemm_direct){.m = SSD_ROWS,
                                         .n = x->chunk.rows - i,
                                         .k = s->P,
                                         .a = x->in + i * s->p_pitch,
                                         .a_row = s->p_pitch,
                                         .a_k = 1,
                                         .b = x->turned + i,
                                         .b_k = s->q_pitch,
                                         .c = x->dm + i * s->q_pitch + i,
                                         .c_row = s->q_pitch});
}

// m = decay ∘ scores, dscores += dM ∘ decay, and square[t] = Σ_{s < t <= u} W[u, s]: `columns` has
// the sums of W's rows up to s, of which those from s + 1 on belong to square[s + 1].
// Meanwhile the next head's x and dy come into the cache.
DT_CLONES static void apply_decay(const struct ssd_sizes *s, const struct scratch *x,
                                  const struct dt_view ahead[2])
{
    const float *restrict log = x->steps.log, *restrict segment = x->chunk.segment;
    int32_t rows = (int32_t)x->chunk.rows;
    float *restrict columns = x->columns;
    memset(columns, 0, (size_t)rows * sizeof *columns);
    x->square[0] = 0.0f;
    for (int32_t i = 0; i < rows; i++) {
        const float *restrict scores = x->scores + i * s->q_pitch;
        const float *restrict dm = x->dm + i * s->q_pitch;
        const float *restrict strip = x->steps.strip + i / SSD_ROWS * s->q;
        float *restrict m = x->m + i * s->q_pitch, *restrict dscores = x->dscores + i * s->q_pitch;
        int32_t diagonal = i / SSD_ROWS * SSD_ROWS, next = diagonal + SSD_ROWS;
        float sum = 0.0f, column = x->steps.column[i];
        ssd_prefetch(&ahead[0], i);
        ssd_prefetch(&ahead[1], i);
#pragma omp simd reduction(+ : sum)
        for (int32_t t = diagonal; t < next; t++) {
            bool causal = t >= i && segment[t] == segment[i];
            float decay = causal ? dt_expf(log[t] - log[i]) : 0.0f;
            float slope = causal ? dm[t] * decay : 0.0f;
            m[t] = decay * scores[t];
            dscores[t] += slope;
            columns[t] += slope * scores[t];
            sum += t > i ? columns[t] : 0.0f;
        }
#pragma omp simd reduction(+ : sum)
        for (int32_t t = next; t < rows; t++) {
            float decay = strip[t] * column, slope = dm[t] * decay;
            m[t] = decay * scores[t];
            dscores[t] += slope;
            columns[t] += slope * scores[t];
            sum += columns[t];
        }
        if (i + 1 < rows)
            x->square[i + 1] = sum;
    }
}

// dX = mᵀ dY, whose k begins at the strip's first token.
static void multiply_din(const struct run *run, const struct scratch *x)
{
    const struct ssd_sizes *s = &run->s;
    for (int64_t i = 0; i < x->chunk.rows; i += SSD_ROWS)
        multiply(run, x,
                 (struct dt_gemm_direct){.m = SSD_ROWS,
                                         .n = s->p,
                                         .k = x->chunk.rows - i,
                                         .a = x->m + i * s->q_pitch + i,
                                         .a_row = s->q_pitch,
                                         .a_k = 1,
                                         .b = x->dy + i * s->p_pitch,
                                         .b_k = s->p_pitch,
                                         .c = x->din + i * s->p_pitch,
                                         .c_row = s->p_pitch});
}

// dX += end ∘ (B dh_endᵀ), of which X has a share in dlog after it: after[s].
DT_CLONES static void add_end(const struct ssd_sizes *s, const struct scratch *x)
{
    for (int64_t t = 0; t < x->chunk.rows; t++) {
        const float *restrict in = x->in + t * s->p_pitch, *restrict add =
                                                               x->aside + t * s->p_pitch;
        float *restrict din = x->din + t * s->p_pitch, sum = 0.0f, end = x->steps.end[t];
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < s->p; i++) {
            float d = end * add[i];
            din[i] += d;
            sum += in[i] * d;
        }
        x->after[t] = sum;
    }
}

// to[j, t] = factor[t] · to[j, t]
DT_CLONES static void scale_columns(const struct ssd_sizes *s, const struct ssd_chunk *chunk,
                                    const float *restrict factor, float *restrict to)
{
    for (int64_t j = 0; j < s->p; j++)
#pragma omp simd
        for (int64_t t = 0; t < chunk->rows; t++)
            to[j * s->q_pitch + t] *= factor[t];
}

// dc += the head's part, whose product with C is before[t].
DT_CLONES static void add_dc(const struct ssd_sizes *s, const struct scratch *x)
{
    float *restrict before = x->before;
    for (int64_t n = 0; n < s->N; n++) {
        const float *restrict part = x->dc_head + n * s->q_pitch, *restrict c =
                                                                      x->c_turned + n * s->q_pitch;
        float *restrict dc = x->dc + n * s->q_pitch;
#pragma omp simd
        for (int64_t t = 0; t < x->chunk.rows; t++) {
            dc[t] += part[t];
            before[t] += part[t] * c[t];
        }
    }
}

// Σ dh ∘ h
DT_CLONES static float multiply_states(const struct ssd_sizes *s, const float *restrict dh,
                                       const float *restrict h)
{
    float lanes[DT_LANES] = {0}, sum = 0.0f;
    for (int64_t n = 0; n < s->N; n++, dh += s->p_pitch, h += s->P) {
        int64_t i = 0;
        for (; i + DT_LANES <= s->P; i += DT_LANES)
#pragma omp simd
            for (int l = 0; l < DT_LANES; l++)
                lanes[l] += dh[i + l] * h[i + l];
        for (; i < s->P; i++)
            sum += dh[i] * h[i];
    }
    for (int l = 0; l < DT_LANES; l++)
        sum += lanes[l];
    return sum;
}

// What reaches the head through the states at the chunk's ends. h: the state before it, or NULL;
// dh: the gradient of the one after it, with `last` none.
static float pass_states(const struct run *run, const struct scratch *x, const float *h, float *dh,
                         bool last)
{
    const struct ssd_sizes *s = &run->s;
    float through = 0.0f;
    memset(x->before, 0, (size_t)s->q * sizeof(float));
    memset(x->after, 0, (size_t)s->q * sizeof(float));
    if (!last) {
        multiply(run, x,
                 (struct dt_gemm_direct){.m = x->chunk.rows,
                                         .n = s->p,
                                         .k = s->N,
                                         .a = x->chunk.b,
                                         .a_row = s->n_pitch,
                                         .a_k = 1,
                                         .b = dh,
                                         .b_k = s->p_pitch,
                                         .c = x->aside,
                                         .c_row = s->p_pitch});
        add_end(s, x);
    }
    if (h) { // `turned` is dYᵀ
        scale_columns(s, &x->chunk, x->steps.keep, x->turned);
        multiply(run, x,
                 (struct dt_gemm_direct){.m = s->N,
                                         .n = x->chunk.rows,
                                         .k = s->P,
                                         .a = h,
                                         .a_row = s->P,
                                         .a_k = 1,
                                         .b = x->turned,
                                         .b_k = s->q_pitch,
                                         .c = x->dc_head,
                                         .c_row = s->q_pitch});
        add_dc(s, x);
    }
    if (!last) {
        ssd_scale_rows(s, &x->chunk, x->steps.end, x->in, x->aside);
        dt_gemm_turn(x->turned, s->q_pitch, x->aside, s->p_pitch, s->p, x->chunk.rows);
        multiply(run, x,
                 (struct dt_gemm_direct){.m = s->N,
                                         .n = x->chunk.rows,
                                         .k = s->P,
                                         .a = dh,
                                         .a_row = s->p_pitch,
                                         .a_k = 1,
                                         .b = x->turned,
                                         .b_k = s->q_pitch,
                                         .c = x->db,
                                         .c_row = s->q_pitch,
                                         .keep = 1.0f});
    }
    if (h && !last && x->steps.all != 0.0f)
        through = x->steps.all * multiply_states(s, dh, h);
    ssd_scale_rows(s, &x->chunk, x->steps.keep, x->dy, x->aside);
    multiply(run, x,
             (struct dt_gemm_direct){.m = s->N,
                                     .n = s->p,
                                     .k = x->chunk.tokens,
                                     .a = x->chunk.c,
                                     .a_row = 1,
                                     .a_k = s->n_pitch,
                                     .b = x->aside,
                                     .b_k = s->p_pitch,
                                     .c = dh,
                                     .c_row = s->p_pitch,
                                     .keep = last ? 0.0f : x->steps.all});
    return through;
}

// dx = d_skip · dy + Δ · dX into `aside`; ddelta[t] = Σ x dX; returns Σ dy x.
DT_CLONES static float finish_dx(const struct ssd_sizes *s, const struct scratch *x, float d_skip)
{
    float total = 0.0f;
    for (int64_t t = 0; t < x->chunk.rows; t++) {
        const float *restrict in = x->x + t * s->p_pitch, *restrict dy = x->dy + t * s->p_pitch;
        const float *restrict din = x->din + t * s->p_pitch;
        float *restrict dx = x->aside + t * s->p_pitch, delta = x->steps.delta[t];
        float sum = 0.0f, skip = 0.0f;
#pragma omp simd reduction(+ : sum, skip)
        for (int64_t i = 0; i < s->p; i++) {
            dx[i] = d_skip * dy[i] + delta * din[i];
            sum += in[i] * din[i];
            skip += in[i] * dy[i];
        }
        x->ddelta[t] = sum;
        total += skip;
    }
    return total;
}

// dlog from its four parts: what is before t reaches it from later tokens, what is after it from
// earlier ones.
static void finish_dlog(const struct scratch *x, float through)
{
    float later = 0.0f, earlier = 0.0f;
    for (int64_t t = x->chunk.tokens - 1; t >= 0; t--) {
        later += x->before[t];
        x->dlog[t] = x->square[t] + later + through;
    }
    for (int64_t t = 0; t < x->chunk.tokens; t++) {
        x->dlog[t] += earlier;
        earlier += x->after[t];
    }
}

DT_CLONES static void store_dx(const struct run *run, const struct scratch *x, int64_t head)
{
    for (int64_t t = 0; t < x->chunk.tokens; t++)
        dt_store_row(run->args->dx.dtype, x->aside + t * run->s.p_pitch, run->s.P,
                     dt_view_at(&run->args->dx, x->chunk.row + t, head * run->s.P));
}

// ddt and the head's sums.
static void finish_steps(const struct run *run, const struct scratch *x, int64_t head, float *sums)
{
    const struct dt_ssd_inputs *in = &run->args->in;
    for (int64_t t = 0; t < x->chunk.tokens; t++) {
        float raw = x->steps.raw[t], delta = x->steps.delta[t], step = dt_softplusf(raw);
        bool held = step < in->dt_min || step > in->dt_max;
        float ddelta = held ? 0.0f : x->steps.a * x->dlog[t] + x->ddelta[t];
        float ddt = ddelta * dt_sigmoidf(raw);
        sums[0] += x->dlog[t] * delta * x->steps.a;
        sums[2] += ddt;
        dt_store(dt_view_at(&run->args->ddt, x->chunk.row + t, head), 0, ddt,
                 run->args->ddt.dtype == DT_BF16);
    }
}

static void run_head(const struct run *run, struct scratch *x, const struct ssd_piece *piece,
                     int64_t index, int64_t k)
{
    const struct dt_ssd_backward_args *a = run->args;
    const struct ssd_sizes *s = &run->s;
    int64_t head = piece->head + index;
    const float *h =
        a->states + ((piece->sequence * s->chunks + k) * a->in.heads + head) * s->P * s->N;
    float *sums = run->heads + (piece->sequence * a->in.heads + head) * 3;
    ssd_load_steps(&a->in, s, &x->chunk, head, &x->steps);
    ssd_load_head(&a->in.x, s, &x->chunk, head, x->x);
    ssd_load_head(&a->dy, s, &x->chunk, head, x->dy);
    ssd_scale_rows(s, &x->chunk, x->steps.delta, x->x, x->in);
    dt_gemm_turn(x->turned, s->q_pitch, x->dy, s->p_pitch, s->p, x->chunk.rows);
    multiply_dm(run, x);
    struct dt_view ahead[2] = {ssd_next(&a->in.x, s, &x->chunk, head),
                               ssd_next(&a->dy, s, &x->chunk, head)};
    apply_decay(s, x, ahead);
    multiply_din(run, x);
    float through = pass_states(run, x, k > 0 || a->in.h0 ? h : NULL,
                                x->dh + index * s->n * s->p_pitch, k == s->chunks - 1);
    sums[1] += finish_dx(s, x, a->in.d_skip[head]);
    store_dx(run, x, head);
    finish_dlog(x, through);
    finish_steps(run, x, head, sums);
}

// The slice's rows of dB, or of dC, of a chunk: what came through states, [n, q], and the product
// of dscores, or of its transpose, with the other one of B and C.
static void finish_rows(const struct run *run, const struct scratch *x,
                        const struct ssd_piece *piece, bool db)
{
    const struct ssd_sizes *s = &run->s;
    int64_t columns = run->args->in.b.cols, rows = x->chunk.rows;
    float *to = (db ? run->db : run->dc) +
                (piece->slice * run->args->in.b.rows + x->chunk.row) * columns +
                piece->group * s->N;
    dt_gemm_turn(x->rows, s->n_pitch, db ? x->db : x->dc, s->q_pitch, rows, s->n);
    for (int64_t t = 0; t < rows; t += SSD_ROWS) {
        int64_t first = db ? t : 0; // of the tokens that it sums over
        const float *square = x->dscores + (db ? t * s->q_pitch + first : first * s->q_pitch + t);
        multiply(run, x,
                 (struct dt_gemm_direct){.m = SSD_ROWS,
                                         .n = s->n,
                                         .k = db ? rows - t : t + SSD_ROWS,
                                         .a = square,
                                         .a_row = db ? s->q_pitch : 1,
                                         .a_k = db ? 1 : s->q_pitch,
                                         .b = (db ? x->chunk.c : x->chunk.b) + first * s->n_pitch,
                                         .b_k = s->n_pitch,
                                         .c = x->rows + t * s->n_pitch,
                                         .c_row = s->n_pitch,
                                         .keep = 1.0f});
    }
    for (int64_t t = 0; t < x->chunk.tokens; t++)
        memcpy(to + t * columns, x->rows + t * s->n_pitch, (size_t)s->N * sizeof *to);
}

static void run_piece(const struct run *run, const struct ssd_piece *piece, struct scratch *x)
{
    const struct ssd_sizes *s = &run->s;
    for (int64_t k = s->chunks - 1; k >= 0; k--) {
        ssd_load_chunk(&run->args->in, s, piece, k, &x->chunk);
        multiply_scores(run, x);
        memset(x->dscores, 0, (size_t)(s->q * s->q_pitch) * sizeof(float));
        memset(x->db, 0, (size_t)(s->n * s->q_pitch) * sizeof(float));
        memset(x->dc, 0, (size_t)(s->n * s->q_pitch) * sizeof(float));
        for (int64_t i = 0; i < piece->heads; i++)
            run_head(run, x, piece, i, k);
        finish_rows(run, x, piece, true);
        finish_rows(run, x, piece, false);
    }
}

// A row of db or dc: the slices' in order.
DT_CLONES static void add_slices(const struct dt_view *to, const float *parts, int64_t slices,
                                 int64_t row)
{
    const float *from = parts + row * to->cols;
    for (int64_t i = 0; i < to->cols; i += DT_LANES) {
        float sum[DT_LANES] = {0};
        int64_t n = dt_min_i64(DT_LANES, to->cols - i);
        for (int64_t k = 0; k < slices; k++)
            for (int64_t j = 0; j < n; j++)
                sum[j] += from[k * to->rows * to->cols + i + j];
        dt_store_row(to->dtype, sum, n, dt_view_at(to, row, i));
    }
}

static void add_heads(const struct dt_ssd_backward_args *a, const float *heads)
{
    float *const to[] = {a->da_log, a->dd_skip, a->ddt_bias};
    for (int64_t h = 0; h < a->in.heads; h++)
        for (int i = 0; i < 3; i++) {
            float sum = 0.0f;
            for (int64_t b = 0; b < a->in.batch; b++)
                sum += heads[(b * a->in.heads + h) * 3 + i];
            to[i][h] = a->accumulate ? to[i][h] + sum : sum;
        }
}

static int64_t scratch_bytes(const struct ssd_sizes *s)
{
    struct dt_arena arena = dt_arena_measure();
    take_scratch(&arena, s);
    return arena.used;
}

// What all threads share; their scratch is after it.
static void take_shared(struct dt_arena *arena, struct run *run)
{
    const struct dt_ssd_inputs *in = &run->args->in;
    run->heads = ssd_take(arena, in->batch * in->heads, 3);
    run->db = ssd_take(arena, run->s.slices * in->b.rows, in->b.cols);
    run->dc = ssd_take(arena, run->s.slices * in->b.rows, in->b.cols);
}

int64_t ssd_backward_cpu_workspace(struct dt_device *device,
                                   const struct dt_ssd_backward_args *args)
{
    struct run run = {.args = args, .s = ssd_sizes(&args->in)};
    struct dt_arena arena = dt_arena_measure();
    take_shared(&arena, &run);
    return arena.used + dt_cpu_threads(device) * scratch_bytes(&run.s) + SSD_SLACK;
}

dt_status ssd_backward_cpu(struct dt_device *device, const struct dt_ssd_backward_args *args,
                           struct dt_stream *stream)
{
    struct run run = {.args = args, .s = ssd_sizes(&args->in), .engine = ssd_engine(&args->in)};
    struct dt_arena shared =
        dt_arena_place(ssd_aligned(args->workspace), args->workspace_bytes - SSD_SLACK);
    int64_t bytes = scratch_bytes(&run.s), rows = args->in.b.rows;
    (void)stream;
    take_shared(&shared, &run);
    char *memory = shared.base + shared.used;
    memset(run.heads, 0, (size_t)(args->in.batch * args->in.heads * 3) * sizeof *run.heads);
#pragma omp parallel num_threads(dt_cpu_threads(device))
    {
        struct dt_arena own = dt_arena_place(memory + omp_get_thread_num() * bytes, bytes);
        struct scratch scratch = take_scratch(&own, &run.s);
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < run.s.pieces; i++) {
            struct ssd_piece piece = ssd_piece(&args->in, &run.s, i);
            run_piece(&run, &piece, &scratch);
        }
#pragma omp for
        for (int64_t row = 0; row < rows; row++) {
            add_slices(&args->db, run.db, run.s.slices, row);
            add_slices(&args->dc, run.dc, run.s.slices, row);
        }
    }
    add_heads(args, run.heads);
    return DT_OK;
}

// State-space duality backward on the CPU: chunks from last to first, with [Q, Q] matrices
// transposed as [s, t], so that the products that sum over a head's columns read rows. A slice's
// sums over its heads go to the workspace, where slices are added in order at the end.
#include "kernels/ssd_cpu.h"

#include "kernels/cpu.h"

// The rows of one thread.
struct scratch {
    struct ssd_chunk chunk;
    struct ssd_steps steps;
    struct ssd_engine engine;
    float *c_turned;                // [n, q]
    float *scores;                  // [q, q]: B Cᵀ
    float *dscores;                 // [q, q]: Σ_heads (dM ∘ decay)ᵀ
    float *m, *dm;                  // [q, q] of a head: (decay ∘ scores)ᵀ; dMᵀ
    float *x, *dy;                  // [q, p]: x, dY; then end ∘ X, keep ∘ dY
    float *din;                     // [q, p]: dX within the chunk
    float *dx;                      // [q, p]: B dh_endᵀ, then dx
    float *turned;                  // [p, q]: dYᵀ, then (end ∘ X)ᵀ
    float *dc_head;                 // [n, q]: dY h_before
    float *db, *dc;                 // [n, q]: Σ_heads of the parts through states
    float *rows;                    // [q, n]
    float *columns;                 // [q]: sums over s of a square's columns
    float *square, *before, *after; // [q]: parts of dlog; square has one more
    float *dlog, *ddelta;           // [q]
    float *dh;                      // [each][n, p]: gradients of the heads' states
};

static struct scratch take_scratch(struct dt_arena *arena, const struct dt_ssd_inputs *in,
                                   const struct ssd_sizes *s)
{
    struct scratch x = {.chunk = ssd_take_chunk(arena, s), .steps = ssd_take_steps(arena, s)};
    dt_take_arrays(arena, s->q, s->q_pitch, (float **[]){&x.scores, &x.dscores, &x.m, &x.dm, NULL});
    dt_take_arrays(arena, s->q, s->p_pitch, (float **[]){&x.x, &x.dy, &x.din, &x.dx, NULL});
    dt_take_arrays(arena, s->n, s->q_pitch,
                   (float **[]){&x.c_turned, &x.dc_head, &x.db, &x.dc, NULL});
    dt_take_arrays(arena, s->p, s->q_pitch, (float **[]){&x.turned, NULL});
    dt_take_arrays(arena, s->q, s->n_pitch, (float **[]){&x.rows, NULL});
    dt_take_arrays(
        arena, 1, s->q + 1,
        (float **[]){&x.columns, &x.square, &x.before, &x.after, &x.dlog, &x.ddelta, NULL});
    dt_take_arrays(arena, s->each * s->n, s->p_pitch, (float **[]){&x.dh, NULL});
    x.engine = ssd_take_engine(arena, in, s);
    return x;
}

struct run {
    const struct dt_ssd_backward_args *args;
    struct ssd_sizes s;
    float *heads;   // [B, H, 3]: a sequence's da_log, dd_skip, ddt_bias
    float *db, *dc; // [slices, B·L, G·N]
};

// c = a bᵀ for tokens s and t >= s, row s, columns from s's strip on; b is turned, [k, q].
static void multiply_upper(const struct ssd_sizes *s, struct scratch *x, int64_t k, const float *a,
                           int64_t pitch, const float *b, float *c)
{
    for (int64_t i = 0; i < x->chunk.rows; i += SSD_ROWS)
        ssd_multiply(&x->engine, SSD_ROWS, x->chunk.rows - i, k, dt_as_rows(a + i * pitch, pitch),
                     dt_as_rows(b + i, s->q_pitch), c + i * s->q_pitch + i, s->q_pitch, 0.0f);
}

// m = decay ∘ scores, dscores += dM ∘ decay, and square[t] = Σ_{s < t <= u} W[u, s]: `columns` has
// the sums of W's rows up to s, of which those from s + 1 on belong to square[s + 1].
DT_CLONES static void apply_decay(const struct ssd_sizes *s, const struct scratch *x)
{
    const float *restrict log = x->steps.log, *restrict segment = x->chunk.segment;
    int32_t rows = (int32_t)x->chunk.rows;
    memset(x->columns, 0, (size_t)rows * sizeof(float));
    x->square[0] = 0.0f;
    for (int32_t k = 0; k < rows; k += SSD_ROWS) {
        const float *restrict strip = x->steps.strip + k / SSD_ROWS * s->q;
        float after[SSD_ROWS][SSD_ROWS] = {0}; // of `columns`, Σ over strips
        for (int32_t t = k; t < rows; t += SSD_ROWS) {
            float columns[SSD_ROWS], edge[SSD_ROWS];
            dt_load_lanes(x->columns + t, columns);
            dt_load_lanes(strip + t, edge);
            for (int32_t i = 0; i < SSD_ROWS; i++) {
                int64_t at = (k + i) * s->q_pitch + t;
                const float *restrict scores = x->scores + at, *restrict dm = x->dm + at;
                float *restrict m = x->m + at, *restrict dscores = x->dscores + at;
                float column = x->steps.column[k + i], delta = x->steps.delta[k + i];
                if (t > k) {
#pragma omp simd
                    for (int32_t l = 0; l < SSD_ROWS; l++) {
                        float decay = edge[l] * column, slope = dm[l] * (decay * delta);
                        m[l] = decay * scores[l];
                        dscores[l] += slope;
                        columns[l] += slope * scores[l];
                        after[i][l] += columns[l];
                    }
                } else {
#pragma omp simd
                    for (int32_t l = 0; l < SSD_ROWS; l++) {
                        bool causal = (l >= i) & (segment[t + l] == segment[k + i]);
                        float decay = dt_expf(log[t + l] - log[k + i]);
                        decay = causal ? decay : 0.0f;
                        float slope = dm[l] * delta;
                        slope = causal ? slope * decay : 0.0f;
                        m[l] = decay * scores[l];
                        dscores[l] += slope;
                        columns[l] += slope * scores[l];
                        after[i][l] = l > i ? columns[l] : 0.0f;
                    }
                }
            }
            dt_store_lanes(columns, x->columns + t);
        }
        float turned[SSD_ROWS][SSD_ROWS], sum[SSD_ROWS] = {0};
        dt_gemm_turn(turned[0], SSD_ROWS, after[0], SSD_ROWS, SSD_ROWS, SSD_ROWS);
        for (int32_t l = 0; l < SSD_ROWS; l++)
#pragma omp simd
            for (int32_t i = 0; i < SSD_ROWS; i++)
                sum[i] += turned[l][i];
        dt_store_lanes(sum, x->square + k + 1);
    }
}

// dc += keep ∘ dY h_before, whose product with C is before[t].
DT_CLONES static void add_dc(const struct ssd_sizes *s, const struct scratch *x)
{
    const float *restrict keep = x->steps.keep;
    float *restrict before = x->before;
    for (int64_t n = 0; n < s->N; n++) {
        const float *restrict part = x->dc_head + n * s->q_pitch, *restrict c =
                                                                      x->c_turned + n * s->q_pitch;
        float *restrict dc = x->dc + n * s->q_pitch;
#pragma omp simd
        for (int64_t t = 0; t < x->chunk.rows; t++) {
            float kept = keep[t] * part[t];
            dc[t] += kept;
            before[t] += kept * c[t];
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

// dX += d with d = end ∘ (B dh_endᵀ); after[t] = Σ X d, its share in the dlog after t;
// dx = d_skip · dy + Δ · dX; ddelta[t] = Σ x dX. Returns Σ dy x. What the products with states need
// is left: end ∘ X in x, keep ∘ dY in dy.
DT_CLONES static float finish_dx(const struct run *run, const struct scratch *x, int64_t head)
{
    const struct ssd_sizes *s = &run->s;
    const struct dt_view *to = &run->args->dx;
    float d_skip = run->args->in.d_skip[head], total = 0.0f;
    for (int64_t t = 0; t < x->chunk.rows; t++) {
        float *restrict in = x->x + t * s->p_pitch, *restrict dy = x->dy + t * s->p_pitch;
        float *restrict dx = x->dx + t * s->p_pitch;
        const float *restrict din = x->din + t * s->p_pitch;
        float delta = x->steps.delta[t], end = x->steps.end[t], keep = x->steps.keep[t];
        float inside = 0.0f, after = 0.0f, skip = 0.0f;
#pragma omp simd reduction(+ : inside, after, skip)
        for (int64_t i = 0; i < s->p; i++) {
            float d = end * dx[i];
            inside += in[i] * din[i];
            after += in[i] * d;
            skip += in[i] * dy[i];
            dx[i] = d_skip * dy[i] + delta * (din[i] + d);
            in[i] *= end * delta;
            dy[i] *= keep;
        }
        x->after[t] = delta * after;
        x->ddelta[t] = inside + after;
        total += skip;
        if (t < x->chunk.tokens)
            dt_store_row(to->dtype, dx, s->P, dt_view_at(to, x->chunk.row + t, head * s->P));
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

// Finishes ddt and the head's sums.
DT_CLONES static void finish_steps(const struct run *run, const struct scratch *x, int64_t head,
                                   float *sums)
{
    const struct dt_ssd_inputs *in = &run->args->in;
    const struct dt_view *to = &run->args->ddt;
    const float *restrict raw = x->steps.raw, *restrict delta = x->steps.delta;
    const float *restrict dlog = x->dlog;
    float *restrict ddt = x->ddelta, a = x->steps.a, da_log = 0.0f, ddt_bias = 0.0f;
#pragma omp simd reduction(+ : da_log, ddt_bias)
    for (int64_t t = 0; t < x->chunk.tokens; t++) {
        float step = dt_softplusf(raw[t]);
        bool held = step < in->dt_min || step > in->dt_max;
        ddt[t] = held ? 0.0f : (a * dlog[t] + ddt[t]) * dt_sigmoidf(raw[t]);
        da_log += dlog[t] * delta[t] * a;
        ddt_bias += ddt[t];
    }
    sums[0] += da_log;
    sums[2] += ddt_bias;
    for (int64_t t = 0; t < x->chunk.tokens; t++)
        dt_store(dt_view_at(to, x->chunk.row + t, head), 0, ddt[t], to->dtype == DT_BF16);
}

// The views to prefetch: what the head reads and writes later, and what is loaded after it.
static struct dt_soon find_soon(const struct run *run, const struct scratch *x,
                                const struct ssd_piece *piece, int64_t index, const float *h)
{
    const struct dt_ssd_backward_args *a = run->args;
    const struct ssd_sizes *s = &run->s;
    return (struct dt_soon){
        .views = {
            dt_view_of(h, h ? s->N : 0, s->P, DT_F32),
            dt_view_block(a->dx, x->chunk.row, (piece->head + index) * s->P, x->chunk.tokens, s->P),
            ssd_next_head(&a->in.x, s, piece, &x->chunk, index),
            ssd_next_head(&a->dy, s, piece, &x->chunk, index),
            ssd_next_group(&a->in.b, s, piece, &x->chunk, index),
            ssd_next_group(&a->in.c, s, piece, &x->chunk, index)}};
}

// Runs a head's chunk. Without dh_last the last chunk has no gradient from a later state.
static void run_head(const struct run *run, struct scratch *x, const struct ssd_piece *piece,
                     int64_t index, int64_t k)
{
    const struct dt_ssd_backward_args *a = run->args;
    const struct ssd_sizes *s = &run->s;
    bool last = k == s->chunks - 1 && !a->dh_last;
    int64_t head = piece->head + index;
    const float *h = // the state before the chunk
        k > 0 || a->in.h0
            ? a->states + ((piece->sequence * s->chunks + k) * a->in.heads + head) * s->P * s->N
            : NULL;
    float *dh = x->dh + index * s->n * s->p_pitch; // gradient of the state after the chunk
    float *sums = run->heads + (piece->sequence * a->in.heads + head) * 3, through = 0.0f;
    ssd_load_steps(&a->in, s, &x->chunk, head, &x->steps);
    ssd_load_head(&a->in.x, s, &x->chunk, head, x->x);
    ssd_load_head(&a->dy, s, &x->chunk, head, x->dy);
    dt_gemm_turn(x->turned, s->q_pitch, x->dy, s->p_pitch, s->p, x->chunk.rows);
    x->engine.soon = find_soon(run, x, piece, index, h);
    multiply_upper(s, x, s->P, x->x, s->p_pitch, x->turned, x->dm); // dMᵀ of x dYᵀ: rows lack Δ
    apply_decay(s, x);
    for (int64_t i = 0; i < x->chunk.rows;
         i += SSD_ROWS) // dX = mᵀ dY, from the strip's first token
        ssd_multiply(&x->engine, SSD_ROWS, s->p, x->chunk.rows - i,
                     dt_as_rows(x->m + i * s->q_pitch + i, s->q_pitch),
                     dt_as_rows(x->dy + i * s->p_pitch, s->p_pitch), x->din + i * s->p_pitch,
                     s->p_pitch, 0.0f);
    memset(x->before, 0, (size_t)s->q * sizeof(float));
    if (h) {
        ssd_multiply(&x->engine, s->N, x->chunk.rows, s->P, dt_as_rows(h, s->P),
                     dt_as_rows(x->turned, s->q_pitch), x->dc_head, s->q_pitch, 0.0f);
        add_dc(s, x);
    }
    if (last)
        memset(x->dx, 0, (size_t)(s->q * s->p_pitch) * sizeof(float));
    else
        ssd_multiply(&x->engine, x->chunk.rows, s->p, s->N, dt_as_rows(x->chunk.b, s->n_pitch),
                     dt_as_rows(dh, s->p_pitch), x->dx, s->p_pitch, 0.0f);
    sums[1] += finish_dx(run, x, head);
    if (!last) {
        dt_gemm_turn(x->turned, s->q_pitch, x->x, s->p_pitch, s->p, x->chunk.rows);
        ssd_multiply(&x->engine, s->N, x->chunk.rows, s->P, dt_as_rows(dh, s->p_pitch),
                     dt_as_rows(x->turned, s->q_pitch), x->db, s->q_pitch, 1.0f);
    }
    if (h && !last && x->steps.all != 0.0f)
        through = x->steps.all * multiply_states(s, dh, h);
    ssd_multiply(&x->engine, s->N, s->p, x->chunk.tokens, dt_as_columns(x->chunk.c, s->n_pitch),
                 dt_as_rows(x->dy, s->p_pitch), dh, s->p_pitch, last ? 0.0f : x->steps.all);
    finish_dlog(x, through);
    finish_steps(run, x, head, sums);
}

// The slice's rows of dB, or of dC, of a chunk: what came through states, [n, q], and the product
// of dscores, or of its transpose, with the other one of B and C.
static void finish_rows(const struct run *run, struct scratch *x, const struct ssd_piece *piece,
                        bool db)
{
    const struct ssd_sizes *s = &run->s;
    int64_t columns = run->args->in.b.cols, rows = x->chunk.rows;
    float *to = (db ? run->db : run->dc) +
                (piece->slice * run->args->in.b.rows + x->chunk.row) * columns +
                piece->group * s->N;
    dt_gemm_turn(x->rows, s->n_pitch, db ? x->db : x->dc, s->q_pitch, rows, s->n);
    for (int64_t t = 0; t < rows; t += SSD_ROWS) {
        int64_t first = db ? t : 0; // first token that it sums over
        const float *square = x->dscores + (db ? t * s->q_pitch + first : first * s->q_pitch + t);
        ssd_multiply(&x->engine, SSD_ROWS, s->n, db ? rows - t : t + SSD_ROWS,
                     db ? dt_as_rows(square, s->q_pitch) : dt_as_columns(square, s->q_pitch),
                     dt_as_rows((db ? x->chunk.c : x->chunk.b) + first * s->n_pitch, s->n_pitch),
                     x->rows + t * s->n_pitch, s->n_pitch, 1.0f);
    }
    for (int64_t t = 0; t < x->chunk.tokens; t++)
        memcpy(to + t * columns, x->rows + t * s->n_pitch, (size_t)s->N * sizeof *to);
}

static void run_piece(const struct run *run, const struct ssd_piece *piece, struct scratch *x)
{
    const struct ssd_sizes *s = &run->s;
    ssd_load_states(&run->args->in, s, piece, run->args->dh_last, x->dh);
    for (int64_t k = s->chunks - 1; k >= 0; k--) {
        ssd_load_chunk(&run->args->in, s, piece, k, k - 1, &x->chunk);
        dt_gemm_turn(x->c_turned, s->q_pitch, x->chunk.c, s->n_pitch, s->n, x->chunk.rows);
        multiply_upper(s, x, s->N, x->chunk.b, s->n_pitch, x->c_turned, x->scores); // (C Bᵀ)ᵀ
        memset(x->dscores, 0, (size_t)(s->q * s->q_pitch) * sizeof(float));
        memset(x->db, 0, (size_t)(s->n * s->q_pitch) * sizeof(float));
        memset(x->dc, 0, (size_t)(s->n * s->q_pitch) * sizeof(float));
        for (int64_t i = 0; i < piece->heads; i++)
            run_head(run, x, piece, i, k);
        finish_rows(run, x, piece, true);
        finish_rows(run, x, piece, false);
    }
    ssd_store_states(&run->args->in, s, piece, x->dh, run->args->dh0);
}

// Adds the slices' parts of a row of db or dc in order.
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

// Carves the shared arrays; the threads' scratch follows.
static void take_shared(struct dt_arena *arena, struct run *run)
{
    const struct dt_ssd_inputs *in = &run->args->in;
    dt_take_arrays(arena, in->batch * in->heads, 3, (float **[]){&run->heads, NULL});
    dt_take_arrays(arena, run->s.slices * in->b.rows, in->b.cols,
                   (float **[]){&run->db, &run->dc, NULL});
}

DT_OP_CPU_WORKSPACE(ssd_backward)
{
    struct run run = {.args = args, .s = ssd_sizes(&args->in)};
    struct dt_arena arena = dt_arena_measure(), own = dt_arena_measure();
    take_shared(&arena, &run);
    take_scratch(&own, &args->in, &run.s);
    return arena.used + device->threads * own.used + DT_SLACK;
}

DT_OP_CPU(ssd_backward)
{
    struct run run = {.args = args, .s = ssd_sizes(&args->in)};
    struct dt_arena shared = dt_workspace_arena(args->workspace, args->workspace_bytes);
    int64_t rows = args->in.b.rows;
    take_shared(&shared, &run);
    memset(run.heads, 0, (size_t)(args->in.batch * args->in.heads * 3) * sizeof *run.heads);
#pragma omp parallel num_threads(device->threads)
    {
        struct dt_arena own = dt_thread_arena(&shared, device->threads);
        struct scratch scratch = take_scratch(&own, &args->in, &run.s);
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

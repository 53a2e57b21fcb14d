// The backward pass of attention on the CPU. A piece is a sequence and a group of heads. It keeps
// the gradients of the group's keys and values, and handles one head after another, with the head's
// queries and the gradients of its outputs and queries. A head walks the keys tile by tile, so
// every pair of a query and a key is visited once and each gradient has one owner.
//
// Floor: 10 E multiply-adds per visible pair (scores, gradients of probabilities, then of values,
// keys and queries), and an exponential.
#include "kernels/attention_cpu.h"

#include <string.h>

// The arrays of one thread.
struct tiles {
    float *q, *dy, *dq;     // [L, pitch] of one head
    float *lse, *delta;     // [L]
    float *dkeys, *dvalues; // [L, pitch] of the group, preceded by W - 1 rows of positions before 0
    float *p, *ds;          // [QUERIES, KEYS]
    struct dt_attention_keys tile;
};

static struct tiles take_tiles(const struct dt_attention_shared *shared, struct dt_arena *arena)
{
    struct tiles t;
    int64_t L = shared->in->length, pitch = shared->pitch, keep = dt_attention_kept(shared->in);
    dt_take_arrays(arena, L, pitch, (float **[]){&t.q, &t.dy, &t.dq, NULL});
    dt_take_arrays(arena, keep + L, pitch, (float **[]){&t.dkeys, &t.dvalues, NULL});
    dt_take_arrays(arena, 1, L, (float **[]){&t.lse, &t.delta, NULL});
    dt_take_arrays(arena, DT_QUERIES, DT_KEYS, (float **[]){&t.p, &t.ds, NULL});
    dt_take_arrays(arena, DT_KEYS, pitch,
                   (float **[]){&t.tile.keys, &t.tile.values, &t.tile.turned_keys,
                                &t.tile.turned_values, NULL});
    if (t.dkeys) // not measuring
        t.dkeys += keep * pitch, t.dvalues += keep * pitch;
    return t;
}

DT_OP_CPU_WORKSPACE(attention_backward)
{
    struct dt_arena arena = dt_arena_measure(), own = dt_arena_measure();
    struct dt_attention_shared shared = dt_attention_share(&args->in, &arena);
    take_tiles(&shared, &own);
    return arena.used + device->threads * own.used + DT_SLACK;
}

struct piece {
    int64_t b, g;
    const int32_t *starts, *stops; // of sequence b
};

DT_CLONES static float dot_row(const float *restrict dy, const void *y, dt_dtype type, int64_t n)
{
    float wide[DT_ATTENTION_HEAD_MAX], sum = 0;
    dt_load_row(type, y, n, n, wide);
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += dy[i] * wide[i];
    return sum;
}

static void load_head(const struct dt_attention_backward_args *args,
                      const struct dt_attention_shared *shared, const struct piece *p, int64_t h,
                      const struct tiles *t)
{
    const struct dt_attention_inputs *in = &args->in;
    int64_t L = in->length, E = in->width, pitch = shared->pitch;
    for (int64_t i = 0; i < L; i++) {
        int64_t token = p->b * L + i;
        float *dy = t->dy + i * pitch;
        dt_prefetch_row(&in->q, token + DT_ATTENTION_AHEAD, h * E, E);
        dt_prefetch_row(&args->dy, token + DT_ATTENTION_AHEAD, h * E, E);
        dt_prefetch_row(&args->y, token + DT_ATTENTION_AHEAD, h * E, E);
        dt_attention_load(shared, dt_view_at(&in->q, token, h * E), i, shared->scale,
                          t->q + i * pitch);
        dt_attention_load_plain(shared, dt_view_at(&args->dy, token, h * E), dy);
        t->delta[i] = dot_row(dy, dt_view_at(&args->y, token, h * E), args->y.dtype, E);
        t->lse[i] = args->lse[token * in->n_head + h];
    }
    memset(t->dq, 0, (size_t)(L * pitch) * sizeof(float));
}

// Turns a row of scores into probabilities and dp into ds in the visible columns [low, high) of
// `last`; zero elsewhere.
DT_CLONES
static void slope(float *restrict p, float *restrict ds, int64_t low, int64_t high, int64_t last,
                  float lse, float delta)
{
    memset(p, 0, (size_t)low * sizeof *p);
    memset(ds, 0, (size_t)low * sizeof *ds);
#pragma omp simd
    for (int64_t j = low; j < high; j++) {
        p[j] = dt_expf(p[j] - lse);
        ds[j] = p[j] * (ds[j] - delta);
    }
    memset(p + high, 0, (size_t)(last - high) * sizeof *p);
    memset(ds + high, 0, (size_t)(last - high) * sizeof *ds);
}

// A tile of `queries` queries from t0, and a tile of n keys from j.
struct meeting {
    int64_t t0, queries, j, n;
    const int32_t *starts, *stops; // of the sequence
};

// Computes rows [i, i + PANEL) of p and ds, and adds their part to dq.
static void meet_queries(const struct dt_attention_shared *shared, const struct meeting *m,
                         int64_t i, const struct tiles *t)
{
    int64_t pitch = shared->pitch, begin = m->t0 + i, rows = dt_min_i64(m->queries - i, DT_PANEL);
    // columns visible to any query of the panel
    int64_t left = dt_max_i64(m->starts[begin] - m->j, 0) / DT_PANEL_KEYS * DT_PANEL_KEYS,
            right = dt_min_i64(m->n, m->stops[begin + rows - 1] - m->j);
    float *p = t->p + i * DT_KEYS, *ds = t->ds + i * DT_KEYS;
    struct dt_gemm_direct product = dt_gemm_direct_of(
        rows, dt_round_up(right - left, DT_PANEL_KEYS), dt_round_up(shared->in->width, 4),
        dt_as_rows(t->q + begin * pitch, pitch), dt_as_rows(t->tile.turned_keys + left, DT_KEYS),
        p + left, DT_KEYS, 0.0f);
    if (right > left) {
        dt_gemm_direct(shared->kernel, &product);
        product.a = t->dy + begin * pitch, product.b = t->tile.turned_values + left;
        product.c = ds + left;
        dt_gemm_direct(shared->kernel, &product);
    }
    for (int64_t row = 0; row < rows; row++) {
        int64_t at = begin + row, low = 0, high = 0;
        if (right > left) {
            low = dt_min_i64(dt_max_i64(m->starts[at] - m->j, 0), m->n);
            high = dt_max_i64(dt_min_i64(m->stops[at] - m->j, m->n), low);
        }
        slope(p + row * DT_KEYS, ds + row * DT_KEYS, low, high, dt_round_up(m->n, DT_PANEL_KEYS),
              t->lse[at], t->delta[at]);
    }
    if (right <= left)
        return;
    product = dt_gemm_direct_of(rows, pitch, right - left, dt_as_rows(ds + left, DT_KEYS),
                                dt_as_rows(t->tile.keys + left * pitch, pitch),
                                t->dq + begin * pitch, pitch, 1.0f);
    dt_gemm_direct(shared->kernel, &product);
}

// Adds the parts of p and ds to rows [i, i + PANEL) of the tile's gradients, from the first query
// that sees one of these keys.
static void meet_keys(const struct dt_attention_shared *shared, const struct meeting *m, int64_t i,
                      const struct tiles *t)
{
    int64_t pitch = shared->pitch, key = m->j + i,
            from = dt_max_i64(dt_attention_first(shared->in, m->starts, key) - m->t0, 0);
    if (from >= m->queries)
        return;
    struct dt_gemm_direct product = dt_gemm_direct_of(
        dt_min_i64(m->n - i, DT_PANEL), pitch, m->queries - from,
        dt_as_columns(t->p + from * DT_KEYS + i, DT_KEYS),
        dt_as_rows(t->dy + (m->t0 + from) * pitch, pitch), t->dvalues + key * pitch, pitch, 1.0f);
    dt_gemm_direct(shared->kernel, &product);
    product.a = t->ds + from * DT_KEYS + i, product.b = t->q + (m->t0 + from) * pitch;
    product.c = t->dkeys + key * pitch;
    dt_gemm_direct(shared->kernel, &product);
}

// Tiles of keys do not cross position 0.
static void run_head(const struct dt_attention_backward_args *args,
                     const struct dt_attention_shared *shared, const struct piece *p, int64_t h,
                     const struct tiles *t)
{
    int64_t L = args->in.length, n;
    load_head(args, shared, p, h, t);
    for (int64_t j = dt_min_i64(p->starts[0], 0); j < L; j += n) {
        n = dt_min_i64(DT_KEYS, (j < 0 ? 0 : L) - j);
        dt_attention_load_keys(shared, p->b, p->g, j, n, &t->tile);
        int64_t t0 = dt_attention_first(&args->in, p->starts, j) / DT_QUERIES * DT_QUERIES;
        for (; t0 < L && p->starts[t0] < j + n; t0 += DT_QUERIES) {
            const struct meeting m = {t0,      dt_min_i64(DT_QUERIES, L - t0), j, n, p->starts,
                                      p->stops};
            for (int64_t i = 0; i < m.queries; i += DT_PANEL)
                meet_queries(shared, &m, i, t);
            for (int64_t i = 0; (j >= 0 || args->dk0) && i < n; i += DT_PANEL)
                meet_keys(shared, &m, i, t);
        }
    }
    for (int64_t i = 0; i < L; i++)
        dt_attention_store(shared, t->dq + i * shared->pitch, i, shared->scale,
                           dt_view_at(&args->dq, p->b * L + i, h * args->in.width));
}

// Stores the gradients of the group's key and value at position j: dk and dv, before 0 dk0 and dv0.
static void store_key(const struct dt_attention_backward_args *args,
                      const struct dt_attention_shared *shared, const struct piece *p, int64_t j,
                      const struct tiles *t)
{
    const struct dt_attention_inputs *in = &args->in;
    int64_t L = in->length, keep = in->window - 1, E = in->width, col = p->g * E;
    int64_t kept = p->b * keep, each = in->k.cols, row = p->b * L + j, last = j + keep - L;
    float *dk = t->dkeys + j * shared->pitch, *dv = t->dvalues + j * shared->pitch;
    dt_attention_turn_back(shared, dk, j, 1.0f);
    if (args->dk_last && last >= 0 && j >= p->starts[L - 1])
        for (int64_t i = 0; i < E; i++) {
            dk[i] += args->dk_last[(kept + last) * each + col + i];
            dv[i] += args->dv_last[(kept + last) * each + col + i];
        }
    if (j >= 0) {
        dt_store_row(args->dk.dtype, dk, E, dt_view_at(&args->dk, row, col));
        dt_store_row(args->dv.dtype, dv, E, dt_view_at(&args->dv, row, col));
    } else {
        memcpy(args->dk0 + (kept + keep + j) * each + col, dk, (size_t)E * sizeof *dk);
        memcpy(args->dv0 + (kept + keep + j) * each + col, dv, (size_t)E * sizeof *dv);
    }
}

DT_OP_CPU(attention_backward)
{
    const struct dt_attention_inputs *in = &args->in;
    struct dt_arena arena = dt_workspace_arena(args->workspace, args->workspace_bytes);
    struct dt_attention_shared shared = dt_attention_share(in, &arena);
    size_t kept = (size_t)(in->batch * (in->window - 1) * in->k.cols) * sizeof(float);
    if (args->dk0 && !in->k0) { // nothing was before
        memset(args->dk0, 0, kept);
        memset(args->dv0, 0, kept);
    }
#pragma omp parallel num_threads(device->threads)
    {
        struct dt_arena own = dt_thread_arena(&arena, device->threads);
        struct tiles t = take_tiles(&shared, &own);
        dt_attention_prepare(&shared);
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < in->batch * in->n_kv_head; i++) {
            struct piece p = {.b = i / in->n_kv_head, .g = i % in->n_kv_head};
            p.starts = shared.starts + p.b * in->length;
            p.stops = shared.stops + p.b * in->length;
            int64_t first = args->dk0 ? -shared.before : 0;
            int64_t floats = (in->length - first) * shared.pitch;
            memset(t.dkeys + first * shared.pitch, 0, (size_t)floats * sizeof(float));
            memset(t.dvalues + first * shared.pitch, 0, (size_t)floats * sizeof(float));
            for (int64_t r = 0; r < shared.heads; r++)
                run_head(args, &shared, &p, p.g * shared.heads + r, &t);
            for (int64_t j = first; j < in->length; j++)
                store_key(args, &shared, &p, j, &t);
        }
    }
    return DT_OK;
}

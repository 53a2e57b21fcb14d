// Attention on the CPU: what both passes share (attention_cpu.h), the state for the next call, and
// the forward pass. A piece of forward is cut further, into chunks of queries; it walks the keys
// that these see, and keeps maximum, sum and output of each query as they grow.
//
// Floor: 4 E products for every pair of a query and a key that it sees, and an exponential.
#include "kernels/attention_cpu.h"
#include "kernels/documents_cpu.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum {
    CHUNK = 192,  // queries times heads of a group whose outputs stay in cache
    ANGLES = 256, // places whose angles follow from one another, a power of two
};

// ---- what both passes share

struct dt_attention_shared dt_attention_share(const struct dt_attention_inputs *in,
                                              struct dt_arena *arena)
{
    struct dt_attention_shared shared = {.in = in,
                                         .kernel = dt_gemm_kernel(dt_cpu_isa(), DT_F32),
                                         .before = in->k0 ? in->window - 1 : 0,
                                         .pitch = dt_round_up(in->width, DT_DIRECT_COLUMNS),
                                         .heads = in->n_head / in->n_kv_head,
                                         .scale = (float)(1 / sqrt((double)in->width))};
    // with room for a state where this call has none: memory is measured without
    shared.angles = dt_take_floats(arena, dt_attention_kept(in) + in->length, in->width);
    shared.starts = dt_arena_take(arena, in->batch * in->length * (int64_t)sizeof(int32_t));
    shared.stops = dt_arena_take(arena, in->batch * in->length * (int64_t)sizeof(int32_t));
    return shared;
}

// The angles of places [from, from + ANGLES), as far as this call has them. From one place to the
// next a cosine and a sine turn by their frequency, in double.
static void fill_angles(const struct dt_attention_shared *shared, int64_t from)
{
    const struct dt_attention_inputs *in = shared->in;
    int64_t half = in->width / 2, first = in->at - shared->before,
            to = dt_min_i64(from + ANGLES, in->at + in->length);
    double turn_cos[DT_ATTENTION_HEAD_MAX / 2], turn_sin[DT_ATTENTION_HEAD_MAX / 2];
    double c[DT_ATTENTION_HEAD_MAX / 2], s[DT_ATTENTION_HEAD_MAX / 2];
    double base = in->rope_base, frequency = base > 0 ? 1 : 0,
           ratio = base > 0 ? pow(base, -1.0 / (double)half) : 1;
    for (int64_t i = 0; i < half; i++, frequency *= ratio) {
        double angle = (double)from * frequency;
        turn_cos[i] = cos(frequency), turn_sin[i] = sin(frequency);
        c[i] = cos(angle), s[i] = sin(angle);
    }
    for (int64_t place = from; place < to; place++) {
        int64_t row = dt_max_i64(place - first, 0); // places before `first` write what it replaces
        float *cosines = shared->angles + row * 2 * half, *sines = cosines + half;
#pragma omp simd
        for (int64_t i = 0; i < half; i++) {
            double next = c[i] * turn_cos[i] - s[i] * turn_sin[i];
            cosines[i] = (float)c[i], sines[i] = (float)s[i];
            s[i] = s[i] * turn_cos[i] + c[i] * turn_sin[i];
            c[i] = next;
        }
    }
}

// What each position sees: nothing before a reset, the valid rows of k0, or the window. Returns the
// first position of the last document. starts NULL: fills nothing.
static int64_t fill_causal(const struct dt_attention_inputs *in, int64_t b, int32_t *starts,
                           int32_t *stops)
{
    int64_t first = in->k0 ? -(int64_t)in->count0[b] : 0;
    for (int64_t t = 0; t < in->length; t++) {
        if (in->reset && in->reset[b * in->length + t])
            first = t;
        if (!starts)
            continue;
        starts[t] = (int32_t)dt_max_i64(first, t - in->window + 1);
        stops[t] = (int32_t)t + 1;
    }
    return first;
}

// Does the same both ways: a position sees its document, as far as the window reaches.
static void fill_both(const struct dt_attention_inputs *in, int64_t b, int32_t *starts,
                      int32_t *stops)
{
    int64_t L = in->length, counted = dt_counted_rows(in->mask ? in->mask + b * L : NULL, L);
    const uint8_t *reset = in->reset ? in->reset + b * L : NULL;
    for (int64_t end = L, first; end > 0; end = first) {
        first = dt_document_first(reset, counted, end);
        for (int64_t t = first; t < end; t++) {
            starts[t] = (int32_t)dt_max_i64(first, t - in->window + 1);
            stops[t] = (int32_t)dt_min_i64(end, t + in->window);
        }
    }
}

void dt_attention_prepare(const struct dt_attention_shared *shared)
{
    const struct dt_attention_inputs *in = shared->in;
    int64_t first = (in->at - shared->before) & -(int64_t)ANGLES;
#pragma omp for schedule(static) nowait
    for (int64_t from = first; from < in->at + in->length; from += ANGLES)
        fill_angles(shared, from);
#pragma omp for schedule(static)
    for (int64_t b = 0; b < in->batch; b++)
        if (in->both)
            fill_both(in, b, shared->starts + b * in->length, shared->stops + b * in->length);
        else
            fill_causal(in, b, shared->starts + b * in->length, shared->stops + b * in->length);
}

// Rotates a row in place by the angles of position j or, with sign -1, back.
DT_INLINE void rotate(const struct dt_attention_shared *shared, float *x, int64_t j, float sign,
                      float scale)
{
    int64_t half = shared->in->width / 2;
    const float *cosines = shared->angles + (shared->before + j) * 2 * half,
                *sines = cosines + half;
#pragma omp simd
    for (int64_t i = 0; i < half; i++) {
        float c = cosines[i] * scale, s = sines[i] * (sign * scale), a = x[i], b = x[half + i];
        x[i] = a * c - b * s;
        x[half + i] = b * c + a * s;
    }
}

DT_CLONES void dt_attention_load(const struct dt_attention_shared *shared, const void *row,
                                 int64_t j, float scale, float *out)
{
    dt_load_row(shared->in->q.dtype, row, shared->in->width, shared->pitch, out);
    rotate(shared, out, j, 1.0f, scale);
}

DT_CLONES void dt_attention_load_plain(const struct dt_attention_shared *shared, const void *row,
                                       float *out)
{
    dt_load_row(shared->in->q.dtype, row, shared->in->width, shared->pitch, out);
}

DT_CLONES void dt_attention_turn_back(const struct dt_attention_shared *shared, float *row,
                                      int64_t j, float scale)
{
    rotate(shared, row, j, -1.0f, scale);
}

DT_CLONES void dt_attention_store(const struct dt_attention_shared *shared, float *row, int64_t j,
                                  float scale, void *out)
{
    rotate(shared, row, j, -1.0f, scale);
    dt_store_row(shared->in->q.dtype, row, shared->in->width, out);
}

// Position j >= -before of sequence b, group g: of k and k0, or of v and v0.
static const void *row_of(const struct dt_attention_inputs *in, const struct dt_view *now,
                          const void *before, int64_t b, int64_t g, int64_t j)
{
    if (j >= 0)
        return dt_view_at(now, b * in->length + j, g * in->width);
    int64_t row = (b + 1) * (in->window - 1) + j;
    return (const char *)before +
           (row * in->n_kv_head + g) * in->width * dt_dtype_size(in->q.dtype);
}

void dt_attention_load_keys(const struct dt_attention_shared *shared, int64_t b, int64_t g,
                            int64_t j, int64_t n, const struct dt_attention_keys *tile)
{
    const struct dt_attention_inputs *in = shared->in;
    int64_t padded = dt_round_up(n, DT_PANEL_KEYS), pitch = shared->pitch,
            k = dt_round_up(in->width, 4);
    for (int64_t i = 0; i < n; i++) {
        dt_prefetch_row(&in->k, b * in->length + j + i + DT_ATTENTION_AHEAD, g * in->width,
                        in->width);
        dt_prefetch_row(&in->v, b * in->length + j + i + DT_ATTENTION_AHEAD, g * in->width,
                        in->width);
        dt_attention_load(shared, row_of(in, &in->k, in->k0, b, g, j + i), j + i, 1.0f,
                          tile->keys + i * pitch);
        dt_attention_load_plain(shared, row_of(in, &in->v, in->v0, b, g, j + i),
                                tile->values + i * pitch);
    }
    size_t rest = (size_t)((padded - n) * pitch) * sizeof(float);
    memset(tile->keys + n * pitch, 0, rest);
    memset(tile->values + n * pitch, 0, rest);
    dt_gemm_turn(tile->turned_keys, DT_KEYS, tile->keys, pitch, k, padded);
    if (tile->turned_values)
        dt_gemm_turn(tile->turned_values, DT_KEYS, tile->values, pitch, k, padded);
}

// ---- state

static void store_last(const struct dt_attention_inputs *in, int64_t b, int64_t first,
                       const struct dt_view *now, const void *before, void *last)
{
    int64_t keep = in->window - 1, row = now->cols * dt_dtype_size(now->dtype);
    char *to = (char *)last + b * keep * row;
    int64_t begin = in->length - keep; // position of row 0
    int64_t empty = dt_min_i64(dt_max_i64(first - begin, 0), keep);
    int64_t shifted = dt_min_i64(dt_max_i64(-begin, empty), keep);
    memset(to, 0, (size_t)(empty * row));
    if (shifted > empty) // positions before 0
        memcpy(to + empty * row, (const char *)before + (b * keep + in->length + empty) * row,
               (size_t)((shifted - empty) * row));
    for (int64_t i = shifted; i < keep; i++)
        memcpy(to + i * row, dt_view_at(now, b * in->length + begin + i, 0), (size_t)row);
}

// ---- forward

// A thread's arrays. Rows of queries: head r of the group, query i of the chunk at r · chunk + i.
struct tiles {
    int64_t chunk; // queries, a multiple of DT_PANEL
    float *q;      // [heads · chunk, pitch]
    float *out;    // likewise, Σ p v
    float *most;   // [heads · chunk] the largest score yet
    float *sum;    // likewise, Σ p
    float *scores; // [PANEL, KEYS]
    struct dt_attention_keys tile;
};

static int64_t chunk_of(const struct dt_attention_shared *shared)
{
    int64_t queries = dt_max_i64(CHUNK / shared->heads / DT_PANEL, 1) * DT_PANEL;
    return dt_min_i64(queries, dt_round_up(shared->in->length, DT_PANEL));
}

static struct tiles take_tiles(const struct dt_attention_shared *shared, struct dt_arena *arena)
{
    struct tiles t = {.chunk = chunk_of(shared)};
    int64_t rows = shared->heads * t.chunk, pitch = shared->pitch;
    dt_take_arrays(arena, rows, pitch, (float **[]){&t.q, &t.out, NULL});
    dt_take_arrays(arena, 1, rows, (float **[]){&t.most, &t.sum, NULL});
    dt_take_arrays(arena, DT_PANEL, DT_KEYS, (float **[]){&t.scores, NULL});
    dt_take_arrays(arena, DT_KEYS, pitch,
                   (float **[]){&t.tile.keys, &t.tile.values, &t.tile.turned_keys, NULL});
    return t;
}

DT_OP_CPU_WORKSPACE(attention_forward)
{
    struct dt_arena arena = dt_arena_measure(), own = dt_arena_measure();
    struct dt_attention_shared shared = dt_attention_share(&args->in, &arena);
    take_tiles(&shared, &own);
    return arena.used + device->threads * own.used + DT_SLACK;
}

// A piece has the queries [begin, end) of sequence b, for the heads of group g.
struct piece {
    int64_t b, g, begin, end;
    const int32_t *starts, *stops; // of sequence b
};

static void load_queries(const struct dt_attention_shared *shared, const struct piece *p,
                         const struct tiles *t)
{
    const struct dt_attention_inputs *in = shared->in;
    int64_t rows = shared->heads * t->chunk, E = in->width;
    for (int64_t r = 0; r < shared->heads; r++)
        for (int64_t i = p->begin; i < p->end; i++) {
            int64_t token = p->b * in->length + i, col = (p->g * shared->heads + r) * E;
            dt_prefetch_row(&in->q, token + DT_ATTENTION_AHEAD, col, E);
            dt_attention_load(shared, dt_view_at(&in->q, token, col), i, shared->scale,
                              t->q + (r * t->chunk + i - p->begin) * shared->pitch);
        }
    for (int64_t row = 0; row < rows; row++)
        t->most[row] = -FLT_MAX, t->sum[row] = 0;
    memset(t->out, 0, (size_t)(rows * shared->pitch) * sizeof *t->out);
}

// One row of scores: columns [low, high) are seen, of [first, last). Exponentials against the
// largest score so far, zero where nothing is seen; sums and outputs that were made against a
// smaller one shrink.
DT_CLONES
static void soften(float *restrict score, int64_t first, int64_t low, int64_t high, int64_t last,
                   float *restrict most, float *restrict sum, float *restrict out, int64_t pitch)
{
    float largest = *most, total = 0;
#pragma omp simd reduction(max : largest)
    for (int64_t j = low; j < high; j++)
        largest = score[j] > largest ? score[j] : largest;
    for (int64_t j = first; j < low; j++)
        score[j] = 0;
#pragma omp simd reduction(+ : total)
    for (int64_t j = low; j < high; j++) {
        score[j] = dt_expf(score[j] - largest);
        total += score[j];
    }
    for (int64_t j = high; j < last; j++)
        score[j] = 0;
    float shrink = dt_expf(*most - largest);
    *sum = *sum * shrink + total;
    if (*most != largest)
#pragma omp simd
        for (int64_t i = 0; i < pitch; i++)
            out[i] *= shrink;
    *most = largest;
}

// Where the tile of keys that position j is in ends: at a multiple of KEYS places, so that the
// order of sums does not depend on where the call begins.
static int64_t tile_end(const struct dt_attention_inputs *in, int64_t j)
{
    int64_t past = (in->at + j) % DT_KEYS;
    return j + DT_KEYS - (past < 0 ? past + DT_KEYS : past);
}

// A panel of queries from `i` of the chunk, rows from `row`, on keys [j, end).
static void attend(const struct dt_attention_shared *shared, const struct piece *p, int64_t i,
                   int64_t row, int64_t j, int64_t end, const struct tiles *t)
{
    int64_t pitch = shared->pitch, t0 = p->begin + i, t1 = dt_min_i64(t0 + DT_PANEL, p->end),
            rows = t1 - t0; // queries
    int64_t first = dt_max_i64(p->starts[t0] - j, 0) / DT_PANEL_KEYS * DT_PANEL_KEYS,
            last = dt_min_i64(end, p->stops[t1 - 1]) - j;
    if (last <= first)
        return;
    struct dt_gemm_direct product = dt_gemm_direct_of(
        rows, dt_round_up(last - first, DT_PANEL_KEYS), dt_round_up(shared->in->width, 4),
        dt_as_rows(t->q + row * pitch, pitch), dt_as_rows(t->tile.turned_keys + first, DT_KEYS),
        t->scores + first, DT_KEYS, 0.0f);
    dt_gemm_direct(shared->kernel, &product);
    for (int64_t q = 0; q < rows; q++) {
        int64_t low = dt_min_i64(dt_max_i64(p->starts[t0 + q] - j, first), last),
                high = dt_max_i64(dt_min_i64(p->stops[t0 + q] - j, last), low);
        soften(t->scores + q * DT_KEYS, first, low, high, last, t->most + row + q, t->sum + row + q,
               t->out + (row + q) * pitch, pitch);
    }
    product = dt_gemm_direct_of(rows, pitch, last - first, dt_as_rows(t->scores + first, DT_KEYS),
                                dt_as_rows(t->tile.values + first * pitch, pitch),
                                t->out + row * pitch, pitch, 1.0f);
    dt_gemm_direct(shared->kernel, &product);
}

DT_CLONES static void divide(float *restrict row, float sum, int64_t n)
{
    float factor = 1 / sum;
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        row[i] *= factor;
}

static void store_outputs(const struct dt_attention_forward_args *args,
                          const struct dt_attention_shared *shared, const struct piece *p,
                          const struct tiles *t)
{
    const struct dt_attention_inputs *in = &args->in;
    for (int64_t r = 0; r < shared->heads; r++)
        for (int64_t i = p->begin; i < p->end; i++) {
            int64_t row = r * t->chunk + i - p->begin, h = p->g * shared->heads + r;
            float *out = t->out + row * shared->pitch;
            divide(out, t->sum[row], in->width);
            dt_store_row(args->y.dtype, out, in->width,
                         dt_view_at(&args->y, p->b * in->length + i, h * in->width));
            if (args->lse)
                args->lse[(p->b * in->length + i) * in->n_head + h] =
                    t->most[row] + logf(t->sum[row]);
        }
}

DT_OP_CPU(attention_forward)
{
    const struct dt_attention_inputs *in = &args->in;
    struct dt_arena arena = dt_workspace_arena(args->workspace, args->workspace_bytes);
    struct dt_attention_shared shared = dt_attention_share(in, &arena);
    int64_t chunk = chunk_of(&shared), chunks = dt_ceil_div(in->length, chunk);
#pragma omp parallel num_threads(device->threads)
    {
        struct dt_arena own = dt_thread_arena(&arena, device->threads);
        struct tiles t = take_tiles(&shared, &own);
        dt_attention_prepare(&shared);
#pragma omp for schedule(dynamic) nowait
        for (int64_t i = 0; i < in->batch * in->n_kv_head * chunks; i++) {
            struct piece p = {.b = i / chunks / in->n_kv_head,
                              .g = i / chunks % in->n_kv_head,
                              .begin = i % chunks * chunk};
            p.end = dt_min_i64(p.begin + chunk, in->length);
            p.starts = shared.starts + p.b * in->length;
            p.stops = shared.stops + p.b * in->length;
            load_queries(&shared, &p, &t);
            for (int64_t j = p.starts[p.begin], end; j < p.stops[p.end - 1]; j = end) {
                end = dt_min_i64(tile_end(in, j), p.stops[p.end - 1]);
                dt_attention_load_keys(&shared, p.b, p.g, j, end - j, &t.tile);
                for (int64_t q = 0; q < p.end - p.begin; q += DT_PANEL)
                    for (int64_t r = 0; r < shared.heads; r++)
                        attend(&shared, &p, q, r * t.chunk + q, j, end, &t);
            }
            store_outputs(args, &shared, &p, &t);
        }
#pragma omp for schedule(static)
        for (int64_t b = 0; b < (args->k_last ? in->batch : 0); b++) {
            int64_t first = fill_causal(in, b, NULL, NULL);
            store_last(in, b, first, &in->k, in->k0, args->k_last);
            store_last(in, b, first, &in->v, in->v0, args->v_last);
            args->count_last[b] = (int32_t)dt_min_i64(in->window - 1, in->length - first);
        }
    }
    return DT_OK;
}

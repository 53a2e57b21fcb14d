// The backward pass of attention on the CPU. A piece is a sequence and a group of heads: it holds
// the gradients of the group's keys and values, and takes one head after another, of which it holds
// the queries, the gradients of its outputs and those of its queries. A head walks the keys tile by
// tile, so that every pair of a query and a key is looked at once and each gradient has one owner.
//
// Floor: 10 E products for every pair that is seen (scores and gradients of probabilities, then
// the gradients of values, keys and queries), and an exponential.
#include "kernels/attention_cpu.h"

#include <omp.h>
#include <string.h>

// A thread's arrays.
struct tiles {
    int64_t length, keys_length;        // L rounded up to QUERIES, and to KEYS
    float *q, *dy, *dq;                 // [length, pitch] of one head
    float *lse, *delta;                 // [length]
    float *dkeys, *dvalues;             // [keys_length, pitch] of the group
    float *keys, *values;               // [KEYS, pitch]
    float *turned_keys, *turned_values; // [pitch, KEYS]
    float *p, *ds;                      // [QUERIES, KEYS]
};

static float *carve(float **at, int64_t floats)
{
    float *memory = *at;
    *at += dt_round_up(floats, 16);
    return memory;
}

static struct tiles take_tiles(const struct dt_attention_shared *shared, float *memory,
                               int64_t *floats)
{
    struct tiles t = {.length = dt_round_up(shared->in->length, DT_QUERIES),
                      .keys_length = dt_round_up(shared->in->length, DT_KEYS)};
    int64_t pitch = shared->pitch;
    const struct {
        float **array;
        int64_t floats;
    } arrays[] = {{&t.q, t.length * pitch},
                  {&t.dy, t.length * pitch},
                  {&t.dq, t.length * pitch},
                  {&t.lse, t.length},
                  {&t.delta, t.length},
                  {&t.dkeys, t.keys_length * pitch},
                  {&t.dvalues, t.keys_length * pitch},
                  {&t.keys, DT_KEYS * pitch},
                  {&t.values, DT_KEYS * pitch},
                  {&t.turned_keys, DT_KEYS * pitch},
                  {&t.turned_values, DT_KEYS * pitch},
                  {&t.p, DT_QUERIES * DT_KEYS},
                  {&t.ds, DT_QUERIES * DT_KEYS}};
    float *at = memory;
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        *arrays[i].array = carve(&at, arrays[i].floats);
    *floats = at - memory;
    return t;
}

int64_t attention_backward_cpu_workspace(struct dt_device *device,
                                         const struct dt_attention_backward_args *args)
{
    int64_t shared_bytes, floats;
    struct dt_attention_shared shared = dt_attention_share(&args->in, NULL, &shared_bytes);
    take_tiles(&shared, NULL, &floats);
    return shared_bytes + dt_cpu_threads(device) * floats * (int64_t)sizeof(float);
}

struct piece {
    int64_t b, g;
    const int32_t *starts; // of sequence b
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
        dt_attention_load(shared, dt_view_at(&in->q, token, h * E), i, shared->scale,
                          t->q + i * pitch);
        dt_attention_load_plain(shared, dt_view_at(&args->dy, token, h * E), dy);
        t->delta[i] = dot_row(dy, dt_view_at(&args->y, token, h * E), args->y.dtype, E);
        t->lse[i] = args->lse[token * in->n_head + h];
    }
    size_t rest = (size_t)((t->length - L) * pitch) * sizeof(float);
    memset(t->q + L * pitch, 0, rest);
    memset(t->dy + L * pitch, 0, rest);
    memset(t->dq, 0, (size_t)(t->length * pitch) * sizeof(float));
}

// Keys [j, j + n); the rest of the panel is zero.
static void load_keys(const struct dt_attention_shared *shared, const struct piece *p, int64_t j,
                      int64_t n, const struct tiles *t)
{
    const struct dt_attention_inputs *in = shared->in;
    int64_t padded = dt_round_up(n, DT_PANEL_KEYS), pitch = shared->pitch,
            k = dt_round_up(in->width, 4);
    for (int64_t i = 0; i < n; i++) {
        dt_attention_load(shared, dt_attention_row(shared, &in->k, in->k0, p->b, p->g, j + i),
                          j + i, 1.0f, t->keys + i * pitch);
        dt_attention_load_plain(shared, dt_attention_row(shared, &in->v, in->v0, p->b, p->g, j + i),
                                t->values + i * pitch);
    }
    size_t rest = (size_t)((padded - n) * pitch) * sizeof(float);
    memset(t->keys + n * pitch, 0, rest);
    memset(t->values + n * pitch, 0, rest);
    dt_gemm_turn(t->turned_keys, DT_KEYS, t->keys, pitch, k, padded);
    dt_gemm_turn(t->turned_values, DT_KEYS, t->values, pitch, k, padded);
}

// One row: scores become probabilities, dp becomes ds, where columns [low, high) of `last` are
// seen; zero elsewhere.
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

// Queries [t0, t0 + QUERIES) on keys [j, j + n). Keys before position 0 have no gradient.
static void meet(const struct dt_attention_shared *shared, const struct piece *piece, int64_t t0,
                 int64_t j, int64_t n, const struct tiles *t)
{
    int64_t L = shared->in->length, pitch = shared->pitch, k = dt_round_up(shared->in->width, 4),
            width = dt_round_up(n, DT_PANEL_KEYS), queries = dt_min_i64(DT_QUERIES, L - t0);
    const float *q = t->q + t0 * pitch, *dy = t->dy + t0 * pitch;
    for (int64_t i = 0; i < queries; i += DT_PANEL) {
        int64_t begin = t0 + i, end = dt_min_i64(begin + DT_PANEL, L);
        // columns that some query of the panel sees
        int64_t left = dt_max_i64(piece->starts[begin] - j, 0) / DT_PANEL_KEYS * DT_PANEL_KEYS,
                right = dt_min_i64(n, end - j);
        float *p = t->p + i * DT_KEYS, *ds = t->ds + i * DT_KEYS;
        if (right > left) {
            struct dt_gemm_direct scores = {.m = DT_PANEL,
                                            .n = dt_round_up(right - left, DT_PANEL_KEYS),
                                            .k = k,
                                            .a = q + i * pitch,
                                            .a_row = pitch,
                                            .a_k = 1,
                                            .b = t->turned_keys + left,
                                            .b_k = DT_KEYS,
                                            .c = p + left,
                                            .c_row = DT_KEYS};
            dt_gemm_direct(shared->kernel, &scores);
            scores.a = dy + i * pitch, scores.b = t->turned_values + left, scores.c = ds + left;
            dt_gemm_direct(shared->kernel, &scores);
        }
        for (int64_t row = 0; row < DT_PANEL; row++) {
            int64_t at = begin + row, low = 0, high = 0;
            if (at < L && right > left) {
                low = dt_min_i64(dt_max_i64(piece->starts[at] - j, 0), n);
                high = dt_max_i64(dt_min_i64(at + 1 - j, n), low);
            }
            slope(p + row * DT_KEYS, ds + row * DT_KEYS, low, high, width, at < L ? t->lse[at] : 0,
                  at < L ? t->delta[at] : 0);
        }
        if (right > left) {
            struct dt_gemm_direct dq = {.m = DT_PANEL,
                                        .n = pitch,
                                        .k = right - left,
                                        .a = ds + left,
                                        .a_row = DT_KEYS,
                                        .a_k = 1,
                                        .b = t->keys + left * pitch,
                                        .b_k = pitch,
                                        .c = t->dq + begin * pitch,
                                        .c_row = pitch,
                                        .keep = 1.0f};
            dt_gemm_direct(shared->kernel, &dq);
        }
    }
    for (int64_t i = 0; j >= 0 && i < n; i += DT_PANEL) { // queries from the first that sees one
        int64_t from = dt_max_i64(j + i - t0, 0);
        if (from >= queries)
            break;
        struct dt_gemm_direct sum = {.m = DT_PANEL,
                                     .n = pitch,
                                     .k = queries - from,
                                     .a = t->p + from * DT_KEYS + i,
                                     .a_row = 1,
                                     .a_k = DT_KEYS,
                                     .b = dy + from * pitch,
                                     .b_k = pitch,
                                     .c = t->dvalues + (j + i) * pitch,
                                     .c_row = pitch,
                                     .keep = 1.0f};
        dt_gemm_direct(shared->kernel, &sum);
        sum.a = t->ds + from * DT_KEYS + i, sum.b = q + from * pitch,
        sum.c = t->dkeys + (j + i) * pitch;
        dt_gemm_direct(shared->kernel, &sum);
    }
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
        load_keys(shared, p, j, n, t);
        int64_t t0 = dt_max_i64(j, 0) / DT_QUERIES * DT_QUERIES;
        for (; t0 < L && p->starts[t0] < j + n; t0 += DT_QUERIES)
            meet(shared, p, t0, j, n, t);
    }
    for (int64_t i = 0; i < L; i++)
        dt_attention_store(shared, t->dq + i * shared->pitch, i, shared->scale,
                           dt_view_at(&args->dq, p->b * L + i, h * args->in.width));
}

static void run_piece(const struct dt_attention_backward_args *args,
                      const struct dt_attention_shared *shared, const struct piece *p,
                      const struct tiles *t)
{
    int64_t L = args->in.length, E = args->in.width, pitch = shared->pitch;
    size_t bytes = (size_t)(t->keys_length * pitch) * sizeof(float);
    memset(t->dkeys, 0, bytes);
    memset(t->dvalues, 0, bytes);
    for (int64_t r = 0; r < shared->heads; r++)
        run_head(args, shared, p, p->g * shared->heads + r, t);
    for (int64_t j = 0; j < L; j++) {
        int64_t row = p->b * L + j;
        dt_attention_store(shared, t->dkeys + j * pitch, j, 1.0f,
                           dt_view_at(&args->dk, row, p->g * E));
        dt_store_row(args->dv.dtype, t->dvalues + j * pitch, E,
                     dt_view_at(&args->dv, row, p->g * E));
    }
}

dt_status attention_backward_cpu(struct dt_device *device,
                                 const struct dt_attention_backward_args *args,
                                 struct dt_stream *stream)
{
    const struct dt_attention_inputs *in = &args->in;
    int64_t shared_bytes;
    struct dt_attention_shared shared = dt_attention_share(in, args->workspace, &shared_bytes);
    (void)stream;
#pragma omp parallel num_threads(dt_cpu_threads(device))
    {
        int64_t floats;
        take_tiles(&shared, NULL, &floats);
        float *memory = (float *)(void *)((char *)args->workspace + shared_bytes);
        struct tiles t = take_tiles(&shared, memory + omp_get_thread_num() * floats, &floats);
        dt_attention_prepare(&shared);
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < in->batch * in->n_kv_head; i++) {
            struct piece p = {.b = i / in->n_kv_head, .g = i % in->n_kv_head};
            p.starts = shared.starts + p.b * in->length;
            run_piece(args, &shared, &p, &t);
        }
    }
    return DT_OK;
}

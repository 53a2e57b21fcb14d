// The selective scan forward on the CPU, and the parts of it that backward uses too. scan_cpu.h
// says how the work is cut; pieces touch disjoint channels or sequences, so nothing is reduced
// here.
#include "kernels/scan_cpu.h"

#include "kernels/cpu.h"

#include <omp.h>

enum { ALONE = 1 << 16 }; // states of a step that do not pay for a second thread

// A thread's rows.
struct forward_scratch {
    float *a, *h;            // [n_state] rows
    float *d_skip, *dt_bias; // a row each
    float *delta, *du, *s;   // [DT_BLOCK] rows
    float *b, *c;            // [DT_BLOCK, n_state]
};

static struct forward_scratch take_scratch(struct dt_arena *arena, int64_t n_state)
{
    struct forward_scratch scratch;
    scratch.a = scan_take_rows(arena, n_state);
    scratch.h = scan_take_rows(arena, n_state);
    scratch.d_skip = scan_take_rows(arena, 1);
    scratch.dt_bias = scan_take_rows(arena, 1);
    scratch.delta = scan_take_rows(arena, DT_BLOCK);
    scratch.du = scan_take_rows(arena, DT_BLOCK);
    scratch.s = scan_take_rows(arena, DT_BLOCK);
    scratch.b = scan_take(arena, DT_BLOCK * n_state);
    scratch.c = scan_take(arena, DT_BLOCK * n_state);
    return scratch;
}

DT_CLONES
void scan_load_a(const struct dt_piece *piece, int64_t state, int64_t n_state, const float *a_log,
                 float *a)
{
    for (int64_t i = 0; i < n_state * DT_PITCH; i++)
        a[i] = 0.0f;
    for (int64_t i = 0; i < piece->count; i++) {
        const float *row = a_log + (piece->first + i) * state;
#pragma omp simd
        for (int64_t n = 0; n < state; n++) {
            a[n * DT_PITCH + i] = scan_a(row[n]);
        }
    }
}

DT_CLONES
void scan_load_columns(const struct dt_view *from, int64_t row, int64_t steps, int64_t n_state,
                       float *to)
{
    for (int64_t t = 0; t < steps; t++)
        dt_load_row(from->dtype, dt_view_at(from, row + t, 0), from->cols, n_state,
                    to + t * n_state);
}

void scan_load_channels(const struct dt_piece *piece, const float *from, float *to)
{
    dt_load_row(DT_F32, from + piece->first, piece->count, piece->padded, to);
}

// SCAN_STATES states of DT_LANES channels over a block. h is a local array of constant size so
// that it lives in registers.
DT_INLINE void advance_tile(const struct scan_block *block, int64_t n0, int64_t lane,
                            float *restrict h_rows, float *restrict s_rows)
{
    const float *restrict a = block->a + n0 * DT_PITCH + lane;
    float h[SCAN_STATES][DT_LANES];
    for (int n = 0; n < SCAN_STATES; n++)
        dt_load_lanes(h_rows + (n0 + n) * DT_PITCH + lane, h[n]);
    for (int64_t t = 0; t < block->steps; t++) {
        int64_t row = t * DT_PITCH + lane;
        const float *restrict b = block->b + t * block->n_state + n0;
        const float *restrict c = block->c + t * block->n_state + n0;
        float delta[DT_LANES], du[DT_LANES], s[DT_LANES];
        dt_load_lanes(block->delta + row, delta);
        dt_load_lanes(block->du + row, du);
        dt_load_lanes(s_rows + row, s);
        if (n0 == 0)
            dt_prefetch(block->ahead, t, lane);
        if (block->reset && block->reset[t])
            scan_clear(h);
#pragma GCC unroll 8
        for (int n = 0; n < SCAN_STATES; n++)
#pragma omp simd
            for (int l = 0; l < DT_LANES; l++) {
                float decay = scan_exp2(delta[l] * a[n * DT_PITCH + l]);
                h[n][l] = decay * h[n][l] + du[l] * b[n];
                s[l] += c[n] * h[n][l];
            }
        dt_store_lanes(s, s_rows + row);
    }
    for (int n = 0; n < SCAN_STATES; n++)
        dt_store_lanes(h[n], h_rows + (n0 + n) * DT_PITCH + lane);
}

DT_CLONES
void scan_advance(const struct scan_block *block, float *h, float *s)
{
    for (int64_t lane = 0; lane < block->padded; lane += DT_LANES)
        for (int64_t n0 = 0; n0 < block->n_state; n0 += SCAN_STATES)
            advance_tile(block, n0, lane, h, s);
}

// Rows of Δ, Δ · u and d_skip · u (which s starts from) for tokens [row, row + steps) of all B · L.
DT_CLONES
static void stage(const struct dt_scan_forward_args *args, const struct dt_piece *piece,
                  int64_t row, int64_t steps, const struct forward_scratch *scratch)
{
    float u[DT_GROUP], raw[DT_GROUP];
    for (int64_t t = 0; t < steps; t++) {
        float *restrict delta = scratch->delta + t * DT_PITCH;
        float *restrict du = scratch->du + t * DT_PITCH;
        float *restrict s = scratch->s + t * DT_PITCH;
        dt_load_piece(piece, &args->in.u, row + t, u);
        dt_load_piece(piece, &args->in.delta, row + t, raw);
#pragma omp simd
        for (int64_t i = 0; i < piece->padded; i++) {
            delta[i] = dt_softplusf(raw[i] + scratch->dt_bias[i]);
            du[i] = delta[i] * u[i];
            s[i] = scratch->d_skip[i] * u[i];
        }
    }
}

DT_CLONES
static void gate(const struct dt_scan_forward_args *args, const struct dt_piece *piece, int64_t row,
                 int64_t steps, const float *s_rows)
{
    float z[DT_GROUP], y[DT_GROUP];
    for (int64_t t = 0; t < steps; t++) {
        const float *restrict s = s_rows + t * DT_PITCH;
        dt_load_piece(piece, &args->in.z, row + t, z);
        if (args->s)
            memcpy(args->s + (row + t) * args->in.u.cols + piece->first, s,
                   (size_t)piece->count * sizeof *s);
#pragma omp simd
        for (int64_t i = 0; i < piece->padded; i++)
            y[i] = s[i] * dt_siluf(z[i]);
        dt_store_piece(piece, &args->y, row + t, y);
    }
}

static void load_h0(const struct dt_scan_forward_args *args, const struct dt_piece *piece,
                    int64_t n_state, float *h)
{
    const float *h0 = args->in.h0;
    memset(h, 0, (size_t)(n_state * DT_PITCH) * sizeof *h);
    if (!h0)
        return;
    h0 += (piece->sequence * args->in.u.cols + piece->first) * args->in.b.cols;
    for (int64_t i = 0; i < piece->count; i++)
        for (int64_t n = 0; n < args->in.b.cols; n++)
            h[n * DT_PITCH + i] = h0[i * args->in.b.cols + n];
}

static void store_h_last(const struct dt_scan_forward_args *args, const struct dt_piece *piece,
                         const float *h)
{
    float *h_last = args->h_last;
    if (!h_last)
        return;
    h_last += (piece->sequence * args->in.u.cols + piece->first) * args->in.b.cols;
    for (int64_t i = 0; i < piece->count; i++)
        for (int64_t n = 0; n < args->in.b.cols; n++)
            h_last[i * args->in.b.cols + n] = h[n * DT_PITCH + i];
}

static void keep_state(const struct dt_scan_forward_args *args, const struct dt_piece *piece,
                       int64_t t, const float *h)
{
    int64_t chunks = dt_ceil_div(args->in.length, args->in.chunk);
    if (!args->states || t % args->in.chunk != 0)
        return;
    float *state = args->states + (piece->sequence * chunks + t / args->in.chunk) *
                                      args->in.b.cols * args->in.u.cols;
    for (int64_t n = 0; n < args->in.b.cols; n++)
        memcpy(state + n * args->in.u.cols + piece->first, h + n * DT_PITCH,
               (size_t)piece->count * sizeof *h);
}

// What this block reads and writes at its end, and what the next one reads.
static void look_ahead(const struct dt_scan_forward_args *args, const struct dt_piece *piece,
                       int64_t row, struct scan_block *block)
{
    int64_t next = row + block->steps;
    block->ahead[0] = dt_ahead(piece, &args->in.z, row);
    block->ahead[1] = dt_ahead(piece, &args->y, row);
    if (next == (piece->sequence + 1) * args->in.length)
        return;
    block->ahead[2] = dt_ahead(piece, &args->in.u, next);
    block->ahead[3] = dt_ahead(piece, &args->in.delta, next);
}

static void run_block(const struct dt_scan_forward_args *args, const struct dt_piece *piece,
                      int64_t n_state, int64_t row, int64_t steps,
                      const struct forward_scratch *scratch)
{
    struct scan_block block = {.steps = steps,
                               .padded = piece->padded,
                               .n_state = n_state,
                               .a = scratch->a,
                               .delta = scratch->delta,
                               .du = scratch->du,
                               .b = scratch->b,
                               .c = scratch->c,
                               .reset = args->in.reset ? args->in.reset + row : NULL};
    look_ahead(args, piece, row, &block);
    stage(args, piece, row, steps, scratch);
    scan_load_columns(&args->in.b, row, steps, n_state, scratch->b);
    scan_load_columns(&args->in.c, row, steps, n_state, scratch->c);
    scan_advance(&block, scratch->h, scratch->s);
    gate(args, piece, row, steps, scratch->s);
}

static void run_piece(const struct dt_scan_forward_args *args, const struct dt_piece *piece,
                      int64_t n_state, const struct forward_scratch *scratch)
{
    scan_load_a(piece, args->in.b.cols, n_state, args->in.a_log, scratch->a);
    scan_load_channels(piece, args->in.d_skip, scratch->d_skip);
    scan_load_channels(piece, args->in.dt_bias, scratch->dt_bias);
    load_h0(args, piece, n_state, scratch->h);
    for (int64_t t = 0, steps; t < args->in.length; t += steps) {
        steps = scan_steps(args->in.length, args->in.chunk, t);
        keep_state(args, piece, t, scratch->h);
        run_block(args, piece, n_state, piece->sequence * args->in.length + t, steps, scratch);
    }
    store_h_last(args, piece, scratch->h);
}

// One position from a state, as in play: states are used in the order in which they are kept, so
// that nothing is turned, padded or copied.
DT_CLONES
static void step_channels(const struct dt_scan_forward_args *args, int64_t b, int64_t first,
                          int64_t count)
{
    const struct dt_scan_inputs *in = &args->in;
    const struct dt_piece piece = {.first = first, .count = count, .padded = count};
    int64_t N = in->b.cols, state = (b * in->u.cols + first) * N;
    const float *h0 = in->h0 && !(in->reset && in->reset[b]) ? in->h0 + state : NULL;
    float u[DT_GROUP], delta[DT_GROUP], s[DT_GROUP], B[DT_SCAN_STATES_MAX], C[DT_SCAN_STATES_MAX];
    dt_load_row(in->b.dtype, dt_view_at(&in->b, b, 0), N, N, B);
    dt_load_row(in->c.dtype, dt_view_at(&in->c, b, 0), N, N, C);
    dt_load_piece(&piece, &in->u, b, u);
    dt_load_piece(&piece, &in->delta, b, delta);
#pragma omp simd
    for (int64_t i = 0; i < count; i++)
        delta[i] = dt_softplusf(delta[i] + in->dt_bias[first + i]);
    for (int64_t i = 0; i < count; i++) {
        const float *a_log = in->a_log + (first + i) * N;
        float du = delta[i] * u[i], sum = 0, unused[DT_SCAN_STATES_MAX];
        float *h = args->h_last ? args->h_last + state + i * N : unused;
#pragma omp simd reduction(+ : sum)
        for (int64_t n = 0; n < N; n++) {
            float before = h0 ? scan_exp2(delta[i] * scan_a(a_log[n])) * h0[i * N + n] : 0;
            h[n] = before + du * B[n];
            sum += C[n] * h[n];
        }
        s[i] = in->d_skip[first + i] * u[i] + sum;
    }
    dt_load_piece(&piece, &in->z, b, u);
#pragma omp simd
    for (int64_t i = 0; i < count; i++)
        s[i] *= dt_siluf(u[i]);
    dt_store_piece(&piece, &args->y, b, s);
}

static void step(struct dt_device *device, const struct dt_scan_forward_args *args)
{
    int64_t E = args->in.u.cols, groups = dt_ceil_div(E, DT_GROUP),
            pieces = args->in.batch * groups;
    int threads = pieces * DT_GROUP * args->in.b.cols < ALONE ? 1 : dt_cpu_threads(device);
#pragma omp parallel for num_threads(threads)
    for (int64_t i = 0; i < pieces; i++) {
        int64_t first = i % groups * DT_GROUP;
        step_channels(args, i / groups, first, dt_min_i64(E - first, DT_GROUP));
    }
}

static int64_t scratch_bytes(int64_t n_state)
{
    struct dt_arena arena = dt_arena_measure();
    take_scratch(&arena, n_state);
    return arena.used;
}

DT_OP_CPU_WORKSPACE(scan_forward)
{
    return dt_cpu_threads(device) * scratch_bytes(scan_padded_state(args->in.b.cols)) + SCAN_SLACK;
}

DT_OP_CPU(scan_forward)
{
    struct dt_cut cut = dt_cut(args->in.batch, args->in.u.cols);
    int64_t n_state = scan_padded_state(args->in.b.cols), bytes = scratch_bytes(n_state);
    struct dt_arena arena = scan_arena(args->workspace, args->workspace_bytes);
    char *memory = dt_arena_take(&arena, bytes * dt_cpu_threads(device));
    if (args->in.length == 1 && !args->states && !args->s) {
        step(device, args);
        return DT_OK;
    }
#pragma omp parallel num_threads(dt_cpu_threads(device))
    {
        struct dt_arena own = dt_arena_place(memory + omp_get_thread_num() * bytes, bytes);
        struct forward_scratch scratch = take_scratch(&own, n_state);
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < args->in.batch * cut.groups; i++) {
            struct dt_piece piece = dt_piece(&cut, args->in.u.cols, i);
            run_piece(args, &piece, n_state, &scratch);
        }
    }
    return DT_OK;
}

// The selective scan forward on the CPU, and functions that backward uses too. scan_cpu.h says how
// the work is cut; pieces write disjoint channels or sequences, so nothing is reduced.
#include "kernels/scan_cpu.h"

#include "kernels/cpu.h"

enum { ALONE = 1 << 16 }; // states of a step below which one thread is faster

// The rows of one thread.
struct forward_scratch {
    struct scan_rows in;
    float *h; // [n_state] rows
};

struct scan_rows scan_take_rows(struct dt_arena *arena, int64_t n_state)
{
    struct scan_rows rows;
    dt_take_arrays(arena, n_state, DT_PITCH, (float **[]){&rows.a, NULL});
    dt_take_arrays(arena, 1, DT_PITCH, (float **[]){&rows.d_skip, &rows.dt_bias, NULL});
    rows.step = scan_take_steps(arena, sizeof *rows.step);
    dt_take_arrays(arena, DT_BLOCK, n_state, (float **[]){&rows.b, &rows.c, NULL});
    return rows;
}

static struct forward_scratch take_scratch(struct dt_arena *arena, int64_t n_state)
{
    struct scan_rows rows = scan_take_rows(arena, n_state);
    return (struct forward_scratch){rows, dt_take_floats(arena, n_state, DT_PITCH)};
}

// a[n][i] = scan_a(a_log[i, n]); padding gets 0.
DT_CLONES
static void load_a(const struct dt_piece *piece, int64_t state, int64_t n_state, const float *a_log,
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

void scan_open_piece(const struct dt_scan_inputs *in, const struct dt_piece *piece, int64_t n_state,
                     const struct scan_rows *rows)
{
    load_a(piece, in->b.cols, n_state, in->a_log, rows->a);
    dt_load_row(DT_F32, in->d_skip + piece->first, piece->count, piece->padded, rows->d_skip);
    dt_load_row(DT_F32, in->dt_bias + piece->first, piece->count, piece->padded, rows->dt_bias);
}

DT_CLONES
struct scan_block scan_open_block(const struct dt_scan_inputs *in, const struct dt_piece *piece,
                                  int64_t n_state, int64_t row, int64_t steps,
                                  const struct scan_rows *rows)
{
    for (int64_t t = 0; t < steps; t++) {
        dt_load_row(in->b.dtype, dt_view_at(&in->b, row + t, 0), in->b.cols, n_state,
                    rows->b + t * n_state);
        dt_load_row(in->c.dtype, dt_view_at(&in->c, row + t, 0), in->c.cols, n_state,
                    rows->c + t * n_state);
    }
    return (struct scan_block){.steps = steps,
                               .padded = piece->padded,
                               .n_state = n_state,
                               .a = rows->a,
                               .step = rows->step,
                               .b = rows->b,
                               .c = rows->c,
                               .reset = in->reset ? in->reset + row : NULL};
}

// Computes rows of Δ, Δ · u and d_skip · u (the start of s) for tokens [row, row + steps) of all B
// · L.
DT_CLONES
static void stage(const struct dt_scan_forward_args *args, const struct dt_piece *piece,
                  int64_t row, int64_t steps, const struct scan_rows *rows)
{
    float u[DT_GROUP], raw[DT_GROUP];
    for (int64_t t = 0; t < steps; t++) {
        dt_load_piece(piece, &args->in.u, row + t, u);
        dt_load_piece(piece, &args->in.delta, row + t, raw);
        for (int64_t lane = 0; lane < piece->padded; lane += DT_LANES) {
            struct scan_step *restrict step = rows->step + scan_steps_at(lane) + t;
#pragma omp simd
            for (int l = 0; l < DT_LANES; l++) {
                step->delta[l] = dt_softplusf(raw[lane + l] + rows->dt_bias[lane + l]);
                step->du[l] = step->delta[l] * u[lane + l];
                step->s[l] = rows->d_skip[lane + l] * u[lane + l];
            }
        }
    }
}

DT_CLONES
static void gate(const struct dt_scan_forward_args *args, const struct dt_piece *piece, int64_t row,
                 int64_t steps, const struct scan_step *step)
{
    float z[DT_GROUP], s[DT_GROUP], y[DT_GROUP];
    for (int64_t t = 0; t < steps; t++) {
        for (int64_t lane = 0; lane < piece->padded; lane += DT_LANES)
            dt_load_lanes(step[scan_steps_at(lane) + t].s, s + lane);
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

// Runs tokens [row, row + steps) of all B · L, and meanwhile prefetches what the block reads and
// writes at its end, and the inputs of the next block.
static void run_block(const struct dt_scan_forward_args *args, const struct dt_piece *piece,
                      int64_t n_state, int64_t row, int64_t steps,
                      const struct forward_scratch *scratch)
{
    int64_t next = row + steps;
    stage(args, piece, row, steps, &scratch->in);
    struct scan_block block = scan_open_block(&args->in, piece, n_state, row, steps, &scratch->in);
    block.ahead[0] = dt_ahead(piece, &args->in.z, row);
    block.ahead[1] = dt_ahead(piece, &args->y, row);
    if (next < (piece->sequence + 1) * args->in.length) {
        block.ahead[2] = dt_ahead(piece, &args->in.u, next);
        block.ahead[3] = dt_ahead(piece, &args->in.delta, next);
    }
    scan_advance(&block, scratch->h);
    gate(args, piece, row, steps, scratch->in.step);
}

// Runs a piece from h0 to h_last; `states` gets h before each chunk.
static void run_piece(const struct dt_scan_forward_args *args, const struct dt_piece *piece,
                      int64_t n_state, const struct forward_scratch *scratch)
{
    const struct dt_scan_inputs *in = &args->in;
    int64_t N = in->b.cols, D = in->u.cols;
    float *h = scratch->h;
    scan_open_piece(in, piece, n_state, &scratch->in);
    scan_load_state(in, piece, n_state, in->h0, h);
    for (int64_t t = 0, steps; t < in->length; t += steps) {
        bool kept = args->states && t % in->chunk == 0;
        float *state = kept ? args->states + scan_state_at(in, piece, t) : NULL;
        for (int64_t n = 0; kept && n < N; n++)
            memcpy(state + n * D, h + n * DT_PITCH, (size_t)piece->count * sizeof *h);
        steps = dt_min_i64(in->chunk - t % in->chunk, DT_BLOCK);
        steps = dt_min_i64(in->length - t, steps);
        run_block(args, piece, n_state, piece->sequence * in->length + t, steps, scratch);
    }
    scan_store_state(in, piece, h, args->h_last);
}

// One position from a state, as in inference: states are used in their stored order, without
// transposing, padding or copying.
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

DT_OP_CPU_WORKSPACE(scan_forward)
{
    struct dt_arena own = dt_arena_measure();
    take_scratch(&own, scan_padded_state(args->in.b.cols));
    return device->threads * own.used + DT_SLACK;
}

DT_OP_CPU(scan_forward)
{
    struct dt_cut cut = dt_cut(args->in.batch, args->in.u.cols);
    int64_t n_state = scan_padded_state(args->in.b.cols);
    struct dt_arena arena = dt_workspace_arena(args->workspace, args->workspace_bytes);
    if (args->in.length == 1 && !args->states && !args->s) {
        int64_t E = args->in.u.cols, groups = dt_ceil_div(E, DT_GROUP),
                pieces = args->in.batch * groups;
        int threads = pieces * DT_GROUP * args->in.b.cols < ALONE ? 1 : device->threads;
#pragma omp parallel for num_threads(threads)
        for (int64_t i = 0; i < pieces; i++) {
            int64_t first = i % groups * DT_GROUP;
            step_channels(args, i / groups, first, dt_min_i64(E - first, DT_GROUP));
        }
        return DT_OK;
    }
#pragma omp parallel num_threads(device->threads)
    {
        struct dt_arena own = dt_thread_arena(&arena, device->threads);
        struct forward_scratch scratch = take_scratch(&own, n_state);
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < args->in.batch * cut.groups; i++) {
            struct dt_piece piece = dt_piece(&cut, args->in.u.cols, i);
            run_piece(args, &piece, n_state, &scratch);
        }
    }
    return DT_OK;
}

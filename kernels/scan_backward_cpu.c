// The selective scan backward on the CPU. A piece (see scan_cpu.h) walks its chunks, and the blocks
// of a chunk, from last to first: a block is run forward again from its first state, keeping each
// step's decay and state, then swept backwards with dh in registers. Sums over channels (dB, dC)
// give one partial per group, sums over time (da_log, dd_skip, ddt_bias) one per sequence; a second
// pass adds the partials in order.
#include "kernels/scan_backward_cpu.h"

#include "kernels/cpu.h"

static const float ln2 = 0x1.62e43p-1f;

struct backward {
    const struct dt_scan_backward_args *args;
    struct dt_cut cut;
    int64_t n_state; // N, padded
    // Partial sums of all pieces.
    float *db, *dc;            // [B, groups, L, n_state]
    float *da_log;             // [B, n_state, groups * width]
    float *dd_skip, *ddt_bias; // [B, groups * width]
};

static struct scan_scratch take_scratch(struct dt_arena *arena, int64_t n_state, int64_t blocks)
{
    struct scan_scratch scratch = {.in = scan_take_rows(arena, n_state)};
    dt_take_arrays(arena, n_state, DT_PITCH, (float **[]){&scratch.carry, &scratch.da, NULL});
    dt_take_arrays(arena, blocks * n_state, DT_PITCH, (float **[]){&scratch.starts, NULL});
    dt_take_arrays(arena, 1, DT_PITCH, (float **[]){&scratch.dd_skip, &scratch.ddt_bias, NULL});
    scratch.slope = scan_take_steps(arena, sizeof *scratch.slope);
    scratch.kept = dt_arena_take(arena, (DT_BLOCK + 1) * (int64_t)sizeof *scratch.kept);
    scratch.sums = dt_arena_take(arena, DT_BLOCK * (int64_t)sizeof *scratch.sums);
    return scratch;
}

static struct backward open_backward(struct dt_arena *arena,
                                     const struct dt_scan_backward_args *args)
{
    int64_t B = args->in.batch;
    struct backward job = {.args = args,
                           .cut = dt_cut(B, args->in.u.cols),
                           .n_state = scan_padded_state(args->in.b.cols)};
    int64_t channels = job.cut.groups * job.cut.width;
    dt_take_arrays(arena, B * job.cut.groups * args->in.length, job.n_state,
                   (float **[]){&job.db, &job.dc, NULL});
    dt_take_arrays(arena, B * job.n_state, channels, (float **[]){&job.da_log, NULL});
    dt_take_arrays(arena, B, channels, (float **[]){&job.dd_skip, &job.ddt_bias, NULL});
    return job;
}

static int64_t blocks_of_chunk(const struct dt_scan_backward_args *args)
{
    return dt_ceil_div(dt_min_i64(args->in.chunk, args->in.length), DT_BLOCK);
}

DT_OP_CPU_WORKSPACE(scan_backward)
{
    struct dt_arena arena = dt_arena_measure(), own = dt_arena_measure();
    open_backward(&arena, args);
    take_scratch(&own, scan_padded_state(args->in.b.cols), blocks_of_chunk(args));
    return arena.used + device->threads * own.used + DT_SLACK;
}

// Loads rows of tokens [row, row + steps) of all B · L, and zeroes sums.
DT_CLONES
static void stage(const struct dt_scan_backward_args *args, const struct dt_piece *piece,
                  int64_t row, int64_t steps, const struct scan_scratch *scratch)
{
    float u[DT_GROUP], raw[DT_GROUP], z[DT_GROUP], dy[DT_GROUP];
    for (int64_t t = 0; t < steps; t++) {
        dt_load_piece(piece, &args->in.u, row + t, u);
        dt_load_piece(piece, &args->in.delta, row + t, raw);
        dt_load_piece(piece, &args->in.z, row + t, z);
        dt_load_piece(piece, &args->dy, row + t, dy);
        for (int64_t lane = 0; lane < piece->padded; lane += DT_LANES) {
            struct scan_step *restrict step = scratch->in.step + scan_steps_at(lane) + t;
            struct scan_slope *restrict slope = scratch->slope + scan_steps_at(lane) + t;
#pragma omp simd
            for (int l = 0; l < DT_LANES; l++) {
                int64_t i = lane + l;
                float x = raw[i] + scratch->in.dt_bias[i], e = dt_expf(x < 0.0f ? x : -x);
                float gate = dt_sigmoidf(z[i]);
                // softplus, e shared with its slope
                step->delta[l] = (x < 0.0f ? 0.0f : x) + dt_log1pf_unit(e);
                step->du[l] = step->delta[l] * u[i];
                step->s[l] = scratch->in.d_skip[i] * u[i];
                slope->u[l] = u[i];
                slope->slope[l] = (x < 0.0f ? e : 1.0f) / (1.0f + e);
                slope->ds[l] = dy[i] * z[i] * gate;
                slope->dz[l] = dy[i] * gate * (1.0f + z[i] * (1.0f - gate));
                slope->dh_b[l] = 0.0f;
                slope->dh_a[l] = 0.0f;
            }
        }
    }
}

// Stores the gradients of a block's rows, and adds its share of the sums over time.
DT_CLONES
static void finish(const struct dt_scan_backward_args *args, const struct dt_piece *piece,
                   int64_t row, int64_t steps, const struct scan_scratch *scratch)
{
    float du[DT_GROUP], ddelta[DT_GROUP], dz[DT_GROUP];
    float skip_sum[DT_GROUP] = {0}, bias_sum[DT_GROUP] = {0};
    for (int64_t t = 0; t < steps; t++) {
        for (int64_t lane = 0; lane < piece->padded; lane += DT_LANES) {
            const struct scan_step *restrict step = scratch->in.step + scan_steps_at(lane) + t;
            const struct scan_slope *restrict slope = scratch->slope + scan_steps_at(lane) + t;
#pragma omp simd
            for (int l = 0; l < DT_LANES; l++) {
                int64_t i = lane + l;
                du[i] = slope->ds[l] * scratch->in.d_skip[i] + step->delta[l] * slope->dh_b[l];
                ddelta[i] = (slope->dh_a[l] * ln2 + slope->u[l] * slope->dh_b[l]) * slope->slope[l];
                dz[i] = slope->dz[l] * step->s[l];
                skip_sum[i] += slope->ds[l] * slope->u[l];
                bias_sum[i] += ddelta[i];
            }
        }
        dt_store_piece(piece, &args->du, row + t, du);
        dt_store_piece(piece, &args->ddelta, row + t, ddelta);
        dt_store_piece(piece, &args->dz, row + t, dz);
    }
#pragma omp simd
    for (int64_t i = 0; i < piece->padded; i++) {
        scratch->dd_skip[i] += skip_sum[i];
        scratch->ddt_bias[i] += bias_sum[i];
    }
}

// Runs the block of tokens [row, row + steps) of all B · L from `start`, the h before it, and
// meanwhile prefetches the inputs of the previous block.
static void run_block(const struct backward *job, const struct dt_piece *piece, int64_t row,
                      int64_t steps, const float *start, const struct scan_scratch *scratch)
{
    const struct dt_scan_backward_args *args = job->args;
    int64_t n_state = job->n_state, first = piece->sequence * args->in.length,
            next = row - DT_BLOCK,
            partial =
                (first * job->cut.groups + piece->group * args->in.length + row - first) * n_state;
    stage(args, piece, row, steps, scratch);
    struct scan_block block = scan_open_block(&args->in, piece, n_state, row, steps, &scratch->in);
    struct dt_ahead out[DT_AHEAD] = {dt_ahead(piece, &args->du, row),
                                     dt_ahead(piece, &args->ddelta, row),
                                     dt_ahead(piece, &args->dz, row)};
    if (next >= first) {
        block.ahead[0] = dt_ahead(piece, &args->in.u, next);
        block.ahead[1] = dt_ahead(piece, &args->in.delta, next);
        block.ahead[2] = dt_ahead(piece, &args->in.z, next);
        block.ahead[3] = dt_ahead(piece, &args->dy, next);
    }
    for (int64_t n0 = 0; n0 < n_state; n0 += SCAN_STATES) {
        memset(scratch->sums, 0, (size_t)steps * sizeof *scratch->sums);
        for (int64_t lane = 0; lane < piece->padded; lane += DT_LANES) {
            scan_replay(&block, scratch, start, n0, lane);
            scan_sweep(&block, scratch, out, n0, lane);
        }
        scan_sum_lanes(scratch->sums, steps, n_state, job->db + partial + n0,
                       job->dc + partial + n0);
    }
    finish(args, piece, row, steps, scratch);
}

// starts[k] = h before the k-th block of the chunk at token t: the first from `states`, the others
// by running forward.
static void make_starts(const struct backward *job, const struct dt_piece *piece, int64_t t,
                        const struct scan_scratch *scratch)
{
    const struct dt_scan_backward_args *args = job->args;
    int64_t size = job->n_state * DT_PITCH, sequence = piece->sequence * args->in.length;
    int64_t end = dt_min_i64(args->in.length, t + args->in.chunk);
    const float *state = args->states + scan_state_at(&args->in, piece, t);
    float *start = scratch->starts;
    memset(start, 0, (size_t)size * sizeof *start);
    for (int64_t n = 0; n < args->in.b.cols; n++)
        memcpy(start + n * DT_PITCH, state + n * args->in.u.cols,
               (size_t)piece->count * sizeof *start);
    for (; t + DT_BLOCK < end; t += DT_BLOCK, start += size) {
        stage(args, piece, sequence + t, DT_BLOCK, scratch);
        struct scan_block block =
            scan_open_block(&args->in, piece, job->n_state, sequence + t, DT_BLOCK, &scratch->in);
        memcpy(start + size, start, (size_t)size * sizeof *start);
        scan_advance(&block, start + size);
    }
}

static void run_piece(const struct backward *job, const struct dt_piece *piece,
                      const struct scan_scratch *scratch)
{
    const struct dt_scan_backward_args *args = job->args;
    size_t row = DT_PITCH * sizeof(float), rows = (size_t)job->n_state * row;
    scan_open_piece(&args->in, piece, job->n_state, &scratch->in);
    scan_load_state(&args->in, piece, job->n_state, args->dh_last, scratch->carry);
    memset(scratch->da, 0, rows);
    memset(scratch->dd_skip, 0, row);
    memset(scratch->ddt_bias, 0, row);
    for (int64_t chunk = (args->in.length - 1) / args->in.chunk; chunk >= 0; chunk--) {
        int64_t begin = chunk * args->in.chunk;
        int64_t end = dt_min_i64(args->in.length, begin + args->in.chunk);
        make_starts(job, piece, begin, scratch);
        for (int64_t k = (end - begin - 1) / DT_BLOCK; k >= 0; k--) {
            int64_t t = begin + k * DT_BLOCK;
            run_block(job, piece, piece->sequence * args->in.length + t,
                      dt_min_i64(DT_BLOCK, end - t), scratch->starts + k * job->n_state * DT_PITCH,
                      scratch);
        }
    }
    scan_store_state(&args->in, piece, scratch->carry, args->dh0);
    // the piece's sums over time become the partials of its sequence
    int64_t channels = job->cut.groups * job->cut.width, first = piece->sequence * channels;
    float *da_log = job->da_log + first * job->n_state + piece->first;
    for (int64_t n = 0; n < job->n_state; n++)
        for (int64_t i = 0; i < piece->padded; i++)
            da_log[n * channels + i] =
                scratch->da[n * DT_PITCH + i] * scratch->in.a[n * DT_PITCH + i] * ln2;
    first += piece->first;
    memcpy(job->dd_skip + first, scratch->dd_skip, (size_t)piece->padded * sizeof(float));
    memcpy(job->ddt_bias + first, scratch->ddt_bias, (size_t)piece->padded * sizeof(float));
}

// to[n] = Σ over groups of a token's partials, in storage type.
DT_CLONES
static void add_groups(const struct backward *job, const float *partials, int64_t row,
                       const struct dt_view *to)
{
    const struct dt_scan_backward_args *args = job->args;
    int64_t n_state = job->n_state, sequence = row / args->in.length;
    float sum[DT_SCAN_STATES_MAX] = {0};
    for (int64_t g = 0; g < job->cut.groups; g++) {
        const float *from =
            partials +
            ((sequence * job->cut.groups + g) * args->in.length + row % args->in.length) * n_state;
#pragma omp simd
        for (int64_t n = 0; n < n_state; n++)
            sum[n] += from[n];
    }
    dt_store_row(to->dtype, sum, to->cols, dt_view_at(to, row, 0));
}

// sum[l] = Σ over sequences of from[sequence · stride + l], in double.
DT_INLINE void add_sequences(const float *from, int64_t batch, int64_t stride, double *restrict sum)
{
    for (int l = 0; l < DT_LANES; l++)
        sum[l] = 0.0;
    for (int64_t b = 0; b < batch; b++)
#pragma omp simd
        for (int l = 0; l < DT_LANES; l++)
            sum[l] += (double)from[b * stride + l];
}

static void add_sum(const double *sum, int64_t count, bool accumulate, float *to, int64_t stride)
{
    for (int64_t l = 0; l < count; l++)
        to[l * stride] = (float)(accumulate ? (double)to[l * stride] + sum[l] : sum[l]);
}

// The parameter gradients of DT_LANES channels from `first` on.
DT_CLONES
static void add_parameters(const struct backward *job, int64_t first)
{
    const struct dt_scan_backward_args *args = job->args;
    int64_t channels = job->cut.groups * job->cut.width;
    int64_t count = dt_min_i64(DT_LANES, args->in.u.cols - first);
    double sum[DT_LANES];
    for (int64_t n = 0; n < args->in.b.cols; n++) {
        add_sequences(job->da_log + n * channels + first, args->in.batch, job->n_state * channels,
                      sum);
        add_sum(sum, count, args->accumulate, args->da_log + first * args->in.b.cols + n,
                args->in.b.cols);
    }
    add_sequences(job->dd_skip + first, args->in.batch, channels, sum);
    add_sum(sum, count, args->accumulate, args->dd_skip + first, 1);
    add_sequences(job->ddt_bias + first, args->in.batch, channels, sum);
    add_sum(sum, count, args->accumulate, args->ddt_bias + first, 1);
}

DT_OP_CPU(scan_backward)
{
    struct dt_arena arena = dt_workspace_arena(args->workspace, args->workspace_bytes);
    struct backward job = open_backward(&arena, args);
#pragma omp parallel num_threads(device->threads)
    {
        struct dt_arena own = dt_thread_arena(&arena, device->threads);
        struct scan_scratch scratch = take_scratch(&own, job.n_state, blocks_of_chunk(args));
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < args->in.batch * job.cut.groups; i++) {
            struct dt_piece piece = dt_piece(&job.cut, args->in.u.cols, i);
            run_piece(&job, &piece, &scratch);
        }
#pragma omp for schedule(static) nowait
        for (int64_t row = 0; row < args->in.batch * args->in.length; row++) {
            add_groups(&job, job.db, row, &args->db);
            add_groups(&job, job.dc, row, &args->dc);
        }
#pragma omp for schedule(static)
        for (int64_t first = 0; first < args->in.u.cols; first += DT_LANES)
            add_parameters(&job, first);
    }
    return DT_OK;
}

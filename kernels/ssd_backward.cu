// Mamba-2's scan on CUDA, backward: see ssd.cuh for the cut into slabs and the operands, ssd.h for
// the formulas. Slabs are processed in reverse order of time. Per slab, after recomputing the
// operands: leftᵀ · dy, which is dX and each run's addition to the state's gradient; the pass of
// that gradient over the slab's chunks, from last to first; dM and a part of dC from dy · rightᵀ;
// the products with dh_end; sums over the heads of a group, which give dB and dC; then everything
// per token and head. 9 launches, 7 products, and one launch at the end for the parameters. Bytes
// per token and head in bf16 in addition to ssd.cuh: dleft 12 (Q + N), states 16 N P / Q, dx and
// its inputs 20 P. The floor is the sum over copy bandwidth.
//
// The gradient of a step's log decay, Σ_{s < t <= u} W[u, s], could be a cumulative sum of row sums
// minus column sums, but these cancel. Instead a warp owns a row u and each lane four of its
// columns: a prefix sum over the row is Σ_{s < t} W[u, s] at every t, and a lane adds these over
// its warp's rows in its own columns, in shared memory that no other lane touches.
#include "kernels/partials.cuh"
#include "kernels/ssd.cuh"

enum { DRIGHT, DLEFT, DWEIGHTED, DB_STATES, DB_TOKENS, DC, CB, PRODUCTS };

static void describe_products(const ssd_slab &s, dt_gemm_args (&products)[PRODUCTS])
{
    const dt_dtype type = s.in.x.dtype;
    const int64_t pairs = ssd_runs(s) * s.heads, groups = ssd_runs(s) * s.groups;
    const unsigned wide = s.per_group * s.width, deep = s.rows + s.states;
    const dt_view left = dt_view_of(s.left, s.rows, deep, type);
    const dt_view right = dt_view_of(s.right, deep, s.width, type);
    const dt_view dy = dt_view_of(s.dy, s.rows, s.width, type);
    const dt_view b = dt_view_of(s.b, s.rows, s.states, type);
    const dt_view c = dt_view_of(s.c, s.rows, s.states, type);
    const dt_view weighted = dt_view_of(s.weighted, s.rows, wide, type);
    const dt_view dstate = dt_view_of(s.dstate, s.states, wide, type);
    const dt_view dcb = dt_view_of(s.dcb, s.rows, s.rows, type);
    const dt_view db = dt_view_of(s.db, s.rows, s.states, DT_F32);
    const dt_view dc = dt_view_of(s.dc, s.rows, s.states, DT_F32);
    products[DRIGHT] =
        ssd_product(left, true, dy, false, dt_view_of(s.dright, deep, s.width, DT_F32), pairs);
    products[DLEFT] =
        ssd_product(dy, false, right, true, dt_view_of(s.dleft, s.rows, deep, DT_F32), pairs);
    products[DWEIGHTED] =
        ssd_product(b, false, dstate, false, dt_view_of(s.dweighted, s.rows, wide, DT_F32), groups);
    products[DB_STATES] = ssd_product(weighted, false, dstate, true, db, groups);
    products[DB_TOKENS] = ssd_product(dcb, true, c, false, db, groups, true);
    products[DC] = ssd_product(dcb, false, b, false, dc, groups, true);
    products[CB] = ssd_cb_product(s);
}

enum { COLUMNS = SSD_FOUR * DT_WARP };

// The decay over the whole run, or 0 if its last token does not see the state before the run.
DT_DEVICE float keep_all(const ssd_slab &s, unsigned run, int64_t pair)
{
    return s.from[(int64_t)run * s.rows + s.rows - 1] < 0
               ? ssd_exp(s.log[pair * s.rows + s.rows - 1])
               : 0.0f;
}

// dh_end of each run of the slab, its product with h_before, and h_before as the right operand's
// lower rows: from dh_last to dh0, either may be NULL. One block per SSD_PART elements of a state.
template <class T>
__global__ static void __launch_bounds__(SSD_THREADS)
    pass_gradients(const ssd_slab s, const float *states, const float *dh_last, float *dh0)
{
    const unsigned vectors = s.width / SSD_FOUR, items = s.states * vectors;
    const ssd_item item = ssd_find_item(items);
    const unsigned h = item.pair % s.heads, local = item.pair / s.heads;
    const unsigned n = item.i / vectors, p = item.i % vectors * SSD_FOUR;
    const int64_t sequence = s.first_sequence + local;
    const bool there = item.i < items;
    if (sequence >= s.in.batch)
        return; // the whole block
    float *carry = s.carry + ((int64_t)item.pair * s.states + n) * s.width + p;
    float dh[SSD_FOUR] = {};
    if (there && (int64_t)s.first_chunk + s.chunks < s.n_chunks)
        dt_load<SSD_FOUR>(carry, dh);
    else if (there && dh_last)
        ssd_read_border(s, dh_last, sequence, h, n, p, dh);
    for (unsigned i = s.chunks; i-- > 0;) {
        const unsigned run = local * s.chunks + i;
        const int64_t pair = (int64_t)run * s.heads + h, chunk = (int64_t)s.first_chunk + i;
        const int64_t group = (int64_t)run * s.groups + h / s.per_group;
        const int64_t lower = (pair * (s.rows + s.states) + s.rows + n) * s.width + p;
        const float keep = keep_all(s, run, pair);
        float before[SSD_FOUR] = {}, add[SSD_FOUR], dot = 0.0f;
        if (there && chunk < s.n_chunks && n < s.state) {
            const float *from =
                states + (((sequence * s.n_chunks + chunk) * s.heads + h) * s.state + n) * s.head +
                p;
#pragma unroll
            for (int k = 0; k < SSD_FOUR; k++)
                if (p + k < s.head)
                    before[k] = from[k];
        }
#pragma unroll
        for (int k = 0; k < SSD_FOUR; k++)
            dot += dh[k] * before[k];
        dot = dt_block_sum<SSD_THREADS>(dot);
        if (threadIdx.x == 0)
            s.dots[pair * s.parts + blockIdx.x % s.parts] = dot;
        if (!there)
            continue;
        dt_store<SSD_FOUR>((T *)s.dstate + (group * s.states + n) * s.per_group * s.width +
                               h % s.per_group * s.width + p,
                           dh);
        dt_store<SSD_FOUR>((T *)s.right + lower, before);
        dt_load<SSD_FOUR>(s.dright + lower, add);
#pragma unroll
        for (int k = 0; k < SSD_FOUR; k++)
            dh[k] = (keep == 0.0f ? 0.0f : keep * dh[k]) + add[k];
    }
    if (there)
        dt_store<SSD_FOUR>(carry, dh);
    if (there && dh0 && s.first_chunk == 0)
        ssd_write_border(s, dh0, sequence, h, n, p, dh);
}

// Sums over the heads of a group: dM ∘ decay, and the part of dC from the states. One warp per
// token of a run and group. Also computes each head's keep_t dY_tᵀ h_before C_t.
template <class T> __global__ static void __launch_bounds__(SSD_THREADS) sum_heads(const ssd_slab s)
{
    const unsigned lane = threadIdx.x % DT_WARP, rows = s.rows, deep = s.rows + s.states;
    const unsigned blocks = rows / SSD_WARPS, group = blockIdx.x / blocks;
    const unsigned t = blockIdx.x % blocks * SSD_WARPS + threadIdx.x / DT_WARP;
    const unsigned run = group / s.groups, first = group % s.groups * s.per_group;
    const int from = s.from[(int64_t)run * rows + t];
    const int64_t row = (int64_t)group * rows + t;
    for (unsigned column = lane * SSD_FOUR; column < rows; column += COLUMNS) {
        float sum[SSD_FOUR] = {};
        for (unsigned i = 0; i < s.per_group && column <= t; i++) {
            const int64_t pair = (int64_t)run * s.heads + first + i;
            const float *log = s.log + pair * rows, at = log[t];
            float dm[SSD_FOUR], l[SSD_FOUR];
            dt_load<SSD_FOUR>(s.dleft + (pair * rows + t) * deep + column, dm);
            dt_load<SSD_FOUR>(log + column, l);
#pragma unroll
            for (int k = 0; k < SSD_FOUR; k++)
                if (column + k <= t && (int)(column + k) >= from)
                    sum[k] += ssd_exp(at - l[k]) * dm[k];
        }
        dt_store<SSD_FOUR>((T *)s.dcb + row * rows + column, sum);
    }
    constexpr int TURNS = DT_SSD_STATES_MAX / COLUMNS;
    float c[TURNS][SSD_FOUR] = {}, dc[TURNS][SSD_FOUR] = {};
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++)
        if (lane * SSD_FOUR + turn * COLUMNS < s.states)
            dt_load<SSD_FOUR>((const T *)s.c + row * s.states + lane * SSD_FOUR + turn * COLUMNS,
                              c[turn]);
    for (unsigned i = 0; i < s.per_group; i++) {
        const int64_t at = ((int64_t)run * s.heads + first + i) * rows + t;
        const float keep = from < 0 ? ssd_exp(s.log[at]) : 0.0f;
        float e = 0.0f;
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            float d[SSD_FOUR] = {};
            if (from < 0 && lane * SSD_FOUR + turn * COLUMNS < s.states)
                dt_load<SSD_FOUR>(s.dleft + at * deep + rows + lane * SSD_FOUR + turn * COLUMNS, d);
#pragma unroll
            for (int k = 0; k < SSD_FOUR; k++) {
                d[k] *= keep;
                dc[turn][k] += d[k];
                e += d[k] * c[turn][k];
            }
        }
        e = dt_warp_sum(e);
        if (lane == 0)
            s.e[at] = e;
    }
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++)
        if (lane * SSD_FOUR + turn * COLUMNS < s.states)
            dt_store<SSD_FOUR>(s.dc + row * s.states + lane * SSD_FOUR + turn * COLUMNS, dc[turn]);
}

// The sum over lower lanes.
DT_DEVICE float sum_below(float x, unsigned lane)
{
    float sum = x;
#pragma unroll
    for (unsigned step = 1; step < DT_WARP; step *= 2) {
        const float below = __shfl_up_sync(DT_WHOLE_WARP, sum, step);
        sum += lane >= step ? below : 0.0f;
    }
    const float below = __shfl_up_sync(DT_WHOLE_WARP, sum, 1);
    return lane > 0 ? below : 0.0f;
}

// across[t] += Σ_{s < t <= u} W[u, s] over this warp's rows u, for the columns t of the lane.
DT_DEVICE void sum_across(const ssd_slab &s, unsigned pair, unsigned valid, float *across)
{
    const unsigned lane = threadIdx.x % DT_WARP, rows = s.rows, deep = s.rows + s.states;
    const unsigned run = pair / s.heads, g = pair % s.heads / s.per_group;
    const float *log = s.log + (int64_t)pair * rows;
    for (unsigned t = lane * SSD_FOUR; t < rows; t += COLUMNS)
#pragma unroll
        for (int k = 0; k < SSD_FOUR; k++)
            across[t + k] = 0.0f;
    for (unsigned u = threadIdx.x / DT_WARP; u < valid; u += SSD_WARPS) {
        const int from = s.from[(int64_t)run * rows + u];
        const float at = log[u];
        float left_of = 0.0f; // the columns of this turn
        for (unsigned first = 0; first <= u; first += COLUMNS) {
            const unsigned t = first + lane * SSD_FOUR;
            float w[SSD_FOUR] = {}, total = 0.0f;
            if (t <= u) {
                float dm[SSD_FOUR], cb[SSD_FOUR], l[SSD_FOUR];
                dt_load<SSD_FOUR>(s.dleft + ((int64_t)pair * rows + u) * deep + t, dm);
                dt_load<SSD_FOUR>(s.cb + (((int64_t)run * s.groups + g) * rows + u) * rows + t, cb);
                dt_load<SSD_FOUR>(log + t, l);
#pragma unroll
                for (int k = 0; k < SSD_FOUR; k++)
                    if (t + k <= u && (int)(t + k) >= from)
                        w[k] = dm[k] * cb[k] * ssd_exp(at - l[k]);
            }
#pragma unroll
            for (int k = 0; k < SSD_FOUR; k++)
                total += w[k];
            float below = left_of + sum_below(total, lane);
#pragma unroll
            for (int k = 0; k < SSD_FOUR; k++) {
                if (t + k <= u)
                    across[t + k] += below;
                below += w[k];
            }
            left_of = __shfl_sync(DT_WHOLE_WARP, below, DT_WARP - 1);
        }
    }
}

// Computes dx of this warp's tokens; direct[t] = x · dX, later[t] = decay[Q-1, t] X dh_end B.
// Returns the lane's part of dy · x.
template <class T>
DT_DEVICE float write_dx(const ssd_slab &s, const dt_view &dx, unsigned pair, const ssd_run &r,
                         float *direct, float *later)
{
    const unsigned lane = threadIdx.x % DT_WARP, rows = s.rows;
    const unsigned run = pair / s.heads, h = pair % s.heads, g = h / s.per_group;
    const int from = s.from[(int64_t)run * rows + rows - 1];
    const float skip = s.in.d_skip[h];
    float dskip = 0.0f;
    for (unsigned t = threadIdx.x / DT_WARP; t < r.valid; t += SSD_WARPS) {
        const float delta = s.delta[(int64_t)pair * rows + t];
        const float decay = ssd_decay(s.log + (int64_t)pair * rows, rows - 1, t, from);
        const float *upper = s.dright + ((int64_t)pair * (rows + s.states) + t) * s.width;
        const float *end = s.dweighted +
                           (((int64_t)run * s.groups + g) * rows + t) * s.per_group * s.width +
                           h % s.per_group * s.width;
        const T *dy = (const T *)s.dy + ((int64_t)pair * rows + t) * s.width;
        const T *x = dt_at<T>(s.in.x, r.row + t, h * s.head);
        T *to = dt_at<T>(dx, r.row + t, h * s.head);
        float all = 0.0f, late = 0.0f;
        for (unsigned p = lane; p < s.head; p += DT_WARP) {
            const float x_p = dt_to_f32(x[p]), dy_p = dt_to_f32(dy[p]);
            const float d_end = decay == 0.0f ? 0.0f : decay * end[p], d = upper[p] + d_end;
            to[p] = dt_from_f32<T>(delta * d + skip * dy_p);
            all += x_p * d;
            late += x_p * d_end;
            dskip += x_p * dy_p;
        }
        all = dt_warp_sum(all), late = dt_warp_sum(late);
        if (lane == 0)
            direct[t] = all, later[t] = delta * late;
    }
    return dskip;
}

// Computes dx, ddt, and a run's part of the parameters' gradients. One block per run and head.
template <class T>
__global__ static void __launch_bounds__(SSD_THREADS)
    token_gradients(const ssd_slab s, const dt_view dx, const dt_view ddt)
{
    DT_SHARED_DYN(float, shared);
    const unsigned pair = blockIdx.x, run = pair / s.heads, h = pair % s.heads, rows = s.rows;
    const unsigned warp = threadIdx.x / DT_WARP, lane = threadIdx.x % DT_WARP;
    const ssd_run r = ssd_find_run(s, run);
    if (r.valid == 0)
        return; // the whole block
    float *across = shared, *direct = shared + SSD_WARPS * rows, *later = direct + rows;
    sum_across(s, pair, r.valid, across + warp * rows);
    const float dskip =
        dt_block_sum<SSD_THREADS>(write_dx<T>(s, dx, pair, r, direct, later)); // and a barrier
    if (warp > 0)
        return;
    // dlog_t: `across` of all warps, Σ_{u >= t} e_u from the last 32 tokens to the first …
    float after = 0.0f;
    for (int first = (int)((r.valid - 1) / DT_WARP * DT_WARP); first >= 0; first -= DT_WARP) {
        const unsigned t = (unsigned)first + lane;
        float e = t < r.valid ? s.e[(int64_t)pair * rows + t] : 0.0f;
#pragma unroll
        for (unsigned step = 1; step < DT_WARP; step *= 2) {
            const float above = __shfl_down_sync(DT_WHOLE_WARP, e, step);
            e += lane + step < DT_WARP ? above : 0.0f;
        }
        e += after;
        after = __shfl_sync(DT_WHOLE_WARP, e, 0);
        if (t < r.valid) {
            for (int w = 0; w < SSD_WARPS; w++)
                e += across[w * rows + t];
            across[t] = e;
        }
    }
    // … and from the first to the last the sum over s < t, and what passes through the whole run.
    float through = 0.0f, before = 0.0f, da_log = 0.0f, dbias = 0.0f;
    for (unsigned i = 0; i < s.parts; i++)
        through += s.dots[(int64_t)pair * s.parts + i];
    const float keep = keep_all(s, run, pair), a = -expf(s.in.a_log[h]), bias = s.in.dt_bias[h];
    through = keep == 0.0f ? 0.0f : keep * through;
    const T *dt = dt_at<T>(s.in.dt, r.row, h);
    T *to = dt_at<T>(ddt, r.row, h);
    for (unsigned first = 0; first < r.valid; first += DT_WARP) {
        const unsigned t = first + lane;
        const float late = t < r.valid ? later[t] : 0.0f, below = before + sum_below(late, lane);
        before = __shfl_sync(DT_WHOLE_WARP, below + late, DT_WARP - 1);
        if (t >= r.valid)
            continue;
        const float raw = dt_to_f32(dt[t * s.in.dt.stride]) + bias, soft = ssd_softplus(raw);
        const float dlog = across[t] + below + through;
        float d = a * dlog + direct[t];
        d = soft < s.in.dt_min || soft > s.in.dt_max ? 0.0f : d / (1.0f + expf(-raw));
        to[t * ddt.stride] = dt_from_f32<T>(d);
        da_log += dlog * s.delta[(int64_t)pair * rows + t] * a;
        dbias += d;
    }
    da_log = dt_warp_sum(da_log), dbias = dt_warp_sum(dbias);
    if (lane == 0) {
        float *part = s.partials + (r.sequence * s.n_chunks + r.chunk) * 3 * s.heads + h;
        part[0] = da_log, part[s.heads] = dskip, part[2 * s.heads] = dbias;
    }
}

// Copies dB and dC from the workspace to the caller's views.
template <class T, int V>
__global__ static void __launch_bounds__(SSD_THREADS)
    write_dbc(const ssd_slab s, const dt_view db, const dt_view dc)
{
    const unsigned vectors = s.states / V, items = s.rows * vectors;
    const ssd_item item = ssd_find_item(items);
    const unsigned g = item.pair % s.groups, t = item.i / vectors, n = item.i % vectors * V;
    const ssd_run r = ssd_find_run(s, item.pair / s.groups);
    if (item.i >= items || t >= r.valid || n >= s.state)
        return;
    const int64_t from = ((int64_t)item.pair * s.rows + t) * s.states + n;
    float v[V];
    dt_load<V>(s.db + from, v);
    dt_store<V>(dt_at<T>(db, r.row + t, g * s.state + n), v);
    dt_load<V>(s.dc + from, v);
    dt_store<V>(dt_at<T>(dc, r.row + t, g * s.state + n), v);
}

template <class T>
static dt_status backward_slab(const ssd_slab &s, const dt_ssd_backward_args *args,
                               const ssd_call &call)
{
    const int64_t runs = ssd_runs(s), pairs = runs * s.heads, groups = runs * s.groups;
    dt_gemm_args products[PRODUCTS];
    describe_products(s, products);
    DT_TRY(ssd_prepare<T>(s, args->dy, call));
    DT_TRY(ssd_multiply(call, products[DRIGHT]));
    DT_LAUNCH((pass_gradients<T>), (unsigned)((int64_t)s.sequences * s.heads * s.parts),
              SSD_THREADS, 0, call.stream, s, args->states, args->dh_last, args->dh0);
    for (int i = DLEFT; i <= DB_STATES; i++)
        DT_TRY(ssd_multiply(call, products[i]));
    DT_LAUNCH((sum_heads<T>), (unsigned)(groups * (s.rows / SSD_WARPS)), SSD_THREADS, 0,
              call.stream, s);
    DT_TRY(ssd_multiply(call, products[DB_TOKENS]));
    DT_TRY(ssd_multiply(call, products[DC]));
    DT_LAUNCH((token_gradients<T>), (unsigned)pairs, SSD_THREADS,
              (SSD_WARPS + 2) * s.rows * sizeof(float), call.stream, s, args->dx, args->ddt);
    DT_WIDE_SWITCH(ssd_wide(s.state, args->db, args->dc), V, SSD_EIGHT,
                   DT_LAUNCH((write_dbc<T, V>), ssd_blocks(groups, s.rows * (s.states / V)),
                             SSD_THREADS, 0, call.stream, s, args->db, args->dc));
    return DT_LAUNCHED("ssd_backward");
}

DT_OP_CUDA(ssd_backward)
{
    ssd_slab s = ssd_plan(args->in, true);
    dt_carver carver = dt_carve_from(args->workspace);
    ssd_layout(&s, &carver, true);
    char *rest = carver.at + carver.used;
    const ssd_call call = {device, stream, rest,
                           args->workspace_bytes - (rest - (char *)args->workspace)};
    const unsigned last = (unsigned)((s.n_chunks - 1) / s.chunks * s.chunks);
    for (; s.first_sequence < s.in.batch; s.first_sequence += s.sequences)
        for (int64_t chunk = last; chunk >= 0; chunk -= s.chunks) {
            s.first_chunk = (unsigned)chunk;
            DT_STORAGE_SWITCH(s.in.x.dtype, T, DT_TRY(backward_slab<T>(s, args, call)));
        }
    partials_launch({s.partials, s.in.batch * s.n_chunks, s.heads, 1, args->da_log, args->dd_skip,
                     args->ddt_bias, args->accumulate},
                    stream);
    return DT_LAUNCHED("ssd_backward");
}

DT_OP_CUDA_WORKSPACE(ssd_backward)
{
    ssd_slab s = ssd_plan(args->in, true);
    dt_carver carver = dt_carve_from(NULL);
    ssd_layout(&s, &carver, true);
    dt_gemm_args products[PRODUCTS];
    describe_products(s, products);
    return carver.used + ssd_gemm_bytes(device, products, PRODUCTS);
}

// Mamba-2's scan on CUDA, forward: see ssd.cuh for the cut into slabs and the operands. Per slab:
// decays, operands, C Bᵀ; each run's addition to the state, Bᵀ · weighted X; the pass of the states
// over the slab's chunks, which also fills the right operand's lower rows; left · right; y. 5
// launches and 3 products. In the pass a thread owns four neighbours of a state over all chunks of
// the slab: a loop of two dependent operations with independent loads, in at least 4 N P sequences
// / SSD_PART blocks. The floor is the bytes of ssd.cuh over copy bandwidth.
#include "kernels/ssd.cuh"

enum { SUMS, OUTPUT, CB, PRODUCTS };

static void describe_products(const ssd_slab &s, dt_gemm_args (&products)[PRODUCTS])
{
    const dt_dtype type = s.in.x.dtype;
    const int64_t runs = ssd_runs(s);
    const unsigned wide = s.per_group * s.width, deep = s.rows + s.states;
    products[SUMS] = ssd_product(dt_view_of(s.b, s.rows, s.states, type), true,
                                 dt_view_of(s.weighted, s.rows, wide, type), false,
                                 dt_view_of(s.sums, s.states, wide, DT_F32), runs * s.groups);
    products[OUTPUT] = ssd_product(dt_view_of(s.left, s.rows, deep, type), false,
                                   dt_view_of(s.right, deep, s.width, type), false,
                                   dt_view_of(s.y, s.rows, s.width, DT_F32), runs * s.heads);
    products[CB] = ssd_cb_product(s);
}

// The state before each run of the slab: kept for backward, and the right operand's lower rows.
template <class T, bool WIDE>
__global__ static void __launch_bounds__(SSD_THREADS)
    pass_states(const ssd_slab s, float *states, float *h_last)
{
    const unsigned vectors = s.width / SSD_FOUR, items = s.states * vectors;
    const ssd_item item = ssd_find_item(items);
    if (item.i >= items)
        return;
    const unsigned h = item.pair % s.heads, local = item.pair / s.heads;
    const unsigned n = item.i / vectors, p = item.i % vectors * SSD_FOUR;
    const int64_t sequence = s.first_sequence + local;
    if (sequence >= s.in.batch)
        return; // its runs have no tokens, and their y is not read
    float *carry = s.carry + ((int64_t)item.pair * s.states + n) * s.width + p;
    float state[SSD_FOUR] = {};
    if (s.first_chunk > 0) {
        dt_load<SSD_FOUR>(carry, state);
    } else if (s.in.h0) {
        ssd_read_border(s, s.in.h0, sequence, h, n, p, state);
    }
    for (unsigned i = 0; i < s.chunks; i++) {
        const unsigned run = local * s.chunks + i;
        const int64_t pair = (int64_t)run * s.heads + h, last = (int64_t)run * s.rows + s.rows - 1;
        const int64_t chunk = (int64_t)s.first_chunk + i;
        const int64_t group = (int64_t)run * s.groups + h / s.per_group;
        const float keep = s.from[last] < 0 ? ssd_exp(s.log[pair * s.rows + s.rows - 1]) : 0.0f;
        float add[SSD_FOUR];
        dt_load<SSD_FOUR>(s.sums + (group * s.states + n) * s.per_group * s.width +
                              h % s.per_group * s.width + p,
                          add);
        dt_store<SSD_FOUR>((T *)s.right + (pair * (s.rows + s.states) + s.rows + n) * s.width + p,
                           state);
        if (states && chunk < s.n_chunks && n < s.state) {
            float *to = states +
                        (((sequence * s.n_chunks + chunk) * s.heads + h) * s.state + n) * s.head +
                        p;
            if (WIDE) {
                if (p < s.head)
                    dt_store<SSD_FOUR>(to, state);
            } else {
#pragma unroll
                for (int k = 0; k < SSD_FOUR; k++)
                    if (p + k < s.head)
                        to[k] = state[k];
            }
        }
#pragma unroll
        for (int k = 0; k < SSD_FOUR; k++)
            state[k] = (keep == 0.0f ? 0.0f : keep * state[k]) + add[k];
    }
    dt_store<SSD_FOUR>(carry, state);
    if (h_last && (int64_t)s.first_chunk + s.chunks >= s.n_chunks)
        ssd_write_border(s, h_last, sequence, h, n, p, state);
}

// y = sum of the products + d_skip x.
template <class T, int V>
__global__ static void __launch_bounds__(SSD_THREADS) write_y(const ssd_slab s, const dt_view y)
{
    const unsigned vectors = s.width / V, items = s.rows * vectors;
    const ssd_item item = ssd_find_item(items);
    const unsigned h = item.pair % s.heads;
    const unsigned t = item.i / vectors, p = item.i % vectors * V;
    const ssd_run r = ssd_find_run(s, item.pair / s.heads);
    if (item.i >= items || t >= r.valid || p >= s.head)
        return;
    const float skip = s.in.d_skip[h];
    float v[V], x[V];
    dt_load<V>(s.y + ((int64_t)item.pair * s.rows + t) * s.width + p, v);
    dt_load<V>(dt_at<T>(s.in.x, r.row + t, h * s.head + p), x);
#pragma unroll
    for (int k = 0; k < V; k++)
        v[k] += skip * x[k];
    dt_store<V>(dt_at<T>(y, r.row + t, h * s.head + p), v);
}

template <class T>
static dt_status forward_slab(const ssd_slab &s, const dt_ssd_forward_args *args,
                              const ssd_call &call)
{
    const int64_t pairs = ssd_runs(s) * s.heads;
    const dt_view none = {};
    dt_gemm_args products[PRODUCTS];
    describe_products(s, products);
    DT_TRY(ssd_prepare<T>(s, none, call));
    DT_TRY(ssd_multiply(call, products[SUMS]));
    const unsigned blocks =
        ssd_blocks((int64_t)s.sequences * s.heads, s.states * (s.width / SSD_FOUR));
    if (s.head % SSD_FOUR == 0 && dt_aligned<SSD_FOUR>(args->states))
        DT_LAUNCH((pass_states<T, true>), blocks, SSD_THREADS, 0, call.stream, s, args->states,
                  args->h_last);
    else
        DT_LAUNCH((pass_states<T, false>), blocks, SSD_THREADS, 0, call.stream, s, args->states,
                  args->h_last);
    DT_TRY(ssd_multiply(call, products[OUTPUT]));
    DT_WIDE_SWITCH(ssd_wide(s.head, s.in.x, args->y), V, SSD_EIGHT,
                   DT_LAUNCH((write_y<T, V>), ssd_blocks(pairs, s.rows * (s.width / V)),
                             SSD_THREADS, 0, call.stream, s, args->y));
    return DT_LAUNCHED("ssd_forward");
}

DT_OP_CUDA(ssd_forward)
{
    ssd_slab s = ssd_plan(args->in, false);
    dt_carver carver = dt_carve_from(args->workspace);
    ssd_layout(&s, &carver, false);
    char *rest = carver.at + carver.used;
    const ssd_call call = {device, stream, rest,
                           args->workspace_bytes - (rest - (char *)args->workspace)};
    for (; s.first_sequence < s.in.batch; s.first_sequence += s.sequences)
        for (s.first_chunk = 0; s.first_chunk < s.n_chunks; s.first_chunk += s.chunks)
            DT_STORAGE_SWITCH(s.in.x.dtype, T, DT_TRY(forward_slab<T>(s, args, call)));
    return DT_OK;
}

DT_OP_CUDA_WORKSPACE(ssd_forward)
{
    ssd_slab s = ssd_plan(args->in, false);
    dt_carver carver = dt_carve_from(NULL);
    ssd_layout(&s, &carver, false);
    dt_gemm_args products[PRODUCTS];
    describe_products(s, products);
    return carver.used + ssd_gemm_bytes(device, products, PRODUCTS);
}

// Token embedding on CUDA.
//
// Forward: a warp copies a row of the table, eight neighbours per lane (one if rows are unaligned).
// Floor in bf16: 2 bytes in and 4 out per element, over copy bandwidth.
//
// Backward: rows are sorted by token, then a block adds one token's rows in order, without atomics.
// The sort is a stable counting sort with eight bits of the token per pass (two passes up to 65,536
// tokens). A thread owns SORT_RUN neighbouring rows and its own counters; prefix sums over digits,
// and within a digit over threads, turn counters into positions, and the threads place their rows
// in order. A binary search then finds each token's first position. Bytes of the sums: dout once,
// the gradient once (twice with accumulate), 4 each. The sort moves 16 bytes per row and pass,
// which is far less.
//
// A token with more than DT_EMBED_RUN rows is cut into runs of that length; each run has its own
// blocks, which write its sum to the workspace, and the token's block adds the sums: 4 / 128 bytes
// per element, written and read. Runs are needed because latency bounds a frequent token: a block
// has eight rows in flight, and a turn of eight takes about 0.7 us. One block alone would take 200
// turns or 140 us for a token in 5 % of 32,768 rows, and 4,096 turns or 2.9 ms for a batch of one
// token, while the bytes of all others take 60 us (V = 50,280, 768 columns, 4.3 TB/s). With runs of
// 128 it takes 16 turns and then one per eight runs: 18 turns or 13 us, and 48 turns or 34 us.
#include "kernels/device.cuh"

enum {
    WARPS = 4, // rows per forward block
    WIDE = 8,
    DIGITS = 256,
    DIGIT_BITS = 8,
    SORT_RUN = 64, // rows per sorting thread
    THREADS = 128,
    COLUMNS = 4, // columns that a thread adds at a time
    AHEAD = 8,   // rows that are loaded before the first is added …
    HELD = 8,    // … where the compiler is told how many blocks of them a multiprocessor holds:
                 // else it saves registers and loads two at a time
    KINDS = 2,   // kinds of runs that begin in a slot: a token's first, and others
};

template <int N, class T>
__global__ static void __launch_bounds__(DT_WARP *WARPS) forward_kernel(dt_embed_forward_args a)
{
    int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.y;
    if (row >= a.ids.rows)
        return;
    const T *from = dt_at<T>(a.table, *dt_at<int32_t>(a.ids, row));
    float *to = a.out + row * a.table.cols;
    for (int64_t i = (int64_t)threadIdx.x * N; i < a.table.cols; i += DT_WARP * N) {
        float v[N];
        dt_load<N>(from + i, v);
        if (a.accumulate) {
            float before[N];
            dt_load<N>(to + i, before);
#pragma unroll
            for (int k = 0; k < N; k++)
                v[k] += before[k];
        }
        dt_store<N>(to + i, v);
    }
}

DT_OP_CUDA(embed_forward)
{
    const bool wide = args->table.cols % WIDE == 0 && dt_aligned<WIDE>(args->table, args->out);
    DT_STORAGE_SWITCH(
        args->table.dtype, T,
        DT_WIDE_SWITCH(wide, N, WIDE,
                       DT_LAUNCH((forward_kernel<N, T>), dt_blocks(args->ids.rows, WARPS),
                                 dim3(DT_WARP, WARPS), 0, stream, *args)));
    return DT_LAUNCHED("embed_forward");
}

// ---- the stable sort

// Rows with their tokens, in the order of the passes done; `row` NULL: the original order.
struct order {
    uint32_t *token; // [rows]
    uint32_t *row;   // [rows]
};

// The sort, in the workspace. The sorters are the threads that sort, in whole warps.
struct sort {
    int64_t rows, sorters;
    order now, next;
    uint32_t *count;  // [DIGITS, sorters]: a digit's rows in a thread's run, then where they start
    uint32_t *totals; // [DIGITS]
    uint32_t *start;  // [vocab + 1]: the first position of each token
    float *sums;      // [slots, KINDS, width]: sums of runs
};

DT_DEVICE uint32_t digit_of(uint32_t token, int shift)
{
    return token >> shift & (DIGITS - 1);
}

// Each warp has its own counters; lane l has column l.
__global__ static void __launch_bounds__(DT_WARP)
    count_kernel(sort s, const uint32_t *token, int64_t stride, int shift)
{
    DT_SHARED(uint32_t, count, [DIGITS][DT_WARP]);
    int64_t sorter = dt_thread_index();
    for (int d = 0; d < DIGITS; d++)
        count[d][threadIdx.x] = 0;
    for (int64_t i = sorter * SORT_RUN; i < dt_least((sorter + 1) * SORT_RUN, s.rows); i++)
        count[digit_of(token[i * stride], shift)][threadIdx.x]++;
    for (int d = 0; d < DIGITS; d++)
        s.count[d * s.sorters + sorter] = count[d][threadIdx.x];
}

// One warp per digit.
__global__ static void __launch_bounds__(DT_WARP) total_kernel(sort s)
{
    const uint32_t *count = s.count + blockIdx.x * s.sorters;
    uint32_t sum = 0;
    for (int64_t i = threadIdx.x; i < s.sorters; i += DT_WARP)
        sum += count[i];
    sum = dt_warp_sum(sum);
    if (threadIdx.x == 0)
        s.totals[blockIdx.x] = sum;
}

// The sum of x over the block's threads before this one; *all gets that over all.
DT_DEVICE uint32_t sum_before(uint32_t x, uint32_t *all)
{
    DT_SHARED(uint32_t, warps, [DIGITS / DT_WARP]);
    uint32_t lane = threadIdx.x % DT_WARP, warp = threadIdx.x / DT_WARP, sum = x;
#pragma unroll
    for (unsigned delta = 1; delta < DT_WARP; delta *= 2) {
        uint32_t other = __shfl_up_sync(DT_WHOLE_WARP, sum, delta);
        sum += lane >= delta ? other : 0;
    }
    if (lane == DT_WARP - 1)
        warps[warp] = sum;
    __syncthreads();
    uint32_t before = sum - x;
    *all = 0;
    for (uint32_t w = 0; w < DIGITS / DT_WARP; w++) {
        before += w < warp ? warps[w] : 0;
        *all += warps[w];
    }
    __syncthreads();
    return before;
}

// One block per digit turns its counts into positions.
__global__ static void __launch_bounds__(DIGITS) place_kernel(sort s)
{
    uint32_t *count = s.count + blockIdx.x * s.sorters;
    uint32_t place = dt_block_sum<DIGITS>(threadIdx.x < blockIdx.x ? s.totals[threadIdx.x] : 0u);
    for (int64_t from = 0; from < s.sorters; from += DIGITS) {
        int64_t i = from + threadIdx.x;
        uint32_t all, before = sum_before(i < s.sorters ? count[i] : 0u, &all);
        if (i < s.sorters)
            count[i] = place + before;
        place += all;
    }
}

__global__ static void __launch_bounds__(DT_WARP)
    move_kernel(sort s, const uint32_t *token, int64_t stride, const uint32_t *row, int shift)
{
    DT_SHARED(uint32_t, place, [DIGITS][DT_WARP]);
    int64_t sorter = dt_thread_index();
    for (int d = 0; d < DIGITS; d++)
        place[d][threadIdx.x] = s.count[d * s.sorters + sorter];
    for (int64_t i = sorter * SORT_RUN; i < dt_least((sorter + 1) * SORT_RUN, s.rows); i++) {
        uint32_t at = token[i * stride], to = place[digit_of(at, shift)][threadIdx.x]++;
        s.next.token[to] = at;
        s.next.row[to] = row ? row[i] : (uint32_t)i;
    }
}

// One thread per token, and one past the last: its first position is the number of rows with a
// smaller token.
__global__ static void __launch_bounds__(THREADS) start_kernel(sort s, int64_t vocab)
{
    int64_t v = dt_thread_index(), low = 0, high = s.rows;
    if (v > vocab)
        return;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if ((int64_t)s.now.token[middle] < v)
            low = middle + 1;
        else
            high = middle;
    }
    s.start[v] = (uint32_t)low;
}

// Carves a workspace, or measures one where that is NULL; returns its bytes.
static int64_t sort_in(const dt_embed_backward_args *args, void *workspace, sort *s)
{
    const int64_t rows = args->ids.rows, word = sizeof(uint32_t);
    dt_carver carver = dt_carve_from(workspace);
    s->rows = rows;
    s->sorters = dt_div_up(dt_div_up(rows, SORT_RUN), DT_WARP) * DT_WARP;
    // a slot is DT_EMBED_RUN neighbouring positions
    dt_carve(&carver, s->sums, dt_div_up(rows, DT_EMBED_RUN) * KINDS * args->width * word);
    dt_carve(&carver, s->now.token, rows * word);
    dt_carve(&carver, s->now.row, rows * word);
    dt_carve(&carver, s->next.token, rows * word);
    dt_carve(&carver, s->next.row, rows * word);
    dt_carve(&carver, s->count, DIGITS * s->sorters * word);
    dt_carve(&carver, s->totals, DIGITS * word);
    dt_carve(&carver, s->start, (args->vocab + 1) * word);
    return carver.used;
}

static sort sort_rows(const dt_embed_backward_args *args, dt_stream *stream)
{
    sort s;
    sort_in(args, args->workspace, &s);
    unsigned warps = (unsigned)(s.sorters / DT_WARP);
    const uint32_t *token = (const uint32_t *)args->ids.data, *row = nullptr;
    int64_t stride = args->ids.stride;
    for (int shift = 0; shift == 0 || (args->vocab - 1) >> shift > 0; shift += DIGIT_BITS) {
        DT_LAUNCH((count_kernel), warps, DT_WARP, 0, stream, s, token, stride, shift);
        DT_LAUNCH((total_kernel), DIGITS, DT_WARP, 0, stream, s);
        DT_LAUNCH((place_kernel), DIGITS, DIGITS, 0, stream, s);
        DT_LAUNCH((move_kernel), warps, DT_WARP, 0, stream, s, token, stride, row, shift);
        order done = s.next;
        s.next = s.now;
        s.now = done;
        token = done.token;
        row = done.row;
        stride = 1;
    }
    DT_LAUNCH((start_kernel), dt_blocks(args->vocab + 1, THREADS), THREADS, 0, stream, s,
              args->vocab);
    return s;
}

// ---- the sums: a block per token, and blocks for the runs of frequent tokens

template <int N> DT_DEVICE void add_to(float (&sum)[N], const float (&x)[N])
{
#pragma unroll
    for (int k = 0; k < N; k++)
        sum[k] += x[k];
}

// sum += the rows at `places` … + ROWS in their order, N columns from i on; all are loaded first.
template <int ROWS, int N>
DT_DEVICE void add_turn(const uint32_t *places, const float *dout, int64_t width, int64_t i,
                        float (&sum)[N])
{
    uint32_t row[ROWS];
    float d[ROWS][N];
#pragma unroll
    for (int j = 0; j < ROWS; j++)
        row[j] = places[j];
#pragma unroll
    for (int j = 0; j < ROWS; j++)
        dt_load<N>(dout + (int64_t)row[j] * width + i, d[j]);
#pragma unroll
    for (int j = 0; j < ROWS; j++)
        add_to<N>(sum, d[j]);
}

// sum += the rows at places `from` … `end` in their order.
template <int N>
DT_DEVICE void add_rows(const sort *s, int64_t from, int64_t end, const float *dout, int64_t width,
                        int64_t i, float (&sum)[N])
{
    const uint32_t *p = s->now.row + from;
    int left = (int)(end - from);
    for (; left >= AHEAD; left -= AHEAD, p += AHEAD)
        add_turn<AHEAD, N>(p, dout, width, i, sum);
    if (left & 4)
        add_turn<4, N>(p, dout, width, i, sum);
    if (left & 2)
        add_turn<2, N>(p + (left & 4), dout, width, i, sum);
    if (left & 1)
        add_turn<1, N>(p + (left & 6), dout, width, i, sum);
}

// The sum of the run that begins at `place`, for a token whose rows begin at `first`. At most one
// first run of a token begins in a slot, because its token fills more than a slot, and at most one
// other run, because a whole run precedes it.
DT_DEVICE float *sum_of_run(const sort *s, int64_t first, int64_t place, int64_t width)
{
    return s->sums + (place / DT_EMBED_RUN * KINDS + (place > first)) * width;
}

// sum += the sums of the runs of a token with rows at `first` … `end`, in their order. After the
// last it adds 0, which changes no bit, because a sum that began at 0 is never -0.
template <int N>
DT_DEVICE void add_runs(const sort *s, int64_t first, int64_t end, int64_t width, int64_t i,
                        float (&sum)[N])
{
    for (int64_t place = first; place < end; place += AHEAD * DT_EMBED_RUN) {
        float run[AHEAD][N] = {};
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            int64_t p = place + j * DT_EMBED_RUN;
            if (p < end)
                dt_load<N>(sum_of_run(s, first, p, width) + i, run[j]);
        }
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            add_to<N>(sum, run[j]);
    }
}

// One block per slot, kind and THREADS * N columns adds the run of that kind that begins in the
// slot. If there is one, its token has the first position after the slot (a first run) or the
// slot's first position (another run).
template <int N>
__global__ static void __launch_bounds__(THREADS, HELD)
    run_kernel(sort s, int64_t width, const float *dout)
{
    int64_t slot = (int64_t)blockIdx.x * DT_EMBED_RUN, next = slot + DT_EMBED_RUN;
    int64_t i = ((int64_t)blockIdx.z * THREADS + threadIdx.x) * N;
    bool later = blockIdx.y == 1;
    if (i >= width || (!later && next >= s.rows))
        return;
    uint32_t token = s.now.token[later ? slot : next];
    int64_t first = s.start[token], end = s.start[token + 1], place = first;
    if (later)
        place += dt_div_up(slot - first, DT_EMBED_RUN) * DT_EMBED_RUN;
    if (place < slot || place >= dt_least(next, end) || (place > first) != later)
        return;
    float sum[N] = {};
    add_rows<N>(&s, place, dt_least(place + DT_EMBED_RUN, end), dout, width, i, sum);
    dt_store<N>(sum_of_run(&s, first, place, width) + i, sum);
}

template <int N>
__global__ static void __launch_bounds__(THREADS, HELD)
    add_kernel(sort s, int64_t width, const float *dout, float *dtable, bool accumulate)
{
    int64_t v = blockIdx.x, first = s.start[v], end = s.start[v + 1];
    if (first == end && accumulate)
        return;
    for (int64_t i = (int64_t)threadIdx.x * N; i < width; i += blockDim.x * N) {
        float sum[N] = {}, old[N] = {};
        if (accumulate)
            dt_load<N>(dtable + v * width + i, old);
        if (end - first <= DT_EMBED_RUN)
            add_rows<N>(&s, first, end, dout, width, i, sum);
        else
            add_runs<N>(&s, first, end, width, i, sum);
        add_to<N>(sum, old);
        dt_store<N>(dtable + v * width + i, sum);
    }
}

template <int N> static void add_tokens(const dt_embed_backward_args *a, sort s, dt_stream *stream)
{
    unsigned slots = dt_blocks(a->ids.rows, DT_EMBED_RUN), parts = dt_blocks(a->width, THREADS * N);
    if (a->ids.rows > DT_EMBED_RUN) // otherwise no token has two runs
        DT_LAUNCH((run_kernel<N>), dim3(slots, KINDS, parts), THREADS, 0, stream, s, a->width,
                  a->dout);
    unsigned threads = (unsigned)dt_least(THREADS, dt_div_up(a->width, DT_WARP * N) * DT_WARP);
    DT_LAUNCH((add_kernel<N>), dt_blocks(a->vocab, 1), threads, 0, stream, s, a->width, a->dout,
              a->dtable, a->accumulate);
}

DT_OP_CUDA(embed_backward)
{
    sort s = sort_rows(args, stream);
    const bool wide =
        args->width % COLUMNS == 0 && dt_aligned<COLUMNS>(args->dout, args->dtable, s.sums);
    DT_WIDE_SWITCH(wide, N, COLUMNS, add_tokens<N>(args, s, stream));
    return DT_LAUNCHED("embed_backward");
}

DT_OP_CUDA_WORKSPACE(embed_backward)
{
    sort s;
    return sort_in(args, NULL, &s);
}

// Token embedding on CUDA.
//
// Forward: a warp copies a row of the table, eight neighbours a lane (one by one where rows are not
// aligned). Bytes an element in bf16: 2 in, 4 out, over copy bandwidth.
//
// Backward: rows are sorted by token, then a block adds one token's rows in their order: no
// atomics. The sort is a stable counting sort, eight bits of the token a pass (two passes up to
// 65,536 tokens): a thread owns RUN neighbouring rows and its own counters, so that no two threads
// count in one place; the counters become places by prefix sums, digit by digit and in each by
// thread; the threads then place their rows in order. Bytes of the sums: dout once, the gradient
// once (twice with accumulate), 4 each; the sort moves 16 bytes a row and pass and is far below
// that. A token in a large share of the rows is added by one block alone, eight rows in flight at a
// time.
#include "kernels/device.cuh"

enum {
    WARPS = 4, // rows of a forward block
    WIDE = 8,
    DIGITS = 256,
    DIGIT_BITS = 8,
    RUN = 64, // rows of a sorting thread
    THREADS = 128,
    COLUMNS = 4, // of a thread that adds rows, at a time
};

template <int N, class T>
__global__ static void __launch_bounds__(DT_WARP *WARPS)
    forward_kernel(struct dt_embed_forward_args a)
{
    int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.y;
    if (row >= a.rows)
        return;
    const T *from = (const T *)a.table + a.ids[row] * a.width;
    float *to = a.out + row * a.width;
    for (int64_t i = (int64_t)threadIdx.x * N; i < a.width; i += DT_WARP * N) {
        float v[N];
        dt_load<N>(from + i, v);
        dt_store<N>(to + i, v);
    }
}

template <class T>
static void forward_typed(const struct dt_embed_forward_args *a, dt_stream *stream)
{
    unsigned blocks = dt_blocks(a->rows, WARPS);
    if (a->width % WIDE == 0 && dt_aligned<WIDE>((const T *)a->table) && dt_aligned<WIDE>(a->out))
        DT_LAUNCH((forward_kernel<WIDE, T>), blocks, dim3(DT_WARP, WARPS), 0, stream, *a);
    else
        DT_LAUNCH((forward_kernel<1, T>), blocks, dim3(DT_WARP, WARPS), 0, stream, *a);
}

dt_status embed_forward_cuda(struct dt_device *device, const struct dt_embed_forward_args *args,
                             struct dt_stream *stream)
{
    (void)device;
    DT_STORAGE_SWITCH(args->dtype, T, forward_typed<T>(args, stream));
    return DT_LAUNCHED("embed_forward");
}

int64_t embed_forward_cuda_workspace(struct dt_device *device,
                                     const struct dt_embed_forward_args *args)
{
    (void)device, (void)args;
    return 0;
}

// ---- the stable sort

// Rows with their tokens, in the order of the passes done; `row` NULL: the rows as they came.
struct order {
    uint32_t *token; // [rows]
    uint32_t *row;   // [rows]
};

// In the workspace; sorters: the threads that sort, whole warps.
struct sort {
    int64_t rows, sorters;
    struct order now, next;
    uint32_t *count; // [DIGITS, sorters]: rows of a digit in a thread's run, then their first place
    uint32_t *totals; // [DIGITS]
    uint32_t *start;  // [vocab + 1]: the first place of each token
};

DT_DEVICE uint32_t digit_of(uint32_t token, int shift)
{
    return token >> shift & (DIGITS - 1);
}

// A warp's own counters: lane l has column l.
__global__ static void __launch_bounds__(DT_WARP)
    count_kernel(struct sort s, const uint32_t *token, int shift)
{
    DT_SHARED(uint32_t, count, [DIGITS][DT_WARP]);
    int64_t sorter = dt_thread_index();
    for (int d = 0; d < DIGITS; d++)
        count[d][threadIdx.x] = 0;
    for (int64_t i = sorter * RUN; i < dt_least((sorter + 1) * RUN, s.rows); i++)
        count[digit_of(token[i], shift)][threadIdx.x]++;
    for (int d = 0; d < DIGITS; d++)
        s.count[d * s.sorters + sorter] = count[d][threadIdx.x];
}

__global__ static void __launch_bounds__(DIGITS) total_kernel(struct sort s)
{
    const uint32_t *count = s.count + blockIdx.x * s.sorters;
    uint32_t sum = 0;
    for (int64_t i = threadIdx.x; i < s.sorters; i += DIGITS)
        sum += count[i];
    sum = dt_block_sum<DIGITS>(sum);
    if (threadIdx.x == 0)
        s.totals[blockIdx.x] = sum;
}

// Σ x of the block's threads before this one; *all: of all.
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

// A block a digit: counts become places.
__global__ static void __launch_bounds__(DIGITS) place_kernel(struct sort s)
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
    move_kernel(struct sort s, const uint32_t *token, const uint32_t *row, int shift)
{
    DT_SHARED(uint32_t, place, [DIGITS][DT_WARP]);
    int64_t sorter = dt_thread_index();
    for (int d = 0; d < DIGITS; d++)
        place[d][threadIdx.x] = s.count[d * s.sorters + sorter];
    for (int64_t i = sorter * RUN; i < dt_least((sorter + 1) * RUN, s.rows); i++) {
        uint32_t to = place[digit_of(token[i], shift)][threadIdx.x]++;
        s.next.token[to] = token[i];
        s.next.row[to] = row ? row[i] : (uint32_t)i;
    }
}

// A thread a place, and one past the last: the tokens up to its own that no earlier place has start
// here.
__global__ static void __launch_bounds__(THREADS) start_kernel(struct sort s, int64_t vocab)
{
    int64_t place = dt_thread_index();
    if (place > s.rows)
        return;
    int64_t first = place > 0 ? (int64_t)s.now.token[place - 1] + 1 : 0;
    int64_t last = place < s.rows ? (int64_t)s.now.token[place] : vocab;
    for (int64_t v = first; v <= last; v++)
        s.start[v] = (uint32_t)place;
}

static int64_t sorters_of(int64_t rows)
{
    return dt_div_up(dt_div_up(rows, RUN), DT_WARP) * DT_WARP;
}

static struct sort sort_in(const struct dt_embed_backward_args *args)
{
    struct sort s;
    uint32_t *words = (uint32_t *)args->workspace;
    s.rows = args->rows;
    s.sorters = sorters_of(args->rows);
    s.now.token = words;
    s.now.row = s.now.token + s.rows;
    s.next.token = s.now.row + s.rows;
    s.next.row = s.next.token + s.rows;
    s.count = s.next.row + s.rows;
    s.totals = s.count + DIGITS * s.sorters;
    s.start = s.totals + DIGITS;
    return s;
}

static struct sort sort_rows(const struct dt_embed_backward_args *args, dt_stream *stream)
{
    struct sort s = sort_in(args);
    unsigned warps = (unsigned)(s.sorters / DT_WARP);
    const uint32_t *token = (const uint32_t *)args->ids, *row = nullptr;
    for (int shift = 0; shift == 0 || (args->vocab - 1) >> shift > 0; shift += DIGIT_BITS) {
        DT_LAUNCH((count_kernel), warps, DT_WARP, 0, stream, s, token, shift);
        DT_LAUNCH((total_kernel), DIGITS, DIGITS, 0, stream, s);
        DT_LAUNCH((place_kernel), DIGITS, DIGITS, 0, stream, s);
        DT_LAUNCH((move_kernel), warps, DT_WARP, 0, stream, s, token, row, shift);
        struct order done = s.next;
        s.next = s.now;
        s.now = done;
        token = done.token;
        row = done.row;
    }
    DT_LAUNCH((start_kernel), dt_blocks(s.rows + 1, THREADS), THREADS, 0, stream, s, args->vocab);
    return s;
}

// ---- the sums: a block a token

template <int N>
__global__ static void __launch_bounds__(THREADS)
    add_kernel(struct sort s, int64_t width, const float *dout, float *dtable, bool accumulate)
{
    int64_t v = blockIdx.x, from = s.start[v], end = s.start[v + 1];
    if (from == end && accumulate)
        return;
    for (int64_t i = (int64_t)threadIdx.x * N; i < width; i += THREADS * N) {
        float sum[N] = {};
        if (accumulate)
            dt_load<N>(dtable + v * width + i, sum);
#pragma unroll 8
        for (int64_t p = from; p < end; p++) {
            float d[N];
            dt_load<N>(dout + (int64_t)s.now.row[p] * width + i, d);
#pragma unroll
            for (int k = 0; k < N; k++)
                sum[k] += d[k];
        }
        dt_store<N>(dtable + v * width + i, sum);
    }
}

dt_status embed_backward_cuda(struct dt_device *device, const struct dt_embed_backward_args *args,
                              struct dt_stream *stream)
{
    (void)device;
    struct sort s = sort_rows(args, stream);
    unsigned blocks = dt_blocks(args->vocab, 1);
    if (args->width % COLUMNS == 0 && dt_aligned<COLUMNS>(args->dout) &&
        dt_aligned<COLUMNS>(args->dtable))
        DT_LAUNCH((add_kernel<COLUMNS>), blocks, THREADS, 0, stream, s, args->width, args->dout,
                  args->dtable, args->accumulate);
    else
        DT_LAUNCH((add_kernel<1>), blocks, THREADS, 0, stream, s, args->width, args->dout,
                  args->dtable, args->accumulate);
    return DT_LAUNCHED("embed_backward");
}

int64_t embed_backward_cuda_workspace(struct dt_device *device,
                                      const struct dt_embed_backward_args *args)
{
    (void)device;
    int64_t words = 4 * args->rows + DIGITS * sorters_of(args->rows) + DIGITS + args->vocab + 1;
    return words * (int64_t)sizeof(uint32_t);
}

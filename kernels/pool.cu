// Pooling on CUDA. Forward and backward: a thread walks the rows of one column of a window, so a
// warp reads 32 neighbours of each row. Bytes: h once, in backward also dh once (twice if it is
// added to). pool_targets: a warp handles a window and examines 32 rows at a time, from the last
// on.
#include "kernels/device.cuh"

enum { THREADS = 128 };

DT_DEVICE bool counts(const uint8_t *mask, int64_t row)
{
    return !mask || mask[row];
}

// Adds the c-th row that counts to v; returns whether it set v.
DT_DEVICE bool add_row(int pool, float x, float c, float *v)
{
    if (pool == DT_POOL_MEAN) {
        *v += (x - *v) * (1.0f / c);
        return true;
    }
    const bool sets = pool == DT_POOL_LAST || c == 1.0f || x > *v || x != x;
    *v = sets ? x : *v;
    return sets;
}

template <class T>
__global__ static void __launch_bounds__(THREADS) forward_kernel(dt_pool_forward_args a)
{
    const int64_t window = blockIdx.x, i = (int64_t)blockIdx.y * THREADS + threadIdx.x,
                  place = window * a.h.cols + i;
    if (i >= a.h.cols)
        return;
    float v = a.before ? a.before[place] : 0.0f, c = a.before ? a.before_count[window] : 0.0f;
    for (int64_t row = window * a.length; row < (window + 1) * a.length; row++)
        if (counts(a.mask, row))
            add_row((int)a.pool, dt_get<T>(a.h, row, i), c += 1.0f, &v);
    dt_put<T>(a.out, window, i, v);
    if (a.after)
        a.after[place] = v;
    if (a.after && i == 0)
        a.after_count[window] = c;
}

template <class T>
__global__ static void __launch_bounds__(THREADS) backward_kernel(dt_pool_backward_args a)
{
    const int64_t window = blockIdx.x, i = (int64_t)blockIdx.y * THREADS + threadIdx.x,
                  begin = window * a.length, end = begin + a.length, place = window * a.h.cols + i;
    if (i >= a.h.cols)
        return;
    const float before = a.before ? a.before_count[window] : 0.0f;
    float v = a.before ? a.before[place] : 0.0f, c = before;
    int64_t at = -1; // the row that set v last
    for (int64_t row = begin; row < end; row++) {
        if (!counts(a.mask, row))
            continue;
        c += 1.0f;
        if (a.pool != DT_POOL_MAX || add_row(DT_POOL_MAX, dt_get<T>(a.h, row, i), c, &v))
            at = row;
    }
    float g = a.dout.data ? dt_get<T>(a.dout, window, i) : 0.0f;
    if (a.dafter)
        g += a.dafter[place];
    if (a.dbefore)
        a.dbefore[place] = at < 0 ? g : a.pool == DT_POOL_MEAN ? g * (before / c) : 0.0f;
    for (int64_t row = begin; row < end; row++) {
        const float dx = a.pool == DT_POOL_MEAN ? (counts(a.mask, row) ? g * (1.0f / c) : 0.0f)
                         : row == at            ? g
                                                : 0.0f;
        dt_put<T>(a.dh, row, i, a.first ? dx : dt_get<T>(a.dh, row, i) + dx);
    }
}

DT_OP_CUDA(pool_forward)
{
    const dim3 grid(dt_blocks(args->out.rows, 1), (unsigned)dt_div_up(args->h.cols, THREADS));
    DT_STORAGE_SWITCH(args->h.dtype, T,
                      DT_LAUNCH((forward_kernel<T>), grid, THREADS, 0, stream, *args));
    return DT_LAUNCHED("pool_forward");
}

DT_OP_CUDA(pool_backward)
{
    const dim3 grid(dt_blocks(args->h.rows / args->length, 1),
                    (unsigned)dt_div_up(args->h.cols, THREADS));
    DT_STORAGE_SWITCH(args->h.dtype, T,
                      DT_LAUNCH((backward_kernel<T>), grid, THREADS, 0, stream, *args));
    return DT_LAUNCHED("pool_backward");
}

// Finds the last row of a window that counts and has one of these targets, or -1, for all lanes.
DT_DEVICE int64_t find_target(const dt_pool_targets_args &a, int64_t window,
                              const dt_target_columns &output)
{
    const int64_t begin = window * a.length;
    for (int64_t end = begin + a.length; end > begin; end -= DT_WARP) {
        const int64_t row = end - 1 - (int64_t)threadIdx.x;
        bool has = false;
        for (int i = 0; row >= begin && counts(a.mask, row) && i < output.n && !has; i++) {
            const float t = *dt_at<float>(a.targets, row, output.first + i);
            has = t == t;
        }
        const unsigned found = __ballot_sync(DT_WHOLE_WARP, has);
        for (int lane = 0; lane < DT_WARP && found; lane++)
            if (found >> lane & 1)
                return end - 1 - lane;
    }
    return -1;
}

// One warp per window, one output after another.
__global__ static void __launch_bounds__(DT_WARP) targets_kernel(const dt_pool_targets_args a)
{
    const int64_t window = blockIdx.x;
    float *to = dt_at<float>(a.targets_out, window), *weights = nullptr;
    int64_t last = -1;
    if (a.weights.data)
        weights = dt_at<float>(a.weights_out, window);
    for (int64_t i = threadIdx.x; i < a.targets.cols; i += DT_WARP)
        to[i] = NAN;
    __syncwarp();
    for (int k = 0; k < (int)a.n; k++) {
        const dt_target_columns &output = a.outputs[k];
        const int64_t row = find_target(a, window, output);
        last = row > last ? row : last;
        for (int i = (int)threadIdx.x; row >= 0 && i < output.n; i += DT_WARP)
            to[output.first + i] = *dt_at<float>(a.targets, row, output.first + i);
        if (weights && threadIdx.x == 0)
            weights[1 + k] = row < 0 ? 0.0f : *dt_at<float>(a.weights, row, 1 + k);
    }
    if (weights && threadIdx.x == 0)
        weights[0] = last < 0 ? 0.0f : *dt_at<float>(a.weights, last);
}

DT_OP_CUDA(pool_targets)
{
    DT_LAUNCH((targets_kernel), dt_blocks(args->targets_out.rows, 1), DT_WARP, 0, stream, *args);
    return DT_LAUNCHED("pool_targets");
}

// Reversal on CUDA. reverse_rows: a thread handles WIDE neighbours of a row, in bf16 with 16-byte
// accesses, in fp32 with two of them; one element if a view is unaligned. Floor: x and y once, y
// twice if it is added to, over copy bandwidth. reverse_resets: a warp a sequence.
#include "kernels/device.cuh"

enum { THREADS = 256, WIDE = 8 };

// A warp looks for the last row that is no padding, 32 rows at a time from the end.
__global__ static void __launch_bounds__(DT_WARP) resets_kernel(dt_reverse_resets_args a)
{
    const int64_t W = a.window, L = a.length, at = blockIdx.x * W;
    const int lane = threadIdx.x;
    int64_t counted = W;
    for (bool found = !a.mask; !found && counted > 0;) {
        const int64_t row = counted - 1 - lane;
        const unsigned counting = __ballot_sync(DT_WHOLE_WARP, row >= 0 && a.mask[at + row]);
        found = counting != 0;
        counted = found               ? counted + 1 - __ffs((int)counting)
                  : counted > DT_WARP ? counted - DT_WARP
                                      : 0;
    }
    for (int64_t t = lane; t < L; t += DT_WARP) {
        const int64_t next = a.first + L - t; // the row after the one that comes here
        a.y[blockIdx.x * L + t] = next == counted || (next < W && a.reset && a.reset[at + next]);
    }
}

template <int N, class T>
__global__ static void __launch_bounds__(THREADS)
    rows_kernel(dt_reverse_rows_args a, int64_t across)
{
    const int64_t index = dt_thread_index(), row = index / across, col = index % across * N;
    if (row >= a.x.rows)
        return;
    float x[N], y[N];
    dt_load<N>(dt_at<T>(a.x, row + a.length - 1 - 2 * (row % a.length), col), x);
    if (a.accumulate) {
        dt_load<N>(dt_at<T>(a.y, row, col), y);
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] += y[i];
    }
    dt_store<N>(dt_at<T>(a.y, row, col), x);
}

DT_OP_CUDA(reverse_resets)
{
    DT_LAUNCH((resets_kernel), dt_blocks(args->batch, 1), DT_WARP, 0, stream, *args);
    return DT_LAUNCHED("reverse_resets");
}

DT_OP_CUDA(reverse_rows)
{
    const int64_t rows = args->x.rows, cols = args->x.cols;
    const bool wide = cols % WIDE == 0 && dt_aligned<WIDE>(args->x, args->y);
    DT_STORAGE_SWITCH(
        args->x.dtype, T,
        DT_WIDE_SWITCH(wide, N, WIDE,
                       DT_LAUNCH((rows_kernel<N, T>), dt_blocks(rows * (cols / N), THREADS),
                                 THREADS, 0, stream, *args, cols / N)));
    return DT_LAUNCHED("reverse_rows");
}

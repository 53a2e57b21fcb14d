// Reversal on CUDA. reverse_map: a warp walks a sequence twice, 32 positions at a time: from its
// start, and from its end, to find where documents end. reverse_rows: a thread handles WIDE
// neighbours of a row, in bf16 with 16-byte accesses, in fp32 with two of them; one element if a
// view is unaligned. Floor: x and y once, y twice if it is added to, over copy bandwidth.
#include "kernels/device.cuh"

enum { THREADS = 256, WIDE = 8 };

// The lanes whose positions are marked and before `end`.
DT_DEVICE unsigned marked(const uint8_t *marks, int64_t at, int64_t t, int64_t end)
{
    return __ballot_sync(DT_WHOLE_WARP, marks && t < end && marks[at + t]);
}

// From the start each position learns where its document starts, and the warp where padding begins;
// from the end, where documents end.
__global__ static void __launch_bounds__(DT_WARP) map_kernel(dt_reverse_map_args a)
{
    const int64_t L = a.length, at = blockIdx.x * L;
    const int lane = threadIdx.x;
    int64_t start = 0, end = a.mask ? 0 : L;
    for (int64_t t0 = 0; t0 < L; t0 += DT_WARP) {
        const int64_t t = t0 + lane;
        const unsigned starts = marked(a.reset, at, t, L), counted = marked(a.mask, at, t, L),
                       mine = starts << (DT_WARP - 1 - lane); // starts up to this lane
        if (t < L)
            a.map[at + t] = (int32_t)(mine ? t - __clz((int)mine) : start);
        start = starts ? t0 + DT_WARP - 1 - __clz((int)starts) : start;
        end = counted ? t0 + DT_WARP - __clz((int)counted) : end;
    }
    const int64_t counting = end;
    for (int64_t t0 = (L - 1) / DT_WARP * DT_WARP; t0 >= 0; t0 -= DT_WARP) {
        const int64_t t = t0 + lane;
        const unsigned starts = marked(a.reset, at, t, counting),
                       later = lane < DT_WARP - 1 ? starts >> (lane + 1) : 0;
        if (t < L)
            a.map[at + t] =
                (int32_t)(t >= counting
                              ? t
                              : a.map[at + t] + (later ? t + __ffs((int)later) : end) - 1 - t);
        end = starts ? t0 + __ffs((int)starts) - 1 : end;
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
    dt_load<N>(dt_at<T>(a.x, row - row % a.length + a.map[row], col), x);
    if (a.accumulate) {
        dt_load<N>(dt_at<T>(a.y, row, col), y);
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] += y[i];
    }
    dt_store<N>(dt_at<T>(a.y, row, col), x);
}

DT_OP_CUDA(reverse_map)
{
    DT_LAUNCH((map_kernel), dt_blocks(args->batch, 1), DT_WARP, 0, stream, *args);
    return DT_LAUNCHED("reverse_map");
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

// The second launch of a parameter gradient sums partials over rows (segments, tiles) in a fixed
// order and in double. Partials are [rows, planes, D]; planes 0 … P - 1 go to a matrix [D, P], the
// next one or two to vectors [D]. A block sums 32 neighbours, each in 8 slices of the rows.
#pragma once

#include "kernels/device.cuh"

// Rows are summed in at most `most` parts: the rows per part, and the number of parts.
static inline int64_t rows_of_part(int64_t rows, int64_t most)
{
    return dt_div_up(rows, most);
}

static inline int64_t parts_of(int64_t rows, int64_t most)
{
    return dt_div_up(rows, rows_of_part(rows, most));
}

enum { PARTIAL_SLICES = 8, PARTIAL_THREADS = PARTIAL_SLICES * DT_WARP };

struct partial_sums {
    const float *partials;
    int64_t rows, channels, width; // D, P
    float *matrix;                 // [D, P]
    float *first, *second;         // [D]; the second may be NULL
    bool accumulate;
};

static inline __host__ __device__ int64_t partial_planes(const partial_sums &sums)
{
    return sums.width + (sums.second ? 2 : 1);
}

static __global__ void __launch_bounds__(PARTIAL_THREADS) partials_add(const partial_sums sums)
{
    DT_SHARED(double, slices, [PARTIAL_SLICES][DT_WARP]);
    const int lane = (int)threadIdx.x % DT_WARP, slice = (int)threadIdx.x / DT_WARP;
    const int64_t at = (int64_t)blockIdx.x * DT_WARP + lane;
    const int64_t all = partial_planes(sums) * sums.channels;
    const int64_t each = dt_div_up(sums.rows, PARTIAL_SLICES);
    double sum = 0.0;
    for (int64_t row = slice * each; row < dt_least((slice + 1) * each, sums.rows); row++)
        sum += at < all ? (double)sums.partials[row * all + at] : 0.0;
    slices[slice][lane] = sum;
    __syncthreads();
    if (slice > 0 || at >= all)
        return;
    for (int i = 1; i < PARTIAL_SLICES; i++)
        sum += slices[i][lane];
    const int64_t plane = at / sums.channels, d = at % sums.channels;
    float *to = plane < sums.width    ? sums.matrix + d * sums.width + plane
                : plane == sums.width ? sums.first + d
                                      : sums.second + d;
    *to = (float)(sums.accumulate ? (double)*to + sum : sum);
}

static inline void partials_launch(const partial_sums &sums, dt_stream *stream)
{
    DT_LAUNCH((partials_add), dt_blocks(partial_planes(sums) * sums.channels, DT_WARP),
              PARTIAL_THREADS, 0, stream, sums);
}

// *out = the sum of `n` numbers, by one block of THREADS in a fixed order.
template <int THREADS, class T>
static __global__ void __launch_bounds__(THREADS) sum_partial_kernel(int64_t n, const T *x, T *out)
{
    T sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += THREADS)
        sum += x[i];
    sum = dt_block_sum<THREADS>(sum);
    if (threadIdx.x == 0)
        *out = sum;
}

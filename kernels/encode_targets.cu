// Targets as inputs on CUDA: a warp per row, whose lanes share the columns of one output after
// another. Bytes: 4 in per target, 2 or 4 out per column.
#include "kernels/device.cuh"

enum { WARPS = 4 };

DT_DEVICE float encoded(const dt_encode_targets_args &a, const dt_output_slice &o,
                        const float *targets, int i)
{
    const bool one_hot = o.kind == DT_OUTPUT_CATEGORICAL;
    const int column = o.target + (one_hot ? 0 : i);
    const float t = targets[column];
    if (isnan(t))
        return 0.0f;
    if (one_hot)
        return i == (int)t ? 1.0f : 0.0f;
    return a.mean && o.kind == DT_OUTPUT_REGRESSION ? (t - a.mean[column]) / a.deviation[column]
                                                    : t;
}

template <class T>
__global__ static void __launch_bounds__(DT_WARP *WARPS)
    encode_kernel(const dt_encode_targets_args a)
{
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.y;
    if (row >= a.out.rows)
        return;
    T *out = dt_at<T>(a.out, row);
    for (int k = 0; k < (int)a.n; k++) {
        const dt_output_slice &o = a.outputs[k];
        const float *targets = dt_at<float>(a.targets, row);
        for (int i = (int)threadIdx.x; i < o.width; i += DT_WARP)
            out[o.first + i] = dt_from_f32<T>(encoded(a, o, targets, i));
    }
}

DT_OP_CUDA(encode_targets)
{
    DT_STORAGE_SWITCH(args->out.dtype, T,
                      DT_LAUNCH((encode_kernel<T>), dt_blocks(args->out.rows, WARPS),
                                dim3(DT_WARP, WARPS), 0, stream, *args));
    return DT_LAUNCHED("encode_targets");
}

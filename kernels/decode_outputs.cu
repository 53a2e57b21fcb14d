// Outputs in the data's units on CUDA: a warp per row, whose lanes share the columns of one output
// after another. Bytes per column: 4 in, 4 out.
#include "kernels/device.cuh"

enum { WARPS = 4 };

// Number i of an output.
DT_DEVICE float decoded(const dt_decode_outputs_args &a, const dt_output_slice &o, float z, int i)
{
    const int K = o.parts, n = o.columns, logits = o.kind == DT_OUTPUT_GMM ? K : 0;
    if (o.kind == DT_OUTPUT_CATEGORICAL || o.kind == DT_OUTPUT_BERNOULLI || i < logits)
        return z;
    const int column = o.target + (i - logits) % n;
    const float shift = a.mean ? a.mean[column] : 0.0f, unit = a.mean ? a.deviation[column] : 1.0f;
    if (logits > 0 && i >= K + K * n)
        return (dt_softplus(z) + DT_GMM_SCALE_MIN) * unit;
    if (o.low < o.high) {
        const float part = (o.high - o.low) * dt_tanh_gap(z);
        z = z < 0.0f ? o.low + part : o.high - part;
    }
    return z * unit + shift;
}

__global__ static void __launch_bounds__(DT_WARP *WARPS, 16)
    decode_kernel(const dt_decode_outputs_args a)
{
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.y;
    if (row >= a.z.rows)
        return;
    for (int k = 0; k < (int)a.n; k++) {
        const dt_output_slice &o = a.outputs[k];
        float *z = dt_at<float>(a.z, row, o.first);
        for (int i = (int)threadIdx.x; i < o.width; i += DT_WARP)
            z[i] = decoded(a, o, z[i], i);
    }
}

DT_OP_CUDA(decode_outputs)
{
    DT_LAUNCH((decode_kernel), dt_blocks(args->z.rows, WARPS), dim3(DT_WARP, WARPS), 0, stream,
              *args);
    return DT_LAUNCHED("decode_outputs");
}

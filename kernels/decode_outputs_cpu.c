// Outputs in the data's units on the CPU: rows shared among the threads.
#include "kernels/cpu.h"
#include "kernels/math_cpu.h"

enum { ROWS = 64 };

// Number i of an output, whose columns of means and deviations are those of its targets.
static float decoded(const struct dt_output_slice *o, const float *mean, const float *deviation,
                     float z, int64_t i)
{
    int64_t K = o->parts, n = o->columns, logits = o->kind == DT_OUTPUT_GMM ? K : 0;
    if (o->kind == DT_OUTPUT_CATEGORICAL || o->kind == DT_OUTPUT_BERNOULLI || i < logits)
        return z;
    int64_t column = (i - logits) % n;
    float shift = mean ? mean[column] : 0.0f, unit = mean ? deviation[column] : 1.0f;
    if (logits > 0 && i >= K + K * n)
        return (dt_softplusf(z) + DT_GMM_SCALE_MIN) * unit;
    if (o->low < o->high) {
        float part = (o->high - o->low) * dt_tanh_gapf(z);
        z = z < 0.0f ? o->low + part : o->high - part;
    }
    return z * unit + shift;
}

DT_OP_CPU(decode_outputs)
{
    int64_t rows = args->z.rows;
#pragma omp parallel for schedule(static, ROWS) num_threads(device->threads) if (rows > ROWS)
    for (int64_t row = 0; row < rows; row++)
        for (int64_t k = 0; k < args->n; k++) {
            const struct dt_output_slice *o = &args->outputs[k];
            const float *mean = args->mean ? args->mean + o->target : NULL,
                        *deviation = args->mean ? args->deviation + o->target : NULL;
            float *z = dt_view_at(&args->z, row, o->first);
            for (int64_t i = 0; i < o->width; i++)
                z[i] = decoded(o, mean, deviation, z[i], i);
        }
    return DT_OK;
}

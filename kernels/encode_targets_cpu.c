// Targets as inputs on the CPU: rows shared among the threads.
#include "kernels/cpu.h"
#include "kernels/storage_cpu.h"

#include <math.h>

enum { ROWS = 64 };

static float encoded(const struct dt_encode_targets_args *a, const struct dt_output_slice *o,
                     const float *targets, int64_t i)
{
    bool class = o->kind == DT_OUTPUT_CATEGORICAL;
    int64_t column = o->target + (class ? 0 : i);
    float t = targets[column];
    if (isnan(t))
        return 0.0f;
    if (class)
        return i == (int64_t)t;
    return a->mean && o->kind == DT_OUTPUT_REGRESSION ? (t - a->mean[column]) / a->deviation[column]
                                                      : t;
}

DT_OP_CPU(encode_targets)
{
    int64_t rows = args->out.rows;
#pragma omp parallel for schedule(static, ROWS) num_threads(device->threads) if (rows > ROWS)
    for (int64_t row = 0; row < rows; row++)
        for (int64_t k = 0; k < args->n; k++) {
            const struct dt_output_slice *o = &args->outputs[k];
            const float *targets = dt_view_at(&args->targets, row, 0);
            void *out = dt_view_at(&args->out, row, o->first);
            for (int64_t i = 0; i < o->width; i++)
                dt_store(out, i, encoded(args, o, targets, i), args->out.dtype == DT_BF16);
        }
    return DT_OK;
}

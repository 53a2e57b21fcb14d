// Targets as inputs on the CPU: rows shared among the threads.
#include "kernels/cpu.h"
#include "kernels/storage_cpu.h"

enum { ROWS = 64 };

DT_OP_CPU(encode_targets)
{
    int64_t rows = args->out.rows;
#pragma omp parallel for schedule(static, ROWS) num_threads(device->threads) if (rows > ROWS)
    for (int64_t row = 0; row < rows; row++)
        for (int64_t k = 0; k < args->n; k++) {
            const struct dt_output_slice *o = &args->outputs[k];
            const float *t = dt_view_at(&args->targets, row, o->target);
            void *out = dt_view_at(&args->out, row, o->first);
            for (int64_t i = 0; i < o->width; i++) {
                bool class = o->kind == DT_OUTPUT_CATEGORICAL;
                dt_store(out, i, class ? (float)(i == (int64_t)t[0]) : t[i],
                         args->out.dtype == DT_BF16);
            }
        }
    return DT_OK;
}

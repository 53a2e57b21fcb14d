// Targets as inputs on the CPU: rows shared among the threads.
#include "kernels/cpu.h"
#include "kernels/storage_cpu.h"

enum { ROWS = 64 };

static void encode_row(const struct dt_encode_targets_args *a, int64_t row)
{
    bool bf16 = a->out.dtype == DT_BF16;
    void *out = dt_view_at(&a->out, row, 0);
    for (int64_t k = 0; k < a->n; k++) {
        const struct dt_output_slice *o = &a->outputs[k];
        const float *t = dt_view_at(&a->targets, row, o->target);
        for (int64_t i = 0; i < o->width; i++) {
            float value = o->kind == DT_OUTPUT_CATEGORICAL ? (float)(i == (int64_t)t[0]) : t[i];
            dt_store(out, o->first + i, value, bf16);
        }
    }
}

DT_OP_CPU(encode_targets)
{
    int64_t rows = args->out.rows;
#pragma omp parallel for schedule(static, ROWS) num_threads(device->threads) if (rows > ROWS)
    for (int64_t row = 0; row < rows; row++)
        encode_row(args, row);
    return DT_OK;
}

// Reversal on the CPU: rows shared among the threads; one thread per sequence's resets.
#include "kernels/cpu.h"
#include "kernels/documents_cpu.h"
#include "kernels/storage_cpu.h"

#include <string.h>

enum { ROWS = 64 };

DT_CLONES static void add_row(const void *x, void *y, int64_t n, dt_dtype type)
{
    DT_STORAGE_SWITCH(type, bf16,
                      _Pragma("omp simd") for (int64_t i = 0; i < n; i++)
                          dt_store(y, i, dt_load(y, i, bf16) + dt_load(x, i, bf16), bf16););
}

DT_OP_CPU(reverse_rows)
{
    const struct dt_view *x = &args->x, *y = &args->y;
    int64_t L = args->length;
#pragma omp parallel for schedule(static, ROWS) num_threads(device->threads) if (x->rows > ROWS)
    for (int64_t row = 0; row < x->rows; row++) {
        const void *from = dt_view_at(x, row + L - 1 - 2 * (row % L), 0);
        void *to = dt_view_at(y, row, 0);
        if (args->accumulate)
            add_row(from, to, x->cols, x->dtype);
        else
            memcpy(to, from, (size_t)(x->cols * dt_dtype_size(x->dtype)));
    }
    return DT_OK;
}

DT_OP_CPU(reverse_resets)
{
    const int64_t W = args->window, L = args->length;
#pragma omp parallel for schedule(static) num_threads(device->threads) if (args->batch > 1)
    for (int64_t b = 0; b < args->batch; b++) {
        const uint8_t *reset = args->reset ? args->reset + b * W : NULL;
        const int64_t counted = dt_counted_rows(args->mask ? args->mask + b * W : NULL, W);
        for (int64_t t = 0; t < L; t++) {
            const int64_t next = args->first + L - t; // the row after the one that comes here
            args->y[b * L + t] = next == counted || (next < W && reset && reset[next]);
        }
    }
    return DT_OK;
}

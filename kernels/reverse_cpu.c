// Reversal on the CPU: one thread per sequence's map; rows shared among the threads.
#include "kernels/cpu.h"
#include "kernels/documents_cpu.h"
#include "kernels/storage_cpu.h"

#include <string.h>

enum { ROWS = 64 };

static void fill_map(const struct dt_reverse_map_args *args, int64_t b)
{
    int64_t L = args->length, counted = dt_counted_rows(args->mask ? args->mask + b * L : NULL, L);
    const uint8_t *reset = args->reset ? args->reset + b * L : NULL;
    int32_t *map = args->map + b * L;
    for (int64_t end = L, first; end > 0; end = first) {
        first = dt_document_first(reset, counted, end);
        for (int64_t t = first; t < end; t++)
            map[t] = (int32_t)(first + end - 1 - t);
    }
}

DT_OP_CPU(reverse_map)
{
#pragma omp parallel for schedule(static) num_threads(device->threads) if (args->batch > 1)
    for (int64_t b = 0; b < args->batch; b++)
        fill_map(args, b);
    return DT_OK;
}

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
        const void *from = dt_view_at(x, row - row % L + args->map[row], 0);
        void *to = dt_view_at(y, row, 0);
        if (args->accumulate)
            add_row(from, to, x->cols, x->dtype);
        else
            memcpy(to, from, (size_t)(x->cols * dt_dtype_size(x->dtype)));
    }
    return DT_OK;
}

// Casts on the CPU: blocks of elements shared among the threads.
#include "kernels/cpu.h"
#include "kernels/storage_cpu.h"

#include <string.h>

enum { BLOCK = 32768 };

DT_CLONES static void cast_block(const struct dt_cast_args *args, int64_t from, int64_t n)
{
    if (args->x_type == args->y_type)
        memcpy((char *)args->y + from * dt_dtype_size(args->y_type),
               (const char *)args->x + from * dt_dtype_size(args->x_type),
               (size_t)(n * dt_dtype_size(args->x_type)));
    else if (args->y_type == DT_BF16)
        dt_store_row(DT_BF16, (const float *)args->x + from, n, (dt_bf16 *)args->y + from);
    else
        dt_load_row(DT_BF16, (const dt_bf16 *)args->x + from, n, n, (float *)args->y + from);
}

DT_OP_CPU(cast)
{
    int64_t blocks = dt_ceil_div(args->n, BLOCK);
#pragma omp parallel for num_threads(device->threads) if (blocks > 1)
    for (int64_t b = 0; b < blocks; b++)
        cast_block(args, b * BLOCK, dt_min_i64(BLOCK, args->n - b * BLOCK));
    return DT_OK;
}

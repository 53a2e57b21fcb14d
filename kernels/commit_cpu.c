// A copy on the CPU, in blocks shared among the threads, unless the step was skipped.
#include "kernels/cpu.h"

#include "base/round.h"

#include <string.h>

enum { BLOCK = 1 << 17 };

DT_OP_CPU(commit)
{
    int64_t blocks = args->control->skip ? 0 : dt_ceil_div(args->bytes, BLOCK);
#pragma omp parallel for num_threads(device->threads) if (blocks > 1)
    for (int64_t b = 0; b < blocks; b++)
        memcpy((char *)args->to + b * BLOCK, (const char *)args->from + b * BLOCK,
               (size_t)dt_min_i64(BLOCK, args->bytes - b * BLOCK));
    return DT_OK;
}

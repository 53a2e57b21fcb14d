// Arithmetic at full rate on the CPU: a row of values at a time stays in vector registers. The
// exponentials are those of the other ops: of math_cpu.h, and of the recurrence.
#include "kernels/cpu.h"
#include "kernels/scan_cpu.h"

enum { ROW = 128 };

DT_CLONES static void spin_row(const struct dt_spin_args *args, float *restrict x)
{
    const int64_t rounds = args->rounds;
    const float a = args->a, b = args->b;
    if (args->kind == DT_SPIN_EXP)
        for (int64_t k = 0; k < rounds; k++)
#pragma omp simd
            for (int i = 0; i < ROW; i++)
                x[i] = dt_expf(-x[i]);
    else if (args->kind == DT_SPIN_EXP2)
        for (int64_t k = 0; k < rounds; k++)
#pragma omp simd
            for (int i = 0; i < ROW; i++)
                x[i] = scan_exp2(-x[i]);
    else
        for (int64_t k = 0; k < rounds; k++)
#pragma omp simd
            for (int i = 0; i < ROW; i++)
                x[i] = x[i] * a + b;
}

DT_OP_CPU(spin)
{
    int64_t rows = dt_ceil_div(args->n, ROW);
#pragma omp parallel for num_threads(device->threads)
    for (int64_t row = 0; row < rows; row++) {
        _Alignas(64) float x[ROW];
        int64_t first = row * ROW, n = dt_min_i64(args->n - first, ROW);
        for (int i = 0; i < ROW; i++)
            x[i] = 0.5f + (float)((first + i) % DT_SPIN_STARTS) / (float)(2 * DT_SPIN_STARTS);
        spin_row(args, x);
        for (int64_t i = 0; i < n; i++)
            args->y[first + i] = x[i];
    }
    return DT_OK;
}

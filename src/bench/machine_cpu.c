// Measures the limits of the CPU as the best of several tries: moving arrays larger than the
// caches, and exponentials in the L1 cache.
#include "bench/ops.h"

#include "base/clock.h"
#include "base/round.h"
#include "kernels/math_cpu.h"
#include "kernels/scan_cpu.h"

#include <string.h>
#include <unistd.h>

enum {
    LEAST = 3,
    LINE = 64,
    WINDOWS = 8,           // windows per array
    ARRAY_MIN = 128 << 20, // bytes
    ARRAY_MAX = 512 << 20,
    ROW = 1024,     // exponentials per row: input and output stay in the L1 cache
    ROWS = 1 << 10, // rows per try and thread
};

static void copy_part(const struct dt_bench_machine *m, int64_t first, int64_t bytes)
{
    memcpy(m->to + first, m->from + first, (size_t)bytes);
}

static void update_part(const struct dt_bench_machine *m, int64_t first, int64_t bytes)
{
    uint64_t *words = (uint64_t *)(m->to + first);
#pragma omp simd
    for (int64_t i = 0; i < bytes / (int64_t)sizeof *words; i++)
        words[i] += 1;
}

// The rate at which `part`, on each thread, walks the arrays, in short tries: a try usually ends
// before other programs interrupt it, and finds no data in the caches.
static double move_rate(const struct dt_bench_machine *m,
                        void (*part)(const struct dt_bench_machine *, int64_t, int64_t),
                        double seconds)
{
    struct dt_bench_clock clock;
    int64_t window = m->array_bytes / WINDOWS, bytes = window / m->threads / LINE * LINE;
    dt_bench_start(&clock);
    while (dt_bench_more(&clock, LEAST * WINDOWS, seconds)) {
        int64_t first = clock.n % WINDOWS * window;
        double start = dt_seconds();
#pragma omp parallel for num_threads(m->threads)
        for (int i = 0; i < m->threads; i++)
            part(m, first + i * bytes, bytes);
        dt_bench_note(&clock, dt_seconds() - start);
    }
    return 2 * (double)(bytes * m->threads) / dt_bench_best(&clock);
}

DT_CLONES
static void exp_row(const float *restrict x, float *restrict y)
{
#pragma omp simd
    for (int i = 0; i < ROW; i++)
        y[i] = dt_expf(x[i]);
}

DT_CLONES
static void exp2_row(const float *restrict x, float *restrict y)
{
#pragma omp simd
    for (int i = 0; i < ROW; i++)
        y[i] = scan_exp2(x[i]);
}

static void run_rows(void (*row)(const float *, float *))
{
    _Alignas(64) float x[ROW], y[ROW];
    for (int i = 0; i < ROW; i++)
        x[i] = -(float)i / ROW;
    for (int i = 0; i < ROWS; i++) {
        row(x, y);
        __asm__ volatile("" : : "r"(y) : "memory"); // keep each row
    }
}

static double exp_rate(const struct dt_bench_machine *m, void (*row)(const float *, float *),
                       double seconds)
{
    struct dt_bench_clock clock;
    dt_bench_start(&clock);
    while (dt_bench_more(&clock, LEAST, seconds)) {
        double start = dt_seconds();
#pragma omp parallel for num_threads(m->threads)
        for (int i = 0; i < m->threads; i++)
            run_rows(row);
        dt_bench_note(&clock, dt_seconds() - start);
    }
    return (double)m->threads * ROWS * ROW / dt_bench_best(&clock);
}

dt_status dt_bench_machine_measure_cpu(struct dt_bench_rig *rig, double seconds,
                                       struct dt_bench_machine *m)
{
    int64_t cache = sysconf(_SC_LEVEL3_CACHE_SIZE); // <= 0: unknown
    m->array_bytes = dt_min_i64(dt_max_i64(4 * cache, ARRAY_MIN), ARRAY_MAX);
    DT_TRY(dt_alloc(&rig->backend, m->array_bytes, &m->from));
    DT_TRY(dt_alloc(&rig->backend, m->array_bytes, &m->to));
    memset(m->from, 1, (size_t)m->array_bytes);
    memset(m->to, 1, (size_t)m->array_bytes);
    // Copying fetches lines that are then overwritten, unless it bypasses the cache, which makes a
    // core slower; updating in place avoids both. The better rate is the limit.
    double copied = move_rate(m, copy_part, seconds), updated = move_rate(m, update_part, seconds);
    m->limits.copy = copied > updated ? copied : updated;
    m->limits.exps = exp_rate(m, exp_row, seconds);
    m->limits.exp2s = exp_rate(m, exp2_row, seconds);
    return DT_OK;
}

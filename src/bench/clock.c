// Collects the durations of repeats, decides when there are enough, and computes best and median.
#include "bench/bench.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

void dt_bench_start(struct dt_bench_clock *clock)
{
    clock->started = dt_seconds();
    clock->n = 0;
}

void dt_bench_note(struct dt_bench_clock *clock, double seconds)
{
    if (clock->n < DT_BENCH_REPEATS)
        clock->seconds[clock->n++] = seconds;
}

bool dt_bench_more(const struct dt_bench_clock *clock, int64_t least, double seconds)
{
    bool due = clock->n < least || dt_seconds() - clock->started < seconds;
    return due && clock->n < DT_BENCH_REPEATS;
}

double dt_bench_best(const struct dt_bench_clock *clock)
{
    double best = clock->seconds[0];
    for (int64_t i = 1; i < clock->n; i++)
        best = clock->seconds[i] < best ? clock->seconds[i] : best;
    return best;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double dt_bench_median_of(double *list, int64_t n)
{
    qsort(list, (size_t)n, sizeof *list, ascending);
    return n > 0 ? (list[(n - 1) / 2] + list[n / 2]) / 2 : 0;
}

double dt_bench_median(const struct dt_bench_clock *clock)
{
    double sorted[DT_BENCH_REPEATS];
    memcpy(sorted, clock->seconds, (size_t)clock->n * sizeof *sorted);
    return dt_bench_median_of(sorted, clock->n);
}

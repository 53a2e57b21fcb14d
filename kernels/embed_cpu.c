// Token embedding on the CPU. Backward sorts the rows by token (stable counting sort); then one
// thread per (token, block of columns) adds that token's rows in order, run by run.
#include "kernels/cpu.h"
#include "kernels/storage_cpu.h"

#include <string.h>

enum { COLUMNS = 64, ROWS = 64 };

DT_CLONES static void copy_row(const struct dt_embed_forward_args *args, int64_t r)
{
    int64_t width = args->table.cols;
    const void *row = dt_view_at(&args->table, *(int32_t *)dt_view_at(&args->ids, r, 0), 0);
    float *out = args->out + r * width;
    if (!args->accumulate)
        dt_load_row(args->table.dtype, row, width, width, out);
    else
        DT_STORAGE_SWITCH(args->table.dtype, bf16,
                          for (int64_t i = 0; i < width; i++) out[i] += dt_load(row, i, bf16));
}

DT_OP_CPU(embed_forward)
{
#pragma omp parallel for schedule(static, ROWS) num_threads(device->threads)
    for (int64_t r = 0; r < args->ids.rows; r++)
        copy_row(args, r);
    return DT_OK;
}

// start[v] … start[v + 1]: token v's rows in `order`.
struct sorted {
    int64_t *start; // [vocab + 1]
    int64_t *order; // [rows]
};

static struct sorted sort_rows(const struct dt_embed_backward_args *args)
{
    const int32_t *ids = args->ids.data;
    int64_t rows = args->ids.rows, stride = args->ids.stride;
    struct sorted s = {.start = args->workspace};
    s.order = s.start + args->vocab + 1;
    memset(s.start, 0, (size_t)(args->vocab + 1) * sizeof *s.start);
    for (int64_t r = 0; r < rows; r++)
        s.start[ids[r * stride] + 1]++;
    for (int64_t v = 0; v < args->vocab; v++)
        s.start[v + 1] += s.start[v];
    for (int64_t r = 0; r < rows; r++)
        s.order[s.start[ids[r * stride]]++] = r;
    memmove(s.start + 1, s.start,
            (size_t)args->vocab * sizeof *s.start); // each start moved to its end
    s.start[0] = 0;
    return s;
}

// sum[0 … columns) = Σ of the rows order[0 … n) of dout; the rest is zero.
static inline void add_run(float *sum, const float *dout, int64_t width, const int64_t *order,
                           int64_t n, int64_t columns)
{
    memset(sum, 0, COLUMNS * sizeof *sum);
    if (columns == COLUMNS) {
        for (int64_t r = 0; r < n; r++)
            for (int64_t i = 0; i < COLUMNS; i++)
                sum[i] += dout[order[r] * width + i];
    } else {
        for (int64_t r = 0; r < n; r++)
            for (int64_t i = 0; i < columns; i++)
                sum[i] += dout[order[r] * width + i];
    }
}

// out[0 … columns) = or += the rows order[0 … n) of dout, run by run.
DT_CLONES static void add_rows(float *out, const float *dout, int64_t width, const int64_t *order,
                               int64_t n, int64_t columns, bool accumulate)
{
    float sum[COLUMNS] = {0}, run[COLUMNS];
    for (int64_t from = 0; from < n; from += DT_EMBED_RUN) {
        add_run(run, dout, width, order + from, dt_min_i64(n - from, DT_EMBED_RUN), columns);
        for (int64_t i = 0; i < COLUMNS; i++)
            sum[i] += run[i];
    }
    for (int64_t i = 0; i < columns; i++)
        out[i] = accumulate ? out[i] + sum[i] : sum[i];
}

DT_OP_CPU(embed_backward)
{
    struct sorted s = sort_rows(args);
#pragma omp parallel for collapse(2) schedule(dynamic, 64) num_threads(device->threads)
    for (int64_t v = 0; v < args->vocab; v++)
        for (int64_t from = 0; from < args->width; from += COLUMNS) {
            int64_t n = s.start[v + 1] - s.start[v];
            if (n > 0 || !args->accumulate)
                add_rows(args->dtable + v * args->width + from, args->dout + from, args->width,
                         s.order + s.start[v], n, dt_min_i64(COLUMNS, args->width - from),
                         args->accumulate);
        }
    return DT_OK;
}

DT_OP_CPU_WORKSPACE(embed_backward)
{
    return (args->vocab + 1 + args->ids.rows) * (int64_t)sizeof(int64_t);
}

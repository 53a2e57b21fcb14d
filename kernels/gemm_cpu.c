// GEMM on the CPU. C is cut into tiles, and the sum over a deep k of a weight gradient into parts.
// The cut depends on the shape alone, and one thread computes a piece (dt_gemm_tile), so no bit of
// C depends on the number of threads. A few rows in inference, and int8, go to dt_gemm_rows.
#include "kernels/cpu.h"
#include "kernels/gemm_rows_cpu.h"
#include "kernels/gemm_tile_cpu.h"
#include "kernels/storage_cpu.h"

#include <omp.h>
#include <string.h>

enum {
    TILE = 512,     // rows and columns of a tile at most
    TILE_MIN = 128, // a tile is not halved below this
    PARTS = 16,     // k is cut until there are this many pieces
    PIECES = 8,     // pieces get smaller until there are this many for the threads
    PART_K = 512,   // k of a part at least
    ALIGN = 4096,   // alignment of areas of the workspace
};

struct plan {
    const struct dt_gemm_kernel *kernel;
    int64_t tile_m, tile_n, part_k;
    int64_t tiles_m, tiles_n, parts;
    int64_t scratch; // bytes of a thread's area of the workspace
    int64_t sums;    // bytes of the sums of parts, [parts, m, n]
};

static int64_t aligned(int64_t bytes)
{
    return dt_round_up(bytes, ALIGN);
}

static int64_t count(const struct plan *p, const struct dt_gemm_args *g)
{
    return dt_ceil_div(g->c.rows, p->tile_m) * dt_ceil_div(g->c.cols, p->tile_n);
}

// Weight gradients are small and deep, so k is cut to keep tiles large. Otherwise k is not cut, so
// that fewer rows never need more workspace. A square tile is halved in columns, since B is copied
// for each tile.
static void cut(struct plan *p, const struct dt_gemm_args *g)
{
    p->tile_m = dt_min_i64(g->c.rows, TILE);
    p->tile_n = dt_min_i64(g->c.cols, TILE);
    p->parts = 1;
    if (g->trans_a && dt_gemm_k(g) >= 2 * PART_K)
        p->parts = dt_min_i64(dt_ceil_div(PARTS, count(p, g)), dt_gemm_k(g) / PART_K);
    while (count(p, g) * p->parts < PIECES) {
        int64_t *larger = p->tile_n >= p->tile_m ? &p->tile_n : &p->tile_m;
        if (*larger <= TILE_MIN)
            break;
        *larger = dt_round_up(dt_ceil_div(*larger, 2), 16);
    }
    p->part_k = dt_round_up(dt_ceil_div(dt_gemm_k(g), p->parts), 16);
    p->tiles_m = dt_ceil_div(g->c.rows, p->tile_m);
    p->tiles_n = dt_ceil_div(g->c.cols, p->tile_n);
    p->parts = dt_ceil_div(dt_gemm_k(g), p->part_k);
}

// Size of piece i of a dimension.
static int64_t extent(int64_t i, int64_t piece, int64_t size)
{
    return dt_min_i64(piece, size - i * piece);
}

// Piece `index`: a tile of C, or a tile's sum over a part of k, which goes to `sums`. The first
// piece is the largest.
static struct dt_gemm_args piece(const struct plan *p, const struct dt_gemm_args *g, int64_t index,
                                 float *sums)
{
    int64_t part = index % p->parts, i = index / p->parts / p->tiles_n,
            j = index / p->parts % p->tiles_n;
    int64_t m0 = i * p->tile_m, n0 = j * p->tile_n, k0 = part * p->part_k;
    int64_t m = extent(i, p->tile_m, g->c.rows), n = extent(j, p->tile_n, g->c.cols),
            k = extent(part, p->part_k, dt_gemm_k(g));
    struct dt_gemm_args tile = *g;
    tile.a = g->trans_a ? dt_view_block(g->a, k0, m0, k, m) : dt_view_block(g->a, m0, k0, m, k);
    tile.b = g->trans_b ? dt_view_block(g->b, n0, k0, n, k) : dt_view_block(g->b, k0, n0, k, n);
    if (p->parts > 1) {
        tile.c = dt_view_of(sums + part * g->c.rows * g->c.cols, g->c.rows, g->c.cols, DT_F32);
        tile.accumulate = false;
    }
    tile.c = dt_view_block(tile.c, m0, n0, m, n);
    return tile;
}

static struct plan plan_of(const struct dt_gemm_args *g)
{
    struct plan p = {.kernel = dt_gemm_kernel(dt_cpu_isa(), g->a.dtype)};
    cut(&p, g);
    struct dt_gemm_args tile = piece(&p, g, 0, NULL);
    p.scratch = aligned(dt_gemm_tile_workspace(p.kernel, &tile));
    if (p.parts > 1)
        p.sums = aligned(p.parts * g->c.rows * g->c.cols * (int64_t)sizeof(float));
    return p;
}

DT_OP_CPU_WORKSPACE(gemm)
{
    if (dt_gemm_rows_suits(args))
        return dt_gemm_rows_workspace(args);
    struct plan plan = plan_of(args);
    // ALIGN bytes for aligning the first area, since the workspace may start anywhere
    return plan.scratch * device->threads + plan.sums + ALIGN;
}

// Adds the sums of parts for a row of C in the order of k.
DT_CLONES static void finish_row(const struct plan *p, const struct dt_gemm_args *g, int64_t i,
                                 float *sums)
{
    float *row = sums + i * g->c.cols;
    for (int64_t part = 1; part < p->parts; part++)
        for (int64_t j = 0; j < g->c.cols; j++)
            row[j] += row[part * g->c.rows * g->c.cols + j];
    dt_gemm_put(dt_view_block(g->c, i, 0, 1, g->c.cols), g->accumulate, row, g->c.cols);
}

static void multiply(int threads, const struct dt_gemm_args *args)
{
    const struct plan plan = plan_of(args);
    int64_t pieces = plan.tiles_m * plan.tiles_n * plan.parts;
    int64_t summed_rows = plan.parts > 1 ? args->c.rows : 0;
    float *sums = (float *)aligned((int64_t)(intptr_t)args->workspace);
#pragma omp parallel num_threads(threads)
    {
        char *own = (char *)sums + plan.sums + omp_get_thread_num() * plan.scratch;
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < pieces; i++) {
            struct dt_gemm_args tile = piece(&plan, args, i, sums);
            tile.workspace = own;
            dt_gemm_tile(plan.kernel, &tile);
        }
#pragma omp for
        for (int64_t i = 0; i < summed_rows; i++)
            finish_row(&plan, args, i, sums);
    }
}

DT_OP_CPU(gemm)
{
    for (int64_t i = 0; i < dt_gemm_batch(args); i++) {
        struct dt_gemm_args one = dt_gemm_product(args, i);
        if (dt_gemm_rows_suits(args))
            dt_gemm_rows(dt_cpu_isa(), device->threads, &one);
        else
            multiply(device->threads, &one);
    }
    return DT_OK;
}

// GEMM on the CPU. C is cut into tiles, and the sum over a deep k of a weight gradient into parts;
// both follow from the shape alone, and each piece is made by one thread: no bit of C depends on
// how many threads share them. oneDNN makes gradients where the CPU has AVX-512 for the operands'
// type; everything else dt_gemm_tile does: up to 1.7 times faster in weight gradients with AVX2,
// and its sums are in the order of k, as gemm.h promises of forward passes. A handful of rows in
// play, and int8, goes to dt_gemm_rows. Owns oneDNN's primitives, made once a shape.
#include "base/hash.h"
#include "base/memory.h"
#include "kernels/cpu.h"
#include "kernels/gemm_rows_cpu.h"
#include "kernels/gemm_tile_cpu.h"
#include "kernels/storage_cpu.h"

#include <omp.h>
#include <pthread.h>
#include <string.h>

enum {
    TILE = 512,     // rows and columns of a tile at most
    TILE_MIN = 128, // a tile is not halved below this
    PARTS = 16,     // k is cut until there are this many pieces
    PIECES = 8,     // fewer pieces than this are made smaller, for the threads' sake
    PART_K = 512,   // k of a part at least
    ALIGN = 4096,   // of the areas of the workspace
    BUCKETS = 256,
};

struct entry {
    struct dt_matmul_shape shape;
    struct dt_matmul *matmul;
    struct entry *next;
};

struct dt_gemm_cpu {
    enum dt_cpu_isa isa;
    struct dt_onednn *onednn;
    pthread_mutex_t lock;
    struct entry *bucket[BUCKETS];
};

struct plan {
    const struct dt_gemm_kernel *kernel; // NULL: oneDNN
    int64_t tile_m, tile_n, part_k;
    int64_t tiles_m, tiles_n, parts;
    // [last of m][last of n][last of k]: the last piece of a dimension may be smaller
    struct dt_matmul *matmul[2][2][2];
    int64_t scratch, staged; // bytes of a thread's areas of the workspace
    int64_t sums;            // bytes of the parts' sums, [parts, m, n]
};

dt_status dt_gemm_cpu_open(struct dt_gemm_cpu **gemm)
{
    struct dt_gemm_cpu *g;
    DT_TRY(DT_NEW(&g, 1, "the matmul cache"));
    pthread_mutex_init(&g->lock, NULL);
    g->isa = dt_onednn_isa();
    dt_status status = dt_onednn_open(&g->onednn);
    if (status != DT_OK) {
        dt_gemm_cpu_close(g);
        return status;
    }
    *gemm = g;
    return DT_OK;
}

void dt_gemm_cpu_close(struct dt_gemm_cpu *gemm)
{
    if (!gemm)
        return;
    for (int i = 0; i < BUCKETS; i++) {
        for (struct entry *e = gemm->bucket[i], *next; e; e = next) {
            next = e->next;
            dt_matmul_destroy(e->matmul);
            free(e);
        }
    }
    dt_onednn_close(gemm->onednn);
    pthread_mutex_destroy(&gemm->lock);
    free(gemm);
}

// The instruction set decides, so that every start on a machine and every rank decides alike.
// Measured at d_model 256, L 512, against fp32: with AVX2 the products of a step take 2 % less
// time, all else 10 % less; with AVX-512 but without its bf16 instructions products take up to 8 %
// more.
bool dt_gemm_cpu_prefers_bf16(void)
{
    enum dt_cpu_isa isa = dt_onednn_isa();
    return isa == DT_ISA_AVX512_BF16 || isa == DT_ISA_AVX2;
}

// The matmul of a shape, which is made when it is first asked for.
static dt_status find_matmul(struct dt_gemm_cpu *gemm, const struct dt_matmul_shape *shape,
                             struct dt_matmul **matmul)
{
    struct entry **first = &gemm->bucket[dt_hash_words(shape, sizeof *shape) % BUCKETS];
    dt_status status = DT_OK;
    pthread_mutex_lock(&gemm->lock);
    struct entry *e = *first;
    while (e && memcmp(&e->shape, shape, sizeof *shape) != 0)
        e = e->next;
    if (!e && (status = DT_NEW(&e, 1, "the matmul cache")) == DT_OK) {
        e->shape = *shape, e->next = *first;
        status = dt_matmul_create(gemm->onednn, shape, &e->matmul);
        if (status == DT_OK)
            *first = e;
        else
            free(e);
    }
    if (status == DT_OK)
        *matmul = e->matmul;
    pthread_mutex_unlock(&gemm->lock);
    return status;
}

static int64_t aligned(int64_t bytes)
{
    return dt_round_up(bytes, ALIGN);
}

static int64_t count(const struct plan *p, const struct dt_gemm_args *g)
{
    return dt_ceil_div(g->c.rows, p->tile_m) * dt_ceil_div(g->c.cols, p->tile_n);
}

// Weight gradients are small and deep: parts of k keep their tiles large. Elsewhere k is not cut,
// so that fewer rows never take more workspace. Of a square tile the rows are kept where
// dt_gemm_tile copies B for each tile; oneDNN is 4 % faster with the columns.
static void cut(struct plan *p, const struct dt_gemm_args *g)
{
    p->tile_m = dt_min_i64(g->c.rows, TILE);
    p->tile_n = dt_min_i64(g->c.cols, TILE);
    p->parts = 1;
    if (g->trans_a && dt_gemm_k(g) >= 2 * PART_K)
        p->parts = dt_min_i64(dt_ceil_div(PARTS, count(p, g)), dt_gemm_k(g) / PART_K);
    while (count(p, g) * p->parts < PIECES) {
        bool wide = p->tile_n > p->tile_m || (p->kernel && p->tile_n == p->tile_m);
        int64_t *larger = wide ? &p->tile_n : &p->tile_m;
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

static struct dt_matmul_shape shape_of(const struct plan *p, const struct dt_gemm_args *g,
                                       int64_t m, int64_t n, int64_t k)
{
    struct dt_matmul_shape s;
    memset(&s, 0, sizeof s);
    s.m = m, s.n = n, s.k = k;
    s.lda = g->a.stride;
    s.ldb = g->b.stride;
    s.ldc = p->parts > 1 ? g->c.cols : g->c.stride;
    s.a_type = g->a.dtype;
    s.b_type = g->b.dtype;
    s.c_type = p->parts > 1 ? DT_F32 : g->c.dtype;
    s.trans_a = g->trans_a;
    s.trans_b = g->trans_b;
    s.accumulate = g->accumulate && p->parts == 1;
    // Measured in fp32: on the other path weight gradients (A transposed) run up to 2.2 times
    // faster, sums into C a tenth, and short ones (k <= 64) never at half speed.
    s.run_time = s.a_type == DT_F32 && (g->trans_a || s.accumulate);
    return s;
}

static dt_status find_all(struct plan *p, struct dt_gemm_cpu *gemm, const struct dt_gemm_args *g)
{
    for (int i = 0; i < 8; i++) {
        int em = i >> 2, en = (i >> 1) & 1, ek = i & 1;
        int64_t m = em ? extent(p->tiles_m - 1, p->tile_m, g->c.rows) : p->tile_m;
        int64_t n = en ? extent(p->tiles_n - 1, p->tile_n, g->c.cols) : p->tile_n;
        int64_t k = ek ? extent(p->parts - 1, p->part_k, dt_gemm_k(g))
                       : dt_min_i64(p->part_k, dt_gemm_k(g));
        struct dt_matmul_shape shape = shape_of(p, g, m, n, k);
        DT_TRY(find_matmul(gemm, &shape, &p->matmul[em][en][ek]));
        int64_t scratch = aligned(dt_matmul_scratch(p->matmul[em][en][ek]));
        p->scratch = scratch > p->scratch ? scratch : p->scratch;
    }
    return DT_OK;
}

static dt_status make_plan(struct plan *p, struct dt_device *device, const struct dt_gemm_args *g)
{
    enum dt_cpu_isa isa = device->gemm->isa;
    bool forward = g->trans_b && !g->trans_a,
         by_onednn =
             !forward && isa >= (g->a.dtype == DT_BF16 ? DT_ISA_AVX512_BF16 : DT_ISA_AVX512);
    int64_t size = (int64_t)sizeof(float);
    *p = (struct plan){.kernel = by_onednn ? NULL : dt_gemm_kernel(isa, g->a.dtype)};
    cut(p, g);
    p->sums = p->parts > 1 ? aligned(p->parts * g->c.rows * g->c.cols * size) : 0;
    if (by_onednn)
        return find_all(p, device->gemm, g);
    p->scratch = aligned(dt_gemm_tile_workspace(p->kernel, p->tile_n));
    if (p->parts == 1 && g->c.dtype == DT_BF16)
        p->staged = aligned(p->tile_m * p->tile_n * size);
    return DT_OK;
}

DT_OP_CPU_WORKSPACE(gemm)
{
    struct plan plan;
    if (dt_gemm_rows_suits(args))
        return dt_gemm_rows_workspace(args);
    if (make_plan(&plan, device, args) != DT_OK)
        return 0; // gemm itself will say why
    // the workspace may start anywhere: ALIGN bytes are for aligning its first area
    return (plan.scratch + plan.staged) * device->threads + plan.sums + ALIGN;
}

// C (+)= fp32 rows.
DT_INLINE void put_rows(void *c, int64_t ld, const float *from, int64_t rows, int64_t columns,
                        bool accumulate, bool bf16)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) {
            float x = from[i * columns + j];
            dt_store(c, i * ld + j, accumulate ? dt_load(c, i * ld + j, bf16) + x : x, bf16);
        }
}

// From row m0 and column n0 on.
DT_CLONES static void put(const struct dt_gemm_args *g, int64_t m0, int64_t n0, const float *from,
                          int64_t rows, int64_t columns)
{
    DT_STORAGE_SWITCH(
        g->c.dtype, bf16,
        put_rows(dt_view_at(&g->c, m0, n0), g->c.stride, from, rows, columns, g->accumulate, bf16));
}

// Runs piece `index`: a tile of C, or what a part of k adds to one.
static int run_piece(const struct plan *p, const struct dt_gemm_args *g, int64_t index, float *sums,
                     char *workspace)
{
    int64_t part = index % p->parts, i = index / p->parts / p->tiles_n,
            j = index / p->parts % p->tiles_n;
    int64_t m0 = i * p->tile_m, n0 = j * p->tile_n, k0 = part * p->part_k;
    int64_t m = extent(i, p->tile_m, g->c.rows), n = extent(j, p->tile_n, g->c.cols),
            k = extent(part, p->part_k, dt_gemm_k(g));
    float *staged = (float *)(workspace + p->scratch);
    struct dt_gemm_args tile = *g;
    tile.a = g->trans_a ? dt_view_block(g->a, k0, m0, k, m) : dt_view_block(g->a, m0, k0, m, k);
    tile.b = g->trans_b ? dt_view_block(g->b, n0, k0, n, k) : dt_view_block(g->b, k0, n0, k, n);
    tile.workspace = workspace;
    if (p->parts > 1)
        tile.c = dt_view_of(sums + part * g->c.rows * g->c.cols, g->c.rows, g->c.cols, DT_F32);
    tile.c = p->staged ? dt_view_of(staged, m, n, DT_F32) : dt_view_block(tile.c, m0, n0, m, n);
    tile.accumulate = g->accumulate && p->parts == 1 && !p->staged;
    if (!p->kernel)
        return dt_matmul_run(
            p->matmul[i == p->tiles_m - 1][j == p->tiles_n - 1][part == p->parts - 1], tile.a.data,
            tile.b.data, tile.c.data, workspace);
    dt_gemm_tile(p->kernel, &tile);
    if (p->staged)
        put(g, m0, n0, staged, m, n);
    return 0;
}

// Adds the parts' sums of a row of C in the order of k.
DT_CLONES static void finish_row(const struct plan *p, const struct dt_gemm_args *g, int64_t i,
                                 float *sums)
{
    float *row = sums + i * g->c.cols;
    for (int64_t part = 1; part < p->parts; part++)
        for (int64_t j = 0; j < g->c.cols; j++)
            row[j] += row[part * g->c.rows * g->c.cols + j];
    put(g, i, 0, row, 1, g->c.cols);
}

static int multiply(const struct plan *plan, int threads, const struct dt_gemm_args *args)
{
    int64_t pieces = plan->tiles_m * plan->tiles_n * plan->parts;
    int64_t summed_rows = plan->parts > 1 ? args->c.rows : 0;
    float *sums = (float *)aligned((int64_t)(intptr_t)args->workspace);
    int code = 0;
#pragma omp parallel num_threads(threads) reduction(max : code)
    {
        char *own =
            (char *)sums + plan->sums + omp_get_thread_num() * (plan->scratch + plan->staged);
        // Some of oneDNN's code asks for the thread count when it runs, and a team of one is not a
        // parallel region to it. This holds inside of the region only.
        omp_set_num_threads(1);
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < pieces; i++) {
            int c = run_piece(plan, args, i, sums, own);
            code = c > code ? c : code;
        }
#pragma omp for
        for (int64_t i = 0; i < summed_rows; i++)
            finish_row(plan, args, i, sums);
    }
    return code;
}

DT_OP_CPU(gemm)
{
    struct plan plan;
    bool few = dt_gemm_rows_suits(args);
    if (!few)
        DT_TRY(make_plan(&plan, device, args));
    for (int64_t i = 0; i < dt_gemm_batch(args); i++) {
        struct dt_gemm_args one = dt_gemm_product(args, i);
        int code = 0, threads = device->threads;
        if (few)
            dt_gemm_rows(device->gemm->isa, threads, &one);
        else
            code = multiply(&plan, threads, &one);
        if (code)
            return DT_FAIL(DT_MACHINE, NULL, "oneDNN's matmul failed with status %d", code);
    }
    return DT_OK;
}

// GEMM on the CPU. C is cut into tiles that depend on the shape alone; each is one single-threaded
// oneDNN product, so no bit of C depends on how many threads share the tiles. Where the operands'
// type has no instructions (bf16 before AVX-512 bf16) a tile's operands are widened to fp32, a
// block of k at a time, and the product is staged in fp32 on its way to C. Owns oneDNN's
// primitives, made once a shape.
#include "base/hash.h"
#include "kernels/cpu.h"
#include "kernels/onednn.h"
#include "kernels/simd.h"

#include <omp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    TILE = 512,     // rows and columns of a tile at most
    TILE_MIN = 128, // a tile is not halved below this
    TILES = 8,      // fewer tiles than this are halved, for the threads' sake
    WIDE_K = 1024,  // k of a widened block
    ALIGN = 4096,   // of the pieces of the workspace
    BUCKETS = 256,
};

struct entry {
    struct dt_matmul_shape shape;
    struct dt_matmul *matmul;
    struct entry *next;
};

struct dt_gemm_cpu {
    struct dt_onednn *onednn;
    pthread_mutex_t lock;
    struct entry *bucket[BUCKETS];
};

struct plan {
    int64_t tile_m, tile_n, tile_k;
    int64_t tiles_m, tiles_n, tiles_k;
    bool widen;
    // [last of m][last of n][last of k]: the last tile of a dimension may be smaller
    struct dt_matmul *matmul[2][2][2];
    int64_t scratch, wide_a, wide_b, staged; // bytes of a thread's pieces of the workspace
};

dt_status dt_gemm_cpu_open(struct dt_gemm_cpu **gemm)
{
    struct dt_gemm_cpu *g = calloc(1, sizeof *g);
    if (!g)
        return DT_FAIL(DT_MACHINE, NULL, "no memory for the matmul cache");
    pthread_mutex_init(&g->lock, NULL);
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

bool dt_gemm_cpu_has_bf16(void)
{
    return dt_onednn_has_bf16();
}

void dt_gemm_cpu_describe(char *text, size_t size)
{
    dt_onednn_describe(text, size);
}

static unsigned bucket_of(const struct dt_matmul_shape *shape)
{
    return dt_hash_words(shape, sizeof *shape) % BUCKETS;
}

static dt_status add_entry(struct dt_gemm_cpu *gemm, const struct dt_matmul_shape *shape,
                           struct dt_matmul **matmul)
{
    struct entry *e = calloc(1, sizeof *e);
    if (!e)
        return DT_FAIL(DT_MACHINE, NULL, "no memory for the matmul cache");
    dt_status status = dt_matmul_create(gemm->onednn, shape, &e->matmul);
    if (status != DT_OK) {
        free(e);
        return status;
    }
    struct entry **first = &gemm->bucket[bucket_of(shape)];
    e->shape = *shape;
    e->next = *first;
    *first = e;
    *matmul = e->matmul;
    return DT_OK;
}

static dt_status find_matmul(struct dt_gemm_cpu *gemm, const struct dt_matmul_shape *shape,
                             struct dt_matmul **matmul)
{
    dt_status status = DT_OK;
    pthread_mutex_lock(&gemm->lock);
    struct entry *e = gemm->bucket[bucket_of(shape)];
    while (e && memcmp(&e->shape, shape, sizeof *shape) != 0)
        e = e->next;
    if (e)
        *matmul = e->matmul;
    else
        status = add_entry(gemm, shape, matmul);
    pthread_mutex_unlock(&gemm->lock);
    return status;
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t aligned(int64_t bytes)
{
    return ceil_div(bytes, ALIGN) * ALIGN;
}

static int64_t count(const struct plan *p, const struct dt_gemm_args *g)
{
    return ceil_div(g->m, p->tile_m) * ceil_div(g->n, p->tile_n);
}

static void cut(struct plan *p, const struct dt_gemm_args *g)
{
    p->tile_m = smaller(g->m, TILE);
    p->tile_n = smaller(g->n, TILE);
    while (count(p, g) < TILES) {
        int64_t *larger = p->tile_m >= p->tile_n ? &p->tile_m : &p->tile_n;
        if (*larger <= TILE_MIN)
            break;
        *larger = ceil_div(ceil_div(*larger, 2), 16) * 16;
    }
    p->tile_k = p->widen ? smaller(g->k, WIDE_K) : g->k;
    p->tiles_m = ceil_div(g->m, p->tile_m);
    p->tiles_n = ceil_div(g->n, p->tile_n);
    p->tiles_k = ceil_div(g->k, p->tile_k);
}

// Size of tile i of a dimension.
static int64_t extent(int64_t i, int64_t tile, int64_t size)
{
    return smaller(tile, size - i * tile);
}

static struct dt_matmul_shape shape_of(const struct plan *p, const struct dt_gemm_args *g,
                                       int64_t m, int64_t n, int64_t k)
{
    struct dt_matmul_shape s;
    memset(&s, 0, sizeof s);
    s.m = m, s.n = n, s.k = k;
    s.lda = p->widen ? (g->trans_a ? m : k) : g->lda;
    s.ldb = p->widen ? (g->trans_b ? k : n) : g->ldb;
    s.ldc = p->widen ? n : g->ldc;
    s.a_type = p->widen ? DT_F32 : g->a_type;
    s.b_type = p->widen ? DT_F32 : g->b_type;
    s.c_type = p->widen ? DT_F32 : g->c_type;
    s.trans_a = g->trans_a;
    s.trans_b = g->trans_b;
    s.accumulate = p->widen ? p->tiles_k > 1 : g->accumulate;
    // Measured in fp32: on the other path weight gradients (A transposed) run up to 2.2 times
    // faster, sums into C a tenth, and short ones (k <= 64) never at half speed.
    s.run_time = s.a_type == DT_F32 && !p->widen && (g->trans_a || s.accumulate);
    return s;
}

static dt_status find_all(struct plan *p, struct dt_gemm_cpu *gemm, const struct dt_gemm_args *g)
{
    for (int i = 0; i < 8; i++) {
        int em = i >> 2, en = (i >> 1) & 1, ek = i & 1;
        int64_t m = em ? extent(p->tiles_m - 1, p->tile_m, g->m) : p->tile_m;
        int64_t n = en ? extent(p->tiles_n - 1, p->tile_n, g->n) : p->tile_n;
        int64_t k = ek ? extent(p->tiles_k - 1, p->tile_k, g->k) : p->tile_k;
        struct dt_matmul_shape shape = shape_of(p, g, m, n, k);
        DT_TRY(find_matmul(gemm, &shape, &p->matmul[em][en][ek]));
        int64_t scratch = aligned(dt_matmul_scratch(p->matmul[em][en][ek]));
        p->scratch = scratch > p->scratch ? scratch : p->scratch;
    }
    return DT_OK;
}

static dt_status make_plan(struct plan *p, struct dt_device *device, const struct dt_gemm_args *g)
{
    *p = (struct plan){.widen = g->a_type == DT_BF16 && !device->bf16};
    cut(p, g);
    DT_TRY(find_all(p, device->gemm, g));
    int64_t size = (int64_t)sizeof(float);
    p->wide_a = p->widen ? aligned(p->tile_m * p->tile_k * size) : 0;
    p->wide_b = p->widen ? aligned(p->tile_n * p->tile_k * size) : 0;
    p->staged = p->widen ? aligned(p->tile_m * p->tile_n * size) : 0;
    return DT_OK;
}

static int64_t bytes_per_thread(const struct plan *p)
{
    return p->scratch + p->wide_a + p->wide_b + p->staged;
}

int64_t gemm_cpu_workspace(struct dt_device *device, const struct dt_gemm_args *args)
{
    struct plan plan;
    if (make_plan(&plan, device, args) != DT_OK)
        return 0; // gemm itself will say why
    // the workspace may start anywhere: ALIGN bytes are for aligning its first piece
    return bytes_per_thread(&plan) * dt_cpu_threads(device) + ALIGN;
}

DT_CLONES static void widen(float *to, const dt_bf16 *from, int64_t ld, int64_t rows,
                            int64_t columns)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++)
            to[r * columns + c] = dt_bf16_to_f32(from[r * ld + c]);
}

// C (+)= the staged tile.
DT_CLONES static void put_f32(float *c, int64_t ld, const float *from, int64_t rows,
                              int64_t columns, bool accumulate)
{
    for (int64_t i = 0; i < rows; i++, c += ld, from += columns)
        for (int64_t j = 0; j < columns; j++)
            c[j] = accumulate ? c[j] + from[j] : from[j];
}

DT_CLONES static void put_bf16(dt_bf16 *c, int64_t ld, const float *from, int64_t rows,
                               int64_t columns, bool accumulate)
{
    for (int64_t i = 0; i < rows; i++, c += ld, from += columns)
        for (int64_t j = 0; j < columns; j++)
            c[j] = dt_f32_to_bf16(accumulate ? dt_bf16_to_f32(c[j]) + from[j] : from[j]);
}

// Address of element (row, column) of an operand as it lies in memory.
static const char *at(const void *base, dt_dtype type, int64_t ld, bool trans, int64_t row,
                      int64_t column)
{
    int64_t offset = trans ? column * ld + row : row * ld + column;
    return (const char *)base + offset * dt_dtype_size(type);
}

struct tile {
    int64_t m0, n0, m, n; // origin and size
    int last_m, last_n;
};

static struct tile tile_of(const struct plan *p, const struct dt_gemm_args *g, int64_t index)
{
    int64_t i = index / p->tiles_n, j = index % p->tiles_n;
    return (struct tile){.m0 = i * p->tile_m,
                         .n0 = j * p->tile_n,
                         .m = extent(i, p->tile_m, g->m),
                         .n = extent(j, p->tile_n, g->n),
                         .last_m = i == p->tiles_m - 1,
                         .last_n = j == p->tiles_n - 1};
}

// One block of k of a tile, into `out`.
static int product(const struct plan *p, const struct dt_gemm_args *g, const struct tile *t,
                   int64_t block, void *out, char *workspace)
{
    int64_t k0 = block * p->tile_k, k = extent(block, p->tile_k, g->k);
    const void *a = at(g->a, g->a_type, g->lda, g->trans_a, t->m0, k0);
    const void *b = at(g->b, g->b_type, g->ldb, g->trans_b, k0, t->n0);
    if (p->widen) {
        float *wide_a = (float *)(workspace + p->scratch);
        float *wide_b = (float *)(workspace + p->scratch + p->wide_a);
        widen(wide_a, a, g->lda, g->trans_a ? k : t->m, g->trans_a ? t->m : k);
        widen(wide_b, b, g->ldb, g->trans_b ? t->n : k, g->trans_b ? k : t->n);
        a = wide_a, b = wide_b;
    }
    struct dt_matmul *matmul = p->matmul[t->last_m][t->last_n][block == p->tiles_k - 1];
    return dt_matmul_run(matmul, a, b, out, workspace);
}

static void put(const struct dt_gemm_args *g, const struct tile *t, void *c, const float *staged)
{
    if (g->c_type == DT_F32)
        put_f32(c, g->ldc, staged, t->m, t->n, g->accumulate);
    else
        put_bf16(c, g->ldc, staged, t->m, t->n, g->accumulate);
}

static int run_tile(const struct plan *p, const struct dt_gemm_args *g, int64_t index,
                    char *workspace)
{
    struct tile t = tile_of(p, g, index);
    char *c = (char *)g->c + (t.m0 * g->ldc + t.n0) * dt_dtype_size(g->c_type);
    if (!p->widen)
        return product(p, g, &t, 0, c, workspace);
    float *staged = (float *)(workspace + p->scratch + p->wide_a + p->wide_b);
    if (p->tiles_k > 1)
        memset(staged, 0, (size_t)(t.m * t.n) * sizeof *staged);
    for (int64_t block = 0; block < p->tiles_k; block++) {
        int code = product(p, g, &t, block, staged, workspace);
        if (code)
            return code;
    }
    put(g, &t, c, staged);
    return 0;
}

dt_status gemm_cpu(struct dt_device *device, const struct dt_gemm_args *args,
                   struct dt_stream *stream)
{
    (void)stream;
    struct plan plan;
    DT_TRY(make_plan(&plan, device, args));
    int64_t tiles = plan.tiles_m * plan.tiles_n;
    char *workspace = (char *)aligned((int64_t)(intptr_t)args->workspace);
    int code = 0;
#pragma omp parallel num_threads(dt_cpu_threads(device)) reduction(max : code)
    {
        char *own = workspace + omp_get_thread_num() * bytes_per_thread(&plan);
        // Some of oneDNN's code asks for the thread count when it runs, and a team of one is not a
        // parallel region to it. This holds inside of the region only.
        omp_set_num_threads(1);
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < tiles; i++) {
            int c = run_tile(&plan, args, i, own);
            code = c > code ? c : code;
        }
    }
    if (code)
        return DT_FAIL(DT_MACHINE, NULL, "oneDNN's matmul failed with status %d", code);
    return DT_OK;
}

// The fp32 product. For each block of k, B and then a few hundred rows of A are copied into panels
// as wide as the inner product (gemm_micro_cpu.h) reads them; bf16 is widened on the way. A panel
// of B stays in L1 while it meets all panels of A, which stay in L2. Panels also avoid the cache
// conflicts of rows 4 KB apart, which the operands of weight gradients have.
#include "kernels/gemm_tile_cpu.h"

#include "kernels/storage_cpu.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif
#include <string.h>

enum {
    BLOCK_K = 256,
    BLOCK_M = 256, // up to whole panels; with BLOCK_K half of an L2 cache of 512 KB
    MOST_COLUMNS = DT_DIRECT_COLUMNS, // of a panel of B
    MOST_ROWS = DT_DIRECT_ROWS,       // of a panel of A
    LINE = 16,                        // floats of a cache line
    AHEAD = 32,                       // elements of a row that are prefetched at a time
    STRIP = 8,                        // rows along k read at a time
    PAD = 16, // floats between panels: no power of two, for the caches' sake
};

struct panels {
    int64_t k;
    const float *a, *b;
    float *c;
    int64_t ldc;
    bool accumulate;
    float keep; // factor of the c that is added to
};

struct dt_gemm_kernel {
    int64_t rows, columns; // of a panel of A, of B
    void (*multiply)(const struct panels *panels, bool trans_a, int64_t columns);
    void (*direct)(const struct dt_gemm_direct *product);
    // whole panels from rows along k, [k, size]
    void (*fill_a)(float *to, const struct dt_view *from, int64_t k, int64_t size);
    void (*fill_b)(float *to, const struct dt_view *from, int64_t k, int64_t size);
};

static inline void prefetch(struct dt_soon *soon)
{
    for (int rows = 0; rows < DT_SOON_ROWS && soon->view < DT_SOON_VIEWS;) {
        const struct dt_view *view = &soon->views[soon->view];
        if (soon->row == view->rows) {
            soon->view++, soon->row = 0;
            continue;
        }
        const char *row = dt_view_at(view, soon->row++, 0);
        for (int64_t at = 0; at < view->cols * dt_dtype_size(view->dtype); at += 64)
            __builtin_prefetch(row + at, 0, 2);
        rows++;
    }
}

#define NAME(x) x##_plain
#define TARGET
#define LANES   4
#define VECTORS 2
#define ROWS    6
#include "kernels/gemm_micro_cpu.h"

#ifdef __x86_64__
#define NAME(x) x##_avx2
#define TARGET  __attribute__((target("avx2,fma")))
#define LANES   8
#define VECTORS 2
#define ROWS    6
#include "kernels/gemm_micro_cpu.h"

#define NAME(x) x##_avx512
#define TARGET  __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,prefer-vector-width=512")))
#define LANES   16
#define VECTORS 2
#define ROWS    12
#include "kernels/gemm_micro_cpu.h"
#endif

const struct dt_gemm_kernel *dt_gemm_kernel(enum dt_cpu_isa isa)
{
#ifdef __x86_64__
    if (isa >= DT_ISA_AVX512)
        return &kernel_avx512;
    if (isa >= DT_ISA_AVX2)
        return &kernel_avx2;
#endif
    (void)isa;
    return &kernel_plain;
}

static int64_t pitch_a(const struct dt_gemm_kernel *kernel)
{
    return kernel->rows * BLOCK_K + PAD;
}

static int64_t pitch_b(const struct dt_gemm_kernel *kernel)
{
    return kernel->columns * BLOCK_K + PAD;
}

static int64_t floats_of_a(const struct dt_gemm_kernel *kernel)
{
    return dt_ceil_div(BLOCK_M, kernel->rows) * pitch_a(kernel);
}

int64_t dt_gemm_tile_workspace(const struct dt_gemm_kernel *kernel, int64_t n)
{
    int64_t floats = floats_of_a(kernel) + dt_ceil_div(n, kernel->columns) * pitch_b(kernel);
    return floats * (int64_t)sizeof(float);
}

static inline float element(const struct dt_view *x, int64_t row, int64_t column)
{
    return dt_load(x->data, row * x->stride + column, x->dtype == DT_BF16);
}

// Fills the last panel where it is not whole, with zeros after the operand.
static void fill_edge(float *to, int64_t pitch, const struct dt_view *from, int64_t k, int64_t size,
                      int64_t panel)
{
    int64_t whole = size / panel, width = size - whole * panel;
    to += whole * pitch;
    for (int64_t p = 0; p < k && width > 0; p++, to += panel) {
        for (int64_t j = 0; j < width; j++)
            to[j] = element(from, p, whole * panel + j);
        memset(to + width, 0, (size_t)(panel - width) * sizeof *to);
    }
}

// Prefetches the next row: the hardware does not, where it lies in another page.
DT_CLONES static void copy_row(float *restrict to, const struct dt_view *from, int64_t n)
{
    const float *wide = from->data;
    const dt_bf16 *narrow = from->data;
    for (int64_t i = 0; i < n; i += AHEAD) {
        int64_t end = i + AHEAD < n ? i + AHEAD : n;
        if (from->dtype == DT_F32) {
            __builtin_prefetch(wide + i + from->stride);
            __builtin_prefetch(wide + i + from->stride + AHEAD / 2);
            for (int64_t j = i; j < end; j++)
                to[j] = wide[j];
        } else {
            __builtin_prefetch(narrow + i + from->stride);
            for (int64_t j = i; j < end; j++)
                to[j] = dt_bf16_to_f32(narrow[j]);
        }
    }
}

// Rows across k, [size, k], into panels [panel, BLOCK_K].
static void fill_along(float *to, int64_t pitch, const struct dt_view *from, int64_t k,
                       int64_t size, int64_t panel)
{
    for (int64_t i = 0; i < size; i += panel, to += pitch)
        for (int64_t r = 0; r < panel; r++) {
            struct dt_view x = dt_view_rows(*from, i + r, i + r + 1);
            if (i + r < size)
                copy_row(to + r * BLOCK_K, &x, k);
            else
                memset(to + r * BLOCK_K, 0, (size_t)k * sizeof *to);
        }
}

typedef float four __attribute__((vector_size(16), aligned(4), may_alias));
typedef uint32_t four_bits __attribute__((vector_size(16), may_alias));
typedef uint16_t four_bf16 __attribute__((vector_size(8), aligned(2), may_alias));

DT_INLINE four load_four(const void *x, bool wide)
{
    if (wide)
        return *(const four *)x;
    return (four)(__builtin_convertvector(*(const four_bf16 *)x, four_bits) << 16);
}

// Four rows of four become four columns.
DT_INLINE void turn_four(float *to, int64_t pitch, const char *x, int64_t ld, bool wide)
{
    four a = load_four(x, wide), b = load_four(x + ld, wide), c = load_four(x + 2 * ld, wide),
         d = load_four(x + 3 * ld, wide);
    four ab0 = __builtin_shufflevector(a, b, 0, 4, 1, 5),
         ab1 = __builtin_shufflevector(a, b, 2, 6, 3, 7),
         cd0 = __builtin_shufflevector(c, d, 0, 4, 1, 5),
         cd1 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    *(four *)to = __builtin_shufflevector(ab0, cd0, 0, 1, 4, 5);
    *(four *)(to + pitch) = __builtin_shufflevector(ab0, cd0, 2, 3, 6, 7);
    *(four *)(to + 2 * pitch) = __builtin_shufflevector(ab1, cd1, 0, 1, 4, 5);
    *(four *)(to + 3 * pitch) = __builtin_shufflevector(ab1, cd1, 2, 3, 6, 7);
}

DT_INLINE void turn(float *to, const char *from, int64_t ld, int64_t k, int64_t panel, bool bf16)
{
    int64_t size = bf16 ? 2 : 4;
    for (int64_t p0 = 0; p0 < k; p0 += LINE)
        for (int64_t r = 0; r < panel; r += 4)
            for (int64_t p = p0; p < p0 + LINE && p < k; p += 4)
                turn_four(to + p * panel + r, panel, from + r * ld + p * size, ld, !bf16);
}

// Turns one panel, a cache line of four rows at a time.
DT_CLONES static void turn_panel(float *to, const char *from, int64_t ld, int64_t k, int64_t panel,
                                 enum dt_dtype type)
{
    DT_STORAGE_SWITCH(type, bf16, turn(to, from, ld, k, panel, bf16));
}

DT_CLONES void dt_gemm_turn(float *to, int64_t to_row, const float *from, int64_t from_row,
                            int64_t k, int64_t n)
{
    for (int64_t p = 0; p < k; p += 4)
        for (int64_t i = 0; i < n; i += 4)
            turn_four(to + p * to_row + i, to_row, (const char *)(from + i * from_row + p),
                      from_row * (int64_t)sizeof(float), true);
}

// Rows across k, [size, k], into panels [k, panel].
static void fill_turned(float *to, int64_t pitch, const struct dt_view *from, int64_t k,
                        int64_t size, int64_t panel)
{
    int64_t fours = k / 4 * 4, ld = from->stride * dt_dtype_size(from->dtype);
    for (int64_t j = 0; j < size; j += panel, to += pitch) {
        int64_t left = size - j, p = 0;
        if (left >= panel) {
            turn_panel(to, dt_view_at(from, j, 0), ld, fours, panel, from->dtype);
            p = fours;
        }
        for (; p < k; p++)
            for (int64_t i = 0; i < panel; i++)
                to[p * panel + i] = i < left ? element(from, j + i, p) : 0.0f;
    }
}

static void fill_a(const struct dt_gemm_kernel *kernel, const struct dt_gemm_args *g, float *to,
                   int64_t m0, int64_t k0, int64_t m, int64_t k)
{
    struct dt_view a =
        g->trans_a ? dt_view_block(g->a, k0, m0, k, m) : dt_view_block(g->a, m0, k0, m, k);
    if (g->trans_a) {
        kernel->fill_a(to, &a, k, m);
        fill_edge(to, pitch_a(kernel), &a, k, m, kernel->rows);
    } else {
        fill_along(to, pitch_a(kernel), &a, k, m, kernel->rows);
    }
}

static void fill_b(const struct dt_gemm_kernel *kernel, const struct dt_gemm_args *g, float *to,
                   int64_t k0, int64_t k)
{
    struct dt_view b = g->trans_b ? dt_view_cols(g->b, k0, k0 + k) : dt_view_rows(g->b, k0, k0 + k);
    if (g->trans_b) {
        fill_turned(to, pitch_b(kernel), &b, k, g->c.cols, kernel->columns);
    } else {
        kernel->fill_b(to, &b, k, g->c.cols);
        fill_edge(to, pitch_b(kernel), &b, k, g->c.cols, kernel->columns);
    }
}

// Panels that reach past the tile: the product goes to a local array first.
static void multiply_edge(const struct dt_gemm_kernel *kernel, const struct panels *x, bool trans_a,
                          int64_t m, int64_t n)
{
    float aside[MOST_ROWS * MOST_COLUMNS];
    struct panels y = *x;
    y.c = aside;
    y.ldc = kernel->columns;
    y.accumulate = false;
    kernel->multiply(&y, trans_a, n);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            float *c = x->c + i * x->ldc + j;
            *c = x->accumulate ? *c + aside[i * y.ldc + j] : aside[i * y.ldc + j];
        }
}

static void multiply_block(const struct dt_gemm_kernel *kernel, const struct panels *block,
                           bool trans_a, int64_t m, int64_t n)
{
    struct panels x = *block;
    for (int64_t j = 0; j < n; j += kernel->columns, x.b += pitch_b(kernel)) {
        int64_t columns = dt_min_i64(kernel->columns, n - j);
        bool whole = columns == kernel->columns;
        x.a = block->a;
        for (int64_t i = 0; i < m; i += kernel->rows, x.a += pitch_a(kernel)) {
            x.c = block->c + i * x.ldc + j;
            if (whole && m - i >= kernel->rows)
                kernel->multiply(&x, trans_a, columns);
            else
                multiply_edge(kernel, &x, trans_a, dt_min_i64(kernel->rows, m - i), columns);
        }
    }
}

void dt_gemm_tile(const struct dt_gemm_kernel *kernel, const struct dt_gemm_args *tile)
{
    float *a = tile->workspace, *b = a + floats_of_a(kernel), *c = tile->c.data;
    int64_t rows = dt_round_up(BLOCK_M, kernel->rows), k = dt_gemm_k(tile); // rows copied at a time
    for (int64_t p = 0; p < k; p += BLOCK_K) {
        struct panels block = {.k = dt_min_i64(BLOCK_K, k - p),
                               .a = a,
                               .b = b,
                               .ldc = tile->c.stride,
                               .keep = 1.0f,
                               .accumulate = tile->accumulate || p > 0};
        fill_b(kernel, tile, b, p, block.k);
        for (int64_t i = 0; i < tile->c.rows; i += rows) {
            int64_t m = dt_min_i64(rows, tile->c.rows - i);
            fill_a(kernel, tile, a, i, p, m, block.k);
            block.c = c + i * tile->c.stride;
            multiply_block(kernel, &block, tile->trans_a, m, tile->c.cols);
        }
    }
}

void dt_gemm_direct(const struct dt_gemm_kernel *kernel, const struct dt_gemm_direct *product)
{
    kernel->direct(product);
}

// ---- bf16 operands: pairs along k side by side, as the instruction takes them

int64_t dt_gemm_direct_bf16_bytes(int64_t m, int64_t n, int64_t k)
{
    int64_t pairs = dt_round_up(k, 32) / 2;
    return (dt_round_up(m, 16) + n) * pairs * (int64_t)sizeof(uint32_t);
}

#ifdef __x86_64__
#define BF16        __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx512bf16")))
#define BF16_INLINE BF16 static inline __attribute__((always_inline))

// The rows of `from` [k, n] run along k: to[p / 2, j] gets rows p and p + 1 of column j.
BF16 static void pair_rows(uint32_t *to, const float *from, int64_t row, int64_t k, int64_t n)
{
    const __m512i mix = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    for (int64_t p = 0; p < k; p += 2, from += 2 * row)
        for (int64_t j = 0; j < n; j += 16, to += 16) {
            __m512 low = _mm512_loadu_ps(from + j);
            __m512 high = p + 1 < k ? _mm512_loadu_ps(from + row + j) : _mm512_setzero_ps();
            __m512i both = (__m512i)_mm512_cvtne2ps_pbh(high, low);
            _mm512_storeu_si512(to, _mm512_permutexvar_epi16(mix, both));
        }
}

// The rows of `from` [m, k] run across k: to[i, p / 2] gets columns p and p + 1 of row i.
BF16 static void pair_columns(uint32_t *to, int64_t pairs, const float *from, int64_t row,
                              int64_t m, int64_t k)
{
    for (int64_t i = 0; i < m; i++, to += pairs, from += row)
        for (int64_t p = 0; p < k; p += 32) {
            int64_t left = k - p;
            __mmask16 low = (__mmask16)(left >= 16 ? 0xffff : (1 << left) - 1);
            __mmask16 high = (__mmask16)(left >= 32   ? 0xffff
                                         : left <= 16 ? 0
                                                      : (1 << (left - 16)) - 1);
            __m512bh both = _mm512_cvtne2ps_pbh(_mm512_maskz_loadu_ps(high, from + p + 16),
                                                _mm512_maskz_loadu_ps(low, from + p));
            _mm512_storeu_si512(to + p / 2, (__m512i)both);
        }
}

struct paired {
    const uint32_t *a, *b;
    int64_t a_row, a_pair, b_pair, pairs; // in pairs
};

// `rows` rows from i on and `vectors` registers of columns from j on.
BF16_INLINE void product_bf16(const struct dt_gemm_direct *x, const struct paired *y, int64_t i,
                              int64_t j, int rows, int vectors)
{
    __m512 sum[8][2];
    const uint32_t *a = y->a + i * y->a_row, *b = y->b + j;
    float *c = x->c + i * x->c_row + j;
    if (x->soon)
        prefetch(x->soon);
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++)
            sum[r][v] = _mm512_setzero_ps();
    for (int64_t p = 0; p < y->pairs; p++, a += y->a_pair, b += y->b_pair) {
        __m512i columns[2];
        for (int v = 0; v < vectors; v++)
            columns[v] = _mm512_loadu_si512(b + 16 * v);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < vectors; v++)
                sum[r][v] =
                    _mm512_dpbf16_ps(sum[r][v], (__m512bh)_mm512_set1_epi32((int)a[r * y->a_row]),
                                     (__m512bh)columns[v]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) {
            float *to = c + r * x->c_row + 16 * v;
            __m512 before = x->keep != 0.0f ? _mm512_loadu_ps(to) : _mm512_setzero_ps();
            _mm512_storeu_ps(to, _mm512_fmadd_ps(_mm512_set1_ps(x->keep), before, sum[r][v]));
        }
}

BF16 void dt_gemm_direct_bf16(const struct dt_gemm_direct *x, void *scratch)
{
    int64_t pairs = dt_round_up(x->k, 32) / 2, m = dt_round_up(x->m, 16);
    uint32_t *a = scratch, *b = a + m * pairs;
    bool turned = x->a_row == 1;
    struct paired y = {.a = a,
                       .b = b,
                       .a_row = turned ? 1 : pairs,
                       .a_pair = turned ? m : 1,
                       .b_pair = x->n,
                       .pairs = (x->k + 1) / 2};
    if (turned)
        pair_rows(a, x->a, x->a_k, x->k, m);
    else
        pair_columns(a, pairs, x->a, x->a_row, x->m, x->k);
    pair_rows(b, x->b, x->b_k, x->k, x->n);
    for (int64_t j = 0; j < x->n; j += 32) {
        int64_t i = 0;
        bool half = x->n - j < 32;
        for (; i + 8 <= x->m && !half; i += 8)
            product_bf16(x, &y, i, j, 8, 2);
        for (; i + 8 <= x->m; i += 8)
            product_bf16(x, &y, i, j, 8, 1);
        for (; i < x->m; i++)
            product_bf16(x, &y, i, j, 1, half ? 1 : 2);
    }
}
#else
void dt_gemm_direct_bf16(const struct dt_gemm_direct *x, void *scratch)
{
    (void)scratch;
    dt_gemm_direct(&kernel_plain, x);
}
#endif

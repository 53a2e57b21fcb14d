// The product with fp32 sums. For each block of k, B and then a few hundred rows of A are copied
// into panels as wide as the inner product (gemm_micro_cpu.h, gemm_amx_cpu.h) reads them; bf16 is
// widened on the way where the inner product takes fp32. A panel of B stays in L1 while it is
// multiplied with all panels of A, which stay in L2. Panels also avoid the cache conflicts of rows
// 4 KB apart, as in operands of weight gradients.
#include "kernels/gemm_tile_cpu.h"

#include "kernels/storage_cpu.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif
#include <string.h>

enum {
    BLOCK_K = 256,
    BLOCK_M = 256, // rounded up to whole panels; with BLOCK_K half of a 512 KB L2
    MOST_COLUMNS = DT_DIRECT_COLUMNS, // columns per panel of B
    MOST_ROWS = 32,                   // rows per panel of A
    LINE = 16,                        // floats per cache line
    AHEAD = 32,                       // elements of a row that are prefetched at a time
    STRIP = 8,                        // rows along k read at a time
    PAD = 16,                         // floats between panels, against cache conflicts
};

struct panels {
    int64_t k;
    const float *a, *b;
    float *c;
    int64_t ldc;
    bool goes_on; // the sum starts from c
    float keep;   // factor of c; 0: c is not read
};

struct dt_gemm_kernel {
    int64_t rows, columns; // per panel of A; columns per panel of B
    int64_t pair;          // elements of k per panel element: 1, bf16: 2
    int64_t whole_k;       // panels are padded with zeros to a multiple of this k
    int64_t turn_k;        // multiples of k that `turn` takes
    bool a_along;          // panels of A are [rows, BLOCK_K] even where A is transposed
    void (*open)(void);    // prepares the calling thread for `multiply`, or NULL
    void (*close)(void);
    void (*multiply)(const struct panels *panels, bool trans_a, int64_t columns);
    void (*direct)(const struct dt_gemm_direct *product);
    // fills whole panels from rows along k, [k, size]
    void (*fill_a)(float *to, const struct dt_view *from, int64_t k, int64_t size);
    void (*fill_b)(float *to, const struct dt_view *from, int64_t k, int64_t size);
    // transposes `panel` rows along k, `ld` bytes apart, into a panel [k, panel]
    void (*turn)(float *to, const char *from, int64_t ld, int64_t k, int64_t panel, bool widen);
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

// Packs two bf16 neighbours along k into one panel element.
DT_INLINE float pair(dt_bf16 low, dt_bf16 high)
{
    return dt_float_of_bits(low | (uint32_t)high << 16);
}

static void turn_fours(float *to, const char *from, int64_t ld, int64_t k, int64_t panel,
                       bool widen);

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

#define AVX512 "avx512f,avx512dq,avx512bw,avx512vl,prefer-vector-width=512"

#define NAME(x) x##_avx512
#define TARGET  __attribute__((target(AVX512)))
#define LANES   16
#define VECTORS 2
#define ROWS    12
#include "kernels/gemm_micro_cpu.h"

#define NAME(x) x##_bf16
#define TARGET  __attribute__((target(AVX512 ",avx512bf16")))
#define LANES   16
#define VECTORS 2
#define ROWS    12
#define PAIR    2
#define MULTIPLY(sum, a, b)                                                                        \
    sum = (vector_bf16)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_ps(a), (__m512bh)(b))
#include "kernels/gemm_micro_cpu.h"

#include "kernels/gemm_amx_cpu.h"
#endif

const struct dt_gemm_kernel *dt_gemm_kernel(enum dt_cpu_isa isa, enum dt_dtype type)
{
#ifdef __x86_64__
    if (isa >= DT_ISA_AMX_BF16 && type == DT_BF16)
        return &kernel_amx;
    if (isa >= DT_ISA_AVX512_BF16 && type == DT_BF16)
        return &kernel_bf16;
    if (isa >= DT_ISA_AVX512)
        return &kernel_avx512;
    if (isa >= DT_ISA_AVX2)
        return &kernel_avx2;
#endif
    (void)isa, (void)type;
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

// Rows of A that are copied at a time.
static int64_t rows_of_a(const struct dt_gemm_kernel *kernel)
{
    return dt_round_up(BLOCK_M, kernel->rows);
}

static int64_t floats_of_a(const struct dt_gemm_kernel *kernel)
{
    return rows_of_a(kernel) / kernel->rows * pitch_a(kernel);
}

static int64_t floats_of_b(const struct dt_gemm_kernel *kernel, const struct dt_gemm_args *tile)
{
    return dt_ceil_div(tile->c.cols, kernel->columns) * pitch_b(kernel);
}

int64_t dt_gemm_tile_workspace(const struct dt_gemm_kernel *kernel, const struct dt_gemm_args *tile)
{
    int64_t beside = dt_gemm_k(tile) > BLOCK_K * kernel->pair ? tile->c.rows : rows_of_a(kernel);
    int64_t floats = floats_of_a(kernel) + floats_of_b(kernel, tile) +
                     (tile->c.dtype == DT_BF16 ? beside * tile->c.cols : 0);
    return floats * (int64_t)sizeof(float);
}

// An operand of a block: [k, size], or [size, k] if its rows are along k.
struct operand {
    struct dt_view view;
    bool along;
    int64_t k, size;
    int64_t panel, pitch; // width of a panel; floats between panels
    bool rows;            // a panel is [panel, BLOCK_K], else [k, panel]
    int64_t pair;         // the kernel's
};

// Element p of row or column i of a panel.
static inline float element(const struct operand *x, int64_t i, int64_t p)
{
    int64_t step = x->along ? 1 : x->view.stride;
    int64_t at = (x->along ? i * x->view.stride : i) + x->pair * p * step;
    const dt_bf16 *narrow = x->view.data;
    if (x->pair == 1)
        return dt_load(x->view.data, at, x->view.dtype == DT_BF16);
    return pair(narrow[at], 2 * p + 1 < x->k ? narrow[at + step] : 0);
}

// Fills an incomplete last panel, padded with zeros.
static void fill_edge(float *to, const struct operand *x)
{
    int64_t whole = x->size / x->panel, width = x->size - whole * x->panel;
    to += whole * x->pitch;
    for (int64_t p = 0; p < dt_ceil_div(x->k, x->pair) && width > 0; p++)
        for (int64_t i = 0; i < x->panel; i++)
            to[x->rows ? i * BLOCK_K + p : p * x->panel + i] =
                i < width ? element(x, whole * x->panel + i, p) : 0.0f;
}

// Sets panel elements from the last one along k to a multiple of `whole_k` to zero.
static void pad_k(float *to, const struct operand *x, int64_t whole_k)
{
    int64_t k = dt_ceil_div(x->k, x->pair), rest = dt_round_up(k, whole_k) - k;
    for (int64_t i = 0; i < x->size && rest > 0; i += x->panel, to += x->pitch)
        if (x->rows)
            for (int64_t r = 0; r < x->panel; r++)
                memset(to + r * BLOCK_K + k, 0, (size_t)rest * sizeof *to);
        else
            memset(to + k * x->panel, 0, (size_t)(rest * x->panel) * sizeof *to);
}

typedef float loose_float __attribute__((aligned(2), may_alias)); // or a pair of bf16

// Copies a row and prefetches the next, `ld` bytes on: hardware does not prefetch across pages.
DT_CLONES static void copy_row(float *restrict to, const char *from, int64_t ld, int64_t n,
                               bool widen)
{
    const loose_float *wide = (const loose_float *)from;
    const dt_bf16 *narrow = (const dt_bf16 *)from;
    for (int64_t i = 0; i < n; i += AHEAD) {
        int64_t end = i + AHEAD < n ? i + AHEAD : n;
        if (widen) {
            __builtin_prefetch(from + 2 * i + ld);
            for (int64_t j = i; j < end; j++)
                to[j] = dt_bf16_to_f32(narrow[j]);
        } else {
            __builtin_prefetch(from + 4 * i + ld);
            __builtin_prefetch(from + 4 * (i + AHEAD / 2) + ld);
            for (int64_t j = i; j < end; j++)
                to[j] = wide[j];
        }
    }
}

// Rows along k into panels [panel, BLOCK_K].
static void fill_along(float *to, const struct operand *x)
{
    int64_t size = dt_dtype_size(x->view.dtype), whole = x->k / x->pair;
    for (int64_t i = 0; i < x->size; i += x->panel, to += x->pitch)
        for (int64_t r = 0; r < x->panel; r++) {
            float *row = to + r * BLOCK_K;
            if (i + r >= x->size) {
                memset(row, 0, (size_t)dt_ceil_div(x->k, x->pair) * sizeof *row);
                continue;
            }
            copy_row(row, dt_view_at(&x->view, i + r, 0), x->view.stride * size, whole,
                     size * x->pair == 2);
            if (whole * x->pair < x->k)
                row[whole] = element(x, i + r, whole);
        }
}

typedef float four __attribute__((vector_size(16), aligned(2), may_alias));
typedef uint32_t four_bits __attribute__((vector_size(16), may_alias));
typedef uint16_t four_bf16 __attribute__((vector_size(8), aligned(2), may_alias));

DT_INLINE four load_four(const void *x, bool wide)
{
    if (wide)
        return *(const four *)x;
    return (four)(__builtin_convertvector(*(const four_bf16 *)x, four_bits) << 16);
}

// Transposes 4 x 4.
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

DT_INLINE void turn(float *to, const char *from, int64_t ld, int64_t k, int64_t panel, bool wide)
{
    int64_t size = wide ? 4 : 2;
    for (int64_t p0 = 0; p0 < k; p0 += LINE)
        for (int64_t r = 0; r < panel; r += 4)
            for (int64_t p = p0; p < p0 + LINE && p < k; p += 4)
                turn_four(to + p * panel + r, panel, from + r * ld + p * size, ld, wide);
}

// Transposes one panel, a cache line of four rows at a time.
DT_CLONES static void turn_fours(float *to, const char *from, int64_t ld, int64_t k, int64_t panel,
                                 bool widen)
{
    DT_BOOL_SWITCH(!widen, wide, turn(to, from, ld, k, panel, wide));
}

DT_CLONES void dt_gemm_turn(float *to, int64_t to_row, const float *from, int64_t from_row,
                            int64_t k, int64_t n)
{
    for (int64_t p = 0; p < k; p += 4)
        for (int64_t i = 0; i < n; i += 4)
            turn_four(to + p * to_row + i, to_row, (const char *)(from + i * from_row + p),
                      from_row * (int64_t)sizeof(float), true);
}

// Rows along k into panels [k, panel].
static void fill_turned(const struct dt_gemm_kernel *kernel, float *to, const struct operand *x)
{
    int64_t size = dt_dtype_size(x->view.dtype), k = dt_ceil_div(x->k, x->pair),
            whole = x->k / x->pair / kernel->turn_k * kernel->turn_k;
    for (int64_t j = 0; j < x->size; j += x->panel, to += x->pitch) {
        int64_t left = x->size - j, p = 0;
        if (left >= x->panel) {
            kernel->turn(to, dt_view_at(&x->view, j, 0), x->view.stride * size, whole, x->panel,
                         size * x->pair == 2);
            p = whole;
        }
        for (; p < k; p++)
            for (int64_t i = 0; i < x->panel; i++)
                to[p * x->panel + i] = i < left ? element(x, j + i, p) : 0.0f;
    }
}

static void fill_a(const struct dt_gemm_kernel *kernel, const struct dt_gemm_args *g, float *to,
                   int64_t m0, int64_t k0, int64_t m, int64_t k)
{
    struct operand a = {.view = g->trans_a ? dt_view_block(g->a, k0, m0, k, m)
                                           : dt_view_block(g->a, m0, k0, m, k),
                        .along = !g->trans_a,
                        .k = k,
                        .size = m,
                        .panel = kernel->rows,
                        .pitch = pitch_a(kernel),
                        .rows = !g->trans_a || kernel->a_along,
                        .pair = kernel->pair};
    if (a.along) {
        fill_along(to, &a);
    } else {
        kernel->fill_a(to, &a.view, k, m);
        fill_edge(to, &a);
    }
    pad_k(to, &a, kernel->whole_k);
}

static void fill_b(const struct dt_gemm_kernel *kernel, const struct dt_gemm_args *g, float *to,
                   int64_t k0, int64_t k)
{
    struct operand b = {.view = g->trans_b ? dt_view_cols(g->b, k0, k0 + k)
                                           : dt_view_rows(g->b, k0, k0 + k),
                        .along = g->trans_b,
                        .k = k,
                        .size = g->c.cols,
                        .panel = kernel->columns,
                        .pitch = pitch_b(kernel),
                        .pair = kernel->pair};
    if (b.along) {
        fill_turned(kernel, to, &b);
    } else {
        kernel->fill_b(to, &b.view, k, g->c.cols);
        fill_edge(to, &b);
    }
    pad_k(to, &b, kernel->whole_k);
}

// C (+)= fp32 rows, `pitch` floats apart.
DT_INLINE void put_rows(const struct dt_view *c, const float *from, int64_t pitch, bool accumulate,
                        bool bf16)
{
    for (int64_t i = 0; i < c->rows; i++)
        for (int64_t j = 0; j < c->cols; j++) {
            float x = from[i * pitch + j];
            int64_t at = i * c->stride + j;
            dt_store(c->data, at, accumulate ? dt_load(c->data, at, bf16) + x : x, bf16);
        }
}

DT_CLONES void dt_gemm_put(struct dt_view c, bool accumulate, const float *from, int64_t pitch)
{
    DT_STORAGE_SWITCH(c.dtype, bf16, put_rows(&c, from, pitch, accumulate, bf16));
}

// Multiplies panels of A and of B over a block of k: `panels->c` of m rows and n columns. What
// reaches past them goes through a local array.
static void multiply_block(const struct dt_gemm_kernel *kernel, const struct panels *block,
                           bool trans_a, int64_t m, int64_t n)
{
    float aside[MOST_ROWS * MOST_COLUMNS];
    struct panels x = *block;
    for (int64_t j = 0; j < n; j += kernel->columns, x.b += pitch_b(kernel)) {
        int64_t columns = dt_min_i64(kernel->columns, n - j);
        x.a = block->a;
        for (int64_t i = 0; i < m; i += kernel->rows, x.a += pitch_a(kernel)) {
            int64_t rows = dt_min_i64(kernel->rows, m - i);
            float *c = block->c + i * block->ldc + j;
            x.c = c, x.ldc = block->ldc;
            if (rows == kernel->rows && columns == kernel->columns) {
                kernel->multiply(&x, trans_a, columns);
                continue;
            }
            x.c = aside, x.ldc = kernel->columns;
            memset(aside, 0, sizeof aside);
            for (int64_t r = 0; r < rows && x.goes_on; r++)
                memcpy(aside + r * x.ldc, c + r * block->ldc, (size_t)columns * sizeof *c);
            kernel->multiply(&x, trans_a, columns);
            for (int64_t r = 0; r < rows; r++)
                memcpy(c + r * block->ldc, aside + r * x.ldc, (size_t)columns * sizeof *c);
        }
    }
}

// Where C is bf16, sums of one block of k are stored from cache, and those of several stay beside C
// until the last one.
void dt_gemm_tile(const struct dt_gemm_kernel *kernel, const struct dt_gemm_args *tile)
{
    float *a = tile->workspace, *b = a + floats_of_a(kernel),
          *beside = b + floats_of_b(kernel, tile);
    const int64_t rows = rows_of_a(kernel), k = dt_gemm_k(tile), block_k = BLOCK_K * kernel->pair;
    bool wide = tile->c.dtype == DT_F32;
    if (kernel->open)
        kernel->open();
    for (int64_t p = 0; p < k; p += block_k) {
        int64_t here = dt_min_i64(block_k, k - p);
        struct panels block = {.k = dt_ceil_div(here, kernel->pair),
                               .a = a,
                               .b = b,
                               .ldc = wide ? tile->c.stride : tile->c.cols,
                               .goes_on = (wide && tile->accumulate) || p > 0};
        fill_b(kernel, tile, b, p, here);
        for (int64_t i = 0; i < tile->c.rows; i += rows) {
            int64_t m = dt_min_i64(rows, tile->c.rows - i);
            struct dt_view c = dt_view_rows(tile->c, i, i + m);
            fill_a(kernel, tile, a, i, p, m, here);
            block.c = wide ? c.data : beside + (k > block_k ? i * c.cols : 0);
            multiply_block(kernel, &block, tile->trans_a, m, c.cols);
            if (!wide && p + here == k)
                dt_gemm_put(c, tile->accumulate, block.c, block.ldc);
        }
    }
    if (kernel->close)
        kernel->close();
}

void dt_gemm_direct(const struct dt_gemm_kernel *kernel, const struct dt_gemm_direct *product)
{
    kernel->direct(product);
}

// ---- bf16 operands: pairs along k, as the instruction needs them

int64_t dt_gemm_direct_bf16_bytes(int64_t m, int64_t n, int64_t k)
{
    int64_t pairs = dt_round_up(k, 32) / 2, slack = LINE; // half a panel of B may be read
    return ((dt_round_up(m, MOST_ROWS) + n) * pairs + slack) * (int64_t)sizeof(uint32_t);
}

#ifdef __x86_64__
#define BF16 __attribute__((target(AVX512 ",avx512bf16")))

// Rows p and p + 1 of a [k, …]: pairs of columns j to j + 15; zeros from row k on.
BF16 DT_INLINE __m512i pair_of_rows(const float *from, int64_t row, int64_t p, int64_t k, int64_t j)
{
    const __m512i mix = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const float *at = from + p * row + j;
    __m512 low = p < k ? _mm512_loadu_ps(at) : _mm512_setzero_ps(),
           high = p + 1 < k ? _mm512_loadu_ps(at + row) : _mm512_setzero_ps();
    return _mm512_permutexvar_epi16(mix, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

// `from` is [k, n]: to[q, j] gets rows 2 q and 2 q + 1 of column j, q < pairs.
BF16 static void pair_rows(uint32_t *to, int64_t pairs, const float *from, int64_t row, int64_t k,
                           int64_t n)
{
    for (int64_t q = 0; q < pairs; q++)
        for (int64_t j = 0; j < n; j += 16, to += 16)
            _mm512_storeu_si512(to, pair_of_rows(from, row, 2 * q, k, j));
}

// Likewise, but the pairs of a column are a row of `to`, [m, pairs].
BF16 static void pair_turned(uint32_t *to, int64_t pairs, const float *from, int64_t row, int64_t m,
                             int64_t k)
{
    for (int64_t q = 0; q < pairs; q += TILE_LINES)
        for (int64_t i = 0; i < m; i += TILE_LINES) {
            __m512i line[TILE_LINES];
#pragma GCC unroll 16
            for (int64_t r = 0; r < TILE_LINES; r++)
                line[r] = pair_of_rows(from, row, 2 * (q + r), k, i);
            turn_lines(line);
#pragma GCC unroll 16
            for (int64_t r = 0; r < TILE_LINES; r++)
                _mm512_storeu_si512(to + (i + r) * pairs + q, line[r]);
        }
}

// `from` is [m, k]: to[i, p / 2] gets columns p and p + 1 of row i.
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

BF16 void dt_gemm_direct_bf16(const struct dt_gemm_direct *x, void *scratch)
{
    bool amx = dt_cpu_isa() >= DT_ISA_AMX_BF16, turned = x->a_row == 1;
    int64_t whole = dt_round_up(x->k, 32) / 2, pairs = amx ? whole : (x->k + 1) / 2,
            m = dt_round_up(x->m, 16);
    uint32_t *a = scratch, *b = a + dt_round_up(x->m, MOST_ROWS) * whole;
    if (!turned)
        pair_columns(a, whole, x->a, x->a_row, x->m, x->k);
    else if (amx)
        pair_turned(a, whole, x->a, x->a_k, m, x->k);
    else
        pair_rows(a, pairs, x->a, x->a_k, x->k, m);
    pair_rows(b, pairs, x->b, x->b_k, x->k, x->n);
    if (amx) {
        direct_amx(x, (const float *)a, (const float *)b, pairs);
        return;
    }
    struct dt_gemm_direct y = *x;
    y.k = pairs;
    y.a = (const float *)a, y.b = (const float *)b;
    y.a_row = turned ? 1 : whole;
    y.a_k = turned ? m : 1;
    y.b_k = x->n;
    kernel_bf16.direct(&y);
}
#else
void dt_gemm_direct_bf16(const struct dt_gemm_direct *x, void *scratch)
{
    (void)scratch;
    dt_gemm_direct(&kernel_plain, x);
}
#endif

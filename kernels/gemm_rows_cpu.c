// Products of few rows: A is widened once, to fp32 or int16; then each row of B is multiplied with
// all rows of A. One thread computes a column of C.
#include "kernels/gemm_rows_cpu.h"

#include "kernels/storage_cpu.h"

#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

enum {
    MOST_COLUMNS = 8, // columns of one row of C at a time
    LANES_MAX = 16,
    ALIGN = 64,
    PIECE = 64,      // columns per thread at least
    ALONE = 1 << 16, // multiplications below which one thread is faster
};

struct rows {
    const struct dt_gemm_args *args;
    enum dt_dtype type;    // of A and B
    int64_t m, k, pitch;   // pitch: elements between rows of widened A
    const float *wide;     // [m, pitch], or
    const int16_t *shorts; // int8: [m, pitch]
    const char *b;
    int64_t ldb; // bytes between its rows
};

typedef float four_floats __attribute__((vector_size(16)));
typedef int8_t eight_bytes __attribute__((vector_size(8), aligned(1), may_alias));
typedef int32_t four_ints __attribute__((vector_size(16)));

// Stores n elements of C from row i and column j on.
DT_INLINE void put(const struct rows *r, int64_t i, int64_t j, int n, four_floats sum)
{
    const struct dt_gemm_args *g = r->args;
    bool bf16 = g->c.dtype == DT_BF16;
    for (int l = 0; l < n; l++) {
        int64_t at = i * g->c.stride + j + l;
        float value = sum[l];
        if (r->type == DT_I8)
            value = value * (g->a_scale[i] * g->b_scale[j + l]);
        dt_store(g->c.data, at, g->accumulate ? dt_load(g->c.data, at, bf16) + value : value, bf16);
    }
}

#define NAME(x) x##_plain
#define TARGET
#define LANES         4
#define ROWS          2
#define WIDEN(w)      __builtin_convertvector(*(const eight_bytes *)(w), shorts_plain)
#define PAIR(x, w, i) (x)[2 * (i)] * (w)[2 * (i)] + (x)[2 * (i) + 1] * (w)[2 * (i) + 1]
#define MADD(x, w)    ((sums_plain){PAIR(x, w, 0), PAIR(x, w, 1), PAIR(x, w, 2), PAIR(x, w, 3)})
#include "kernels/gemm_rows_micro_cpu.h"

#ifdef __x86_64__
#define NAME(x)    x##_avx2
#define TARGET     __attribute__((target("avx2,fma")))
#define LANES      8
#define ROWS       2
#define WIDEN(w)   ((shorts_avx2)_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i_u *)(w))))
#define MADD(x, w) ((sums_avx2)_mm256_madd_epi16((__m256i)(x), (__m256i)(w)))
#include "kernels/gemm_rows_micro_cpu.h"

#define NAME(x)    x##_avx512
#define TARGET     __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,prefer-vector-width=512")))
#define LANES      16
#define ROWS       4
#define WIDEN(w)   ((shorts_avx512)_mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i_u *)(w))))
#define MADD(x, w) ((sums_avx512)_mm512_madd_epi16((__m512i)(x), (__m512i)(w)))
#include "kernels/gemm_rows_micro_cpu.h"
#endif

struct kernel {
    int64_t lanes;
    void (*columns)(const struct rows *rows, int64_t first, int64_t last);
};

static struct kernel kernel_of(enum dt_cpu_isa isa)
{
#ifdef __x86_64__
    if (isa >= DT_ISA_AVX512)
        return (struct kernel){16, columns_avx512};
    if (isa >= DT_ISA_AVX2)
        return (struct kernel){8, columns_avx2};
#endif
    (void)isa;
    return (struct kernel){4, columns_plain};
}

bool dt_gemm_rows_suits(const struct dt_gemm_args *g)
{
    return g->a.dtype == DT_I8 || (g->play && g->c.rows <= DT_GEMM_FEW_ROWS);
}

static int64_t pitch_of(const struct dt_gemm_args *g)
{
    return dt_round_up(dt_gemm_k(g), LANES_MAX);
}

int64_t dt_gemm_rows_workspace(const struct dt_gemm_args *g)
{
    int64_t size = g->a.dtype == DT_I8 ? (int64_t)sizeof(int16_t) : (int64_t)sizeof(float);
    return g->c.rows * pitch_of(g) * size + ALIGN;
}

// Converts a row of A for the dot products. bf16 rows become pairs of vectors: the even elements,
// then the odd ones. If k is not a multiple of the lanes, the last elements go to the end of a
// vector of zeros, because B's last vector ends with the row and repeats elements.
DT_CLONES static void widen(const struct dt_view *a, int64_t row, int64_t lanes, float *to)
{
    int64_t k = a->cols, rest = k % lanes, whole = k - rest, skip = k < lanes ? 0 : lanes - rest;
    bool bf16 = a->dtype == DT_BF16;
    const dt_bf16 *from = dt_view_at(a, row, 0);
    int64_t pairs = bf16 ? k / (2 * lanes) * (2 * lanes) : 0;
    for (int64_t p = 0; p < pairs; p += 2 * lanes)
        for (int64_t l = 0; l < lanes; l++) {
            to[p + l] = dt_bf16_to_f32(from[p + 2 * l]);
            to[p + lanes + l] = dt_bf16_to_f32(from[p + 2 * l + 1]);
        }
    dt_load_row(a->dtype, dt_view_at(a, row, pairs), whole - pairs, whole - pairs, to + pairs);
    for (int64_t l = 0; l < lanes && rest > 0; l++)
        to[whole + l] = l >= skip && l < skip + rest ? dt_load(from, whole + l - skip, bf16) : 0;
}

DT_CLONES static void widen_bytes(const struct dt_view *a, int64_t row, int16_t *to)
{
    const int8_t *from = dt_view_at(a, row, 0);
    for (int64_t p = 0; p < a->cols; p++)
        to[p] = from[p];
}

void dt_gemm_rows(enum dt_cpu_isa isa, int threads, const struct dt_gemm_args *g)
{
    const struct kernel kernel = kernel_of(isa);
    void *area = (void *)dt_round_up((int64_t)(intptr_t)g->workspace, ALIGN);
    struct rows rows = {.args = g,
                        .type = g->a.dtype,
                        .m = g->c.rows,
                        .k = dt_gemm_k(g),
                        .pitch = pitch_of(g),
                        .wide = area,
                        .shorts = area,
                        .b = g->b.data,
                        .ldb = g->b.stride * dt_dtype_size(g->b.dtype)};
    int64_t n = g->c.cols, pieces = dt_ceil_div(n, PIECE);
    for (int64_t i = 0; i < rows.m; i++)
        if (rows.type == DT_I8)
            widen_bytes(&g->a, i, (int16_t *)area + i * rows.pitch);
        else
            widen(&g->a, i, kernel.lanes, (float *)area + i * rows.pitch);
    if (threads == 1 || rows.m * n * rows.k <= ALONE) {
        kernel.columns(&rows, 0, n);
        return;
    }
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < pieces; i++)
        kernel.columns(&rows, i * PIECE, dt_min_i64((i + 1) * PIECE, n));
}

// The inner product of gemm_tile_cpu.c for one instruction set. Included once for each, after
//   NAME(x)   x with the set's suffix         TARGET    the attribute that enables the set
//   LANES     floats of a register            VECTORS   registers across a panel of B
//   ROWS      rows of a panel of A
// and, for an instruction that adds the products of two elements of bf16,
//   PAIR      2                                 MULTIPLY(sum, a, b)   sum += pair a · pairs b
// Panels are zero-padded, so a product always has ROWS rows; ROWS · VECTORS sums stay in registers
// for all of k.
//
// No #pragma once: every inclusion defines other functions.

#ifndef PAIR
#define PAIR                1
#define MULTIPLY(sum, a, b) sum += (a) * (b)
#endif

_Static_assert(ROWS <= MOST_ROWS && VECTORS * LANES <= MOST_COLUMNS, "the edge has room");

typedef float NAME(vector)
    __attribute__((vector_size(LANES * sizeof(float)), aligned(4), may_alias));

// c[i, j] = Σ_p a[i·row_step + p·k_step] · b[p·b_step + j], added in the order of p, with `rows`
// rows and `vectors` registers of columns. With `goes_on` the sum starts from c; keep · c is added
// last.
TARGET static inline __attribute__((always_inline)) void
NAME(product)(const struct panels *x, int64_t row_step, int64_t k_step, int64_t b_step, int rows,
              int vectors)
{
    NAME(vector) sum[ROWS][VECTORS];
    const float *a = x->a, *b = x->b;
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        float *c = x->c + i * x->ldc;
        __builtin_prefetch(c, 1);
        __builtin_prefetch(c + vectors * LANES - 1, 1);
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) {
            sum[i][j] = (NAME(vector)){0};
            if (x->goes_on)
                sum[i][j] = *(const NAME(vector) *)(c + j * LANES);
        }
    }
    for (int64_t p = 0; p < x->k; p++) {
        NAME(vector) row[VECTORS];
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++)
            row[j] = *(const NAME(vector) *)(b + j * LANES);
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
            for (int j = 0; j < vectors; j++)
                MULTIPLY(sum[i][j], a[i * row_step], row[j]);
        a += k_step;
        b += b_step;
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) {
            NAME(vector) *to = (NAME(vector) *)(x->c + i * x->ldc + j * LANES);
            if (x->keep != 0.0f)
                sum[i][j] += x->keep * *to;
            *to = sum[i][j];
        }
}

// Panels of A are [ROWS, BLOCK_K] or, where A is transposed, [k, ROWS]. The last few columns use
// half of B's registers.
TARGET static void NAME(multiply)(const struct panels *x, bool trans_a, int64_t columns)
{
    const int64_t width = VECTORS * LANES;
    bool half = columns <= LANES;
    if (trans_a && half)
        NAME(product)(x, 1, ROWS, width, ROWS, 1);
    else if (trans_a)
        NAME(product)(x, 1, ROWS, width, ROWS, VECTORS);
    else if (half)
        NAME(product)(x, BLOCK_K, 1, width, ROWS, 1);
    else
        NAME(product)(x, BLOCK_K, 1, width, ROWS, VECTORS);
}

// Multiplies the caller's arrays as they are, in panels of ROWS rows and a shorter last one.
TARGET static inline __attribute__((always_inline)) void
NAME(direct_rows)(const struct dt_gemm_direct *x, int64_t i, int64_t j, int rows)
{
    struct panels panels = {.k = x->k,
                            .a = x->a + i * x->a_row,
                            .b = x->b + j,
                            .c = x->c + i * x->c_row + j,
                            .ldc = x->c_row,
                            .keep = x->keep};
    if (x->soon)
        prefetch(x->soon);
    if (x->n - j < VECTORS * LANES)
        NAME(product)(&panels, x->a_row, x->a_k, x->b_k, rows, 1);
    else if (x->a_row == 1)
        NAME(product)(&panels, 1, x->a_k, x->b_k, rows, VECTORS);
    else
        NAME(product)(&panels, x->a_row, 1, x->b_k, rows, VECTORS);
}

TARGET static void NAME(direct)(const struct dt_gemm_direct *x)
{
    for (int64_t j = 0; j < x->n; j += VECTORS * LANES) {
        int64_t i = 0;
        if (ROWS <= 8 || x->m % ROWS == 0)
            for (; i + ROWS <= x->m; i += ROWS)
                NAME(direct_rows)(x, i, j, ROWS);
        else // as fast, with a smaller remainder
            for (; i + 8 <= x->m; i += 8)
                NAME(direct_rows)(x, i, j, 8);
        for (; i + 4 <= x->m; i += 4)
            NAME(direct_rows)(x, i, j, 4);
        for (; i < x->m; i++)
            NAME(direct_rows)(x, i, j, 1);
    }
}

// Packs rows along k, [k, size], into panels [k / PAIR, width], STRIP rows of all whole panels at a
// time.
TARGET static inline __attribute__((always_inline)) void
NAME(fill)(float *restrict to, int64_t pitch, const struct dt_view *from, int64_t k, int64_t size,
           int width)
{
    const float *wide = from->data;
    const dt_bf16 *narrow = from->data;
    int64_t rows = dt_ceil_div(k, PAIR);
    for (int64_t p0 = 0; p0 < rows; p0 += STRIP) {
        int64_t end = p0 + STRIP < rows ? p0 + STRIP : rows;
        float *panel = to;
        for (int64_t j0 = 0; j0 + width <= size; j0 += width, panel += pitch)
            for (int64_t p = p0; p < end; p++) {
                float *row = panel + p * width;
                int64_t i = PAIR * p * from->stride + j0;
                if (from->dtype == DT_F32) {
                    __builtin_prefetch(wide + i + STRIP * from->stride);
#pragma omp simd
                    for (int j = 0; j < width; j++)
                        row[j] = wide[i + j];
                } else if (PAIR == 2 && 2 * p + 1 < k) {
                    const dt_bf16 *low = narrow + i, *high = low + from->stride;
                    __builtin_prefetch(low + 2 * STRIP * from->stride);
                    __builtin_prefetch(high + 2 * STRIP * from->stride);
#pragma omp simd
                    for (int j = 0; j < width; j++)
                        row[j] = pair(low[j], high[j]);
                } else {
                    __builtin_prefetch(narrow + i + STRIP * from->stride);
#pragma omp simd
                    for (int j = 0; j < width; j++)
                        row[j] = PAIR == 2 ? pair(narrow[i + j], 0) : dt_bf16_to_f32(narrow[i + j]);
                }
            }
    }
}

TARGET static void NAME(fill_a)(float *to, const struct dt_view *from, int64_t k, int64_t size)
{
    NAME(fill)(to, ROWS * BLOCK_K + PAD, from, k, size, ROWS);
}

TARGET static void NAME(fill_b)(float *to, const struct dt_view *from, int64_t k, int64_t size)
{
    NAME(fill)(to, VECTORS * LANES * BLOCK_K + PAD, from, k, size, VECTORS * LANES);
}

static const struct dt_gemm_kernel NAME(kernel) = {
    .rows = ROWS,
    .columns = VECTORS * LANES,
    .pair = PAIR,
    .whole_k = 1,
    .turn_k = 4,
    .multiply = NAME(multiply),
    .direct = NAME(direct),
    .fill_a = NAME(fill_a),
    .fill_b = NAME(fill_b),
    .turn = turn_fours,
};

#undef NAME
#undef TARGET
#undef LANES
#undef VECTORS
#undef ROWS
#undef PAIR
#undef MULTIPLY

// The inner product of gemm_tile_cpu.c on a matrix unit (Intel AMX): its tile registers hold 16
// rows of 64 bytes, and one instruction adds to 16 x 16 fp32 sums the products of 16 rows of 32
// bf16 with 32 rows of 16. A panel of A has two such tiles of rows and a panel of B two of columns,
// so four tiles of sums stay in registers for all of a block of k.
//
// Included by gemm_tile_cpu.c alone.

#define AMX __attribute__((target(AVX512 ",amx-tile,amx-bf16")))

enum {
    TILE_LINES = 16,  // rows of a tile register; pairs of bf16 in a row
    AMX_ROWS = 32,    // of a panel of A
    AMX_COLUMNS = 32, // of a panel of B
};

// What LDTILECFG reads: all tile registers have their full size.
static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t line_bytes[16];
    uint8_t lines[16];
} amx_shape = {.palette = 1, // the only one that CPUs have
               .line_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
               .lines = {16, 16, 16, 16, 16, 16, 16, 16}};

AMX static void open_amx(void)
{
    _tile_loadconfig(&amx_shape);
}

// Until then the operating system saves 8 KB of tile registers at each switch of threads.
AMX static void close_amx(void)
{
    _tile_release();
}

// Multiplies panels whose rows are a_row and b_row elements of 4 bytes apart. Sums are tiles 0 to
// 3, row by row; A's are 4 and 5, B's 6 and 7.
AMX static void product_amx(const struct panels *x, int64_t a_row, int64_t b_row)
{
    const int64_t line = sizeof(float), lda = a_row * line, ldb = b_row * line, ldc = x->ldc * line;
    const float *a = x->a, *b = x->b;
    float *low = x->c, *high = low + TILE_LINES * x->ldc;
    if (x->goes_on) {
        _tile_loadd(0, low, ldc);
        _tile_loadd(1, low + TILE_LINES, ldc);
        _tile_loadd(2, high, ldc);
        _tile_loadd(3, high + TILE_LINES, ldc);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t p = 0; p < x->k; p += TILE_LINES, b += TILE_LINES * b_row) {
        _tile_loadd(6, b, ldb);
        _tile_loadd(4, a + p, lda);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + TILE_LINES, ldb);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a + p + TILE_LINES * a_row, lda);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, low, ldc);
    _tile_stored(1, low + TILE_LINES, ldc);
    _tile_stored(2, high, ldc);
    _tile_stored(3, high + TILE_LINES, ldc);
}

AMX static void multiply_amx(const struct panels *x, bool trans_a, int64_t columns)
{
    (void)trans_a, (void)columns;
    product_amx(x, BLOCK_K, AMX_COLUMNS);
}

// Transposes 16 x 16 elements of 4 bytes.
__attribute__((target(AVX512))) DT_INLINE void turn_lines(__m512i x[TILE_LINES])
{
    __m512i y[TILE_LINES];
#pragma GCC unroll 16
    for (int i = 0; i < TILE_LINES; i += 2) {
        y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
        y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < TILE_LINES; i += 4) {
        x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
        x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
        x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
        x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 4; i++) { // x[4 q + i] has columns i, i + 4, … of rows 4 q to 4 q + 3
        __m512i ab = _mm512_shuffle_i32x4(x[i], x[i + 4], 0x88),
                cd = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0x88),
                ef = _mm512_shuffle_i32x4(x[i], x[i + 4], 0xdd),
                gh = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0xdd);
        y[i] = _mm512_shuffle_i32x4(ab, cd, 0x88);
        y[i + 4] = _mm512_shuffle_i32x4(ef, gh, 0x88);
        y[i + 8] = _mm512_shuffle_i32x4(ab, cd, 0xdd);
        y[i + 12] = _mm512_shuffle_i32x4(ef, gh, 0xdd);
    }
#pragma GCC unroll 16
    for (int i = 0; i < TILE_LINES; i++)
        x[i] = y[i];
}

// Panels [AMX_ROWS, BLOCK_K] of an A whose rows are along k, [k, size].
AMX static void fill_a_amx(float *to, const struct dt_view *from, int64_t k, int64_t size)
{
    for (int64_t p = 0; p < dt_ceil_div(k, 2); p += TILE_LINES)
        for (int64_t i = 0; i < size / AMX_ROWS * AMX_ROWS; i += TILE_LINES) {
            __m512i line[TILE_LINES];
#pragma GCC unroll 16
            for (int64_t q = 0; q < TILE_LINES; q++) {
                const int64_t row = 2 * (p + q);
                const dt_bf16 *low = (const dt_bf16 *)from->data + row * from->stride + i;
                line[q] = _mm512_setzero_si512();
                if (row < k)
                    line[q] = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i_u *)low));
                if (row + 1 < k) {
                    __m256i high = _mm256_loadu_si256((const __m256i_u *)(low + from->stride));
                    line[q] = _mm512_or_si512(line[q],
                                              _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
                }
            }
            turn_lines(line);
            float *panel =
                to + i / AMX_ROWS * (AMX_ROWS * BLOCK_K + PAD) + i % AMX_ROWS * BLOCK_K + p;
#pragma GCC unroll 16
            for (int64_t r = 0; r < TILE_LINES; r++)
                _mm512_storeu_si512(panel + r * BLOCK_K, line[r]);
        }
}

// A panel [k, AMX_COLUMNS] of a B whose rows are along k.
AMX static void turn_amx(float *to, const char *from, int64_t ld, int64_t k, int64_t panel,
                         bool widen)
{
    (void)widen;
    for (int64_t p = 0; p < k; p += TILE_LINES)
        for (int64_t j = 0; j < panel; j += TILE_LINES) {
            __m512i line[TILE_LINES];
#pragma GCC unroll 16
            for (int64_t r = 0; r < TILE_LINES; r++)
                line[r] = _mm512_loadu_si512(from + (j + r) * ld + p * (int64_t)sizeof *to);
            turn_lines(line);
#pragma GCC unroll 16
            for (int64_t q = 0; q < TILE_LINES; q++)
                _mm512_storeu_si512(to + (p + q) * panel + j, line[q]);
        }
}

static const struct dt_gemm_kernel kernel_amx = {
    .rows = AMX_ROWS,
    .columns = AMX_COLUMNS,
    .pair = 2,
    .whole_k = TILE_LINES,
    .turn_k = TILE_LINES,
    .a_along = true,
    .open = open_amx,
    .close = close_amx,
    .multiply = multiply_amx,
    .fill_a = fill_a_amx,
    .fill_b = fill_b_bf16,
    .turn = turn_amx,
};

// dt_gemm_direct_bf16: a has whole panels of rows of `pairs` pairs, b `pairs` rows of n pairs; what
// is beyond k is zero.
AMX static void direct_amx(const struct dt_gemm_direct *x, const float *a, const float *b,
                           int64_t pairs)
{
    float sums[AMX_ROWS * AMX_COLUMNS] __attribute__((aligned(64)));
    open_amx();
    for (int64_t j = 0; j < x->n; j += AMX_COLUMNS)
        for (int64_t i = 0; i < x->m; i += AMX_ROWS) {
            const int64_t rows = dt_min_i64(AMX_ROWS, x->m - i),
                          columns = dt_min_i64(AMX_COLUMNS, x->n - j);
            struct panels panels = {
                .k = pairs, .a = a + i * pairs, .b = b + j, .c = sums, .ldc = AMX_COLUMNS};
            if (x->soon)
                prefetch(x->soon);
            product_amx(&panels, pairs, x->n);
            for (int64_t r = 0; r < rows; r++)
                for (int64_t l = 0; l < columns; l += TILE_LINES) {
                    float *c = x->c + (i + r) * x->c_row + j + l;
                    __m512 sum = _mm512_load_ps(sums + r * AMX_COLUMNS + l);
                    if (x->keep != 0.0f)
                        sum = _mm512_fmadd_ps(_mm512_set1_ps(x->keep), _mm512_loadu_ps(c), sum);
                    _mm512_storeu_ps(c, sum);
                }
        }
    close_amx();
}

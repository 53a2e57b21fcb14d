// The dot products of gemm_rows_cpu.c for one instruction set. Included once for each, after
//   NAME(x)     x with the set's suffix       TARGET    the attribute that enables the set
//   LANES       floats of a register          ROWS      rows of A that are multiplied at a time
//   WIDEN(w)    2 LANES int8 in memory, as int16
//   MADD(x, w)  of vectors of 2 LANES int16 each: LANES sums of two products, int32
//
// No #pragma once: every inclusion defines other functions.

typedef float NAME(floats)
    __attribute__((vector_size(LANES * sizeof(float)), aligned(4), may_alias));
typedef uint32_t NAME(bits)
    __attribute__((vector_size(LANES * sizeof(float)), aligned(2), may_alias));
typedef uint16_t NAME(halves)
    __attribute__((vector_size(LANES * sizeof(uint16_t)), aligned(2), may_alias));
typedef int32_t NAME(sums) __attribute__((vector_size(LANES * sizeof(int32_t)), may_alias));
typedef int16_t NAME(shorts)
    __attribute__((vector_size(2 * LANES * sizeof(int16_t)), aligned(2), may_alias));

TARGET DT_INLINE NAME(floats) NAME(load)(const char *w, bool bf16)
{
    if (!bf16)
        return *(const NAME(floats) *)w;
    return (NAME(floats))(__builtin_convertvector(*(const NAME(halves) *)w, NAME(bits)) << 16);
}

// Sums the lanes of each of four vectors, in one order.
#define SUM_LANES(function, vector, four)                                                          \
    TARGET DT_INLINE four function(const vector sum[4])                                            \
    {                                                                                              \
        four part[4];                                                                              \
        for (int j = 0; j < 4; j++) {                                                              \
            union {                                                                                \
                vector whole;                                                                      \
                four quarter[LANES / 4];                                                           \
            } v = {sum[j]};                                                                        \
            for (int half = LANES / 8; half > 0; half /= 2)                                        \
                for (int q = 0; q < half; q++)                                                     \
                    v.quarter[q] += v.quarter[q + half];                                           \
            part[j] = v.quarter[0];                                                                \
        }                                                                                          \
        four ab = __builtin_shufflevector(part[0], part[1], 0, 4, 1, 5) +                          \
                  __builtin_shufflevector(part[0], part[1], 2, 6, 3, 7),                           \
             cd = __builtin_shufflevector(part[2], part[3], 0, 4, 1, 5) +                          \
                  __builtin_shufflevector(part[2], part[3], 2, 6, 3, 7);                           \
        return __builtin_shufflevector(ab, cd, 0, 1, 4, 5) +                                       \
               __builtin_shufflevector(ab, cd, 2, 3, 6, 7);                                        \
    }
SUM_LANES(NAME(sum_floats), NAME(floats), four_floats)
SUM_LANES(NAME(sum_ints), NAME(sums), four_ints)
#undef SUM_LANES

// Computes `rows` rows of C from `row` on and `columns` columns, 1 or a multiple of 4, from
// `column` on.
TARGET DT_INLINE void NAME(dots)(const struct rows *r, int64_t row, int64_t column, int rows,
                                 int columns, bool bf16)
{
    NAME(floats) sum[ROWS][MOST_COLUMNS];
    const float *x = r->wide + row * r->pitch;
    const char *w = r->b + column * r->ldb;
    int64_t size = bf16 ? 2 : 4, whole = r->k / LANES * LANES, p = 0;
    int64_t pairs = bf16 ? r->k / (2 * LANES) * (2 * LANES) : 0;
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < MOST_COLUMNS; j++)
            sum[i][j] = (NAME(floats)){0};
    for (; p < pairs; p += 2 * LANES) { // a lane holds two neighbours: cheaper than widening them
#pragma GCC unroll 8
        for (int j = 0; j < columns; j++) {
            NAME(bits) b = *(const NAME(bits) *)(w + j * r->ldb + p * size);
            NAME(floats) even = (NAME(floats))(b << 16), odd = (NAME(floats))(b & 0xffff0000u);
#pragma GCC unroll 4
            for (int i = 0; i < rows; i++) {
                sum[i][j] += *(const NAME(floats) *)(x + i * r->pitch + p) * even;
                sum[i][j] += *(const NAME(floats) *)(x + i * r->pitch + p + LANES) * odd;
            }
        }
    }
    for (; p < whole; p += LANES) {
#pragma GCC unroll 8
        for (int j = 0; j < columns; j++) {
            NAME(floats) b = NAME(load)(w + j * r->ldb + p * size, bf16);
#pragma GCC unroll 4
            for (int i = 0; i < rows; i++)
                sum[i][j] += *(const NAME(floats) *)(x + i * r->pitch + p) * b;
        }
    }
    for (int j = 0; j < columns && p < r->k; j++) { // A's last lanes are zero where they repeat
        NAME(floats) b;
        char copy[LANES * sizeof(float)] = {0};
        if (r->k < LANES)
            memcpy(copy, w + j * r->ldb, (size_t)(r->k * size));
        b = NAME(load)(r->k < LANES ? copy : w + j * r->ldb + (r->k - LANES) * size, bf16);
        for (int i = 0; i < rows; i++)
            sum[i][j] += *(const NAME(floats) *)(x + i * r->pitch + p) * b;
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j += 4)
            put(r, row + i, column + j, columns < 4 ? 1 : 4, NAME(sum_floats)(sum[i] + j));
}

// The int8 form. Sums of integers are exact in any order.
TARGET DT_INLINE void NAME(int_dots)(const struct rows *r, int64_t row, int64_t column, int rows,
                                     int columns)
{
    NAME(sums) sum[ROWS][MOST_COLUMNS];
    const int16_t *x = r->shorts + row * r->pitch;
    const char *w = r->b + column * r->ldb;
    int64_t whole = r->k / (2 * LANES) * (2 * LANES), p = 0;
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < MOST_COLUMNS; j++)
            sum[i][j] = (NAME(sums)){0};
    for (; p < whole; p += 2 * LANES) {
#pragma GCC unroll 8
        for (int j = 0; j < columns; j++) {
            NAME(shorts) b = WIDEN(w + j * r->ldb + p);
#pragma GCC unroll 4
            for (int i = 0; i < rows; i++)
                sum[i][j] += MADD(*(const NAME(shorts) *)(x + i * r->pitch + p), b);
        }
    }
    for (; p < r->k; p++)
        for (int j = 0; j < columns; j++)
            for (int i = 0; i < rows; i++)
                sum[i][j][0] += x[i * r->pitch + p] * w[j * r->ldb + p];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j += 4) {
            four_ints total = NAME(sum_ints)(sum[i] + j);
            put(r, row + i, column + j, columns < 4 ? 1 : 4,
                __builtin_convertvector(total, four_floats));
        }
}

TARGET DT_INLINE void NAME(some)(const struct rows *r, int64_t row, int64_t column, int rows,
                                 int columns)
{
    if (r->type == DT_I8)
        NAME(int_dots)(r, row, column, rows, columns);
    else if (r->type == DT_BF16)
        NAME(dots)(r, row, column, rows, columns, true);
    else
        NAME(dots)(r, row, column, rows, columns, false);
}

// Computes columns [first, last), as many at a time as fit into registers with independent
// additions.
TARGET static void NAME(columns)(const struct rows *r, int64_t first, int64_t last)
{
    int64_t column = first, row;
    for (; column + MOST_COLUMNS <= last && r->m == 1; column += MOST_COLUMNS)
        NAME(some)(r, 0, column, 1, MOST_COLUMNS);
    for (; column + 4 <= last; column += 4) {
        for (row = 0; row + ROWS <= r->m; row += ROWS)
            NAME(some)(r, row, column, ROWS, 4);
        for (; row < r->m; row++)
            NAME(some)(r, row, column, 1, 4);
    }
    for (; column < last; column++)
        for (row = 0; row < r->m; row++)
            NAME(some)(r, row, column, 1, 1);
}

#undef NAME
#undef TARGET
#undef LANES
#undef ROWS
#undef MADD
#undef WIDEN

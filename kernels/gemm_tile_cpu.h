// Computes a tile of a matrix product with fp32 sums on the calling thread. bf16 operands are
// widened where the CPU has no bf16 instructions. An element of C is one chain of additions in the
// order of k, so its bits depend only on its row of A, its column of B and the instruction set.
#pragma once

#include "kernels/gemm.h"
#include "kernels/isa_cpu.h"

struct dt_gemm_kernel; // the inner product for one instruction set

// The kernel for operands of `type`; with DT_ISA_AVX512_BF16 it reads bf16 without widening.
const struct dt_gemm_kernel *dt_gemm_kernel(enum dt_cpu_isa isa, enum dt_dtype type);

// Bytes of workspace for a tile; no data is read.
int64_t dt_gemm_tile_workspace(const struct dt_gemm_kernel *kernel,
                               const struct dt_gemm_args *tile);

// Computes what gemm.h says; the workspace is aligned to 64 bytes. Tiles up to about 512 x 512 are
// best.
void dt_gemm_tile(const struct dt_gemm_kernel *kernel, const struct dt_gemm_args *tile);

// c (+)= rows of fp32, `pitch` floats apart.
void dt_gemm_put(struct dt_view c, bool accumulate, const float *from, int64_t pitch);

// c [m, n] = keep · c + a · b on fp32 arrays in cache; keep 0: c is not read. n is a multiple of
// 16. Fastest if m is a multiple of DT_DIRECT_ROWS, n a multiple of DT_DIRECT_COLUMNS, and the
// pitch of b no power of two. a[i, p] is at i·a_row + p·a_k, and one of these steps is 1; b[p, j]
// is at p·b_k + j, c[i, j] at i·c_row + j.
enum { DT_DIRECT_ROWS = 12, DT_DIRECT_COLUMNS = 32 };
// Data that is needed after the product: each panel prefetches a few of its rows. Hardware does not
// prefetch rows that are far apart, and a loop that requests all of them would wait for memory.
enum { DT_SOON_VIEWS = 6, DT_SOON_ROWS = 4 };
struct dt_soon {
    struct dt_view views[DT_SOON_VIEWS];
    int64_t view, row; // next row
};
struct dt_gemm_direct {
    int64_t m, n, k;
    const float *a, *b;
    float *c;
    int64_t a_row, a_k, b_k, c_row;
    float keep;
    struct dt_soon *soon; // or NULL
};
// An operand of dt_gemm_direct: element [i, j] is at i·row + j·column.
struct dt_factor {
    const float *at;
    int64_t row, column;
};
// An array with rows `pitch` floats apart, and its transpose.
static inline struct dt_factor dt_as_rows(const float *at, int64_t pitch)
{
    return (struct dt_factor){at, pitch, 1};
}
static inline struct dt_factor dt_as_columns(const float *at, int64_t pitch)
{
    return (struct dt_factor){at, 1, pitch};
}
static inline struct dt_gemm_direct dt_gemm_direct_of(int64_t m, int64_t n, int64_t k,
                                                      struct dt_factor a, struct dt_factor b,
                                                      float *c, int64_t c_row, float keep)
{
    return (struct dt_gemm_direct){m,     n,        k,     a.at,  b.at, c,
                                   a.row, a.column, b.row, c_row, keep, NULL};
}
void dt_gemm_direct(const struct dt_gemm_kernel *kernel, const struct dt_gemm_direct *product);
// dt_gemm_direct with a and b rounded to bf16, by the instructions of DT_ISA_AVX512_BF16. If a_row
// is 1, rows of a are read up to a multiple of 16. `scratch` has dt_gemm_direct_bf16_bytes.
void dt_gemm_direct_bf16(const struct dt_gemm_direct *product, void *scratch);
int64_t dt_gemm_direct_bf16_bytes(int64_t m, int64_t n, int64_t k);

// to[p · to_row + i] = from[i · from_row + p], p < k, i < n; k and n are multiples of 4.
void dt_gemm_turn(float *to, int64_t to_row, const float *from, int64_t from_row, int64_t k,
                  int64_t n);

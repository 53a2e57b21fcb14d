// oneDNN's matrix product behind one small interface, for the 2.x and 3.x C API alike. A matmul is
// made for one thread and fixed shapes: its bits depend on nothing else, and any number of threads
// may run it at once, each with a scratch of its own.
#pragma once

#include "base/dtype.h"
#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

struct dt_onednn; // engine and stream
struct dt_matmul;

// It is compared bytewise: set it from zeroed memory.
struct dt_matmul_shape {
    int64_t m, n, k;
    int64_t lda, ldb, ldc; // as in gemm.h
    int32_t a_type, b_type, c_type;
    int32_t trans_a, trans_b;
    int32_t accumulate;
    int32_t run_time; // sizes are given at run time: another code path of oneDNN, better for some
                      // shapes
};

// What oneDNN may use of this CPU; ONEDNN_MAX_CPU_ISA lowers it. Each has the ones before it.
enum dt_cpu_isa { DT_ISA_PLAIN, DT_ISA_AVX2, DT_ISA_AVX512, DT_ISA_AVX512_BF16 };

dt_status dt_onednn_open(struct dt_onednn **onednn);
void dt_onednn_close(struct dt_onednn *onednn); // NULL is fine
enum dt_cpu_isa dt_onednn_isa(void);
void dt_onednn_describe(char *text, size_t size); // "avx512 bf16, oneDNN 2.6.3"

dt_status dt_matmul_create(struct dt_onednn *onednn, const struct dt_matmul_shape *shape,
                           struct dt_matmul **matmul);
void dt_matmul_destroy(struct dt_matmul *matmul);          // NULL is fine
int64_t dt_matmul_scratch(const struct dt_matmul *matmul); // bytes
// 0, or oneDNN's error code.
int dt_matmul_run(const struct dt_matmul *matmul, const void *a, const void *b, void *c,
                  void *scratch);

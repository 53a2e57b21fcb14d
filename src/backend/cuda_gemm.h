// What cuda_gemm.c, cuda_choose.c and cuda_gemm_record.c share: cuBLASLt behind a struct of
// pointers, the registered shapes, and the algorithm of each.
//
// Row-major C = A·B is column-major Cᵀ = Bᵀ·Aᵀ: cuBLASLt's first operand is our b, its second our
// a, and memory stays as it is.
//
// Only deterministic algorithms are ever run. cuBLAS's manual ("Results Reproducibility") promises
// the same bits from run to run on one architecture, one number of multiprocessors and one library
// version, for cublasLtMatmul on a workspace of the caller's. What remains is the sum of a product
// whose k is cut ("split-K"): cublasLt.h has it either summed in a step of its own from the
// workspace, in the compute type or rounded to C's, or "in place" by blocks that take turns at C.
// The first is a fixed order at full precision and the only one accepted; turns are not promised to
// come in one order, and sums rounded to bf16 lose what fp32 accumulation is for. The header has no
// attribute that says more (about stream-K or atomics), so a chosen algorithm is run twice and
// compared bit by bit.
#pragma once

#include "backend/cuda.h"

#include <cjson/cJSON.h>
#include <cublasLt.h>
#include <pthread.h>

#define DT_CUBLASLT(X)                                                                             \
    X(Create)                                                                                      \
    X(Destroy)                                                                                     \
    X(GetVersion)                                                                                  \
    X(GetStatusString)                                                                             \
    X(MatmulDescCreate)                                                                            \
    X(MatmulDescDestroy)                                                                           \
    X(MatmulDescSetAttribute)                                                                      \
    X(MatrixLayoutCreate)                                                                          \
    X(MatrixLayoutDestroy)                                                                         \
    X(MatrixLayoutSetAttribute)                                                                    \
    X(MatmulPreferenceCreate)                                                                      \
    X(MatmulPreferenceDestroy)                                                                     \
    X(MatmulPreferenceSetAttribute)                                                                \
    X(MatmulAlgoGetHeuristic)                                                                      \
    X(MatmulAlgoCheck)                                                                             \
    X(MatmulAlgoConfigGetAttribute)                                                                \
    X(Matmul)

struct dt_cublaslt {
#define DT_CUBLASLT_POINTER(name) __typeof__(cublasLt##name) *name;
    DT_CUBLASLT(DT_CUBLASLT_POINTER)
#undef DT_CUBLASLT_POINTER
};

// All that a choice depends on; compared bytewise, so set it from zeroed memory. cuBLASLt learns
// only at the call whether C is added to (beta = 1): that form reads C and may have another fastest
// algorithm, so it is a shape of its own.
struct dt_gemm_key {
    int64_t m, n, k;
    int64_t lda, ldb, ldc;
    int64_t batch, a_step, b_step, c_step; // steps are 0 where there is one product
    int32_t type, c_type;                  // of a and b, of c
    int32_t trans_a, trans_b;
    int32_t align_a, align_b, align_c; // bytes that divide the address, 16 at most
    int32_t accumulate;
};

struct dt_gemm_algorithm {
    cublasLtMatmulAlgo_t config;
    double microseconds; // of one product when it was chosen; 0: it was not timed
    bool chosen;         // by timing or from a record; else it is what the library recommends
};

struct dt_gemm_shape {
    struct dt_gemm_key key;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t first, second, out; // our b, our a, c
    struct dt_gemm_algorithm algorithm;
    struct dt_gemm_shape *next; // in its bucket
};

enum { DT_GEMM_BUCKETS = 256, DT_GEMM_CANDIDATES = 16, DT_GEMM_KEY_TEXT = 256 };

// Any thread may multiply; algorithms are chosen and used (cuda_choose.c) while none does.
struct dt_cuda_gemm {
    struct dt_device *device;
    struct dt_cublaslt lt;
    cublasLtHandle_t handle;
    cublasLtMatmulPreference_t preference;
    int64_t workspace; // bytes that an algorithm may use
    pthread_mutex_t lock;
    struct dt_gemm_shape *bucket[DT_GEMM_BUCKETS];
    int n_shapes;
    cJSON *record; // algorithms of an earlier choice for this device and library, or NULL
};

// DT_MACHINE at the caller's line where a call of cuBLASLt failed.
#define DT_LT(gemm, call, what)                                                                    \
    dt_cublaslt_status((gemm), (call), (what), __FILE__, __LINE__, __func__)
dt_status dt_cublaslt_status(const struct dt_cuda_gemm *gemm, cublasStatus_t code, const char *what,
                             const char *file, int line, const char *function);

// The deterministic algorithms that the library knows for a shape, the fastest by its own estimate
// first; at least one, or an error that names the shape.
dt_status dt_gemm_candidates(struct dt_cuda_gemm *gemm, const struct dt_gemm_shape *shape,
                             cublasLtMatmulAlgo_t config[DT_GEMM_CANDIDATES], int *n);
// Whether the library accepts an algorithm that did not come from it for this shape, and the
// algorithm is deterministic. False: *why says what is wrong with it.
bool dt_gemm_accepts(const struct dt_cuda_gemm *gemm, const struct dt_gemm_shape *shape,
                     const cublasLtMatmulAlgo_t *config, const char **why);
// The products of a call on the stream; workspace: gemm->workspace bytes, aligned to
// DT_ARENA_ALIGN.
cublasStatus_t dt_gemm_run(const struct dt_cuda_gemm *gemm, const struct dt_gemm_shape *shape,
                           const cublasLtMatmulAlgo_t *config, const void *a, const void *b,
                           void *c, void *workspace, struct dt_stream *stream);

// Gives a shape the record's algorithm, if it has one that the library accepts, else the library's
// first choice.
dt_status dt_gemm_use_record(struct dt_cuda_gemm *gemm, struct dt_gemm_shape *shape);

// cuda_gemm_record.c: algorithms as JSON. dt_gemm_record_set makes a text the gemm's record,
// replacing any earlier one; a text that is damaged or was made for another device model or library
// is ignored with a warning. NULL: no record.
dt_status dt_gemm_record_set(struct dt_cuda_gemm *gemm, const char *text);
// The record's algorithm for a shape, if it has one; the library was not asked yet.
dt_status dt_gemm_record_read(const struct dt_cuda_gemm *gemm, const struct dt_gemm_key *key,
                              struct dt_gemm_algorithm *algorithm, bool *found);
// The text of the shapes' algorithms, in the order given; malloc'ed.
dt_status dt_gemm_record_write(const struct dt_cuda_gemm *gemm, struct dt_gemm_shape *const *shapes,
                               char **text);

// The name of a shape: "bf16 -> fp32 tn m768 n1536 k4096 ld 768 1536 1536 align 16 16 16", where C
// is added to with " accumulate" after it, of a batch with " batch 24 steps 4096 0 1024"
void dt_gemm_key_text(const struct dt_gemm_key *key, char text[DT_GEMM_KEY_TEXT]);

// What the stand-in's cublasLt.h says of cuBLASLt, and the toolkit's header of that name too:
// compiled with each.
#include <cublasLt.h>

#include <stddef.h>

#define IS(name, value) _Static_assert((name) == (value), #name)

IS(CUDA_R_32F, 0);
IS(CUDA_R_16BF, 14);

IS(CUBLAS_STATUS_SUCCESS, 0);
IS(CUBLAS_STATUS_NOT_INITIALIZED, 1);
IS(CUBLAS_STATUS_ALLOC_FAILED, 3);
IS(CUBLAS_STATUS_INVALID_VALUE, 7);
IS(CUBLAS_STATUS_ARCH_MISMATCH, 8);
IS(CUBLAS_STATUS_EXECUTION_FAILED, 13);
IS(CUBLAS_STATUS_NOT_SUPPORTED, 15);

IS(CUBLAS_OP_N, 0);
IS(CUBLAS_OP_T, 1);
IS(CUBLAS_COMPUTE_32F, 68);
IS(CUBLAS_COMPUTE_32F_PEDANTIC, 69);
IS(CUBLASLT_MATMUL_DESC_TRANSA, 3);
IS(CUBLASLT_MATMUL_DESC_TRANSB, 4);

IS(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 5);
IS(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, 6);

IS(CUBLASLT_REDUCTION_SCHEME_NONE, 0);
IS(CUBLASLT_REDUCTION_SCHEME_INPLACE, 1);
IS(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 2);
IS(CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE, 4);
IS(CUBLASLT_REDUCTION_SCHEME_MASK, 7);

IS(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 1);
IS(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, 3);
IS(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 5);
IS(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 6);
IS(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, 7);
IS(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 8);

IS(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 2);
IS(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 3);

IS(sizeof(cublasStatus_t), 4);
IS(sizeof(cudaDataType_t), 4);
IS(sizeof(cublasLtMatmulAlgo_t), 64);
IS(sizeof(cublasLtMatrixLayoutOpaque_t), 64);
IS(sizeof(cublasLtMatmulDescOpaque_t), 256);
IS(sizeof(cublasLtMatmulPreferenceOpaque_t), 64);
IS(sizeof(cublasLtMatmulHeuristicResult_t), 96);
IS(offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize), 64);
IS(offsetof(cublasLtMatmulHeuristicResult_t, state), 72);
IS(offsetof(cublasLtMatmulHeuristicResult_t, wavesCount), 76);

// One of each function, whose type must fit.
struct dt_cublaslt_functions {
    cublasStatus_t (*create)(cublasLtHandle_t *);
    cublasStatus_t (*destroy)(cublasLtHandle_t);
    size_t (*version)(void);
    const char *(*status_string)(cublasStatus_t);
    cublasStatus_t (*desc_create)(cublasLtMatmulDesc_t *, cublasComputeType_t, cudaDataType_t);
    cublasStatus_t (*desc_destroy)(cublasLtMatmulDesc_t);
    cublasStatus_t (*desc_set)(cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, const void *,
                               size_t);
    cublasStatus_t (*layout_create)(cublasLtMatrixLayout_t *, cudaDataType, uint64_t, uint64_t,
                                    int64_t);
    cublasStatus_t (*layout_destroy)(cublasLtMatrixLayout_t);
    cublasStatus_t (*layout_set)(cublasLtMatrixLayout_t, cublasLtMatrixLayoutAttribute_t,
                                 const void *, size_t);
    cublasStatus_t (*preference_create)(cublasLtMatmulPreference_t *);
    cublasStatus_t (*preference_destroy)(cublasLtMatmulPreference_t);
    cublasStatus_t (*preference_set)(cublasLtMatmulPreference_t,
                                     cublasLtMatmulPreferenceAttributes_t, const void *, size_t);
    cublasStatus_t (*heuristic)(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int,
                                cublasLtMatmulHeuristicResult_t *, int *);
    cublasStatus_t (*config_get)(const cublasLtMatmulAlgo_t *, cublasLtMatmulAlgoConfigAttributes_t,
                                 void *, size_t, size_t *);
    cublasStatus_t (*matmul)(cublasLtHandle_t, cublasLtMatmulDesc_t, const void *, const void *,
                             cublasLtMatrixLayout_t, const void *, cublasLtMatrixLayout_t,
                             const void *, const void *, cublasLtMatrixLayout_t, void *,
                             cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t *, void *, size_t,
                             cudaStream_t);
};
extern const struct dt_cublaslt_functions dt_cublaslt_functions;
const struct dt_cublaslt_functions dt_cublaslt_functions = {
    cublasLtCreate,
    cublasLtDestroy,
    cublasLtGetVersion,
    cublasLtGetStatusString,
    cublasLtMatmulDescCreate,
    cublasLtMatmulDescDestroy,
    cublasLtMatmulDescSetAttribute,
    cublasLtMatrixLayoutCreate,
    cublasLtMatrixLayoutDestroy,
    cublasLtMatrixLayoutSetAttribute,
    cublasLtMatmulPreferenceCreate,
    cublasLtMatmulPreferenceDestroy,
    cublasLtMatmulPreferenceSetAttribute,
    cublasLtMatmulAlgoGetHeuristic,
    cublasLtMatmulAlgoConfigGetAttribute,
    cublasLtMatmul,
};

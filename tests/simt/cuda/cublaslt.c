// The library that replaces cuBLASLt on the simulated device. A product is a task on a stream, done
// in plain loops. Where the real library leaves something open, this one does the worst: fp32
// products are rounded to TF32 unless they are pedantic, sums with "in place" reduction differ from
// run to run, an algorithm is offered only for operands that are aligned as it needs, and the whole
// workspace is overwritten.
//
// Environment: SIMT_CUBLASLT_VERSION (130100). SIMT_CUBLASLT_FAIL: `create`, `heuristic` and
// `matmul` make that call fail; `captured` makes matmul fail while a graph is captured; with `mask`
// heuristics offer reductions that were not asked for; `scheme` does the same, and algorithms have
// no attribute for their reduction. SIMT_CUBLASLT_NARROW=1: an algorithm with other bits is offered
// where only a part of the multiprocessors may be used.
#include <cublasLt.h>

#include "enqueue.h"

#include "tests/typed.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

// ---- algorithms

struct algorithm {
    const char *name;
    int32_t parts; // how many parts k is split into
    uint32_t reduction;
    uint64_t align, align_b; // in bytes: of all pointers and strides; of B's
    bool refused;            // only other devices can run it
    bool changing;           // the bits are different each time
};

// Heuristics offer the algorithms in this order.
static const struct algorithm algorithms[] = {
    {"narrow", 3, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 4, 4, false, false},
    {"in_place", 4, CUBLASLT_REDUCTION_SCHEME_INPLACE, 2, 2, false, true},
    {"elsewhere", 1, CUBLASLT_REDUCTION_SCHEME_NONE, 2, 2, true, false},
    {"rounded", 4, CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE, 2, 2, false, false},
    {"vector", 1, CUBLASLT_REDUCTION_SCHEME_NONE, 16, 2, false, false},
    {"split", 4, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 4, 4, false, false},
    {"plain", 1, CUBLASLT_REDUCTION_SCHEME_NONE, 2, 2, false, false},
};
enum { NARROW, ALGORITHMS = sizeof algorithms / sizeof *algorithms, SEAL = 0x51a7 };

// The contents of a cublasLtMatmulAlgo_t: the index into the table, the types, and a seal.
struct config {
    uint64_t index, types, seal;
    uint64_t rest[5];
};
_Static_assert(sizeof(struct config) == sizeof(cublasLtMatmulAlgo_t), "an algorithm's bytes");

static bool failing(const char *what)
{
    const char *asked = getenv("SIMT_CUBLASLT_FAIL");
    return asked && strcmp(asked, what) == 0;
}

static bool is_captured(cudaStream_t stream)
{
    enum cudaStreamCaptureStatus status;
    return cudaStreamIsCapturing(stream, &status) == cudaSuccess &&
           status != cudaStreamCaptureStatusNone;
}

// ---- handle, descriptors

struct cublasLtContext {
    int unused;
};

struct layout {
    cudaDataType type;
    uint64_t rows, cols;
    int64_t ld, step; // step: between the matrices of a batch
    int32_t batch;
};

struct product {
    cublasComputeType_t compute;
    int32_t op[2];
    int32_t multiprocessors; // 0: all
};

struct preference {
    uint64_t workspace;
    uint32_t reductions;
    uint32_t align[4]; // A B C D
};

// The object that a handle points to.
#define CONTENT(T, handle) ((T *)(void *)(handle))

// For tests: objects that exist, objects that were ever made, the algorithm that ran last, and how
// many multiprocessors it was to use (0: all).
EXPORT extern atomic_int simt_cublaslt_objects, simt_cublaslt_made;
EXPORT extern const char *simt_cublaslt_last;
EXPORT extern int32_t simt_cublaslt_multiprocessors;
atomic_int simt_cublaslt_objects, simt_cublaslt_made;
const char *simt_cublaslt_last;
int32_t simt_cublaslt_multiprocessors;

static void *make(size_t bytes)
{
    simt_cublaslt_objects++;
    simt_cublaslt_made++;
    return calloc(1, bytes);
}

static cublasStatus_t destroy(void *object)
{
    if (!object)
        return CUBLAS_STATUS_INVALID_VALUE;
    simt_cublaslt_objects--;
    free(object);
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtCreate(cublasLtHandle_t *lightHandle)
{
    if (failing("create"))
        return CUBLAS_STATUS_NOT_INITIALIZED;
    *lightHandle = make(sizeof **lightHandle);
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtDestroy(cublasLtHandle_t lightHandle)
{
    return destroy(lightHandle);
}

EXPORT size_t cublasLtGetVersion(void)
{
    const char *version = getenv("SIMT_CUBLASLT_VERSION");
    return version ? strtoul(version, NULL, 10) : 130100;
}

EXPORT const char *cublasLtGetStatusString(cublasStatus_t status)
{
    static const char *const texts[] = {
        [CUBLAS_STATUS_SUCCESS] = "success",
        [CUBLAS_STATUS_NOT_INITIALIZED] = "not initialized",
        [CUBLAS_STATUS_ALLOC_FAILED] = "no memory",
        [CUBLAS_STATUS_INVALID_VALUE] = "an invalid value",
        [CUBLAS_STATUS_ARCH_MISMATCH] = "not on this architecture",
        [CUBLAS_STATUS_EXECUTION_FAILED] = "the execution failed",
        [CUBLAS_STATUS_NOT_SUPPORTED] = "not supported",
    };
    return status < sizeof texts / sizeof *texts && texts[status] ? texts[status]
                                                                  : "a status of no name";
}

// Copies an attribute's value, which must have `size` bytes.
static cublasStatus_t take(void *to, size_t size, const void *buf, size_t given)
{
    if (!to || !buf || given != size)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, buf, size);
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *matmulDesc,
                                               cublasComputeType_t computeType,
                                               cudaDataType_t scaleType)
{
    if (scaleType != CUDA_R_32F)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    *matmulDesc = make(sizeof(struct product));
    CONTENT(struct product, *matmulDesc)->compute = computeType;
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t matmulDesc)
{
    return destroy(matmulDesc);
}

EXPORT cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t matmulDesc,
                                                     cublasLtMatmulDescAttributes_t attr,
                                                     const void *buf, size_t sizeInBytes)
{
    struct product *product = CONTENT(struct product, matmulDesc);
    int32_t *to = attr == CUBLASLT_MATMUL_DESC_TRANSA            ? &product->op[0]
                  : attr == CUBLASLT_MATMUL_DESC_TRANSB          ? &product->op[1]
                  : attr == CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET ? &product->multiprocessors
                                                                 : NULL;
    return take(to, sizeof *to, buf, sizeInBytes);
}

EXPORT cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *matLayout,
                                                 cudaDataType type, uint64_t rows, uint64_t cols,
                                                 int64_t ld)
{
    *matLayout = make(sizeof(struct layout));
    *CONTENT(struct layout, *matLayout) = (struct layout){type, rows, cols, ld, 0, 1};
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t matLayout)
{
    return destroy(matLayout);
}

EXPORT cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t matLayout,
                                                       cublasLtMatrixLayoutAttribute_t attr,
                                                       const void *buf, size_t sizeInBytes)
{
    struct layout *layout = CONTENT(struct layout, matLayout);
    if (attr == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT)
        return take(&layout->batch, sizeof layout->batch, buf, sizeInBytes);
    bool steps = attr == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET;
    return take(steps ? &layout->step : NULL, sizeof layout->step, buf, sizeInBytes);
}

EXPORT cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *pref)
{
    *pref = make(sizeof(struct preference));
    *CONTENT(struct preference, *pref) =
        (struct preference){0, CUBLASLT_REDUCTION_SCHEME_MASK, {256, 256, 256, 256}};
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t pref)
{
    return destroy(pref);
}

EXPORT cublasStatus_t cublasLtMatmulPreferenceSetAttribute(
    cublasLtMatmulPreference_t pref, cublasLtMatmulPreferenceAttributes_t attr, const void *buf,
    size_t sizeInBytes)
{
    struct preference *preference = CONTENT(struct preference, pref);
    uint32_t *to =
        attr == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK ? &preference->reductions : NULL;
    if (attr == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
        return take(&preference->workspace, sizeof preference->workspace, buf, sizeInBytes);
    if (attr >= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES &&
        attr <= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES)
        to = &preference->align[attr - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES];
    return take(to, sizeof *to, buf, sizeInBytes);
}

// ---- a product as its descriptors state it

struct operand {
    dt_dtype type;
    int64_t ld, step;
    bool trans;
};

struct problem {
    int64_t m, n, k, batch;
    struct operand a, b, c;
    bool tf32;
    int32_t multiprocessors;
};

static struct operand operand_of(const struct layout *layout, int32_t op)
{
    dt_dtype type = layout->type == CUDA_R_16BF ? DT_BF16 : DT_F32;
    return (struct operand){type, layout->ld, layout->step, op == CUBLAS_OP_T};
}

static bool same_layout(const struct layout *x, const struct layout *y)
{
    return x->type == y->type && x->rows == y->rows && x->cols == y->cols && x->ld == y->ld &&
           x->batch == y->batch && x->step == y->step;
}

// Reads and checks a product: shapes fit, strides are not shorter than columns, and the types are
// supported.
static cublasStatus_t problem_of(cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a_desc,
                                 cublasLtMatrixLayout_t b_desc, cublasLtMatrixLayout_t c_desc,
                                 cublasLtMatrixLayout_t d_desc, struct problem *problem)
{
    if (!desc || !a_desc || !b_desc || !c_desc || !d_desc)
        return CUBLAS_STATUS_INVALID_VALUE;
    const struct product *product = CONTENT(struct product, desc);
    const struct layout *a = CONTENT(struct layout, a_desc), *b = CONTENT(struct layout, b_desc),
                        *c = CONTENT(struct layout, c_desc), *d = CONTENT(struct layout, d_desc);
    bool ta = product->op[0] == CUBLAS_OP_T, tb = product->op[1] == CUBLAS_OP_T;
    uint64_t m = ta ? a->cols : a->rows, k = ta ? a->rows : a->cols;
    if (c->rows != m || c->cols != (tb ? b->rows : b->cols) || (tb ? b->cols : b->rows) != k)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!same_layout(c, d) || m < 1 || c->cols < 1 || k < 1)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (a->ld < (int64_t)a->rows || b->ld < (int64_t)b->rows || c->ld < (int64_t)c->rows)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (a->batch != c->batch || b->batch != c->batch || c->batch < 1 || c->batch > 65535)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (a->type != b->type || (a->type == CUDA_R_32F && c->type != CUDA_R_32F))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    *problem = (struct problem){
        .m = (int64_t)m,
        .n = (int64_t)c->cols,
        .k = (int64_t)k,
        .batch = c->batch,
        .a = operand_of(a, product->op[0]),
        .b = operand_of(b, product->op[1]),
        .c = operand_of(c, CUBLAS_OP_N),
        .tf32 = a->type == CUDA_R_32F && product->compute != CUBLAS_COMPUTE_32F_PEDANTIC,
        .multiprocessors = product->multiprocessors,
    };
    return CUBLAS_STATUS_SUCCESS;
}

static uint64_t types_of(const struct problem *p)
{
    return (uint64_t)p->a.type << 8 | (uint64_t)p->c.type;
}

// An algorithm that splits k needs each part's sums in fp32.
static size_t workspace_of(const struct algorithm *algorithm, const struct problem *p)
{
    int64_t sums = algorithm->parts > 1 ? p->batch * algorithm->parts * p->m * p->n : 0;
    return (size_t)sums * sizeof(float);
}

static bool aligned(const struct algorithm *algorithm, uint64_t a, uint64_t b, uint64_t c)
{
    return a % algorithm->align == 0 && b % algorithm->align_b == 0 && c % algorithm->align == 0;
}

static bool strides_suit(const struct algorithm *algorithm, const struct problem *p)
{
    return aligned(algorithm, (uint64_t)((p->a.ld | p->a.step) * dt_dtype_size(p->a.type)),
                   (uint64_t)((p->b.ld | p->b.step) * dt_dtype_size(p->b.type)),
                   (uint64_t)((p->c.ld | p->c.step) * dt_dtype_size(p->c.type)));
}

static const struct algorithm *algorithm_of(const cublasLtMatmulAlgo_t *algo,
                                            const struct problem *p)
{
    struct config config;
    memcpy(&config, algo, sizeof config);
    if (config.index >= ALGORITHMS || config.seal != SEAL || config.types != types_of(p))
        return NULL;
    return &algorithms[config.index];
}

static bool suits(const struct algorithm *algorithm, const struct problem *p,
                  const struct preference *preference)
{
    const uint32_t *align = preference->align;
    bool allowed = failing("mask") || failing("scheme") ||
                   (algorithm->reduction & ~preference->reductions) == 0;
    return allowed && aligned(algorithm, align[0], align[1], align[2] | align[3]) &&
           strides_suit(algorithm, p) && workspace_of(algorithm, p) <= preference->workspace;
}

EXPORT cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t lightHandle, cublasLtMatmulDesc_t operationDesc, cublasLtMatrixLayout_t Adesc,
    cublasLtMatrixLayout_t Bdesc, cublasLtMatrixLayout_t Cdesc, cublasLtMatrixLayout_t Ddesc,
    cublasLtMatmulPreference_t preference, int requestedAlgoCount,
    cublasLtMatmulHeuristicResult_t heuristicResultsArray[], int *returnAlgoCount)
{
    struct problem p;
    *returnAlgoCount = 0;
    if (!lightHandle || requestedAlgoCount < 1)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (failing("heuristic"))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    cublasStatus_t code = problem_of(operationDesc, Adesc, Bdesc, Cdesc, Ddesc, &p);
    if (code != CUBLAS_STATUS_SUCCESS)
        return code;
    bool narrow = p.multiprocessors > 0 && getenv("SIMT_CUBLASLT_NARROW");
    for (uint64_t i = narrow ? NARROW : NARROW + 1;
         i < ALGORITHMS && *returnAlgoCount < requestedAlgoCount; i++) {
        if (!suits(&algorithms[i], &p, CONTENT(struct preference, preference)))
            continue;
        struct config config = {.index = i, .types = types_of(&p), .seal = SEAL};
        cublasLtMatmulHeuristicResult_t *result = &heuristicResultsArray[(*returnAlgoCount)++];
        memset(result, 0, sizeof *result);
        memcpy(&result->algo, &config, sizeof config);
        result->workspaceSize = workspace_of(&algorithms[i], &p);
        result->state = algorithms[i].refused ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
    }
    return *returnAlgoCount ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

EXPORT cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(
    const cublasLtMatmulAlgo_t *algo, cublasLtMatmulAlgoConfigAttributes_t attr, void *buf,
    size_t sizeInBytes, size_t *sizeWritten)
{
    struct config config;
    memcpy(&config, algo, sizeof config);
    if (config.index >= ALGORITHMS)
        return CUBLAS_STATUS_INVALID_VALUE;
    const struct algorithm *algorithm = &algorithms[config.index];
    bool split = attr == CUBLASLT_ALGO_CONFIG_SPLITK_NUM;
    if ((!split && attr != CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME) || sizeInBytes != 4)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!split && failing("scheme"))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    *(uint32_t *)buf = split ? (uint32_t)algorithm->parts : algorithm->reduction;
    *sizeWritten = sizeInBytes;
    return CUBLAS_STATUS_SUCCESS;
}

// ---- products, on the device's thread

struct task {
    struct problem p;
    const struct algorithm *algorithm;
    const void *a, *b;
    void *c;
    float *workspace;
    float alpha, beta;
};

// Keeps ten bits of the mantissa.
static float to_tf32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits &= ~UINT32_C(0x1fff);
    memcpy(&value, &bits, sizeof bits);
    return value;
}

// Element (row, column) of op(X). Columns are contiguous in memory.
static float element(const struct task *task, const struct operand *operand, const void *x,
                     int64_t row, int64_t column)
{
    int64_t i = operand->trans ? row * operand->ld + column : column * operand->ld + row;
    float value = (float)get(x, operand->type, i);
    return task->p.tf32 ? to_tf32(value) : value;
}

static void multiply(const struct task *task)
{
    const struct problem *p = &task->p;
    const struct operand *c = &p->c;
    int64_t parts = task->algorithm->parts;
    float *a = malloc((size_t)(p->m * p->k) * sizeof *a); // op(A), contiguous in m
    float *column = malloc((size_t)p->m * sizeof *column);
    // Products of an algorithm that is not deterministic differ from run to run by a factor that
    // bf16 can tell from 1.
    static atomic_uint changing_runs;
    bool differs = task->algorithm->changing && changing_runs++ % 2;
    float factor = differs ? task->alpha * (1.0f + 0x1p-7f) : task->alpha;
    for (int64_t l = 0; l < p->k; l++)
        for (int64_t i = 0; i < p->m; i++)
            a[l * p->m + i] = element(task, &p->a, task->a, i, l);
    for (int64_t j = 0; j < p->n; j++) {
        for (int64_t part = 0; part < parts; part++) {
            float *sum = parts > 1 ? task->workspace + part * p->m * p->n + j * p->m : column;
            memset(sum, 0, (size_t)p->m * sizeof *sum);
            for (int64_t l = p->k * part / parts; l < p->k * (part + 1) / parts; l++) {
                float b = element(task, &p->b, task->b, l, j);
                for (int64_t i = 0; i < p->m; i++)
                    sum[i] += a[l * p->m + i] * b;
            }
            for (int64_t i = 0; i < p->m && sum != column; i++)
                column[i] = part ? column[i] + sum[i] : sum[i];
        }
        for (int64_t i = 0; i < p->m; i++) {
            int64_t at = j * c->ld + i;
            float old = task->beta != 0.0f ? (float)get(task->c, c->type, at) : 0.0f;
            float before = task->beta * old;
            set(task->c, c->type, at, (double)(factor * column[i] + before));
        }
    }
    free(column);
    free(a);
}

static bool run(void *context)
{
    const struct task *task = context;
    struct task one = *task;
    for (int64_t i = 0; i < task->p.batch; i++) {
        multiply(&one);
        one.a = (const char *)one.a + task->p.a.step * dt_dtype_size(task->p.a.type);
        one.b = (const char *)one.b + task->p.b.step * dt_dtype_size(task->p.b.type);
        one.c = (char *)one.c + task->p.c.step * dt_dtype_size(task->p.c.type);
    }
    return true;
}

EXPORT cublasStatus_t cublasLtMatmul(cublasLtHandle_t lightHandle, cublasLtMatmulDesc_t computeDesc,
                                     const void *alpha, const void *A, cublasLtMatrixLayout_t Adesc,
                                     const void *B, cublasLtMatrixLayout_t Bdesc, const void *beta,
                                     const void *C, cublasLtMatrixLayout_t Cdesc, void *D,
                                     cublasLtMatrixLayout_t Ddesc, const cublasLtMatmulAlgo_t *algo,
                                     void *workspace, size_t workspaceSizeInBytes,
                                     cudaStream_t stream)
{
    struct task task = {.a = A, .b = B, .c = D, .workspace = workspace};
    if (!lightHandle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (failing("matmul") || (failing("captured") && is_captured(stream)))
        return CUBLAS_STATUS_EXECUTION_FAILED;
    if (!alpha || !beta || !A || !B || !C || C != D || !algo)
        return CUBLAS_STATUS_INVALID_VALUE;
    cublasStatus_t code = problem_of(computeDesc, Adesc, Bdesc, Cdesc, Ddesc, &task.p);
    if (code != CUBLAS_STATUS_SUCCESS)
        return code;
    task.algorithm = algorithm_of(algo, &task.p);
    if (!task.algorithm || workspaceSizeInBytes < workspace_of(task.algorithm, &task.p))
        return CUBLAS_STATUS_INVALID_VALUE;
    if ((uintptr_t)workspace % 256 != 0)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (task.algorithm->refused)
        return CUBLAS_STATUS_ARCH_MISMATCH;
    if (!aligned(task.algorithm, (uintptr_t)A, (uintptr_t)B, (uintptr_t)D) ||
        !strides_suit(task.algorithm, &task.p))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    simt_cublaslt_last = task.algorithm->name;
    simt_cublaslt_multiprocessors = task.p.multiprocessors;
    memcpy(&task.alpha, alpha, sizeof task.alpha);
    memcpy(&task.beta, beta, sizeof task.beta);
    simt_enqueue("cublasLtMatmul", stream, run, &task, sizeof task);
    return CUBLAS_STATUS_SUCCESS;
}

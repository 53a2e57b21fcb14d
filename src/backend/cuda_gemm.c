// gemm on CUDA: cuBLASLt, opened at run time. A shape's descriptors and its algorithm are made when
// its workspace is first queried, or at its first call; after that a call is one look-up and one
// launch, so that nothing is allocated in a step and a step can be captured.
#include "backend/cuda_gemm.h"

#include "backend/cuda_library.h"
#include "base/arena.h"
#include "base/hash.h"
#include "base/log.h"
#include "kernels/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The widest load, and the alignment that TMA needs; more gains nothing.
enum { ALIGN_MAX = 16 };

// What cuBLAS's manual recommends and uses itself (cublasSetWorkspace): on Hopper and later
// kernels that cut k keep whole tiles of C there.
static const int64_t workspace_hopper = (int64_t)32 << 20;
static const int64_t workspace_before = (int64_t)4 << 20;

// The library of the headers that this was built with: another major version has other structs.
#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)
#define MAJOR      TEXT(CUBLAS_VER_MAJOR)
static const struct dt_cuda_library library = {
    .name = "cuBLASLt",
    .sonames = (const char *const[]){"libcublasLt.so." MAJOR, NULL},
    .hint = "install cuBLAS of CUDA " MAJOR " (libcublas), add the folder of libcublasLt.so." MAJOR
            " to LD_LIBRARY_PATH, or set run.device = cpu",
};

static dt_status open_library(struct dt_cublaslt *lt)
{
#define SYMBOL(name) {"cublasLt" #name, &lt->name},
    const struct dt_cuda_symbol symbols[] = {DT_CUBLASLT(SYMBOL){NULL, NULL}};
#undef SYMBOL
    return dt_cuda_library_open(&library, symbols);
}

void dt_cuda_gemm_version(char *text, size_t size)
{
    struct dt_cublaslt lt;
    if (open_library(&lt) != DT_OK) {
        snprintf(text, size, "%s", dt_error_current()->message);
        dt_error_clear();
        return;
    }
    size_t version = lt.GetVersion();
    snprintf(text, size, "%zu.%zu.%zu", version / 10000, version / 100 % 100, version % 100);
}

dt_status dt_cublaslt_status(const struct dt_cuda_gemm *gemm, cublasStatus_t code, const char *what,
                             const char *file, int line, const char *function)
{
    if (code == CUBLAS_STATUS_SUCCESS)
        return DT_OK;
    return dt_error_raise(DT_MACHINE, file, line, function, NULL, "%s failed: %s", what,
                          gemm->lt.GetStatusString(code));
}

// Reductions of other kinds are not deterministic or not exact: see cuda_gemm.h.
static const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;

static dt_status prefer(struct dt_cuda_gemm *gemm, cublasLtMatmulPreferenceAttributes_t attribute,
                        const void *value, size_t size)
{
    return DT_LT(gemm,
                 gemm->lt.MatmulPreferenceSetAttribute(gemm->preference, attribute, value, size),
                 "setting a GEMM preference");
}

static dt_status open_handle(struct dt_cuda_gemm *gemm)
{
    uint64_t workspace = (uint64_t)gemm->workspace;
    DT_TRY(DT_LT(gemm, gemm->lt.Create(&gemm->handle), "opening cuBLASLt"));
    DT_TRY(DT_LT(gemm, gemm->lt.MatmulPreferenceCreate(&gemm->preference), "opening cuBLASLt"));
    DT_TRY(prefer(gemm, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace));
    return prefer(gemm, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions);
}

dt_status dt_cuda_gemm_open(struct dt_device *device, struct dt_cuda_gemm **gemm)
{
    struct dt_cuda_gemm *g = calloc(1, sizeof *g);
    *gemm = NULL;
    if (!g)
        return DT_FAIL(DT_MACHINE, NULL, "no memory for the GEMM shapes");
    g->device = device;
    g->workspace = device->major >= 9 ? workspace_hopper : workspace_before;
    pthread_mutex_init(&g->lock, NULL);
    dt_status status = open_library(&g->lt);
    if (status == DT_OK)
        status = open_handle(g);
    if (status != DT_OK) {
        dt_cuda_gemm_close(g);
        return status;
    }
    *gemm = g;
    return DT_OK;
}

static void destroy_shape(struct dt_cuda_gemm *gemm, struct dt_gemm_shape *shape)
{
    const struct dt_cublaslt *lt = &gemm->lt;
    if (shape->product)
        lt->MatmulDescDestroy(shape->product);
    if (shape->first)
        lt->MatrixLayoutDestroy(shape->first);
    if (shape->second)
        lt->MatrixLayoutDestroy(shape->second);
    if (shape->out)
        lt->MatrixLayoutDestroy(shape->out);
    free(shape);
}

void dt_cuda_gemm_close(struct dt_cuda_gemm *gemm)
{
    if (!gemm)
        return;
    for (int i = 0; i < DT_GEMM_BUCKETS; i++)
        for (struct dt_gemm_shape *s = gemm->bucket[i], *next; s; s = next) {
            next = s->next;
            destroy_shape(gemm, s);
        }
    if (gemm->preference)
        gemm->lt.MatmulPreferenceDestroy(gemm->preference);
    if (gemm->handle)
        gemm->lt.Destroy(gemm->handle);
    cJSON_Delete(gemm->record);
    pthread_mutex_destroy(&gemm->lock);
    free(gemm);
}

// Of all of a batch's operands, `step` bytes apart. Where only sizes are known yet (NULL) the
// pointer will come from an arena.
static int32_t alignment(const void *pointer, int64_t step)
{
    uintptr_t address = (uintptr_t)pointer | (uintptr_t)step | ALIGN_MAX;
    return (int32_t)(address & -address);
}

static struct dt_gemm_key key_of(const struct dt_gemm_args *args)
{
    struct dt_gemm_key key;
    memset(&key, 0, sizeof key);
    key.m = args->c.rows, key.n = args->c.cols, key.k = dt_gemm_k(args);
    key.lda = args->a.stride, key.ldb = args->b.stride, key.ldc = args->c.stride;
    key.type = args->a.dtype, key.c_type = args->c.dtype;
    key.trans_a = args->trans_a, key.trans_b = args->trans_b;
    key.batch = dt_gemm_batch(args);
    if (key.batch > 1)
        key.a_step = args->a_step, key.b_step = args->b_step, key.c_step = args->c_step;
    key.align_a = alignment(args->a.data, key.a_step * dt_dtype_size(key.type));
    key.align_b = alignment(args->b.data, key.b_step * dt_dtype_size(key.type));
    key.align_c = alignment(args->c.data, key.c_step * dt_dtype_size(key.c_type));
    key.accumulate = args->accumulate;
    return key;
}

static cudaDataType_t cuda_type(int32_t type)
{
    return type == DT_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

// "Pedantic" is cuBLAS's word for fp32 as it stands: no TF32, no sums of bf16 products, whatever
// the environment asks for. bf16 operands go through tensor cores and are summed in fp32.
static cublasComputeType_t compute_type(int32_t type)
{
    return type == DT_BF16 ? CUBLAS_COMPUTE_32F : CUBLAS_COMPUTE_32F_PEDANTIC;
}

static dt_status set_transposed(struct dt_cuda_gemm *gemm, cublasLtMatmulDesc_t product,
                                cublasLtMatmulDescAttributes_t attribute, bool transposed)
{
    int32_t operation = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    return DT_LT(gemm,
                 gemm->lt.MatmulDescSetAttribute(product, attribute, &operation, sizeof operation),
                 "describing a GEMM");
}

static dt_status set_layout(struct dt_cuda_gemm *gemm, cublasLtMatrixLayout_t layout,
                            cublasLtMatrixLayoutAttribute_t attribute, const void *value,
                            size_t size)
{
    return DT_LT(gemm, gemm->lt.MatrixLayoutSetAttribute(layout, attribute, value, size),
                 "describing a batch of matrices");
}

// A matrix as it is stored, rows of ours being columns of theirs, and those of a batch after it.
static dt_status make_layout(struct dt_cuda_gemm *gemm, cublasLtMatrixLayout_t *layout,
                             int32_t type, int64_t rows, int64_t columns, int64_t ld, int64_t batch,
                             int64_t step)
{
    int32_t count = (int32_t)batch;
    DT_TRY(DT_LT(
        gemm,
        gemm->lt.MatrixLayoutCreate(layout, cuda_type(type), (uint64_t)columns, (uint64_t)rows, ld),
        "describing a matrix"));
    if (batch == 1)
        return DT_OK;
    DT_TRY(set_layout(gemm, *layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count));
    return set_layout(gemm, *layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step,
                      sizeof step);
}

static dt_status describe_shape(struct dt_cuda_gemm *gemm, struct dt_gemm_shape *shape)
{
    const struct dt_gemm_key *key = &shape->key;
    DT_TRY(DT_LT(gemm,
                 gemm->lt.MatmulDescCreate(&shape->product, compute_type(key->type), CUDA_R_32F),
                 "describing a GEMM"));
    DT_TRY(set_transposed(gemm, shape->product, CUBLASLT_MATMUL_DESC_TRANSA, key->trans_b));
    DT_TRY(set_transposed(gemm, shape->product, CUBLASLT_MATMUL_DESC_TRANSB, key->trans_a));
    DT_TRY(make_layout(gemm, &shape->first, key->type, key->trans_b ? key->n : key->k,
                       key->trans_b ? key->k : key->n, key->ldb, key->batch, key->b_step));
    DT_TRY(make_layout(gemm, &shape->second, key->type, key->trans_a ? key->k : key->m,
                       key->trans_a ? key->m : key->k, key->lda, key->batch, key->a_step));
    return make_layout(gemm, &shape->out, key->c_type, key->m, key->n, key->ldc, key->batch,
                       key->c_step);
}

// Whether all that the algorithm sums across blocks is summed as `reductions` allows.
static bool deterministic(const struct dt_cuda_gemm *gemm, const cublasLtMatmulAlgo_t *config)
{
    uint32_t scheme = 0;
    size_t written = 0;
    return gemm->lt.MatmulAlgoConfigGetAttribute(config, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                                                 &scheme, sizeof scheme,
                                                 &written) == CUBLAS_STATUS_SUCCESS &&
           (scheme & ~reductions) == 0;
}

static dt_status prefer_alignment(struct dt_cuda_gemm *gemm, const struct dt_gemm_key *key)
{
    uint32_t first = (uint32_t)key->align_b, second = (uint32_t)key->align_a,
             out = (uint32_t)key->align_c;
    DT_TRY(prefer(gemm, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &first, sizeof first));
    DT_TRY(prefer(gemm, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &second, sizeof second));
    DT_TRY(prefer(gemm, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &out, sizeof out));
    return prefer(gemm, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &out, sizeof out);
}

dt_status dt_gemm_candidates(struct dt_cuda_gemm *gemm, const struct dt_gemm_shape *shape,
                             cublasLtMatmulAlgo_t config[DT_GEMM_CANDIDATES], int *n)
{
    cublasLtMatmulHeuristicResult_t result[DT_GEMM_CANDIDATES];
    int found = 0;
    *n = 0;
    DT_TRY(prefer_alignment(gemm, &shape->key));
    cublasStatus_t code = gemm->lt.MatmulAlgoGetHeuristic(
        gemm->handle, shape->product, shape->first, shape->second, shape->out, shape->out,
        gemm->preference, DT_GEMM_CANDIDATES, result, &found);
    for (int i = 0; code == CUBLAS_STATUS_SUCCESS && i < found; i++)
        if (result[i].state == CUBLAS_STATUS_SUCCESS &&
            result[i].workspaceSize <= (size_t)gemm->workspace &&
            deterministic(gemm, &result[i].algo))
            config[(*n)++] = result[i].algo;
    if (*n > 0)
        return DT_OK;
    char text[DT_GEMM_KEY_TEXT];
    dt_gemm_key_text(&shape->key, text);
    return DT_FAIL(DT_MACHINE, "run.device = cpu supports every shape",
                   "cuBLASLt has no deterministic algorithm for the GEMM %s: %s", text,
                   gemm->lt.GetStatusString(code));
}

bool dt_gemm_accepts(const struct dt_cuda_gemm *gemm, const struct dt_gemm_shape *shape,
                     const cublasLtMatmulAlgo_t *config, const char **why)
{
    cublasLtMatmulHeuristicResult_t result;
    memset(&result, 0, sizeof result);
    cublasStatus_t code =
        gemm->lt.MatmulAlgoCheck(gemm->handle, shape->product, shape->first, shape->second,
                                 shape->out, shape->out, config, &result);
    *why = NULL;
    if (code != CUBLAS_STATUS_SUCCESS)
        *why = gemm->lt.GetStatusString(code);
    else if (result.workspaceSize > (size_t)gemm->workspace)
        *why = "it needs more workspace than is available";
    else if (!deterministic(gemm, config))
        *why = "it is not deterministic";
    return !*why;
}

// The record's algorithm for a shape, if it has one that the library accepts.
static bool find_recorded(const struct dt_cuda_gemm *gemm, const struct dt_gemm_shape *shape,
                          struct dt_gemm_algorithm *algorithm)
{
    const char *why;
    bool found;
    struct dt_gemm_algorithm recorded;
    dt_status status = dt_gemm_record_read(gemm, &shape->key, &recorded, &found);
    if (status == DT_OK && found && !dt_gemm_accepts(gemm, shape, &recorded.config, &why))
        status = DT_FAIL(DT_USER, NULL, "GEMM algorithms: not usable for this shape: %s", why);
    if (status == DT_OK && found)
        *algorithm = recorded;
    if (status == DT_OK)
        return found;
    char text[DT_GEMM_KEY_TEXT];
    dt_gemm_key_text(&shape->key, text);
    dt_warn("%s; ignoring the recorded algorithm of %s", dt_error_current()->message, text);
    dt_error_clear();
    return false;
}

dt_status dt_gemm_use_record(struct dt_cuda_gemm *gemm, struct dt_gemm_shape *shape)
{
    cublasLtMatmulAlgo_t config[DT_GEMM_CANDIDATES];
    int n;
    if (find_recorded(gemm, shape, &shape->algorithm))
        return DT_OK;
    DT_TRY(dt_gemm_candidates(gemm, shape, config, &n));
    shape->algorithm = (struct dt_gemm_algorithm){.config = config[0]};
    return DT_OK;
}

static unsigned bucket_of(const struct dt_gemm_key *key)
{
    return dt_hash_words(key, sizeof *key) % DT_GEMM_BUCKETS;
}

static dt_status add_shape(struct dt_cuda_gemm *gemm, const struct dt_gemm_key *key,
                           struct dt_gemm_shape **shape)
{
    struct dt_gemm_shape *s = calloc(1, sizeof *s);
    if (!s)
        return DT_FAIL(DT_MACHINE, NULL, "no memory for a GEMM shape");
    s->key = *key;
    dt_status status = describe_shape(gemm, s);
    if (status == DT_OK)
        status = dt_gemm_use_record(gemm, s);
    if (status != DT_OK) {
        destroy_shape(gemm, s);
        return status;
    }
    struct dt_gemm_shape **first = &gemm->bucket[bucket_of(key)];
    s->next = *first;
    *first = s;
    gemm->n_shapes++;
    *shape = s;
    return DT_OK;
}

// An algorithm cannot be chosen while a graph is captured: cuBLAS of CUDA 13.3 refuses, others may
// load kernels, which ends the capture. So a new shape is named here, while the capture is whole.
static dt_status new_in_capture(const struct dt_gemm_key *key)
{
    char text[DT_GEMM_KEY_TEXT];
    dt_gemm_key_text(key, text);
    return DT_FAIL(DT_MACHINE,
                   "train without graphs: run.cuda_graph = false, dtrain bench --cuda-graph false",
                   "the GEMM %s is new while a graph is captured: query its workspace, or run it, "
                   "before the capture",
                   text);
}

static dt_status find_shape(struct dt_cuda_gemm *gemm, const struct dt_gemm_args *args,
                            struct dt_gemm_shape **shape)
{
    struct dt_gemm_key key = key_of(args);
    dt_status status = DT_OK;
    pthread_mutex_lock(&gemm->lock);
    struct dt_gemm_shape *s = gemm->bucket[bucket_of(&key)];
    while (s && memcmp(&s->key, &key, sizeof key) != 0)
        s = s->next;
    if (s)
        *shape = s;
    else
        status = dt_cuda_captures() ? new_in_capture(&key) : add_shape(gemm, &key, shape);
    pthread_mutex_unlock(&gemm->lock);
    return status;
}

// One size for all shapes, whichever algorithm each will have. The workspace may start anywhere:
// DT_ARENA_ALIGN bytes are for aligning it.
int64_t gemm_cuda_workspace(struct dt_device *device, const struct dt_gemm_args *args)
{
    struct dt_gemm_shape *shape;
    if (find_shape(device->gemm, args, &shape) != DT_OK)
        dt_error_clear(); // gemm itself will say why
    return device->gemm->workspace + DT_ARENA_ALIGN;
}

cublasStatus_t dt_gemm_run(const struct dt_cuda_gemm *gemm, const struct dt_gemm_shape *shape,
                           const cublasLtMatmulAlgo_t *config, const void *a, const void *b,
                           void *c, void *workspace, struct dt_stream *stream)
{
    const float alpha = 1.0f, beta = shape->key.accumulate ? 1.0f : 0.0f;
    return gemm->lt.Matmul(gemm->handle, shape->product, &alpha, b, shape->first, a, shape->second,
                           &beta, c, shape->out, c, shape->out, config, workspace,
                           (size_t)gemm->workspace, dt_cuda_stream(stream));
}

static void *aligned(void *workspace)
{
    uintptr_t mask = DT_ARENA_ALIGN - 1;
    return (char *)workspace + (-(uintptr_t)workspace & mask);
}

static dt_status refused(const struct dt_cuda_gemm *gemm, const struct dt_gemm_shape *shape,
                         cublasStatus_t code)
{
    char text[DT_GEMM_KEY_TEXT];
    dt_gemm_key_text(&shape->key, text);
    return DT_FAIL(DT_MACHINE, NULL, "cublasLtMatmul failed for the GEMM %s: %s", text,
                   gemm->lt.GetStatusString(code));
}

dt_status gemm_cuda(struct dt_device *device, const struct dt_gemm_args *args,
                    struct dt_stream *stream)
{
    struct dt_gemm_shape *shape;
    DT_TRY(find_shape(device->gemm, args, &shape));
    cublasStatus_t code = dt_gemm_run(device->gemm, shape, &shape->algorithm.config, args->a.data,
                                      args->b.data, args->c.data, aligned(args->workspace), stream);
    return code == CUBLAS_STATUS_SUCCESS ? DT_OK : refused(device->gemm, shape, code);
}

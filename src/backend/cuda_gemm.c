// gemm on CUDA by cuBLASLt, opened at run time. The first workspace query or call of a shape
// creates its descriptors and chooses its algorithm; later calls are one look-up and one launch, so
// that a step allocates nothing and can be captured.
//
// Row-major C = A·B is column-major Cᵀ = Bᵀ·Aᵀ, so cuBLASLt's first operand is our b and its second
// our a, without copies.
//
// While the device is shared, a shape has a second entry with an algorithm for the multiprocessors
// that collectives leave free.
//
// A shape runs the first deterministic algorithm that cuBLASLt recommends, so every rank and every
// run makes the same choice. cuBLAS's manual ("Results Reproducibility") promises the same bits
// from run to run on one architecture, one number of multiprocessors and one library version, for
// cublasLtMatmul on a workspace of the caller's. Products with a split k need care: cublasLt.h sums
// the parts either in a separate step from the workspace, in the compute type or rounded to C's
// type, or "in place", block after block in C. Only the separate step in the compute type is
// accepted, which has a fixed order and full precision: the order of blocks is not guaranteed, and
// rounding to bf16 would defeat fp32 accumulation.
#include "backend/cuda.h"

#include "backend/cuda_library.h"
#include "base/arena.h"
#include "base/hash.h"
#include "base/memory.h"
#include "kernels/cuda.h"

#include <cublasLt.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

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
    X(MatmulAlgoConfigGetAttribute)                                                                \
    X(Matmul)

struct dt_cublaslt {
#define DT_CUBLASLT_POINTER(name) __typeof__(cublasLt##name) *name;
    DT_CUBLASLT(DT_CUBLASLT_POINTER)
#undef DT_CUBLASLT_POINTER
};

// Everything that the choice of an algorithm depends on. Compared bytewise, so start from zeroed
// memory. Whether C is added to (beta = 1) is only an argument of the call.
struct key {
    int64_t m, n, k;
    int64_t lda, ldb, ldc;
    int64_t batch, a_step, b_step, c_step; // steps are 0 for one product
    int32_t type, c_type;                  // of a and b, of c
    int32_t trans_a, trans_b;
    int32_t align_a, align_b, align_c; // largest power of two <= 16 that divides the address
    int32_t multiprocessors;           // available to the algorithm; 0: all
};

struct shape {
    struct key key;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t first, second, out; // b, a, c
    cublasLtMatmulAlgo_t algorithm;
    struct shape *next; // in its bucket
};

enum { BUCKETS = 256, CANDIDATES = 16 };

// Thread-safe.
struct dt_cuda_gemm {
    struct dt_cublaslt lt;
    cublasLtHandle_t handle;
    cublasLtMatmulPreference_t preference;
    int64_t workspace; // bytes that an algorithm may use
    pthread_mutex_t lock;
    struct shape *bucket[BUCKETS];
};

// DT_MACHINE at the caller's line if a cuBLASLt call failed.
#define DT_LT(gemm, call, what) lt_status((gemm), (call), (what), __FILE__, __LINE__, __func__)

// The widest load, and the alignment that TMA needs; more gains nothing.
enum { ALIGN_MAX = 16 };

// The size that cuBLAS's manual recommends (cublasSetWorkspace): on Hopper and later, kernels that
// split k keep whole tiles of C there.
static const int64_t workspace_hopper = (int64_t)32 << 20;
static const int64_t workspace_before = (int64_t)4 << 20;

// The major version must match the headers of the build, because structs differ between major
// versions.
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

static dt_status lt_status(const struct dt_cuda_gemm *gemm, cublasStatus_t code, const char *what,
                           const char *file, int line, const char *function)
{
    if (code == CUBLAS_STATUS_SUCCESS)
        return DT_OK;
    return dt_error_raise(DT_MACHINE, file, line, function, NULL, "%s failed: %s", what,
                          gemm->lt.GetStatusString(code));
}

// Other reduction schemes are not deterministic or lose precision (see above).
static const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;

static dt_status prefer(struct dt_cuda_gemm *gemm, cublasLtMatmulPreferenceAttributes_t attribute,
                        const void *value, size_t size)
{
    return DT_LT(gemm,
                 gemm->lt.MatmulPreferenceSetAttribute(gemm->preference, attribute, value, size),
                 "setting a GEMM preference");
}

dt_status dt_cuda_gemm_open(struct dt_device *device, struct dt_cuda_gemm **gemm)
{
    struct dt_cuda_gemm *g;
    *gemm = NULL;
    DT_TRY(DT_NEW(&g, 1, "the GEMM shapes"));
    g->workspace = device->major >= 9 ? workspace_hopper : workspace_before;
    pthread_mutex_init(&g->lock, NULL);
    const uint64_t most = (uint64_t)g->workspace;
    dt_status status;
    DT_TRY_GOTO(status, fail, open_library(&g->lt));
    DT_TRY_GOTO(status, fail, DT_LT(g, g->lt.Create(&g->handle), "opening cuBLASLt"));
    DT_TRY_GOTO(status, fail,
                DT_LT(g, g->lt.MatmulPreferenceCreate(&g->preference), "opening cuBLASLt"));
    DT_TRY_GOTO(status, fail,
                prefer(g, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof most));
    DT_TRY_GOTO(
        status, fail,
        prefer(g, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions));
    *gemm = g;
    return DT_OK;
fail:
    dt_cuda_gemm_close(g);
    return status;
}

static void destroy_shape(struct dt_cuda_gemm *gemm, struct shape *shape)
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
    for (int i = 0; i < BUCKETS; i++)
        for (struct shape *s = gemm->bucket[i], *next; s; s = next) {
            next = s->next;
            destroy_shape(gemm, s);
        }
    if (gemm->preference)
        gemm->lt.MatmulPreferenceDestroy(gemm->preference);
    if (gemm->handle)
        gemm->lt.Destroy(gemm->handle);
    pthread_mutex_destroy(&gemm->lock);
    free(gemm);
}

// The common alignment of a batch's operands, which are `step` bytes apart. NULL (only sizes are
// known yet) counts as a pointer from an arena.
static int32_t alignment(const void *pointer, int64_t step)
{
    uintptr_t address = (uintptr_t)pointer | (uintptr_t)step | ALIGN_MAX;
    return (int32_t)(address & -address);
}

static struct key key_of(const struct dt_device *device, const struct dt_gemm_args *args)
{
    struct key key;
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
    if (device->shares)
        key.multiprocessors = device->multiprocessors - dt_cuda_comm_blocks(device);
    return key;
}

static dt_status set_product(struct dt_cuda_gemm *gemm, cublasLtMatmulDesc_t product,
                             cublasLtMatmulDescAttributes_t attribute, int32_t value)
{
    return DT_LT(gemm, gemm->lt.MatmulDescSetAttribute(product, attribute, &value, sizeof value),
                 "describing a GEMM");
}

static dt_status set_layout(struct dt_cuda_gemm *gemm, cublasLtMatrixLayout_t layout,
                            cublasLtMatrixLayoutAttribute_t attribute, const void *value,
                            size_t size)
{
    return DT_LT(gemm, gemm->lt.MatrixLayoutSetAttribute(layout, attribute, value, size),
                 "describing a batch of matrices");
}

// Describes a stored matrix, or a batch of them `step` elements apart. Rows become cuBLAS's
// columns.
static dt_status make_layout(struct dt_cuda_gemm *gemm, cublasLtMatrixLayout_t *layout,
                             int32_t type, int64_t rows, int64_t columns, int64_t ld, int64_t batch,
                             int64_t step)
{
    int32_t count = (int32_t)batch;
    DT_TRY(DT_LT(gemm,
                 gemm->lt.MatrixLayoutCreate(layout, type == DT_BF16 ? CUDA_R_16BF : CUDA_R_32F,
                                             (uint64_t)columns, (uint64_t)rows, ld),
                 "describing a matrix"));
    if (batch == 1)
        return DT_OK;
    DT_TRY(set_layout(gemm, *layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count));
    return set_layout(gemm, *layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step,
                      sizeof step);
}

static dt_status describe_shape(struct dt_cuda_gemm *gemm, struct shape *shape)
{
    const struct key *key = &shape->key;
    // "Pedantic" means true fp32: no TF32 and no sums of bf16 products, whatever the environment
    // says. bf16 operands use tensor cores with fp32 sums.
    cublasComputeType_t compute =
        key->type == DT_BF16 ? CUBLAS_COMPUTE_32F : CUBLAS_COMPUTE_32F_PEDANTIC;
    DT_TRY(DT_LT(gemm, gemm->lt.MatmulDescCreate(&shape->product, compute, CUDA_R_32F),
                 "describing a GEMM"));
    DT_TRY(set_product(gemm, shape->product, CUBLASLT_MATMUL_DESC_TRANSA,
                       key->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N));
    DT_TRY(set_product(gemm, shape->product, CUBLASLT_MATMUL_DESC_TRANSB,
                       key->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N));
    if (key->multiprocessors > 0)
        DT_TRY(set_product(gemm, shape->product, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET,
                           key->multiprocessors));
    DT_TRY(make_layout(gemm, &shape->first, key->type, key->trans_b ? key->n : key->k,
                       key->trans_b ? key->k : key->n, key->ldb, key->batch, key->b_step));
    DT_TRY(make_layout(gemm, &shape->second, key->type, key->trans_a ? key->k : key->m,
                       key->trans_a ? key->m : key->k, key->lda, key->batch, key->a_step));
    return make_layout(gemm, &shape->out, key->c_type, key->m, key->n, key->ldc, key->batch,
                       key->c_step);
}

// Whether the algorithm sums across blocks only as `reductions` allows. An algorithm without that
// attribute is deterministic if it does not split k.
static bool deterministic(const struct dt_cuda_gemm *gemm, const cublasLtMatmulAlgo_t *config)
{
    uint32_t scheme = 0;
    int32_t parts = 0;
    size_t written = 0;
    if (gemm->lt.MatmulAlgoConfigGetAttribute(config, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                                              &scheme, sizeof scheme,
                                              &written) == CUBLAS_STATUS_SUCCESS)
        return (scheme & ~reductions) == 0;
    return gemm->lt.MatmulAlgoConfigGetAttribute(config, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts,
                                                 sizeof parts, &written) == CUBLAS_STATUS_SUCCESS &&
           parts == 1;
}

struct key_text {
    char text[256];
};

// "bf16 -> fp32 tn m768 n1536 k4096 ld 768 1536 1536 align 16 16 16"; a batch adds
// " batch 24 steps 4096 0 1024", a shared device " on 116 SMs".
static struct key_text key_text(const struct key *key)
{
    struct key_text text;
    char batch[96] = "", sms[32] = "";
    if (key->multiprocessors > 0)
        snprintf(sms, sizeof sms, " on %d SMs", key->multiprocessors);
    if (key->batch > 1)
        snprintf(batch, sizeof batch, " batch %lld steps %lld %lld %lld", (long long)key->batch,
                 (long long)key->a_step, (long long)key->b_step, (long long)key->c_step);
    snprintf(text.text, sizeof text.text,
             "%s -> %s %c%c m%lld n%lld k%lld ld %lld %lld %lld align %d %d %d%s%s",
             dt_dtype_name(key->type), dt_dtype_name(key->c_type), key->trans_a ? 't' : 'n',
             key->trans_b ? 't' : 'n', (long long)key->m, (long long)key->n, (long long)key->k,
             (long long)key->lda, (long long)key->ldb, (long long)key->ldc, key->align_a,
             key->align_b, key->align_c, batch, sms);
    return text;
}

static dt_status choose_algorithm(struct dt_cuda_gemm *gemm, struct shape *shape)
{
    cublasLtMatmulHeuristicResult_t result[CANDIDATES];
    const struct key *key = &shape->key;
    const uint32_t align[] = {(uint32_t)key->align_b, (uint32_t)key->align_a,
                              (uint32_t)key->align_c, (uint32_t)key->align_c}; // of A, B, C, D
    int n = 0;
    for (uint32_t i = 0; i < 4; i++)
        DT_TRY(prefer(gemm, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES + i, &align[i],
                      sizeof align[i]));
    cublasStatus_t code = gemm->lt.MatmulAlgoGetHeuristic(
        gemm->handle, shape->product, shape->first, shape->second, shape->out, shape->out,
        gemm->preference, CANDIDATES, result, &n);
    for (int i = 0; code == CUBLAS_STATUS_SUCCESS && i < n; i++)
        if (result[i].state == CUBLAS_STATUS_SUCCESS &&
            result[i].workspaceSize <= (size_t)gemm->workspace &&
            deterministic(gemm, &result[i].algo)) {
            shape->algorithm = result[i].algo;
            return DT_OK;
        }
    return DT_FAIL(DT_MACHINE, "run.device = cpu supports every shape",
                   "cuBLASLt has no deterministic algorithm for the GEMM %s: %s",
                   key_text(key).text, gemm->lt.GetStatusString(code));
}

static unsigned bucket_of(const struct key *key)
{
    return dt_hash_words(key, sizeof *key) % BUCKETS;
}

static dt_status add_shape(struct dt_cuda_gemm *gemm, const struct key *key, struct shape **shape)
{
    struct shape *s;
    DT_TRY(DT_NEW(&s, 1, "a GEMM shape"));
    s->key = *key;
    dt_status status = describe_shape(gemm, s);
    if (status == DT_OK)
        status = choose_algorithm(gemm, s);
    if (status != DT_OK) {
        destroy_shape(gemm, s);
        return status;
    }
    struct shape **first = &gemm->bucket[bucket_of(key)];
    s->next = *first;
    *first = s;
    *shape = s;
    return DT_OK;
}

static dt_status find_shape(struct dt_device *device, const struct dt_gemm_args *args,
                            struct shape **shape)
{
    struct dt_cuda_gemm *gemm = device->gemm;
    struct key key = key_of(device, args);
    dt_status status = DT_OK;
    pthread_mutex_lock(&gemm->lock);
    struct shape *s = gemm->bucket[bucket_of(&key)];
    while (s && memcmp(&s->key, &key, sizeof key) != 0)
        s = s->next;
    if (s)
        *shape = s;
    else if (!dt_cuda_captures())
        status = add_shape(gemm, &key, shape);
    else // cuBLAS of CUDA 13.3 refuses to choose an algorithm during a capture, other versions may
         // load kernels, which ends the capture: report the new shape before that
        status = DT_FAIL(DT_MACHINE,
                         "train without graphs: run.cuda_graph = false, dtrain bench --cuda-graph "
                         "false",
                         "the GEMM %s is new while a graph is captured: query its workspace, or "
                         "run it, before the capture",
                         key_text(&key).text);
    pthread_mutex_unlock(&gemm->lock);
    return status;
}

// One size for all shapes and algorithms, plus DT_ARENA_ALIGN bytes so that the workspace may start
// at any address.
int64_t gemm_cuda_workspace(struct dt_device *device, const struct dt_gemm_args *args)
{
    struct shape *shape;
    if (!device->gemm) // a planned device
        return workspace_hopper + DT_ARENA_ALIGN;
    if (find_shape(device, args, &shape) != DT_OK)
        dt_error_clear(); // gemm itself will report why
    return device->gemm->workspace + DT_ARENA_ALIGN;
}

dt_status gemm_cuda(struct dt_device *device, const struct dt_gemm_args *args,
                    struct dt_stream *stream)
{
    struct shape *shape;
    DT_TRY(find_shape(device, args, &shape));
    const struct dt_cuda_gemm *gemm = device->gemm;
    const float alpha = 1.0f, beta = args->accumulate ? 1.0f : 0.0f;
    char *workspace =
        (char *)args->workspace + (-(uintptr_t)args->workspace & (DT_ARENA_ALIGN - 1));
    cublasStatus_t code = gemm->lt.Matmul(
        gemm->handle, shape->product, &alpha, args->b.data, shape->first, args->a.data,
        shape->second, &beta, args->c.data, shape->out, args->c.data, shape->out, &shape->algorithm,
        workspace, (size_t)gemm->workspace, dt_cuda_stream(stream));
    if (code == CUBLAS_STATUS_SUCCESS)
        return DT_OK;
    return DT_FAIL(DT_MACHINE, NULL, "cublasLtMatmul failed for the GEMM %s: %s",
                   key_text(&shape->key).text, gemm->lt.GetStatusString(code));
}

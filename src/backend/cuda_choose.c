// Which of cuBLASLt's algorithms multiplies each shape: the fastest by timing on this device, on
// operands of its own. They are random numbers, because zeros draw less power and run faster than
// data does, and more of them than the second-level cache holds: in a step a product finds its
// weights, and most of its activations, in memory. The operands are freed before the model
// allocates its memory.
#include "backend/cuda_gemm.h"

#include "base/arena.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/round.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROUNDS = 5,       // the median of them counts
    REPEATS = 20,     // products between two stamps, or one with each set of operands
    CACHES = 2,       // times the cache, between two uses of a set: what stays in it is not exactly
                      // what was used last
    SETS = 256,       // at most. Products with operands of a 128th of the cache are launch-bound
    RANDOM = 1 << 16, // bf16 numbers, repeated over the operands
    SAMPLE = 4 << 20, // bytes of C that two runs are compared by, at most
    MARKS = 2 * ROUNDS // stamps of a candidate
};

// Stamps may be as coarse as 1 us (kernels/stamp.h): so long a measurement is exact to a percent …
static const double measured_us = 100.0;
// … and candidates within a few are one: the library's own order then decides, so that two runs
// that measure each for itself choose alike.
static const double tie = 1.03;

struct bench {
    struct dt_backend backend;
    struct dt_cuda_gemm *gemm;
    struct dt_stream *stream;
    char *operands; // the sets of a shape, one after the other
    void *workspace;
    uint64_t *stamps; // on the device: two
    uint64_t *marks;  // pinned: DT_GEMM_CANDIDATES of MARKS
    char *sample[2];  // pinned: `compared` bytes each
    dt_bf16 *random;  // pinned: RANDOM
    int64_t compared;
};

// Why a candidate is out.
enum fate { IN, NOT_RUN, NOT_CAPTURED, NOT_REPEATED, FATES };

struct candidate {
    cublasLtMatmulAlgo_t config;
    enum fate fate;
    double microseconds; // of one product
    int repeats;
    struct dt_graph *graph; // stamp, `repeats` products, stamp
};

// ---- operands

// Bytes of one set: where b and c begin in it, those of c, and all with the next set aligned.
struct extent {
    int64_t b, c, c_bytes, set;
};

static struct extent extent_of(const struct dt_gemm_key *key)
{
    int64_t rows_a = key->trans_a ? key->k : key->m, rows_b = key->trans_b ? key->n : key->k;
    int64_t size = dt_dtype_size(key->type);
    int64_t more = key->batch - 1; // products after the first
    struct extent extent = {.c_bytes = (key->m * key->ldc + more * key->c_step) *
                                       dt_dtype_size(key->c_type)};
    struct dt_arena set = dt_arena_measure();
    dt_arena_take(&set, (rows_a * key->lda + more * key->a_step) * size);
    extent.b = set.used;
    dt_arena_take(&set, (rows_b * key->ldb + more * key->b_step) * size);
    extent.c = set.used;
    dt_arena_take(&set, extent.c_bytes);
    extent.set = set.used;
    return extent;
}

// Used in turn.
static int sets_of(const struct dt_device *device, const struct dt_gemm_key *key)
{
    int64_t set = extent_of(key).set, sets = dt_ceil_div(CACHES * device->l2, set);
    return sets < 1 ? 1 : sets < SETS ? (int)sets : SETS;
}

static int64_t operand_bytes(const struct dt_device *device, const struct dt_gemm_key *key)
{
    return sets_of(device, key) * extent_of(key).set;
}

// Normal numbers in bf16. Two of them side by side read as fp32 are about the second.
static void make_random(dt_bf16 *to)
{
    struct dt_philox rng = dt_philox_init(1337, 0, 0);
    for (int64_t i = 0; i < RANDOM; i++)
        to[i] = dt_f32_to_bf16(dt_philox_normal(&rng));
}

// The first bytes come from the host, each copy then doubles them. Done for each shape, since its
// sets overlap the results of the one before.
static dt_status fill_operands(struct bench *bench, const struct dt_gemm_shape *shape)
{
    int64_t bytes = operand_bytes(bench->backend.device, &shape->key);
    int64_t done = dt_min_i64(RANDOM * (int64_t)sizeof *bench->random, bytes);
    DT_TRY(dt_to_device(&bench->backend, bench->operands, bench->random, done, bench->stream));
    while (done < bytes) {
        int64_t more = dt_min_i64(done, bytes - done);
        DT_TRY(
            dt_copy(&bench->backend, bench->operands + done, bench->operands, more, bench->stream));
        done += more;
    }
    return DT_OK;
}

static dt_status allocate(struct bench *bench, struct dt_gemm_shape *const *shapes, int n)
{
    const struct dt_backend *backend = &bench->backend;
    int64_t size = (int64_t)sizeof(uint64_t), operands = 0, c_bytes = 0;
    for (int i = 0; i < n; i++) {
        operands = dt_max_i64(operands, operand_bytes(backend->device, &shapes[i]->key));
        c_bytes = dt_max_i64(c_bytes, extent_of(&shapes[i]->key).c_bytes);
    }
    bench->compared = dt_min_i64(c_bytes, SAMPLE);
    DT_TRY(dt_alloc(backend, operands, &bench->operands));
    DT_TRY(dt_alloc(backend, bench->gemm->workspace, &bench->workspace));
    DT_TRY(dt_alloc(backend, 2 * size, &bench->stamps));
    DT_TRY(dt_alloc_host(backend, DT_GEMM_CANDIDATES * MARKS * size, &bench->marks));
    DT_TRY(dt_alloc_host(backend, RANDOM * (int64_t)sizeof *bench->random, &bench->random));
    for (int i = 0; i < 2; i++)
        DT_TRY(dt_alloc_host(backend, bench->compared, &bench->sample[i]));
    return DT_OK;
}

static void release(struct bench *bench)
{
    void *const memory[] = {bench->operands, bench->workspace, bench->stamps};
    void *const pinned[] = {bench->marks, bench->random, bench->sample[0], bench->sample[1]};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        dt_free(&bench->backend, memory[i]);
    for (size_t i = 0; i < sizeof pinned / sizeof *pinned; i++)
        dt_free_host(&bench->backend, pinned[i]);
}

// ---- timing

static cublasStatus_t multiply(struct bench *bench, const struct dt_gemm_shape *shape,
                               const cublasLtMatmulAlgo_t *config, int set)
{
    struct extent extent = extent_of(&shape->key);
    char *a = bench->operands + set * extent.set;
    return dt_gemm_run(bench->gemm, shape, config, a, a + extent.b, a + extent.c, bench->workspace,
                       bench->stream);
}

// Stamp, products with each set in turn, stamp. A candidate that cuBLASLt refuses is out.
static dt_status enqueue(struct bench *bench, const struct dt_gemm_shape *shape,
                         struct candidate *candidate, int repeats)
{
    struct dt_stamp_args stamp[2] = {{.time = bench->stamps}, {.time = bench->stamps + 1}};
    int sets = sets_of(bench->backend.device, &shape->key);
    DT_TRY(dt_stamp(&bench->backend, &stamp[0], bench->stream));
    for (int i = 0; i < repeats; i++)
        if (multiply(bench, shape, &candidate->config, i % sets) != CUBLAS_STATUS_SUCCESS)
            candidate->fate = NOT_RUN;
    return dt_stamp(&bench->backend, &stamp[1], bench->stream);
}

static dt_status read_marks(struct bench *bench, uint64_t *to)
{
    return dt_to_host(&bench->backend, to, bench->stamps, 2 * (int64_t)sizeof *to, bench->stream);
}

static double between(const uint64_t *mark)
{
    return (double)(int64_t)(mark[1] - mark[0]) * 1e-3;
}

// The first run loads the kernels, which a capture must not; the second says how long one takes.
// All sets are used equally often, so that the next candidate finds the first of them no fresher
// than the others.
static dt_status warm_up(struct bench *bench, const struct dt_gemm_shape *shape,
                         struct candidate *candidate)
{
    int sets = sets_of(bench->backend.device, &shape->key);
    for (int i = 0; i < 2; i++)
        DT_TRY(enqueue(bench, shape, candidate, sets));
    DT_TRY(read_marks(bench, bench->marks));
    DT_TRY(dt_stream_sync(&bench->backend, bench->stream));
    double each = fmax(between(bench->marks), 1.0) / sets;
    candidate->repeats = sets * (int)ceil(fmin(measured_us / each, REPEATS) / sets);
    return DT_OK;
}

// As a graph: the host then launches no slower than the device multiplies, as in a captured step.
// What cannot be captured is out: no step could use it.
static void capture(struct bench *bench, const struct dt_gemm_shape *shape,
                    struct candidate *candidate)
{
    dt_status status = dt_capture_begin(&bench->backend, bench->stream);
    if (status == DT_OK) {
        status = enqueue(bench, shape, candidate, candidate->repeats);
        dt_status ended = dt_capture_end(&bench->backend, bench->stream, &candidate->graph);
        status = status == DT_OK ? ended : status;
    }
    if (status != DT_OK || candidate->fate != IN)
        candidate->fate = NOT_CAPTURED;
    dt_error_clear();
}

// Each round runs all candidates in turn, so that a clock that slows down slows all.
static dt_status run_rounds(struct bench *bench, struct candidate *candidate, int n)
{
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < n; i++)
            if (candidate[i].graph) {
                DT_TRY(dt_graph_launch(&bench->backend, candidate[i].graph, bench->stream));
                DT_TRY(read_marks(bench, bench->marks + i * MARKS + 2 * round));
            }
    return dt_stream_sync(&bench->backend, bench->stream);
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const uint64_t *mark)
{
    double time[ROUNDS];
    for (int i = 0; i < ROUNDS; i++)
        time[i] = between(mark + 2 * i);
    qsort(time, ROUNDS, sizeof *time, compare_doubles);
    return time[ROUNDS / 2];
}

static dt_status time_candidates(struct bench *bench, const struct dt_gemm_shape *shape,
                                 struct candidate *candidate, int n)
{
    for (int i = 0; i < n; i++) {
        DT_TRY(warm_up(bench, shape, &candidate[i]));
        if (candidate[i].fate == IN)
            capture(bench, shape, &candidate[i]);
    }
    DT_TRY(run_rounds(bench, candidate, n));
    for (int i = 0; i < n; i++)
        if (candidate[i].fate == IN)
            candidate[i].microseconds = median(bench->marks + i * MARKS) / candidate[i].repeats;
    return DT_OK;
}

// ---- choosing

// The first that is as fast as the fastest; -1: none is left.
static int fastest(const struct candidate *candidate, int n)
{
    double best = HUGE_VAL;
    for (int i = 0; i < n; i++)
        best = candidate[i].fate == IN ? fmin(best, candidate[i].microseconds) : best;
    for (int i = 0; i < n; i++)
        if (candidate[i].fate == IN && candidate[i].microseconds <= best * tie)
            return i;
    return -1;
}

// Whether two products are the same in every bit of the beginning of C.
static dt_status repeats_itself(struct bench *bench, const struct dt_gemm_shape *shape,
                                const struct candidate *candidate, bool *same)
{
    struct extent extent = extent_of(&shape->key);
    int64_t sample = dt_min_i64(extent.c_bytes, bench->compared);
    char *c = bench->operands + extent.c;
    cublasStatus_t code = CUBLAS_STATUS_SUCCESS;
    for (int i = 0; i < 2 && code == CUBLAS_STATUS_SUCCESS; i++) {
        DT_TRY(dt_fill(&bench->backend, c, 0, sample, bench->stream));
        code = multiply(bench, shape, &candidate->config, 0);
        DT_TRY(dt_to_host(&bench->backend, bench->sample[i], c, sample, bench->stream));
        DT_TRY(dt_stream_sync(&bench->backend, bench->stream));
    }
    *same = code == CUBLAS_STATUS_SUCCESS &&
            memcmp(bench->sample[0], bench->sample[1], (size_t)sample) == 0;
    return DT_OK;
}

static dt_status no_algorithm(const struct dt_gemm_shape *shape, const struct candidate *candidate,
                              int n)
{
    int out[FATES] = {0};
    char text[DT_GEMM_KEY_TEXT];
    for (int i = 0; i < n; i++)
        out[candidate[i].fate]++;
    dt_gemm_key_text(&shape->key, text);
    return DT_FAIL(DT_MACHINE, "another version of cuBLAS may have one",
                   "cuBLASLt has no usable algorithm for the GEMM %s: %d did not run, %d could not "
                   "be captured in a graph, %d gave different bits in two runs",
                   text, out[NOT_RUN], out[NOT_CAPTURED], out[NOT_REPEATED]);
}

static dt_status pick(struct bench *bench, struct dt_gemm_shape *shape, struct candidate *candidate,
                      int n)
{
    for (int i; (i = fastest(candidate, n)) >= 0; candidate[i].fate = NOT_REPEATED) {
        bool same = false;
        DT_TRY(repeats_itself(bench, shape, &candidate[i], &same));
        if (same) {
            double hundredths = round(candidate[i].microseconds * 100.0);
            shape->algorithm =
                (struct dt_gemm_algorithm){candidate[i].config, hundredths / 100.0, true};
            return DT_OK;
        }
    }
    return no_algorithm(shape, candidate, n);
}

// Those that the library would accept from a record too, so that all ranks come to use the same.
static dt_status list_candidates(struct bench *bench, const struct dt_gemm_shape *shape,
                                 struct candidate candidate[DT_GEMM_CANDIDATES], int *n)
{
    cublasLtMatmulAlgo_t config[DT_GEMM_CANDIDATES];
    const char *why;
    int found;
    *n = 0;
    DT_TRY(dt_gemm_candidates(bench->gemm, shape, config, &found));
    for (int i = 0; i < found; i++)
        if (dt_gemm_accepts(bench->gemm, shape, &config[i], &why))
            candidate[(*n)++].config = config[i];
    return DT_OK;
}

// Without candidates the library's first choice stays.
static dt_status choose_shape(struct bench *bench, struct dt_gemm_shape *shape)
{
    struct candidate candidate[DT_GEMM_CANDIDATES] = {0};
    int n;
    DT_TRY(list_candidates(bench, shape, candidate, &n));
    if (n == 0)
        return DT_OK;
    DT_TRY(fill_operands(bench, shape));
    dt_status status = time_candidates(bench, shape, candidate, n);
    if (status == DT_OK)
        status = pick(bench, shape, candidate, n);
    for (int i = 0; i < n; i++)
        if (candidate[i].graph)
            dt_graph_destroy(&bench->backend, candidate[i].graph);
    return status;
}

static dt_status choose_all(struct bench *bench, struct dt_gemm_shape *const *shapes, int n)
{
    dt_info("choosing GEMM algorithms for %d shape%s", n, n == 1 ? "" : "s");
    DT_TRY(dt_stream_create(&bench->backend, &bench->stream));
    make_random(bench->random);
    dt_status status = DT_OK;
    for (int i = 0; i < n && status == DT_OK; i++)
        status = choose_shape(bench, shapes[i]);
    dt_stream_destroy(&bench->backend, bench->stream);
    return status;
}

// If the device has no room for operands beside the model, the library's first choice stays.
static dt_status time_shapes(struct dt_device *device, struct dt_gemm_shape *const *shapes, int n)
{
    struct bench bench = {.backend = {&dt_cuda_device_table, &dt_cuda_op_table, device},
                          .gemm = device->gemm};
    dt_status status = allocate(&bench, shapes, n);
    if (status == DT_OK) {
        status = choose_all(&bench, shapes, n);
    } else {
        dt_warn("not timing GEMM algorithms, using cuBLASLt's first choice: %s",
                dt_error_current()->message);
        dt_error_clear();
        status = DT_OK;
    }
    release(&bench);
    return status;
}

static int compare_shapes(const void *a, const void *b)
{
    char x[DT_GEMM_KEY_TEXT], y[DT_GEMM_KEY_TEXT];
    dt_gemm_key_text(&(*(struct dt_gemm_shape *const *)a)->key, x);
    dt_gemm_key_text(&(*(struct dt_gemm_shape *const *)b)->key, y);
    return strcmp(x, y);
}

// All registered shapes, in the order of their texts, with room for as many; malloc'ed.
static dt_status list_shapes(const struct dt_cuda_gemm *gemm, struct dt_gemm_shape ***list)
{
    struct dt_gemm_shape **shapes = calloc(2 * (size_t)gemm->n_shapes + 1, sizeof(void *));
    int n = 0;
    if (!shapes)
        return DT_FAIL(DT_MACHINE, NULL, "no memory for a list of GEMM shapes");
    for (int i = 0; i < DT_GEMM_BUCKETS; i++)
        for (struct dt_gemm_shape *s = gemm->bucket[i]; s; s = s->next)
            shapes[n++] = s;
    qsort(shapes, (size_t)n, sizeof *shapes, compare_shapes);
    *list = shapes;
    return DT_OK;
}

static dt_status set_record(struct dt_cuda_gemm *gemm, struct dt_gemm_shape *const *shapes,
                            const char *text)
{
    DT_TRY(dt_gemm_record_set(gemm, text));
    for (int i = 0; i < gemm->n_shapes; i++)
        DT_TRY(dt_gemm_use_record(gemm, shapes[i]));
    return DT_OK;
}

static dt_status choose(struct dt_device *device, const char *known, struct dt_gemm_shape **shapes,
                        char **text)
{
    struct dt_cuda_gemm *gemm = device->gemm;
    struct dt_gemm_shape **open = shapes + gemm->n_shapes;
    int n = 0;
    DT_TRY(set_record(gemm, shapes, known));
    for (int i = 0; i < gemm->n_shapes; i++)
        if (!shapes[i]->algorithm.chosen)
            open[n++] = shapes[i];
    if (n > 0)
        DT_TRY(time_shapes(device, open, n));
    return dt_gemm_record_write(gemm, shapes, text);
}

dt_status dt_cuda_choose(struct dt_device *device, const char *known, char **text)
{
    struct dt_gemm_shape **shapes = NULL;
    *text = NULL;
    DT_TRY(list_shapes(device->gemm, &shapes));
    dt_status status = choose(device, known, shapes, text);
    free(shapes);
    return status;
}

dt_status dt_cuda_use(struct dt_device *device, const char *text)
{
    struct dt_gemm_shape **shapes = NULL;
    DT_TRY(list_shapes(device->gemm, &shapes));
    dt_status status = set_record(device->gemm, shapes, text);
    free(shapes);
    return status;
}

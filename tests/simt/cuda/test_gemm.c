// Tests gemm of the CUDA backend on the simulated device: which algorithm runs, a captured product,
// what is cached, and the messages if cuBLASLt fails or, with the argument no_library, is missing.
// tests/parity checks the results of products.
#include "device_fixture.h"

#include <stdatomic.h>

struct problem {
    int64_t m, n, k;
    dt_dtype type, c_type;
    bool trans_a, trans_b, accumulate;
    int64_t odd; // elements between the end of a row and the next row
};

// Fresh C is NaN. Without accumulation none of that may reach the result.
static void *fresh_c(const struct dt_gemm_args *args)
{
    const struct dt_view *c = &args->c;
    return args->accumulate ? normal_rows(c->dtype, c->rows, c->cols, c->stride, 1.0, 3)
                            : guarded(c->rows * c->stride * dt_dtype_size(c->dtype));
}

// All shapes use one workspace, since its size is the same for all. It may start anywhere.
enum { WORKSPACE_START = 16 };
static void *scratch;

static void give_workspace(const struct dt_backend *cuda, struct dt_gemm_args *args)
{
    static int64_t bytes;
    args->workspace_bytes = dt_gemm_workspace(cuda, args);
    if (!scratch) {
        bytes = args->workspace_bytes;
        CHECK_OK(dt_alloc(cuda, bytes + WORKSPACE_START, &scratch));
    }
    CHECK_INT(args->workspace_bytes, bytes);
    args->workspace = (char *)scratch + WORKSPACE_START;
}

static void take_workspace(const struct dt_backend *cuda)
{
    dt_free(cuda, scratch);
    scratch = NULL;
}

// The operands of a product, on the host and on the device.
struct product {
    struct dt_gemm_args host, device; // host.c is not set
    void *c;                          // a fresh C, which the device has a copy of
};

static struct product make_product(const struct dt_backend *cuda, const struct problem *q)
{
    int64_t a_rows = q->trans_a ? q->k : q->m, a_cols = q->trans_a ? q->m : q->k;
    int64_t b_rows = q->trans_b ? q->n : q->k, b_cols = q->trans_b ? q->k : q->n;
    struct product p = {
        .host = {
            .a = normal_view(q->type, a_rows, a_cols, a_cols + q->odd, 1.0, 1),
            .b = normal_view(q->type, b_rows, b_cols, b_cols + 2 * q->odd, 1.0, 2),
            .c = {.rows = q->m, .cols = q->n, .stride = q->n + 3 * q->odd, .dtype = q->c_type},
            .trans_a = q->trans_a,
            .trans_b = q->trans_b,
            .accumulate = q->accumulate,
        }};
    p.device = p.host;
    p.c = fresh_c(&p.host);
    p.device.a.data = copy_on(cuda, p.host.a.data);
    p.device.b.data = copy_on(cuda, p.host.b.data);
    p.device.c.data = copy_on(cuda, p.c);
    return p;
}

static void free_product(const struct dt_backend *cuda, const struct product *p)
{
    const struct dt_view *views[] = {&p->device.a, &p->device.b, &p->device.c};
    for (int i = 0; i < 3; i++)
        free_on(cuda, views[i]->data);
    RELEASE(p->host.a.data);
    RELEASE(p->host.b.data);
    RELEASE(p->c);
}

// Both sum k products in fp32, each in its own order. An addition rounds by 2^-24 of the partial
// sum, which is about sqrt(k) for normal operands, and errors add like a random walk: k * 2^-24 for
// each of the two, with a factor 2 to spare. Then the type of C rounds both.
static double tolerance(const struct dt_gemm_args *args)
{
    return 4.0 * (double)dt_gemm_k(args) * 0x1p-24 + 2.0 * rounding(args->c.dtype);
}

static int64_t differences(const struct dt_gemm_args *args, const void *got, const void *want)
{
    int64_t wrong = 0;
    double tol = tolerance(args), scale = sqrt((double)dt_gemm_k(args));
    for (int64_t i = 0; i < args->c.rows; i++)
        for (int64_t j = 0; j < args->c.cols; j++) {
            double g = get(got, args->c.dtype, i * args->c.stride + j);
            double w = get(want, args->c.dtype, i * args->c.stride + j);
            wrong += isnan(w) ? !isnan(g) : g != w && !(fabs(g - w) <= tol * fmax(scale, fabs(w)));
        }
    return wrong;
}

// Returns C after the CPU added `times` products to it.
static void *added_on_cpu(const struct dt_backend *cpu, struct dt_gemm_args args, int times)
{
    args.c.data = fresh_c(&args);
    for (int i = 0; i < times; i++)
        RUN_WITH_WORKSPACE(gemm, cpu, &args);
    return args.c.data;
}

// Captures two products and launches them twice. That must create no descriptor.
static void launch_captured(const struct dt_backend *cuda, const struct dt_gemm_args *args)
{
    struct dt_stream *stream = NULL;
    struct dt_graph *graph = NULL;
    atomic_int *made = cublaslt_variable("simt_cublaslt_made");
    int before = *made;
    CHECK_OK(dt_stream_create(cuda, &stream));
    CHECK_OK(dt_capture_begin(cuda, stream));
    for (int i = 0; i < 2; i++)
        CHECK_OK(dt_gemm(cuda, args, stream));
    CHECK_OK(dt_capture_end(cuda, stream, &graph));
    for (int i = 0; i < 2; i++)
        CHECK_OK(dt_graph_launch(cuda, graph, stream));
    CHECK_OK(dt_stream_sync(cuda, stream));
    CHECK_INT(*made, before);
    dt_graph_destroy(cuda, graph);
    dt_stream_destroy(cuda, stream);
}

static void test_captured(const struct dt_backend *cuda, const struct dt_backend *cpu)
{
    struct product p =
        make_product(cuda, &(struct problem){24, 32, 40, DT_BF16, DT_F32, false, true, true, 0});
    void *want = added_on_cpu(cpu, p.host, 4);
    give_workspace(cuda, &p.device);
    CHECK_OK(dt_stream_sync(cuda, NULL));
    launch_captured(cuda, &p.device);
    copy_back(cuda, p.c, p.device.c.data);
    CHECK_INT(differences(&p.device, p.c, want), 0);
    RELEASE(want);
    free_product(cuda, &p);
}

// A shape with aligned operands, then with each operand one element later in turn: an algorithm
// that was cached for aligned operands must not run with one that is not aligned.
static void test_alignments(const struct dt_backend *cuda, const struct dt_backend *cpu)
{
    struct product p =
        make_product(cuda, &(struct problem){16, 24, 40, DT_BF16, DT_F32, false, true, false, 8});
    for (int which = 0; which < 4; which++) {
        struct dt_gemm_args args = p.device, host = p.host;
        int64_t shift_a = which == 1 ? 2 : 0, shift_b = which == 2 ? 2 : 0,
                shift_c = which == 3 ? 4 : 0;
        host.a.data = (char *)host.a.data + shift_a, host.b.data = (char *)host.b.data + shift_b;
        args.a.data = (char *)args.a.data + shift_a, args.b.data = (char *)args.b.data + shift_b;
        args.c.data = (char *)args.c.data + shift_c;
        void *want = added_on_cpu(cpu, host, 1);
        give_workspace(cuda, &args);
        CHECK_OK(dt_gemm(cuda, &args, NULL));
        copy_back(cuda, p.c, p.device.c.data);
        CHECK_INT(differences(&args, (char *)p.c + shift_c, want), 0);
        RELEASE(want);
    }
    free_product(cuda, &p);
}

static void check_fails(dt_status status, const char *word)
{
    CHECK_FAILS(status, DT_MACHINE, word);
}

// A shape that is new in a capture is reported, unless it was planned or run before.
static void test_new_in_capture(const struct dt_backend *cuda)
{
    struct product p =
        make_product(cuda, &(struct problem){23, 32, 40, DT_BF16, DT_F32, false, true, false, 0});
    struct dt_stream *stream = NULL;
    struct dt_gemm_args args = p.device, planned = args;
    // The size of the workspace is that of all shapes, but this call plans another shape.
    planned.a.rows++, planned.c.rows++;
    give_workspace(cuda, &planned);
    args.workspace = planned.workspace, args.workspace_bytes = planned.workspace_bytes;
    CHECK_OK(dt_stream_create(cuda, &stream));
    CHECK_OK(dt_capture_begin(cuda, stream));
    check_fails(dt_gemm(cuda, &args, stream),
                "the GEMM bf16 -> fp32 nt m23 n32 k40 ld 40 40 32 align 16 16 16 is new while");
    dt_capture_cancel(cuda, stream);
    dt_gemm_workspace(cuda, &args);
    CHECK_OK(dt_capture_begin(cuda, stream));
    CHECK_OK(dt_gemm(cuda, &args, stream));
    dt_capture_cancel(cuda, stream);
    dt_stream_destroy(cuda, stream);
    free_product(cuda, &p);
}

// The first deterministic algorithm that cuBLASLt recommends is used: not "in_place" or "rounded",
// which a library that ignores the mask of reductions offers first.
static void test_recommended(const char *fault)
{
    setenv("SIMT_CUBLASLT_FAIL", fault, 1);
    struct dt_backend cuda = open_cuda();
    struct product p =
        make_product(&cuda, &(struct problem){16, 24, 64, DT_BF16, DT_F32, false, false, false, 0});
    const char *const *last = cublaslt_variable("simt_cublaslt_last");
    give_workspace(&cuda, &p.device);
    CHECK_OK(dt_gemm(&cuda, &p.device, NULL));
    CHECK_OK(dt_stream_sync(&cuda, NULL));
    CHECK_STR(*last, "vector");
    unsetenv("SIMT_CUBLASLT_FAIL");
    free_product(&cuda, &p);
    take_workspace(&cuda);
    dt_backend_close(&cuda);
}

// While the device is shared, a shape has another algorithm, for the multiprocessors that are left.
// Afterwards it has the first one again.
static void test_shared(void)
{
    setenv("SIMT_CUBLASLT_NARROW", "1", 1);
    struct dt_backend cuda = open_cuda();
    struct product p =
        make_product(&cuda, &(struct problem){16, 24, 64, DT_BF16, DT_F32, false, false, false, 0});
    const char *const *last = cublaslt_variable("simt_cublaslt_last");
    const int32_t *multiprocessors = cublaslt_variable("simt_cublaslt_multiprocessors");
    give_workspace(&cuda, &p.device);
    for (int i = 0; i < 4; i++) {
        cuda.table->share(cuda.device, i % 2);
        CHECK_OK(dt_gemm(&cuda, &p.device, NULL));
        CHECK_STR(*last, i % 2 ? "narrow" : "vector");
        CHECK_INT(*multiprocessors, i % 2 ? 3 : 0); // one of 4 is left for collectives
    }
    CHECK_OK(dt_stream_sync(&cuda, NULL));
    unsetenv("SIMT_CUBLASLT_NARROW");
    setenv("SIMT_CUBLASLT_FAIL", "heuristic", 1);
    p.device.c.stride++;
    check_fails(dt_gemm(&cuda, &p.device, NULL), "align 16 16 16 on 3 SMs");
    unsetenv("SIMT_CUBLASLT_FAIL");
    free_product(&cuda, &p);
    take_workspace(&cuda);
    dt_backend_close(&cuda);
}

static void test_errors(void)
{
    struct dt_backend cuda = {0};
    setenv("SIMT_CUBLASLT_FAIL", "create", 1);
    check_fails(dt_backend_open("cuda", 0, 1, &cuda), "opening cuBLASLt");

    unsetenv("SIMT_CUBLASLT_FAIL");
    cuda = open_cuda();
    struct product p =
        make_product(&cuda, &(struct problem){5, 6, 7, DT_F32, DT_F32, false, false, false, 0});
    give_workspace(&cuda, &p.device);
    setenv("SIMT_CUBLASLT_FAIL", "matmul", 1);
    check_fails(dt_gemm(&cuda, &p.device, NULL), "fp32 -> fp32 nn m5 n6 k7 ");
    check_fails(dt_gemm(&cuda, &p.device, NULL), "the execution failed");
    setenv("SIMT_CUBLASLT_FAIL", "heuristic", 1);
    p.device.c.stride++; // a shape that is not cached
    check_fails(dt_gemm(&cuda, &p.device, NULL), "fp32 -> fp32 nn m5 n6 k7");
    struct dt_gemm_args pair = p.device; // the second matrices are less aligned than the first
    pair.batch = 2, pair.a_step = 35, pair.b_step = 42, pair.c_step = 37;
    check_fails(dt_gemm(&cuda, &pair, NULL), "align 4 8 4 batch 2 steps 35 42 37");
    unsetenv("SIMT_CUBLASLT_FAIL");
    free_product(&cuda, &p);
    take_workspace(&cuda);
    dt_backend_close(&cuda);
}

// LD_LIBRARY_PATH has a folder in which libcublasLt.so.13 is an empty file.
static int test_no_library(void)
{
    struct dt_backend cuda = {0};
    char versions[1024] = "";
    CHECK_INT(dt_backend_open("cuda", 0, 1, &cuda), DT_USER);
    CHECK(strstr(dt_error_current()->message, "cuBLASLt cannot be loaded") &&
              strstr(dt_error_current()->message, "libcublasLt.so.13"),
          "the message is \"%s\"", dt_error_current()->message);
    CHECK_ADVISES("LD_LIBRARY_PATH");
    dt_error_clear();
    dt_backend_find("cuda")->table->versions(versions, sizeof versions);
    CHECK(strstr(versions, "cuBLASLt cannot be loaded"), "the versions are \"%s\"", versions);
    return test_end();
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "no_library") == 0)
        return test_no_library();
    struct dt_backend cuda = open_cuda(), cpu = open_cpu(1);
    test_captured(&cuda, &cpu);
    test_alignments(&cuda, &cpu);
    test_new_in_capture(&cuda);
    take_workspace(&cuda);
    CHECK_INT(dt_memory_in_use(&cuda), 0);
    atomic_int *objects = cublaslt_variable("simt_cublaslt_objects");
    dt_backend_close(&cuda);
    dt_backend_close(&cpu);
    CHECK_INT(*objects, 0);
    test_recommended("nothing");
    test_recommended("mask");
    test_recommended("scheme");
    test_shared();
    test_errors();
    CHECK_INT(*objects, 0);
    return test_end();
}

// Every op on CUDA against the CPU, in one process: at the shapes of the 130M model, or small ones
// (for tools that slow a device down, and for devices that are simulated), or small ones without
// gemm, whose kernels are a library's. Skipped where there is no CUDA device. Argument: model,
// small or kernels.
#include "parity.h"

static const struct parity_sizes model_sizes = {.length = 2048,
                                                .d_model = 768,
                                                .inner = 1536,
                                                .state = 16,
                                                .taps = 4,
                                                .dt_rank = 48,
                                                .vocab = 50280,
                                                .tile = 2048};
// Nothing a multiple of anything, and everything: accesses one by one, and of 16 bytes.
static const struct parity_sizes odd_sizes = {.length = 37,
                                              .d_model = 20,
                                              .inner = 43,
                                              .state = 5,
                                              .taps = 3,
                                              .dt_rank = 3,
                                              .vocab = 105,
                                              .tile = 11};
static const struct parity_sizes even_sizes = {.length = 48,
                                               .d_model = 32,
                                               .inner = 64,
                                               .state = 16,
                                               .taps = 4,
                                               .dt_rank = 8,
                                               .vocab = 96,
                                               .tile = 8};

// 0, or why there is no comparison.
static const char *find_device(void)
{
    const struct dt_known_backend *cuda = dt_backend_find("cuda");
    int n = 0;
    if (!cuda)
        return "this build has no CUDA";
    if (cuda->table->count(&n) == DT_OK && n > 0)
        return NULL;
    return dt_error_current()->message;
}

// threads: of the CPU, 0 for all. Small shapes need one; more wait for each other where cores are
// busy.
static struct parity open_both(int threads)
{
    struct parity p = {0};
    p.cpu = open_cpu(threads);
    check_ok(dt_backend_open("cuda", 0, 0, &p.cuda), "opening the device");
    if (!p.cuda.device)
        exit(1);
    check_ok(p.cuda.table->stream_create(p.cuda.device, &p.stream), "stream_create");
    return p;
}

static void close_both(struct parity *p)
{
    p->cuda.table->free(p->cuda.device, p->workspace);
    CHECK_INT(p->cuda.table->memory_in_use(p->cuda.device), 0);
    p->cuda.table->stream_destroy(p->cuda.device, p->stream);
    free(p->algorithms);
    dt_backend_close(&p->cuda);
    dt_backend_close(&p->cpu);
}

static int compare_all(struct parity *p, struct parity_sizes sizes, bool products)
{
    static const dt_dtype types[] = {DT_F32, DT_BF16};
    int failed = 0;
    sizes.products = products;
    for (int i = 0; i < 2; i++)
        for (sizes.batch = 1; sizes.batch <= 2; sizes.batch++) {
            sizes.type = types[i];
            fprintf(stderr, "%s, batch %d, length %d\n", dt_dtype_name(types[i]), (int)sizes.batch,
                    (int)sizes.length);
            failed |= parity_scan(p, &sizes);
            failed |= parity_conv(p, &sizes);
            failed |= parity_rows(p, &sizes);
            if (sizes.batch == 1)
                failed |= parity_flat(p, &sizes);
        }
    return failed;
}

int main(int argc, char **argv)
{
    const char *word = argc == 2 ? argv[1] : "";
    bool model = strcmp(word, "model") == 0, kernels = strcmp(word, "kernels") == 0;
    const char *reason = find_device();
    if (!model && !kernels && strcmp(word, "small") != 0) {
        fprintf(stderr, "usage: test_parity model|small|kernels\n");
        return 2;
    }
    if (reason) {
        fprintf(stderr, "skipped: %s\n", reason);
        return TEST_SKIP;
    }
    struct parity p = open_both(model ? 0 : 1);
    int failed = compare_all(&p, model ? model_sizes : odd_sizes, !kernels);
    if (!model)
        failed |= compare_all(&p, even_sizes, !kernels);
    for (int op = 0; op < PARITY_OPS; op++)
        CHECK(p.done[op] || (kernels && op == PARITY_gemm), "nothing compares %s",
              parity_op_of((enum parity_index)op).name);
    close_both(&p);
    return test_end() || failed;
}

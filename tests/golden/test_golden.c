// Compares dtrain's model and training step with the float64 reference, one golden file per
// argument: losses, logits, every gradient, gradient norms, states and weights after the updates.
// Each file is run whole, in micro-batches and one position at a time, and in bf16. All recompute
// modes and numbers of threads must give the same bits. Files of long windows are run whole and in
// segments.
//
// Tensors are compared by the norm of their difference relative to the norm of the reference. A
// single element may be the small result of a long sum; its own relative error would say nothing
// about the code.
#include "golden.h"
#include "test.h"

struct tolerance {
    double loss, logits, gradient, grad_norm, weights;
    // Least norm that a gradient's error is relative to, as a share of the whole gradient's norm.
    double floor;
};

// fp32: dtrain promises 1e-5 in the loss and 1e-4 in gradients. The test allows about six times
// what was measured (losses 7e-7, logits 2e-7, gradients 1.6e-6, norms 9e-7, weights 1e-7), so that
// it finds defects early. Gradients of the policies that PyTorch computes in float32 differ by up
// to 1.1e-5.
static const struct tolerance fp32 = {5e-6, 2e-6, 1e-5, 5e-6, 1e-6, 0};
// mamba2 blocks: 1.3e-5 was measured in dt_bias and A_log, which are differences of sums over a
// chunk.
static const struct tolerance fp32_mamba2 = {5e-6, 2e-6, 2e-5, 5e-6, 1e-6, 0};
// bf16: every stored activation and matrix is rounded by up to 2^-9 = 0.2 %, and a dozen of them
// follow each other between input and loss. Measured: losses 0.5 %, logits 0.6 %, norms 0.5 %,
// weights 0.07 %, gradients 2 %, but 4 % in those of dt_proj, which are small sums of both signs.
static const struct tolerance bf16 = {1e-2, 1e-2, 6e-2, 1e-2, 2e-3, 0};
// mamba2 blocks in bf16: more channels share a parameter that is one number per head. Measured: 6.5
// % in taps of the convolution with one head, logits 1.1 %, norms 1.7 %, weights 0.4 %. Gradients
// of a few numbers, such as that of dt_bias, cancel more and may be wrong by 0.27 % of the whole
// gradient.
static const struct tolerance bf16_mamba2 = {1e-2, 1.5e-2, 9e-2, 2e-2, 5e-3, 0.03};
// int8: a value that bf16 changes a little may be rounded to the next of 127 steps, which changes
// it by up to 0.4 % of the largest value in its row. Measured: logits 1.6 %, norms 1.4 %.
static const struct tolerance bf16_int8 = {1e-2, 3e-2, 6e-2, 2e-2, 2e-3, 0};

static const char *case_name; // name of the golden file
static const char *run_name;  // name of the run that is checked

static double norm(const float *x, const float *y, int64_t n) // |x - y|, or |x| if y is NULL
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = (double)x[i] - (y ? (double)y[i] : 0.0);
        sum += d * d;
    }
    return sqrt(sum);
}

// Checks |got - want| <= tolerance |want|. Where the reference is exactly zero, `got` must be too.
static void check_tensor(const char *name, const float *got, const float *want, int64_t n,
                         double tolerance, double floor)
{
    double difference = norm(got, want, n), size = norm(want, NULL, n);
    CHECK(difference <= tolerance * fmax(size, floor),
          "%s, %s: %s differs by %.3g of its norm %.3g (tolerance %g)", case_name, run_name, name,
          difference / size, size, tolerance);
}

static void check_relative(const char *name, int step, double got, double want, double tolerance)
{
    CHECK(fabs(got - want) <= tolerance * fabs(want),
          "%s, %s: %s of step %d is %.9g, not %.9g (%.3g)", case_name, run_name, name, step + 1,
          got, want, fabs(got / want - 1));
}

static void check_padding(const struct dt_param *param, const char *what, const float *flat)
{
    for (int64_t i = param->file_count; i < param->count; i++)
        CHECK(flat[param->offset + i] == 0.0f, "%s, %s: padding of %s of %s is %g", case_name,
              run_name, what, param->name, (double)flat[param->offset + i]);
}

static void check_reference(const struct golden_run *run, const struct golden_trace *trace,
                            const struct tolerance *tolerance)
{
    const struct golden *golden = run->golden;
    int64_t count;
    float *logits = golden_tensor(golden, &count, "golden.logits");
    if (logits)
        check_tensor("logits", trace->logits, logits, count, tolerance->logits, 0);
    free(logits);
    float *loss = golden_tensor(golden, NULL, "golden.loss");
    float *grad_norm = golden_tensor(golden, NULL, "golden.grad_norm");
    for (int k = 0; k < run->steps; k++) {
        check_relative("loss", k, trace->loss[k], loss[k], tolerance->loss);
        check_relative("grad_norm", k, trace->grad_norm[k], grad_norm[k], tolerance->grad_norm);
    }
    free(loss);
    free(grad_norm);
    for (int row = 0; row < trace->params.n; row++) {
        const struct dt_param *param = &trace->params.rows[row];
        float *gradient = golden_tensor(golden, &count, "golden.grad.%s", param->name);
        float *final_norm = golden_tensor(golden, NULL, "golden.final_norm.%s", param->name);
        CHECK_INT(count, param->file_count);
        check_tensor(param->name, trace->gradients + param->offset, gradient, count,
                     tolerance->gradient, tolerance->floor * trace->grad_norm[0]);
        if (run->steps == golden->steps)
            check_relative(param->name, golden->steps - 1,
                           norm(trace->weights + param->offset, NULL, count), *final_norm,
                           tolerance->weights);
        check_padding(param, "gradient", trace->gradients);
        check_padding(param, "weight", trace->weights);
        free(gradient);
        free(final_norm);
    }
}

static void check_same_bits(const struct golden_trace *got, const struct golden_trace *want)
{
    size_t bytes = (size_t)want->params.elements * sizeof(float);
    CHECK(memcmp(got->loss, want->loss, sizeof want->loss) == 0, "%s, %s: losses", case_name,
          run_name);
    CHECK(memcmp(got->grad_norm, want->grad_norm, sizeof want->grad_norm) == 0, "%s, %s: norms",
          case_name, run_name);
    CHECK(memcmp(got->gradients, want->gradients, bytes) == 0, "%s, %s: gradients", case_name,
          run_name);
    CHECK(memcmp(got->weights, want->weights, bytes) == 0, "%s, %s: weights", case_name, run_name);
}

// Compares the run with the reference. Then every other recompute mode and three threads must give
// the bits of this run.
static void check_run(struct golden_run run, const char *name, const struct tolerance *tolerance,
                      const struct dt_backend *threaded)
{
    static const char *const mode_name[] = {"recompute none", "recompute scan", "recompute block"};
    struct golden_trace first, other;
    run_name = name;
    golden_train(&run, &first);
    check_reference(&run, &first, tolerance);
    for (int mode = DT_RECOMPUTE_SCAN; mode <= DT_RECOMPUTE_BLOCK; mode++) {
        run_name = mode_name[mode];
        run.recompute = (enum dt_recompute)mode;
        golden_train(&run, &other);
        check_same_bits(&other, &first);
        golden_trace_free(&other);
    }
    run_name = "three threads";
    run.recompute = DT_RECOMPUTE_NONE;
    run.backend = threaded;
    golden_train(&run, &other);
    check_same_bits(&other, &first);
    golden_trace_free(&other);
    golden_trace_free(&first);
}

// One pass of T positions must leave the state that the file has, and T passes of one position must
// give the same losses and state, apart from the order of fp32 sums.
static void check_windows(struct golden_run run, const struct tolerance *tolerance)
{
    const struct golden *golden = run.golden;
    if (golden->config.direction == DT_DIRECTION_BOTH)
        return; // a window's first position depends on its last one
    run.micro = 1;
    run_name = run.storage == DT_F32 ? "fp32, windows" : "bf16, windows";
    for (int64_t b = 0; b < golden->batch; b++) {
        int64_t count;
        float *want = golden_state(&run, b, &count), *whole, *steps;
        double loss = golden_windows(&run, b, golden->length, &whole);
        double sum = golden_windows(&run, b, 1, &steps);
        check_tensor("state after the window", whole, want, count, tolerance->logits, 0);
        check_tensor("state after single steps", steps, whole, count, tolerance->logits, 0);
        // Each step is then a window with a loss of its own.
        bool pools = strchr(golden->config.heads, '/');
        CHECK(pools || fabs(sum - loss) <= tolerance->loss * loss,
              "%s, %s: losses of single steps are %.9g, of the window %.9g", case_name, run_name,
              sum, loss);
        free(want);
        free(whole);
        free(steps);
    }
}

// Runs a window whole and then in segments of each length that the file names, on each number of
// ranks that can share it with an equal number of windows for every group. Ranks that share a
// window in many segments take a single step, since each border is a message, which is slow on a
// busy machine.
static void check_segments(struct golden_run run)
{
    char name[64], *lengths = (char *)run.golden->segments;
    const int64_t size = run.comm->info.size;
    run_name = name;
    run.micro = 1;
    do {
        for (run.context = 1; run.context <= (run.segment > 0 ? size : 1); run.context *= 2) {
            const bool many = run.context > 1 && run.golden->length > 32 * run.segment;
            struct golden_trace trace;
            run.steps = many ? 1 : run.golden->steps;
            if (run.golden->batch % (size / run.context) != 0 ||
                dt_model_whole_shares(&run.golden->config) % run.context != 0)
                continue;
            snprintf(name, sizeof name, "segments of %d, context %d on %d", (int)run.segment,
                     (int)run.context, (int)size);
            golden_train(&run, &trace);
            check_reference(&run, &trace, &fp32);
            golden_trace_free(&trace);
        }
        run.segment = strtoll(lengths, &lengths, 10);
    } while (run.segment > 0);
}

static void check_file(const char *path, const struct dt_backend *backend,
                       const struct dt_backend *threaded, struct dt_comm *comm)
{
    struct golden golden;
    golden_open(path, &golden);
    const char *slash = strrchr(path, '/');
    case_name = slash ? slash + 1 : path;
    struct golden_run run = {
        &golden, backend, golden.batch, DT_RECOMPUTE_NONE, DT_F32, golden.steps, 0, comm, 1};
    if (golden.segments) {
        check_segments(run);
        golden_close(&golden);
        return;
    }
    bool mamba2 = strstr(golden.config.layers, "mamba2");
    const struct tolerance *precise = mamba2 ? &fp32_mamba2 : &fp32;
    check_run(run, "fp32", precise, threaded);
    check_windows(run, precise);
    run.micro = 1;
    check_run(run, "fp32, micro-batches of 1", precise, threaded);
    run.storage = DT_BF16;
    const struct tolerance *rounded = mamba2                   ? &bf16_mamba2
                                      : golden.config.quantize ? &bf16_int8
                                                               : &bf16;
    check_run(run, "bf16, micro-batches of 1", rounded, threaded);
    run.micro = golden.batch;
    check_run(run, "bf16", rounded, threaded);
    check_windows(run, rounded);
    golden_close(&golden);
}

int main(int argc, char **argv)
{
    struct dt_backend backend, threaded;
    struct dt_comm *comm;
    golden_must(dt_comm_open(DT_COMM_KIND_AUTO, &comm));
    golden_must(dt_backend_open("cpu", 0, 1, &backend));
    golden_must(dt_backend_open("cpu", 0, 3, &threaded));
    for (int i = 1; i < argc; i++)
        check_file(argv[i], &backend, &threaded, comm);
    dt_backend_close(&backend);
    dt_backend_close(&threaded);
    dt_comm_close(comm);
    return test_end();
}

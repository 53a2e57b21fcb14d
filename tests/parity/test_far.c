// Offsets past 2^31: a training step of small models whose ops all find their arrays spread over
// address space, with rows so far apart that the last ones begin beyond 2^32 elements, gives what
// one with dense arrays gives; and so does an embedding of that size. Only the pages that are
// touched take memory. On the CPU, and with the CUDA kernels on the simulated device.
#include "../unit/random_pass.h"
#include "simt/simt_backend.h"

#include <sys/mman.h>

enum { VIEWS = 12, B = 2, L = 17 };
static const int64_t far_elements = (int64_t)5 << 30; // from an array's first row to its last

static struct dt_op_table plain; // what the wrappers call

static void *reserve(int64_t bytes)
{
    void *memory = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        fprintf(stderr, "no address space for %lld bytes\n", (long long)bytes);
        exit(TEST_SKIP);
    }
    return memory;
}

struct moved {
    int n;
    struct {
        struct dt_view from, to;
        bool out;
    } views[VIEWS];
};

static int64_t far_bytes(const struct dt_view *view)
{
    return ((view->rows - 1) * view->stride + view->cols) * dt_dtype_size(view->dtype);
}

static void copy_rows(const struct dt_view *from, const struct dt_view *to)
{
    for (int64_t row = 0; row < from->rows; row++)
        memcpy(dt_view_at(to, row, 0), dt_view_at(from, row, 0),
               (size_t)(from->cols * dt_dtype_size(from->dtype)));
}

// A view without rows apart stays.
static void move(struct moved *moved, struct dt_view *view, bool out)
{
    if (!view->data || view->rows < 2)
        return;
    struct dt_view far = *view;
    far.stride = far_elements / (view->rows - 1) / 64 * 64;
    far.data = reserve(far_bytes(&far));
    copy_rows(view, &far);
    moved->views[moved->n].from = *view;
    moved->views[moved->n].to = far;
    moved->views[moved->n++].out = out;
    *view = far;
}

static void back(struct moved *moved)
{
    for (int i = 0; i < moved->n; i++) {
        if (moved->views[i].out)
            copy_rows(&moved->views[i].to, &moved->views[i].from);
        munmap(moved->views[i].to.data, (size_t)far_bytes(&moved->views[i].to));
    }
}

#define IN(member)  move(&moved, &args.member, false);
#define OUT(member) move(&moved, &args.member, true);
// A pointer with a stride, as a view.
#define ROWS(member, stride_, rows_, cols_, type, out)                                             \
    struct dt_view member##_view = {(void *)(uintptr_t)args.member, rows_, cols_, args.stride_,    \
                                    type};                                                         \
    move(&moved, &member##_view, out);                                                             \
    args.member = member##_view.data;                                                              \
    args.stride_ = member##_view.stride;
#define FAR(op, ...)                                                                               \
    static dt_status far_##op(struct dt_device *device, const struct dt_##op##_args *given,        \
                              struct dt_stream *stream)                                            \
    {                                                                                              \
        struct dt_##op##_args args = *given;                                                       \
        struct moved moved = {0};                                                                  \
        __VA_ARGS__                                                                                \
        dt_status status = plain.op(device, &args, stream);                                        \
        back(&moved);                                                                              \
        return status;                                                                             \
    }
FAR(gemm, IN(a) IN(b) OUT(c))
FAR(rmsnorm_residual_forward, ROWS(x, x_stride, args.rows, args.width, args.dtype, false)
                                  ROWS(y, y_stride, args.rows, args.width, args.dtype, true))
FAR(conv1d_silu_forward, IN(in.x) OUT(y))
FAR(conv1d_silu_backward, IN(in.x) IN(dy) OUT(dx))
FAR(scan_forward, IN(in.u) IN(in.delta) IN(in.z) IN(in.b) IN(in.c) OUT(y))
FAR(scan_backward, IN(in.u) IN(in.delta) IN(in.z) IN(in.b) IN(in.c) IN(dy) OUT(du) OUT(ddelta)
                       OUT(dz) OUT(db) OUT(dc))
FAR(ssd_forward, IN(in.x) IN(in.dt) IN(in.b) IN(in.c) OUT(y))
FAR(ssd_backward, IN(in.x) IN(in.dt) IN(in.b) IN(in.c) IN(dy) OUT(dx) OUT(ddt) OUT(db) OUT(dc))
FAR(attention_forward, IN(in.q) IN(in.k) IN(in.v) OUT(y))
FAR(attention_backward, IN(in.q) IN(in.k) IN(in.v) IN(y) IN(dy) OUT(dq) OUT(dk) OUT(dv))
FAR(rnn_forward, IN(in.w_hh) IN(x) OUT(y) OUT(previous) OUT(gates) OUT(cells))
FAR(rnn_backward, IN(in.w_hh) IN(gates) IN(cells) IN(previous) IN(dy) OUT(dx) OUT(dp))
FAR(silu_gate_forward, IN(x) IN(u) OUT(y))
FAR(silu_gate_backward, IN(x) IN(u) IN(dy) OUT(dx) OUT(du))
FAR(gated_rmsnorm_forward, IN(x) IN(z) OUT(y))
FAR(gated_rmsnorm_backward, IN(x) IN(z) IN(dy) OUT(dx) OUT(dz))
FAR(encode_targets, IN(targets) OUT(out))

static void wrap(struct dt_op_table *op)
{
    op->gemm = far_gemm;
    op->rmsnorm_residual_forward = far_rmsnorm_residual_forward;
    op->conv1d_silu_forward = far_conv1d_silu_forward;
    op->conv1d_silu_backward = far_conv1d_silu_backward;
    op->scan_forward = far_scan_forward;
    op->scan_backward = far_scan_backward;
    op->ssd_forward = far_ssd_forward;
    op->ssd_backward = far_ssd_backward;
    op->attention_forward = far_attention_forward;
    op->attention_backward = far_attention_backward;
    op->rnn_forward = far_rnn_forward;
    op->rnn_backward = far_rnn_backward;
    op->silu_gate_forward = far_silu_gate_forward;
    op->silu_gate_backward = far_silu_gate_backward;
    op->gated_rmsnorm_forward = far_gated_rmsnorm_forward;
    op->gated_rmsnorm_backward = far_gated_rmsnorm_backward;
    op->encode_targets = far_encode_targets;
}

static void check_model(const struct dt_op_table *table, struct dt_model_config config)
{
    // Only products are cut in another way, with another order of their sums.
    const double tolerance = config.storage == DT_F32 ? 1e-6 : 1e-2;
    struct random_pass p[2];
    struct dt_loss_sum sum[2];
    for (int far = 0; far < 2; far++) {
        random_pass_open(&p[far], 1);
        p[far].op = plain = *table;
        if (far)
            wrap(&p[far].op);
        random_pass_create(&p[far], &config, B, L);
        sum[far] = random_pass_run(&p[far], false);
    }
    CHECK(fabs(sum[1].loss / sum[0].loss - 1) <= tolerance, "%s, %s: loss %.9g, not %.9g",
          table->name, config.layers, sum[1].loss, sum[0].loss);
    const float *got = dt_model_gradients(p[1].model), *want = dt_model_gradients(p[0].model);
    for (int i = 0; i < dt_model_params(p[0].model)->n; i++) {
        const struct dt_param *row = &dt_model_params(p[0].model)->rows[i];
        double off = random_pass_distance(got + row->offset, want + row->offset, row->count);
        CHECK(off <= tolerance, "%s, %s, %s: the gradient of %s differs by %.2g", table->name,
              config.layers, dt_dtype_name(config.storage), row->name, off);
    }
    random_pass_close(&p[0]);
    random_pass_close(&p[1]);
}

// Rows from both ends of a table of more than 2^32 elements.
static void check_embedding(const struct dt_op_table *table)
{
    enum { WIDTH = 1 << 18, VOCAB = (1 << 14) + 3 };
    static const int32_t ids[] = {VOCAB - 1, 0, VOCAB / 2 + 1, VOCAB - 1};
    enum { ROWS = sizeof ids / sizeof *ids };
    struct dt_backend backend = open_cpu(1);
    backend.op = table;
    const int64_t bytes = (int64_t)VOCAB * WIDTH * (int64_t)sizeof(float);
    float *weights = reserve(bytes), *out = malloc(ROWS * WIDTH * sizeof *out);
    for (int r = 0; r < ROWS; r++)
        for (int64_t i = 0; i < WIDTH; i++)
            weights[(int64_t)ids[r] * WIDTH + i] = (float)(ids[r] % 1000 + i);
    struct dt_embed_forward_args forward = {.rows = ROWS,
                                            .width = WIDTH,
                                            .vocab = VOCAB,
                                            .dtype = DT_F32,
                                            .ids = ids,
                                            .ids_stride = 1,
                                            .table = weights,
                                            .out = out};
    CHECK_OK(dt_embed_forward(&backend, &forward, NULL));
    int64_t wrong = 0;
    for (int r = 0; r < ROWS; r++)
        for (int64_t i = 0; i < WIDTH; i++)
            wrong += out[r * WIDTH + i] != (float)(ids[r] % 1000 + i);
    CHECK(wrong == 0, "%s: %lld numbers of an embedding are wrong", table->name, (long long)wrong);
    struct dt_embed_backward_args backward = {.rows = ROWS,
                                              .width = WIDTH,
                                              .vocab = VOCAB,
                                              .ids = ids,
                                              .ids_stride = 1,
                                              .dout = out,
                                              .dtable = weights,
                                              .accumulate = true};
    backward.workspace_bytes = dt_embed_backward_workspace(&backend, &backward);
    backward.workspace = aligned_alloc(256, (size_t)(backward.workspace_bytes + 255) / 256 * 256);
    CHECK_OK(dt_embed_backward(&backend, &backward, NULL));
    wrong = 0;
    for (int r = 0; r < ROWS; r++)
        for (int64_t i = 0; i < WIDTH; i++)
            wrong += weights[(int64_t)ids[r] * WIDTH + i] !=
                     (ids[r] == VOCAB - 1 ? 3 : 2) * (float)(ids[r] % 1000 + i);
    CHECK(wrong == 0, "%s: %lld gradients of an embedding are wrong", table->name,
          (long long)wrong);
    free(backward.workspace);
    free(out);
    munmap(weights, (size_t)bytes);
    dt_backend_close(&backend);
}

int main(void)
{
    const struct dt_op_table *const tables[] = {&dt_cpu_op_table, &simt_op_table};
    for (int t = 0; t < 2; t++) {
        for (int storage = 0; storage < 2; storage++) {
            struct dt_model_config config =
                random_pass_config("tokens", "mamba mamba2 attention mlp gru lstm", "lm");
            config.storage = storage ? DT_BF16 : DT_F32;
            check_model(tables[t], config);
            config = random_pass_config("frames", "mlp", "a:bernoulli*5 b:categorical*8 c:huber");
            config.storage = storage ? DT_BF16 : DT_F32;
            config.autoregressive = true;
            check_model(tables[t], config);
        }
        check_embedding(tables[t]);
    }
    return test_end();
}

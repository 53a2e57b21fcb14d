// Tests offsets beyond 2^31. In a training step of small models, all arrays of ops are spread over
// the address space, with the last rows beyond 2^32 elements. It must give what a step with dense
// arrays gives, and so must an embedding of that size. Only the pages that are touched need memory.
// Runs on the CPU, and with the CUDA kernels on the simulated device.
#include "../unit/random_pass.h"
#include "backend/op_rows.h"
#include "simt/simt_backend.h"

#include <sys/mman.h>

enum { VIEWS = 12, B = 2, L = 17 };
static const int64_t far_elements = (int64_t)5 << 30; // from the first row of an array to the last

static struct dt_op_table plain; // the ops that the wrappers call

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
    char *args;
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

// Moves the rows of a view far apart. A view with a single row stays.
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

static dt_status move_row(void *context, const struct dt_op_row *row)
{
    struct moved *moved = context;
    if (row->kind == DT_ROW_ARRAY && row->role && row->field.is_view)
        move(moved, (struct dt_view *)(void *)(moved->args + row->field.at),
             row->role & DT_ROLE_OUT);
    return DT_OK;
}

#define FAR(name)                                                                                  \
    static dt_status far_##name(struct dt_device *device, const struct dt_##name##_args *given,    \
                                struct dt_stream *stream)                                          \
    {                                                                                              \
        struct dt_##name##_args args = *given;                                                     \
        struct dt_backend backend = {.op = &plain, .device = device};                              \
        struct moved moved = {.args = (char *)&args};                                              \
        CHECK_OK(dt_visit_##name(&backend, given, move_row, &moved));                              \
        dt_status status = plain.name(device, &args, stream);                                      \
        back(&moved);                                                                              \
        return status;                                                                             \
    }
DT_OPS(FAR)

static void wrap(struct dt_op_table *op)
{
#define WRAP(name) op->name = far_##name;
    DT_OPS(WRAP)
}

static void check_model(const struct dt_op_table *table, struct dt_model_config config)
{
    // Only products are split differently, with other orders of sums.
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

// Reads rows from both ends of a table of more than 2^32 elements.
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
    struct dt_embed_forward_args forward = {.ids = dt_view_of(ids, ROWS, 1, DT_I32),
                                            .table = dt_view_of(weights, VOCAB, WIDTH, DT_F32),
                                            .out = out};
    CHECK_OK(dt_embed_forward(&backend, &forward, NULL));
    int64_t wrong = 0;
    for (int r = 0; r < ROWS; r++)
        for (int64_t i = 0; i < WIDTH; i++)
            wrong += out[r * WIDTH + i] != (float)(ids[r] % 1000 + i);
    CHECK(wrong == 0, "%s: %lld numbers of an embedding are wrong", table->name, (long long)wrong);
    struct dt_embed_backward_args backward = {.width = WIDTH,
                                              .vocab = VOCAB,
                                              .ids = forward.ids,
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
            FLAG_OF(config, autoregressive) = true;
            check_model(tables[t], config);
        }
        check_embedding(tables[t]);
    }
    return test_end();
}

// Cutting a pass into tiles of logits and into chunks of the recurrences changes results only by
// the rounding of sums. Small models run with several sizes of each cut, which the table of ops
// sets, and are compared with a pass without any cut.
#include "random_pass.h"

enum { B = 3, L = 171, V = 40, ROWS = B * L }; // rows are four tiles of 128 and one row more

struct cut {
    const char *name;
    int64_t logits_tile, scan_chunk, ssd_chunk;
    int threads;
};
static const struct cut whole = {"whole", 1 << 20, 1024, 512, 1};
static const struct cut cuts[] = {
    {"tiles of logits", 1, 1024, 512, 1},
    {"tiles of logits, three threads", 1, 1024, 512, 3},
    {"chunks of the scan", 1 << 20, 32, 512, 1},
    {"chunks of one step", 1 << 20, 1, 512, 1},
    {"chunks of ssd", 1 << 20, 1024, 16, 1},
    {"all", 1, 7, 5, 2},
};

struct result {
    struct dt_loss_sum sum, evaluated;
    float *gradients; // of two passes, of which the second adds
    float logits[ROWS * V], losses[ROWS];
    int rows_right;
};

static void run(const struct dt_model_config *config, const struct cut *cut, struct result *r)
{
    struct random_pass p;
    struct dt_row_losses rows;
    struct dt_view view = {.data = r->logits};
    random_pass_open(&p, cut->threads);
    p.op.logits_tile = cut->logits_tile;
    p.op.scan_chunk = cut->scan_chunk;
    p.op.ssd_chunk = cut->ssd_chunk;
    p.losses = true;
    random_pass_create(&p, config, B, L);
    r->sum = random_pass_run(&p, false);
    random_pass_run(&p, true);
    r->gradients = malloc((size_t)p.elements * sizeof *r->gradients);
    memcpy(r->gradients, dt_model_gradients(p.model), (size_t)p.elements * sizeof *r->gradients);
    CHECK_OK(dt_model_logits(p.model, &p.pass, &view));
    r->evaluated = (struct dt_loss_sum){0};
    CHECK_OK(dt_model_loss(p.model, &p.pass, 0, &r->evaluated));
    CHECK(dt_model_row_losses(p.model, &p.pass.input, &rows), "no losses of rows");
    memcpy(r->losses, rows.losses, sizeof r->losses);
    r->rows_right = 0;
    for (int i = 0; i < ROWS; i++)
        r->rows_right += rows.right[i];
    random_pass_close(&p);
}

// `tolerance` allows for sums in another order in fp32, and in bf16 for values that one of the
// passes rounds to 2^-9.
static void compare(const struct dt_model_config *config, const struct cut *cut,
                    const struct result *want, double tolerance)
{
    struct result *got = malloc(sizeof *got);
    struct dt_params params;
    char what[256];
    run(config, cut, got);
    snprintf(what, sizeof what, "%.99s, %s, tied %d, %s", config->layers,
             dt_dtype_name(config->storage), config->tie_embeddings, cut->name);
    CHECK(got->sum.counted == want->sum.counted && want->sum.counted < ROWS, "%s: %g counted", what,
          got->sum.counted);
    CHECK(fabs(got->sum.loss / want->sum.loss - 1) <= tolerance, "%s: loss %.9g, not %.9g", what,
          got->sum.loss, want->sum.loss);
    CHECK(got->evaluated.loss == got->sum.loss, "%s: validation has loss %.9g, training %.9g", what,
          got->evaluated.loss, got->sum.loss);
    double off = random_pass_distance(got->logits, want->logits, ROWS * V);
    CHECK(off <= tolerance, "%s: logits differ by %.2g", what, off);
    off = random_pass_distance(got->losses, want->losses, ROWS);
    CHECK(off <= tolerance, "%s: losses of rows differ by %.2g", what, off);
    CHECK(got->rows_right == (int)got->evaluated.metrics[1] && got->rows_right > 0,
          "%s: %d rows are right, %g were counted", what, got->rows_right,
          got->evaluated.metrics[1]);
    CHECK_OK(dt_model_list(config, &params, NULL));
    for (int i = 0; i < params.n; i++) {
        const struct dt_param *row = &params.rows[i];
        off = random_pass_distance(got->gradients + row->offset, want->gradients + row->offset,
                                   row->count);
        CHECK(off <= tolerance, "%s: the gradient of %s differs by %.2g", what, row->name, off);
    }
    dt_params_free(&params);
    free(got->gradients);
    free(got);
}

static void test_model(const char *layers, bool tied, enum dt_dtype storage)
{
    struct dt_model_config config = random_pass_config("tokens", layers, "lm");
    struct result *want = malloc(sizeof *want);
    config.tie_embeddings = tied;
    config.storage = storage;
    run(&config, &whole, want);
    CHECK(random_pass_distance(want->gradients, want->logits, 1) > 0, "no gradient");
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++)
        compare(&config, &cuts[i], want, storage == DT_F32 ? 2e-5 : 3e-2);
    free(want->gradients);
    free(want);
}

int main(void)
{
    for (int tied = 0; tied < 2; tied++) {
        test_model("mamba mamba2", tied, DT_F32);
        test_model("mamba mamba2", tied, DT_BF16);
    }
    return test_end();
}

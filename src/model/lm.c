// The heads of language models compute logits (tied to the embedding or not) and the loss: `lm` of
// the next token, `mlm` of masked ones, which the loader masks (data/reader.h: dt_masking). They
// read "labels" [B, L] i32. Logits are computed a tile of rows at a time, so their memory does not
// grow with the batch; a tile's gradient is propagated through the head immediately.
#include "model/kinds.h"

#include "base/round.h"

enum { TILE_ROWS_MIN = 128, TILE_ROWS_MAX = 4096 };

struct lm {
    struct dt_part part;
    struct dt_linear linear; // lm_head.weight [V, d], or the embedding if tied
    int labels;
    struct dt_view logits;  // [tile, V padded] fp32
    struct dt_view dlogits; // [tile, V padded] storage; the logits themselves in fp32
    float *losses;          // [M], with shape.losses; else NULL
    uint8_t *right;         // [M], written without gradient; NULL with shape.play
};

// The keys of the head `mlm`.
struct mlm_values {
    double mask_rate;
    int64_t mask_token;
};

static const struct dt_config_key fields[] = {
    DT_FIELD(FLAG, struct dt_model_config, tie_embeddings, "true",
             "the output layer shares the embedding's weights", .json = "tie_word_embeddings"),
    {0},
};
static const struct dt_kind_keys keys = {fields, 0};

static void create(struct dt_part *part, const struct dt_build *build)
{
    struct lm *lm = (struct lm *)part;
    const struct dt_model_config *c = build->config;
    struct dt_params *params = build->params;
    int64_t d = c->d_model, V = dt_model_padded_vocab(c), shape[] = {c->vocab_size, d};
    lm->linear = (struct dt_linear){.in = d, .out = V};
    if (c->tie_embeddings)
        dt_params_share(params, "backbone.embeddings.weight", &lm->linear.row);
    else
        lm->linear.row = dt_params_add(params, dt_init_normal, 0.02, V, 2, shape, "lm_head.weight");
    lm->labels = dt_build_array(build, "labels", DT_I32, 1, false);
    part->flops = 6 * (double)c->vocab_size * (double)d; // per weight: 2 forward and 4 backward
}

static dt_status outputs(const struct dt_model_config *config, struct dt_outputs *outputs)
{
    outputs->n = 1;
    outputs->perplexity = true;
    outputs->list[0] = (struct dt_output){
        .name = "tokens", .type = &dt_categorical, .width = config->vocab_size, .weight = 1};
    return DT_OK;
}

static void plan(struct dt_part *part, struct dt_plan *plan)
{
    struct lm *lm = (struct lm *)part;
    enum dt_dtype storage = plan->net->config->storage;
    int64_t V = lm->linear.out, tile = plan->net->backend->op->logits_tile / V;
    tile = dt_min_i64(dt_max_i64(tile, TILE_ROWS_MIN), TILE_ROWS_MAX);
    // The last logits of every sequence need one row each.
    tile = dt_max_i64(dt_min_i64(tile, plan->rows), plan->shape.sequences);
    lm->logits = dt_plan_view(plan, DT_MEMORY_LOGITS, tile, V, DT_F32);
    if (plan->shape.losses)
        lm->losses = dt_plan_view(plan, DT_MEMORY_LOGITS, 1, plan->rows, DT_F32).data;
    if (!plan->shape.play)
        lm->right = dt_plan_view(plan, DT_MEMORY_LOGITS, 1, plan->rows, DT_U8).data;
    if (plan->shape.training)
        lm->dlogits =
            storage == DT_F32 ? lm->logits : dt_plan_view(plan, DT_MEMORY_LOGITS, tile, V, storage);
}

// The first row of the tile after the one at `row`. Measuring needs only the first and the last
// tile.
static int64_t next_tile(const struct lm *lm, const struct dt_pass *pass, int64_t row)
{
    int64_t tile = lm->logits.rows, last = (pass->rows - 1) / tile * tile;
    return pass->measured && row + tile < last ? last : row + tile;
}

// Computes for each tile of rows: logits = h · Wᵀ, their loss, and with scale > 0 dW (+)= dlogitsᵀ
// · h, dh = dlogits · W.
static dt_status loss(struct dt_part *part, const struct dt_pass *pass, struct dt_view h,
                      struct dt_view dh, double scale, struct dt_loss_sum *sum)
{
    const struct lm *lm = (struct lm *)part;
    const int32_t *labels = pass->input.arrays[lm->labels];
    struct dt_pass tile = *pass;
    for (int64_t row = 0; row < pass->rows; row = next_tile(lm, pass, row)) {
        int64_t end = dt_min_i64(row + lm->logits.rows, pass->rows);
        struct dt_view x = dt_view_rows(h, row, end), dx = dt_view_rows(dh, row, end),
                       logits = dt_view_rows(lm->logits, 0, end - row),
                       dlogits = dt_view_rows(lm->dlogits, 0, end - row);
        struct dt_xent_args xent = {.vocab = pass->net->config->vocab_size,
                                    .logits = logits,
                                    .labels = labels ? labels + row : NULL,
                                    .scale = (float)scale,
                                    .dlogits = scale > 0 ? dlogits : (struct dt_view){0},
                                    .losses = lm->losses ? lm->losses + row : NULL,
                                    .right = scale > 0 || !lm->right ? NULL : lm->right + row,
                                    .sum = sum};
        DT_TRY(dt_linear_forward(pass, lm->linear, x, logits));
        DT_TRY(DT_RUN(pass, xent, &xent));
        if (scale > 0)
            DT_TRY(dt_linear_backward(&tile, lm->linear, x, dlogits, dx));
        tile.accumulate = true; // after the first tile
    }
    return DT_OK;
}

static bool row_losses(const struct dt_part *part, const struct dt_model_input *input,
                       struct dt_row_losses *rows)
{
    const struct lm *lm = (const struct lm *)part;
    *rows = (struct dt_row_losses){lm->losses, input->arrays[lm->labels], lm->right};
    return true;
}

static dt_status output(struct dt_part *part, const struct dt_pass *pass, struct dt_view h, int k,
                        struct dt_view *values)
{
    (void)k;
    const struct lm *lm = (struct lm *)part;
    *values = dt_view_rows(lm->logits, 0, pass->input.sequences);
    DT_TRY(dt_linear_forward(pass, lm->linear, dt_pass_last(pass, h), *values));
    values->cols = pass->net->config->vocab_size;
    return DT_OK;
}

static dt_status logits(struct dt_part *part, const struct dt_pass *pass, struct dt_view h,
                        struct dt_view *logits)
{
    const struct lm *lm = (struct lm *)part;
    int64_t M = pass->rows, V = pass->net->config->vocab_size;
    struct dt_linear unpadded = {.row = lm->linear.row, .in = lm->linear.in, .out = V};
    *logits = dt_view_of(logits->data, M, V, DT_F32);
    for (int64_t row = 0; row < M; row = next_tile(lm, pass, row)) {
        int64_t end = dt_min_i64(row + lm->logits.rows, M);
        DT_TRY(dt_linear_forward(pass, unpadded, dt_view_rows(h, row, end),
                                 dt_view_rows(*logits, row, end)));
    }
    return DT_OK;
}

static const struct dt_config_key mlm_fields[] = {
    DT_FIELD(REAL, struct mlm_values, mask_rate, "0.15", 1e-6, 1,
             "share of the tokens to predict: 80 % become mask_token, 10 % a random token, 10 % "
             "stay; losses and accuracy count all of these",
             .json = "mask_rate"),
    DT_FIELD(WHOLE, struct mlm_values, mask_token, "", 1, INT32_MAX,
             "token that stands for a masked one; required by the head mlm",
             .json = "mask_token_id"),
    {0},
};
static const struct dt_kind_keys mlm_keys = {mlm_fields, sizeof(struct mlm_values)};

static struct dt_masking masking(const struct dt_model_config *config)
{
    const struct mlm_values *v = dt_model_own(config, &mlm_keys);
    return (struct dt_masking){.on = true, .rate = v->mask_rate, .token = (int32_t)v->mask_token};
}

static dt_status check_mlm(const struct dt_model_config *config)
{
    int32_t token = masking(config).token;
    if (config->direction != DT_DIRECTION_BOTH)
        return DT_FAIL(DT_USER, "set model.direction = both",
                       "model.heads is mlm, whose masked tokens follow from both sides, but "
                       "model.direction is forward");
    if (token >= config->vocab_size)
        return DT_FAIL(DT_USER, "set model.vocab_size above it",
                       "model.mask_token is %d, outside the vocabulary of %lld", token,
                       (long long)config->vocab_size);
    return DT_OK;
}

#define FUNCTIONS                                                                                  \
    .outputs = outputs, .loss = loss, .row_losses = row_losses, .logits = logits, .output = output
const struct dt_head_kind dt_lm_head = {
    .kind = {.name = "lm",
             .size = sizeof(struct lm),
             .keys = {&dt_vocabulary_keys, &keys},
             .create = create,
             .plan = plan},
    .next = true,
    FUNCTIONS,
};
const struct dt_head_kind dt_mlm_head = {
    .kind = {.name = "mlm",
             .size = sizeof(struct lm),
             .keys = {&dt_vocabulary_keys, &keys, &mlm_keys},
             .check = check_mlm,
             .create = create,
             .plan = plan},
    .masking = masking,
    FUNCTIONS,
};

// The stem of a language model opens the residual stream, in fp32, with the embedding of each
// token. It reads "input_ids" [B, L] i32, and has the row backbone.embeddings.weight [V, d].
#include "model/kinds.h"

struct tokens {
    struct dt_part part;
    int row, ids;
};

static const struct dt_config_key fields[] = {
    // Tokens and the padded vocabulary must fit into int32_t.
    DT_FIELD(WHOLE, struct dt_model_config, vocab_size, "", 1, INT32_MAX - 65536,
             "vocabulary size; required unless run.init_from gives it", .json = "vocab_size"),
    DT_FIELD(WHOLE, struct dt_model_config, pad_vocab_multiple, "8", 1, 65536,
             "in memory, pad the vocabulary to a multiple of this", .neutral = true),
    {0},
};
const struct dt_kind_keys dt_vocabulary_keys = {fields, 0};

static dt_status check(const struct dt_model_config *config)
{
    const struct dt_head_kind *head;
    DT_TRY(dt_head_find(config, &head));
    return head->lists
               ? DT_FAIL(DT_USER, "leave model.stem empty",
                         "model.stem is tokens, but the heads of model.heads learn from frames")
               : DT_OK;
}

static void create(struct dt_part *part, const struct dt_build *build)
{
    struct tokens *t = (struct tokens *)part;
    const struct dt_model_config *c = build->config;
    t->row = dt_params_add(build->params, dt_init_normal, 0.02, dt_model_padded_vocab(c), 2,
                           (int64_t[]){c->vocab_size, c->d_model}, "backbone.embeddings.weight");
    t->ids = dt_build_array(build, "input_ids", DT_I32, 1, false);
}

static dt_status forward(struct dt_part *part, const struct dt_pass *pass, struct dt_view residual)
{
    const struct tokens *t = (struct tokens *)part;
    const struct dt_net *net = pass->net;
    struct dt_embed_forward_args args = {
        .ids = dt_view_of(pass->input.arrays[t->ids], pass->rows, 1, DT_I32),
        .table = dt_view_of(dt_net_stored(net, t->row), dt_model_padded_vocab(net->config),
                            residual.cols, net->config->storage),
        .out = residual.data};
    return DT_RUN(pass, embed_forward, &args);
}

static dt_status backward(struct dt_part *part, const struct dt_pass *pass,
                          struct dt_view dresidual, struct dt_view dx)
{
    (void)dx;
    const struct tokens *t = (struct tokens *)part;
    const struct dt_net *net = pass->net;
    struct dt_embed_backward_args args = {
        .width = dresidual.cols,
        .vocab = dt_model_padded_vocab(net->config),
        .ids = dt_view_of(pass->input.arrays[t->ids], pass->rows, 1, DT_I32),
        .dout = dresidual.data,
        .dtable = dt_net_gradient(net, t->row),
        .accumulate = net->params->rows[t->row].shared};
    DT_TRY(DT_RUN(pass, embed_backward, &args));
    return dt_pass_ready(pass, t->row);
}

const struct dt_stem_kind dt_tokens_stem = {
    .kind = {.name = "tokens",
             .size = sizeof(struct tokens),
             .keys = {&dt_vocabulary_keys},
             .check = check,
             .create = create},
    .unit = "tokens",
    .tokens = "input_ids",
    .forward = forward,
    .backward = backward,
};

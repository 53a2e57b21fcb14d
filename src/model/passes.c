// Runs the passes of a model through stem, blocks and head: forward, loss, backward and outputs.
#include "model/model_internal.h"

// The norm before layer i, or before the head: adds the previous layer's output to the stream and
// computes h. `again`: only recomputes h, in backward.
static dt_status norm_forward(const struct dt_model *model, const struct dt_pass *pass, int64_t i,
                              bool again)
{
    const struct dt_part *part = model->parts.all[i + 1];
    bool adds = i > 0 && !again; // the stem writes the stream directly
    struct dt_rmsnorm_residual_forward_args args = {
        .eps = (float)model->config.norm_eps,
        .residual = model->residual[adds ? i - 1 : i].data,
        .x = adds ? dt_view_rows(model->out, 0, pass->rows) : (struct dt_view){0},
        .weight = dt_net_weight(pass->net, part->norm),
        .residual_out = adds ? model->residual[i].data : NULL,
        .y = dt_view_rows(part->h, 0, pass->rows),
        .rstd = part->rstd};
    return DT_RUN(pass, rmsnorm_residual_forward, &args);
}

// Adds the contribution of h's gradient to the stream's gradient, which the head's norm
// initialises, and also writes the sum in storage type, as the gradient of the previous layer's
// output.
static dt_status norm_backward(const struct dt_model *model, const struct dt_pass *pass, int64_t i)
{
    const struct dt_part *part = model->parts.all[i + 1];
    struct dt_rmsnorm_residual_backward_args args = {.dy = dt_view_rows(part->dh, 0, pass->rows),
                                                     .residual = model->residual[i].data,
                                                     .rstd = part->rstd,
                                                     .weight = dt_net_weight(pass->net, part->norm),
                                                     .dresidual = model->dresidual.data,
                                                     .first = i == model->parts.layers,
                                                     .dx = dt_view_rows(model->out, 0, pass->rows),
                                                     .dweight =
                                                         dt_net_gradient(pass->net, part->norm)};
    DT_TRY(DT_RUN(pass, rmsnorm_residual_backward, &args));
    return dt_pass_ready(pass, part->norm);
}

static struct dt_pass complete(const struct dt_model *model, const struct dt_pass *pass)
{
    struct dt_pass whole = *pass;
    whole.net = &model->net;
    whole.rows = pass->input.sequences * pass->input.length;
    return whole;
}

static dt_status begin(const struct dt_pass *pass, const struct dt_part *part, bool backward)
{
    return pass->part_begins ? pass->part_begins(pass->context, part->first_row, backward) : DT_OK;
}

// y = or += the reversed rows of x.
static dt_status reverse(const struct dt_model *model, const struct dt_pass *pass, struct dt_view x,
                         struct dt_view y, bool adds)
{
    struct dt_reverse_rows_args args = {.length = pass->input.length,
                                        .map = model->map,
                                        .x = dt_view_rows(x, 0, pass->rows),
                                        .y = dt_view_rows(y, 0, pass->rows),
                                        .accumulate = adds};
    return DT_RUN(pass, reverse_rows, &args);
}

static dt_status find_documents(const struct dt_model *model, const struct dt_pass *pass)
{
    const struct dt_parts *parts = &model->parts;
    struct dt_reverse_map_args args = {.batch = pass->input.sequences,
                                       .length = pass->input.length,
                                       .reset = pass->input.arrays[parts->reset],
                                       .mask = pass->input.arrays[parts->mask],
                                       .map = model->map};
    return parts->reverses ? DT_RUN(pass, reverse_map, &args) : DT_OK;
}

static dt_status run_forward(struct dt_part *block, const struct dt_pass *pass, struct dt_view out)
{
    return ((const struct dt_block_kind *)block->kind)
        ->forward(block, pass, dt_view_rows(block->h, 0, pass->rows),
                  dt_view_rows(out, 0, pass->rows));
}

static dt_status forward_layer(const struct dt_model *model, const struct dt_pass *pass, int64_t i)
{
    struct dt_part *block = model->parts.all[i + 1];
    DT_TRY(begin(pass, block, false));
    DT_TRY(norm_forward(model, pass, i, false));
    DT_TRY(run_forward(block, pass, model->out));
    if (!block->reverse)
        return DT_OK;
    DT_TRY(reverse(model, pass, block->h, block->reverse->h, false));
    DT_TRY(run_forward(block->reverse, pass, model->reversed));
    return reverse(model, pass, model->reversed, model->out, true);
}

dt_status dt_model_forward(const struct dt_model *model, const struct dt_pass *caller)
{
    const struct dt_model_shape *shape = &model->shape;
    const struct dt_parts *parts = &model->parts;
    const struct dt_pass pass = complete(model, caller);
    int64_t B = pass.input.sequences, L = pass.input.length;
    if (B < 1 || L < 1 || B > shape->sequences || pass.rows > shape->sequences * shape->length)
        return DT_FAIL(DT_MACHINE, NULL,
                       "a batch of %lld x %lld does not fit the model's %lld x %lld", (long long)B,
                       (long long)L, (long long)shape->sequences, (long long)shape->length);
    DT_TRY(find_documents(model, &pass));
    DT_TRY(begin(&pass, parts->all[0], false));
    DT_TRY(
        parts->stem->forward(parts->all[0], &pass, dt_view_rows(model->residual[0], 0, pass.rows)));
    for (int64_t i = 0; i < parts->layers; i++)
        DT_TRY_NOTE(forward_layer(model, &pass, i), "forward of layer %lld", (long long)i);
    DT_TRY(begin(&pass, parts->head_part, false));
    DT_TRY(norm_forward(model, &pass, parts->layers, false));
    return pass.window && parts->head->carry
               ? parts->head->carry(parts->head_part, &pass,
                                    dt_view_rows(parts->head_part->h, 0, pass.rows))
               : DT_OK;
}

struct dt_view dt_model_residual(const struct dt_model *model, const struct dt_pass *pass)
{
    int64_t rows = pass->input.sequences * pass->input.length;
    return dt_view_rows(model->residual[model->parts.layers], 0, rows);
}

struct dt_view dt_model_hidden(const struct dt_model *model, const struct dt_pass *pass)
{
    return dt_view_rows(model->parts.head_part->h, 0, pass->input.sequences * pass->input.length);
}

dt_status dt_model_loss(const struct dt_model *model, const struct dt_pass *caller, double scale,
                        struct dt_loss_sum *sum)
{
    const struct dt_parts *parts = &model->parts;
    struct dt_pass pass = complete(model, caller);
    struct dt_part *head = parts->head_part;
    pass.grad_ready = NULL; // backward announces its rows
    DT_TRY(parts->head->loss(head, &pass, dt_view_rows(head->h, 0, pass.rows),
                             dt_view_rows(head->dh, 0, pass.rows), scale, sum));
    return scale > 0 ? norm_backward(model, &pass, parts->layers) : DT_OK;
}

bool dt_model_row_losses(const struct dt_model *model, const struct dt_model_input *input,
                         struct dt_row_losses *rows)
{
    const struct dt_head_kind *head = model->parts.head;
    return model->shape.losses && head->row_losses &&
           head->row_losses(model->parts.head_part, input, rows);
}

static dt_status run_backward(struct dt_part *block, const struct dt_pass *pass,
                              struct dt_view dout)
{
    return ((const struct dt_block_kind *)block->kind)
        ->backward(block, pass, dt_view_rows(block->h, 0, pass->rows),
                   dt_view_rows(dout, 0, pass->rows), dt_view_rows(block->dh, 0, pass->rows));
}

// The second direction finishes shared rows, so all rows are announced after it.
static dt_status backward_both(const struct dt_model *model, const struct dt_pass *pass,
                               struct dt_part *block)
{
    struct dt_pass quiet = *pass;
    quiet.grad_ready = NULL;
    DT_TRY(reverse(model, pass, block->h, block->reverse->h, false));
    DT_TRY(reverse(model, pass, model->out, model->reversed, false));
    DT_TRY(run_backward(block, &quiet, model->out));
    DT_TRY(run_backward(block->reverse, &quiet, model->reversed));
    DT_TRY(reverse(model, pass, block->reverse->dh, block->dh, true));
    for (int row = block->first_row; row < block->norm; row++)
        DT_TRY(dt_pass_ready(pass, row));
    return DT_OK;
}

static dt_status backward_layer(const struct dt_model *model, const struct dt_pass *pass, int64_t i)
{
    struct dt_part *block = model->parts.all[i + 1];
    DT_TRY(begin(pass, block, true));
    if (model->config.recompute >= DT_RECOMPUTE_BLOCK)
        DT_TRY(norm_forward(model, pass, i, true));
    DT_TRY(block->reverse ? backward_both(model, pass, block)
                          : run_backward(block, pass, model->out));
    return norm_backward(model, pass, i);
}

dt_status dt_model_backward(const struct dt_model *model, const struct dt_pass *caller)
{
    const struct dt_parts *parts = &model->parts;
    struct dt_pass pass = complete(model, caller);
    pass.relay = NULL; // states have moved: what runs forward again has them
    for (int row = 0; row < parts->head_rows; row++)
        DT_TRY(dt_pass_ready(&pass, row));
    for (int64_t i = parts->layers - 1; i >= 0; i--)
        DT_TRY_NOTE(backward_layer(model, &pass, i), "backward of layer %lld", (long long)i);
    DT_TRY(begin(&pass, parts->all[0], true));
    return parts->stem->backward(parts->all[0], &pass, dt_view_rows(model->dresidual, 0, pass.rows),
                                 dt_view_rows(model->out, 0, pass.rows));
}

dt_status dt_model_logits(const struct dt_model *model, const struct dt_pass *caller,
                          struct dt_view *logits)
{
    const struct dt_parts *parts = &model->parts;
    const struct dt_pass pass = complete(model, caller);
    if (!parts->head->logits)
        return DT_FAIL(DT_USER, NULL, "the model's head \"%s\" has no logits",
                       parts->head->kind.name);
    return parts->head->logits(parts->head_part, &pass,
                               dt_view_rows(parts->head_part->h, 0, pass.rows), logits);
}

dt_status dt_model_output(const struct dt_model *model, const struct dt_pass *caller, int k,
                          struct dt_view *values)
{
    const struct dt_parts *parts = &model->parts;
    const struct dt_pass pass = complete(model, caller);
    if (k < 0 || k >= parts->outputs.n)
        return DT_FAIL(DT_USER, NULL, "the model's head \"%s\" has %d outputs, not number %d",
                       parts->head->kind.name, parts->outputs.n, k);
    return parts->head->output(parts->head_part, &pass,
                               dt_view_rows(parts->head_part->h, 0, pass.rows), k, values);
}

dt_status dt_model_predictions(const struct dt_model *model, const struct dt_pass *caller,
                               bool windows, struct dt_predictions *predictions)
{
    const struct dt_parts *parts = &model->parts;
    const struct dt_pass pass = complete(model, caller);
    return parts->head->predictions(parts->head_part, &pass,
                                    dt_view_rows(parts->head_part->h, 0, pass.rows), windows,
                                    predictions);
}

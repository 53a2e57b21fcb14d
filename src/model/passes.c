// Runs the passes of a model through stem, blocks and head: forward, loss, backward and outputs.
#include "model/model_internal.h"

static struct dt_pass complete(const struct dt_model *model, const struct dt_pass *pass)
{
    struct dt_pass whole = *pass;
    whole.net = &model->net;
    whole.rows = pass->input.sequences * pass->input.length;
    return whole;
}

// Whether windows are run part by part, so that arrays between parts hold all segments, one after
// the other, and each segment's h is computed again where it is needed.
static bool by_part(const struct dt_model *model)
{
    return model->shape.window > 0;
}

// Whether a block runs over the whole window in its second sweep; the first one computes its h.
static bool runs_whole(const struct dt_model *model, const struct dt_part *part)
{
    return by_part(model) && part->layer >= 0 && part != model->parts.head_part &&
           ((const struct dt_block_kind *)part->kind)->whole;
}

// The first of the pass's rows in an array between parts.
static int64_t first_row(const struct dt_model *model, const struct dt_pass *pass)
{
    return by_part(model) ? pass->input.sequences * pass->own_at : 0;
}

// The pass's rows of an array between parts.
static struct dt_view rows_of(const struct dt_model *model, const struct dt_pass *pass,
                              struct dt_view view)
{
    int64_t first = first_row(model, pass);
    return dt_view_rows(view, first, first + pass->rows);
}

// The pass's rows in an array of a block. The array of a block that runs whole has the rows of all
// segments.
static struct dt_view rows_within(const struct dt_model *model, const struct dt_pass *pass,
                                  const struct dt_part *part, struct dt_view view)
{
    return runs_whole(model, part) ? rows_of(model, pass, view) : dt_view_rows(view, 0, pass->rows);
}

static float *rstd_of(const struct dt_model *model, const struct dt_pass *pass,
                      const struct dt_part *part)
{
    return part->rstd && runs_whole(model, part) ? part->rstd + first_row(model, pass) : part->rstd;
}

// The norm before layer i, or before the head: adds the previous layer's output to the stream and
// computes h. `again`: only recomputes h.
static dt_status norm_forward(const struct dt_model *model, const struct dt_pass *pass, int64_t i,
                              bool again)
{
    const struct dt_part *part = model->parts.all[i + 1];
    bool adds = i > 0 && !again; // the stem writes the stream directly
    struct dt_rmsnorm_residual_forward_args args = {
        .eps = (float)model->config.norm_eps,
        .residual = rows_of(model, pass, model->residual[adds ? i - 1 : i]).data,
        .x = adds ? rows_of(model, pass, model->out) : (struct dt_view){0},
        .weight = dt_net_weight(pass->net, part->norm),
        .residual_out = adds ? rows_of(model, pass, model->residual[i]).data : NULL,
        .y = rows_within(model, pass, part, part->h),
        .rstd = rstd_of(model, pass, part)};
    return DT_RUN(pass, rmsnorm_residual_forward, &args);
}

// The gradient of h of a layer, or of the head. Blocks of two sweeps keep it from one to the other.
static struct dt_view gradient_of(const struct dt_model *model, const struct dt_pass *pass,
                                  const struct dt_part *part)
{
    return part->reverse ? rows_of(model, pass, part->dh)
                         : rows_within(model, pass, part, part->dh);
}

// Adds the contribution of h's gradient to the stream's gradient, which the head's norm
// initialises, and also writes the sum in storage type, as the gradient of the previous layer's
// output.
static dt_status norm_backward(const struct dt_model *model, const struct dt_pass *pass, int64_t i)
{
    const struct dt_part *part = model->parts.all[i + 1];
    struct dt_rmsnorm_residual_backward_args args = {
        .dy = gradient_of(model, pass, part),
        .residual = rows_of(model, pass, model->residual[i]).data,
        .rstd = rstd_of(model, pass, part),
        .weight = dt_net_weight(pass->net, part->norm),
        .dresidual = rows_of(model, pass, model->dresidual).data,
        .first = i == model->parts.layers,
        .dx = rows_of(model, pass, model->out),
        .dweight = dt_net_gradient(pass->net, part->norm)};
    DT_TRY(DT_RUN(pass, rmsnorm_residual_backward, &args));
    return dt_pass_ready(pass, part->norm);
}

static dt_status begin(const struct dt_pass *pass, const struct dt_part *part, bool backward)
{
    return pass->part_begins ? pass->part_begins(pass->context, part->first_row, backward) : DT_OK;
}

// The pass over all segments of a window, of one sequence; its rows are those of this rank.
static struct dt_pass whole_of(const struct dt_model *model, const struct dt_pass *pass)
{
    const struct dt_model_shape *shape = &model->shape;
    const int64_t length = shape->context * shape->window, n = pass->at / shape->length;
    struct dt_pass whole = *pass;
    whole.input.length = length;
    if (pass->window) // otherwise memory is being measured
        whole.input = *pass->window;
    whole.rows = whole.input.sequences * shape->window;
    if (n % shape->context == shape->context - 1) // it has the last segment, which may be shorter
        whole.rows -= whole.input.sequences * (length - whole.input.length);
    whole.before = whole.dafter = NULL;
    whole.after = whole.dbefore = NULL;
    whole.window = NULL;
    whole.at = whole.own_at = 0;
    whole.grad_ready = NULL;
    return whole;
}

// y = or += the reversed rows of x.
static dt_status reverse(const struct dt_pass *pass, struct dt_view x, struct dt_view y, bool adds)
{
    struct dt_reverse_rows_args args = {.length = pass->input.length,
                                        .x = dt_view_rows(x, 0, pass->rows),
                                        .y = dt_view_rows(y, 0, pass->rows),
                                        .accumulate = adds};
    return DT_RUN(pass, reverse_rows, &args);
}

// Makes *reversed the pass over the same rows in reversed order, whose h and borders of documents
// are computed here, and which announces nothing.
static dt_status turn(const struct dt_model *model, const struct dt_pass *pass,
                      struct dt_part *block, struct dt_pass *reversed)
{
    const int reset = model->parts.reset;
    const struct dt_model_input *window = pass->window ? pass->window : &pass->input;
    struct dt_reverse_resets_args args = {.batch = pass->input.sequences,
                                          .window = window->length,
                                          .first = pass->at,
                                          .length = pass->input.length,
                                          .reset = window->arrays[reset],
                                          .mask = window->arrays[model->parts.mask],
                                          .y = model->resets};
    *reversed = *pass;
    reversed->reversed = true;
    reversed->grad_ready = NULL;
    if (args.reset || args.mask) {
        DT_TRY(DT_RUN(pass, reverse_resets, &args));
        reversed->input.arrays[reset] = model->resets;
    }
    return reverse(pass, block->h, block->reverse->h, false);
}

static dt_status run_forward(struct dt_part *block, const struct dt_pass *pass, struct dt_view out)
{
    return ((const struct dt_block_kind *)block->kind)
        ->forward(block, pass, dt_view_rows(block->h, 0, pass->rows),
                  dt_view_rows(out, 0, pass->rows));
}

static dt_status forward_layer(const struct dt_model *model, const struct dt_pass *pass, int64_t i,
                               int sweep)
{
    struct dt_part *block = model->parts.all[i + 1];
    struct dt_view out = rows_of(model, pass, model->out);
    struct dt_pass reversed;
    if (sweep == 0) {
        DT_TRY(begin(pass, block, false));
        DT_TRY(norm_forward(model, pass, i, false));
        return runs_whole(model, block) ? DT_OK : run_forward(block, pass, out);
    }
    if (runs_whole(model, block)) {
        const struct dt_pass whole = whole_of(model, pass);
        const bool first = !pass->window || first_row(model, pass) + pass->rows == whole.rows;
        return first ? run_forward(block, &whole, model->out) : DT_OK;
    }
    if (by_part(model))
        DT_TRY(norm_forward(model, pass, i, true));
    DT_TRY(turn(model, pass, block, &reversed));
    DT_TRY(run_forward(block->reverse, &reversed, model->reversed));
    return reverse(pass, model->reversed, out, true);
}

static dt_status open_stream(const struct dt_model *model, const struct dt_pass *pass)
{
    const struct dt_parts *parts = &model->parts;
    DT_TRY(begin(pass, parts->all[0], false));
    return parts->stem->forward(parts->all[0], pass, rows_of(model, pass, model->residual[0]));
}

static dt_status open_head(const struct dt_model *model, const struct dt_pass *pass)
{
    const struct dt_parts *parts = &model->parts;
    struct dt_part *head = parts->head_part;
    DT_TRY(begin(pass, head, false));
    DT_TRY(norm_forward(model, pass, parts->layers, false));
    return pass->window && parts->head->carry
               ? parts->head->carry(head, pass, dt_view_rows(head->h, 0, pass->rows))
               : DT_OK;
}

int64_t dt_model_parts(const struct dt_model *model)
{
    return model->parts.layers + 2;
}

int dt_model_sweeps(const struct dt_model *model, int64_t part)
{
    const struct dt_part *of = model->parts.all[part];
    return of->reverse || runs_whole(model, of) ? 2 : 1;
}

dt_status dt_model_part_forward(const struct dt_model *model, const struct dt_pass *caller,
                                int64_t part, int sweep)
{
    const struct dt_pass pass = complete(model, caller);
    if (part == 0)
        return open_stream(model, &pass);
    if (part == model->parts.layers + 1)
        return open_head(model, &pass);
    DT_TRY_NOTE(forward_layer(model, &pass, part - 1, sweep), "forward of layer %lld",
                (long long)part - 1);
    return DT_OK;
}

dt_status dt_model_forward(const struct dt_model *model, const struct dt_pass *pass)
{
    const struct dt_model_shape *shape = &model->shape;
    int64_t B = pass->input.sequences, L = pass->input.length;
    if (B < 1 || L < 1 || B > shape->sequences || B * L > shape->sequences * shape->length)
        return DT_FAIL(DT_MACHINE, NULL,
                       "a batch of %lld x %lld does not fit the model's %lld x %lld", (long long)B,
                       (long long)L, (long long)shape->sequences, (long long)shape->length);
    for (int64_t part = 0; part < dt_model_parts(model); part++)
        for (int sweep = 0; sweep < dt_model_sweeps(model, part); sweep++)
            DT_TRY(dt_model_part_forward(model, pass, part, sweep));
    return DT_OK;
}

struct dt_view dt_model_residual(const struct dt_model *model, const struct dt_pass *caller)
{
    const struct dt_pass pass = complete(model, caller);
    return rows_of(model, &pass, model->residual[model->parts.layers]);
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
                              struct dt_view dout, struct dt_view dh)
{
    return ((const struct dt_block_kind *)block->kind)
        ->backward(block, pass, dt_view_rows(block->h, 0, pass->rows),
                   dt_view_rows(dout, 0, pass->rows), dh);
}

static dt_status backward_reversed(const struct dt_model *model, const struct dt_pass *pass,
                                   struct dt_part *block)
{
    struct dt_part *twin = block->reverse;
    struct dt_pass reversed;
    DT_TRY(turn(model, pass, block, &reversed));
    DT_TRY(reverse(pass, rows_of(model, pass, model->out), model->reversed, false));
    DT_TRY(run_backward(twin, &reversed, model->reversed, dt_view_rows(twin->dh, 0, pass->rows)));
    return reverse(pass, twin->dh, gradient_of(model, pass, block), true);
}

static dt_status first_sweep(const struct dt_model *model, const struct dt_pass *pass, int64_t i)
{
    struct dt_part *block = model->parts.all[i + 1];
    struct dt_pass first = *pass;
    DT_TRY(begin(pass, block, true));
    if (model->config.recompute >= DT_RECOMPUTE_BLOCK)
        DT_TRY(norm_forward(model, pass, i, true));
    if (runs_whole(model, block))
        return DT_OK;
    if (block->reverse) // the second sweep announces the rows of both
        first.grad_ready = NULL;
    return run_backward(block, &first, rows_of(model, pass, model->out),
                        gradient_of(model, pass, block));
}

// The first sweep has left h of a block that runs whole.
static dt_status second_sweep(const struct dt_model *model, const struct dt_pass *pass, int64_t i)
{
    struct dt_part *block = model->parts.all[i + 1];
    const struct dt_pass whole = whole_of(model, pass);
    if (!runs_whole(model, block)) {
        if (by_part(model))
            DT_TRY(norm_forward(model, pass, i, true));
        DT_TRY(backward_reversed(model, pass, block));
    } else if (pass->own_at == 0)
        DT_TRY(run_backward(block, &whole, model->out, dt_view_rows(block->dh, 0, whole.rows)));
    for (int row = block->first_row; row < block->norm; row++)
        DT_TRY(dt_pass_ready(pass, row));
    return DT_OK;
}

static dt_status backward_layer(const struct dt_model *model, const struct dt_pass *pass, int64_t i,
                                int sweep)
{
    DT_TRY(sweep == 0 ? first_sweep(model, pass, i) : second_sweep(model, pass, i));
    return sweep == dt_model_sweeps(model, i + 1) - 1 ? norm_backward(model, pass, i) : DT_OK;
}

dt_status dt_model_part_backward(const struct dt_model *model, const struct dt_pass *caller,
                                 int64_t part, int sweep)
{
    const struct dt_parts *parts = &model->parts;
    struct dt_pass pass = complete(model, caller);
    pass.relay = NULL; // states have moved: what runs forward again has them
    for (int row = 0; part == parts->layers + 1 && row < parts->head_rows; row++)
        DT_TRY(dt_pass_ready(&pass, row));
    if (part > 0 && part <= parts->layers)
        DT_TRY_NOTE(backward_layer(model, &pass, part - 1, sweep), "backward of layer %lld",
                    (long long)part - 1);
    if (part > 0)
        return DT_OK;
    DT_TRY(begin(&pass, parts->all[0], true));
    return parts->stem->backward(parts->all[0], &pass, rows_of(model, &pass, model->dresidual),
                                 rows_of(model, &pass, model->out));
}

dt_status dt_model_backward(const struct dt_model *model, const struct dt_pass *pass)
{
    for (int64_t part = dt_model_parts(model) - 1; part >= 0; part--)
        for (int sweep = 0; sweep < dt_model_sweeps(model, part); sweep++)
            DT_TRY(dt_model_part_backward(model, pass, part, sweep));
    return DT_OK;
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

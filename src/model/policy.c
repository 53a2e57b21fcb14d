// The head of a policy: the logits of the outputs of model.heads, and their losses
// (kernels/policy_loss.h). All outputs at once:
//   z = h · Wᵀ + bias
// Numbers without a range are normalised by heads.mean and heads.deviation [W], one per target
// column, which are not trained, and default to 0 and 1. With model.autoregressive, output k is
// conditioned on the targets of earlier outputs: with x_j the encoded targets of output j
// (kernels/encode_targets.h) and width r
//   u_k = silu(P_k · [h, x_0, …, x_{k-1}])         z_k = W_k · u_k + bias_k
// so that a class of one head can rule out classes of the next. Training feeds the data's targets,
// a player the values that it has just drawn. A pooled output has one prediction and one loss per
// window, from z = pool(h) · Wᵀ + bias (kernels/pool.h), and in inference one over all positions so
// far, with the pool in the stream's state. Reads "targets" [B, L, W] f32, whose columns are in the
// order of the heads (NaN: missing), "mask" [B, L] u8, and optionally "weights" [B, L, 1 + n] f32.
// Rows: heads.weight [V, d], V numbers of all outputs together, or for each output
// heads.NAME.up.weight [r, d + Σ_{j<k} size_j] and heads.NAME.weight [width_k, r]; heads.bias [V].
// Losses and gradients are computed together, so model.recompute changes nothing.
#include "model/kinds.h"

#include "base/round.h"

#include <math.h>
#include <string.h>

enum { PAD = 8 }; // rows are padded to a multiple of this, to align products

struct policy {
    struct dt_part part;
    struct dt_outputs outputs;
    struct dt_output_slice slices[DT_OUTPUTS_MAX];             // .first: column of the logits
    struct dt_output_slice encoded[DT_OUTPUTS_MAX];            // for encode_targets: columns of x
    struct dt_linear all;                                      // heads.weight
    struct dt_linear up[DT_OUTPUTS_MAX], down[DT_OUTPUTS_MAX]; // if autoregressive
    int bias, mean, deviation;                                 // -1: no output is scaled
    int targets, mask, weights;
    int64_t target_width;
    bool pools[DT_POOLS];              // pools in use, including DT_POOL_NONE
    int pool_state[DT_POOLS], counted; // states: one for each pool, one for all
    // If an output pools: the pools, and the targets of positions, then of windows.
    struct dt_view pooled[DT_POOLS], dpooled[DT_POOLS]; // [B, d] storage
    struct dt_view chosen, chosen_weights;              // [M, W], [M, 1 + n] fp32
    // If autoregressive, [M, d + X padded] storage: h, x_0, x_1, …; and their gradient.
    struct dt_view inputs, dinput;
    struct dt_view pre;         // [M, n · r] storage: inputs of silu
    struct dt_view u, du, dpre; // [M, r] storage, of one output at a time
    struct dt_view logits;      // [M, V padded] fp32
    struct dt_view dlogits;     // [M, V padded] storage; the logits themselves in fp32
};

struct values {
    bool autoregressive;
    double label_smoothing;
};

static const struct dt_config_key fields[] = {
    DT_FIELD(FLAG, struct values, autoregressive, "false",
             "condition each head on the targets of those before it", .json = "autoregressive"),
    DT_FIELD(REAL, struct values, label_smoothing, "0", 0, 0.999,
             "fraction of categorical and bernoulli targets to spread evenly"),
    {0},
};
DT_KIND_VALUES(values)

static int64_t hidden_of(const struct dt_model_config *config)
{
    return dt_round_up(dt_ceil_div(config->d_model, 2), PAD);
}

static dt_status outputs(const struct dt_model_config *config, struct dt_outputs *outputs)
{
    DT_TRY(dt_heads_parse(config->heads, outputs));
    outputs->autoregressive = values(config)->autoregressive;
    return DT_OK;
}

static dt_status check(const struct dt_model_config *config)
{
    struct dt_outputs all;
    DT_TRY(outputs(config, &all));
    for (int k = 0; all.autoregressive && k < all.n; k++)
        if (all.list[k].pool != DT_POOL_NONE)
            return DT_FAIL(DT_USER, "set model.autoregressive = false",
                           "model.heads: %s pools its window (/%s), and no head that does can be "
                           "conditioned on others (model.autoregressive)",
                           all.list[k].name, dt_pool_name[all.list[k].pool]);
    return DT_OK;
}

static bool pools(const struct policy *p)
{
    return p->pools[DT_POOL_MEAN] || p->pools[DT_POOL_LAST] || p->pools[DT_POOL_MAX];
}

static void create(struct dt_part *part, const struct dt_build *build)
{
    struct policy *p = (struct policy *)part;
    struct dt_params *params = build->params;
    int64_t V = 0, X = 0, d = build->config->d_model, r = hidden_of(build->config);
    bool scaled = false;
    p->outputs = *build->outputs;
    for (int k = 0; k < p->outputs.n; k++) {
        const struct dt_output *output = &p->outputs.list[k];
        struct dt_output_slice *slice = &p->slices[k];
        *slice =
            (struct dt_output_slice){.kind = output->type->loss,
                                     .first = (int32_t)V,
                                     .width = (int32_t)output->width,
                                     .target = (int32_t)output->target,
                                     .columns = (int32_t)output->target_width,
                                     .parts = (int32_t)output->parts,
                                     .median = (int32_t)output->median,
                                     .weight = (float)output->weight,
                                     .smoothing = (float)values(build->config)->label_smoothing,
                                     .low = output->low,
                                     .high = output->high};
        memcpy(slice->levels, output->parameters, sizeof slice->levels);
        p->encoded[k] = (struct dt_output_slice){.kind = output->type->scaled ? DT_OUTPUT_REGRESSION
                                                                              : output->type->loss,
                                                 .first = (int32_t)X,
                                                 .width = (int32_t)output->size,
                                                 .target = slice->target,
                                                 .columns = slice->columns,
                                                 .parts = 1};
        V += output->width;
        X += output->size;
        scaled |= output->scaled;
        p->pools[output->pool] = true;
        p->target_width = output->target + output->target_width; // total, after the last
    }
    int64_t padded = dt_round_up(V, PAD);
    if (!p->outputs.autoregressive) { // one product for all outputs, or two per output
        // A weight costs 2 FLOPs forward and 4 backward per token. Products per window, of pooled
        // outputs, do not count.
        part->flops = p->pools[DT_POOL_NONE] ? 6 * (double)d * (double)V : 0;
        p->all = (struct dt_linear){.in = d, .out = padded};
        p->all.row = dt_params_add(params, dt_init_uniform, 1 / sqrt((double)d), padded, 2,
                                   (int64_t[]){V, d}, "heads.weight");
    }
    for (int k = p->outputs.n - 1; p->outputs.autoregressive && k >= 0; k--) {
        const struct dt_output *output = &p->outputs.list[k];
        int64_t in = d + p->encoded[k].first;
        part->flops += 6 * (double)r * (double)(in + output->width);
        p->down[k] = (struct dt_linear){.in = r, .out = output->width};
        p->down[k].row =
            dt_params_add(params, dt_init_uniform, 1 / sqrt((double)r), output->width, 2,
                          (int64_t[]){output->width, r}, "heads.%s.weight", output->name);
        p->up[k] = (struct dt_linear){.in = in, .out = r, .adds = k < p->outputs.n - 1};
        p->up[k].row = dt_params_add(params, dt_init_uniform, 1 / sqrt((double)in), r, 2,
                                     (int64_t[]){r, in}, "heads.%s.up.weight", output->name);
    }
    p->bias = dt_params_add(params, dt_init_zero, 0, padded, 1, &V, "heads.bias");
    p->mean = p->deviation = -1;
    if (scaled) {
        p->mean = dt_params_add(params, dt_init_zero, 0, p->target_width, 1, &p->target_width,
                                "heads.mean");
        p->deviation = dt_params_add(params, dt_init_one, 0, p->target_width, 1, &p->target_width,
                                     "heads.deviation");
        for (int row = p->mean; row <= p->deviation; row++) {
            dt_params_freeze(params, row);
            dt_params_allow_missing(params, row);
        }
    }
    p->targets = dt_build_array(build, "targets", DT_F32, p->target_width, false);
    p->weights = dt_build_array(build, "weights", DT_F32, 1 + p->outputs.n, true);
    p->mask = dt_build_array(build, "mask", DT_U8, 1, true);
    static const char *const names[DT_POOLS] = {"", "pool.mean", "pool.last", "pool.max"};
    if (pools(p))
        p->counted = dt_build_state(build, part, "pool.count", DT_F32, 1);
    for (int pool = DT_POOL_MEAN; pool < DT_POOLS; pool++)
        if (p->pools[pool])
            p->pool_state[pool] = dt_build_state(build, part, names[pool], DT_F32, d);
}

static void plan(struct dt_part *part, struct dt_plan *plan)
{
    struct policy *p = (struct policy *)part;
    const struct dt_model_config *config = plan->net->config;
    enum dt_dtype storage = config->storage;
    enum dt_memory logits = DT_MEMORY_LOGITS;
    bool training = plan->shape.training, chained = p->outputs.autoregressive;
    const struct dt_output_slice *last = &p->slices[p->outputs.n - 1],
                                 *last_of_x = &p->encoded[p->outputs.n - 1];
    int64_t M = plan->rows, d = config->d_model, r = hidden_of(config),
            V = dt_round_up(last->first + last->width, PAD);
    p->logits = dt_plan_view(plan, logits, M, V, DT_F32);
    if (training)
        p->dlogits = storage == DT_F32 ? p->logits : dt_plan_view(plan, logits, M, V, storage);
    for (int pool = DT_POOL_MEAN; pool < DT_POOLS; pool++)
        if (p->pools[pool]) {
            p->pooled[pool] = dt_plan_view(plan, logits, plan->shape.sequences, d, storage);
            p->dpooled[pool] = dt_plan_view(plan, logits, plan->shape.sequences, d, storage);
        }
    if (pools(p)) {
        p->chosen = dt_plan_view(plan, logits, M, p->target_width, DT_F32);
        p->chosen_weights = dt_plan_view(plan, logits, M, 1 + p->outputs.n, DT_F32);
    }
    if (!chained)
        return;
    int64_t inputs = dt_round_up(d + last_of_x->first + last_of_x->width, PAD);
    p->inputs = dt_plan_view(plan, DT_MEMORY_ACTIVATIONS, M, inputs, storage);
    part->h = dt_view_cols(p->inputs, 0, d);
    p->pre = dt_plan_view(plan, logits, M, p->outputs.n * r, storage);
    p->u = dt_plan_view(plan, logits, M, r, storage);
    if (!training)
        return;
    p->dinput = dt_plan_view(plan, DT_MEMORY_SCRATCH, M, inputs, storage);
    part->dh = dt_view_cols(p->dinput, 0, d);
    p->du = dt_plan_view(plan, logits, M, r, storage);
    p->dpre = dt_plan_view(plan, logits, M, r, storage);
}

// Mean or deviation of targets, [1, W]; NULL: not normalised.
static const float *row_of(const struct policy *p, const struct dt_pass *pass, int row)
{
    return p->mean >= 0 ? dt_net_weight(pass->net, row) : NULL;
}

// Encodes x_0 … x_{n-1} from rows of the targets into rows of the inputs, [rows, d + …].
static dt_status encode(const struct policy *p, const struct dt_pass *pass, int n,
                        struct dt_view targets, struct dt_view inputs)
{
    int64_t d = p->part.h.cols;
    struct dt_encode_targets_args args = {.n = n,
                                          .targets = targets,
                                          .mean = row_of(p, pass, p->mean),
                                          .deviation = row_of(p, pass, p->deviation),
                                          .out = dt_view_cols(inputs, d, inputs.cols)};
    memcpy(args.outputs, p->encoded, (size_t)n * sizeof *p->encoded);
    return n > 0 ? DT_RUN(pass, encode_targets, &args) : DT_OK;
}

static struct dt_view targets_of(const struct policy *p, const struct dt_pass *pass)
{
    return dt_view_of(pass->input.arrays[p->targets], pass->rows, p->target_width, DT_F32);
}

// Computes the logits of output k, without bias, from `inputs` [rows, d + …].
static dt_status chained_output(const struct policy *p, const struct dt_pass *pass, int k,
                                struct dt_view inputs)
{
    int64_t rows = inputs.rows, r = p->u.cols, first = p->slices[k].first;
    struct dt_view pre = dt_view_block(p->pre, 0, k * r, rows, r), u = dt_view_rows(p->u, 0, rows);
    struct dt_silu_gate_forward_args silu = {.x = pre, .u = {.dtype = u.dtype}, .y = u};
    DT_TRY(dt_linear_forward(pass, p->up[k], dt_view_cols(inputs, 0, p->up[k].in), pre));
    DT_TRY(DT_RUN(pass, silu_gate_forward, &silu));
    return dt_linear_forward(pass, p->down[k], u,
                             dt_view_block(p->logits, 0, first, rows, p->down[k].out));
}

// One pool of p->pooled or p->dpooled.
static struct dt_view pooled_of(const struct dt_view *pooled, const struct dt_pass *pass,
                                enum dt_pool pool)
{
    return dt_view_rows(pooled[pool], 0, pass->input.sequences);
}

// Whether the pass has the first part of the window, or the last.
static bool starts(const struct dt_pass *pass)
{
    return !pass->window || pass->at == 0;
}

static bool ends(const struct dt_pass *pass)
{
    return !pass->window || pass->at + pass->input.length == pass->window->length;
}

// Computes p->pooled over all positions up to the pass's last; `before` has the pool of earlier
// passes, or is NULL.
static dt_status pool_windows(const struct policy *p, const struct dt_pass *pass, enum dt_pool pool,
                              struct dt_view h, const struct dt_model_state *before,
                              const struct dt_model_state *after)
{
    const struct dt_part *part = &p->part;
    struct dt_pool_forward_args args = {
        .pool = pool,
        .length = pass->input.length,
        .h = h,
        .mask = pass->input.arrays[p->mask],
        .before = dt_pass_state(pass, part, before, p->pool_state[pool]),
        .before_count = dt_pass_state(pass, part, before, p->counted),
        .out = pooled_of(p->pooled, pass, pool),
        .after = dt_pass_state(pass, part, after, p->pool_state[pool]),
        .after_count = dt_pass_state(pass, part, after, p->counted)};
    return DT_RUN(pass, pool_forward, &args);
}

// Stores the pools from which the window's next pass starts.
static dt_status carry(struct dt_part *part, const struct dt_pass *pass, struct dt_view h)
{
    const struct policy *p = (struct policy *)part;
    DT_TRY(dt_pass_relay_all(pass, part, DT_BEFORE));
    if (ends(pass))
        return DT_OK;
    for (enum dt_pool pool = DT_POOL_MEAN; pool < DT_POOLS; pool++)
        if (p->pools[pool])
            DT_TRY(pool_windows(p, pass, pool, h, starts(pass) ? NULL : pass->before, pass->after));
    return dt_pass_relay_all(pass, part, DT_AFTER);
}

// The targets and weights of outputs: one row per position, or for pooled outputs per window.
struct rows {
    struct dt_view targets, weights; // weights.data NULL: none
    const uint8_t *mask;
};

// If no output pools, the rows are the batch's. Rows of windows cover all their parts.
static dt_status find_rows(const struct policy *p, const struct dt_pass *pass, bool windows,
                           struct rows *rows)
{
    int n = p->outputs.n;
    const struct dt_model_input *input = windows && pass->window ? pass->window : &pass->input;
    int64_t length = windows ? input->length : 1, M = input->sequences * input->length;
    const void *weights = input->arrays[p->weights];
    *rows =
        (struct rows){.targets = dt_view_of(input->arrays[p->targets], M, p->target_width, DT_F32),
                      .mask = input->arrays[p->mask]};
    if (weights)
        rows->weights = dt_view_of(weights, M, 1 + n, DT_F32);
    if (!pools(p) || (!rows->targets.data && !pass->measured)) // no targets: only predictions
        return DT_OK;
    struct dt_pool_targets_args args = {.n = n,
                                        .length = length,
                                        .targets = rows->targets,
                                        .mask = rows->mask,
                                        .weights = rows->weights,
                                        .targets_out = dt_view_rows(p->chosen, 0, M / length)};
    if (weights)
        args.weights_out = dt_view_rows(p->chosen_weights, 0, M / length);
    for (int k = 0; k < n; k++)
        if ((p->outputs.list[k].pool != DT_POOL_NONE) == windows)
            args.outputs[k] = (struct dt_target_columns){p->slices[k].target, p->slices[k].columns};
    *rows = (struct rows){.targets = args.targets_out, .weights = args.weights_out};
    return DT_RUN(pass, pool_targets, &args);
}

// The part of heads.weight of output k.
static struct dt_linear linear_of(const struct policy *p, int k)
{
    struct dt_linear linear = p->all;
    linear.first = p->slices[k].first;
    linear.out = p->slices[k].width;
    return linear;
}

static struct dt_view columns_of(const struct policy *p, int k, struct dt_view logits)
{
    return dt_view_cols(logits, p->slices[k].first, p->slices[k].first + p->slices[k].width);
}

// Computes the logits of all outputs at all positions, without bias.
static dt_status position_logits(const struct policy *p, const struct dt_pass *pass,
                                 struct dt_view h, struct dt_view logits)
{
    int n = p->outputs.n;
    struct dt_view inputs = dt_view_rows(p->inputs, 0, pass->rows);
    if (!p->outputs.autoregressive)
        return dt_linear_forward(pass, p->all, h, logits);
    DT_TRY(encode(p, pass, n - 1, targets_of(p, pass), inputs));
    for (int k = 0; k < n; k++)
        DT_TRY(chained_output(p, pass, k, inputs));
    return DT_OK;
}

// Computes the logits of pooled outputs for each window.
static dt_status window_logits(const struct policy *p, const struct dt_pass *pass, struct dt_view h,
                               struct dt_view logits)
{
    for (enum dt_pool pool = DT_POOL_MEAN; pool < DT_POOLS; pool++)
        if (p->pools[pool])
            DT_TRY(pool_windows(p, pass, pool, h, starts(pass) ? NULL : pass->before, NULL));
    for (int k = 0; k < p->outputs.n; k++) {
        enum dt_pool pool = p->outputs.list[k].pool;
        if (pool != DT_POOL_NONE)
            DT_TRY(dt_linear_forward(pass, linear_of(p, k), pooled_of(p->pooled, pass, pool),
                                     columns_of(p, k, logits)));
    }
    return DT_OK;
}

static dt_status compute_logits(const struct policy *p, const struct dt_pass *pass, bool windows,
                                struct dt_view h, struct dt_view logits)
{
    return windows ? window_logits(p, pass, h, logits) : position_logits(p, pass, h, logits);
}

// Sums the gradient of the inputs, starting at the last output, whose inputs are the widest.
static dt_status chained_backward(const struct policy *p, const struct dt_pass *pass)
{
    int64_t M = pass->rows, r = p->u.cols;
    struct dt_view u = dt_view_rows(p->u, 0, M), du = dt_view_rows(p->du, 0, M),
                   dpre = dt_view_rows(p->dpre, 0, M);
    for (int k = p->outputs.n - 1; k >= 0; k--) {
        int64_t in = p->up[k].in;
        struct dt_view pre = dt_view_block(p->pre, 0, k * r, M, r),
                       dz = dt_view_block(p->dlogits, 0, p->slices[k].first, M, p->down[k].out);
        struct dt_silu_gate_forward_args silu = {.x = pre, .u = {.dtype = u.dtype}, .y = u};
        struct dt_silu_gate_backward_args back = {
            .x = pre, .u = silu.u, .dy = du, .dx = dpre, .du = silu.u};
        DT_TRY(DT_RUN(pass, silu_gate_forward, &silu));
        DT_TRY(dt_linear_backward(pass, p->down[k], u, dz, du));
        DT_TRY(DT_RUN(pass, silu_gate_backward, &back));
        DT_TRY(dt_linear_backward(pass, p->up[k], dt_view_block(p->inputs, 0, 0, M, in), dpre,
                                  dt_view_block(p->dinput, 0, 0, M, in)));
    }
    return DT_OK;
}

// Clears the gradients of heads.weight and heads.bias, of which pooled outputs write their own
// rows, and those only in the pass that ends the window.
static dt_status clear_gradients(const struct policy *p, const struct dt_pass *pass)
{
    const int rows[] = {p->all.row, p->bias};
    for (int i = 0; i < 2 && !pass->measured; i++)
        DT_TRY(dt_fill(pass->net->backend, dt_net_gradient(pass->net, rows[i]), 0,
                       pass->net->params->rows[rows[i]].count * (int64_t)sizeof(float),
                       pass->stream));
    return DT_OK;
}

// Computes the gradient of h from that of the logits or, if the window continues in another pass,
// of its pools. `first`: writes it, otherwise adds to it.
static dt_status windows_backward(const struct policy *p, const struct dt_pass *pass,
                                  struct dt_view h, struct dt_view dlogits, struct dt_view dh,
                                  bool first)
{
    const struct dt_part *part = &p->part;
    const struct dt_model_state *before = starts(pass) ? NULL : pass->before,
                                *dbefore = starts(pass) ? NULL : pass->dbefore,
                                *dafter = ends(pass) ? NULL : pass->dafter;
    bool adds[DT_POOLS] = {false};
    if (first && !pass->accumulate)
        DT_TRY(clear_gradients(p, pass));
    DT_TRY(dt_pass_relay_all(pass, part, DT_GRADIENT_AFTER));
    for (int k = 0; k < p->outputs.n && ends(pass); k++) {
        enum dt_pool pool = p->outputs.list[k].pool;
        struct dt_linear linear = linear_of(p, k);
        linear.adds = adds[pool];
        adds[pool] = true;
        if (pool != DT_POOL_NONE)
            DT_TRY(dt_linear_backward(pass, linear, pooled_of(p->pooled, pass, pool),
                                      columns_of(p, k, dlogits),
                                      pooled_of(p->dpooled, pass, pool)));
    }
    for (enum dt_pool pool = DT_POOL_MEAN; pool < DT_POOLS; pool++) {
        int state = p->pool_state[pool];
        struct dt_pool_backward_args args = {
            .pool = pool,
            .length = pass->input.length,
            .h = h,
            .mask = pass->input.arrays[p->mask],
            .before = dt_pass_state(pass, part, before, state),
            .before_count = dt_pass_state(pass, part, before, p->counted),
            .dafter = dt_pass_gradient(pass, part, dafter, state),
            .dh = dh,
            .dbefore = dt_pass_gradient(pass, part, dbefore, state),
            .first = first};
        if (ends(pass))
            args.dout = pooled_of(p->dpooled, pass, pool);
        if (p->pools[pool]) {
            DT_TRY(DT_RUN(pass, pool_backward, &args));
            first = false;
        }
    }
    return dt_pass_relay_all(pass, part, DT_GRADIENT_BEFORE);
}

// Computes the loss of the outputs per position or, with `windows`, of pooled outputs.
static dt_status loss_of(const struct policy *p, const struct dt_pass *caller, bool windows,
                         struct dt_view h, struct dt_view dh, double scale, struct dt_loss_sum *sum)
{
    struct dt_pass pass = *caller;
    int n = p->outputs.n;
    bool first = !windows || !p->pools[DT_POOL_NONE];
    struct rows rows;
    pass.accumulate = pass.accumulate || !first;
    DT_TRY(find_rows(p, &pass, windows, &rows));
    struct dt_view logits = dt_view_rows(p->logits, 0, rows.targets.rows),
                   dlogits = dt_view_rows(p->dlogits, 0, rows.targets.rows);
    struct dt_policy_loss_args args = {.n = n,
                                       .logits = logits,
                                       .bias = dt_net_weight(pass.net, p->bias),
                                       .targets = rows.targets,
                                       .mean = row_of(p, &pass, p->mean),
                                       .deviation = row_of(p, &pass, p->deviation),
                                       .mask = rows.mask,
                                       .weights = rows.weights,
                                       .scale = (float)scale,
                                       .dlogits = scale > 0 ? dlogits : (struct dt_view){0},
                                       .sum = sum};
    memcpy(args.outputs, p->slices, (size_t)n * sizeof *p->slices);
    DT_TRY(compute_logits(p, &pass, windows, h, logits));
    DT_TRY(DT_RUN(&pass, policy_loss, &args));
    if (!(scale > 0))
        return DT_OK;
    if (windows)
        DT_TRY(windows_backward(p, &pass, h, dlogits, dh, first));
    else
        DT_TRY(p->outputs.autoregressive ? chained_backward(p, &pass)
                                         : dt_linear_backward(&pass, p->all, h, dlogits, dh));
    return dt_add_bias_backward(&pass, p->bias, dlogits);
}

static dt_status loss(struct dt_part *part, const struct dt_pass *pass, struct dt_view h,
                      struct dt_view dh, double scale, struct dt_loss_sum *sum)
{
    const struct policy *p = (struct policy *)part;
    if (p->pools[DT_POOL_NONE])
        DT_TRY(loss_of(p, pass, false, h, dh, scale, sum));
    if (!pools(p))
        return DT_OK;
    if (ends(pass))
        return loss_of(p, pass, true, h, dh, scale, sum);
    return scale > 0
               ? windows_backward(p, pass, h, (struct dt_view){0}, dh, !p->pools[DT_POOL_NONE])
               : DT_OK;
}

// Adds the bias to the logits of outputs [from, from + n) and converts them to the data's units.
static dt_status decode(const struct policy *p, const struct dt_pass *pass, int from, int n,
                        struct dt_view values)
{
    int32_t first = p->slices[from].first;
    struct dt_decode_outputs_args args = {.n = n,
                                          .targets = p->target_width,
                                          .mean = row_of(p, pass, p->mean),
                                          .deviation = row_of(p, pass, p->deviation),
                                          .z = values};
    for (int k = 0; k < n; k++) {
        args.outputs[k] = p->slices[from + k];
        args.outputs[k].first -= first;
    }
    DT_TRY(dt_add_bias(pass, p->bias, first, values));
    return DT_RUN(pass, decode_outputs, &args);
}

static dt_status output(struct dt_part *part, const struct dt_pass *pass, struct dt_view h, int k,
                        struct dt_view *values)
{
    const struct policy *p = (struct policy *)part;
    enum dt_pool pool = p->outputs.list[k].pool;
    struct dt_view inputs = dt_pass_last(pass, p->inputs);
    if (pool != DT_POOL_NONE)
        DT_TRY(pool_windows(p, pass, pool, h, pass->before, pass->after));
    h = pool == DT_POOL_NONE ? dt_pass_last(pass, h) : pooled_of(p->pooled, pass, pool);
    *values = columns_of(p, k, dt_view_rows(p->logits, 0, h.rows));
    if (p->outputs.autoregressive) {
        DT_TRY(encode(p, pass, k, dt_pass_last(pass, targets_of(p, pass)), inputs));
        DT_TRY(chained_output(p, pass, k, inputs));
    } else {
        DT_TRY(dt_linear_forward(pass, linear_of(p, k), h, *values));
    }
    return decode(p, pass, k, 1, *values);
}

static dt_status predictions(struct dt_part *part, const struct dt_pass *pass, struct dt_view h,
                             bool windows, struct dt_predictions *predictions)
{
    const struct policy *p = (struct policy *)part;
    struct rows rows;
    *predictions = (struct dt_predictions){0};
    if (windows ? !pools(p) : !p->pools[DT_POOL_NONE])
        return DT_OK;
    DT_TRY(find_rows(p, pass, windows, &rows));
    *predictions = (struct dt_predictions){.values = dt_view_rows(p->logits, 0, rows.targets.rows),
                                           .targets = rows.targets,
                                           .weights = rows.weights,
                                           .mask = rows.mask};
    DT_TRY(compute_logits(p, pass, windows, h, predictions->values));
    return decode(p, pass, 0, p->outputs.n, predictions->values);
}

const struct dt_head_kind dt_policy_head = {
    .kind = {.name = "policy",
             .size = sizeof(struct policy),
             .keys = {&keys},
             .check = check,
             .create = create,
             .plan = plan},
    .lists = true,
    .stem = "frames",
    .outputs = outputs,
    .carry = carry,
    .loss = loss,
    .output = output,
    .predictions = predictions,
};

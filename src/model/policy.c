// The head of a policy: final RMSNorm, the logits of all outputs of model.heads in one product, and
// their losses (kernels/policy_loss.h).
//   logits = RMSNorm(r) · Wᵀ + bias
// Reads "targets" [B, L, W] f32, whose columns are in the order of the heads, and "mask" [B, L] u8.
// Rows: heads.weight [V, d] and heads.bias [V], V logits of all outputs together;
// backbone.norm_f.weight.
#include "model/kinds.h"

#include "base/round.h"

#include <math.h>

enum { PAD = 8 }; // logits of a row are padded to a multiple of this, for aligned products

struct policy {
    struct dt_part part;
    struct dt_outputs outputs;
    int64_t first[DT_OUTPUTS_MAX]; // an output's column of the logits
    struct dt_norm norm;           // backbone.norm_f.weight
    struct dt_linear linear;       // heads.weight
    int bias;
    int targets, mask;
    int64_t target_width;
    struct dt_view h, dh;   // [M, d] storage
    struct dt_view logits;  // [M, V padded] fp32
    struct dt_view dlogits; // [M, V padded] storage; the logits themselves in fp32
};

static void create(struct dt_part *part, const struct dt_build *build)
{
    struct policy *p = (struct policy *)part;
    struct dt_params *params = build->params;
    int64_t d = build->config->d_model, V = 0;
    if (dt_heads_parse(build->config->heads, &p->outputs) != DT_OK) {
        params->failed = true;
        return;
    }
    for (int k = 0; k < p->outputs.n; k++) {
        p->first[k] = V;
        V += p->outputs.list[k].width;
    }
    int64_t padded = dt_round_up(V, PAD);
    p->linear = (struct dt_linear){.in = d, .out = padded};
    p->linear.row = dt_params_add(params, DT_INIT_UNIFORM, 1 / sqrt((double)d), padded, 2,
                                  (int64_t[]){V, d}, "heads.weight");
    p->bias = dt_params_add(params, DT_INIT_ZERO, 0, padded, 1, &V, "heads.bias");
    p->norm.row = dt_params_add(params, DT_INIT_ONE, 0, d, 1, &d, "backbone.norm_f.weight");
    p->norm.last = true;
    p->target_width = dt_heads_targets(&p->outputs);
    p->targets = dt_build_array(build, "targets", DT_F32, p->target_width, false);
    p->mask = dt_build_array(build, "mask", DT_U8, 1, true);
    *build->outputs = p->outputs;
}

static void plan(struct dt_part *part, struct dt_plan *plan)
{
    struct policy *p = (struct policy *)part;
    int64_t M = plan->rows, d = p->linear.in, V = p->linear.out;
    enum dt_dtype storage = plan->net->config->storage;
    p->h = dt_plan_view(plan, DT_MEMORY_ACTIVATIONS, M, d, storage);
    p->norm.rstd = dt_plan_view(plan, DT_MEMORY_ACTIVATIONS, M, 1, DT_F32).data;
    p->logits = dt_plan_view(plan, DT_MEMORY_LOGITS, M, V, DT_F32);
    if (!plan->shape.training)
        return;
    p->dlogits =
        storage == DT_F32 ? p->logits : dt_plan_view(plan, DT_MEMORY_LOGITS, M, V, storage);
    p->dh = dt_plan_view(plan, DT_MEMORY_SCRATCH, M, d, storage);
}

static dt_status forward(struct dt_part *part, const struct dt_pass *pass,
                         const struct dt_flow *flow)
{
    const struct policy *p = (struct policy *)part;
    return dt_norm_forward(pass, &p->norm, flow, dt_view_rows(p->h, 0, pass->rows));
}

static dt_status losses(const struct policy *p, const struct dt_pass *pass, double scale,
                        struct dt_loss_sum *sum)
{
    struct dt_policy_loss_args args = {.rows = pass->rows,
                                       .width = p->logits.cols,
                                       .target_width = p->target_width,
                                       .n = p->outputs.n,
                                       .logits = p->logits.data,
                                       .logits_stride = p->logits.stride,
                                       .bias = dt_net_weight(pass->net, p->bias),
                                       .targets = pass->input.arrays[p->targets],
                                       .mask = pass->input.arrays[p->mask],
                                       .scale = (float)scale,
                                       .dtype = pass->net->config->storage,
                                       .dlogits = scale > 0 ? p->dlogits.data : NULL,
                                       .dlogits_stride = p->logits.stride,
                                       .sum = sum,
                                       .workspace = pass->net->workspace,
                                       .workspace_bytes = pass->net->workspace_bytes};
    for (int k = 0; k < p->outputs.n; k++) {
        const struct dt_output *output = &p->outputs.list[k];
        args.outputs[k] =
            (struct dt_output_slice){.kind = output->kind,
                                     .first = (int32_t)p->first[k],
                                     .width = (int32_t)output->width,
                                     .target = (int32_t)output->target,
                                     .weight = (float)output->weight,
                                     .smoothing = (float)pass->net->config->label_smoothing};
    }
    return DT_RUN(pass, policy_loss, &args);
}

static dt_status loss(struct dt_part *part, const struct dt_pass *pass, const struct dt_flow *flow,
                      double scale, struct dt_loss_sum *sum)
{
    const struct policy *p = (struct policy *)part;
    int64_t M = pass->rows;
    struct dt_view h = dt_view_rows(p->h, 0, M), dh = dt_view_rows(p->dh, 0, M);
    DT_TRY(dt_linear_forward(pass, p->linear, h, dt_view_rows(p->logits, 0, M)));
    DT_TRY(losses(p, pass, scale, sum));
    if (!(scale > 0))
        return DT_OK;
    struct dt_view dlogits = dt_view_rows(p->dlogits, 0, M);
    DT_TRY(dt_linear_backward(pass, p->linear, h, dlogits, dh));
    DT_TRY(dt_add_bias_backward(pass, p->bias, dlogits));
    return dt_norm_backward(pass, &p->norm, flow, dh);
}

static dt_status output(struct dt_part *part, const struct dt_pass *pass, int k,
                        struct dt_view *values)
{
    const struct policy *p = (struct policy *)part;
    int64_t first = p->first[k], width = p->outputs.list[k].width;
    struct dt_linear linear = p->linear;
    linear.first = first;
    linear.out = width;
    *values = dt_view_block(p->logits, 0, first, pass->input.sequences, width);
    DT_TRY(dt_linear_forward(pass, linear, dt_pass_last(pass, p->h), *values));
    return dt_add_bias(pass, p->bias, first, *values);
}

static double flops_per_token(const struct dt_model_config *config)
{
    struct dt_outputs outputs;
    double logits = 0;
    if (dt_heads_parse(config->heads, &outputs) == DT_OK)
        for (int k = 0; k < outputs.n; k++)
            logits += (double)outputs.list[k].width;
    return 6 * logits * (double)config->d_model;
}

const struct dt_head_kind dt_policy_head = {
    .kind = {.name = "policy",
             .size = sizeof(struct policy),
             .create = create,
             .plan = plan,
             .flops_per_token = flops_per_token},
    .forward = forward,
    .loss = loss,
    .output = output,
};

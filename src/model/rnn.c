// The recurrent blocks `gru` and `lstm` (kernels/rnn.h has the formulas):
//   out = out_proj(rnn(h · W_ihᵀ))
// H = d_rnn hidden channels, G gates of each, M = B·L rows. Weights and biases have the names, the
// order of gates and the shapes of PyTorch's nn.GRU and nn.LSTM of one layer. out_proj exists only
// if H is not d_model. One product computes the inputs of all gates, and one the gradient of W_hh.
// model.recompute: `scan` keeps the inputs of the gates and runs the recurrence again; `block`
// keeps nothing.
#include "model/kinds.h"

#include <math.h>

struct arrays {
    struct dt_view x; // [M, G·H], before the recurrence and without bias
    struct dt_view p; // [M, G·H], GRU, only gradients: that of the recurrent product
    struct dt_view y; // [M, H]; without out_proj the block's output itself
    struct dt_view previous, gates, cells; // [M, H], [M, 4H], [M, H], for backward
};

struct rnn {
    struct dt_part part;
    enum dt_rnn_cell cell;
    int64_t H, G;
    int reset;                                   // batch array
    int hidden_state, cell_state;                // [B, H] fp32; cell_state: LSTM
    struct dt_linear input, recurrent, out_proj; // out_proj.out 0: none
    int bias_ih, bias_hh;                        // rows of the table
    struct arrays forward, gradients;
};

struct values {
    int64_t d_rnn;
};

static const struct dt_config_key fields[] = {
    DT_FIELD_AUTO(struct values, d_rnn, 1, 0x1p20, "hidden size; auto: d_model", .json = "d_rnn"),
    {0},
};
DT_KIND_VALUES(values)

static void resolve(struct dt_model_config *config, int64_t length)
{
    (void)length;
    if (values(config)->d_rnn == 0)
        values(config)->d_rnn = config->d_model;
}

extern const struct dt_block_kind dt_lstm_block;

static void create(struct dt_part *part, const struct dt_build *build)
{
    struct rnn *m = (struct rnn *)part;
    const struct dt_model_config *config = build->config;
    enum dt_rnn_cell cell = m->cell = part->kind == &dt_lstm_block.kind ? DT_RNN_LSTM : DT_RNN_GRU;
    int64_t d = config->d_model, H = m->H = values(config)->d_rnn, G = m->G = dt_rnn_gates(cell),
            gates = G * H;
    double scale = 1 / sqrt((double)H); // for all weights, as in PyTorch
    if (H != d)
        m->out_proj = dt_build_projection(build, part, "mixer.out_proj.weight", H, d,
                                          1 / sqrt((double)(H * config->n_layer)));
    m->bias_ih = dt_build_row(build, part, "mixer.bias_ih_l0", dt_init_uniform, scale, 1, &gates);
    m->bias_hh = dt_build_row(build, part, "mixer.bias_hh_l0", dt_init_uniform, scale, 1, &gates);
    m->recurrent = dt_build_linear(build, part, "mixer.weight_hh_l0", H, gates, scale);
    m->recurrent.exact = true;
    m->input = dt_build_projection(build, part, "mixer.weight_ih_l0", d, gates, scale);
    m->reset = dt_build_array(build, "reset", DT_U8, 1, true);
    m->hidden_state = dt_build_state(build, part, "hidden_state", DT_F32, H);
    if (cell == DT_RNN_LSTM)
        m->cell_state = dt_build_state(build, part, "cell_state", DT_F32, H);
}

static void plan(struct dt_part *part, struct dt_plan *plan)
{
    struct rnn *m = (struct rnn *)part;
    enum dt_dtype storage = plan->net->config->storage;
    enum dt_memory block = plan->block, scan = plan->scan, scratch = DT_MEMORY_SCRATCH;
    bool again = plan->net->config->recompute == DT_RECOMPUTE_SCAN; // from x
    int64_t M = plan->rows, H = m->H;
    struct arrays *a = &m->forward, *g = &m->gradients;
    a->x = dt_plan_view(plan, again ? block : scratch, M, m->G * H, storage);
    a->previous = dt_plan_view(plan, scan, M, H, storage);
    if (m->out_proj.out)
        a->y = dt_plan_view(plan, scan, M, H, storage);
    if (!plan->shape.training)
        return;
    a->gates = dt_plan_view(plan, scan, M, 4 * H, storage);
    if (m->cell == DT_RNN_LSTM)
        a->cells = dt_plan_view(plan, scan, M, H, storage);
    g->x = dt_plan_view(plan, scratch, M, m->G * H, storage);
    if (m->cell == DT_RNN_GRU)
        g->p = dt_plan_view(plan, scratch, M, m->G * H, storage);
    g->y = dt_plan_view(plan, scratch, M, H, storage);
}

static struct dt_rnn_inputs inputs(const struct rnn *m, const struct dt_pass *pass)
{
    const struct dt_part *part = &m->part;
    return (struct dt_rnn_inputs){.cell = m->cell,
                                  .batch = pass->input.sequences,
                                  .length = pass->input.length,
                                  .w_hh = dt_view_of(dt_net_stored(pass->net, m->recurrent.row),
                                                     m->G * m->H, m->H, pass->net->config->storage),
                                  .h0 = dt_pass_state(pass, part, pass->before, m->hidden_state),
                                  .c0 = m->cell == DT_RNN_LSTM
                                            ? dt_pass_state(pass, part, pass->before, m->cell_state)
                                            : NULL,
                                  .reset = pass->input.arrays[m->reset],
                                  .play = pass->net->rows != NULL};
}

// Runs the recurrence from x to y; `after` is NULL when backward recomputes y.
static dt_status run(const struct rnn *m, const struct arrays *a, const struct dt_pass *pass,
                     const struct dt_model_state *after, struct dt_view y)
{
    struct dt_rnn_forward_args args = {.in = inputs(m, pass),
                                       .x = a->x,
                                       .b_ih = dt_net_weight(pass->net, m->bias_ih),
                                       .b_hh = dt_net_weight(pass->net, m->bias_hh),
                                       .y = y,
                                       .previous = a->previous,
                                       .gates = a->gates,
                                       .cells = a->cells,
                                       .h_last =
                                           dt_pass_state(pass, &m->part, after, m->hidden_state)};
    if (m->cell == DT_RNN_LSTM)
        args.c_last = dt_pass_state(pass, &m->part, after, m->cell_state);
    DT_TRY(dt_pass_relay_all(pass, &m->part, DT_BEFORE));
    DT_TRY(DT_RUN(pass, rnn_forward, &args));
    return dt_pass_relay_all(pass, &m->part, DT_AFTER);
}

static dt_status forward(struct dt_part *part, const struct dt_pass *pass, struct dt_view h,
                         struct dt_view out)
{
    const struct rnn *m = (struct rnn *)part;
    struct arrays a = m->forward;
    bool direct = !m->out_proj.out;
    dt_pass_rows(pass, &a, sizeof a);
    DT_TRY(dt_linear_forward(pass, m->input, h, a.x));
    DT_TRY(run(m, &a, pass, pass->after, direct ? out : a.y));
    return direct ? DT_OK : dt_linear_forward(pass, m->out_proj, a.y, out);
}

static dt_status backward(struct dt_part *part, const struct dt_pass *pass, struct dt_view h,
                          struct dt_view dout, struct dt_view dh)
{
    const struct rnn *m = (struct rnn *)part;
    const struct dt_net *net = pass->net;
    struct arrays a = m->forward, g = m->gradients;
    enum dt_recompute recompute = pass->net->config->recompute;
    dt_pass_rows(pass, &a, sizeof a);
    dt_pass_rows(pass, &g, sizeof g);
    bool direct = !m->out_proj.out;
    struct dt_rnn_backward_args args = {
        .in = inputs(m, pass),
        .gates = a.gates,
        .cells = a.cells,
        .previous = a.previous,
        .dh_last = dt_pass_gradient(pass, part, pass->dafter, m->hidden_state),
        .dy = direct ? dout : g.y,
        .dx = g.x,
        .dp = g.p,
        .dh0 = dt_pass_gradient(pass, part, pass->dbefore, m->hidden_state),
        .db_ih = dt_net_gradient(net, m->bias_ih),
        .db_hh = dt_net_gradient(net, m->bias_hh)};
    if (m->cell == DT_RNN_LSTM) {
        args.dc_last = dt_pass_gradient(pass, part, pass->dafter, m->cell_state);
        args.dc0 = dt_pass_gradient(pass, part, pass->dbefore, m->cell_state);
    }
    if (recompute >= DT_RECOMPUTE_BLOCK)
        DT_TRY(dt_linear_forward(pass, m->input, h, a.x));
    // without out_proj y is not needed again, so it shares the memory of its gradient
    if (recompute >= DT_RECOMPUTE_SCAN)
        DT_TRY(run(m, &a, pass, NULL, direct ? g.y : a.y));
    if (!direct)
        DT_TRY(dt_linear_backward(pass, m->out_proj, a.y, dout, g.y));
    DT_TRY(dt_pass_relay_all(pass, part, DT_GRADIENT_AFTER));
    DT_TRY(DT_RUN(pass, rnn_backward, &args));
    DT_TRY(dt_pass_relay_all(pass, part, DT_GRADIENT_BEFORE));
    DT_TRY(dt_pass_ready(pass, m->bias_ih));
    DT_TRY(dt_pass_ready(pass, m->bias_hh));
    DT_TRY(dt_linear_backward(pass, m->recurrent, a.previous, m->cell == DT_RNN_GRU ? g.p : g.x,
                              (struct dt_view){0}));
    return dt_linear_backward(pass, m->input, h, g.x, dh);
}

#define KIND(word)                                                                                 \
    {                                                                                              \
        .kind = {.name = word,                                                                     \
                 .size = sizeof(struct rnn),                                                       \
                 .keys = {&keys},                                                                  \
                 .resolve = resolve,                                                               \
                 .create = create,                                                                 \
                 .plan = plan},                                                                    \
        .forward = forward, .backward = backward                                                   \
    }
const struct dt_block_kind dt_gru_block = KIND("gru"), dt_lstm_block = KIND("lstm");

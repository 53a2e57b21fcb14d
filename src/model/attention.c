// The attention block: causal or both ways (model.direction), grouped heads, rotary positions, a
// window (kernels/attention.h).
//   q, k, v = in_proj(h)      y = attention(q, k, v)      out = out_proj(y)
// H = n_head heads of E = d_model / H channels, G = n_kv_head of keys and values, M = B·L rows. q,
// k and v are columns of one array of (H + 2 G) E, as are the rows of in_proj's weight. Weights are
// named as in mamba_ssm's attention layers, and in files as in transformers: q_proj, k_proj,
// v_proj, o_proj. State, of a causal block: the last attn_window - 1 keys, before rotation, and
// values, and how many of them count. model.recompute: `scan` keeps q, k, v and recomputes the
// rest; `block` keeps nothing.
//
// Ranks that share a window which is read both ways each run the projections of their own positions
// and the op on all positions of an equal share of the heads [Jacobs et al. 2023]. Two swaps before
// and after the op, of what it reads and of what it writes, turn one division into the other.
#include "model/kinds.h"

#include <math.h>

// The arrays of a pass, M rows of storage type.
struct arrays {
    struct dt_view qkv, y;  // [M, (H + 2 G) E], [M, H·E]
    struct dt_view q, k, v; // columns of qkv
};

struct attention {
    struct dt_projected projected;
    int64_t H, G, E, window;
    double rope_base;
    bool both;
    int reset, mask;         // batch arrays
    int keys, values, count; // states: [B, W - 1, G·E] storage, twice; [B] i32
    struct arrays forward;   // needed by backward
    struct arrays gradients; // of them, shared by all layers
    float *lse;              // [M, H] fp32; NULL: no training
    // If `ranks` > 1 share a window, each runs `own` positions of it, and these arrays hold this
    // rank's share of the heads at the positions of all. Otherwise they are those above.
    int64_t ranks, own;
    struct arrays all, all_gradients;
};

struct values {
    int64_t n_head, n_kv_head, attn_window;
    double rope_base;
};

static const struct dt_config_key fields[] = {
    DT_FIELD_AUTO(struct values, n_head, 1, 65536, "heads; auto: d_model / 64, at least 1",
                  .json = "num_attention_heads"),
    DT_FIELD_AUTO(struct values, n_kv_head, 1, 65536,
                  "heads of keys and values, each shared by n_head / n_kv_head; auto: n_head",
                  .json = "num_key_value_heads"),
    DT_FIELD_AUTO(struct values, attn_window, 1, DT_ATTENTION_WINDOW_MAX,
                  "positions that each one attends to, itself included; auto: data.seq_len",
                  .json = "sliding_window"),
    DT_FIELD(REAL, struct values, rope_base, "10000", 0, 1e12,
             "base of the rotary position embedding; 0: none", .json = "rope_theta"),
    {0},
};
DT_KIND_VALUES(values)

// A fresh model sees as far as a training window reaches; a saved one has a number: the size of its
// state.
static void resolve(struct dt_model_config *config, int64_t length)
{
    struct values *v = values(config);
    if (v->n_head == 0)
        v->n_head = dt_max_i64(config->d_model / 64, 1);
    if (v->n_kv_head == 0)
        v->n_kv_head = v->n_head;
    if (v->attn_window == 0)
        v->attn_window = dt_min_i64(length, DT_ATTENTION_WINDOW_MAX);
}

static dt_status check(const struct dt_model_config *c)
{
    static const char hint[] = "set model.n_head, model.n_kv_head or model.d_model";
    const struct values *v = values(c);
    int64_t width = c->d_model / v->n_head;
    if (c->d_model % v->n_head != 0)
        return DT_FAIL(DT_USER, hint, "model.n_head is %lld; it must divide model.d_model = %lld",
                       (long long)v->n_head, (long long)c->d_model);
    if (width % 2 != 0 || width > DT_ATTENTION_HEAD_MAX)
        return DT_FAIL(
            DT_USER, hint,
            "model.n_head is %lld: d_model / n_head = %lld; it must be even and at most %d",
            (long long)v->n_head, (long long)width, DT_ATTENTION_HEAD_MAX);
    if (v->n_head % v->n_kv_head != 0)
        return DT_FAIL(DT_USER, hint, "model.n_kv_head is %lld; it must divide model.n_head = %lld",
                       (long long)v->n_kv_head, (long long)v->n_head);
    if (v->attn_window == 0)
        return DT_FAIL(DT_USER, "set it to the number of positions that each one attends to",
                       "model.attn_window is auto, but no data.seq_len gives its value");
    return DT_OK;
}

static void create(struct dt_part *part, const struct dt_build *build)
{
    struct attention *m = (struct attention *)part;
    const struct dt_model_config *config = build->config;
    const struct values *v = values(config);
    int64_t d = config->d_model, H = m->H = v->n_head, G = m->G = v->n_kv_head, E = m->E = d / H,
            state;
    m->window = v->attn_window;
    m->rope_base = v->rope_base;
    m->both = config->direction == DT_DIRECTION_BOTH;
    state = m->both ? 0 : (m->window - 1) * G * E;
    m->projected.out = dt_build_linear(build, part, "mixer.out_proj.weight", H * E, d,
                                       1 / sqrt((double)(H * E * config->n_layer)));
    m->projected.in = dt_build_linear(build, part, "mixer.in_proj.weight", d, (H + 2 * G) * E,
                                      1 / sqrt((double)d));
    dt_params_slice(build->params, m->projected.out.row, "o_proj.weight", d);
    dt_params_slice(build->params, m->projected.in.row, "q_proj.weight", H * E);
    dt_params_slice(build->params, m->projected.in.row, "k_proj.weight", G * E);
    dt_params_slice(build->params, m->projected.in.row, "v_proj.weight", G * E);
    m->reset = dt_build_array(build, "reset", DT_U8, 1, true);
    m->mask = m->both ? dt_build_array(build, "mask", DT_U8, 1, true) : -1;
    m->keys = dt_build_state(build, part, "keys", config->storage, state);
    m->values = dt_build_state(build, part, "values", config->storage, state);
    m->count = dt_build_state(build, part, "count", DT_I32, !m->both);
    if (m->count >= 0)
        part->states.arrays[m->count].last = (int32_t)(m->window - 1);
    // A position sees half a window of keys on average, both ways a whole one, 4 FLOPs a channel
    // each forward, twice that backward.
    part->flops += 3 * 4 * (double)d * (double)m->window / (m->both ? 1 : 2);
}

// The arrays of a rank's own positions, `ranks` 1, or of its share of the heads at the positions of
// so many ranks.
static struct arrays plan_arrays(const struct attention *m, struct dt_plan *plan,
                                 enum dt_memory block, enum dt_memory scan, int64_t ranks)
{
    enum dt_dtype storage = plan->net->config->storage;
    int64_t rows = plan->rows, Q = m->H * m->E / ranks, K = m->G * m->E / ranks;
    plan->rows = rows * ranks;
    struct arrays a = {.qkv = dt_plan_aligned(plan, block, Q + 2 * K, 16),
                       .y = dt_plan_view(plan, scan, plan->rows, Q, storage)};
    plan->rows = rows;
    a.q = dt_view_cols(a.qkv, 0, Q), a.k = dt_view_cols(a.qkv, Q, Q + K);
    a.v = dt_view_cols(a.qkv, Q + K, Q + 2 * K);
    return a;
}

static void plan(struct dt_part *part, struct dt_plan *plan)
{
    struct attention *m = (struct attention *)part;
    m->ranks = plan->shape.context;
    m->own = plan->rows;
    m->all = m->forward = plan_arrays(m, plan, plan->block, plan->scan, 1);
    if (m->ranks > 1)
        m->all = plan_arrays(m, plan, plan->block, plan->scan, m->ranks);
    if (plan->shape.training || m->ranks > 1)
        m->all_gradients = plan_arrays(m, plan, DT_MEMORY_SCRATCH, DT_MEMORY_SCRATCH, m->ranks);
    // Own rows have been read where their gradients are written, in their place.
    m->gradients = m->ranks > 1 ? m->forward : m->all_gradients;
    if (plan->shape.training)
        m->lse = dt_plan_view(plan, plan->scan, plan->rows, m->H, DT_F32).data;
}

// The arrays of the op, whose rows are all positions of the pass's input.
static struct arrays of_op(const struct dt_pass *pass, struct arrays arrays)
{
    const struct dt_pass all = {.rows = pass->input.sequences * pass->input.length};
    dt_pass_rows(&all, &arrays, sizeof arrays);
    return arrays;
}

static struct dt_attention_inputs inputs(const struct attention *m, const struct dt_pass *pass)
{
    const struct arrays a = of_op(pass, m->all);
    const struct dt_part *part = &m->projected.part;
    return (struct dt_attention_inputs){.batch = pass->input.sequences,
                                        .length = pass->input.length,
                                        .n_head = m->H / m->ranks,
                                        .n_kv_head = m->G / m->ranks,
                                        .width = m->E,
                                        .window = m->window,
                                        .rope_base = m->rope_base,
                                        .both = m->both,
                                        .at = pass->at,
                                        .q = a.q,
                                        .k = a.k,
                                        .v = a.v,
                                        .k0 = dt_pass_state(pass, part, pass->before, m->keys),
                                        .v0 = dt_pass_state(pass, part, pass->before, m->values),
                                        .count0 = dt_pass_state(pass, part, pass->before, m->count),
                                        .reset = pass->input.arrays[m->reset],
                                        .mask = m->both ? pass->input.arrays[m->mask] : NULL};
}

// Copies the columns of each rank's heads between `own`, q, k, v or y, and that rank's rows of
// `cut`. A sequence of one row is its own reversal.
static dt_status copy_heads(const struct attention *m, const struct dt_pass *pass,
                            struct dt_view own, struct dt_view cut, bool back)
{
    const int64_t heads[] = {m->H, m->G, m->G};
    int64_t first = 0;
    for (int i = 0; first < own.cols; first += heads[i++] * m->E)
        for (int64_t r = 0, n = heads[i] * m->E / m->ranks; r < m->ranks; r++) {
            const struct dt_view here = dt_view_block(own, 0, first + r * n, own.rows, n),
                                 there =
                                     dt_view_block(cut, r * m->own, first / m->ranks, own.rows, n);
            struct dt_reverse_rows_args args = {
                .length = 1, .x = back ? there : here, .y = back ? here : there};
            DT_TRY(DT_RUN(pass, reverse_rows, &args));
        }
    return DT_OK;
}

// Swaps an array of ranks that share the window: all heads at this rank's own positions become its
// share of the heads at all positions (QKV, DY), or the other way round (Y, DQKV).
enum swapped { QKV, Y, DY, DQKV };
static dt_status swap(const struct attention *m, const struct dt_pass *pass, enum swapped what)
{
    const struct arrays *own = what < DY ? &m->forward : &m->gradients,
                        *all = what < DY ? &m->all : &m->all_gradients;
    const bool is_y = what == Y || what == DY, spreads = what == QKV || what == DY;
    const struct dt_view mine = is_y ? own->y : own->qkv, theirs = is_y ? all->y : all->qkv;
    // Own rows are cut by heads in memory that is not in use yet, or no longer.
    struct dt_view cut = what == DQKV ? m->all.qkv : m->all_gradients.qkv;
    if (m->ranks == 1)
        return DT_OK;
    cut.cols = theirs.cols, cut.stride = theirs.stride;
    if (spreads)
        DT_TRY(copy_heads(m, pass, mine, cut, false));
    DT_TRY(dt_pass_swap(pass, &m->projected.part, (int)what, spreads, cut, theirs.data));
    return spreads ? DT_OK : copy_heads(m, pass, mine, cut, true);
}

static dt_status attend(struct dt_projected *block, const struct dt_pass *pass,
                        const struct dt_model_state *after)
{
    const struct attention *m = (struct attention *)block;
    const struct dt_part *part = &block->part;
    struct dt_attention_forward_args args = {.in = inputs(m, pass),
                                             .y = of_op(pass, m->all).y,
                                             .lse = m->lse,
                                             .k_last = dt_pass_state(pass, part, after, m->keys),
                                             .v_last = dt_pass_state(pass, part, after, m->values),
                                             .count_last =
                                                 dt_pass_state(pass, part, after, m->count)};
    DT_TRY(swap(m, pass, QKV));
    DT_TRY(dt_pass_relay_all(pass, part, DT_BEFORE));
    DT_TRY(DT_RUN(pass, attention_forward, &args));
    DT_TRY(dt_pass_relay_all(pass, part, DT_AFTER));
    return swap(m, pass, Y);
}

static dt_status inner_backward(struct dt_projected *part, const struct dt_pass *pass)
{
    const struct attention *m = (struct attention *)part;
    const struct arrays g = of_op(pass, m->all_gradients);
    const struct dt_part *block = &part->part;
    const struct dt_model_state *after = pass->dafter, *before = pass->dbefore;
    struct dt_attention_backward_args args = {
        .in = inputs(m, pass),
        .y = of_op(pass, m->all).y,
        .lse = m->lse,
        .dk_last = dt_pass_gradient(pass, block, after, m->keys),
        .dv_last = dt_pass_gradient(pass, block, after, m->values),
        .dy = g.y,
        .dq = g.q,
        .dk = g.k,
        .dv = g.v,
        .dk0 = dt_pass_gradient(pass, block, before, m->keys),
        .dv0 = dt_pass_gradient(pass, block, before, m->values)};
    DT_TRY(swap(m, pass, DY));
    DT_TRY(dt_pass_relay_all(pass, block, DT_GRADIENT_AFTER));
    DT_TRY(DT_RUN(pass, attention_backward, &args));
    DT_TRY(dt_pass_relay_all(pass, block, DT_GRADIENT_BEFORE));
    return swap(m, pass, DQKV);
}

static int64_t shares(const struct dt_model_config *config)
{
    return values(config)->n_kv_head;
}

const struct dt_block_kind dt_attention_block = {
    .kind = {.name = "attention",
             .size = sizeof(struct attention),
             .keys = {&keys},
             .resolve = resolve,
             .check = check,
             .create = create,
             .plan = plan},
    .forward = dt_projected_forward,
    .backward = dt_projected_backward,
    .arrays = offsetof(struct attention, forward),
    .arrays_size = sizeof(struct arrays),
    .inner = attend,
    .inner_backward = inner_backward,
    .once = true,
    .whole = shares,
};

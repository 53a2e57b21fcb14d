// A block kind with its own field, initialisation rule and model type: out = h · Wᵀ, where W starts
// as model.gain_start times the identity.
#include "model/hf_types.h"
#include "model/kinds.h"

struct gain {
    struct dt_part part;
    struct dt_linear linear;
};

struct values {
    double gain_start;
};

static const struct dt_config_key fields[] = {
    DT_FIELD(REAL, struct values, gain_start, "0.5", 0.01, 2, "initial diagonal of a gain block",
             .json = "gain_start"),
    {0},
};
DT_KIND_VALUES(values)

static dt_status check(const struct dt_model_config *config)
{
    return values(config)->gain_start * (double)config->n_layer <= 8
               ? DT_OK
               : DT_FAIL(DT_USER, "set a smaller one", "model.gain_start is %g in %lld layers",
                         values(config)->gain_start, (long long)config->n_layer);
}

static float init_diagonal(const struct dt_param *row, int64_t i, struct dt_philox *rng)
{
    (void)rng;
    return i / row->shape[1] == i % row->shape[1] ? row->init_scale : 0;
}

static void create(struct dt_part *part, const struct dt_build *build)
{
    struct gain *b = (struct gain *)part;
    int64_t d = build->config->d_model, shape[] = {d, d};
    b->linear = (struct dt_linear){.in = d, .out = d};
    b->linear.row = dt_build_row(build, part, "mixer.gain", init_diagonal,
                                 values(build->config)->gain_start, 2, shape);
}

static dt_status forward(struct dt_part *part, const struct dt_pass *pass, struct dt_view h,
                         struct dt_view out)
{
    return dt_linear_forward(pass, ((struct gain *)part)->linear, h, out);
}

static dt_status backward(struct dt_part *part, const struct dt_pass *pass, struct dt_view h,
                          struct dt_view dout, struct dt_view dh)
{
    return dt_linear_backward(pass, ((struct gain *)part)->linear, h, dout, dh);
}

const struct dt_block_kind gain_block = {
    .kind = {.name = "gain",
             .size = sizeof(struct gain),
             .keys = {&keys},
             .check = check,
             .create = create},
    .forward = forward,
    .backward = backward,
};

static int64_t count(const struct dt_model_config *config)
{
    return config->n_layer;
}

static const struct dt_hf_member members[] = {
    {.name = "gain_start", .after = "num_hidden_layers", .absent = "0.25"},
    {.name = "gain_count",
     .after = "num_hidden_layers",
     .derived = count,
     .formula = "num_hidden_layers"},
    {0},
};

const struct dt_hf_type gain_type = {
    .model_type = "gain",
    .architectures = "[\"GainModel\"]",
    .stem = "samples",
    .block = "gain",
    .head = "squares",
    .members = members,
};

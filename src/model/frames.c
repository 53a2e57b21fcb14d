// The stem of a policy: frames of numbers, and ids with one table each, open the residual stream:
//   residual = frames · Wᵀ + bias + Σ_n table_n[ids[…, n]]
// Reads "frames" [B, L, F] of the storage type, normalised by the loader. If some columns are
// bytes, it reads "bytes" u8, "frames" fp32 (the other columns) and "mask", and normalises both
// here. With model.ids it also reads "ids" [B, L, n] i32; without numbers (F = 0) it reads ids
// alone. Rows: stem.weight [d, F], stem.bias [d]; for each id column stem.ids.N.weight [size, d],
// or for a named table, which columns share, stem.ids.NAME.weight; stem.mean and stem.deviation
// [F], which are not trained, and by which frames are normalised.
#include "base/log.h"
#include "base/text.h"
#include "model/kinds.h"

#include <math.h>
#include <string.h>

struct frames {
    struct dt_part part;
    struct dt_linear linear;
    int bias, mean, deviation;
    struct dt_id_tables ids_of;
    int tables[DT_IDS_MAX];       // rows
    int frames, bytes, mask, ids; // arrays
    struct dt_view normalized;    // [M, F] storage, where some columns are bytes
};

static const struct dt_config_key fields[] = {
    DT_FIELD_AUTO(struct dt_model_config, frame_size, 1, 0x1p20,
                  "numbers per frame; auto: from the data", .json = "frame_size"),
    DT_FIELD(WORDS, struct dt_model_config, ids, "",
             "embedding table sizes of the id columns, N=NAME where columns share one; empty: from "
             "data.inputs",
             .json = "ids"),
    DT_FIELD(WORDS, struct dt_model_config, inputs, "",
             "the columns of a frame; empty: what data.inputs reads", .json = "inputs"),
    DT_FIELD(WORDS, struct dt_model_config, targets, "",
             "the columns of the targets; empty: what data.targets reads", .json = "targets"),
    {0},
};
static const struct dt_kind_keys keys = {fields, 0};

static dt_status check(const struct dt_model_config *config)
{
    const struct dt_head_kind *head;
    DT_TRY(dt_head_find(config, &head));
    return head->lists
               ? DT_OK
               : DT_FAIL(DT_USER, "list the heads, such as model.heads = buttons:bernoulli*8",
                         "model.stem is frames, but model.heads is %s, which predicts tokens",
                         config->heads);
}

// Word `number` (from 0) of a list, or "nothing".
static int64_t word_at(const char *list, int64_t number, const char **word)
{
    for (; number > 0; number--) {
        list += strcspn(list, " ");
        list += strspn(list, " ");
    }
    *word = *list ? list : "nothing";
    return (int64_t)strcspn(*word, *list ? " " : "");
}

// Compares the names of columns with those of the model, or adopts them.
static dt_status fit_names(const struct dt_model_data *data, const char *key, const char *names,
                           char own[DT_CONFIG_STRING_MAX])
{
    const char *is, *was;
    int64_t n = 0, is_length, was_length;
    if (!names[0] || strcmp(names, own) == 0)
        return DT_OK;
    for (bool same = true; same; n++) {
        is_length = word_at(names, n, &is);
        was_length = word_at(own, n, &was);
        same = is_length == was_length && memcmp(is, was, (size_t)is_length) == 0;
    }
    if (own[0] && !data->renames)
        return DT_FAIL(DT_USER, "set it to the columns that the model was made for",
                       "%s: word %lld is %.*s, the model has %.*s", key, (long long)n,
                       (int)is_length, is, (int)was_length, was);
    if (own[0])
        dt_info("%s: the model that this run starts from has other columns: word %lld is %.*s, was "
                "%.*s",
                key, (long long)n, (int)is_length, is, (int)was_length, was);
    snprintf(own, DT_CONFIG_STRING_MAX, "%s", names);
    return DT_OK;
}

// Fits the size and id columns of frames: the data fill what the configuration leaves open.
static dt_status fit(struct dt_model_config *config, const struct dt_model_data *data)
{
    const struct dt_frame_layout *frames = data->frames;
    char ids[DT_CONFIG_STRING_MAX] = "";
    struct dt_id_tables tables;
    if (data->documents)
        return dt_config_reject(
            data->config, "data.reset_token", "remove the key",
            "it is for documents of tokens; frames (model.heads) have episodes");
    if (frames->frame_width + frames->n_ids < 1)
        return dt_config_reject(data->config, "data.train",
                                "a policy (model.heads) learns from episodes of frames",
                                "%s holds %s, not frames", data->path, data->unit);
    for (int64_t n = 0; n < frames->n_ids; n++)
        dt_append(ids, sizeof ids, "%s%lld%s%s", n ? " " : "", (long long)frames->ids[n],
                  frames->tables[n][0] ? "=" : "", frames->tables[n]);
    DT_TRY(fit_names(data, "data.inputs", data->inputs, config->inputs));
    DT_TRY(fit_names(data, "data.targets", data->targets, config->targets));
    DT_TRY(dt_ids_parse(config->ids, &tables));
    if (data->fresh && config->frame_size == 0)
        config->frame_size = frames->frame_width;
    if (data->fresh && !config->ids[0])
        memcpy(config->ids, ids, sizeof ids);
    if (config->frame_size != frames->frame_width || strcmp(config->ids, ids) != 0)
        return DT_FAIL(DT_USER, "set data.inputs to the columns that the model was made for",
                       "data.train has frames of %lld numbers and id columns of sizes [%s], the "
                       "model (model.frame_size, model.ids) has %lld and [%s]",
                       (long long)frames->frame_width, ids, (long long)config->frame_size,
                       config->ids);
    config->bytes = data->bytes;
    return DT_OK;
}

static void create(struct dt_part *part, const struct dt_build *build)
{
    struct frames *f = (struct frames *)part;
    struct dt_params *params = build->params;
    int64_t d = build->config->d_model, F = build->config->frame_size;
    struct dt_id_tables *ids = &f->ids_of;
    params->failed |= dt_ids_parse(build->config->ids, ids) != DT_OK;
    if (F + ids->n < 1) {
        DT_FAIL(DT_USER, "set model.frame_size", "the size of a frame is not known");
        params->failed = true;
        return;
    }
    f->linear = (struct dt_linear){.in = F, .out = d};
    if (F > 0)
        f->linear.row = dt_params_add(params, dt_init_uniform, 1 / sqrt((double)F), d, 2,
                                      (int64_t[]){d, F}, "stem.weight");
    // The bias starts at the magnitude of normalised frames; without it the norm before the first
    // block would remove a frame's magnitude.
    f->bias =
        dt_params_add(params, F > 0 ? dt_init_uniform : dt_init_zero, 1, d, 1, &d, "stem.bias");
    for (int n = 0; n < ids->n; n++) {
        char name[DT_TABLE_NAME];
        snprintf(name, sizeof name, "%d", n);
        f->tables[n] = f->tables[ids->first[n]];
        if (ids->first[n] == n)
            f->tables[n] = dt_params_add(params, dt_init_normal, 0.02, ids->size[n], 2,
                                         (int64_t[]){ids->size[n], d}, "stem.ids.%s.weight",
                                         ids->name[n][0] ? ids->name[n] : name);
    }
    if (ids->n > 0)
        f->ids = dt_build_array(build, "ids", DT_I32, ids->n, false);
    if (F == 0)
        return;
    part->flops = 4 * (double)F * (double)d; // per weight: 2 forward and 2 backward
    f->mean = dt_params_add(params, dt_init_zero, 0, F, 1, &F, "stem.mean");
    f->deviation = dt_params_add(params, dt_init_one, 0, F, 1, &F, "stem.deviation");
    dt_params_freeze(params, f->mean);
    dt_params_freeze(params, f->deviation);
    int64_t bytes = dt_bytes_before(&build->config->bytes, F);
    if (F > bytes)
        f->frames =
            dt_build_array(build, "frames", dt_model_frames_type(build->config), F - bytes, false);
    if (bytes == 0)
        return;
    f->bytes = dt_build_array(build, "bytes", DT_U8, bytes, false);
    f->mask = dt_build_array(build, "mask", DT_U8, 1, true);
}

static void plan(struct dt_part *part, struct dt_plan *plan)
{
    struct frames *f = (struct frames *)part;
    const struct dt_model_config *config = plan->net->config;
    if (config->bytes.n > 0)
        f->normalized =
            dt_plan_view(plan, DT_MEMORY_ACTIVATIONS, plan->rows, f->linear.in, config->storage);
}

static struct dt_view input_of(const struct frames *f, const struct dt_pass *pass)
{
    if (pass->net->config->bytes.n > 0)
        return dt_view_rows(f->normalized, 0, pass->rows);
    return dt_view_of(pass->input.arrays[f->frames], pass->rows, f->linear.in,
                      pass->net->config->storage);
}

// Normalises columns [first, end) of the frames, which are the next columns of `from`.
static dt_status normalize_columns(const struct frames *f, const struct dt_pass *pass,
                                   int64_t first, int64_t end, struct dt_view *from)
{
    const struct dt_net *net = pass->net;
    int64_t F = f->linear.in, n = end - first;
    struct dt_view mean = dt_view_of(dt_net_weight(net, f->mean), 1, F, DT_F32),
                   deviation = dt_view_of(dt_net_weight(net, f->deviation), 1, F, DT_F32);
    struct dt_normalize_args args = {.x = dt_view_cols(*from, 0, n),
                                     .mean = dt_view_at(&mean, 0, first),
                                     .deviation = dt_view_at(&deviation, 0, first),
                                     .keep = pass->input.arrays[f->mask],
                                     .y = dt_view_cols(input_of(f, pass), first, end)};
    *from = dt_view_cols(*from, n, from->cols);
    return n > 0 ? DT_RUN(pass, normalize, &args) : DT_OK;
}

// Normalises frames as stored, whose columns are in two arrays.
static dt_status normalize(const struct frames *f, const struct dt_pass *pass)
{
    const struct dt_byte_columns *columns = &pass->net->config->bytes;
    int64_t F = f->linear.in, n_bytes = dt_bytes_before(columns, F), at = 0;
    struct dt_view bytes = dt_view_of(pass->input.arrays[f->bytes], pass->rows, n_bytes, DT_U8),
                   floats = {.cols = 0};
    if (F > n_bytes)
        floats = dt_view_of(pass->input.arrays[f->frames], pass->rows, F - n_bytes, DT_F32);
    for (int64_t i = 0; i < columns->n; i++) {
        DT_TRY(normalize_columns(f, pass, at, columns->at[i].first, &floats));
        at = columns->at[i].end;
        DT_TRY(normalize_columns(f, pass, columns->at[i].first, at, &bytes));
    }
    return normalize_columns(f, pass, at, F, &floats);
}

// Returns column n of the ids.
static struct dt_view ids_of(const struct frames *f, const struct dt_pass *pass, int n)
{
    struct dt_view ids = dt_view_of(pass->input.arrays[f->ids], pass->rows, f->ids_of.n, DT_I32);
    return dt_view_cols(ids, n, n + 1);
}

static dt_status forward(struct dt_part *part, const struct dt_pass *pass, struct dt_view residual)
{
    const struct frames *f = (struct frames *)part;
    const struct dt_net *net = pass->net;
    bool numbers = f->linear.in > 0;
    if (numbers && net->config->bytes.n > 0)
        DT_TRY(normalize(f, pass));
    if (numbers) {
        DT_TRY(dt_linear_forward(pass, f->linear, input_of(f, pass), residual));
        DT_TRY(dt_add_bias(pass, f->bias, 0, residual));
    }
    for (int n = 0; n < f->ids_of.n; n++) {
        struct dt_embed_forward_args embed = {.ids = ids_of(f, pass, n),
                                              .table = dt_view_of(dt_net_stored(net, f->tables[n]),
                                                                  f->ids_of.size[n], f->linear.out,
                                                                  net->config->storage),
                                              .out = residual.data,
                                              .accumulate = numbers || n > 0};
        DT_TRY(DT_RUN(pass, embed_forward, &embed));
    }
    return numbers ? DT_OK : dt_add_bias(pass, f->bias, 0, residual);
}

// Sums the gradients of all columns that use the table of column n, the first of them.
static dt_status backward_table(const struct frames *f, const struct dt_pass *pass, int n,
                                struct dt_view dresidual)
{
    for (int m = n; m < f->ids_of.n; m++) {
        struct dt_embed_backward_args embed = {.width = f->linear.out,
                                               .vocab = f->ids_of.size[n],
                                               .ids = ids_of(f, pass, m),
                                               .dout = dresidual.data,
                                               .dtable = dt_net_gradient(pass->net, f->tables[n]),
                                               .accumulate = m > n};
        if (f->ids_of.first[m] == n)
            DT_TRY(DT_RUN(pass, embed_backward, &embed));
    }
    return dt_pass_ready(pass, f->tables[n]);
}

static dt_status backward(struct dt_part *part, const struct dt_pass *pass,
                          struct dt_view dresidual, struct dt_view dx)
{
    const struct frames *f = (struct frames *)part;
    bool numbers = f->linear.in > 0;
    if (numbers)
        DT_TRY(dt_linear_backward(pass, f->linear, input_of(f, pass), dx, (struct dt_view){0}));
    DT_TRY(dt_add_bias_backward(pass, f->bias, dresidual));
    for (int n = 0; n < f->ids_of.n; n++)
        if (f->ids_of.first[n] == n)
            DT_TRY(backward_table(f, pass, n, dresidual));
    if (numbers)
        DT_TRY(dt_pass_ready(pass, f->mean));
    return numbers ? dt_pass_ready(pass, f->deviation) : DT_OK;
}

const struct dt_stem_kind dt_frames_stem = {
    .kind = {.name = "frames",
             .size = sizeof(struct frames),
             .keys = {&keys},
             .fit = fit,
             .check = check,
             .create = create,
             .plan = plan},
    .unit = "frames",
    .forward = forward,
    .backward = backward,
};

// A model is made of a stem that opens the residual stream, a stack of blocks that add to it, and a
// head that turns it into a loss. Each kind is one constant literal in a file of its own and one
// row in kinds.c. The rest of the program calls a kind through its functions and reads its
// properties here. A part of a model is an object of a kind.
#pragma once

#include "data/dataset.h"
#include "model/net.h"

// What every part begins with.
struct dt_part {
    const struct dt_kind *kind;
    int64_t layer;               // of a block
    int first_row;               // of its rows, in the table
    struct dt_array_list states; // its recurrent state: what it carries for a sequence
    // A block and the head have a norm, which the model runs before them: r = residual + x, h =
    // RMSNorm(r). A part that needs h or dh in an array of its own plans them there.
    int norm;             // row of the table
    float *rstd;          // [M]
    struct dt_view h, dh; // [M, d] storage: h, and in backward its gradient
    double flops;         // of training a token: dt_build_linear counts its layers
    // With model.direction = both, the part of the same kind that reads reversed documents; its
    // output is added. Rows and memory are its own; NULL: there is none.
    struct dt_part *reverse;
};

// What a part is created from. It appends its rows, in the order in which its backward finishes
// them, to `params`, and the batch arrays that it reads to `arrays`.
struct dt_build {
    const struct dt_model_config *config;
    struct dt_params *params;
    struct dt_array_list *arrays;
    const struct dt_outputs *outputs;
    const struct dt_part *twin; // of a block's second direction: the first one; else NULL
};
// Whether such blocks are two parts, one for each direction.
bool dt_block_is_twofold(const struct dt_model_config *config, const struct dt_kind *block);
// Index of an array that the part reads; a failure shows in params->failed.
int dt_build_array(const struct dt_build *build, const char *name, enum dt_dtype type,
                   int64_t width, bool optional);
// Index of a new array of a block's recurrent state, likewise.
int dt_build_state(const struct dt_build *build, struct dt_part *block, const char *name,
                   enum dt_dtype type, int64_t width);

// A row "backbone.layers.N.NAME" of a block; of one with two directions "mixer.X" is
// "mixer.mamba_fwd.X", then "mixer.mamba_rev.X".
int dt_build_row(const struct dt_build *build, const struct dt_part *block, const char *name,
                 dt_init *init, double scale, int n_dims, const int64_t *shape);
// A linear layer of that name, with uniform initial weights up to `scale`; one that reads the
// block's input or gives its output, whose weight both directions share (model.tie_directions); a
// convolution "mixer.conv1d", which adds "conv_state" to the block's states.
struct dt_linear dt_build_linear(const struct dt_build *build, struct dt_part *block,
                                 const char *name, int64_t in, int64_t out, double scale);
struct dt_linear dt_build_projection(const struct dt_build *build, struct dt_part *block,
                                     const char *name, int64_t in, int64_t out, double scale);
struct dt_conv dt_build_conv(const struct dt_build *build, struct dt_part *block, int64_t channels,
                             int64_t taps);

// Fields of some kinds, which are keys of [model] by these rows. They are relative to a struct of
// `size` bytes of the kind's own, whose place dt_model_own gives; size 0: to struct
// dt_model_config.
struct dt_kind_keys {
    const struct dt_config_key *rows;
    size_t size;
};
enum { DT_KIND_KEYS = 3 };
void *dt_model_own(const struct dt_model_config *config, const struct dt_kind_keys *keys);
// Rows, such as DT_FIELD(REAL, struct values, rope_base, "10000", 0, 1e12, "base …"); and of a
// whole number where `auto` is 0.
#define DT_FIELD(kind, object, field, ...) DT_CONFIG_##kind(object, field, #field, __VA_ARGS__)
#define DT_FIELD_AUTO(object, field, low, high, ...)                                               \
    DT_FIELD(WHOLE, object, field, "auto", low, high, __VA_ARGS__, .auto_word = "auto",            \
             .auto_value = 0)
// The list `keys` of the rows `fields`, and values(config), the struct that they describe.
#define DT_KIND_VALUES(values)                                                                     \
    static const struct dt_kind_keys keys = {fields, sizeof(struct values)};                       \
    static struct values *values(const struct dt_model_config *config)                             \
    {                                                                                              \
        return dt_model_own(config, &keys);                                                        \
    }
extern const struct dt_kind_keys dt_vocabulary_keys; // tokens.c: of what reads or predicts tokens

// What all kinds have. Functions may be NULL where there is nothing to do.
struct dt_kind {
    const char *name; // as in model.layers
    int64_t size;     // bytes of a part: the model allocates it zeroed, and frees it
    // The fields that such parts read besides those of every model (model/fields.c).
    const struct dt_kind_keys *keys[DT_KIND_KEYS];
    // Fills those that are auto (0); length: of a training window, 0: not known.
    void (*resolve)(struct dt_model_config *config, int64_t length);
    // Fits fields to the data of a job, or refuses that: DT_USER.
    dt_status (*fit)(struct dt_model_config *config, const struct dt_model_data *data);
    // Whether fields that are in range fit each other: DT_USER naming the key.
    dt_status (*check)(const struct dt_model_config *config);
    // Rows, batch arrays, recurrent state, FLOPs. Failures show in params->failed.
    void (*create)(struct dt_part *part, const struct dt_build *build);
    // Memory: kept from forward to backward, or scratch, which all blocks share. The kind decides
    // what each level of model.recompute drops.
    void (*plan)(struct dt_part *part, struct dt_plan *plan);
};

struct dt_stem_kind {
    struct dt_kind kind;
    const char *unit;   // what a position of its data is called: "tokens"
    const char *tokens; // name of the array of token ids, if it reads nothing else; or NULL
    // Opens the stream: residual [M, d] fp32.
    dt_status (*forward)(struct dt_part *stem, const struct dt_pass *pass, struct dt_view residual);
    // Reads the stream's gradient, [M, d] in fp32 and in storage type. If another part shares a row
    // (dt_params_share), that part's gradient is there already: then +=.
    dt_status (*backward)(struct dt_part *stem, const struct dt_pass *pass,
                          struct dt_view dresidual, struct dt_view dx);
};

struct dt_projected;
// A mixer: out = mixer(h), [M, d] storage, between a norm and the sum with the stream, both of
// which are the model's.
struct dt_block_kind {
    struct dt_kind kind;
    dt_status (*forward)(struct dt_part *block, const struct dt_pass *pass, struct dt_view h,
                         struct dt_view out);
    // Goes from the gradient of out to that of h. Announces its rows as they are finished. What
    // model.recompute drops is made again from h, which is there.
    dt_status (*backward)(struct dt_part *block, const struct dt_pass *pass, struct dt_view h,
                          struct dt_view dout, struct dt_view dh);
    // Many blocks are two linear layers with something between them: x = in(h), y = inner(x), out =
    // out(y). Theirs are dt_projected_forward and dt_projected_backward, which recompute what
    // model.recompute drops, and call these. `after` is NULL when y is recomputed.
    dt_status (*inner)(struct dt_projected *block, const struct dt_pass *pass,
                       const struct dt_model_state *after);
    dt_status (*inner_backward)(struct dt_projected *block, const struct dt_pass *pass);
    // Where such a block has its arrays, views of M rows, x and y first, and after them a second
    // struct of this size with their gradients.
    size_t arrays, arrays_size;
    // It looks at one position alone, or in both directions where model.direction says so; other
    // kinds read from the first position to the last, and then run once for each direction.
    bool once;
};

// A block between two linear layers begins with this, and has these functions.
struct dt_projected {
    struct dt_part part;
    struct dt_linear in, out;
};
dt_status dt_projected_forward(struct dt_part *block, const struct dt_pass *pass, struct dt_view h,
                               struct dt_view out);
dt_status dt_projected_backward(struct dt_part *block, const struct dt_pass *pass, struct dt_view h,
                                struct dt_view dout, struct dt_view dh);

struct dt_head_kind {
    struct dt_kind kind;
    bool lists;       // model.heads is not its name but a list of outputs
    const char *stem; // the kind of stem where none is named; NULL: the first
    bool next;        // predicts what comes next, which a position must not have read
    // How tokens are masked; NULL: they are not.
    struct dt_masking (*masking)(const struct dt_model_config *config);
    dt_status (*outputs)(const struct dt_model_config *config, struct dt_outputs *outputs);
    // After a forward of a part of a window (dt_pass.window): leaves what later parts need in the
    // head's states; NULL: it has none.
    dt_status (*carry)(struct dt_part *head, const struct dt_pass *pass, struct dt_view h);
    // Reads h [M, d] storage: *sum += the sum of losses and the count of positions that have one.
    // scale > 0: also the gradients of scale · Σ loss, dh among them. The model announces the
    // head's rows.
    dt_status (*loss)(struct dt_part *head, const struct dt_pass *pass, struct dt_view h,
                      struct dt_view dh, double scale, struct dt_loss_sum *sum);
    // These do what dt_model_row_losses, dt_model_logits, dt_model_output and dt_model_predictions
    // say; NULL: the head has none.
    bool (*row_losses)(const struct dt_part *head, const struct dt_model_input *input,
                       struct dt_row_losses *rows);
    dt_status (*logits)(struct dt_part *head, const struct dt_pass *pass, struct dt_view h,
                        struct dt_view *logits);
    dt_status (*output)(struct dt_part *head, const struct dt_pass *pass, struct dt_view h, int k,
                        struct dt_view *values);
    dt_status (*predictions)(struct dt_part *head, const struct dt_pass *pass, struct dt_view h,
                             bool windows,
                             struct dt_predictions *predictions); // where outputs have measures
};

// kinds.c: each a dt_stem_kind, dt_block_kind or dt_head_kind; ends with NULL. The first stem and
// head are those of a configuration that names none, the first block is that of a model without
// model.layers.
extern const struct dt_kind *const dt_stem_kinds[];
extern const struct dt_kind *const dt_block_kinds[];
extern const struct dt_kind *const dt_head_kinds[];

// The stem and the head of a model.
dt_status dt_stem_find(const struct dt_model_config *config, const struct dt_stem_kind **kind);
dt_status dt_head_find(const struct dt_model_config *config, const struct dt_head_kind **kind);
// The kind of this name in one of these tables, "" for the first. An unknown name is a DT_USER
// error that gives `where` it is ("model.layers"), the nearest name and all known ones.
dt_status dt_kind_find(const struct dt_kind *const *kinds, const char *where, const char *name,
                       const struct dt_kind **kind);

// The outputs in model.heads ("NAME:KIND[(PARAMETERS)][*N][@WEIGHT][/POOL] …").
dt_status dt_heads_parse(const char *text, struct dt_outputs *outputs);
// The tables of id columns in model.ids: "33=char 33=char 400", a size for each column; those of
// one name are one table.
struct dt_id_tables {
    int n; // columns
    int64_t size[DT_IDS_MAX];
    int first[DT_IDS_MAX]; // the first column with this one's table
    char name[DT_IDS_MAX][DT_TABLE_NAME];
};
dt_status dt_ids_parse(const char *text, struct dt_id_tables *tables);

// The blocks of a model, first to last, as runs of one kind.
enum { DT_LAYER_RUNS = 64 };
struct dt_layers {
    int64_t n_layer;
    int n;
    struct dt_layer_run {
        const struct dt_kind *kind;
        int64_t times;
    } runs[DT_LAYER_RUNS];
};
// "mamba*24" or "a*7 b a*8": kinds with a count each, separated by spaces. "" is n_layer of the
// first kind. n_layer > 0 must be the number of layers in `text`; 0: any.
dt_status dt_layers_parse(const char *text, int64_t n_layer, struct dt_layers *layers);
// Writes the layers as text, equal neighbours merged: "mamba*24". DT_USER where it is too long.
dt_status dt_layers_text(const struct dt_layers *layers, char *text, size_t size);
const struct dt_kind *dt_layers_kind(const struct dt_layers *layers, int64_t layer);

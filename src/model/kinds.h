// A model is made of a stem that opens the residual stream, a stack of blocks that add to it, and a
// head that turns it into a loss. Each kind is one constant literal in a file of its own and one
// row in kinds.c. The rest of the program uses a kind only through its functions and properties. A
// part of a model is an instance of a kind.
#pragma once

#include "data/dataset.h"
#include "model/net.h"

// Every part begins with this.
struct dt_part {
    const struct dt_kind *kind;
    int64_t layer;               // of a block
    int first_row;               // its first row in the table
    struct dt_array_list states; // its recurrent state per sequence
    // Blocks and heads have a norm, which the model runs before them: r = residual + x, h =
    // RMSNorm(r). A part that needs h or dh in its own array plans them there.
    int norm;             // row in the table
    float *rstd;          // [M]
    struct dt_view h, dh; // [M, d] storage: h, and in backward its gradient
    double flops;         // FLOPs to train a token; dt_build_linear counts its layers
    // With model.direction = both: a second part of the same kind, with its own rows and memory,
    // that reads reversed documents and whose output is added; else NULL.
    struct dt_part *reverse;
};

// Arguments for creating a part, which appends its rows to `params`, in the order in which its
// backward finishes them, and the batch arrays that it reads to `arrays`.
struct dt_build {
    const struct dt_model_config *config;
    struct dt_params *params;
    struct dt_array_list *arrays;
    const struct dt_outputs *outputs;
    const struct dt_part *twin; // for a block's second direction: the first one; else NULL
};
// Whether blocks of the kind are two parts, one per direction.
bool dt_block_is_twofold(const struct dt_model_config *config, const struct dt_kind *block);
// Adds an array that the part reads and returns its index; a failure sets params->failed.
int dt_build_array(const struct dt_build *build, const char *name, enum dt_dtype type,
                   int64_t width, bool optional);
// Adds an array of a block's recurrent state and returns its index; a failure sets params->failed.
int dt_build_state(const struct dt_build *build, struct dt_part *block, const char *name,
                   enum dt_dtype type, int64_t width);

// Adds a row "backbone.layers.N.NAME" of a block. With two directions "mixer.X" becomes
// "mixer.mamba_fwd.X", then "mixer.mamba_rev.X".
int dt_build_row(const struct dt_build *build, const struct dt_part *block, const char *name,
                 dt_init *init, double scale, int n_dims, const int64_t *shape);
// Add a linear layer of that name, with uniform initial weights up to `scale`; one at the block's
// input or output, whose weight both directions share (model.tie_directions); a convolution
// "mixer.conv1d", with "conv_state" in the block's states.
struct dt_linear dt_build_linear(const struct dt_build *build, struct dt_part *block,
                                 const char *name, int64_t in, int64_t out, double scale);
struct dt_linear dt_build_projection(const struct dt_build *build, struct dt_part *block,
                                     const char *name, int64_t in, int64_t out, double scale);
struct dt_conv dt_build_conv(const struct dt_build *build, struct dt_part *block, int64_t channels,
                             int64_t taps);

// Fields of some kinds, which these rows make keys of [model]. Offsets are relative to the kind's
// struct of `size` bytes, located by dt_model_own; size 0: to struct dt_model_config.
struct dt_kind_keys {
    const struct dt_config_key *rows;
    size_t size;
};
enum { DT_KIND_KEYS = 3 };
void *dt_model_own(const struct dt_model_config *config, const struct dt_kind_keys *keys);
// Rows, such as DT_FIELD(REAL, struct values, rope_base, "10000", 0, 1e12, "base …"), and for an
// integer with `auto` stored as 0.
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
extern const struct dt_kind_keys dt_vocabulary_keys; // tokens.c: to read or predict tokens

// Common to all kinds. Functions may be NULL.
struct dt_kind {
    const char *name; // as in model.layers
    int64_t size;     // bytes of a part, which the model allocates zeroed, and frees
    // The fields that such parts read in addition to those of every model (model/fields.c).
    const struct dt_kind_keys *keys[DT_KIND_KEYS];
    // Fills fields that are auto (0). length: of a training window; 0: unknown.
    void (*resolve)(struct dt_model_config *config, int64_t length);
    // Fits fields to the data of a job; DT_USER if they do not fit.
    dt_status (*fit)(struct dt_model_config *config, const struct dt_model_data *data);
    // Checks that fields, each in its range, fit together: DT_USER naming the key.
    dt_status (*check)(const struct dt_model_config *config);
    // Adds rows, batch arrays, recurrent state, FLOPs. A failure sets params->failed.
    void (*create)(struct dt_part *part, const struct dt_build *build);
    // Plans memory: kept from forward to backward, or scratch, which all blocks share. The kind
    // decides what each level of model.recompute drops.
    void (*plan)(struct dt_part *part, struct dt_plan *plan);
};

struct dt_stem_kind {
    struct dt_kind kind;
    const char *unit;   // name of positions of its data: "tokens"
    const char *tokens; // name of the array of token ids, if it reads nothing else; or NULL
    // Opens the stream: residual [M, d] fp32.
    dt_status (*forward)(struct dt_part *stem, const struct dt_pass *pass, struct dt_view residual);
    // Reads the stream's gradient, [M, d] in fp32 and in storage type. Gradients of rows shared
    // with another part (dt_params_share), which has already written them, are added (+=).
    dt_status (*backward)(struct dt_part *stem, const struct dt_pass *pass,
                          struct dt_view dresidual, struct dt_view dx);
};

struct dt_projected;
// A mixer: out = mixer(h), [M, d] storage. The model runs the norm before it and adds out to the
// stream.
struct dt_block_kind {
    struct dt_kind kind;
    dt_status (*forward)(struct dt_part *block, const struct dt_pass *pass, struct dt_view h,
                         struct dt_view out);
    // Computes the gradient of h from that of out, recomputing from h what model.recompute drops.
    // Announces its rows as they are finished.
    dt_status (*backward)(struct dt_part *block, const struct dt_pass *pass, struct dt_view h,
                          struct dt_view dout, struct dt_view dh);
    // Many blocks are x = in(h), y = inner(x), out = out(y) with two linear layers. They use
    // dt_projected_forward and dt_projected_backward, which recompute what model.recompute drops
    // and call these functions. `after` is NULL when y is recomputed.
    dt_status (*inner)(struct dt_projected *block, const struct dt_pass *pass,
                       const struct dt_model_state *after);
    dt_status (*inner_backward)(struct dt_projected *block, const struct dt_pass *pass);
    // Offset and size of such a block's struct of arrays, views of M rows, x and y first. A second
    // struct after it has their gradients.
    size_t arrays, arrays_size;
    // Runs once even if model.direction = both, because it looks at single positions or handles
    // both directions itself. Other kinds read from the first position to the last and run once per
    // direction.
    bool once;
    // With model.direction = both a position may see all others, so where the model runs windows
    // part by part, such a block runs over the window of its one sequence at once. Returns into how
    // many equal shares ranks that share the window can divide the block. NULL: no such block.
    int64_t (*whole)(const struct dt_model_config *config);
};

// A block between two linear layers begins with this, and uses these functions.
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
    bool lists;       // model.heads is a list of outputs instead of its name
    const char *stem; // default kind of stem; NULL: the first
    bool next;        // predicts the next position, which must not have been read
    // How tokens are masked; NULL: they are not.
    struct dt_masking (*masking)(const struct dt_model_config *config);
    dt_status (*outputs)(const struct dt_model_config *config, struct dt_outputs *outputs);
    // After forward of a segment of a window (dt_pass.window): stores what later segments need in
    // the head's states; NULL: nothing.
    dt_status (*carry)(struct dt_part *head, const struct dt_pass *pass, struct dt_view h);
    // Reads h [M, d] storage: *sum += the sum of losses and the count of positions with a loss.
    // scale > 0: also computes the gradients of scale · Σ loss, including dh. The model announces
    // the head's rows.
    dt_status (*loss)(struct dt_part *head, const struct dt_pass *pass, struct dt_view h,
                      struct dt_view dh, double scale, struct dt_loss_sum *sum);
    // Implement dt_model_row_losses, dt_model_logits, dt_model_output and dt_model_predictions;
    // NULL: not supported.
    bool (*row_losses)(const struct dt_part *head, const struct dt_model_input *input,
                       struct dt_row_losses *rows);
    dt_status (*logits)(struct dt_part *head, const struct dt_pass *pass, struct dt_view h,
                        struct dt_view *logits);
    dt_status (*output)(struct dt_part *head, const struct dt_pass *pass, struct dt_view h, int k,
                        struct dt_view *values);
    dt_status (*predictions)(struct dt_part *head, const struct dt_pass *pass, struct dt_view h,
                             bool windows,
                             struct dt_predictions *predictions); // if outputs have measures
};

// kinds.c: tables of dt_stem_kind, dt_block_kind and dt_head_kind; each ends with NULL and begins
// with the default kind.
extern const struct dt_kind *const dt_stem_kinds[];
extern const struct dt_kind *const dt_block_kinds[];
extern const struct dt_kind *const dt_head_kinds[];

// The stem and the head of a model.
dt_status dt_stem_find(const struct dt_model_config *config, const struct dt_stem_kind **kind);
dt_status dt_head_find(const struct dt_model_config *config, const struct dt_head_kind **kind);
// The kind with this name in one of these tables; "": the first. An unknown name is a DT_USER error
// with `where` it is ("model.layers"), the nearest name and all known names.
dt_status dt_kind_find(const struct dt_kind *const *kinds, const char *where, const char *name,
                       const struct dt_kind **kind);

// Parses the outputs in model.heads ("NAME:KIND[(PARAMETERS)][*N][@WEIGHT][/POOL] …").
dt_status dt_heads_parse(const char *text, struct dt_outputs *outputs);
// The tables of id columns in model.ids: "33=char 33=char 400", a size per column; equal names
// share a table.
struct dt_id_tables {
    int n; // columns
    int64_t size[DT_IDS_MAX];
    int first[DT_IDS_MAX]; // the first column that uses this column's table
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
// Parses "mamba*24" or "a*7 b a*8": kinds with a count each, separated by spaces. "": n_layer
// blocks of the first kind. n_layer > 0 must equal the number of layers in `text`; 0: any.
dt_status dt_layers_parse(const char *text, int64_t n_layer, struct dt_layers *layers);
// Writes the layers as text with equal neighbours merged: "mamba*24". DT_USER if it is too long.
dt_status dt_layers_text(const struct dt_layers *layers, char *text, size_t size);
const struct dt_kind *dt_layers_kind(const struct dt_layers *layers, int64_t layer);

// The architecture of a model. A table has a row per field, from which the [model] section of the
// configuration, config.json, the comparison with a checkpoint and the checks are derived. A new
// field of every model is a member of the struct and a row in fields.c; a new field of a kind is a
// row in the kind's file.
#pragma once

#include "base/config.h"
#include "base/dtype.h"
#include "data/dataset.h"
#include "data/reader.h"

#define DT_RECOMPUTE_WORDS "none|scan|block"
// What linear layers round their operands to, in training and in inference (kernels/quantize.h).
#define DT_QUANTIZE_WORDS  "none|int8"
enum dt_quantize { DT_QUANTIZE_NONE, DT_QUANTIZE_INT8 };
// Each block kind defines what a level means for it.
enum dt_recompute {
    DT_RECOMPUTE_NONE,  // keep everything that backward needs
    DT_RECOMPUTE_SCAN,  // recompute from a block's input projection on
    DT_RECOMPUTE_BLOCK, // keep only the residual stream between blocks
};
extern const char *const dt_recompute_name[]; // the words above
#define DT_DIRECTION_WORDS "forward|both"
enum dt_direction { DT_DIRECTION_FORWARD, DT_DIRECTION_BOTH };

struct dt_model_config {
    char stem[DT_CONFIG_STRING_MAX], heads[DT_CONFIG_STRING_MAX]; // "": the first kinds
    char ids[DT_CONFIG_STRING_MAX]; // "33=a 33=a 400": tables of the id columns of frames
    // Columns of frames and targets (data/columns.h: dt_columns_text); "": unknown.
    char inputs[DT_CONFIG_STRING_MAX], targets[DT_CONFIG_STRING_MAX];
    int64_t frame_size;                // F; 0: from the data
    char layers[DT_CONFIG_STRING_MAX]; // "mamba*24", "a*7 b a*8"; "": n_layer of the first kind
    int64_t d_model, n_layer, vocab_size;
    enum dt_direction direction;
    bool tie_directions;
    int64_t mup_base; // 0: learning rates and initial values do not follow the width
    double norm_eps;
    bool tie_embeddings;
    int64_t pad_vocab_multiple;
    enum dt_quantize quantize;
    enum dt_recompute recompute;
    int64_t segment;           // positions of a window per pass; 0: all; -1: auto
    _Alignas(8) char own[256]; // the kinds' structs (dt_model_own)
    // Set by the job, not by keys:
    int64_t bos_token, eos_token, pad_token; // ids in config.json for generation; -1: none
    enum dt_dtype storage;                   // DT_F32 or DT_BF16
    struct dt_byte_columns bytes; // of frames, which then come as stored, else normalised
};

// The fields of every model, relative to struct dt_model_config.
extern const struct dt_config_key dt_model_fields[];
// The keys of [model]: dt_model_fields and the fields of the kinds (model/kinds.h: dt_kind.keys).
// Keys with a name in config.json are the architecture; other keys may change when a run is
// resumed.
const struct dt_config_key *dt_model_keys(void);
// The value of the key with this name, which must exist.
void *dt_model_field(const struct dt_model_config *config, const char *name);

// Whether its stem reads only tokens.
bool dt_model_reads_tokens(const struct dt_model_config *config);
// How its head masks tokens, if it does not predict the next token.
struct dt_masking dt_model_masking(const struct dt_model_config *config);
// Its stem's name for positions of the data: "tokens", "frames".
const char *dt_model_unit(const struct dt_model_config *config);
// Whether it has blocks, of a kind that reads both ways by itself, for which a window is not cut
// into segments: into how many shares ranks can divide them all (dt_block_kind.whole); 0: no.
int64_t dt_model_whole_shares(const struct dt_model_config *config);
// Whether a kind of this model reads the field (model/kinds.h: dt_kind.keys). Also true if names of
// kinds are wrong, which dt_model_config_normalize reports.
bool dt_model_has_field(const struct dt_model_config *config, const struct dt_config_key *key);
// The kinds that read a field: "mamba, mamba2"; "": every model does.
const char *dt_model_field_kinds(const struct dt_config_key *key, char out[DT_CONFIG_ALLOWED]);
// Writes names of kinds in full and layers as runs; fills n_layer from layers or layers from
// n_layer.
dt_status dt_model_config_normalize(struct dt_model_config *config);
// Fills the fields of its kinds that are auto (0) from the others. length: of a training window; 0:
// unknown.
dt_status dt_model_config_resolve(struct dt_model_config *config, int64_t length);
// Changes the model's width: fields of its kinds that equal the auto value of the old width become
// the auto value of the new one.
void dt_model_config_narrow(struct dt_model_config *config, int64_t d_model);
// The data that a job gives to a model.
struct dt_model_data {
    const struct dt_config *config;       // to say where a key was set
    const char *path, *unit;              // path of a shard and its unit, for messages
    const struct dt_frame_layout *frames; // of the training data
    const char *inputs, *targets;         // names of their columns; "": no names
    struct dt_byte_columns bytes;         // byte columns, in training and validation
    bool documents;                       // data.reset_token is set
    bool fresh;   // a new model: data fill what its configuration leaves open
    bool renames; // trained further from a model: its columns may have other names
};
// Fits the model to the data by its kinds.
dt_status dt_model_config_fit(struct dt_model_config *config, const struct dt_model_data *data);
// Normalizes, resolves, and checks kinds and ranges: DT_USER naming the key of [model].
dt_status dt_model_config_check(struct dt_model_config *config);
// Adds a line for each field of the architecture that differs from the checkpoint.
void dt_model_config_compare(struct dt_problems *problems, const struct dt_model_config *now,
                             const struct dt_model_config *saved);
static inline enum dt_dtype dt_model_frames_type(const struct dt_model_config *c) // type of the
                                                                                  // array `frames`
{
    return c->bytes.n > 0 ? DT_F32 : c->storage;
}
int64_t dt_model_padded_vocab(const struct dt_model_config *config);

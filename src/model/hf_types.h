// The model types of transformers that dtrain reads and writes, one row and one file each. Other
// models have the type "dtrain", whose config.json names its kinds.
#pragma once

#include "base/json.h"
#include "model/config.h"

struct dt_hf_file {
    char path[DT_PATH];
    cJSON *json;
};

// A member of config.json. Without `value`, `derived` and `add` it is the model field with that
// name.
struct dt_hf_member {
    const char *name;  // NULL ends a list
    const char *value; // constant value, as JSON
    bool built;        // the only value that this program can train
    // In a type's list: the common member or the field that it replaces; NULL: `name`.
    const char *of;
    // In a type's list: the common member that it follows; NULL: it is written in place of the
    // member that it replaces, or not at all.
    const char *after;
    const char *absent; // the field's value if a file lacks the member; NULL: its default
    // Computed from the fields: a file that has the member must have this value. 0: not applicable.
    int64_t (*derived)(const struct dt_model_config *config);
    const char *formula; // for messages
    bool (*add)(cJSON *json, const char *name, const struct dt_model_config *config);
};

// A field that every model of a type has with the same value, so config.json has no member for it.
// A model whose kinds do not read the field counts as having that value.
struct dt_hf_fixed {
    const char *key, *value; // of [model]
};

// A type's name for a kind of layer.
struct dt_hf_layer {
    const char *kind;     // NULL ends a list
    char letter;          // in hybrid_override_pattern
    const char *words[2]; // in layers_block_type
};

struct dt_hf_type {
    const char *model_type, *architectures;
    const char *stem, *head;            // kinds of its models
    const char *block;                  // kind of all layers; NULL: `layers`
    const struct dt_hf_layer *layers;   // allowed layers
    const struct dt_hf_fixed *fixed;    // ends with a NULL key; or NULL
    const struct dt_hf_member *members; // in addition to the members of all types
    // Reads and checks members that are not fields. The fields are complete.
    dt_status (*read)(const struct dt_hf_file *file, struct dt_model_config *config);
};

// hf_mamba2.c: adds time_step_limit, [smallest, largest] step size of Mamba-2, if there is a limit.
bool dt_hf_add_step_limits(cJSON *json, const char *name, const struct dt_model_config *config);

// hf_official.c: whether a config.json is from state-spaces/mamba, and its translation in place.
bool dt_hf_is_official(const cJSON *json);
dt_status dt_hf_read_official(struct dt_hf_file *file);

// kinds.c; ends with NULL.
extern const struct dt_hf_type *const dt_hf_types[];

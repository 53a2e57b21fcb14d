// The model types of transformers that dtrain can write and read, a row and a file each. A model
// that none of them holds has the type "dtrain", whose config.json names its kinds.
#pragma once

#include "base/json.h"
#include "model/config.h"

struct dt_hf_file {
    char path[DT_PATH];
    cJSON *json;
};

// A member of config.json. Without `value`, `derived` and `add` it is the model field of that name.
struct dt_hf_member {
    const char *name;  // NULL ends a list
    const char *value; // where it is always the same, as JSON
    bool built;        // the only value that this program can train
    // In a type's list: the member of all types, or the field, that it stands for; NULL: `name`.
    const char *of;
    // In a type's list: the member of all types that it follows; NULL: it is written in place of
    // the one that it stands for, or not at all.
    const char *after;
    const char *absent; // the field's value where a file lacks the member; NULL: its default
    // It follows from the fields by this formula: where a file has it, it must have this value. 0:
    // the model has no such thing.
    int64_t (*derived)(const struct dt_model_config *config);
    const char *formula; // in messages
    bool (*add)(cJSON *json, const char *name, const struct dt_model_config *config);
};

// A field that has the same value in every model of a type, so that its config.json has no member
// for it. A model whose kinds do not read the field counts as having that value.
struct dt_hf_fixed {
    const char *key, *value; // of [model]
};

// What a type calls a kind of layer.
struct dt_hf_layer {
    const char *kind;     // NULL ends a list
    char letter;          // in hybrid_override_pattern
    const char *words[2]; // in layers_block_type
};

struct dt_hf_type {
    const char *model_type, *architectures;
    const char *stem, *head;            // the kinds that its models have
    const char *block;                  // that all layers are; NULL: `layers`
    const struct dt_hf_layer *layers;   // that a layer may be
    const struct dt_hf_fixed *fixed;    // ends with a NULL key; or NULL
    const struct dt_hf_member *members; // besides those that all types have
    // Reads and checks members that are no field of their own. The fields are complete.
    dt_status (*read)(const struct dt_hf_file *file, struct dt_model_config *config);
};

// Adds time_step_limit, [smallest, largest] step size of Mamba-2, where there is one (hf_mamba2.c).
bool dt_hf_add_step_limits(cJSON *json, const char *name, const struct dt_model_config *config);

// hf_official.c: whether a config.json is one of state-spaces/mamba, and its translation in place.
bool dt_hf_is_official(const cJSON *json);
dt_status dt_hf_read_official(struct dt_hf_file *file);

// kinds.c; ends with NULL.
extern const struct dt_hf_type *const dt_hf_types[];

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
    const char *name;   // NULL ends a list
    const char *value;  // where it is always the same, as JSON
    bool built;         // the only value that this program can train
    const char *after;  // in a type's list: the member that it follows; NULL: not written for it
    const char *absent; // the field's value where a file lacks the member; NULL: its default
    // It follows from the fields by this formula: where a file has it, it must have this value.
    int64_t (*derived)(const struct dt_model_config *config);
    const char *formula; // in messages
    bool (*add)(cJSON *json, const char *name, const struct dt_model_config *config);
};

struct dt_hf_type {
    const char *model_type, *architectures;
    const char *stem, *block, *head;    // the kinds that its models have; all layers are this block
    const struct dt_hf_member *members; // besides those that all types have
    // Reads and checks members that are no field of their own. The fields are complete.
    dt_status (*read)(const struct dt_hf_file *file, struct dt_model_config *config);
};

// kinds.c; ends with NULL.
extern const struct dt_hf_type *const dt_hf_types[];

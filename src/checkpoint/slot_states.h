// The recurrent state that slots carry from step to step (data.carry_state), and its file in a
// checkpoint, with entries "layers.0.ssm_state[first:last]", [last - first, width] for the slots
// [first, last). Together the entries must cover every slot of every array once.
#pragma once

#include "base/dtype.h"
#include "checkpoint/manifest.h"

#define DT_SLOT_STATES_FILE "carried.safetensors"

struct dt_slot_array {
    char name[64];
    enum dt_dtype type;
    int64_t width;  // elements per slot
    int64_t offset; // bytes from the start of a block
    int32_t last;   // i32: values are in [0, last]
};

// Blocks of `each` slots; an array in a block is [each, width].
struct dt_slot_states {
    int64_t slots, each, block_bytes;
    int n;
    struct dt_slot_array *arrays;
    char *blocks; // [slots / each], block_bytes each, host memory
};

// Private to src/checkpoint. Writes the file with a range per block, and lists it.
dt_status dt_slot_states_write(struct dt_manifest *manifest, const char *folder,
                               const struct dt_slot_states *states);
// Private to src/checkpoint. Converts between fp32 and bf16. DT_USER if the model differs.
dt_status dt_slot_states_read(const struct dt_manifest *manifest, const char *folder,
                              const struct dt_slot_states *states);

// The recurrent state that slots carry from step to step (data.carry_state), and its file in a
// checkpoint, with entries "layers.0.ssm_state[first:last]" of the slots [first, last), each
// [last - first, width]. A file holds any ranges; together they must cover every slot of every
// array once.
#pragma once

#include "base/dtype.h"
#include "checkpoint/manifest.h"

#define DT_SLOT_STATES_FILE "carried.safetensors"

struct dt_slot_array {
    char name[64];
    enum dt_dtype type;
    int64_t width;  // elements of a slot
    int64_t offset; // bytes in a block
    int32_t last;   // of i32: the numbers are in [0, last]
};

// Blocks of `each` slots; an array in a block is [each, width].
struct dt_slot_states {
    int64_t slots, each, block_bytes;
    int n;
    struct dt_slot_array *arrays;
    char *blocks; // [slots / each] of block_bytes, host memory
};

// The functions below are for the checkpoint room.
// Writes the file, a range for each block, and lists it.
dt_status dt_slot_states_write(struct dt_manifest *manifest, const char *folder,
                               const struct dt_slot_states *states);
// fp32 and bf16 are converted where an array has the other one. DT_USER where the model differs.
dt_status dt_slot_states_read(const struct dt_manifest *manifest, const char *folder,
                              const struct dt_slot_states *states);

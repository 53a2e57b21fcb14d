// Recurrent state carried from a slot's window to its next (data.carry_state), in blocks of one
// micro-batch. `kept` is what the step before left, `next` what this one leaves, which becomes
// `kept` on the device unless the step is skipped. A pass reads and writes one pair of states,
// which stay at one address for captured graphs; blocks are copied in before a micro-batch and out
// after it. Validation walks its windows with `next` alone, while no step is in flight.
#pragma once

#include "model/model.h"
#include "train/input.h"

struct dt_carry {
    const struct dt_backend *backend; // NULL: nothing is carried
    struct dt_model *model;           // borrowed
    int64_t blocks, bytes;            // micro-batches, and the size of the state of one
    struct dt_model_state *before, *after;
    char *kept, *next; // [blocks] of `bytes`, device memory; kept NULL: validation alone
};

// Bytes of device memory for the training of this model. 0: its layers have no state.
dt_status dt_carry_bytes(const struct dt_model_config *config, const struct dt_input_config *batch,
                         int64_t *bytes);
// Carries nothing if the model's layers have no state.
dt_status dt_carry_create(const struct dt_backend *backend, struct dt_model *model,
                          const struct dt_input_config *batch, bool training,
                          struct dt_carry *carry);
void dt_carry_destroy(struct dt_carry *carry); // zeros are fine
// The rest does nothing where nothing is carried. `store` is carry->kept or carry->next.
dt_status dt_carry_clear(struct dt_carry *carry, char *store, struct dt_stream *stream);
// carry->before = the block of a micro-batch.
dt_status dt_carry_load(struct dt_carry *carry, const char *store, int64_t block,
                        struct dt_stream *stream);
// The block = carry->after.
dt_status dt_carry_store(struct dt_carry *carry, char *store, int64_t block,
                         struct dt_stream *stream);
// After a step whose control struct this is: kept = next unless it was skipped.
dt_status dt_carry_commit(struct dt_carry *carry, const struct dt_update_control *control,
                          struct dt_stream *stream);

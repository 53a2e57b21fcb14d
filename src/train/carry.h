// Recurrent state carried from a slot's window to its next (data.carry_state), in blocks of one
// micro-batch. `kept` is the state after the previous step, `next` that after this step; the device
// makes `next` `kept` unless the step is skipped. A pass reads and writes one pair of states, at
// fixed addresses for captured graphs; blocks are copied in before a micro-batch and out after it.
// Validation uses only `next`, while no step is in flight. For checkpoints rank 0 has host memory
// for the blocks of all ranks.
#pragma once

#include "checkpoint/slot_states.h"
#include "comm/comm.h"
#include "model/model.h"
#include "train/input.h"

struct dt_carry {
    const struct dt_backend *backend; // NULL: nothing is carried
    struct dt_model *model;           // borrowed
    int64_t blocks, bytes;            // micro-batches; bytes of a micro-batch's state
    int64_t run;                      // a rank's consecutive blocks in the batch: all, or 1
    struct dt_model_state *before, *after;
    char *kept, *next; // [blocks] of `bytes`, device memory; kept NULL: only validation
    char *host;        // pinned: this rank's blocks, on rank 0 the blocks of all ranks; NULL: same
                       // as `kept` (unified memory, ranks other than 0)
    struct dt_slot_states slots; // rank 0: for checkpoints
};

// Adds the memory that training needs for carried state.
dt_status dt_carry_plan(const struct dt_backend *backend, const struct dt_model_config *config,
                        const struct dt_input_config *batch, const struct dt_comm_info *ranks,
                        struct dt_memory_plan *plan);
// `ranks` train together; NULL: only validation. Carries nothing if the model's layers have no
// state. Destroy it even if create fails.
dt_status dt_carry_create(const struct dt_backend *backend, struct dt_model *model,
                          const struct dt_input_config *batch, const struct dt_comm_info *ranks,
                          struct dt_carry *carry);
void dt_carry_destroy(struct dt_carry *carry); // zeros are fine
// The functions below are no-ops if nothing is carried. `store` is carry->kept or carry->next.
dt_status dt_carry_clear(struct dt_carry *carry, char *store, struct dt_stream *stream);
// Copies the block of a micro-batch to carry->before.
dt_status dt_carry_load(struct dt_carry *carry, const char *store, int64_t block,
                        struct dt_stream *stream);
// Copies carry->after to the block.
dt_status dt_carry_store(struct dt_carry *carry, char *store, int64_t block,
                         struct dt_stream *stream);
// Called after a step, with its control struct: kept = next, unless the step was skipped.
dt_status dt_carry_commit(struct dt_carry *carry, const struct dt_update_control *control,
                          struct dt_stream *stream);
// Gather `kept` of all ranks into rank 0's slots, and scatter it back. Collective, with no step in
// flight.
dt_status dt_carry_gather(struct dt_carry *carry, struct dt_comm *comm);
dt_status dt_carry_share(struct dt_carry *carry, struct dt_comm *comm);

// Whether the ranks still agree: checksums of what every rank has alike, compared every
// comm.verify_replicas steps. Memory and libraries that fail silently show here.
#pragma once

#include "base/memory_plan.h"
#include "checkpoint/optimizer_states.h"
#include "comm/comm.h"
#include "model/model.h"

struct dt_replicas {
    const struct dt_backend *backend;  // NULL: not created
    const float *weights;              // [elements]
    int64_t elements;                  // of each array; 0: no rank has what another has
    struct dt_optimizer_states states; // whole on every rank, or none
    uint64_t *sums;                    // device memory: of the weights and of each state
    void *workspace;
    int64_t workspace_bytes;
    uint64_t *gathered; // [ranks, 1 + states]
};

// Adds what dt_replicas_create will take.
void dt_replicas_plan(const struct dt_backend *backend, const struct dt_params *params,
                      struct dt_memory_plan *plan);
// `states`: the optimizer's, in device memory; compared where every rank has all of them (not with
// optim.shard). Of the weights, where each rank keeps its own pieces: what all have.
dt_status dt_replicas_create(const struct dt_backend *backend, struct dt_model *model,
                             const struct dt_optimizer_states *states, int ranks,
                             struct dt_replicas *replicas);
void dt_replicas_destroy(struct dt_replicas *replicas); // zeros are fine
// All ranks together, with no step in flight. DT_MACHINE on all where one differs from most of
// them, naming the lowest such rank and the array that differs.
dt_status dt_replicas_compare(struct dt_replicas *replicas, struct dt_comm *comm, int64_t step);

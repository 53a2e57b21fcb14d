// Checks that replicas on all ranks are still equal, by comparing checksums every
// comm.verify_replicas steps. This detects silent failures of memory and libraries.
#pragma once

#include "base/memory_plan.h"
#include "checkpoint/optimizer_states.h"
#include "comm/comm.h"
#include "model/model.h"

struct dt_replicas {
    const struct dt_backend *backend;  // NULL: not created
    const float *weights;              // [elements]
    int64_t elements;                  // per array; 0: ranks have nothing in common
    struct dt_optimizer_states states; // states that are whole on every rank, or none
    uint64_t *sums;                    // device memory: of the weights, then of each state
    void *workspace;
    int64_t workspace_bytes;
    uint64_t *gathered; // [ranks, 1 + states]
};

// Adds the memory of dt_replicas_create.
void dt_replicas_plan(const struct dt_backend *backend, const struct dt_params *params,
                      struct dt_memory_plan *plan);
// `states`: the optimizer's, in device memory; compared if every rank has all of them (not with
// optim.shard). If each rank keeps its own pieces of the weights, only the part that all ranks have
// is compared.
dt_status dt_replicas_create(const struct dt_backend *backend, struct dt_model *model,
                             const struct dt_optimizer_states *states, int ranks,
                             struct dt_replicas *replicas);
void dt_replicas_destroy(struct dt_replicas *replicas); // zeros are fine
// Collective, with no step in flight. If a rank differs from most ranks: DT_MACHINE on all ranks,
// naming the lowest such rank and the array that differs.
dt_status dt_replicas_compare(struct dt_replicas *replicas, struct dt_comm *comm, int64_t step);

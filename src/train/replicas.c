// Checksums of the weights and of each state, computed on the device, gathered from all ranks and
// compared on each host.
#include "train/replicas.h"

#include "base/memory.h"
#include "comm/job_control.h"

#include <inttypes.h>
#include <string.h>

void dt_replicas_plan(const struct dt_backend *backend, const struct dt_params *params,
                      struct dt_memory_plan *plan)
{
    struct dt_checksum_args args = {.n = params->elements};
    int64_t sums = (1 + DT_OPTIMIZER_STATES) * (int64_t)sizeof(uint64_t);
    dt_memory_plan_add(plan, "checksums", sums + dt_checksum_workspace(backend, &args), false);
}

// Array i is the weights, then each state.
static struct dt_checksum_args checksum(const struct dt_replicas *r, int i)
{
    return (struct dt_checksum_args){.n = i == 0 ? r->elements
                                                 : dt_state_pieces(&r->states, i - 1)->elements,
                                     .x = i == 0 ? r->weights : r->states.list[i - 1].data,
                                     .sum = r->sums + i,
                                     .workspace = r->workspace,
                                     .workspace_bytes = r->workspace_bytes};
}

dt_status dt_replicas_create(const struct dt_backend *backend, struct dt_model *model,
                             const struct dt_optimizer_states *states, int ranks,
                             struct dt_replicas *r)
{
    const struct dt_pieces *pieces = &states->pieces;
    *r = (struct dt_replicas){.backend = backend,
                              .weights = dt_optimizer_state(states, "weights"),
                              .elements = dt_model_params(model)->elements};
    if (pieces->elements == r->elements)
        r->states = *states;
    if (!r->weights)
        r->weights = dt_model_weights(model);
    else if (pieces->n_own > 0) { // the last piece may be common to all ranks
        const struct dt_span *rest = &pieces->spans[pieces->n - 1];
        r->elements = pieces->n > pieces->n_own ? rest->end - rest->first : 0;
        r->weights += pieces->elements - r->elements;
    }
    struct dt_checksum_args args = checksum(r, 0);
    r->workspace_bytes = dt_checksum_workspace(backend, &args);
    DT_TRY(DT_NEW(&r->gathered, ranks * (1 + r->states.n), "comparing %d ranks", ranks));
    DT_TRY(dt_alloc(backend, (1 + DT_OPTIMIZER_STATES) * (int64_t)sizeof *r->sums, &r->sums));
    return dt_alloc(backend, r->workspace_bytes, &r->workspace);
}

void dt_replicas_destroy(struct dt_replicas *r)
{
    if (!r->backend)
        return;
    dt_free(r->backend, r->sums);
    dt_free(r->backend, r->workspace);
    free(r->gathered);
    *r = (struct dt_replicas){0};
}

// How many ranks have the sums of rank `rank`.
static int count_alike(const struct dt_replicas *r, int ranks, int rank)
{
    const int n = 1 + r->states.n;
    int alike = 0;
    for (int i = 0; i < ranks; i++)
        alike += memcmp(r->gathered + i * n, r->gathered + rank * n, (size_t)n * 8) == 0;
    return alike;
}

static dt_status check_mine(const struct dt_replicas *r, const struct dt_comm_info *info,
                            int64_t step)
{
    const int n = 1 + r->states.n;
    int common = 0; // the lowest rank with the most common sums
    for (int rank = 1; rank < info->size; rank++)
        if (count_alike(r, info->size, rank) > count_alike(r, info->size, common))
            common = rank;
    const int alike = count_alike(r, info->size, common);
    const uint64_t *mine = r->gathered + info->rank * n, *theirs = r->gathered + common * n;
    for (int i = 0; i < n; i++)
        if (mine[i] != theirs[i])
            return DT_FAIL(
                DT_MACHINE,
                "the memory or libraries of a host may be faulty: exclude it and resume from a "
                "checkpoint before",
                "the replicas drifted apart: %s after step %lld differ from those of rank %d%s "
                "(checksum %016" PRIx64 ", not %016" PRIx64 ")",
                i == 0 ? "weights" : r->states.list[i - 1].name, (long long)step, common,
                2 * alike > info->size ? " and of most ranks" : "; either may be the wrong one",
                mine[i], theirs[i]);
    return DT_OK;
}

dt_status dt_replicas_compare(struct dt_replicas *r, struct dt_comm *comm, int64_t step)
{
    const int n = 1 + r->states.n;
    if (r->elements == 0)
        return DT_OK;
    dt_comm_progress(comm, step, "comparing replicas");
    for (int i = 0; i < n; i++) {
        struct dt_checksum_args args = checksum(r, i);
        DT_TRY(dt_checksum(r->backend, &args, NULL));
    }
    DT_TRY(dt_to_host(r->backend, r->gathered + comm->info.rank * n, r->sums,
                      n * (int64_t)sizeof *r->sums, NULL));
    DT_TRY(dt_stream_sync(r->backend, NULL));
    DT_TRY(dt_all_gather(comm, r->gathered, n * (int64_t)sizeof *r->gathered));
    return dt_agree(comm, check_mine(r, &comm->info, step));
}

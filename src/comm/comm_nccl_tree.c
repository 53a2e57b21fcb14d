// Sums in the order DT_SUM_TREE between devices: the schedule of sum_tree.h, each step is an
// exchange and, on the way up, an addition on the stream. All halves are contiguous, so that a step
// is one message each way. A reduce-scatter therefore leaves blocks in bit-reversed order, and one
// more exchange brings each block to its rank.
#include "comm/comm_nccl.h"
#include "comm/sum_tree.h"

struct call {
    struct nccl_comm *nccl;
    const struct dt_collective *c;
    struct dt_stream *stream;
};

static char *address(const struct call *call, int64_t element)
{
    return (char *)call->c->data + element * dt_dtype_size(call->c->dtype);
}

static dt_status exchange(const struct call *call, int peer, struct dt_span out, void *in,
                          struct dt_span received)
{
    const struct nccl_messages messages = {.index = NCCL_ALL,
                                           .peer = peer,
                                           .dtype = call->c->dtype,
                                           .out = address(call, out.first),
                                           .n_out = out.end - out.first,
                                           .in = in,
                                           .n_in = received.end - received.first};
    return dt_nccl_exchange(call->nccl, &messages, call->stream);
}

// The addition counts as part of the collective's time, so it bypasses the dispatch (ops.c), which
// would time it.
static dt_status run_step(const struct call *call, const struct dt_tree_step *step)
{
    const struct dt_backend *backend = call->nccl->backend;
    struct dt_accumulate_args args = {.n = step->mine.end - step->mine.first,
                                      .x = call->nccl->scratch,
                                      .x_type = call->c->dtype,
                                      .y = address(call, step->mine.first)};
    if (!step->adds)
        return exchange(call, step->peer, step->mine, address(call, step->theirs.first),
                        step->theirs);
    DT_TRY(exchange(call, step->peer, step->theirs, call->nccl->scratch, step->mine));
    return args.n > 0 ? backend->op->accumulate(backend->device, &args, call->stream) : DT_OK;
}

dt_status dt_nccl_sum_by_tree(struct nccl_comm *nccl, const struct dt_collective *c,
                              struct dt_stream *stream)
{
    const struct dt_comm_info *info = &nccl->comm->info;
    struct call call = {nccl, c, stream};
    bool in_blocks = c->operation == DT_REDUCE_SCATTER;
    struct dt_sum_tree tree = {.rank = info->rank,
                               .levels = dt_tree_levels(info->size),
                               .halves = in_blocks ||
                                         c->count * dt_dtype_size(c->dtype) > DT_DEVICE_TREE_WHOLE,
                               .all = {0, in_blocks ? info->size * c->count : c->count}};
    int steps = tree.halves && !in_blocks ? 2 * tree.levels : tree.levels;
    for (int i = 0; i < steps; i++) {
        struct dt_tree_step step = dt_tree_step(&tree, i);
        DT_TRY(run_step(&call, &step));
    }
    // Halving leaves another rank's block here, and this rank's block there.
    int other = dt_tree_reversed(info->rank, tree.levels);
    if (!in_blocks || other == info->rank)
        return DT_OK;
    struct dt_span theirs = {other * c->count, (other + 1) * c->count};
    return exchange(&call, other, theirs, address(&call, info->rank * c->count), theirs);
}

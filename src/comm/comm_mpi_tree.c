// Sums in the order DT_SUM_TREE between hosts: the schedule of sum_tree.h as steps of a ring, which
// the communication thread executes like any other. A reduce-scatter halves its blocks in
// bit-reversed order, so that block `rank` remains; the blocks of a half are then equally spaced
// and are sent as one message.
#include "comm/comm_mpi.h"
#include "comm/sum_tree.h"

// A step receives at most half of the ring's data.
int64_t dt_mpi_tree_most(const struct mpi_comm *mpi, const struct dt_request *request)
{
    int64_t most = 2 * DT_MPI_RING_CHUNK / request->element_bytes;
    bool in_blocks = request->call.operation == DT_REDUCE_SCATTER;
    return in_blocks ? dt_max_i64(most / mpi->base.info.size, 1) : most;
}

static struct dt_sum_tree tree_of(const struct mpi_comm *mpi, const struct mpi_ring *ring)
{
    const struct dt_comm_info *info = &mpi->base.info;
    bool in_blocks = ring->owner->call.operation == DT_REDUCE_SCATTER;
    // Small pieces are not halved, which saves half of the messages.
    bool is_whole = !in_blocks && ring->count * ring->owner->element_bytes <= DT_MPI_TREE_WHOLE;
    return (struct dt_sum_tree){
        .rank = info->rank,
        .levels = dt_tree_levels(info->size),
        .halves = !is_whole,
        .all = in_blocks ? (struct dt_span){0, info->size}
                         : (struct dt_span){ring->first, ring->first + ring->count}};
}

int dt_mpi_tree_steps(const struct mpi_comm *mpi, const struct mpi_ring *ring)
{
    struct dt_sum_tree tree = tree_of(mpi, ring);
    bool back = ring->owner->call.operation == DT_ALLREDUCE && tree.halves;
    return back ? 2 * tree.levels : tree.levels;
}

static struct mpi_part part_of(const struct mpi_comm *mpi, const struct mpi_ring *ring,
                               struct dt_span span)
{
    int64_t n = span.end - span.first, count = ring->owner->call.count;
    int size = mpi->base.info.size;
    if (ring->owner->call.operation != DT_REDUCE_SCATTER)
        return (struct mpi_part){.first = span.first, .n = n, .runs = 1};
    int block = dt_tree_reversed((int)span.first, dt_tree_levels(size));
    return (struct mpi_part){.first = ring->first + block * count,
                             .n = ring->count,
                             .stride = size / n * count,
                             .runs = (int)n};
}

struct mpi_step dt_mpi_tree_step(const struct mpi_comm *mpi, const struct mpi_ring *ring)
{
    struct dt_sum_tree tree = tree_of(mpi, ring);
    struct dt_tree_step step = dt_tree_step(&tree, ring->step);
    struct mpi_part mine = part_of(mpi, ring, step.mine), theirs = part_of(mpi, ring, step.theirs);
    return (struct mpi_step){.to = step.peer,
                             .from = step.peer,
                             .adds = step.adds,
                             .out = step.adds ? theirs : mine,
                             .in = step.adds ? mine : theirs};
}

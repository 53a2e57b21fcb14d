// Sums in the order DT_SUM_TREE between hosts: the communication thread carries out the schedule of
// sum_tree.h, a step of a ring at a time. A reduce-scatter halves its blocks in the order of their
// numbers with the bits reversed, so that block `rank` is what remains; the blocks of a half then
// lie at equal distances, and travel as one message.
#include "comm/comm_mpi.h"
#include "comm/sum_tree.h"

// Elements of the owner's data: `runs` of n.
struct part {
    int64_t first, n, stride;
    int runs;
};

// Small pieces are not halved: half as many messages.
static bool is_whole(const struct mpi_ring *ring)
{
    return ring->owner->call.operation == DT_ALLREDUCE &&
           ring->count * ring->owner->element_bytes <= DT_MPI_TREE_WHOLE;
}

// A step receives at most half of what the ring carries.
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
    return (struct dt_sum_tree){
        .rank = info->rank,
        .levels = dt_tree_levels(info->size),
        .halves = !is_whole(ring),
        .all = in_blocks ? (struct dt_span){0, info->size}
                         : (struct dt_span){ring->first, ring->first + ring->count}};
}

int dt_mpi_tree_steps(const struct mpi_comm *mpi, const struct mpi_ring *ring)
{
    struct dt_sum_tree tree = tree_of(mpi, ring);
    bool back = ring->owner->call.operation == DT_ALLREDUCE && tree.halves;
    return back ? 2 * tree.levels : tree.levels;
}

static struct dt_tree_step step_of(const struct mpi_comm *mpi, const struct mpi_ring *ring)
{
    struct dt_sum_tree tree = tree_of(mpi, ring);
    return dt_tree_step(&tree, ring->step);
}

static struct part part_of(const struct mpi_comm *mpi, const struct mpi_ring *ring,
                           struct dt_span span)
{
    int64_t n = span.end - span.first, count = ring->owner->call.count;
    int size = mpi->base.info.size;
    if (ring->owner->call.operation != DT_REDUCE_SCATTER)
        return (struct part){.first = span.first, .n = n, .runs = 1};
    int block = dt_tree_reversed((int)span.first, dt_tree_levels(size));
    return (struct part){.first = ring->first + block * count,
                         .n = ring->count,
                         .stride = size / n * count,
                         .runs = (int)n};
}

static char *address(const struct mpi_ring *ring, const struct part *part, int run)
{
    const struct dt_request *request = ring->owner;
    return (char *)request->call.data + (part->first + run * part->stride) * request->element_bytes;
}

static int send(struct mpi_comm *mpi, struct mpi_ring *ring, const struct part *part, int peer)
{
    int64_t each = ring->owner->element_bytes;
    char *data = address(ring, part, 0);
    int bytes = (int)(part->n * each), code;
    MPI_Datatype runs;
    if (part->runs == 1)
        return MPI_Isend(data, bytes, MPI_BYTE, peer, ring->tag, mpi->ring_world, &ring->mpi[1]);
    code = MPI_Type_create_hvector(part->runs, bytes, (MPI_Aint)(part->stride * each), MPI_BYTE,
                                   &runs);
    if (code != MPI_SUCCESS)
        return code;
    code = MPI_Type_commit(&runs);
    if (code == MPI_SUCCESS)
        code = MPI_Isend(data, 1, runs, peer, ring->tag, mpi->ring_world, &ring->mpi[1]);
    MPI_Type_free(&runs); // once the message has left
    return code;
}

int dt_mpi_tree_post(struct mpi_comm *mpi, struct mpi_ring *ring)
{
    struct dt_tree_step step = step_of(mpi, ring);
    struct part mine = part_of(mpi, ring, step.mine), theirs = part_of(mpi, ring, step.theirs);
    const struct part *in = step.adds ? &mine : &theirs, *out = step.adds ? &theirs : &mine;
    void *place = step.adds ? mpi->scratch[ring - mpi->rings] : address(ring, in, 0);
    int bytes = (int)(in->runs * in->n * ring->owner->element_bytes);
    int code =
        MPI_Irecv(place, bytes, MPI_BYTE, step.peer, ring->tag, mpi->ring_world, &ring->mpi[0]);
    return code == MPI_SUCCESS ? send(mpi, ring, out, step.peer) : code;
}

int dt_mpi_tree_finish(struct mpi_comm *mpi, struct mpi_ring *ring)
{
    struct dt_tree_step step = step_of(mpi, ring);
    struct part mine = part_of(mpi, ring, step.mine);
    int64_t bytes = mine.n * ring->owner->element_bytes;
    int code = MPI_SUCCESS;
    for (int run = 0; step.adds && run < mine.runs && code == MPI_SUCCESS; run++)
        code = dt_mpi_add(mpi, ring, mpi->scratch[ring - mpi->rings] + run * bytes,
                          address(ring, &mine, run), bytes);
    return code;
}

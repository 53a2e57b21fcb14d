// Sums in the order DT_SUM_TREE, as the communication thread progresses them: step l adds the sums
// of ranks that differ in bit l of their number, from bit 0 on, so every element is summed by the
// same binary tree whichever rank holds it. Vectors are halved on the way (recursive halving
// [Thakur, Rabenseifner & Gropp 2005], here from the nearest rank to the farthest): each of two
// ranks keeps one half. An all-reduce then goes back by the same steps. A reduce-scatter halves its
// set of blocks by the bits of their numbers, so that block `rank` is what remains.
#include "comm/comm_mpi.h"

#include "base/round.h"

// Elements of the owner's data: `runs` of n.
struct part {
    int64_t first, n, stride;
    int runs;
};

static int levels(const struct mpi_comm *mpi)
{
    int n = 0;
    while (1 << n < mpi->base.info.size)
        n++;
    return n;
}

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

int dt_mpi_tree_steps(const struct mpi_comm *mpi, const struct mpi_ring *ring)
{
    bool halves = ring->owner->call.operation == DT_ALLREDUCE && !is_whole(ring);
    return halves ? 2 * levels(mpi) : levels(mpi);
}

static bool is_reducing(const struct mpi_comm *mpi, const struct mpi_ring *ring)
{
    return ring->step < levels(mpi);
}

// The bit in which this rank and its peer of the step differ.
static int level_of(const struct mpi_comm *mpi, const struct mpi_ring *ring)
{
    return is_reducing(mpi, ring) ? ring->step : ring->end - 1 - ring->step;
}

// What `rank` keeps after the halving of a level.
static struct part part_of(const struct mpi_comm *mpi, const struct mpi_ring *ring, int rank,
                           int level)
{
    struct part part = {.first = ring->first, .n = ring->count, .runs = 1};
    if (is_whole(ring))
        return part;
    if (ring->owner->call.operation == DT_REDUCE_SCATTER) { // blocks that agree in the bits so far
        int step = 2 << level;
        part.first += rank % step * ring->owner->call.count;
        part.stride = step * ring->owner->call.count;
        part.runs = mpi->base.info.size / step;
        return part;
    }
    for (int l = 0; l <= level; l++) {
        int64_t low = part.n - part.n / 2;
        bool high = rank >> l & 1;
        part.first += high ? low : 0;
        part.n = high ? part.n - low : low;
    }
    return part;
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
    int level = level_of(mpi, ring), rank = mpi->base.info.rank, peer = rank ^ 1 << level;
    struct part mine = part_of(mpi, ring, rank, level), theirs = part_of(mpi, ring, peer, level);
    bool reducing = is_reducing(mpi, ring);
    const struct part *in = reducing ? &mine : &theirs, *out = reducing ? &theirs : &mine;
    void *place = reducing ? mpi->scratch[ring - mpi->rings] : address(ring, in, 0);
    int bytes = (int)(in->runs * in->n * ring->owner->element_bytes);
    int code = MPI_Irecv(place, bytes, MPI_BYTE, peer, ring->tag, mpi->ring_world, &ring->mpi[0]);
    return code == MPI_SUCCESS ? send(mpi, ring, out, peer) : code;
}

int dt_mpi_tree_finish(struct mpi_comm *mpi, struct mpi_ring *ring)
{
    struct part mine = part_of(mpi, ring, mpi->base.info.rank, level_of(mpi, ring));
    int64_t bytes = mine.n * ring->owner->element_bytes;
    int code = MPI_SUCCESS;
    for (int run = 0; is_reducing(mpi, ring) && run < mine.runs && code == MPI_SUCCESS; run++)
        code = dt_mpi_add(mpi, ring, mpi->scratch[ring - mpi->rings] + run * bytes,
                          address(ring, &mine, run), bytes);
    return code;
}

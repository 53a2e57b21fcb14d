// Collectives of the MPI communicator, posted and progressed by the communication thread: the
// library's non-blocking collectives, and rings of point-to-point messages for large all-reduces,
// reduce-scatter and all-gather. The steps of a ring follow the schedule of a ring of ranks or of a
// tree (comm_mpi_tree.c). For 25 MB between two ranks of one host a ring takes 4.0 ms where
// MPI_Iallreduce of Open MPI 4.1 takes 6.0 (5.5 and 11.6 where single copy is allowed).
#include "comm/comm_mpi.h"

#include "base/round.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static int64_t piece_limit = 1 << 28; // below INT_MAX

void dt_mpi_set_piece(int64_t elements)
{
    piece_limit = elements;
}

// MPI has no bf16. Values are added in fp32 and rounded to nearest even, so a sum depends only on
// the order of the ranks. All three operations keep a NaN of either operand.
#define BF16_OP(name, result)                                                                      \
    static void name(void *in, void *inout, int *n, MPI_Datatype *type)                            \
    {                                                                                              \
        const dt_bf16 *x = in;                                                                     \
        dt_bf16 *y = inout;                                                                        \
        (void)type;                                                                                \
        for (int i = 0; i < *n; i++) {                                                             \
            float a = dt_bf16_to_f32(x[i]), b = dt_bf16_to_f32(y[i]);                              \
            y[i] = result;                                                                         \
        }                                                                                          \
    }
BF16_OP(bf16_sum, dt_f32_to_bf16(a + b))
BF16_OP(bf16_min, a < b || isnan(a) ? x[i] : y[i])
BF16_OP(bf16_max, a > b || isnan(a) ? x[i] : y[i])

static MPI_Datatype type_of(enum dt_dtype dtype)
{
    static const MPI_Datatype types[DT_DTYPE_COUNT] = {[DT_F32] = MPI_FLOAT,
                                                       [DT_F64] = MPI_DOUBLE,
                                                       [DT_I64] = MPI_INT64_T,
                                                       [DT_BF16] = MPI_UINT16_T};
    return types[dtype];
}

static MPI_Op op_of(const struct mpi_comm *mpi, const struct dt_collective *call)
{
    static const MPI_Op plain[DT_MPI_REDUCE_OPS] = {MPI_SUM, MPI_MIN, MPI_MAX};
    return call->dtype == DT_BF16 ? mpi->bf16_ops[call->reduce] : plain[call->reduce];
}

dt_status dt_mpi_reductions(struct mpi_comm *mpi)
{
    MPI_User_function *const bf16[DT_MPI_REDUCE_OPS] = {bf16_sum, bf16_min, bf16_max};
    for (int op = 0; op < DT_MPI_REDUCE_OPS; op++)
        DT_MPI(MPI_Op_create(bf16[op], 1, &mpi->bf16_ops[op]));
    return DT_OK;
}

void dt_mpi_free_reductions(struct mpi_comm *mpi)
{
    for (int op = 0; op < DT_MPI_REDUCE_OPS; op++)
        MPI_Op_free(&mpi->bf16_ops[op]);
}

// ---- by the library, in pieces: small all-reduces, broadcasts, exchanges

// The tag of an exchange's messages is its signature. They are received with any tag, so that
// another one is found, and not waited for. Those that may overtake others have a communicator of
// their own.
static int tag_of(const struct mpi_comm *mpi, const struct dt_collective *call)
{
    return (int)(call->signature % mpi->tags);
}

// Posts n elements from `offset` on. A piece has two requests; only an exchange needs the second.
static int post_piece(struct mpi_comm *mpi, const struct dt_collective *call, int64_t offset, int n,
                      MPI_Request posted[2])
{
    const MPI_Comm world = call->overtakes ? mpi->overtaking_world : mpi->world;
    int code = MPI_SUCCESS;
    offset *= dt_dtype_size(call->dtype);
    if (call->operation == DT_ALLREDUCE)
        return MPI_Iallreduce(MPI_IN_PLACE, (char *)call->data + offset, n, type_of(call->dtype),
                              op_of(mpi, call), world, posted);
    if (call->operation == DT_BROADCAST)
        return MPI_Ibcast((char *)call->data + offset, n, MPI_BYTE, call->peer, world, posted);
    if (call->data)
        code = MPI_Irecv((char *)call->data + offset, n, MPI_BYTE, call->peer, MPI_ANY_TAG, world,
                         &posted[0]);
    if (call->mine && code == MPI_SUCCESS)
        code = MPI_Isend((const char *)call->mine + offset, n, MPI_BYTE, call->peer,
                         tag_of(mpi, call), world, &posted[1]);
    return code;
}

static int64_t piece_elements(const struct dt_request *request, int i)
{
    return dt_min_i64(request->call.count - i * piece_limit, piece_limit);
}

int dt_mpi_post(struct mpi_comm *mpi, struct dt_request *request)
{
    const struct dt_collective *call = &request->call;
    int64_t size = mpi->base.info.size;
    bool is_large = call->count * request->element_bytes / size >= DT_MPI_RING_CHUNK_MIN;
    request->ring = dt_operation_kinds[call->operation].in_blocks || call->order == DT_SUM_TREE ||
                    (call->operation == DT_ALLREDUCE && size > 1 && is_large);
    if (request->ring) {
        request->given = size > 1 ? 0 : call->count; // a single rank has nothing to do
        return MPI_SUCCESS;
    }
    request->n_pieces = (int)dt_ceil_div(call->count, piece_limit);
    request->pieces = malloc(2 * (size_t)request->n_pieces * sizeof *request->pieces + 1);
    if (!request->pieces)
        return MPI_ERR_NO_MEM;
    for (int i = 0; i < 2 * request->n_pieces; i++)
        request->pieces[i] = MPI_REQUEST_NULL;
    for (int i = 0; i < request->n_pieces; i++) {
        int code = post_piece(mpi, call, i * piece_limit, (int)piece_elements(request, i),
                              &request->pieces[2 * i]);
        if (code != MPI_SUCCESS)
            return code;
    }
    return MPI_SUCCESS;
}

// Compares message i of an exchange with the one that was expected. MPI accepts one that is
// shorter.
static void check_message(const struct mpi_comm *mpi, struct dt_request *request, int i,
                          const MPI_Status *status, bool longer)
{
    const struct dt_collective *call = &request->call;
    int bytes = 0;
    MPI_Get_count(status, MPI_BYTE, &bytes);
    const long long sent = i * piece_limit + bytes, wanted = call->count;
    const int tag = tag_of(mpi, call);
    if (longer)
        snprintf(request->failure, sizeof request->failure, "rank %d sent more than %lld bytes",
                 call->peer, wanted);
    else if (bytes != piece_elements(request, i))
        snprintf(request->failure, sizeof request->failure,
                 "rank %d sent %lld bytes instead of %lld", call->peer, sent, wanted);
    else if (status->MPI_TAG != tag)
        snprintf(request->failure, sizeof request->failure,
                 "rank %d sent other data than this rank expects: signature %d instead of %d",
                 call->peer, status->MPI_TAG, tag);
    request->mismatch |= request->failure[0] != '\0';
}

int dt_mpi_test(const struct mpi_comm *mpi, struct dt_request *request, bool *done)
{
    bool receives = request->call.operation == DT_EXCHANGE && request->call.data;
    *done = request->ring && request->given == request->call.count && request->rings == 0;
    if (request->ring)
        return MPI_SUCCESS;
    for (int i = 0; i < 2 * request->n_pieces; i++) {
        MPI_Status status;
        int arrived = 1, code;
        if (request->pieces[i] == MPI_REQUEST_NULL)
            continue;
        code = MPI_Test(&request->pieces[i], &arrived, &status);
        const bool received = receives && i % 2 == 0, longer = received && code == MPI_ERR_TRUNCATE;
        if ((code != MPI_SUCCESS && !longer) || !arrived)
            return code;
        if (received)
            check_message(mpi, request, i / 2, &status, longer);
    }
    *done = true;
    return MPI_SUCCESS;
}

// ---- by rings

// Chunk k of a ring's piece: part k of `size` (all-reduce), or the piece in block k.
static struct mpi_part chunk(const struct mpi_comm *mpi, const struct mpi_ring *ring, int k)
{
    const struct dt_collective *call = &ring->owner->call;
    int64_t start = k * call->count, n = ring->count, size = mpi->base.info.size;
    if (call->operation == DT_ALLREDUCE) {
        start = ring->count * k / size;
        n = ring->count * (k + 1) / size - start;
    }
    return (struct mpi_part){.first = ring->first + start, .n = n, .runs = 1};
}

// Each step receives a chunk from the previous rank and sends the following chunk to the next rank.
// All-reduce: partial sums start at chunk `rank`, and after size - 1 steps chunk rank + 1 is
// complete here. Other operations begin one chunk earlier, so that block `rank` gets complete.
static struct mpi_step step_of(const struct mpi_comm *mpi, const struct mpi_ring *ring)
{
    int rank = mpi->base.info.rank, size = mpi->base.info.size;
    bool adds = ring->step < size - 1;
    int shift = adds ? ring->step : ring->step - size;
    int earlier = ring->owner->call.operation != DT_ALLREDUCE;
    int k = (rank - shift - earlier - 1 + 2 * size) % size;
    if (ring->owner->call.order == DT_SUM_TREE)
        return dt_mpi_tree_step(mpi, ring);
    return (struct mpi_step){.to = (rank + 1) % size,
                             .from = (rank + size - 1) % size,
                             .adds = adds,
                             .out = chunk(mpi, ring, (k + 1) % size),
                             .in = chunk(mpi, ring, k)};
}

static char *address(const struct mpi_ring *ring, const struct mpi_part *part, int run)
{
    const struct dt_request *request = ring->owner;
    return (char *)request->call.data + (part->first + run * part->stride) * request->element_bytes;
}

static int send(struct mpi_comm *mpi, struct mpi_ring *ring, const struct mpi_part *part, int to)
{
    int64_t each = ring->owner->element_bytes;
    char *data = address(ring, part, 0);
    int bytes = (int)(part->n * each), code;
    MPI_Datatype runs;
    if (part->runs == 1)
        return MPI_Isend(data, bytes, MPI_BYTE, to, ring->tag, mpi->ring_world, &ring->mpi[1]);
    code = MPI_Type_create_hvector(part->runs, bytes, (MPI_Aint)(part->stride * each), MPI_BYTE,
                                   &runs);
    if (code != MPI_SUCCESS)
        return code;
    code = MPI_Type_commit(&runs);
    if (code == MPI_SUCCESS)
        code = MPI_Isend(data, 1, runs, to, ring->tag, mpi->ring_world, &ring->mpi[1]);
    MPI_Type_free(&runs); // freed once the message has left
    return code;
}

static int post_step(struct mpi_comm *mpi, struct mpi_ring *ring)
{
    struct mpi_step step = step_of(mpi, ring);
    void *place = step.adds ? mpi->scratch[ring - mpi->rings] : address(ring, &step.in, 0);
    int bytes = (int)(step.in.runs * step.in.n * ring->owner->element_bytes);
    int code =
        MPI_Irecv(place, bytes, MPI_BYTE, step.from, ring->tag, mpi->ring_world, &ring->mpi[0]);
    return code == MPI_SUCCESS ? send(mpi, ring, &step.out, step.to) : code;
}

static int ring_start(struct mpi_comm *mpi, struct mpi_ring *ring, struct dt_request *request)
{
    enum dt_operation operation = request->call.operation;
    bool tree = request->call.order == DT_SUM_TREE;
    int size = mpi->base.info.size;
    int64_t most = DT_MPI_RING_CHUNK / request->element_bytes;
    if (operation == DT_ALLREDUCE)
        most *= size;
    if (tree)
        most = dt_mpi_tree_most(mpi, request);
    *ring = (struct mpi_ring){.owner = request,
                              .first = request->given,
                              .count = dt_min_i64(request->call.count - request->given, most),
                              .step = operation == DT_ALL_GATHER ? size - 1 : 0,
                              .end = operation == DT_REDUCE_SCATTER ? size - 1 : 2 * (size - 1),
                              // every rank starts rings in the same order, so the tags agree
                              .tag = (int)(mpi->rings_started++ % 32768)};
    if (tree)
        ring->end = dt_mpi_tree_steps(mpi, ring);
    request->given += ring->count;
    request->rings++;
    return post_step(mpi, ring);
}

static int ring_progress(struct mpi_comm *mpi, struct mpi_ring *ring, bool *moved)
{
    MPI_Status statuses[2]; // gcc takes MPICH's MPI_STATUSES_IGNORE for an array that is too small
    int arrived = 0, code = MPI_Testall(2, ring->mpi, &arrived, statuses);
    if (code != MPI_SUCCESS || !arrived)
        return code;
    *moved = true;
    struct mpi_step step = step_of(mpi, ring);
    const struct dt_collective *call = &ring->owner->call;
    const char *received = mpi->scratch[ring - mpi->rings];
    for (int run = 0; step.adds && run < step.in.runs && code == MPI_SUCCESS; run++)
        code = MPI_Reduce_local(received + run * step.in.n * ring->owner->element_bytes,
                                address(ring, &step.in, run), (int)step.in.n, type_of(call->dtype),
                                op_of(mpi, call));
    if (code != MPI_SUCCESS)
        return code;
    if (++ring->step < ring->end)
        return post_step(mpi, ring);
    ring->owner->rings--;
    ring->owner = NULL;
    return MPI_SUCCESS;
}

int dt_mpi_advance_rings(struct mpi_comm *mpi, bool *moved)
{
    // Free rings get the next pieces strictly in the order of requests: if a later request overtook
    // an earlier one on some rank, their rings could wait for each other forever.
    struct dt_request *request = mpi->active;
    int code = MPI_SUCCESS;
    for (int i = 0; i < DT_MPI_RINGS && code == MPI_SUCCESS; i++) {
        while (request && (!request->ring || request->given == request->call.count))
            request = request->next;
        if (request && !mpi->rings[i].owner)
            code = ring_start(mpi, &mpi->rings[i], request);
    }
    for (int i = 0; i < DT_MPI_RINGS && code == MPI_SUCCESS; i++)
        if (mpi->rings[i].owner)
            code = ring_progress(mpi, &mpi->rings[i], moved);
    return code;
}

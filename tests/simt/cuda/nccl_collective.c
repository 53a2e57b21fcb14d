// A collective of the simulated NCCL is work on a stream (enqueue.h), done in pieces. Each rank
// posts its piece. When all ranks have, each rank computes what it should get: the sum in the order
// of the ranks, or one rank's piece. An exchange is a group of at most a send and a receive through
// a box for each pair of ranks. A send ends when the peer has received it, as in NCCL for large
// messages. Different collectives at the same time are an error.
//
// Sums by NVLS are the same on all ranks, but each piece is added in a random order: with three
// ranks or more the bits differ from call to call.
#include "tests/simt/cuda/nccl_comm.h"

#include "base/dtype.h"
#include "tests/simt/cuda/enqueue.h"

#include <string.h>

static size_t size_of(ncclDataType_t type)
{
    if (type == ncclFloat64 || type == ncclInt64)
        return 8;
    if (type == ncclUint8)
        return 1;
    return type == ncclBfloat16 ? 2 : 4;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

// Elements of the next piece, which must not cross the end of a block.
static uint64_t piece_of(const struct call *op)
{
    bool in_blocks = op->kind == REDUCE_SCATTER || op->kind == ALL_GATHER;
    uint64_t block = in_blocks ? op->count / (uint64_t)op->comm->size : op->count;
    return smaller(block - op->at % block, PIECE / size_of(op->type));
}

// The rank whose block the next piece is in.
static int owner_of(const struct call *op)
{
    return (int)(op->at / (op->count / (uint64_t)op->comm->size));
}

// The rank whose piece is added first. The others follow in order.
static int first_of_sum(const struct ncclComm *comm)
{
    uint64_t mixed = (comm->noise + comm->piece) * 0x9e3779b97f4a7c15U;
    return comm->nvls ? (int)((mixed >> 32) % (uint64_t)comm->size) : 0;
}

static const char *piece_in_turn(const struct ncclComm *comm, int first, int turn)
{
    return comm->meeting->pieces[(first + turn) % comm->size][comm->piece % 2];
}

#define SUM_OF(name, element, number, widen, round)                                                \
    static void name(const struct ncclComm *comm, void *to, uint64_t n)                            \
    {                                                                                              \
        int first = first_of_sum(comm);                                                            \
        for (uint64_t i = 0; i < n; i++) {                                                         \
            number sum = 0;                                                                        \
            for (int r = 0; r < comm->size; r++)                                                   \
                sum += widen(((const element *)(const void *)piece_in_turn(comm, first, r))[i]);   \
            ((element *)to)[i] = round(sum);                                                       \
        }                                                                                          \
    }
SUM_OF(sum_doubles, double, double, , )
SUM_OF(sum_integers, int64_t, int64_t, , )
SUM_OF(sum_floats, float, float, , )
// Sums are made in fp32 and rounded once.
SUM_OF(sum_halves, dt_bf16, float, dt_bf16_to_f32, dt_f32_to_bf16)

static struct signature sign(const struct call *op, uint64_t at)
{
    struct signature signature;
    memset(&signature, 0, sizeof signature);
    signature = (struct signature){op->count, at, (int)op->type, (int)op->kind};
    return signature;
}

static bool same(const struct signature *a, const struct signature *b)
{
    return a->count == b->count && a->at == b->at && a->type == b->type && a->kind == b->kind;
}

static void post(struct call *op)
{
    struct ncclComm *comm = op->comm;
    struct seat *seat = &comm->meeting->seats[comm->rank];
    size_t bytes = size_of(op->type), block = (size_t)(op->count / (uint64_t)comm->size);
    const char *from = op->from + op->at * bytes;
    if (op->kind == ALL_GATHER) // `from` is this rank's block alone
        from -= (size_t)comm->rank * block * bytes;
    if (op->kind != ALL_GATHER || owner_of(op) == comm->rank)
        memcpy(comm->meeting->pieces[comm->rank][comm->piece % 2], from, piece_of(op) * bytes);
    seat->signatures[comm->piece % 2] = sign(op, op->at);
    atomic_store(&seat->posted, comm->piece);
    op->posted = true;
}

static void sum(const struct call *op, char *to, uint64_t n)
{
    if (op->type == ncclFloat64)
        sum_doubles(op->comm, to, n);
    else if (op->type == ncclInt64)
        sum_integers(op->comm, to, n);
    else if (op->type == ncclBfloat16)
        sum_halves(op->comm, to, n);
    else
        sum_floats(op->comm, to, n);
}

static void get_piece(struct call *op)
{
    struct ncclComm *comm = op->comm;
    uint64_t n = piece_of(op);
    size_t bytes = size_of(op->type);
    if (op->kind == ALL_GATHER)
        memcpy(op->to + op->at * bytes, comm->meeting->pieces[owner_of(op)][comm->piece % 2],
               n * bytes);
    else if (op->kind == ALLREDUCE)
        sum(op, op->to + op->at * bytes, n);
    else if (owner_of(op) == comm->rank) // `to` is this rank's block alone
        sum(op, op->to + op->at % (op->count / (uint64_t)comm->size) * bytes, n);
    atomic_store(&comm->meeting->seats[comm->rank].done, comm->piece);
    comm->piece++;
    op->at += n;
    op->posted = false;
}

static bool run_collective(struct call *op)
{
    struct ncclComm *comm = op->comm;
    struct signature mine = sign(op, op->at);
    bool may_post = true, all_posted = true, all_same = true;
    for (int r = 0; r < comm->size; r++) {
        const struct seat *seat = &comm->meeting->seats[r];
        // The place for this piece holds the one two pieces before, which all must have used.
        may_post = may_post && atomic_load(&seat->done) + 2 >= comm->piece;
    }
    if (op->at < op->count && !op->posted && may_post)
        post(op);
    for (int r = 0; r < comm->size; r++) {
        const struct seat *seat = &comm->meeting->seats[r];
        all_posted = all_posted && atomic_load(&seat->posted) >= comm->piece;
        all_same = all_same && all_posted && same(&seat->signatures[comm->piece % 2], &mine);
    }
    if (op->posted && all_posted && all_same)
        get_piece(op);
    else if (op->posted && all_posted)
        turn_bad(comm, ncclInvalidUsage, "the ranks do different things");
    return op->at == op->count;
}

// ---- exchanges, on the device's thread

static void send_piece(struct call *op)
{
    struct box *box = &op->comm->meeting->boxes[op->comm->rank][op->peer];
    size_t bytes = size_of(op->type);
    uint64_t n = smaller(op->out - op->sent, PIECE / bytes), sent = atomic_load(&box->sent);
    if (n == 0 || sent > atomic_load(&box->received))
        return;
    memcpy(box->piece, op->from + op->sent * bytes, n * bytes);
    box->signature = sign(op, op->sent);
    box->signature.count = op->out;
    atomic_store(&box->sent, sent + 1);
    op->sent += n;
}

static void receive_piece(struct call *op)
{
    struct box *box = &op->comm->meeting->boxes[op->peer][op->comm->rank];
    struct signature mine = sign(op, op->at);
    size_t bytes = size_of(op->type);
    uint64_t n = smaller(op->count - op->at, PIECE / bytes), received = atomic_load(&box->received);
    if (n == 0 || atomic_load(&box->sent) == received)
        return;
    if (!same(&box->signature, &mine)) {
        turn_bad(op->comm, ncclInvalidUsage, "send and receive differ");
        return;
    }
    memcpy(op->to + op->at * bytes, box->piece, n * bytes);
    op->at += n;
    atomic_store(&box->received, received + 1);
}

static bool run_exchange(struct call *op)
{
    const struct box *box = &op->comm->meeting->boxes[op->comm->rank][op->peer];
    if (op->from)
        send_piece(op);
    if (op->to)
        receive_piece(op);
    bool is_sent = !op->from ||
                   (op->sent == op->out && atomic_load(&box->received) == atomic_load(&box->sent));
    return is_sent && (!op->to || op->at == op->count);
}

// ---- all operations, on the device's thread

// Begins a call. A communicator does one at a time, as NCCL does.
static bool begin(struct call *op)
{
    struct ncclComm *comm = op->comm;
    if ((op->turn > 0 && op->turn != comm->ended + 1) || atomic_exchange(&comm->busy, true))
        return false;
    comm->begun++;
    op->begun = true;
    atomic_store(&simt_nccl_priority, simt_priority());
    if (comm->begun == comm->error_at)
        turn_bad(comm, ncclSystemError, "the fault that was asked for");
    return true;
}

// Works on a call. Returns whether it is done.
bool run_call(void *context)
{
    struct call *op = context;
    struct ncclComm *comm = op->comm;
    if (atomic_load(&comm->aborted))
        return true;
    if (!op->begun && !begin(op))
        return false;
    if (atomic_load(&comm->error) != ncclSuccess || comm->begun == comm->stall_at)
        return false;
    if (!(op->kind == EXCHANGE ? run_exchange(op) : run_collective(op)))
        return false;
    comm->ended += op->turn > 0;
    atomic_store(&comm->busy, false);
    return true;
}

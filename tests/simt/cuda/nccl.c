// Stands in for NCCL over the simulated device, for ranks of one host. They meet in shared memory
// without a name (a memfd that rank 0 makes, and that the others open through /proc), so that
// nothing of it remains, however they end. A rank holds a lock on its byte of that file, which
// the kernel removes with the process: that is how its peers see it gone.
//
// A collective is work on a stream (enqueue.h) in pieces. Each rank posts its piece, and when all
// have, each gets what is meant for it: the sum in the order of the ranks, or one rank's piece. An
// exchange is one group of at most a send and a receive, through a box for each pair of ranks; a
// send ends when the peer has received it, as NCCL's does where the message is large. What NCCL
// leaves undefined is an error here: different collectives at the same time, a second call before
// the first was polled to its end. A call is put on the stream only by the poll that says so: who
// does not poll finds it missing.
//
// Faults, by the environment; "@R" restricts one to rank R:
//   SIMT_NCCL_ERROR=N[@R]   ncclSystemError, reported when the N-th collective (from 1) begins
//   SIMT_NCCL_STALL=N[@R]   the N-th collective never ends
//   SIMT_NCCL_HANG=N[@R]    the N-th call is in progress for ever
//   SIMT_NCCL_INIT=stall[@R] or fail[@R]
//   SIMT_NCCL_DEAF=1        a peer that is gone is no error, as among the GPUs of one real host
//
// SIMT_NCCL_NVLS=1: the machine has NVLS, by which sums are made unless the environment excludes
// it. They are the same on all ranks, but each piece is added in an order drawn by chance: with
// three ranks and more the bits differ from call to call.
#include <nccl.h>

#include "base/dtype.h"
#include "tests/simt/cuda/enqueue.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { RANKS = 16, PIECE = 1 << 18, POLLS = 3 };

#define EXPORT __attribute__((visibility("default")))

// What a rank posted, for the others to see that all do the same.
struct signature {
    uint64_t count, at;
    int type, kind;
};

struct seat {
    _Atomic(int) size; // that the rank knows of; 0: it has not come
    char uuid[16];
    _Atomic(uint64_t) posted, done; // pieces, since the start
    _Atomic(bool) finalized;
    struct signature signatures[2]; // of the last two pieces, as the pieces
};

// From one rank to another.
struct box {
    _Atomic(uint64_t) sent, received; // pieces
    struct signature signature;
    char piece[PIECE];
};

struct meeting {
    struct seat seats[RANKS];
    char pieces[RANKS][2][PIECE];
    struct box boxes[RANKS][RANKS]; // [from, to]
};

enum stage { JOINING, READY, FINALIZING, FINALIZED };

enum kind { ALLREDUCE, REDUCE_SCATTER, ALL_GATHER, EXCHANGE };

struct call {
    struct ncclComm *comm;
    enum kind kind;
    const char *from; // what this rank gives: an exchange's send, or NULL
    char *to;         // where what it gets goes: an exchange's receive, or NULL
    int peer;
    uint64_t count; // elements, of the whole: of all blocks where there are some; received ones
    uint64_t at;    // … done so far
    uint64_t out;   // exchange: elements that are sent
    uint64_t sent;  // … so far
    ncclDataType_t type;
    bool begun, posted;
};

struct ncclComm {
    int rank, size, fd;
    int id_fd; // rank 0's, open until all have come; -1
    struct meeting *meeting;
    enum stage stage;
    bool blocking, deaf, nvls;
    uint64_t noise;             // the same on all ranks, another in each job
    int64_t stall_at, error_at; // the how many-eth collective; 0: none
    int64_t hang_at, calls;     // the how many-eth call, and calls so far
    bool never_joins;
    _Atomic(int) error;
    bool has_call; // one that is not on its stream yet
    int polls;
    struct call call;
    void *stream;
    // the device's thread's
    _Atomic(bool) busy, aborted;
    int64_t begun;
    uint64_t piece;
};

struct id {
    int pid, fd;
    uint64_t noise;
};

static const char *_Atomic last_error = "";

static ncclResult_t fail(ncclResult_t result, const char *text)
{
    atomic_store(&last_error, text);
    return result;
}

static ncclResult_t turn_bad(struct ncclComm *comm, ncclResult_t result, const char *text)
{
    int none = ncclSuccess;
    if (atomic_compare_exchange_strong(&comm->error, &none, (int)result))
        fail(result, text);
    return (ncclResult_t)atomic_load(&comm->error);
}

// ---- the faults asked for

// The text of a setting that means this rank, or NULL.
static const char *setting(const char *name, int rank)
{
    const char *text = getenv(name), *at = text ? strchr(text, '@') : NULL;
    return at && atoi(at + 1) != rank ? NULL : text;
}

static int64_t number(const char *name, int rank)
{
    const char *text = setting(name, rank);
    return text ? atoll(text) : 0;
}

// ---- meeting

static ncclResult_t open_meeting(struct ncclComm *comm, const struct id *id)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", id->pid, id->fd);
    comm->fd = open(path, O_RDWR | O_CLOEXEC);
    if (comm->fd < 0)
        return fail(ncclSystemError, "rank 0 cannot be reached");
    comm->id_fd = comm->rank == 0 ? id->fd : -1;
    void *memory =
        mmap(NULL, sizeof *comm->meeting, PROT_READ | PROT_WRITE, MAP_SHARED, comm->fd, 0);
    if (memory == MAP_FAILED)
        return fail(ncclSystemError, "no shared memory");
    comm->meeting = memory;
    return ncclSuccess;
}

static struct flock byte_of(int rank)
{
    return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1};
}

static ncclResult_t take_seat(struct ncclComm *comm)
{
    struct flock byte = byte_of(comm->rank);
    struct seat *seat = &comm->meeting->seats[comm->rank];
    struct cudaDeviceProp properties;
    int device;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaGetDeviceProperties(&properties, device) != cudaSuccess)
        return fail(ncclUnhandledCudaError, "no device");
    if (fcntl(comm->fd, F_OFD_SETLK, &byte) != 0 || atomic_load(&seat->size) != 0)
        return fail(ncclInvalidArgument, "two ranks have one number");
    memcpy(seat->uuid, properties.uuid.bytes, sizeof seat->uuid);
    atomic_store(&seat->size, comm->size);
    return ncclSuccess;
}

static bool is_gone(const struct ncclComm *comm, int rank)
{
    struct flock byte = byte_of(rank);
    const struct seat *seat = &comm->meeting->seats[rank];
    if (rank == comm->rank || atomic_load(&seat->size) == 0 || atomic_load(&seat->finalized))
        return false;
    return fcntl(comm->fd, F_OFD_GETLK, &byte) == 0 && byte.l_type == F_UNLCK;
}

static bool share_a_device(const struct ncclComm *comm)
{
    const struct seat *seats = comm->meeting->seats;
    const char *allowed = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    if (allowed && atoi(allowed))
        return false;
    for (int r = 0; r < comm->size; r++)
        for (int other = 0; other < r; other++)
            if (memcmp(seats[r].uuid, seats[other].uuid, sizeof seats[r].uuid) == 0)
                return true;
    return false;
}

static ncclResult_t join(struct ncclComm *comm)
{
    if (comm->never_joins)
        return ncclInProgress;
    for (int r = 0; r < comm->size; r++) {
        int size = atomic_load(&comm->meeting->seats[r].size);
        if (size == 0)
            return ncclInProgress;
        if (size != comm->size)
            return turn_bad(comm, ncclInvalidArgument, "the ranks disagree on their number");
    }
    if (share_a_device(comm))
        return turn_bad(comm, ncclInvalidUsage, "Duplicate GPU detected");
    if (comm->id_fd >= 0)
        close(comm->id_fd);
    comm->id_fd = -1;
    comm->stage = READY;
    return ncclSuccess;
}

// ---- a collective, on the device's thread

static size_t size_of(ncclDataType_t type)
{
    if (type == ncclFloat64 || type == ncclInt64)
        return 8;
    return type == ncclBfloat16 ? 2 : 4;
}

static bool in_blocks(const struct call *op)
{
    return op->kind == REDUCE_SCATTER || op->kind == ALL_GATHER;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

// Elements of the next piece, which lies in one block.
static uint64_t piece_of(const struct call *op)
{
    uint64_t block = in_blocks(op) ? op->count / (uint64_t)op->comm->size : op->count;
    return smaller(block - op->at % block, PIECE / size_of(op->type));
}

// The rank whose block that piece lies in.
static int owner_of(const struct call *op)
{
    return (int)(op->at / (op->count / (uint64_t)op->comm->size));
}

static float get(const char *piece, ncclDataType_t type, uint64_t i)
{
    float x;
    dt_bf16 half;
    if (type == ncclBfloat16) {
        memcpy(&half, piece + i * sizeof half, sizeof half);
        return dt_bf16_to_f32(half);
    }
    memcpy(&x, piece + i * sizeof x, sizeof x);
    return x;
}

// The rank whose piece is added first; the others follow in turn.
static int first_of_sum(const struct ncclComm *comm)
{
    uint64_t mixed = (comm->noise + comm->piece) * 0x9e3779b97f4a7c15U;
    return comm->nvls ? (int)((mixed >> 32) % (uint64_t)comm->size) : 0;
}

static const char *piece_in_turn(const struct ncclComm *comm, int first, int turn)
{
    return comm->meeting->pieces[(first + turn) % comm->size][comm->piece % 2];
}

#define SUM_OF(name, number)                                                                       \
    static void name(const struct ncclComm *comm, number *to, uint64_t n)                          \
    {                                                                                              \
        int first = first_of_sum(comm);                                                            \
        for (uint64_t i = 0; i < n; i++) {                                                         \
            to[i] = 0;                                                                             \
            for (int r = 0; r < comm->size; r++)                                                   \
                to[i] += ((const number *)(const void *)piece_in_turn(comm, first, r))[i];         \
        }                                                                                          \
    }
SUM_OF(sum_doubles, double)
SUM_OF(sum_integers, int64_t)

// Of bf16 the sum is made in fp32 and rounded once.
static void sum_floats(const struct ncclComm *comm, char *to, uint64_t n, ncclDataType_t type)
{
    int first = first_of_sum(comm);
    for (uint64_t i = 0; i < n; i++) {
        float sum = 0;
        for (int r = 0; r < comm->size; r++)
            sum += get(piece_in_turn(comm, first, r), type, i);
        dt_bf16 half = dt_f32_to_bf16(sum);
        if (type == ncclBfloat16)
            memcpy(to + i * sizeof half, &half, sizeof half);
        else
            memcpy(to + i * sizeof sum, &sum, sizeof sum);
    }
}

// Nobody needs what the place for this piece held two pieces ago.
static bool may_post(const struct ncclComm *comm)
{
    for (int r = 0; r < comm->size; r++)
        if (atomic_load(&comm->meeting->seats[r].done) + 2 < comm->piece)
            return false;
    return true;
}

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
    if (op->kind == ALL_GATHER) // `from` is this rank's own block
        from -= (size_t)comm->rank * block * bytes;
    if (op->kind != ALL_GATHER || owner_of(op) == comm->rank)
        memcpy(comm->meeting->pieces[comm->rank][comm->piece % 2], from, piece_of(op) * bytes);
    seat->signatures[comm->piece % 2] = sign(op, op->at);
    atomic_store(&seat->posted, comm->piece);
    op->posted = true;
}

static bool all_posted(const struct ncclComm *comm)
{
    for (int r = 0; r < comm->size; r++)
        if (atomic_load(&comm->meeting->seats[r].posted) < comm->piece)
            return false;
    return true;
}

static bool all_same(const struct ncclComm *comm, const struct call *op)
{
    struct signature mine = sign(op, op->at);
    for (int r = 0; r < comm->size; r++)
        if (!same(&comm->meeting->seats[r].signatures[comm->piece % 2], &mine))
            return false;
    return true;
}

static void sum(const struct call *op, char *to, uint64_t n)
{
    if (op->type == ncclFloat64)
        sum_doubles(op->comm, (double *)(void *)to, n);
    else if (op->type == ncclInt64)
        sum_integers(op->comm, (int64_t *)(void *)to, n);
    else
        sum_floats(op->comm, to, n, op->type);
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
    if (op->at < op->count && !op->posted && may_post(comm))
        post(op);
    if (op->posted && all_posted(comm)) {
        if (!all_same(comm, op)) {
            turn_bad(comm, ncclInvalidUsage, "the ranks do different things");
            return false;
        }
        get_piece(op);
    }
    return op->at == op->count;
}

// ---- an exchange, on the device's thread

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

// ---- any of them, on the device's thread

// One thing at a time in a communicator, as NCCL orders it.
static bool begin(struct call *op)
{
    struct ncclComm *comm = op->comm;
    if (atomic_exchange(&comm->busy, true))
        return false;
    comm->begun++;
    op->begun = true;
    if (comm->begun == comm->error_at)
        turn_bad(comm, ncclSystemError, "the fault that was asked for");
    return true;
}

// Whether it is done.
static bool run(void *context)
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
    atomic_store(&comm->busy, false);
    return true;
}

// ---- the interface

EXPORT ncclResult_t ncclGetVersion(int *version)
{
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

EXPORT const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const texts[] = {
        "no error",
        "unhandled cuda error",
        "unhandled system error",
        "internal error",
        "invalid argument",
        "invalid usage",
        "remote process exited or there was a network error",
        "NCCL operation in progress",
    };
    return (size_t)result < sizeof texts / sizeof texts[0] ? texts[result] : "unknown result code";
}

EXPORT const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return atomic_load(&last_error);
}

EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId *out)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    struct id id = {getpid(), memfd_create("nccl", MFD_CLOEXEC), (uint64_t)now.tv_nsec};
    if (id.fd < 0 || ftruncate(id.fd, sizeof(struct meeting)) != 0)
        return fail(ncclSystemError, "no shared memory");
    memset(out, 0, sizeof *out);
    memcpy(out->internal, &id, sizeof id);
    return ncclSuccess;
}

// Whether NCCL_ALGO leaves NVLS to an all-reduce on one host. Names are compared whole, as NCCL
// does, so that NVLSTree is another.
static bool allows_nvls(const char *algo)
{
    char text[256], *entries, *names;
    bool allows = true;
    snprintf(text, sizeof text, "%s", algo);
    for (char *entry = strtok_r(text, ";", &entries); entry;
         entry = strtok_r(NULL, ";", &entries)) {
        char *colon = strchr(entry, ':'), *list = colon ? colon + 1 : entry;
        if (colon && strncasecmp(entry, "allreduce:", 10) != 0)
            continue;
        bool except = *list == '^', named = false;
        for (char *name = strtok_r(list + except, ",", &names); name;
             name = strtok_r(NULL, ",", &names))
            named |= strcasecmp(name, "nvls") == 0;
        allows = named != except;
    }
    return allows;
}

static bool uses_nvls(void)
{
    const char *enable = getenv("NCCL_NVLS_ENABLE"), *algo = getenv("NCCL_ALGO");
    bool on = !enable || !enable[0] || strtoll(enable, NULL, 0) != 0;
    return getenv("SIMT_NCCL_NVLS") && on && (!algo || allows_nvls(algo));
}

static void set_faults(struct ncclComm *comm)
{
    const char *init = setting("SIMT_NCCL_INIT", comm->rank);
    comm->stall_at = number("SIMT_NCCL_STALL", comm->rank);
    comm->error_at = number("SIMT_NCCL_ERROR", comm->rank);
    comm->hang_at = number("SIMT_NCCL_HANG", comm->rank);
    comm->deaf = getenv("SIMT_NCCL_DEAF") != NULL;
    comm->never_joins = init && strncmp(init, "stall", 5) == 0;
    if (init && strncmp(init, "fail", 4) == 0)
        turn_bad(comm, ncclSystemError, "the fault that was asked for");
}

static ncclResult_t poll(struct ncclComm *comm);

static ncclResult_t finish(struct ncclComm *comm, ncclResult_t result)
{
    while (comm->blocking && result == ncclInProgress) {
        result = poll(comm);
        usleep(20);
    }
    return result;
}

EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int size, ncclUniqueId unique, int rank,
                                           ncclConfig_t *config)
{
    struct id id;
    memcpy(&id, unique.internal, sizeof id);
    *out = NULL;
    if (config->magic != 0xcafebeef || size < 1 || size > RANKS || rank < 0 || rank >= size)
        return fail(ncclInvalidArgument, "communicator of so many ranks");
    struct ncclComm *comm = calloc(1, sizeof *comm);
    if (!comm)
        return fail(ncclSystemError, "no memory");
    *out = comm;
    comm->rank = rank;
    comm->size = size;
    comm->fd = -1;
    comm->id_fd = -1;
    comm->piece = 1;
    comm->nvls = uses_nvls();
    comm->noise = id.noise;
    comm->blocking = config->blocking != 0;
    set_faults(comm);
    if (atomic_load(&comm->error) != ncclSuccess)
        return (ncclResult_t)atomic_load(&comm->error);
    ncclResult_t result = open_meeting(comm, &id);
    if (result == ncclSuccess && !comm->never_joins)
        result = take_seat(comm);
    if (result != ncclSuccess)
        return turn_bad(comm, result, atomic_load(&last_error));
    return finish(comm, ncclInProgress);
}

static ncclResult_t put_call(struct ncclComm *comm)
{
    if (--comm->polls > 0 || comm->calls == comm->hang_at)
        return ncclInProgress;
    comm->has_call = false;
    simt_enqueue("NCCL", comm->stream, run, &comm->call, sizeof comm->call);
    return ncclSuccess;
}

static ncclResult_t finalize(struct ncclComm *comm)
{
    if (atomic_load(&comm->busy))
        return ncclInProgress;
    atomic_store(&comm->meeting->seats[comm->rank].finalized, true);
    for (int r = 0; r < comm->size; r++)
        if (!atomic_load(&comm->meeting->seats[r].finalized))
            return ncclInProgress;
    comm->stage = FINALIZED;
    return ncclSuccess;
}

static ncclResult_t poll(struct ncclComm *comm)
{
    for (int r = 0; r < comm->size && comm->meeting && !comm->deaf; r++)
        if (is_gone(comm, r))
            turn_bad(comm, ncclRemoteError, "a peer's process is gone");
    if (atomic_load(&comm->error) != ncclSuccess)
        return (ncclResult_t)atomic_load(&comm->error);
    if (comm->stage == JOINING)
        return join(comm);
    if (comm->has_call)
        return put_call(comm);
    return comm->stage == FINALIZING ? finalize(comm) : ncclSuccess;
}

EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *result)
{
    *result = poll(comm);
    return ncclSuccess;
}

static ncclResult_t check_call(const struct ncclComm *comm, ncclDataType_t type, ncclRedOp_t op)
{
    if (atomic_load(&comm->error) != ncclSuccess)
        return (ncclResult_t)atomic_load(&comm->error);
    if (comm->stage != READY || comm->has_call)
        return fail(ncclInvalidUsage, "a call before the one before it was polled to its end");
    if (op != ncclSum ||
        (type != ncclFloat32 && type != ncclFloat64 && type != ncclBfloat16 && type != ncclInt64))
        return fail(ncclInvalidArgument, "only sums of fp32, bf16, fp64 and int64 here");
    return ncclSuccess;
}

static ncclResult_t accept(struct ncclComm *comm, const struct call *call, cudaStream_t stream)
{
    comm->call = *call;
    comm->call.comm = comm;
    comm->stream = stream;
    comm->has_call = true;
    comm->calls++;
    comm->polls = POLLS;
    return finish(comm, ncclInProgress);
}

static ncclResult_t collective(struct ncclComm *comm, const struct call *call, ncclRedOp_t op,
                               cudaStream_t stream)
{
    ncclResult_t result = check_call(comm, call->type, op);
    return result == ncclSuccess ? accept(comm, call, stream) : result;
}

EXPORT ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type,
                                  ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    struct call call = {.kind = ALLREDUCE, .from = from, .to = to, .count = count, .type = type};
    return collective(comm, &call, op, stream);
}

EXPORT ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type,
                                      ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    struct call call = {.kind = REDUCE_SCATTER,
                        .from = from,
                        .to = to,
                        .count = count * (uint64_t)comm->size,
                        .type = type};
    return collective(comm, &call, op, stream);
}

EXPORT ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type,
                                  ncclComm_t comm, cudaStream_t stream)
{
    struct call call = {.kind = ALL_GATHER,
                        .from = from,
                        .to = to,
                        .count = count * (uint64_t)comm->size,
                        .type = type};
    return collective(comm, &call, ncclSum, stream);
}

// The group of this thread: a send and a receive with one peer make an exchange.
static _Thread_local struct group {
    bool open;
    struct call call;
    cudaStream_t stream;
} group;

static ncclResult_t join_group(struct ncclComm *comm, const struct call *half, cudaStream_t stream)
{
    struct call *call = &group.call;
    ncclResult_t result = check_call(comm, half->type, ncclSum);
    if (result != ncclSuccess)
        return result;
    if (!group.open || (half->from && call->from) || (half->to && call->to))
        return fail(ncclInvalidUsage, "only a send and a receive in one group here");
    if (call->comm && (call->comm != comm || call->peer != half->peer || call->type != half->type))
        return fail(ncclInvalidUsage, "only with one peer and of one type here");
    call->comm = comm;
    call->kind = EXCHANGE;
    call->peer = half->peer;
    call->type = half->type;
    if (half->from)
        call->out = half->count;
    else
        call->count = half->count;
    call->from = half->from ? half->from : call->from;
    call->to = half->to ? half->to : call->to;
    group.stream = stream;
    return ncclSuccess;
}

EXPORT ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer,
                             ncclComm_t comm, cudaStream_t stream)
{
    struct call half = {.from = from, .count = count, .type = type, .peer = peer};
    return join_group(comm, &half, stream);
}

EXPORT ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                             cudaStream_t stream)
{
    struct call half = {.to = to, .count = count, .type = type, .peer = peer};
    return join_group(comm, &half, stream);
}

EXPORT ncclResult_t ncclGroupStart(void)
{
    group = (struct group){.open = true};
    return ncclSuccess;
}

EXPORT ncclResult_t ncclGroupEnd(void)
{
    struct group ended = group;
    group = (struct group){.open = false};
    return ended.call.comm ? accept(ended.call.comm, &ended.call, ended.stream) : ncclSuccess;
}

EXPORT ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    if (comm->stage != READY || comm->has_call)
        return fail(ncclInvalidUsage, "finalized in the middle of a call");
    comm->stage = FINALIZING;
    return finish(comm, ncclInProgress);
}

static void free_comm(struct ncclComm *comm)
{
    if (comm->meeting)
        munmap(comm->meeting, sizeof *comm->meeting);
    if (comm->fd >= 0)
        close(comm->fd);
    if (comm->id_fd >= 0)
        close(comm->id_fd);
    free(comm);
}

EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    if (comm->stage != FINALIZED)
        return fail(ncclInvalidUsage, "destroyed before it was finalized");
    free_comm(comm);
    return ncclSuccess;
}

// What is left on streams ends with the next look of the device's thread, which needs `comm` for
// it.
EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    bool idle = !atomic_load(&comm->busy);
    atomic_store(&comm->aborted, true);
    if (idle)
        free_comm(comm);
    return ncclSuccess;
}

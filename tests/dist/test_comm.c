// Collectives over 1 to 4 ranks give the right results for every type, size and split, the same on
// all ranks, and the same bits when they are repeated. An agreed error is that of the lowest
// failing rank.
#include "base/clock.h"
#include "comm/comm.h"
#include "comm/comm_mpi.h"
#include "comm/job_control.h"
#include "sums.h"

#include <sys/syscall.h>

static struct dt_comm *comm;
static int rank, size;

static void check_allreduce(int64_t n, enum dt_dtype type, enum dt_reduce_op op)
{
    void *x = new_exact(type, n, rank, 0);
    CHECK_OK(dt_allreduce(comm, x, n, type, op));
    check_reduced("all-reduce", x, type, 0, n, size, 0, op);
    free(x);
}

// Sums integers that a double cannot represent.
static void check_large(int64_t n)
{
    int64_t *k = malloc((size_t)n * sizeof *k), wrong = 0, large = INT64_C(1) << 60;
    for (int64_t i = 0; i < n; i++)
        k[i] = large + i + rank;
    CHECK_OK(dt_allreduce(comm, k, n, DT_I64, DT_MAX));
    for (int64_t i = 0; i < n; i++)
        wrong += k[i] != large + i + size - 1;
    CHECK_INT(wrong, 0);
    free(k);
}

// Each addition rounds to nearest even: 1 + 2^-8 lies midway and goes to 1, 1 + 2^-7 is exact.
static void check_bf16(int64_t n)
{
    dt_bf16 *x = malloc((size_t)n * sizeof *x);
    int64_t wrong = 0;
    for (int64_t i = 0; i < n; i++)
        x[i] = dt_f32_to_bf16(rank == size - 1 ? 1.0f : i % 2 ? 0x1p-8f : 0x1p-7f);
    CHECK_OK(dt_allreduce(comm, x, n, DT_BF16, DT_SUM));
    for (int64_t i = 0; i < n && size == 2; i++)
        wrong += dt_bf16_to_f32(x[i]) != (i % 2 ? 1.0f : 1.0f + 0x1p-7f);
    for (int64_t i = 0; i < n; i++)
        x[i] = dt_f32_to_bf16(i % 3 ? (float)rank : -(float)rank);
    CHECK_OK(dt_allreduce(comm, x, n, DT_BF16, DT_MIN));
    for (int64_t i = 0; i < n; i++)
        wrong += dt_bf16_to_f32(x[i]) != (i % 3 ? 0.0f : (float)(1 - size));
    CHECK_INT(wrong, 0);
    for (int r = 0; r < size; r++)
        for (int op = DT_SUM; op <= DT_MAX; op++) {
            for (int64_t i = 0; i < n; i++)
                x[i] = rank == r ? 0x7fc0 : 0;
            CHECK_OK(dt_allreduce(comm, x, n, DT_BF16, (enum dt_reduce_op)op));
            for (int64_t i = 0; i < n; i++)
                wrong += !isnan(dt_bf16_to_f32(x[i]));
            CHECK(wrong == 0, "NaNs of rank %d were lost (op %d)", r, op);
        }
    free(x);
}

static uint64_t hash(const void *data, size_t bytes)
{
    const unsigned char *p = data;
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < bytes; i++)
        h = (h ^ p[i]) * 1099511628211u;
    return h;
}

// Sums of numbers that round have the same bits on every rank and every time, in small and in large
// messages.
static void check_same_bits(int64_t n)
{
    float *x = malloc((size_t)n * sizeof *x);
    int64_t hashes[2], least, most;
    for (int round = 0; round < 2; round++) {
        for (int64_t i = 0; i < n; i++)
            x[i] = sinf((float)(i % 9973) * 0.37f + (float)rank) * expf((float)(i % 17));
        CHECK_OK(dt_allreduce(comm, x, n, DT_F32, DT_SUM));
        hashes[round] = (int64_t)hash(x, (size_t)n * sizeof *x);
    }
    CHECK(hashes[0] == hashes[1], "two sums of %lld elements differ", (long long)n);
    least = most = hashes[0];
    CHECK_OK(dt_allreduce(comm, &least, 1, DT_I64, DT_MIN));
    CHECK_OK(dt_allreduce(comm, &most, 1, DT_I64, DT_MAX));
    CHECK(least == most, "ranks have different sums of %lld elements", (long long)n);
    free(x);
}

// Begins many collectives, small and large ones mixed, and waits for them in a different order.
static void check_many(void)
{
    enum { N = 24 };
    struct dt_request *requests[N];
    struct dt_collective sums[N];
    for (int k = 0; k < N; k++) {
        int64_t n = k % 3 ? 100 + k : 150000 * (k + 1);
        sums[k] = (struct dt_collective){.operation = DT_ALLREDUCE,
                                         .dtype = DT_F32,
                                         .count = n,
                                         .data = new_exact(DT_F32, n, rank, k)};
        CHECK_OK(dt_begin(comm, &sums[k], &requests[k]));
    }
    for (int k = N - 1; k >= 0; k--) {
        CHECK_OK(dt_wait(comm, requests[k]));
        check_reduced("one of many", sums[k].data, DT_F32, 0, sums[k].count, size, k, DT_SUM);
        free(sums[k].data);
    }
}

static dt_status reduce_scatter(void *data, int64_t n, enum dt_dtype type, enum dt_reduce_op op)
{
    struct dt_collective c = {
        .operation = DT_REDUCE_SCATTER, .reduce = op, .dtype = type, .count = n, .data = data};
    return dt_collective(comm, &c);
}

static dt_status all_gather(void *data, int64_t n, enum dt_dtype type)
{
    struct dt_collective c = {.operation = DT_ALL_GATHER, .dtype = type, .count = n, .data = data};
    return dt_collective(comm, &c);
}

static dt_status exchange(const void *out, void *in, int64_t n, enum dt_dtype type, int peer)
{
    struct dt_collective c = {
        .operation = DT_EXCHANGE, .dtype = type, .peer = peer, .count = n, .data = in, .mine = out};
    return dt_collective(comm, &c);
}

// Reduce-scatter gives each rank its block and all-gather puts the blocks together: the result is
// that of an all-reduce. The sums are exact in every type.
static void check_blocks(int64_t n, enum dt_dtype type, enum dt_reduce_op op)
{
    int64_t whole = n * size;
    void *x = new_exact(type, whole, rank, 0);
    CHECK_OK(reduce_scatter(x, n, type, op));
    check_reduced("reduce-scatter", x, type, rank * n, (rank + 1) * n, size, 0, op);
    for (int64_t i = 0; i < whole; i++)
        if (i / n != rank)
            set(x, type, i, -77);
    CHECK_OK(all_gather(x, n, type));
    check_reduced("all-gather", x, type, 0, whole, size, 0, op);
    free(x);
}

// The same for sums that round: two ranks get the bits of an all-reduce, and any number of ranks
// gets the same bits twice.
static void check_bits_of_blocks(int64_t n)
{
    int64_t whole = n * size;
    float *x = malloc((size_t)whole * sizeof *x), *y = malloc((size_t)whole * sizeof *y);
    uint64_t first = 0;
    for (int round = 0; round < 2; round++) {
        for (int64_t i = 0; i < whole; i++)
            x[i] = y[i] = sinf((float)(i % 9973) * 0.37f + (float)rank) * expf((float)(i % 17));
        CHECK_OK(reduce_scatter(x, n, DT_F32, DT_SUM));
        CHECK_OK(all_gather(x, n, DT_F32));
        CHECK(round == 0 || hash(x, (size_t)whole * sizeof *x) == first, "two sums differ");
        first = hash(x, (size_t)whole * sizeof *x);
    }
    CHECK_OK(dt_allreduce(comm, y, whole, DT_F32, DT_SUM));
    CHECK(size > 2 || memcmp(x, y, (size_t)whole * sizeof *x) == 0,
          "reduce-scatter and all-gather of %lld: not the bits of an all-reduce", (long long)n);
    free(x);
    free(y);
}

// Sums by a tree are refused where there is no tree for the operation, the type or the number of
// ranks.
static void check_no_trees(void)
{
    double x[4] = {0};
    struct dt_collective c = {
        .operation = DT_ALLREDUCE, .dtype = DT_F64, .count = 1, .data = x, .order = DT_SUM_TREE};
    CHECK_INT(dt_collective(comm, &c), size == 3 ? DT_MACHINE : DT_OK);
    c.dtype = DT_BF16;
    CHECK_INT(dt_collective(comm, &c), DT_MACHINE);
    c.dtype = DT_F64;
    c.reduce = DT_MAX;
    CHECK_INT(dt_collective(comm, &c), DT_MACHINE);
    c.reduce = DT_SUM;
    c.operation = DT_ALL_GATHER;
    CHECK_INT(dt_collective(comm, &c), DT_MACHINE);
    dt_error_clear();
}

// Every rank sends to the next rank and receives from the one before it, both at once. Then two
// ranks exchange data in both directions, and messages arrive in the order in which they were sent:
// 1 and 2, but before them 3 and 4, which overtake.
static void check_exchange(int64_t n)
{
    int to = (rank + 1) % size, from = (rank + size - 1) % size;
    float *x = new_exact(DT_F32, n, rank, 0), *y = new_exact(DT_F32, n, rank, 1);
    struct dt_collective out = {
        .operation = DT_EXCHANGE, .dtype = DT_F32, .peer = to, .count = n, .mine = x};
    struct dt_collective in = {
        .operation = DT_EXCHANGE, .dtype = DT_F32, .peer = from, .count = n, .data = y};
    struct dt_request *sending, *receiving;
    int64_t wrong = 0;
    CHECK_OK(dt_begin(comm, &in, &receiving));
    CHECK_OK(dt_begin(comm, &out, &sending));
    CHECK_OK(dt_wait(comm, receiving));
    CHECK_OK(dt_wait(comm, sending));
    for (int64_t i = 0; i < n; i++)
        wrong += (double)y[i] != exact(DT_F32, i, from, 0);
    if (rank < 2) {
        CHECK_OK(exchange(x, y, n, DT_F32, 1 - rank));
        for (int64_t i = 0; i < n; i++)
            wrong += (double)y[i] != exact(DT_F32, i, 1 - rank, 0);
    }
    for (int k = 1; k <= 4 && rank < 2; k++) {
        const float sent = rank == 0 ? (float)k : (float)((k + 1) % 4 + 1);
        float got = sent;
        struct dt_collective c = {.operation = DT_EXCHANGE,
                                  .dtype = DT_F32,
                                  .peer = 1 - rank,
                                  .count = 1,
                                  .mine = rank == 0 ? &sent : NULL,
                                  .data = rank == 0 ? NULL : &got,
                                  .overtakes = sent > 2};
        CHECK_OK(dt_collective(comm, &c));
        wrong += got != sent;
    }
    CHECK(wrong == 0, "exchange of %lld: %lld wrong", (long long)n, (long long)wrong);
    free(x);
    free(y);
}

// While a message waits for its receiver, and no caller for the message, the sender's communication
// thread sleeps: it makes at most a round a millisecond, and a few to begin with.
static void check_rounds_of_unwaited_sends(void)
{
    float x[384] = {0}; // more than Open MPI sends without the receiver's thread
    struct dt_collective out = {
        .operation = DT_EXCHANGE, .dtype = DT_F32, .peer = 1, .count = 384, .mine = x};
    struct dt_request *sending;
    CHECK_OK(dt_barrier(comm));
    if (rank == 0) {
        dt_sleep(0.05); // the receiver's thread has come to rest after the barrier
        double begun = dt_seconds();
        uint64_t pulse = atomic_load(&mpi_of(comm)->pulse);
        CHECK_OK(dt_begin(comm, &out, &sending));
        dt_sleep(0.2);
        double rounds = (double)(atomic_load(&mpi_of(comm)->pulse) - pulse),
               milliseconds = 1e3 * (dt_seconds() - begun);
        CHECK(rounds < milliseconds + 20, "%g rounds in %g ms", rounds, milliseconds);
        CHECK_OK(dt_wait(comm, sending));
    }
    if (rank == 1) {
        dt_sleep(0.3);
        CHECK_OK(exchange(NULL, x, 384, DT_F32, 0));
    }
}

static _Atomic int long_sleeps; // calls that sleep for a second or longer

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left)
{
    long_sleeps += (double)until->tv_sec + 1e-9 * (double)until->tv_nsec > dt_seconds() + 1;
    return (int)syscall(SYS_clock_nanosleep, clock, flags, until, left);
}

// A rank that receives another size or another signature than was sent reports an error at once. It
// does not wait, as it would for a rank that may have died.
static void check_unequal_exchanges(void)
{
    int before = long_sleeps;
    float x[4] = {1, 2, 3, 4};
    for (int64_t n = 2; n <= 4; n += 2) {
        if (rank == 0)
            CHECK_OK(exchange(x, NULL, n, DT_F32, 1));
        if (rank == 1) {
            CHECK_INT(exchange(NULL, x, 3, DT_F32, 0), DT_MACHINE);
            CHECK_STR(dt_error_current()->message,
                      n == 2 ? "receive: rank 0 sent 8 bytes instead of 12"
                             : "receive: rank 0 sent more than 12 bytes");
            dt_error_clear();
        }
    }
    float pieces[375] = {0}; // sent in two pieces, of which the second is too short
    if (rank == 0)
        CHECK_OK(exchange(pieces, NULL, 300, DT_F32, 1));
    if (rank == 1)
        CHECK_FAILS(exchange(NULL, pieces, 375, DT_F32, 0), DT_MACHINE,
                    "receive: rank 0 sent 1200 bytes instead of 1500");
    // Rank 0 sends the wrong signature the second time.
    for (uint32_t signature = 7; signature <= 8; signature++) {
        struct dt_collective c = {.operation = DT_EXCHANGE, .dtype = DT_F32, .count = 4};
        c.peer = 1 - rank;
        c.signature = rank == 0 ? signature : 7;
        *(rank == 0 ? (void **)&c.mine : &c.data) = x;
        if (rank == 0 || (rank == 1 && signature == 7))
            CHECK_OK(dt_collective(comm, &c));
        else if (rank == 1)
            CHECK_FAILS(dt_collective(comm, &c), DT_MACHINE,
                        "receive: rank 0 sent other data than this rank expects: signature 8 "
                        "instead of 7");
    }
    CHECK_INT(long_sleeps, before);
    dt_error_clear();
}

static void check_broadcast(int64_t bytes)
{
    unsigned char *data = malloc((size_t)bytes);
    int64_t wrong = 0;
    int root = size - 1;
    for (int64_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)(rank == root ? i * 13 : 0);
    CHECK_OK(dt_broadcast(comm, data, bytes, root));
    for (int64_t i = 0; i < bytes; i++)
        wrong += data[i] != (unsigned char)(i * 13);
    CHECK_INT(wrong, 0);
    free(data);
}

static void check_broadcast_buffer(void)
{
    char *text = NULL;
    int64_t bytes = -1;
    if (rank == 0) {
        text = strdup("a text of a length that only one rank knows");
        bytes = (int64_t)strlen(text) + 1;
    }
    CHECK_OK(dt_broadcast_buffer(comm, (void **)&text, &bytes, 0));
    CHECK_INT(bytes, 44);
    CHECK_STR(text, "a text of a length that only one rank knows");
    free(text);
    text = NULL;
    bytes = 0;
    CHECK_OK(dt_broadcast_buffer(comm, (void **)&text, &bytes, 0));
    CHECK_INT(bytes, 0);
    free(text);
}

static dt_status fail_deep(void)
{
    DT_TRY_NOTE(DT_FAIL(DT_USER, "give another file", "shard %d is broken", rank),
                "opening shard %d", rank);
    return DT_OK;
}

static void check_agreement(int first_failing)
{
    char want[256], place[64], text[8192];
    int others = size - 1 - first_failing;
    dt_status status = rank >= first_failing ? fail_deep() : DT_OK;
    if (rank > first_failing)
        status = DT_FAIL(DT_MACHINE, NULL, "another story");
    status = dt_agree(comm, status);
    CHECK_INT(status, others > 0 ? DT_MACHINE : DT_USER);
    CHECK_INT(dt_error_current()->code, status);
    CHECK(comm->agreed, "the error is not known to be shared");
    snprintf(place, sizeof place, ": ");
    if (others > 0)
        snprintf(place, sizeof place, " (and %d other rank%s): ", others, others > 1 ? "s" : "");
    snprintf(want, sizeof want, "shard %d is broken", first_failing);
    if (size > 1 && (first_failing > 0 || others > 0))
        snprintf(want, sizeof want, "rank %d on %s%sshard %d is broken", first_failing,
                 comm->info.host, place, first_failing);
    CHECK_STR(dt_error_current()->message, want);
    CHECK_STR(dt_error_current()->hint, "give another file");
    dt_error_format(dt_error_current(), 0, text, sizeof text);
    snprintf(want, sizeof want, "while opening shard %d\n", first_failing);
    CHECK(strstr(text, want) != NULL, "the note is lost: %s", text);
    dt_error_clear();
    CHECK_OK(dt_agree(comm, DT_OK));
    CHECK(!comm->agreed, "an old error is still shared");
    CHECK_OK(dt_error_current()->code);
}

static void check_refusals(void)
{
    float x = 1;
    CHECK_INT(dt_allreduce(comm, &x, -1, DT_F32, DT_SUM), DT_MACHINE);
    CHECK_INT(dt_allreduce(comm, NULL, 1, DT_F32, DT_SUM), DT_MACHINE);
    CHECK_INT(dt_allreduce(comm, &x, 1, DT_U8, DT_SUM), DT_MACHINE);
    CHECK_INT(reduce_scatter(&x, 1, DT_F16, DT_SUM), DT_MACHINE);
    CHECK_INT(reduce_scatter(&x, INT64_MAX / 2, DT_F32, DT_SUM), DT_MACHINE);
    CHECK_INT(all_gather(&x, -1, DT_F32), DT_MACHINE);
    CHECK_INT(exchange(&x, NULL, 1, DT_F32, rank), DT_MACHINE);
    CHECK_INT(exchange(&x, NULL, 1, DT_F32, size), DT_MACHINE);
    CHECK_INT(exchange(NULL, NULL, 1, DT_F32, (rank + 1) % size), DT_MACHINE);
    CHECK_INT(exchange(NULL, &x, 1, DT_F32, -1), DT_MACHINE);
    CHECK_INT(dt_broadcast(comm, &x, 4, size), DT_MACHINE);
    CHECK_INT(dt_broadcast(comm, &x, -4, 0), DT_MACHINE);
    dt_error_clear();
}

static void check_last_words(void)
{
    char text[4096], want[256];
    int64_t step;
    const char *phase;
    size_t length;
    dt_comm_progress(comm, 41, "backward");
    dt_comm_last_progress(comm, &step, &phase);
    CHECK_INT(step, 41);
    CHECK_STR(phase, "backward");
    if (size > 1) // with other ranks, claiming the last words ends the job
        return;
    DT_FAIL(DT_MACHINE, NULL, "the disk is full");
    length = dt_comm_last_words(comm, dt_error_current(), 0, text, sizeof text);
    snprintf(want, sizeof want, "dtrain: error: the disk is full\n");
    CHECK_STR(text, want);
    CHECK_INT(length, strlen(want));
    dt_error_clear();
}

static void check_all(void)
{
    // Sizes around the one at which the ring replaces the library, and beyond four full pieces of a
    // ring.
    static const int64_t sizes[] = {0, 1, 77, 8191, 16384, 32769, 65537, 1048583};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int op = DT_SUM; op <= DT_MAX; op++)
            check_allreduce(sizes[i], DT_F32, (enum dt_reduce_op)op);
    check_allreduce(3, DT_F64, DT_SUM);
    check_allreduce(70001, DT_F64, DT_SUM);
    check_large(3);
    check_large(70001);
    check_bf16(5);
    check_bf16(200003);
    check_same_bits(1001);
    check_same_bits(500009);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        static const enum dt_dtype types[] = {DT_F32, DT_BF16, DT_F64, DT_I64};
        for (int t = 0; t < 4; t++)
            check_blocks(sizes[i] / 3, types[t], DT_SUM);
        check_blocks(sizes[i] / 3, DT_BF16, DT_MIN);
        check_blocks(sizes[i] / 3, DT_I64, DT_MAX);
        if (size > 1)
            check_exchange(sizes[i]);
    }
    check_bits_of_blocks(333);
    check_bits_of_blocks(200003);
    check_broadcast(1);
    check_broadcast(100003);
    check_many();
}

int main(void)
{
    CHECK_OK(dt_comm_open(DT_COMM_KIND_AUTO, &comm));
    if (!comm)
        return test_end();
    rank = comm->info.rank;
    size = comm->info.size;
    CHECK_STR(comm->info.backend, "mpi");
    CHECK(comm->info.host[0] != 0, "no host name");
    CHECK_INT(comm->info.local_size, size); // the test runs on one host
    CHECK_INT(comm->info.local_rank, rank);
    check_no_trees();
    check_all();
    dt_mpi_set_piece(1000); // a limit that messages beyond INT_MAX bytes are split at
    check_all();
    check_broadcast_buffer();
    if (size > 1) {
        check_rounds_of_unwaited_sends();
        check_unequal_exchanges();
    }
    for (int first = 0; first < size; first++)
        check_agreement(first);
    check_refusals();
    CHECK_OK(dt_barrier(comm));
    check_last_words();
    dt_comm_close(comm);
    return test_end();
}

// Collectives over 1, 2 and 4 ranks: right for every type, size and split, the same on all ranks,
// the same bits twice; agreement on a status carries the story of the lowest failing rank.
#include "comm/comm.h"
#include "comm/comm_mpi.h"
#include "comm/job_control.h"
#include "test.h"

static struct dt_comm *comm;
static int rank, size;

static void need(dt_status status)
{
    char text[8192];
    if (status == DT_OK)
        return;
    dt_error_format(dt_error_current(), 1, text, sizeof text);
    CHECK(0, "%s", text);
}

static void check_place(void)
{
    CHECK_STR(comm->info.backend, "mpi");
    CHECK(comm->info.host[0] != 0, "no host name");
    CHECK_INT(comm->info.local_size, size); // the test runs on one host
    CHECK_INT(comm->info.local_rank, rank);
}

// Element i of rank r: small integers, so that any order of the sum is exact in fp32.
static float value(int64_t i, int r)
{
    return (float)((i * 7 + r * 3) % 101 - 50);
}

static float expected(int64_t i, enum dt_reduce_op op)
{
    float result = value(i, 0);
    for (int r = 1; r < size; r++) {
        float x = value(i, r);
        result = op == DT_SUM ? result + x : op == DT_MIN ? fminf(result, x) : fmaxf(result, x);
    }
    return result;
}

static void check_f32(int64_t n, enum dt_reduce_op op)
{
    float *x = malloc((size_t)n * sizeof *x + 1);
    int64_t wrong = 0;
    for (int64_t i = 0; i < n; i++)
        x[i] = value(i, rank);
    need(dt_allreduce(comm, x, n, DT_F32, op));
    for (int64_t i = 0; i < n; i++)
        wrong += x[i] != expected(i, op);
    CHECK(wrong == 0, "%lld of %lld elements are wrong (op %d)", (long long)wrong, (long long)n,
          op);
    free(x);
}

static void check_f64_and_i64(int64_t n)
{
    double *x = malloc((size_t)n * sizeof *x);
    int64_t *k = malloc((size_t)n * sizeof *k), wrong = 0;
    int64_t large = INT64_C(1) << 60; // what a double could not hold
    for (int64_t i = 0; i < n; i++) {
        x[i] = value(i, rank);
        k[i] = large + i + rank;
    }
    need(dt_allreduce(comm, x, n, DT_F64, DT_SUM));
    need(dt_allreduce(comm, k, n, DT_I64, DT_MAX));
    for (int64_t i = 0; i < n; i++)
        wrong += x[i] != expected(i, DT_SUM) || k[i] != large + i + size - 1;
    CHECK_INT(wrong, 0);
    free(x);
    free(k);
}

// Each addition rounds to nearest even: 1 + 2^-8 lies midway and goes to 1, 1 + 2^-7 is exact.
static void check_bf16(int64_t n)
{
    dt_bf16 *x = malloc((size_t)n * sizeof *x);
    int64_t wrong = 0;
    for (int64_t i = 0; i < n; i++)
        x[i] = dt_f32_to_bf16(rank == size - 1 ? 1.0f : i % 2 ? 0x1p-8f : 0x1p-7f);
    need(dt_allreduce(comm, x, n, DT_BF16, DT_SUM));
    for (int64_t i = 0; i < n && size == 2; i++)
        wrong += dt_bf16_to_f32(x[i]) != (i % 2 ? 1.0f : 1.0f + 0x1p-7f);
    for (int64_t i = 0; i < n; i++)
        x[i] = dt_f32_to_bf16(i % 3 ? (float)rank : -(float)rank);
    need(dt_allreduce(comm, x, n, DT_BF16, DT_MIN));
    for (int64_t i = 0; i < n; i++)
        wrong += dt_bf16_to_f32(x[i]) != (i % 3 ? 0.0f : (float)(1 - size));
    CHECK_INT(wrong, 0);
    x[0] = rank == 0 ? 0x7fc0 : 0;
    need(dt_allreduce(comm, x, 1, DT_BF16, DT_MAX));
    CHECK(isnan(dt_bf16_to_f32(x[0])), "a NaN was lost");
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

// Sums that do round: same bits on every rank and every time, for small and large messages.
static void check_same_bits(int64_t n)
{
    float *x = malloc((size_t)n * sizeof *x);
    int64_t hashes[2], least, most;
    for (int round = 0; round < 2; round++) {
        for (int64_t i = 0; i < n; i++)
            x[i] = sinf((float)(i % 9973) * 0.37f + (float)rank) * expf((float)(i % 17));
        need(dt_allreduce(comm, x, n, DT_F32, DT_SUM));
        hashes[round] = (int64_t)hash(x, (size_t)n * sizeof *x);
    }
    CHECK(hashes[0] == hashes[1], "two sums of %lld elements differ", (long long)n);
    least = most = hashes[0];
    need(dt_allreduce(comm, &least, 1, DT_I64, DT_MIN));
    need(dt_allreduce(comm, &most, 1, DT_I64, DT_MAX));
    CHECK(least == most, "ranks have different sums of %lld elements", (long long)n);
    free(x);
}

// Many under way at once, large and small mixed, waited for in another order than begun.
static void check_many(void)
{
    enum { N = 24 };
    struct dt_request *requests[N];
    float *data[N];
    for (int k = 0; k < N; k++) {
        int64_t n = k % 3 ? 100 + k : 150000 * (k + 1);
        data[k] = malloc((size_t)n * sizeof(float));
        for (int64_t i = 0; i < n; i++)
            data[k][i] = value(i + k, rank);
        need(dt_allreduce_begin(comm, data[k], n, DT_F32, DT_SUM, &requests[k]));
    }
    for (int k = N - 1; k >= 0; k--) {
        int64_t n = k % 3 ? 100 + k : 150000 * (k + 1), wrong = 0;
        need(dt_wait(comm, requests[k]));
        for (int64_t i = 0; i < n; i++)
            wrong += data[k][i] != expected(i + k, DT_SUM);
        CHECK(wrong == 0, "all-reduce %d: %lld wrong", k, (long long)wrong);
        free(data[k]);
    }
}

static void check_broadcast_and_gather(int64_t bytes)
{
    unsigned char *data = malloc((size_t)bytes + 1), *all = NULL;
    int64_t wrong = 0;
    int root = size - 1;
    for (int64_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)(rank == root ? i * 13 : 0);
    need(dt_broadcast(comm, data, bytes, root));
    for (int64_t i = 0; i < bytes; i++)
        wrong += data[i] != (unsigned char)(i * 13);
    CHECK_INT(wrong, 0);
    memset(data, rank + 1, (size_t)bytes);
    if (rank == root)
        all = malloc((size_t)(bytes * size) + 1);
    need(dt_gather(comm, data, bytes, all, root));
    for (int64_t i = 0; all && i < bytes * size; i++)
        wrong += all[i] != i / bytes + 1;
    CHECK_INT(wrong, 0);
    free(data);
    free(all);
}

static void check_broadcast_buffer(void)
{
    char *text = NULL;
    int64_t bytes = -1;
    if (rank == 0) {
        text = strdup("a text of a length that only one rank knows");
        bytes = (int64_t)strlen(text) + 1;
    }
    need(dt_broadcast_buffer(comm, (void **)&text, &bytes, 0));
    CHECK_INT(bytes, 44);
    CHECK_STR(text, "a text of a length that only one rank knows");
    free(text);
    text = NULL;
    bytes = 0;
    need(dt_broadcast_buffer(comm, (void **)&text, &bytes, 0));
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
    CHECK(dt_comm_agreed(comm), "the error is not known to be shared");
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
    CHECK_INT(dt_agree(comm, DT_OK), DT_OK);
    CHECK(!dt_comm_agreed(comm), "an old error is still shared");
    CHECK_INT(dt_error_current()->code, DT_OK);
}

static void check_refusals(void)
{
    float x = 1;
    struct dt_request *request;
    CHECK_INT(dt_allreduce_begin(comm, &x, -1, DT_F32, DT_SUM, &request), DT_MACHINE);
    CHECK_INT(dt_allreduce_begin(comm, &x, 1, DT_U8, DT_SUM, &request), DT_MACHINE);
    CHECK_INT(dt_broadcast(comm, &x, 4, size), DT_MACHINE);
    CHECK_INT(dt_gather(comm, &x, -4, &x, 0), DT_MACHINE);
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
    if (size > 1) // with peers the claim to the last word ends them
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
    // around the border between the library and the ring, and beyond four full pieces of a ring
    static const int64_t sizes[] = {0, 1, 77, 8191, 16384, 32769, 65537, 1048583};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int op = DT_SUM; op <= DT_MAX; op++)
            check_f32(sizes[i], (enum dt_reduce_op)op);
    check_f64_and_i64(3);
    check_f64_and_i64(70001);
    check_bf16(5);
    check_bf16(200003);
    check_same_bits(1001);
    check_same_bits(500009);
    check_broadcast_and_gather(1);
    check_broadcast_and_gather(100003);
    check_many();
}

int main(void)
{
    need(dt_comm_open(DT_COMM_KIND_AUTO, &comm));
    if (!comm)
        return test_end();
    rank = comm->info.rank;
    size = comm->info.size;
    check_place();
    check_all();
    dt_mpi_set_piece(1000); // what messages beyond INT_MAX go through
    check_all();
    check_broadcast_buffer();
    for (int first = 0; first < size; first++)
        check_agreement(first);
    check_refusals();
    need(dt_barrier(comm));
    check_last_words();
    dt_comm_close(comm);
    return test_end();
}

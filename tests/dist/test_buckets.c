// Gradient buckets over several ranks: the sums are right for both wires, whatever the order in
// which rows come, step after step; misuse is refused.
#include "comm/buckets.h"
#include "test.h"

enum { ROWS = 9, STEPS = 3 };

static struct dt_comm *comm;
static struct dt_backend backend;
// Rows of awkward sizes: one is empty, one is larger than a bucket.
static const int64_t row_ends[ROWS] = {3, 3, 300, 301, 70000, 70017, 90000, 90001, 123457};
enum { ELEMENTS = 123457 };

// Multiples of 1/4 below 16: exact in bf16, and so are their sums over four ranks.
static float value(int64_t i, int rank, int step)
{
    return (float)((i * 5 + rank * 11 + step * 3) % 31 - 15) * 0.25f;
}

static void fill(float *gradients, int step)
{
    for (int64_t i = 0; i < ELEMENTS; i++)
        gradients[i] = value(i, comm->info.rank, step);
}

static void check_sums(const float *gradients, int step)
{
    int64_t wrong = 0;
    for (int64_t i = 0; i < ELEMENTS; i++) {
        float sum = 0;
        for (int r = 0; r < comm->info.size; r++)
            sum += value(i, r, step);
        wrong += gradients[i] != sum;
    }
    CHECK(wrong == 0, "step %d: %lld sums are wrong", step, (long long)wrong);
}

// In order, backwards, and in an order of each rank's own.
static int64_t row_at(int k, int step)
{
    if (step == 0)
        return k;
    return step == 1 ? ROWS - 1 - k : (k * 4 + comm->info.rank) % ROWS;
}

// Sums travel beside the gradients; doubles that fp32 could not hold.
static void fill_sums(double *sums, int step)
{
    sums[0] = 1 + 0x1p-40 * (comm->info.rank + step);
    sums[1] = comm->info.rank;
}

static void check_sum_pair(const double *sums, int step)
{
    int n = comm->info.size;
    double ranks = n * (n - 1) / 2.0;
    CHECK(sums[0] == n + 0x1p-40 * (ranks + n * step) && sums[1] == ranks,
          "step %d: the sums are %a and %g", step, sums[0], sums[1]);
}

static int64_t check_steps(enum dt_dtype wire, int64_t bucket_bytes)
{
    float *gradients = malloc(ELEMENTS * sizeof *gradients);
    double sums[2];
    struct dt_buckets_config config = {.gradients = gradients,
                                       .elements = ELEMENTS,
                                       .row_ends = row_ends,
                                       .n_rows = ROWS,
                                       .bucket_bytes = bucket_bytes,
                                       .wire = wire,
                                       .sums = sums,
                                       .n_sums = 2};
    struct dt_buckets *buckets = NULL;
    int64_t count;
    CHECK_OK(dt_buckets_create(comm, &backend, &config, &buckets));
    CHECK_OK(dt_buckets_connect(buckets));
    CHECK(!dt_buckets_can_be_captured(buckets), "what goes through the host cannot be captured");
    for (int step = 0; step < STEPS; step++) {
        fill(gradients, step);
        fill_sums(sums, step);
        CHECK_OK(dt_buckets_sums_ready(buckets));
        for (int k = 0; k < ROWS; k++)
            CHECK_OK(dt_buckets_ready(buckets, row_at(k, step)));
        CHECK_OK(dt_buckets_wait(buckets));
        check_sums(gradients, step);
        check_sum_pair(sums, step);
    }
    count = dt_buckets_count(buckets);
    dt_buckets_destroy(buckets);
    free(gradients);
    return count;
}

static void check_misuse(void)
{
    float gradients[10] = {0};
    int64_t ends[2] = {4, 10}, falling[2] = {10, 4};
    struct dt_buckets *buckets = NULL;
    struct dt_buckets_config config = {.gradients = gradients,
                                       .elements = 10,
                                       .row_ends = ends,
                                       .n_rows = 2,
                                       .bucket_bytes = 1024,
                                       .wire = DT_F32};
    CHECK_OK(dt_buckets_create(comm, &backend, &config, &buckets));
    CHECK_INT(dt_buckets_ready(buckets, 2), DT_MACHINE);
    CHECK_INT(dt_buckets_ready(buckets, -1), DT_MACHINE);
    CHECK_OK(dt_buckets_ready(buckets, 1));
    CHECK_INT(dt_buckets_ready(buckets, 1), DT_MACHINE);
    CHECK_INT(dt_buckets_wait(buckets), DT_MACHINE);
    CHECK(strstr(dt_error_current()->message, "row 0 ") != NULL, "%s", dt_error_current()->message);
    CHECK_OK(dt_buckets_ready(buckets, 0));
    CHECK_OK(dt_buckets_wait(buckets));
    dt_buckets_destroy(buckets);
    config.row_ends = falling;
    CHECK_INT(dt_buckets_create(comm, &backend, &config, &buckets), DT_MACHINE);
    config.row_ends = ends;
    config.elements = 11;
    CHECK_INT(dt_buckets_create(comm, &backend, &config, &buckets), DT_MACHINE);
    config.elements = 10;
    config.wire = DT_F16;
    CHECK_INT(dt_buckets_create(comm, &backend, &config, &buckets), DT_MACHINE);
    CHECK(buckets == NULL, "a refused create left buckets");
    dt_error_clear();
}

static void check_misuse_of_sums(void)
{
    float gradients[4] = {0};
    double sums[1] = {0};
    int64_t ends[1] = {4};
    struct dt_buckets *buckets = NULL;
    struct dt_buckets_config config = {.gradients = gradients,
                                       .elements = 4,
                                       .row_ends = ends,
                                       .n_rows = 1,
                                       .bucket_bytes = 1024,
                                       .wire = DT_F32,
                                       .sums = sums,
                                       .n_sums = 1};
    CHECK_OK(dt_buckets_create(comm, &backend, &config, &buckets));
    CHECK_INT(dt_buckets_ready(buckets, 0), DT_MACHINE);
    CHECK(strstr(dt_error_current()->message, "before the step's sums") != NULL, "%s",
          dt_error_current()->message);
    dt_buckets_destroy(buckets);
    CHECK_OK(dt_buckets_create(comm, &backend, &config, &buckets));
    CHECK_OK(dt_buckets_sums_ready(buckets));
    CHECK_INT(dt_buckets_sums_ready(buckets), DT_MACHINE);
    CHECK_OK(dt_buckets_ready(buckets, 0));
    CHECK_OK(dt_buckets_wait(buckets));
    dt_buckets_destroy(buckets);
    config.n_sums = 0;
    CHECK_OK(dt_buckets_create(comm, &backend, &config, &buckets));
    CHECK_INT(dt_buckets_sums_ready(buckets), DT_MACHINE);
    dt_buckets_destroy(buckets);
    dt_error_clear();
}

static void check_planned_bytes(void)
{
    struct dt_device_table cuda_like = *backend.table;
    struct dt_backend staged = {.table = &cuda_like, .device = backend.device};
    struct dt_buckets_config config = {.elements = 10, .wire = DT_BF16, .n_sums = 2};
    cuda_like.unified = false;
    CHECK_INT(dt_buckets_bytes(&config, 2), 20);
    CHECK_INT(dt_buckets_bytes(&config, 1), 0);
    CHECK_INT(dt_buckets_host_bytes(&config, &staged, 2), 36);
    CHECK_INT(dt_buckets_host_bytes(&config, &staged, 1), 0);
    CHECK_INT(dt_buckets_host_bytes(&config, &backend, 2), 0);
    config.wire = DT_F32;
    CHECK_INT(dt_buckets_bytes(&config, 2), 0);
    CHECK_INT(dt_buckets_host_bytes(&config, &staged, 2), 56);
    config.between_devices = true;
    CHECK_INT(dt_buckets_host_bytes(&config, &staged, 2), 0);
}

int main(void)
{
    CHECK_OK(dt_comm_open(DT_COMM_KIND_MPI, &comm));
    if (!comm)
        return test_end();
    CHECK_OK(dt_backend_open("cpu", 0, 1, &backend));
    CHECK_INT(check_steps(DT_F32, 1 << 20), 1);
    // 200 KB: rows 0 to 3, row 4 (larger than a bucket), 5 to 7, 8
    CHECK_INT(check_steps(DT_F32, 200000), 4);
    CHECK_INT(check_steps(DT_BF16, 200000), 4);
    CHECK_INT(check_steps(DT_F32, 1), ROWS - 1); // the empty row travels in none
    check_misuse();
    check_misuse_of_sums();
    check_planned_bytes();
    dt_backend_close(&backend);
    dt_comm_close(comm);
    return test_end();
}

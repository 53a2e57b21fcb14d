// Sums in the order DT_SUM_TREE, against the same tree walked here: the same bits for any count and
// type, in an all-reduce and in the blocks of a reduce-scatter, whichever rank holds them.
#include "base/round.h"
#include "comm/comm.h"
#include "test.h"

static struct dt_comm *comm;
static int rank, size;

// Sums that round differently in any other order: of ranks 0 + 1, 2 + 3, …, then of those sums.
static float leaf(int64_t i, int r)
{
    uint32_t h = ((uint32_t)i * 2654435761u) ^ ((uint32_t)(r + 1) * 2246822519u);
    h ^= h >> 15;
    h *= 2654435761u;
    return ((float)(h >> 9) - 4194304.0f) * (float)(1 << (h & 7)); // signed, of many sizes
}

static double tree_f64(int64_t i, int first, int n)
{
    return n == 1 ? (double)leaf(i, first) / 3
                  : tree_f64(i, first, n / 2) + tree_f64(i, first + n / 2, n / 2);
}

static float tree_f32(int64_t i, int first, int n)
{
    return n == 1 ? leaf(i, first) : tree_f32(i, first, n / 2) + tree_f32(i, first + n / 2, n / 2);
}

// How many elements of x, which begins at element `at` of the whole, are not those of the tree.
static int64_t not_of_tree(const void *x, enum dt_dtype type, int64_t at, int64_t n)
{
    int64_t wrong = 0;
    for (int64_t i = 0; i < n; i++)
        wrong += type == DT_F32 ? ((const float *)x)[i] != tree_f32(at + i, 0, size)
                                : ((const double *)x)[i] != tree_f64(at + i, 0, size);
    return wrong;
}

// n elements in an all-reduce, and in each block of a reduce-scatter; both under way at once.
static void check_tree(int64_t n, enum dt_dtype type)
{
    int64_t each = dt_dtype_size(type), whole = n * size;
    char *x = malloc((size_t)(n * each) + 1), *y = malloc((size_t)(whole * each) + 1);
    struct dt_collective sum = {
        .operation = DT_ALLREDUCE, .dtype = type, .count = n, .data = x, .order = DT_SUM_TREE};
    struct dt_collective scatter = sum;
    struct dt_request *summing, *scattering;
    scatter.operation = DT_REDUCE_SCATTER;
    scatter.data = y;
    for (int64_t i = 0; i < whole; i++) {
        if (type == DT_F32)
            ((float *)y)[i] = leaf(i, rank);
        else
            ((double *)y)[i] = (double)leaf(i, rank) / 3;
    }
    memcpy(x, y, (size_t)(n * each));
    CHECK_OK(dt_begin(comm, &sum, &summing));
    CHECK_OK(dt_begin(comm, &scatter, &scattering));
    CHECK_OK(dt_wait(comm, summing));
    CHECK_OK(dt_wait(comm, scattering));
    int64_t wrong = not_of_tree(x, type, 0, n);
    CHECK(wrong == 0, "all-reduce of %lld %s by a tree: %lld wrong", (long long)n,
          dt_dtype_name(type), (long long)wrong);
    wrong = not_of_tree(y + rank * n * each, type, rank * n, n);
    CHECK(wrong == 0, "reduce-scatter of %lld %s by a tree: %lld wrong", (long long)n,
          dt_dtype_name(type), (long long)wrong);
    free(x);
    free(y);
}

int main(void)
{
    CHECK_OK(dt_comm_open(DT_COMM_KIND_MPI, &comm));
    if (!comm)
        return test_end();
    rank = comm->info.rank;
    size = comm->info.size;
    // around the border between whole pieces and halves, and beyond four full pieces
    static const int64_t sizes[] = {0, 1, 3, 77, 2047, 2049, 65537, 131073, 700001};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        check_tree(sizes[i], DT_F32);
        check_tree(dt_min_i64(sizes[i], 131073), DT_F64);
    }
    dt_comm_close(comm);
    return test_end();
}

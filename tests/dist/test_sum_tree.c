// Sums in the order DT_SUM_TREE against the same tree computed here: the same bits for any count
// and type, in an all-reduce and in the blocks of a reduce-scatter, on whichever rank they are.
#include "base/round.h"
#include "comm/sum_tree.h"
#include "sums.h"

static struct dt_comm *comm;
static int rank, size;

// Runs an all-reduce of n elements and a reduce-scatter of blocks of n elements, both at once.
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
    fill_leaves(y, type, whole, rank);
    memcpy(x, y, (size_t)(n * each));
    CHECK_OK(dt_begin(comm, &sum, &summing));
    CHECK_OK(dt_begin(comm, &scatter, &scattering));
    CHECK_OK(dt_wait(comm, summing));
    CHECK_OK(dt_wait(comm, scattering));
    check_tree_sums("all-reduce", x, type, 0, n, size);
    check_tree_sums("reduce-scatter", y + rank * n * each, type, rank * n, (rank + 1) * n, size);
    free(x);
    free(y);
}

// 16 members on hosts of 4 are numbered host by host: each sends 2 · (1/2 + 1/4) of the whole array
// within its host and 2 · (1/8 + 1/16) to other hosts.
static void check_hosts(void)
{
    for (int member = 0; member < 16; member++) {
        struct dt_sum_tree tree = {.rank = member, .levels = 4, .halves = true, .all = {0, 4096}};
        int64_t sent[2] = {0, 0}; // within the host, to other hosts
        for (int i = 0; i < 2 * tree.levels; i++) {
            struct dt_tree_step step = dt_tree_step(&tree, i);
            const struct dt_span *out = step.adds ? &step.theirs : &step.mine;
            sent[step.peer / 4 != member / 4] += out->end - out->first;
        }
        CHECK_INT(sent[0], 6144);
        CHECK_INT(sent[1], 1536);
    }
}

int main(void)
{
    check_hosts();
    CHECK_OK(dt_comm_open(DT_COMM_KIND_MPI, &comm));
    if (!comm)
        return test_end();
    rank = comm->info.rank;
    size = comm->info.size;
    // Sizes around the border between whole pieces and halves, and beyond four full pieces.
    static const int64_t sizes[] = {0, 1, 3, 77, 2047, 2049, 65537, 131073, 700001};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        check_tree(sizes[i], DT_F32);
        check_tree(dt_min_i64(sizes[i], 131073), DT_F64);
    }
    dt_comm_close(comm);
    return test_end();
}

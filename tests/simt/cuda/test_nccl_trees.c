// Sums by NCCL in the order of a binary tree over the ranks (DT_SUM_TREE).
#include "test_nccl.h"

static void check_tree(struct dt_device_comm *nccl, const struct buffers *buffers,
                       enum dt_operation operation, dt_dtype type, int64_t n)
{
    int size = comm->info.size;
    bool in_blocks = operation == DT_REDUCE_SCATTER;
    int64_t whole = in_blocks ? size * n : n, first = in_blocks ? comm->info.rank * n : 0;
    int64_t bytes = whole * dt_dtype_size(type);
    struct dt_graph *graph = NULL;
    struct dt_collective c = {.operation = operation,
                              .dtype = type,
                              .count = n,
                              .data = buffers->device,
                              .order = DT_SUM_TREE};
    need(dt_capture_begin(&backend, stream));
    need(dt_nccl_table.enqueue(nccl, 1, &c, stream));
    need(dt_capture_end(&backend, stream, &graph));
    fill_leaves(buffers->host, type, whole, comm->info.rank);
    to_device(buffers, bytes);
    need(dt_graph_launch(&backend, graph, stream));
    to_host(buffers, bytes);
    dt_graph_destroy(&backend, graph);
    check_tree_sums(dt_collective_name(&c), (char *)buffers->host + first * dt_dtype_size(type),
                    type, first, first + n, size);
}

// All-reduces and reduce-scatters of odd counts, up to the largest that was announced when NCCL was
// opened. Three ranks have no tree.
void test_trees(struct dt_device_comm *nccl, const struct buffers *buffers)
{
    static const int64_t counts[] = {0, 1, 7, 16385, MOST};
    struct dt_collective c = {
        .dtype = DT_F32, .count = 1, .data = buffers->device, .order = DT_SUM_TREE};
    if (comm->info.size == 3) {
        CHECK_INT(dt_nccl_table.enqueue(nccl, 1, &c, stream), DT_MACHINE);
        dt_error_clear();
        return;
    }
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        check_tree(nccl, buffers, DT_ALLREDUCE, DT_F32, counts[i]);
        check_tree(nccl, buffers, DT_REDUCE_SCATTER, DT_F32, counts[i]);
        check_tree(nccl, buffers, DT_ALLREDUCE, DT_F64, dt_min_i64(counts[i], 16385));
    }
    c.count = comm->info.size * MOST + 1;
    CHECK_FAILS(dt_nccl_table.enqueue(nccl, 1, &c, stream), DT_MACHINE, "by a tree");
}

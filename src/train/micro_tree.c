// The binary counter of micro-batches, whose digits are arenas of gradients.
#include "train/micro_tree.h"

#include "comm/sum_tree.h"

enum { SUMS = sizeof(struct dt_loss_sum) / sizeof(double) };

int64_t dt_micro_tree_bytes(int64_t elements, int64_t micro_batches)
{
    return dt_tree_levels(micro_batches) * elements * (int64_t)sizeof(float);
}

// Restores the order of the levels' memory, so that every step uses the same addresses, as graphs
// require.
static void reset(struct dt_micro_tree *tree)
{
    for (int l = 0; l < tree->levels; l++)
        tree->level[l] = (struct dt_tree_sum){tree->gradients + l * tree->elements, tree->sums + l};
}

dt_status dt_micro_tree_create(const struct dt_backend *backend, const struct dt_tree_sum *own,
                               int64_t elements, int64_t micro_batches, struct dt_micro_tree *tree)
{
    int64_t bytes = dt_micro_tree_bytes(elements, micro_batches);
    *tree = (struct dt_micro_tree){.backend = backend,
                                   .elements = elements,
                                   .levels = dt_tree_levels(micro_batches),
                                   .own = *own};
    if (tree->levels == 0)
        return DT_OK;
    DT_TRY_NOTE(dt_alloc(backend, bytes, &tree->gradients), "allocating %.1f MiB for gradient sums",
                (double)bytes / 0x1p20);
    DT_TRY(dt_alloc(backend, tree->levels * (int64_t)sizeof *tree->sums, &tree->sums));
    reset(tree);
    return DT_OK;
}

void dt_micro_tree_destroy(struct dt_micro_tree *tree)
{
    if (!tree->backend)
        return;
    dt_free(tree->backend, tree->gradients);
    dt_free(tree->backend, tree->sums);
    *tree = (struct dt_micro_tree){0};
}

// y[0, n) += x[0, n), fp32 or fp64
static dt_status add(const struct dt_micro_tree *tree, enum dt_dtype type, int64_t n, const void *x,
                     void *y, struct dt_stream *stream)
{
    struct dt_accumulate_args args = {.n = n, .x = x, .x_type = type, .y = y};
    return dt_accumulate(tree->backend, &args, stream);
}

dt_status dt_micro_tree_carry(struct dt_micro_tree *tree, int64_t i, struct dt_stream *stream)
{
    const struct dt_tree_sum *carried = &tree->own;
    int l = 0;
    if (i == 0)
        reset(tree);
    for (; i >> l & 1; l++) { // adds to the level's sum
        DT_TRY(add(tree, DT_F32, tree->elements, carried->gradients, tree->level[l].gradients,
                   stream));
        DT_TRY(add(tree, DT_F64, SUMS, carried->sum, tree->level[l].sum, stream));
        carried = &tree->level[l];
    }
    if (l == 0) { // a cast to the same type copies with all threads
        struct dt_cast_args args = {.n = tree->elements,
                                    .x = tree->own.gradients,
                                    .x_type = DT_F32,
                                    .y = tree->level[0].gradients,
                                    .y_type = DT_F32};
        DT_TRY(dt_cast(tree->backend, &args, stream));
        return dt_copy(tree->backend, tree->level[0].sum, tree->own.sum, sizeof *tree->own.sum,
                       stream);
    }
    struct dt_tree_sum unused = tree->level[l]; // swaps memory instead of copying
    tree->level[l] = *carried;
    tree->level[l - 1] = unused;
    return DT_OK;
}

dt_status dt_micro_tree_finish(struct dt_micro_tree *tree, int64_t first, int64_t end,
                               struct dt_stream *stream)
{
    for (int l = 0; l < tree->levels; l++)
        DT_TRY(add(tree, DT_F32, end - first, tree->level[l].gradients + first,
                   tree->own.gradients + first, stream));
    return DT_OK;
}

dt_status dt_micro_tree_finish_sums(struct dt_micro_tree *tree, struct dt_stream *stream)
{
    for (int l = 0; l < tree->levels; l++)
        DT_TRY(add(tree, DT_F64, SUMS, tree->level[l].sum, tree->own.sum, stream));
    return DT_OK;
}

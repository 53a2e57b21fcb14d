// The sum over a rank's micro-batches by one binary tree (comm.reduce = reproducible): 0 + 1, 2 +
// 3, …, then (0 + 1) + (2 + 3), …, which the tree over ranks continues (comm.h: DT_SUM_TREE), so
// that the sum of the global batch does not depend on how many ranks share it. Each micro-batch
// writes its gradients and loss sums to the same place. Level l keeps the sum of 2^l micro-batches,
// like a digit of a binary counter, and sums are carried like its digits. The last micro-batch
// carries through all levels row by row, as its gradients become final, so that buckets are sent
// while backward runs.
#pragma once

#include "backend/backend.h"
#include "kernels/loss_sum.h"

enum { DT_TREE_LEVELS = 31 };

// The summands: `elements` gradients, and one loss sum; device memory.
struct dt_tree_sum {
    float *gradients;
    struct dt_loss_sum *sum;
};

struct dt_micro_tree {
    const struct dt_backend *backend;
    int64_t elements;
    int levels;                               // log2 of the micro-batches
    struct dt_tree_sum own;                   // of one micro-batch, at the end of all; borrowed
    struct dt_tree_sum level[DT_TREE_LEVELS]; // [levels]
    float *gradients;                         // [levels, elements]
    struct dt_loss_sum *sums;                 // [levels]
};

// Bytes of device memory for a rank's micro_batches, a power of two.
int64_t dt_micro_tree_bytes(int64_t elements, int64_t micro_batches);
dt_status dt_micro_tree_create(const struct dt_backend *backend, const struct dt_tree_sum *own,
                               int64_t elements, int64_t micro_batches, struct dt_micro_tree *tree);
void dt_micro_tree_destroy(struct dt_micro_tree *tree); // zeros are fine
// Call when `own` has micro-batch i (from 0), except the last: adds it to the tree.
dt_status dt_micro_tree_carry(struct dt_micro_tree *tree, int64_t i, struct dt_stream *stream);
// Call when `own` has the last micro-batch: its elements [first, end), and its loss sums, become
// the sums of all micro-batches.
dt_status dt_micro_tree_finish(struct dt_micro_tree *tree, int64_t first, int64_t end,
                               struct dt_stream *stream);
dt_status dt_micro_tree_finish_sums(struct dt_micro_tree *tree, struct dt_stream *stream);

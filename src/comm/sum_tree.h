// The schedule of a sum in the order DT_SUM_TREE (comm.h). In step l of the first `levels` steps,
// members whose numbers differ in bit l add to each other's sums, from bit 0 on, so every element
// is summed by the same binary tree. Vectors are halved on the way, each of the two members keeping
// one half (recursive halving [Thakur, Rabenseifner & Gropp 2005], here from the nearest member to
// the farthest). An all-reduce takes the same steps back in `levels` more.
//
// comm_mpi_tree.c executes it between hosts, comm_nccl_tree.c between devices. The micro-batches of
// a rank are the tree's lowest levels (train/micro_tree.h).
#pragma once

#include "base/round.h"
#include "base/span.h"

struct dt_sum_tree {
    int rank, levels; // 2^levels members
    bool halves; // false: whole vectors are sent, and every member has the sum after `levels` steps
    struct dt_span all; // the vector
};

// adds: the member sends `theirs` and adds what it receives to `mine`. Otherwise it sends `mine`,
// which is final, and receives `theirs`.
struct dt_tree_step {
    bool adds;
    int peer;
    struct dt_span mine, theirs;
};

static inline int dt_tree_levels(int64_t members) // a power of two
{
    int levels = 0;
    while (INT64_C(1) << levels < members)
        levels++;
    return levels;
}

static inline struct dt_tree_step dt_tree_step(const struct dt_sum_tree *tree, int step)
{
    bool adds = step < tree->levels;
    int level = adds ? step : 2 * tree->levels - 1 - step;
    struct dt_span span = tree->all;
    struct dt_tree_step s = {adds, tree->rank ^ 1 << level, span, span};
    for (int l = 0; tree->halves && l <= level; l++) {
        int64_t middle = span.first + dt_ceil_div(span.end - span.first, 2);
        struct dt_span low = {span.first, middle}, high = {middle, span.end};
        bool is_high = tree->rank >> l & 1;
        s.mine = is_high ? high : low;
        s.theirs = is_high ? low : high;
        span = s.mine;
    }
    return s;
}

// `number` with its `levels` bits reversed: after halving 2^levels items, member `rank` has item
// dt_tree_reversed(rank).
static inline int dt_tree_reversed(int number, int levels)
{
    int reversed = 0;
    for (int l = 0; l < levels; l++)
        reversed |= (number >> l & 1) << (levels - 1 - l);
    return reversed;
}

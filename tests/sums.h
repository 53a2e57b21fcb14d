// Data for tests of collectives: numbers whose sums are exact in any order, and numbers whose sums
// reveal the order of additions.
#pragma once

#include "comm/comm.h"
#include "test.h"
#include "typed.h"

// Element i of a rank: a multiple of 1/4 below 4, which bf16 holds exactly, as it holds sums over
// four ranks. Integer types have four times the value.
static inline double exact(dt_dtype type, int64_t i, int rank, int round)
{
    return (double)((i * 5 + rank * 11 + round * 3) % 31 - 15) * (type == DT_I64 ? 1 : 0.25);
}

static inline void fill_exact(void *x, dt_dtype type, int64_t n, int rank, int round)
{
    for (int64_t i = 0; i < n; i++)
        set(x, type, i, exact(type, i, rank, round));
}

static inline void *new_exact(dt_dtype type, int64_t n, int rank, int round)
{
    void *x = malloc((size_t)(n * dt_dtype_size(type)) + 1);
    fill_exact(x, type, n, rank, round);
    return x;
}

// Returns the reduction of element i over `size` ranks.
static inline double reduced(dt_dtype type, int64_t i, int size, int round, enum dt_reduce_op op)
{
    double result = exact(type, i, 0, round);
    for (int r = 1; r < size; r++) {
        double x = exact(type, i, r, round);
        result = op == DT_SUM ? result + x : op == DT_MIN ? fmin(result, x) : fmax(result, x);
    }
    return result;
}

// Checks that elements [first, end) of x are the reduction over all ranks.
static inline void check_reduced(const char *what, const void *x, dt_dtype type, int64_t first,
                                 int64_t end, int size, int round, enum dt_reduce_op op)
{
    int64_t wrong = 0;
    for (int64_t i = first; i < end; i++)
        wrong += get(x, type, i) != reduced(type, i, size, round, op);
    CHECK(wrong == 0, "%s, %lld %s, round %d, op %d: %lld are wrong", what,
          (long long)(end - first), dt_dtype_name(type), round, op, (long long)wrong);
}

// Signed numbers of many magnitudes, whose sums round differently in every order.
static inline double leaf(dt_dtype type, int64_t i, int rank)
{
    uint32_t h = ((uint32_t)i * 2654435761u) ^ ((uint32_t)(rank + 1) * 2246822519u);
    h ^= h >> 15;
    h *= 2654435761u;
    double x = ((double)(h >> 9) - 4194304.0) * (double)(1 << (h & 7));
    return type == DT_F32 ? x : x / 3;
}

// Returns the sum in the order DT_SUM_TREE: ranks 0 + 1, 2 + 3, …, then sums of these sums.
static inline double tree(dt_dtype type, int64_t i, int first, int n)
{
    if (n == 1)
        return leaf(type, i, first);
    double sum = tree(type, i, first, n / 2) + tree(type, i, first + n / 2, n / 2);
    return type == DT_F32 ? (double)(float)sum : sum; // double is exact here, fp32 is not
}

static inline void fill_leaves(void *x, dt_dtype type, int64_t n, int rank)
{
    for (int64_t i = 0; i < n; i++)
        set(x, type, i, leaf(type, i, rank));
}

// Checks elements [first, end) of a whole array, which start at x, against the tree's sums.
static inline void check_tree_sums(const char *what, const void *x, dt_dtype type, int64_t first,
                                   int64_t end, int size)
{
    int64_t wrong = 0;
    for (int64_t i = first; i < end; i++)
        wrong += get(x, type, i - first) != tree(type, i, 0, size);
    CHECK(wrong == 0, "%s of %lld %s by a tree: %lld are wrong", what, (long long)(end - first),
          dt_dtype_name(type), (long long)wrong);
}

// Compares the sum over micro-batches by a binary tree with the same tree computed here. The bits
// must be equal for any power of two of micro-batches, in whatever ranges the last micro-batch is
// completed, step after step.
#include "test.h"
#include "train/micro_tree.h"

enum { ELEMENTS = 40003, MOST = 16, STEPS = 3 }; // more elements than a block of one thread

static struct dt_backend backend;

// Numbers whose sums round differently in any other order.
static float leaf(int64_t i, int k, int step)
{
    return sinf((float)i * 0.37f + (float)(k + 5 * step)) * expf((float)((i + 5 * k) % 17));
}

static float tree(int64_t i, int first, int n, int step)
{
    return n == 1 ? leaf(i, first, step)
                  : tree(i, first, n / 2, step) + tree(i, first + n / 2, n / 2, step);
}

static double sum_leaf(int i, int k, int step)
{
    return (double)leaf(i + 7, k, step) / 3;
}

static double sum_tree(int i, int first, int n, int step)
{
    return n == 1 ? sum_leaf(i, first, step)
                  : sum_tree(i, first, n / 2, step) + sum_tree(i, first + n / 2, n / 2, step);
}

static void fill(const struct dt_tree_sum *own, int k, int step)
{
    for (int64_t i = 0; i < ELEMENTS; i++)
        own->gradients[i] = leaf(i, k, step);
    own->sum->loss = sum_leaf(0, k, step);
    own->sum->counted = sum_leaf(1, k, step);
    for (int i = 0; i < DT_METRICS_MAX; i++)
        own->sum->metrics[i] = sum_leaf(2 + i, k, step);
}

static void check_sums(const struct dt_tree_sum *own, int n, int step)
{
    int64_t wrong = 0;
    for (int64_t i = 0; i < ELEMENTS; i++)
        wrong += own->gradients[i] != tree(i, 0, n, step);
    CHECK(wrong == 0, "step %d of %d micro-batches: %lld wrong gradients", step, n,
          (long long)wrong);
    wrong = own->sum->loss != sum_tree(0, 0, n, step);
    wrong += own->sum->counted != sum_tree(1, 0, n, step);
    for (int i = 0; i < DT_METRICS_MAX; i++)
        wrong += own->sum->metrics[i] != sum_tree(2 + i, 0, n, step);
    CHECK(wrong == 0, "step %d of %d micro-batches: %lld wrong sums", step, n, (long long)wrong);
}

static void check_tree(int n)
{
    struct dt_loss_sum sum;
    struct dt_tree_sum own = {malloc(ELEMENTS * sizeof(float)), &sum};
    struct dt_micro_tree micro;
    CHECK_OK(dt_micro_tree_create(&backend, &own, ELEMENTS, n, &micro));
    for (int step = 0; step < STEPS; step++) {
        for (int k = 0; k < n; k++) {
            fill(&own, k, step);
            if (k < n - 1)
                CHECK_OK(dt_micro_tree_carry(&micro, k, NULL));
            CHECK(k > 0 || n == 1 || micro.level[0].gradients == micro.gradients,
                  "step %d adds in other places than the first, which a graph has", step);
        }
        CHECK_OK(dt_micro_tree_finish_sums(&micro, NULL));
        for (int64_t first = 0, end; first < ELEMENTS; first = end) { // rows, one of which is empty
            end = first == 0 ? 1 : first * 3 < ELEMENTS ? first * 3 : ELEMENTS;
            CHECK_OK(dt_micro_tree_finish(&micro, first, end, NULL));
            CHECK_OK(dt_micro_tree_finish(&micro, end, end, NULL));
        }
        check_sums(&own, n, step);
    }
    dt_micro_tree_destroy(&micro);
    free(own.gradients);
}

int main(void)
{
    CHECK_OK(dt_backend_open("cpu", 0, 2, &backend));
    for (int n = 1; n <= MOST; n *= 2)
        check_tree(n);
    CHECK_INT(dt_micro_tree_bytes(10, 1), 0);
    CHECK_INT(dt_micro_tree_bytes(10, 2), 40);
    CHECK_INT(dt_micro_tree_bytes(10, 32), 200);
    dt_backend_close(&backend);
    return test_end();
}

// The synthetic tasks, one function and one row each.
//
// induction [Gu & Dao 2023, 4.1.2; Olsson et al. 2022]: random tokens below V - 1; the token V - 1,
//   the trigger, occurs once before the end, and as the last token. The answer, at the last
//   position, is the token that followed the trigger.
// selective-copy [Gu & Dao 2023, 4.1.1; Arjovsky et al. 2016]: `items` tokens of 1 … V - 2 at
//   random places among 0s, the noise; then `items` times the token V - 1, where the answers are
//   the tokens in their order.
// mqar [Arora et al. 2023, "Zoology", 3.2 and appendix]: `items` pairs of a key (1 … V/2 - 1) and a
//   value (V/2 … V - 1), all distinct; each key comes again after the pairs, its answer the value.
//   It comes g pairs of tokens after the first pairs, g drawn without repetition with probability
//   proportional to g^(0.01 - 1), the published power law. The rest is random.
// latch [Bengio et al. 1994; Hochreiter & Schmidhuber 1997, experiment 3]: the first `items` tokens
//   are all the same one of 1 … V - 2; 0s follow, in place of the papers' noise, and V - 1 is the
//   last token. The answer, at the last position, is the first token, so a model must keep it over
//   the whole row. Row r has the answer 1 + r mod (V - 2).
// parity [Hahn 2020; Grazzi et al. 2024]: random bits; the answer at each position is the parity
//   of the bits so far.
#include "data/tasks.h"

#include "base/rng.h"
#include "data/batch.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STREAM = 0x7461736b }; // different from the streams of data order

// The exponent of the power law of mqar's gaps.
static const double power = 0.01;

static struct dt_philox open_stream(uint64_t seed, int side, int64_t row)
{
    return dt_philox_init(seed, STREAM + (uint32_t)side, (uint64_t)row);
}

static int64_t below(struct dt_philox *rng, int64_t n)
{
    return (int64_t)dt_philox_below(rng, (uint64_t)n);
}

// Moves a random choice of k of `n` values to the front, in random order.
static void draw(struct dt_philox *rng, int64_t *values, int64_t n, int64_t k)
{
    for (int64_t i = 0; i < k; i++) {
        int64_t j = i + below(rng, n - i), value = values[j];
        values[j] = values[i];
        values[i] = value;
    }
}

static void count_up(int64_t *values, int64_t first, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        values[i] = first + i;
}

static void ignore_all(int32_t *labels, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        labels[i] = DT_IGNORED;
}

static dt_status check_induction(const struct dt_task_shape *s)
{
    if (s->length >= 3 && s->vocab >= 3)
        return DT_OK;
    return DT_FAIL(DT_USER, "give --length and --vocab of at least 3",
                   "induction has no rows of %" PRId64 " tokens below %" PRId64, s->length,
                   s->vocab);
}

static void fill_induction(const struct dt_task_shape *s, uint64_t seed, int side, int64_t row,
                           int32_t *ids, int32_t *labels, int64_t *scratch)
{
    struct dt_philox rng = open_stream(seed, side, row);
    int64_t last = s->length - 1, at = below(&rng, last - 1);
    int32_t trigger = (int32_t)(s->vocab - 1);
    (void)scratch;
    for (int64_t i = 0; i < last; i++)
        ids[i] = (int32_t)below(&rng, trigger);
    ids[at] = ids[last] = trigger;
    ignore_all(labels, s->length);
    labels[last] = ids[at + 1];
}

static dt_status check_copy(const struct dt_task_shape *s)
{
    if (s->vocab >= 3 && s->items >= 1 && s->length >= 2 * s->items)
        return DT_OK;
    return DT_FAIL(DT_USER,
                   "give a --vocab of at least 3, --items of at least 1, and a --length of at "
                   "least twice as many",
                   "selective-copy has no rows of %" PRId64 " tokens below %" PRId64
                   " with %" PRId64 " to copy",
                   s->length, s->vocab, s->items);
}

static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void fill_copy(const struct dt_task_shape *s, uint64_t seed, int side, int64_t row,
                      int32_t *ids, int32_t *labels, int64_t *scratch)
{
    struct dt_philox rng = open_stream(seed, side, row);
    int64_t context = s->length - s->items;
    memset(ids, 0, (size_t)context * sizeof *ids);
    ignore_all(labels, s->length);
    count_up(scratch, 0, context);
    draw(&rng, scratch, context, s->items);
    qsort(scratch, (size_t)s->items, sizeof *scratch, compare);
    for (int64_t i = 0; i < s->items; i++) {
        int32_t token = (int32_t)(1 + below(&rng, s->vocab - 2));
        ids[scratch[i]] = labels[context + i] = token;
        ids[context + i] = (int32_t)(s->vocab - 1);
    }
}

static dt_status check_mqar(const struct dt_task_shape *s)
{
    // Each pair needs two tokens, and two more for its key.
    if (s->items >= 1 && s->items < s->vocab / 2 && 4 * s->items <= s->length)
        return DT_OK;
    return DT_FAIL(DT_USER,
                   "give --items of at least 1, a --vocab of more than twice and a --length of at "
                   "least four times as many",
                   "mqar has no rows of %" PRId64 " tokens below %" PRId64 " with %" PRId64
                   " pairs",
                   s->length, s->vocab, s->items);
}

// Draws a free gap in [1, n] with probability proportional to g^(power - 1). Rejection sampling:
// floor((n + 1)^u) has the probability log((g + 1) / g) / log(n + 1), and the ratio to it is at
// most 1 / log 2, at g = 1.
static int64_t draw_gap(struct dt_philox *rng, int64_t n, const int64_t *taken)
{
    for (;;) {
        int64_t g = (int64_t)pow((double)(n + 1), (double)dt_philox_u32(rng) * 0x1p-32);
        double accept = pow((double)g, power - 1) * log(2) / log1p(1 / (double)g);
        if ((double)dt_philox_u32(rng) * 0x1p-32 < accept && g <= n && !taken[g - 1])
            return g;
    }
}

static void fill_mqar(const struct dt_task_shape *s, uint64_t seed, int side, int64_t row,
                      int32_t *ids, int32_t *labels, int64_t *scratch)
{
    struct dt_philox rng = open_stream(seed, side, row);
    int64_t half = s->vocab / 2, n = s->items, space = (s->length - 2 * n) / 2;
    int64_t *keys = scratch, *values = keys + half, *taken = values + s->vocab - half;
    count_up(keys, 1, half - 1);
    draw(&rng, keys, half - 1, n);
    count_up(values, half, s->vocab - half);
    draw(&rng, values, s->vocab - half, n);
    memset(taken, 0, (size_t)space * sizeof *taken);
    for (int64_t i = 2 * n; i < s->length; i++)
        ids[i] = (int32_t)below(&rng, s->vocab);
    ignore_all(labels, s->length);
    for (int64_t i = 0; i < n; i++) {
        int64_t gap = draw_gap(&rng, space, taken), at = 2 * (n + gap - 1);
        taken[gap - 1] = 1;
        ids[2 * i] = ids[at] = (int32_t)keys[i];
        ids[2 * i + 1] = labels[at] = (int32_t)values[i];
    }
}

static dt_status check_latch(const struct dt_task_shape *s)
{
    if (s->vocab >= 3 && s->items >= 1 && s->length > s->items)
        return DT_OK;
    return DT_FAIL(DT_USER,
                   "give a --vocab of at least 3, --items of at least 1, and a larger --length",
                   "latch has no rows of %" PRId64 " tokens below %" PRId64
                   " that begin with %" PRId64 " to keep",
                   s->length, s->vocab, s->items);
}

static void fill_latch(const struct dt_task_shape *s, uint64_t seed, int side, int64_t row,
                       int32_t *ids, int32_t *labels, int64_t *scratch)
{
    int64_t last = s->length - 1;
    int32_t kept = (int32_t)(1 + row % (s->vocab - 2));
    (void)seed, (void)side, (void)scratch;
    for (int64_t i = 0; i < last; i++)
        ids[i] = i < s->items ? kept : 0;
    ids[last] = (int32_t)(s->vocab - 1);
    ignore_all(labels, s->length);
    labels[last] = kept;
}

static dt_status check_parity(const struct dt_task_shape *s)
{
    if (s->length >= 1 && s->vocab == 2)
        return DT_OK;
    return DT_FAIL(DT_USER, "leave --vocab out, and give a --length of at least 1",
                   "parity is of bits, not of %" PRId64 " tokens below %" PRId64, s->length,
                   s->vocab);
}

static void fill_parity(const struct dt_task_shape *s, uint64_t seed, int side, int64_t row,
                        int32_t *ids, int32_t *labels, int64_t *scratch)
{
    struct dt_philox rng = open_stream(seed, side, row);
    (void)scratch;
    for (int64_t i = 0; i < s->length; i++) {
        ids[i] = (int32_t)(dt_philox_u32(&rng) & 1);
        labels[i] = ids[i] ^ (i > 0 ? labels[i - 1] : 0);
    }
}

const struct dt_task dt_tasks[] = {
    {"induction",
     "the token that followed the only earlier trigger",
     {256, 16, 1},
     check_induction,
     fill_induction},
    {"selective-copy", "tokens among noise, in their order", {4096, 16, 16}, check_copy, fill_copy},
    {"mqar", "the values of keys that come again", {512, 8192, 64}, check_mqar, fill_mqar},
    {"latch", "the token that the row began with", {100, 4, 3}, check_latch, fill_latch},
    {"parity", "the parity of the bits so far", {40, 2, 1}, check_parity, fill_parity},
    {0},
};

const struct dt_task *dt_task_find(const char *name)
{
    for (const struct dt_task *task = dt_tasks; task->name; task++)
        if (strcmp(task->name, name) == 0)
            return task;
    return NULL;
}

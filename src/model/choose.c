// Draws a class in integer arithmetic, with e^(z - most) as fixed-point numbers of 40 fractional
// bits. Filters keep a prefix of the classes by descending logit, which a heap yields one by one.
#include "model/choose.h"

#include <math.h>
#include <stddef.h>

enum { POINT = 40 }; // fractional bits of a weight: sums of 2^23 classes fit into 64 bits

dt_status dt_choice_check(const struct dt_choice *c)
{
    if (!(c->temperature >= 0) || !isfinite(c->temperature))
        return DT_FAIL(DT_USER, NULL, "the temperature is %g; it must be 0 or more",
                       c->temperature);
    if (c->top_k < 0)
        return DT_FAIL(DT_USER, NULL, "top_k is %lld; it must be 1 or more, or 0 for all",
                       (long long)c->top_k);
    if (!(c->top_p > 0 && c->top_p <= 1))
        return DT_FAIL(DT_USER, NULL, "top_p is %g; it must be above 0, and at most 1 for all",
                       c->top_p);
    if (!(c->min_p >= 0 && c->min_p <= 1))
        return DT_FAIL(DT_USER, NULL, "min_p is %g; it must be from 0 to 1", c->min_p);
    if (!(c->repetition_penalty > 0) || !isfinite(c->repetition_penalty))
        return DT_FAIL(DT_USER, NULL, "the repetition penalty is %g; it must be above 0",
                       c->repetition_penalty);
    return DT_OK;
}

static uint64_t high_product(uint64_t a, uint64_t b)
{
    return (uint64_t)((unsigned __int128)a * b >> 64);
}

// 2^-t with t = whole + fraction / 2^32, rounded down, by the series of e^-x in 64-bit fixed point.
static uint64_t weight_of(uint64_t t)
{
    enum { TERMS = 16 };                               // (ln 2)^16 / 16! is 2^-52
    const uint64_t ln2 = UINT64_C(0xB17217F7D1CF79AB); // of 2^64
    uint64_t x = high_product(t << 32, ln2), sum = UINT64_MAX, whole = t >> 32;
#pragma GCC unroll 16
    for (int k = TERMS; k > 0; k--) // 1 - x / k · sum
        sum = UINT64_MAX - high_product(x, sum) / (uint64_t)k;
    return whole > POINT ? 0 : sum >> (64 - POINT) >> whole;
}

static uint64_t weight(double logit, double most, double temperature)
{
    double below = (most - logit) / temperature * 0x1.71547652b82fep0; // log2 e
    return below < POINT + 1 ? weight_of((uint64_t)(below * 0x1p32)) : 0;
}

// A heap of classes with the most likely first.
struct heap {
    const float *logits;
    int32_t *at;
    int64_t n;
};

static bool comes_before(const struct heap *heap, int32_t a, int32_t b)
{
    return heap->logits[a] > heap->logits[b] || (heap->logits[a] == heap->logits[b] && a < b);
}

static void sift_down(struct heap *heap, int64_t i)
{
    int32_t moved = heap->at[i];
    for (int64_t child = 2 * i + 1; child < heap->n; child = 2 * i + 1) {
        if (child + 1 < heap->n && comes_before(heap, heap->at[child + 1], heap->at[child]))
            child++;
        if (!comes_before(heap, heap->at[child], moved))
            break;
        heap->at[i] = heap->at[child];
        i = child;
    }
    heap->at[i] = moved;
}

// Moves the first class to the slot after the end, which the heap no longer needs; in the end the
// array is in ascending order.
static int32_t take_first(struct heap *heap)
{
    int32_t first = heap->at[0];
    heap->at[0] = heap->at[--heap->n];
    heap->at[heap->n] = first;
    sift_down(heap, 0);
    return first;
}

// Returns the number of classes that stay, which are the last of heap->at, the most likely at the
// end.
static int64_t filter(const struct dt_choice *c, struct heap *heap, double most)
{
    int64_t n = heap->n, kept = 0, k = c->top_k > 0 && c->top_k < n ? c->top_k : n;
    uint64_t total = 0, before = 0, least;
    const float *logits = heap->logits;
    if (k == n) {
        for (int64_t i = 0; i < n; i++)
            total += weight(logits[i], most, c->temperature);
    } else {
        for (float last = 0; heap->n > 0 && (kept < k || logits[heap->at[0]] == last); kept++) {
            last = logits[take_first(heap)];
            total += weight(last, most, c->temperature);
        }
        n = kept;
    }
    const double reach = c->top_p * (double)total,
                 few = c->min_p * (double)weight(most, most, c->temperature);
    uint64_t enough = c->top_p < 1 ? (uint64_t)reach : UINT64_MAX;
    least = (uint64_t)few;
    // Classes taken by top_k are already in order.
    int64_t end = kept > 0 ? heap->n + kept : heap->n, stay = 0;
    for (; stay < n; stay++) {
        int32_t next = kept > 0 ? heap->at[end - 1 - stay] : heap->at[0];
        uint64_t w = weight(logits[next], most, c->temperature);
        if (stay > 0 && (before >= enough || w < least))
            break;
        if (kept == 0)
            take_first(heap);
        before += w;
    }
    return stay;
}

bool dt_choice_sorts(const struct dt_choice *c)
{
    return c->top_k > 0 || c->top_p < 1 || c->min_p > 0 || c->repetition_penalty != 1;
}

int64_t dt_choose(const struct dt_choice *c, const float *logits, int64_t n,
                  const unsigned char *seen, void *scratch, struct dt_philox *rng)
{
    int64_t best = 0, i = 0;
    float *changed = scratch;
    if (c->repetition_penalty != 1 && seen) {
        float penalty = (float)c->repetition_penalty;
        for (int64_t j = 0; j < n; j++)
            changed[j] = !seen[j]        ? logits[j]
                         : logits[j] > 0 ? logits[j] / penalty
                                         : logits[j] * penalty;
        logits = changed;
    }
    for (int64_t j = 1; j < n; j++)
        best = logits[j] > logits[best] ? j : best;
    if (c->temperature == 0 || !isfinite(logits[best])) // due to a penalty far below 1
        return best;
    double most = logits[best];
    uint64_t total = 0, at;
    if (c->top_k == 0 && c->top_p == 1 && c->min_p == 0) {
        for (int64_t j = 0; j < n; j++)
            total += weight(logits[j], most, c->temperature);
        for (at = dt_philox_below(rng, total);; i++) {
            uint64_t w = weight(logits[i], most, c->temperature);
            if (at < w)
                return i;
            at -= w;
        }
    }
    struct heap heap = {logits, (int32_t *)(void *)(changed + n), n};
    for (int64_t j = 0; j < n; j++)
        heap.at[j] = (int32_t)j;
    for (int64_t j = n / 2 - 1; j >= 0; j--)
        sift_down(&heap, j);
    const int32_t *end = heap.at + n;
    int64_t stay = filter(c, &heap, most);
    for (int64_t j = 1; j <= stay; j++)
        total += weight(logits[end[-j]], most, c->temperature);
    for (at = dt_philox_below(rng, total), i = 1;; i++) {
        uint64_t w = weight(logits[end[-i]], most, c->temperature);
        if (at < w)
            return end[-i];
        at -= w;
    }
}
